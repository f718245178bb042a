//! Tests of payloads as values: reading and writing every array, byte string
//! and pickle of the recorded messages, and errors.

use crate::support;
use std::collections::BTreeMap;

use crate::records::with_type;
use crate::support::{Workspaces, is_frame, merged, vector, vectors};
use daskwire::compression::{CompressionError, Policy, Snappy};
use daskwire::message::{
    BuildError, BuilderBuffers, FrameCompressor, Layout, MessageBuilder, MessageErrorKind, Payload,
    PayloadHeader, PayloadKind, Scratch, Serializer,
};
use daskwire::msgpack;
use daskwire_numpy::unit::{Nanosecond, Second};
use daskwire_numpy::{
    Array, ByteOrder, Class, DType, Datetime64, Description, Dimensions, DimensionsError, Element,
    ElementType, FillValue, Kind, MAX_DIMENSIONS, NumpyError, NumpyErrorKind, NumpyModules, Order,
    PayloadValue, PayloadWriteError, PickledPayload, TimeBase, TimeUnit, Timedelta64, ValueBuilder,
    WriteOptions, elements, encode_into, pickle_array,
};
use daskwire_pickle::{self as pickle, Mutability, PickleBuffer, Placement, Protocol};
use serde_json::Value;

/// Opens a vector and calls `with` for each payload.
fn each_payload(vector: &support::Vector, mut with: impl FnMut(usize, Payload<'_, &[u8]>, &Value)) {
    let frames = vector.frames();
    let mut workspaces = Workspaces::new();
    let (message, _) = workspaces
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

/// The entries of the value's class, as described in the vector.
fn own(header: &Value) -> &Value {
    header.get("sub-header").unwrap_or(header)
}

/// PROTOCOL TYPED-1, TYPED-2, TYPED-3, TYPED-4
#[test]
fn every_array_of_every_release_matches_its_header() {
    let mut releases: BTreeMap<String, usize> = BTreeMap::new();
    let (mut plain, mut records, mut borrowed) = (0, 0_usize, 0);
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
            let parsed = PayloadValue::read(&payload).unwrap_or_else(|e| panic!("{name}: {e}"));
            let Description::Array(header) = parsed.description() else {
                panic!("{name}: {:?}", parsed.description());
            };
            // With room for one dimension all others are refused.
            let small = PayloadValue::<_, 1>::read_sized(&payload);
            match small.as_ref().map(PayloadValue::description) {
                Ok(Description::Array(small)) => {
                    assert_eq!(small.shape(), header.shape());
                    assert_eq!(small.dimensions().strides(), header.dimensions().strides());
                }
                Ok(other) => panic!("{name}: {other:?}"),
                Err(error) => {
                    let many =
                        NumpyErrorKind::Dimensions(DimensionsError::TooMany { count: 2, limit: 1 });
                    assert_eq!(error.kind, many, "{name}");
                    assert!(header.shape().len() > 1, "{name}");
                }
            }
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
                    // Records have fields, void elements do not.
                    let has_fields = with_type(header, |header| {
                        let array = header.over(&bytes).unwrap();
                        let record = match header.element_type() {
                            ElementType::Record(record) => record,
                            other => {
                                assert_eq!(array.dtype().kind(), Kind::Void, "{name}: {other:?}");
                                return false;
                            }
                        };
                        assert_eq!(array.dtype(), record.dtype(), "{name}");
                        assert_eq!(record.fields().count(), record.field_count(), "{name}");
                        for field in record.fields() {
                            let field = field.unwrap_or_else(|error| panic!("{name}: {error}"));
                            let of_all = array.field(&field).unwrap();
                            assert_eq!(Some(of_all.dtype()), field.dtype(), "{name}");
                        }
                        true
                    });
                    records += usize::from(has_fields);
                    if matches!(header.element_type(), ElementType::Pickled(_)) {
                        assert_eq!(array.unwrap_err().kind, NumpyErrorKind::NotPlain, "{name}");
                        return;
                    }
                }
            }
            plain += 1;
            let array = header.over(&bytes).unwrap();
            assert_eq!(array.items().len(), shape_len(array.shape()), "{name}");
            // The same from the payload, borrowed or copied.
            let mut copy = vec![0xa5; bytes.len()];
            let is_plain = payload_is_plain(json);
            match parsed.array() {
                Ok(there) => {
                    assert!(is_plain);
                    assert_eq!(there, array, "{name}");
                    let frame = payload.frames().iter().find(|frame| !frame.is_empty());
                    if let Some(frame) = frame {
                        assert!(core::ptr::eq(there.bytes().as_ptr(), frame.as_ptr()));
                    }
                    borrowed += 1;
                }
                Err(error) => match error.kind {
                    NumpyErrorKind::Compressed => assert!(!is_plain, "{name}"),
                    NumpyErrorKind::InParts => {
                        let parts = parsed.parts().unwrap();
                        let parts: Vec<&[u8]> = parts.map(Result::unwrap).collect();
                        assert!(parts.len() > 1 && parts.concat() == bytes, "{name}");
                    }
                    other => panic!("{name}: {other}"),
                },
            }
            // zlib has no declared length.
            if parsed.data_len().unwrap().is_some() {
                assert_eq!(parsed.array_into(&mut copy).unwrap(), array, "{name}");
                if !bytes.is_empty() {
                    let kind = parsed
                        .array_into(&mut copy[1..])
                        .map_err(|error| error.kind);
                    assert!(
                        matches!(kind, Err(NumpyErrorKind::BufferTooSmall(_))),
                        "{name}"
                    );
                }
            }
        });
    }
    assert!(
        plain >= 120 && records > 5 && borrowed > 90,
        "{plain} {records} {borrowed}"
    );
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
fn byte_strings_are_their_frames() {
    let (mut count, mut borrowed) = (0, 0);
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
            let parsed = PayloadValue::read(&payload).unwrap();
            assert_eq!(*parsed.description(), expected, "{}", vector.name);
            if vector.missing_codec(number).is_some() {
                return;
            }
            let bytes = merged(&payload).unwrap().concat();
            let mut copy = vec![0; bytes.len()];
            if parsed.data_len().unwrap().is_some() {
                assert_eq!(
                    parsed.copy_into(&mut copy).unwrap(),
                    bytes,
                    "{}",
                    vector.name
                );
            }
            if let Ok(there) = parsed.as_slice() {
                assert_eq!(there, bytes);
                borrowed += 1;
            }
            count += 1;
        });
    }
    assert!(count > 300 && borrowed > 150, "{count} {borrowed}");
}

