//! Tests that values written in Rust are stored in a real worker, that Python can compute
//! with them, and that they return. This side never copies them, and the worker can
//! change only arrays sent as writeable.
//!
//! Each value is sent and fetched both directly and through the scheduler. The two ways
//! differ: the scheduler requests pickles of protocol 4, which have no out-of-band
//! buffers.

use core::mem::discriminant;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::Path;

use daskwire::message::{
    BuilderBuffers, Item, Layout, Message, MessageBuilder, PathElement, Payload, ReadOptions,
    SHARD_LEN, Scratch, Workspace,
};
use daskwire::msgpack;
use daskwire_comm::{Address, Comm, CommOptions, Frames};
use daskwire_numpy::known::{self, Known, KnownValue};
use daskwire_numpy::{
    Array, ByteOrder, DType, Description, Dimensions, Element, NumpyErrorKind, NumpyModules, Order,
    PayloadValue, PickledPayload, TimeBase, TimeUnit, ValueBuilder as _, WriteOptions, encode_into,
    pickle_array,
};
use daskwire_pickle::tree::{Registry, Tree};
use daskwire_pickle::{self as pickle, Argument, Mutability, PickleBuffer, Placement, Reader};
use daskwire_testing::{Environment, Peer};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Our client id.
const CLIENT: &str = "Client-of-Rust";

/// Timeout of a reply; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The route of values to and from the worker.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// `update_data` and `get_data` of the worker.
    Straight,
    /// `scatter` and `gather` of the scheduler.
    ByTheScheduler,
}

const WAYS: [Way; 2] = [Way::Straight, Way::ByTheScheduler];

/// A scheduler with one worker, a Python client, and our comms, which act as a
/// client.
struct Cluster {
    to_worker: Comm,
    to_scheduler: Comm,
    /// The comm on which the scheduler sends a client's messages.
    stream: Comm,
    python: Peer,
    processes: Peer,
    runtime: Runtime,
}

