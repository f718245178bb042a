use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use daskwire::Limits;

use super::*;

fn round_trip(value: &Value) -> Value {
    let serialized = Serialized::of(value).expect("plain value");
    serialized.open().expect("what was written is read")
}

#[test]
fn the_error_of_damaged_data_has_its_cause() {
    let pickle = Bytes::from_static(b"\x80\x04]");
    let damaged = Value::Serialized(Serialized::of_written_pickle(pickle));
    let error = Vec::<Value>::try_from(damaged).expect_err("it has no end");
    let error = error.to_string();
    let start = "expected a sequence, found bad data: the pickle is damaged: ";
    assert!(error.starts_with(start), "{error}");
}

#[test]
fn values_come_back_as_they_were() {
    let array = Array::from_slice(&[2, 2], &[1_i32, 2, 3, 4]).expect("four");
    let values = [
        Value::None,
        Value::from(true),
        Value::from(-5),
        Value::Int(i128::MIN),
        Value::from(2.5),
        Value::Complex(1.0, -2.0),
        Value::from("häh"),
        Value::bytes(vec![1, 2]),
        Value::ByteArray(Bytes::from_static(b"xy")),
        Value::tuple([1, 2]),
        Value::Set([Value::from(1)].into()),
        Value::FrozenSet([Value::from("a")].into()),
        Value::dict([("a", Value::from(1)), ("b", Value::list([1.5]))]),
        Value::Array(array.clone()),
        Value::list([
            Value::Array(array.clone()),
            Value::Array(array.with_writeable(false)),
        ]),
    ];
    for value in values {
        assert_eq!(round_trip(&value), value);
    }
}

#[test]
fn arrays_and_bytes_are_not_copied() {
    let data = Bytes::from(vec![7; 1 << 16]);
    let Value::Bytes(bytes) = round_trip(&Value::Bytes(data.clone())) else {
        panic!("bytes")
    };
    assert_eq!(bytes.as_ptr(), data.as_ptr());
    let array = Array::from_bytes(
        daskwire_numpy::DType::U8,
        &[1 << 16],
        daskwire_numpy::Order::C,
        data.clone(),
    );
    let list = Value::list([Value::Array(array.expect("as many"))]);
    let Value::List(items) = round_trip(&list) else {
        panic!("a list")
    };
    let Value::Array(array) = &items[0] else {
        panic!("an array")
    };
    assert_eq!(array.bytes().as_ptr(), data.as_ptr());
}

#[test]
fn a_value_that_is_shared_too_often_is_refused() {
    // [[..], [..]] of the previous list, sixty times.
    let mut pickle = b"\x80\x04]\x94".to_vec();
    for index in 0..60 {
        pickle.extend_from_slice(&[b']', 0x94, b'h', index, b'a', b'h', index, b'a']);
    }
    pickle.push(b'.');
    assert_eq!(
        Serialized::of_written_pickle(pickle.into()).open(),
        Err(ValueError::TooLarge)
    );
}

#[test]
fn a_value_that_is_nested_too_deep_is_refused() {
    let mut pickle = b"\x80\x04".to_vec();
    pickle.extend_from_slice(&[b']'; 100_000]);
    pickle.extend_from_slice(&[b'a'; 99_999]);
    pickle.push(b'.');
    assert_eq!(
        Serialized::of_written_pickle(pickle.into()).open(),
        Err(ValueError::TooLarge)
    );
}

#[test]
fn names_unknown_python_types() {
    let pickle = b"\x80\x04\x8c\x0cpandas.core_\x8c\x09new_frame\x93)R.";
    let opened = Serialized::of_written_pickle(Bytes::from_static(pickle)).open();
    let what = "pandas.core_.new_frame".to_owned();
    assert_eq!(opened, Err(ValueError::Unknown { what }));
}

/// A pickle of `{'x': [None, new_frame()], 'f': os.system}`, whose parts only Python reads.
const PARTS: &[u8] = b"\x80\x05}(\x8c\x01x](N\x8c\x0cpandas.core_\x8c\x09new_frame\x93)Re\
    \x8c\x01f\x8c\x05posix\x8c\x06system\x93u.";

#[test]
fn unknown_parts_of_containers_stay_serialized() {
    let value = Serialized::of_written_pickle(Bytes::from_static(PARTS)).open();
    let value = value.expect("it is opened");
    let Some(Value::List(items)) = value.get("x") else {
        panic!("{value:?}");
    };
    let [Value::None, frame] = &items[..] else {
        panic!("{value:?}");
    };
    // A part is opened alone, with the same result.
    let what = "pandas.core_.new_frame".to_owned();
    assert_eq!(frame.clone().opened(), Err(ValueError::Unknown { what }));
    let Value::Serialized(frame) = frame else {
        panic!("{frame:?}");
    };
    let alone = b"\x80\x05\x95\x1d\0\0\0\0\0\0\0\x8c\x0cpandas.core_\x8c\x09new_frame\x93)R.";
    assert_eq!(frame.plain_pickle().as_deref(), Some(&alone[..]));
    let error = i64::try_from(Value::Serialized(frame.clone())).expect_err("no number");
    assert_eq!(
        error.to_string(),
        "expected i64, found pandas.core_.new_frame"
    );
    // The value is written as it was read.
    let again = Serialized::of(&value).expect("it is written");
    assert_eq!(again.open().as_ref(), Ok(&value));
    let tree = |pickle: &[u8]| {
        daskwire_pickle::tree::Tree::new(pickle)
            .expect("valid")
            .to_string()
    };
    assert_eq!(tree(&again.plain_pickle().expect("a pickle")), tree(PARTS));
}