/// PROTOCOL TYPED-5
#[test]
fn pickle_payloads_have_the_right_number_of_buffers() {
    let (mut borrowed, mut merged_count, mut with_buffers) = (0, 0, 0);
    for vector in vectors() {
        if vector.missing_body_codec().is_some() {
            continue;
        }
        each_payload(&vector, |number, payload, json| {
            let name = format!("{} payload {number}", vector.name);
            // Some are written by hand and are not pickles.
            if vector.name.contains("/hm-") {
                return;
            }
            let is_pickle = json["kind"] == "pickled"
                || json["header"]["serializer"] == "pickle"
                || own(&json["header"])["pickle"] == true;
            let pickled = match PickledPayload::read(&payload) {
                Ok(pickled) => pickled,
                Err(error) => {
                    let wanted = "a pickle";
                    assert_eq!(error.kind, NumpyErrorKind::OtherClass { wanted }, "{name}");
                    assert!(!is_pickle, "{name}");
                    return;
                }
            };
            if vector.missing_codec(number).is_some() {
                return;
            }
            with_buffers += usize::from(pickled.buffer_count() > 0);
            let whole = merged(&payload).unwrap();
            let buffers = match pickled.borrowed() {
                Ok(there) => {
                    borrowed += 1;
                    if let Some(frame) = payload.frames().last() {
                        let last = there.buffers().last().map_or(there.pickle(), AsRef::as_ref);
                        let is_header =
                            payload.kind() == PayloadKind::Pickled && there.buffers().is_empty();
                        assert!(is_header || core::ptr::eq(last.as_ptr(), frame.as_ptr()));
                    }
                    count_taken(there.items())
                }
                Err(error) => {
                    assert!(
                        matches!(
                            error.kind,
                            NumpyErrorKind::Compressed | NumpyErrorKind::InParts
                        ),
                        "{name}: {error}"
                    );
                    merged_count += 1;
                    let mut out = vec![0; whole.concat().len()];
                    let mut ends = vec![0; whole.len()];
                    let mut slots = vec![&[][..]; whole.len()];
                    if payload.merged_len().unwrap().is_none() {
                        return;
                    }
                    let there = pickled.merged(&mut out, &mut ends, &mut slots).unwrap();
                    count_taken(there.items())
                }
            };
            assert_eq!(buffers, pickled.buffer_count(), "{name}");
            let flags: Vec<_> = pickled.writeable().unwrap().collect();
            assert_eq!(flags.len(), buffers);
            if let Some(list) = json["header"]["writeable"].as_array()
                && json["kind"] == "serialized"
            {
                let said: Vec<_> = list.iter().map(Value::as_bool).collect();
                // The last flags: some releases have one for the pickle too.
                assert!(said.ends_with(&flags), "{name}: {said:?} {flags:?}");
            }
        });
    }
    assert!(
        borrowed > 60 && merged_count > 3 && with_buffers > 8,
        "{borrowed} {merged_count} {with_buffers}"
    );
}

fn count_taken<T: AsRef<[u8]>>(mut items: pickle::OutOfBandReader<'_, T>) -> usize {
    while items.next_item().unwrap().is_some() {}
    items.used_count()
}

/// PROTOCOL TYPED-6
#[test]
fn a_memoryview_is_read_as_dask_wrote_it() {
    let view = vector("modern-nosplit-2026.8.0/case-memoryview");
    each_payload(&view, |_, payload, _| {
        let parsed = PayloadValue::read(&payload).unwrap();
        let Description::MemoryView(header) = parsed.description() else {
            panic!("{:?}", parsed.description());
        };
        assert_eq!((header.format(), header.shape()), ("H", &[2, 3][..]));
        let array = parsed.array().unwrap();
        assert_eq!(array.dtype(), DType::U16);
        assert_eq!(array.writeable(), None);
        let expected = [0x100, 0x302, 0x504, 0x706, 0x908, 0xb0a];
        assert!(array.elements::<u16>().unwrap().eq(expected));
        let short = header.over(&[0; 11]).unwrap_err();
        let (needed, available) = (6, 11);
        let differs = DimensionsError::LengthDiffers { needed, available };
        assert_eq!(short.kind, NumpyErrorKind::Dimensions(differs));
        // 24 bytes would be 4 each, which is not an H.
        let long = header.over(&[0; 24]).unwrap_err();
        assert_eq!(long.kind, NumpyErrorKind::NotPlain);
    });
    each_payload(
        &vector("modern-nosplit-2026.8.0/case-bytearray"),
        |_, payload, _| {
            let parsed = PayloadValue::read(&payload).unwrap();
            assert_eq!(*parsed.description(), Description::ByteArray);
            assert_eq!(parsed.as_slice(), Ok(&b"changeable"[..]));
            let error = parsed.array().unwrap_err();
            assert!(matches!(error.kind, NumpyErrorKind::OtherClass { .. }));
        },
    );
    // In a message it is bytes.
    let inside = vector("modern-total-2021.12.0/bytearray-memoryview");
    assert!(inside.payloads().is_empty());
}

#[test]
fn elements_are_read_as_numbers() {
    let read = |name: &str, check: &dyn Fn(Array<'_>)| {
        let mut count = 0;
        let name = format!("modern-nosplit-2026.8.0/{name}");
        each_payload(&vector(&name), |_, payload, _| {
            check(PayloadValue::read(&payload).unwrap().array().unwrap());
            count += 1;
        });
        assert_eq!(count, 1, "{name}");
    };
    read("case-array-fortran-order", &|array| {
        assert_eq!(array.order(), Some(Order::Fortran));
        assert!(array.elements::<f64>().unwrap().eq((0..12).map(f64::from)));
        let mut decoded = [0.0; 12];
        assert_eq!(array.decode_into(&mut decoded[..]).unwrap()[5], 5.0);
        let mut workspaces = [0; 96];
        let copy = array.copy_into(&mut workspaces).unwrap();
        assert_eq!(copy.order(), Some(Order::C));
        assert!(copy.memory_elements::<f64>().unwrap().eq(decoded));
        let first = array.memory_elements::<f64>().unwrap().next_chunk_of_3();
        assert_eq!(first, [0.0, 4.0, 8.0]);
        assert_eq!(array.item(&[2, 1]), Some(&9.0_f64.to_le_bytes()[..]));
        assert_eq!(array.item(&[3, 0]), None);
        assert_eq!(array.item(&[0]), None);
    });
    read("case-array-big-endian", &|array| {
        assert_eq!(array.dtype(), DType::I32.with_order(ByteOrder::Big));
        assert!(array.elements::<i32>().unwrap().eq(0..5));
    });
    read("case-array-of-booleans", &|array| {
        assert!(array.elements::<bool>().unwrap().eq([true, false, true]));
    });
    read("case-array-of-dates", &|array| {
        let unit = TimeUnit::one(TimeBase::Nanosecond);
        assert_eq!(array.dtype(), DType::datetime(unit));
        let times = [1_577_836_800_000_000_000, i64::MIN];
        assert!(array.elements::<i64>().unwrap().eq(times));
        let elements = array.elements::<Datetime64<Nanosecond>>().unwrap();
        assert!(elements.eq(times.map(Datetime64::new)));
        let second = array.elements::<Datetime64<Nanosecond>>().unwrap().nth(1);
        assert_eq!(second.unwrap().number(), None);
        // Of another unit, or no points in time.
        assert!(array.elements::<Datetime64<Second>>().is_err());
        assert!(array.elements::<Timedelta64<Nanosecond>>().is_err());
    });
    read("np-m8-s", &|array| {
        let elements = array.elements::<Timedelta64<Second>>().unwrap();
        assert!(elements.eq([1, 0, 1, 1, 0, 1].map(Timedelta64::new)));
        let mut written = [0xa5; 48];
        let elements: Vec<Timedelta64<Second>> = array.elements().unwrap().collect();
        encode_into(&elements, &mut written).unwrap();
        assert_eq!(written, array.bytes());
        assert_eq!(
            array.dtype(),
            Timedelta64::<Second>::dtype(ByteOrder::Little)
        );
    });
    read("np-c16", &|array| {
        let mut elements = array.elements::<[f64; 2]>().unwrap();
        assert_eq!(elements.len(), 6);
        assert!(elements.all(|[real, _]| real.is_finite()));
    });
    read("case-array-broadcast-read-only", &|array| {
        assert_eq!((array.shape(), array.strides()), (&[4, 3][..], &[0, 2][..]));
        assert!(array.is_broadcast() && array.writeable() == Some(false));
        assert_eq!(array.bytes().len(), 6);
        let expected = [0, 1, 2].repeat(4);
        assert!(array.elements::<i16>().unwrap().eq(expected));
        let mut workspaces = [0; 24];
        assert_eq!(array.copy_into(&mut workspaces).unwrap().strides(), [6, 2]);
    });
    read("case-array-matrix", &|array| {
        assert!(array.is_matrix());
        assert!(array.elements::<f64>().unwrap().eq([1.0, 2.0, 3.0, 4.0]));
    });
    read("case-array-no-items", &|array| {
        assert_eq!(array.shape(), [0, 3]);
        assert_eq!(array.elements::<f64>().unwrap().len(), 0);
    });
    read("case-array-no-dimensions", &|array| {
        assert_eq!(array.shape(), [0; 0]);
        assert!(array.elements::<f64>().unwrap().eq([2.5]));
        let error = array.elements::<f32>().err().unwrap();
        let (wanted, found) = (DType::F32, DType::F64);
        assert_eq!(error.kind, NumpyErrorKind::OtherType { wanted, found });
        assert_eq!(
            error.to_string(),
            "in frame 0, at byte 0: the elements are <f8; expected <f4"
        );
    });
}

