//! Dask's settings, and what can be wrong with them.

use core::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CipherSuite, ClientConfig, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
};
use zeroize::Zeroizing;

use super::x509::{Certificate, Time};
use super::{Tls, Verifier};

/// Certificates or a key in PEM form: a file that holds them, or themselves.
///
/// Made from text as Dask does it: text with a newline in it is PEM, all other
/// text is a path. Text may hold a key, so it is never shown, and it is
/// overwritten when it is dropped.
///
/// ```
/// use daskwire_comm::tls::Pem;
/// assert_eq!(format!("{:?}", Pem::from("/etc/dask/ca.pem")), "/etc/dask/ca.pem");
/// assert_eq!(format!("{:?}", Pem::from("-----BEGIN …\n")), "PEM text");
/// ```
#[derive(Clone)]
pub struct Pem(Source);

#[derive(Clone)]
enum Source {
    File(PathBuf),
    Text(Zeroizing<String>),
}

impl From<&str> for Pem {
    fn from(value: &str) -> Self {
        value.to_owned().into()
    }
}

impl From<String> for Pem {
    fn from(value: String) -> Self {
        if value.contains('\n') {
            Self(Source::Text(value.into()))
        } else {
            Self(Source::File(value.into()))
        }
    }
}

impl From<PathBuf> for Pem {
    fn from(path: PathBuf) -> Self {
        Self(Source::File(path))
    }
}

impl From<&Path> for Pem {
    fn from(path: &Path) -> Self {
        Self(Source::File(path.into()))
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::File(path) => path.display().fmt(f),
            Source::Text(_) => f.write_str("PEM text"),
        }
    }
}

impl Pem {
    fn read(&self) -> Result<Zeroizing<Vec<u8>>, TlsProblem> {
        match &self.0 {
            Source::File(path) => fs::read(path).map(Into::into).map_err(TlsProblem::Read),
            Source::Text(text) => Ok(text.as_bytes().to_vec().into()),
        }
    }
}

/// The settings of one role: what Dask has as `distributed.comm.tls.ca-file`
/// and, for each of `client`, `scheduler` and `worker`, `cert` and `key`.
///
/// A process has one role, whichever side of a connection it is on: a worker
/// presents the certificate of a worker to those that it connects to as well
/// as to those that connect to it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TlsSettings {
    /// The certificates of the authorities that both sides believe, and of
    /// peers that are believed without one.
    pub ca_file: Pem,
    /// The certificate to present; behind it those that lead to an authority,
    /// if there are any between.
    pub cert: Pem,
    /// The key of the certificate; without it, the key stands in `cert` too.
    pub key: Option<Pem>,
    /// [`Verifier::check_name`]; Dask does not.
    pub check_name: bool,
    /// `ciphers`: what TLS 1.2 may encrypt with, as OpenSSL names it, separated by
    /// colons; `None` for all that there is. As with OpenSSL, those of TLS 1.3
    /// are not chosen from. Unlike there, a name that is not known is an error,
    /// and so are groups such as `HIGH`.
    pub ciphers: Option<String>,
    /// `min-version`: the oldest version to speak.
    pub min_version: TlsVersion,
    /// `max-version`: the newest version to speak. QUIC needs 1.3.
    pub max_version: TlsVersion,
}

