//! Messages over loopback TCP, against raw tokio and the codec of tokio-util.
//!
//! `cargo bench -p daskwire-tcp --bench tcp`
//!
//! Every contestant has its own connection; in each round all of them transfer the
//! same message, one after the other. A figure is the ratio of our time to that of
//! raw tokio (1.00 is as fast, less is faster): the median of all rounds, with
//! minimum and maximum. Raw tokio writes the same prelude and payload with
//! `write_all`, and reads them into a buffer that it reuses; a small message takes one
//! write and one read. `in parts` writes 1 MiB at a time, as a comm does.
#![allow(missing_docs)]

use std::future::Future;
use std::time::{Duration, Instant};

use daskwire::Limits;
use daskwire::frame::{Arena, Prefix, encode_prelude};
use daskwire_comm::{BufferPool, CommReader, CommWriter};
use daskwire_testing::bench::{median, show_ratios};
use futures_util::{SinkExt, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

const LARGE: usize = 64 << 20;
const SMALL: usize = 100;
const PRELUDE_LEN: usize = 24;

fn prelude(len: usize) -> [u8; PRELUDE_LEN] {
    let mut out = [0; PRELUDE_LEN];
    encode_prelude(Prefix::U64, [len as u64], &mut out).expect("room for it");
    out
}

/// A receiver of messages.
trait Sink: Send + 'static {
    fn receive(&mut self) -> impl Future<Output = usize> + Send;
}

/// A sender of messages.
trait Source {
    async fn send(&mut self, payload: &daskwire_comm::Bytes);
}

struct Raw {
    io: OwnedReadHalf,
    buffer: Vec<u8>,
}

impl Sink for Raw {
    async fn receive(&mut self) -> usize {
        if self.buffer.len() == SMALL {
            let mut both = [0; PRELUDE_LEN + SMALL];
            self.io.read_exact(&mut both).await.expect("it arrives");
            return SMALL;
        }
        let mut head = [0; PRELUDE_LEN];
        self.io.read_exact(&mut head).await.expect("it arrives");
        self.io
            .read_exact(&mut self.buffer)
            .await
            .expect("it arrives");
        self.buffer.len()
    }
}

/// A receiver over raw tokio with new memory for each message.
struct RawFresh(OwnedReadHalf, usize);

impl Sink for RawFresh {
    async fn receive(&mut self) -> usize {
        let mut head = [0; PRELUDE_LEN];
        self.0.read_exact(&mut head).await.expect("it arrives");
        let mut buffer = Vec::with_capacity(self.1);
        while buffer.len() < self.1 {
            let mut rest = (&mut self.0).take((self.1 - buffer.len()) as u64);
            rest.read_buf(&mut buffer).await.expect("it arrives");
        }
        buffer.len()
    }
}

impl Source for OwnedWriteHalf {
    async fn send(&mut self, payload: &daskwire_comm::Bytes) {
        if payload.len() == SMALL {
            let mut both = [0; PRELUDE_LEN + SMALL];
            both[..PRELUDE_LEN].copy_from_slice(&prelude(SMALL));
            both[PRELUDE_LEN..].copy_from_slice(payload);
            return self.write_all(&both).await.expect("it is taken");
        }
        self.write_all(&prelude(payload.len()))
            .await
            .expect("it is taken");
        self.write_all(payload).await.expect("it is taken");
    }
}

/// A sender over raw tokio that writes parts of 1 MiB.
struct RawParts(OwnedWriteHalf);

impl Source for RawParts {
    async fn send(&mut self, payload: &daskwire_comm::Bytes) {
        if payload.len() == SMALL {
            return self.0.send(payload).await;
        }
        let prelude = prelude(payload.len());
        self.0.write_all(&prelude).await.expect("it is taken");
        for part in payload.chunks(1 << 20) {
            self.0.write_all(part).await.expect("it is taken");
        }
    }
}

/// A comm that receives into a buffer of the caller.
struct ReusedBuffer {
    comm: CommReader<OwnedReadHalf>,
    buffer: Vec<u8>,
}

