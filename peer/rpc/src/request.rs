//! Requests and their replies, on comms that are not streams.

use daskwire::message::{BuildError, MessageBuilder};
use daskwire::msgpack::Token;

use daskwire_comm::Traffic;
use daskwire_messages::RemoteError;
use daskwire_messages::protocol::{Field, ProtocolError, Request, Source, Status};

use crate::RequestError;
use crate::channel::Channel;

impl Channel {
    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    ///
    /// [`RequestError::Remote`] if the request raised an exception in the peer.
    pub async fn call<T: Field>(&mut self, request: &Request) -> Result<T, RequestError> {
        self.send_request(request).await?;
        self.receive_reply().await
    }

    /// Sends a request. After an error, the peer has not received all of it, and does
    /// not execute it.
    pub async fn send_request(&mut self, request: &Request) -> Result<(), RequestError> {
        self.set_traffic(traffic(request));
        let compressed = self.compress_request(request).await;
        self.sender
            .send(compressed.as_ref().unwrap_or(request))
            .await
    }

    /// Receives the reply to a request.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub async fn receive_reply<T: Field>(&mut self) -> Result<T, RequestError> {
        match self.receiver.receive::<Reply<T>>().await? {
            Some(Reply::Value(value)) => Ok(value),
            Some(Reply::Failed(status)) => Err(RemoteError::of_status(&status).into()),
            None => Err(RequestError::Closed {
                peer: self.peer.to_string(),
            }),
        }
    }
}

/// An incoming request, with the fields common to all requests.
#[derive(Debug)]
pub struct IncomingRequest {
    /// The request, or the parse error, which is the reply.
    pub request: Result<Request, ProtocolError>,
    /// Whether the peer waits for a reply. Default: true.
    pub wants_reply: bool,
    /// Whether the comm is closed after the reply. Default: false.
    pub is_last: bool,
}

impl Field for IncomingRequest {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        let flag = |name| {
            let mut ahead = source.reader;
            match ahead.find(name) {
                Ok(true) => ahead.bool().ok(),
                _ => None,
            }
        };
        let mut ahead = source.reader;
        let has_op = ahead.find("op")? && matches!(ahead.peek()?, Token::Str(_));
        if !has_op {
            // Dask closes the connection in this case.
            return Err(source.unexpected("a request with an op"));
        }
        Ok(Self {
            wants_reply: flag("reply").unwrap_or(true),
            is_last: flag("close").unwrap_or(false),
            request: Request::read(source),
        })
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        match &self.request {
            Ok(request) => request.write(to),
            Err(_) => {
                to.body().nil();
                Ok(())
            }
        }
    }
}

/// A reply: a value, or the report of an exception.
enum Reply<T> {
    Value(T),
    Failed(Box<Status>),
}

impl<T: Field> Field for Reply<T> {
    fn read(source: &mut Source<'_>) -> Result<Self, ProtocolError> {
        let mut ahead = source.reader;
        let is_failure = ahead.find("status").unwrap_or(false)
            && ahead
                .raw_str()
                .is_ok_and(|status| status == "uncaught-error");
        if is_failure {
            return Ok(Self::Failed(Box::new(Status::read(source)?)));
        }
        T::read(source).map(Self::Value)
    }

    fn write<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        match self {
            Self::Value(value) => value.write(to),
            Self::Failed(status) => status.write(to),
        }
    }
}

/// The kind of traffic of a request and its reply.
pub const fn traffic(request: &Request) -> Traffic {
    match request {
        Request::HeartbeatWorker(_) | Request::RegisterClient(_) | Request::RegisterWorker(_) => {
            Traffic::Control
        }
        Request::Gather(_) | Request::GetData(_) | Request::Scatter(_) | Request::UpdateData(_) => {
            Traffic::Bulk
        }
        _ => Traffic::Normal,
    }
}