/// Takes the first three items, for brevity.
trait FirstThree: Iterator + Sized {
    fn next_chunk_of_3(mut self) -> [Self::Item; 3] {
        [(); 3].map(|()| self.next().unwrap())
    }
}

impl<I: Iterator> FirstThree for I {}

#[test]
fn collection_elements_have_their_own_headers() {
    each_payload(
        &vector("modern-nosplit-2026.8.0/case-collection-list"),
        |_, payload, _| {
            let parsed = PayloadValue::read(&payload).unwrap();
            assert_eq!(*parsed.description(), Description::Collection);
            let header = payload.header();
            let headers: Vec<PayloadHeader<'_>> = header
                .sub_headers()
                .unwrap()
                .unwrap()
                .map(Result::unwrap)
                .collect();
            let frames = payload.logical_frames().unwrap();
            let frames: Vec<&[u8]> = frames.map(|f| f.unwrap().as_slice().unwrap()).collect();
            let describe = |index: usize| Description::of(&headers[index]).unwrap();
            let Description::Array(first) = describe(0) else {
                panic!("{:?}", describe(0));
            };
            let first = first.over(frames[0]).unwrap();
            assert!(first.elements::<i64>().unwrap().eq(0..4));
            assert_eq!(describe(1), Description::Bytes);
            let Description::Array(last) = describe(2) else {
                panic!("{:?}", describe(2));
            };
            assert_eq!(last.over(frames[2]).unwrap().dtype(), DType::F32);
        },
    );
    each_payload(
        &vector("modern-nosplit-2026.8.0/serializer-error"),
        |_, payload, _| {
            let parsed = PayloadValue::read(&payload).unwrap();
            let family = Description::Family(Serializer::Error);
            assert_eq!(*parsed.description(), family);
        },
    );
    each_payload(
        &vector("modern-nosplit-2026.8.0/np-masked"),
        |_, payload, _| {
            let parsed = PayloadValue::read(&payload).unwrap();
            let Description::MaskedArray(header) = parsed.description() else {
                panic!("{:?}", parsed.description());
            };
            assert_eq!(header.fill_value(), Ok(FillValue::Float(1e20)));
            assert!(matches!(header.data(), Ok(Description::Array(_))));
            let masked = parsed.masked_array().unwrap();
            let elements = masked.elements::<f64>().unwrap();
            assert!(elements.eq([Some(1.0), None, Some(3.0)]), "{masked:?}");
            let mut copy = [0xa5; 27];
            assert_eq!(parsed.masked_array_into(&mut copy).unwrap(), masked);
            let wanted = "an array of numpy, or a memoryview";
            let kind = NumpyErrorKind::OtherClass { wanted };
            assert_eq!(parsed.array().unwrap_err().kind, kind);
        },
    );
}

#[test]
fn split_data_is_read_in_parts_or_copied() {
    let vector = vector("modern-nosplit-2026.8.0/case-split-array");
    let mut workspaces = [0; 4000];
    each_payload(&vector, |_, payload, _| {
        let parsed = PayloadValue::read(&payload).unwrap();
        let error = parsed.array().unwrap_err();
        assert_eq!((error.frame, error.kind), (1, NumpyErrorKind::InParts));
        let mut found = Vec::new();
        for (part, frame) in parsed.parts().unwrap().zip(payload.frames()) {
            let part = part.unwrap();
            assert!(core::ptr::eq(part, *frame));
            found.extend(elements::<u32>(DType::U32, part).unwrap());
        }
        assert!(found.iter().copied().eq(0..1000));
        let array = parsed.array_into(&mut workspaces).unwrap();
        assert!(array.elements::<u32>().unwrap().eq(0..1000));
    });
}

