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
//! # Crates below this one
//!
//! The roles are crates of their own, `daskwire-client`, `daskwire-worker` and
//! `daskwire-scheduler`, with the messages that they exchange in `daskwire-messages`. This crate
//! re-exports what programs need of them. Messages and the state machines of the roles change
//! with the releases of Dask, and so do the versions of those crates: a program that names them,
//! such as for `Client::request` or `Scheduler::inspect`, depends on the crate that has them.
//!
//! # Features
//!
//! * `client` (default): `Client`;
//! * `blocking`: `client::blocking::Client`, for programs without async;
//! * `worker`: `worker::Worker`;
//! * `scheduler`: `scheduler::Scheduler`;
//! * `local-cluster`: `cluster::LocalCluster`, with all three;
//! * `tcp` (default), `tls`, `quic`, `ws`: the transports;
//! * `self-signed`: a local cluster over `tls://` and `quic://`, with a certificate that
//!   it generates;
//! * `runtime-smol`: smol as the executor of background tasks, without a tokio runtime;
//! * `serde`: values from and to any type that implements its traits;
//! * `arrow-60`: record batches from and to tables of pyarrow and data frames of pandas;
//! * `ndarray-017`, `half`, `num-complex-04`: arrays from and to those of ndarray, and
//!   elements of the other two crates;
//! * `chrono-04`, `jiff-02`, `rust_decimal`, `uuid`: dates, times, decimal numbers and
//!   UUIDs from and to those of these crates;
//! * `tracing`: events of the roles, in the spans `comm{peer}` and `task{key}`, with
//!   the targets `daskwire_peer::client`, `::worker`, `::scheduler` and `::comm`.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "local-cluster")]
pub mod cluster;
mod error;
pub mod relay;
#[cfg(feature = "scheduler")]
pub mod scheduler;
#[cfg(feature = "worker")]
pub mod worker;

pub use daskwire_messages::protocol::{TaskState, WorkerStatus};
pub use daskwire_messages::{graph, memory, release, value};
pub use daskwire_rpc::identity;

#[cfg(feature = "client")]
pub use daskwire_client::Client;
#[cfg(feature = "tls")]
pub use daskwire_comm::tls;
pub use daskwire_messages::{Array, Key, Release, RemoteError, Serialized, Value};
#[cfg(feature = "tls")]
pub use daskwire_rpc::transports_with_tls;
pub use daskwire_rpc::{ErrorKind, Meter, ObservedMessage, Observer, RequestError, transports};
#[cfg(any(feature = "scheduler", feature = "worker"))]
pub use daskwire_rpc::{Stimulus, TaskChange, TaskEvent};
pub use error::Error;

/// The example in the README, tested as a doctest.
#[cfg(all(doctest, feature = "client", feature = "tcp"))]
#[doc = include_str!("../README.md")]
struct Readme;
