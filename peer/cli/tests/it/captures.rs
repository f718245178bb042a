//! Tests of `daskwire inspect` with captures of traffic, which `captures/record.sh`
//! recorded.

use crate::support::command::{Ran, run};
use daskwire_cli::inspect::capture::{Capture, CaptureErrorKind, is_capture};
use serde_json::Value;

const LO: &[u8] = include_bytes!("../captures/lo.pcap");
const ANY: &[u8] = include_bytes!("../captures/any.pcapng");

fn inspect(capture: &[u8], options: &str) -> Ran {
    let mut words = vec!["inspect", "-"];
    words.extend(options.split_whitespace());
    run(&words, Some(capture))
}

/// The steps of a capture: the port of the sender, and the op or first name of each message.
fn steps(ran: &Ran) -> Vec<String> {
    let documents = ran.text().lines().map(|line| {
        let document: Value = serde_json::from_str(line).expect("JSON");
        let from = document["from"].as_str().expect("a string");
        let sender = if from.ends_with(":8786") {
            "scheduler"
        } else {
            "client"
        };
        let message = &document["message"];
        let what = match (&message["op"], message) {
            (Value::String(op), _) => op.clone(),
            (_, Value::Object(entries)) => entries.keys().next().expect("a name").clone(),
            _ => "?".to_owned(),
        };
        format!("{sender}: {what}")
    });
    documents.collect()
}

const STEPS: [&str; 7] = [
    "client: compression",
    "scheduler: compression",
    "client: identity",
    "scheduler: type",
    "client: echo",
    "scheduler: $blob",
    "client: close",
];

#[test]
fn conversations_are_followed() {
    for (name, capture) in [("lo", LO), ("any", ANY)] {
        let ran = inspect(capture, "--json");
        ran.good(name);
        assert_eq!(steps(&ran), STEPS, "{name}");
        let times = ran.text().lines().map(|line| {
            let document: Value = serde_json::from_str(line).expect("JSON");
            document["time"].as_f64().expect("a number")
        });
        assert!(times.is_sorted(), "{name}");
        let shown = inspect(capture, "");
        let text = shown.good(name);
        let first = text.lines().next().expect("a line");
        assert!(
            first.starts_with("conversation 1: 127.0.0.1:")
                && first.contains(" → 127.0.0.1:8786, 2026-11-22 18:0")
                && first.ends_with(" UTC, 6199 B there, 6302 B back, 7 messages"),
            "{first}"
        );
        assert!(
            text.contains("message \"echo\" at byte 110: 6048 B"),
            "{text}"
        );
    }
}

#[test]
fn messages_are_filtered() {
    let only = |options: &str| steps(&inspect(LO, &format!("{options} --json")));
    assert_eq!(only("--op echo --op identity"), [STEPS[2], STEPS[4]]);
    assert_eq!(only("--from :8786"), [STEPS[1], STEPS[3], STEPS[5]]);
    assert_eq!(only("--to tcp://127.0.0.1:8786 --op close"), [STEPS[6]]);
    assert_eq!(only("--from 127.0.0.1"), STEPS);
    for (options, note) in [
        ("--to 127.0.0.2", "no message matches"),
        (
            "--op nothing",
            "no message matches; the ops in this file are: close, echo, identity",
        ),
        (
            "--op nothing --to :8786 --json",
            "no message matches; the ops from and to these ends are: close, echo, identity",
        ),
    ] {
        let ran = inspect(LO, options);
        assert_eq!((ran.status, ran.text()), (Some(0), ""), "{options}");
        assert_eq!(ran.err, format!("daskwire: {note}\n"), "{options}");
    }
    let stream = include_bytes!(
        "../../../../core/tests/vectors/modern-nosplit-2026.8.0/docs-get-data-ones5.bin"
    );
    assert!(
        inspect(stream, "--op get-data")
            .good("stream")
            .starts_with("message \"get-data\"")
    );
    let note = "daskwire: no message matches; the ops in this file are: get-data\n";
    assert_eq!(inspect(stream, "--op gather").err, note);
    for (stream, what) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00"[..], "encrypted by TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
    ] {
        let ran = inspect(stream, "");
        let error = ran.refused(what);
        assert!(error.contains(&format!(": {what}: ")), "{error}");
    }
    let ran = inspect(stream, "--from :8786");
    assert!(
        ran.misused("stream")
            .contains("a recorded stream has no addresses")
    );
    assert_eq!(inspect(LO, "--from scheduler").status, Some(2));
}

/// Splits a pcap file into its header and its records.
fn records(file: &[u8]) -> (&[u8], Vec<&[u8]>) {
    let (header, mut rest) = file.split_at(24);
    let mut records = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(*rest[8..].first_chunk().expect("a header"));
        let (record, next) = rest.split_at(16 + len as usize);
        records.push(record);
        rest = next;
    }
    (header, records)
}

/// Whether a record has TCP data: frames have 14 bytes of Ethernet, 20 of IP, and 32
/// of TCP.
fn has_data(record: &[u8]) -> bool {
    record.len() > 16 + 66
}

