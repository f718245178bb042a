//! What runs on std above the transports: so far, recorded streams taken apart
//! and put together again, a scheduler asked who it is, and messages passed on
//! between transports. The `daskwire` command is made of these.

pub mod encode;
pub mod identity;
pub mod inspect;
pub mod relay;
