//! Tests of comms over embedded-io, blocking and async, and of heapless
//! storage: short reads and writes, failures and ends at every operation, and
//! futures dropped at every poll.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::std_instead_of_alloc, reason = "a test has std")]

use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::ops::Range;

use daskwire::Limits;
use daskwire::comm;
use daskwire::frame::{
    Arena, EncodeError, FrameBuffers, FrameDecoder, FrameError, FrameErrorKind, Prefix,
    encode_prelude, prelude_len,
};
use daskwire::handshake::{Handshake, HandshakeError};
use daskwire::message::Layout;
use daskwire::transport::{CommReader, CommWriter, TransportError};
use daskwire_embedded::embedded_io_07 as blocking;
use daskwire_embedded::embedded_io_07::{Agreement, Closed, CommError, HandshakeRole};
use daskwire_embedded::embedded_io_async_07 as polled;
use embedded_io_07::{ErrorKind, ErrorType};
use heapless_09::{Vec as Heapless, VecView};

#[path = "../../tests/it/support.rs"]
mod support;

type Error = CommError<ErrorKind>;

/// The error of a comm without I/O, as an adapter returns it.
fn comm_error(error: impl Into<comm::CommError>) -> Error {
    CommError::Comm(error.into())
}

// Streams.

/// A fault that a stream has once.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Fails(ErrorKind),
    /// Reports this number of bytes.
    Says(usize),
}

/// A stream that returns a few bytes per read.
struct Source {
    bytes: Vec<u8>,
    at: usize,
    max_len: usize,
    operations: usize,
    fault: Option<(usize, Fault)>,
    /// The address range of the last read.
    asked: Range<usize>,
}

impl Source {
    fn new(bytes: &[u8], max_len: usize) -> Self {
        Self {
            bytes: bytes.to_vec(),
            at: 0,
            max_len,
            operations: 0,
            fault: None,
            asked: 0..0,
        }
    }

    fn with(self, operation: usize, fault: Fault) -> Self {
        Self {
            fault: Some((operation, fault)),
            ..self
        }
    }

