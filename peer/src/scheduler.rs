//! A scheduler in this process, for clients and workers of Dask and of this crate.
//!
//! [`Scheduler`] is the place to start. The crate `daskwire-scheduler` has the implementation,
//! and its state machine.

#[doc(inline)]
#[cfg(target_os = "linux")]
pub use daskwire_scheduler::PythonOptions;
pub use daskwire_scheduler::{
    FIRST_SERVED, JournalError, JournalOptions, JournalSync, LeaveReason, LeftTasks, MemoryMeasure,
    Notice, NoticeCallback, Options, Permissions, Permit, Policy, RecordingOptions, Scheduler,
    ServeError, StartError,
};
