//! From the frames of a WebSocket to the stream of bytes that a comm reads.
//!
//! Dask sends the number of frames of a message as a binary WebSocket message, then each frame
//! as one. A stream has the lengths of all frames first, so the bytes of a frame are kept until
//! the lengths of the later ones are known. Each length is passed on as soon as it arrives: what
//! reads the stream then checks it against its own limits before more bytes are received.

use std::collections::VecDeque;
use std::io::Cursor;

use daskwire_comm::Limits;
use tokio::io::ReadBuf;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use crate::error::{WsError, protocol};
use crate::mask;

/// The side of a connection. Clients mask what they send, servers do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// What the peer has sent beside messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A ping, with the payload of its answer.
    Ping(Vec<u8>),
    /// The close message: the peer sends nothing more. With its status, if it has one.
    Close(Option<u16>),
}

/// The received part of a WebSocket, without I/O.
#[derive(Debug)]
pub(crate) struct Parser {
    side: Side,
    /// The limit of [`buffered_len`](Self::buffered_len) after the handshake of Dask.
    max_len: u64,
    /// The limit of a frame of Dask after the handshake, for those whose length is not announced.
    max_frame_len: u64,
    /// Whether the message is the handshake of Dask.
    is_handshake: bool,
    frame: Option<WsFrame>,
    /// Whether more fragments of a WebSocket message follow.
    is_fragmented: bool,
    /// The received length of the WebSocket message.
    len: u64,
    /// Whether the length of the WebSocket message was passed on.
    is_len_known: bool,
    stage: Stage,
    count: [u8; 8],
    /// The number of frames of Dask whose lengths are not known.
    missing: u64,
    control: Vec<u8>,
    /// What is passed on next: bytes of the prelude, from `prelude_at` on.
    prelude: Vec<u8>,
    prelude_at: usize,
    /// Bytes of the frames, from `chunk_at` of the first chunk on. Separate chunks are freed as
    /// they are passed on.
    chunks: VecDeque<Vec<u8>>,
    chunk_at: usize,
    /// The bytes of this message that were kept, which were received.
    buffered_len: u64,
}

/// The part of a message of Dask that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Count,
    Frames,
    /// All has been received, but not passed on.
    Complete,
}

/// The frame of a WebSocket whose payload is being received.
#[derive(Clone, Copy, Debug)]
struct WsFrame {
    control: Option<Control>,
    is_final: bool,
    remaining: u64,
    filled: u64,
    mask: Option<[u8; 4]>,
}

impl Parser {
    pub(crate) const fn new(side: Side, limits: &Limits) -> Self {
        Self {
            side,
            max_len: limits.message_len,
            max_frame_len: limits.frame_len,
            is_handshake: true,
            frame: None,
            is_fragmented: false,
            len: 0,
            is_len_known: false,
            stage: Stage::Count,
            count: [0; 8],
            missing: 0,
            control: Vec::new(),
            prelude: Vec::new(),
            prelude_at: 0,
            chunks: VecDeque::new(),
            chunk_at: 0,
            buffered_len: 0,
        }
    }

    /// Sets the limits for messages and their frames after the handshake.
    pub(crate) const fn set_limits(&mut self, max_len: u64, max_frame_len: u64) {
        self.max_len = max_len;
        self.max_frame_len = max_frame_len;
    }

