//! What runs on std above the transports: so far, recorded streams taken apart
//! and put together again, and a scheduler asked who it is. The `daskwire`
//! command is made of these.

pub mod encode;
pub mod identity;
pub mod inspect;
