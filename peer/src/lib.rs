//! What runs on std above the transports: so far, recorded streams taken apart
//! and put together again, a scheduler asked who it is, messages passed on
//! between transports, and pickles listed. The `daskwire` command is made of these.

mod batched;
mod channel;
pub mod client;
pub mod cluster;
pub mod encode;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod graph;
mod growing;
pub mod identity;
pub mod inspect;
pub mod journey;
mod key;
mod memory;
mod meter;
pub mod net;
pub mod pickle;
mod pool;
pub mod protocol;
pub mod relay;
pub mod release;
pub mod scheduler;
pub mod value;
pub mod worker;

pub use channel::{Observer, Seen};
pub use client::Client;
pub use error::{PeerError, RemoteError};
pub use key::Key;
pub use release::Release;
pub use value::{Array, Serialized, Value};

/// 128 random bits as text.
pub(crate) fn identifier() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    // Each is keyed by bits of the operating system, and another number.
    let bits = |word: u64| RandomState::new().hash_one(word);
    format!("{:016x}{:016x}", bits(0), bits(1))
}

/// The blocks of Rust in the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
