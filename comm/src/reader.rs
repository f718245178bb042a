//! The reading half of a comm.

use core::fmt;

use daskwire::Limits;
use daskwire::comm::Receiver;
use daskwire::frame::{FrameBuffers, Prefix, Prelude, Wanted};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::event::{CommEvent, HalfLog};
use crate::frames::{Arriving, FrameStore, Frames};
use crate::{BufferPool, Closed, CommError, ReadHalf};

/// The initial size of the read buffer in bytes: most messages are smaller, and
/// thousands of idle comms may have a buffer each.
const MIN_INPUT_LEN: usize = 2 << 10;

/// The maximum size of the read buffer in bytes, for frequent messages.
const MAX_INPUT_LEN: usize = 64 << 10;

/// The maximum number of frames for which the memory of a prelude is kept for the next
/// message.
const MAX_KEPT_FRAME_COUNT: usize = 512;

/// The reading half of a comm.
///
/// Small messages are read through a buffer, several with one read; large frames are
/// read directly into their own memory.
pub struct CommReader<R = ReadHalf> {
    io: R,
    input: Input,
    pub(crate) receiver: Receiver<Vec<u8>>,
    arriving: Arriving,
    pub(crate) log: HalfLog,
}

impl<R: AsyncRead + Unpin> CommReader<R> {
    /// Creates a reader of messages from `io`, which must be at the beginning of a message.
    ///
    /// There is no handshake; [`Comm::establish`](crate::Comm::establish) does one.
    pub const fn new(io: R, prefix: Prefix, limits: Limits) -> Self {
        Self {
            io,
            input: Input::new(),
            receiver: Receiver::new(prefix, Vec::new(), limits),
            arriving: Arriving::new(),
            log: HalfLog::new(),
        }
    }

    /// The limits for messages.
    pub const fn limits(&self) -> &Limits {
        self.receiver.limits()
    }

    /// Sets the pool for the memory of large frames.
    pub fn set_pool(&mut self, pool: Option<BufferPool>) {
        self.arriving.set_pool(pool);
    }

    /// Reads the next message; `None` if the peer has closed the connection between
    /// two messages.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe. Received bytes are stored in the reader, not in
    /// the future; the next call continues with them.
    ///
    /// # Errors
    ///
    /// * [`CommError::Closed`] if the connection ends within a message;
    /// * [`CommError::Frame`] if the peer breaks the framing or the limits;
    /// * [`CommError::OutOfMemory`], [`CommError::Io`].
    ///
    /// After an error, no more messages can be read.
    pub async fn read_message(&mut self) -> Result<Option<Frames>, CommError> {
        let outcome = match self.receiver.resume() {
            Ok(true) => self.read_next().await,
            Ok(false) => Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.record_failure(outcome)
    }

    /// Reads the handshake of the peer, which [`Handshaking`](daskwire::comm::Handshaking) expects.
    pub(crate) async fn read_handshake(&mut self) -> Result<Frames, CommError> {
        self.check_first_bytes().await?;
        let frames = self.read_next().await?;
        frames.ok_or(Closed::BeforeHandshake.into())
    }

    async fn read_next(&mut self) -> Result<Option<Frames>, CommError> {
        if self.input.is_empty()
            && self.receiver.is_idle()
            && !self.input.fill(&mut self.io).await?
        {
            self.receiver.end()?;
            return Ok(None);
        }
        if let Some(frames) = self.take_whole() {
            return Ok(Some(frames));
        }
        let (io, input, receiver) = (&mut self.io, &mut self.input, &mut self.receiver);
        let has_message = if receiver.is_within_frames() && self.arriving.is_empty() {
            receive(io, input, receiver, &mut &mut NoBuffers).await?
        } else {
            receive(io, input, receiver, &mut self.arriving).await?
        };
        let Some(prelude) = receiver.prelude().filter(|_| has_message) else {
            return Ok(None);
        };
        let frame_count = prelude.frame_count();
        let frames = self.arriving.take(prelude);
        if frame_count > MAX_KEPT_FRAME_COUNT {
            let (prefix, limits) = (receiver.prefix(), *receiver.limits());
            *receiver = Receiver::new(prefix, Vec::new(), limits);
        }
        Ok(Some(frames))
    }

    /// Takes a message from the read buffer, if it is complete there and has no large frames,
    /// as is usual.
    fn take_whole(&mut self) -> Option<Frames> {
        let framed = self.receiver.whole_message(self.input.bytes())?;
        let frames = Frames::copy(framed.prelude, framed.frames)?;
        let len = usize::try_from(framed.message_len()).ok()?;
        self.input.take(len);
        Some(frames)
    }

    /// Waits for the first 8 bytes of the stream. Fails if they are the beginning of
    /// TLS or HTTP.
    pub(crate) async fn check_first_bytes(&mut self) -> Result<(), CommError> {
        loop {
            let bytes = self.input.bytes();
            if is_tls(bytes) {
                return Err(CommError::PeerSpeaksTls);
            }
            if bytes.starts_with(b"HTTP/") {
                return Err(CommError::PeerSpeaksHttp);
            }
            if bytes.len() >= 8 {
                return Ok(());
            }
            if !self.input.fill(&mut self.io).await? {
                return Err(Closed::BeforeHandshake.into());
            }
        }
    }

    /// Returns the stream. Buffered bytes are lost.
    pub fn into_inner(self) -> R {
        self.io
    }

    /// The underlying stream.
    pub const fn get_ref(&self) -> &R {
        &self.io
    }

    /// The number of bytes allocated for received data.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        let filled = match self.receiver.wanted() {
            Ok(Wanted::Frame { filled, .. }) => filled,
            _ => 0,
        };
        self.input.bytes.capacity() + self.arriving.capacity(filled)
    }
}