#[test]
fn parts_that_share_and_contain_themselves_stay_serialized() {
    // p = re.compile('a+'); {'a': 1, 'p': p, 'q': [p, (p, deque([1, 2], 3))]}
    let pickle = b"\x80\x05}\x94(\x8c\x01a\x94K\x01\x8c\x01p\x94\x8c\x02re\x94\x8c\x08_compile\x94\
        \x93\x94\x8c\x02a+\x94K \x86\x94R\x94\x8c\x01q\x94]\x94(h\x08h\x08\x8c\x0bcollections\x94\
        \x8c\x05deque\x94\x93\x94)K\x03\x86\x94R\x94(K\x01K\x02e\x86\x94eu.";
    let payload = Serialized::of_written_pickle(Bytes::from_static(pickle));
    let value = payload.open().expect("it is opened");
    let shown = Serialized::of(&value)
        .expect("it is written")
        .plain_pickle();
    let shown = shown.expect("a pickle");
    let tree = |pickle| daskwire_pickle::tree::Tree::new(pickle).expect("valid");
    assert!(tree(&shown) == tree(pickle), "{}", tree(&shown));
    // d = deque(); d.append(d); (d, 1)
    let pickle = b"\x80\x05\x8c\x0bcollections\x8c\x05deque\x93)R\x94h\x00aK\x01\x86.";
    let payload = Serialized::of_written_pickle(Bytes::from_static(pickle));
    let Ok(Value::Tuple(items)) = payload.open() else {
        panic!("it is not opened");
    };
    let [Value::Serialized(deque), Value::Int(1)] = &items[..] else {
        panic!("{items:?}");
    };
    let alone = deque.plain_pickle().expect("a pickle");
    assert_eq!(alone.last_chunk(), Some(b")R\x94h\x00a."));
}

#[test]
fn parts_that_need_the_rest_of_their_pickle_are_not_kept() {
    // A function of cloudpickle: its state is set by a call whose result is dropped.
    let pickle = b"\x80\x05]\x8c\x01m\x8c\x04make\x93)R\x94a\x8c\x01m\x8c\x03set\x93h\x00}\x86R0.";
    let opened = Serialized::of_written_pickle(Bytes::from_static(pickle)).open();
    let what = "m.make at [0]".to_owned();
    assert_eq!(opened, Err(ValueError::Unknown { what }));
    // Protocol 2 has the names of Python 2.
    let pickle = b"\x80\x02]X\x01\0\0\0mX\x04\0\0\0make\x93)Ra.";
    let opened = Serialized::of_written_pickle(Bytes::from_static(pickle)).open();
    assert!(
        matches!(opened, Err(ValueError::Unknown { .. })),
        "{opened:?}"
    );
    // The parts of an object do not make it a container.
    let pickle = b"\x80\x05]\x8c\x01m\x8c\x05Class\x93\x8c\x01m\x8c\x04make\x93)R\x85\x85Ra.";
    let opened = Serialized::of_written_pickle(Bytes::from_static(pickle)).open();
    let Ok(Value::List(items)) = opened else {
        panic!("{opened:?}");
    };
    assert!(matches!(items[0], Value::Serialized(_)), "{items:?}");
}

#[test]
fn parts_take_memory_in_proportion() {
    // A list of one unknown object, many times: each copy of the part has a header.
    let mut pickle = b"\x80\x05\x8c\x01m\x8c\x04make\x93)R\x940](".to_vec();
    for _ in 0..1_000_000 {
        pickle.extend_from_slice(b"h\x00");
    }
    pickle.extend_from_slice(b"e.");
    let opened = Serialized::of_written_pickle(pickle.into()).open();
    assert!(matches!(opened, Err(ValueError::Unknown { .. })));
    // Many parts that share long data, which each of them would repeat.
    let long = vec![b'x'; 1 << 20];
    let mut pickle = b"\x80\x05B\0\0\x10\0".to_vec();
    pickle.extend_from_slice(&long);
    pickle.extend_from_slice(b"\x940](");
    for _ in 0..1000 {
        pickle.extend_from_slice(b"\x8c\x01m\x8c\x04make\x93h\x00\x85R");
    }
    pickle.extend_from_slice(b"e.");
    let opened = Serialized::of_written_pickle(pickle.into()).open();
    assert!(matches!(opened, Err(ValueError::Unknown { .. })));
}

