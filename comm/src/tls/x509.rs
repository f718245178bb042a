//! A parser of the certificate fields that webpki does not provide.
//!
//! webpki refuses certificates of X.509 version 1, and does not return the dates and
//! public key of those that it accepts. This parser reads the fields of any version:
//! the signed part, issuer, validity and key. It does not verify them.

use core::fmt;

/// A parsed certificate, which borrows from its DER.
#[derive(Clone, Copy)]
pub(super) struct Certificate<'a> {
    /// The X.509 version: 1, 2 or 3.
    pub(super) version: u8,
    /// The signed part.
    pub(super) signed: &'a [u8],
    /// The signature algorithm: the contents of an `AlgorithmIdentifier`.
    pub(super) algorithm: &'a [u8],
    pub(super) signature: &'a [u8],
    /// The contents of a `Name`.
    pub(super) issuer: &'a [u8],
    /// The contents of a `Name`.
    pub(super) subject: &'a [u8],
    pub(super) not_before: Time,
    pub(super) not_after: Time,
    /// The whole `SubjectPublicKeyInfo`.
    pub(super) public_key: &'a [u8],
    /// Whether the certificate may sign others, by the rules of OpenSSL: according to its
    /// basic constraints and its key usage, of those that it has; without both, if it is a
    /// self-issued certificate of a version without extensions. The path length and the
    /// extended key usage are not considered.
    pub(super) is_authority: bool,
    /// The purposes that the key is restricted to: the contents of an
    /// `ExtKeyUsageSyntax`.
    purposes: Option<&'a [u8]>,
}

/// The error of input that is not the DER of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotACertificate;

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const ISSUER_ID: u8 = 0x81;
const SUBJECT_ID: u8 = 0x82;
const EXTENSIONS: u8 = 0xa3;

const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];

/// `anyExtendedKeyUsage`
const ANY_PURPOSE: &[u8] = &[0x55, 0x1d, 0x25, 0x00];
/// `id-kp-serverAuth`
pub(super) const SERVER_PURPOSE: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
/// `id-kp-clientAuth`
pub(super) const CLIENT_PURPOSE: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

impl<'a> Certificate<'a> {
    pub(super) fn parse(der: &'a [u8]) -> Result<Self, NotACertificate> {
        Self::read(der).ok_or(NotACertificate)
    }

    fn read(der: &'a [u8]) -> Option<Self> {
        let mut outer = Der(der);
        let mut certificate = Der(outer.take(SEQUENCE)?);
        outer.end()?;
        let (_, fields, signed) = certificate.next()?;
        let algorithm = certificate.take(SEQUENCE)?;
        let signature = match certificate.take(BIT_STRING)? {
            [0, signature @ ..] => signature,
            _ => return None,
        };
        certificate.end()?;
        if signed.first() != Some(&SEQUENCE) {
            return None;
        }

        let mut fields = Der(fields);
        let version = match fields.take_if(VERSION) {
            None => 1,
            Some(&[INTEGER, 1, number @ 0..=2]) => number + 1,
            Some(_) => return None,
        };
        fields.take(INTEGER)?; // the serial number
        // The algorithm is stored twice, once in the signed part.
        if fields.take(SEQUENCE)? != algorithm {
            return None;
        }
        let issuer = fields.take(SEQUENCE)?;
        let mut validity = Der(fields.take(SEQUENCE)?);
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        validity.end()?;
        let subject = fields.take(SEQUENCE)?;
        let (tag, _, public_key) = fields.next()?;
        if tag != SEQUENCE {
            return None;
        }
        fields.take_if(ISSUER_ID);
        fields.take_if(SUBJECT_ID);
        let extensions = fields.take_if(EXTENSIONS);
        fields.end()?;

        let mut parsed = Self {
            version,
            signed,
            algorithm,
            signature,
            issuer,
            subject,
            not_before,
            not_after,
            public_key,
            is_authority: version < 3 && issuer == subject,
            purposes: None,
        };
        if let Some(extensions) = extensions {
            parsed.read_extensions(extensions)?;
        }
        Some(parsed)
    }