impl<R: AsyncRead + Send + Unpin> daskwire::transport::CommReader for CommReader<R> {
    type Error = CommError;

    async fn read_message<B: FrameBuffers + Send>(
        &mut self,
        frames: &mut B,
    ) -> Result<Option<usize>, CommError> {
        match self.receiver.resume() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let (io, input, receiver) = (&mut self.io, &mut self.input, &mut self.receiver);
        let outcome = if self.arriving.is_empty() {
            receive(io, input, receiver, &mut { frames }).await
        } else {
            receive(io, input, receiver, &mut &mut NoBuffers).await
        };
        let has_message = self.record_failure(outcome)?;
        let prelude = self.receiver.prelude().filter(|_| has_message);
        Ok(prelude.map(|prelude| prelude.frame_count()))
    }

    fn prelude(&self) -> Option<Prelude<'_>> {
        let prelude = self.receiver.prelude();
        prelude.filter(|_| self.receiver.is_complete())
    }
}

impl<R: AsyncRead + Unpin> CommReader<R> {
    /// Records the failure of a read.
    fn record_failure<T>(&mut self, outcome: Result<T, CommError>) -> Result<T, CommError> {
        if let Err(error) = &outcome {
            // The receiver knows which errors of its own are final.
            if !matches!(error, CommError::Frame(_)) {
                self.receiver.fail();
            }
            if self.receiver.has_failed() {
                self.log.end(&CommEvent::ReadFailed { error });
            }
        }
        outcome
    }
}

/// Receives a message into `memory`. Returns false if the stream ends before it.
async fn receive<R: AsyncRead + Unpin, M: FrameStore>(
    io: &mut R,
    input: &mut Input,
    receiver: &mut Receiver<Vec<u8>>,
    memory: &mut M,
) -> Result<bool, CommError> {
    loop {
        if !input.is_empty() {
            let mut rest = input.bytes();
            let pushed = memory.push(receiver, &mut rest);
            let count = input.bytes().len() - rest.len();
            input.take(count);
            pushed?;
        }
        let missing = match receiver.wanted()? {
            Wanted::Nothing => return Ok(true),
            Wanted::Frame { len, filled, .. } => len - filled,
            _ => 0,
        };
        if !input.is_empty() {
            continue;
        }
        let has_more = if missing < input.capacity {
            input.fill(io).await?
        } else {
            let space = memory.space(receiver)?;
            let count = space.read(io, missing).await.map_err(CommError::Io)?;
            // No await point after bytes were read, so that a dropped future cannot lose them.
            receiver.received(count)?;
            count != 0
        };
        if !has_more {
            receiver.end()?;
            return Ok(false);
        }
    }
}

impl<R> fmt::Debug for CommReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommReader")
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
    }
}

/// No buffers, for a message that began in buffers which this call does not have.
struct NoBuffers;

impl FrameBuffers for NoBuffers {
    fn buffer(&mut self, _: usize, _: usize, _: usize) -> Option<&mut [u8]> {
        None
    }
}

/// Whether these bytes are the beginning of TLS: a handshake, or an alert of a peer
/// that expected one. As the length of a message, or a number of frames, they would
/// exceed the limits of a handshake.
const fn is_tls(first: &[u8]) -> bool {
    matches!(first, [0x15 | 0x16, 3, 1..=4, ..])
}

/// The read buffer.
struct Input {
    bytes: Vec<u8>,
    /// The number of bytes that have been taken.
    taken: usize,
    /// The size of the next read, in bytes.
    capacity: usize,
    /// The length of the last read in bytes, until `capacity` was adapted to it.
    last: Option<usize>,
}

impl Input {
    const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            taken: 0,
            capacity: MIN_INPUT_LEN,
            last: None,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    fn take(&mut self, count: usize) {
        self.taken += count;
    }

