//! The roles of the Dask `distributed` protocol on std, above the transports: a
//! client of real clusters, a worker with functions in Rust, a small scheduler, a
//! cluster of both in one process, and a relay between any two transports.

mod batched;
mod channel;
pub mod client;
pub mod cluster;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod graph;
mod growing;
pub mod identity;
mod key;
pub mod memory;
mod meter;
pub mod net;
mod pool;
pub mod protocol;
pub mod relay;
pub mod release;
pub mod scheduler;
pub mod value;
pub mod worker;

pub use channel::{ObservedMessage, Observer};
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