impl Cluster {
    fn start() -> Self {
        let processes = daskwire_testing::scheduler_with_workers(1);
        let python = Peer::spawn(
            Environment::Current,
            "numpy_worker.py",
            &[processes.address()],
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let connect = |address: &str| {
            let address: Address = address.parse().expect("an address");
            let comm = runtime
                .block_on(daskwire_peer::transports().connect(&address, &CommOptions::default()));
            comm.expect("a comm")
        };
        let to_worker = connect(processes.workers()[0].address());
        let to_scheduler = connect(processes.address());
        let mut cluster = Self {
            stream: connect(processes.address()),
            to_worker,
            to_scheduler,
            python,
            processes,
            runtime,
        };
        let mut buffers = MessageBuffers::default();
        let register = buffers.message(|builder| {
            let body = builder.body().map(4).str("op").str("register-client");
            body.str("client").str(CLIENT).str("reply").bool(false);
            body.str("versions").map(2);
            body.str("host").map(0).str("packages").map(0);
        });
        let Self {
            stream, runtime, ..
        } = &mut cluster;
        runtime.block_on(async {
            stream.write_message(&register).await.expect("it goes");
            let started = read(stream).await;
            let mut reader = msgpack::Reader::new(started[0].as_ref());
            assert_eq!(reader.array(), Ok(1));
            assert_eq!(reader.find("error"), Ok(true));
            assert_eq!(reader.str().expect("a string").to_str(), "");
        });
        cluster
    }

    /// Sends values, and waits until the scheduler reports them.
    fn put(&mut self, way: Way, values: &[(String, Sent<'_>)]) {
        let mut buffers = MessageBuffers::default();
        let frames = buffers.message(|builder| {
            match way {
                Way::Straight => builder.body().map(3).str("op").str("update_data"),
                Way::ByTheScheduler => {
                    let body = builder.body().map(7).str("op").str("scatter");
                    body.str("client").str(CLIENT).str("workers").nil();
                    body.str("broadcast").bool(false).str("timeout").u64(60)
                }
            };
            let body = builder.body().str("reply").bool(true).str("data");
            body.map(u32::try_from(values.len()).expect("few"));
            for (key, value) in values {
                builder.body().str(key);
                value.write(builder);
            }
        });
        // The comm is passed the caller's memory.
        for (key, value) in values {
            for slice in value.slices() {
                let is_slice = |frame: &&[u8]| core::ptr::eq(*frame, slice);
                assert!(frames.iter().any(is_slice), "{key} was copied");
            }
        }
        let Self {
            runtime,
            to_worker,
            to_scheduler,
            ..
        } = self;
        match way {
            Way::ByTheScheduler => {
                let answer = runtime.block_on(ask(to_scheduler, &frames));
                let mut reader = msgpack::Reader::new(answer[0].as_ref());
                assert_eq!(reader.array().map(|count| count as usize), Ok(values.len()));
            }
            Way::Straight => {
                let answer = runtime.block_on(ask(to_worker, &frames));
                let mut reader = msgpack::Reader::new(answer[0].as_ref());
                assert_eq!(reader.find("nbytes"), Ok(true));
                let start = reader.position();
                reader.skip().expect("a map of lengths");
                let nbytes = &answer[0][start..reader.position()];
                let address = self.processes.workers()[0].address();
                let mut buffers = MessageBuffers::default();
                let message = buffers.message(|builder| {
                    let body = builder.body().map(5).str("op").str("update_data");
                    body.str("client").str(CLIENT).str("reply").bool(true);
                    body.str("nbytes").encoded(nbytes).str("who_has");
                    body.map(u32::try_from(values.len()).expect("few"));
                    for (key, _) in values {
                        body.str(key).array(1).str(address);
                    }
                });
                let answer = runtime.block_on(ask(to_scheduler, &message));
                assert_eq!(answer[0][..], [0xc0], "nil");
            }
        }
        self.wait_for(values.iter().map(|(key, _)| key.as_str()).collect());
    }

    /// Waits until the scheduler has reported each key to be in memory.
    fn wait_for(&mut self, mut keys: Vec<&str>) {
        while !keys.is_empty() {
            let batch = self.runtime.block_on(read(&mut self.stream));
            let mut reader = msgpack::Reader::new(batch[0].as_ref());
            for _ in 0..reader.array().expect("a batch") {
                let message = reader.skip().expect("a message");
                let string = |name| {
                    let mut reader = msgpack::Reader::new(message);
                    assert_eq!(reader.find(name), Ok(true), "{message:?}");
                    reader.str().expect("a string").to_str()
                };
                assert_eq!(string("op"), "key-in-memory");
                keys.retain(|key| *key != string("key"));
            }
        }
    }

    /// Fetches the values of keys.
    fn get(&mut self, way: Way, keys: &[String]) -> Frames {
        let mut buffers = MessageBuffers::default();
        let frames = buffers.message(|builder| {
            let body = match way {
                Way::Straight => {
                    let body = builder.body().map(4).str("op").str("get_data");
                    body.str("who").nil()
                }
                Way::ByTheScheduler => builder.body().map(3).str("op").str("gather"),
            };
            body.str("reply").bool(true).str("keys");
            body.array(u32::try_from(keys.len()).expect("few"));
            for key in keys {
                body.str(key);
            }
        });
        let comm = match way {
            Way::Straight => &mut self.to_worker,
            Way::ByTheScheduler => &mut self.to_scheduler,
        };
        self.runtime.block_on(async {
            let answer = ask(comm, &frames).await;
            let mut reader = msgpack::Reader::new(answer[0].as_ref());
            assert_eq!(reader.find("status"), Ok(true));
            assert_eq!(reader.str().expect("a string").to_str(), "OK");
            if way == Way::Straight {
                // The worker limits the number of transfers that are not acknowledged.
                comm.write_message(&[b"\xa2OK"]).await.expect("it goes");
            }
            answer
        })
    }

    fn python(&mut self, question: &Value) -> Value {
        let (answer, _) = self.python.ask(&question.to_string(), &[]);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["ok"], true, "{question}: {answer}");
        answer
    }

    /// Returns the worker's description of the values of keys.
    fn describe(&mut self, keys: &[String]) -> BTreeMap<String, String> {
        let answer = self.python(&json!({"op": "describe", "keys": keys}));
        serde_json::from_value(answer["described"].clone()).expect("texts")
    }

    /// Makes the worker store the same object as `same KEY`, and a changed copy as
    /// `flipped KEY`. Returns which arrays of the copy were writeable.
    fn derive(&mut self, keys: &[String]) -> BTreeMap<String, Vec<bool>> {
        let answer = self.python(&json!({"op": "derive", "keys": keys}));
        serde_json::from_value(answer["flipped"].clone()).expect("flags")
    }

    /// Makes the worker change the values in place. Returns which arrays were
    /// writeable.
    fn flip(&mut self, keys: &[String]) -> BTreeMap<String, Vec<bool>> {
        let answer = self.python(&json!({"op": "flip", "keys": keys}));
        serde_json::from_value(answer["flipped"].clone()).expect("flags")
    }

    /// Makes the worker compare values with those that Python creates under these
    /// names.
    fn compare(&mut self, names: &BTreeMap<String, String>) {
        let answer = self.python(&json!({"op": "compare", "keys": names}));
        assert_eq!(answer["problems"], json!([]));
    }

    /// Disconnects, and releases the Python client's values. Checks that the worker stores
    /// nothing, and that no warnings were logged.
    fn end(mut self) {
        let mut buffers = MessageBuffers::default();
        let bye = buffers.message(|builder| {
            let body = builder.body().array(2);
            body.map(1).str("op").str("close-client");
            body.map(1).str("op").str("close-stream");
        });
        let Self {
            runtime, stream, ..
        } = &mut self;
        runtime.block_on(async {
            stream.write_message(&bye).await.expect("it goes");
            let end = async { while let Ok(Some(_)) = stream.read_message().await {} };
            let ended = tokio::time::timeout(TIMEOUT, end).await;
            ended.expect("the scheduler ends the stream");
        });
        self.processes
            .wait_for_log(&format!("Remove client {CLIENT}"));
        self.python(&json!({"op": "leave"}));
        for process in [&self.processes, &self.processes.workers()[0]] {
            // All earlier messages have been received by then. Dask's warnings about being
            // killed, or stopped during a heartbeat, come later and are expected.
            process.wait_for_log("All is done.");
            assert_eq!(process.warnings(), [""; 0]);
        }
    }
}

async fn read(comm: &mut Comm) -> Frames {
    let message = tokio::time::timeout(TIMEOUT, comm.read_message()).await;
    let message = message.expect("an answer in time").expect("a good one");
    message.expect("an answer before the end")
}

async fn ask(comm: &mut Comm, frames: &[&[u8]]) -> Frames {
    comm.write_message(frames).await.expect("it goes");
    read(comm).await
}

/// Buffers for a message.
#[derive(Default)]
struct MessageBuffers {
    body: Vec<u8>,
    headers: Vec<u8>,
}

impl MessageBuffers {
    fn message<'a>(&'a mut self, write: impl FnOnce(&mut MessageBuilder<'_, 'a>)) -> Vec<&'a [u8]> {
        self.body.resize(1 << 14, 0);
        self.headers.resize(1 << 16, 0);
        let mut slots = [&[][..]; 512];
        let mut builder = MessageBuilder::new(
            Layout::Modern,
            BuilderBuffers {
                body: &mut self.body,
                headers: &mut self.headers,
                slots: &mut slots,
            },
        );
        write(&mut builder);
        builder.finish().expect("a whole message").to_vec()
    }
}

