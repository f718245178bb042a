//! The properties of a certificate that webpki verifies, but does not return.

use core::time::Duration;

use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage};

/// A certificate as webpki parses it, of X.509 version 3.
pub(super) struct Certificate<'a> {
    pub(super) parsed: EndEntityCert<'a>,
    pub(super) validity: Validity,
    /// Whether its basic constraints say that it may sign others.
    pub(super) is_authority: bool,
}

impl<'a> Certificate<'a> {
    pub(super) fn parse(der: &'a CertificateDer<'a>) -> Result<Self, Error> {
        let parsed = EndEntityCert::try_from(der)?;
        // webpki checks the dates first, then the basic constraints. Its errors contain
        // the dates.
        let problem_at = |time| {
            let usage = KeyUsage::client_auth();
            parsed
                .verify_for_usage(&[], &[], &[], time, usage, None, None)
                .err()
        };
        let [first, last] =
            [0, u64::MAX].map(|seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
        let not_before = match problem_at(first) {
            Some(error @ (Error::InvalidCertValidity | Error::BadDer | Error::BadDerTime)) => {
                return Err(error);
            }
            Some(Error::CertNotValidYet { not_before, .. }) => not_before,
            _ => first,
        };
        let not_after = match problem_at(last) {
            Some(Error::CertExpired { not_after, .. }) => not_after,
            _ => last,
        };
        let is_authority = matches!(problem_at(not_before), Some(Error::CaUsedAsEndEntity));
        Ok(Self {
            parsed,
            validity: Validity {
                not_before,
                not_after,
            },
            is_authority,
        })
    }
}

/// The time in which a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validity {
    not_before: UnixTime,
    not_after: UnixTime,
}

impl Validity {
    pub(super) fn check(self, time: UnixTime) -> Result<(), CertificateError> {
        let Self {
            not_before,
            not_after,
        } = self;
        if time < not_before {
            return Err(CertificateError::NotValidYetContext { time, not_before });
        }
        if time > not_after {
            return Err(CertificateError::ExpiredContext { time, not_after });
        }
        Ok(())
    }
}
