//! A message that arrives in pieces.

use core::hint::black_box;

use daskwire::Limits;
use daskwire::frame::{Arena, FrameDecoder, Prefix};

/// Decodes a message from a stream into `storage` and returns its frames, at
/// most `FRAMES`.
pub(crate) fn decode<const FRAMES: usize>(
    stream: &[u8],
    storage: &mut [u8],
    read: impl FnOnce(&[&[u8]]) -> Option<bool>,
) -> Option<bool> {
    let mut frames = Arena::new(storage);
    let mut decoder = FrameDecoder::new(Prefix::U64, [0_u8; 64], Limits::MICROCONTROLLER);
    for mut piece in stream.chunks(black_box(11).max(1)) {
        decoder.push(&mut piece, &mut frames).ok()?;
    }
    decoder.end().ok()?;
    let mut slots = [&[][..]; FRAMES];
    read(decoder.prelude()?.split(frames.filled(), &mut slots).ok()?)
}
