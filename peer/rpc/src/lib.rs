//! Requests and streams of typed messages over comms: what the roles of a Dask cluster
//! have in common. The crate `daskwire-peer` has the roles, and re-exports what programs
//! name.
//!
//! | module | contents |
//! | --- | --- |
//! | [`identity`] | asking a scheduler for its identity and its workers |
//!
//! [`transports`] returns the transports of this build; [`Observer`] and [`Meter`] see what
//! goes over comms; [`TaskEvent`] is a step of a task. All other modules are public for the
//! crates of the roles only, and hidden here.
//!
//! # Features
//!
//! * `tcp`, `tls`, `quic`, `ws`: the transports;
//! * `runtime-smol`: smol as the executor of background tasks, without a tokio runtime;
//! * `tracing`: events, in the spans `comm{peer}` and `task{key}`.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
pub mod batched;
#[doc(hidden)]
pub mod channel;
#[doc(hidden)]
pub mod clock;
mod compress;
#[doc(hidden)]
pub mod event;
#[doc(hidden)]
pub mod gather;
pub mod identity;
mod layout;
mod meter;
#[doc(hidden)]
pub mod net;
#[doc(hidden)]
pub mod panic_flag;
#[doc(hidden)]
pub mod pool;
#[doc(hidden)]
pub mod profile;
#[doc(hidden)]
pub mod request;
mod request_error;
#[doc(hidden)]
pub mod story;

pub use channel::{ObservedMessage, Observer};
pub use daskwire::ErrorKind;
#[doc(hidden)]
pub use daskwire::kinds;
pub use meter::Meter;
pub use net::transports;
#[cfg(feature = "tls")]
pub use net::transports_with_tls;
pub use request_error::RequestError;
pub use story::{Stimulus, TaskChange, TaskEvent};

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
