use core::fmt;

use bytes::Bytes;
use daskwire::Limits;
use daskwire::message::MessageErrorKind;

use super::*;
use crate::graph::{Argument, Graph, Task};
use crate::protocol::{Body, read_batch};
use crate::scratch::{self, MessageScratch};
use crate::value::Serialized;
use crate::{Key, brief};

fn frames<T: Field>(message: T) -> Vec<Bytes> {
    MessageScratch::new()
        .with_frames(&Body(&message), |frames| {
            frames
                .iter()
                .map(|frame| Bytes::copy_from_slice(frame))
                .collect()
        })
        .expect("writable message")
}

fn round_trip<T: Field + Clone + PartialEq + fmt::Debug>(message: &T) {
    let frames = frames(message.clone());
    let read = Opener::default()
        .read(&frames, T::read)
        .expect("readable message");
    assert_eq!(&read, message);
}

#[test]
fn messages_round_trip_with_payloads_and_unknown_fields() {
    let data = Serialized::of(&Value::from("data")).expect("a plain value");
    round_trip(&vec![
        FromClient::from(UpdateGraph {
            expr_ser: data.clone(),
            keys: ["a", "b"].into_iter().collect(),
            annotations: Some(Value::dict([("retries", 3)])),
            extra: vec![(Value::from("code"), Value::Serialized(data.clone()))],
            ..UpdateGraph::default()
        }),
        FromClient::from(HeartbeatClient::default()),
        FromClient::Unknown(Unknown {
            op: "an-op-of-a-later-release".into(),
            extra: vec![(Value::from("x"), Value::Serialized(data.clone()))],
        }),
    ]);
    round_trip(&Request::from(Scatter {
        data: vec![(Key::list([Key::from("x"), Key::from(0)]), data)],
        client: "me".into(),
        ..Scatter::default()
    }));
}

#[test]
fn keys_may_be_a_set() {
    let set = b"\x82\xa2op\xa8get_data\xa4keys\x82\xa7__Set__\xc3\xa7as-list\x91\xa1x";
    let set = [Bytes::from_static(set)];
    let read = Opener::default().read(&set, Request::read);
    let Ok(Request::GetData(request)) = read else {
        panic!("{read:?}")
    };
    assert_eq!(*request.keys, [Key::from("x")]);
}

#[test]
fn unknown_sizes_are_read_as_zero() {
    let message = b"\x82\xa2op\xb0acquire-replicas\xa6nbytes\x83\xa1x\xff\xa1y\x05\xa1z\xa1a";
    let read = |message| Opener::default().read(&[Bytes::from_static(message)], ToWorker::read);
    // The size of the last one is a string.
    let error = read(message).expect_err("no size").to_string();
    assert!(error.contains("expected an integer"), "{error}");
    let message = b"\x84\xa2op\xb0acquire-replicas\xa7who_has\x80\xabstimulus_id\xa1s\
        \xa6nbytes\x82\xa1x\xff\xa1y\x05";
    let Ok(ToWorker::AcquireReplicas(message)) = read(message) else {
        panic!("{:?}", read(message))
    };
    let sizes = Sizes(vec![("x".into(), 0), ("y".into(), 5)]);
    assert_eq!(message.nbytes, Some(sizes));
}

#[test]
fn a_missing_field_is_named() {
    let message = [Bytes::from_static(b"\x81\xa2op\xadkey-in-memory")];
    let error = Opener::default()
        .read(&message, ToClient::read)
        .expect_err("no key");
    assert_eq!(
        error.to_string(),
        "the message key-in-memory has no field key"
    );
}

#[test]
fn heap_len_counts_all_bytes() {
    const LEN: usize = 10_000;
    let message = "x".repeat(LEN);
    let pickled = || Value::Serialized(crate::exception::exception("ValueError", &message));
    let exceptions = [
        Value::from(message.as_str()),
        Value::bytes(message.clone()),
        pickled(),
        Value::list([Value::None, pickled()]),
        Value::dict([("key", Value::tuple([pickled()]))]),
        Value::Serialized(Serialized::of(&Value::from(message.as_str())).expect("plain")),
    ];
    for exception in exceptions {
        let message = ToClient::from(TaskErredForClient {
            exception,
            ..TaskErredForClient::default()
        });
        let len = message.heap_len();
        assert!((LEN..LEN + 2000).contains(&len), "{len}: {message:?}");
    }
}

#[test]
fn repeated_keys_are_kept_once() {
    let body = b"\x82\xa2op\xb3client-desires-keys\xa4keys\x95\xa1x\xa1y\xa1x\xa1x\xa1z";
    let frames = [Bytes::from_static(body)];
    let read = Opener::default().read(&frames, FromClient::read);
    let Ok(FromClient::ClientDesiresKeys(message)) = read else {
        panic!("{read:?}");
    };
    let keys: Keys = ["x", "y", "z"].into_iter().collect();
    assert_eq!(message.keys, keys);
}

