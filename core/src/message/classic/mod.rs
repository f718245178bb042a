//! The classic layout, of distributed 1.14.0 to 2021.3.0: a payload header with
//! the path of each payload in the body.

mod build;
mod keys;
mod open;
mod path;

pub(super) use build::write_payload_header;
pub(super) use keys::matching;
pub(super) use open::{ClassicHeader, open_body};
pub(super) use path::{Elements, IndexKey};

/// A payload with its path. Offsets are those in the payload header.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::message) struct ClassicEntry {
    pub(in crate::message) path: (u32, u32),
    pub(in crate::message) header: (u32, u32),
    pub(in crate::message) first_frame: u32,
    pub(in crate::message) frame_count: u32,
    /// Index in `keys`, which is the index of the payload.
    pub(in crate::message) number: u32,
    /// The position, in the table, of the payload whose index is the position
    /// of this entry.
    pub(in crate::message) by_number: u32,
    pub(in crate::message) claimed: bool,
    pub(in crate::message) bytestring: Option<bool>,
    /// Whether the body has a value at this path, which the payload replaces.
    pub(in crate::message) present: bool,
    /// Whether the path leads to a value or to a new entry.
    pub(in crate::message) resolved: bool,
    /// The number of path elements followed.
    pub(in crate::message) followed: u32,
}
