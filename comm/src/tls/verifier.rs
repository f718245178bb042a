//! The verifier of certificates.

use core::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyUsage};

use super::certificate::{Certificate, Validity};

/// Verifies the certificate of the peer as OpenSSL does for Dask, for either end of a
/// connection.
///
/// A certificate is accepted if it is currently valid and
///
/// * an authority signed it, directly or through intermediate certificates that the
///   peer sends, and its purpose includes the peer's end of the connection;
/// * or it is itself among the certificates of the authorities, byte for byte. So one
///   self-signed certificate can serve a whole cluster, as the one that
///   `Security.temporary()` makes does.
///
/// In both cases the peer must prove that it has the key. The names in the certificate
/// are not checked unless [`check_name`](Self::check_name) is set, and revocation is not
/// checked. Unlike OpenSSL, the verifier ignores the key usage of all certificates, the path
/// length and the extended key usage of the authorities, and the extended key usage of a
/// certificate that says `CA:TRUE` and is itself among those of the authorities.
///
/// Certificates of X.509 version 1, which OpenSSL accepts, are refused, as by plain rustls:
/// `openssl x509 -req` without `-extfile` made them up to version 3.3.
pub struct Verifier {
    authorities: RwLock<Authorities>,
    algorithms: WebPkiSupportedAlgorithms,
    check_name: bool,
}

type Authorities = Arc<[Authority]>;

/// A certificate that is trusted.
pub(super) struct Authority {
    der: CertificateDer<'static>,
    /// The contents of a `Name`.
    subject: Box<[u8]>,
    validity: Validity,
    /// `None` if the certificate is that of a peer, which may not sign others.
    anchor: Option<TrustAnchor<'static>>,
}

impl Authority {
    fn new(der: CertificateDer<'static>) -> Result<Self, webpki::Error> {
        let certificate = Certificate::parse(&der)?;
        let subject = certificate.parsed.subject().into();
        let validity = certificate.validity;
        let anchor = certificate
            .is_authority
            .then(|| webpki::anchor_from_trusted_cert(&der))
            .transpose()?
            .map(|anchor| anchor.to_owned());
        Ok(Self {
            der,
            subject,
            validity,
            anchor,
        })
    }
}

impl Verifier {
    /// Creates a verifier that trusts these authorities.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidCertificate`] if an authority cannot be parsed or is of X.509 version
    /// 1, and [`Error::General`] if `authorities` is empty.
    pub fn new(
        authorities: Vec<CertificateDer<'static>>,
        provider: &CryptoProvider,
    ) -> Result<Self, Error> {
        Ok(Self {
            authorities: RwLock::new(Self::read(authorities)?),
            algorithms: provider.signature_verification_algorithms,
            check_name: false,
        })
    }

    /// Sets whether the certificate of a listener must be for the host that was
    /// connected to. Default: `false`, as in Dask, whose certificates seldom have such
    /// names.
    #[must_use]
    pub fn check_name(mut self, check_name: bool) -> Self {
        self.check_name = check_name;
        self
    }

    /// Parses the certificates of authorities.
    pub(super) fn read(authorities: Vec<CertificateDer<'static>>) -> Result<Authorities, Error> {
        if authorities.is_empty() {
            return Err(Error::General("there are no authorities to trust".into()));
        }
        let authorities = authorities.into_iter().map(Authority::new);
        authorities.collect::<Result<_, _>>().map_err(refused)
    }

    /// Replaces the authorities for certificates that are verified later.
    pub(super) fn set_authorities(&self, authorities: Authorities) {
        // The value is only assigned, so it is valid after a panic.
        let mut current = self
            .authorities
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *current = authorities;
    }

