//! Comms of the Dask `distributed` protocol for firmware: the
//! [`CommReader`](daskwire::transport::CommReader) and
//! [`CommWriter`](daskwire::transport::CommWriter) of `daskwire` over the
//! streams of embedded-io, without a heap.
//!
//! | module | feature | streams |
//! | --- | --- | --- |
//! | `embedded_io_07` | `embedded-io-07` | blocking, of embedded-io 0.7 |
//! | `embedded_io_async_07` | `embedded-io-async-07` | async, of embedded-io-async 0.7 |
//!
//! A message is read from a serial line into buffers of the program:
//!
//! ```
//! use daskwire::Limits;
//! use daskwire::frame::{Arena, Prefix};
//! use daskwire_embedded::embedded_io_07::MessageReader;
//!
//! // Any stream of embedded-io; a slice is one.
//! let uart = &b"\x11\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x80"[..];
//! let prelude = [0; 32 * 8]; // lengths of up to 32 frames
//! let mut reader = MessageReader::new(uart, Prefix::U64, prelude, Limits::MICROCONTROLLER);
//! let mut storage = [0; 4096]; // the longest message
//! let mut arena = Arena::new(&mut storage);
//! assert_eq!(reader.read_message(&mut arena)?, Some(1)); // one frame
//! assert_eq!(arena.filled(), b"\x80");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature `roles` the crate also has a `worker` of fixed size, which
//! runs functions of a static table for a real cluster, and a `client`. They do no
//! I/O themselves: `role::exchange` moves bytes between all links of a role and the
//! sockets of a platform, once for each turn of the program's loop. The folder
//! `firmware` of the repository has whole programs.
//!
//! The feature `heapless-09` turns on the feature of the same name of
//! `daskwire`, which stores frames and preludes in the vectors of heapless 0.9.
//! Types of a crate before its 1.0 are only in the signatures of the feature
//! with its version.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc
)]

/// Methods that set a public field of options, for structs that will get more fields.
#[cfg(feature = "roles")]
macro_rules! with_fields {
    ($($method:ident($field:ident: $type:ty);)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
        #[must_use]
        pub const fn $method(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

#[cfg(feature = "roles")]
pub mod client;
#[cfg(feature = "roles")]
mod fixed_string;
#[cfg(feature = "roles")]
mod link;
#[cfg(feature = "roles")]
mod pickle_tree;
#[cfg(feature = "roles")]
pub mod role;
#[cfg(feature = "roles")]
mod store;
#[cfg(feature = "roles")]
pub mod value;
#[cfg(feature = "roles")]
pub mod worker;

#[cfg(feature = "embedded-io-07")]
mod comm_state;
#[cfg(feature = "embedded-io-07")]
pub mod embedded_io_07;
#[cfg(feature = "embedded-io-async-07")]
pub mod embedded_io_async_07;

#[cfg(any(feature = "embedded-io-07", feature = "roles"))]
use daskwire::copy;

/// The example in the README, tested as a doctest.
#[cfg(all(doctest, feature = "embedded-io-07"))]
#[doc = include_str!("../README.md")]
struct Readme;
