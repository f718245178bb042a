//! Tests of `daskwire inspect` and `daskwire encode`. Sets of vectors are read through the
//! library; the commands get some of them, as files and on standard input, and return text, JSON,
//! errors and an exit status.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::command::{Ran, run};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use daskwire::frame::Prefix;
use daskwire::message::Layout;
use daskwire_cli::encode::{Target, encode};
use daskwire_cli::inspect::{InspectError, Inspector, Options, Recorded};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Minimum number of vectors in the repository.
const MIN_VECTORS: usize = 750;
const MIN_HOSTILE: usize = 200;
const MIN_STREAMS: usize = 18;

/// Vectors of a release that keeps enum members as maps; later releases convert them.
const READ_AS_MAPS: [&str; 2] = ["classic-2.30.1/case-enum", "classic-2.30.1/enum"];

/// Vectors compressed by a codec that is not supported.
const BLOSC: [&str; 5] = [
    "classic-1.20.2-blosc/blosc-f8",
    "classic-1.20.2-blosc/blosc-i4-2d",
    "modern-total-2021.12.0-blosc/blosc-f8",
    "modern-total-2021.12.0-blosc/blosc-i4-2d",
    "modern-total-2021.12.0-blosc/blosc-or-lz4-bytes",
];

/// Runs `inspect` or `encode` with options on a file.
fn of_file(options: &str, file: &Path) -> Ran {
    let mut arguments: Vec<&std::ffi::OsStr> =
        options.split_whitespace().map(AsRef::as_ref).collect();
    arguments.push(file.as_os_str());
    run(&arguments, None)
}

/// Runs `inspect` or `encode` with options on standard input.
fn of_input(options: &str, input: &[u8]) -> Ran {
    let arguments: Vec<&str> = options.split_whitespace().chain(["-"]).collect();
    run(&arguments, Some(input))
}

/// The documents of a stream, and the error that ended them.
fn documents(stream: &[u8], options: Options) -> (Vec<Value>, Option<InspectError>) {
    messages(stream, options, Inspector::json)
}

/// The messages of a stream as text, and the error that ended them.
fn texts(stream: &[u8], options: Options) -> (Vec<String>, Option<InspectError>) {
    messages(stream, options, Inspector::text)
}

fn messages<'s, T>(
    stream: &'s [u8],
    options: Options,
    format: impl Fn(&mut Inspector<'s>, &Recorded<'s>) -> Result<T, InspectError>,
) -> (Vec<T>, Option<InspectError>) {
    let mut inspector = Inspector::new(stream, options);
    let mut formatted = Vec::new();
    loop {
        let next = match inspector.next_message() {
            Ok(Some(message)) => format(&mut inspector, &message),
            Ok(None) => return (formatted, None),
            Err(error) => Err(error),
        };
        match next {
            Ok(message) => formatted.push(message),
            Err(error) => return (formatted, Some(error)),
        }
    }
}

/// Calls a function for each item, in parallel on all processors.
fn each<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../core/tests/vectors")
}

/// A recorded message, an invalid one, or a stream of several.
struct Vector {
    /// The name of the vector, with its folder.
    name: String,
    file: PathBuf,
    /// The description of the vector.
    json: Value,
}

impl Vector {
    /// Loads all vectors in a folder whose file names have a given ending.
    fn all(folder: &Path, ending: &str) -> Vec<Self> {
        let mut vectors: Vec<Self> = std::fs::read_dir(folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.unwrap().path())
            .filter_map(|file| {
                let stem = file.to_str()?.strip_suffix(ending)?.to_owned();
                let json = std::fs::read(format!("{stem}{}", ending.replace("bin", "json")))
                    .unwrap_or_else(|error| panic!("{stem}: {error}"));
                let name = Path::new(&stem).file_name()?.to_str()?.to_owned();
                let folder = folder.file_name()?.to_str()?;
                Some(Self {
                    name: format!("{folder}/{name}"),
                    file,
                    json: serde_json::from_slice(&json)
                        .unwrap_or_else(|error| panic!("{stem}: {error}")),
                })
            })
            .collect();
        vectors.sort_by(|a, b| a.name.cmp(&b.name));
        vectors
    }

    /// Loads all messages recorded from real releases.
    fn recorded() -> Vec<Self> {
        let folders = std::fs::read_dir(root()).unwrap();
        let vectors: Vec<Self> = folders
            .map(|folder| folder.unwrap().path())
            .filter(|folder| {
                let name = folder.file_name().unwrap().to_str().unwrap();
                name.starts_with("classic-") || name.starts_with("modern-")
            })
            .flat_map(|folder| Self::all(&folder, ".bin"))
            .collect();
        assert!(vectors.len() >= MIN_VECTORS, "{}", vectors.len());
        vectors
    }

    fn hostile() -> Vec<Self> {
        let vectors = Self::all(&root().join("hostile"), ".bin");
        assert!(vectors.len() >= MIN_HOSTILE, "{}", vectors.len());
        vectors
    }

