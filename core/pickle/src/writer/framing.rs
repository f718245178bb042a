//! Opcodes with their data, and the frames around them.

use super::{Framing, Writer};
use crate::Opcode;
use daskwire_compression::invariant::OrDefaultIfBug;
use daskwire_compression::measure::{append, short};

impl Writer<'_, '_> {
    #[inline]
    pub(super) fn opcode(&mut self, opcode: Opcode) -> &mut Self {
        self.put([opcode.byte()])
    }

    #[inline]
    pub(super) fn put<const N: usize>(&mut self, opcode: [u8; N]) -> &mut Self {
        self.reserve(N);
        self.len = append(self.out, self.len, &opcode);
        self
    }

    #[inline]
    pub(super) fn short(&mut self, opcode: Opcode, len: u8, data: &[u8]) {
        self.reserve(data.len().wrapping_add(2));
        self.len = short(self.out, self.len, [opcode.byte(), len], data);
    }

    #[inline(never)]
    pub(super) fn counted4(&mut self, opcode: Opcode, len: u32, data: &[u8]) {
        let [a, b, c, d] = len.to_le_bytes();
        self.long_data([opcode.byte(), a, b, c, d], data);
    }

    #[inline(never)]
    pub(super) fn counted8(&mut self, opcode: Opcode, data: &[u8]) {
        let [a, b, c, d, e, f, g, h] = (data.len() as u64).to_le_bytes();
        self.long_data([opcode.byte(), a, b, c, d, e, f, g, h], data);
    }

    /// Writes an opcode whose data may be too long for a frame.
    pub(super) fn long_data<const N: usize>(&mut self, head: [u8; N], data: &[u8]) {
        self.head(head, data.len());
        self.len = append(self.out, self.len, data);
    }

    /// Writes the head of an opcode that has `data_len` bytes more.
    pub(super) fn head<const N: usize>(&mut self, head: [u8; N], data_len: usize) {
        let opcode_len = data_len.saturating_add(N);
        if opcode_len > FRAME_LEN && self.options.framing == Framing::Frames {
            // Between two frames: the next frame begins after it.
            self.end_frame();
            self.frame_start = self.len.saturating_add(opcode_len);
        } else {
            self.reserve(opcode_len);
        }
        self.len = append(self.out, self.len, &head);
    }

    // Frames: an opcode is either completely in a frame or between two.

    /// Called before each opcode with its length.
    #[inline]
    pub(super) fn reserve(&mut self, opcode_len: usize) {
        if self.len >= self.frame_full {
            self.update_frame(opcode_len);
        }
    }

    /// Ends a full frame, or writes the header of a frame that has become long
    /// enough for one.
    #[inline(never)]
    pub(super) fn update_frame(&mut self, opcode_len: usize) {
        if self.options.framing == Framing::None {
            return;
        }
        if self.frame_full > 0 {
            self.end_frame();
        }
        let start = self.frame_start;
        let before = self.len.saturating_sub(start);
        if before.saturating_add(opcode_len) < MIN_FRAME_LEN {
            return;
        }
        // The existing contents, at most 3 bytes, move after the header.
        let mut moved = [0; MIN_FRAME_LEN];
        let moved = moved.get_mut(..before).or_default_if_bug();
        for (to, from) in moved.iter_mut().zip(self.out.iter().skip(start)) {
            *to = *from;
        }
        self.frame_start = append(
            self.out,
            start,
            &[Opcode::Frame.byte(), 0, 0, 0, 0, 0, 0, 0, 0],
        );
        self.frame_full = self.frame_start.saturating_add(FRAME_LEN);
        self.len = append(self.out, self.frame_start, moved);
    }

    /// Ends the current frame, if any.
    pub(super) fn end_frame(&mut self) {
        if self.options.framing == Framing::None {
            return;
        }
        if self.frame_full > 0 {
            let len = self.len.saturating_sub(self.frame_start) as u64;
            append(
                self.out,
                self.frame_start.saturating_sub(8),
                &len.to_le_bytes(),
            );
        }
        self.frame_start = self.len;
        self.frame_full = 0;
    }
}

/// Length at which a frame is full: `FRAME_SIZE_TARGET` of CPython.
const FRAME_LEN: usize = 64 << 10;

/// Minimum length of a frame with a header: `FRAME_SIZE_MIN` of CPython.
const MIN_FRAME_LEN: usize = 4;