    fn read_extensions(&mut self, extensions: &'a [u8]) -> Option<()> {
        let mut outer = Der(extensions);
        let mut extensions = Der(outer.take(SEQUENCE)?);
        outer.end()?;
        let (mut constraints, mut usage) = (None, None);
        while !extensions.0.is_empty() {
            let mut extension = Der(extensions.take(SEQUENCE)?);
            let name = extension.take(OBJECT_IDENTIFIER)?;
            extension.take_if(BOOLEAN); // whether it is critical
            let value = extension.take(OCTET_STRING)?;
            extension.end()?;
            let mut value = Der(value);
            let place = match name {
                KEY_USAGE => (&mut usage, BIT_STRING),
                BASIC_CONSTRAINTS => (&mut constraints, SEQUENCE),
                EXTENDED_KEY_USAGE => (&mut self.purposes, SEQUENCE),
                _ => continue,
            };
            // An extension occurs at most once.
            if place.0.replace(value.take(place.1)?).is_some() {
                return None;
            }
            value.end()?;
        }
        // The first byte counts unused bits; bit 5 is `keyCertSign`.
        let signs = usage.map(|usage| matches!(usage, [_, bits, ..] if bits & 0x04 != 0));
        self.is_authority = match constraints {
            Some(constraints) => {
                matches!(constraints, [BOOLEAN, 1, 0xff, ..]) && signs.unwrap_or(true)
            }
            None => signs.unwrap_or(self.is_authority),
        };
        Some(())
    }

    /// Whether the key may be used for `purpose`, the contents of an object
    /// identifier.
    pub(super) fn allows(&self, purpose: &[u8]) -> bool {
        let Some(purposes) = self.purposes else {
            return true;
        };
        let mut purposes = Der(purposes);
        while let Some(allowed) = purposes.take(OBJECT_IDENTIFIER) {
            if allowed == purpose || allowed == ANY_PURPOSE {
                return true;
            }
        }
        false
    }
}