    fn give(&mut self, space: &mut [u8]) -> Result<usize, ErrorKind> {
        assert!(!space.is_empty(), "a read of nothing");
        self.operations += 1;
        match self.fault {
            Some((operation, Fault::Fails(kind))) if operation == self.operations => {
                return Err(kind);
            }
            Some((operation, Fault::Says(count))) if operation == self.operations => {
                return Ok(count);
            }
            _ => {}
        }
        let range = space.as_ptr_range();
        self.asked = range.start.addr()..range.end.addr();
        let count = space
            .len()
            .min(self.max_len)
            .min(self.bytes.len() - self.at);
        space[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// A stream that accepts a few bytes per write.
#[derive(Default)]
struct Sink {
    bytes: Vec<u8>,
    max_len: usize,
    operations: usize,
    fault: Option<(usize, Fault)>,
    /// The length at the last flush.
    flushed: usize,
    /// Addresses of each write.
    given: Vec<Range<usize>>,
}

impl Sink {
    fn new(max_len: usize) -> Self {
        Self {
            max_len,
            ..Self::default()
        }
    }

    fn with(self, operation: usize, fault: Fault) -> Self {
        Self {
            fault: Some((operation, fault)),
            ..self
        }
    }

    fn operation(&mut self) -> Result<Option<usize>, ErrorKind> {
        self.operations += 1;
        match self.fault {
            Some((operation, fault)) if operation == self.operations => match fault {
                Fault::Fails(kind) => Err(kind),
                Fault::Says(count) => Ok(Some(count)),
            },
            _ => Ok(None),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        assert!(!bytes.is_empty(), "a write of nothing");
        if let Some(count) = self.operation()? {
            return Ok(count);
        }
        let range = bytes.as_ptr_range();
        self.given.push(range.start.addr()..range.end.addr());
        let count = bytes.len().min(self.max_len);
        self.bytes.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush_all(&mut self) -> Result<(), ErrorKind> {
        self.operation()?;
        self.flushed = self.bytes.len();
        Ok(())
    }
}

impl ErrorType for Source {
    type Error = ErrorKind;
}

impl ErrorType for Sink {
    type Error = ErrorKind;
}

impl embedded_io_07::Read for Source {
    fn read(&mut self, space: &mut [u8]) -> Result<usize, ErrorKind> {
        self.give(space)
    }
}

impl embedded_io_07::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.take(bytes)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        self.flush_all()
    }
}

/// Waits once, so that every operation can be cancelled.
async fn wait() {
    let mut waited = false;
    core::future::poll_fn(|_| {
        if core::mem::replace(&mut waited, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

impl embedded_io_async_07::Read for Source {
    async fn read(&mut self, space: &mut [u8]) -> Result<usize, ErrorKind> {
        wait().await;
        self.give(space)
    }
}

impl embedded_io_async_07::Write for Sink {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        wait().await;
        self.take(bytes)
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        wait().await;
        self.flush_all()
    }
}

/// Polls a future at most this many times, then drops it.
fn polled_times<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    (0..times).find_map(|_| match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}

fn run<F: Future>(future: F) -> F::Output {
    polled_times(1_000_000, future).expect("it comes to an end")
}

// A common interface of both adapters, so that each test covers both.

trait Reading {
    fn over(source: Source, prefix: Prefix, limits: Limits) -> Self;
    fn read<B: FrameBuffers>(&mut self, frames: &mut B) -> Result<Option<usize>, Error>;
    fn lengths(&self) -> Option<Vec<u64>>;
    fn source(&mut self) -> &mut Source;
}

trait Writing {
    fn over(sink: Sink, prefix: Prefix) -> Self;
    fn write(&mut self, frames: &[&[u8]]) -> Result<(), Error>;
    fn feed(&mut self, frames: &[&[u8]]) -> Result<(), Error>;
    fn flush(&mut self) -> Result<(), Error>;
    fn close(&mut self) -> Result<(), Error>;
    fn sink(&mut self) -> &mut Sink;
}

trait Adapter {
    type Reader: Reading;
    type Writer: Writing;
    fn shake<'h>(
        reader: &mut Self::Reader,
        writer: &mut Self::Writer,
        ours: &Handshake<'h>,
        role: HandshakeRole,
        scratch: &mut [u8],
    ) -> Result<Agreement<'h>, Error>;
}

/// Bytes of the writers' buffers.
const BUFFER: usize = 96;

macro_rules! adapter {
    ($name:ident, $module:ident, $finish:expr) => {
        struct $name;

        impl Reading for $module::MessageReader<Source, Heapless<u8, 256>> {
            fn over(source: Source, prefix: Prefix, limits: Limits) -> Self {
                Self::new(source, prefix, Heapless::new(), limits)
            }

            fn read<B: FrameBuffers>(&mut self, frames: &mut B) -> Result<Option<usize>, Error> {
                $finish(self.read_message(frames))
            }

            fn lengths(&self) -> Option<Vec<u64>> {
                self.prelude().map(|prelude| prelude.lengths().collect())
            }

            fn source(&mut self) -> &mut Source {
                self.get_mut()
            }
        }

        impl Writing for $module::MessageWriter<Sink, [u8; BUFFER]> {
            fn over(sink: Sink, prefix: Prefix) -> Self {
                Self::new(sink, prefix, [0; BUFFER])
            }

            fn write(&mut self, frames: &[&[u8]]) -> Result<(), Error> {
                $finish(self.write_message(frames))
            }

            fn feed(&mut self, frames: &[&[u8]]) -> Result<(), Error> {
                $finish(self.feed_message(frames))
            }

            fn flush(&mut self) -> Result<(), Error> {
                $finish(Self::flush(self))
            }

            fn close(&mut self) -> Result<(), Error> {
                $finish(Self::close(self))
            }

            fn sink(&mut self) -> &mut Sink {
                self.get_mut()
            }
        }

        impl Adapter for $name {
            type Reader = $module::MessageReader<Source, Heapless<u8, 256>>;
            type Writer = $module::MessageWriter<Sink, [u8; BUFFER]>;

            fn shake<'h>(
                reader: &mut Self::Reader,
                writer: &mut Self::Writer,
                ours: &Handshake<'h>,
                role: HandshakeRole,
                scratch: &mut [u8],
            ) -> Result<Agreement<'h>, Error> {
                $finish($module::handshake(reader, writer, ours, role, scratch))
                    .map_err(|error| error.map_io(blocking::StreamError::into_inner))
            }
        }
    };
}

adapter!(Blocking, blocking, core::convert::identity);
adapter!(Polled, polled, run);

/// Each test for each adapter.
macro_rules! for_both {
    ($($test:ident),+ $(,)?) => {
        mod over_blocking {
            $(#[test] fn $test() { super::$test::<super::Blocking>(); })+
        }
        mod over_polled {
            $(#[test] fn $test() { super::$test::<super::Polled>(); })+
        }
    };
}

for_both!(
    a_message_that_does_not_fit_can_be_read_with_more_room,
    messages_arrive_in_pieces_of_any_size,
    stream_may_end_only_between_messages,
    end_of_stream_is_final,
    read_errors_are_final,
    interrupted_operations_are_repeated,
    overreported_reads_and_writes_are_detected,
    frames_above_the_limit_get_no_buffer,
    small_read_buffers_are_reported,
    messages_are_written_in_pieces_of_any_size,
    write_errors_are_final,
    invalid_messages_leave_the_comm_usable,
    small_messages_take_one_write_and_large_frames_no_copy,
    feed_message_does_not_flush,
    closed_writer_refuses_writes,
    handshakes_with_every_prefix_and_layout_succeed,
    handshake_limits_apply,
    invalid_handshakes_fail_both_halves,
    handshake_fails_if_the_stream_ends_anywhere,
);

// Messages.

type Message = Vec<Vec<u8>>;

/// The prefix, the frames of messages that one release sent, and their bytes on
/// the wire.
fn recorded() -> [(Prefix, Vec<Message>, Vec<u8>); 3] {
    [
        "modern-nosplit-2026.8.0",
        "modern-total-2023.10.1",
        "classic-2.30.1",
    ]
    .map(|generation| {
        let vectors = ["docs-status-ok", "docs-get-data-ones5", "multi"]
            .map(|name| support::vector(&format!("{generation}/{name}")));
        let frames = vectors.iter().map(|vector| {
            let frames = vector.frames().into_iter();
            frames.map(<[u8]>::to_vec).collect()
        });
        let bytes = vectors.iter().flat_map(|vector| vector.bytes.clone());
        (vectors[0].prefix(), frames.collect(), bytes.collect())
    })
}

/// The bytes of a message on the wire.
fn wire(prefix: Prefix, frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0; prelude_len(prefix, frames.len()).unwrap()];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    encode_prelude(prefix, lengths, &mut bytes).unwrap();
    bytes.extend(frames.concat());
    bytes
}

fn slices(frames: &[Vec<u8>]) -> Vec<&[u8]> {
    frames.iter().map(|frame| &frame[..]).collect()
}

/// Three messages with frames that are empty, small, and larger than the
/// writers' buffer.
const SAMPLE: [&[&[u8]]; 3] = [
    &[b"\x80"],
    &[b"", b"header", &[7; 300], b"", &[8; 90], b"end", b""],
    &[b"\x81", &[9; BUFFER]],
];

fn sample(prefix: Prefix) -> Vec<u8> {
    SAMPLE.map(|frames| wire(prefix, frames)).concat()
}

type Store = Heapless<Heapless<u8, 1024>, 16>;

/// Reads a message into heapless vectors.
fn read<R: Reading>(reader: &mut R) -> Result<Option<Message>, Error> {
    let mut store = Store::new();
    let count = reader.read(&mut store)?;
    Ok(count.map(|count| {
        store.resize(count, Heapless::new()).unwrap();
        let frames: Message = store.iter().map(|frame| frame.to_vec()).collect();
        let lengths: Vec<u64> = frames.iter().map(|frame| frame.len() as u64).collect();
        assert_eq!(reader.lengths(), Some(lengths));
        frames
    }))
}

/// Reads all messages and returns the result at the end.
fn read_all<R: Reading>(reader: &mut R) -> (Vec<Message>, Result<(), Error>) {
    let mut messages = Vec::new();
    loop {
        match read(reader) {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, Ok(())),
            Err(error) => {
                // No further message or read.
                let operations = reader.source().operations;
                assert_eq!(read(reader), Err(comm_error(Closed::AfterError)));
                assert_eq!(reader.source().operations, operations);
                assert_eq!(reader.lengths(), None);
                return (messages, Err(error));
            }
        }
    }
}

fn reader<A: Adapter>(bytes: &[u8], max_len: usize, prefix: Prefix) -> A::Reader {
    A::Reader::over(Source::new(bytes, max_len), prefix, Limits::MICROCONTROLLER)
}

fn no_room(index: usize, len: usize, frames_len: u64, at: u64) -> Error {
    CommError::Comm(comm::CommError::Frame(FrameError {
        at,
        kind: FrameErrorKind::NoBuffer {
            index,
            len,
            frames_len,
        },
    }))
}

fn a_message_that_does_not_fit_can_be_read_with_more_room<A: Adapter>() {
    for (prefix, messages, bytes) in recorded() {
        let mut over = reader::<A>(&bytes, 50, prefix);
        for message in &messages {
            let mut storage = Vec::new();
            let outcome = over.read(&mut Arena::new(&mut storage));
            let len: usize = message.iter().map(Vec::len).sum();
            if let Err(CommError::Comm(comm::CommError::Frame(error))) = outcome {
                let FrameErrorKind::NoBuffer { frames_len, .. } = error.kind else {
                    panic!("{error}");
                };
                assert_eq!(frames_len, len as u64);
                storage.resize(len, 0);
                let mut arena = Arena::new(&mut storage);
                assert_eq!(over.read(&mut arena), Ok(Some(message.len())));
                assert_eq!(arena.filled(), message.concat());
            } else {
                assert_eq!((outcome, len), (Ok(Some(message.len())), 0));
            }
        }
    }
}

fn messages_arrive_in_pieces_of_any_size<A: Adapter>() {
    for (prefix, messages, bytes) in recorded() {
        for max_len in (1..60).chain([bytes.len()]) {
            let mut over = reader::<A>(&bytes, max_len, prefix);
            assert_eq!(read_all(&mut over), (messages.clone(), Ok(())), "{max_len}");
        }
        // Frames back to back.
        let mut over = reader::<A>(&bytes, 7, prefix);
        let mut storage = [0; 1024];
        let mut arena = Arena::new(&mut storage);
        for message in &messages {
            assert_eq!(over.read(&mut arena), Ok(Some(message.len())));
            assert_eq!(arena.filled(), message.concat());
        }
    }
}

fn stream_may_end_only_between_messages<A: Adapter>() {
    for prefix in [Prefix::None, Prefix::U64] {
        let bytes = sample(prefix);
        let ends = SAMPLE.map(|frames| wire(prefix, frames).len());
        let ends = [0, ends[0], ends[0] + ends[1], bytes.len()];
        for cut in 0..=bytes.len() {
            let mut over = reader::<A>(&bytes[..cut], 50, prefix);
            let (messages, outcome) = read_all(&mut over);
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            assert_eq!(messages.len(), whole, "{cut}");
            match outcome {
                Ok(()) => assert_eq!(cut, ends[whole]),
                Err(error) => {
                    assert!(error.is_closed());
                    let CommError::Comm(comm::CommError::Closed(Closed::WithinMessage(error))) =
                        error
                    else {
                        panic!("{error}");
                    };
                    assert_eq!(error.at, (cut - ends[whole]) as u64);
                    assert_ne!(error.at, 0);
                }
            }
        }
    }
}

fn end_of_stream_is_final<A: Adapter>() {
    let mut over = reader::<A>(b"", 50, Prefix::U64);
    assert_eq!(read(&mut over), Ok(None));
    // Some streams return data after an end, which would be another comm.
    over.source().bytes = sample(Prefix::U64);
    assert_eq!(read(&mut over), Ok(None));
    assert_eq!(over.lengths(), None);
    assert_eq!(over.source().operations, 1);
}

fn read_errors_are_final<A: Adapter>() {
    let bytes = sample(Prefix::U64);
    let mut over = reader::<A>(&bytes, 50, Prefix::U64);
    let (all, outcome) = read_all(&mut over);
    outcome.unwrap();
    let operations = over.source().operations;
    let mut counts = Vec::new();
    for operation in 1..=operations {
        for (kind, closed) in [
            (ErrorKind::ConnectionReset, true),
            (ErrorKind::ConnectionAborted, true),
            (ErrorKind::NotConnected, true),
            (ErrorKind::BrokenPipe, true),
            (ErrorKind::TimedOut, true),
            (ErrorKind::InvalidData, false),
            (ErrorKind::Other, false),
        ] {
            let source = Source::new(&bytes, 50).with(operation, Fault::Fails(kind));
            let mut over = A::Reader::over(source, Prefix::U64, Limits::HOST);
            let (messages, outcome) = read_all(&mut over);
            let error = outcome.unwrap_err();
            assert_eq!(error, CommError::Io(kind));
            assert_eq!(error.is_closed(), closed);
            assert_eq!(TransportError::is_closed(&error), closed);
            assert_eq!(messages, all[..messages.len()]);
            counts.push(messages.len());
        }
    }
    assert!(counts.is_sorted());
    assert_eq!((counts.first(), counts.last()), (Some(&0), Some(&3)));
}

fn interrupted_operations_are_repeated<A: Adapter>() {
    let interrupted = Fault::Fails(ErrorKind::Interrupted);
    let bytes = sample(Prefix::U64);
    // About 20 reads and 17 writes and flushes.
    for operation in 1..17 {
        let source = Source::new(&bytes, 50).with(operation, interrupted);
        let mut over = A::Reader::over(source, Prefix::U64, Limits::HOST);
        let (messages, outcome) = read_all(&mut over);
        assert_eq!((messages.len(), outcome), (3, Ok(())));

        let sink = Sink::new(50).with(operation, interrupted);
        let mut over = A::Writer::over(sink, Prefix::U64);
        for frames in SAMPLE {
            over.write(frames).unwrap();
        }
        over.close().unwrap();
        assert_eq!(over.sink().bytes, bytes);
        assert_eq!(over.sink().flushed, bytes.len());
        assert!(over.sink().operations > operation);
    }
}

fn overreported_reads_and_writes_are_detected<A: Adapter>() {
    let bytes = sample(Prefix::U64);
    for operation in 1..9 {
        for count in [400, usize::MAX] {
            let source = Source::new(&bytes, 50).with(operation, Fault::Says(count));
            let mut over = A::Reader::over(source, Prefix::U64, Limits::HOST);
            let (_, outcome) = read_all(&mut over);
            let error = outcome.unwrap_err();
            assert!(
                matches!(
                    error,
                    CommError::Comm(comm::CommError::Frame(FrameError {
                        kind: FrameErrorKind::Overrun { advanced, .. },
                        ..
                    })) if advanced == count
                ),
                "{error}"
            );
        }
    }
    // In the handshake too.
    let source = Source::new(&bytes, 3).with(2, Fault::Says(6));
    let mut reader = A::Reader::over(source, Prefix::U64, Limits::HOST);
    let mut writer = A::Writer::over(Sink::new(50), Prefix::U64);
    let ours = Handshake::new(None);
    let error = A::shake(&mut reader, &mut writer, &ours, MODERN, &mut [0; 128]).unwrap_err();
    let overrun = FrameErrorKind::Overrun {
        advanced: 6,
        space: 5,
    };
    assert_eq!(
        error,
        CommError::Comm(comm::CommError::Frame(FrameError {
            at: 3,
            kind: overrun
        }))
    );
}

/// A store that must not be used.
struct Unasked;

impl FrameBuffers for Unasked {
    fn buffer(&mut self, index: usize, len: usize, _: usize) -> Option<&mut [u8]> {
        panic!("frame {index} of {len} bytes was to be refused");
    }
}

fn frames_above_the_limit_get_no_buffer<A: Adapter>() {
    let limits = Limits::HOST
        .with_frame_count(4)
        .with_frame_len(100)
        .with_message_len(150);
    let table = |lengths: &[u64]| {
        let mut bytes = vec![0; prelude_len(Prefix::None, lengths.len()).unwrap()];
        encode_prelude(Prefix::None, lengths.iter().copied(), &mut bytes).unwrap();
        bytes.extend([0; 400]);
        bytes
    };
    for (lengths, kind) in [
        (
            &[101][..],
            FrameErrorKind::FrameTooLong {
                index: 0,
                len: 101,
                limit: 100,
            },
        ),
        (
            &[1, u64::MAX],
            FrameErrorKind::FrameTooLong {
                index: 1,
                len: u64::MAX,
                limit: 100,
            },
        ),
        (
            &[100, 51],
            FrameErrorKind::MessageTooLong {
                index: 1,
                limit: 150,
            },
        ),
        (
            &[1; 5],
            FrameErrorKind::TooManyFrames { count: 5, limit: 4 },
        ),
    ] {
        for max_len in [1, 3, 8, 1000] {
            let source = Source::new(&table(lengths), max_len);
            let mut over = A::Reader::over(source, Prefix::None, limits);
            let error = over.read(&mut Unasked).unwrap_err();
            assert!(
                matches!(error, CommError::Comm(comm::CommError::Frame(error)) if error.kind == kind),
                "{error}"
            );
            assert!(!error.is_closed());
            assert_eq!(over.read(&mut Unasked), Err(comm_error(Closed::AfterError)));
        }
    }
}

fn small_read_buffers_are_reported<A: Adapter>() {
    let frames: [&[u8]; 3] = [b"a", &[7; 9], b"b"];
    let bytes = wire(Prefix::None, &frames);
    let mut over = reader::<A>(&bytes, 50, Prefix::None);
    let mut short: Heapless<Heapless<u8, 8>, 3> = Heapless::new();
    assert_eq!(over.read(&mut short), Err(no_room(1, 9, 11, 33)));
    assert_eq!(short[0], b"a");
    assert_eq!(over.read(&mut short), Err(comm_error(Closed::AfterError)));

    let mut over = reader::<A>(&bytes, 50, Prefix::None);
    let mut few: Heapless<Heapless<u8, 9>, 2> = Heapless::new();
    assert_eq!(over.read(&mut few), Err(no_room(2, 1, 11, 42)));

    // The lengths: 32 frames fit, as the error reports.
    let frames = [&b"a"[..]; 33];
    let mut over = A::Reader::over(
        Source::new(&wire(Prefix::None, &frames), 50),
        Prefix::None,
        Limits::HOST,
    );
    let error = over.read(&mut Unasked).unwrap_err();
    assert!(
        matches!(
            error,
            CommError::Comm(comm::CommError::Frame(FrameError { at: 0, kind: FrameErrorKind::PreludeStorage(room) }))
                if (room.needed, room.available) == (33 * 8, 256)
        ),
        "{error}"
    );
}

#[test]
fn heapless_views_and_reused_vectors_hold_frames() {
    let mut store: Heapless<Heapless<u8, 64, u8>, 4, u8> = Heapless::new();
    let mut table: Heapless<u8, 32> = Heapless::new();
    let table: &mut VecView<u8> = &mut table;
    let mut decoder = FrameDecoder::new(Prefix::U64, Table(table), Limits::HOST);
    for frames in [
        &[&b"long frame"[..], b"", b"x"][..],
        &[b"", b"y", b"longer frame than before"],
        &[b"z"],
        &[b"", b""],
    ] {
        let store: &mut VecView<Heapless<u8, 64, u8>, u8> = &mut store;
        decoder.reset();
        let bytes = wire(Prefix::U64, frames);
        for mut byte in bytes.chunks(1) {
            decoder.push(&mut byte, store).unwrap();
            assert!(byte.is_empty());
        }
        assert!(decoder.is_complete());
        store.resize(frames.len(), Heapless::new()).unwrap();
        assert_eq!(store, frames);
    }
}

/// A view cannot be owned by a decoder.
struct Table<'a>(&'a mut VecView<u8>);

impl daskwire::frame::PreludeStorage for Table<'_> {
    fn space(&mut self, filled: usize, len: usize) -> Option<&mut [u8]> {
        self.0.space(filled, len)
    }

    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

fn messages_are_written_in_pieces_of_any_size<A: Adapter>() {
    for prefix in [Prefix::None, Prefix::U64] {
        let bytes = sample(prefix);
        for max_len in (1..120).chain([1000]) {
            let mut over = A::Writer::over(Sink::new(max_len), prefix);
            let mut written = 0;
            for frames in SAMPLE {
                over.write(frames).unwrap();
                written += wire(prefix, frames).len();
                assert_eq!(over.sink().flushed, written);
            }
            assert_eq!(over.sink().bytes, bytes);
        }
    }
    for (prefix, messages, _) in recorded() {
        let mut over = A::Writer::over(Sink::new(11), prefix);
        for frames in &messages {
            over.write(&slices(frames)).unwrap();
        }
        let mut back = reader::<A>(&over.sink().bytes, 13, prefix);
        assert_eq!(read_all(&mut back), (messages, Ok(())));
    }
}

fn write_errors_are_final<A: Adapter>() {
    let bytes = sample(Prefix::U64);
    let mut over = A::Writer::over(Sink::new(50), Prefix::U64);
    for frames in SAMPLE {
        over.write(frames).unwrap();
    }
    for operation in 1..=over.sink().operations {
        for fault in [
            Fault::Fails(ErrorKind::BrokenPipe),
            Fault::Fails(ErrorKind::Other),
            Fault::Says(0),
            Fault::Says(usize::MAX),
        ] {
            let mut over = A::Writer::over(Sink::new(50).with(operation, fault), Prefix::U64);
            let outcome = SAMPLE.iter().find_map(|frames| over.write(frames).err());
            let Some(error) = outcome else {
                // Flushes do not report bytes.
                assert!(matches!(fault, Fault::Says(_)));
                assert_eq!(over.sink().bytes, bytes);
                continue;
            };
            match (fault, error) {
                (Fault::Fails(kind), CommError::Io(error)) => {
                    assert_eq!(kind, error);
                    assert_eq!(CommError::Io(error).is_closed(), kind != ErrorKind::Other);
                }
                (Fault::Says(said), CommError::WriteCount { count, len }) => {
                    assert_eq!(said, count);
                    assert!(len != 0);
                    assert_eq!(error.is_closed(), said == 0);
                }
                _ => panic!("{fault:?}: {error}"),
            }
            assert!(bytes.starts_with(&over.sink().bytes));
            // Poisoned: nothing more is sent.
            let operations = over.sink().operations;
            let earlier = Err(comm_error(Closed::AfterError));
            assert_eq!(over.write(SAMPLE[0]), earlier);
            assert_eq!(over.flush(), earlier);
            assert_eq!(over.close(), earlier);
            assert_eq!(over.sink().operations, operations);
        }
    }
}

fn invalid_messages_leave_the_comm_usable<A: Adapter>() {
    let mut over = A::Writer::over(Sink::new(50), Prefix::U64);
    assert_eq!(over.write(&[]), Err(comm_error(EncodeError::NoFrames)));
    let error = over.write(&[&b"a"[..]; 11]).unwrap_err();
    assert!(
        matches!(
            error,
            CommError::Comm(comm::CommError::Encode(EncodeError::BufferTooSmall(room)))
                if (room.needed, room.available) == (104, BUFFER)
        ),
        "{error}"
    );
    assert!(!error.is_closed());
    assert_eq!(over.sink().operations, 0);
    over.write(&[&b"a"[..]; 10]).unwrap();
    assert_eq!(over.sink().bytes, wire(Prefix::U64, &[&b"a"[..]; 10]));
}

fn small_messages_take_one_write_and_large_frames_no_copy<A: Adapter>() {
    let mut over = A::Writer::over(Sink::new(usize::MAX), Prefix::U64);
    over.write(&[b"all of this", b"", b"goes along"]).unwrap();
    assert_eq!(over.sink().given.len(), 1);

    over.sink().given.clear();
    let large = [7; 1000];
    over.write(&[b"a", &large, b"b", b"c"]).unwrap();
    let range = large.as_ptr_range();
    let range = range.start.addr()..range.end.addr();
    let given = &over.sink().given;
    assert_eq!((given.len(), &given[1]), (3, &range));

    // The frames are received in the right buffers.
    let bytes = wire(Prefix::U64, &[&large]);
    let mut over = reader::<A>(&bytes, usize::MAX, Prefix::U64);
    let mut place = [0; 1000];
    let range = place.as_ptr_range();
    let range = range.start.addr()..range.end.addr();
    over.read(&mut Arena::new(&mut place)).unwrap();
    assert_eq!(over.source().asked, range);
    // The head, the lengths, the frame.
    assert_eq!(over.source().operations, 3);
}

fn feed_message_does_not_flush<A: Adapter>() {
    let mut over = A::Writer::over(Sink::new(1000), Prefix::U64);
    for frames in SAMPLE {
        over.feed(frames).unwrap();
    }
    assert_eq!(over.sink().flushed, 0);
    over.flush().unwrap();
    assert_eq!(over.sink().flushed, sample(Prefix::U64).len());
}

fn closed_writer_refuses_writes<A: Adapter>() {
    let mut over = A::Writer::over(Sink::new(1000), Prefix::U64);
    over.feed(SAMPLE[0]).unwrap();
    over.close().unwrap();
    let len = over.sink().bytes.len();
    assert_eq!(over.sink().flushed, len);
    assert_eq!(over.write(SAMPLE[0]), Err(comm_error(Closed::Locally)));
    assert_eq!(over.flush(), Err(comm_error(Closed::Locally)));
    over.close().unwrap();
    assert_eq!((over.sink().operations, over.sink().bytes.len()), (2, len));
}

// Handshakes.

const MODERN: HandshakeRole = HandshakeRole::SendFirst(Layout::Modern);
const CLASSIC: HandshakeRole = HandshakeRole::SendFirst(Layout::Classic);

fn comm<A: Adapter>(bytes: &[u8], max_len: usize, prefix: Prefix) -> (A::Reader, A::Writer) {
    let source = Source::new(bytes, max_len);
    (
        A::Reader::over(source, prefix, Limits::MICROCONTROLLER),
        A::Writer::over(Sink::new(max_len), prefix),
    )
}

fn handshakes_with_every_prefix_and_layout_succeed<A: Adapter>() {
    let ours = Handshake::new(Some("lz4"));
    let mut document = [0; 128];
    let mut writer = daskwire::msgpack::Writer::new(&mut document);
    ours.encode(&mut writer);
    let document = writer.finish().unwrap();
    for (name, prefix, layout) in [
        ("modern-nosplit-2026.8.0", Prefix::U64, Layout::Modern),
        ("classic-total-2021.3.0", Prefix::U64, Layout::Classic),
        ("classic-2.30.1", Prefix::None, Layout::Classic),
    ] {
        let theirs = support::vector(&format!("{name}/handshake")).bytes;
        let bytes = [&theirs[..], &sample(prefix)].concat();
        let modern: &[&[u8]] = &[document];
        let classic: &[&[u8]] = &[b"", document];
        let (speak, frames) = match layout {
            Layout::Modern => (MODERN, modern),
            Layout::Classic => (CLASSIC, classic),
        };
        for max_len in [1, 5, 1000] {
            // The responding side need not know the prefix.
            for (role, made_with) in [
                (speak, prefix),
                (HandshakeRole::WaitForPeer, Prefix::None),
                (HandshakeRole::WaitForPeer, Prefix::U64),
            ] {
                let (mut reader, mut writer) = comm::<A>(&bytes, max_len, made_with);
                let mut scratch = [0; 128];
                let agreed = A::shake(&mut reader, &mut writer, &ours, role, &mut scratch).unwrap();
                assert_eq!((agreed.prefix, agreed.layout), (prefix, layout));
                assert!(agreed.negotiated.pickle_protocol >= 4);
                assert!(agreed.peer_python.is_some());
                let sent = wire(prefix, frames);
                assert_eq!(writer.sink().bytes, sent);
                assert_eq!(writer.sink().flushed, sent.len());
                // Then messages with the detected prefix and layout.
                assert_eq!(read_all(&mut reader).0.len(), 3);
                writer.write(SAMPLE[1]).unwrap();
                assert_eq!(writer.sink().bytes[sent.len()..], wire(prefix, SAMPLE[1]));
            }
        }
    }
}

fn handshake_limits_apply<A: Adapter>() {
    let ours = Handshake::new(None);
    // For the handshake 64 KiB, regardless of the limits after it.
    let long = wire(Prefix::U64, &[&vec![0; (64 << 10) + 1]]);
    let mut reader = A::Reader::over(Source::new(&long, 50), Prefix::U64, Limits::HOST);
    let mut writer = A::Writer::over(Sink::new(50), Prefix::U64);
    let error = A::shake(&mut reader, &mut writer, &ours, MODERN, &mut [0; 128]).unwrap_err();
    let kind = FrameErrorKind::FrameTooLong {
        index: 0,
        len: 65537,
        limit: 65536,
    };
    assert_eq!(
        error,
        CommError::Comm(comm::CommError::Frame(FrameError { at: 16, kind }))
    );

    // After it the limits of the reader.
    let theirs = support::vector("modern-nosplit-2026.8.0/handshake").bytes;
    for (limit, allowed) in [(99, false), (100_000, true)] {
        let limits = Limits::HOST.with_frame_len(limit);
        let bytes = [theirs.clone(), wire(Prefix::U64, &[&[7; 100_000]])].concat();
        let mut reader = A::Reader::over(Source::new(&bytes, 5000), Prefix::U64, limits);
        let mut writer = A::Writer::over(Sink::new(50), Prefix::U64);
        A::shake(&mut reader, &mut writer, &ours, MODERN, &mut [0; 128]).unwrap();
        let mut storage = vec![0; 100_000];
        let outcome = reader.read(&mut Arena::new(&mut storage));
        assert_eq!(outcome.is_ok(), allowed, "{outcome:?}");
    }
}

fn invalid_handshakes_fail_both_halves<A: Adapter>() {
    let good = support::vector("modern-nosplit-2026.8.0/handshake").bytes;
    let bare = support::vector("classic-2.30.1/handshake").bytes;
    let request = support::vector("modern-nosplit-2026.8.0/docs-get-data-ones5").bytes;
    let no_buffer = Error::Comm(comm::CommError::Frame(FrameError {
        at: 24,
        kind: FrameErrorKind::NoBuffer {
            index: 0,
            len: good.len() - 24,
            frames_len: good.len() as u64 - 24,
        },
    }));
    for (bytes, role, scratch_len, expected) in [
        (
            &bare[..],
            MODERN,
            128,
            Error::Comm(comm::CommError::Prefix { peer: Prefix::None }),
        ),
        (
            &request,
            MODERN,
            1024,
            comm_error(HandshakeError::FrameCount { count: 3 }),
        ),
        (&good, HandshakeRole::WaitForPeer, 20, no_buffer),
        (&good, MODERN, 20, no_buffer),
        (b"", MODERN, 128, comm_error(Closed::BeforeHandshake)),
        (&[0; 40], HandshakeRole::WaitForPeer, 128, {
            let kind = FrameErrorKind::NoFrames;
            Error::Comm(comm::CommError::Frame(FrameError { at: 8, kind }))
        }),
    ] {
        let (mut reader, mut writer) = comm::<A>(bytes, 50, Prefix::U64);
        let ours = Handshake::new(None);
        let mut scratch = vec![0; scratch_len];
        let mut shake =
            |reader: &mut _, writer: &mut _| A::shake(reader, writer, &ours, role, &mut scratch);
        assert_eq!(shake(&mut reader, &mut writer), Err(expected));
        let earlier = Error::Comm(comm::CommError::Closed(Closed::AfterError));
        assert_eq!(shake(&mut reader, &mut writer), Err(earlier));
        assert_eq!(read(&mut reader), Err(earlier));
        assert_eq!(writer.write(SAMPLE[0]), Err(earlier));
    }
}

fn handshake_fails_if_the_stream_ends_anywhere<A: Adapter>() {
    let ours = Handshake::new(None);
    let theirs = support::vector("modern-nosplit-2026.8.0/handshake").bytes;
    for cut in 0..theirs.len() {
        for role in [MODERN, HandshakeRole::WaitForPeer] {
            let (mut reader, mut writer) = comm::<A>(&theirs[..cut], 11, Prefix::U64);
            let error = A::shake(&mut reader, &mut writer, &ours, role, &mut [0; 128]).unwrap_err();
            assert!(error.is_closed(), "{error}");
            assert_eq!(
                error == CommError::Comm(comm::CommError::Closed(Closed::BeforeHandshake)),
                cut < 8
            );
        }
    }
    // Failures at every operation of both halves.
    for operation in 1.. {
        let fault = Fault::Fails(ErrorKind::TimedOut);
        let source = Source::new(&theirs, 11).with(operation, fault);
        let sink = Sink::new(11).with(operation, fault);
        let mut reader = A::Reader::over(source, Prefix::U64, Limits::HOST);
        let mut writer = A::Writer::over(sink, Prefix::U64);
        match A::shake(&mut reader, &mut writer, &ours, MODERN, &mut [0; 128]) {
            Ok(_) => {
                assert!(operation > 8);
                break;
            }
            Err(error) => {
                assert_eq!(error, CommError::Io(ErrorKind::TimedOut));
                assert_eq!(read(&mut reader), Err(comm_error(Closed::AfterError)));
                assert_eq!(writer.write(SAMPLE[0]), Err(comm_error(Closed::AfterError)));
            }
        }
    }
}

// Dropped futures.

type PolledReader = <Polled as Adapter>::Reader;
type PolledWriter = <Polled as Adapter>::Writer;

#[test]
fn dropped_read_loses_nothing() {
    let bytes = sample(Prefix::U64);
    for max_len in [1, 7, 100, 1000] {
        // Dropped once, after each number of polls, and after every poll.
        for drop_after in 0..=bytes.len() + 9 {
            for again in [false, true] {
                let mut over: PolledReader = reader::<Polled>(&bytes, max_len, Prefix::U64);
                let mut store = Store::new();
                for frames in SAMPLE {
                    store.clear();
                    let mut times = drop_after;
                    // An operation takes 2 polls: one that waits and one that
                    // completes.
                    let count = loop {
                        match polled_times(times, over.read_message(&mut store)) {
                            Some(outcome) => break outcome.unwrap().unwrap(),
                            None => assert!(times == 0 || over.prelude().is_none()),
                        }
                        times = if again { drop_after.max(2) } else { usize::MAX };
                    };
                    store.resize(count, Heapless::new()).unwrap();
                    assert_eq!(store, frames);
                }
            }
            if max_len > 1 && drop_after > 200 {
                break;
            }
        }
    }
}

#[test]
fn dropped_write_poisons_if_partially_sent() {
    for max_len in [1, 7, 100, 1000] {
        for frames in SAMPLE {
            let whole = wire(Prefix::U64, frames);
            let mut seen = [0; 3];
            for polls in 0.. {
                let mut over = PolledWriter::over(Sink::new(max_len), Prefix::U64);
                if polled_times(polls, over.write_message(frames)).is_some() {
                    break;
                }
                let left = over.sink().bytes.clone();
                assert!(whole.starts_with(&left));
                let outcome = over.write(SAMPLE[0]);
                let next = wire(Prefix::U64, SAMPLE[0]);
                if left.is_empty() {
                    // The write had no effect.
                    seen[0] += 1;
                    assert_eq!(outcome, Ok(()));
                    assert_eq!(over.sink().bytes, next);
                } else if left == whole {
                    // Only the flush is missing, which the next write does.
                    seen[1] += 1;
                    assert_eq!(outcome, Ok(()));
                    assert_eq!(over.sink().bytes, [left, next].concat());
                    let sink = over.sink();
                    assert_eq!(sink.flushed, sink.bytes.len());
                } else {
                    seen[2] += 1;
                    let cancelled = Err(comm_error(Closed::WriteCancelled));
                    assert_eq!(outcome, cancelled);
                    assert_eq!(Writing::close(&mut over), cancelled);
                    assert_eq!(over.sink().bytes, left);
                    let mut peer = reader::<Polled>(&left, 50, Prefix::U64);
                    let (messages, outcome) = read_all(&mut peer);
                    assert!(messages.is_empty());
                    assert!(matches!(
                        outcome,
                        Err(CommError::Comm(comm::CommError::Closed(
                            Closed::WithinMessage(_)
                        )))
                    ));
                }
            }
            // Not polled, and waiting for the first write; waiting for the flush.
            assert_eq!((seen[0], seen[1]), (2, 1));
            assert!(seen[2] != 0 || whole.len() <= max_len);
        }
    }
}

#[test]
fn dropped_close_can_be_repeated() {
    for polls in 0..2 {
        let mut over = PolledWriter::over(Sink::new(1000), Prefix::U64);
        run(over.feed_message(SAMPLE[0])).unwrap();
        assert_eq!(
            polled_times(polls, polled::MessageWriter::close(&mut over)),
            None
        );
        if polls != 0 {
            assert_eq!(over.write(SAMPLE[0]), Err(comm_error(Closed::Locally)));
        }
        Writing::close(&mut over).unwrap();
        assert_eq!(over.sink().flushed, wire(Prefix::U64, SAMPLE[0]).len());
    }
}

/// A stream with an error type of its own.
struct Plain<S>(S);

#[derive(Debug, PartialEq)]
struct Broken;

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("broken")
    }
}

