//! Text that is still bytes, and text that has been checked.

use core::fmt;

/// Text as it is in the document: bytes that nobody has checked yet.
///
/// A message that is only passed on never needs its text checked, so the
/// reader leaves that to whoever wants to look at it. Comparing with a `&str`
/// compares bytes and needs no check.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RawStr<'a>(&'a [u8]);

impl<'a> RawStr<'a> {
    /// Takes bytes for text, without a check.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes of the text.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text, if it is UTF-8.
    ///
    /// # Errors
    ///
    /// What [`core::str::from_utf8`] says.
    pub const fn to_str(self) -> Result<&'a str, core::str::Utf8Error> {
        core::str::from_utf8(self.0)
    }

    /// Checks that this is UTF-8. ASCII, which nearly all of Dask's text is,
    /// passes eight bytes at a time.
    pub fn check(self) -> Result<Text<'a>, core::str::Utf8Error> {
        if is_ascii(self.0) {
            return Ok(Text(self.0));
        }
        core::str::from_utf8(self.0).map(|_| Text(self.0))
    }
}

impl PartialEq<str> for RawStr<'_> {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for RawStr<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Debug for RawStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Text that has been checked to be UTF-8.
///
/// Only [`RawStr::check`] and [`Reader::str`](super::Reader::str) make one.
/// Comparing is comparing bytes; [`Text::to_str`] gives a `&str`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    /// The bytes of the text, which are UTF-8.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text.
    ///
    /// It is scanned once more, since only unsafe code could skip that.
    pub fn to_str(self) -> &'a str {
        core::str::from_utf8(self.0).unwrap_or_default()
    }

    /// How many bytes the text has.
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there is no text.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl PartialEq<str> for Text<'_> {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Text<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_str().fmt(f)
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.to_str(), f)
    }
}

/// `<[u8]>::is_ascii` for the short strings that messages are made of: whole
/// words, the last of them overlapping, and no loop over single bytes.
#[inline]
fn is_ascii(bytes: &[u8]) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    if let Some(last) = bytes.last_chunk::<8>() {
        let (words, _) = bytes.as_chunks::<8>();
        let mut seen = u64::from_ne_bytes(*last);
        for word in words {
            seen |= u64::from_ne_bytes(*word);
        }
        return seen & HIGH == 0;
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let seen = u32::from_ne_bytes(*first) | u32::from_ne_bytes(*last);
        return u64::from(seen) & HIGH == 0;
    }
    bytes.iter().fold(0, |seen, byte| seen | byte) < 0x80
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::is_ascii;

    #[test]
    fn ascii_is_found_at_every_length_and_place() {
        let good = [b'a'; 40];
        for len in 0..good.len() {
            let mut bytes = good;
            assert!(is_ascii(bytes.get(..len).unwrap_or_default()));
            for place in 0..len {
                bytes[place] = 0x80;
                assert!(
                    !is_ascii(bytes.get(..len).unwrap_or_default()),
                    "{place} of {len}"
                );
                bytes[place] = b'a';
            }
        }
    }
}
