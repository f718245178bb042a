//! Known incompatibilities between a cluster and peers other than Dask's own, each with a
//! test that this crate avoids it. Incompatibilities of workers are in the tests of the
//! worker.

use core::time::Duration;
use std::sync::Arc;

use daskwire::compression::{Lz4, Policy};
use daskwire::message::{BuilderBuffers, FrameCompressor, Layout, MessageBuilder, PayloadKind};
use daskwire_comm::CommOptions;
use daskwire_peer::client::{ClientOptions, Route, TaskError, TaskFuture};
use daskwire_peer::graph::Argument;
use daskwire_peer::{Array, Client, Key, ObservedMessage, Observer, Value};
use daskwire_testing::{Environment, Peer};

const TIMEOUT: Duration = Duration::from_secs(120);

async fn result(future: &TaskFuture) -> Value {
    future.result_within(TIMEOUT).await.expect("a result")
}

/// Reading: the prefix is not the length of the message (for several results forwarded by
/// the scheduler), empty frames count, keys may be lists as well as strings, floats in
/// pickles are big-endian, and large integers and numpy scalars are sent as pickles.
async fn reads_gathered_results(client: &Client) {
    let values = [
        Value::bytes(Vec::new()),
        Value::from(2.5),
        Value::from("text"),
        Value::None,
        Value::bytes(vec![1; 3000]),
    ];
    for (route, name) in [
        (Route::Scheduler, "by-scheduler"),
        (Route::Direct, "direct"),
    ] {
        // Keys of its own: a worker may delete data under a key that was just released.
        let keys = (0..).map(|index| match index {
            1 => Key::list([Key::from(name), Key::from(index)]),
            _ => Key::from(format!("{name}-{index}")),
        });
        let data: Vec<(Key, Value)> = keys.zip(values.clone()).collect();
        let futures = client.scatter_by(data, route).await.expect("scattered");
        for route in [Route::Scheduler, Route::Direct] {
            let gathered = client.gather_by(&futures, route).await.expect("gathered");
            assert_eq!(gathered, values);
        }
    }
    let large = client.submit("operator.pow", [2, 200]).expect("submitted");
    let Value::LargeInt(bytes) = result(&large).await else {
        panic!("an integer of more than 128 bits")
    };
    assert_eq!(bytes.len(), 26);
    let array = Array::from_slice(&[3], &[0.5, 1.5, 3.0]).expect("three");
    let array = client.scatter([array]).await.expect("scattered");
    let sum = client.submit("numpy.sum", [&array[0]]).expect("submitted");
    assert_eq!(result(&sum).await, Value::from(5.0));
    let class = client
        .call("builtins.type")
        .argument(Value::None)
        .submit()
        .expect("submitted");
    let Value::Serialized(class) = result(&class).await else {
        panic!("a class is nothing that Rust has")
    };
    assert!(class.to_string().contains("pickle"), "{class}");
}

/// Writing: a task with an existing key is not computed again, a string that equals a key
/// stays a string, and futures in lists and dictionaries are dependencies.
async fn arguments_keep_their_meaning(client: &Client) {
    let first = client
        .call("operator.add")
        .argument(1)
        .argument(1)
        .key("taken");
    let first = first.submit().expect("submitted");
    assert_eq!(result(&first).await, Value::from(2));
    let second = client
        .call("operator.add")
        .argument(5)
        .argument(5)
        .key("taken");
    let second = second.submit().expect("submitted");
    assert_eq!(result(&second).await, Value::from(2));
    let string = client
        .call("builtins.repr")
        .argument("taken")
        .submit()
        .expect("submitted");
    assert_eq!(result(&string).await, Value::from("'taken'"));
    let hidden = client
        .call("builtins.repr")
        .argument(Argument::list([
            Argument::from(&first),
            Argument::Dict(vec![(Argument::from("k"), Argument::from(&first))]),
            Argument::Tuple(vec![Argument::from(&first)]),
        ]))
        .submit()
        .expect("submitted");
    assert_eq!(result(&hidden).await, Value::from("[2, {'k': 2}, (2,)]"));
}

/// A worker stops sending data after ten transfers that are not acknowledged.
async fn transfers_are_acknowledged(client: &Client) {
    let data = client.scatter(["some data"]).await.expect("scattered");
    for _ in 0..50 {
        let gathered = client.gather_by(&data, Route::Direct);
        let gathered = tokio::time::timeout(TIMEOUT, gathered).await;
        gathered.expect("a free slot").expect("gathered");
    }
}

/// Counts the heartbeats of a client.
struct Heartbeats(tokio::sync::watch::Sender<u64>);

impl Observer for Heartbeats {
    fn message(&self, seen: &ObservedMessage<'_>) {
        let op = b"heartbeat-client";
        let body = seen.frames.first().copied().unwrap_or_default();
        if seen.is_leaving && body.windows(op.len()).any(|part| part == op) {
            self.0.send_modify(|count| *count += 1);
        }
    }
}

