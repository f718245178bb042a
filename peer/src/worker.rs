//! Workers that run functions in Rust as tasks of a Dask scheduler, and on Linux functions of
//! Python in processes of an interpreter.
//!
//! [`Worker`] is the place to start. The crate `daskwire-worker` has the implementation, and its
//! state machine.

#[doc(inline)]
pub use daskwire_worker::{
    Arguments, AsyncFunction, Builder, Cancellation, Context, Ended, FromArguments, Function,
    Functions, Holdings, Keywords, MemoryThresholds, Outcome, Signature, StartError, StoreCounters,
    Tally, TaskCounters, TransferCounters, TransferLimits, Worker,
};
