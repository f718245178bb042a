//! Differential tests of reading and writing against real Dask.
//!
//! The peers are real releases in their own environments; see `daskwire-testing`.

use core::time::Duration;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use daskwire::Limits;
use daskwire::compression::{Codec, Compression, Lz4, Policy, Snappy, Zlib, decompress};
use daskwire::frame::{Prefix, encode_prelude, prelude_len};
use daskwire::message::{
    BuildError, BuilderBuffers, FrameCompressor, Item, Layout, Message, MessageBuilder,
    PayloadKind, ReadOptions, Scratch, Workspace,
};
use daskwire::msgpack::{Reader, Writer};
use daskwire_cli::inspect::{Hooks, Inspector, Options, tagged};
use daskwire_comm::{Address, CommOptions, WireFormat};
use daskwire_peer::identity::{identity, options};
use daskwire_testing::{Environment, Peer, Random};
use serde_json::{Value, json};

fn ask(peer: &mut Peer, question: &Value, data: &[u8]) -> (Value, Vec<u8>) {
    let (answer, data) = peer.ask(&question.to_string(), data);
    (parse(&answer), data)
}

/// Parses documents of any depth; `serde_json` limits the depth by default.
fn parse(text: &str) -> Value {
    let mut parser = serde_json::Deserializer::from_str(text);
    parser.disable_recursion_limit();
    serde::Deserialize::deserialize(&mut parser).expect("the peer answers in JSON")
}

/// Normalizes a description, ignoring the order of map entries and set members, and the
/// numbers of payloads.
fn meaning(description: &Value) -> Value {
    let payloads: Vec<Value> = description["payloads"]
        .as_array()
        .expect("a list of payloads")
        .iter()
        .map(|payload| {
            json!({
                "kind": payload["kind"],
                "header": normal(&payload["header"], &[]),
                "frames": payload["frames"],
                "compression": payload["compression"],
            })
        })
        .collect();
    normal(&description["message"], &payloads)
}

fn normal(value: &Value, payloads: &[Value]) -> Value {
    let sorted = |items: &Value| {
        let mut items: Vec<Value> = items
            .as_array()
            .into_iter()
            .flatten()
            .map(|item| normal(item, payloads))
            .collect();
        items.sort_by_key(Value::to_string);
        Value::Array(items)
    };
    match value {
        Value::Object(map) if map.len() == 1 => match map.iter().next() {
            Some((tag, number)) if tag == "$payload" => number
                .as_u64()
                .and_then(|number| payloads.get(usize::try_from(number).ok()?))
                .cloned()
                .expect("the number of a payload"),
            Some((tag, items)) if tag == "$set" || tag == "$map" => json!({ tag: sorted(items) }),
            _ => entries(value, payloads),
        },
        Value::Object(_) => entries(value, payloads),
        Value::Array(items) => items.iter().map(|item| normal(item, payloads)).collect(),
        _ => value.clone(),
    }
}

fn entries(value: &Value, payloads: &[Value]) -> Value {
    let map: BTreeMap<&String, Value> = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (key, normal(value, payloads)))
        .collect();
    json!(map)
}

fn layout_of(environment: Environment) -> (Prefix, Layout) {
    match environment {
        Environment::Current => (Prefix::U64, Layout::Modern),
        Environment::Documented => (Prefix::None, Layout::Classic),
    }
}

fn reading(environment: Environment) -> ReadOptions {
    ReadOptions::default()
        // 2.30.1 keeps them as maps.
        .with_sets_and_enums(matches!(environment, Environment::Current))
}

/// Our description of a message, with merged payloads.
fn describe(message: &[u8], environment: Environment) -> Value {
    let (prefix, layout) = layout_of(environment);
    let options = Options::default()
        .with_prefix(prefix)
        .with_layout(layout)
        .with_payloads(true)
        .with_reading(reading(environment));
    let mut inspector = Inspector::new(message, options);
    let recorded = inspector
        .next_message()
        .expect("framed")
        .expect("one message");
    inspector.json(&recorded).expect("a message")
}

fn stream(prefix: Prefix, frames: &[&[u8]]) -> Vec<u8> {
    let mut stream = vec![0; prelude_len(prefix, frames.len()).expect("fits")];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    encode_prelude(prefix, lengths, &mut stream).expect("fits");
    for frame in frames {
        stream.extend_from_slice(frame);
    }
    stream
}

