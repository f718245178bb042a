//! Tests of compressed data: between the roles, and with real releases of Dask.
//!
//! Peers listen at 127.0.0.2 and are connected to from 127.0.0.1, since nothing is compressed
//! within a host.

use std::sync::{Arc, Mutex};

use daskwire::compression::{Lz4, Snappy};
use daskwire::frame::{Prefix, encode_prelude, prelude_len};
use daskwire::message::{
    BuildError, Layout, Message, MessageBuilder, Payload, ReadOptions, Workspace,
};
use daskwire_comm::{Address, Codec, CommOptions};
use daskwire_messages::scratch::{Encode, MessageScratch};
use daskwire_peer::client::{ClientOptions, Route};
use daskwire_peer::scheduler::{Options, Scheduler};
use daskwire_peer::worker::{Functions, Worker};
use daskwire_peer::{Array, Client, Meter, ObservedMessage, Observer, Serialized, Value};
use daskwire_testing::{Environment, Peer};

/// Whether each frame of payloads was sent, rather than received, and its codec.
#[derive(Debug, Default)]
struct Codecs(Mutex<Vec<(bool, Option<String>)>>);

impl Codecs {
    /// Whether any frame was sent, and whether any was received, with this codec.
    fn have(&self, codec: &str) -> (bool, bool) {
        let frames = self.0.lock().expect("no panic");
        let any = |is_leaving| {
            let mut frames = frames.iter().filter(|frame| frame.0 == is_leaving);
            frames.any(|frame| frame.1.as_deref() == Some(codec))
        };
        (any(true), any(false))
    }
}

impl Observer for Codecs {
    fn message(&self, message: &ObservedMessage<'_>) {
        let mut workspace = Workspace::new();
        let opened = Message::open(
            message.frames,
            Layout::Modern,
            &ReadOptions::default(),
            &mut workspace,
        );
        for payload in opened.expect("a message").payloads() {
            let payload = payload.expect("a payload");
            let codecs = payload.header().list("compression").expect("a list");
            let Some(codecs) = codecs else { continue };
            let frames = codecs.codec_names().map(|name| {
                let name = name.expect("a codec");
                let name = name.map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned());
                (message.is_leaving, name)
            });
            self.0.lock().expect("no panic").extend(frames);
        }
    }
}

fn options(compression: Option<Codec>) -> CommOptions {
    CommOptions::default().with_compression(compression)
}

/// A value that compresses well, and the one of the same length that does not.
fn values() -> [Value; 2] {
    let mut random = daskwire_testing::Random(7);
    let noise: Vec<u8> = (0..LEN / 8)
        .flat_map(|_| random.next().to_le_bytes())
        .collect();
    [Value::bytes(vec![7; LEN]), Value::bytes(noise)]
}

const LEN: usize = 4 << 20;

struct Transfer {
    codecs: Arc<Codecs>,
    meter: Arc<Meter>,
}

/// Sends values that compress well and badly to the workers and back.
async fn there_and_back(scheduler: &str, compression: Option<Codec>, route: Route) -> Transfer {
    let (codecs, meter) = (Arc::new(Codecs::default()), Arc::new(Meter::default()));
    let settings = ClientOptions::default()
        .with_comm(options(compression))
        .with_route(route)
        .with_observer(Arc::clone(&codecs) as Arc<dyn Observer>)
        .with_meter(Arc::clone(&meter));
    let client = Client::connect_with(scheduler, settings).await;
    let client = client.expect("it connects");
    let futures = client.scatter(values()).await.expect("scattered");
    let found = client.gather(&futures).await.expect("gathered");
    assert!(found.iter().eq(&values()), "the values differ");
    client.close().await.expect("it closes");
    Transfer { codecs, meter }
}

impl Transfer {
    fn check(&self, codec: Option<&str>) {
        let expected = codec.is_some();
        let compressed = self.codecs.have(codec.unwrap_or("lz4"));
        assert_eq!(compressed, (expected, expected), "{:?}", self.codecs);
        let values = if expected { 1 } else { 2 };
        for len in [self.meter.sent(), self.meter.received()] {
            let payloads = (values * LEN) as u64;
            let range = payloads..payloads + (LEN / 4) as u64;
            assert!(range.contains(&len), "{len} bytes, expected {range:?}");
        }
    }
}

/// Transfers data between a client, a scheduler and a worker in Rust, each with its codec.
/// Also returns what the worker has sent and received.
async fn in_rust(
    codecs: [Option<Codec>; 2],
    clients: Option<Codec>,
    route: Route,
) -> (Transfer, Arc<Codecs>) {
    let of_worker_messages = Arc::new(Codecs::default());
    let address: Address = "tcp://127.0.0.2:0".parse().expect("an address");
    let [of_scheduler, of_worker] = codecs.map(options);
    let transports = daskwire_peer::transports();
    let listener = transports.bind(&address, of_scheduler.clone()).await;
    let settings = Options::default().with_comm(of_scheduler);
    let scheduler = Scheduler::start([listener.expect("a free port")], settings);
    let scheduler = scheduler.expect("it starts");
    let worker = Worker::builder(scheduler.address().clone())
        .listen(address)
        .functions(Functions::new())
        .options(of_worker)
        .observer(Arc::clone(&of_worker_messages) as Arc<dyn Observer>)
        .start()
        .await
        .expect("it starts");
    let transfer = there_and_back(&scheduler.address().to_string(), clients, route).await;
    worker.close().await;
    scheduler.close().await;
    (transfer, of_worker_messages)
}

