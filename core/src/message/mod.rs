//! Messages: a body with payloads at places, in both layouts.

/// How a message is laid out in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The documented layout, distributed 1.14.0 to 2021.3.0: a header, the
    /// administrative message, a payload header, payload frames.
    Classic,
    /// The current layout, distributed 2021.3.1 and later: the body, in which
    /// placeholders say at which frame a payload begins.
    Modern,
}
