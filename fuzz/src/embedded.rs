//! Comms over the streams of embedded-io: short reads and writes, interruptions,
//! dropped futures and any bytes of the peer.

use core::pin::pin;
use core::task::{Context, Poll, Waker};

use daskwire::comm;
use daskwire::frame::{
    Arena, FrameDecoder, FrameErrorKind, Prefix, Prelude, encode_prelude, prelude_len,
};
use daskwire::handshake::Handshake;
use daskwire::message::Layout;
use daskwire_embedded::embedded_io_07::{
    self as blocking, Agreement, Closed, CommError, HandshakeRole, StreamError,
};
use daskwire_embedded::embedded_io_async_07::{MessageReader, MessageWriter, handshake};
use embedded_io_07::{ErrorKind, ErrorType};

use super::LIMITS;

/// The space for lengths, for the frames and of a writer's buffer, in
/// bytes. Some inputs exceed each of them.
const LENGTHS_LEN: usize = 8 * 32;
const FRAMES_LEN: usize = 1 << 10;
const BUFFER_LEN: usize = 96;

type Error = CommError<ErrorKind>;

/// The error of a comm without I/O, as an adapter returns it.
fn comm_error(error: impl Into<comm::CommError>) -> Error {
    CommError::Comm(error.into())
}

/// A message, or the end of the comm.
type Read = Result<Option<Vec<Vec<u8>>>, Error>;

/// Checks that messages read in pieces by futures that are dropped and made again
/// are those that the decoder finds in the whole stream, with the same error at
/// the end; that handshakes do not depend on the pieces; and that a writer sends
/// a message completely, or not at all, or refuses to continue.
///
/// The input: options, the length of a script for the streams, the script, and
/// the bytes of the peer.
pub(crate) fn embedded(input: &[u8]) {
    let [options, script_len, rest @ ..] = input else {
        return;
    };
    let Some((script, stream)) = rest.split_at_checked((*script_len).into()) else {
        return;
    };
    let prefix = match options & 1 {
        0 => Prefix::U64,
        _ => Prefix::None,
    };
    match options >> 1 & 7 {
        0 => shake(
            script,
            stream,
            prefix,
            HandshakeRole::SendFirst(Layout::Modern),
        ),
        1 => shake(
            script,
            stream,
            prefix,
            HandshakeRole::SendFirst(Layout::Classic),
        ),
        2 => shake(script, stream, prefix, HandshakeRole::WaitForPeer),
        _ => read_all(script, stream, prefix),
    }
}

/// The behaviour of a stream at each operation, repeated cyclically.
#[derive(Clone)]
struct Script<'i> {
    steps: core::iter::Cycle<core::iter::Copied<core::slice::Iter<'i, u8>>>,
    /// Whether the last operation was delayed, so that each operation succeeds
    /// eventually.
    was_delayed: bool,
    is_cancelling: bool,
}

impl<'i> Script<'i> {
    /// An empty script transfers as much as there is at once.
    fn new(steps: &'i [u8]) -> Self {
        Self {
            steps: steps.iter().copied().cycle(),
            was_delayed: false,
            is_cancelling: false,
        }
    }

    /// The number of bytes to transfer next; `None` to wait first.
    fn next(&mut self) -> Option<Result<usize, ErrorKind>> {
        let Some(step) = self.steps.next() else {
            return Some(Ok(usize::MAX));
        };
        let is_delayed = step & 0xc0 != 0 && !self.was_delayed;
        self.was_delayed = is_delayed;
        self.is_cancelling = step & 0x20 != 0;
        match step >> 6 {
            1 if is_delayed => Some(Err(ErrorKind::Interrupted)),
            2 | 3 if is_delayed => None,
            _ => Some(Ok(usize::from(step & 0x1f) + 1)),
        }
    }

    /// Runs the operation of a stream on `len` bytes.
    async fn operate(&mut self, len: usize) -> Result<usize, ErrorKind> {
        assert_ne!(len, 0, "a transfer of nothing");
        loop {
            match self.next() {
                Some(outcome) => return outcome.map(|count| count.min(len)),
                None => wait().await,
            }
        }
    }

    /// Like [`operate`](Self::operate), for a blocking stream.
    fn block(&mut self, len: usize) -> Result<usize, ErrorKind> {
        loop {
            if let Some(outcome) = self.next() {
                return outcome.map(|count| count.min(len));
            }
        }
    }
}

/// Returns when it is polled again.
async fn wait() {
    let mut has_waited = false;
    core::future::poll_fn(|_| match core::mem::replace(&mut has_waited, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// Polls a future until it is ready, or once if it is to be cancelled.
fn poll<F: Future>(future: F, is_cancelled: bool) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending if is_cancelled => return None,
            Poll::Pending => {}
        }
    }
}

