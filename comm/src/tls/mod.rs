//! TLS as Dask does it: both sides show a certificate, and both check it.
//!
//! ```no_run
//! use daskwire_comm::tls::TlsSettings;
//!
//! // For `TcpOptions::tls` of `daskwire-tcp` and `QuicOptions::tls` of `daskwire-quic`.
//! let tls = TlsSettings::new("/etc/dask/ca.pem", "/etc/dask/client.pem")
//!     .with_key("/etc/dask/client-key.pem")
//!     .build()?;
//! # Ok::<(), daskwire_comm::tls::TlsError>(())
//! ```
//!
//! # Settings
//!
//! They are Dask's: `ca-file` for all, `cert` and `key` for each role
//! ([`Security`]). Every value is the path of a PEM file, or PEM text if there
//! is a newline in it. Without `key` the key is looked for in `cert`. TLS 1.2
//! and 1.3 are spoken, with the cipher suites of the crypto provider; for other
//! choices build the configurations and hand them to [`Tls::from_configs`].
//!
//! # Whom this lets in
//!
//! Everybody with a certificate that the authorities in `ca-file` signed, or
//! that is in there itself, and with its key; see [`Verifier`]. In Dask's
//! protocol whoever is in may run code on every worker. So the authority
//! should be one of the cluster's own: with a public one in `ca-file`
//! everybody in the world who has a certificate is in.
//!
//! As in Dask, **names are not checked** unless asked for: any member of the
//! cluster can pass for any other, scheduler included. Nor are roles
//! told apart, and nobody is asked about revocation.
//!
//! # The end of a connection
//!
//! Closing a comm says so to the peer (`close_notify`). Dask closes the socket
//! and says nothing, so a connection that ends between two messages has ended
//! well here, with or without notice. Whoever can cut the connection can
//! therefore drop the last messages unnoticed, which no message of Dask's
//! protocol relies on. An end within a message is an error.
//!
//! Sessions are not resumed: the certificate is shown and checked each time.

mod settings;
mod verifier;
mod x509;

use core::fmt;
use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, InvalidMessage, ServerConfig, Side,
};

use crate::{Closed, CommError};

pub use rustls;
pub use settings::{
    ClusterRole, Pem, RoleSettings, Security, TlsError, TlsProblem, TlsSettings, TlsVersion,
};
pub use verifier::Verifier;

/// What comms over TLS need: configurations for both sides of a connection.
/// Build it once; cloning it is cheap.
///
/// The configurations have no ALPN token, as Dask has none. For another
/// protocol that uses the same certificates, QUIC for one, clone them and set
/// theirs.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    server_name: Option<ServerName<'static>>,
    /// Where the authorities come from, for messages.
    authorities: Arc<str>,
}

impl Tls {
    /// With finished configurations, such as those with fewer cipher suites.
    ///
    /// Who may connect is then decided by their verifiers: rustls lets
    /// everybody in unless told otherwise. [`Verifier`] is the one that
    /// [`TlsSettings::build`] uses.
    pub fn from_configs(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Self {
        Self {
            client,
            server,
            server_name: None,
            authorities: "the TLS configuration of this side".into(),
        }
    }

    /// Names `name` to every listener that is connected to, in place of the
    /// host in its address: for gateways that tell clusters apart by it (SNI;
    /// Dask's `server_hostname`). If names are checked this is the one.
    #[must_use]
    pub fn with_server_name(mut self, name: ServerName<'static>) -> Self {
        self.server_name = Some(name);
        self
    }

    /// The name of [`Self::with_server_name`].
    pub const fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }

    /// The configuration of the side that connects.
    pub const fn client_config(&self) -> &Arc<ClientConfig> {
        &self.client
    }

    /// The configuration of the side that listens.
    pub const fn server_config(&self) -> &Arc<ServerConfig> {
        &self.server
    }

    /// Finds what TLS has to say in the failure of a handshake, be it its own
    /// or the one after it: with TLS 1.3 whoever connects has finished before
    /// the other side has looked at its certificate.
    pub fn explain(&self, error: CommError, side: Side) -> CommError {
        let error = match error {
            CommError::Io(error) => error,
            CommError::Closed(Closed::BeforeHandshake) if side == Side::Client => {
                return Closed::WithinTlsHandshake.into();
            }
            error => return error,
        };
        let of_tls = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
            .cloned();
        match (of_tls, error.kind(), side) {
            (Some(error), _, _) => CommError::Tls(Box::new(TlsFailure {
                error,
                authorities: Arc::clone(&self.authorities),
            })),
            // A reset may overtake the alert.
            (None, io::ErrorKind::UnexpectedEof, _)
            | (None, io::ErrorKind::ConnectionReset, Side::Client) => {
                Closed::WithinTlsHandshake.into()
            }
            (None, ..) => CommError::Io(error),
        }
    }
}

/// Keys are none of anybody's business, nor is the rest of much use.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authorities", &self.authorities)
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// Why two sides could not agree on TLS.
#[derive(Clone, Debug)]
pub struct TlsFailure {
    error: rustls::Error,
    authorities: Arc<str>,
}

impl TlsFailure {
    /// What rustls says.
    pub const fn error(&self) -> &rustls::Error {
        &self.error
    }
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use rustls::Error as E;
        let authorities = &self.authorities;
        match &self.error {
            E::InvalidMessage(InvalidMessage::InvalidContentType) => {
                f.write_str("the peer does not speak TLS; it may be one for tcp:// addresses")
            }
            E::InvalidCertificate(error) => {
                f.write_str("the certificate of the peer is refused: ")?;
                match error {
                    CertificateError::UnknownIssuer => write!(
                        f,
                        "it is neither signed by an authority of {authorities} nor among \
                         the certificates there; both sides need the same authority"
                    ),
                    CertificateError::BadSignature => write!(
                        f,
                        "the authority of that name in {authorities} did not sign it, or the \
                         peer does not have its key"
                    ),
                    CertificateError::InvalidPurpose
                    | CertificateError::InvalidPurposeContext { .. } => f.write_str(
                        "it is not for this side of a connection; Dask's certificates are used \
                         on both, so it needs the extended key usages serverAuth and clientAuth, \
                         or none",
                    ),
                    CertificateError::Other(error) => error.0.fmt(f),
                    error => error.fmt(f),
                }
            }
            E::NoCertificatesPresented => f.write_str(
                "the peer shows no certificate; Dask's peers need one on both sides \
                 (settings cert and key of its role)",
            ),
            E::AlertReceived(alert) => {
                let why = match alert {
                    AlertDescription::UnknownCA => {
                        "it was signed by no authority of the peer's ca-file"
                    }
                    AlertDescription::CertificateExpired => "it has expired",
                    AlertDescription::CertificateRequired => {
                        return f.write_str(
                            "the peer wants a certificate, and none was shown \
                             (settings cert and key)",
                        );
                    }
                    AlertDescription::UnsupportedCertificate => {
                        "it is of a kind, or for a purpose, that the peer does not take"
                    }
                    AlertDescription::BadCertificate
                    | AlertDescription::CertificateRevoked
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::AccessDenied => "it does not say why",
                    AlertDescription::DecryptError => "a signature is not right",
                    alert => return write!(f, "the peer refuses TLS: {alert:?}"),
                };
                write!(
                    f,
                    "the peer refuses the certificate of this side: {why} ({alert:?})"
                )
            }
            error => write!(f, "TLS: {error}"),
        }
    }
}

impl core::error::Error for TlsFailure {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}
