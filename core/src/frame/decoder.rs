//! The incremental decoder.

use super::{Checker, FrameBuffers, FrameError, FrameErrorKind, Prefix, Prelude, PreludeStorage};
use crate::copy;
use crate::invariant::OrDefaultIfBug as _;
use crate::{BufferTooSmall, Limits};

/// Incremental decoder for the messages of a byte stream.
///
/// The loop is the same for any stream, blocking, async or polled: get the
/// buffer for the next bytes from [`space`](Self::space), read into it, report
/// the number of bytes with [`advance`](Self::advance), until the buffer is
/// empty:
///
/// ```
/// # use daskwire::{Limits, frame::{Arena, FrameDecoder, FrameErrorKind, Prefix}};
/// # use std::io::Read;
/// fn read_message<R: Read>(
///     stream: &mut R,
///     decoder: &mut FrameDecoder<[u8; 256]>,
///     frames: &mut Arena<'_>,
/// ) -> Result<bool, Box<dyn std::error::Error>> {
///     loop {
///         let space = decoder.space(frames)?;
///         if space.is_empty() {
///             return Ok(true); // decoder.prelude() has the lengths
///         }
///         match stream.read(space)? {
///             0 => return decoder.end().map(|()| false).map_err(Into::into),
///             count => decoder.advance(count)?,
///         }
///     }
/// }
/// # let mut storage = [0; 16];
/// # let mut frames = Arena::new(&mut storage);
/// # let mut decoder = FrameDecoder::new(Prefix::None, [0; 256], Limits::HOST);
/// # let mut stream = &b"\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x80"[..];
/// # assert!(read_message(&mut stream, &mut decoder, &mut frames).unwrap());
/// # assert_eq!(frames.filled(), b"\x80");
/// # decoder.reset();
/// # assert!(!read_message(&mut stream, &mut decoder, &mut frames).unwrap());
/// ```
///
/// # Cancel safety
///
/// Only [`advance`](Self::advance) changes the state of the decoder. A read
/// that is dropped before it completes loses nothing: call
/// [`space`](Self::space) again with the same buffers. Keep the decoder with
/// the stream, not in the future that reads from it.
///
/// # Memory
///
/// The caller's [`FrameBuffers`] are not used before every length has been
/// checked against the [`Limits`]. The decoder takes 176 bytes (168 on a
/// Cortex-M) plus the caller's `P`.
#[derive(Clone, Debug)]
pub struct FrameDecoder<P> {
    prefix: Prefix,
    limits: Limits,
    head: [u8; 16],
    storage: P,
    state: State,
    /// The state of the checks of the prelude, once its head has been received.
    checker: Checker,
    /// The length of the part being received, and the number of its bytes
    /// received.
    len: usize,
    filled: usize,
}

/// The part of a message that is being received.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The prefix and the frame count.
    Head,
    /// The lengths.
    Lengths,
    /// Frame `index`, which is not empty.
    Frames {
        index: usize,
        /// Length of all frames before this one, in bytes.
        before: u64,
    },
    /// No part: the message is complete.
    Complete,
    Failed(FrameError),
}

/// The next input that a [`FrameDecoder`] expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// Bytes of the prelude.
    Prelude {
        /// The number of bytes until the next step; more may follow.
        remaining: usize,
    },
    /// Bytes of a frame.
    Frame {
        /// Index of the frame.
        index: usize,
        /// Its length, in bytes.
        len: usize,
        /// The number of bytes that have arrived.
        filled: usize,
    },
    /// No input: the message is complete.
    Nothing,
}

impl<P: PreludeStorage> FrameDecoder<P> {
    /// Creates a decoder for a stream with this prefix. `storage` holds the lengths.
    pub const fn new(prefix: Prefix, storage: P, limits: Limits) -> Self {
        Self {
            prefix,
            limits,
            head: [0; 16],
            storage,
            state: State::Head,
            checker: Checker::unused(prefix),
            len: prefix.head_len(),
            filled: 0,
        }
    }