#[test]
fn parts_keep_their_buffers() {
    let data = Bytes::from(vec![5; 64]);
    let make = b"\x80\x05](\x97\x8c\x01m\x8c\x04make\x93\x97\x98\x94h\x00\x97\x87Re.";
    let buffers = [data.slice(..16), data.slice(16..32), data.slice(32..)];
    let payload = Serialized::of_pickle_and_buffers(
        Bytes::from_static(make),
        &buffers,
        buffers
            .iter()
            .map(|buffer| {
                daskwire_pickle::PickleBuffer::new(buffer, daskwire_pickle::Mutability::Writable)
            })
            .collect(),
    );
    let opened = payload.open().expect("it is opened");
    let Value::List(items) = &opened else {
        panic!("{opened:?}");
    };
    let [Value::ByteArray(first), Value::Serialized(part)] = &items[..] else {
        panic!("{opened:?}");
    };
    assert_eq!(first, &buffers[0]);
    let (pickle, own) = part.pickle().expect("a pickle");
    assert_eq!(own, buffers[1..]);
    assert_eq!(own[0].as_ptr(), buffers[1].as_ptr());
    let shown = daskwire_pickle::tree::Tree::with_buffers(&pickle, &own).expect("valid");
    assert_eq!(
        shown.root().as_call().map(|(_, all)| all.count_left()),
        Some(3)
    );
    // In a pickle without buffers, they are in band.
    let nested = Value::List([opened.clone()].into());
    let again = Serialized::of(&nested)
        .expect("it is written")
        .plain_pickle();
    assert!(again.is_some_and(|pickle| pickle.len() > 64));
}

#[test]
fn unknown_elements_of_collections_stay_serialized() {
    let frame = Serialized::of_written_pickle(Bytes::from_static(
        b"\x80\x04\x8c\x0cpandas.core_\x8c\x09new_frame\x93)R.",
    ));
    let mut header = Vec::new();
    scratch::msgpack(&mut header, |writer| {
        writer.map(5).str("is-collection").bool(true);
        writer.str("type-serialized").str("dict");
        writer.str("num-sub-frames").u64(2);
        writer.str("frame-lengths").array(2).u64(1).u64(1);
        writer.str("sub-headers").array(2);
        writer
            .map(2)
            .str("serializer")
            .str("pickle")
            .str("key")
            .str("a");
        writer
            .map(2)
            .str("serializer")
            .str("msgpack")
            .str("key")
            .str("b");
    });
    let frames = vec![frame.frames()[0].clone(), Bytes::from_static(b"\x07")];
    let opened = Serialized::of_parts(header.into(), frames).open();
    let opened = opened.expect("it is opened");
    assert_eq!(opened.get("b"), Some(&Value::Int(7)));
    let Some(Value::Serialized(part)) = opened.get("a") else {
        panic!("{opened:?}");
    };
    assert_eq!(part.pickle(), frame.pickle());
}

/// A header of zstd-compressed `bytes`, and a frame that declares `declared`
/// bytes.
fn zstd_claim(declared: u64, frame_len: usize) -> Serialized {
    let mut header = Vec::new();
    scratch::msgpack(&mut header, |writer| {
        writer.map(4).str("serializer").str("dask");
        writer.str("type-serialized").str("builtins.bytes");
        writer.str("compression").array(1).str("zstd");
        writer.str("num-sub-frames").u64(1);
    });
    // A single segment with an eight-byte size, and empty raw blocks.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
    frame.extend_from_slice(&declared.to_le_bytes());
    frame.resize(frame_len, 0);
    let body = Bytes::from_static(b"\x81\xae__Serialized__\x01");
    let message = vec![body, header.into(), frame.into()];
    Serialized::of_message(message).expect("single payload")
}