    fn layout(&self) -> &'static str {
        let name = self.name.strip_prefix("hostile/").unwrap_or(&self.name);
        if name.trim_start_matches("streams/").starts_with("classic") {
            "classic"
        } else {
            "modern"
        }
    }

    fn prefix(&self) -> &'static str {
        match self.json["prefix"].as_str() {
            Some("none") => "none",
            Some("total" | "nosplit") => "u64",
            other => panic!("{}: {other:?}", self.name),
        }
    }

    /// The explicit options for what `inspect` would detect.
    fn explicit(&self) -> String {
        format!("--prefix {} --layout {}", self.prefix(), self.layout())
    }

    /// The same for the library.
    fn explicit_options(&self) -> Options {
        Options::default()
            .with_prefix(match self.prefix() {
                "none" => Prefix::None,
                _ => Prefix::U64,
            })
            .with_layout(match self.layout() {
                "classic" => Layout::Classic,
                _ => Layout::Modern,
            })
    }

    fn stream(&self) -> Vec<u8> {
        std::fs::read(&self.file).unwrap()
    }

    fn payloads(&self) -> &[Value] {
        self.json["payloads"].as_array().unwrap()
    }
}

/// Normalizes the order of map entries and set members.
fn normal(value: &Value) -> Value {
    let sorted = |items: &Value| {
        let mut items: Vec<Value> = items.as_array().unwrap().iter().map(normal).collect();
        items.sort_by_cached_key(Value::to_string);
        items
    };
    match value {
        Value::Array(items) => items.iter().map(normal).collect(),
        Value::Object(map) => {
            if let (1, Some(members)) = (map.len(), map.get("$set")) {
                return json!({ "$set": sorted(members) });
            }
            if let (1, Some(pairs)) = (map.len(), map.get("$map")) {
                return json!({ "$map": sorted(pairs) });
            }
            let mut entries: Vec<_> = map
                .iter()
                .map(|(key, v)| (key.clone(), normal(v)))
                .collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().collect())
        }
        _ => value.clone(),
    }
}

fn parse(line: &str, name: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"))
}

/// The expected document for a vector, excluding the frames of payloads.
fn expected(vector: &Vector) -> Value {
    let mut expected = json!({
        "offset": 0,
        "layout": vector.layout(),
        "prefix": vector.prefix(),
        "frames": vector.json["frames"],
        "message": vector.json["message"],
        "payloads": vector.json["payloads"],
    });
    if vector.prefix() == "u64" {
        expected["prefix_value"] = vector.json["prefix_value"].clone();
    }
    normal(&expected)
}

/// Removes the frames of payloads from a document, and returns them.
fn take_payload_frames(document: &mut Value) -> Vec<Value> {
    let payloads = document["payloads"].as_array_mut().unwrap();
    payloads
        .iter_mut()
        .map(|payload| payload.as_object_mut().unwrap().remove("frames").unwrap())
        .collect()
}

/// Checks that payloads have the frames of the message, unchanged and in order, which
/// holds unless they are merged.
fn check_wire_frames(vector: &Vector, payloads: &[Value]) {
    let name = &vector.name;
    let frames = vector.json["frames"].as_array().unwrap();
    let mut rest = frames.get(3..).unwrap_or_default();
    for (number, payload) in payloads.iter().enumerate() {
        let payload = payload.as_array().unwrap();
        let header = &vector.payloads()[number]["header"];
        let count = header.get("num-sub-frames").or(header.get("count"));
        let count = usize::try_from(count.and_then(Value::as_u64).unwrap()).unwrap();
        assert_eq!(payload.len(), count, "{name}, payload {number}");
        if vector.layout() == "classic" {
            let (own, after) = rest.split_at(count);
            assert_eq!(payload, own, "{name}, payload {number}");
            rest = after;
        } else {
            let found = count == 0 || frames.windows(count).any(|frames| frames == payload);
            assert!(found, "{name}, payload {number}");
        }
    }
    if vector.layout() == "classic" {
        assert_eq!(rest.len(), 0, "{name}");
    }
}

/// Compares the document of a vector, read with these options.
fn check_recorded(vector: &Vector, options: Options) {
    let name = &vector.name;
    let merged = options.payloads;
    let converts_enums = options.reading.sets_and_enums;
    let (mut found, error) = documents(&vector.stream(), options);
    if merged && BLOSC.contains(&name.as_str()) {
        let error = error.expect(name).to_string();
        assert!(error.contains("\"blosc\""), "{name}: {error}");
        assert!(error.contains("at byte 0, in frame "), "{name}: {error}");
        assert_eq!(found, [] as [Value; 0], "{name}");
        return;
    }
    assert!(error.is_none(), "{name}: {error:?}");
    assert_eq!(found.len(), 1, "{name}");
    let mut found = normal(&found.remove(0));
    let mut expected = expected(vector);
    let frames = take_payload_frames(&mut found);
    let expected_frames = take_payload_frames(&mut expected);
    if merged {
        assert_eq!(frames, expected_frames, "{name}");
    } else {
        check_wire_frames(vector, &frames);
    }
    if READ_AS_MAPS.contains(&name.as_str()) && converts_enums {
        assert_ne!(found["message"], expected["message"], "{name}");
        assert!(found["message"].to_string().contains("$enum"), "{name}");
        expected["message"] = found["message"].clone();
    }
    assert_eq!(found, expected, "{name}");
}

