//! HTTPS.

use core::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use daskwire_comm::tls::{FileStamp, FileStamps, rustls};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// The files of a server that is reached by HTTPS, each in PEM.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The certificate, with those that lead to an authority.
    pub cert: PathBuf,
    /// The private key; may be the same file.
    pub key: PathBuf,
    /// The authorities of clients. With them, only clients with a certificate of one of them are
    /// served. Default: none, so that clients need no certificate.
    pub ca_file: Option<PathBuf>,
}

/// The certificates of a server that is reached by HTTPS, which are renewed without a restart. A clone is
/// another handle for the same ones.
#[derive(Clone)]
pub struct Https(Arc<Source>);

struct Source {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
    /// The files when they were last read.
    stamps: Mutex<FileStamps>,
}

impl fmt::Debug for Https {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Https").field(&self.0.files).finish()
    }
}

impl Https {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// The file that cannot be read or used, and the reason.
    pub fn new(files: TlsFiles) -> Result<Self, TlsFilesError> {
        // A file that changes while it is read has another stamp the next time.
        let stamps = Mutex::new(FileStamps::new(files.stamps()));
        let config = RwLock::new(files.read()?);
        Ok(Self(Arc::new(Source {
            files,
            config,
            stamps,
        })))
    }

    /// Reads the files again if one of them has changed since they were last read. Returns whether it
    /// has. Files that cannot be used are tried again each time, and the error is returned once. New connections use the new certificates. Blocks for the time of reading files; programs
    /// call it every few seconds.
    ///
    /// # Errors
    ///
    /// Those of [`Self::new`]. The certificates are unchanged then.
    pub fn reload_if_changed(&self) -> Result<bool, TlsFilesError> {
        let Source {
            files,
            config,
            stamps,
        } = &*self.0;
        let new = files.stamps();
        // The values are only assigned, so they are valid after a panic.
        let mut last = stamps.lock().unwrap_or_else(PoisonError::into_inner);
        last.reload(new, || {
            let read = files.read()?;
            *config.write().unwrap_or_else(PoisonError::into_inner) = read;
            Ok(())
        })
    }

    /// What the next connection uses.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let config = self.0.config.read();
        Arc::clone(&config.unwrap_or_else(PoisonError::into_inner))
    }
}

/// Why a server cannot be reached by HTTPS.
#[derive(Debug)]
pub struct TlsFilesError {
    file: PathBuf,
    reason: String,
    /// Whether the system refused to read the file.
    is_unread: bool,
}

impl fmt::Display for TlsFilesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.reason)
    }
}

impl core::error::Error for TlsFilesError {}

daskwire_rpc::kinds! {
    TlsFilesError: |error| match error.is_unread {
        true => ErrorKind::System,
        false => ErrorKind::Invalid,
    };
}

impl TlsFiles {
    /// The files of a certificate and its key.
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            cert: cert.into(),
            key: key.into(),
            ca_file: None,
        }
    }

    daskwire_comm::with_fields! {
        with_ca_file(ca_file: impl Into<Option<PathBuf>>);
    }

    fn stamps(&self) -> Vec<Option<FileStamp>> {
        let files = [Some(&self.cert), Some(&self.key), self.ca_file.as_ref()];
        files
            .into_iter()
            .flatten()
            .map(|file| FileStamp::of(file))
            .collect()
    }

    fn read(&self) -> Result<Arc<ServerConfig>, TlsFilesError> {
        let failed = |file: &Path, reason: &dyn fmt::Display| TlsFilesError {
            file: file.to_owned(),
            reason: reason.to_string(),
            is_unread: false,
        };
        let of_pem = |file: &Path, error: pem::Error| TlsFilesError {
            is_unread: matches!(error, pem::Error::Io(_)),
            ..failed(file, &error)
        };
        let certificates = |file: &Path| {
            let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
            let certificates: Vec<_> = certificates.map_err(|error| of_pem(file, error))?;
            match certificates.is_empty() {
                true => Err(failed(file, &"there is no certificate in it")),
                false => Ok(certificates),
            }
        };
        let chain = certificates(&self.cert)?;
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let key = key.map_err(|error| of_pem(&self.key, error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| failed(&self.cert, &error))?;
        let builder = match &self.ca_file {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(file)? {
                    roots.add(authority).map_err(|error| failed(file, &error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.build().map_err(|error| failed(file, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| failed(&self.cert, &error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}