impl core::error::Error for Broken {}

impl embedded_io_07::Error for Broken {
    fn kind(&self) -> ErrorKind {
        ErrorKind::BrokenPipe
    }
}

impl<S> ErrorType for Plain<S> {
    type Error = Broken;
}

impl embedded_io_07::Write for Plain<Sink> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        embedded_io_07::Write::write(&mut self.0, bytes).map_err(|_| Broken)
    }

    fn flush(&mut self) -> Result<(), Broken> {
        Ok(())
    }
}

#[test]
fn the_two_streams_may_have_different_errors() {
    let theirs = support::vector("modern-nosplit-2026.8.0/handshake").bytes;
    let shake = |source: Source, sink: Sink| {
        let limits = Limits::MICROCONTROLLER;
        let mut reader = blocking::MessageReader::new(source, Prefix::U64, [0; 64], limits);
        let mut writer = blocking::MessageWriter::new(Plain(sink), Prefix::U64, [0; 64]);
        let ours = Handshake::new(None);
        blocking::handshake(&mut reader, &mut writer, &ours, MODERN, &mut [0; 128]).map(|_| ())
    };
    let fault = Fault::Fails(ErrorKind::TimedOut);
    assert_eq!(shake(Source::new(&theirs, 50), Sink::new(50)), Ok(()));
    let error = shake(Source::new(&theirs, 50).with(1, fault), Sink::new(50)).unwrap_err();
    assert_eq!(
        error,
        CommError::Io(blocking::StreamError::Read(ErrorKind::TimedOut))
    );
    let error = shake(Source::new(&theirs, 50), Sink::new(50).with(1, fault)).unwrap_err();
    assert_eq!(error, CommError::Io(blocking::StreamError::Write(Broken)));
    assert!(error.is_closed());
}