/// Rebuilds a message from its items in the layout `to`.
fn rebuild(
    frames: &[&[u8]],
    from: Layout,
    to: Layout,
    reading: &ReadOptions,
) -> Result<Vec<u8>, BuildError> {
    let size: usize = frames.iter().map(|frame| 4 * frame.len()).sum::<usize>() + (1 << 18);
    let mut workspace = Workspace::new();
    let message = Message::open(frames, from, reading, &mut workspace)?;
    let (mut body, mut headers) = (vec![0; size], vec![0; size]);
    let mut slots = vec![&[][..]; 4 + 2 * frames.len() + message.payload_count()];
    let (mut scratch, mut walking) = (Workspace::new(), Workspace::new());
    let buffers = BuilderBuffers {
        body: &mut body,
        headers: &mut headers,
        slots: &mut slots,
    };
    let mut builder = MessageBuilder::new(to, buffers).with_scratch(&mut scratch);
    let mut walk = message.walk(&mut walking);
    while let Some(item) = walk.next_item()? {
        builder.item(item, &message)?;
    }
    let prefix = match to {
        Layout::Modern => Prefix::U64,
        Layout::Classic => Prefix::None,
    };
    Ok(stream(prefix, builder.finish()?))
}

fn frames_of(message: &[u8], prefix: Prefix) -> Vec<&[u8]> {
    let options = Options::default().with_prefix(prefix);
    let mut inspector = Inspector::new(message, options);
    inspector
        .next_message()
        .expect("framed")
        .expect("one message")
        .frames
}

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../core/tests/vectors")
}

/// Real Dask reads each recorded message and our rebuilt version of it as the same
/// message.
///
/// PROTOCOL FORWARD-1, MODERN-2 and CLASSIC-4
#[test]
fn real_dask_reads_rebuilt_vectors() {
    let mut same = BTreeMap::new();
    for environment in [Environment::Current, Environment::Documented] {
        let mut peer = daskwire_testing::loads(environment);
        let (_, layout) = layout_of(environment);
        let folders = std::fs::read_dir(vectors()).expect("the vectors are in the repository");
        for folder in folders.map(|folder| folder.expect("an entry").path()) {
            let name = folder
                .file_name()
                .and_then(|name| name.to_str())
                .expect("a name")
                .to_owned();
            let is_ours = match layout {
                Layout::Modern => name.starts_with("modern-"),
                // 2021.3.0 has split lists, which 2.30.1 does not support.
                Layout::Classic => name.starts_with("classic-") && !name.contains("total"),
            };
            // Neither environment supports blosc.
            if !is_ours || name.contains("blosc") {
                continue;
            }
            for file in std::fs::read_dir(&folder).expect("a folder") {
                let file = file.expect("an entry").path();
                if file.extension().is_none_or(|extension| extension != "bin") {
                    continue;
                }
                let recorded = std::fs::read(&file).expect("a readable vector");
                let (prefix, _) = layout_of(environment);
                let frames = frames_of(&recorded, prefix);
                let written = rebuild(&frames, layout, layout, &reading(environment))
                    .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
                let question = json!({ "op": "read" });
                let (theirs, _) = ask(&mut peer, &question, &recorded);
                let (ours, _) = ask(&mut peer, &question, &written);
                // Releases earlier than this one also accept messages that it refuses, such as a
                // header without `bytestrings`. Only messages that it accepts are compared.
                if theirs["ok"] == json!(true) {
                    assert_eq!(ours["ok"], json!(true), "{}: {ours}", file.display());
                    assert_eq!(meaning(&ours), meaning(&theirs), "{}", file.display());
                    *same.entry(environment.release()).or_insert(0) += 1;
                }
            }
        }
    }
    println!("read alike: {same:?}");
    assert!(same["2026.8.0"] >= 300, "{same:?}");
    assert!(same["2.30.1"] >= 150, "{same:?}");
}

