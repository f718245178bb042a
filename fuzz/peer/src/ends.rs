//! Two ends of a comm that talk to each other, each with storage of any kind.

use core::pin::{Pin, pin};
use core::task::{Context, Poll, ready};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daskwire::Limits;
use daskwire::comm::{Closed, Comm, CommError, CommOptions, HandshakeRole};
use daskwire::frame::{Arena, Prefix, encode_prelude};
use daskwire::handshake::Handshake;
use daskwire::message::Layout;
use daskwire::msgpack::Writer;
use daskwire::transport::CommReader as _;
use daskwire_comm::{CommReader, CommWriter, WireFormat};
use daskwire_embedded::embedded_io_async_07 as embedded;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

/// The maximum number of frames of a message, and the room for the longest handshake and
/// the longest message, in bytes.
const FRAMES: usize = 16;
const ROOM: usize = 64 << 10;

const LIMITS: Limits = Limits::HOST
    .with_frame_count(FRAMES as u64)
    .with_frame_len(4 << 10)
    .with_message_len(8 << 10);

type Message = Vec<Vec<u8>>;

/// Checks that what one end sends arrives at the other, which sends it back, that both
/// agree, and that a write which is dropped sends a message wholly, not at all, or ends the
/// comm; and that a stream with a fault gives the same messages and the same error with
/// storage of every kind.
///
/// The input: the format, the kinds of storage, a write to drop, a fault, the length of a
/// script for the streams, the script, and the lengths of the frames to send.
pub(crate) fn ends(input: &[u8]) {
    let [format, kinds, dropped, fault @ .., script_len] =
        *input.first_chunk::<7>().unwrap_or(&[0; 7]);
    let rest = input.get(7..).unwrap_or_default();
    let (script, plan) = rest.split_at(usize::from(script_len).min(rest.len()));
    let setup = Setup {
        prefix: [Prefix::U64, Prefix::None][usize::from(format & 1)],
        layout: [Layout::Modern, Layout::Classic][usize::from(format >> 1 & 1)],
        is_detecting: format & 4 != 0,
        script,
    };
    let messages = messages(plan);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let kind = |shift: u8| KINDS[usize::from(kinds >> shift) % KINDS.len()];
    runtime.block_on(async {
        talk(&setup, kind(0), kind(2), &messages, dropped).await;
        let stream = damaged(&setup, &messages, fault);
        let mut outcomes = Vec::new();
        for kind in KINDS {
            outcomes.push(listen(&setup, kind, &stream).await);
        }
        for outcome in &outcomes[1..] {
            assert_eq!(*outcome, outcomes[0], "storage matters");
        }
    });
}

struct Setup<'i> {
    prefix: Prefix,
    layout: Layout,
    /// Whether the end that connects detects the format of the other.
    is_detecting: bool,
    script: &'i [u8],
}

/// The messages with frames of these lengths. Two bits of a byte are the end of a message.
fn messages(plan: &[u8]) -> Vec<Message> {
    let mut messages = vec![Message::new()];
    for byte in plan.iter().take(200) {
        let last = messages.last_mut().expect("there is one");
        let len = usize::from(byte & 0x3f) * usize::from(byte & 0x3f);
        last.push(vec![*byte; len]);
        let len: usize = last.iter().map(Vec::len).sum();
        if byte & 0xc0 == 0 || last.len() == FRAMES || len > 4 << 10 {
            messages.push(Message::new());
        }
    }
    messages.retain(|message| !message.is_empty());
    messages
}

/// The bytes that one end sends, with a byte changed and the end cut off.
fn damaged(setup: &Setup<'_>, messages: &[Message], fault: [u8; 3]) -> Vec<u8> {
    let mut document = [0; 128];
    let mut writer = Writer::new(&mut document);
    Handshake::new(None).encode(&mut writer);
    let document = writer.finish().expect("a handshake").to_vec();
    let handshake = match setup.layout {
        Layout::Modern => vec![document],
        Layout::Classic => vec![Vec::new(), document],
    };
    let mut stream = Vec::new();
    for message in [&handshake].into_iter().chain(messages) {
        let mut prelude = [0; 16 + 8 * FRAMES];
        let lengths = message.iter().map(|frame| frame.len() as u64);
        let len = encode_prelude(setup.prefix, lengths, &mut prelude).expect("few frames");
        stream.extend_from_slice(&prelude[..len]);
        stream.extend(message.concat());
    }
    let [at, change, end] = fault;
    if let Some(byte) = stream.get_mut(usize::from(at)) {
        *byte ^= change;
    }
    let end = stream.len() * usize::from(end) / 255;
    stream.truncate(end);
    stream
}

