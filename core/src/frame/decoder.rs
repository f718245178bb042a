//! The incremental decoder.

use super::{Checker, FrameBuffers, FrameError, FrameErrorKind, Prefix, Prelude, PreludeStorage};
use crate::measure::copy;
use crate::{BufferTooSmall, Limits};

/// Takes messages from a stream of bytes, one after the other.
///
/// The loop is the same over any stream, blocking, async or polled: ask where
/// the next bytes go ([`space`](Self::space)), read some there, say how many
/// ([`advance`](Self::advance)), until the space is empty:
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
///             return Ok(true); // decoder.prelude() tells the lengths
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
/// The decoder changes in [`advance`](Self::advance) alone. A read that is
/// dropped before it reports loses nothing: call [`space`](Self::space) again
/// with the same buffers. Keep the decoder with the stream, not in the future
/// that reads from it.
///
/// # Memory
///
/// Nothing is asked of the caller's [`FrameBuffers`] before every length has
/// been compared with the [`Limits`]. The decoder itself is some 150 bytes and
/// the caller's `P`.
#[derive(Clone, Debug)]
pub struct FrameDecoder<P> {
    prefix: Prefix,
    limits: Limits,
    head: [u8; 16],
    storage: P,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The prefix and the frame count.
    Head {
        filled: usize,
    },
    /// The table of lengths, `len` bytes of it.
    Lengths {
        checker: Checker,
        len: usize,
        filled: usize,
    },
    /// Frame `index` has `len` bytes, which is not 0.
    Frames {
        checker: Checker,
        index: usize,
        len: usize,
        filled: usize,
        /// Bytes of the frames before this one.
        before: u64,
    },
    Complete {
        checker: Checker,
    },
    Failed(FrameError),
}

/// What a [`FrameDecoder`] takes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// Bytes of the prelude.
    Prelude {
        /// How many are wanted before the next step; more may follow.
        remaining: usize,
    },
    /// Bytes of a frame.
    Frame {
        /// Which frame.
        index: usize,
        /// Its length, in bytes.
        len: usize,
        /// How many of them have arrived.
        filled: usize,
    },
    /// Nothing: the message is complete.
    Nothing,
}

impl<P: PreludeStorage> FrameDecoder<P> {
    /// Decodes a stream with this prefix, with `storage` for the table of
    /// lengths.
    pub const fn new(prefix: Prefix, storage: P, limits: Limits) -> Self {
        Self {
            prefix,
            limits,
            head: [0; 16],
            storage,
            state: State::Head { filled: 0 },
        }
    }

    /// What comes next. For callers that read into memory of their own, which
    /// [`space`](Self::space) cannot name (uninitialised, or in a kernel):
    /// read up to the bytes wanted, then [`advance`](Self::advance).
    ///
    /// # Errors
    ///
    /// The error that ended the stream.
    pub const fn wanted(&self) -> Result<Wanted, FrameError> {
        match self.state {
            State::Head { filled } => Ok(Wanted::Prelude {
                remaining: self.prefix.head_len().wrapping_sub(filled),
            }),
            State::Lengths { len, filled, .. } => Ok(Wanted::Prelude {
                remaining: len.wrapping_sub(filled),
            }),
            State::Frames {
                index, len, filled, ..
            } => Ok(Wanted::Frame { index, len, filled }),
            State::Complete { .. } => Ok(Wanted::Nothing),
            State::Failed(error) => Err(error),
        }
    }

