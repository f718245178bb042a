//! What the members of a Dask cluster say to each other, as one data model without I/O:
//! keys, graphs and typed messages, with the values of `daskwire-value`. The crate
//! `daskwire-peer` has the roles that send and receive them.
//!
//! | module | contents |
//! | --- | --- |
//! | [`value`] | values in Rust and in serialized form; [`Array`] |
//! | [`Key`] | keys of tasks and of their results |
//! | [`graph`] | tasks and graphs, and their form in pickles |
//! | [`protocol`] | the messages of all roles, typed |
//! | [`quantity`] | sizes and durations in settings and arguments |
//! | [`RemoteError`] | exceptions, read without executing Python |
//! | [`release`], [`dialect`] | releases of Dask, and the differences between their messages |
//! | [`memory`] | the available memory, and limits that follow from it |
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod dialect;
#[doc(hidden)]
pub mod exception;
pub mod graph;
#[doc(hidden)]
pub mod key;
pub mod protocol;
pub mod quantity;
pub mod release;

#[doc(inline)]
/// For the crates of this workspace.
#[doc(hidden)]
pub use daskwire::kinds;
pub use daskwire_value as value;
#[doc(inline)]
pub use daskwire_value::memory;
pub use daskwire_value::{Array, Serialized, Value};
#[doc(hidden)]
pub use daskwire_value::{brief, brief_debug, pickling, scratch};
pub use exception::RemoteError;
pub use key::Key;
pub use release::Release;

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
