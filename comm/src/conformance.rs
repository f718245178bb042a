//! The conformance battery: checks that every transport must pass, those of this
//! project and those of other crates.
//!
//! The checks cover the promises of [`wire::transport`] that can be observed
//! within seconds from outside the transport, and the behaviours that Dask's own
//! tests of comms require (`distributed/comm/tests`); each check names the Dask
//! test that it corresponds to. Limits, deadlines and peers that vanish are left
//! to the tests of the transport. Call [`battery`] from a test:
//!
//! ```
//! use daskwire_comm::Inproc;
//! use daskwire_comm::conformance::{Settings, battery};
//!
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 4)]
//! # async fn main() {
//! let address = "inproc://battery".parse().expect("an address");
//! battery(Inproc, &address, Settings::default()).await;
//! # }
//! ```
//!
//! [`battery_of`] takes halves of any type ([`Pairs`]). Halves that block their
//! thread pass too, if the runtime has four threads.

use core::any::Any;
use core::fmt::Debug;
use core::future::poll_fn;
use core::panic::AssertUnwindSafe;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::panic::{catch_unwind, panic_any, resume_unwind};

use wire::transport::{CommReader, CommWriter, TransportError};

use crate::runtime::{self, Task, spawn};
use crate::{Address, CommOptions, Listener, Traffic, Transport};

/// A source of connected comms.
pub trait Pairs: Sync {
    /// The half that reads.
    type Reader: CommReader + Send + 'static;
    /// The half that writes.
    type Writer: CommWriter + Send + 'static;

    /// Makes a comm and returns its two ends, the connecting one first. On both
    /// ends handshakes are done, and messages of [`Settings::max_len`] are
    /// accepted.
    fn pair(&self) -> impl Future<Output = [(Self::Reader, Self::Writer); 2]> + Send;

    /// The expected properties of these comms.
    fn settings(&self) -> Settings {
        Settings::default()
    }
}

/// The expected properties of a transport, and the sizes of the checks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The size of the largest message, in bytes. Default: 40 MiB. Use less for slow
    /// links.
    pub max_len: usize,
    /// The most bytes that the link and all its buffers hold before a writer has to
    /// wait. Default: 64 MiB.
    pub buffered_len: usize,
    /// The number of messages that the check of their order sends. Default: 20,000.
    pub message_count: usize,
    /// The number of comms that are open at the same time. Default: 200. Use 1 for
    /// links that carry one comm.
    pub comm_count: usize,
    /// Whether reads and writes can be dropped before they are done; those that
    /// block their thread cannot. Default: `true`.
    pub is_cancellable: bool,
    /// Whether sent messages arrive if the comm is closed and then dropped while it
    /// has unread data. A socket is reset then, which independent halves cannot
    /// prevent. Default: `true`.
    pub lingers: bool,
    /// The longest time that one check may take. Default: 120 seconds.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_len: 40 << 20,
            buffered_len: 64 << 20,
            message_count: 20_000,
            comm_count: 200,
            is_cancellable: true,
            lingers: true,
            timeout: Duration::from_secs(120),
        }
    }
}

impl Settings {
    /// Settings for a slow link that holds a few hundred bytes, such as a serial line:
    /// messages of 4 KiB at most, and fewer of them.
    pub fn small() -> Self {
        Self {
            max_len: 4 << 10,
            buffered_len: 64 << 10,
            message_count: 500,
            comm_count: 10,
            ..Self::default()
        }
    }

    /// `len`, limited to the size of the largest message.
    fn len(&self, len: usize) -> usize {
        len.min(self.max_len)
    }
}

type Frames = Vec<Vec<u8>>;

/// Runs all checks on a transport, over comms with a listener at `address`.
///
/// # Panics
///
/// If a check fails; the message begins with the name of the check.
pub async fn battery(transport: impl Transport + 'static, address: &Address, settings: Settings) {
    battery_of(&Bound::new(transport, address, settings).await).await;
}