#[test]
fn inspect_agrees_with_the_release_of_each_vector() {
    let vectors = Vector::recorded();
    for name in READ_AS_MAPS.iter().chain(&BLOSC) {
        assert!(vectors.iter().any(|vector| vector.name == *name), "{name}");
    }
    each(&vectors, |vector| {
        // With detection, and with explicit options
        let mut detecting = Options::default().with_payloads(true);
        check_recorded(vector, detecting.clone());
        check_recorded(vector, vector.explicit_options());
        if READ_AS_MAPS.contains(&vector.name.as_str()) {
            detecting.reading.sets_and_enums = false;
            check_recorded(vector, detecting);
        }
    });
    let file = root().join(format!("{}.bin", READ_AS_MAPS[0]));
    for (options, is_map) in [("", false), ("--plain-maps", true)] {
        let ran = of_file(&format!("inspect --json {options}"), &file);
        assert_eq!(ran.good(options).contains("__Enum__"), is_map, "{options}");
    }
}

#[test]
fn streams_are_one_document_per_line_and_message() {
    let streams = Vector::all(&root().join("streams"), ".stream.bin");
    assert!(streams.len() >= MIN_STREAMS, "{}", streams.len());
    each(&streams, |stream| {
        let name = &stream.name;
        let bytes = std::fs::read(&stream.file).unwrap();
        let messages = stream.json["messages"].as_array().unwrap();
        let auto = of_file("inspect --json", &stream.file);
        let lines: Vec<&str> = auto.good(name).lines().collect();
        assert_eq!(lines.len(), messages.len(), "{name}");
        for (line, message) in lines.iter().zip(messages) {
            let found = parse(line, name);
            assert_eq!(found["offset"], message["offset"], "{name}");
            assert_eq!(found["layout"], stream.layout(), "{name}");
            assert_eq!(found["prefix"], stream.prefix(), "{name}");
            assert_eq!(
                normal(&found["message"]),
                normal(&message["message"]),
                "{name}"
            );
            let count = |key: &str| found[key].as_array().map(Vec::len).unwrap() as u64;
            assert_eq!(message["n_frames"], count("frames"), "{name}");
            assert_eq!(message["n_payloads"], count("payloads"), "{name}");
            // Between two offsets there are only the prelude and the frames.
            let frames = found["frames"].as_array().unwrap();
            let data: u64 = frames
                .iter()
                .map(|frame| frame["len"].as_u64().unwrap())
                .sum();
            let prefix_len = if stream.prefix() == "u64" { 8 } else { 0 };
            let len = prefix_len + 8 + 8 * count("frames") + data;
            assert_eq!(message["len"], len, "{name}");
        }
        // The same messages with explicit options, from standard input, and as
        // text.
        let said = of_input(&format!("inspect --json {}", stream.explicit()), &bytes);
        assert_eq!(said.good(name), auto.text(), "{name}");
        let text = of_file("inspect --payloads", &stream.file);
        let heads: Vec<&str> = text
            .good(name)
            .lines()
            .filter(|line| line.starts_with("message"))
            .collect();
        assert_eq!(heads.len(), messages.len(), "{name}");
        for (head, message) in heads.iter().zip(messages) {
            let at = format!(" at byte {}: ", message["offset"]);
            assert!(head.contains(&at), "{name}: {head}");
        }
        // Truncated in the last message: all others are printed, and the error has the
        // offset of the last one.
        let cut = of_input("inspect --json", &bytes[..bytes.len() - 1]);
        let last = messages.last().unwrap();
        let error = cut.refused(name);
        let at = format!("message at byte {}, ", last["offset"]);
        assert!(error.contains(&at), "{name}: {error}");
        assert_eq!(
            cut.text(),
            lines[..lines.len() - 1].join("\n") + "\n",
            "{name}"
        );
    });
}

/// The hostile messages that `PROTOCOL.md` lists as accepted.
fn accepted() -> Vec<String> {
    let accepted: Vec<String> = std::fs::read_to_string(root().join("../../PROTOCOL.md"))
        .unwrap()
        .lines()
        .filter_map(|line| {
            let (name, row) = line.strip_prefix("| `")?.split_once("` | ")?;
            let name = name.starts_with("hostile/").then_some(name)?;
            row.starts_with("accept |").then(|| name.to_owned())
        })
        .collect();
    assert!(accepted.len() > 5, "{accepted:?}");
    accepted
}

/// A message that the limits of the command, those of a host, allow.
const BOMB: &str = "hostile/nosplit--zlib-bomb";