    /// Reads once; `false` at the end of the stream. Cancel safe.
    async fn fill<R: AsyncRead + Unpin>(&mut self, io: &mut R) -> Result<bool, CommError> {
        if self.is_empty() {
            self.bytes.clear();
            self.taken = 0;
            // Grow after a full read, shrink after a short one.
            match self.last.take() {
                Some(last) if last >= self.capacity => {
                    self.capacity = (self.capacity * 2).min(MAX_INPUT_LEN);
                }
                Some(last) if last < self.capacity / 16 => {
                    self.capacity = (self.capacity / 2).max(MIN_INPUT_LEN);
                }
                _ => {}
            }
            if self.bytes.capacity() != self.capacity {
                self.bytes = Vec::with_capacity(self.capacity);
            }
        }
        let count = io.read_buf(&mut self.bytes).await.map_err(CommError::Io)?;
        self.last = Some(count);
        Ok(count != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(lengths: &[u64], frames: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 8 + 8 * lengths.len()];
        daskwire::frame::encode_prelude(Prefix::None, lengths.iter().copied(), &mut out).unwrap();
        out.extend_from_slice(frames);
        out
    }

    #[tokio::test]
    async fn memory_grows_with_the_bytes_that_arrive() {
        for lengths in [
            &[1 << 30][..],
            &[1 << 39, 1 << 39],
            &[10, 1 << 30],
            &[OWN_LESS_1; 1000],
            &[1; 100_000],
        ] {
            let bytes = stream(lengths, &[7; 10]);
            let mut reader = CommReader::new(&bytes[..], Prefix::None, Limits::HOST);
            let error = reader.read_message().await.unwrap_err();
            assert!(error.is_closed(), "{error}");
            let allocated = reader.allocated();
            assert!(allocated <= 600 << 10, "{allocated} of {lengths:?}");
        }
    }

    const OWN_LESS_1: u64 = (64 << 10) - 1;

    #[tokio::test]
    async fn an_http_server_is_recognized() {
        // The second answer is shorter than the first bytes of a handshake.
        for answer in ["HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/"] {
            let mut reader = CommReader::new(answer.as_bytes(), Prefix::U64, Limits::HOST);
            let error = reader.check_first_bytes().await.unwrap_err();
            assert!(matches!(error, CommError::PeerSpeaksHttp), "{error}");
        }
    }

    /// Pages of the pool are used for frames that arrive, not for announced ones.
    #[tokio::test]
    async fn announced_frames_take_no_memory_of_the_pool() {
        let pool = BufferPool::new(1 << 30);
        let bytes = stream(&[8 << 20], &vec![7; 8 << 20]);
        let mut reader = CommReader::new(&bytes[..], Prefix::None, Limits::HOST);
        reader.set_pool(Some(pool.clone()));
        drop(reader.read_message().await.unwrap());
        assert_eq!(pool.kept_len(), 8 << 20);
        let start = &bytes[..16 + (512 << 10)];
        let mut reader = CommReader::new(start, Prefix::None, Limits::HOST);
        reader.set_pool(Some(pool.clone()));
        reader.read_message().await.unwrap_err();
        assert_eq!(pool.kept_len(), 8 << 20);
        assert!(reader.allocated() <= 2 << 20);
    }

    #[tokio::test]
    async fn memory_grows_with_a_large_frame() {
        let bytes = stream(&[1 << 30], &vec![7; 20 << 20]);
        for arrived in (1..20).map(|mebibytes| mebibytes << 20) {
            let arriving = &bytes[..arrived];
            let mut reader = CommReader::new(arriving, Prefix::None, Limits::HOST);
            reader.read_message().await.unwrap_err();
            let allocated = reader.allocated();
            assert!(allocated <= 2 * arrived + (1 << 20), "{allocated}");
        }
    }

    #[tokio::test]
    async fn an_idle_reader_is_small() {
        let small = stream(&[100], &[7; 100]);
        // Many messages at once grow the buffer, single ones shrink it.
        let (mut theirs, ours) = tokio::io::duplex(1 << 20);
        let mut reader = CommReader::new(ours, Prefix::None, Limits::HOST);
        use tokio::io::AsyncWriteExt;
        theirs.write_all(&small.repeat(4000)).await.unwrap();
        for _ in 0..4000 {
            reader.read_message().await.unwrap().unwrap();
        }
        assert!(reader.allocated() >= 16 << 10);
        for _ in 0..10 {
            theirs.write_all(&small).await.unwrap();
            reader.read_message().await.unwrap().unwrap();
        }
        assert!(
            reader.allocated() <= MIN_INPUT_LEN,
            "{}",
            reader.allocated()
        );
    }
}
