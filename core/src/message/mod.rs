//! Messages: a body with payloads at places, in both layouts.
//!
//! A message is one MessagePack document, the *body*, in which *payloads*
//! stand at some places: values that travel in frames of their own, because
//! they are large or because only the two ends understand them. How body and
//! payloads are laid out in frames has changed once, see [`Layout`]; here both
//! are read into the same model:
//!
//! * [`Message::open`] takes the frames and checks all that concerns the
//!   message as a whole: the body and every reference from it.
//! * [`Message::walk`] gives the body as a sequence of [`Item`]s: tokens, and
//!   payloads where they stand. Sets and enum members, which Dask hides in
//!   maps, are items too.
//! * [`Message::payload`] looks at one payload: its [header](PayloadHeader)
//!   and its frames, which are not touched before someone asks.
//! * [`MessageBuilder`] writes a message as a list of slices to send. A
//!   payload that was received goes into it as it is, or from the one layout
//!   into the other.
//!
//! Nothing is allocated: the caller supplies a few levels of nesting and a
//! place for each payload.
//!
//! ```
//! use daskwire::message::{Item, Layout, Level, Message, PayloadSlot, ReadOptions, Serializer};
//! use daskwire::msgpack::Token;
//!
//! // {"data": <payload>} as distributed 2026.8.0 sends it
//! let frames: [&[u8]; 3] = [
//!     b"\x81\xa4data\x81\xae__Serialized__\x01",
//!     b"\x83\xaaserializer\xa4dask\xa4type\xa5bytes\xaenum-sub-frames\x01",
//!     b"hello",
//! ];
//! let mut levels = [Level::EMPTY; 8];
//! let mut places = [PayloadSlot::EMPTY; 4];
//! let message = Message::open(
//!     &frames, Layout::Modern, &ReadOptions::default(), &mut levels, &mut places, &mut [],
//! )?;
//!
//! let mut walk = message.walk(&mut levels);
//! assert_eq!(walk.next_item()?, Some(Item::Token(Token::Map(1))));
//! assert!(matches!(walk.next_item()?, Some(Item::Token(Token::Str(key))) if key == "data"));
//! assert_eq!(walk.next_item()?, Some(Item::Payload(0)));
//! assert_eq!(walk.next_item()?, None);
//!
//! let payload = message.payload(0)?;
//! assert_eq!(payload.header()?.serializer()?, Serializer::Dask);
//! assert_eq!(payload.frames(), [b"hello"]);
//! # Ok::<(), daskwire::message::MessageError>(())
//! ```

mod builder;
mod classic;
mod convert;
#[cfg(test)]
#[path = "../../tests/unit/cost.rs"]
mod cost;
mod error;
mod header;
mod item;
mod level;
mod modern;
mod open;
mod payload;
mod slot;
mod walk;
#[cfg(feature = "alloc")]
mod workspace;

use crate::Limits;
use crate::msgpack::{RawStr, Reader, Token};

pub use builder::{BuildError, BuilderScratch, MessageBuilder, SHARD_LEN, Shard, shards};
pub use classic::Pending;
pub use error::{CodecName, MessageError, MessageErrorKind};
pub use header::{ItemList, PayloadHeader, Serializer};
pub use item::{EnumMember, Item, PathElement};
pub use level::Level;
pub use payload::{LogicalFrame, LogicalFrames, Payload, PayloadKind};
pub use slot::PayloadSlot;
pub use walk::Walk;
#[cfg(feature = "alloc")]
pub use workspace::Workspace;

/// How a message is laid out in frames.
///
/// Nothing in a message says which it is; it follows from the release at the
/// other end, or from its [handshake](crate::handshake).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The documented layout, distributed 1.14.0 to 2021.3.0: a header, the
    /// administrative message, a payload header, payload frames
    /// (PROTOCOL CLASSIC-1).
    Classic,
    /// The current layout, distributed 2021.3.1 and later: the body, in which
    /// placeholders say at which frame a payload begins (PROTOCOL MODERN-1).
    Modern,
}

/// How to read a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// What is accepted.
    pub limits: Limits,
    /// Whether `__Set__` and `__Enum__` maps are sets and enum members. They
    /// are since 2020.12.0; the readers of earlier releases left them maps
    /// (PROTOCOL BODY-3).
    pub sets_and_enums: bool,
    /// Whether a payload of the classic layout may have neither `lengths` nor
    /// split lists, each of its frames being a logical one then. So it is in
    /// 2021.3.0, the one release that sends this layout behind a leading
    /// number; in all others `lengths` are required (PROTOCOL CLASSIC-10).
    pub lengths_optional: bool,
}

impl Default for ReadOptions {
    /// [`Limits::HOST`], sets and enum members, `lengths` required.
    fn default() -> Self {
        Self {
            limits: Limits::HOST,
            sets_and_enums: true,
            lengths_optional: false,
        }
    }
}

/// A message whose body has been checked and whose payloads have been found.
///
/// `T` is whatever holds a frame: `&[u8]`, `Vec<u8>`, `Bytes`.
#[derive(Debug)]
pub struct Message<'a, T> {
    layout: Layout,
    frames: &'a [T],
    body: &'a [u8],
    /// One for each payload: in order of the body (modern), or of their paths
    /// (classic).
    payloads: &'a [PayloadSlot],
    /// Sets and enum members, in order of the body.
    specials: &'a [PayloadSlot],
    options: ReadOptions,
}

impl<T> Clone for Message<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Message<'_, T> {}

impl<'a, T: AsRef<[u8]>> Message<'a, T> {
    /// The layout that the message came in.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// All frames of the message, as they came.
    pub const fn frames(&self) -> &'a [T] {
        self.frames
    }

    /// The body as a MessagePack document, decompressed: any one value
    /// (PROTOCOL BODY-1).
    ///
    /// In the modern layout payloads are placeholder maps in it; in the
    /// classic one they are missing from it, or nil.
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// A reader at the start of [`body`](Self::body).
    pub const fn reader(&self) -> Reader<'a> {
        Reader::with_limits(self.body, &self.options.limits)
    }

    /// What the message asks for: the value of `op`, where the body is a map
    /// that has one.
    pub fn op(&self) -> Option<RawStr<'a>> {
        let mut reader = self.reader();
        match (reader.find("op"), reader.token()) {
            (Ok(true), Ok(Token::Str(op))) => Some(op),
            _ => None,
        }
    }

    /// How many payloads the message has.
    pub const fn payload_count(&self) -> usize {
        self.payloads.len()
    }

    /// The body, item by item. `levels` may be those that the message was
    /// opened with.
    pub fn walk<'w>(&self, levels: &'w mut [Level]) -> Walk<'a, 'w, T> {
        Walk::new(*self, levels)
    }
}