/// A value to send.
#[derive(Clone)]
enum Sent<'a> {
    Array(Array<'a>),
    Bytes(&'a [u8]),
    ByteArray(&'a [u8]),
    View(Array<'a>),
    Pickle(Pickle<'a>),
    /// A received payload.
    Forward(Payload<'a, &'a [u8]>),
}

/// A pickle and its out-of-band buffers.
#[derive(Clone, Debug)]
struct Pickle<'a> {
    pickle: &'a [u8],
    buffers: Vec<PickleBuffer<'a>>,
    /// The memory to which the buffers refer.
    slices: Vec<&'a [u8]>,
}

impl<'a> Sent<'a> {
    fn write(&self, builder: &mut MessageBuilder<'_, 'a>) {
        let options = WriteOptions::default();
        let written = match self {
            Self::Array(array) => builder.array_payload(array, &options),
            Self::Bytes(data) => builder.bytes_payload(data, &options),
            Self::ByteArray(data) => builder.bytearray_payload(data, &options),
            Self::View(view) => builder.memoryview_payload(view, &options),
            Self::Pickle(Pickle {
                pickle, buffers, ..
            }) => builder.pickle_payload(pickle, buffers, &options),
            Self::Forward(payload) => builder.forward(payload).map_err(Into::into),
        };
        written.map(|_| ()).expect("it can be written");
    }

    /// The memory to which the value refers.
    fn slices(&self) -> Vec<&'a [u8]> {
        let slices: Vec<&'a [u8]> = match self {
            Self::Array(array) | Self::View(array) => vec![array.bytes()],
            Self::Bytes(data) | Self::ByteArray(data) => vec![*data],
            Self::Pickle(Pickle { pickle, slices, .. }) => [*pickle]
                .into_iter()
                .chain(slices.iter().copied())
                .collect(),
            Self::Forward(payload) => payload.frames().to_vec(),
        };
        // Longer data is sent in parts, each of which is a part of the same memory.
        let pieces = slices.into_iter().flat_map(|s| s.chunks(SHARD_LEN));
        pieces.collect()
    }

    /// Whether Python may change each of the value's arrays.
    fn writeable(&self) -> Vec<bool> {
        match self {
            Self::Array(array) => vec![array.writeable() == Some(true)],
            Self::ByteArray(_) | Self::View(_) => vec![true],
            Self::Bytes(_) | Self::Forward(_) => Vec::new(),
            Self::Pickle(pickle) => {
                let arrays = pickle.arrays();
                arrays
                    .iter()
                    .map(|array| array.writeable() != Some(false))
                    .collect()
            }
        }
    }
}

impl<'a> Pickle<'a> {
    fn new(pickle: &'a [u8], buffers: Vec<PickleBuffer<'a>>) -> Self {
        let slices = buffers.iter().map(PickleBuffer::as_bytes).collect();
        Self {
            pickle,
            buffers,
            slices,
        }
    }

    /// Parses a payload of a received message. Checks that each buffer is one of its
    /// frames, and that the pickle agrees with the header.
    fn of(key: &str, payload: &Payload<'a, &'a [u8]>) -> Self {
        let pickled = PickledPayload::read(payload).unwrap_or_else(|e| panic!("{key}: {e}"));
        let there = pickled.borrowed().unwrap_or_else(|e| panic!("{key}: {e}"));
        assert!(is_frame(payload, there.pickle()), "{key} was copied");
        let writeable: Vec<_> = pickled.writeable().expect("flags").collect();
        let mut items = there.items();
        while let Some(item) = items.next_item().unwrap_or_else(|e| panic!("{key}: {e}")) {
            let Some(data) = item.data else { continue };
            if let Some(index) = data.buffer {
                assert!(is_frame(payload, data.bytes), "{key} was copied");
                assert_eq!(writeable[index], Some(!data.read_only), "{key}");
            } else {
                assert!(is_within(there.pickle(), data.bytes), "{key} was copied");
            }
        }
        assert_eq!(items.used_count(), writeable.len(), "{key}");
        let buffers: Vec<_> = there.pickle_buffers(writeable.iter().copied()).collect();
        for (buffer, is_writeable) in buffers.iter().zip(writeable) {
            let mutability = match is_writeable {
                Some(false) => Mutability::ReadOnly,
                _ => Mutability::Writable,
            };
            assert_eq!(buffer.mutability(), mutability, "{key}");
        }
        Self::new(there.pickle(), buffers)
    }

    fn tree(&self) -> Tree<'_> {
        Tree::with_buffers(self.pickle, &self.slices).expect("a good pickle")
    }

    /// The arrays in the value, in order, none of them copied. Object arrays are
    /// excluded, because they are not views of memory, as in Python.
    fn arrays(&self) -> Vec<Array<'_>> {
        let mut registry = Registry::<Known>::new();
        registry.allow_all(known::NUMPY);
        let mut arrays = Vec::new();
        for node in self.tree().nodes() {
            let Ok(KnownValue::Array(array)) = known::convert(&registry, node) else {
                continue;
            };
            let Some(array) = array.borrowed() else {
                panic!("an array was copied: {array:?}");
            };
            let data = array.bytes();
            let mut slices = self.slices.iter();
            let is_there = slices.any(|slice| core::ptr::eq(*slice, data));
            assert!(
                is_there || is_within(self.pickle, data),
                "an array was copied"
            );
            arrays.push(array);
        }
        arrays
    }
}

