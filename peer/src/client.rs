//! A client of a Dask cluster, which submits tasks, tracks their state, and transfers data.
//!
//! [`Client`] is the place to start. The crate `daskwire-client` has the implementation, and its
//! state machine.

#[cfg(feature = "blocking")]
#[doc(inline)]
pub use daskwire_client::blocking;
#[doc(inline)]
pub use daskwire_client::{
    AsCompleted, Call, CallStack, Calls, Client, ClientOptions, ClusterVersions, Completed,
    ConnectError, Connection, ConnectionWatch, Dataset, Disconnected, Event, FromResult, Lease,
    Lock, LogLine, Meter, NodeVersions, OnReconnect, PerformanceReport, PluginKind, Profile,
    ProfileOptions, Profiled, Queue, Reconnect, Restarted, Results, Returned, Route, RunError,
    RunResults, ScatterError, ScatterOptions, Semaphore, SharedValue, Status, StoryStep,
    SubmitError, SubmitOptions, Subscription, TaskError, TaskFuture, TaskStates, TopicEvent,
    TypedFuture, Variable, Workers,
};