/// A transport and a listener of it, which together make comms.
pub struct Bound<T> {
    transport: T,
    listener: Listener,
    address: Address,
    settings: Settings,
}

impl<T: Transport> Bound<T> {
    /// Listens at `address`.
    ///
    /// # Panics
    ///
    /// If the listener cannot be bound.
    pub async fn new(transport: T, address: &Address, settings: Settings) -> Self {
        let listen = expect(transport.bind(address).await);
        let listener = Listener::new(listen, CommOptions::default());
        Self {
            address: expect(listener.local_address()),
            transport,
            listener,
            settings,
        }
    }

    /// The transport.
    pub const fn transport(&self) -> &T {
        &self.transport
    }
}

impl<T: Debug> Debug for Bound<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bound")
            .field("transport", &self.transport)
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl<T: Transport> Pairs for Bound<T> {
    type Reader = crate::CommReader;
    type Writer = crate::CommWriter;

    async fn pair(&self) -> [(Self::Reader, Self::Writer); 2] {
        let options = CommOptions::default();
        let near = crate::connect(&self.transport, &self.address, &options, Traffic::Normal);
        let far = async { self.listener.accept().await?.handshake().await };
        let (near, far) = tokio::join!(Box::pin(near), Box::pin(far));
        [near, far].map(|comm| expect(comm).split())
    }

    fn settings(&self) -> Settings {
        self.settings.clone()
    }
}

/// Runs all checks on comms of any type.
///
/// # Panics
///
/// If a check fails; the message begins with the name of the check.
pub async fn battery_of<T: Pairs>(pairs: &T) {
    let settings = pairs.settings();
    macro_rules! check {
        ($($name:ident),* $(,)?) => {$(
            // Boxed, because the futures of all checks together are large.
            let check = Box::pin(caught($name(pairs, &settings)));
            match runtime::timeout(settings.timeout, check).await {
                Ok(Ok(())) => {}
                Ok(Err(panic)) => fail(stringify!($name), panic),
                Err(_) => panic!(
                    "{}: not done within {:?}",
                    stringify!($name),
                    settings.timeout
                ),
            }
        )*};
    }
    check!(
        messages_of_every_shape_arrive,
        messages_stay_in_order,
        both_directions_at_once,
        messages_without_frames_are_refused,
        closing_loses_nothing,
        closing_is_seen_by_both,
        closing_leaves_the_other_direction_open,
        halves_can_be_dropped_separately,
        dropping_is_seen_by_the_peer,
        a_writer_waits_for_its_reader,
        many_comms_at_once,
    );
    if settings.lingers {
        check!(closing_with_unread_data_loses_nothing);
    }
    if settings.is_cancellable {
        check!(
            reads_are_cancel_safe,
            a_cancelled_write_ends_the_comm,
            a_pending_read_ends_with_the_peer
        );
    }
}

/// Awaits a future and catches its panic.
async fn caught<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Panics again with the name of the check in front of the message.
fn fail(check: &str, panic: Box<dyn Any + Send>) -> ! {
    let message = match panic.downcast_ref::<String>() {
        Some(message) => Some(message.as_str()),
        None => panic.downcast_ref::<&str>().copied(),
    };
    match message {
        Some(message) => panic!("{check}: {message}"),
        None => panic_any(panic),
    }
}

/// Runs a future that blocks its thread on a thread of its own.
fn spawn_blocking<V: Send + 'static>(task: impl Future<Output = V> + Send + 'static) -> Task<V> {
    runtime::spawn_blocking(move || {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(task).poll(&mut context) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("halves that block their thread are never pending"),
        }
    })
}

/// Awaits a task, and resumes its panic.
async fn join<V>(task: Task<V>) -> V {
    match task.await {
        Ok(value) => value,
        Err(error) => match error.into_panic() {
            Some(panic) => resume_unwind(panic),
            None => panic!("a task was aborted"),
        },
    }
}

