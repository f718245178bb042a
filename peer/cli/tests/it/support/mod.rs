//! Parts that several tests use.

#[path = "../../../../tests/it/support/client.rs"]
pub(crate) mod client;
pub(crate) mod command;
pub(crate) mod http;
pub(crate) mod relay;
pub(crate) mod scratch;
pub(crate) mod worker;