impl Sink for ReusedBuffer {
    async fn receive(&mut self) -> usize {
        let mut arena = Arena::new(&mut self.buffer);
        daskwire::transport::CommReader::read_message(&mut self.comm, &mut arena)
            .await
            .expect("it arrives")
            .expect("one more");
        arena.filled().len()
    }
}

/// A comm with new memory for each message.
struct Fresh(CommReader<OwnedReadHalf>);

impl Sink for Fresh {
    async fn receive(&mut self) -> usize {
        let frames = self.0.read_message().await.expect("it arrives");
        frames.expect("one more")[0].len()
    }
}

impl Source for CommWriter<OwnedWriteHalf> {
    async fn send(&mut self, payload: &daskwire_comm::Bytes) {
        self.write_message(&[payload]).await.expect("it is taken");
    }
}

struct Delimited(FramedRead<OwnedReadHalf, LengthDelimitedCodec>);

impl Sink for Delimited {
    async fn receive(&mut self) -> usize {
        let frame = self.0.next().await.expect("one more");
        frame.expect("it arrives").len()
    }
}

impl Source for FramedWrite<OwnedWriteHalf, LengthDelimitedCodec> {
    async fn send(&mut self, payload: &daskwire_comm::Bytes) {
        SinkExt::send(self, payload.clone())
            .await
            .expect("it is taken");
    }
}

/// Both ends of a connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (near, far) = (near.expect("it connects"), far.expect("it connects").0);
    near.set_nodelay(true).expect("an option");
    far.set_nodelay(true).expect("an option");
    (near, far)
}

/// A connection for messages in one direction. Each `len` bytes that the sink counts are answered
/// with a byte.
struct Lane<S> {
    source: S,
    answers: OwnedReadHalf,
    sink: tokio::task::JoinHandle<()>,
}

impl<S> Drop for Lane<S> {
    fn drop(&mut self) {
        self.sink.abort();
    }
}

impl<S: Source> Lane<S> {
    async fn new<R: Sink>(
        source: impl FnOnce(OwnedWriteHalf) -> S,
        sink: impl FnOnce(OwnedReadHalf) -> R,
        len: usize,
    ) -> Self {
        let (near, far) = pair().await;
        let (answers, writer) = near.into_split();
        let (reader, mut answer) = far.into_split();
        let mut sink = sink(reader);
        let sink = tokio::spawn(async move {
            loop {
                let mut left = len;
                while left != 0 {
                    left -= sink.receive().await;
                }
                if answer.write_all(&[1]).await.is_err() {
                    break;
                }
            }
        });
        Self {
            source: source(writer),
            answers,
            sink,
        }
    }

    async fn round(&mut self, payload: &daskwire_comm::Bytes) -> Duration {
        let started = Instant::now();
        self.source.send(payload).await;
        self.answers.read_u8().await.expect("an answer");
        started.elapsed()
    }
}

async fn race(title: &str, len: usize, rounds: usize) {
    let payload = daskwire_comm::Bytes::from(vec![7; len]);
    let limits = Limits::HOST;
    let reader = move |io| CommReader::new(io, Prefix::U64, limits);
    let writer = |io| CommWriter::new(io, Prefix::U64);
    let mut codec = LengthDelimitedCodec::builder();
    let codec = *codec.max_frame_length(1 << 30).length_field_length(8);
    let raw = |io| Raw {
        io,
        buffer: vec![1; len],
    };
    let reused = |io| ReusedBuffer {
        comm: reader(io),
        buffer: vec![1; len],
    };
    let mut first = Lane::new(|io| io, raw, len).await;
    let mut again = Lane::new(|io| io, raw, len).await;
    let mut parts = Lane::new(RawParts, raw, len).await;
    let mut raw_fresh = Lane::new(|io| io, |io| RawFresh(io, len), len).await;
    let mut ours = Lane::new(writer, reused, len).await;
    let mut ours_fresh = Lane::new(writer, |io| Fresh(reader(io)), len).await;
    let pooled = |io| {
        let mut reader = reader(io);
        reader.set_pool(Some(BufferPool::new(1 << 30)));
        Fresh(reader)
    };
    let mut ours_pooled = Lane::new(writer, pooled, len).await;
    let mut delimited = Lane::new(
        |io| codec.new_write(io),
        |io| Delimited(codec.new_read(io)),
        len,
    )
    .await;
    let names = [
        "raw tokio, again",
        "raw tokio, in parts",
        "ours, into a buffer that is kept",
        "ours, into memory of a pool",
        "raw tokio, into fresh memory",
        "ours, into fresh memory",
        "LengthDelimitedCodec",
    ];
    let mut ratios = vec![Vec::new(); names.len()];
    let mut base = Vec::new();
    for round in 0..=rounds {
        let floor = first.round(&payload).await.as_secs_f64();
        let times = [
            again.round(&payload).await,
            parts.round(&payload).await,
            ours.round(&payload).await,
            ours_pooled.round(&payload).await,
            raw_fresh.round(&payload).await,
            ours_fresh.round(&payload).await,
            delimited.round(&payload).await,
        ];
        if round == 0 {
            continue;
        }
        base.push(floor);
        for (ratios, time) in ratios.iter_mut().zip(times) {
            ratios.push(time.as_secs_f64() / floor);
        }
    }
    let (base, ..) = median(base);
    println!("{title}: raw tokio takes {:.1} us", base * 1e6);
    for (name, ratios) in names.iter().zip(ratios) {
        show_ratios(name, ratios);
    }
}