/// Messages are opened as by a scheduler or worker.
#[test]
fn rejects_payloads_that_share_frames() {
    const COUNT: u16 = 4000;
    // Each placeholder refers to a header with this many empty frames.
    let mut body = vec![0xdc];
    body.extend_from_slice(&COUNT.to_be_bytes());
    for _ in 0..COUNT {
        body.extend_from_slice(b"\x81\xae__Serialized__\x01");
    }
    let mut header = b"\x81\xaenum-sub-frames\xcd".to_vec();
    header.extend_from_slice(&COUNT.to_be_bytes());
    let mut frames = vec![Bytes::from(body), Bytes::from(header)];
    frames.resize(usize::from(COUNT) + 2, Bytes::new());
    let found = Opener::default().read(&frames, |_| -> Result<(), _> {
        panic!("unread");
    });
    let shared = MessageErrorKind::FramesShared;
    assert!(
        matches!(&found, Err(ProtocolError::Message(error)) if error.kind == shared),
        "{found:?}"
    );
}

/// If payloads shared frames, memory would grow with the square of the
/// message's length.
#[test]
fn payload_excludes_frames_of_the_next() {
    const COUNT: u8 = 15;
    let mut body = b"\x82\xa2op\xabupdate_data\xa4data".to_vec();
    body.push(0x80 | COUNT);
    let mut frames = vec![Bytes::new()];
    for index in 1..=COUNT {
        body.extend_from_slice(&[0xa1, b'a' + index]);
        body.extend_from_slice(b"\x81\xae__Serialized__");
        body.push(index);
        let mut header = b"\x81\xaenum-sub-frames".to_vec();
        header.push(COUNT - index);
        frames.push(header.into());
    }
    frames[0] = body.into();
    let found = Opener::default().read(&frames, Value::read);
    let shared = MessageErrorKind::FramesShared;
    assert!(
        matches!(&found, Err(ProtocolError::Message(error)) if error.kind == shared && error.frame == 2),
        "{found:?}"
    );
}

/// A map with the key of a placeholder is a payload, regardless of its other entries.
/// Read as a map, it would be forwarded without its frames.
#[test]
fn maps_that_are_payloads_are_rejected() {
    let entries = b"\x82\xa1x\x01\xae__Serialized__\x01";
    let message = b"\x83\xa2op\xaareport-key\xa3key\xa1x\xae__Serialized__\x01";
    let frames = |body: &'static [u8]| [Bytes::from_static(body), Bytes::from_static(b"\x80")];
    let found: [Result<(), _>; 3] = [
        Opener::default()
            .read(&frames(entries), Vec::<(Key, Value)>::read)
            .map(drop),
        Opener::default()
            .read(&frames(message), ReportKey::read)
            .map(drop),
        Opener::default()
            .read(&frames(message), read_batch::<FromClient>)
            .map(drop),
    ];
    for found in found {
        let expected = Err(ProtocolError::Unexpected {
            at: 0,
            expected: "a map that is not a payload",
        });
        assert_eq!(found, expected);
    }
}

#[test]
fn first_of_two_ops_counts() {
    let message = b"\x83\xa2op\xaareport-key\xa2op\xa5close\xa3key\xa1x";
    let read = Opener::default().read(&[Bytes::from_static(message)], FromClient::read);
    let report = ReportKey {
        key: "x".into(),
        ..ReportKey::default()
    };
    assert_eq!(read, Ok(report.into()));
}

#[test]
fn payloads_are_opened_within_the_limits_of_their_comm() {
    let mut header = Vec::new();
    scratch::msgpack(&mut header, |writer| {
        writer.map(4).str("serializer").str("dask");
        writer.str("type-serialized").str("builtins.bytes");
        writer.str("compression").array(1).str("zstd");
        writer.str("num-sub-frames").u64(1);
    });
    // A single segment of 2,000 bytes, by an eight-byte size, and empty raw blocks.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
    frame.extend_from_slice(&2000_u64.to_le_bytes());
    frame.resize(1 << 10, 0);
    let body = Bytes::from_static(b"\x81\xae__Serialized__\x01");
    let payload = Serialized::of_message(vec![body, header.into(), frame.into()]);
    let payload = payload.expect("a single payload");
    let received = |limits| match Opener::new(limits).read(payload.message(), Value::read) {
        Ok(Value::Serialized(received)) => Ok(received),
        other => Err(other),
    };
    let limits = Limits::HOST.with_decompressed_len(1000);
    let received_payload = received(limits).expect("a payload");
    assert_eq!(received_payload, payload);
    let error = received_payload.open().expect_err("too long").to_string();
    assert!(error.contains("1000"), "{error}");
    let limits = Limits::HOST.with_document_len(10);
    assert!(received(limits).is_err());
}

/// The length of debug output does not grow with the values in messages and tasks.
#[test]
fn debug_output_is_bounded() {
    const MAX: usize = brief::MAX_LEN + 64;
    let len = 1 << 20;
    let wide = Value::list((0..len).map(Value::from));
    let message = Unknown::new("op").field("data", wide);
    let keys = Gather {
        keys: Some((0..len).map(Key::from).collect()),
        ..Gather::default()
    };
    let argument = Argument::list(0..len);
    let task = Task::new("x", "len", [argument.clone()]);
    let graph: Graph = (0..len / 64)
        .map(|key| Task::new(key, "len", [key]))
        .collect();
    let shown: [&dyn fmt::Debug; 6] = [&message, &keys, &argument, &task, &task.work, &graph];
    for shown in shown {
        for shown in [format!("{shown:?}"), format!("{shown:#?}")] {
            assert!(shown.len() <= MAX, "{} bytes: {:.200}", shown.len(), shown);
        }
    }
}