/// A message of frames with these lengths, whose contents depend on `seed`.
fn message(seed: usize, lens: &[usize]) -> Frames {
    let byte = |at: usize| (at.wrapping_mul(31).wrapping_add(seed) >> 3) as u8;
    lens.iter()
        .map(|len| (0..*len).map(byte).collect())
        .collect()
}

async fn write<W: CommWriter>(writer: &mut W, frames: &Frames) -> Result<(), W::Error> {
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    writer.write_message(&slices).await
}

/// Reads the next message, including its empty frames, and checks the lengths.
async fn read<R: CommReader>(reader: &mut R) -> Result<Option<Frames>, R::Error> {
    let mut frames = Frames::new();
    let Some(count) = reader.read_message(&mut frames).await? else {
        return Ok(None);
    };
    frames.resize(count, Vec::new());
    let lengths: Vec<u64> = reader
        .prelude()
        .map(|prelude| prelude.lengths().collect())
        .unwrap_or_default();
    let found: Vec<u64> = frames.iter().map(|frame| frame.len() as u64).collect();
    assert_eq!(lengths, found, "the prelude of what was read");
    Ok(Some(frames))
}

#[track_caller]
fn expect<V, E: Debug>(outcome: Result<V, E>) -> V {
    match outcome {
        Ok(value) => value,
        Err(error) => panic!("failed: {error:?}"),
    }
}

/// Sends every message back until the peer closes, then closes.
async fn echo<R: CommReader, W: CommWriter>(mut reader: R, mut writer: W) {
    while let Some(frames) = expect(read(&mut reader).await) {
        expect(write(&mut writer, &frames).await);
    }
    expect(writer.close().await);
}

/// Messages of many shapes are echoed unchanged, also with empty frames (Dask's
/// test_tcp_client_server, test_large_transfer).
async fn messages_of_every_shape_arrive<T: Pairs>(pairs: &T, settings: &Settings) {
    let [(mut reader, mut writer), (far_reader, far_writer)] = pairs.pair().await;
    let far = spawn(echo(far_reader, far_writer));
    let many = vec![3; 2000];
    let shapes: &[&[usize]] = &[
        &[1],
        &[0],
        &[0, 0, 0],
        &[0, 5, 0, 7, 0],
        &[100],
        &[16 << 10, 1, (16 << 10) - 1],
        &[64 << 10, 0, 64 << 10],
        &[1 << 20],
        &many,
        &[10, 3 << 20, 10, 3 << 20],
        &[settings.max_len],
    ];
    let fits = |shape: &&&[usize]| shape.iter().sum::<usize>() <= settings.max_len;
    for (seed, shape) in shapes.iter().filter(fits).enumerate() {
        let sent = message(seed, shape);
        expect(write(&mut writer, &sent).await);
        let back = expect(read(&mut reader).await);
        assert!(back.as_ref() == Some(&sent), "frames of {shape:?}");
    }
    expect(writer.close().await);
    assert_eq!(expect(read(&mut reader).await), None);
    join(far).await;
}

/// Messages arrive in the order in which they were sent (Dask's
/// test_messages_are_ordered_raw).
async fn messages_stay_in_order<T: Pairs>(pairs: &T, settings: &Settings) {
    let count = settings.message_count;
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let far = spawn(async move {
        for number in 0..count {
            let frames = expect(read(&mut far_reader).await).unwrap_or_default();
            assert_eq!(frames, [number.to_le_bytes()], "message {number}");
        }
        assert_eq!(expect(read(&mut far_reader).await), None);
    });
    for number in 0..count {
        expect(writer.write_message(&[&number.to_le_bytes()]).await);
    }
    expect(writer.close().await);
    join(far).await;
}

