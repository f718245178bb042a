//! Raw snappy (without the stream framing), in safe code and without a heap.
//!
//! Implements the [format description]: the length as a variable-length
//! integer, then literals and copies.
//!
//! [format description]: https://github.com/google/snappy/blob/main/format_description.txt

use crate::copy::{copy_back, copy_literal};
use crate::input::Input;
use crate::invariant::OrDefaultIfBug as _;
use crate::{BufferTooSmall, Codec, Compression, CompressionError};

/// The size of the blocks that are compressed separately, so that copy offsets
/// fit in 16 bits.
const BLOCK_LEN: usize = 1 << 16;

/// The number of slots of a table for whole blocks.
const MAX_SLOTS: usize = 1 << 14;

/// The number of slots that a short block uses.
const MIN_SLOTS: usize = 1 << 8;

/// The number of bytes at the end of a block that are not searched for matches.
const MARGIN: usize = 15;

/// The snappy compressor (PROTOCOL COMPRESS-2), with working memory that is
/// reused for each frame: 2 bytes for each of `SLOTS` positions of earlier data.
///
/// Default: 16,384 slots, 32 KiB. With fewer slots data of any length can be
/// compressed, too, but fewer repetitions are found in data of more than `SLOTS`
/// bytes.
///
/// ```
/// use daskwire_compression::{Compression, Snappy};
///
/// // 512 bytes.
/// let mut snappy = Snappy::<256>::sized();
/// let mut packed = [0; 1300];
/// let len = snappy.compress(&[7; 1000], &mut packed)?;
/// assert!(len < 100);
/// # Ok::<(), daskwire_compression::CompressionError>(())
/// ```
#[derive(Clone)]
pub struct Snappy<const SLOTS: usize = MAX_SLOTS> {
    table: [u16; SLOTS],
}

impl Snappy {
    /// Creates a compressor with the default number of slots.
    pub const fn new() -> Self {
        Self::sized()
    }
}

impl<const SLOTS: usize> Snappy<SLOTS> {
    /// Creates a compressor with any number of slots: a power of two from 256 to
    /// 16,384, which the compiler checks.
    pub const fn sized() -> Self {
        const {
            assert!(
                SLOTS.is_power_of_two() && MIN_SLOTS <= SLOTS && SLOTS <= MAX_SLOTS,
                "SLOTS has to be a power of two from 256 to 16,384"
            );
        }
        Self { table: [0; SLOTS] }
    }
}

impl Default for Snappy {
    fn default() -> Self {
        Self::new()
    }
}

impl<const SLOTS: usize> core::fmt::Debug for Snappy<SLOTS> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Snappy<{SLOTS}>")
    }
}

impl<const SLOTS: usize> Compression for Snappy<SLOTS> {
    fn codec(&self) -> Codec {
        Codec::Snappy
    }

    fn max_compressed_len(&self, len: usize) -> Option<usize> {
        u32::try_from(len).ok()?;
        // Google's bound: one byte for every 6, plus the length.
        len.checked_add(len / 6)?.checked_add(32)
    }

    fn compress(&mut self, data: &[u8], out: &mut [u8]) -> Result<usize, CompressionError> {
        let needed = self.max_compressed_len(data.len()).unwrap_or(usize::MAX);
        let out = BufferTooSmall::check(out, needed)?;
        let mut output = Output { out, at: 0 };
        let mut len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        while len >= 0x80 {
            output.put([low_byte(len) | 0x80]);
            len >>= 7;
        }
        output.put([low_byte(len)]);
        for block in data.chunks(BLOCK_LEN) {
            compress_block(block, &mut self.table, &mut output);
        }
        Ok(output.at)
    }
}

#[allow(clippy::cast_possible_truncation)] // intended
const fn low_byte(value: u32) -> u8 {
    value as u8
}

/// A cursor over an output buffer of `max_compressed_len` bytes.
struct Output<'o> {
    out: &'o mut [u8],
    at: usize,
}

