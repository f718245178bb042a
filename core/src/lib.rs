//! The Dask `distributed` wire protocol as a codec.
#![no_std]
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

#[cfg(feature = "alloc")]
extern crate alloc;

mod error;
pub mod frame;
pub mod handshake;
mod limits;
pub mod message;
pub mod msgpack;

pub use error::BufferTooSmall;
pub use limits::Limits;