/// Whether `part` is in the memory of `whole`.
fn is_within(whole: &[u8], part: &[u8]) -> bool {
    let (whole, range) = (whole.as_ptr_range(), part.as_ptr_range());
    part.is_empty() || (whole.start <= range.start && range.end <= whole.end)
}

/// Whether `bytes` are the memory of a received frame.
fn is_frame(payload: &Payload<'_, &[u8]>, bytes: &[u8]) -> bool {
    let mut frames = payload.frames().iter();
    bytes.is_empty() || frames.any(|frame| core::ptr::eq(*frame, bytes))
}

/// Collects the values of a reply by key.
fn values<'a>(
    frames: &'a [&'a [u8]],
    workspace: &'a mut Workspace,
) -> BTreeMap<String, Payload<'a, &'a [u8]>> {
    let reading = ReadOptions::default();
    let message = Message::open(frames, Layout::Modern, &reading, workspace);
    let message = message.expect("a good message");
    message.check().expect("good payloads");
    let mut values = BTreeMap::new();
    let mut scratch = Scratch::<8>::new();
    let mut walk = message.walk(&mut scratch);
    while let Some(item) = walk.next_item().expect("it was checked") {
        if let Item::Payload(number) = item {
            let Some(PathElement::Key(key)) = walk.path().last() else {
                panic!("a value without a key");
            };
            let key = msgpack::Reader::new(key).str().expect("a string").to_str();
            let payload = message.payload(number).expect("exists");
            values.insert(key.to_owned(), payload);
        }
    }
    values
}

/// The expected form of a returned value.
#[derive(Clone, Copy)]
struct Expected<'e> {
    way: Way,
    /// For each array, whether its elements are reversed.
    flipped: &'e [bool],
    /// For each array, whether it is writeable.
    writeable: &'e [bool],
}

/// Checks a payload against what was sent.
fn check(key: &str, payload: &Payload<'_, &[u8]>, sent: &Sent<'_>, expected: Expected<'_>) {
    let parsed = PayloadValue::read(payload).unwrap_or_else(|error| panic!("{key}: {error}"));
    let Expected {
        way,
        flipped,
        writeable,
    } = expected;
    match sent {
        Sent::Bytes(data) => {
            assert_eq!(*parsed.description(), Description::Bytes, "{key}");
            assert_eq!(parsed.as_slice(), Ok(*data), "{key}");
        }
        Sent::ByteArray(data) => {
            assert_eq!(*parsed.description(), Description::ByteArray, "{key}");
            let bytes = parsed.as_slice().expect("one frame");
            assert!(is_turned(bytes, data, 1, flipped[0]), "{key}: {bytes:?}");
        }
        Sent::Array(sent) | Sent::View(sent) => {
            let mut joined = Vec::new();
            let array = match parsed.array() {
                Err(error) if error.kind == NumpyErrorKind::InParts => {
                    // Larger than Dask's threshold for splitting frames
                    for part in parsed.parts().expect("parts") {
                        let part = part.expect("a part");
                        assert!(is_frame(payload, part), "{key} was copied");
                        joined.extend_from_slice(part);
                    }
                    parsed.array_into(&mut joined).expect("an array")
                }
                array => {
                    let array = array.unwrap_or_else(|error| panic!("{key}: {error}"));
                    assert!(is_frame(payload, array.bytes()), "{key} was copied");
                    array
                }
            };
            assert_eq!(array.dtype(), sent.dtype(), "{key}");
            assert_eq!(array.shape(), sent.shape(), "{key}");
            if array.writeable().is_some() {
                assert_eq!(array.writeable(), Some(writeable[0]), "{key}");
            }
            if sent.is_broadcast() {
                let (mut items, there): (Vec<_>, Vec<_>) =
                    (sent.items().collect(), array.items().collect());
                if flipped[0] {
                    items.reverse();
                }
                assert_eq!(there, items, "{key}");
            } else {
                assert_eq!(array.order(), sent.order(), "{key}");
                let item_len = sent.dtype().item_len();
                let is_turned = is_turned(array.bytes(), sent.bytes(), item_len, flipped[0]);
                assert!(is_turned, "{key} holds something else");
            }
        }
        Sent::Pickle(sent) => {
            let there = Pickle::of(key, payload);
            if way == Way::ByTheScheduler {
                // The scheduler requests protocol 4, which has no buffers.
                assert!(there.buffers.is_empty(), "{key}");
                let first = Reader::new(there.pickle).next_token().expect("an opcode");
                let first = first.expect("there is one").argument;
                assert!(
                    matches!(first, Argument::Version(0..=4)),
                    "{key}: {first:?}"
                );
            }
            let (sent, there) = (sent.arrays(), there.arrays());
            assert_eq!(there.len(), sent.len(), "{key}");
            assert_eq!(flipped.len(), sent.len(), "{key}");
            for (index, (there, sent)) in there.iter().zip(&sent).enumerate() {
                assert_eq!(there.dtype(), sent.dtype(), "{key} {index}");
                assert_eq!(there.dimensions(), sent.dimensions(), "{key} {index}");
                let item_len = sent.dtype().item_len();
                let (bytes, sent) = (there.bytes(), sent.bytes());
                let is_turned = is_turned(bytes, sent, item_len, flipped[index]);
                assert!(is_turned, "{key} {index} holds something else");
                // Before protocol 5, numpy does not record whether an array is read-only.
                let is_said = way == Way::Straight;
                let read_only = is_said && !writeable[index];
                assert_eq!(there.writeable(), Some(!read_only), "{key} {index}");
            }
        }
        Sent::Forward(sent) => {
            let sent = PayloadValue::read(sent).expect("it was read before");
            let (there, sent) = (parsed.description(), sent.description());
            assert_eq!(discriminant(there), discriminant(sent), "{key}");
        }
    }
}