impl Output<'_> {
    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(place) = self
            .out
            .get_mut(self.at..)
            .and_then(<[u8]>::first_chunk_mut::<N>)
        {
            *place = bytes;
        }
        self.at = self.at.wrapping_add(N);
    }

    #[inline]
    fn literal(&mut self, data: &[u8]) {
        let Some(last) = data.len().checked_sub(1) else {
            return;
        };
        // Less than a block, so it fits in 16 bits.
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        if last < 60 {
            self.put([low_byte(last) << 2]);
        } else if last < 1 << 8 {
            self.put([60 << 2, low_byte(last)]);
        } else {
            self.put([61 << 2, low_byte(last), low_byte(last >> 8)]);
        }
        copy_literal(self.out, self.at, data);
        self.at = self.at.wrapping_add(data.len());
    }

    #[inline]
    fn copy(&mut self, offset: usize, len: usize) {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let mut len = u32::try_from(len).unwrap_or(u32::MAX);
        let long = |output: &mut Self, len: u32| {
            let tag = low_byte(len.wrapping_sub(1)) << 2 | 2;
            output.put([tag, low_byte(offset), low_byte(offset >> 8)]);
        };
        while len >= 68 {
            long(self, 64);
            len = len.wrapping_sub(64);
        }
        if len > 64 {
            // Leaves at least 4 bytes, the shortest copy.
            long(self, 60);
            len = len.wrapping_sub(60);
        }
        if len < 12 && offset < 1 << 11 {
            let tag = low_byte(offset >> 8) << 5 | low_byte(len.wrapping_sub(4)) << 2 | 1;
            self.put([tag, low_byte(offset)]);
        } else {
            long(self, len);
        }
    }
}

#[inline]
fn word(block: &[u8], at: usize) -> Option<u32> {
    let bytes = block.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

#[inline]
fn slot(word: u32, shift: u32) -> usize {
    (word.wrapping_mul(0x1e35_a7bd) >> shift) as usize
}

/// The number of equal bytes at two offsets; `second` is greater than `first`.
#[inline]
fn common_len(block: &[u8], first: usize, second: usize) -> usize {
    let after = block.get(second..).or_default_if_bug();
    let before = block
        .get(first..)
        .and_then(|part| part.get(..after.len()))
        .or_default_if_bug();
    let (after_words, after_rest) = after.as_chunks::<8>();
    let (before_words, before_rest) = before.as_chunks::<8>();
    let mut len = 0_usize;
    for (a, b) in after_words.iter().zip(before_words) {
        let differ = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differ != 0 {
            return len.wrapping_add((differ.trailing_zeros() / 8) as usize);
        }
        len = len.wrapping_add(8);
    }
    let rest = after_rest.iter().zip(before_rest);
    len.wrapping_add(rest.take_while(|(a, b)| a == b).count())
}

fn compress_block(block: &[u8], table: &mut [u16], output: &mut Output<'_>) {
    let Some(limit) = block.len().checked_sub(MARGIN) else {
        output.literal(block);
        return;
    };
    // A short block uses and clears only part of the table.
    let slots = block.len().next_power_of_two().max(MIN_SLOTS);
    let slots = slots.min(table.len());
    let shift = 32_u32.wrapping_sub(slots.trailing_zeros());
    let table = table.get_mut(..slots).or_default_if_bug();
    table.fill(0);

    let mut emitted = 0_usize;
    let mut at = 1_usize;
    loop {
        // Searches for a match, with growing steps while there is none.
        let mut misses = 32_usize;
        let found = loop {
            if at >= limit {
                break None;
            }
            let Some(now) = word(block, at) else {
                break None;
            };
            let Some(entry) = table.get_mut(slot(now, shift)) else {
                break None;
            };
            let candidate = usize::from(*entry);
            // A position in a block fits in 16 bits.
            *entry = u16::try_from(at).unwrap_or(u16::MAX);
            if candidate < at && word(block, candidate) == Some(now) {
                break Some(candidate);
            }
            at = at.wrapping_add(misses >> 5);
            misses = misses.wrapping_add(1);
        };
        let Some(candidate) = found else {
            output.literal(block.get(emitted..).or_default_if_bug());
            return;
        };
        output.literal(block.get(emitted..at).or_default_if_bug());
        // Consecutive matches have no literal between them.
        let mut candidate = candidate;
        loop {
            let len = common_len(block, candidate.wrapping_add(4), at.wrapping_add(4));
            let len = len.wrapping_add(4);
            output.copy(at.wrapping_sub(candidate), len);
            at = at.wrapping_add(len);
            emitted = at;
            if at >= limit {
                break;
            }
            // Stores the previous position and tries the current one.
            let before = at.wrapping_sub(1);
            if let Some(word) = word(block, before)
                && let Some(entry) = table.get_mut(slot(word, shift))
            {
                *entry = u16::try_from(before).unwrap_or(u16::MAX);
            }
            let Some(now) = word(block, at) else { break };
            let Some(entry) = table.get_mut(slot(now, shift)) else {
                break;
            };
            candidate = usize::from(*entry);
            *entry = u16::try_from(at).unwrap_or(u16::MAX);
            if candidate >= at || word(block, candidate) != Some(now) {
                break;
            }
        }
        if at >= limit {
            output.literal(block.get(emitted..).or_default_if_bug());
            return;
        }
        at = at.wrapping_add(1);
    }
}

/// The declared length and the elements after it.
pub(crate) fn split_len(frame: &[u8]) -> Result<(u64, Input<'_>), CompressionError> {
    let mut input = Input::new(Codec::Snappy, frame);
    let mut len = 0_u64;
    for shift in [0, 7, 14, 21, 28] {
        let byte = input
            .byte()
            .ok_or_else(|| input.fault("it ends within its length"))?;
        len |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return if len <= u64::from(u32::MAX) {
                Ok((len, input))
            } else {
                Err(input.fault("its length takes more than 32 bits"))
            };
        }
    }
    Err(input.fault("its length takes more than 5 bytes"))
}