/// A receiver of all bytes that have arrived.
struct RawAny(OwnedReadHalf, Vec<u8>);

impl Sink for RawAny {
    async fn receive(&mut self) -> usize {
        self.0.read(&mut self.1).await.expect("it arrives")
    }
}

/// The number of messages in one batch of [`one_way`].
const BATCH: usize = 100_000;
/// The length of one batch in bytes.
const BATCH_LEN: usize = BATCH * (SMALL + PRELUDE_LEN);

/// Measures batches of small messages, each batch answered with one byte.
async fn one_way(rounds: usize) {
    let reader = |io| CommReader::new(io, Prefix::U64, Limits::HOST);
    let reused = |io| ReusedBuffer {
        comm: reader(io),
        buffer: vec![1; SMALL],
    };
    let writer = |io| CommWriter::new(io, Prefix::U64);
    let chunk = vec![7; 64 << 10];
    let mut raw = Lane::new(|io| io, |io| RawAny(io, vec![1; 64 << 10]), BATCH_LEN).await;
    let mut reused = Lane::new(writer, reused, BATCH * SMALL).await;
    let mut fresh = Lane::new(writer, |io| Fresh(reader(io)), BATCH * SMALL).await;
    let mut base = Vec::new();
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        let start = Instant::now();
        let mut left = BATCH_LEN;
        while left != 0 {
            let len = left.min(chunk.len());
            let written = raw.source.write_all(&chunk[..len]).await;
            written.expect("it is taken");
            left -= len;
        }
        raw.answers.read_u8().await.expect("an answer");
        let floor = start.elapsed().as_secs_f64();
        if round != 0 {
            base.push(floor / BATCH as f64);
        }
        for (lane, ratios) in [&mut reused, &mut fresh].into_iter().zip(&mut ratios) {
            let start = Instant::now();
            for _ in 0..BATCH {
                let fed = lane.source.feed_message(&[[7; SMALL]]).await;
                fed.expect("it is taken");
            }
            lane.source.flush().await.expect("it is taken");
            lane.answers.read_u8().await.expect("an answer");
            if round != 0 {
                ratios.push(start.elapsed().as_secs_f64() / floor);
            }
        }
    }
    let (base, ..) = median(base);
    println!(
        "{BATCH} messages of {SMALL} bytes, one way: raw tokio takes {:.3} us each, in writes \
         of 64 KiB",
        base * 1e6
    );
    let [reused, fresh] = ratios;
    show_ratios("ours, into a buffer that is kept", reused);
    show_ratios("ours, into fresh memory", fresh);
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    println!("time as a multiple of raw tokio's: median (least to most)");
    runtime.block_on(async {
        race("one message of 64 MiB", LARGE, 31).await;
        race("one message of 100 bytes and an answer", SMALL, 5001).await;
        one_way(101).await;
    });
}
