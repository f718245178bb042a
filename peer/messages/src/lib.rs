//! What the members of a Dask cluster say to each other, as one data model without I/O:
//! values, keys, graphs and typed messages. The crate `daskwire-peer` has the roles that
//! send and receive them.
//!
//! | module | contents |
//! | --- | --- |
//! | [`value`] | values in Rust and in serialized form; [`Array`] |
//! | [`Key`] | keys of tasks and of their results |
//! | [`graph`] | tasks and graphs, and their form in pickles |
//! | [`protocol`] | the messages of all roles, typed |
//! | [`RemoteError`] | exceptions, read without executing Python |
//! | [`release`], [`dialect`] | releases of Dask, and the differences between their messages |
//! | [`memory`] | the available memory, and limits that follow from it |
//!
//! # Features
//!
//! * `serde`: values from and to any type that implements its traits;
//! * `arrow`: record batches from and to tables of pyarrow and data frames of pandas;
//! * `ndarray-017`, `half`, `num-complex-04`: arrays from and to those of ndarray, and
//!   elements of the other two crates;
//! * `chrono-04`, `jiff-02`, `rust_decimal`, `uuid`: dates, times, decimal numbers and
//!   UUIDs from and to those of these crates.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
#[macro_use]
#[path = "../../value/src/brief.rs"]
pub mod brief;
pub mod dialect;
#[doc(hidden)]
pub mod exception;
pub mod graph;
#[doc(hidden)]
pub mod key;
#[path = "../../value/src/memory.rs"]
pub mod memory;
#[doc(hidden)]
#[path = "../../value/src/pickling.rs"]
pub mod pickling;
pub mod protocol;
pub mod release;
#[doc(hidden)]
#[path = "../../value/src/scratch.rs"]
pub mod scratch;
#[path = "../../value/src/lib.rs"]
pub mod value;

pub use exception::RemoteError;
pub use key::Key;
pub use release::Release;
pub use value::{Array, Serialized, Value};

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
