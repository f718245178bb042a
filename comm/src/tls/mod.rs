//! TLS as Dask does it: both ends present a certificate, and both verify it.
//!
//! ```no_run
//! use daskwire_comm::tls::TlsSettings;
//!
//! // For `TcpOptions::with_tls` of `daskwire-tcp` and `QuicOptions::tls` of `daskwire-quic`.
//! let tls = TlsSettings::new("/etc/dask/ca.pem", "/etc/dask/client.pem")
//!     .with_key("/etc/dask/client-key.pem")
//!     .build()?;
//! # Ok::<(), daskwire_comm::tls::TlsError>(())
//! ```
//!
//! # Settings
//!
//! The settings are Dask's: `ca-file` for all, `cert` and `key` for each role
//! ([`Security`]). Every value is the path of a PEM file, or PEM itself if it contains
//! a newline. Without `key` the key is read from `cert`. TLS 1.2 and 1.3 are used,
//! with the cipher suites of the crypto provider; for anything else pass complete
//! configurations to [`Tls::from_configs`].
//!
//! # Accepted peers
//!
//! Every peer is accepted that has the key of a certificate which an authority in
//! `ca-file` signed, or which is itself in `ca-file`; see [`Verifier`]. In Dask's
//! protocol an accepted peer can run code on every worker. So the authority should
//! belong to the cluster: with a public one in `ca-file`, every holder of a public
//! certificate is accepted.
//!
//! As in Dask, **names are not checked** by default: any member of the cluster can
//! impersonate any other, including the scheduler. Revocation is not checked. Roles are not
//! distinguished here; a scheduler can tell them by [`certificate_names`].
//!
//! # The end of a connection
//!
//! Closing a comm sends `close_notify`. Dask closes the socket without it, so an end
//! of the connection between two messages is a regular end, with or without
//! `close_notify`. An attacker that can cut the connection can therefore drop the last
//! messages unnoticed, which Dask's protocol tolerates. An end within a message is an
//! error.
//!
//! Sessions are not resumed: certificates are presented and verified each time.

mod certificate;
mod names;
mod settings;
mod verifier;

use core::fmt;
use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, InvalidMessage, ServerConfig, Side,
};

use crate::{Closed, CommError};

pub use names::certificate_names;
pub use rustls;
pub use settings::{
    ClusterRole, Pem, RoleSettings, Security, TlsError, TlsProblem, TlsSettings, TlsVersion,
};
#[doc(hidden)]
pub use settings::{FileStamp, FileStamps};
pub use verifier::Verifier;

/// The TLS configurations of comms, for both ends of a connection. Cloning it is cheap.
///
/// The configurations have no ALPN token, as Dask has none. For another protocol with
/// the same certificates, such as QUIC, clone them and set its token.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    server_name: Option<ServerName<'static>>,
    /// The source of the authorities, for error messages.
    authorities: Arc<str>,
    /// `None` for the configurations of the caller.
    source: Option<Arc<settings::TlsSource>>,
}

impl Tls {
    /// Uses complete configurations, for example with fewer cipher suites.
    ///
    /// Their verifiers decide which peers are accepted: a server configuration of rustls
    /// without a client verifier accepts every client. [`Verifier`] is the one that
    /// [`TlsSettings::build`] uses.
    pub fn from_configs(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Self {
        Self {
            client,
            server,
            server_name: None,
            authorities: "the TLS configuration of this side".into(),
            source: None,
        }
    }

    /// Reads the files of the settings again, for example after the certificates were
    /// renewed. Existing connections are unaffected; new ones use the new certificates, of
    /// all transports and roles that have these configurations or a clone of them.
    ///
    /// After [`Self::from_configs`] there is nothing to read: the caller's verifiers and
    /// certificate resolvers may be of types that replace what they contain.
    ///
    /// # Errors
    ///
    /// Those of [`TlsSettings::build`]. The certificates are unchanged then.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.source
            .as_ref()
            .map_or(Ok(()), |source| source.reload())
    }

    /// Reads the files again as [`Self::reload`] does if one of them has changed since they were
    /// last read: another time of modification, length or file. Returns whether it has. Files that
    /// cannot be used are tried again each time, and the error is returned once.
    ///
    /// Programs call this every few seconds, so that renewed certificates are used without a
    /// restart. The calls block for the time of reading files.
    ///
    /// # Errors
    ///
    /// Those of [`TlsSettings::build`]. The certificates are unchanged then.
    pub fn reload_if_changed(&self) -> Result<bool, TlsError> {
        self.source
            .as_ref()
            .map_or(Ok(false), |source| source.reload_if_changed())
    }

    /// Sets the server name that is sent to every listener (SNI) in place of the host in
    /// its address, for gateways that select the cluster by it; Dask's
    /// `server_hostname`. It is also the name that the name check uses.
    #[must_use]
    pub fn with_server_name(mut self, name: ServerName<'static>) -> Self {
        self.server_name = Some(name);
        self
    }

    /// The server name set by [`Self::with_server_name`].
    pub const fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }

    /// The configuration for connecting.
    pub const fn client_config(&self) -> &Arc<ClientConfig> {
        &self.client
    }

    /// The configuration for listening.
    pub const fn server_config(&self) -> &Arc<ServerConfig> {
        &self.server
    }

    /// Finds the TLS error in the failure of a handshake, which can be that of TLS or
    /// that of Dask: with TLS 1.3 the client finishes the TLS handshake before the
    /// server verifies its certificate.
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

/// Prints only the fields that help in a diagnosis, and no keys.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authorities", &self.authorities)
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// The error of a TLS handshake.
#[derive(Clone, Debug)]
pub struct TlsFailure {
    error: rustls::Error,
    authorities: Arc<str>,
}

impl TlsFailure {
    /// The error of rustls.
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
                "the peer presents no certificate; Dask's peers need one on both sides \
                 (settings cert and key of its role)",
            ),
            E::AlertReceived(alert) => {
                let why = match alert {
                    AlertDescription::UnknownCA => "no authority in the peer's ca-file signed it",
                    AlertDescription::CertificateExpired => "it has expired",
                    AlertDescription::CertificateRequired => {
                        return f.write_str(
                            "the peer requires a certificate, but this side presented none \
                             (settings cert and key)",
                        );
                    }
                    AlertDescription::UnsupportedCertificate => {
                        "the peer does not accept its type or purpose"
                    }
                    AlertDescription::BadCertificate
                    | AlertDescription::CertificateRevoked
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::AccessDenied => "the peer gives no reason",
                    AlertDescription::DecryptError => "a signature is invalid",
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

daskwire::kinds! {
    TlsFailure: |_| ErrorKind::Refused;
}

impl core::error::Error for TlsFailure {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}