    /// Where the next bytes of the stream go. Empty if, and only if, the
    /// message is complete.
    ///
    /// # Errors
    ///
    /// * [`FrameErrorKind::PreludeStorage`] if the storage does not hold the
    ///   table of lengths, [`FrameErrorKind::NoBuffer`] if `frames` has no room;
    /// * the error that ended the stream, if there was one.
    pub fn space<'s, B>(&'s mut self, frames: &'s mut B) -> Result<&'s mut [u8], FrameError>
    where
        B: FrameBuffers + ?Sized,
    {
        if let Some(frames_len) = self.about_to_begin() {
            frames.begin(frames_len);
        }
        match self.state {
            State::Head { filled } => Ok(self
                .head
                .get_mut(filled..self.prefix.head_len())
                .unwrap_or_default()),
            State::Lengths { len, filled, .. } => {
                let too_small = self.storage_too_small(len, self.storage.capacity());
                match self.storage.space(filled, len) {
                    Some(space) if !space.is_empty() => Ok(space),
                    _ => Err(too_small),
                }
            }
            State::Frames {
                checker,
                index,
                len,
                filled,
                before,
            } => {
                let missing = len.wrapping_sub(filled);
                match frames.buffer(index, len, filled) {
                    Some(space) if !space.is_empty() => {
                        let end = space.len().min(missing);
                        Ok(space.get_mut(..end).unwrap_or_default())
                    }
                    _ => Err(FrameError {
                        at: frame_at(&checker, before).saturating_add(filled as u64),
                        kind: FrameErrorKind::NoBuffer {
                            index,
                            len,
                            frames_len: checker.frames_len,
                        },
                    }),
                }
            }
            State::Complete { .. } => Ok(&mut []),
            State::Failed(error) => Err(error),
        }
    }

    /// Takes note that `count` bytes were read into the space.
    ///
    /// # Errors
    ///
    /// What is wrong with the prelude, as soon as it has arrived far enough to
    /// tell; [`FrameErrorKind::Overrun`] if there was no space for so many
    /// bytes. An error ends the stream: every later call gives it again.
    pub fn advance(&mut self, count: usize) -> Result<(), FrameError> {
        match self.step(count) {
            Ok(state) => {
                self.state = state;
                Ok(())
            }
            Err(error) => {
                self.state = State::Failed(error);
                Err(error)
            }
        }
    }

    /// Copies what the message takes from the front of `input`, moves `input` on
    /// to what is left, and returns whether the message is complete. What is left
    /// then belongs to the next message: read the frames, [`reset`](Self::reset)
    /// the decoder and push the rest of the same input. If the message is not
    /// complete, nothing is left.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space) and [`advance`](Self::advance). After an error
    /// for want of room `input` begins with the byte that found none: push it
    /// again once there is some.
    pub fn push<B>(&mut self, input: &mut &[u8], frames: &mut B) -> Result<bool, FrameError>
    where
        B: FrameBuffers + ?Sized,
    {
        self.wanted()?;
        if let Some(rest) = self.take_prelude(input) {
            *input = rest;
        }
        while !input.is_empty() {
            let space = self.space(frames)?;
            let len = space.len().min(input.len());
            let (Some(place), Some((now, later))) =
                (space.get_mut(..len), input.split_at_checked(len))
            else {
                break;
            };
            if len == 0 {
                break;
            }
            copy(place, now);
            *input = later;
            self.advance(len)?;
        }
        if let Some(frames_len) = self.about_to_begin() {
            frames.begin(frames_len);
        }
        Ok(self.is_complete())
    }

    /// The length of all frames, where none of their bytes has arrived: what the
    /// store holds then is of an earlier message.
    const fn about_to_begin(&self) -> Option<u64> {
        match &self.state {
            State::Frames {
                checker,
                filled: 0,
                before: 0,
                ..
            } => Some(checker.frames_len),
            State::Complete { checker } if checker.frames_len == 0 => Some(0),
            _ => None,
        }
    }

