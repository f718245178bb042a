//! What every transport must do, as one battery of checks that any transport
//! can be put through: those of this project, and your own.
//!
//! The checks are those promises of [`wire::transport`] that show themselves
//! within seconds and without help from inside, and the behaviours that Dask's
//! own comm tests ask of its transports (`distributed/comm/tests`); each names
//! the one that it stands for. What a transport does about limits, deadlines and
//! peers that vanish is for tests of its own. Implement [`Transport`] and
//! call [`battery`] from a test:
//!
//! ```
//! use daskwire_comm::conformance::{Transport, battery};
//! use daskwire_comm::{CommReader, CommWriter};
//! use tokio::io::DuplexStream;
//! use wire::{Limits, frame::Prefix};
//!
//! /// Comms over pairs of pipes.
//! struct Pipes;
//!
//! impl Transport for Pipes {
//!     type Reader = CommReader<DuplexStream>;
//!     type Writer = CommWriter<DuplexStream>;
//!
//!     async fn pair(&self) -> [(Self::Reader, Self::Writer); 2] {
//!         // One for each direction, so that the end of a half is the end of
//!         // its pipe.
//!         let (near_writer, far_reader) = tokio::io::duplex(64 << 10);
//!         let (far_writer, near_reader) = tokio::io::duplex(64 << 10);
//!         [(near_reader, near_writer), (far_reader, far_writer)].map(|(reader, writer)| {
//!             let reader = CommReader::new(reader, Prefix::U64, Limits::HOST);
//!             (reader, CommWriter::new(writer, Prefix::U64))
//!         })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 4)]
//! # async fn main() {
//! battery(&Pipes).await;
//! # }
//! ```
//!
//! Halves that block their thread pass too, if the runtime has four threads; so
//! do links that hold only some bytes before a writer has to wait.

use core::fmt::Debug;
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;

use wire::transport::{CommReader, CommWriter, TransportError};

/// How to make comms of a transport.
pub trait Transport: Sync {
    /// The half that reads.
    type Reader: CommReader + Send + 'static;
    /// The half that writes.
    type Writer: CommWriter + Send + 'static;

    /// The two ends of a new comm, the one that asked for it first. Both have
    /// done what comes before messages, such as a handshake, and accept
    /// messages of 128 MiB.
    fn pair(&self) -> impl Future<Output = [(Self::Reader, Self::Writer); 2]> + Send;

    /// Whether reads and writes can be dropped before they are done. Those
    /// that block their thread cannot.
    fn is_cancellable(&self) -> bool {
        true
    }

    /// Whether what was sent arrives if the comm was closed and then dropped with
    /// something unread in it. Halves that know nothing of each other, and sit on
    /// a socket that is reset then, cannot help it.
    fn lingers(&self) -> bool {
        true
    }

    /// How many comms to have at the same time.
    fn comm_count(&self) -> usize {
        200
    }
}

type Frames = Vec<Vec<u8>>;

/// No check takes longer than this.
const PATIENCE: Duration = Duration::from_secs(120);

/// Puts a transport through all checks.
///
/// # Panics
///
/// If it fails one, with the name of the check.
pub async fn battery<T: Transport>(transport: &T) {
    macro_rules! check {
        ($($name:ident),* $(,)?) => {$(
            let check = $name(transport);
            if tokio::time::timeout(PATIENCE, check).await.is_err() {
                panic!("{}: not done within {PATIENCE:?}", stringify!($name));
            }
        )*};
    }
    check!(
        messages_of_every_shape_arrive,
        messages_stay_in_order,
        both_directions_at_once,
        a_message_without_frames_is_refused_and_nothing_else,
        closing_loses_nothing,
        closing_is_seen_by_both,
        what_was_sent_before_a_close_is_read_after_it,
        a_half_can_go_before_the_other,
        dropping_is_seen_by_the_peer,
        a_writer_waits_for_its_reader,
        many_comms_at_once,
    );
    if transport.lingers() {
        check!(closing_with_something_unread_loses_nothing);
    }
    if transport.is_cancellable() {
        check!(
            reads_may_be_dropped_at_any_time,
            a_dropped_write_poisons,
            a_pending_read_ends_with_the_peer
        );
    }
}

