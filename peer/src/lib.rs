//! What runs on std above the transports: so far, recorded streams taken apart
//! and put together again, for the `daskwire` command.

pub mod inspect;
