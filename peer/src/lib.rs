//! The roles of the Dask `distributed` protocol on std, above the transports: a
//! client of real clusters, a worker with functions in Rust, a small scheduler, a
//! cluster of both in one process, and a relay between any two transports.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use daskwire_peer::{Array, Client};
//!
//! let client = Client::connect("tcp://10.0.0.7:8786").await?;
//! let array = Array::from_slice(&[2, 2], &[1.0, 2.0, 3.0, 4.0])?;
//! let norm = client.submit("numpy.linalg.norm", [array])?; // on a worker, in Python
//! println!("{}", f64::try_from(norm.await?)?);
//! client.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! * `client` (default): [`Client`];
//! * `blocking`: `client::blocking::Client`, for programs without async;
//! * `worker`: [`Worker`](worker::Worker);
//! * `scheduler`: [`Scheduler`](scheduler::Scheduler);
//! * `local-cluster`: [`LocalCluster`](cluster::LocalCluster), with all three;
//! * `self-signed`: the same over `tls://` and `quic://`;
//! * `tcp` (default), `tls`, `quic`: the transports;
//! * `serde`: values from and to any type that implements its traits;
//! * `tracing`: events of the roles, in the spans `comm{peer}` and `task{key}`, with
//!   the targets `daskwire_peer::client`, `::worker`, `::scheduler` and `::comm`.
#![cfg_attr(docsrs, feature(doc_cfg))]
// What the roles share is all used where all of them are on.
#![cfg_attr(
    not(all(feature = "client", feature = "scheduler", feature = "worker")),
    allow(dead_code)
)]

mod batched;
mod channel;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "local-cluster")]
pub mod cluster;
#[cfg(any(feature = "client", feature = "worker"))]
mod dialect;
mod error;
mod event;
mod failure;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(any(feature = "client", feature = "scheduler", feature = "worker"))]
mod gather;
pub mod graph;
mod growing;
pub mod identity;
mod key;
mod layout;
pub mod memory;
mod meter;
mod net;
mod pool;
pub mod protocol;
pub mod relay;
pub mod release;
mod rpc;
#[cfg(feature = "scheduler")]
pub mod scheduler;
#[cfg(any(feature = "scheduler", feature = "worker"))]
mod story;
pub mod value;
#[cfg(feature = "worker")]
pub mod worker;

pub use channel::{ObservedMessage, Observer};
#[cfg(feature = "client")]
pub use client::Client;
#[cfg(feature = "tls")]
pub use daskwire_comm::tls;
pub use error::{Error, RemoteError, RequestError};
pub use key::Key;
pub use meter::Meter;
pub use net::transports;
#[cfg(feature = "tls")]
pub use net::transports_with_tls;
pub use release::Release;
#[cfg(any(feature = "scheduler", feature = "worker"))]
pub use story::{Stimulus, TaskChange, TaskEvent};
pub use value::{Array, Serialized, Value};

/// A boxed future, whose code is compiled in this crate. An `async fn` is
/// compiled in each program that awaits it, with everything it awaits; boxing the
/// entry points compiles the roles once.
pub(crate) type BoxFuture<'a, T> = core::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Returns 128 random bits as a string.
pub(crate) fn identifier() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    // Each state is keyed by the operating system's random bits and a counter.
    let bits = |word: u64| RandomState::new().hash_one(word);
    format!("{:016x}{:016x}", bits(0), bits(1))
}