    /// Replaces the storage for the table of lengths, where
    /// [`FrameErrorKind::PreludeStorage`] has said that it is too small. What has
    /// arrived of the table is kept.
    ///
    /// # Errors
    ///
    /// [`FrameErrorKind::PreludeStorage`] if this storage is too small too.
    /// Nothing has changed then.
    pub fn replace_storage(&mut self, mut storage: P) -> Result<(), FrameError> {
        let (len, arrived) = match &self.state {
            State::Lengths { len, filled, .. } => (*len, *filled),
            State::Frames { checker, .. } | State::Complete { checker } => {
                let len = checker.lengths_len()?;
                (len, len)
            }
            State::Head { .. } | State::Failed(_) => (0, 0),
        };
        let arrived = self.storage.bytes().get(..arrived).unwrap_or_default();
        let mut at = 0_usize;
        loop {
            let rest = arrived.get(at..).unwrap_or_default();
            let room = match storage.space(at, len) {
                Some(space) if !space.is_empty() => space,
                _ if at == len => break,
                _ => return Err(self.storage_too_small(len, storage.capacity())),
            };
            if rest.is_empty() {
                break;
            }
            copy(room, rest);
            at = at.saturating_add(room.len().min(rest.len()));
        }
        self.storage = storage;
        Ok(())
    }

    const fn storage_too_small(&self, needed: usize, available: usize) -> FrameError {
        FrameError {
            at: self.prefix.count_at(),
            kind: FrameErrorKind::PreludeStorage(BufferTooSmall { needed, available }),
        }
    }

