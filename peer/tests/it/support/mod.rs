//! Parts that several tests use.

pub(crate) mod client;
pub(crate) mod embedded;
#[cfg(target_os = "linux")]
pub(crate) mod local;
