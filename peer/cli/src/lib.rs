//! The parts of the `daskwire` command for other programs and tests: inspecting
//! recorded streams ([`inspect`]), encoding them ([`encode`]), listing pickles
//! ([`pickle`]), and following a task through a cluster ([`journey`]).

pub mod encode;
pub mod inspect;
pub mod journey;
pub mod pickle;
pub mod table;