/// Random messages of real Dask are read the same way by us and by Dask.
#[test]
fn reads_random_messages_like_real_dask() {
    for environment in [Environment::Current, Environment::Documented] {
        let mut peer = daskwire_testing::loads(environment);
        for seed in 0..300 {
            let (theirs, message) = ask(&mut peer, &json!({ "op": "write", "seed": seed }), &[]);
            assert_eq!(theirs["ok"], json!(true), "{theirs}");
            let ours = describe(&message, environment);
            assert_eq!(meaning(&ours), meaning(&theirs), "seed {seed}");
            let (prefix, layout) = layout_of(environment);
            let frames = frames_of(&message, prefix);
            let written = rebuild(&frames, layout, layout, &reading(environment))
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let (again, _) = ask(&mut peer, &json!({ "op": "read" }), &written);
            assert_eq!(
                meaning(&again),
                meaning(&theirs),
                "seed {seed}, written by us"
            );
        }
    }
}

/// A payload forwarded to the other layout unpickles to the same value.
///
/// PROTOCOL FORWARD-5 and FORWARD-6
#[test]
fn payloads_forwarded_across_layouts_have_the_same_value() {
    let environments = [Environment::Documented, Environment::Current];
    let mut peers = environments.map(daskwire_testing::loads);
    for (from, to) in [(0, 1), (1, 0)] {
        let (source, target) = (environments[from], environments[to]);
        let (names, _) = ask(&mut peers[from], &json!({ "op": "cases" }), &[]);
        let mut converted = Vec::new();
        let mut refused = Vec::new();
        for name in names["cases"].as_array().expect("names") {
            let name = name.as_str().expect("a name");
            let (_, message) = ask(
                &mut peers[from],
                &json!({ "op": "write", "case": name }),
                &[],
            );
            let (prefix, layout) = layout_of(source);
            let frames = frames_of(&message, prefix);
            let sent = match rebuild(&frames, layout, layout_of(target).1, &reading(source)) {
                Ok(sent) => sent,
                Err(BuildError::NotConvertible { reason }) => {
                    refused.push((name.to_owned(), reason));
                    continue;
                }
                Err(error) => panic!("{name}: {error}"),
            };
            let question = json!({ "op": "value" });
            let (there, _) = ask(&mut peers[to], &question, &sent);
            let (here, _) = ask(&mut peers[from], &question, &message);
            if here["ok"] != json!(true) {
                continue;
            }
            // Pickles of numpy 2 refer to modules that numpy 1 lacks, and describe aligned
            // records in a way that numpy 1 does not support.
            const NUMPY_2: [&str; 2] = ["No module named 'numpy.", "incorrect value for flags"];
            if there["error"]
                .as_str()
                .is_some_and(|error| NUMPY_2.iter().any(|reason| error.contains(reason)))
            {
                continue;
            }
            assert_eq!(there["ok"], json!(true), "{name}: {there}");
            let flat = |value: &Value| {
                let text = value["value"].as_str().expect("a text");
                assert!(
                    !text.contains(" at 0x"),
                    "{name} is shown by its address: {text}"
                );
                // numpy 2.2 and later include the shape in the repr of a
                // shortened array.
                let mut parts = text.split(", shape=(");
                let mut text: Vec<char> = parts.next().into_iter().flat_map(str::chars).collect();
                for part in parts {
                    text.extend(part.split_once(')').expect("a shape ends").1.chars());
                }
                // Map entries may be reordered, and tuples become lists.
                text.sort_unstable();
                text.into_iter()
                    .filter(|c| !"[](),' \n".contains(*c))
                    .collect::<String>()
            };
            // Values that 2.30.1 keeps as a map or converts to a plain array (including its own
            // matrices), that numpy 2 prints differently, and aligned records of numpy 1, which
            // numpy 2 reads as unaligned.
            let differing = [
                "enum",
                "sets",
                "array-matrix",
                "array-of-records-of-all-kinds",
                "pickled-arrays-of-all-kinds",
                "pickled-for-want-of-msgpack",
            ];
            if !differing.contains(&name) {
                assert_eq!(flat(&there), flat(&here), "{name}");
            }
            converted.push(name.to_owned());
        }
        println!(
            "{} to {}: {} converted, refused {refused:?}",
            source.release(),
            target.release(),
            converted.len()
        );
        // In the current release a dict is a collection, which the classic layout lacks.
        let pickled: &[&str] = match source {
            Environment::Documented => &[
                "pickled-value",
                "pickled-value-with-buffers",
                "collection-list",
                "collection-map",
            ],
            Environment::Current => &["to-pickle"],
        };
        let expected = [
            "get-data-reply",
            "several-payloads",
            "split-bytes",
            "compressed-lz4",
        ];
        for name in expected.iter().chain(pickled) {
            assert!(
                converted.iter().any(|done| done == name),
                "{name} was not converted: {refused:?}"
            );
        }
    }
}