    /// Returns the next expected input, for callers that read into their own
    /// memory instead of [`space`](Self::space), for example uninitialised or
    /// registered buffers: read at most that many bytes, then call
    /// [`advance`](Self::advance).
    ///
    /// # Errors
    ///
    /// The error that an earlier call returned, if any.
    pub const fn wanted(&self) -> Result<Wanted, FrameError> {
        let (len, filled) = (self.len, self.filled);
        match self.state {
            State::Head | State::Lengths => Ok(Wanted::Prelude {
                remaining: len.wrapping_sub(filled),
            }),
            State::Frames { index, .. } => Ok(Wanted::Frame { index, len, filled }),
            State::Complete => Ok(Wanted::Nothing),
            State::Failed(error) => Err(error),
        }
    }

    /// Returns the buffer for the next bytes of the stream. It is empty if, and
    /// only if, the message is complete.
    ///
    /// # Errors
    ///
    /// * [`FrameErrorKind::PreludeStorage`] if the storage is too small for the
    ///   lengths, [`FrameErrorKind::NoBuffer`] if `frames` returns no buffer;
    /// * the error that [`advance`](Self::advance) returned before, if any.
    pub fn space<'s, B>(&'s mut self, frames: &'s mut B) -> Result<&'s mut [u8], FrameError>
    where
        B: FrameBuffers + ?Sized,
    {
        if let Some(frames_len) = self.unstarted_frames_len() {
            frames.begin(frames_len);
        }
        let (len, filled) = (self.len, self.filled);
        match self.state {
            State::Head => Ok(self.head.get_mut(filled..len).or_default_if_bug()),
            State::Lengths => {
                let available = self.storage.capacity();
                match self.storage.space(filled, len) {
                    Some(space) if !space.is_empty() => Ok(space),
                    _ => {
                        let needed = len;
                        let short = BufferTooSmall { needed, available };
                        Err(FrameErrorKind::PreludeStorage(short).at(self.prefix.count_at()))
                    }
                }
            }
            State::Frames { index, .. } => match frames.buffer(index, len, filled) {
                Some(space) if !space.is_empty() => {
                    let end = space.len().min(len.wrapping_sub(filled));
                    Ok(space.get_mut(..end).or_default_if_bug())
                }
                _ => Err(FrameError {
                    at: self.position(),
                    kind: FrameErrorKind::NoBuffer {
                        index,
                        len,
                        frames_len: self.checker.frames_len,
                    },
                }),
            },
            State::Complete => Ok(&mut []),
            State::Failed(error) => Err(error),
        }
    }

    /// Records that `count` bytes were read into [`space`](Self::space).
    ///
    /// # Errors
    ///
    /// * The fault in the prelude, as soon as enough of it has arrived to
    ///   detect it;
    /// * [`FrameErrorKind::Overrun`] if `count` is more than the length of the
    ///   buffer.
    ///
    /// Both are final: every later call returns the same error.
    pub fn advance(&mut self, count: usize) -> Result<(), FrameError> {
        let result = self.step(count);
        if let Err(error) = result {
            self.state = State::Failed(error);
        }
        result
    }

    /// Copies the bytes of the current message from the start of `input`,
    /// advances `input` past them, and returns whether the message is complete.
    /// The remaining input then belongs to the next message: read the frames
    /// and push the rest of the same input. If the message is not complete, all
    /// input was consumed.
    ///
    /// After a complete message the first byte of input begins the next one;
    /// without input this returns false.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space) and [`advance`](Self::advance). After
    /// [`FrameErrorKind::PreludeStorage`] or [`FrameErrorKind::NoBuffer`],
    /// `input` begins with the first byte that was not stored: push it again
    /// after supplying a larger buffer.
    pub fn push<B>(&mut self, input: &mut &[u8], frames: &mut B) -> Result<bool, FrameError>
    where
        B: FrameBuffers + ?Sized,
    {
        self.wanted()?;
        if self.is_complete() {
            if input.is_empty() {
                return Ok(false);
            }
            self.reset();
        }
        if let Some(rest) = self.take_prelude(input) {
            *input = rest;
        }
        while !input.is_empty() && self.step_from(input, frames)? {}
        if let Some(frames_len) = self.unstarted_frames_len() {
            frames.begin(frames_len);
        }
        Ok(self.is_complete())
    }