fn run<F: Future>(future: F) -> F::Output {
    poll(future, false).expect("it is polled to the end")
}

struct Source<'i> {
    bytes: &'i [u8],
    script: Script<'i>,
}

impl Source<'_> {
    fn take(&mut self, space: &mut [u8], count: usize) -> usize {
        let (taken, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        space[..taken.len()].copy_from_slice(taken);
        self.bytes = rest;
        taken.len()
    }
}

impl ErrorType for Source<'_> {
    type Error = ErrorKind;
}

impl embedded_io_async_07::Read for Source<'_> {
    async fn read(&mut self, space: &mut [u8]) -> Result<usize, ErrorKind> {
        let count = self.script.operate(space.len()).await?;
        Ok(self.take(space, count))
    }
}

impl embedded_io_07::Read for Source<'_> {
    fn read(&mut self, space: &mut [u8]) -> Result<usize, ErrorKind> {
        let count = self.script.block(space.len())?;
        Ok(self.take(space, count))
    }
}

struct Sink<'i> {
    bytes: Vec<u8>,
    script: Script<'i>,
}

impl ErrorType for Sink<'_> {
    type Error = ErrorKind;
}

impl embedded_io_async_07::Write for Sink<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let count = self.script.operate(bytes.len()).await?;
        self.bytes.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        self.script.operate(1).await.map(|_| ())
    }
}

impl embedded_io_07::Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let count = self.script.block(bytes.len())?;
        self.bytes.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        self.script.block(1).map(|_| ())
    }
}

/// Reads all messages in pieces and compares them with those of the decoder.
fn read_all(script: &[u8], stream: &[u8], prefix: Prefix) {
    let source = || Source {
        bytes: stream,
        script: Script::new(script),
    };
    // Storage of another kind than that of the decoder.
    let lengths = heapless_09::Vec::<u8, LENGTHS_LEN>::new();
    let mut reader = MessageReader::new(source(), prefix, lengths, LIMITS);
    let mut waiting = blocking::MessageReader::new(source(), prefix, [0; LENGTHS_LEN], LIMITS);
    let sink = Sink {
        bytes: Vec::new(),
        script: Script::new(script),
    };
    let mut writer = MessageWriter::new(sink, prefix, [0; BUFFER_LEN]);
    let mut decoder = FrameDecoder::new(prefix, [0; LENGTHS_LEN], LIMITS);
    let mut rest = stream;
    loop {
        let expected = decode(&mut decoder, &mut rest);
        let (mut storage, mut other) = ([0xa5; FRAMES_LEN], [0x5a; FRAMES_LEN]);
        let (mut arena, mut arena_of_waiting) = (Arena::new(&mut storage), Arena::new(&mut other));
        let read = loop {
            let is_cancelled = reader.get_ref().script.is_cancelling;
            if let Some(read) = poll(reader.read_message(&mut arena), is_cancelled) {
                break read;
            }
        };
        assert_eq!(outcome(read, reader.prelude(), &arena), expected);
        let read = waiting.read_message(&mut arena_of_waiting);
        assert_eq!(
            outcome(read, waiting.prelude(), &arena_of_waiting),
            expected
        );
        match &expected {
            Ok(Some(frames)) => write(&mut writer, frames, prefix),
            Ok(None) => {
                assert_eq!(run(reader.read_message(&mut arena)), Ok(None));
                return;
            }
            Err(error) => {
                let again = run(reader.read_message(&mut arena));
                // With more room the message could be read, unless a part of its frames
                // was read.
                let prelude = decoder.prelude();
                let len = prelude.and_then(|it| prelude_len(prefix, it.frame_count()));
                let can_retry = matches!(error, CommError::Comm(comm::CommError::Frame(error))
                    if matches!(error.kind, FrameErrorKind::NoBuffer { .. })
                        && len.is_some_and(|len| error.at == len as u64));
                match again {
                    Err(again) if can_retry => assert_eq!(again, *error),
                    again => assert_eq!(
                        again,
                        Err(comm_error(Closed::AfterError)),
                        "an error is final"
                    ),
                }
                return;
            }
        }
        decoder.reset();
    }
}

/// The next message of the stream, as the decoder reads it.
fn decode(decoder: &mut FrameDecoder<[u8; LENGTHS_LEN]>, rest: &mut &[u8]) -> Read {
    let mut storage = [0; FRAMES_LEN];
    let mut arena = Arena::new(&mut storage);
    loop {
        // Checked before the end of the stream, so that frames without room are refused
        // first.
        let space = decoder.space(&mut arena).map_err(comm_error)?;
        if space.is_empty() {
            return outcome(Ok(Some(0)), decoder.prelude(), &arena);
        }
        if rest.is_empty() {
            return match decoder.end() {
                Ok(()) => Ok(None),
                Err(error) => Err(comm_error(Closed::WithinMessage(error))),
            };
        }
        let (taken, after) = rest.split_at(space.len().min(rest.len()));
        space[..taken.len()].copy_from_slice(taken);
        *rest = after;
        decoder.advance(taken.len()).map_err(comm_error)?;
    }
}