/// Whether `there` has the items of `sent`, in reverse order if `flipped`.
fn is_turned(there: &[u8], sent: &[u8], item_len: usize, flipped: bool) -> bool {
    if !flipped {
        return there == sent;
    }
    let items = sent.chunks_exact(item_len);
    there.len() == sent.len() && there.chunks_exact(item_len).eq(items.rev())
}

/// Stores values in the worker, makes Python compute with them and change them,
/// and checks the values returned.
fn round_trip(cluster: &mut Cluster, values_sent: &[(String, Sent<'_>)]) {
    let keys: Vec<String> = values_sent.iter().map(|(key, _)| key.clone()).collect();
    let prefixed = |prefix| keys.iter().map(move |key| format!("{prefix} {key}"));
    let copies = cluster.derive(&keys);

    for way in WAYS {
        let wanted: Vec<String> = prefixed("same").chain(prefixed("flipped")).collect();
        let answer = cluster.get(way, &wanted);
        let frames: Vec<&[u8]> = answer.iter().map(AsRef::as_ref).collect();
        let mut workspace = Workspace::new();
        let there = values(&frames, &mut workspace);
        assert_eq!(there.len(), wanted.len());
        for (key, sent) in values_sent {
            let same = format!("same {key}");
            let writeable = &sent.writeable()[..];
            let flipped = &vec![false; writeable.len()][..];
            let expected = Expected {
                way,
                flipped,
                writeable,
            };
            check(&same, &there[&same], sent, expected);
            // Read-only arrays of the copy are unchanged.
            let copy = format!("flipped {key}");
            let (flipped, writeable) = (&copies[key][..], &copies[key][..]);
            let expected = Expected {
                way,
                flipped,
                writeable,
            };
            check(&copy, &there[&copy], sent, expected);
        }
    }

    // Exactly the arrays sent as writeable can be changed in the worker.
    let changed = cluster.flip(&keys);
    for way in WAYS {
        let answer = cluster.get(way, &keys);
        let frames: Vec<&[u8]> = answer.iter().map(AsRef::as_ref).collect();
        let mut workspace = Workspace::new();
        let there = values(&frames, &mut workspace);
        for (key, sent) in values_sent {
            let writeable = &sent.writeable()[..];
            if !matches!(sent, Sent::Forward(_)) {
                assert_eq!(changed[key], writeable, "{key}");
            }
            let expected = Expected {
                way,
                flipped: writeable,
                writeable,
            };
            check(key, &there[key], sent, expected);
        }
    }
}

/// Memory for a value, and Python's expected description of it.
struct Case {
    name: &'static str,
    kind: Kind,
    bytes: Vec<u8>,
    string: &'static str,
}

#[derive(Clone, Copy)]
enum Kind {
    Array(DType, &'static [usize], Order),
    ReadOnly(DType, &'static [usize]),
    /// An array of the last axis's elements, repeated for each index of the first axis.
    Broadcast(DType, [usize; 2]),
    View(DType, &'static [usize]),
    Bytes,
    ByteArray,
}

impl Case {
    fn sent(&self) -> Sent<'_> {
        let array = |dtype, shape: &[usize], order| {
            Array::new(dtype, shape, order, &self.bytes).expect("a good array")
        };
        match self.kind {
            Kind::Array(dtype, shape, order) => Sent::Array(array(dtype, shape, order)),
            Kind::ReadOnly(dtype, shape) => {
                Sent::Array(array(dtype, shape, Order::C).with_writeable(false))
            }
            Kind::Broadcast(dtype, shape) => {
                let stride = dtype.item_len().try_into().expect("short");
                let dimensions = Dimensions::with_strides(&shape, &[0, stride]);
                let dimensions = dimensions.expect("good dimensions");
                let array = Array::with_dimensions(dtype, dimensions, &self.bytes);
                Sent::Array(array.expect("a good array").with_writeable(false))
            }
            Kind::View(dtype, shape) => Sent::View(array(dtype, shape, Order::C)),
            Kind::Bytes => Sent::Bytes(&self.bytes),
            Kind::ByteArray => Sent::ByteArray(&self.bytes),
        }
    }
}

/// Encodes elements as bytes.
fn bytes<E: Element>(elements: &[E]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(elements)];
    encode_into(elements, &mut bytes).expect("fits");
    bytes
}

fn time(count: u32, base: TimeBase) -> TimeUnit {
    TimeUnit { count, base }
}

/// The bytes of an array whose elements are copied, because the view has gaps and is in
/// neither C nor Fortran order.
fn transposed() -> Vec<u8> {
    let elements: Vec<u16> = (0..12).collect();
    let bytes = bytes(&elements);
    let axes = Dimensions::with_strides(&[2, 3, 2], &[2, 8, 4]).expect("good dimensions");
    let view = Array::with_dimensions(DType::U16, axes, &bytes).expect("a good array");
    assert_eq!(view.order(), None);
    let mut copy = vec![0; bytes.len()];
    let again = view.copy_into(&mut copy).expect("fits");
    assert_eq!(again.order(), Some(Order::C));
    copy
}

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    use Kind::{Broadcast, ByteArray, Bytes, ReadOnly, View};
    use Order::{C, Fortran};
    let array = |dtype, shape| Kind::Array(dtype, shape, C);
    let big = |dtype: DType| dtype.with_order(ByteOrder::Big);
    let doubles: Vec<f64> = (0..6_i8).map(f64::from).collect();
    let numbers: Vec<i32> = (0..6).collect();
    let letters = |string: &str| string.chars().map(u32::from).collect::<Vec<u32>>();
    let new = |name, kind, bytes, string| Case { name, kind, bytes, string };
    vec![
        new("C", array(DType::F64, &[2, 3]), bytes(&doubles),
            "ndarray <f8 (2, 3) (24, 8) writeable [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]"),
        new("Fortran", Kind::Array(DType::F64, &[2, 3], Fortran), bytes(&doubles),
            "ndarray <f8 (2, 3) (8, 16) writeable [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]"),
        new("Fortran in three dimensions", Kind::Array(DType::I32, &[1, 2, 3], Fortran), bytes(&numbers),
            "ndarray <i4 (1, 2, 3) (4, 4, 8) writeable [[[0, 2, 4], [1, 3, 5]]]"),
        new("transposed", array(DType::U16, &[2, 3, 2]), transposed(),
            "ndarray <u2 (2, 3, 2) (12, 4, 2) writeable [[[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9, 11]]]"),
        new("read-only", ReadOnly(DType::I32, &[6]), bytes(&numbers),
            "ndarray <i4 (6,) (4,) read-only [0, 1, 2, 3, 4, 5]"),
        new("read-only in two dimensions", ReadOnly(DType::I32, &[3, 2]), bytes(&numbers),
            "ndarray <i4 (3, 2) (8, 4) read-only [[0, 1], [2, 3], [4, 5]]"),
        new("broadcast", Broadcast(DType::I32, [2, 3]), bytes(&numbers[..3]),
            "ndarray <i4 (2, 3) (0, 4) read-only [[0, 1, 2], [0, 1, 2]]"),
        new("no dimensions", array(DType::F64, &[]), bytes(&doubles[2..3]),
            "ndarray <f8 () () writeable 2.0"),
        new("empty", array(DType::F64, &[0, 3]), Vec::new(),
            "ndarray <f8 (0, 3) (0, 0) writeable []"),
        new("bool", array(DType::BOOL, &[3]), bytes(&[true, false, false]),
            "ndarray |b1 (3,) (1,) writeable [True, False, False]"),
        new("i1", array(DType::I8, &[2]), bytes(&[i8::MIN, 1]),
            "ndarray |i1 (2,) (1,) writeable [-128, 1]"),
        new("i2", array(DType::I16, &[2]), bytes(&[i16::MIN, 1]),
            "ndarray <i2 (2,) (2,) writeable [-32768, 1]"),
        new("i8", array(DType::I64, &[2]), bytes(&[i64::MIN, 1]),
            "ndarray <i8 (2,) (8,) writeable [-9223372036854775808, 1]"),
        new("u1", array(DType::U8, &[2]), bytes(&[u8::MAX, 1]),
            "ndarray |u1 (2,) (1,) writeable [255, 1]"),
        new("u4, big-endian", array(big(DType::U32), &[2]), 0x0000_0001_ffff_fffe_u64.to_be_bytes().to_vec(),
            "ndarray >u4 (2,) (4,) writeable [1, 4294967294]"),
        new("u8", array(DType::U64, &[2]), bytes(&[u64::MAX, 1]),
            "ndarray <u8 (2,) (8,) writeable [18446744073709551615, 1]"),
        new("f2", array(DType::F16, &[2]), bytes(&[0x3c00_u16, 0xc100]),
            "ndarray <f2 (2,) (2,) writeable [1.0, -2.5]"),
        new("f4", array(DType::F32, &[3]), bytes(&[1.5_f32, f32::NEG_INFINITY, f32::NAN]),
            "ndarray <f4 (3,) (4,) writeable [1.5, -inf, nan]"),
        new("f8, big-endian", array(big(DType::F64), &[1]), 2.5_f64.to_be_bytes().to_vec(),
            "ndarray >f8 (1,) (8,) writeable [2.5]"),
        new("c8", array(DType::COMPLEX_F32, &[2]), bytes(&[1.0_f32, 2.0, 3.0, -4.0]),
            "ndarray <c8 (2,) (8,) writeable [(1+2j), (3-4j)]"),
        new("c16", array(DType::COMPLEX_F64, &[2]), bytes(&[1.0, 2.0, 3.0, -4.0]),
            "ndarray <c16 (2,) (16,) writeable [(1+2j), (3-4j)]"),
        new("S3", array(DType::bytes(3), &[2]), b"abcd\0\0".to_vec(),
            "ndarray |S3 (2,) (3,) writeable [b'abc', b'd']"),
        new("U2", array(DType::string(2).expect("short"), &[2]), bytes(&letters("hi\u{3b2}\0")),
            "ndarray <U2 (2,) (8,) writeable ['hi', '\u{3b2}']"),
        new("M8[ns]", array(DType::datetime(time(1, TimeBase::Nanosecond)), &[2]), bytes(&[1_i64, i64::MIN]),
            "ndarray <M8[ns] (2,) (8,) writeable [1, None]"),
        new("M8[25s]", array(DType::datetime(time(25, TimeBase::Second)), &[1]), bytes(&[4_i64]),
            "ndarray <M8[25s] (1,) (8,) writeable [datetime.datetime(1970, 1, 1, 0, 1, 40)]"),
        new("m8[D], big-endian", array(big(DType::timedelta(time(1, TimeBase::Day))), &[1]), 3_i64.to_be_bytes().to_vec(),
            "ndarray >m8[D] (1,) (8,) writeable [datetime.timedelta(days=3)]"),
        // Longer than the threshold for splitting frames
        new("large", array(DType::U32, &[LARGE_COUNT]), (0..LARGE_COUNT as u32).flat_map(u32::to_le_bytes).collect(),
            "ndarray <u4 (16778216,) (4,) writeable sum 140754257682220"),
        new("bytes", Bytes, b"as they are".to_vec(), "bytes b'as they are'"),
        new("no bytes", Bytes, Vec::new(), "bytes b''"),
        new("bytearray", ByteArray, b"changeable".to_vec(), "bytearray bytearray(b'changeable')"),
        new("view", View(DType::I32, &[2, 3]), bytes(&numbers),
            "memoryview i (2, 3) writeable [[0, 1, 2], [3, 4, 5]]"),
        new("view of bytes", View(DType::U8, &[4]), b"some".to_vec(),
            "memoryview B (4,) writeable [115, 111, 109, 101]"),
    ]
}

/// Number of elements of an array that is split in two.
const LARGE_COUNT: usize = SHARD_LEN / 4 + 1000;

#[test]
fn arrays_agree_with_the_worker() {
    let mut cluster = Cluster::start();
    let cases = cases();
    for way in WAYS {
        let key = |case: &Case| format!("{} {way:?}", case.name);
        let sent: Vec<_> = cases.iter().map(|each| (key(each), each.sent())).collect();
        cluster.put(way, &sent);
        let keys: Vec<String> = cases.iter().map(key).collect();
        let described = cluster.describe(&keys);
        for case in &cases {
            assert_eq!(described[&key(case)], case.string, "{}", key(case));
        }
        round_trip(&mut cluster, &sent);
    }
    cluster.end();
}

/// Writes an object with some arrays in its pickle and others out of band.
fn object<'d>(arrays: &[(&str, Array<'d>, Placement)], out: &mut Vec<u8>) -> Vec<PickleBuffer<'d>> {
    let mut buffers = Vec::new();
    let mut levels = [pickle::WriterLevel::EMPTY; 10];
    out.resize(1 << 12, 0);
    let mut writer = pickle::Writer::new(out, &mut levels);
    writer.build().reduce();
    writer.global("types", "SimpleNamespace").tuple(0);
    writer.dict(arrays.len() + 4);
    writer.str("name").str("made in Rust");
    writer.str("number").i64(-1);
    writer.str("float").f64(2.5);
    writer.str("items").tuple(2).none().bytes(b"bytes");
    for (name, array, placement) in arrays {
        writer.str(name);
        let written = pickle_array(&mut writer, array, NumpyModules::default(), |buffer| {
            if *placement == Placement::OutOfBand {
                buffers.push(buffer);
            }
            *placement
        });
        written.expect("contiguous frames");
    }
    let len = writer.finish().expect("fits").len();
    out.truncate(len);
    buffers
}

