//! Differential tests with numpy: arrays of all types, with nested fields, masks and
//! objects, must agree in pickles of every protocol and in payloads.

use std::fmt::Write as _;

use daskwire::message::{Layout, Message, ReadOptions, Workspace};
use daskwire_numpy::known::{self, Known, KnownValue, MaskedData, NdArray, ObjectArray};
use daskwire_numpy::{
    Array, ArrayHeader, BorrowedPickle, Description, ElementType, PayloadValue, PickledPayload,
};
use daskwire_pickle::tree::{Node, Registry, Tree, Value};
use daskwire_pickle::{Limits, Reader};
use daskwire_testing::{Environment, Peer};

const BATCH: usize = 1_000;

/// Requests `count` values, and compares the rendering of each.
fn agree(environment: Environment, op: &str, count: usize, render: impl Fn(&[&[u8]]) -> String) {
    let mut peer = Peer::spawn(environment, "numpy_peer.py", &[]);
    for seed in 0..count / BATCH {
        let question = format!(r#"{{"op": "{op}", "seed": {seed}, "count": {BATCH}}}"#);
        let (answer, data) = peer.ask(&question, &[]);
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        let values = answer["values"].as_array().expect("a list");
        assert_eq!(values.len(), BATCH, "{answer}");
        let mut rest = data.as_slice();
        for (number, described) in values.iter().enumerate() {
            let mut frames: Vec<&[u8]> = Vec::new();
            for len in described["frames"].as_array().expect("a list") {
                let len = usize::try_from(len.as_u64().expect("a length")).expect("fits");
                let (frame, after) = rest.split_at(len);
                frames.push(frame);
                rest = after;
            }
            let string = render(&frames);
            let expected = described["text"].as_str().expect("text");
            assert_eq!(string, expected, "{op} {seed} {number}: {frames:x?}");
        }
        assert!(rest.is_empty());
    }
}

#[test]
fn values_of_random_pickles_match_numpy() {
    for environment in [Environment::Current, Environment::Documented] {
        agree(environment, "pickled", 4_000, |frames| {
            let (pickle, buffers) = frames.split_first().expect("a pickle");
            pickled_text(pickle, buffers)
        });
    }
}

#[test]
fn values_of_random_messages_match_dask() {
    agree(Environment::Current, "sent", 2_000, |frames| {
        sent_text(frames, Layout::Modern)
    });
    agree(Environment::Documented, "sent", 2_000, |frames| {
        sent_text(frames, Layout::Classic)
    });
}

fn pickled_text(pickle: &[u8], buffers: &[&[u8]]) -> String {
    let mut registry = Registry::<Known>::new();
    registry.allow_all(known::NUMPY);
    let reader = Reader::new(pickle).text_opcodes(true);
    let tree = Tree::build(reader, buffers, &Limits::HOST).expect("a pickle of numpy");
    value_text(&registry, tree.root())
}

fn value_text(registry: &Registry<Known>, node: Node<'_, '_>) -> String {
    let converted = match known::convert(registry, node) {
        Ok(converted) => converted,
        Err(error) => return format!("{error}: {node}"),
    };
    match converted {
        KnownValue::Masked => "masked".to_owned(),
        KnownValue::DType {
            element_type,
            shape,
        } => format!("dtype {}", type_text(element_type, &shape)),
        KnownValue::Array(found) => {
            let array = found.array();
            let kind = if array.is_matrix() { "matrix " } else { "" };
            format!("{kind}{} {}", nd_text(&found), flag(array.writeable()))
        }
        KnownValue::ObjectArray(found) => objects_text(&found),
        KnownValue::MaskedArray(found) => {
            let data = match found.data() {
                MaskedData::Array(data) => nd_text(data),
                MaskedData::Objects(data) => objects_text(data),
                other => panic!("{other:?}"),
            };
            format!("masked {data} {}", hex(&found.mask()))
        }
        KnownValue::Scalar(found) => {
            let of = found.element_type();
            format!(
                "scalar {} {}",
                type_text(of, &[]),
                data_text(&found.array(), of)
            )
        }
        other => panic!("{other:?}"),
    }
}

const fn flag(writeable: Option<bool>) -> &'static str {
    match writeable {
        Some(false) => "False",
        _ => "True",
    }
}

fn nd_text(found: &NdArray<'_, '_>) -> String {
    array_string(&found.array(), found.element_type())
}

fn array_string(array: &Array<'_>, of: ElementType<'_>) -> String {
    let (kind, data) = (type_text(of, &[]), data_text(array, of));
    format!("array {kind} {:?} {data}", array.shape())
}

