//! Inspection of recorded streams.
//!
//! [`Inspector`] reads the bytes of a stream message by message, and formats each
//! as a JSON document ([`Inspector::json`]) or as text ([`Inspector::text`]).

pub mod capture;
mod json;
mod tagged;
pub(crate) mod text;

use std::fmt;

use daskwire::Limits;
use daskwire::frame::{FrameError, FramedMessage, Prefix};
use daskwire::message::{Layout, MessageError, ReadOptions, Workspace};
use daskwire::msgpack::{Reader, Token};

pub use tagged::{Hooks, TaggedError, TaggedFault, tagged};

/// The options for reading a stream, and for showing its messages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The prefix of messages; detected if `None`.
    pub prefix: Option<Prefix>,
    /// The layout; detected for each message if `None`.
    pub layout: Option<Layout>,
    /// Whether to decompress and merge payloads.
    pub payloads: bool,
    /// Whether to show byte strings and frames in full.
    pub data: bool,
    /// Limits, and whether sets and enum members are recognized. Default: a
    /// payload may take at most half of the machine's memory.
    pub reading: ReadOptions,
}

impl Options {
    daskwire_comm::with_fields! {
        with_prefix(prefix: impl Into<Option<Prefix>>);
        with_layout(layout: impl Into<Option<Layout>>);
        with_payloads(payloads: bool);
        with_data(data: bool);
        with_reading(reading: ReadOptions);
    }
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

/// A fault in a stream, and its location.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InspectError {
    /// The offset of the faulty message in the stream.
    pub offset: u64,
    /// The kind of fault.
    pub kind: InspectErrorKind,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum InspectErrorKind {
    /// A fault in the framing.
    Frame(FrameError),
    /// A fault in the message.
    Message(MessageError),
    /// A fault in a document in one of the frames.
    Tagged(TaggedError),
    /// The stream is empty.
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

/// A message in a stream, split into frames.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recorded<'a> {
    /// The offset of the message in the stream.
    pub offset: u64,
    /// The length of the message in the stream, including prefix and prelude.
    pub len: u64,
    /// The value of the prefix, if there is one.
    pub prefix_value: Option<u64>,
    /// The layout of the message.
    pub layout: Layout,
    /// The frames.
    pub frames: Vec<&'a [u8]>,
}

/// Reads a recorded stream.
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
    /// Returns an inspector of a stream. Detects the prefix unless `options` has
    /// it.
    pub fn new(stream: &'a [u8], mut options: Options) -> Self {
        let (prefix, guessed) = match options.prefix {
            Some(prefix) => (prefix, false),
            None => detect_prefix(stream, &options.reading.limits),
        };
        // PROTOCOL CLASSIC-10: of the classic layout only 2021.3.0 has a prefix,
        // and split lists, which may be missing.
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

    /// The prefix with which the stream is parsed.
    pub const fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// Whether the stream is valid with either prefix, so that the
    /// [prefix](Self::prefix) is a guess.
    pub const fn guessed(&self) -> bool {
        self.guessed
    }

    /// Reads the next message; `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// If the framing is malformed. Nothing can be read after that.
    pub fn next_message(&mut self) -> Result<Option<Recorded<'a>>, InspectError> {
        let rest = &self.stream[self.offset..];
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
        // `FramedMessage` has checked that all frames are complete.
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

    /// Formats a message as a JSON document.
    ///
    /// # Errors
    ///
    /// If the message is malformed.
    pub fn json(&mut self, message: &Recorded<'a>) -> Result<serde_json::Value, InspectError> {
        json::document(message, &self.options, &mut self.workspace).map_err(|kind| InspectError {
            offset: message.offset,
            kind,
        })
    }

    /// Formats a message as text, with a newline at the end.
    ///
    /// # Errors
    ///
    /// If the message is malformed.
    pub fn text(&mut self, message: &Recorded<'a>) -> Result<String, InspectError> {
        text::describe(message, &self.options, &mut self.workspace).map_err(|kind| InspectError {
            offset: message.offset,
            kind,
        })
    }
}

/// Detects the layout of a message (PROTOCOL FRAME-13).
///
/// Streams without a prefix have the classic layout. With a prefix, a classic
/// message (of 2021.3.0) begins with a header that is empty, or a map that only
/// contains the compression of the body. A modern body of several frames has to
/// refer to the others, so it is neither.
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

/// Detects the prefix, and whether both are valid (PROTOCOL FRAME-13). In
/// a recording, more than the first message can be checked.
fn detect_prefix(stream: &[u8], limits: &Limits) -> (Prefix, bool) {
    // How far the stream can be read with a prefix: to the end, or a number of
    // messages.
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
        // Both fail: report the fault of the one that gets farther. The value of
        // a prefix includes the frame count at least, unlike the frame count of a
        // short message.
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