/// The frames of the message that was read.
fn outcome(
    read: Result<Option<usize>, Error>,
    prelude: Option<Prelude<'_>>,
    arena: &Arena<'_>,
) -> Read {
    let Some(_) = read? else { return Ok(None) };
    let prelude = prelude.expect("a complete message has a prelude");
    let mut slots = [&[][..]; LENGTHS_LEN / 8];
    let frames = prelude.split(arena.filled(), &mut slots);
    let frames = frames.expect("all are there");
    Ok(Some(frames.iter().map(|frame| frame.to_vec()).collect()))
}

/// Writes a message and checks the written bytes.
fn write(
    writer: &mut MessageWriter<Sink<'_>, [u8; BUFFER_LEN]>,
    frames: &[Vec<u8>],
    prefix: Prefix,
) {
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let prelude_len = prelude_len(prefix, frames.len()).expect("a short prelude");
    let mut whole = vec![0; prelude_len];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    let encoded = encode_prelude(prefix, lengths, &mut whole);
    whole.extend(frames.concat());

    let before = writer.get_ref().bytes.len();
    let is_cancelled = writer.get_ref().script.is_cancelling;
    let written = poll(writer.write_message(&frames), is_cancelled);
    let sent = &writer.get_ref().bytes[before..];
    assert!(whole.starts_with(sent), "something else was sent");
    match written {
        Some(Ok(())) => assert_eq!(sent, whole),
        Some(Err(CommError::Comm(comm::CommError::Encode(_)))) => {
            assert!(encoded.is_err() || prelude_len > BUFFER_LEN);
            assert!(sent.is_empty());
        }
        Some(Err(error)) => {
            assert_eq!(error, comm_error(Closed::WriteCancelled));
            assert!(sent.is_empty());
        }
        None => {
            let is_within = !sent.is_empty() && sent.len() < whole.len();
            let next = run(writer.flush());
            let refusal = Err(comm_error(Closed::WriteCancelled));
            assert_eq!(next, if is_within { refusal } else { Ok(()) });
        }
    }
}

/// Performs a handshake in pieces, at once and blocking, and compares the results.
fn shake(script: &[u8], stream: &[u8], prefix: Prefix, role: HandshakeRole) {
    let ours = Handshake::new(Some("lz4"));
    let streams = |script| {
        let source = Source {
            bytes: stream,
            script: Script::new(script),
        };
        let sink = Sink {
            bytes: Vec::new(),
            script: Script::new(script),
        };
        (source, sink)
    };
    let polled = |script| {
        let (source, sink) = streams(script);
        let mut reader = MessageReader::new(source, prefix, [0; LENGTHS_LEN], LIMITS);
        let mut writer = MessageWriter::new(sink, prefix, [0; BUFFER_LEN]);
        let mut scratch = [0; 128];
        let agreed = run(handshake(
            &mut reader,
            &mut writer,
            &ours,
            role,
            &mut scratch,
        ))
        .map_err(|error| error.map_io(StreamError::into_inner));
        if agreed.is_err() {
            assert!(run(reader.read_message(&mut Arena::new(&mut []))).is_err());
            assert!(run(writer.write_message(&[b"frame"])).is_err());
        }
        result(agreed, reader.into_inner(), writer.into_inner())
    };
    let whole = polled(&[]);
    assert_eq!(polled(script), whole);
    let (source, sink) = streams(script);
    let mut reader = blocking::MessageReader::new(source, prefix, [0; LENGTHS_LEN], LIMITS);
    let mut writer = blocking::MessageWriter::new(sink, prefix, [0; BUFFER_LEN]);
    let mut scratch = [0; 128];
    let agreed = blocking::handshake(&mut reader, &mut writer, &ours, role, &mut scratch)
        .map_err(|error| error.map_io(StreamError::into_inner));
    let blocked = result(agreed, reader.into_inner(), writer.into_inner());
    assert_eq!(blocked, whole);
}

/// The outcome of a handshake, what was written and, unless it failed, what is
/// left to read.
fn result<'h, 'i>(
    agreed: Result<Agreement<'h>, Error>,
    source: Source<'i>,
    sink: Sink<'_>,
) -> (Result<Agreement<'h>, Error>, Vec<u8>, Option<&'i [u8]>) {
    let rest = agreed.is_ok().then_some(source.bytes);
    (agreed, sink.bytes, rest)
}