/// A message that the scheduler rejects ends the stream; it must accept all of ours.
async fn stream_survives_all_messages(client: &Client, heartbeats: &Heartbeats) {
    let held = client.submit("operator.add", [7, 8]).expect("submitted");
    let other = client.future(held.key().clone()).expect("a future");
    let hold = client.hold_as("another-client", core::slice::from_ref(&held));
    hold.await.expect("sent");
    client
        .release_as("another-client", [held.key().clone()])
        .expect("sent");
    client
        .release_as("a-client-that-held-nothing", [held.key().clone()])
        .expect("sent");
    let unknown = client.future("unknown-key").expect("a future");
    client.cancel([&unknown], false).expect("sent");
    client.cancel([&unknown], true).expect("sent");
    client.retry([&held]).await.expect("answered");
    let failed = client
        .submit("operator.truediv", [7, 0])
        .expect("submitted");
    let error = failed.result_within(TIMEOUT).await.expect_err("it fails");
    assert!(matches!(error, TaskError::Failed { .. }), "{error}");
    client.retry([&failed]).await.expect("answered");
    let error = failed
        .result_within(TIMEOUT)
        .await
        .expect_err("it fails again");
    assert!(matches!(error, TaskError::Failed { .. }), "{error}");
    drop((other, unknown));
    assert_eq!(result(&held).await, Value::from(15));
    let mut heartbeats = heartbeats.0.subscribe();
    let sent = *heartbeats.borrow();
    let beat = tokio::time::timeout(TIMEOUT, heartbeats.wait_for(|count| *count > sent));
    beat.await.expect("in time").expect("a heartbeat");
    let after = client.submit("operator.add", [70, 80]).expect("submitted");
    assert_eq!(result(&after).await, Value::from(150));
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_works_after_a_rust_client() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let heartbeats = Arc::new(Heartbeats(tokio::sync::watch::Sender::new(0)));
    let options =
        ClientOptions::default().with_observer(Arc::clone(&heartbeats) as Arc<dyn Observer>);
    let client = Client::connect_with(cluster.address(), options);
    let client = client.await.expect("connected");
    reads_gathered_results(&client).await;
    arguments_keep_their_meaning(&client).await;
    transfers_are_acknowledged(&client).await;
    stream_survives_all_messages(&client, &heartbeats).await;
    // A map as `span_metadata` would make the next submission of any client fail.
    for _ in 0..2 {
        let python = Peer::spawn(
            Environment::Current,
            "client.py",
            &[cluster.address(), "800"],
        );
        drop(python);
        let again = client.call("operator.add").argument(1).argument(3).impure();
        let again = again.submit().expect("submitted");
        assert_eq!(result(&again).await, Value::from(4));
    }
    client.close().await.expect("closed");
}

/// Bytes in three parts: 200 times `a`, 200 different bytes, 200 times `b`.
fn three_parts() -> Vec<u8> {
    [vec![b'a'; 200], (0..200).collect(), vec![b'b'; 200]].concat()
}

/// A scheduler forwards data that others have compressed: each frame is decompressed
/// before merging. In this test the first and the last frame are compressed.
#[tokio::test]
async fn reads_compressed_frames_without_negotiation() {
    let listener = daskwire_peer::transports()
        .bind(
            &"tcp://127.0.0.1:0".parse().expect("an address"),
            CommOptions::default(),
        )
        .await
        .expect("sent");
    let address = listener.local_address().expect("an address").to_string();
    let serving = tokio::spawn(async move {
        // One comm for requests, and one for the stream
        let incoming = listener.accept().await.expect("a comm");
        let mut requests = incoming.handshake().await.expect("a handshake");
        requests
            .read_message()
            .await
            .expect("a request")
            .expect("versions");
        requests.write_message(&[b"\x80"]).await.expect("sent");
        let incoming = listener.accept().await.expect("a comm");
        let mut stream = incoming.handshake().await.expect("a handshake");
        stream
            .read_message()
            .await
            .expect("a request")
            .expect("register-client");
        let start = b"\x91\x83\xa2op\xacstream-start\xa7warning\xa0\xa5error\xa0";
        stream.write_message(&[start]).await.expect("sent");
        stream
            .read_message()
            .await
            .expect("a batch")
            .expect("client-desires-keys");
        let ready = b"\x91\x82\xa2op\xadkey-in-memory\xa3key\xa1x";
        stream.write_message(&[ready]).await.expect("sent");
        requests
            .read_message()
            .await
            .expect("a request")
            .expect("gather");

        let data = three_parts();
        let (mut lz4, mut random, mut out) = (Lz4::new(), |_| 0, [0; 1000]);
        let class = b"\xc4\x15\x80\x04\x8c\x08builtins\x8c\x05bytes\x93.";
        let entries: [(&str, &[u8]); 4] = [
            ("serializer", b"\xa4dask"),
            ("type", b"\xa5bytes"),
            ("type-serialized", class),
            ("sub-header", b"\x80"),
        ];
        let (mut body, mut headers, mut slots) = ([0; 256], [0; 512], [&[][..]; 8]);
        let buffers = BuilderBuffers {
            body: &mut body,
            headers: &mut headers,
            slots: &mut slots,
        };
        let compressor = FrameCompressor {
            compression: &mut lz4,
            policy: Policy::DASK.with_min_len(100),
            out: &mut out,
            random: &mut random,
        };
        let mut builder = MessageBuilder::new(Layout::Modern, buffers).with_compression(compressor);
        builder
            .body()
            .map(2)
            .str("status")
            .str("OK")
            .str("data")
            .map(1)
            .str("x");
        builder
            .payload(PayloadKind::Serialized, &entries, &[&data], 200)
            .expect("room");
        let frames = builder.finish().expect("a message");
        let lens: Vec<usize> = frames[2..].iter().map(|frame| frame.len()).collect();
        assert!(matches!(lens[..], [..100, 200, ..100]), "{lens:?}");
        requests.write_message(frames).await.expect("sent");
        // Wait until the client disconnects.
        let _ = requests.read_message().await;
    });
    let client = Client::connect(&address).await.expect("connected");
    let future = client.future("x").expect("a future");
    assert_eq!(result(&future).await, Value::bytes(three_parts()));
    drop((future, client));
    serving.await.expect("served");
}