#[test]
fn does_not_trust_declared_sizes() {
    use daskwire::compression::CompressionError;
    use daskwire::message::MessageErrorKind;
    let why = |serialized: &Serialized| match serialized.open() {
        Err(ValueError::Payload(error)) => match error.kind {
            daskwire_numpy::NumpyErrorKind::Message(MessageErrorKind::Compression(error)) => error,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!(
        why(&zstd_claim(60 << 30, 200)),
        CompressionError::Implausible {
            declared: 60 << 30,
            len: 200,
            ratio: 32 << 10
        }
    );
    let limit = memory::read_options().limits.decompressed_len;
    assert_eq!(
        why(&zstd_claim(limit + 1, 1 << 20)),
        CompressionError::OverLimit { limit }
    );
    // Plausible but wrong: decompression yields nothing.
    assert!(matches!(
        why(&zstd_claim(limit, 1 << 20)),
        CompressionError::Malformed { .. }
    ));
}

#[test]
fn payloads_that_are_opened_together_are_within_one_limit() {
    let payload = Serialized::of(&Value::bytes(vec![7; 100_000])).expect("a payload");
    let payload = payload.compressed(&mut daskwire::compression::Lz4::new());
    let limits = Limits::HOST.with_decompressed_message_len(250_000);
    let payload = payload.limited(Some(limits.into()));
    let mut copied_len = 0;
    for expected in [100_000, 200_000] {
        payload.open_measuring(&mut copied_len).expect("a value");
        assert_eq!(copied_len, expected);
    }
    let error = payload.open_measuring(&mut copied_len);
    let error = error.expect_err("too long").to_string();
    assert!(error.contains("decompressed_message_len"), "{error}");
    assert_eq!(copied_len, 200_000);
    // Other payloads are not affected, nor what is not compressed.
    payload.open().expect("a value");
    let plain = Serialized::of(&Value::bytes(vec![7; 300_000])).expect("a payload");
    let plain = plain.limited(Some(limits.into()));
    plain.open_measuring(&mut copied_len).expect("a value");
}

/// A pickle of protocol 4 of a list with `count` arrays of the elements `data`. As in
/// protocol 2, `data` is a string in latin-1, which all of the arrays share.
fn encoded_arrays(data: &str, count: usize) -> Serialized {
    let len = data.chars().count();
    let len = u32::try_from(len).expect("fits").to_le_bytes();
    let encoded_len = u32::try_from(data.len()).expect("fits").to_le_bytes();
    let pickle = [
        &b"\x80\x04\x8c\x15numpy.core.multiarray\x8c\x0c_reconstruct\x93\x94"[..],
        b"\x8c\x05numpy\x8c\x07ndarray\x93K\0\x85C\x01b\x87\x94",
        b"\x8c\x05numpy\x8c\x05dtype\x93\x8c\x02u1\x89\x88\x87R",
        b"(K\x03\x8c\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x94",
        b"\x8c\x07_codecs\x8c\x06encode\x93X",
        &encoded_len,
        data.as_bytes(),
        b"\x8c\x06latin1\x86R\x94J",
        &len,
        b"\x85\x94](",
        &b"h\0h\x01R(K\x01h\x04h\x02\x89h\x03tb".repeat(count),
        b"e.",
    ];
    Serialized::pickled(&pickle.concat())
}

#[test]
fn arrays_with_encoded_data_are_read() {
    let value = encoded_arrays("a\u{e9}", 2).open().expect("a list");
    let array = Array::from_slice(&[2], &[b'a', 0xe9]).expect("in bounds");
    assert_eq!(value, Value::list([array.clone(), array]));
}

#[test]
fn arrays_that_share_encoded_data_are_limited() {
    let data = "\u{e9}".repeat(1 << 19);
    assert!(encoded_arrays(&data, 10).open().is_ok());
    assert_eq!(encoded_arrays(&data, 300).open(), Err(ValueError::TooLarge));
}

/// Nested containers: a list in a tuple in a set in a dictionary, and so on.
fn nested(depth: usize) -> Value {
    (0..depth).fold(Value::from(1), |value, level| match level % 5 {
        0 => Value::list([value]),
        1 => Value::tuple([value]),
        2 => Value::Set([value].into()),
        3 => Value::FrozenSet([value].into()),
        _ => Value::dict([("key", value)]),
    })
}

fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(1 << 20);
    let done = thread.spawn(work).expect("a thread").join();
    done.expect("no panic");
}

#[test]
fn a_value_of_any_depth_takes_no_stack() {
    on_a_small_stack(|| {
        const DEPTH: usize = 200_000;
        let value = nested(DEPTH);
        assert_eq!(value.depth(), DEPTH);
        assert_eq!(value, nested(DEPTH));
        assert_ne!(value, nested(DEPTH - 5));
        let copy = value.clone();
        assert_eq!(value.nbytes(), copy.nbytes());
        assert_eq!(value.to_string(), "{...}");
        assert_eq!(format!("{value:?}"), "Dict([..])");
        let serialized = Serialized::of(&value).expect("pickles are nested as deep");
        assert_eq!(serialized.open(), Err(ValueError::TooLarge));
        drop(value);
        drop(copy);
    });
}

#[test]
fn bounds_the_depth_of_values_that_are_read() {
    on_a_small_stack(|| {
        let value = nested(MAX_DEPTH);
        assert_eq!(round_trip(&value), value);
        assert!(value.to_string().contains("[1]"));
        let too_deep = Serialized::of(&nested(MAX_DEPTH + 1)).expect("writable value");
        assert_eq!(too_deep.open(), Err(ValueError::TooLarge));
    });
}

#[test]
fn writes_and_reads_shared_parts_once() {
    let string = Value::from("x".repeat(1 << 20));
    let data = Value::bytes(vec![7; 1 << 20]);
    let array = Array::from_vec(&[1 << 17], vec![1.5; 1 << 17]).expect("as many");
    for part in [
        string.clone(),
        data.clone(),
        Value::ByteArray(Bytes::from(vec![7; 1 << 20])),
        Value::Array(array),
        Value::list([string.clone()]),
        Value::tuple([Value::tuple([string]), data.clone()]),
        Value::dict([(Value::FrozenSet([Value::tuple([1])].into()), data)]),
    ] {
        let len = |count: usize| {
            let all = Value::List(vec![part.clone(); count].into());
            let serialized = Serialized::of(&all).expect("plain value");
            assert_eq!(serialized.open().as_ref(), Ok(&all));
            serialized.len()
        };
        let (once, twice) = (len(1000), len(2000));
        assert!(once < (1 << 21) + 10_000, "{once} bytes");
        assert!(twice - once < 5 * 1000, "{once} bytes, then {twice}");
    }
}

#[test]
fn values_that_share_values_take_linear_time() {
    // The last level has 3^depth values.
    let shared = |depth: usize| {
        (0..depth).fold(Value::from("leaf"), |value, _| {
            Value::list([value.clone(), value.clone(), value])
        })
    };
    let len = |depth| Serialized::of(&shared(depth)).expect("plain").len();
    let (one, two) = (len(20), len(40));
    assert!(two <= 2 * one, "{one} bytes, then {two}");
    let read = Serialized::of(&shared(15)).expect("plain").open();
    assert_eq!(read.as_ref().map(Value::depth), Ok(15));
    let Ok(Value::List(items)) = &read else {
        panic!("a list")
    };
    // Values that occur more than twice are created only twice.
    let [_, Value::List(one), Value::List(other)] = &items[..] else {
        panic!("three lists")
    };
    assert_eq!(one.as_ptr(), other.as_ptr());
    // No two values are compared twice.
    assert_eq!(shared(60), shared(60));
    let too_often = Serialized::of(&shared(60)).expect("writable value");
    assert_eq!(too_often.open(), Err(ValueError::TooLarge));
}

#[test]
fn bytes_have_their_own_constructor() {
    let list = Value::list([3, 1, 2]);
    assert_eq!(Value::from(vec![3, 1, 2]), list);
    assert_eq!(Value::from(vec![3_u8, 1, 2]), list);
    assert_eq!(Value::from(&[3_u8, 1, 2][..]), list);
    assert_eq!(Value::from([3, 1, 2]), list);
    assert_eq!(Value::from(vec!["a"]), Value::list(["a"]));
    let bytes = Value::Bytes(Bytes::from_static(b"\x03\x01\x02"));
    assert_eq!(Value::bytes(vec![3, 1, 2]), bytes);
    assert_eq!(Value::from(Bytes::from(vec![3, 1, 2])), bytes);
}

#[test]
fn payloads_with_the_same_data_stay_apart_in_a_pickle() {
    let row = Array::from_slice(&[16], &[1.0; 16]).expect("fits");
    let square = Array::from_bytes(
        row.dtype(),
        &[4, 4],
        daskwire_numpy::Order::C,
        row.bytes().clone(),
    );
    let square = square.expect("fits");
    let payload = |array: &Array| {
        let payload = Serialized::of(&Value::from(array.clone())).expect("plain");
        Value::Serialized(payload)
    };
    let all = Value::list([payload(&row), payload(&square), payload(&row)]);
    let opened = Serialized::of(&all).and_then(|all| all.open());
    let expected = Value::list([&row, &square, &row].map(|array| Value::from(array.clone())));
    assert_eq!(opened, Ok(expected));
}

/// The error of a conversion, as text.
fn fault<T: TryFrom<Value, Error = WrongType> + fmt::Debug>(value: Value) -> String {
    T::try_from(value).expect_err("another type").to_string()
}

#[test]
fn rust_types_convert_both_ways() {
    fn same<T>(value: T, shown: &str)
    where
        T: Clone + PartialEq + fmt::Debug + TryFrom<Value, Error = WrongType>,
        Value: From<T>,
    {
        let converted = Value::from(value.clone());
        assert_eq!(converted.to_string(), shown);
        assert_eq!(T::try_from(round_trip(&converted)), Ok(value));
    }
    same(u128::MAX, "340282366920938463463374607431768211455");
    same(i128::MIN, "-170141183460469231731687303715884105728");
    same(u64::MAX, "18446744073709551615");
    same(-3_i8, "-3");
    same(0.1_f32, "0.10000000149011612");
    same('ß', "'ß'");
    same(Some("x".to_owned()), "'x'");
    same(None::<f64>, "None");
    same(vec![Some(1), None], "[1, None]");
    same([1.5, 2.5], "[1.5, 2.5]");
    same((1, "a".to_owned(), vec![true]), "(1, 'a', [True])");
    same(Some((1,)), "(1,)");
    let names = ["b", "a", "c"].map(str::to_owned);
    let numbers = names.clone().into_iter().zip([2, 1, 3]);
    same(
        numbers.clone().collect::<HashMap<String, i32>>(),
        "{'a': 1, 'b': 2, 'c': 3}",
    );
    same(
        Some(numbers.collect::<BTreeMap<String, i32>>()),
        "{'a': 1, 'b': 2, 'c': 3}",
    );
    same(HashSet::from(names.clone()), "{'a', 'b', 'c'}");
    same(BTreeSet::from(names), "{'a', 'b', 'c'}");
}

#[test]
fn sequences_convert_from_arrays_and_bytes() {
    let array = Array::from_slice(&[2, 2], &[1_u8, 2, 3, 4]).expect("four");
    let rows = Vec::<(u8, f64)>::try_from(Value::from(array));
    assert_eq!(rows, Ok(vec![(1, 2.0), (3, 4.0)]));
    let bytes = Value::bytes(vec![3, 255]);
    assert_eq!(Vec::<u8>::try_from(bytes.clone()), Ok(vec![3, 255]));
    assert_eq!(fault::<Vec<i8>>(bytes), "expected i8, found int 255 at [1]");
}

#[test]
fn an_array_that_repeats_few_bytes_is_not_listed() {
    for shape in [[1 << 40, 0], [0, 1 << 40]] {
        let empty = Array::from_bytes(
            daskwire_numpy::DType::F64,
            &shape,
            daskwire_numpy::Order::C,
            Bytes::new(),
        );
        let listed = empty.expect("no elements").to_value();
        match shape {
            [0, _] => assert_eq!(listed, Ok(Value::List(Items::default()))),
            _ => assert_eq!(listed, Err(ValueError::TooLarge)),
        }
    }
}

/// A terabyte of numbers, in the eight bytes that a peer sends for it.
fn repeated() -> Array {
    let data = Bytes::from(1_f64.to_le_bytes().to_vec());
    let dimensions = daskwire_numpy::Dimensions::with_strides(&[1 << 37], &[0]);
    let view = daskwire_numpy::Array::with_dimensions(
        daskwire_numpy::DType::F64,
        dimensions.expect("one dimension"),
        &data,
    );
    Array::of_view(&view.expect("in bounds"), data.clone())
}

#[test]
fn an_array_that_repeats_few_bytes_is_not_copied() {
    let error = repeated().to_vec::<f64>().expect_err("a terabyte");
    let (count, limit) = (1 << 37, (1 << 16) + 8);
    let expected = daskwire_numpy::DimensionsError::Repetitive { count, limit };
    assert_eq!(error.kind, expected.into());
    assert!(error.is_caller_fault());
    assert_eq!(repeated().to_value(), Err(ValueError::TooLarge));
    let first = repeated()
        .view()
        .expect("checked")
        .elements::<f64>()
        .map(|mut all| all.next());
    assert_eq!(first, Ok(Some(1.0)));
}

#[test]
fn an_array_that_repeats_few_bytes_is_not_pickled() {
    let list = Value::list([Value::Array(repeated())]);
    let written = Serialized::of(&list);
    assert_eq!(written.err(), Some(ValueError::TooLarge));
    // As a value by itself, the array is sent with its strides.
    assert!(Serialized::of(&Value::Array(repeated())).is_ok());
}

#[test]
fn wrong_types_are_named_with_their_place() {
    let people = Value::dict([("people", Value::list([Value::dict([("age", "old")])]))]);
    assert_eq!(
        fault::<HashMap<String, Vec<BTreeMap<String, u8>>>>(people.clone()),
        "expected u8, found str at ['people'][0]['age']"
    );
    assert_eq!(
        fault::<HashMap<i32, Value>>(people.clone()),
        "expected i32, found str at [the key 'people']"
    );
    assert_eq!(fault::<u8>(Value::from(300)), "expected u8, found int 300");
    assert_eq!(fault::<u8>(people), "expected u8, found dict");
    assert_eq!(
        fault::<(u8, u8)>(Value::tuple([1, 2, 3])),
        "expected a sequence of 2, found tuple of 3"
    );
    assert_eq!(
        fault::<[u8; 2]>(Value::None),
        "expected a sequence of 2, found NoneType"
    );
    assert_eq!(
        fault::<Vec<Option<f32>>>(Value::list(["x"])),
        "expected f32, found str at [0]"
    );
    assert_eq!(fault::<bool>(Value::from(1)), "expected bool, found int");
}

#[test]
fn a_large_integer_of_zeros_is_zero() {
    for len in [0, 1, 40] {
        let zero = Value::LargeInt(Bytes::from(vec![0; len]));
        assert_eq!(zero.to_string(), "0");
    }
}

/// The length of debug output grows neither with data nor with the number of items.
#[test]
fn debug_output_is_bounded() {
    const MAX: usize = brief::MAX_LEN + 64;
    let array = |len| Array::from_vec(&[len], vec![7_u8; len]).expect("as many");
    let wide = |len| Value::list((0..len as i64).map(Value::from));
    let values = |len: usize| {
        let nested = |value: Value| Value::dict([("a", Value::tuple([value, Value::from(1)]))]);
        let object = Object::new("m", "Class", [Value::bytes(vec![0; len]), wide(len)]);
        let all = [
            Value::from("é".repeat(len)),
            Value::bytes(vec![0; len]),
            Value::ByteArray(vec![0; len].into()),
            Value::LargeInt(vec![7; len].into()),
            Value::Array(array(len)),
            Value::Object(object),
            wide(len),
            Value::list((0..len / 64).map(|_| Value::bytes(vec![0; 64]))),
        ];
        let nested: Vec<Value> = all.iter().cloned().map(nested).collect();
        all.into_iter().chain(nested)
    };
    for (value, twice) in values(1 << 16).zip(values(1 << 17)) {
        for (shown, twice) in [
            (format!("{value:?}"), format!("{twice:?}")),
            (format!("{value:#?}"), format!("{twice:#?}")),
        ] {
            assert!(
                shown.len() <= MAX,
                "{} of {}",
                shown.len(),
                value.type_name()
            );
            // A length has at most one digit more.
            assert!(twice.len() <= shown.len() + 4, "{shown}");
            assert!(shown.contains('…'), "{shown}");
        }
    }
    let Value::List(items) = wide(1 << 20) else {
        panic!("a list")
    };
    let array = array(1 << 20);
    let shown: [&dyn fmt::Debug; 2] = [&items, &array];
    for shown in shown {
        for shown in [format!("{shown:?}"), format!("{shown:#?}")] {
            assert!(shown.len() <= MAX, "{} bytes: {:.200}", shown.len(), shown);
        }
    }
    // What is small is shown in full.
    let small = Value::dict([(
        "x",
        Value::list([Value::from(1), Value::bytes(vec![1, 0x61])]),
    )]);
    assert_eq!(
        format!("{small:?}"),
        r#"Dict([(Str("x"), List([Int(1), Bytes(b"\x01a")]))])"#
    );
}

#[cfg(feature = "serde")]
mod with_serde {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Fit {
        slope: f64,
    }

    /// Values that no field of Rust could hold.
    fn unusual() -> Vec<Value> {
        let large = |bytes: usize| Value::LargeInt([vec![0; bytes], vec![1]].concat().into());
        let mut deep = Value::None;
        for _ in 0..10 * MAX_DEPTH {
            deep = Value::list([deep]);
        }
        let function = |name: &str| {
            let pickle = [b"\x80\x04\x8c\x01", name.as_bytes(), b"\x8c\x01f\x93."].concat();
            Value::Serialized(Serialized::of_written_pickle(pickle.into()))
        };
        vec![
            large(25),
            large(500),
            Value::Int(i128::MIN),
            Value::Complex(1.0, 2.0),
            Value::Set([Value::from(1)].into()),
            Value::from(Object::new("m", "Class", [large(25)])),
            function("m"),
            Value::Serialized(Serialized::of_written_pickle(Bytes::from_static(
                b"damaged",
            ))),
            deep,
        ]
    }

    #[test]
    fn fields_that_a_struct_does_not_have_are_skipped_whatever_they_hold() {
        let fit = |entries: Vec<(Value, Value)>| Value::Dict(entries.into());
        let slope = || (Value::from("slope"), Value::from(2));
        for value in unusual() {
            let named = fit(vec![(Value::from("other"), value.clone()), slope()]);
            assert_eq!(named.deserialize(), Ok(Fit { slope: 2.0 }), "{named:?}");
            // A value of any type as the name of the field, such as `None` or 0, which is not
            // the number of a field.
            let named = fit(vec![(value.clone(), Value::None), slope()]);
            assert_eq!(named.deserialize(), Ok(Fit { slope: 2.0 }), "{named:?}");
            let fits = Value::list([named.clone(), named]);
            assert_eq!(
                fits.deserialize(),
                Ok([Fit { slope: 2.0 }, Fit { slope: 2.0 }])
            );
            // A field that the struct has is still checked.
            let named = fit(vec![(Value::from("slope"), value.clone())]);
            let read = named.deserialize::<Fit>();
            if !matches!(value, Value::Int(_) | Value::LargeInt(_) | Value::Object(_)) {
                let error = read.expect_err("no number").to_string();
                assert!(error.contains("at ['slope']"), "{error}");
            }
        }
        for key in [
            Value::None,
            Value::from(0),
            Value::from(2.5),
            Value::tuple([1]),
        ] {
            let keyed = fit(vec![(key, Value::from("x")), slope()]);
            assert_eq!(keyed.deserialize(), Ok(Fit { slope: 2.0 }));
        }
    }

    #[test]
    fn parts_that_rust_cannot_read_are_errors_only_where_they_are_used() {
        // {'slope': 2, 'other': m.f} and {'slope': m.f}
        let pickle = |pickle: &'static [u8]| {
            Value::Serialized(Serialized::of_written_pickle(Bytes::from_static(pickle)))
        };
        let unused = pickle(b"\x80\x04}(\x8c\x05slopeK\x02\x8c\x05other\x8c\x01m\x8c\x01f\x93u.");
        let opened = unused.clone().opened().expect("it is opened");
        assert_eq!(opened.deserialize(), Ok(Fit { slope: 2.0 }));
        assert_eq!(unused.deserialize(), Ok(Fit { slope: 2.0 }));
        let used = pickle(b"\x80\x04}(\x8c\x05slope\x8c\x01m\x8c\x01f\x93u.");
        let opened = used.clone().opened().expect("it is opened");
        for used in [used, opened] {
            let error = used.deserialize::<Fit>().expect_err("a function");
            assert_eq!(
                error.to_string(),
                "only Python can read m.f; it can be forwarded unopened at ['slope']"
            );
        }
        let deep = [b"\x80\x04}(\x8c\x05slopeK\x02\x8c\x05other".to_vec()]
            .into_iter()
            .chain([b"]".repeat(2 * MAX_DEPTH), b"a".repeat(2 * MAX_DEPTH - 1)])
            .chain([b"u.".to_vec()])
            .collect::<Vec<_>>()
            .concat();
        let deep = Serialized::of_written_pickle(deep.into());
        let read = Value::Serialized(deep).deserialize();
        assert_eq!(read, Ok(Fit { slope: 2.0 }));
    }

    #[test]
    fn a_field_that_is_a_value_may_hold_what_rust_cannot_read() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Fitted {
            slope: f64,
            other: Value,
        }
        // {'slope': 2, 'other': m.f}
        let pickle = b"\x80\x04}(\x8c\x05slopeK\x02\x8c\x05other\x8c\x01m\x8c\x01f\x93u.";
        let payload = Serialized::of_written_pickle(Bytes::from_static(pickle));
        let opened = payload.open().expect("it is opened");
        for value in [Value::Serialized(payload), opened] {
            let fitted: Fitted = value.deserialize().expect("it is deserialized");
            let Value::Serialized(other) = &fitted.other else {
                panic!("{fitted:?}");
            };
            assert_eq!(other.described().as_deref(), Some("m.f"));
            assert_eq!(fitted.slope, 2.0);
        }
    }

    #[test]
    fn values_and_arrays_are_what_they_were_in_structs() {
        #[derive(Debug, PartialEq, Deserialize, Serialize)]
        struct Mixed {
            any: Value,
            all: Vec<Option<Value>>,
            array: Array,
            took: core::time::Duration,
            #[serde(with = "crate::as_value")]
            parts: (Option<Array>, core::time::Duration),
            map: HashMap<String, Value>,
        }
        let array = Array::from_slice(&[2], &[1.5_f32, 2.5]).expect("an array");
        let took = core::time::Duration::from_micros(1_500_001);
        let price = Value::from(Object::new("decimal", "Decimal", ["9.50"]));
        let unread =
            Serialized::of_written_pickle(Bytes::from_static(b"\x80\x04\x8c\x01m\x8c\x01f\x93."));
        let large = Value::LargeInt([vec![0; 25], vec![1]].concat().into());
        let set = Value::Set([Value::from(1)].into());
        let mixed = Mixed {
            any: price.clone(),
            all: vec![
                None,
                Some(set),
                Some(large),
                Some(Value::Serialized(unread)),
            ],
            array: array.clone(),
            took,
            parts: (Some(array.clone()), took),
            map: [("d".to_owned(), price.clone())].into(),
        };
        let value = Value::from_serialize(&mixed).expect("it is serialized");
        assert_eq!(value.get("any"), Some(&price));
        assert_eq!(value.get("array"), Some(&Value::from(array)));
        assert_eq!(value.get("took"), Some(&Value::from(took)));
        let again: Mixed = value.deserialize().expect("it is deserialized");
        assert_eq!(again, mixed);
        // A value that hides in an untagged enum, which serde keeps as its own data.
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(untagged)]
        enum Either {
            Value(Value),
        }
        let nested = Value::list([Value::from(1), Value::from("x")]);
        let read: Either = nested.deserialize().expect("it is deserialized");
        assert_eq!(read, Either::Value(nested));
        // A number is no array, and a negative difference is no duration.
        let error = Value::from(1).deserialize::<Array>().expect_err("a number");
        assert_eq!(error.to_string(), "expected Array, found int");
        let negative = Object::new("datetime", "timedelta", [-1, 0, 0]);
        let negative = Value::from(negative).deserialize::<core::time::Duration>();
        assert!(negative.is_err());
    }

    #[test]
    fn a_struct_called_duration_stays_a_struct() {
        #[derive(Debug, PartialEq, Deserialize, Serialize)]
        struct Duration {
            secs: i64,
            nanos: i64,
        }
        let duration = Duration { secs: -1, nanos: 5 };
        let value = Value::from_serialize(&duration).expect("it is serialized");
        assert!(matches!(value, Value::Dict(_)), "{value}");
        assert_eq!(value.deserialize(), Ok(duration));
    }

    #[test]
    fn integers_of_any_size_are_read_where_serde_keeps_values() {
        #[derive(Debug, Deserialize, PartialEq)]
        struct All {
            #[serde(flatten)]
            rest: HashMap<String, f64>,
        }
        let large = Value::LargeInt([vec![0; 25], vec![1]].concat().into());
        let value = Value::dict([("x", large.clone()), ("y", Value::from(3))]);
        let all = value.deserialize::<All>().expect("floats");
        assert_eq!(
            all.rest,
            HashMap::from([("x".to_owned(), 2_f64.powi(200)), ("y".to_owned(), 3.0)])
        );
        assert_eq!(Value::Int(i128::MIN).deserialize(), Ok(i128::MIN));
        assert_eq!(Value::Int(1 << 100).deserialize(), Ok(1_u128 << 100));
        assert_eq!(large.deserialize(), Ok(2_f64.powi(200)));
        assert!(large.deserialize::<u128>().is_err());
        let error = Value::Int(1 << 100)
            .deserialize::<u8>()
            .expect_err("too large");
        assert!(error.to_string().contains("expected u8"), "{error}");
    }

    #[test]
    fn types_that_nest_themselves_are_limited_in_depth() {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only its depth matters")]
        struct Nested(Vec<Self>);

        let nested =
            |levels| (0..levels).fold(Value::list([0; 0]), |value, _| Value::list([value]));
        assert!(nested(MAX_DEPTH - 1).deserialize::<Nested>().is_ok());
        assert!(nested(MAX_DEPTH).deserialize::<Nested>().is_err());
        assert!(nested(100_000).deserialize::<Nested>().is_err());
    }
}

/// An error with a cause that it does not print.
#[derive(Debug)]
struct Outer(std::io::Error);

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the table cannot be read")
    }
}

impl core::error::Error for Outer {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn the_error_of_a_conversion_has_its_causes() {
    let error = Outer(std::io::Error::other("the disk is gone"));
    let error = ValueError::of_conversion(&error).to_string();
    let expected = "the value cannot be converted: the table cannot be read: the disk is gone";
    assert_eq!(error, expected);
}