/// A header of an array with these entries.
fn header_with(own: &[(&str, &[u8])]) -> Vec<u8> {
    let mut space = vec![0; 4096];
    let mut writer = msgpack::Writer::new(&mut space);
    writer.map(4).str("serializer").str("dask");
    writer.str("type-serialized");
    writer.bin(b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93.");
    writer.str("num-sub-frames").u64(1);
    writer
        .str("sub-header")
        .map(u32::try_from(own.len()).unwrap());
    for (key, value) in own {
        writer.str(key).encoded(value);
    }
    writer.finish().unwrap().to_vec()
}

fn array_error(own: &[(&str, &[u8])], frame: &[u8]) -> NumpyError {
    with_array(own, frame, |array| array.unwrap_err())
}

fn with_array<R>(
    own: &[(&str, &[u8])],
    frame: &[u8],
    check: impl FnOnce(Result<Array<'_>, NumpyError>) -> R,
) -> R {
    let header = header_with(own);

    let body: &[u8] = b"\x81\xae__Serialized__\x01";
    let frames = [body, &header, frame];
    let mut workspaces = Workspaces::with(8, 8, 0);
    let reading = daskwire::message::ReadOptions::default();
    let (message, _) = workspaces.open(&frames, Layout::Modern, &reading).unwrap();
    let payload = message.payload(0).unwrap();
    check(PayloadValue::read(&payload).and_then(|parsed| parsed.array()))
}

/// PROTOCOL TYPED-3: numpy ignores strides that lead to no element, and sends
/// their sign.
#[test]
fn strides_that_lead_to_no_element_may_be_negative() {
    const F8: &[u8] = b"\x92\x00\xa3<f8";
    let check = |shape: &[u8], strides: &[u8], frame: &[u8], expected: &[usize]| {
        let own = [("dtype", F8), ("shape", shape), ("strides", strides)];
        with_array(&own, frame, |array| {
            let array = array.unwrap_or_else(|error| panic!("{strides:?}: {error}"));
            assert_eq!(array.shape(), expected);
            assert_eq!(array.order(), Some(Order::C));
            assert_eq!(array.items().len() * 8, frame.len());
        });
    };
    let frame: Vec<u8> = (0..5_u8).flat_map(|n| f64::from(n).to_le_bytes()).collect();
    // numpy.arange(5.).reshape(1, 5)[::-1]
    check(b"\x92\x01\x05", b"\x92\xd0\xd8\x08", &frame, &[1, 5]);
    // numpy.arange(3.)[::-1][:1]
    check(b"\x91\x01", b"\x91\xf8", &frame[..8], &[1]);
    // numpy.ones((2, 0))[::-1], of a numpy that keeps such strides
    check(b"\x92\x02\x00", b"\x92\xf8\x08", &[], &[2, 0]);
    if usize::BITS == 64 {
        let least = b"\x91\xd3\x80\0\0\0\0\0\0\0";
        check(b"\x91\x01", least, &frame[..8], &[1]);
    }
    assert!(Dimensions::with_strides(&[1, 5], &[-40, 8]).is_ok());
}

/// PROTOCOL TYPED-3, TYPED-4: errors have the kind and location of the fault.
#[test]
fn inconsistent_arrays_are_refused() {
    const F8: &[u8] = b"\x92\x00\xa3<f8";
    let dimensions = |own: &[(&str, &[u8])], frame: &[u8]| {
        let error = array_error(own, frame);
        assert_eq!(error.frame, 1, "{error}");
        assert!(error.at > 0, "{error}");
        match error.kind {
            NumpyErrorKind::Dimensions(error) => error,
            other => panic!("{other}"),
        }
    };
    let of = |shape: &[u8], strides: &[u8], frame: &[u8]| {
        dimensions(
            &[("dtype", F8), ("shape", shape), ("strides", strides)],
            frame,
        )
    };
    for (needed, available) in [(40, 39), (40, 41), (40, 0)] {
        let differs = DimensionsError::LengthDiffers { needed, available };
        assert_eq!(of(b"\x91\x05", b"\x91\x08", &vec![0; available]), differs);
    }
    // Without strides it is in C order.
    let (needed, available) = (48, 8);
    let differs = DimensionsError::LengthDiffers { needed, available };
    assert_eq!(of(b"\x92\x02\x03", b"\xc0", &[0; 8]), differs);
    let (needed, available) = (72, 40);
    let outside = DimensionsError::OutOfBounds { needed, available };
    assert_eq!(of(b"\x91\x05", b"\x91\x10", &[0; 40]), outside);
    let (axis, stride) = (1, -8);
    let negative = DimensionsError::NegativeStride { axis, stride };
    assert_eq!(of(b"\x92\x01\x05", b"\x92\x28\xf8", &[0; 40]), negative);
    assert_eq!(of(b"\x92\x02\x05", b"\x92\x28\xf8", &[0; 80]), negative);
    let (shape, other) = (2, 1);
    let counts = DimensionsError::CountsDiffer { shape, other };
    assert_eq!(of(b"\x92\x01\x05", b"\x91\x08", &[0; 40]), counts);
    let (shape, other) = (1, 2);
    let counts = DimensionsError::CountsDiffer { shape, other };
    assert_eq!(of(b"\x91\x05", b"\x92\x28\x08", &[0; 40]), counts);
    // 2^32 times 2^32 elements, and 2^61 elements of 8 bytes.
    let large = b"\x92\xcf\0\0\0\x01\0\0\0\0\xcf\0\0\0\x01\0\0\0\0";
    assert_eq!(of(large, b"\xc0", &[0; 8]), DimensionsError::TooLarge);
    assert_eq!(
        of(large, b"\x92\x08\x08", &[0; 8]),
        DimensionsError::TooLarge
    );
    let large = b"\x91\xcf\x20\0\0\0\0\0\0\0";
    assert_eq!(of(large, b"\x91\x08", &[0; 8]), DimensionsError::TooLarge);
    // The end of the second element would overflow.
    let far = b"\x91\xcf\x7f\xff\xff\xff\xff\xff\xff\xff";
    let error = of(b"\x91\x03", far, &[0; 24]);
    assert_eq!(error, DimensionsError::TooLarge);
    let mut many = vec![0xdc, 0, 65];
    many.extend([1; 65]);
    let (count, limit) = (65, 64);
    let too_many = DimensionsError::TooMany { count, limit };
    assert_eq!(of(&many, b"\xc0", &[0; 8]), too_many);
    let few = Dimensions::<2>::sized(&[2, 3, 4], Order::C, 8).unwrap_err();
    let text = "the array has 3 dimensions; the maximum is 2";
    assert_eq!(few.to_string(), text);
    many[2] = 64;
    many.pop();
    assert_eq!(MAX_DIMENSIONS, 64);
    let large = of(&many, b"\xc0", &[0; 7]);
    let (needed, available) = (8, 7);
    assert_eq!(large, DimensionsError::LengthDiffers { needed, available });

    let broadcast = |to: &[u8], shape: &[u8], strides: &[u8], frame: &[u8]| {
        let own = [
            ("dtype", F8),
            ("shape", shape),
            ("strides", strides),
            ("broadcast_to", to),
        ];
        dimensions(&own, frame)
    };
    let (axis, stored, wanted) = (0, 1, 4);
    let not = DimensionsError::NotBroadcast {
        axis,
        stored,
        wanted,
    };
    assert_eq!(
        broadcast(b"\x91\x04", b"\x91\x01", b"\x91\x08", &[0; 8]),
        not
    );
    let (axis, stored, wanted) = (1, 2, 4);
    let not = DimensionsError::NotBroadcast {
        axis,
        stored,
        wanted,
    };
    let found = broadcast(b"\x92\x04\x04", b"\x92\x01\x02", b"\x92\x00\x08", &[0; 16]);
    assert_eq!(found, not);
    let (shape, other) = (1, 2);
    let counts = DimensionsError::CountsDiffer { shape, other };
    let found = broadcast(b"\x92\x04\x04", b"\x91\x01", b"\x91\x00", &[0; 8]);
    assert_eq!(found, counts);
    // 2^64 elements of 8 bytes.
    let found = broadcast(
        b"\x92\xcf\0\0\0\x01\0\0\0\0\xcf\0\0\0\x01\0\0\0\0",
        b"\x92\x01\x01",
        b"\x92\x00\x00",
        &[0; 8],
    );
    assert_eq!(found, DimensionsError::TooLarge);

    let error = array_error(&[("shape", b"\x90"), ("strides", b"\x90")], &[0; 8]);
    let key = "dtype";
    let missing = MessageErrorKind::EntryMissing { key };
    assert_eq!(error.kind, NumpyErrorKind::Message(missing));
    let error = array_error(
        &[("dtype", b"\x92\x00\xa3<q8"), ("shape", b"\x90")],
        &[0; 8],
    );
    assert!(
        error.to_string().contains("at byte 1 of the type"),
        "{error}"
    );
    let error = array_error(
        &[("dtype", b"\x92\x02\xa3<f8"), ("shape", b"\x90")],
        &[0; 8],
    );
    assert!(error.to_string().contains("dtype"), "{error}");
    let error = array_error(
        &[
            ("dtype", b"\x92\x01\xc4\x01."),
            ("shape", b"\x90"),
            ("strides", b"\x90"),
        ],
        &[0; 8],
    );
    assert_eq!(error.kind, NumpyErrorKind::NotPlain);
    assert!(!error.is_caller_fault());
}

/// PROTOCOL TYPED-1
#[test]
fn only_known_classes_are_recognised() {
    let read = |pickle: &[u8]| {
        Class::read(pickle)
            .map(|class| format!("{} {}", class.module, class.name))
            .map_err(|error| match error {
                NumpyErrorKind::NotAClass { offset } => offset,
                other => panic!("{other}"),
            })
    };
    for good in [
        &b"\x80\x05\x95\x15\0\0\0\0\0\0\0\x8c\x05numpy\x94\x8c\x07ndarray\x94\x93\x94."[..],
        b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93.",
        b"\x80\x02cnumpy\nndarray\nq\0.",
        b"cnumpy\nndarray\np0\n.",
        b"\x80\x04X\x05\0\0\0numpy\x8c\x07ndarray\x93.",
    ] {
        assert_eq!(read(good), Ok("numpy ndarray".into()));
    }
    assert_eq!(
        read(b"\x80\x05\x8c\x05array\x94h\0\x93\x94."),
        Ok("array array".into())
    );
    assert_eq!(
        read(b"\x80\x02c__builtin__\nbytearray\nq\0."),
        Ok("builtins bytearray".into())
    );
    // A call, several calls, a string alone, trailing bytes, a memo reference.
    let class = b"\x80\x04\x8c\x01m\x8c\x01n\x93";
    let with = |rest: &[u8]| [class, rest].concat();
    assert_eq!(read(&with(b")R.")), Err(9));
    assert_eq!(read(&with(b"\x8c\x01m\x8c\x01n\x93.")), Err(9));
    assert_eq!(read(&with(b"..")), Err(10));
    assert_eq!(read(&with(b"0N.")), Err(9));
    assert_eq!(read(b"\x80\x04\x8c\x01m."), Err(5));
    assert_eq!(read(b"\x80\x04\x8c\x01mh\0\x93."), Err(5));
    assert_eq!(read(b"\x80\x04\x8c\x01m\x8c\x01n\x8c\x01o\x93."), Err(8));
    assert_eq!(read(b"\x80\x04\x93."), Err(2));
    assert!(matches!(
        Class::read(b"\x80\x04\x8c\x01\x80\x8c\x01n\x93."),
        Err(NumpyErrorKind::Pickle { offset: 2, .. })
    ));
    assert!(matches!(
        Class::read(b""),
        Err(NumpyErrorKind::Pickle { offset: 0, .. })
    ));
}

/// PROTOCOL TYPED-2
#[test]
fn dtypes_display_as_they_parse() {
    for text in [
        "|b1",
        "|i1",
        "<i2",
        ">i4",
        "<i8",
        "|u1",
        "<u2",
        ">u4",
        "<u8",
        "<f2",
        "<f4",
        ">f8",
        "<f12",
        "<f16",
        "<c8",
        ">c16",
        "<c24",
        "<c32",
        "<M8",
        "<M8[ns]",
        ">M8[D]",
        "<m8[25s]",
        "<m8[7us]",
        "<M8[4294967295as]",
        "|S0",
        "|S3",
        "<U0",
        ">U5",
        "<U4611686018427387903",
        "|V8",
        "|V18446744073709551615",
    ] {
        // Lengths that 32-bit targets do not have.
        if usize::BITS == 32 && text.len() > 18 {
            continue;
        }
        let dtype = DType::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(dtype.to_string(), text);
        assert_eq!(dtype.type_string().as_str(), text);
    }
    // The order is ignored if it does not apply.
    for (text, same) in [
        ("<b1", "|b1"),
        (">i1", "|i1"),
        ("<S4", "|S4"),
        ("<V4", "|V4"),
    ] {
        assert_eq!(DType::parse(text), DType::parse(same));
    }
    for (text, at) in [
        ("", 0),
        ("f8", 0),
        ("=f8", 0),
        ("|f8", 0),
        ("|U2", 0),
        ("<", 1),
        ("<x8", 1),
        ("|O", 1),
        ("|O8", 1),
        ("<f", 2),
        ("<f3", 2),
        ("<i16", 2),
        ("<b2", 2),
        ("<c4", 2),
        ("<M4[s]", 2),
        ("<U4611686018427387904", 2),
        ("|V18446744073709551616", 2),
        ("<f8 ", 3),
        ("<f8[s]", 3),
        ("<M8[]", 3),
        ("<M8[0s]", 3),
        ("<M8[x]", 3),
        ("<M8[s", 3),
        ("<M8[4294967296s]", 3),
        ("<M8[s/2]", 3),
    ] {
        let error = DType::parse(text).expect_err(text);
        assert_eq!(error.at, at, "{text}: {error}");
    }
    let unit = TimeUnit {
        count: 25,
        base: TimeBase::Second,
    };
    assert_eq!(DType::parse("<m8[25s]"), Ok(DType::timedelta(unit)));
    assert_eq!(
        DType::parse("<m8[25s]").unwrap().kind(),
        Kind::Timedelta(unit)
    );
    assert_eq!(DType::parse("<U5"), Ok(DType::string(5).unwrap()));
    assert_eq!(DType::string(usize::MAX), None);
    assert_eq!(DType::parse("|S3"), Ok(DType::bytes(3)));
    assert_eq!(DType::parse("|V8"), Ok(DType::void(8)));
    assert_eq!(DType::from_format("d", 8), Some(DType::F64));
    assert_eq!(DType::from_format("l", 4), Some(DType::I32));
    assert_eq!(DType::from_format("l", 8), Some(DType::I64));
    assert_eq!(DType::from_format(">h", 2).unwrap().order(), ByteOrder::Big);
    for (format, len) in [("d", 4), ("dd", 8), ("", 1), ("O", 8), ("4s", 4)] {
        assert_eq!(DType::from_format(format, len), None);
    }
}

/// Every type round-trips in both byte orders.
#[test]
fn elements_round_trip() {
    fn both<E: Element + PartialEq + core::fmt::Debug>(values: &[E]) {
        let mut bytes = vec![0xa5; 64];
        let bytes = encode_into(values, &mut bytes).unwrap();
        let dtype = E::dtype(ByteOrder::Little);
        let array = Array::new(dtype, &[values.len()], Order::C, bytes).unwrap();
        assert!(array.elements::<E>().unwrap().eq(values.iter().copied()));
        assert!(
            array
                .memory_elements::<E>()
                .unwrap()
                .eq(values.iter().copied())
        );
        let mut out = values.to_vec();
        out.reverse();
        assert_eq!(array.decode_into(&mut out), Ok(values));
        let error = array.decode_into(&mut out[..1]).unwrap_err();
        assert!(matches!(error.kind, NumpyErrorKind::BufferTooSmall(_)));
        // As written by a machine with the other byte order.
        let mut swapped = bytes.to_vec();
        let part_len = match dtype.kind() {
            Kind::Complex => dtype.item_len() / 2,
            _ => dtype.item_len(),
        };
        swapped.chunks_mut(part_len).for_each(<[u8]>::reverse);
        let dtype = E::dtype(ByteOrder::Big);
        let array = Array::new(dtype, &[values.len()], Order::C, &swapped).unwrap();
        assert!(array.elements::<E>().unwrap().eq(values.iter().copied()));
        let error = encode_into(values, &mut [0; 1]).unwrap_err();
        assert!(matches!(error.kind, NumpyErrorKind::BufferTooSmall(_)));
    }
    both(&[true, false]);
    both(&[i8::MIN, 7]);
    both(&[i16::MIN, 7]);
    both(&[i32::MIN, 7]);
    both(&[i64::MIN, 7]);
    both(&[u8::MAX, 7]);
    both(&[u16::MAX, 7]);
    both(&[u32::MAX, 7]);
    both(&[u64::MAX, 7]);
    both(&[1.5_f32, -0.25]);
    both(&[1.5_f64, -0.25]);
    both(&[[1.5_f32, 2.5], [3.5, 4.5]]);
    both(&[[1.5_f64, 2.5], [3.5, 4.5]]);
}

/// The buffers of a message builder.
struct Space {
    body: [u8; 256],
    headers: [u8; 4096],
}

impl Space {
    fn new() -> Self {
        Self {
            body: [0; 256],
            headers: [0; 4096],
        }
    }

    /// The frames of `{"x": payload}`.
    fn build<'a>(
        &'a mut self,
        layout: Layout,
        slots: &'a mut [&'a [u8]],
        put: impl FnOnce(&mut MessageBuilder<'_, 'a>) -> Result<(), PayloadWriteError>,
    ) -> Result<Vec<&'a [u8]>, PayloadWriteError> {
        let mut scratch = Scratch::<4, 4>::new();
        let mut builder = MessageBuilder::new(
            layout,
            BuilderBuffers {
                body: &mut self.body,
                headers: &mut self.headers,
                slots,
            },
        )
        .with_scratch(&mut scratch);
        builder.body().map(1).str("x");
        put(&mut builder)?;
        Ok(builder.finish()?.to_vec())
    }
}