/// Both ends write and read at the same time without a deadlock.
async fn both_directions_at_once<T: Pairs>(pairs: &T, settings: &Settings) {
    let len = settings.len(2 << 20) - 1;
    let ends = pairs.pair().await;
    let tasks = ends.map(|(mut reader, mut writer)| {
        let writing = spawn(async move {
            for seed in 0..8 {
                expect(write(&mut writer, &message(seed, &[len, 1])).await);
            }
            writer
        });
        let reading = spawn(async move {
            for seed in 0..8 {
                let frames = expect(read(&mut reader).await);
                assert!(frames == Some(message(seed, &[len, 1])), "message {seed}");
            }
            reader
        });
        (writing, reading)
    });
    let mut ends = Vec::new();
    for (writing, reading) in tasks {
        ends.push((join(writing).await, join(reading).await));
    }
    for (mut writer, _reader) in ends {
        expect(writer.close().await);
    }
}

/// A message without frames is an error of the caller, and leaves the comm usable.
async fn messages_without_frames_are_refused<T: Pairs>(pairs: &T, _: &Settings) {
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let Err(error) = writer.write_message(&[]).await else {
        panic!("a message without frames was sent");
    };
    assert!(!error.is_closed(), "{error}");
    let far = spawn(async move {
        assert_eq!(
            expect(read(&mut far_reader).await),
            Some(vec![b"after".to_vec()])
        );
    });
    expect(writer.write_message(&[b"after"]).await);
    join(far).await;
}

/// Messages that were sent before a close arrive (Dask's test_send_before_close;
/// quinn#840).
async fn closing_loses_nothing<T: Pairs>(pairs: &T, settings: &Settings) {
    const COUNT: usize = 50;
    let len = settings.len(100_000) - 10;
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let far = spawn(async move {
        // Reading starts late, so that much is unread when the writer closes.
        runtime::sleep(Duration::from_millis(50)).await;
        let mut count = 0;
        while let Some(frames) = expect(read(&mut far_reader).await) {
            assert!(frames == message(count, &[len, 10]), "message {count}");
            count += 1;
        }
        count
    });
    for seed in 0..COUNT {
        expect(write(&mut writer, &message(seed, &[len, 10])).await);
    }
    expect(writer.close().await);
    drop((writer, _reader));
    assert_eq!(join(far).await, COUNT);
}

/// An end that closes need not read what the peer still sends.
async fn closing_with_unread_data_loses_nothing<T: Pairs>(pairs: &T, settings: &Settings) {
    const COUNT: usize = 50;
    let len = settings.len(40_000) - 10;
    for writer_goes_first in [true, false] {
        let [(mut reader, mut writer), (mut far_reader, mut far_writer)] = pairs.pair().await;
        // In a task, since a link with small buffers makes the writer wait.
        let unread = spawn(async move {
            for seed in 0..5 {
                let outcome = write(&mut far_writer, &message(seed, &[1000])).await;
                if is_closed(outcome) {
                    break;
                }
            }
            far_writer
        });
        let far = spawn(async move {
            runtime::sleep(Duration::from_millis(50)).await;
            let mut count = 0;
            while let Some(frames) = expect(read(&mut far_reader).await) {
                assert!(frames == message(count, &[len, 10]), "message {count}");
                count += 1;
            }
            count
        });
        // The first message has arrived, so the next ones are being sent.
        assert!(expect(read(&mut reader).await) == Some(message(0, &[1000])));
        for seed in 0..COUNT {
            expect(write(&mut writer, &message(seed, &[len, 10])).await);
        }
        expect(writer.close().await);
        if writer_goes_first {
            drop(writer);
            drop(reader);
        } else {
            drop(reader);
            drop(writer);
        }
        assert_eq!(join(far).await, COUNT);
        // The task may wait forever, because nothing reads its messages.
        drop(unread);
    }
}

/// Whether a write failed because the peer has gone. Panics on other errors.
#[track_caller]
fn is_closed<E: TransportError>(outcome: Result<(), E>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(error) => {
            assert!(error.is_closed(), "{error}");
            true
        }
    }
}