    /// Takes a prelude that is there as a whole, and returns what is behind it.
    /// `None` if it is not, or anything is amiss, of which the slow way tells.
    fn take_prelude<'i>(&mut self, input: &'i [u8]) -> Option<&'i [u8]> {
        if !self.is_idle() {
            return None;
        }
        let (head, behind) = input.split_at_checked(self.prefix.head_len())?;
        let mut checker = Checker::new(self.prefix, head, &self.limits).ok()?;
        let (bytes, rest) = behind.split_at_checked(checker.lengths_len().ok()?)?;
        let (lengths, _) = bytes.as_chunks();
        checker.lengths(lengths, &self.limits).ok()?;
        checker.finish().ok()?;
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
        self.state = self.frame(checker, 0, 0);
        Some(rest)
    }

    /// The lengths of the frames, once all of them have arrived and passed.
    pub fn prelude(&self) -> Option<Prelude<'_>> {
        match self.state {
            State::Frames { checker, .. } | State::Complete { checker } => {
                let len = checker.lengths_len().ok()?;
                self.storage.bytes().get(..len).map(Prelude::new)
            }
            _ => None,
        }
    }

    /// The leading number of the stream, once it has arrived.
    pub const fn prefix_value(&self) -> Option<u64> {
        match self.state {
            State::Lengths { checker, .. }
            | State::Frames { checker, .. }
            | State::Complete { checker } => checker.hint,
            _ => None,
        }
    }

    /// Whether the message is complete.
    pub const fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete { .. })
    }

    /// Whether no byte of the next message has arrived: the place where a
    /// stream may end (PROTOCOL FRAME-12).
    pub const fn is_idle(&self) -> bool {
        matches!(self.state, State::Head { filled: 0 })
    }

    /// Says that the stream has ended.
    ///
    /// # Errors
    ///
    /// [`FrameErrorKind::Truncated`] if it ended within a message, or the
    /// error that ended it before.
    pub fn end(&self) -> Result<(), FrameError> {
        let (at, needed) = match self.state {
            State::Head { filled: 0 } | State::Complete { .. } => return Ok(()),
            State::Failed(error) => return Err(error),
            State::Head { filled } => (filled as u64, self.prefix.head_len() as u64),
            State::Lengths {
                checker, filled, ..
            } => {
                let head = self.prefix.head_len() as u64;
                (head.saturating_add(filled as u64), checker.message_len())
            }
            State::Frames {
                checker,
                filled,
                before,
                ..
            } => {
                let at = frame_at(&checker, before).saturating_add(filled as u64);
                (at, checker.message_len())
            }
        };
        Err(FrameError {
            at,
            kind: FrameErrorKind::Truncated { needed },
        })
    }

    /// Starts the next message with the limits given, and keeps the storage.
    ///
    /// Use it to go from [`Limits::HANDSHAKE`] to the limits of an established
    /// comm. What had arrived of an unfinished message is forgotten.
    pub fn reset_with(&mut self, limits: Limits) {
        self.limits = limits;
        self.reset();
    }

    /// Starts the next message. What had arrived of an unfinished message is
    /// forgotten.
    pub fn reset(&mut self) {
        self.state = State::Head { filled: 0 };
    }

    /// Starts the next message with another prefix and other limits, as after a
    /// handshake that has settled both. Of an unfinished message nothing is kept.
    pub fn restart(&mut self, prefix: Prefix, limits: Limits) {
        self.prefix = prefix;
        self.reset_with(limits);
    }

    /// The state after `count` more bytes.
    fn step(&self, count: usize) -> Result<State, FrameError> {
        match self.state {
            State::Head { filled } => {
                let head_len = self.prefix.head_len();
                let filled = advanced(filled, count, head_len, filled as u64)?;
                if filled < head_len {
                    return Ok(State::Head { filled });
                }
                let head = self.head.get(..head_len).unwrap_or_default();
                let checker = Checker::new(self.prefix, head, &self.limits)?;
                let len = checker.lengths_len()?;
                Ok(State::Lengths {
                    checker,
                    len,
                    filled: 0,
                })
            }
            State::Lengths {
                mut checker,
                len,
                filled,
            } => {
                let at = (self.prefix.head_len() as u64).saturating_add(filled as u64);
                let filled_before = filled;
                let filled = advanced(filled, count, len, at)?;
                // Each length is checked when its last byte has arrived.
                let whole = (filled_before & !7)..filled;
                let (lengths, _) = self
                    .storage
                    .bytes()
                    .get(whole)
                    .unwrap_or_default()
                    .as_chunks();
                checker.lengths(lengths, &self.limits)?;
                if filled < len {
                    return Ok(State::Lengths {
                        checker,
                        len,
                        filled,
                    });
                }
                checker.finish()?;
                Ok(self.frame(checker, 0, 0))
            }
            State::Frames {
                checker,
                index,
                len,
                filled,
                before,
            } => {
                let at = frame_at(&checker, before).saturating_add(filled as u64);
                let filled = advanced(filled, count, len, at)?;
                if filled < len {
                    return Ok(State::Frames {
                        checker,
                        index,
                        len,
                        filled,
                        before,
                    });
                }
                let before = before.saturating_add(len as u64);
                Ok(self.frame(checker, index.saturating_add(1), before))
            }
            State::Complete { .. } => {
                advanced(0, count, 0, 0)?;
                Ok(self.state)
            }
            State::Failed(error) => Err(error),
        }
    }

    /// The state in which frame `index`, or the next that is not empty, comes
    /// in.
    fn frame(&self, checker: Checker, index: usize, before: u64) -> State {
        let (lengths, _) = self.storage.bytes().as_chunks::<8>();
        let count = usize::try_from(checker.frame_count).unwrap_or(usize::MAX);
        let lengths = lengths.get(..count).unwrap_or_default();
        let mut ahead = lengths.iter().enumerate().skip(index);
        // The lengths have passed the limits, and with them fit a usize.
        let next = ahead.find_map(|(index, length)| {
            let len = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            (len != 0).then_some((index, len))
        });
        match next {
            Some((index, len)) => State::Frames {
                checker,
                index,
                len,
                filled: 0,
                before,
            },
            None => State::Complete { checker },
        }
    }
}

/// Offset of the frame behind `before` bytes of frames.
fn frame_at(checker: &Checker, before: u64) -> u64 {
    checker
        .message_len()
        .saturating_sub(checker.frames_len)
        .saturating_add(before)
}

/// `filled` and `count` more, of `len` in all.
fn advanced(filled: usize, count: usize, len: usize, at: u64) -> Result<usize, FrameError> {
    let space = len.wrapping_sub(filled);
    if count > space {
        return Err(FrameError {
            at,
            kind: FrameErrorKind::Overrun {
                advanced: count,
                space,
            },
        });
    }
    Ok(filled.wrapping_add(count))
}