/// Two ends that talk: one sends messages, the other sends them back.
async fn talk(setup: &Setup<'_>, near: Kind, far: Kind, messages: &[Message], dropped: u8) {
    let (to_far, to_near) = (Pipe::new(setup.script), Pipe::new(setup.script));
    let (dropped, polls) = (usize::from(dropped & 7), usize::from(dropped >> 3));
    let near = async {
        let mut buffers = [vec![0; ROOM], vec![0; ROOM]];
        let role = match setup.is_detecting {
            true => HandshakeRole::WaitForPeer,
            false => HandshakeRole::SendFirst(setup.layout),
        };
        let (rx, tx) = (to_near.clone(), Closing(to_far.clone()));
        let end = End::new(near, setup.prefix, role, rx, tx, &mut buffers).await;
        let mut end = end.expect("both ends understand each other");
        let agreed = end.agreed();
        for (index, message) in messages.iter().enumerate() {
            let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
            if index == dropped && polls != 0 {
                let sent = polled(polls, end.send(&frames)).await;
                if let Some(sent) = sent {
                    sent.expect("nothing has failed");
                    return (agreed, Some(true));
                }
                // The message is sent once more, or a part of it was sent.
                return match end.send(&frames).await {
                    Ok(()) => (agreed, Some(true)),
                    Err(error) => {
                        assert_eq!(error, CommError::Closed(Closed::WriteCancelled));
                        (agreed, Some(false))
                    }
                };
            }
            end.send(&frames).await.expect("it is sent");
            let echo = end.receive().await.expect("the comm is open");
            assert_eq!(echo.as_ref(), Some(message));
        }
        (agreed, None)
    };
    let far = async {
        let mut buffers = [vec![0; ROOM], vec![0; ROOM]];
        let role = HandshakeRole::SendFirst(setup.layout);
        let (rx, tx) = (to_far.clone(), Closing(to_near.clone()));
        let end = End::new(far, setup.prefix, role, rx, tx, &mut buffers).await;
        let mut end = end.expect("both ends understand each other");
        let (agreed, mut received) = (end.agreed(), Vec::new());
        let ended = loop {
            match end.receive().await {
                Ok(Some(message)) => {
                    let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
                    end.send(&frames).await.expect("it is sent");
                    received.push(message);
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        (agreed, received, ended)
    };
    let ((agreed, cancelled), (theirs, received, ended)) = tokio::join!(near, far);
    assert_eq!(agreed, theirs, "both agree");
    assert_eq!(agreed, (setup.prefix, setup.layout));
    match cancelled {
        None => assert_eq!((&received[..], ended), (messages, Ok(()))),
        Some(is_whole) => {
            let (before, same) = received.split_at(dropped.min(received.len()));
            assert_eq!(before, &messages[..dropped]);
            assert!(same.len() <= 2 && same.iter().all(|same| *same == messages[dropped]));
            assert_eq!(ended.is_ok(), is_whole);
            let is_within = matches!(ended, Err(CommError::Closed(Closed::WithinMessage(_))));
            assert!(is_whole || is_within, "{ended:?}");
        }
    }
}

/// What an end has received, until its stream ended.
type Outcome = (
    Option<(Prefix, Layout)>,
    Vec<Message>,
    Result<(), CommError>,
);

async fn listen(setup: &Setup<'_>, kind: Kind, stream: &[u8]) -> Outcome {
    let (arriving, leaving) = (Pipe::new(setup.script), Pipe::new(&[]));
    arriving.lock().bytes.extend(stream);
    arriving.lock().is_closed = true;
    let mut buffers = [vec![0; ROOM], vec![0; ROOM]];
    let role = match setup.is_detecting {
        true => HandshakeRole::WaitForPeer,
        false => HandshakeRole::SendFirst(setup.layout),
    };
    let end = End::new(
        kind,
        setup.prefix,
        role,
        arriving,
        Closing(leaving),
        &mut buffers,
    )
    .await;
    let mut end = match end {
        Ok(end) => end,
        Err(error) => return (None, Vec::new(), Err(error)),
    };
    let (agreed, mut received) = (end.agreed(), Vec::new());
    let ended = loop {
        match end.receive().await {
            Ok(Some(message)) => received.push(message),
            Ok(None) => break Ok(()),
            Err(error) => {
                let again = end.receive().await;
                assert_eq!(again, Err(Closed::AfterError.into()), "an error is final");
                break Err(error);
            }
        }
    };
    (Some(agreed), received, ended)
}

/// The kinds of storage.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The fixed buffers of a comm without I/O.
    Fixed,
    /// An arena, over embedded-io-async.
    Arena,
    /// The memory of a reader over tokio.
    Own,
    /// A vector for each frame, over tokio.
    Vectors,
}

const KINDS: [Kind; 4] = [Kind::Fixed, Kind::Arena, Kind::Own, Kind::Vectors];

enum End<'b> {
    Fixed(Comm<'b, FRAMES>, Pipe, Closing),
    Arena {
        reader: embedded::MessageReader<Pipe, [u8; 8 * FRAMES]>,
        writer: embedded::MessageWriter<Closing, [u8; 256]>,
        agreed: (Prefix, Layout),
        storage: &'b mut [u8],
    },
    Tokio {
        reader: CommReader<Pipe>,
        writer: CommWriter<Closing>,
        agreed: (Prefix, Layout),
        is_given: bool,
    },
}

impl<'b> End<'b> {
    /// Does the handshake.
    async fn new(
        kind: Kind,
        prefix: Prefix,
        role: HandshakeRole,
        rx: Pipe,
        tx: Closing,
        [incoming, outgoing]: &'b mut [Vec<u8>; 2],
    ) -> Result<Self, CommError> {
        let handshake = Handshake::new(None);
        let prefix = match role {
            HandshakeRole::SendFirst(_) => prefix,
            // Assumed until the peer shows another one.
            HandshakeRole::WaitForPeer => Prefix::U64,
        };
        match kind {
            Kind::Fixed => {
                let options = CommOptions::LISTENER
                    .with_role(role)
                    .with_prefix(prefix)
                    .with_handshake(handshake)
                    .with_limits(LIMITS);
                let (mut rx, mut tx) = (rx, tx);
                let mut comm = Comm::new(options, incoming, outgoing)?;
                loop {
                    send(&mut comm, &mut tx).await;
                    if comm.is_open() {
                        return Ok(Self::Fixed(comm, rx, tx));
                    }
                    let Some(()) = fill(&mut comm, &mut rx).await? else {
                        comm.end()?;
                        panic!("a stream cannot end here");
                    };
                }
            }
            Kind::Arena => {
                let mut reader = embedded::MessageReader::new(rx, prefix, [0; 8 * FRAMES], LIMITS);
                let mut writer = embedded::MessageWriter::new(tx, prefix, [0; 256]);
                let shake =
                    embedded::handshake(&mut reader, &mut writer, &handshake, role, incoming);
                let agreement = shake
                    .await
                    .map_err(|error| of_embedded(error.map_io(|_| ())))?;
                let agreed = (agreement.prefix, agreement.layout);
                Ok(Self::Arena {
                    reader,
                    writer,
                    agreed,
                    storage: incoming,
                })
            }
            Kind::Own | Kind::Vectors => {
                let options = daskwire_comm::CommOptions::default()
                    .with_limits(LIMITS)
                    .with_wire(match role {
                        HandshakeRole::SendFirst(layout) => WireFormat::Fixed { prefix, layout },
                        HandshakeRole::WaitForPeer => WireFormat::Detect,
                    });
                let address: daskwire_comm::Address = "inproc://end".parse().expect("an address");
                let ends = (address.clone(), address);
                let comm = daskwire_comm::Comm::establish(rx, tx, ends, &options);
                let comm = comm.await.map_err(of_tokio)?;
                let agreed = (comm.agreement().prefix, comm.agreement().layout);
                let (reader, writer) = comm.split();
                let is_given = matches!(kind, Kind::Vectors);
                Ok(Self::Tokio {
                    reader,
                    writer,
                    agreed,
                    is_given,
                })
            }
        }
    }

    fn agreed(&self) -> (Prefix, Layout) {
        match self {
            Self::Fixed(comm, ..) => {
                let agreement = comm.agreement().expect("it is open");
                (agreement.prefix, agreement.layout)
            }
            Self::Arena { agreed, .. } | Self::Tokio { agreed, .. } => *agreed,
        }
    }

    async fn send(&mut self, frames: &[&[u8]]) -> Result<(), CommError> {
        match self {
            Self::Fixed(comm, _, tx) => {
                // What a dropped call has not sent.
                send(comm, tx).await;
                comm.send(frames)?;
                send(comm, tx).await;
                Ok(())
            }
            Self::Arena { writer, .. } => writer.write_message(frames).await.map_err(of_embedded),
            Self::Tokio { writer, .. } => writer.write_message(frames).await.map_err(of_tokio),
        }
    }

    /// Receives a message with a future that is dropped and made again.
    async fn receive(&mut self) -> Result<Option<Message>, CommError> {
        match self {
            Self::Fixed(comm, rx, _) => loop {
                if let Some((frames, _)) = comm.take_message() {
                    return Ok(Some(frames.iter().map(|frame| frame.to_vec()).collect()));
                }
                let filled = loop {
                    if let Some(filled) = polled(2, fill(comm, rx)).await {
                        break filled;
                    }
                };
                if filled?.is_none() {
                    comm.end()?;
                    return Ok(None);
                }
            },
            Self::Arena {
                reader, storage, ..
            } => {
                let mut arena = Arena::new(storage);
                let read = loop {
                    if let Some(read) = polled(2, reader.read_message(&mut arena)).await {
                        break read.map_err(of_embedded)?;
                    }
                };
                let mut slots = [&[][..]; FRAMES];
                let frames = reader
                    .prelude()
                    .and_then(|prelude| prelude.split(arena.filled(), &mut slots).ok());
                let frames = frames.unwrap_or_default().iter();
                Ok(read.map(|_| frames.map(|frame| frame.to_vec()).collect()))
            }
            Self::Tokio {
                reader,
                is_given: false,
                ..
            } => loop {
                if let Some(read) = polled(2, CommReader::read_message(reader)).await {
                    let frames = read.map_err(of_tokio)?;
                    break Ok(frames.map(|frames| frames.iter().map(|it| it.to_vec()).collect()));
                }
            },
            Self::Tokio { reader, .. } => {
                let mut frames = Vec::new();
                loop {
                    let reading =
                        daskwire::transport::CommReader::read_message(reader, &mut frames);
                    if let Some(read) = polled(2, reading).await {
                        let count = read.map_err(of_tokio)?;
                        frames.resize(count.unwrap_or_default(), Vec::new());
                        let lens = reader.prelude().into_iter().flat_map(|it| it.lengths());
                        assert!(lens.eq(frames.iter().map(|frame| frame.len() as u64)));
                        break Ok(count.map(|_| frames));
                    }
                }
            }
        }
    }
}

/// Sends what a comm has queued.
async fn send(comm: &mut Comm<'_, FRAMES>, tx: &mut Closing) {
    while !comm.unsent().is_empty() {
        let count = tx.write(comm.unsent()).await.expect("a pipe does not fail");
        comm.sent(count);
    }
}

/// Reads once; `None` at the end of the stream.
async fn fill(comm: &mut Comm<'_, FRAMES>, rx: &mut Pipe) -> Result<Option<()>, CommError> {
    match rx.read(comm.space()?).await.expect("a pipe does not fail") {
        0 => Ok(None),
        count => comm.received(count).map(Some),
    }
}

fn of_embedded<E: core::fmt::Debug>(
    error: daskwire_embedded::embedded_io_07::CommError<E>,
) -> CommError {
    match error {
        daskwire_embedded::embedded_io_07::CommError::Comm(error) => error,
        error => panic!("a pipe does not fail: {error:?}"),
    }
}

fn of_tokio(error: daskwire_comm::CommError) -> CommError {
    use daskwire_comm::{Closed as Reason, CommError as Error};
    match error {
        Error::Frame(error) => error.into(),
        Error::Handshake(error) => error.into(),
        Error::Prefix { peer } => CommError::Prefix { peer },
        Error::Encode(error) => error.into(),
        Error::Closed(Reason::BeforeHandshake) => Closed::BeforeHandshake.into(),
        Error::Closed(Reason::WithinMessage(error)) => Closed::WithinMessage(error).into(),
        Error::Closed(Reason::WriteCancelled) => Closed::WriteCancelled.into(),
        Error::Closed(Reason::AfterError) => Closed::AfterError.into(),
        error => panic!("a pipe does not fail: {error}"),
    }
}

/// Polls a future at most so many times, and drops it if it is not ready then.
async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), times);
    core::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        left -= 1;
        match left {
            0 => Poll::Ready(None),
            _ => Poll::Pending,
        }
    })
    .await
}

