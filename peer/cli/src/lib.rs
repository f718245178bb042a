//! The `daskwire` command (`main`, and `main_with` for other transports), and its parts for other programs and tests:
//! inspecting recorded streams ([`inspect`]), encoding them ([`encode`]), listing pickles
//! ([`pickle`]), and following a task through a cluster (`journey`).
//!
//! The command and journeys need the feature `command`, which is a default.
//!
//! ```
//! use daskwire_cli::inspect::{Inspector, Options};
//!
//! // What a scheduler sent over TCP: {"op": "ping", "reply": true}
//! let stream = b"\x20\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\
//!     \x82\xa2op\xa4ping\xa5reply\xc3";
//! let mut inspector = Inspector::new(stream, Options::default());
//! while let Some(message) = inspector.next_message()? {
//!     let text = inspector.text(&message)?;
//!     assert!(text.contains("ping"));
//! }
//! # Ok::<(), daskwire_cli::inspect::InspectError>(())
//! ```
// All output of the command goes through `command::terminal`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "command")]
mod command;
pub mod encode;
mod format;
pub mod inspect;
#[cfg(feature = "command")]
pub mod journey;
pub mod pickle;
mod printable;

#[cfg(feature = "command")]
pub use command::{main, main_with};