/// Documents of msgpack-python are read as the same values, and encoded to the same
/// bytes.
///
/// PROTOCOL MSGPACK-2 and MSGPACK-3
#[test]
fn documents_of_msgpack_python_come_back_byte_for_byte() {
    let mut peer = daskwire_testing::msgpack();
    let mut compared = 0;
    for seed in 0..20 {
        let question = json!({ "op": "random", "seed": seed, "count": 500 });
        let (answer, packed) = ask(&mut peer, &question, &[]);
        let mut rest = packed.as_slice();
        for document in answer["documents"].as_array().expect("documents") {
            let len = usize::try_from(document["len"].as_u64().expect("a length")).expect("short");
            let (bytes, after) = rest.split_at(len);
            rest = after;
            let ours = tagged(bytes, Hooks::None, false, 0).expect("a document");
            assert_eq!(normal(&ours, &[]), normal(&document["value"], &[]));
            let mut buffer = vec![0; len];
            let mut writer = Writer::new(&mut buffer);
            let mut reader = Reader::new(bytes);
            while writer.owed() != 0 {
                writer.token(reader.token().expect("a document"));
            }
            reader.finish().expect("all of it");
            assert_eq!(writer.finish().expect("fits"), bytes);
            compared += 1;
        }
    }
    assert_eq!(compared, 10_000);
}

fn block(random: &mut Random, seed: usize) -> Vec<u8> {
    let len = match seed % 5 {
        0 => random.below(64),
        1 | 2 => random.below(2000),
        3 => random.below(20_000),
        _ => random.below(200_000),
    };
    let kinds = 1 + random.below(256);
    let period = 1 + random.below(300);
    let mut block: Vec<u8> = Vec::with_capacity(len);
    while block.len() < len {
        let byte = match (seed / 5) % 3 {
            0 => random.below(kinds),
            1 => block
                .len()
                .checked_sub(period)
                .map_or(random.below(256), |at| usize::from(block[at])),
            _ => {
                if random.below(50) == 0 {
                    random.below(256)
                } else {
                    0
                }
            }
        };
        block.push(u8::try_from(byte).expect("a byte"));
    }
    block
}