/// Closing ends one direction; messages of the peer still arrive.
async fn closing_leaves_the_other_direction_open<T: Pairs>(pairs: &T, settings: &Settings) {
    const COUNT: usize = 50;
    let len = settings.len(100_000) - 10;
    let [(mut reader, mut writer), (mut far_reader, mut far_writer)] = pairs.pair().await;
    let far = spawn(async move {
        assert_eq!(expect(read(&mut far_reader).await), None);
        for seed in 0..COUNT {
            expect(write(&mut far_writer, &message(seed, &[len, 10])).await);
        }
        expect(far_writer.close().await);
        (far_reader, far_writer)
    });
    expect(writer.close().await);
    for seed in 0..COUNT {
        let frames = expect(read(&mut reader).await);
        assert!(frames == Some(message(seed, &[len, 10])), "message {seed}");
    }
    assert_eq!(expect(read(&mut reader).await), None);
    drop(join(far).await);
}

/// Dropping one half of a comm leaves the other half usable.
async fn halves_can_be_dropped_separately<T: Pairs>(pairs: &T, settings: &Settings) {
    const COUNT: usize = 50;
    let len = settings.len(100_000) - 10;
    let [(reader, mut writer), (mut far_reader, far_writer)] = pairs.pair().await;
    drop((reader, far_writer));
    let far = spawn(async move {
        for seed in 0..COUNT {
            let frames = expect(read(&mut far_reader).await);
            assert!(frames == Some(message(seed, &[len, 10])), "message {seed}");
        }
        assert_eq!(expect(read(&mut far_reader).await), None);
        far_reader
    });
    for seed in 0..COUNT {
        expect(write(&mut writer, &message(seed, &[len, 10])).await);
    }
    expect(writer.close().await);
    drop(join(far).await);
}

/// Both ends see a close, and later writes fail (Dask's
/// test_tcp_comm_closed_explicit, _explicit_2).
async fn closing_is_seen_by_both<T: Pairs>(pairs: &T, _: &Settings) {
    let [(mut reader, mut writer), (mut far_reader, mut far_writer)] = pairs.pair().await;
    expect(writer.close().await);
    // A second close does nothing.
    expect(writer.close().await);
    let Err(error) = writer.write_message(&[b"late"]).await else {
        panic!("a closed comm has sent a message");
    };
    assert!(error.is_closed(), "{error}");
    let far = spawn(async move {
        assert_eq!(expect(read(&mut far_reader).await), None);
        assert_eq!(expect(read(&mut far_reader).await), None, "a second time");
        expect(far_writer.close().await);
        (far_reader, far_writer)
    });
    assert_eq!(expect(read(&mut reader).await), None);
    drop(join(far).await);
}

/// Dropping a comm ends the reads and writes of the peer (Dask's
/// test_tcp_comm_closed_implicit).
async fn dropping_is_seen_by_the_peer<T: Pairs>(pairs: &T, settings: &Settings) {
    let [(mut reader, mut writer), far] = pairs.pair().await;
    drop(far);
    match read(&mut reader).await {
        Ok(None) => {}
        Ok(Some(frames)) => panic!("a message that was never sent: {frames:?}"),
        Err(error) => assert!(error.is_closed(), "{error}"),
    }
    // The first writes may still succeed.
    let data = message(0, &[settings.len(1 << 20)]);
    let error = loop {
        if let Err(error) = write(&mut writer, &data).await {
            break error;
        }
    };
    assert!(error.is_closed(), "{error}");
    let Err(error) = write(&mut writer, &data).await else {
        panic!("a comm that was lost has sent a message");
    };
    assert!(error.is_closed(), "{error}");
}