/// A version of TLS: `1.2` and `1.3` in Dask's configuration, which has no
/// others either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2, the oldest.
    #[default]
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// The suites of TLS 1.2 that rustls has, and how OpenSSL names them.
const CIPHERS: [(&str, CipherSuite); 6] = [
    (
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "ECDHE-RSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

impl TlsSettings {
    /// These certificates, with the key in `cert`, no check of names, and both
    /// versions of TLS with all ciphers.
    pub fn new(ca_file: impl Into<Pem>, cert: impl Into<Pem>) -> Self {
        Self {
            ca_file: ca_file.into(),
            cert: cert.into(),
            key: None,
            check_name: false,
            ciphers: None,
            min_version: TlsVersion::V1_2,
            max_version: TlsVersion::V1_3,
        }
    }

    /// With the key elsewhere.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Pem>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Reads the files and builds configurations with the crypto provider that
    /// this package was built with: `ring`, or without it `aws-lc-rs`. A
    /// default that others may have installed in the process is not looked at.
    ///
    /// Files that change later are not read again: build another.
    ///
    /// # Errors
    ///
    /// [`TlsError`], which names the file and what to do.
    #[cfg(any(feature = "ring", feature = "aws-lc-rs"))]
    pub fn build(&self) -> Result<Tls, TlsError> {
        #[cfg(feature = "ring")]
        let provider = rustls::crypto::ring::default_provider();
        #[cfg(not(feature = "ring"))]
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        self.build_with_provider(provider.into())
    }

    /// As [`build`](Self::build), with a crypto provider of the caller's.
    ///
    /// # Errors
    ///
    /// [`TlsError`], which names the file and what to do.
    pub fn build_with_provider(&self, provider: Arc<CryptoProvider>) -> Result<Tls, TlsError> {
        let versions = self.versions()?;
        let provider = match &self.ciphers {
            // What is not spoken needs no ciphers.
            Some(ciphers) if self.min_version == TlsVersion::V1_2 => {
                self.limit(ciphers, &provider)?.into()
            }
            _ => provider,
        };
        let now = now();
        let failed = |setting, pem: &Pem| {
            let source = pem.clone();
            move |problem| TlsError {
                setting,
                source,
                problem,
            }
        };
        let in_ca = failed("ca-file", &self.ca_file);
        let (authorities, mut verifier) = self
            .read_authorities(now, &provider)
            .map_err(in_ca.clone())?;
        verifier = verifier.check_name(self.check_name);

        let chain = self.read_chain(now).map_err(failed("cert", &self.cert))?;
        let (key_setting, key_pem) = match &self.key {
            Some(key) => ("key", key),
            None => ("cert", &self.cert),
        };
        let key = read_key(key_pem, self.key.is_none(), &chain, &provider)
            .map_err(failed(key_setting, key_pem))?;
        let identity = Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key)));

        let in_ca = |error| in_ca(TlsProblem::Config(error));
        let verifier = Arc::new(verifier);
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(in_ca.clone())?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(identity.clone());
        // Whoever resumes a session does not show its certificate again, which
        // may have expired since.
        client.resumption = rustls::client::Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(in_ca)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(identity);
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        let mut tls = Tls::from_configs(Arc::new(client), Arc::new(server));
        let count = if authorities == 1 {
            "1 certificate".to_owned()
        } else {
            format!("{authorities} certificates")
        };
        tls.authorities = format!("{} (ca-file, {count})", self.ca_file).into();
        Ok(tls)
    }

    fn versions(&self) -> Result<&'static [&'static SupportedProtocolVersion], TlsError> {
        static ONLY_1_2: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS12];
        static ONLY_1_3: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];
        match (self.min_version, self.max_version) {
            (TlsVersion::V1_2, TlsVersion::V1_3) => Ok(rustls::ALL_VERSIONS),
            (TlsVersion::V1_2, TlsVersion::V1_2) => Ok(&ONLY_1_2),
            (TlsVersion::V1_3, TlsVersion::V1_3) => Ok(&ONLY_1_3),
            (TlsVersion::V1_3, TlsVersion::V1_2) => Err(TlsError {
                setting: "min-version",
                source: PathBuf::new().into(),
                problem: TlsProblem::NoVersion,
            }),
        }
    }

    /// The provider, with no more than these suites of TLS 1.2.
    fn limit(&self, ciphers: &str, provider: &CryptoProvider) -> Result<CryptoProvider, TlsError> {
        let failed = |problem| TlsError {
            setting: "ciphers",
            source: PathBuf::new().into(),
            problem,
        };
        let mut wanted = Vec::new();
        // As OpenSSL separates them.
        for name in ciphers
            .split([':', ',', ' '])
            .filter(|name| !name.is_empty())
        {
            let known = CIPHERS.iter().find(|(known, _)| *known == name);
            match known {
                Some((_, suite)) => wanted.push(*suite),
                None => return Err(failed(TlsProblem::Cipher { name: name.into() })),
            }
        }
        let (mut suites, modern): (Vec<SupportedCipherSuite>, Vec<_>) = provider
            .cipher_suites
            .iter()
            .partition(|suite| suite.version().version == rustls::ProtocolVersion::TLSv1_2);
        suites.retain(|suite| wanted.contains(&suite.suite()));
        if suites.is_empty() {
            return Err(failed(TlsProblem::NoCipher));
        }
        // The first are preferred, as they are named.
        suites.sort_by_key(|suite| wanted.iter().position(|name| *name == suite.suite()));
        Ok(CryptoProvider {
            cipher_suites: modern.into_iter().chain(suites).collect(),
            ..provider.clone()
        })
    }

    fn read_authorities(
        &self,
        now: Time,
        provider: &CryptoProvider,
    ) -> Result<(usize, Verifier), TlsProblem> {
        let authorities = read_certificates(&self.ca_file)?;
        let mut problem = None;
        let mut is_any_good = false;
        for (index, der) in authorities.iter().enumerate() {
            let certificate =
                Certificate::parse(der).map_err(|_| TlsProblem::Certificate { index })?;
            match check_dates(&certificate, now) {
                Ok(()) => is_any_good = true,
                Err(error) => problem = Some(error),
            }
        }
        // Collections of authorities have old ones among them.
        if let (false, Some(problem)) = (is_any_good, problem) {
            return Err(problem);
        }
        let count = authorities.len();
        let verifier = Verifier::new(authorities, provider).map_err(TlsProblem::Config)?;
        Ok((count, verifier))
    }

    fn read_chain(&self, now: Time) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
        let chain = read_certificates(&self.cert)?;
        for (index, der) in chain.iter().enumerate() {
            let certificate =
                Certificate::parse(der).map_err(|_| TlsProblem::Certificate { index })?;
            check_dates(&certificate, now)?;
        }
        Ok(chain)
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.map_or(0, |time| time.as_secs());
    Time(i64::try_from(seconds).unwrap_or(i64::MAX))
}