/// Dask's decompressors read blocks compressed by us, and we read blocks compressed by
/// Dask.
///
/// PROTOCOL COMPRESS-1, COMPRESS-2, COMPRESS-3 and COMPRESS-4
#[test]
fn compressed_blocks_are_compatible() {
    let mut peer = Peer::spawn(Environment::Current, "compression_peer.py", &[]);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for seed in 0..600 {
        let data = block(&mut random, seed);
        for codec in [Codec::Lz4, Codec::Snappy, Codec::Zlib, Codec::Zstd] {
            let (answer, packed) = ask(
                &mut peer,
                &json!({ "op": "compress", "codec": codec.name() }),
                &data,
            );
            assert_eq!(answer["ok"], json!(true), "{answer}");
            let mut out = vec![0xa5; data.len()];
            let len = decompress(codec, &packed, &mut out, Limits::HOST.decompressed_len);
            assert_eq!(len, Ok(data.len()), "{codec}, block {seed}");
            assert_eq!(out, data, "{codec}, block {seed}");
        }
        let ours: [&mut dyn Compression; 3] =
            [&mut Lz4::new(), &mut Snappy::new(), &mut Zlib::new()];
        for compression in ours {
            let codec = compression.codec();
            let mut packed = vec![0; compression.max_compressed_len(data.len()).expect("short")];
            let len = compression
                .compress(&data, &mut packed)
                .expect("there is room");
            packed.truncate(len);
            let (answer, theirs) = ask(
                &mut peer,
                &json!({ "op": "decompress", "codec": codec.name() }),
                &packed,
            );
            assert_eq!(answer["ok"], json!(true), "{codec}, block {seed}: {answer}");
            assert_eq!(theirs, data, "{codec}, block {seed}");
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Real Dask unpickles a payload that we have split and compressed.
///
/// PROTOCOL SPLIT-1, SPLIT-2 and COMPRESS-7
#[test]
fn real_dask_reads_split_and_compressed_payloads() {
    let data = vec![7_u8; 70_000];
    // A pickle that refers to the class `bytes` by name
    let bytes_class = b"\xc4\x15\x80\x04\x8c\x08builtins\x8c\x05bytes\x93.";
    for environment in [Environment::Current, Environment::Documented] {
        let (prefix, layout) = layout_of(environment);
        let (mut snappy, mut random) = (Snappy::new(), |_| 0);
        let mut out = vec![0; 200_000];
        let (mut body, mut headers) = ([0; 256], [0; 1024]);
        let (mut slots, mut scratch) = ([&[][..]; 8], Scratch::<4, 1>::new());
        let mut builder = MessageBuilder::new(
            layout,
            BuilderBuffers {
                body: &mut body,
                headers: &mut headers,
                slots: &mut slots,
            },
        )
        .with_scratch(&mut scratch)
        .with_compression(FrameCompressor {
            compression: &mut snappy,
            policy: Policy::DASK,
            out: &mut out,
            random: &mut random,
        });
        builder.body().map(1).str("x");
        let entries: [(&str, &[u8]); 4] = [
            ("serializer", b"\xa4dask"),
            ("type", b"\xa5bytes"),
            ("type-serialized", bytes_class),
            ("sub-header", b"\x80"),
        ];
        builder
            .payload(PayloadKind::Serialized, &entries, &[&data], 30_000)
            .expect("there is room");
        let frames = builder.finish().expect("a message");
        let lens = frames.iter().rev().take(3).map(|frame| frame.len());
        assert!(lens.max() < Some(10_000), "sevens compress well");
        let mut peer = daskwire_testing::loads(environment);
        let (answer, _) = ask(
            &mut peer,
            &json!({ "op": "value" }),
            &stream(prefix, frames),
        );
        assert_eq!(answer["ok"], json!(true), "{answer}");
        let value = answer["value"].as_str().expect("a text");
        assert_eq!(
            value.matches("\\x07").count(),
            data.len(),
            "{}",
            environment.release()
        );
    }
}

/// PROTOCOL HANDSHAKE-1
#[test]
fn requests_the_identity_of_a_real_scheduler() {
    let scheduler = daskwire_testing::scheduler_with_workers(2);
    let address: Address = scheduler.address().parse().expect("an address");
    let (answer, agreement) = runtime()
        .block_on(identity(
            &address,
            &daskwire_peer::transports(),
            &options(Duration::from_secs(30)),
        ))
        .expect("an identity");
    assert_eq!(answer.kind, "Scheduler");
    assert_eq!(answer.address, scheduler.address());
    assert_eq!(agreement.layout, Layout::Modern);
    assert_eq!(agreement.negotiated.pickle_protocol, 5);
    let mut names: Vec<&str> = answer
        .workers
        .iter()
        .map(|worker| worker.name.as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["worker-0", "worker-1"]);
    assert!(answer.workers.iter().all(|worker| worker.nthreads == 1));

    let output = std::process::Command::new(env!("CARGO_BIN_EXE_daskwire"))
        .args(["identity", scheduler.address()])
        .output()
        .expect("the command runs");
    let table = String::from_utf8(output.stdout).expect("text");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        table.contains("worker-1") && table.contains("running"),
        "{table}"
    );

    let log = scheduler.log();
    for word in ["ERROR", "WARNING", "Traceback"] {
        assert!(!log.contains(word), "the scheduler complains:\n{log}");
    }
}

#[test]
fn reports_a_closed_port() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_daskwire"))
        .args(["identity", "tcp://127.0.0.1:1"])
        .output()
        .expect("the command runs");
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("tcp://127.0.0.1:1"), "{error}");
}

