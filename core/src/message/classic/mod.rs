//! The classic layout, of distributed 1.14.0 to 2021.3.0: a payload header with
//! the path of each payload in the body.

mod build;
mod keys;
mod open;
mod path;

pub(super) use build::write_payload_header;
pub(super) use keys::{leave, path_missing};
pub(super) use open::{ClassicHeader, open_body, set_numbers};
pub(super) use path::Elements;

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
    /// While the body is scanned, the offset of the next element in the payload
    /// header; or in a map where that element has been followed, the offset of the
    /// equal key in the body. So no element is searched for from the start.
    pub(in crate::message) cursor: u32,
    /// Offset in the body of the value that the payload replaces, or of the map
    /// that it is a new entry of.
    pub(in crate::message) target: u32,
}
