//! The names in a certificate.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The names of a peer: the common names of the subject of its certificate, followed by the DNS
/// names among its alternative names. Empty if there are none, or if `der` is no certificate.
///
/// For the certificates of [`Encryption`](crate::Encryption), which have been verified: an
/// authority has signed these names.
pub fn certificate_names(der: &[u8]) -> Vec<String> {
    let der = CertificateDer::from(der);
    let Ok(certificate) = EndEntityCert::try_from(&der) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    let mut rest = certificate.subject();
    // A sequence of sets of pairs of type and value, within the contents of `Name`.
    while let Some((SET, set, after)) = element(rest) {
        rest = after;
        let mut pairs = set;
        while let Some((SEQUENCE, pair, after)) = element(pairs) {
            pairs = after;
            if let Some((IDENTIFIER, COMMON_NAME, value)) = element(pair)
                && let Some((UTF8 | PRINTABLE | IA5, value, _)) = element(value)
                && let Ok(name) = core::str::from_utf8(value)
            {
                names.push(name.to_owned());
            }
        }
    }
    names.extend(certificate.valid_dns_names().map(str::to_owned));
    names
}

const IDENTIFIER: u8 = 0x06;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const IA5: u8 = 0x16;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// The identifier 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// Splits DER into the tag and the contents of the first element, and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Of two bytes at most, which is more than names have.
        0x81 => {
            let (&len, rest) = rest.split_first()?;
            (usize::from(len), rest)
        }
        0x82 => {
            let (len, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*len)), rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(len)?;
    Some((tag, contents, rest))
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn the_common_name_is_a_name() {
        let pem = include_bytes!("../../tests/tls/cert.pem");
        let der = CertificateDer::from_pem_slice(pem).expect("a certificate");
        assert_eq!(certificate_names(&der), ["localhost"]);
        for end in 0..der.len() {
            assert_eq!(certificate_names(&der[..end]), [""; 0]);
        }
    }

    #[test]
    fn elements_that_do_not_fit_are_none() {
        assert_eq!(
            element(&[0x0c, 1, b'a', 7]),
            Some((UTF8, &b"a"[..], &[7][..]))
        );
        assert_eq!(
            element(&[0x0c, 0x81, 1, b'a']),
            Some((UTF8, &b"a"[..], &[][..]))
        );
        assert_eq!(
            element(&[0x0c, 0x82, 0, 1, b'a']),
            Some((UTF8, &b"a"[..], &[][..]))
        );
        for der in [
            &[][..],
            &[0x0c],
            &[0x0c, 1],
            &[0x0c, 0x80],
            &[0x0c, 0x82, 0],
            &[0x0c, 0x83],
        ] {
            assert_eq!(element(der), None, "{der:?}");
        }
    }
}