/// A message of frames with these lengths, different for each `seed`.
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

/// The next message. The buffers are filled, and empty frames are added.
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

async fn join<V>(task: tokio::task::JoinHandle<V>) -> V {
    match task.await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Sends back what comes until the peer closes, then closes.
async fn echo<R: CommReader, W: CommWriter>(mut reader: R, mut writer: W) {
    while let Some(frames) = expect(read(&mut reader).await) {
        expect(write(&mut writer, &frames).await);
    }
    expect(writer.close().await);
}

/// test_tcp_client_server, test_large_transfer, zero-length frames.
async fn messages_of_every_shape_arrive<T: Transport>(transport: &T) {
    let [(mut reader, mut writer), (far_reader, far_writer)] = transport.pair().await;
    let far = tokio::spawn(echo(far_reader, far_writer));
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
        &[40 << 20],
    ];
    for (seed, shape) in shapes.iter().enumerate() {
        let sent = message(seed, shape);
        expect(write(&mut writer, &sent).await);
        let back = expect(read(&mut reader).await);
        assert!(back.as_ref() == Some(&sent), "frames of {shape:?}");
    }
    expect(writer.close().await);
    assert_eq!(expect(read(&mut reader).await), None);
    join(far).await;
}

/// test_messages_are_ordered_raw.
async fn messages_stay_in_order<T: Transport>(transport: &T) {
    const COUNT: usize = 20_000;
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = transport.pair().await;
    let far = tokio::spawn(async move {
        for number in 0..COUNT {
            let frames = expect(read(&mut far_reader).await).unwrap_or_default();
            assert_eq!(frames, [number.to_le_bytes()], "message {number}");
        }
        assert_eq!(expect(read(&mut far_reader).await), None);
    });
    for number in 0..COUNT {
        expect(writer.write_message(&[&number.to_le_bytes()]).await);
    }
    expect(writer.close().await);
    join(far).await;
}

