//! What we accept from a peer, one documented number each.

/// Bounds on what a peer may ask of us.
///
/// Every size that a peer announces is compared with these before any memory
/// is asked for and before anything is written. Two profiles are provided;
/// change a field where your application knows better:
///
/// ```
/// use daskwire::Limits;
/// let limits = Limits { message_len: 1 << 30, ..Limits::HOST };
/// assert_eq!(limits.frame_count, Limits::HOST.frame_count);
/// ```
///
/// dask.distributed itself has no limits besides the memory of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Frames in one message. The prelude holds 8 bytes for each.
    pub frame_count: u64,
    /// Bytes in one frame, as announced by the prelude.
    pub frame_len: u64,
    /// Bytes in all frames of one message together.
    pub message_len: u64,
    /// Bytes in a frame that is read as msgpack: the body, a payload's header.
    pub document_len: u64,
    /// Levels of nested arrays and maps in a msgpack document. Never more than
    /// [`Limits::MAX_DEPTH`] counts, whatever is set here.
    pub depth: u32,
    /// Values in one msgpack document (elements of arrays, keys and values of maps).
    pub items: u32,
    /// Bytes that one compressed frame may decompress to. Dask splits what is
    /// longer than 64 MiB before it compresses.
    pub decompressed_len: u64,
}

impl Limits {
    /// The deepest nesting that is read at all: what the reader of
    /// msgpack-python accepts (`msgpack/_cmsgpack`, 1024 levels).
    pub const MAX_DEPTH: u32 = 1024;

    /// For machines with an operating system: frames and messages as large as
    /// memory allows (grow buffers with what arrives, not with what is
    /// announced), documents up to 256 MiB.
    pub const HOST: Self = Self {
        frame_count: 1 << 20,
        frame_len: 1 << 40,
        message_len: 1 << 40,
        document_len: 256 << 20,
        depth: Self::MAX_DEPTH,
        items: 16 << 20,
        decompressed_len: 1 << 30,
    };

    /// Before the handshake is done, on any machine: a peer that is not known
    /// yet gets 64 KiB. A real handshake takes 66 bytes.
    pub const HANDSHAKE: Self = Self {
        frame_count: 16,
        frame_len: 64 << 10,
        message_len: 64 << 10,
        document_len: 64 << 10,
        depth: 16,
        items: 256,
        decompressed_len: 0,
    };

    /// For machines with some hundreds of KiB of memory: admits what a scheduler
    /// of 50 workers, or of 100 with little to say, answers to `identity`, in
    /// which a worker takes some 700 bytes and 90 items.
    ///
    /// No memory is reserved for it: that is bounded by the buffers that you
    /// supply. Machines with less want limits that end where their buffers do.
    pub const MICROCONTROLLER: Self = Self {
        frame_count: 32,
        frame_len: 128 << 10,
        message_len: 256 << 10,
        document_len: 128 << 10,
        depth: 32,
        items: 16 << 10,
        decompressed_len: 128 << 10,
    };
}

impl Default for Limits {
    /// [`Limits::HOST`].
    fn default() -> Self {
        Self::HOST
    }
}
