//! The sizes of the buffers that a program supplies.
//!
//! Nothing in this crate allocates unless the feature `alloc` is on, so all
//! memory is in buffers and types of the caller. Most programs need these; the
//! figures are for a 64-bit machine and, if they differ, for a Cortex-M:
//!
//! | memory | bytes |
//! | --- | --- |
//! | [`Comm<FRAMES>`](crate::comm::Comm) | 496 (424), and 8 for each frame |
//! | its buffer `incoming` | the frames of the longest message to accept, at least [`HANDSHAKE_LEN`](crate::comm::HANDSHAKE_LEN) |
//! | its buffer `outgoing` | [`outgoing_len`](crate::comm::outgoing_len) of the longest message to send, at least `HANDSHAKE_LEN` |
//! | [`Scratch<DEPTH, PAYLOADS, BODY>`](crate::message::Scratch) | 128 (96) for each level, 40 for each payload, and the body |
//! | data of compressed payloads | [`Payload::merged_len`](crate::message::Payload::merged_len), which is known before decompression |
//!
//! `size_of` gives the exact size on the machine that it is compiled for:
//!
//! ```
//! use daskwire::comm::{Comm, outgoing_len};
//! use daskwire::message::Scratch;
//!
//! /// Messages of up to 4 frames and 4 KiB in, short requests out.
//! const MEMORY: usize =
//!     size_of::<Comm<'_, 4>>() + 4096 + outgoing_len(1, 256) + size_of::<Scratch<8, 4>>();
//! const _: () = assert!(MEMORY < 7 << 10);
//!
//! # // The figures of the table are not too small.
//! # assert!(size_of::<Comm<'_, 4>>() <= 496 + 4 * 8);
//! # assert!(size_of::<Scratch<8, 4, 10>>() <= 8 * 128 + 4 * 40 + 16);
//! ```
//!
//! # Lengths of messages
//!
//! As recorded from distributed 2026.8.0 (`core/tests/vectors`):
//!
//! | message | frames | bytes |
//! | --- | ---: | ---: |
//! | handshake of Dask | 1 | 42 to 48 |
//! | a request without data, such as `{"op": "identity", "reply": true}` | 1 | 20 |
//! | the reply of a scheduler to `identity`, for each worker | 1 | about 700 |
//! | an array | 3 | its data, and about 240 |
//!
//! A body of a real scheduler is nested at most 6 levels deep. A message has one
//! frame for its body, and for each payload one for its header and one for each
//! of its frames; `PAYLOADS` counts payloads, sets and enum members.
//!
//! # Buffers that are too small
//!
//! If a buffer is too small, nothing is lost or truncated: the error says which one
//! and how much is enough, and the call can be repeated with more
//! ([`Error::needed`](crate::Error::needed)). [`Limits`](crate::Limits) that
//! match the buffers refuse such messages as faults of the peer instead.
