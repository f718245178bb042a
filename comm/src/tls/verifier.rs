//! The verifier of certificates.

use core::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, ServerName, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerMisbehaved,
    SignatureScheme,
};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyUsage, RawPublicKeyEntity};

use super::x509::{CLIENT_PURPOSE, Certificate, NotACertificate, SERVER_PURPOSE, Time};

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
/// checked. Unlike OpenSSL, the verifier ignores the path length and the extended key usage
/// of the authorities, and the key usage of all other certificates.
///
/// Certificates of X.509 version 1, which plain rustls refuses and which
/// `openssl x509 -req` without `-extfile` made up to version 3.3, are accepted if an
/// authority signed them directly. They have no names, so the name check refuses them.
pub struct Verifier {
    authorities: Vec<CertificateDer<'static>>,
    anchors: Vec<(Validity, TrustAnchor<'static>)>,
    subjects: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
    check_name: bool,
}

#[derive(Clone, Copy)]
struct Validity {
    not_before: Time,
    not_after: Time,
}

impl Validity {
    const fn of(certificate: &Certificate<'_>) -> Self {
        Self {
            not_before: certificate.not_before,
            not_after: certificate.not_after,
        }
    }

    fn check(self, now: UnixTime) -> Result<(), CertificateError> {
        let (from, to) = (self.not_before, self.not_after);
        let unix = |time: Time| {
            let seconds = u64::try_from(time.0).unwrap_or(0);
            UnixTime::since_unix_epoch(core::time::Duration::from_secs(seconds))
        };
        let time = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if time < from.0 {
            return Err(CertificateError::NotValidYetContext {
                time: now,
                not_before: unix(from),
            });
        }
        if time > to.0 {
            return Err(CertificateError::ExpiredContext {
                time: now,
                not_after: unix(to),
            });
        }
        Ok(())
    }
}

impl Verifier {
    /// Creates a verifier that trusts these authorities.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidCertificate`] if an authority cannot be parsed, and
    /// [`Error::General`] if `authorities` is empty.
    pub fn new(
        authorities: Vec<CertificateDer<'static>>,
        provider: &CryptoProvider,
    ) -> Result<Self, Error> {
        if authorities.is_empty() {
            return Err(Error::General("there are no authorities to trust".into()));
        }
        let (mut anchors, mut subjects) = (Vec::new(), Vec::new());
        for der in &authorities {
            let certificate = Certificate::parse(der).map_err(bad_encoding)?;
            subjects.push(DistinguishedName::in_sequence(certificate.subject));
            // A trusted certificate of a peer does not make it an authority.
            if certificate.is_authority {
                let anchor = webpki::anchor_from_trusted_cert(der).map_err(refused)?;
                anchors.push((Validity::of(&certificate), anchor.to_owned()));
            }
        }
        Ok(Self {
            authorities,
            anchors,
            subjects,
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

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        purpose: &'static [u8],
        usage: impl ExtendedKeyUsageValidator,
    ) -> Result<(), Error> {
        let certificate = Certificate::parse(leaf).map_err(bad_encoding)?;
        if self.authorities.iter().any(|known| known == leaf) {
            Validity::of(&certificate).check(now)?;
            if !certificate.allows(purpose) {
                return Err(CertificateError::InvalidPurpose.into());
            }
            return Ok(());
        }
        if certificate.version < 3 {
            return self.verify_without_extensions(&certificate, now);
        }
        let anchors: Vec<_> = self
            .anchors
            .iter()
            .filter(|(validity, _)| validity.check(now).is_ok())
            .map(|(_, anchor)| anchor.clone())
            .collect();
        let leaf = EndEntityCert::try_from(leaf).map_err(refused)?;
        let path = leaf.verify_for_usage(
            self.algorithms.all,
            &anchors,
            intermediates,
            now,
            usage,
            None,
            None,
        );
        match path {
            Ok(_) => Ok(()),
            Err(webpki::Error::UnknownIssuer) => Err(self.unknown_issuer(&certificate, now)),
            Err(error) => Err(refused(error)),
        }
    }

    /// Verifies a certificate of version 1 as [`Self::verify`] does, since webpki does not
    /// parse it. It has no extensions, so signature, authority and dates are the only checks.
    fn verify_without_extensions(
        &self,
        certificate: &Certificate<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let mut outcome = self.unknown_issuer(certificate, now);
        for authority in &self.authorities {
            let authority = Certificate::parse(authority).map_err(bad_encoding)?;
            if authority.subject != certificate.issuer
                || !authority.is_authority
                || Validity::of(&authority).check(now).is_err()
            {
                continue;
            }
            let key = SubjectPublicKeyInfoDer::from(authority.public_key);
            let key = RawPublicKeyEntity::try_from(&key).map_err(refused)?;
            let algorithms =
                self.algorithms.all.iter().filter(|algorithm| {
                    algorithm.signature_alg_id().as_ref() == certificate.algorithm
                });
            for algorithm in algorithms {
                match key.verify_signature(*algorithm, certificate.signed, certificate.signature) {
                    Ok(()) => {
                        Validity::of(certificate).check(now)?;
                        return Ok(());
                    }
                    Err(error) => outcome = refused(error),
                }
            }
        }
        Err(outcome)
    }

    /// The most likely reason why no authority was found for a certificate.
    fn unknown_issuer(&self, certificate: &Certificate<'_>, now: UnixTime) -> Error {
        let issuers = self
            .authorities
            .iter()
            .filter_map(|der| Certificate::parse(der).ok())
            .filter(|authority| authority.subject == certificate.issuer);
        for issuer in issuers {
            if !issuer.is_authority {
                return other(Refused::NoAuthority);
            }
            if Validity::of(&issuer).check(now).is_err() {
                return other(Refused::AuthorityOutOfDate);
            }
        }
        CertificateError::UnknownIssuer.into()
    }

    fn check_proof(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        proof: &DigitallySignedStruct,
        is_tls13: bool,
    ) -> Result<HandshakeSignatureValid, Error> {
        let parsed = Certificate::parse(certificate).map_err(bad_encoding)?;
        match (parsed.version, is_tls13) {
            (3.., true) => verify_tls13_signature(message, certificate, proof, &self.algorithms),
            (3.., false) => verify_tls12_signature(message, certificate, proof, &self.algorithms),
            (_, true) => {
                let key = SubjectPublicKeyInfoDer::from(parsed.public_key);
                verify_tls13_signature_with_raw_key(message, &key, proof, &self.algorithms)
            }
            (_, false) => self.check_tls12_proof(message, parsed.public_key, proof),
        }
    }

    /// Verifies a signature as [`verify_tls12_signature`] does, with a public key.
    fn check_tls12_proof(
        &self,
        message: &[u8],
        public_key: &[u8],
        proof: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let mapping = self.algorithms.mapping.iter();
        let algorithms = mapping
            .filter(|(scheme, _)| *scheme == proof.scheme)
            .flat_map(|(_, algorithms)| algorithms.iter());
        let key = SubjectPublicKeyInfoDer::from(public_key);
        let key = RawPublicKeyEntity::try_from(&key).map_err(refused)?;
        let mut outcome = PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into();
        // Signature schemes of TLS 1.2 do not determine the curve of a key.
        for algorithm in algorithms {
            match key.verify_signature(*algorithm, message, proof.signature()) {
                Ok(()) => return Ok(HandshakeSignatureValid::assertion()),
                Err(error) => {
                    let is_other_key = matches!(
                        error,
                        webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)
                    );
                    outcome = refused(error);
                    if !is_other_key {
                        break;
                    }
                }
            }
        }
        Err(outcome)
    }
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
        self.verify(end_entity, intermediates, now, SERVER_PURPOSE, usage)?;
        if self.check_name {
            let certificate = Certificate::parse(end_entity).map_err(bad_encoding)?;
            if certificate.version < 3 {
                return Err(CertificateError::NotValidForName.into());
            }
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
        self.check_proof(message, cert, dss, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_proof(message, cert, dss, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let usage = KeyUsage::client_auth();
        self.verify(end_entity, intermediates, now, CLIENT_PURPOSE, usage)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_proof(message, cert, dss, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_proof(message, cert, dss, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("authority_count", &self.authorities.len())
            .field("check_name", &self.check_name)
            .finish_non_exhaustive()
    }
}

/// The reason for a refusal for which rustls has no error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refused {
    NoAuthority,
    AuthorityOutOfDate,
    AuthorityAsPeer,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAuthority => {
                "it names an issuer whose certificate is known, but may not sign others \
                 (it says CA:FALSE, or nothing, or its key usage lacks keyCertSign)"
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

fn bad_encoding(_: NotACertificate) -> Error {
    CertificateError::BadEncoding.into()
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
        error => return other(error),
    }
    .into()
}
