//! Requests: what they ask for.

use core::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::Method;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName};

use crate::live::Viewing;

/// Maximum length of a body in bytes.
const MAX_BODY_LEN: usize = 1 << 20;

/// Timeout for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(3);

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    inner: hyper::Request<Incoming>,
    viewing: Viewing,
}

impl Request {
    pub(super) const fn new(inner: hyper::Request<Incoming>, viewing: Viewing) -> Self {
        Self { inner, viewing }
    }

    pub(crate) fn method(&self) -> &Method {
        self.inner.method()
    }

    pub(crate) fn path(&self) -> &str {
        self.inner.uri().path()
    }

    /// The value of a parameter in the query, decoded.
    pub(crate) fn parameter(&self, name: &str) -> Option<String> {
        let query = self.inner.uri().query()?;
        let mut pairs = query.split('&');
        pairs.find_map(|pair| {
            let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(found) == name).then(|| decoded(value))
        })
    }

    /// The value of a header, if it is text.
    pub(crate) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.inner.headers().get(name)?.to_str().ok()
    }

    /// Whether the page of another site has sent the request: for data or a change, as its browser says.
    pub(crate) fn is_of_other_site(&self) -> bool {
        const GUARDED: [&str; 4] = ["/data/", "/json/", "/actions/", "/api/"];
        let is_guarded = GUARDED.iter().any(|start| self.path().starts_with(start));
        let is_cross_site =
            self.header(&HeaderName::from_static("sec-fetch-site")) == Some("cross-site");
        // `null` for a page without an origin.
        let is_foreign = self.header(&header::ORIGIN).is_some_and(|origin| {
            let origin = origin.split_once("://").map_or(origin, |(_, host)| host);
            self.header(&header::HOST) != Some(origin)
        });
        let reads = matches!(*self.method(), Method::GET | Method::HEAD);
        (is_cross_site && is_guarded) || (is_foreign && !reads)
    }

    /// The body, of at most 1 MiB.
    ///
    /// # Errors
    ///
    /// If it is longer, or does not arrive in time.
    pub(crate) async fn body(&mut self) -> Result<Vec<u8>, &'static str> {
        let body = Limited::new(self.inner.body_mut(), MAX_BODY_LEN).collect();
        match tokio::time::timeout(BODY_TIMEOUT, body).await {
            Ok(Ok(body)) => Ok(body.to_bytes().into()),
            Ok(Err(_)) => Err("the body is longer than 1 MiB, or was interrupted"),
            Err(_) => Err("the body did not arrive in time"),
        }
    }

    /// What tells the server that the response is a stream.
    pub(crate) fn viewing(&self) -> &Viewing {
        &self.viewing
    }
}

/// Decodes a part of a query, in which `+` is a space.
fn decoded(text: &str) -> String {
    decoded_path(&text.replace('+', " "))
}

/// Decodes a part of a path. What is no UTF-8 is replaced, and an incomplete escape is kept.
pub(crate) fn decoded_path(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match (first, after) {
            (b'%', [high, low, after @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    rest = after;
                    high << 4 | low
                }
                _ => b'%',
            },
            _ => *first,
        });
    }
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        for (text, expected) in [
            ("a+b%2Bc", "a b+c"),
            ("%28%27x%27%2C%200%29", "('x', 0)"),
            ("100%", "100%"),
            ("%4", "%4"),
            ("%zz", "%zz"),
            ("%c3%a9", "é"),
            ("%ff", "\u{fffd}"),
            ("", ""),
        ] {
            assert_eq!(decoded(text), expected, "{text}");
        }
    }
}
