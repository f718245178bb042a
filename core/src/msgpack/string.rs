//! Strings before and after the validation of their UTF-8.

use crate::invariant::OrDefaultIfBug as _;
use core::fmt;

/// A string as it is in the document, without UTF-8 validation.
///
/// A message that is only forwarded never needs its strings validated, so the
/// reader leaves that to the caller. Comparing with a `&str` compares bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RawStr<'a>(&'a [u8]);

impl<'a> RawStr<'a> {
    /// Wraps bytes without validation.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes of the string.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The string, if it is valid UTF-8.
    ///
    /// # Errors
    ///
    /// The error of [`core::str::from_utf8`].
    pub const fn to_str(self) -> Result<&'a str, core::str::Utf8Error> {
        core::str::from_utf8(self.0)
    }

    /// Validates the string. On 64-bit machines ASCII, which nearly all of Dask's
    /// strings are, is validated eight bytes at a time.
    ///
    /// # Errors
    ///
    /// As [`to_str`](Self::to_str).
    pub fn check(self) -> Result<Str<'a>, core::str::Utf8Error> {
        if cfg!(target_pointer_width = "64") && is_ascii(self.0) {
            return Ok(Str(self.0));
        }
        core::str::from_utf8(self.0).map(|_| Str(self.0))
    }
}

impl fmt::Debug for RawStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// A string that has been validated as UTF-8.
///
/// Created only by [`RawStr::check`] and [`Reader::str`](super::Reader::str).
/// Comparison is by bytes; [`Str::to_str`] returns a `&str`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Str<'a>(&'a [u8]);

impl<'a> Str<'a> {
    /// The bytes of the string, which are UTF-8.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The string.
    ///
    /// Validates the bytes a second time, since only unsafe code could avoid
    /// that.
    pub fn to_str(self) -> &'a str {
        core::str::from_utf8(self.0).or_default_if_bug()
    }

    /// The length of the string, in bytes.
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Whether the string is empty.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

macro_rules! equals {
    ($($string:ident: $other:ty),+) => {
        $(impl PartialEq<$other> for $string<'_> {
            fn eq(&self, other: &$other) -> bool {
                self.0 == other.as_bytes()
            }
        })+
    };
}

equals!(RawStr: str, RawStr: &str, Str: str, Str: &str);

impl fmt::Display for Str<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_str().fmt(f)
    }
}

impl fmt::Debug for Str<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.to_str(), f)
    }
}

/// `<[u8]>::is_ascii` for short strings: compares whole words, the last two
/// overlapping, without a loop over single bytes.
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
