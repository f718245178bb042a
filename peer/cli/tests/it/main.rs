//! The tests of the command, in one program.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

#[cfg(target_os = "linux")]
mod attacks;
mod captures;
mod comms_with_dask;
mod connections;
#[cfg(unix)]
mod dashboard_data;
mod diagnose;
mod functions_with_dask;
mod inspect;
mod journal;
#[cfg(target_os = "linux")]
mod journal_peers;
#[cfg(target_os = "linux")]
mod journal_shared;
mod journey;
#[cfg(target_os = "linux")]
mod metrics_with_dask;
mod old_schedulers;
#[cfg(unix)]
mod operators;
mod pickle;
#[cfg(unix)]
mod processes;
mod python_agrees;
#[cfg(target_os = "linux")]
mod python_clusters;
#[cfg(target_os = "linux")]
mod python_contract;
#[cfg(target_os = "linux")]
mod python_extensions;
#[cfg(target_os = "linux")]
mod python_faults;
#[cfg(target_os = "linux")]
mod python_logs;
#[cfg(target_os = "linux")]
mod python_worker;
mod readme;
mod relay_with_dask;
#[cfg(unix)]
mod scheduler_command;
#[cfg(target_os = "linux")]
mod scheduler_python;
#[cfg(target_os = "linux")]
mod scheduler_users;
mod shell;
mod support;
mod terminal;
mod worker_data;
#[cfg(target_os = "linux")]
mod worker_limits;
#[cfg(unix)]
mod worker_options;
#[cfg(target_os = "linux")]
mod worker_returns;
#[cfg(unix)]
mod worker_signals;
mod worker_with_dask;
#[cfg(unix)]
mod ws_with_dask;