/// Neither side waits for the other to read before it reads itself.
async fn both_directions_at_once<T: Transport>(transport: &T) {
    let ends = transport.pair().await;
    let tasks = ends.map(|(mut reader, mut writer)| {
        let writing = tokio::spawn(async move {
            for seed in 0..8 {
                expect(write(&mut writer, &message(seed, &[2 << 20, 1])).await);
            }
            writer
        });
        let reading = tokio::spawn(async move {
            for seed in 0..8 {
                let frames = expect(read(&mut reader).await);
                assert!(
                    frames == Some(message(seed, &[2 << 20, 1])),
                    "message {seed}"
                );
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

/// The error is the caller's; the comm is as good as before.
async fn a_message_without_frames_is_refused_and_nothing_else<T: Transport>(transport: &T) {
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = transport.pair().await;
    let Err(error) = writer.write_message(&[]).await else {
        panic!("a message without frames was sent");
    };
    assert!(!error.is_closed(), "{error}");
    let far = tokio::spawn(async move {
        assert_eq!(
            expect(read(&mut far_reader).await),
            Some(vec![b"after".to_vec()])
        );
    });
    expect(writer.write_message(&[b"after"]).await);
    join(far).await;
}

/// test_send_before_close; quinn#840 and its like.
async fn closing_loses_nothing<T: Transport>(transport: &T) {
    const COUNT: usize = 50;
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = transport.pair().await;
    let far = tokio::spawn(async move {
        // Late, so that there is a lot on its way when the end comes.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut count = 0;
        while let Some(frames) = expect(read(&mut far_reader).await) {
            assert!(frames == message(count, &[100_000, 10]), "message {count}");
            count += 1;
        }
        count
    });
    for seed in 0..COUNT {
        expect(write(&mut writer, &message(seed, &[100_000, 10])).await);
    }
    expect(writer.close().await);
    drop((writer, _reader));
    assert_eq!(join(far).await, COUNT);
}

/// A side that closes need not read what the peer still sends.
async fn closing_with_something_unread_loses_nothing<T: Transport>(transport: &T) {
    const COUNT: usize = 50;
    for writer_goes_first in [true, false] {
        let [(mut reader, mut writer), (mut far_reader, mut far_writer)] = transport.pair().await;
        // The link may hold little, so that this waits for its reader.
        let unread = tokio::spawn(async move {
            for seed in 0..5 {
                let outcome = write(&mut far_writer, &message(seed, &[1000])).await;
                if is_closed(outcome) {
                    break;
                }
            }
            far_writer
        });
        let far = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let mut count = 0;
            while let Some(frames) = expect(read(&mut far_reader).await) {
                assert!(frames == message(count, &[40_000, 10]), "message {count}");
                count += 1;
            }
            count
        });
        // One has arrived, so the next is on its way or will be.
        assert!(expect(read(&mut reader).await) == Some(message(0, &[1000])));
        for seed in 0..COUNT {
            expect(write(&mut writer, &message(seed, &[40_000, 10])).await);
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
        is_closed(join(unread).await.close().await);
    }
}

/// Whether this failed because the peer has gone.
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

/// Closing ends what this side says; the peer may not be done yet.
async fn what_was_sent_before_a_close_is_read_after_it<T: Transport>(transport: &T) {
    const COUNT: usize = 50;
    let [(mut reader, mut writer), (mut far_reader, mut far_writer)] = transport.pair().await;
    let far = tokio::spawn(async move {
        assert_eq!(expect(read(&mut far_reader).await), None);
        for seed in 0..COUNT {
            expect(write(&mut far_writer, &message(seed, &[100_000, 10])).await);
        }
        expect(far_writer.close().await);
        (far_reader, far_writer)
    });
    expect(writer.close().await);
    for seed in 0..COUNT {
        let frames = expect(read(&mut reader).await);
        assert!(
            frames == Some(message(seed, &[100_000, 10])),
            "message {seed}"
        );
    }
    assert_eq!(expect(read(&mut reader).await), None);
    drop(join(far).await);
}

/// The halves of a comm live on their own: one that is dropped leaves the other
/// as it was.
async fn a_half_can_go_before_the_other<T: Transport>(transport: &T) {
    const COUNT: usize = 50;
    let [(reader, mut writer), (mut far_reader, far_writer)] = transport.pair().await;
    drop((reader, far_writer));
    let far = tokio::spawn(async move {
        for seed in 0..COUNT {
            let frames = expect(read(&mut far_reader).await);
            assert!(
                frames == Some(message(seed, &[100_000, 10])),
                "message {seed}"
            );
        }
        assert_eq!(expect(read(&mut far_reader).await), None);
        far_reader
    });
    for seed in 0..COUNT {
        expect(write(&mut writer, &message(seed, &[100_000, 10])).await);
    }
    expect(writer.close().await);
    drop(join(far).await);
}

/// test_tcp_comm_closed_explicit, _explicit_2.
async fn closing_is_seen_by_both<T: Transport>(transport: &T) {
    let [(mut reader, mut writer), (mut far_reader, mut far_writer)] = transport.pair().await;
    expect(writer.close().await);
    // Closing twice is closing once.
    expect(writer.close().await);
    let Err(error) = writer.write_message(&[b"late"]).await else {
        panic!("a closed comm has sent a message");
    };
    assert!(error.is_closed(), "{error}");
    let far = tokio::spawn(async move {
        assert_eq!(expect(read(&mut far_reader).await), None);
        assert_eq!(expect(read(&mut far_reader).await), None, "a second time");
        expect(far_writer.close().await);
        (far_reader, far_writer)
    });
    assert_eq!(expect(read(&mut reader).await), None);
    drop(join(far).await);
}

/// test_tcp_comm_closed_implicit.
async fn dropping_is_seen_by_the_peer<T: Transport>(transport: &T) {
    let [(mut reader, mut writer), far] = transport.pair().await;
    drop(far);
    match read(&mut reader).await {
        Ok(None) => {}
        Ok(Some(frames)) => panic!("a message from nobody: {frames:?}"),
        Err(error) => assert!(error.is_closed(), "{error}"),
    }
    // What is written first may still be taken for good.
    let data = message(0, &[1 << 20]);
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

/// test_sending_traffic_jam: what nobody reads is not piled up here.
async fn a_writer_waits_for_its_reader<T: Transport>(transport: &T) {
    const LEN: usize = 1 << 20;
    const COUNT: usize = 256;
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = transport.pair().await;
    let (sent, mut progress) = tokio::sync::watch::channel(0);
    let writing = tokio::spawn(async move {
        let data = message(1, &[LEN]);
        for count in 1..=COUNT {
            expect(write(&mut writer, &data).await);
            sent.send_replace(count);
        }
        writer
    });
    // Until nothing happens any more.
    let still = Duration::from_millis(300);
    while let Ok(Ok(())) = tokio::time::timeout(still, progress.changed()).await {}
    let piled = *progress.borrow();
    assert!(piled < COUNT, "{COUNT} MiB were sent and nobody has read");
    let far = tokio::spawn(async move {
        for _ in 0..COUNT {
            let frames = expect(read(&mut far_reader).await).unwrap_or_default();
            assert_eq!(frames.first().map(Vec::len), Some(LEN));
        }
        // Whoever leaves before the end may be taken for one who has not read it all.
        assert_eq!(expect(read(&mut far_reader).await), None);
    });
    expect(join(writing).await.close().await);
    join(far).await;
}

/// test_tcp_specific with its 100 clients.
async fn many_comms_at_once<T: Transport>(transport: &T) {
    let mut ends = Vec::new();
    let mut echoes = Vec::new();
    for _ in 0..transport.comm_count() {
        let [near, (far_reader, far_writer)] = transport.pair().await;
        ends.push(near);
        if transport.is_cancellable() {
            echoes.push(tokio::spawn(echo(far_reader, far_writer)));
        } else {
            // It has a thread of its own while it waits.
            echoes.push(tokio::task::spawn_blocking(move || {
                tokio::runtime::Handle::current().block_on(echo(far_reader, far_writer));
            }));
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

/// test_comm_closed_on_read_error, but better: a read that was dropped goes on.
async fn reads_may_be_dropped_at_any_time<T: Transport>(transport: &T) {
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = transport.pair().await;
    let writing = tokio::spawn(async move {
        for seed in 0..40 {
            expect(write(&mut writer, &message(seed, &[3, 0, 70_000, 5])).await);
            if seed % 4 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        expect(writer.close().await);
    });
    let mut dropped = 0_usize;
    for seed in 0..40 {
        let mut frames = Frames::new();
        let outcome = loop {
            let mut future = pin!(far_reader.read_message(&mut frames));
            // Polled once and dropped, however far it has come.
            let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
            if let Poll::Ready(outcome) = polled {
                break outcome;
            }
            dropped += 1;
            tokio::task::yield_now().await;
        };
        assert_eq!(expect(outcome), Some(4), "frames of message {seed}");
        assert!(
            frames == message(seed, &[3, 0, 70_000, 5]),
            "message {seed}"
        );
    }
    assert_eq!(expect(read(&mut far_reader).await), None);
    assert!(dropped > 0, "no read was dropped");
    join(writing).await;
}

/// A write that is dropped in the middle is the last of its comm.
async fn a_dropped_write_poisons<T: Transport>(transport: &T) {
    let [(_reader, mut writer), (mut far_reader, _far_writer)] = transport.pair().await;
    let large = message(0, &[100 << 20]);
    {
        let mut future = pin!(write(&mut writer, &large));
        // Nobody reads, so it gets stuck.
        let waited = tokio::time::timeout(Duration::from_millis(200), &mut future).await;
        assert!(waited.is_err(), "100 MiB were sent and nobody has read");
    }
    let Err(error) = writer.write_message(&[b"after"]).await else {
        panic!("a message was sent behind half of another one");
    };
    assert!(error.is_closed(), "{error}");
    // The other half stays.
    drop(writer);
    match read(&mut far_reader).await {
        Err(error) => assert!(error.is_closed(), "{error}"),
        Ok(frames) => panic!(
            "half a message has arrived as {:?}",
            frames.map(|f| f.len())
        ),
    }
}

/// test_close_properly: whoever waits for a message learns of the end.
async fn a_pending_read_ends_with_the_peer<T: Transport>(transport: &T) {
    let [(mut reader, _writer), far] = transport.pair().await;
    let reading =
        tokio::spawn(async move { read(&mut reader).await.map(|frames| frames.is_none()) });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!reading.is_finished(), "there was something to read");
    drop(far);
    match join(reading).await {
        Ok(is_end) => assert!(is_end, "a message from nobody"),
        Err(error) => assert!(error.is_closed(), "{error}"),
    }
}

/// Lets a peer die in the middle of a message of 1 MiB, at `count` random places
/// in its bytes: this side learns within a second that the comm is over, and
/// gets nothing of the message.
///
/// A check of its own, since it has to write what is no message: it takes halves
/// of this crate, which all of its transports have.
///
/// # Panics
///
/// If that is not so.
pub async fn peers_that_die_are_noticed<T>(transport: &T, count: usize)
where
    T: Transport<Reader = crate::CommReader, Writer = crate::CommWriter>,
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
        // Every place in the prelude, then anywhere.
        let len = match number {
            0..24 => number + 1,
            _ => 1 + random as usize % (bytes.len() - 1),
        };
        let [(mut reader, _writer), (far_reader, far_writer)] = transport.pair().await;
        let mut io = far_writer.into_inner();
        let dying = async {
            use tokio::io::AsyncWriteExt as _;
            expect(io.write_all(&bytes[..len]).await);
            expect(io.flush().await);
            drop((io, far_reader));
            tokio::time::Instant::now()
        };
        let surviving = async {
            let outcome = reader.read_message().await;
            (outcome, tokio::time::Instant::now())
        };
        let both = async { tokio::join!(dying, surviving) };
        let Ok((death, (outcome, noticed))) = tokio::time::timeout(PATIENCE, both).await else {
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

/// What a process holds on to.
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

/// Has `comm_count` comms at the same time, sends 100 messages there and back on
/// each, and ends them all, three times: after that the process has no more files
/// open than before, within 1 %, and no more memory than after the second time,
/// within 5 %.
///
/// A check of its own, since nothing else may go on in its process. On Linux.
///
/// # Panics
///
/// If that is not so, or a message is lost.
#[cfg(target_os = "linux")]
pub async fn nothing_is_left_of_many_comms<T: Transport>(transport: &T, comm_count: usize) {
    const ECHO_COUNT: usize = 100;
    // What the transport itself holds on to, and what is got once.
    drop(transport.pair().await);
    let mut warm: Option<Holdings> = None;
    let before = settled(None).await;
    for round in 0..3 {
        let mut tasks = Vec::new();
        for number in 0..comm_count {
            let [(mut reader, mut writer), (far_reader, far_writer)] = transport.pair().await;
            tasks.push(tokio::spawn(echo(far_reader, far_writer)));
            tasks.push(tokio::spawn(async move {
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
        let most = before.file_count + before.file_count.div_ceil(100);
        assert!(
            after.file_count <= most,
            "round {round}: {after:?}, and before the first {before:?}"
        );
        match warm {
            // Allocators take two rounds until they have what they need.
            None if round == 0 => {}
            None => warm = Some(after),
            Some(warm) => assert!(
                after.resident_len <= warm.resident_len + warm.resident_len / 20,
                "round {round}: {after:?}, and before it {warm:?}"
            ),
        }
    }
}

/// What the process holds on to once it has come to rest, with no more files than
/// `before` if that is to be had.
#[cfg(target_os = "linux")]
async fn settled(before: Option<Holdings>) -> Holdings {
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = Holdings::now();
        if before.is_none_or(|before| now.file_count <= before.file_count) {
            return now;
        }
    }
    Holdings::now()
}