#[test]
fn lost_segments_are_reported_and_repeated_ones_are_dropped() {
    let (header, records) = records(LO);
    let file = |records: &[&[u8]]| [&[header], records].concat().concat();
    // Each packet appears twice, and each segment with data after its successor.
    let mut disordered: Vec<&[u8]> = records.iter().flat_map(|record| [*record; 2]).collect();
    for index in 6..disordered.len() - 2 {
        if has_data(disordered[index]) && has_data(disordered[index + 2]) {
            disordered.swap(index, index + 2);
        }
    }
    let ran = inspect(&file(&disordered), "--json");
    ran.good("disordered");
    assert_eq!(steps(&ran), STEPS);
    // The second segment of the echo is missing.
    let echo = records
        .iter()
        .position(|record| record.len() > 1000)
        .expect("the echo");
    let mut lossy = records.clone();
    lossy.remove(echo + 1);
    let ran = inspect(&file(&lossy), "--from 127.0.0.1");
    let text = ran.good("lossy");
    let gap = " → 127.0.0.1:8786: 1448 B not captured, which 3193 B follow\n";
    assert!(text.ends_with(gap), "{text}");
    assert!(text.contains("5 messages"), "{text}");
    let ran = inspect(&file(&lossy), "--op nothing");
    assert!(
        ran.err.contains(gap) && ran.text().is_empty(),
        "{}",
        ran.err
    );
    // A capture that starts within the echo resumes at the reply.
    let late = inspect(&file(&records[echo + 1..]), "--json");
    assert_eq!(late.status, Some(0), "{}", late.err);
    assert_eq!(steps(&late), STEPS[5..]);
    assert!(
        late.err
            .contains("the first 4600 B belong to an earlier message"),
        "{}",
        late.err
    );
    // A capture that ends within the echo.
    let cut = inspect(&file(&records[..=echo]), "");
    let text = cut.good("cut");
    assert!(text.contains("4 messages") && text.contains("→ 127.0.0.1:8786: message at byte 110"));
    // Ports reused by a connection with other sequence numbers.
    let again: Vec<Vec<u8>> = records
        .iter()
        .map(|record| {
            let mut record = record.to_vec();
            // The sequence number follows 16, 14, 20 and 4 bytes.
            record[54] ^= 0x55;
            record
        })
        .collect();
    let mut both = records.clone();
    both.extend(again.iter().map(Vec::as_slice));
    let ran = inspect(&file(&both), "--json");
    ran.good("again");
    assert_eq!(steps(&ran), [STEPS, STEPS].concat());
}

#[test]
fn damaged_captures_are_refused() {
    for (name, file) in [("lo", LO), ("any", ANY)] {
        for len in 0..file.len() {
            let part = &file[..len];
            let capture = Capture::parse(part);
            let Some(error) = capture.error else { continue };
            assert!(error.offset <= len, "{name} {len}: {error}");
            assert!(
                matches!(
                    error.kind,
                    CaptureErrorKind::Truncated | CaptureErrorKind::Header
                ),
                "{name} {len}: {error}"
            );
        }
        for at in 0..file.len().min(3000) {
            let mut damaged = file.to_vec();
            damaged[at] ^= 0x81;
            let capture = Capture::parse(&damaged);
            let directions = capture.conversations.iter();
            let directions = directions.flat_map(|it| [&it.sent, &it.received]);
            let len: usize = directions.map(|direction| direction.bytes().len()).sum();
            assert!(len <= file.len(), "{name} {at}");
        }
    }
    // A block that is shorter than an empty one, after the header of the section.
    let header = ANY[4..8]
        .try_into()
        .map(u32::from_le_bytes)
        .expect("a length") as usize;
    for len in 0..12 {
        let mut damaged = ANY[..header].to_vec();
        damaged.extend([0xad, 0x0b, 0, 0, len, 0, 0, 0, len, 0, 0, 0]);
        let error = Capture::parse(&damaged).error.expect("a fault");
        assert_eq!(
            (error.offset, error.kind),
            (header, CaptureErrorKind::Record),
            "{len}"
        );
    }
    let ran = inspect(&LO[..LO.len() - 1], "--json");
    assert_eq!(ran.status, Some(1));
    // Messages before the damage are shown.
    assert_eq!(steps(&ran), STEPS);
    let last = LO.len() - 16 - 66;
    assert_eq!(
        ran.err,
        format!("daskwire: standard input: record at byte {last}: the file ends within it\n")
    );
    let mut wireless = LO.to_vec();
    wireless[20] = 105;
    let ran = inspect(&wireless, "");
    let error = ran.refused("wireless");
    assert!(
        error.ends_with("packets of the link type 105 cannot be read"),
        "{error}"
    );
    let ran = inspect(&LO[..24], "");
    assert!(
        ran.refused("empty")
            .ends_with("the capture has no TCP packets (0 of other kinds)")
    );
    assert!(!is_capture(b"") && !is_capture(&[0; 16]));
}
