//! zstd frames, by the ruzstd crate, which needs a heap.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, compress};
use ruzstd::io::{self, Read as _};

use super::{Codec, Compression, CompressionError, room};

fn malformed(at: usize, reason: &'static str) -> CompressionError {
    CompressionError::Malformed {
        codec: Codec::Zstd,
        at,
        reason,
    }
}

/// The content size that the frame says. Dask's reader needs it, so a frame
/// without is refused (RFC 8878, section 3.1.1.1).
pub(super) fn content_size(frame: &[u8]) -> Result<u64, CompressionError> {
    let ends = || malformed(frame.len(), "it ends within its header");
    let Some((&[0x28, 0xb5, 0x2f, 0xfd], rest)) = frame.split_first_chunk() else {
        return Err(malformed(0, "it does not begin as a zstd frame"));
    };
    let (&descriptor, rest) = rest.split_first().ok_or_else(ends)?;
    let is_single_segment = descriptor & 0x20 != 0;
    let window_len = usize::from(!is_single_segment);
    let dictionary_len = match descriptor & 3 {
        0 => 0,
        1 => 1,
        2 => 2,
        _ => 4_usize,
    };
    let field = rest
        .get(window_len.saturating_add(dictionary_len)..)
        .ok_or_else(ends)?;
    let bytes = |len| field.get(..len).ok_or_else(ends);
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    match descriptor >> 6 {
        0 if is_single_segment => Ok(number(bytes(1)?)),
        0 => Err(malformed(4, "the frame does not say its content size")),
        1 => Ok(number(bytes(2)?).saturating_add(256)),
        2 => Ok(number(bytes(4)?)),
        _ => Ok(number(bytes(8)?)),
    }
}

/// The bytes that a decoder of zstd has to be able to look back at (RFC 8878,
/// section 3.1.1.1.2, recommends that it can).
const WINDOW_LEN: u64 = 8 << 20;

/// The bytes that it looks back at however long the data is: what the decoder
/// of the zstd project does unless it is told otherwise.
const MAX_WINDOW_LEN: u64 = 128 << 20;

/// Fills `out`, which is as long as the frame declares. Takes up to twice as much
/// heap as that, but not more than for the longest window: ruzstd keeps what it
/// may look back at.
pub(super) fn decompress(frame: &[u8], out: &mut [u8]) -> Result<(), CompressionError> {
    let mut written = 0_usize;
    decode(frame, out.len() as u64, |decoder| {
        let place = out.get_mut(written..).unwrap_or_default();
        let len = decoder.read(place).unwrap_or_default();
        written = written.saturating_add(len);
        Ok(len)
    })
}

/// Decompresses to the end of `out`, which grows with what comes out.
pub(super) fn decompress_onto(
    frame: &[u8],
    out: &mut alloc::vec::Vec<u8>,
    declared: u64,
) -> Result<usize, CompressionError> {
    let declared_len = usize::try_from(declared).unwrap_or(usize::MAX);
    let mut written = 0_usize;
    decode(frame, declared, |decoder| {
        let left = declared_len.saturating_sub(written);
        let len = decoder.can_collect().min(left);
        if out.capacity().saturating_sub(out.len()) < len {
            // Twice as much each time, but no more than is ever needed.
            let more = len.max(written).min(left);
            out.try_reserve_exact(more)
                .map_err(|_| CompressionError::OutOfMemory {
                    needed: more as u64,
                })?;
        }
        let start = out.len();
        super::grow(out, len)?;
        let place = out.get_mut(start..).unwrap_or_default();
        let len = decoder.read(place).unwrap_or_default();
        written = written.saturating_add(len);
        Ok(len)
    })?;
    Ok(written)
}

