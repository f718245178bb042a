//! Strings of fixed size.

use core::fmt::{self, Write};
use daskwire::invariant::OrDefaultIfBug as _;

/// A string of at most `N` bytes. Writing more is an error, and writes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedString<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> FixedString<N> {
    /// An empty string.
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }

    /// The number of bytes that still fit.
    pub(crate) const fn space(&self) -> usize {
        N.saturating_sub(self.len)
    }

    /// Whether nothing has been written.
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The string written so far.
    pub(crate) fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).or_default_if_bug();
        core::str::from_utf8(bytes).or_default_if_bug()
    }
}

impl<const N: usize> Write for FixedString<N> {
    fn write_str(&mut self, string: &str) -> fmt::Result {
        let space = self.bytes.get_mut(self.len..).or_default_if_bug();
        let space = space.get_mut(..string.len()).ok_or(fmt::Error)?;
        crate::copy(space, string.as_bytes());
        self.len = self.len.saturating_add(string.len());
        Ok(())
    }
}
