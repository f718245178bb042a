//! The cursor with which lz4 and snappy frames are read.

use crate::copy::copy_literal;
use crate::{Codec, CompressionError};

/// A cursor over a compressed frame.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) rest: &'a [u8],
    len: usize,
    codec: Codec,
}

impl<'a> Input<'a> {
    pub(crate) const fn new(codec: Codec, rest: &'a [u8]) -> Self {
        Self {
            rest,
            len: rest.len(),
            codec,
        }
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    #[inline]
    pub(crate) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*bytes)
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (data, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(data)
    }

    /// Copies a literal of `len` bytes to `out[at..]`. `too_long` is the error if
    /// it does not fit.
    #[inline(always)]
    pub(crate) fn literal(
        &mut self,
        out: &mut [u8],
        at: usize,
        len: usize,
        too_long: fn(&Self) -> CompressionError,
    ) -> Result<(), CompressionError> {
        // Copies 16 bytes at once if there are as many; the excess is
        // overwritten by later elements.
        if len <= 16
            && let Some(source) = self.rest.first_chunk::<16>()
            && let Some(place) = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<16>)
        {
            *place = *source;
            return self.take(len).map(drop).ok_or_else(|| self.ends());
        }
        let literal = self.take(len).ok_or_else(|| self.ends())?;
        copy_literal(out, at, literal).ok_or_else(|| too_long(self))
    }

    #[cold]
    pub(crate) fn fault(&self, reason: &'static str) -> CompressionError {
        CompressionError::Malformed {
            codec: self.codec,
            at: self.len.wrapping_sub(self.rest.len()),
            reason,
        }
    }

    #[cold]
    pub(crate) fn ends(&self) -> CompressionError {
        self.fault("it ends too early")
    }
}
