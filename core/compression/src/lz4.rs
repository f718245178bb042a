//! lz4 as python-lz4 writes it: a `u32` with the length, then one block.
//!
//! Compression uses the lz4_flex crate. Decompression is implemented here: it
//! must contain no panicking code, which the bare-metal test checks, and
//! lz4_flex is slow for arrays of zeros or ones, which are frequent in Dask.

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

use crate::copy::copy_back;
use crate::input::Input;
use crate::{BufferTooSmall, Codec, Compression, CompressionError};

/// The lz4 compressor (PROTOCOL COMPRESS-1), with working memory of about 16
/// KiB that is reused for each frame.
pub struct Lz4 {
    table: CompressTable,
}

impl Lz4 {
    /// Creates a compressor for data of any length.
    pub fn new() -> Self {
        Self {
            table: CompressTable::large(),
        }
    }
}

impl Default for Lz4 {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Lz4 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Lz4")
    }
}

impl Compression for Lz4 {
    fn codec(&self) -> Codec {
        Codec::Lz4
    }

    fn max_compressed_len(&self, len: usize) -> Option<usize> {
        // The limit of lz4 itself, LZ4_MAX_INPUT_SIZE.
        (len <= 0x7e00_0000).then(|| get_maximum_output_size(len).checked_add(4))?
    }

    fn compress(&mut self, data: &[u8], out: &mut [u8]) -> Result<usize, CompressionError> {
        let needed = self.max_compressed_len(data.len()).unwrap_or(usize::MAX);
        let out = BufferTooSmall::check(out, needed)?;
        let Some((len, block)) = out.split_first_chunk_mut() else {
            return Ok(0);
        };
        *len = u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes();
        match compress_into_with_table(data, block, &mut self.table) {
            Ok(block_len) => Ok(block_len.saturating_add(4)),
            // Cannot happen: the buffer has the length that lz4_flex requested.
            Err(_) => Err(CompressionError::Malformed {
                codec: Codec::Lz4,
                at: 0,
                reason: "the data could not be compressed",
            }),
        }
    }
}

/// The declared length and the block after it.
pub(crate) fn split_len(frame: &[u8]) -> Result<(u64, Input<'_>), CompressionError> {
    let mut input = Input::new(Codec::Lz4, frame);
    match input.bytes() {
        Some(len) => Ok((u64::from(u32::from_le_bytes(len)), input)),
        None => Err(input.fault("it ends within the declared length")),
    }
}

/// Decompresses to `out`, whose length is the declared one.
pub(crate) fn decompress(frame: &[u8], out: &mut [u8]) -> Result<(), CompressionError> {
    let (_, mut input) = split_len(frame)?;
    let mut at = 0_usize;
    loop {
        let token = input.byte().ok_or_else(|| input.ends())?;

        let mut literal_len = usize::from(token >> 4);
        if literal_len == 15 {
            literal_len = long_len(&mut input, literal_len)?;
        }
        input.literal(out, at, literal_len, too_long)?;
        at = at.wrapping_add(literal_len);
        if input.rest.is_empty() {
            // The last sequence of a block has literals only.
            return if at == out.len() {
                Ok(())
            } else {
                Err(input.fault("the block holds less than the declared length"))
            };
        }

        let offset = input.bytes().ok_or_else(|| input.ends())?;
        let offset = usize::from(u16::from_le_bytes(offset));
        let mut match_len = usize::from(token & 15);
        if match_len == 15 {
            match_len = long_len(&mut input, match_len)?;
        }
        let match_len = match_len.saturating_add(4);
        if offset == 0 || offset > at {
            return Err(input.fault("a match begins before the data"));
        }
        copy_back(out, at, offset, match_len).ok_or_else(|| too_long(&input))?;
        at = at.wrapping_add(match_len);
    }
}

#[cold]
fn too_long(input: &Input<'_>) -> CompressionError {
    input.fault("the block holds more than the declared length")
}

/// A length that continues while its bytes are 255.
fn long_len(input: &mut Input<'_>, start: usize) -> Result<usize, CompressionError> {
    let mut len = start;
    loop {
        let byte = input.byte().ok_or_else(|| input.ends())?;
        // A frame of less than 2^32 bytes can still declare a longer literal.
        len = len
            .checked_add(usize::from(byte))
            .ok_or_else(|| too_long(input))?;
        if byte != 255 {
            return Ok(len);
        }
    }
}