    /// Copies the bytes of the prelude from the start of `input`, and advances `input`
    /// past them. For callers that read the frames into their own memory.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push), except [`FrameErrorKind::NoBuffer`].
    pub fn push_prelude(&mut self, input: &mut &[u8]) -> Result<(), FrameError> {
        if let Some(rest) = self.take_prelude(input) {
            *input = rest;
        }
        while !input.is_empty() && matches!(self.wanted()?, Wanted::Prelude { .. }) {
            self.step_from(input, &mut NoBuffers)?;
        }
        Ok(())
    }

    /// Copies input to the space for it. Returns false if there is none, because the
    /// message is complete.
    fn step_from<B>(&mut self, input: &mut &[u8], frames: &mut B) -> Result<bool, FrameError>
    where
        B: FrameBuffers + ?Sized,
    {
        let space = self.space(frames)?;
        let len = space.len().min(input.len());
        let (Some(target), Some((now, later))) =
            (space.get_mut(..len), input.split_at_checked(len))
        else {
            return Ok(false);
        };
        if len == 0 {
            return Ok(false);
        }
        copy(target, now);
        *input = later;
        self.advance(len)?;
        Ok(true)
    }

    /// The length of all frames if the prelude has arrived, but no byte of a frame, so
    /// that the buffers still hold an earlier message; `None` otherwise.
    pub const fn unstarted_frames_len(&self) -> Option<u64> {
        match &self.state {
            State::Frames { before: 0, .. } if self.filled == 0 => Some(self.checker.frames_len),
            State::Complete if self.checker.frames_len == 0 => Some(0),
            _ => None,
        }
    }