    /// Takes bytes from the start of `input`, up to an event or the end of a message.
    pub(crate) fn push(&mut self, input: &mut &[u8]) -> Result<Option<Event>, WsError> {
        // What was received with the handshake was checked against other limits.
        self.buffer(0)?;
        if self.stage == Stage::Frames && !self.is_len_known {
            self.check_len(0)?;
        }
        while self.stage != Stage::Complete {
            let Some(frame) = self.frame else {
                let mut cursor = Cursor::new(*input);
                let parsed = FrameHeader::parse(&mut cursor);
                let Some((header, len)) = parsed.map_err(|error| protocol(error.to_string()))?
                else {
                    break;
                };
                *input = &input[cursor.position() as usize..];
                self.begin(&header, len)?;
                if len == 0
                    && let Some(event) = self.finish()?
                {
                    return Ok(Some(event));
                }
                continue;
            };
            let count = usize::try_from(frame.remaining).unwrap_or(usize::MAX);
            let (bytes, rest) = input.split_at(count.min(input.len()));
            if bytes.is_empty() {
                break;
            }
            self.store(frame, bytes)?;
            *input = rest;
            if self.advance(bytes.len())
                && let Some(event) = self.finish()?
            {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Begins a frame of the WebSocket.
    fn begin(&mut self, header: &FrameHeader, len: u64) -> Result<(), WsError> {
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(protocol("a reserved bit is set, without an extension"));
        }
        if header.mask.is_some() != (self.side == Side::Server) {
            return Err(protocol(match self.side {
                Side::Server => "a frame of a client has no mask",
                Side::Client => "a frame of a server has a mask",
            }));
        }
        let control = match header.opcode {
            OpCode::Control(control) if header.is_final && len <= 125 => Some(control),
            OpCode::Control(_) => {
                return Err(protocol(
                    "a control frame is fragmented or longer than 125 bytes",
                ));
            }
            OpCode::Data(Data::Continue) if self.is_fragmented => None,
            OpCode::Data(Data::Continue) => {
                return Err(protocol("a message begins with its second fragment"));
            }
            OpCode::Data(_) if self.is_fragmented => {
                return Err(protocol("a message begins within another one"));
            }
            OpCode::Data(Data::Binary) => {
                (self.len, self.is_len_known) = (0, false);
                None
            }
            OpCode::Data(Data::Text) => return Err(WsError::Text),
            OpCode::Data(Data::Reserved(_)) => return Err(protocol("an unknown kind of message")),
        };
        if control.is_some() {
            self.control.clear();
        } else if self.stage == Stage::Count {
            let len = self.len.saturating_add(len);
            if len > 8 {
                return Err(WsError::CountLen { len });
            }
        } else if header.is_final && !self.is_fragmented {
            self.is_len_known = true;
            self.pass_length(len);
        } else {
            // What reads the stream learns the length only after the last fragment.
            self.check_len(len)?;
        }
        self.frame = Some(WsFrame {
            control,
            is_final: header.is_final,
            remaining: len,
            filled: 0,
            mask: header.mask,
        });
        Ok(())
    }

    /// Checks the length of a frame of Dask that is sent in fragments, with `more` bytes.
    const fn check_len(&self, more: u64) -> Result<(), WsError> {
        let limit = match self.is_handshake {
            true => Limits::HANDSHAKE.frame_len,
            false => self.max_frame_len,
        };
        if self.len.saturating_add(more) > limit {
            return Err(WsError::MessageTooLong { limit });
        }
        Ok(())
    }

    /// Stores bytes of the payload of this frame.
    fn store(&mut self, frame: WsFrame, bytes: &[u8]) -> Result<(), WsError> {
        let unmask = |stored: &mut [u8]| {
            if let Some(mask) = frame.mask {
                mask::apply(stored, mask, frame.filled);
            }
        };
        if frame.control.is_some() {
            let at = self.control.len();
            self.control.extend_from_slice(bytes);
            unmask(&mut self.control[at..]);
        } else if self.stage == Stage::Count {
            let stored = &mut self.count[self.len as usize..][..bytes.len()];
            stored.copy_from_slice(bytes);
            unmask(stored);
        } else {
            self.buffer(bytes.len())?;
            let mut position = frame.filled;
            let mut bytes = bytes;
            while !bytes.is_empty() {
                let next_len = self.next_chunk_len();
                let chunk = match self.chunks.back_mut() {
                    Some(last) if last.len() < last.capacity() => last,
                    _ => {
                        self.chunks.push_back(Vec::with_capacity(next_len));
                        continue;
                    }
                };
                let at = chunk.len();
                let (now, later) = bytes.split_at(bytes.len().min(chunk.capacity() - at));
                chunk.extend_from_slice(now);
                if let Some(mask) = frame.mask {
                    mask::apply(&mut chunk[at..], mask, position);
                }
                position += now.len() as u64;
                bytes = later;
            }
        }
        Ok(())
    }

    /// Records bytes that are kept.
    const fn buffer(&mut self, count: usize) -> Result<(), WsError> {
        let limit = match self.is_handshake {
            true => Limits::HANDSHAKE.message_len,
            false => self.max_len,
        };
        self.buffered_len = self.buffered_len.saturating_add(count as u64);
        // What is passed on at once is not kept, and its length is known to what reads it.
        if self.buffered_len > limit && !self.is_passed_on() {
            return Err(WsError::MessageTooLong { limit });
        }
        Ok(())
    }

    /// The size of a new chunk: memory grows with the bytes that have arrived.
    fn next_chunk_len(&self) -> usize {
        let len = usize::try_from(self.buffered_len).unwrap_or(usize::MAX);
        len.clamp(MIN_CHUNK_LEN, MAX_CHUNK_LEN)
    }

    /// Records bytes of the payload, and returns whether it is complete.
    fn advance(&mut self, count: usize) -> bool {
        let Some(frame) = &mut self.frame else {
            return false;
        };
        frame.remaining -= count as u64;
        frame.filled += count as u64;
        if frame.control.is_none() {
            self.len += count as u64;
        }
        frame.remaining == 0
    }

    /// Ends a frame of the WebSocket.
    fn finish(&mut self) -> Result<Option<Event>, WsError> {
        let Some(frame) = self.frame.take() else {
            return Ok(None);
        };
        match frame.control {
            Some(Control::Ping) => return Ok(Some(Event::Ping(self.control.clone()))),
            Some(Control::Close) => return closed(&self.control).map(Some),
            Some(_) => return Ok(None),
            None => {}
        }
        self.is_fragmented = !frame.is_final;
        if self.is_fragmented {
            return Ok(None);
        }
        match self.stage {
            Stage::Count if self.len != 8 => return Err(WsError::CountLen { len: self.len }),
            Stage::Count => {
                let count = u64::from_le_bytes(self.count);
                // The smallest valid read hint, since the length of the message is not known.
                let hint = count.saturating_mul(8).saturating_add(8);
                self.prelude.extend(hint.to_le_bytes());
                self.prelude.extend(self.count);
                self.missing = count;
                self.stage = Stage::Frames;
            }
            _ if !self.is_len_known => self.pass_length(self.len),
            _ => {}
        }
        if self.missing == 0 {
            self.stage = Stage::Complete;
        }
        Ok(None)
    }

    /// Passes on the length of a frame of Dask.
    fn pass_length(&mut self, len: u64) {
        self.missing = self.missing.saturating_sub(1);
        self.prelude.extend(len.to_le_bytes());
    }

    /// Whether the lengths of all frames are known, so that their bytes can be passed on.
    const fn is_passed_on(&self) -> bool {
        !matches!(self.stage, Stage::Count) && self.missing == 0
    }

    /// Writes what can be passed on to `into`.
    pub(crate) fn pass_on(&mut self, into: &mut ReadBuf<'_>) {
        let prelude = &self.prelude[self.prelude_at..];
        let count = prelude.len().min(into.remaining());
        into.put_slice(&prelude[..count]);
        self.prelude_at += count;
        if self.prelude_at < self.prelude.len() {
            return;
        }
        self.prelude_at = 0;
        if self.prelude.capacity() > MAX_KEPT_LEN {
            self.prelude = Vec::new();
        }
        self.prelude.clear();
        if !self.is_passed_on() {
            return;
        }
        while let Some(chunk) = self.chunks.front() {
            let bytes = &chunk[self.chunk_at..];
            let count = bytes.len().min(into.remaining());
            into.put_slice(&bytes[..count]);
            self.chunk_at += count;
            if self.chunk_at < chunk.len() {
                return;
            }
            self.chunks.pop_front();
            self.chunk_at = 0;
        }
        if self.stage == Stage::Complete {
            self.stage = Stage::Count;
            self.is_handshake = false;
            self.buffered_len = 0;
        }
    }

    /// The number of bytes of a frame that [`passed_directly`](Self::passed_directly) may get
    /// next, instead of [`push`](Self::push).
    pub(crate) fn direct_len(&self) -> u64 {
        match &self.frame {
            Some(frame)
                if frame.control.is_none()
                    && self.is_passed_on()
                    && self.prelude.is_empty()
                    && self.chunks.is_empty() =>
            {
                frame.remaining
            }
            _ => 0,
        }
    }

    /// Records bytes of a frame that were received where they are passed on, and unmasks them.
    pub(crate) fn passed_directly(&mut self, bytes: &mut [u8]) -> Result<(), WsError> {
        if let Some(WsFrame {
            mask: Some(mask),
            filled,
            ..
        }) = self.frame
        {
            mask::apply(bytes, mask, filled);
        }
        if self.advance(bytes.len()) {
            self.finish()?;
        }
        Ok(())
    }

    /// Whether what reads the stream knows that a message has begun, or none has.
    pub(crate) const fn is_end_visible(&self) -> bool {
        !matches!(self.stage, Stage::Count) || (self.frame.is_none() && !self.is_fragmented)
    }

    /// Whether no message has begun.
    pub(crate) const fn is_between_messages(&self) -> bool {
        matches!(self.stage, Stage::Count) && self.frame.is_none() && !self.is_fragmented
    }

    /// The memory that is in use, in bytes.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn allocated(&self) -> usize {
        let chunks: usize = self.chunks.iter().map(Vec::capacity).sum();
        self.prelude.capacity() + self.control.capacity() + chunks
    }
}

/// Reads a close message.
fn closed(payload: &[u8]) -> Result<Event, WsError> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(Event::Close(None)),
            _ => Err(protocol("a close message of one byte")),
        };
    };
    match u16::from_be_bytes(*code) {
        code @ (1000 | 1001) => Ok(Event::Close(Some(code))),
        code => Err(WsError::ClosedByPeer {
            code,
            reason: String::from_utf8_lossy(reason).into(),
        }),
    }
}

/// The smallest and largest size of a chunk of received bytes.
const MIN_CHUNK_LEN: usize = 1 << 10;
const MAX_CHUNK_LEN: usize = 1 << 20;

/// A prelude beyond this size is freed.
const MAX_KEPT_LEN: usize = 4 << 10;
