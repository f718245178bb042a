//! Responses.

use core::convert::Infallible;
use core::pin::Pin;
use core::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};

use crate::live::Messages;

/// A response.
pub(crate) type Response = hyper::Response<Body>;

/// What a response contains.
#[derive(Debug)]
pub(crate) enum Body {
    /// The rest of what is known at once.
    Full(Bytes),
    /// Messages, as they come.
    Live(Messages),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Full(rest) if rest.is_empty() => Poll::Ready(None),
            Self::Full(rest) => Poll::Ready(Some(Ok(Frame::data(core::mem::take(rest))))),
            Self::Live(messages) => {
                let next = messages.poll_next(context);
                next.map(|message| message.map(|message| Ok(Frame::data(message))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(rest) if rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(rest) => SizeHint::with_exact(rest.len() as u64),
            Self::Live(_) => SizeHint::default(),
        }
    }
}

/// A response of a media type that is known at once.
pub(crate) fn full(
    status: StatusCode,
    media_type: &'static str,
    body: impl Into<Bytes>,
) -> Response {
    let mut response = Response::new(Body::Full(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// A plain text.
pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Response {
    full(status, "text/plain; charset=utf-8", text)
}

/// An error, with a text that says what to do.
pub(crate) fn error(status: StatusCode, text: &str) -> Response {
    full_json(status, serde_json::json!({"error": text}).to_string())
}

/// A document in JSON.
pub(crate) fn document(document: impl Into<Bytes>) -> Response {
    full_json(StatusCode::OK, document)
}

/// A document that is not cached.
fn full_json(status: StatusCode, document: impl Into<Bytes>) -> Response {
    let mut response = full(status, "application/json", document);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The answer to a request with a method other than these.
pub(crate) fn only(methods: &[Method]) -> Response {
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    let allowed = names.join(", ");
    let message = format!("only {} is allowed\n", names.first().unwrap_or(&"nothing"));
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, message);
    // The names of methods are valid in headers.
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}