fn objects_text(found: &ObjectArray<'_, '_>) -> String {
    let items: Vec<String> = found
        .items()
        .map(|item| match item.value() {
            Value::Tuple(items) => items.count_left().to_string(),
            _ => item.to_string(),
        })
        .collect();
    let kind = type_text(found.element_type(), &[]);
    format!("objects {kind} {:?} [{}]", found.shape(), items.join(", "))
}

fn type_text(of: ElementType<'_>, shape: &[usize]) -> String {
    let before = if shape.is_empty() {
        String::new()
    } else {
        format!("{shape:?}")
    };
    let record = match of {
        ElementType::Plain(dtype) => return format!("{before}{dtype}"),
        ElementType::Record(record) => record,
        other => panic!("{other:?}"),
    };
    let fields = record.fields().map(|field| {
        let field = field.unwrap_or_else(|error| panic!("{error}: {record:?}"));
        let title = field.title().unwrap_or_default();
        let (name, offset) = (field.name(), field.offset());
        let of = type_text(field.element_type(), field.shape());
        format!("{name}({title})@{offset} {of}")
    });
    let fields = fields.collect::<Vec<_>>().join(", ");
    format!("{before}V{}{{{fields}}}", record.item_len())
}

fn data_text(array: &Array<'_>, of: ElementType<'_>) -> String {
    let ElementType::Record(record) = of else {
        return hex(array);
    };
    let fields = record.fields().map(|field| {
        let field = field.expect("it was read before");
        let of_all = array.field(&field).expect("a field of these records");
        data_text(&of_all, field.element_type())
    });
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

fn hex(array: &Array<'_>) -> String {
    let mut out = String::new();
    for byte in array.items().flatten() {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Calls a function with a header whose element type is parsed, from a pickle if necessary.
fn with_type<R>(header: &ArrayHeader<'_>, with: impl FnOnce(&ArrayHeader<'_>) -> R) -> R {
    match header.element_type() {
        ElementType::Pickled(pickle) => {
            let tree = Tree::new(pickle).expect("the pickle of a type");
            let element_type = known::element_type(&tree).expect("a type of numpy");
            with(&header.with_element_type(element_type))
        }
        _ => with(header),
    }
}

fn sent_text(frames: &[&[u8]], layout: Layout) -> String {
    let mut workspace = Workspace::new();
    let reading = ReadOptions::default();
    let opened = Message::open(frames, layout, &reading, &mut workspace).map(|message| {
        let payload = message.payload(0).expect("a payload");
        if let Ok(pickled) = PickledPayload::read(&payload) {
            let there: BorrowedPickle<'_, _> = pickled.borrowed().expect("one frame each");
            return pickled_text(there.pickle(), there.buffers());
        }
        let parsed = PayloadValue::read(&payload).expect("a value");
        // Receives the data, whether or not it is compressed.
        let mut out = vec![0; 1 << 20];
        match parsed.description() {
            Description::Array(header) => {
                let data = parsed.copy_into(&mut out).expect("an array");
                if let Ok(array) = parsed.array() {
                    assert_eq!(header.over(data), Ok(array));
                }
                with_type(header, |header| {
                    let array = header.over(data).expect("an array");
                    let kind = if array.is_matrix() { "matrix " } else { "" };
                    let string = array_string(&array, header.element_type());
                    format!("{kind}{string} {}", flag(array.writeable()))
                })
            }
            Description::MaskedArray(header) => {
                let Ok(Description::Array(data_header)) = header.data() else {
                    panic!("{header:?}");
                };
                let mask_header = header.mask().expect("a mask or none");
                let mut ends = [0; 2];
                let frames = payload.merge_into(&mut out, &mut ends).expect("frames");
                let mut frames = frames.iter();
                let data = frames.next().expect("the data");
                let mask = match mask_header {
                    Some(header) => with_type(&header, |header| {
                        let mask = header.over(frames.next().expect("the mask"));
                        hex(&mask.expect("a mask"))
                    }),
                    None => "none".to_owned(),
                };
                let string = with_type(&data_header, |header| {
                    let array = header.over(data).expect("the data");
                    array_string(&array, header.element_type())
                });
                if let Ok(masked) = parsed.masked_array() {
                    assert_eq!(
                        array_string(masked.data(), data_header.element_type()),
                        string
                    );
                    assert_eq!(masked.mask().map_or("none".to_owned(), hex), mask);
                }
                format!("masked {string} {mask}")
            }
            other => panic!("{other:?}"),
        }
    });
    opened.expect("a message")
}