#[test]
fn hostile_messages_are_refused_with_a_location() {
    let accepted = accepted();
    let hostile = Vector::hostile();
    let refused = AtomicUsize::new(0);
    each(&hostile, |vector| {
        let name = &vector.name;
        let level = vector.json["level"].as_str().unwrap();
        let accept = level == "policy" && (accepted.contains(name) || name == BOMB);
        let stream = vector.stream();
        let options = vector.explicit_options().with_payloads(true);
        let (as_documents, first) = documents(&stream, options.clone());
        let (as_texts, second) = texts(&stream, options);
        for (messages, error) in [(as_documents.len(), first), (as_texts.len(), second)] {
            let is_followed = name.ends_with("--trailing-garbage");
            if accept && !is_followed {
                assert!(error.is_none(), "{name}: {error:?}");
                assert_eq!(messages, 1, "{name}");
                continue;
            }
            refused.fetch_add(1, Ordering::Relaxed);
            let error = error.expect(name).to_string();
            assert_eq!(messages, usize::from(is_followed), "{name}: {error}");
            if stream.is_empty() {
                assert_eq!(error, "the input is empty: no message at byte 0", "{name}");
                continue;
            }
            let offset = if is_followed { 30 } else { 0 };
            let place = format!("message at byte {offset}, ");
            let Some(fault) = error.strip_prefix(&place) else {
                panic!("{name}: {error}");
            };
            // The error names a frame, unless the framing itself is malformed.
            let (place, what) = fault.split_once(": ").unwrap();
            let is_framing = place.starts_with("at byte ") && place.ends_with(" of the message");
            let is_frame = place.starts_with("in frame ") && place.contains(", at byte ");
            assert!(is_framing || is_frame, "{name}: {fault}");
            assert!(what.len() > 15, "{name}: {what}");
        }
        // A wrong guess must also end without a panic.
        let guessing = Options::default().with_payloads(true);
        texts(&stream, guessing);
    });
    let refused = refused.into_inner();
    assert!(refused > 400, "{refused}");
    // The command names the file, too.
    let garbage = root().join("hostile/nosplit--garbage.bin");
    let ran = of_file("inspect --prefix u64", &garbage);
    let error = ran.refused("garbage");
    let place = format!("{}: message at byte 0, ", garbage.display());
    assert!(error.starts_with(&place), "{error}");
}

/// Compares an output with a golden file.
fn check_golden(vector: &str, options: &str, golden: &str) {
    let file = root().join(format!("{vector}.bin"));
    let ran = of_file(&format!("inspect {options}"), &file);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/inspect/{golden}.txt"));
    // To accept a reviewed change: DASKWIRE_WRITE_GOLDEN=1 cargo test
    if std::env::var_os("DASKWIRE_WRITE_GOLDEN").is_some() {
        std::fs::write(&golden, ran.good(vector)).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&golden)
        .unwrap_or_else(|error| panic!("{}: {error}", golden.display()));
    assert_eq!(ran.good(vector), expected, "{vector}");
}

#[test]
fn text_matches_golden_files() {
    for (vector, options, golden) in [
        (
            "modern-nosplit-2026.8.0/docs-get-data-ones5",
            "--payloads",
            "modern",
        ),
        (
            "modern-nosplit-2026.8.0/docs-get-data-ones5",
            "--data",
            "modern-data",
        ),
        (
            "classic-2.30.1/docs-get-data-ones5",
            "--payloads",
            "classic",
        ),
        (
            "modern-nosplit-2026.8.0/case-split-and-compressed",
            "--payloads",
            "split-and-compressed",
        ),
        (
            "modern-nosplit-2026.8.0/hm-payload-mixed-codecs",
            "--prefix u64",
            "codecs",
        ),
        (
            "classic-1.28.1/hm-classic-message-zlib",
            "--layout classic",
            "compressed-body",
        ),
        (
            "classic-1.28.1/msgpack-frame-12000-snappy",
            "--prefix none",
            "long-body",
        ),
        (
            "modern-nosplit-2026.8.0/case-to-pickle-with-buffers",
            "--payloads",
            "pickle",
        ),
        (
            "modern-nosplit-2026.8.0/case-collection-map",
            "--payloads",
            "collection",
        ),
        (
            "modern-nosplit-2026.8.0/case-serializer-failed",
            "--payloads",
            "failed",
        ),
        (
            "modern-nosplit-2026.8.0/hm-frames-unused",
            "--payloads",
            "unused",
        ),
        (
            "modern-nosplit-2026.8.0/hm-nosplit-1",
            "--payloads",
            "read-hint",
        ),
        ("modern-nosplit-2026.8.0/case-sets", "--payloads", "sets"),
        ("modern-nosplit-2026.8.0/enum", "--payloads", "enum"),
        (
            "modern-nosplit-2026.8.0/many-payloads",
            "--payloads",
            "many",
        ),
        (
            "streams/modern-nosplit-2026.8.0-1.stream",
            "--payloads",
            "stream",
        ),
    ] {
        check_golden(vector, options, golden);
    }
    let written = std::env::var_os("DASKWIRE_WRITE_GOLDEN").is_some();
    assert!(
        !written,
        "the outputs were written, not checked: read them, and run without it"
    );
}

#[test]
fn text_of_every_vector_fits_a_screen() {
    each(&Vector::recorded(), |vector| {
        let name = &vector.name;
        let (texts, error) = texts(&vector.stream(), Options::default());
        assert!(error.is_none(), "{name}: {error:?}");
        let text = &texts[0];
        let frames = vector.json["frames"].as_array().unwrap();
        let head = text.lines().next().unwrap();
        let plural = if frames.len() == 1 { "" } else { "s" };
        let end = format!("{} layout, {} frame{plural}", vector.layout(), frames.len());
        assert!(head.ends_with(&end), "{name}: {head}");
        for (index, frame) in frames.iter().enumerate().take(24) {
            let row = format!("  frame {index:<3} {:>12}  ", format!("{} B", frame["len"]));
            assert!(text.contains(&row), "{name}: {text}");
        }
        for number in 0..vector.payloads().len().min(12) {
            let line = format!("\n  payload {number} at [");
            assert!(text.contains(&line), "{name}: {text}");
        }
        // Only a line with a single, unbreakable value may exceed the width.
        for line in text.lines().filter(|line| line.chars().count() > 100) {
            let shown = line.split("… cut short").next().unwrap();
            let outside_texts: String = shown.split('"').step_by(2).collect();
            let is_document = !line.starts_with("  payload ") && !line.starts_with("    sent as ");
            assert!(
                !is_document || !outside_texts.contains(", "),
                "{name}: {line}"
            );
        }
    });
}