/// A writer waits while its messages are not read, so that they do not pile up in
/// memory (Dask's test_sending_traffic_jam).
async fn a_writer_waits_for_its_reader<T: Pairs>(pairs: &T, settings: &Settings) {
    let len = settings.len(1 << 20);
    let all = 2 * settings.buffered_len / len + 1;
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let (sent, mut progress) = tokio::sync::watch::channel(0);
    let writing = spawn(async move {
        let data = message(1, &[len]);
        for count in 1..=all {
            expect(write(&mut writer, &data).await);
            sent.send_replace(count);
        }
        writer
    });
    // Wait until no more messages are written.
    let still = Duration::from_millis(300);
    while let Ok(Ok(())) = runtime::timeout(still, progress.changed()).await {}
    let piled = *progress.borrow();
    assert!(
        piled < all,
        "{all} messages of {len} bytes were sent without a reader"
    );
    let far = spawn(async move {
        for _ in 0..all {
            let frames = expect(read(&mut far_reader).await).unwrap_or_default();
            assert_eq!(frames.first().map(Vec::len), Some(len));
        }
        // A reader that is dropped before the end may cause a reset.
        assert_eq!(expect(read(&mut far_reader).await), None);
    });
    expect(join(writing).await.close().await);
    join(far).await;
}

/// Many comms are open at the same time (Dask's test_tcp_specific).
async fn many_comms_at_once<T: Pairs>(pairs: &T, settings: &Settings) {
    let mut ends = Vec::new();
    let mut echoes = Vec::new();
    for _ in 0..settings.comm_count {
        let [near, (far_reader, far_writer)] = pairs.pair().await;
        ends.push(near);
        if settings.is_cancellable {
            echoes.push(spawn(echo(far_reader, far_writer)));
        } else {
            // A half that blocks needs a thread.
            echoes.push(spawn_blocking(echo(far_reader, far_writer)));
        }
    }
    for (number, (_, writer)) in ends.iter_mut().enumerate() {
        expect(write(writer, &message(number, &[10, 1000])).await);
    }
    for (number, (reader, _)) in ends.iter_mut().enumerate() {
        let frames = expect(read(reader).await);
        assert!(
            frames == Some(message(number, &[10, 1000])),
            "comm {number}"
        );
    }
    for (_, writer) in &mut ends {
        expect(writer.close().await);
    }
    for (reader, _) in &mut ends {
        assert_eq!(expect(read(reader).await), None);
    }
    for echo in echoes {
        join(echo).await;
    }
}

/// A read that is dropped at any point loses nothing (unlike Dask's
/// test_comm_closed_on_read_error).
async fn reads_are_cancel_safe<T: Pairs>(pairs: &T, settings: &Settings) {
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let len = settings.len(70_000) - 8;
    let writing = spawn(async move {
        for seed in 0..40 {
            expect(write(&mut writer, &message(seed, &[3, 0, len, 5])).await);
            if seed % 4 == 0 {
                runtime::sleep(Duration::from_millis(1)).await;
            }
        }
        expect(writer.close().await);
    });
    let mut dropped = 0_usize;
    for seed in 0..40 {
        let mut frames = Frames::new();
        let outcome = loop {
            let mut future = pin!(far_reader.read_message(&mut frames));
            // Poll once, then drop the future.
            let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
            if let Poll::Ready(outcome) = polled {
                break outcome;
            }
            dropped += 1;
            tokio::task::yield_now().await;
        };
        assert_eq!(expect(outcome), Some(4), "frames of message {seed}");
        assert!(frames == message(seed, &[3, 0, len, 5]), "message {seed}");
    }
    assert_eq!(expect(read(&mut far_reader).await), None);
    assert!(dropped > 0, "no read was dropped");
    join(writing).await;
}

/// A write that is dropped within a message is the last one of its comm.
async fn a_cancelled_write_ends_the_comm<T: Pairs>(pairs: &T, settings: &Settings) {
    // A link that is full at the end of a message takes nothing of the next one, whose
    // write is then dropped without effect. It is not full there for both lengths.
    let mut has_ended = false;
    for len in [settings.max_len, settings.max_len - 1] {
        has_ended |= cancel_a_write(pairs, settings, len).await;
    }
    assert!(has_ended, "a write that waits sends nothing");
}

