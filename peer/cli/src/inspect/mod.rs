//! Recorded streams, taken apart.
//!
//! [`Inspector`] goes through the bytes of a stream message by message. What it
//! finds becomes one JSON document per message ([`Inspector::json`]) or a text
//! for people ([`Inspector::text`]).

mod json;
mod tagged;
pub(crate) mod text;

use std::fmt;

use daskwire::Limits;
use daskwire::frame::{FrameError, FramedMessage, Prefix};
use daskwire::message::{Layout, MessageError, ReadOptions, Workspace};
use daskwire::msgpack::{Reader, Token};

pub use tagged::{Hooks, TaggedError, TaggedFault, tagged};

/// How to read a stream, and what to show of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The prefix; found out where `None`.
    pub prefix: Option<Prefix>,
    /// The layout; found out message by message where `None`.
    pub layout: Option<Layout>,
    /// Decompress and merge payloads, and show what they then are.
    pub payloads: bool,
    /// Show byte strings and frames in full.
    pub data: bool,
    /// What is accepted, and whether sets and enum members are looked for. By
    /// default a payload becomes half of the machine's memory at most.
    pub reading: ReadOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: None,
            layout: None,
            payloads: false,
            data: false,
            reading: daskwire_peer::memory::read_options(),
        }
    }
}

/// What was wrong with a stream, and where.
#[derive(Clone, Debug)]
pub struct InspectError {
    /// Offset in the stream of the message that is at fault.
    pub offset: u64,
    /// What is wrong with it.
    pub kind: InspectErrorKind,
}

/// What was wrong with a message of a stream.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum InspectErrorKind {
    /// The framing.
    Frame(FrameError),
    /// The message, in its frames.
    Message(MessageError),
    /// A document in one of its frames.
    Tagged(TaggedError),
    /// There is nothing to inspect.
    Empty,
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            InspectErrorKind::Empty => {
                return f.write_str("the input is empty: no message at byte 0");
            }
            InspectErrorKind::Frame(error) => {
                write!(f, "message at byte {}, {error}", self.offset)?
            }
            InspectErrorKind::Message(error) => {
                write!(f, "message at byte {}, {error}", self.offset)?
            }
            InspectErrorKind::Tagged(error) => {
                write!(f, "message at byte {}, {error}", self.offset)?
            }
        }
        Ok(())
    }
}

impl std::error::Error for InspectError {}

/// One message of a stream, cut into frames.
#[derive(Clone, Debug)]
pub struct Recorded<'a> {
    /// Offset in the stream.
    pub offset: u64,
    /// Bytes on the stream, prelude included.
    pub len: u64,
    /// The leading number, if the stream has one.
    pub prefix_value: Option<u64>,
    /// How it is laid out.
    pub layout: Layout,
    /// Its frames.
    pub frames: Vec<&'a [u8]>,
}

/// Goes through a recorded stream.
#[derive(Debug)]
pub struct Inspector<'a> {
    stream: &'a [u8],
    offset: usize,
    prefix: Prefix,
    guessed: bool,
    options: Options,
    workspace: Workspace,
}

impl<'a> Inspector<'a> {
    /// Takes a stream, and finds out its prefix where `options` do not say.
    pub fn new(stream: &'a [u8], mut options: Options) -> Self {
        let (prefix, guessed) = match options.prefix {
            Some(prefix) => (prefix, false),
            None => detect_prefix(stream, &options.reading.limits),
        };
        // PROTOCOL CLASSIC-10: of the classic layout only 2021.3.0 has a number
        // in front, and split lists, which may be missing.
        options.reading.lengths_optional |= prefix == Prefix::U64;
        Self {
            stream,
            offset: 0,
            prefix,
            guessed,
            options,
            workspace: Workspace::new(),
        }
    }

    /// The prefix that the stream is read with.
    pub const fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// Whether the bytes allow either prefix, so that this one is a guess.
    pub const fn guessed(&self) -> bool {
        self.guessed
    }