/// An iterator over consecutive DER values.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The tag, the contents and all bytes of the next value.
    fn next(&mut self) -> Option<(u8, &'a [u8], &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        if tag & 0x1f == 0x1f {
            return None; // a tag of several bytes: certificates have none
        }
        let (&first, rest) = rest.split_first()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let len = digits.iter().try_fold(0_usize, |len, &digit| {
                    len.checked_mul(256)?.checked_add(usize::from(digit))
                })?;
                // DER allows only the shortest form of a length.
                if len < 0x80 || digits.first() == Some(&0) {
                    return None;
                }
                (len, rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(len)?;
        let whole = self.0.get(..self.0.len() - rest.len())?;
        self.0 = rest;
        Some((tag, contents, whole))
    }

    /// The contents of the next value, which must have this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, contents, _) = self.next()?;
        (found == tag).then_some(contents)
    }

    /// The contents of the next value if it has this tag.
    fn take_if(&mut self, tag: u8) -> Option<&'a [u8]> {
        if self.0.first() == Some(&tag) {
            self.take(tag)
        } else {
            None
        }
    }

    fn time(&mut self) -> Option<Time> {
        let (tag, digits, _) = self.next()?;
        let (year, rest) = match tag {
            UTC_TIME => {
                let (year, rest) = number(digits, 2)?;
                (if year < 50 { 2000 } else { 1900 } + year, rest)
            }
            GENERALIZED_TIME => number(digits, 4)?,
            _ => return None,
        };
        let (month, rest) = number(rest, 2)?;
        let (day, rest) = number(rest, 2)?;
        let (hour, rest) = number(rest, 2)?;
        let (minute, rest) = number(rest, 2)?;
        let (second, rest) = number(rest, 2)?;
        let is_good = (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60
            && rest == b"Z";
        is_good.then(|| Time::new([year, month, day], [hour, minute, second]))
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// The number of `count` decimal digits that `digits` begins with.
fn number(digits: &[u8], count: usize) -> Option<(i64, &[u8])> {
    let (digits, rest) = digits.split_at_checked(count)?;
    let number = digits.iter().try_fold(0, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        Some(number * 10 + digit)
    });
    Some((number?, rest))
}

/// A time in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time(pub(super) i64);

impl Time {
    fn new([year, month, day]: [i64; 3], [hour, minute, second]: [i64; 3]) -> Self {
        // In years that begin in March the leap day is the last one.
        let (year, month) = if month > 2 {
            (year, month - 3)
        } else {
            (year - 1, month + 9)
        };
        let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        let days = 365 * year + leap_days + (153 * month + 2) / 5 + day - 719_469;
        Self(((days * 24 + hour) * 60 + minute) * 60 + second)
    }
}

/// Prints as `2021-01-06 07:46:08 UTC`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut days, second) = (self.0.div_euclid(86_400), self.0.rem_euclid(86_400));
        // The inverse of `new`: first the cycle of 400 years, then the year.
        days += 719_468;
        let (cycle, days) = (days.div_euclid(146_097), days.rem_euclid(146_097));
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
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"
        )
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    fn fixture(pem: &[u8]) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem).unwrap()
    }

    #[test]
    fn fixtures_are_what_they_are_called() {
        let v1 = fixture(include_bytes!("../../tests/tls/v1-cert.pem"));
        let v1 = Certificate::parse(&v1).unwrap();
        let ca = fixture(include_bytes!("../../tests/tls/ca.pem"));
        let ca = Certificate::parse(&ca).unwrap();
        let own = fixture(include_bytes!("../../tests/tls/self-signed.pem"));
        let own = Certificate::parse(&own).unwrap();
        assert_eq!((v1.version, ca.version, own.version), (1, 3, 3));
        assert!(ca.is_authority && own.is_authority);
        assert_eq!(v1.issuer, ca.subject);
        assert_eq!((ca.issuer, own.issuer), (ca.subject, own.subject));
        assert!(v1.allows(CLIENT_PURPOSE) && v1.allows(SERVER_PURPOSE));
        for certificate in [v1, ca, own] {
            // The date that `make.sh` sets.
            assert!(certificate.not_after.to_string().starts_with("30"));
            assert!(certificate.not_before < certificate.not_after);
        }
    }

    #[test]
    fn nothing_panics_on_a_broken_certificate() {
        for pem in [
            &include_bytes!("../../tests/tls/v1-cert.pem")[..],
            include_bytes!("../../tests/tls/self-signed.pem"),
        ] {
            let der = fixture(pem);
            for len in 0..der.len() {
                assert!(Certificate::parse(&der[..len]).is_err());
            }
            let mut longer = der.to_vec();
            longer.push(0);
            assert!(Certificate::parse(&longer).is_err());
            for bit in 0..der.len() * 8 {
                let mut broken = der.to_vec();
                broken[bit / 8] ^= 1 << (bit % 8);
                if let Ok(certificate) = Certificate::parse(&broken) {
                    let _ = certificate.allows(CLIENT_PURPOSE);
                    let _ = certificate.not_after.to_string();
                }
            }
        }
    }

    #[test]
    fn times_are_counted_and_printed() {
        for (time, seconds, printed) in [
            ("700101000000Z", 0, "1970-01-01 00:00:00 UTC"),
            ("691231235959Z", -1, "1969-12-31 23:59:59 UTC"),
            ("000229120000Z", 951_825_600, "2000-02-29 12:00:00 UTC"),
            ("491231235959Z", 2_524_607_999, "2049-12-31 23:59:59 UTC"),
            ("500101000000Z", -631_152_000, "1950-01-01 00:00:00 UTC"),
            (
                "00000101000000Z",
                -62_167_219_200,
                "0000-01-01 00:00:00 UTC",
            ),
            ("21000301000000Z", 4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (
                "99991231235959Z",
                253_402_300_799,
                "9999-12-31 23:59:59 UTC",
            ),
        ] {
            let tag = if time.len() == 13 {
                UTC_TIME
            } else {
                GENERALIZED_TIME
            };
            let mut der = vec![tag, u8::try_from(time.len()).unwrap()];
            der.extend_from_slice(time.as_bytes());
            let time = Der(&der).time().unwrap();
            assert_eq!((time.0, &*time.to_string()), (seconds, printed));
        }
        for time in [
            "",
            "Z",
            "7001010000Z",
            "700101000000",
            "700001000000Z",
            "701301000000Z",
            "700132000000Z",
            "700101240000Z",
            "700101006000Z",
            "700101000060Z",
            "70010100000xZ",
            "700101000000+",
            "700101000000ZZ",
        ] {
            let mut der = vec![UTC_TIME, u8::try_from(time.len()).unwrap()];
            der.extend_from_slice(time.as_bytes());
            assert!(Der(&der).time().is_none(), "{time}");
        }
    }
}