#[test]
fn pickles_keep_their_buffers() {
    let mut cluster = Cluster::start();
    let (doubles, numbers) = (
        bytes(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        bytes(&[1_i16, 2, 3]),
    );
    let new = |dtype, shape: &[usize], order, bytes| {
        Array::new(dtype, shape, order, bytes).expect("a good array")
    };
    let big = DType::I16.with_order(ByteOrder::Big);
    let fortran = new(DType::F64, &[3, 2], Order::Fortran, &doubles);
    let (beside, inside) = (Placement::OutOfBand, Placement::InBand);
    let numbers_of = |dtype| new(dtype, &[3], Order::C, &numbers);
    let arrays = [
        ("c", new(DType::F64, &[2, 3], Order::C, &doubles), beside),
        ("fortran", fortran.with_writeable(false), beside),
        ("big", numbers_of(big), beside),
        ("inside", numbers_of(DType::I16), inside),
        (
            "fixed",
            numbers_of(DType::U16).with_writeable(false),
            inside,
        ),
        ("empty", new(DType::I64, &[0], Order::C, &[]), beside),
    ];
    let mut pickle = Vec::new();
    let buffers = object(&arrays, &mut pickle);
    assert_eq!(buffers.len(), 4);
    let object = Pickle::new(&pickle, buffers);
    let vectors = vectors();

    for way in WAYS {
        let key = format!("object of Rust {way:?}");
        let sent = [(key.clone(), Sent::Pickle(object.clone()))];
        cluster.put(way, &sent);
        assert_eq!(
            cluster.describe(core::slice::from_ref(&key))[&key],
            "SimpleNamespace{name: str 'made in Rust', number: int -1, float: float 2.5, \
             items: tuple[NoneType None, bytes b'bytes'], \
             c: ndarray <f8 (2, 3) (24, 8) writeable [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], \
             fortran: ndarray <f8 (3, 2) (8, 24) read-only [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], \
             big: ndarray >i2 (3,) (2,) writeable [256, 512, 768], \
             inside: ndarray <i2 (3,) (2,) writeable [1, 2, 3], \
             fixed: ndarray <u2 (3,) (2,) read-only [1, 2, 3], \
             empty: ndarray <i8 (0,) (8,) writeable []}"
        );
        round_trip(&mut cluster, &sent);

        // Recorded pickles of pandas, in every protocol.
        let mut names = BTreeMap::new();
        let (mut sent, mut without_buffers) = (Vec::new(), Vec::new());
        for (index, vector) in vectors.iter().enumerate() {
            let key = format!("{} {index} {way:?}", vector.name);
            names.insert(key.clone(), vector.name.clone());
            let each = (key, Sent::Pickle(vector.pickle()));
            if vector.buffers.is_empty() {
                without_buffers.push(each);
            } else {
                sent.push(each);
            }
        }
        assert_eq!(sent.len(), 9);
        cluster.put(way, &sent);
        cluster.put(way, &without_buffers);
        cluster.compare(&names);
        // A list is returned item by item.
        sent.retain(|(key, _)| names[key] != "vector indexes");
        round_trip(&mut cluster, &sent);
    }
    cluster.end();
}

/// A recorded pickle of CPython.
struct Vector {
    name: String,
    pickle: Vec<u8>,
    buffers: Vec<(Vec<u8>, Mutability)>,
}

impl Vector {
    fn pickle(&self) -> Pickle<'_> {
        let buffers = self.buffers.iter();
        let buffers = buffers.map(|(bytes, mutability)| PickleBuffer::new(bytes, *mutability));
        Pickle::new(&self.pickle, buffers.collect())
    }
}