    /// The next message, or `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// What is wrong with the framing. Nothing can be read behind that.
    pub fn next_message(&mut self) -> Result<Option<Recorded<'a>>, InspectError> {
        let rest = self.stream.get(self.offset..).unwrap_or_default();
        let offset = self.offset as u64;
        let fault = |kind| InspectError { offset, kind };
        if rest.is_empty() {
            return if self.stream.is_empty() {
                Err(fault(InspectErrorKind::Empty))
            } else {
                Ok(None)
            };
        }
        let framed = FramedMessage::parse(rest, self.prefix, &self.options.reading.limits)
            .map_err(|error| fault(InspectErrorKind::Frame(error)))?;
        let mut frames = vec![&[][..]; framed.prelude.frame_count()];
        // `FramedMessage` has checked that all of them are there.
        if framed.prelude.split(framed.frames, &mut frames).is_err() {
            frames.clear();
        }
        self.offset = self.stream.len() - framed.rest.len();
        Ok(Some(Recorded {
            offset,
            len: framed.message_len(),
            prefix_value: framed.prefix_value,
            layout: self
                .options
                .layout
                .unwrap_or_else(|| detect_layout(self.prefix, &frames)),
            frames,
        }))
    }

    /// The message as one JSON document.
    ///
    /// # Errors
    ///
    /// What is wrong with the message.
    pub fn json(&mut self, message: &Recorded<'a>) -> Result<serde_json::Value, InspectError> {
        json::document(message, &self.options, &mut self.workspace).map_err(|kind| InspectError {
            offset: message.offset,
            kind,
        })
    }

    /// The message as a text for people, with a line break at its end.
    ///
    /// # Errors
    ///
    /// What is wrong with the message.
    pub fn text(&mut self, message: &Recorded<'a>) -> Result<String, InspectError> {
        text::describe(message, &self.options, &mut self.workspace).map_err(|kind| InspectError {
            offset: message.offset,
            kind,
        })
    }
}

/// The layout of a message that does not say it (PROTOCOL FRAME-13).
///
/// Streams without a leading number are all of the classic layout. With one, a
/// classic message (of 2021.3.0) begins with a header that is empty, or a map
/// that says nothing but how the body is compressed; a modern body of more than
/// one frame has to refer to the others, so it is neither.
pub fn detect_layout(prefix: Prefix, frames: &[&[u8]]) -> Layout {
    if prefix == Prefix::None {
        return Layout::Classic;
    }
    let [header, _, ..] = frames else {
        return Layout::Modern;
    };
    let mut reader = Reader::new(header);
    let is_header = header.is_empty()
        || match reader.map() {
            Ok(0) => reader.is_empty(),
            Ok(1) => {
                reader.raw_str().is_ok_and(|key| key == "compression")
                    && matches!(reader.token(), Ok(Token::Nil | Token::Str(_)))
                    && reader.is_empty()
            }
            _ => false,
        };
    if is_header {
        Layout::Classic
    } else {
        Layout::Modern
    }
}

/// The prefix with which the stream can be read, and whether both would do
/// (PROTOCOL FRAME-13; a recording has more than the first message to go by).
fn detect_prefix(stream: &[u8], limits: &Limits) -> (Prefix, bool) {
    // How far a reading gets: to the end, or so many messages.
    let reach = |prefix| {
        let mut rest = stream;
        let mut count = 0_u64;
        while !rest.is_empty() {
            match FramedMessage::parse(rest, prefix, limits) {
                Ok(framed) => rest = framed.rest,
                Err(_) => return (false, count),
            }
            count += 1;
        }
        (true, count)
    };
    let (with, without) = (reach(Prefix::U64), reach(Prefix::None));
    match (with.0, without.0) {
        (true, true) => (Prefix::U64, !stream.is_empty()),
        (true, false) => (Prefix::U64, false),
        (false, true) => (Prefix::None, false),
        // Neither: the one that gets farther names the fault. A leading number
        // covers the frame count at least, a frame count of a short message
        // does not look like that.
        (false, false) if with.1 != without.1 => {
            let prefix = if with.1 > without.1 {
                Prefix::U64
            } else {
                Prefix::None
            };
            (prefix, false)
        }
        (false, false) => {
            let first = stream.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
            match first {
                Some(0..16) => (Prefix::None, true),
                _ => (Prefix::U64, true),
            }
        }
    }
}