/// Writes messages without a reader and drops the first write that has to wait.
/// Returns whether this has ended the comm.
async fn cancel_a_write<T: Pairs>(pairs: &T, settings: &Settings, len: usize) -> bool {
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = pairs.pair().await;
    let sent = message(0, &[len]);
    let mut count = 0;
    let pause = Duration::from_millis(200);
    while let Ok(outcome) = runtime::timeout(pause, Box::pin(write(&mut writer, &sent))).await {
        expect(outcome);
        count += 1;
        assert!(
            count * len <= settings.buffered_len,
            "{count} messages of {len} bytes were sent without a reader"
        );
    }
    let far = spawn(async move {
        let mut arrived = 0;
        loop {
            match read(&mut far_reader).await {
                Ok(Some(frames)) if frames == [b"after"] => return (arrived, true),
                Ok(Some(frames)) => {
                    assert!(frames == message(0, &[len]), "message {arrived}");
                    arrived += 1;
                }
                Ok(None) => panic!("part of a message has arrived as the end of the comm"),
                Err(error) => {
                    assert!(error.is_closed(), "{error}");
                    return (arrived, false);
                }
            }
        }
    });
    let has_ended = match writer.write_message(&[b"after"]).await {
        Ok(()) => {
            expect(writer.close().await);
            false
        }
        Err(error) => {
            assert!(error.is_closed(), "{error}");
            true
        }
    };
    // The reading half is kept.
    drop(writer);
    let (arrived, has_continued) = join(far).await;
    assert_eq!(has_continued, !has_ended);
    // Dropping a writer may lose messages.
    assert!(
        arrived == count || has_ended && arrived < count,
        "{arrived} of {count} messages"
    );
    has_ended
}

/// A pending read ends when the peer goes (Dask's test_close_properly).
async fn a_pending_read_ends_with_the_peer<T: Pairs>(pairs: &T, _: &Settings) {
    let [(mut reader, _writer), far] = pairs.pair().await;
    let mut reading = spawn(async move { read(&mut reader).await.map(|frames| frames.is_none()) });
    let early = runtime::timeout(Duration::from_millis(50), &mut reading).await;
    assert!(early.is_err(), "there was something to read");
    drop(far);
    match join(reading).await {
        Ok(is_end) => assert!(is_end, "a message that was never sent"),
        Err(error) => assert!(error.is_closed(), "{error}"),
    }
}

/// Checks that a peer that dies within a message of 1 MiB, at `count` random
/// positions, is noticed: the reader gets an error within a second, and nothing of
/// the message.
///
/// This check is not part of the battery, because it writes incomplete messages and
/// therefore needs the halves of this crate.
///
/// # Panics
///
/// If the check fails.
pub async fn peers_that_die_are_noticed<T>(pairs: &T, count: usize)
where
    T: Pairs<Reader = crate::CommReader, Writer = crate::CommWriter>,
{
    const LEN: usize = 1 << 20;
    let frame = vec![7; LEN];
    let mut bytes = Vec::new();
    for number in [16 + LEN, 1, LEN] {
        bytes.extend((number as u64).to_le_bytes());
    }
    bytes.extend(&frame);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..count {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Every position in the prelude, then random ones.
        let len = match number {
            0..24 => number + 1,
            _ => 1 + random as usize % (bytes.len() - 1),
        };
        let [(mut reader, _writer), (far_reader, far_writer)] = pairs.pair().await;
        let mut io = far_writer.into_inner();
        let dying = async {
            use tokio::io::AsyncWriteExt as _;
            expect(io.write_all(&bytes[..len]).await);
            expect(io.flush().await);
            drop((io, far_reader));
            runtime::now()
        };
        let surviving = async {
            let outcome = reader.read_message().await;
            (outcome, runtime::now())
        };
        let both = async { tokio::join!(dying, surviving) };
        let Ok((death, (outcome, noticed))) =
            runtime::timeout(pairs.settings().timeout, both).await
        else {
            panic!("a death after {len} bytes went unnoticed");
        };
        let late = noticed.saturating_duration_since(death);
        assert!(late < Duration::from_secs(1), "noticed after {late:?}");
        match outcome {
            Err(error) => assert!(error.is_closed(), "after {len} bytes: {error}"),
            Ok(frames) => panic!("after {len} bytes: {frames:?} of half a message"),
        }
    }
}

