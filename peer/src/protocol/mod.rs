//! The messages of the journey, both ways, as the wire of Dask 2026.8.0 has
//! them.
//!
//! Two kinds of conversation use them. On a *stream*, which a comm becomes when
//! a client or a worker has registered, each message is a batch: a list of maps
//! with an `op`, to which nobody replies. The four directions are
//! [`FromClient`], [`ToClient`], [`FromWorker`] and [`ToWorker`]. All other comms
//! carry [`Request`]s, each of which has a reply.
//!
//! A field that is not known here is kept in `extra`, and goes out again where
//! the message does. An `op` that is not known is [`Unknown`], never an error:
//! plugins add their own.

mod field;
mod reply;
mod request;
mod stream;

use core::fmt;

use bytes::Bytes;
use daskwire::message::{
    Layout, Message, MessageError, MessageErrorKind, PayloadKind, ReadOptions, Workspace,
};
use daskwire::msgpack::{Malformed, Reader, Token};

use crate::value::{Serialized, Value};

pub(crate) use field::Field;
pub use field::{Keys, Nullable};
pub use reply::*;
pub use request::*;
pub use stream::*;

/// Why a message could not be understood.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// It is not a message.
    Message(MessageError),
    /// Its body is not what it should be; the offset is one in the body.
    Body(Malformed),
    /// A field is missing that every such message has.
    Missing {
        /// The message.
        message: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A value is of another kind than such messages have.
    Unexpected {
        /// Offset in the body, in bytes.
        at: usize,
        /// What should be there.
        expected: &'static str,
    },
    /// Values are nested deeper than 100 levels.
    TooDeep,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(error) => error.fmt(f),
            Self::Body(error) => write!(f, "the message is not as it should be, {error}"),
            Self::Missing { message, field } => {
                write!(f, "the message {message} has no field {field}")
            }
            Self::Unexpected { at, expected } => write!(
                f,
                "the message is not as it should be, at byte {at}: expected {expected}"
            ),
            Self::TooDeep => f.write_str("the message is nested deeper than 100 levels"),
        }
    }
}

impl core::error::Error for ProtocolError {}

impl From<MessageError> for ProtocolError {
    fn from(error: MessageError) -> Self {
        Self::Message(error)
    }
}

impl From<Malformed> for ProtocolError {
    fn from(error: Malformed) -> Self {
        Self::Body(error)
    }
}

/// A message that is being read: its body from where the reader is, and the
/// frames that its placeholders point to.
#[derive(Clone, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) reader: Reader<'a>,
    frames: &'a [Bytes],
    /// `None` for a document without payloads.
    message: Option<Message<'a, Bytes>>,
}

/// The body of a message as a value, its payloads unopened.
///
/// # Errors
///
/// What is wrong with the message.
pub fn body(frames: &[Bytes]) -> Result<Value, ProtocolError> {
    body_in(frames, Layout::Modern)
}

/// The same in the layout of an older release.
pub(crate) fn body_in(frames: &[Bytes], layout: Layout) -> Result<Value, ProtocolError> {
    Opener::default().read_in(layout, frames, Value::read)
}

/// Opens messages one after the other.
#[derive(Debug, Default)]
pub(crate) struct Opener(Workspace);

impl Opener {
    /// Checks a message as a whole, and reads it.
    pub(crate) fn read<T>(
        &mut self,
        frames: &[Bytes],
        read: impl FnOnce(&mut Source<'_>) -> Result<T, ProtocolError>,
    ) -> Result<T, ProtocolError> {
        self.read_in(Layout::Modern, frames, read)
    }

    fn read_in<T>(
        &mut self,
        layout: Layout,
        frames: &[Bytes],
        read: impl FnOnce(&mut Source<'_>) -> Result<T, ProtocolError>,
    ) -> Result<T, ProtocolError> {
        let reading = ReadOptions::default();
        self.0
            .with_message(frames, layout, &reading, |message, _| {
                read(&mut Source {
                    reader: message.reader(),
                    frames,
                    message: Some(message),
                })
            })?
    }
}

impl<'a> Source<'a> {
    /// A document without payloads.
    pub(crate) fn new(frames: &'a [Bytes]) -> Result<Self, ProtocolError> {
        let document = frames.first().map(AsRef::as_ref).unwrap_or_default();
        // Whole and in bounds, as the core checks the body of a message.
        let mut check = Reader::new(document);
        check.skip()?;
        check.finish()?;
        Ok(Self {
            reader: Reader::new(document),
            frames,
            message: None,
        })
    }

    pub(crate) fn unexpected(&self, expected: &'static str) -> ProtocolError {
        ProtocolError::Unexpected {
            at: self.reader.position(),
            expected,
        }
    }

    /// The next value, bytes, without a copy.
    pub(crate) fn bytes(&mut self) -> Result<Bytes, ProtocolError> {
        let data = self.reader.bin()?;
        // Long ones share the frame; short ones do not keep it in memory.
        const SHARED: usize = 4 << 10;
        Ok(match self.frames.first() {
            Some(body) if data.len() >= SHARED && lies_in(data, body) => body.slice_ref(data),
            _ => Bytes::copy_from_slice(data),
        })
    }

    /// If the next value is a placeholder, the payload that it stands for.
    pub(crate) fn payload(&mut self) -> Result<Option<Serialized>, ProtocolError> {
        let mut ahead = self.reader;
        if !matches!(ahead.token()?, Token::Map(1)) {
            return Ok(None);
        }
        let Ok(key) = ahead.raw_str() else {
            return Ok(None);
        };
        let kind = if key == "__Serialized__" {
            PayloadKind::Serialized
        } else if key == "__Pickled__" {
            PayloadKind::Pickled
        } else {
            return Ok(None);
        };
        let index = usize::try_from(ahead.u64()?).unwrap_or(usize::MAX);
        let at = self.reader.position();
        let limit = self.message.and_then(|message| message.frame_limit(at));
        let limit = limit.ok_or_else(|| self.unexpected("a value that is not a payload"))?;
        let payload = Serialized::of_frames(self.frames, index, kind);
        let payload = payload.ok_or_else(|| self.unexpected("the number of a frame"))?;
        // The header may claim frames of the payloads behind it.
        if index.saturating_add(1 + payload.frames().len()) > limit {
            let (frame, at, kind) = (limit, 0, MessageErrorKind::FramesShared);
            return Err(MessageError { frame, at, kind }.into());
        }
        self.reader = ahead;
        Ok(Some(payload))
    }

    /// If the next value is a set, moves to the list of its items.
    pub(crate) fn is_set(&mut self) -> Result<bool, ProtocolError> {
        let mut ahead = self.reader;
        if !matches!(ahead.token()?, Token::Map(2))
            || !ahead.raw_str().is_ok_and(|key| key == "__Set__")
        {
            return Ok(false);
        }
        if ahead.bool().is_err() || !ahead.raw_str().is_ok_and(|key| key == "as-list") {
            return Ok(false);
        }
        if !matches!(ahead.peek()?, Token::Array(_)) {
            return Ok(false);
        }
        self.reader = ahead;
        Ok(true)
    }
}

fn lies_in(data: &[u8], all: &[u8]) -> bool {
    let (data, all) = (data.as_ptr_range(), all.as_ptr_range());
    all.start <= data.start && data.end <= all.end
}

/// A message whose `op` is not known here, whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unknown {
    /// Its `op`.
    pub op: String,
    /// All other fields.
    pub extra: Vec<(Value, Value)>,
}

#[cfg(test)]
mod tests;
