//! The classic layout, of distributed 1.14.0 to 2021.3.0: a payload header with
//! the path of each payload in the body.

mod build;
mod keys;
mod open;
mod path;

pub use build::Pending;
pub(super) use build::write_payload_header;
pub(super) use keys::matching;
pub(super) use open::{Heads, open_body};
pub(super) use path::{Elements, IndexKey};

/// A payload of the payload header, with its path. Offsets are those of the
/// payload header.
#[derive(Clone, Copy, Debug)]
pub(in crate::message) struct ClassicEntry {
    pub(in crate::message) path: (u32, u32),
    pub(in crate::message) head: (u32, u32),
    pub(in crate::message) first_frame: u32,
    pub(in crate::message) frame_count: u32,
    /// Position in `keys`, which is the number of the payload.
    pub(in crate::message) number: u32,
    /// Where in the table the payload stands whose number is this entry's
    /// position.
    pub(in crate::message) by_number: u32,
    pub(in crate::message) claimed: bool,
    pub(in crate::message) bytestring: Option<bool>,
    /// The body has a value at this path, which the payload replaces.
    pub(in crate::message) present: bool,
    /// The path leads somewhere.
    pub(in crate::message) resolved: bool,
    /// How many elements of the path have been followed.
    pub(in crate::message) followed: u32,
}