fn check_dates(certificate: &Certificate<'_>, now: Time) -> Result<(), TlsProblem> {
    let (from, to) = (certificate.not_before, certificate.not_after);
    if now < from {
        return Err(TlsProblem::NotValidYet {
            not_before: from.to_string(),
        });
    }
    if now > to {
        return Err(TlsProblem::Expired {
            not_after: to.to_string(),
        });
    }
    Ok(())
}

fn read_certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
    let text = pem.read()?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(TlsProblem::NoCertificate {
            // What a folder of such files has besides certificates.
            is_key: contains(&text, b"PRIVATE KEY-----"),
        }),
        Ok(certificates) => Ok(certificates),
        // An encrypted key beside the certificate has lines that are no base64.
        Err(_) if is_encrypted(&text) => Err(TlsProblem::EncryptedKey),
        Err(error) => Err(TlsProblem::Pem(error)),
    }
}

fn read_key(
    pem: &Pem,
    is_in_cert: bool,
    chain: &[CertificateDer<'_>],
    provider: &CryptoProvider,
) -> Result<Arc<dyn rustls::sign::SigningKey>, TlsProblem> {
    let text = pem.read()?;
    let key = match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) => key,
        Err(_) if is_encrypted(&text) => return Err(TlsProblem::EncryptedKey),
        Err(pem::Error::NoItemsFound) => return Err(TlsProblem::NoKey { is_in_cert }),
        Err(error) => return Err(TlsProblem::Pem(error)),
    };
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(TlsProblem::Key)?;
    let leaf = chain.first().map(|der| Certificate::parse(der));
    if let (Some(Ok(leaf)), Some(public)) = (leaf, key.public_key())
        && leaf.public_key != public.as_ref()
    {
        return Err(TlsProblem::KeyMismatch);
    }
    Ok(key)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn is_encrypted(text: &[u8]) -> bool {
    contains(text, b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || contains(text, b"4,ENCRYPTED")
}

/// The settings of a whole cluster, as Dask's `Security` has them.
///
/// ```no_run
/// use daskwire_comm::tls::{ClusterRole, Security, TlsSettings};
/// # fn main() -> Result<(), daskwire_comm::tls::TlsError> {
/// let mut security = Security::default();
/// security.ca_file = Some("/etc/dask/ca.pem".into());
/// security.worker.cert = Some("/etc/dask/worker.pem".into());
/// let settings: TlsSettings = security.role(ClusterRole::Worker)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Security {
    /// `distributed.comm.tls.ca-file`
    pub ca_file: Option<Pem>,
    /// `distributed.comm.tls.client`
    pub client: RoleSettings,
    /// `distributed.comm.tls.scheduler`
    pub scheduler: RoleSettings,
    /// `distributed.comm.tls.worker`
    pub worker: RoleSettings,
    /// `distributed.comm.tls.ciphers`: [`TlsSettings::ciphers`].
    pub ciphers: Option<String>,
    /// `distributed.comm.tls.min-version`; without it, 1.2.
    pub min_version: Option<TlsVersion>,
    /// `distributed.comm.tls.max-version`; without it, 1.3.
    pub max_version: Option<TlsVersion>,
}

