//! The input of messages, from which values are read.

use core::fmt;
use std::sync::Arc;

use bytes::Bytes;
use daskwire::Limits;
use daskwire::message::{
    Layout, Message, MessageError, MessageErrorKind, PayloadKind, ReadOptions, Workspace,
};
use daskwire::msgpack::{Malformed, Reader, Token};

use super::{Serialized, Value};

/// The error of parsing a message.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The frames are not a valid message.
    Message(MessageError),
    /// The body is malformed. The offset is relative to the body.
    Body(Malformed),
    /// A mandatory field is missing.
    Missing {
        /// The message's op or name.
        message: &'static str,
        /// The field's name on the wire.
        field: &'static str,
    },
    /// A value has an unexpected type.
    Unexpected {
        /// Offset in the body, in bytes.
        at: usize,
        /// The expected type.
        expected: &'static str,
    },
    /// Values are nested deeper than 100 levels.
    TooDeep,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(error) => error.fmt(f),
            Self::Body(error) => write!(f, "malformed message: {error}"),
            Self::Missing { message, field } => {
                write!(f, "the message {message} has no field {field}")
            }
            Self::Unexpected { at, expected } => {
                write!(f, "malformed message at byte {at}: expected {expected}")
            }
            Self::TooDeep => f.write_str("the message is nested deeper than 100 levels"),
        }
    }
}

impl core::error::Error for ProtocolError {}

daskwire::kinds! {
    ProtocolError: |_| ErrorKind::Protocol;
}

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

/// The input of a message that is being parsed: the rest of its body, and the frames
/// that its placeholders refer to.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// The rest of the body.
    pub reader: Reader<'a>,
    frames: &'a [Bytes],
    /// `None` for a document without payloads.
    message: Option<Message<'a, Bytes>>,
    /// The limits of its payloads, if they are not the default.
    limits: Option<&'a Arc<Limits>>,
}

/// Parses the body of a message as a value, with unopened payloads.
///
/// # Errors
///
/// If the message is malformed.
pub fn body(frames: &[Bytes]) -> Result<Value, ProtocolError> {
    body_in(frames, Layout::Modern)
}

/// Parses a body in the layout of an older release.
///
/// # Errors
///
/// If the message is malformed.
pub fn body_in(frames: &[Bytes], layout: Layout) -> Result<Value, ProtocolError> {
    Opener::default().read_in(layout, frames, Value::read)
}

/// Opens messages, and reuses the memory of earlier ones.
#[derive(Debug, Default)]
pub struct Opener {
    workspace: Workspace,
    /// The limits of messages, if they are not the default.
    limits: Option<Arc<Limits>>,
}

impl Opener {
    /// Creates an opener with these limits of messages and payloads.
    pub fn new(limits: Limits) -> Self {
        Self {
            workspace: Workspace::default(),
            limits: (limits != Limits::default()).then(|| Arc::new(limits)),
        }
    }

    /// Validates a whole message, then reads it.
    ///
    /// # Errors
    ///
    /// If the message is malformed.
    pub fn read<T>(
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
        let options = ReadOptions::new(self.limits.as_deref().copied().unwrap_or_default());
        let message = Message::open(frames, layout, &options, &mut self.workspace)?;
        read(&mut Source {
            reader: message.reader(),
            frames,
            message: Some(message),
            limits: self.limits.as_ref(),
        })
    }
}

impl<'a> Source<'a> {
    /// Returns the source of a document without payloads.
    ///
    /// # Errors
    ///
    /// If the message is malformed.
    pub fn new(frames: &'a [Bytes]) -> Result<Self, ProtocolError> {
        let document = frames.first().map(AsRef::as_ref).unwrap_or_default();
        // Check completeness and limits, as the core does for the body of a
        // message.
        let mut check = Reader::new(document);
        check.skip()?;
        check.finish()?;
        Ok(Self {
            reader: Reader::new(document),
            frames,
            message: None,
            limits: None,
        })
    }

    /// The error of a value that is not the expected one.
    pub fn unexpected(&self, expected: &'static str) -> ProtocolError {
        ProtocolError::Unexpected {
            at: self.reader.position(),
            expected,
        }
    }

    /// Reads `bytes` as the next value without a copy.
    pub fn bytes(&mut self) -> Result<Bytes, ProtocolError> {
        let data = self.reader.bin()?;
        // Long data shares the frame; short data is copied, so that it does not keep the
        // frame in memory.
        const SHARED: usize = 4 << 10;
        Ok(match self.frames.first() {
            Some(body) if data.len() >= SHARED && is_within(data, body) => body.slice_ref(data),
            _ => Bytes::copy_from_slice(data),
        })
    }

    /// The payload, if the next value is a placeholder.
    pub fn payload(&mut self) -> Result<Option<Serialized>, ProtocolError> {
        let mut ahead = self.reader;
        let Token::Map(count) = ahead.token()? else {
            return Ok(None);
        };
        let at = self.reader.position();
        let limit = self.message.and_then(|message| message.frame_limit(at));
        // Opening finds all placeholders, but documents without payloads are not opened.
        if limit.is_none() && count != 1 {
            return Ok(None);
        }
        // A placeholder may have other keys, which are dropped.
        let (mut serialized, mut pickled) = (None, None);
        for _ in 0..count {
            let index = match ahead.peek()? {
                Token::Str(key) if key == "__Serialized__" => Some(&mut serialized),
                Token::Str(key) if key == "__Pickled__" => Some(&mut pickled),
                _ => None,
            };
            ahead.skip()?;
            match index {
                Some(index) => *index = Some(ahead.u64()?),
                None => {
                    ahead.skip()?;
                }
            }
        }
        let (kind, index) = match (serialized, pickled) {
            (Some(index), _) => (PayloadKind::Serialized, index),
            (None, Some(index)) => (PayloadKind::Pickled, index),
            (None, None) => return Ok(None),
        };
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let limit = limit.ok_or_else(|| self.unexpected("a value that is not a payload"))?;
        let payload = Serialized::of_frames(self.frames, index, kind);
        let payload = payload.ok_or_else(|| self.unexpected("the number of a frame"))?;
        // The header may claim frames that belong to the next payloads.
        if index.saturating_add(1 + payload.frames().len()) > limit {
            let (frame, at, kind) = (limit, 0, MessageErrorKind::FramesShared);
            return Err(MessageError { frame, at, kind }.into());
        }
        self.reader = ahead;
        Ok(Some(payload.limited(self.limits.cloned())))
    }

    /// Reads the head of a map and returns the number of its entries.
    pub fn map(&mut self) -> Result<u32, ProtocolError> {
        let at = self.reader.position();
        let count = self.reader.map()?;
        let limit = self.message.and_then(|message| message.frame_limit(at));
        if limit.is_some() {
            // As entries, the placeholder would be forwarded without its frames.
            let expected = "a map that is not a payload";
            return Err(ProtocolError::Unexpected { at, expected });
        }
        Ok(count)
    }

    /// If the next value is a set, moves to the list of its items.
    pub fn is_set(&mut self) -> Result<bool, ProtocolError> {
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

fn is_within(data: &[u8], all: &[u8]) -> bool {
    let (data, all) = (data.as_ptr_range(), all.as_ptr_range());
    all.start <= data.start && data.end <= all.end
}
