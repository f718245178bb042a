//! Dask's TLS settings and their errors.

use core::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, CipherSuite, ClientConfig, InconsistentKeys, ServerConfig, SignatureScheme,
    SupportedCipherSuite, SupportedProtocolVersion,
};
use zeroize::Zeroizing;

use super::certificate::{Certificate, Validity};
use super::verifier::VERSION_PROBLEM;
use super::{Tls, Verifier};

/// Maximum length of a file in bytes. The certificates of all public authorities have less than a
/// megabyte, while a device may never end.
const MAX_LEN: u64 = 16 << 20;

/// Certificates or a key in PEM form: the path of a file, or the PEM itself.
///
/// As in Dask, a string with a newline is PEM, and any other string is a path. PEM may
/// contain a key, so it is never printed, and it is overwritten when it is dropped.
///
/// ```
/// use daskwire_comm::tls::Pem;
/// assert_eq!(format!("{:?}", Pem::from("/etc/dask/ca.pem")), "/etc/dask/ca.pem");
/// assert_eq!(format!("{:?}", Pem::from("-----BEGIN …\n")), "inline PEM");
/// ```
#[derive(Clone)]
pub struct Pem(Source);

#[derive(Clone)]
enum Source {
    File(PathBuf),
    Inline(Zeroizing<String>),
}

impl From<&str> for Pem {
    fn from(value: &str) -> Self {
        value.to_owned().into()
    }
}

impl From<String> for Pem {
    fn from(value: String) -> Self {
        if value.contains('\n') {
            Self(Source::Inline(value.into()))
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
            Source::Inline(_) => f.write_str("inline PEM"),
        }
    }
}

impl Pem {
    fn read(&self) -> Result<Zeroizing<Vec<u8>>, TlsProblem> {
        match &self.0 {
            Source::File(path) => read_file(path).map_err(TlsProblem::Read),
            Source::Inline(pem) => Ok(pem.as_bytes().to_vec().into()),
        }
    }
}

/// Reads a file with certificates or a key, which is no longer than [`MAX_LEN`].
fn read_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = File::open(path)?;
    // A vector that grows would leave parts of a key in memory.
    let len = file.metadata()?.len().min(MAX_LEN);
    let capacity = usize::try_from(len).map_or(0, |len| len + 1);
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    let mut file = file.take(MAX_LEN);
    file.read_to_end(&mut bytes)?;
    match file.limit() {
        0 => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it has 16 MiB or more",
        )),
        _ => Ok(bytes),
    }
}

/// The TLS settings of one role: `distributed.comm.tls.ca-file` of Dask's
/// configuration, and `cert` and `key` of `client`, `scheduler` or `worker`.
///
/// A process has one role for both ends of a connection: a worker presents its
/// certificate to peers that it connects to and to peers that connect to it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TlsSettings {
    /// The trusted certificates: those of authorities, and those of peers that are
    /// trusted without an authority.
    pub ca_file: Pem,
    /// The certificate to present, followed by any intermediate certificates.
    pub cert: Pem,
    /// The key of the certificate. Default: `None`, so that it is read from `cert`.
    pub key: Option<Pem>,
    /// Whether to check names; see [`Verifier::check_name`]. Default: `false`, as in
    /// Dask.
    pub check_name: bool,
    /// `ciphers`: the cipher suites of TLS 1.2 by their OpenSSL names, separated by
    /// colons. Default: `None`, so that all are used. As with OpenSSL, the suites of
    /// TLS 1.3 are not affected. Unlike there, unknown names and groups such as `HIGH`
    /// are errors.
    pub ciphers: Option<String>,
    /// `min-version`: the oldest version to use. Default: 1.2.
    pub min_version: TlsVersion,
    /// `max-version`: the newest version to use. Default: 1.3. QUIC needs 1.3.
    pub max_version: TlsVersion,
}

impl TlsSettings {
    with_fields! {
        with_check_name(check_name: bool);
        with_ciphers(ciphers: impl Into<Option<String>>);
        with_min_version(min_version: TlsVersion);
        with_max_version(max_version: TlsVersion);
    }
}

