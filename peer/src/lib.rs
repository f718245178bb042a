//! The roles of the Dask `distributed` protocol, for programs with std: a client of
//! real clusters, a worker with functions in Rust, a small scheduler, a cluster of both
//! in one process, and a relay between any two transports.
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
//! | module | contents |
//! | --- | --- |
//! | `client` | the client: futures, graphs, data, and the state of a cluster |
//! | `worker` | a worker, and the functions that its tasks call |
//! | `scheduler` | an embedded scheduler |
//! | `cluster` | a scheduler and workers in one process, with a client |
//! | [`relay`] | forwarding between any two transports |
//! | [`value`] | values in Rust and in serialized form; [`Array`] |
//! | [`graph`] | tasks and graphs, and their form in pickles |
//! | [`protocol`] | the messages of all roles, typed |
//! | [`identity`] | asking a scheduler for its identity and its workers |
//! | [`release`] | the supported releases of Dask |
//! | [`memory`] | the available memory, and limits that follow from it |
//!
//! An async method says so if it is not cancel safe. The future of any other can be dropped
//! at any time: nothing is lost on this side, but a request that was sent may still be
//! carried out. Each operation has an error type of its own; all of them convert to
//! [`Error`]. The scheme of an address selects the transport: [`transports`] returns the
//! enabled ones, and a program can add its own. Background tasks run on the current tokio
//! runtime; see the feature `runtime-smol` for programs without one.
//!
//! [The guide] has whole programs for each role, and [a page] with every method of
//! Dask's client and its counterpart here.
//!
//! [The guide]: https://github.com/daskwire/daskwire/blob/main/docs/src/SUMMARY.md
//! [a page]: https://github.com/daskwire/daskwire/blob/main/docs/src/client-api.md
//!
//! # Features
//!
//! * `client` (default): `Client`;
//! * `blocking`: `client::blocking::Client`, for programs without async;
//! * `worker`: `worker::Worker`;
//! * `scheduler`: `scheduler::Scheduler`;
//! * `local-cluster`: `cluster::LocalCluster`, with all three;
//! * `tcp` (default), `tls`, `quic`: the transports;
//! * `self-signed`: a local cluster over `tls://` and `quic://`, with a certificate that
//!   it generates;
//! * `runtime-smol`: smol as the executor of background tasks, without a tokio runtime;
//! * `serde`: values from and to any type that implements its traits;
//! * `arrow`: record batches from and to tables of pyarrow and data frames of pandas;
//! * `ndarray-017`, `half`, `num-complex-04`: arrays from and to those of ndarray, and
//!   elements of the other two crates;
//! * `chrono-04`, `jiff-02`, `rust_decimal`, `uuid`: dates, times, decimal numbers and
//!   UUIDs from and to those of these crates;
//! * `tracing`: events of the roles, in the spans `comm{peer}` and `task{key}`, with
//!   the targets `daskwire_peer::client`, `::worker`, `::scheduler` and `::comm`.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Code shared by the roles is fully used only if all of them are enabled.
#![cfg_attr(
    not(all(feature = "client", feature = "scheduler", feature = "worker")),
    allow(dead_code)
)]

#[path = "../rpc/src/batched.rs"]
mod batched;
#[path = "../rpc/src/channel.rs"]
mod channel;
#[cfg(feature = "client")]
pub mod client;
#[path = "../rpc/src/clock.rs"]
mod clock;
#[cfg(feature = "local-cluster")]
pub mod cluster;
mod error;
#[path = "../rpc/src/event.rs"]
mod event;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(any(feature = "client", feature = "scheduler", feature = "worker"))]
#[path = "../rpc/src/gather.rs"]
mod gather;
#[path = "../rpc/src/identity.rs"]
pub mod identity;
#[path = "../rpc/src/layout.rs"]
mod layout;
#[path = "../rpc/src/meter.rs"]
mod meter;
#[path = "../rpc/src/net.rs"]
mod net;
#[path = "../rpc/src/panic_flag.rs"]
mod panic_flag;
#[path = "../rpc/src/pool/mod.rs"]
mod pool;
pub mod relay;
#[path = "../rpc/src/request_error.rs"]
mod request_error;
#[path = "../rpc/src/request.rs"]
mod rpc;
#[cfg(feature = "scheduler")]
pub mod scheduler;
#[cfg(any(feature = "scheduler", feature = "worker"))]
#[path = "../rpc/src/story.rs"]
mod story;
#[cfg(feature = "worker")]
pub mod worker;

#[allow(unused_imports, reason = "each role uses some of them")]
use daskwire_messages::{brief, dialect, exception, key, pickling, scratch};
pub use daskwire_messages::{graph, memory, protocol, release, value};

pub use channel::{ObservedMessage, Observer};
#[cfg(feature = "client")]
pub use client::Client;
#[cfg(feature = "tls")]
pub use daskwire_comm::tls;
pub use daskwire_messages::{Array, Key, Release, RemoteError, Serialized, Value};
pub use error::Error;
pub use meter::Meter;
pub use net::transports;
#[cfg(feature = "tls")]
pub use net::transports_with_tls;
pub use request_error::RequestError;
#[cfg(any(feature = "scheduler", feature = "worker"))]
pub use story::{Stimulus, TaskChange, TaskEvent};

/// The example in the README, tested as a doctest.
#[cfg(all(doctest, feature = "client", feature = "tcp"))]
#[doc = include_str!("../README.md")]
struct Readme;