/// What one role presents.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RoleSettings {
    /// `cert`: [`TlsSettings::cert`].
    pub cert: Option<Pem>,
    /// `key`: [`TlsSettings::key`].
    pub key: Option<Pem>,
}

/// What a process is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterRole {
    /// It submits work.
    Client,
    /// It hands it out.
    Scheduler,
    /// It does it.
    Worker,
}

impl ClusterRole {
    const fn cert_setting(self) -> &'static str {
        match self {
            Self::Client => "client.cert",
            Self::Scheduler => "scheduler.cert",
            Self::Worker => "worker.cert",
        }
    }
}

impl Security {
    /// The settings of one role.
    ///
    /// # Errors
    ///
    /// [`TlsProblem::NotSet`].
    pub fn role(&self, role: ClusterRole) -> Result<TlsSettings, TlsError> {
        let not_set = |setting| TlsError {
            setting,
            source: PathBuf::new().into(),
            problem: TlsProblem::NotSet,
        };
        let RoleSettings { cert, key } = match role {
            ClusterRole::Client => &self.client,
            ClusterRole::Scheduler => &self.scheduler,
            ClusterRole::Worker => &self.worker,
        };
        let ca_file = self.ca_file.clone().ok_or_else(|| not_set("ca-file"))?;
        let cert = cert.clone().ok_or_else(|| not_set(role.cert_setting()))?;
        Ok(TlsSettings {
            key: key.clone(),
            ciphers: self.ciphers.clone(),
            min_version: self.min_version.unwrap_or(TlsVersion::V1_2),
            max_version: self.max_version.unwrap_or(TlsVersion::V1_3),
            ..TlsSettings::new(ca_file, cert)
        })
    }
}

/// Settings that no TLS can be had with.
#[derive(Debug)]
pub struct TlsError {
    setting: &'static str,
    source: Pem,
    problem: TlsProblem,
}

impl TlsError {
    /// The setting that is wrong: `ca-file`, `cert` or `key`, with the role in
    /// front where that matters; `ciphers`, `min-version`.
    pub const fn setting(&self) -> &'static str {
        self.setting
    }

    /// What is wrong with it.
    pub const fn problem(&self) -> &TlsProblem {
        &self.problem
    }
}

