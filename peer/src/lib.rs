//! What runs on std above the transports: so far, recorded streams taken apart
//! and put together again, a scheduler asked who it is, messages passed on
//! between transports, and pickles listed. The `daskwire` command is made of these.

pub mod encode;
pub mod identity;
pub mod inspect;
pub mod net;
pub mod pickle;
pub mod relay;
