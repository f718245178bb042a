//! What the `daskwire` command is made of, for programs and tests that need the
//! same: recorded streams taken apart ([`inspect`]) and put together again
//! ([`encode`]), pickles listed ([`pickle`]), and a task followed through a
//! cluster ([`journey`]).

pub mod encode;
pub mod inspect;
pub mod journey;
pub mod pickle;
pub mod table;

/// The blocks of Rust in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