/// Exchanges messages with processes of both generations, over their own comms.
///
/// PROTOCOL HANDSHAKE-1, FRAME-13 and CLASSIC-1
#[test]
fn messages_are_exchanged_with_real_processes_of_both_generations() {
    for environment in [Environment::Documented, Environment::Current] {
        let peer = daskwire_testing::echo(environment);
        let address: Address = peer.address().parse().expect("an address");
        runtime().block_on(async {
            let options = CommOptions::default().with_wire(WireFormat::Detect);
            let comm = daskwire_peer::transports()
                .connect(&address, &options)
                .await;
            let mut comm = comm.expect("a comm");
            let (prefix, layout) = layout_of(environment);
            assert_eq!(
                (comm.agreement().prefix, comm.agreement().layout),
                (prefix, layout)
            );

            let body = b"\x81\xa2op\xa5known";
            match layout {
                Layout::Modern => comm.write_message(&[body]).await,
                Layout::Classic => comm.write_message(&[&b""[..], body]).await,
            }
            .expect("written");
            let known = comm.read_message().await.expect("read").expect("an answer");
            check_known(&known, layout);

            // The message is sent back unchanged, and returned again, with equal payloads.
            let frames: Vec<&[u8]> = known.iter().map(AsRef::as_ref).collect();
            let reading = reading(environment);
            let sent = rebuild(&frames, layout, layout, &reading).expect("a message");
            let sent = frames_of(&sent, prefix);
            comm.write_message(&sent).await.expect("written");
            let echoed = comm.read_message().await.expect("read").expect("an answer");
            check_known(&echoed, layout);

            // Several small messages in a row, sent without waiting.
            for number in 0..50_u64 {
                let mut buffer = [0; 64];
                let mut writer = Writer::new(&mut buffer);
                writer
                    .map(2)
                    .str("op")
                    .str("echo")
                    .str("number")
                    .u64(number);
                let body = writer.finish().expect("fits");
                match layout {
                    Layout::Modern => comm.write_message(&[body]).await,
                    Layout::Classic => comm.write_message(&[&[][..], body]).await,
                }
                .expect("written");
            }
            for number in 0..50_u64 {
                let frames = comm.read_message().await.expect("read").expect("an answer");
                let body = frames.last().expect("a body");
                let mut reader = Reader::new(body);
                assert!(reader.find("number").expect("a map"));
                assert_eq!(reader.u64().expect("a number"), number);
            }

            comm.write_message(&match layout {
                Layout::Modern => vec![&b"\x81\xa2op\xa5close"[..]],
                Layout::Classic => vec![&b""[..], &b"\x81\xa2op\xa5close"[..]],
            })
            .await
            .expect("written");
            assert!(comm.read_message().await.expect("a clean end").is_none());
        });
    }
}

/// Checks the array `arange(6.).reshape(2, 3)` and its expected bytes.
fn check_known<T: AsRef<[u8]>>(frames: &[T], layout: Layout) {
    let mut workspace = Workspace::new();
    let mut walking = Scratch::<8>::new();
    let message = Message::open(frames, layout, &ReadOptions::default(), &mut workspace);
    let message = message.expect("a message");
    message.check().expect("a right message");
    assert_eq!(message.payload_count(), 2);
    let mut items = 0;
    let mut walk = message.walk(&mut walking);
    while let Some(item) = walk.next_item().expect("checked") {
        items += usize::from(matches!(item, Item::Payload(_)));
    }
    assert_eq!(items, 2);
    let mut array_bytes = Vec::new();
    for number in 0_u32..6 {
        array_bytes.extend_from_slice(&f64::from(number).to_le_bytes());
    }
    let mut found = 0;
    for payload in message.payloads() {
        let payload = payload.expect("a payload");
        let header = payload.header();
        let mut out = vec![0; 16_000];
        let mut ends = [0; 4];
        let merged = payload.merge_into(&mut out, &mut ends).expect("fits");
        if header.type_name() == Ok(Some("numpy.ndarray")) {
            assert_eq!(header.dtype(), Ok(Some("<f8")));
            let shape = header.shape().expect("a list").expect("a shape");
            assert!(shape.numbers().eq([Ok(2), Ok(3)]));
            let strides = header.strides().expect("a list").expect("strides");
            assert!(strides.signed_numbers().eq([Ok(24), Ok(8)]));
            assert_eq!(merged.bytes(), array_bytes);
            found += 1;
        } else {
            assert_eq!(merged.bytes(), b"daskwire".repeat(2000));
            found += 1;
        }
    }
    assert_eq!(found, 2);
}
