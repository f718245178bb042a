//! Parts that several tests use.

pub(crate) mod client;
pub(crate) mod embedded;
