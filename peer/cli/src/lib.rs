//! The `daskwire` command ([`main`]), and its parts for other programs and tests:
//! inspecting recorded streams ([`inspect`]), encoding them ([`encode`]), listing pickles
//! ([`pickle`]), and following a task through a cluster ([`journey`]).
// All output of the command goes through `terminal`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod encode;
pub mod inspect;
pub mod journey;
pub mod pickle;
pub mod table;

mod arguments;
mod command;
mod config;
mod connect;
mod diagnose;
mod examples;
mod failure;
mod generate;
mod inspect_command;
mod json;
#[cfg(feature = "tracing")]
mod log;
mod running;
mod shell;
mod show;
mod snapshot;
mod terminal;
mod top;
mod worker_command;

pub use command::main;
