//! The tests of the roles, in one program.

mod client_api;
mod client_api_table;
mod client_blocking;
mod client_connection;
mod client_diagnostics;
mod client_results;
mod client_with_dask;
mod cluster;
mod compression;
mod environment;
#[cfg(unix)]
mod examples_with_signals;
mod exceptions;
mod grace;
mod keys;
mod local_cluster_api;
mod numpy_values;
mod numpy_with_dask;
mod numpy_with_worker;
mod pickle_agrees;
mod pickle_tree;
mod pickle_written;
mod pitfalls;
mod priorities;
mod relay;
mod returns;
mod roles;
mod runtimes;
mod scheduler_with_dask;
mod support;
mod value_limits;
mod values_with_dask;
mod worker_functions;