/// Decodes a frame that declares a length; `take` takes as much of the decoded data
/// as it has room for, and returns how many bytes that was.
fn decode(
    frame: &[u8],
    declared: u64,
    mut take: impl FnMut(&mut FrameDecoder) -> Result<usize, CompressionError>,
) -> Result<(), CompressionError> {
    let mut decoder = FrameDecoder::new();
    // Nobody looks back further than to the start, so writers that know the
    // length do not ask for more.
    decoder.set_max_window_size(declared.clamp(WINDOW_LEN, MAX_WINDOW_LEN));
    let mut input = frame;
    if decoder.init(&mut input).is_err() {
        return Err(malformed(
            4,
            "its header is damaged, or asks to look back too far",
        ));
    }
    let at = |input: &[u8]| frame.len().saturating_sub(input.len());
    let mut written = 0_u64;
    loop {
        // Not all at once: what is too much is to be noticed before it takes
        // memory.
        let strategy = BlockDecodingStrategy::UptoBytes(1 << 20);
        if decoder.decode_blocks(&mut input, strategy).is_err() {
            return Err(if input.is_empty() {
                malformed(frame.len(), "it ends too early")
            } else {
                malformed(at(input), "the block up to here is damaged")
            });
        }
        written = written.saturating_add(take(&mut decoder)? as u64);
        if decoder.can_collect() != 0 {
            return Err(malformed(
                at(input),
                "it holds more than its content size says",
            ));
        }
        if decoder.is_finished() {
            break;
        }
    }
    if !input.is_empty() {
        return Err(malformed(at(input), "bytes follow the end of the frame"));
    }
    if written != declared {
        return Err(malformed(
            frame.len(),
            "it holds less than its content size says",
        ));
    }
    if let Some(said) = decoder.get_checksum_from_data()
        && decoder.get_calculated_checksum() != Some(said)
    {
        return Err(malformed(frame.len(), "its checksum does not fit the data"));
    }
    Ok(())
}

/// Compresses with zstd at about its level 1 (PROTOCOL COMPRESS-4).
///
/// Takes memory from the heap while it compresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Zstd;

impl Zstd {
    /// Compresses at the one level there is.
    pub const fn new() -> Self {
        Self
    }
}

/// The magic number, a descriptor byte and the window, which is how ruzstd
/// begins a frame.
const HEAD_LEN: usize = 6;

impl Compression for Zstd {
    fn codec(&self) -> Codec {
        Codec::Zstd
    }

    fn max_compressed_len(&self, len: usize) -> Option<usize> {
        // Three bytes for each block of 128 KiB; twice that to be safe.
        len.checked_add(len >> 14)?.checked_add(64)
    }

    fn compress(&mut self, data: &[u8], out: &mut [u8]) -> Result<usize, CompressionError> {
        let room = room(out, self.max_compressed_len(data.len()))?;
        // ruzstd does not say the content size, without which Dask refuses the
        // frame: it is put between its header and its blocks.
        let Some((head, rest)) = room.split_first_chunk_mut::<{ HEAD_LEN + 8 }>() else {
            return Ok(0);
        };
        let mut drain = Drain {
            head: [0; HEAD_LEN],
            rest,
            len: 0,
        };
        compress(data, &mut drain, CompressionLevel::Fastest);
        let (written, first) = (drain.len, drain.head);
        let blocks_len = written.checked_sub(HEAD_LEN).unwrap_or(usize::MAX);
        let is_expected =
            matches!(first, [0x28, 0xb5, 0x2f, 0xfd, descriptor, _] if descriptor & 0xe3 == 0);
        if blocks_len > drain.rest.len() || !is_expected {
            // Not from this version of ruzstd, with the room that it asks for.
            return Err(malformed(0, "the data could not be compressed"));
        }
        let [magic @ .., descriptor, window] = first;
        let size = (data.len() as u64).to_le_bytes();
        // Both top bits: a size of eight bytes.
        let parts = [&magic[..], &[descriptor | 0xc0, window], &size];
        for (place, byte) in head.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
        }
        Ok(blocks_len.saturating_add(HEAD_LEN + 8))
    }
}

/// Where ruzstd writes to. It panics when it cannot, so this takes everything
/// and counts it, and what it has no room for is lost.
struct Drain<'o> {
    head: [u8; HEAD_LEN],
    rest: &'o mut [u8],
    len: usize,
}

impl io::Write for &mut Drain<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, io::Error> {
        for (at, byte) in (self.len..).zip(bytes).take(HEAD_LEN) {
            if let Some(place) = self.head.get_mut(at) {
                *place = *byte;
            }
        }
        let (skip, at) = match self.len.checked_sub(HEAD_LEN) {
            Some(at) => (0, at),
            None => (HEAD_LEN.saturating_sub(self.len), 0),
        };
        let behind = bytes.get(skip..).unwrap_or_default();
        let place = self.rest.get_mut(at..).unwrap_or_default();
        if let Some(place) = place.get_mut(..behind.len()) {
            crate::measure::copy(place, behind);
        }
        self.len = self.len.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), io::Error> {
        Ok(())
    }
}
