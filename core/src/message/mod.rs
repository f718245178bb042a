//! Messages of both layouts: a body with placeholders for payloads.
//!
//! A message is one MessagePack document, the *body*, with placeholders for
//! *payloads*: values in separate frames, because they are large or because
//! only the two ends can decode them. The layout of body and payloads in frames
//! has changed once, see [`Layout`]; both are read into the same model:
//!
//! * [`Message::open`] takes the frames and checks the message as a whole: the
//!   body and every reference from it.
//! * [`Message::walk`] returns the body as a sequence of [`Item`]s: tokens, and
//!   payloads at their positions. Sets and enum members, which Dask encodes as
//!   maps, are items too.
//! * [`Message::payload`] returns one payload: its [header](PayloadHeader) and
//!   its frames, which are only decoded on request.
//! * [`MessageBuilder`] writes a message as a list of slices to send. A
//!   received payload is forwarded unchanged or converted to the other layout.
//!
//! Nothing is allocated: the caller supplies a [`Scratch`], whose type says how
//! deep a message may be nested and how many payloads it may have.
//!
//! ```
//! use daskwire::message::{Item, Layout, Message, ReadOptions, Scratch, Serializer};
//! use daskwire::msgpack::Token;
//!
//! // {"data": <payload>} as distributed 2026.8.0 sends it
//! let frames: [&[u8]; 3] = [
//!     b"\x81\xa4data\x81\xae__Serialized__\x01",
//!     b"\x83\xaaserializer\xa4dask\xa4type\xa5bytes\xaenum-sub-frames\x01",
//!     b"hello",
//! ];
//! let mut scratch = Scratch::<8, 4>::new();
//! let message = Message::open(
//!     &frames, Layout::Modern, &ReadOptions::default(), &mut scratch,
//! )?;
//!
//! let mut scratch = Scratch::<8>::new();
//! let mut walk = message.walk(&mut scratch);
//! assert_eq!(walk.next_item()?, Some(Item::Token(Token::Map(1))));
//! assert!(matches!(walk.next_item()?, Some(Item::Token(Token::Str(key))) if key == "data"));
//! assert_eq!(walk.next_item()?, Some(Item::Payload(0)));
//! assert_eq!(walk.next_item()?, None);
//!
//! let payload = message.payload(0)?;
//! assert_eq!(payload.header().serializer()?, Serializer::Dask);
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
mod scratch;
mod slot;
mod walk;

use crate::Limits;
use crate::msgpack::{RawStr, Reader};

pub use builder::{
    BuildError, BuilderBuffers, FrameCompressor, HeaderEntries, MessageBuilder, SHARD_LEN, shards,
};
pub use error::{CodecName, MessageError, MessageErrorKind};
pub use header::{ItemList, PayloadHeader, Serializer};
pub use item::{EnumMember, Item, PathElement};
pub use payload::{LogicalFrame, LogicalFrames, Payload, PayloadKind};
#[cfg(feature = "alloc")]
pub use scratch::Workspace;
pub use scratch::{Scratch, ScratchRef};
use slot::Slot;
pub use walk::Walk;

/// The layout of a message in frames.
///
/// A message does not declare its layout; it depends on the release of the peer
/// and can be detected by its [handshake](crate::handshake).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Layout {
    /// The documented layout, distributed 1.14.0 to 2021.3.0: a header, the
    /// administrative message, a payload header, payload frames
    /// (PROTOCOL CLASSIC-1). Messages in it are read with the feature `classic`
    /// only.
    Classic,
    /// The current layout, distributed 2021.3.1 and later: the body, with
    /// placeholders that refer to the first frame of a payload
    /// (PROTOCOL MODERN-1).
    Modern,
}

impl Layout {
    /// Whether this is the classic layout. Always false in a build that does not
    /// read that layout, so that the compiler removes the code for it.
    const fn is_classic(self) -> bool {
        cfg!(feature = "classic") && matches!(self, Self::Classic)
    }
}

/// Options for reading a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadOptions {
    /// The limits for the message.
    pub limits: Limits,
    /// Whether `__Set__` and `__Enum__` maps are read as sets and enum members, as
    /// releases since 2020.12.0 do; earlier releases read them as maps
    /// (PROTOCOL BODY-3). Default: true.
    pub sets_and_enums: bool,
    /// Whether a payload of the classic layout may have neither `lengths` nor
    /// split lists; each of its frames is then a logical frame. Default: false.
    /// Only 2021.3.0 writes such payloads, the only release that sends this
    /// layout with a prefix (PROTOCOL CLASSIC-10).
    pub lengths_optional: bool,
}

impl ReadOptions {
    /// Creates options with these limits, and the defaults of all other fields.
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            sets_and_enums: true,
            lengths_optional: false,
        }
    }

    with_fields! {
        with_limits(limits: Limits);
        with_sets_and_enums(sets_and_enums: bool);
        with_lengths_optional(lengths_optional: bool);
    }
}

impl Default for ReadOptions {
    /// Options with [`Limits::HOST`], sets and enum members, and required
    /// `lengths`.
    fn default() -> Self {
        Self::new(Limits::HOST)
    }
}

/// A message with a valid body and located payloads.
///
/// `T` is the type of a frame: `&[u8]`, `Vec<u8>`, `Bytes`.
#[derive(Debug)]
pub struct Message<'a, T> {
    layout: Layout,
    frames: &'a [T],
    body: &'a [u8],
    /// One slot per payload, in the order of the body (modern) or of the paths
    /// (classic).
    payloads: &'a [Slot],
    /// Sets and enum members, in the order of the body.
    specials: &'a [Slot],
    options: ReadOptions,
}

impl<T> Clone for Message<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Message<'_, T> {}

impl<'a, T: AsRef<[u8]>> Message<'a, T> {
    /// The layout of the message.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// All frames of the message, as received.
    pub const fn frames(&self) -> &'a [T] {
        self.frames
    }

    /// The body as a MessagePack document, decompressed: any one value
    /// (PROTOCOL BODY-1).
    ///
    /// In the modern layout it has placeholder maps for payloads; in the
    /// classic layout payloads are missing from it, or nil.
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// A reader at the start of [`body`](Self::body).
    pub const fn reader(&self) -> Reader<'a> {
        Reader::with_limits(self.body, &self.options.limits)
    }

    /// The operation of the message: the value of `op`, if the body is a map
    /// with that key.
    pub fn op(&self) -> Option<RawStr<'a>> {
        // PROTOCOL MSGPACK-8: of a key that occurs twice, the last value.
        let [op] = self.reader().values(["op"]).ok()?;
        op?.raw_str().ok()
    }

    /// The number of payloads in the message.
    pub const fn payload_count(&self) -> usize {
        self.payloads.len()
    }

    /// Iterates over the items of the body, with a scratch of its own: a
    /// `Scratch<DEPTH>` of as many levels as the message was opened with.
    pub fn walk<'w>(&self, scratch: impl Into<ScratchRef<'w>>) -> Walk<'a, 'w> {
        Walk::new(self, scratch.into().levels)
    }
}