/// A TLS version: `1.2` or `1.3` in Dask's configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum TlsVersion {
    /// TLS 1.2, the oldest version.
    #[default]
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// The TLS 1.2 cipher suites of rustls, with their OpenSSL names.
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
    /// Creates settings with these certificates, the key in `cert`, and the defaults of
    /// all other fields.
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

    /// Sets the key, if it is not in `cert`.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Pem>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Reads the files and builds configurations with the crypto provider that
    /// this package was built with: `ring`, or without it `aws-lc-rs`. The process
    /// default provider of rustls is not used.
    ///
    /// Files that change later are not read again before [`Tls::reload`].
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

    /// Builds configurations as [`build`](Self::build) does, with the caller's crypto
    /// provider.
    ///
    /// # Errors
    ///
    /// [`TlsError`], which names the file and what to do.
    pub fn build_with_provider(&self, provider: Arc<CryptoProvider>) -> Result<Tls, TlsError> {
        let versions = self.versions()?;
        let provider = match &self.ciphers {
            // The setting matters only if TLS 1.2 is used.
            Some(ciphers) if self.min_version == TlsVersion::V1_2 => {
                self.limit(ciphers, &provider)?.into()
            }
            _ => provider,
        };
        let stamps = self.stamps();
        let (authorities, identity) = self.read(&provider)?;
        let config = |error| self.failed("ca-file", &self.ca_file)(TlsProblem::Config(error));
        let verifier = Verifier::new(authorities, &provider).map_err(config)?;
        let verifier = Arc::new(verifier.check_name(self.check_name));
        let identity = Arc::new(Identity(RwLock::new(identity)));
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(config)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(identity.clone());
        // A peer that resumes a session does not show its certificate again, which
        // may have expired since.
        client.resumption = rustls::client::Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(config)?
            .with_client_cert_verifier(verifier.clone())
            .with_cert_resolver(identity.clone());
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        let mut tls = Tls::from_configs(Arc::new(client), Arc::new(server));
        tls.authorities = format!("{} (ca-file)", self.ca_file).into();
        tls.source = Some(Arc::new(TlsSource {
            settings: self.clone(),
            provider,
            verifier,
            identity,
            stamps: Mutex::new(FileStamps::new(stamps)),
        }));
        Ok(tls)
    }

    /// Reads the certificates of the authorities, and the certificate and key to present.
    fn read(
        &self,
        provider: &CryptoProvider,
    ) -> Result<(Vec<CertificateDer<'static>>, Arc<CertifiedKey>), TlsError> {
        let now = UnixTime::now();
        let authorities = self.read_authorities(now);
        let authorities = authorities.map_err(self.failed("ca-file", &self.ca_file))?;
        let chain = self
            .read_chain(now)
            .map_err(self.failed("cert", &self.cert))?;
        let (key_setting, key_pem) = match &self.key {
            Some(key) => ("key", key),
            None => ("cert", &self.cert),
        };
        let identity = read_key(key_pem, self.key.is_none(), chain, provider)
            .map_err(self.failed(key_setting, key_pem))?;
        Ok((authorities, Arc::new(identity)))
    }

    /// The stamps of all files; `None` for one that is missing.
    fn stamps(&self) -> Vec<Option<FileStamp>> {
        let files = [Some(&self.ca_file), Some(&self.cert), self.key.as_ref()];
        let files = files.into_iter().flatten();
        files
            .map(|pem| match &pem.0 {
                Source::File(path) => FileStamp::of(path),
                Source::Inline(_) => None,
            })
            .collect()
    }

    fn failed(&self, setting: &'static str, pem: &Pem) -> impl Fn(TlsProblem) -> TlsError + use<> {
        let source = pem.clone();
        move |problem| TlsError {
            setting,
            source: source.clone(),
            problem,
        }
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

    /// Limits the TLS 1.2 cipher suites of the provider to these.
    fn limit(&self, ciphers: &str, provider: &CryptoProvider) -> Result<CryptoProvider, TlsError> {
        let failed = |problem| TlsError {
            setting: "ciphers",
            source: PathBuf::new().into(),
            problem,
        };
        let mut wanted = Vec::new();
        // The separators of OpenSSL.
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
        // In the order of preference that the setting gives.
        suites.sort_by_key(|suite| wanted.iter().position(|name| *name == suite.suite()));
        Ok(CryptoProvider {
            cipher_suites: modern.into_iter().chain(suites).collect(),
            ..provider.clone()
        })
    }

    fn read_authorities(&self, now: UnixTime) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
        let authorities = read_certificates(&self.ca_file)?;
        let mut problem = None;
        let mut is_any_good = false;
        for (index, der) in authorities.iter().enumerate() {
            match check_dates(validity(index, der)?, now) {
                Ok(()) => is_any_good = true,
                Err(error) => problem = Some(error),
            }
        }
        // Bundles of authorities may contain expired ones.
        if let (false, Some(problem)) = (is_any_good, problem) {
            return Err(problem);
        }
        Ok(authorities)
    }

    fn read_chain(&self, now: UnixTime) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
        let chain = read_certificates(&self.cert)?;
        for (index, der) in chain.iter().enumerate() {
            check_dates(validity(index, der)?, now)?;
        }
        Ok(chain)
    }
}

