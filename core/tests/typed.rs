//! Payloads as values: every array, byte string and pickle of the recorded
//! messages, what is wrong with them when something is, and the same written.
#![allow(clippy::std_instead_of_alloc, reason = "a test has std")]

mod support;

use std::collections::BTreeMap;

use daskwire::message::{
    Buffers, BuildError, Layout, MessageBuilder, MessageErrorKind, Payload, PayloadHeader,
    PayloadKind, Pending, Serializer,
};
use daskwire::msgpack;
use daskwire::pickle::{self, Mutability, PickleBuffer, Placement, Protocol};
use daskwire::typed::{
    Array, ByteOrder, Class, DType, Description, Dimensions, DimensionsError, Element, ElementType,
    Kind, MAX_DIMENSIONS, NumpyModules, Order, PickledPayload, TimeBase, TimeUnit, TypedError,
    TypedErrorKind, TypedPayload, WriteOptions, elements, encode_into, pickle_array,
};
use serde_json::Value;
use support::{Room, is_frame, merged, vector, vectors};

/// Opens a vector and does something with each payload of it.
fn each_payload(vector: &support::Vector, mut with: impl FnMut(usize, Payload<'_, &[u8]>, &Value)) {
    let frames = vector.frames();
    let mut room = Room::new();
    let (message, _) = room
        .open(&frames, vector.layout(), &vector.reading())
        .unwrap();
    for (number, payload) in message.payloads().enumerate() {
        with(number, payload.unwrap(), &vector.payloads()[number]);
    }
}

/// The numbers under a key.
fn numbers(value: &Value) -> Vec<usize> {
    let list = value.as_array().unwrap();
    list.iter()
        .map(|number| usize::try_from(number.as_u64().unwrap()).unwrap())
        .collect()
}

/// The value's own entries as the vector has them.
fn own(header: &Value) -> &Value {
    header.get("sub-header").unwrap_or(header)
}

/// PROTOCOL TYPED-1, TYPED-2, TYPED-3, TYPED-4
#[test]
fn every_array_of_every_release_is_what_its_header_says() {
    let mut releases: BTreeMap<String, usize> = BTreeMap::new();
    let (mut plain, mut not_plain, mut in_place) = (0, 0, 0);
    for vector in vectors() {
        if vector.missing_body_codec().is_some() {
            continue;
        }
        each_payload(&vector, |number, payload, json| {
            let name = format!("{} payload {number}", vector.name);
            let expected = &json["header"];
            if expected["type"] != "numpy.ndarray" || own(expected)["pickle"] == true {
                return;
            }
            let typed = TypedPayload::read(&payload).unwrap_or_else(|e| panic!("{name}: {e}"));
            let Description::Array(header) = typed.description() else {
                panic!("{name}: {:?}", typed.description());
            };
            let own = own(expected);
            *releases.entry(vector.generation().into()).or_default() += 1;
            let shape = own.get("broadcast_to").unwrap_or(&own["shape"]);
            assert_eq!(header.shape(), numbers(shape), "{name}");
            let strides = numbers(&own["strides"]);
            assert_eq!(header.dimensions().strides(), strides, "{name}");
            let writeable = own.get("writeable").or(expected.get("writeable"));
            assert_eq!(
                header.writeable(),
                writeable.map(|list| list[0].as_bool().unwrap()),
                "{name}"
            );
            if vector.missing_codec(number).is_some() {
                return;
            }
            let bytes = merged(&payload).unwrap().concat();
            let array = header.over(&bytes);
            match &own["dtype"] {
                Value::String(text) => assert_eq!(array.unwrap().dtype().to_string(), *text),
                Value::Array(pair) if pair[0] == 0 => {
                    assert_eq!(
                        array.unwrap().dtype().to_string(),
                        pair[1].as_str().unwrap()
                    );
                }
                _ => {
                    assert!(matches!(
                        header.element_type(),
                        ElementType::Pickled(_) | ElementType::Fields(_)
                    ));
                    assert_eq!(array.unwrap_err().kind, TypedErrorKind::NotPlain, "{name}");
                    not_plain += 1;
                    return;
                }
            }
            plain += 1;
            let array = header.over(&bytes).unwrap();
            assert_eq!(array.items().len(), shape_len(array.shape()), "{name}");
            // The same from the payload, in place or copied.
            let mut copy = vec![0xa5; bytes.len()];
            let is_plain = payload_is_plain(json);
            match typed.array() {
                Ok(there) => {
                    assert!(is_plain);
                    assert_eq!(there, array, "{name}");
                    let frame = payload.frames().iter().find(|frame| !frame.is_empty());
                    if let Some(frame) = frame {
                        assert!(core::ptr::eq(there.bytes().as_ptr(), frame.as_ptr()));
                    }
                    in_place += 1;
                }
                Err(error) => match error.kind {
                    TypedErrorKind::Compressed => assert!(!is_plain, "{name}"),
                    TypedErrorKind::InParts => {
                        let parts = typed.parts().unwrap();
                        let parts: Vec<&[u8]> = parts.map(Result::unwrap).collect();
                        assert!(parts.len() > 1 && parts.concat() == bytes, "{name}");
                    }
                    other => panic!("{name}: {other}"),
                },
            }
            // zlib does not say how long it is.
            if typed.data_len().unwrap().is_some() {
                assert_eq!(typed.array_into(&mut copy).unwrap(), array, "{name}");
                if !bytes.is_empty() {
                    let kind = typed.array_into(&mut copy[1..]).map_err(|error| error.kind);
                    assert!(
                        matches!(kind, Err(TypedErrorKind::BufferTooSmall(_))),
                        "{name}"
                    );
                }
            }
        });
    }
    assert!(plain > 120 && not_plain > 5 && in_place > 90);
    assert!(releases.len() >= 18, "{releases:?}");
}

fn payload_is_plain(json: &Value) -> bool {
    json["compression"]
        .as_array()
        .unwrap()
        .iter()
        .all(Value::is_null)
}

fn shape_len(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// PROTOCOL HEADER-5
#[test]
fn every_byte_string_is_its_frames() {
    let (mut count, mut in_place) = (0, 0);
    for vector in vectors() {
        if vector.missing_body_codec().is_some() {
            continue;
        }
        each_payload(&vector, |number, payload, json| {
            let class = json["header"]["type"].as_str().unwrap_or_default();
            let expected = match class.trim_start_matches("builtins.") {
                "bytes" => Description::Bytes,
                "bytearray" => Description::ByteArray,
                _ => return,
            };
            let typed = TypedPayload::read(&payload).unwrap();
            assert_eq!(*typed.description(), expected, "{}", vector.name);
            if vector.missing_codec(number).is_some() {
                return;
            }
            let bytes = merged(&payload).unwrap().concat();
            let mut copy = vec![0; bytes.len()];
            if typed.data_len().unwrap().is_some() {
                assert_eq!(
                    typed.copy_into(&mut copy).unwrap(),
                    bytes,
                    "{}",
                    vector.name
                );
            }
            if let Ok(there) = typed.as_slice() {
                assert_eq!(there, bytes);
                in_place += 1;
            }
            count += 1;
        });
    }
    assert!(count > 400 && in_place > 150, "{count} {in_place}");
}