    /// Fast path for a complete, valid prelude: consumes it and returns the
    /// input after it. `None` for anything else; the byte-by-byte path then
    /// reports the error.
    fn take_prelude<'i>(&mut self, input: &'i [u8]) -> Option<&'i [u8]> {
        if !self.is_idle() {
            return None;
        }
        let (checker, bytes, rest) = Checker::whole(self.prefix, input, &self.limits).ok()?;
        let mut at = 0_usize;
        while let Some(missing) = bytes.get(at..).filter(|missing| !missing.is_empty()) {
            let space = self.storage.space(at, bytes.len())?;
            let len = space.len().min(missing.len());
            if len == 0 {
                return None;
            }
            copy(space.get_mut(..len)?, missing.get(..len)?);
            at = at.wrapping_add(len);
        }
        self.checker = checker;
        self.begin_frame(0, 0);
        Some(rest)
    }

    /// The lengths of the frames, once all of them have arrived and are valid.
    pub fn prelude(&self) -> Option<Prelude<'_>> {
        match self.state {
            State::Frames { .. } | State::Complete => {
                let len = self.checker.lengths_len().ok()?;
                self.storage.bytes().get(..len).map(Prelude::new)
            }
            _ => None,
        }
    }

    /// Whether the message is complete.
    pub const fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete)
    }

    /// Whether no byte of the next message has arrived. A stream may only end
    /// here (PROTOCOL FRAME-12).
    pub const fn is_idle(&self) -> bool {
        matches!(self.state, State::Head) && self.filled == 0
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    ///
    /// [`FrameErrorKind::Truncated`] within a message, or the error that
    /// [`advance`](Self::advance) returned before.
    pub fn end(&self) -> Result<(), FrameError> {
        let needed = match self.state {
            State::Complete => return Ok(()),
            State::Failed(error) => return Err(error),
            State::Head if self.filled == 0 => return Ok(()),
            State::Head => self.len as u64,
            State::Lengths | State::Frames { .. } => self.checker.message_len(),
        };
        Err(FrameErrorKind::Truncated { needed }.at(self.position()))
    }

    /// Offset in the message of the next byte.
    fn position(&self) -> u64 {
        let start = match &self.state {
            State::Head | State::Failed(_) => 0,
            State::Lengths => self.prefix.head_len() as u64,
            State::Frames { before, .. } => self
                .checker
                .message_len()
                .saturating_sub(self.checker.frames_len)
                .saturating_add(*before),
            State::Complete => self.checker.message_len(),
        };
        start.saturating_add(self.filled as u64)
    }

    /// Starts the next message with other limits; the storage is kept.
    ///
    /// Use it to change from [`Limits::HANDSHAKE`] to the limits of an established
    /// comm. The received part of an unfinished message is discarded.
    pub fn reset_with(&mut self, limits: Limits) {
        self.limits = limits;
        self.reset();
    }

    /// Starts the next message, as [`push`](Self::push) does by itself after a
    /// complete one. The bytes of an unfinished message are discarded.
    pub fn reset(&mut self) {
        self.begin(State::Head, self.prefix.head_len());
    }

    /// Starts the next message with another prefix and other limits, for
    /// example after a handshake. The bytes of an unfinished message are
    /// discarded.
    pub fn restart(&mut self, prefix: Prefix, limits: Limits) {
        self.prefix = prefix;
        self.reset_with(limits);
    }

    /// Starts the next message with its first 8 bytes, which have shown its prefix. The
    /// caller has to call `advance(0)`.
    pub(crate) fn restart_with(&mut self, prefix: Prefix, first: [u8; 8]) {
        self.prefix = prefix;
        self.reset();
        if let Some((start, _)) = self.head.split_first_chunk_mut() {
            *start = first;
            self.filled = first.len();
        }
    }

    /// The limits for messages.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The prefix of the messages.
    pub const fn prefix(&self) -> Prefix {
        self.prefix
    }

    fn begin(&mut self, state: State, len: usize) {
        self.state = state;
        self.len = len;
        self.filled = 0;
    }

    /// Records `count` more bytes.
    fn step(&mut self, count: usize) -> Result<(), FrameError> {
        if let State::Failed(error) = self.state {
            return Err(error);
        }
        let space = self.len.wrapping_sub(self.filled);
        if count > space {
            let advanced = count;
            return Err(FrameErrorKind::Overrun { advanced, space }.at(self.position()));
        }
        let filled_before = self.filled;
        self.filled = filled_before.wrapping_add(count);
        if matches!(self.state, State::Lengths) {
            // Each length is checked when its last byte has arrived.
            let whole = self.storage.bytes().get(filled_before & !7..self.filled);
            let (lengths, _) = whole.or_default_if_bug().as_chunks();
            self.checker.lengths(lengths, &self.limits)?;
        }
        if self.filled < self.len {
            return Ok(());
        }
        match self.state {
            State::Head => {
                let head = self.head.get(..self.len).or_default_if_bug();
                self.checker = Checker::new(self.prefix, head, &self.limits)?;
                self.begin(State::Lengths, self.checker.lengths_len()?);
            }
            State::Lengths => {
                self.checker.finish()?;
                self.begin_frame(0, 0);
            }
            State::Frames { index, before } => {
                let before = before.saturating_add(self.len as u64);
                self.begin_frame(index.saturating_add(1), before);
            }
            State::Complete | State::Failed(_) => {}
        }
        Ok(())
    }

    /// Begins frame `index`, or the next frame that is not empty.
    fn begin_frame(&mut self, index: usize, before: u64) {
        let (lengths, _) = self.storage.bytes().as_chunks::<8>();
        let count = usize::try_from(self.checker.frame_count).unwrap_or(usize::MAX);
        // A frame begins only when all lengths are stored.
        let lengths = lengths.get(..count).or_default_if_bug();
        let mut ahead = lengths.iter().enumerate().skip(index);
        // `Checker::lengths` has checked that each length fits in a usize.
        let next = ahead.find_map(|(index, length)| {
            let len = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            (len != 0).then_some((index, len))
        });
        match next {
            Some((index, len)) => self.begin(State::Frames { index, before }, len),
            None => self.begin(State::Complete, 0),
        }
    }
}

/// Buffers that are not asked for, while a prelude arrives.
struct NoBuffers;

impl FrameBuffers for NoBuffers {
    fn buffer(&mut self, _: usize, _: usize, _: usize) -> Option<&mut [u8]> {
        None
    }
}