/// The validity of a certificate at this index of its file.
fn validity(index: usize, der: &CertificateDer<'_>) -> Result<Validity, TlsProblem> {
    match Certificate::parse(der) {
        Ok(certificate) => Ok(certificate.validity),
        Err(webpki::Error::UnsupportedCertVersion) => Err(TlsProblem::Version { index }),
        Err(_) => Err(TlsProblem::Certificate { index }),
    }
}

fn check_dates(validity: Validity, now: UnixTime) -> Result<(), TlsProblem> {
    validity.check(now).map_err(|error| match error {
        CertificateError::NotValidYetContext { not_before, .. } => TlsProblem::NotValidYet {
            not_before: utc(not_before),
        },
        CertificateError::ExpiredContext { not_after, .. } => TlsProblem::Expired {
            not_after: utc(not_after),
        },
        error => TlsProblem::Config(error.into()),
    })
}

/// Prints a time as `2021-01-06 07:46:08 UTC`.
fn utc(time: UnixTime) -> String {
    let (days, second) = (time.as_secs() / 86_400, time.as_secs() % 86_400);
    // In years that begin in March the leap day is the last one: first the cycle of 400
    // years, then the year.
    let days = days + 719_468;
    let (cycle, days) = (days / 146_097, days % 146_097);
    let year = (days - days / 1460 + days / 36_524 - days / 146_096) / 365;
    let days = days - (365 * year + year / 4 - year / 100);
    let month = (5 * days + 2) / 153;
    let day = days - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 {
        (year + cycle * 400, month + 3)
    } else {
        (year + cycle * 400 + 1, month - 9)
    };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

fn read_certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
    let bytes = pem.read()?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(TlsProblem::NoCertificate {
            // The key file may have been given by mistake.
            is_key: contains(&bytes, b"PRIVATE KEY-----"),
        }),
        Ok(certificates) => Ok(certificates),
        // An encrypted key in the same file has lines that are not base64.
        Err(_) if is_encrypted(&bytes) => Err(TlsProblem::EncryptedKey),
        Err(error) => Err(TlsProblem::Pem(error)),
    }
}

fn read_key(
    pem: &Pem,
    is_in_cert: bool,
    chain: Vec<CertificateDer<'static>>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsProblem> {
    let bytes = pem.read()?;
    let key = match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => key,
        Err(_) if is_encrypted(&bytes) => return Err(TlsProblem::EncryptedKey),
        Err(pem::Error::NoItemsFound) => return Err(TlsProblem::NoKey { is_in_cert }),
        Err(error) => return Err(TlsProblem::Pem(error)),
    };
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(TlsProblem::Key)?;
    let identity = CertifiedKey::new(chain, key);
    match identity.keys_match() {
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(TlsProblem::KeyMismatch)
        }
        // The provider may not know the public key.
        _ => Ok(identity),
    }
}

