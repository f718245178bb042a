//! The tests of payloads as values, in one program.
#![allow(
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc,
    reason = "a test has std"
)]

mod elements;
mod exceptions;
mod payloads;
mod records;
#[path = "../../../tests/it/support.rs"]
mod support;