#[tokio::test(flavor = "multi_thread")]
async fn data_is_compressed_if_both_sides_name_the_codec() {
    let lz4 = Some(Codec::Lz4);
    let snappy = Some(Codec::Snappy);
    for (of_worker, of_client, agreed) in [
        (lz4, lz4, Some("lz4")),
        (snappy, snappy, Some("snappy")),
        (None, lz4, None),
        (lz4, None, None),
        (snappy, lz4, None),
    ] {
        let codecs = [lz4, of_worker];
        let (transfer, _) = in_rust(codecs, of_client, Route::Direct).await;
        transfer.check(agreed);
    }
}

// PROTOCOL COMPRESS-10
#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_forwards_data_as_it_was_sent() {
    let lz4 = Some(Codec::Lz4);
    let (transfer, of_worker) = in_rust([lz4; 2], None, Route::Scheduler).await;
    // The worker compresses for the scheduler, which does not compress for the worker.
    assert_eq!(of_worker.have("lz4"), (true, false), "{of_worker:?}");
    assert_eq!(transfer.codecs.have("lz4"), (false, true));
    let (transfer, of_worker) = in_rust([lz4, None], lz4, Route::Scheduler).await;
    assert_eq!(of_worker.have("lz4"), (true, true), "{of_worker:?}");
    assert_eq!(transfer.codecs.have("lz4"), (true, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn real_dask_reads_what_is_compressed_and_compresses_as_well() {
    for (theirs, ours, codec) in [
        ("lz4", Some(Codec::Lz4), Some("lz4")),
        // What `auto` is with all packages.
        ("auto", Some(Codec::Lz4), Some("lz4")),
        ("snappy", Some(Codec::Snappy), Some("snappy")),
        // The one codec for which Python needs no package.
        ("zlib", Some(Codec::Zlib), Some("zlib")),
        ("zstd", Some(Codec::Lz4), None),
        ("lz4", None, None),
    ] {
        let start = || Peer::spawn(Environment::Current, "compressing_cluster.py", &[theirs]);
        let cluster = tokio::task::block_in_place(start);
        let transfer = there_and_back(cluster.address(), ours, Route::Direct).await;
        transfer.check(codec);
    }
}

/// A message of one payload, in the layout of a release.
struct Forwarded<'a>(&'a Serialized);

impl Encode for Forwarded<'_> {
    fn encode<'a>(&'a self, to: &mut MessageBuilder<'_, 'a>) -> Result<(), BuildError> {
        let (frames, kind) = (self.0.message(), self.0.kind());
        let payload = Payload::at(frames, 1, kind, &ReadOptions::default())?;
        to.body().map(1).str("x");
        to.forward(&payload)?;
        Ok(())
    }
}

// PROTOCOL COMPRESS-6
#[test]
fn releases_of_dask_read_compressed_payloads() {
    let array = Array::from_slice(&[3, 5_000], &[2.5; 15_000]).expect("an array");
    for environment in [Environment::Current, Environment::Documented] {
        let mut release = daskwire_testing::loads(environment);
        for value in [Value::bytes(vec![7; 70_000]), Value::Array(array.clone())] {
            let plain = Serialized::of(&value).expect("a payload");
            let mut shown = Vec::new();
            for payload in [
                &plain,
                &plain.compressed(&mut Lz4::new()),
                &plain.compressed(&mut Snappy::new()),
            ] {
                let (prefix, layout, payload) = match environment {
                    Environment::Current => (Prefix::U64, Layout::Modern, payload.clone()),
                    Environment::Documented => {
                        (Prefix::None, Layout::Classic, payload.clone().flat())
                    }
                };
                let forwarded = Forwarded(&payload);
                let stream = MessageScratch::for_layout(layout).with_frames(&forwarded, |frames| {
                    let lens = frames.iter().map(|frame| frame.len() as u64);
                    let mut stream = vec![0; prelude_len(prefix, frames.len()).expect("few")];
                    encode_prelude(prefix, lens, &mut stream).expect("there is room");
                    stream.extend(frames.concat());
                    stream
                });
                let stream = stream.expect("a message");
                shown.push((stream.len(), release.ask(r#"{"op": "value"}"#, &stream).0));
            }
            assert!(shown[0].1.starts_with(r#"{"ok": true"#), "{}", shown[0].1);
            for (len, value) in &shown[1..] {
                assert!(*len < shown[0].0 / 2, "{len}");
                assert_eq!(*value, shown[0].1, "{}", environment.release());
            }
        }
    }
}