fn contains(pem: &[u8], part: &[u8]) -> bool {
    pem.windows(part.len()).any(|window| window == part)
}

fn is_encrypted(pem: &[u8]) -> bool {
    contains(pem, b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || contains(pem, b"4,ENCRYPTED")
}

/// The settings of a [`Tls`], and the parts of its configurations that can be replaced.
pub(super) struct TlsSource {
    settings: TlsSettings,
    provider: Arc<CryptoProvider>,
    verifier: Arc<Verifier>,
    identity: Arc<Identity>,
    /// The files when they were last read.
    stamps: Mutex<FileStamps>,
}

/// What changes with the contents of a file: its time of modification and length, and on Unix the
/// file itself.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp(Option<SystemTime>, u64, u64);

impl FileStamp {
    /// That of a file; `None` if it cannot be found.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = path.metadata().ok()?;
        #[cfg(unix)]
        let file = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let file = 0;
        Some(Self(metadata.modified().ok(), metadata.len(), file))
    }
}

/// The stamps of files when they were last read.
#[doc(hidden)]
#[derive(Debug)]
pub struct FileStamps {
    used: Vec<Option<FileStamp>>,
    /// Those with which reading has failed last.
    failed: Option<Vec<Option<FileStamp>>>,
}

impl FileStamps {
    /// Those of files that were read.
    pub const fn new(used: Vec<Option<FileStamp>>) -> Self {
        Self { used, failed: None }
    }

    /// Reads the files if their stamps differ, and returns whether it has. After a failure, they are
    /// read again each time, since a file may change while it is read without another stamp; the error
    /// is returned once.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub fn reload<E>(
        &mut self,
        stamps: Vec<Option<FileStamp>>,
        read: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.used == stamps && self.failed.is_none() {
            return Ok(false);
        }
        match read() {
            Ok(()) => {
                *self = Self::new(stamps);
                Ok(true)
            }
            Err(_) if self.failed.as_ref() == Some(&stamps) => Ok(false),
            Err(error) => {
                self.failed = Some(stamps);
                Err(error)
            }
        }
    }
}

impl TlsSource {
    pub(super) fn reload_if_changed(&self) -> Result<bool, TlsError> {
        let stamps = self.settings.stamps();
        // The value is only assigned, so it is valid after a panic.
        let mut last = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        last.reload(stamps, || self.reload())
    }

    pub(super) fn reload(&self) -> Result<(), TlsError> {
        let settings = &self.settings;
        let (authorities, identity) = settings.read(&self.provider)?;
        let authorities = Verifier::read(authorities).map_err(TlsProblem::Config);
        let authorities = authorities.map_err(settings.failed("ca-file", &settings.ca_file))?;
        self.verifier.set_authorities(authorities);
        // The value is only assigned, so it is valid after a panic.
        let mut current = self
            .identity
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *current = identity;
        Ok(())
    }
}

/// The certificate to present, and its key.
#[derive(Debug)]
struct Identity(RwLock<Arc<CertifiedKey>>);

impl Identity {
    fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

/// The TLS settings of all roles, as in Dask's `Security`.
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
    /// `distributed.comm.tls.min-version`. Default: 1.2.
    pub min_version: Option<TlsVersion>,
    /// `distributed.comm.tls.max-version`. Default: 1.3.
    pub max_version: Option<TlsVersion>,
}

/// The certificate and key of one role.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RoleSettings {
    /// `cert`: [`TlsSettings::cert`].
    pub cert: Option<Pem>,
    /// `key`: [`TlsSettings::key`].
    pub key: Option<Pem>,
}

/// The role of a process in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterRole {
    /// Submits tasks.
    Client,
    /// Assigns tasks to workers.
    Scheduler,
    /// Runs tasks.
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

/// The error of TLS settings.
#[derive(Debug)]
pub struct TlsError {
    setting: &'static str,
    source: Pem,
    problem: TlsProblem,
}

