//! The tests of pickles, in one program.
#![allow(
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc,
    reason = "a test has std"
)]

mod longer;
mod pep_574;
mod reader;
mod tokens;
mod tree;
mod writer;