/// Resources of the process.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
struct Holdings {
    file_count: usize,
    resident_len: usize,
}

#[cfg(target_os = "linux")]
impl Holdings {
    fn now() -> Self {
        let file_count = expect(std::fs::read_dir("/proc/self/fd")).count();
        let status = expect(std::fs::read_to_string("/proc/self/status"));
        let kibibytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"))
            .and_then(|number| number.trim().parse::<usize>().ok());
        Self {
            file_count,
            resident_len: kibibytes.unwrap_or_default() << 10,
        }
    }
}

/// Checks that closed comms release all their resources. Opens `comm_count` comms at
/// the same time, echoes 100 messages on each and closes them: each time the process
/// has no more open files afterwards than before, within 1 %, and after one of up to
/// eight rounds no more memory than after those before it, from the second on, within
/// 5 %.
///
/// This check is not part of the battery, because it measures the whole process, in
/// which nothing else may run. Linux only.
///
/// # Panics
///
/// If the check fails, or a message is lost.
#[cfg(target_os = "linux")]
pub async fn nothing_is_left_of_many_comms<T: Pairs>(pairs: &T, comm_count: usize) {
    const ECHO_COUNT: usize = 100;
    const MAX_ROUND_COUNT: usize = 8;
    // Resources that the transport itself keeps, and one-time allocations.
    drop(pairs.pair().await);
    let mut warm: Option<Holdings> = None;
    let before = settled(None).await;
    for round in 0..MAX_ROUND_COUNT {
        let mut tasks = Vec::new();
        for number in 0..comm_count {
            let [(mut reader, mut writer), (far_reader, far_writer)] = pairs.pair().await;
            tasks.push(spawn(echo(far_reader, far_writer)));
            tasks.push(spawn(async move {
                for seed in number..number + ECHO_COUNT {
                    let sent = message(seed, &[10, 100]);
                    expect(write(&mut writer, &sent).await);
                    let back = expect(read(&mut reader).await);
                    assert!(back == Some(sent), "comm {number}");
                }
                expect(writer.close().await);
                assert_eq!(expect(read(&mut reader).await), None);
            }));
        }
        for task in tasks {
            join(task).await;
        }
        let after = settled(Some(before)).await;
        let max_file_count = before.file_count + before.file_count.div_ceil(100);
        assert!(
            after.file_count <= max_file_count,
            "round {round}: {after:?}, and before the first {before:?}"
        );
        match warm {
            // The allocator needs two rounds to warm up.
            None if round == 0 => {}
            None => warm = Some(after),
            // What the allocator keeps varies; a leak grows in every round.
            Some(largest)
                if after.resident_len <= largest.resident_len + largest.resident_len / 20 =>
            {
                return;
            }
            Some(largest) => {
                assert!(
                    round + 1 < MAX_ROUND_COUNT,
                    "round {round}: {after:?}, and before it at most {largest:?}"
                );
                warm = Some(after);
            }
        }
    }
}

/// Waits up to 5 seconds until the process has no more open files than `before`, and
/// returns its resources.
#[cfg(target_os = "linux")]
async fn settled(before: Option<Holdings>) -> Holdings {
    for _ in 0..50 {
        runtime::sleep(Duration::from_millis(100)).await;
        let now = Holdings::now();
        if before.is_none_or(|before| now.file_count <= before.file_count) {
            return now;
        }
    }
    Holdings::now()
}