/// Values are compressed where it is worthwhile, in every layout, and split as
/// before.
#[test]
fn written_payloads_can_be_compressed() {
    let data: Vec<u8> = (0..6000_u32)
        .flat_map(|at| (at / 64).to_le_bytes())
        .collect();
    let mut state = 1_u64;
    let noise: Vec<u8> = (0..6000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect();
    let array = Array::new(DType::U32, &[100, 60], Order::C, &data).unwrap();
    let options = WriteOptions::default().with_shard_len(16_000);
    let buffers = [PickleBuffer::new(&data, Mutability::Writable)];
    for layout in [Layout::Classic, Layout::Modern] {
        for out_len in [120_000, 100] {
            let (mut body, mut headers, mut slots) = ([0; 256], [0; 4096], [&[][..]; 16]);
            let mut scratch = Scratch::<4, 4>::new();
            let mut out = vec![0; out_len];
            let (mut snappy, mut random) = (Snappy::new(), |_| 0);
            let scratch_buffers = BuilderBuffers {
                body: &mut body,
                headers: &mut headers,
                slots: &mut slots,
            };
            let mut builder = MessageBuilder::new(layout, scratch_buffers)
                .with_scratch(&mut scratch)
                .with_compression(FrameCompressor {
                    compression: &mut snappy,
                    policy: Policy::DASK.with_min_len(1000),
                    out: &mut out,
                    random: &mut random,
                });
            builder.body().array(3);
            let written = builder.array_payload(&array, &options).map(drop);
            if out_len == 100 {
                let error = written.unwrap_err();
                assert!(matches!(
                    error,
                    PayloadWriteError::Build(BuildError::Compression(
                        CompressionError::BufferTooSmall(_)
                    ))
                ));
                continue;
            }
            written.unwrap();
            builder.bytes_payload(&noise, &options).unwrap();
            builder
                .pickle_payload(b"\x80\x05\x97.", &buffers, &options)
                .unwrap();
            let frames = builder.finish().unwrap();
            assert!(frames.iter().map(|frame| frame.len()).sum::<usize>() < 30_000);

            let mut workspaces = Workspaces::with(8, 8, 0);
            let reading = daskwire::message::ReadOptions::default();
            let (message, _) = workspaces.open(frames, layout, &reading).unwrap();
            message.check().unwrap();
            let payloads: Vec<_> = message.payloads().map(Result::unwrap).collect();
            let mut out = vec![0; 24_000];
            let parsed = PayloadValue::read(&payloads[0]).unwrap();
            assert_eq!(payloads[0].frames().len(), 2);
            assert_eq!(parsed.array_into(&mut out).unwrap(), array, "{layout:?}");
            // Noise is sent as it is, from its own memory.
            assert!(core::ptr::eq(payloads[1].frames()[0], &*noise));
            let pickle = merged(&payloads[2]).unwrap();
            assert_eq!(pickle, [&b"\x80\x05\x97."[..], &data]);
            assert!(payloads[2].frames()[1].len() < 2000);
        }
    }
}

/// Each recorded array, byte string, view and pickle of the current release,
/// read and written again, equals Dask's message byte for byte, without copies.
#[test]
fn written_payloads_match_dask() {
    let mut names = Vec::new();
    for vector in vectors() {
        let version = vector.release();
        // The header is unchanged since this release.
        if vector.layout() == Layout::Classic
            || version < (2021, 11, 0)
            || vector.payloads().len() != 1
            || vector.json["message"] != serde_json::json!({"x": {"$payload": 0}})
            || vector.payloads()[0]["kind"] != "serialized"
            || vector.name.contains("/hm-")
            || vector.name.contains("/pass-through")
            || vector.name.contains("/case-forwarded")
        {
            continue;
        }
        let shard_len = vector.json["shard"].as_u64();
        let shard_len = shard_len.map_or(64 << 20, |len| usize::try_from(len).unwrap());
        let frames = vector.frames();
        each_payload(&vector, |_, payload, _| {
            let Ok(parsed) = PayloadValue::read(&payload) else {
                return;
            };
            let class = payload.header().type_serialized().unwrap();
            let protocol = match class {
                Some([_, 4, ..]) => Protocol::V4,
                _ => Protocol::V5,
            };
            let options = WriteOptions::default()
                .with_protocol(protocol)
                .with_shard_len(shard_len);
            let parts: Result<Vec<&[u8]>, _> = parsed.parts().and_then(Iterator::collect);
            let Ok(parts) = parts else {
                return;
            };
            // The frames are adjacent in the stream.
            let base = vector.bytes.as_ptr().addr();
            let start = parts.first().map_or(0, |part| part.as_ptr().addr() - base);
            let data = parts.concat();
            let Some(data) = vector
                .bytes
                .get(start..start + data.len())
                .filter(|d| **d == data)
            else {
                return;
            };
            let mut space = Space::new();
            let mut slots = [&[][..]; 64];
            let pickled = PickledPayload::read(&payload).and_then(|p| {
                let there = p.borrowed()?;
                Ok((
                    there.pickle(),
                    there.pickle_buffers(p.writeable()?).collect::<Vec<_>>(),
                ))
            });
            let written = space.build(Layout::Modern, &mut slots, |builder| {
                match parsed.description() {
                    Description::Bytes => builder.bytes_payload(data, &options),
                    Description::ByteArray => builder.bytearray_payload(data, &options),
                    Description::MemoryView(header) => {
                        builder.memoryview_payload(&header.over(data).unwrap(), &options)
                    }
                    Description::Array(header) => match header.over(data) {
                        Ok(array) => builder.array_payload(&array, &options),
                        Err(_) => return Err(BuildError::Entry.into()),
                    },
                    Description::Pickle => match &pickled {
                        Ok((pickle, buffers))
                            if payload.header().type_name().unwrap().is_none() =>
                        {
                            builder.pickle_payload(pickle, buffers, &options)
                        }
                        _ => return Err(BuildError::Entry.into()),
                    },
                    _ => return Err(BuildError::Entry.into()),
                }
                .map(drop)
            });
            let Ok(written) = written else {
                return;
            };
            // `bytes` were called `builtins.bytes` at first, and zero frames are
            // one empty frame here.
            let old_name = version < (2021, 8, 1)
                || payload.header().type_name() == Ok(Some("builtins.bytes"));
            if old_name || payload.frames().is_empty() {
                return;
            }
            assert_eq!(written.len(), frames.len(), "{}", vector.name);
            for (index, (own, frame)) in written.iter().zip(&frames).enumerate() {
                assert_eq!(own, frame, "{} frame {index}", vector.name);
                if index > 1 && !frame.is_empty() {
                    assert!(core::ptr::eq(own.as_ptr(), frame.as_ptr()), "copied");
                }
            }
            names.push(vector.name.clone());
        });
    }
    assert!(names.len() >= 48, "{} {names:#?}", names.len());
    for name in [
        "case-memoryview",
        "case-bytearray",
        "case-array-matrix",
        "case-array-broadcast-read-only",
        "case-array-fortran-order",
        "case-array-no-items",
        "case-split-array",
    ] {
        // A memoryview has the byte order of the machine.
        if cfg!(target_endian = "big") && name == "case-memoryview" {
            continue;
        }
        let full = format!("modern-nosplit-2026.8.0/{name}");
        assert!(names.contains(&full), "{name} in {names:#?}");
    }
}

/// Dask's reader fails for them, and its writer refuses them.
#[test]
fn memoryviews_of_several_dimensions_have_elements() {
    for (shape, is_written) in [(&[0, 3][..], false), (&[0], true)] {
        let array: Array<'_> = Array::new(DType::U8, shape, Order::C, &[]).unwrap();
        let mut space = Space::new();
        let mut slots = [&[][..]; 8];
        let written = space.build(Layout::Modern, &mut slots, |builder| {
            let written = builder.memoryview_payload(&array, &WriteOptions::default());
            written.map(drop)
        });
        assert_eq!(written.is_ok(), is_written, "{shape:?}");
    }
}

/// Values written in the classic layout read back equal.
#[test]
fn values_are_equal_in_both_layouts() {
    let bytes: Vec<u8> = (0..96).collect();
    let shape = &[2, 6, 1];
    let array = Array::new(DType::F64, shape, Order::Fortran, &bytes).unwrap();
    let array = array.with_writeable(false);
    let buffers = [
        PickleBuffer::new(&bytes, Mutability::Writable),
        PickleBuffer::new(&bytes[..3], Mutability::ReadOnly),
    ];
    let options = WriteOptions::default()
        .with_protocol(Protocol::V4)
        .with_shard_len(40);
    let reading = daskwire::message::ReadOptions::default();
    for layout in [Layout::Classic, Layout::Modern] {
        let (mut space, mut slots) = (Space::new(), [&[][..]; 16]);
        let frames = space
            .build(layout, &mut slots, |builder| {
                builder.array_payload(&array, &options).map(drop)
            })
            .unwrap();
        let mut workspaces = Workspaces::with(8, 8, 0);
        let (message, _) = workspaces.open(&frames, layout, &reading).unwrap();
        let payload = message.payload(0).unwrap();
        let parsed = PayloadValue::read(&payload).unwrap();
        assert_eq!(payload.frames().len(), 3);
        let mut out = [0; 96];
        assert_eq!(parsed.array_into(&mut out).unwrap(), array, "{layout:?}");

        let (mut space, mut slots) = (Space::new(), [&[][..]; 16]);
        let whole = WriteOptions::default();
        let frames = space
            .build(layout, &mut slots, |builder| {
                builder
                    .pickle_payload(b"\x80\x05\x97\x97\x98\x86.", &buffers, &whole)
                    .map(drop)
            })
            .unwrap();
        let mut workspaces = Workspaces::with(8, 8, 0);
        let (message, _) = workspaces.open(&frames, layout, &reading).unwrap();
        let payload = message.payload(0).unwrap();
        let pickled = PickledPayload::read(&payload).unwrap();
        assert!(pickled.writeable().unwrap().eq([Some(true), Some(false)]));
        let there = pickled.borrowed().unwrap();
        assert!(
            there
                .pickle_buffers(pickled.writeable().unwrap())
                .eq(buffers)
        );
        assert_eq!(count_taken(there.items()), 2);
        assert!(core::ptr::eq(there.buffers()[0].as_ptr(), bytes.as_ptr()));
    }
    // Only one layout has __Pickled__.
    let (mut space, mut slots) = (Space::new(), [&[][..]; 16]);
    let frames = space
        .build(Layout::Modern, &mut slots, |builder| {
            builder
                .pickled_payload(b"\x80\x05\x97\x97\x86.", &buffers)
                .map(drop)
        })
        .unwrap();
    let mut workspaces = Workspaces::with(8, 8, 0);
    let (message, _) = workspaces.open(&frames, Layout::Modern, &reading).unwrap();
    let payload = message.payload(0).unwrap();
    assert_eq!(payload.kind(), PayloadKind::Pickled);
    let pickled = PickledPayload::read(&payload).unwrap();
    assert!(pickled.writeable().unwrap().eq([None, None]));
    assert_eq!(
        pickled.borrowed().unwrap().buffers(),
        [&bytes[..], &bytes[..3]]
    );
    let (mut space, mut slots) = (Space::new(), [&[][..]; 16]);
    let refused = space.build(Layout::Classic, &mut slots, |builder| {
        builder.pickled_payload(b"N.", &[]).map(drop)
    });
    assert!(matches!(
        refused,
        Err(PayloadWriteError::Build(BuildError::NotConvertible { .. }))
    ));
}

#[test]
fn non_contiguous_arrays_are_refused() {
    let bytes = [0; 32];
    let apart = Dimensions::with_strides(&[2, 2], &[16, 4]).unwrap();
    // 16 bytes of elements over 32.
    let error = Array::with_dimensions(DType::F32, apart, &bytes).unwrap_err();
    assert!(matches!(error.kind, NumpyErrorKind::Dimensions(_)));
    // The length matches, but one element is used twice.
    let twice = Dimensions::with_strides(&[2, 2], &[4, 4]).unwrap();
    let array = Array::with_dimensions(DType::F32, twice, &bytes[..16]).unwrap();
    assert_eq!(array.order(), None);
    let (mut space, mut slots) = (Space::new(), [&[][..]; 4]);
    let refused = space.build(Layout::Modern, &mut slots, |builder| {
        builder
            .array_payload(&array, &WriteOptions::default())
            .map(drop)
    });
    let not = NumpyErrorKind::Dimensions(DimensionsError::NotContiguous);
    assert!(matches!(refused, Err(PayloadWriteError::Value(kind)) if kind == not));
    let mut writer = pickle::Writer::new(&mut [], &mut []);
    let modules = NumpyModules::default();
    let refused = pickle_array(&mut writer, &array, modules, |_| Placement::OutOfBand);
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, not);
    assert!(refused.is_caller_fault());
    assert!(writer.is_empty());
    let mut workspaces = [0; 16];
    assert_eq!(
        array.copy_into(&mut workspaces).unwrap().order(),
        Some(Order::C)
    );
    let error = Dimensions::with_strides(&[2], &[-4]).unwrap_err();
    let (axis, stride) = (0, -4);
    assert_eq!(error, DimensionsError::NegativeStride { axis, stride });
    assert_eq!(
        error.to_string(),
        "the stride of dimension 0 is -4; expected 0 or more"
    );
}