/// Loads the recorded pickles of pandas.
fn vectors() -> Vec<Vector> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/vectors/pickles");
    let string = std::fs::read_to_string(folder.join("pandas.jsonl")).expect("text");
    let unhex = |hex: &Value| -> Vec<u8> {
        let hex = hex.as_str().expect("hex").as_bytes().chunks(2);
        hex.map(|pair| {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("hex")
        })
        .collect()
    };
    let vectors = string.lines().map(|line| {
        let vector: Value = serde_json::from_str(line).expect("JSON");
        let list = |name| vector[name].as_array().map_or(&[][..], Vec::as_slice);
        let buffers = list("buffers").iter().zip(list("readonly"));
        let buffers = buffers.map(|(bytes, read_only)| match read_only {
            Value::Bool(true) => (unhex(bytes), Mutability::ReadOnly),
            _ => (unhex(bytes), Mutability::Writable),
        });
        Vector {
            name: format!("vector {}", vector["name"].as_str().expect("a name")),
            pickle: unhex(&vector["pickle"]),
            buffers: buffers.collect(),
        }
    });
    vectors.collect()
}

/// Values that Python creates in the worker, and whether each is a pickle with buffers.
/// Other values are forwarded as received.
const MADE: [(&str, bool); 14] = [
    ("frame", true),
    ("frame of one block", true),
    ("frame read-only", true),
    ("frame nullable", true),
    ("series", true),
    ("series of texts", true),
    ("categorical", true),
    ("index", true),
    ("object", true),
    ("tuple", false),
    ("dictionary", false),
    ("records", false),
    ("objects", false),
    ("masked", false),
];