#[test]
fn dropped_handshake_fails_both_halves() {
    let theirs = support::vector("modern-nosplit-2026.8.0/handshake").bytes;
    for role in [MODERN, HandshakeRole::WaitForPeer] {
        for polls in 1.. {
            let (mut reader, mut writer) = comm::<Polled>(&theirs, 11, Prefix::U64);
            let ours = Handshake::new(None);
            let mut scratch = [0; 128];
            let shake = polled::handshake(&mut reader, &mut writer, &ours, role, &mut scratch);
            if polled_times(polls, shake).is_some() {
                assert!(polls > 8);
                break;
            }
            let left = writer.sink().bytes.len();
            assert!(read(&mut reader).unwrap_err().is_closed());
            assert!(writer.write(SAMPLE[0]).unwrap_err().is_closed());
            assert_eq!(writer.sink().bytes.len(), left);
        }
    }
}

// The comm traits.

fn is_send<T: Send>(value: T) -> T {
    value
}

/// Generic over the comm traits.
async fn relay<R: CommReader, W: CommWriter>(reader: &mut R, writer: &mut W) -> Result<usize, ()> {
    let mut storage = [0; 1024];
    let mut arena = Arena::new(&mut storage);
    let mut count = 0;
    while let Some(frame_count) = is_send(reader.read_message(&mut arena))
        .await
        .map_err(|_| ())?
    {
        let mut slots = [&[][..]; 16];
        let prelude = reader.prelude().ok_or(())?;
        let frames = prelude.split(arena.filled(), &mut slots).map_err(|_| ())?;
        assert_eq!(frames.len(), frame_count);
        is_send(writer.write_message(frames))
            .await
            .map_err(|_| ())?;
        arena.clear();
        count += 1;
    }
    writer.close().await.map_err(|_| ())?;
    Ok(count)
}