/// PROTOCOL TYPED-7: the output matches numpy's opcode for opcode.
#[test]
fn pickled_arrays_match_numpy() {
    let write = |array: &Array<'_>, placement| {
        let (mut out, mut levels) = ([0; 256], [pickle::WriterLevel::EMPTY; 6]);
        let mut writer = pickle::Writer::new(&mut out, &mut levels);
        pickle_array(&mut writer, array, NumpyModules::default(), |_| placement).unwrap();
        writer.finish().unwrap().to_vec()
    };
    // pickletools.optimize(pickle.dumps(numpy.arange(6.0).reshape(2, 3), 5, buffer_callback=...))
    let bytes = [0; 48];
    let array = Array::new(DType::F64, &[2, 3], Order::C, &bytes).unwrap();
    assert_eq!(
        write(&array, Placement::OutOfBand),
        b"\x80\x05\x95\x5e\0\0\0\0\0\0\0\x8c\x13numpy._core.numeric\x8c\x0b_frombuffer\x93(\x97\
          \x8c\x05numpy\x8c\x05dtype\x93\x8c\x02f8\x89\x88\x87R(K\x03\x8c\x01<NNN\
          J\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tbK\x02K\x03\x86\x8c\x01CtR."
    );
    // numpy.array(["ab", "c"]), read-only.
    let array = Array::new(DType::string(2).unwrap(), &[2], Order::C, &bytes[..16]).unwrap();
    assert_eq!(
        write(&array.with_writeable(false), Placement::OutOfBand),
        b"\x80\x05\x95\x57\0\0\0\0\0\0\0\x8c\x13numpy._core.numeric\x8c\x0b_frombuffer\x93(\x97\x98\
          \x8c\x05numpy\x8c\x05dtype\x93\x8c\x02U2\x89\x88\x87R(K\x03\x8c\x01<NNNK\x08K\x04K\x08tb\
          K\x02\x85\x8c\x01CtR."
    );
    // The recorded pickles, except for memoization.
    let recorded = vector("modern-nosplit-2026.8.0/topickle-buffers");
    each_payload(&recorded, |number, payload, json| {
        if number != 0 {
            return;
        }
        let there = PickledPayload::read(&payload).unwrap().borrowed().unwrap();
        let mut theirs = there.items();
        let mut opcodes = Vec::new();
        while let Some(item) = theirs.next_item().unwrap() {
            opcodes.push(item.token.opcode);
        }
        assert!(opcodes.contains(&pickle::Opcode::NextBuffer));
        assert!(is_frame(payload.frames()[0], &json["frames"][0]));
    });
}

