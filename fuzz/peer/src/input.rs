//! Decoding of fuzz inputs: choices, and frames that may repeat parts of
//! themselves, so that few bytes make a structure of any depth and width.

use bytes::Bytes;

/// The maximum length of a frame made by repetition, in bytes.
const MAX_FRAME_LEN: usize = 1 << 16;

/// The length on the wire above which a message gets no more frames, in bytes.
const MAX_MESSAGE_LEN: usize = 1 << 17;

/// Bytes as choices. After the end every choice is 0.
#[derive(Clone, Debug)]
pub(crate) struct Choices<'a>(pub(crate) &'a [u8]);

impl<'a> Choices<'a> {
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end.max(1)
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(self.bytes(8)) {
            *to = *from;
        }
        u64::from_le_bytes(bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// Bytes after their length, optionally repeated.
    ///
    /// The length has two bytes; its two highest bits say whether the bytes are a
    /// [repetition](repeated), and whether there is more than one such piece of
    /// data, a byte of which follows.
    fn frame(&mut self) -> (Bytes, usize) {
        let len = self.u16();
        let data = self.bytes(usize::from(len & 0x3fff));
        let frame = match len & 0x4000 {
            0 => Bytes::copy_from_slice(data),
            _ => repeated(data).into(),
        };
        let count = match len & 0x8000 {
            0 => 1,
            _ => 1 << (self.byte() % 13),
        };
        (frame, count)
    }

    /// The remaining bytes as the frames of a message.
    pub(crate) fn frames(mut self) -> Vec<Bytes> {
        let mut frames = Vec::new();
        let mut room = MAX_MESSAGE_LEN;
        while !self.is_empty() && room != 0 {
            let (frame, count) = self.frame();
            let len = 8 + frame.len();
            let count = count.min(room.div_ceil(len));
            room = room.saturating_sub(count * len);
            frames.resize(frames.len() + count, frame);
        }
        frames
    }
}

/// Five parts, of which the second and the fourth are repeated: first come the
/// lengths of the first four and the logarithm of the repetitions, in a byte
/// each.
pub(crate) fn repeated(data: &[u8]) -> Vec<u8> {
    let mut choices = Choices(data);
    let times = 1_usize << (choices.byte() % 14);
    let lengths: [usize; 4] = core::array::from_fn(|_| usize::from(choices.byte()));
    let [first, opening, middle, closing] = lengths.map(|len| choices.bytes(len));
    let longest = opening.len().max(closing.len()).max(1);
    let times = times.min(MAX_FRAME_LEN / 2 / longest);
    let mut out = first.to_vec();
    out.extend_from_slice(&opening.repeat(times));
    out.extend_from_slice(middle);
    out.extend_from_slice(&closing.repeat(times));
    out.extend_from_slice(choices.0);
    out
}

/// Bytes on the wire.
pub(crate) fn wire_len(frames: &[Bytes]) -> usize {
    frames.iter().map(|frame| 8 + frame.len()).sum()
}