    fn authorities(&self) -> Authorities {
        let current = self
            .authorities
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: impl ExtendedKeyUsageValidator,
    ) -> Result<(), Error> {
        let authorities = self.authorities();
        let is_trusted = authorities.iter().any(|known| known.der == *leaf);
        let (mut anchors, mut intermediates) = (Vec::new(), intermediates);
        if is_trusted {
            intermediates = &[];
        } else {
            // webpki does not verify the dates of trusted roots.
            let valid = authorities.iter();
            let valid = valid.filter(|authority| authority.validity.check(now).is_ok());
            anchors.extend(valid.filter_map(|authority| authority.anchor.clone()));
        }
        let leaf = EndEntityCert::try_from(leaf).map_err(refused)?;
        let algorithms = self.algorithms.all;
        match leaf.verify_for_usage(algorithms, &anchors, intermediates, now, usage, None, None) {
            Ok(_) => Ok(()),
            // Everything else is checked before the issuer.
            Err(webpki::Error::UnknownIssuer | webpki::Error::CaUsedAsEndEntity) if is_trusted => {
                Ok(())
            }
            Err(webpki::Error::UnknownIssuer) => {
                Err(unknown_issuer(&authorities, leaf.issuer(), now))
            }
            Err(error) => Err(refused(error)),
        }
    }
}

/// The most likely reason why no authority was found for a certificate of this issuer.
fn unknown_issuer(authorities: &[Authority], issuer: &[u8], now: UnixTime) -> Error {
    let mut of_name = authorities.iter();
    while let Some(authority) = of_name.find(|authority| *authority.subject == *issuer) {
        if authority.anchor.is_none() {
            return other(Refused::NoAuthority);
        }
        if authority.validity.check(now).is_err() {
            return other(Refused::AuthorityOutOfDate);
        }
    }
    CertificateError::UnknownIssuer.into()
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let usage = KeyUsage::server_auth();
        self.verify(end_entity, intermediates, now, usage)?;
        if self.check_name {
            EndEntityCert::try_from(end_entity)
                .and_then(|leaf| leaf.verify_is_valid_for_subject_name(server_name))
                .map_err(refused)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    /// Returns no names, as Dask sends none: its peers have one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let usage = KeyUsage::client_auth();
        self.verify(end_entity, intermediates, now, usage)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("authority_count", &self.authorities().len())
            .field("check_name", &self.check_name)
            .finish_non_exhaustive()
    }
}

/// What to do about a certificate of X.509 version 1 or 2.
pub(super) const VERSION_PROBLEM: &str = "it is of an X.509 version before 3, which has no \
    extensions; sign it again with openssl x509 -req -extfile FILE and the other options as \
    before, where FILE has the line basicConstraints=CA:FALSE (for an authority CA:TRUE)";

/// The reason for a refusal for which rustls has no error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refused {
    Version,
    NoAuthority,
    AuthorityOutOfDate,
    AuthorityAsPeer,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => VERSION_PROBLEM,
            Self::NoAuthority => {
                "it names an issuer whose certificate is known, but may not sign others \
                 (it says CA:FALSE, or nothing)"
            }
            Self::AuthorityOutOfDate => {
                "it names an authority that is known, but whose own certificate has expired, \
                 or is not valid yet"
            }
            Self::AuthorityAsPeer => {
                "it says CA:TRUE and is none of the certificates in the ca-file: a peer may \
                 present the certificate of an authority only if that same certificate is \
                 among them; otherwise make it one that says CA:FALSE"
            }
        })
    }
}

/// Prints as [`fmt::Display`] does: rustls formats the reason with `Debug`, and QUIC keeps
/// only that string.
impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for Refused {}

fn other(reason: impl core::error::Error + Send + Sync + 'static) -> Error {
    CertificateError::Other(OtherError(Arc::new(reason))).into()
}

/// Converts an error of webpki to one of rustls, which determines the alert that the
/// peer receives.
fn refused(error: webpki::Error) -> Error {
    use webpki::Error as E;
    match error {
        E::BadDer | E::BadDerTime | E::TrailingData(_) => CertificateError::BadEncoding,
        E::CertExpired { time, not_after } => CertificateError::ExpiredContext { time, not_after },
        E::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        E::CertNotValidForName(context) => CertificateError::NotValidForNameContext {
            expected: context.expected,
            presented: context.presented,
        },
        E::UnknownIssuer => CertificateError::UnknownIssuer,
        E::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        E::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        E::UnsupportedCriticalExtension => CertificateError::UnhandledCriticalExtension,
        E::CaUsedAsEndEntity => return other(Refused::AuthorityAsPeer),
        E::UnsupportedCertVersion => return other(Refused::Version),
        error => return other(error),
    }
    .into()
}