/// A stream of bytes within the program. A script says how many bytes an operation moves,
/// and when it waits first.
#[derive(Clone)]
struct Pipe {
    state: Arc<Mutex<PipeState>>,
}

struct PipeState {
    bytes: VecDeque<u8>,
    is_closed: bool,
    script: Vec<u8>,
    step: usize,
    has_waited: bool,
}

/// The writing side of a pipe, which closes it when it is dropped.
struct Closing(Pipe);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
    }
}

impl Pipe {
    fn new(script: &[u8]) -> Self {
        let state = PipeState {
            bytes: VecDeque::new(),
            is_closed: false,
            script: script.to_vec(),
            step: 0,
            has_waited: false,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PipeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of bytes that the next operation moves, at most.
    fn poll_step(&self, context: &Context<'_>) -> Poll<usize> {
        let state = &mut *self.lock();
        let Some(step) = state.script.get(state.step) else {
            return Poll::Ready(usize::MAX);
        };
        if step & 0xc0 == 0xc0 && !state.has_waited {
            state.has_waited = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        state.has_waited = false;
        state.step = (state.step + 1) % state.script.len();
        Poll::Ready(usize::from(step & 0x3f) + 1)
    }

    fn poll_take(&self, context: &Context<'_>, len: usize) -> Poll<Vec<u8>> {
        let is_waiting = self.lock().bytes.is_empty() && !self.lock().is_closed;
        if is_waiting {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let len = ready!(self.poll_step(context)).min(len);
        let bytes = &mut self.lock().bytes;
        let len = len.min(bytes.len());
        Poll::Ready(bytes.drain(..len).collect())
    }

    fn poll_put(&self, context: &Context<'_>, bytes: &[u8]) -> Poll<usize> {
        let len = ready!(self.poll_step(context)).min(bytes.len());
        self.lock().bytes.extend(&bytes[..len]);
        Poll::Ready(len)
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let taken = ready!(self.poll_take(context, space.remaining()));
        space.put_slice(&taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Closing {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_put(context, bytes).map(Ok)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().is_closed = true;
        Poll::Ready(Ok(()))
    }
}

impl embedded_io_async_07::ErrorType for Pipe {
    type Error = embedded_io_async_07::ErrorKind;
}

impl embedded_io_async_07::Read for Pipe {
    async fn read(&mut self, space: &mut [u8]) -> Result<usize, Self::Error> {
        let len = space.len();
        let taken = core::future::poll_fn(|context| self.poll_take(context, len)).await;
        space[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}

impl embedded_io_async_07::ErrorType for Closing {
    type Error = embedded_io_async_07::ErrorKind;
}

impl embedded_io_async_07::Write for Closing {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, Self::Error> {
        Ok(core::future::poll_fn(|context| self.0.poll_put(context, bytes)).await)
    }

    async fn flush(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}