/// Formats vectors as documents with all data, in order.
fn with_data(vectors: &[&Vector]) -> Vec<String> {
    let mut input = Vec::new();
    for vector in vectors {
        input.extend(std::fs::read(&vector.file).unwrap());
    }
    let name = &vectors[0].name;
    let ran = of_input(
        &format!("inspect --json --data {}", vectors[0].explicit()),
        &input,
    );
    let lines: Vec<String> = ran.good(name).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), vectors.len(), "{name}");
    lines
}

/// The parts of a document that survive encoding: everything except offsets and the
/// widths of numbers.
fn kept(document: &Value) -> Value {
    let keys = ["layout", "message", "payloads"];
    normal(
        &keys
            .map(|key| (key.to_owned(), document[key].clone()))
            .into_iter()
            .collect(),
    )
}

/// Vectors grouped by prefix and layout.
fn by_generation(vectors: &[Vector]) -> Vec<Vec<&Vector>> {
    let mut groups = BTreeMap::<&str, Vec<&Vector>>::new();
    for vector in vectors {
        let generation = vector.name.split('/').next().unwrap();
        groups.entry(generation).or_default().push(vector);
    }
    groups.into_values().collect()
}

#[test]
fn encode_reverses_inspect() {
    let vectors = Vector::recorded();
    let identical = AtomicUsize::new(0);
    each(&by_generation(&vectors), |group| {
        let name = &group[0].name;
        let lines = with_data(group);
        let layout = group[0].layout();
        // As recorded, and with the other prefix of the layout
        let other = if layout == "classic" && group[0].prefix() == "none" {
            "u64"
        } else {
            group[0].prefix()
        };
        for prefix in [group[0].prefix(), other] {
            let encoded = of_input(
                &format!("encode --prefix {prefix}"),
                lines.join("\n").as_bytes(),
            );
            assert_eq!(
                (encoded.status, encoded.err.as_str()),
                (Some(0), ""),
                "{name}"
            );
            let back = of_input(
                &format!("inspect --json --data --prefix {prefix} --layout {layout}"),
                &encoded.out,
            );
            let documents: Vec<&str> = back.good(name).lines().collect();
            assert_eq!(documents.len(), lines.len(), "{name}");
            for ((vector, line), document) in group.iter().zip(&lines).zip(documents) {
                let (mut before, mut after) = (parse(line, name), parse(document, name));
                if vector.name.starts_with("classic-1.14.0/") {
                    // This release did not record which payloads are bytestrings.
                    for document in [&mut before, &mut after] {
                        for payload in document["payloads"].as_array_mut().unwrap() {
                            payload.as_object_mut().unwrap().remove("bytestring");
                        }
                    }
                }
                assert_eq!(after["prefix"], prefix, "{}", vector.name);
                assert_eq!(kept(&before), kept(&after), "{}", vector.name);
                if before["frames"] == after["frames"] {
                    identical.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    // Most vectors have the encoding of msgpack-python, with maps in the same order.
    let identical = identical.into_inner();
    assert!(identical > vectors.len() / 2, "{identical}");
}

/// The errors of `encode` for a message that cannot be converted to the other layout;
/// empty if it can be.
fn obstacles(vector: &Vector) -> Vec<&'static str> {
    let is_modern = vector.layout() == "modern";
    let any = |test: &dyn Fn(&Value) -> bool| vector.payloads().iter().any(test);
    let compressed_by = |codec: &str| {
        any(&|payload| {
            let list = payload["compression"].as_array().unwrap();
            list.iter().any(|name| name == codec)
        })
    };
    let case = vector.name.split('/').nth(1).unwrap();
    let mut obstacles = Vec::new();
    let mut add = |is: bool, what| {
        if is {
            obstacles.push(what);
        }
    };
    add(
        is_modern && any(&|payload| payload["header"]["is-collection"] == true),
        "the payload or body cannot be converted to the other layout: \
         it is a collection with a header for each element",
    );
    // Classic headers list the compression of each frame.
    add(
        is_modern && compressed_by("zlib"),
        "the payload or body cannot be converted to the other layout: \
         a compressed frame does not declare its length",
    );
    add(
        compressed_by("blosc"),
        "the payload to be forwarded: in frame 3, at byte 0: \
         the frame is compressed with \"blosc\", which is not a codec known here",
    );
    add(
        compressed_by("blosc"),
        "the payload to be forwarded: in frame 2, at byte 0: \
         the frame is compressed with \"blosc\", which is not a codec known here",
    );
    add(
        case == "hm-payload-split-out-of-order",
        "the payload or body cannot be converted to the other layout: \
         its frames are not in order",
    );
    add(
        ["hm-classic-lengths-across", "hm-classic-lengths-cut"].contains(&case),
        "the payload or body cannot be converted to the other layout: \
         its lengths end inside a frame",
    );
    add(
        ["np-masked", "case-array-masked"].contains(&case),
        "the payload or body cannot be converted to the other layout: \
         it is a masked array with headers of its own",
    );
    // In a modern body, `true` would be a reference to frame 1.
    add(
        !is_modern && case == "serialize-in-tuple",
        "the payload or body cannot be converted to the other layout: \
         the body has a key that is reserved there",
    );
    obstacles
}

/// The path and logical frames of each payload, in a canonical order.
fn contents(payloads: &[Value]) -> Vec<Value> {
    let mut contents: Vec<Value> = payloads
        .iter()
        .map(|payload| {
            let mut frames = payload["frames"].as_array().unwrap().clone();
            // In the classic layout, the pickle is a frame before its buffers.
            if let Some(pickle) = payload["header"].get("pickled-obj") {
                let frame = match pickle["$bytes"].as_str() {
                    Some(text) => {
                        let pickle = BASE64.decode(text).unwrap();
                        let hash = Sha256::digest(&pickle);
                        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
                        json!({ "len": pickle.len(), "sha256": hash })
                    }
                    None => pickle["$blob"].clone(),
                };
                frames.insert(0, frame);
            }
            json!([payload["path"], frames])
        })
        .collect();
    contents.sort_by_cached_key(Value::to_string);
    contents
}

/// Removes the payload numbers from a message, because they depend on the layout.
fn without_numbers(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(without_numbers).collect(),
        Value::Object(map) if map.len() == 1 && map.contains_key("$payload") => "payload".into(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), without_numbers(value)))
            .collect(),
        _ => value.clone(),
    }
}

#[test]
fn encode_converts_layouts_or_reports_why_not() {
    let vectors = Vector::recorded();
    let refused = AtomicUsize::new(0);
    each(&by_generation(&vectors), |group| {
        let (prefix, layout) = match group[0].layout() {
            "classic" => (Some(Prefix::U64), Some(Layout::Modern)),
            _ => (Some(Prefix::None), Some(Layout::Classic)),
        };
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for (vector, line) in group.iter().zip(with_data(group)) {
            let name = &vector.name;
            let encoded = encode(
                &line,
                Target::default().with_prefix(prefix).with_layout(layout),
            );
            let obstacles = obstacles(vector);
            if obstacles.is_empty() {
                stream.extend(encoded.unwrap_or_else(|error| panic!("{name}: {error}")));
                expected.push(vector);
            } else {
                let error = encoded.expect_err(name).to_string();
                assert!(obstacles.contains(&error.as_str()), "{name}: {error}");
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        if expected.is_empty() {
            return;
        }
        let name = &group[0].name;
        let converted = Options::default()
            .with_prefix(prefix)
            .with_layout(layout)
            .with_payloads(true);
        let (documents, error) = documents(&stream, converted);
        assert!(error.is_none(), "{name}: {error:?}");
        assert_eq!(documents.len(), expected.len(), "{name}");
        for (vector, found) in expected.iter().zip(documents) {
            let name = &vector.name;
            if !READ_AS_MAPS.contains(&name.as_str()) {
                assert_eq!(
                    without_numbers(&normal(&found["message"])),
                    without_numbers(&normal(&vector.json["message"])),
                    "{name}"
                );
            }
            let payloads = found["payloads"].as_array().unwrap();
            assert_eq!(contents(payloads), contents(vector.payloads()), "{name}");
        }
    });
    let refused = refused.into_inner();
    assert!((60..80).contains(&refused), "{refused}");
}

/// Formats a document with a message and payloads.
fn written(message: &str, payloads: &str) -> String {
    format!(
        r#"{{"layout": "modern", "prefix": "u64", "message": {message}, "payloads": {payloads}}}"#
    )
}

#[test]
fn encode_reports_location_and_expectation() {
    let payload = |header: &str, frames: &str| {
        let payload =
            format!(r#"{{"kind": "serialized", "header": {header}, "frames": {frames}}}"#);
        written(r#"{"$payload": 0}"#, &format!("[{payload}]"))
    };
    let good = written(r#"{"op": "ping"}"#, "[]");
    let cases = [
        (
            String::new(),
            "the input is empty: expected documents of `daskwire inspect --json --data`",
        ),
        (
            "5".into(),
            "line 1: at the top: expected an object, as `daskwire inspect --json --data` writes it",
        ),
        (
            "[1".into(),
            "line 1: at column 2: not JSON: EOF while parsing a list",
        ),
        (
            format!("{good}\n\n{good} {good}\n"),
            "line 3: at column 82: not JSON: trailing characters",
        ),
        (
            "{\n \"layout\": \"modern\",\n \"prefix\": nil\n}".into(),
            "line 3: at column 13: not JSON: expected ident",
        ),
        (
            format!("{good}\n{{}}"),
            r#"line 2: at layout: expected "classic" or "modern""#,
        ),
        (
            r#"{"layout": "modern"}"#.into(),
            r#"line 1: at prefix: expected "none" or "u64""#,
        ),
        (
            r#"{"layout": "modern", "prefix": "u64"}"#.into(),
            "line 1: at message: expected the message",
        ),
        (written("1", "{}"), "line 1: at payloads: expected an array"),
        (
            written(r#"{"op": [0, {"a key": {"$bytes": "***"}}]}"#, "[]"),
            r#"line 1: at message.op[1]["a key"]: expected $bytes in base64"#,
        ),
        (
            written(r#"[{"$int": "1e3"}]"#, "[]"),
            "line 1: at message[0]: expected $int with an integer of 64 bits",
        ),
        (
            written(r#"{"x": {"$payload": 1}}"#, "[]"),
            "line 1: at message.x: expected $payload with the number of a payload",
        ),
        (
            written(
                r#"{"x": [{"$payload": 0}, {"$payload": 0}]}"#,
                r#"[{"kind": "serialized", "header": {"num-sub-frames": 0}, "frames": []}]"#,
            ),
            "line 1: at message.x[1]: expected the number of a payload that is not used before: a \
             payload has one place, and an equal one needs an entry of its own in payloads",
        ),
        (
            written(
                r#"{"x": {"$payload": 0}}"#,
                r#"[{"kind": "serialized", "header": {"num-sub-frames": 0}, "frames": []},
                    {"kind": "serialized", "header": {"num-sub-frames": 0}, "frames": []}]"#,
            )
            .replace('\n', " "),
            "line 1: at payloads[1]: expected a payload that the message refers to with $payload; \
             remove it if it is not to be sent",
        ),
        (
            written(r#"{"x": {"$blob": {"len": 1, "sha256": ""}}}"#, "[]"),
            "line 1: at message.x: expected the bytes themselves, not their hash; \
             `daskwire inspect --json --data` writes them",
        ),
        (
            written(r#"{"x": {"$tuple": []}}"#, "[]"),
            "line 1: at message.x: expected $payload, $int, $float, $bytes, $ext, $set, $enum or $map",
        ),
        (
            written("1", r#"[{"kind": "other"}]"#),
            r#"line 1: at payloads[0].kind: expected "serialized" or "pickled""#,
        ),
        (
            payload(r#"{"a": {"$float": "big"}}"#, "[]"),
            "line 1: at payloads[0].header.a: expected $float with nan, inf, -inf or -0.0",
        ),
        (
            payload(r#"{"num-sub-frames": 1}"#, r#"[{"len": 1}]"#),
            "line 1: at payloads[0].frames[0].bytes: expected the frame in base64; \
             `daskwire inspect --json --data` writes it",
        ),
        (
            payload(r#"{"num-sub-frames": 2}"#, r#"[{"bytes": ""}]"#),
            "line 1: at payloads[0].frames: expected as many frames as the header says; \
             `inspect` without --payloads leaves them alone",
        ),
        ("[".repeat(5000), "line 1: nested deeper than 4096 levels"),
    ];
    for (input, expected) in &cases {
        let ran = of_input("encode", input.as_bytes());
        let error = ran.refused(expected);
        assert_eq!(error.strip_prefix("standard input: "), Some(*expected));
        // Nothing is printed before the error.
        assert!(ran.out.is_empty(), "{expected}");
    }
    let ran = of_input("encode", b"\"\xff\"");
    let error = ran.refused("not text");
    assert_eq!(error, "standard input: not UTF-8 at byte 1");
}

#[test]
fn encode_reads_documents_that_are_spread_over_lines() {
    let ping =
        br#"{"layout": "modern", "prefix": "u64", "message": {"op": "p}[\""}, "payloads": []}"#;
    let spread = serde_json::to_string_pretty(&parse(&String::from_utf8_lossy(ping), "")).unwrap();
    assert!(spread.lines().count() > 5);
    let one = of_input("encode", ping);
    let message = b"\x19\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x81\xa2op\xa4p}[\"";
    assert_eq!(one.out, message, "{}", one.err);
    let two = of_input("encode", format!("\n{spread}\n\n{spread}").as_bytes());
    assert_eq!(two.err, "");
    assert_eq!(two.out, [one.out.as_slice(), &one.out].concat());
}

/// A folder for the files of one test. Removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Failing to remove it is harmless: it is in the build directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn encode_writes_to_a_file_if_asked() {
    let folder = Folder::new("encode-output");
    let file = folder.0.join("stream.bin");
    let source = root().join("modern-nosplit-2026.8.0/docs-get-data-ones5.bin");
    let document = of_file("inspect --json --data", &source);
    let options = format!("encode --output {}", file.display());
    let ran = of_input(&options, &document.out);
    assert_eq!(ran.good("encode"), "");
    assert_eq!(
        std::fs::read(&file).unwrap(),
        std::fs::read(source).unwrap()
    );
    let ran = of_input("encode --output -", &document.out);
    assert_eq!(
        (ran.status, ran.out),
        (Some(0), std::fs::read(&file).unwrap())
    );
    let missing = folder.0.join("none/stream.bin");
    let ran = of_input(&format!("encode -o {}", missing.display()), &document.out);
    let error = ran.refused("no folder");
    assert!(error.contains("none/stream.bin: No such file"), "{error}");
}

#[test]
fn help_and_usage_errors() {
    let help = run(&["--help"], None);
    for word in ["Usage: daskwire", "inspect", "encode", "identity"] {
        assert!(help.good("help").contains(word), "{word}");
    }
    let help = run(&["inspect", "--help"], None);
    for word in [
        "--json",
        "--payloads",
        "--data",
        "--plain-maps",
        "none",
        "u64",
        "classic",
    ] {
        assert!(help.good("help").contains(word), "{word}");
    }
    let help = run(&["encode", "--help"], None);
    for word in ["--output", "--prefix", "--layout", "line of its own"] {
        assert!(help.good("help").contains(word), "{word}");
    }
    let version = run(&["--version"], None);
    let expected = concat!("daskwire ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(version.good("version"), expected);

    for (arguments, expected) in [
        (&[][..], "Usage: daskwire [OPTIONS] <COMMAND>"),
        (&["inspekt"], "unrecognized subcommand 'inspekt'"),
        (&["inspect"], "<FILE>"),
        (
            &["inspect", "--jason", "-"],
            "unexpected argument '--jason'",
        ),
        (
            &["inspect", "--prefix", "u32", "-"],
            "[possible values: none, u64, auto]",
        ),
        (
            &["inspect", "--layout", "old", "-"],
            "[possible values: classic, modern, auto]",
        ),
        (&["inspect", "-", "-"], "unexpected argument '-'"),
        (&["encode"], "<FILE>"),
        (&["encode", "-", "--output"], "'--output <OUTPUT>'"),
    ] {
        let ran = run(arguments, None);
        assert_eq!(ran.status, Some(2), "{arguments:?}");
        assert_eq!(ran.text(), "", "{arguments:?}");
        assert!(ran.err.contains(expected), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn names_unreadable_input() {
    let folder = Folder::new("unreadable");
    let missing = folder.0.join("missing.bin");
    for command in ["inspect", "encode"] {
        let ran = of_file(command, &missing);
        let expected = format!("{}: No such file or directory", missing.display());
        let error = ran.refused(command);
        assert!(error.starts_with(&expected), "{error}");

        let ran = of_file(command, &folder.0);
        let expected = format!("{}: Is a directory", folder.0.display());
        let error = ran.refused(command);
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn truncated_streams_report_the_expected_length() {
    let empty = of_input("inspect", b"");
    let expected = "standard input: the input is empty: no message at byte 0";
    assert_eq!(empty.refused("empty"), expected);

    let folder = root().join("modern-nosplit-2026.8.0");
    let message = std::fs::read(folder.join("docs-get-data-ones5.bin")).unwrap();
    for len in 1..message.len() {
        // Every byte of the prelude, and some of the data
        if len > 48 && len % 37 != 0 {
            continue;
        }
        let options = Options::default().with_prefix(Prefix::U64);
        let (found, error) = texts(&message[..len], options);
        let error = error.expect("it is truncated").to_string();
        let expected = format!(
            "message at byte 0, at byte {len} of the message: \
             the stream ends here, but the message is at least "
        );
        let rest = error
            .strip_prefix(&expected)
            .unwrap_or_else(|| panic!("{error}"));
        let needed: usize = rest.strip_suffix(" bytes long").unwrap().parse().unwrap();
        assert!(needed > len && needed <= message.len(), "{error}");
        assert_eq!(found, [] as [String; 0], "{len}");
    }
    let cut = of_input("inspect --prefix u64", &message[..100]);
    let error = cut.refused("cut");
    assert!(
        error.starts_with("standard input: message at byte 0, at byte 100 of "),
        "{error}"
    );
    assert_eq!(cut.text(), "");
}

#[test]
fn reports_a_guess_once() {
    // Either two frames, the first of them empty, or a prefix with the value 2
    let neither = of_input("inspect", b"\x02\0\0\0\0\0\0\0\x03");
    let error = neither.refused("neither");
    let expected = "; read without a leading length (--prefix none), which is a guess";
    assert!(error.ends_with(expected), "{error}");

    // Either 40 messages with a prefix, or one of 24 frames, whose count and lengths are
    // the first 25 numbers.
    let mut both = Vec::new();
    for _ in 0..39 {
        both.extend([24_u64, 1, 8].map(u64::to_le_bytes).concat());
        both.extend(b"\x97\0\0\0\0\0\0\0");
    }
    both.extend([48_u64, 1, 32].map(u64::to_le_bytes).concat());
    both.extend([b"\xdc\0\x1d".as_slice(), &[0xc0; 29]].concat());
    let ran = of_input("inspect --json", &both);
    assert_eq!(ran.status, Some(0));
    assert_eq!(ran.text().lines().count(), 40);
    assert_eq!(
        ran.err,
        "daskwire: standard input is ambiguous; \
         read as a stream with a leading length (--prefix u64)\n"
    );
    // Explicit options suppress the note.
    let said = of_input("inspect --json --prefix u64", &both);
    assert_eq!(said.good("said"), ran.text());
    let other = of_input("inspect --json --prefix none", &both);
    let error = other.refused("classic");
    assert!(
        error.starts_with("standard input: message at byte 0, in frame "),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn reader_may_close_the_pipe() {
    let stream = root().join("streams/modern-nosplit-2026.8.0-0.stream.bin");
    let stream = stream.to_str().unwrap();
    for arguments in [
        &["inspect", "--json", stream][..],
        &["worker", "--functions"],
        &["journey"],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_daskwire"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn full_standard_output_is_an_error() {
    let folder = Folder::new("full");
    let document = folder.0.join("document.json");
    let message = r#"{"layout": "modern", "prefix": "u64", "message": 1, "payloads": []}"#;
    std::fs::write(&document, message).unwrap();
    for arguments in [
        &["encode", document.to_str().unwrap()][..],
        &["journey", "--json"],
    ] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_daskwire"))
            .args(arguments)
            .stdout(full)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let expected = "daskwire: standard output: No space left on device";
        assert!(error.starts_with(expected), "{arguments:?}: {error}");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    }
}