impl TlsError {
    /// The invalid setting: `ca-file`, `cert` or `key`, with a prefix of the role if it
    /// depends on the role; `ciphers`, `min-version`.
    pub const fn setting(&self) -> &'static str {
        self.setting
    }

    /// The problem with the setting.
    pub const fn problem(&self) -> &TlsProblem {
        &self.problem
    }
}

/// The problem with a setting.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsProblem {
    /// The setting is required and not set.
    NotSet,
    /// The file cannot be read.
    Read(io::Error),
    /// The file is not valid PEM.
    Pem(pem::Error),
    /// The file has no certificate.
    NoCertificate {
        /// Whether the file has a key.
        is_key: bool,
    },
    /// A certificate in the file cannot be parsed.
    Certificate {
        /// The index of the certificate in the file.
        index: usize,
    },
    /// A certificate in the file is of X.509 version 1 or 2, and must be signed again.
    Version {
        /// The index of the certificate in the file.
        index: usize,
    },
    /// The certificate has expired.
    Expired {
        /// The end of its validity.
        not_after: String,
    },
    /// The certificate is not valid yet.
    NotValidYet {
        /// The beginning of its validity.
        not_before: String,
    },
    /// The file has no key.
    NoKey {
        /// Whether the file is that of `cert`, because `key` is not set.
        is_in_cert: bool,
    },
    /// The key is encrypted.
    EncryptedKey,
    /// The crypto provider does not support the key.
    Key(rustls::Error),
    /// The key does not belong to the certificate.
    KeyMismatch,
    /// The crypto provider cannot use the setting.
    Config(rustls::Error),
    /// The oldest version is newer than the newest one.
    NoVersion,
    /// A cipher is unknown.
    Cipher {
        /// The name of the cipher.
        name: String,
    },
    /// The crypto provider supports none of the ciphers.
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
                return f.write_str("min-version for TLS is 1.3, but max-version is 1.2");
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
                return f.write_str("ciphers: the crypto provider supports none of these ciphers");
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
            TlsProblem::Pem(error) => write!(f, "is not valid PEM: {error}"),
            TlsProblem::NoCertificate { is_key: true } => f.write_str(
                "contains a key but no certificate; are the files of certificate and key swapped?",
            ),
            TlsProblem::NoCertificate { is_key: false } => f.write_str(
                "contains no certificate; expected PEM, which begins with \
                 -----BEGIN CERTIFICATE----- (openssl x509 -inform der makes it from DER)",
            ),
            TlsProblem::Certificate { index } => {
                write!(f, "certificate {} in it cannot be read", index + 1)
            }
            TlsProblem::Version { index } => {
                write!(
                    f,
                    "certificate {} in it cannot be used: {VERSION_PROBLEM}",
                    index + 1
                )
            }
            TlsProblem::Expired { not_after } => {
                write!(f, "the certificate expired at {not_after}; make a new one")
            }
            TlsProblem::NotValidYet { not_before } => write!(
                f,
                "the certificate is not valid before {not_before}; is the clock right?"
            ),
            TlsProblem::NoKey { is_in_cert: true } => f.write_str(
                "contains no private key, and the setting key is not set; \
                 set key, or append the key to this file",
            ),
            TlsProblem::NoKey { is_in_cert: false } => f.write_str("contains no private key"),
            TlsProblem::EncryptedKey => f.write_str(
                "the private key needs a passphrase, for which there is no setting; \
                 decrypt it (openssl pkey -in KEY -out NEW) and protect the file",
            ),
            TlsProblem::Key(error) => write!(f, "the private key cannot be used: {error}"),
            TlsProblem::KeyMismatch => {
                f.write_str("the private key does not belong to the certificate (setting cert)")
            }
            TlsProblem::Config(error) => write!(f, "cannot be used: {error}"),
        }
    }
}

impl core::error::Error for TlsError {}

daskwire::kinds! {
    TlsError: |error| match error.problem {
        TlsProblem::Read(_) => ErrorKind::System,
        _ => ErrorKind::Invalid,
    };
}
