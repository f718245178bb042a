//! The messages of the task protocol in both directions, as in Dask 2026.8.0.
//!
//! There are two kinds of comms. A *stream* is a comm on which a client or worker has
//! registered: each message is a batch, a list of maps with an `op`, without replies.
//! The four directions are [`FromClient`], [`ToClient`], [`FromWorker`] and
//! [`ToWorker`]. All other comms carry [`Request`]s, each with a reply.
//!
//! An unknown field is kept in `extra` and forwarded with the message. An unknown
//! `op` is not an error but [`Unknown`], because plugins add their own.

mod field;
mod python;
mod reply;
mod request;
mod shared;
mod status;
mod stream;

use daskwire::message::{BuildError, MessageBuilder};
use daskwire::msgpack::Token;

use daskwire_value::brief_debug;

use crate::scratch::Encode;
use crate::value::Value;
pub use crate::value::source::{Opener, ProtocolError, Source, body, body_in};

pub use field::Field;
pub use field::{Keys, Nullable, Sizes, WorkerNames};
pub use python::*;
pub use reply::*;
pub use request::*;
pub use shared::*;
pub use status::{ReplyStatus, TaskState, WorkerStatus};
pub use stream::*;

/// A message with an unknown `op`.
#[derive(Clone, Default, PartialEq)]
pub struct Unknown {
    /// The message's `op`.
    pub op: String,
    /// All other fields.
    pub extra: Vec<(Value, Value)>,
}

brief_debug!(struct Unknown { op, extra, });

impl Unknown {
    /// Returns a message without fields.
    pub fn new(op: impl Into<String>) -> Self {
        Self {
            op: op.into(),
            extra: Vec::new(),
        }
    }

    /// The value of a field.
    pub fn value(&self, name: &str) -> Option<&Value> {
        let mut fields = self.extra.iter();
        let (_, value) = fields.find(|(key, _)| key.as_str() == Some(name))?;
        Some(value)
    }

    /// Adds a field.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extra.push((Value::from(name), value.into()));
        self
    }
}

/// A field as the body of a message.
pub struct Body<'m, T>(pub &'m T);

impl<T: Field> Encode for Body<'_, T> {
    fn encode<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        self.0.write(to)
    }
}

/// Reads a batch or a single message.
///
/// # Errors
///
/// If the message is malformed.
pub fn read_batch<T: Field>(source: &mut Source<'_>) -> Result<Vec<T>, ProtocolError> {
    if matches!(source.reader.peek()?, Token::Map(_)) {
        return Ok(vec![T::read(source)?]);
    }
    Vec::read(source)
}

#[cfg(test)]
mod tests;