#[test]
fn blocking_halves_implement_the_comm_traits() {
    let bytes = sample(Prefix::U64);
    let mut reader = reader::<Blocking>(&bytes, 9, Prefix::U64);
    let mut writer = <Blocking as Adapter>::Writer::over(Sink::new(9), Prefix::U64);
    // One poll is enough: its futures never wait.
    let outcome = polled_times(1, relay(&mut reader, &mut writer));
    assert_eq!(outcome, Some(Ok(3)));
    assert_eq!(writer.sink().bytes, bytes);
    // Nothing happens before it is polled.
    let mut over = <Blocking as Adapter>::Writer::over(Sink::new(9), Prefix::U64);
    drop(CommWriter::write_message(&mut over, SAMPLE[0]));
    assert_eq!(over.sink().operations, 0);
}

/// The example of the module documentation: the comm traits for async comms
/// over a concrete stream.
struct Concrete<T>(T);

impl CommReader for Concrete<PolledReader> {
    type Error = Error;

    async fn read_message<B: FrameBuffers + Send>(
        &mut self,
        frames: &mut B,
    ) -> Result<Option<usize>, Error> {
        self.0.read_message(frames).await
    }

    fn prelude(&self) -> Option<daskwire::frame::Prelude<'_>> {
        self.0.prelude()
    }
}