#[test]
fn what_the_worker_makes_goes_there_and_back() {
    let mut cluster = Cluster::start();
    let names: Vec<&str> = MADE.iter().map(|(name, _)| *name).collect();
    cluster.python(&json!({"op": "make", "names": names}));
    for way in WAYS {
        let wanted: Vec<String> = names.iter().map(|name| format!("made {name}")).collect();
        let answer = cluster.get(Way::Straight, &wanted);
        let frames: Vec<&[u8]> = answer.iter().map(AsRef::as_ref).collect();
        let mut workspace = Workspace::new();
        let made = values(&frames, &mut workspace);
        let mut sent = Vec::new();
        let mut names = BTreeMap::new();
        for (name, is_pickle) in MADE {
            let payload = made[&format!("made {name}")];
            let value = if is_pickle {
                Sent::Pickle(Pickle::of(name, &payload))
            } else {
                Sent::Forward(payload)
            };
            let key = format!("{name} {way:?}");
            names.insert(key.clone(), name.to_owned());
            sent.push((key, value));
        }
        // Pickles are written anew with the same memory, not only forwarded.
        cluster.put(way, &sent);
        // Compare before other code uses the values: pandas caches derived data in a value,
        // and pickles it, too.
        let keys: Vec<String> = names.keys().cloned().collect();
        let answer = cluster.get(Way::Straight, &keys);
        let frames: Vec<&[u8]> = answer.iter().map(AsRef::as_ref).collect();
        let mut workspace = Workspace::new();
        let again = values(&frames, &mut workspace);
        for (key, value) in &sent {
            if let Sent::Pickle(pickle) = value {
                let again = Pickle::of(key, &again[key]);
                assert_eq!(again.tree(), pickle.tree(), "{key}");
                assert_eq!(again.buffers, pickle.buffers, "{key}");
            }
        }
        cluster.compare(&names);
        round_trip(&mut cluster, &sent);
    }
    cluster.end();
}
