//! Limits on the input from a peer.

/// Limits on the size and structure of a peer's messages.
///
/// Every size that a peer declares is checked against these limits before
/// memory is requested or written. Change single fields of a profile for your
/// application:
///
/// ```
/// use daskwire::Limits;
/// let limits = Limits::HOST.with_message_len(1 << 30);
/// assert_eq!(limits.frame_count, Limits::HOST.frame_count);
/// ```
///
/// dask.distributed itself has no limits but the memory of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Frames in one message. The prelude holds 8 bytes for each.
    pub frame_count: u64,
    /// Bytes in one frame, as declared in the prelude.
    pub frame_len: u64,
    /// Bytes in all frames of one message.
    pub message_len: u64,
    /// Bytes in a frame that is read as msgpack: the body, a payload's header.
    /// The header of a `__Pickled__` payload contains the pickle, `pickled-obj`.
    pub document_len: u64,
    /// Levels of nested arrays and maps in a msgpack document. Values above
    /// [`Limits::MAX_DEPTH`] have no effect.
    pub depth: u32,
    /// Values in one msgpack document (elements of arrays, keys and values of maps).
    pub items: u32,
    /// Bytes that one compressed frame may decompress to. Dask splits data
    /// longer than 64 MiB before it compresses, except for buffers of
    /// `__Pickled__` payloads: those it compresses up to 2 GiB.
    pub decompressed_len: u64,
    /// Bytes that the compressed frames of one payload may decompress to together, and those
    /// of [all payloads of a message](crate::message::Message::decompressed_len). Frames that are not compressed count for `message_len` alone.
    pub decompressed_message_len: u64,
}

impl Limits {
    with_fields! {
        with_frame_count(frame_count: u64);
        with_frame_len(frame_len: u64);
        with_message_len(message_len: u64);
        with_document_len(document_len: u64);
        with_depth(depth: u32);
        with_items(items: u32);
        with_decompressed_len(decompressed_len: u64);
        with_decompressed_message_len(decompressed_message_len: u64);
    }
}

impl Limits {
    /// The maximum depth of nesting: that of msgpack-python
    /// (`msgpack/_cmsgpack`, 1024 levels).
    pub const MAX_DEPTH: u32 = 1024;

    /// Limits for machines with an operating system: frames and messages as large as
    /// memory allows (grow buffers with the bytes that arrive, not by the declared
    /// length), documents up to 256 MiB, and 64 GiB of decompressed data in a message.
    pub const HOST: Self = Self {
        frame_count: 1 << 20,
        frame_len: 1 << 40,
        message_len: 1 << 40,
        document_len: 256 << 20,
        depth: Self::MAX_DEPTH,
        items: 16 << 20,
        decompressed_len: 1 << 31,
        decompressed_message_len: 64 << 30,
    };

    /// Limits for the handshake with an unknown peer, on any machine: 64 KiB. A
    /// handshake of Dask takes about 70 bytes with its prelude.
    pub const HANDSHAKE: Self = Self {
        frame_count: 16,
        frame_len: 64 << 10,
        message_len: 64 << 10,
        document_len: 64 << 10,
        depth: 16,
        items: 256,
        decompressed_len: 0,
        decompressed_message_len: 0,
    };

    /// Limits for machines with some hundreds of KiB of memory: enough for a
    /// scheduler's reply to `identity` with 50 workers, or with 100 workers of short
    /// records; a worker takes about 700 bytes and 90 items.
    ///
    /// No memory is reserved; use is bounded by the buffers that you supply.
    /// With smaller buffers set limits that match them.
    pub const MICROCONTROLLER: Self = Self {
        frame_count: 32,
        frame_len: 128 << 10,
        message_len: 256 << 10,
        document_len: 128 << 10,
        depth: 32,
        items: 16 << 10,
        decompressed_len: 128 << 10,
        decompressed_message_len: 256 << 10,
    };
}

impl Default for Limits {
    /// Returns [`Limits::HOST`].
    fn default() -> Self {
        Self::HOST
    }
}