/// With feature `bytemuck`: slices of elements, and back, without a copy.
/// A peer can give a few bytes any shape, by a stride of 0 or by items of no bytes.
#[test]
fn repetition_of_few_bytes_is_refused() {
    const FEW: usize = 1 << 16;
    let check = |dtype, shape: &[usize], strides: &[isize], bytes: &[u8]| {
        let dimensions = Dimensions::with_strides(shape, strides).expect("as many");
        let array = Array::with_dimensions(dtype, dimensions, bytes).expect("in bounds");
        array.check_repetition().map_err(|error| {
            assert!(error.is_caller_fault(), "{error}");
            error.kind
        })
    };
    let refused = |count, limit| {
        let error = DimensionsError::Repetitive { count, limit };
        Err(NumpyErrorKind::Dimensions(error))
    };
    assert_eq!(check(DType::F64, &[FEW + 8], &[0], &[0; 8]), Ok(()));
    let one_more = check(DType::F64, &[FEW + 9], &[0], &[0; 8]);
    assert_eq!(one_more, refused(FEW + 9, FEW + 8));
    let matrix = check(DType::U8, &[1 << 14, 2, 1 << 14], &[0, 1, 0], &[0; 2]);
    assert_eq!(matrix, refused(1 << 29, FEW + 2));
    let nothing = check(DType::bytes(0), &[1 << 30], &[0], &[]);
    assert_eq!(nothing, refused(1 << 30, FEW));
    // Lists of empty lists.
    let empty = check(DType::F64, &[1 << 30, 0], &[0, 0], &[]);
    assert_eq!(empty, refused(1 << 30, FEW));
    assert_eq!(check(DType::F64, &[0, 1 << 30], &[0, 0], &[]), Ok(()));
    let long = vec![0; 2 * FEW];
    assert_eq!(check(DType::U8, &[2 * FEW], &[1], &long), Ok(()));
}