/// What is wrong with a setting.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsProblem {
    /// It is needed, and there is none.
    NotSet,
    /// The file cannot be read.
    Read(io::Error),
    /// It looks like PEM and is none.
    Pem(pem::Error),
    /// There is no certificate in it.
    NoCertificate {
        /// There is a key.
        is_key: bool,
    },
    /// A certificate in it cannot be read.
    Certificate {
        /// Which one, from 0.
        index: usize,
    },
    /// Its time is over.
    Expired {
        /// When it was.
        not_after: String,
    },
    /// Its time is still to come.
    NotValidYet {
        /// When it comes.
        not_before: String,
    },
    /// There is no key in it.
    NoKey {
        /// No `key` is set, so the file of the certificate should have it.
        is_in_cert: bool,
    },
    /// The key needs a passphrase.
    EncryptedKey,
    /// The key is of no kind that the crypto provider knows.
    Key(rustls::Error),
    /// The key is that of another certificate.
    KeyMismatch,
    /// It cannot be used with the crypto provider.
    Config(rustls::Error),
    /// No version of TLS is as new as the oldest one allowed, and as old as the
    /// newest.
    NoVersion,
    /// One of the ciphers is not known here.
    Cipher {
        /// Its name.
        name: String,
    },
    /// The crypto provider has none of the ciphers.
    NoCipher,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            setting,
            source,
            problem,
        } = self;
        if let TlsProblem::NotSet = problem {
            return write!(
                f,
                "TLS needs the setting {setting} (in Dask's configuration \
                 distributed.comm.tls.{setting})"
            );
        }
        match problem {
            TlsProblem::NoVersion => {
                return f.write_str("min-version for TLS is 1.3, and max-version 1.2");
            }
            TlsProblem::Cipher { name } => {
                let known = CIPHERS.map(|(name, _)| name).join(", ");
                return write!(
                    f,
                    "ciphers: there is no {name:?} here; give names of single ciphers of TLS 1.2, \
                     separated by colons, out of {known}"
                );
            }
            TlsProblem::NoCipher => {
                return f.write_str("ciphers: the crypto provider has none of those named");
            }
            _ => {}
        }
        write!(f, "{source} ({setting}): ")?;
        match problem {
            TlsProblem::NotSet
            | TlsProblem::NoVersion
            | TlsProblem::Cipher { .. }
            | TlsProblem::NoCipher => Ok(()),
            TlsProblem::Read(error) => write!(f, "cannot be read: {error}"),
            TlsProblem::Pem(error) => write!(f, "is no PEM: {error}"),
            TlsProblem::NoCertificate { is_key: true } => f.write_str(
                "has a key and no certificate; are the files of certificate and key swapped?",
            ),
            TlsProblem::NoCertificate { is_key: false } => f.write_str(
                "has no certificate in it; expected PEM, which begins with \
                 -----BEGIN CERTIFICATE----- (openssl x509 -inform der makes it from DER)",
            ),
            TlsProblem::Certificate { index } => {
                write!(f, "certificate {} in it cannot be read", index + 1)
            }
            TlsProblem::Expired { not_after } => {
                write!(f, "the certificate expired at {not_after}; make a new one")
            }
            TlsProblem::NotValidYet { not_before } => write!(
                f,
                "the certificate is not valid before {not_before}; is the clock right?"
            ),
            TlsProblem::NoKey { is_in_cert: true } => f.write_str(
                "has no private key in it, and no other file is set for the key; \
                 set key, or append the key to this file",
            ),
            TlsProblem::NoKey { is_in_cert: false } => f.write_str("has no private key in it"),
            TlsProblem::EncryptedKey => f.write_str(
                "the private key needs a passphrase, for which there is no setting; \
                 decrypt it (openssl pkey -in KEY -out NEW) and protect the file",
            ),
            TlsProblem::Key(error) => write!(f, "the private key cannot be used: {error}"),
            TlsProblem::KeyMismatch => {
                f.write_str("the private key is not the one of the certificate")
            }
            TlsProblem::Config(error) => write!(f, "cannot be used: {error}"),
        }
    }
}

impl core::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match &self.problem {
            TlsProblem::Read(error) => Some(error),
            TlsProblem::Pem(error) => Some(error),
            TlsProblem::Key(error) | TlsProblem::Config(error) => Some(error),
            _ => None,
        }
    }
}