impl CommWriter for Concrete<PolledWriter> {
    type Error = Error;

    async fn write_message(&mut self, frames: &[&[u8]]) -> Result<(), Error> {
        self.0.write_message(frames).await
    }

    async fn close(&mut self) -> Result<(), Error> {
        polled::MessageWriter::close(&mut self.0).await
    }
}

#[test]
fn async_halves_over_a_concrete_stream_implement_the_comm_traits() {
    let bytes = sample(Prefix::U64);
    let mut reader = Concrete(reader::<Polled>(&bytes, 9, Prefix::U64));
    let mut writer = Concrete(PolledWriter::over(Sink::new(9), Prefix::U64));
    assert_eq!(run(relay(&mut reader, &mut writer)), Ok(3));
    assert_eq!(writer.0.sink().bytes, bytes);
}

#[test]
fn error_messages_are_readable() {
    for (error, text) in [
        (
            Error::Comm(comm::CommError::Closed(Closed::AfterError)),
            "the comm is closed after an earlier error",
        ),
        (
            Error::Io(ErrorKind::TimedOut),
            "the stream failed: TimedOut",
        ),
        (
            Error::WriteCount { count: 0, len: 9 },
            "the stream was given 9 bytes and accepted 0",
        ),
        (
            comm_error(EncodeError::NoFrames),
            "the message cannot be sent: the message has no frames; every message has at least one",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}