#[cfg(feature = "bytemuck")]
#[test]
fn native_slices_borrow_elements() {
    use daskwire_numpy::as_bytes;

    let values = [1.0_f64, 2.0, 3.0, 4.0, 5.0, 6.0];
    let bytes = as_bytes(&values);
    let dtype = f64::dtype(ByteOrder::NATIVE);
    let array = Array::new(dtype, &[2, 3], Order::Fortran, bytes).unwrap();
    let slice = array.memory_slice::<f64>().unwrap();
    assert!(core::ptr::eq(slice.as_ptr(), values.as_ptr()));
    assert_eq!(slice, values);
    let error = array.memory_slice::<i64>().unwrap_err();
    assert!(matches!(error.kind, NumpyErrorKind::OtherType { .. }));
    // An address that is not a multiple of 8, and the other byte order.
    let mut shifted = [0; 64];
    let start = 1 + shifted.as_ptr().align_offset(8) % 8;
    let place = &mut shifted[start..start + 48];
    place.copy_from_slice(bytes);
    let odd = Array::new(dtype, &[6], Order::C, place).unwrap();
    let error = odd.memory_slice::<f64>().unwrap_err();
    assert_eq!(error.kind, NumpyErrorKind::NotNative);
    let swapped = match ByteOrder::NATIVE {
        ByteOrder::Big => ByteOrder::Little,
        _ => ByteOrder::Big,
    };
    let other = Array::new(f64::dtype(swapped), &[6], Order::C, bytes).unwrap();
    let error = other.memory_slice::<f64>().unwrap_err();
    assert_eq!(error.kind, NumpyErrorKind::NotNative);
    let none = Array::new(dtype, &[0], Order::C, &place[..0]).unwrap();
    assert_eq!(none.memory_slice::<f64>(), Ok(&[][..]));
    assert!(as_bytes::<u16>(&[]).is_empty());
}

/// With feature `ndarray-017`: views, strided and broadcast too.
#[cfg(feature = "ndarray-017")]
#[test]
fn arrays_are_views_of_ndarray() {
    use daskwire_numpy::as_bytes;

    let values = [0_i32, 1, 2, 3, 4, 5];
    let dtype = i32::dtype(ByteOrder::NATIVE);
    for order in [Order::C, Order::Fortran] {
        let array = Array::new(dtype, &[2, 3], order, as_bytes(&values)).unwrap();
        let view = array.to_ndarray_017::<i32>().unwrap();
        assert_eq!(view.shape(), [2, 3]);
        assert!(view.iter().copied().eq(array.elements::<i32>().unwrap()));
        assert!(core::ptr::eq(view.as_ptr(), values.as_ptr()));
    }
    let dimensions = Dimensions::with_strides(&[4, 3], &[0, 4]).unwrap();
    let three = as_bytes(&values[..3]);
    let array = Array::with_dimensions(dtype, dimensions, three).unwrap();
    let view = array.to_ndarray_017::<i32>().unwrap();
    assert_eq!(view.shape(), [4, 3]);
    assert!(view.iter().copied().eq([0, 1, 2].repeat(4)));
    // Half an element apart.
    let dimensions = Dimensions::with_strides(&[3], &[2]).unwrap();
    let array = Array::with_dimensions(dtype, dimensions, three).unwrap();
    let not = NumpyErrorKind::Dimensions(DimensionsError::NotContiguous);
    assert_eq!(array.to_ndarray_017::<i32>().unwrap_err().kind, not);
    // A stride that leads to no element, as of a field of one record.
    let dimensions = Dimensions::with_strides(&[1], &[6]).unwrap();
    let array = Array::with_dimensions(dtype, dimensions, &three[..4]).unwrap();
    let view = array.to_ndarray_017::<i32>().unwrap();
    assert!(view.iter().copied().eq([0]));
    let scalar = Array::new(dtype, &[], Order::C, &three[..4]).unwrap();
    assert_eq!(scalar.to_ndarray_017::<i32>().unwrap().ndim(), 0);
}
