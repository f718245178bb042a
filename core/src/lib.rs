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
    clippy::panic,
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc
)]

#[cfg(feature = "alloc")]
extern crate alloc;

pub mod compression;
pub mod display;
mod error;
pub mod frame;
mod limits;
pub mod message;
pub mod msgpack;

pub use error::BufferTooSmall;
pub use limits::Limits;