/// Decompresses to `out`, whose length is the declared one.
pub(crate) fn decompress(frame: &[u8], out: &mut [u8]) -> Result<(), CompressionError> {
    let (_, mut input) = split_len(frame)?;
    let mut at = 0_usize;
    while let Some(tag) = input.byte() {
        let (offset, len) = match tag & 3 {
            0 => {
                let code = usize::from(tag >> 2);
                let last = if code < 60 {
                    code
                } else {
                    // 1 to 4 bytes with the length minus one.
                    let width = code.wrapping_sub(59);
                    let mut bytes = [0; 4];
                    let given = input.take(width).ok_or_else(|| input.ends())?;
                    copy_literal(&mut bytes, 0, given);
                    usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| input.ends())?
                };
                let len = last.checked_add(1).ok_or_else(|| input.ends())?;
                input.literal(out, at, len, too_long)?;
                at = at.wrapping_add(len);
                continue;
            }
            1 => {
                let low = input.byte().ok_or_else(|| input.ends())?;
                let offset = usize::from(tag >> 5) << 8 | usize::from(low);
                (offset, usize::from(tag >> 2 & 7).wrapping_add(4))
            }
            2 => {
                let offset = input.bytes().ok_or_else(|| input.ends())?;
                let offset = usize::from(u16::from_le_bytes(offset));
                (offset, usize::from(tag >> 2).wrapping_add(1))
            }
            _ => {
                let offset = input.bytes().ok_or_else(|| input.ends())?;
                let offset = usize::try_from(u32::from_le_bytes(offset)).unwrap_or(usize::MAX);
                (offset, usize::from(tag >> 2).wrapping_add(1))
            }
        };
        if offset == 0 || offset > at {
            return Err(input.fault("a copy begins before the data"));
        }
        copy_back(out, at, offset, len).ok_or_else(|| too_long(&input))?;
        at = at.wrapping_add(len);
    }
    if at == out.len() {
        Ok(())
    } else {
        Err(input.fault("it holds less than the declared length"))
    }
}

#[cold]
fn too_long(input: &Input<'_>) -> CompressionError {
    input.fault("it holds more than the declared length")
}
