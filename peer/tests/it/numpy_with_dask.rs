//! Tests that values written in Rust have the right types in real Dask, and vice versa,
//! and that stored and forwarded values return to Python unchanged.

use daskwire::message::{
    BuilderBuffers, Item, Layout, Message, MessageBuilder, Payload, ReadOptions, SHARD_LEN, Scratch,
};
use daskwire::msgpack;
use daskwire_comm::{Comm, CommError, CommOptions};
use daskwire_numpy::{
    Array, ByteOrder, DType, Description, Dimensions, ElementType, NumpyModules, Order,
    PayloadValue, PickledPayload, TimeBase, TimeUnit, ValueBuilder as _, WriteOptions, encode_into,
    known, pickle_array,
};
use daskwire_pickle::tree::Tree;
use daskwire_pickle::{self as pickle, PickleBuffer, Placement};
use daskwire_testing::{Environment, Peer};

/// Memory of the values, which is kept until they are sent.
struct Data {
    doubles: Vec<u8>,
    integers: Vec<u8>,
    swapped: Vec<u8>,
    strings: Vec<u8>,
}

impl Data {
    fn new() -> Self {
        let encode = |count: i16| {
            let mut bytes = vec![0; 8 * usize::from(count.unsigned_abs())];
            let values: Vec<f64> = (0..count).map(f64::from).collect();
            encode_into(&values, &mut bytes).expect("fits");
            bytes
        };
        Self {
            doubles: encode(6),
            integers: (0..6_i32).flat_map(i32::to_le_bytes).collect(),
            swapped: (0..6_i32).flat_map(i32::to_be_bytes).collect(),
            strings: ['h', 'i', 'β', '\0']
                .into_iter()
                .flat_map(|letter| u32::from(letter).to_le_bytes())
                .collect(),
        }
    }

    /// The name of each array, the array, and Python's expected description of it.
    fn arrays(&self) -> Vec<(&'static str, Array<'_>, &'static str)> {
        let new = |dtype, shape: &[usize], order, bytes| {
            Array::new(dtype, shape, order, bytes).expect("a good array")
        };
        let big = DType::I32.with_order(ByteOrder::Big);
        let times = DType::datetime(TimeUnit {
            count: 25,
            base: TimeBase::Second,
        });
        let string = DType::string(2).expect("short");
        let three = Dimensions::with_strides(&[2, 3], &[0, 4]).expect("good dimensions");
        let broadcast = Array::with_dimensions(DType::I32, three, &self.integers[..12]);
        let broadcast = broadcast.expect("three elements").with_writeable(false);
        let (doubles, integers) = (&self.doubles[..], &self.integers[..]);
        vec![
            (
                "C",
                new(DType::F64, &[2, 3], Order::C, doubles),
                "ndarray <f8 (2, 3) C writeable [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]",
            ),
            (
                "Fortran",
                new(DType::F64, &[2, 3], Order::Fortran, doubles),
                "ndarray <f8 (2, 3) F writeable [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]",
            ),
            (
                "read-only",
                new(DType::I32, &[6], Order::C, integers).with_writeable(false),
                "ndarray <i4 (6,) CF read-only [0, 1, 2, 3, 4, 5]",
            ),
            (
                "big",
                new(big, &[6], Order::C, &self.swapped),
                "ndarray >i4 (6,) CF writeable [0, 1, 2, 3, 4, 5]",
            ),
            (
                "broadcast",
                broadcast,
                "ndarray <i4 (2, 3)  read-only [[0, 1, 2], [0, 1, 2]]",
            ),
            (
                "empty",
                new(DType::F64, &[0, 3], Order::C, &[]),
                "ndarray <f8 (0, 3) CF writeable []",
            ),
            (
                "scalar",
                new(DType::F64, &[], Order::C, &doubles[16..24]),
                "ndarray <f8 () CF writeable 2.0",
            ),
            (
                "texts",
                new(string, &[2], Order::C, &self.strings),
                "ndarray <U2 (2,) CF writeable ['hi', 'β']",
            ),
            (
                "booleans",
                new(DType::BOOL, &[2], Order::C, &[1, 0]),
                "ndarray |b1 (2,) CF writeable [True, False]",
            ),
            (
                "complex",
                new(DType::COMPLEX_F64, &[3], Order::C, doubles),
                "ndarray <c16 (3,) CF writeable [1j, (2+3j), (4+5j)]",
            ),
            (
                "times",
                new(times, &[1], Order::C, &[4, 0, 0, 0, 0, 0, 0, 0]),
                "ndarray <M8[25s] (1,) CF writeable [datetime.datetime(1970, 1, 1, 0, 1, 40)]",
            ),
            (
                "strings",
                new(DType::bytes(2), &[2], Order::C, b"abc\0"),
                "ndarray |S2 (2,) CF writeable [b'ab', b'c']",
            ),
        ]
    }
}

/// Writes a pickle of `[1, -2, "text", 2.5, None, b"bytes", <each array>]`, with the
/// arrays out of band.
fn pickle_of<'d>(arrays: &[Array<'d>], out: &mut Vec<u8>) -> Vec<PickleBuffer<'d>> {
    let mut buffers = Vec::new();
    let mut levels = [pickle::WriterLevel::EMPTY; 7];
    out.resize(1 << 13, 0);
    let mut writer = pickle::Writer::new(out, &mut levels);
    writer.list(arrays.len() + 6);
    writer.i64(1).i64(-2).str("text").f64(2.5).none();
    writer.bytes(b"bytes");
    for array in arrays {
        pickle_array(&mut writer, array, NumpyModules::default(), |buffer| {
            buffers.push(buffer);
            Placement::OutOfBand
        })
        .expect("contiguous frames");
    }
    let len = writer.finish().expect("fits").len();
    out.truncate(len);
    buffers
}

/// Sends each type of value, and checks Python's description of it.
async fn send(comm: &mut Comm) -> Result<(), CommError> {
    let data = Data::new();
    let arrays = data.arrays();
    let contiguous: Vec<_> = arrays
        .iter()
        .filter(|(_, array, _)| !array.is_broadcast())
        .collect();
    let in_pickle: Vec<Array<'_>> = contiguous.iter().map(|(_, array, _)| *array).collect();
    let mut pickle = Vec::new();
    let buffers = pickle_of(&in_pickle, &mut pickle);
    let view = Array::new(DType::I32, &[2, 3], Order::C, &data.integers).expect("a good view");

    let mut expected: Vec<(&str, String)> = arrays
        .iter()
        .map(|(name, _, string)| (*name, (*string).to_owned()))
        .collect();
    expected.push(("bytes", "bytes b'some'".into()));
    expected.push(("bytearray", "bytearray bytearray(b'some')".into()));
    expected.push(("view", "memoryview i (2, 3) [[0, 1, 2], [3, 4, 5]]".into()));
    let listed: Vec<&str> = contiguous.iter().map(|(_, _, string)| *string).collect();
    let listed = format!(
        "list[int 1, int -2, str 'text', float 2.5, NoneType None, bytes b'bytes', {}]",
        listed.join(", ")
    );
    expected.push(("pickle", listed.clone()));
    expected.push(("pickled", listed));

    let options = WriteOptions::default();
    let (mut body, mut headers) = (vec![0; 1 << 12], vec![0; 1 << 16]);
    let mut slots = [&[][..]; 128];
    let mut builder = MessageBuilder::new(
        Layout::Modern,
        BuilderBuffers {
            body: &mut body,
            headers: &mut headers,
            slots: &mut slots,
        },
    );
    let count = u32::try_from(expected.len()).expect("few");
    builder.body().map(1).str("values").map(count);
    for (name, array, _) in &arrays {
        builder.body().str(name);
        builder.array_payload(array, &options).expect("it is good");
    }
    builder.body().str("bytes");
    builder.bytes_payload(b"some", &options).expect("room");
    builder.body().str("bytearray");
    builder.bytearray_payload(b"some", &options).expect("room");
    builder.body().str("view");
    builder.memoryview_payload(&view, &options).expect("room");
    builder.body().str("pickle");
    builder
        .pickle_payload(&pickle, &buffers, &options)
        .expect("room");
    builder.body().str("pickled");
    builder.pickled_payload(&pickle, &buffers).expect("room");
    let frames = builder.finish().expect("a whole message");
    // The frames are the memory of the values.
    let has = |bytes: &[u8]| frames.iter().any(|frame| core::ptr::eq(*frame, bytes));
    assert!(has(&data.doubles) && has(&data.integers) && has(&data.swapped));
    comm.write_message(frames).await?;

    let answer = comm.read_message().await?.expect("an answer");
    let mut reader = msgpack::Reader::new(answer[0].as_ref());
    assert_eq!(reader.find("described"), Ok(true));
    let mut described = std::collections::BTreeMap::new();
    for _ in 0..reader.map().expect("a map") {
        let name = reader.str().expect("a name").to_str().to_owned();
        described.insert(name, reader.str().expect("a string").to_str().to_owned());
    }
    assert_eq!(described.len(), expected.len());
    for (name, string) in expected {
        // The header of a __Pickled__ payload has no `writeable`: the pickle
        // marks read-only buffers by READONLY_BUFFER.
        assert_eq!(described[name], string, "{name}");
    }
    Ok(())
}

/// Checks a payload against Python's description of it.
fn check<T: AsRef<[u8]>>(name: &str, payload: &Payload<'_, T>) {
    let parsed = PayloadValue::read(payload).unwrap_or_else(|error| panic!("{name}: {error}"));
    let is_own = |bytes: &[u8]| {
        let mut frames = payload.frames().iter().map(AsRef::as_ref);
        bytes.is_empty() || frames.any(|frame: &[u8]| core::ptr::eq(frame, bytes))
    };
    let array = || {
        let array = parsed.array().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(is_own(array.bytes()), "{name} was copied");
        array
    };
    let pickled = || {
        let pickled = PickledPayload::read(payload).unwrap_or_else(|e| panic!("{name}: {e}"));
        let there = pickled.borrowed().unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut items = there.items();
        while items.next_item().expect("a good pickle").is_some() {}
        assert_eq!(items.used_count(), pickled.buffer_count());
        assert!(is_own(there.pickle()), "{name} was copied");
        pickled.writeable().expect("flags").collect::<Vec<_>>()
    };
    match name {
        "bytes" => assert_eq!(parsed.as_slice(), Ok(&b"as they are"[..])),
        "bytearray" => assert_eq!(parsed.as_slice(), Ok(&b"changeable"[..])),
        "memoryview" => assert_eq!(array().shape(), [2, 3]),
        "doubles" => {
            assert_eq!(array().order(), Some(Order::C));
            assert_eq!(array().writeable(), Some(true));
            let expected = (0..12).map(f64::from);
            assert!(array().elements::<f64>().expect("doubles").eq(expected));
        }
        "fortran" => {
            assert_eq!(array().order(), Some(Order::Fortran));
            assert!(array().elements::<i32>().expect("integers").eq(0..12));
        }
        "big endian" => {
            assert!(array().elements::<u16>().expect("integers").eq(0..5));
        }
        "read-only" => assert_eq!(array().writeable(), Some(false)),
        "broadcast" => {
            assert!(array().is_broadcast());
            let elements = array().elements::<i8>().expect("integers");
            assert!(elements.eq([0, 1, 2, 0, 1, 2]));
        }
        "complex" => {
            let elements = array().elements::<[f64; 2]>().expect("complex numbers");
            assert!(elements.eq([[1.0, 2.0], [3.0, -4.0]]));
        }
        "times" => assert_eq!(array().dtype().type_string().as_str(), "<M8[25s]"),
        "texts" => assert_eq!(array().dtype().type_string().as_str(), "<U2"),
        "records" => {
            let Description::Array(header) = parsed.description() else {
                panic!("{:?}", parsed.description());
            };
            // In headers, the type of records is pickled.
            let ElementType::Pickled(pickle) = header.element_type() else {
                panic!("{:?}", header.element_type());
            };
            let tree = Tree::new(pickle).expect("the pickle of a type");
            let element_type = known::element_type(&tree).expect("a type of numpy");
            let ElementType::Record(record) = element_type else {
                panic!("{element_type:?}");
            };
            let bytes = parsed.as_slice().expect("one frame");
            assert!(is_own(bytes), "{name} was copied");
            let array = header.with_element_type(element_type).over(bytes);
            let array = array.unwrap_or_else(|error| panic!("{name}: {error}"));
            let x = record.field("x").expect("a good type").expect("a field");
            let x = array.field(&x).expect("it is one of these records");
            assert!(x.elements::<f64>().expect("doubles").eq([2.5]));
        }
        "masked" => {
            let masked = parsed.masked_array().expect("one frame each");
            let elements = masked.elements::<f64>().expect("doubles");
            assert!(elements.eq([Some(1.0), None, Some(3.0)]));
        }
        "none" => assert_eq!(array().shape(), [0, 3]),
        "scalar array" => assert_eq!(array().shape(), [0; 0]),
        "large" => {
            let elements = array().memory_elements::<u32>().expect("integers");
            assert!(elements.eq(0..300_000));
        }
        "objects" | "scalar" => assert!(pickled().is_empty()),
        "in an object" => assert_eq!(pickled(), [Some(true), Some(false)]),
        "in a tuple" => assert_eq!(*parsed.description(), Description::Collection),
        "frame" => assert!(pickled().len() >= 3),
        "series" => assert_eq!(pickled().len(), 1),
        other => panic!("{other} was not expected"),
    }
}

/// Receives values, inspects them, and forwards them unchanged.
async fn store_and_forward(comm: &mut Comm) -> Result<(), CommError> {
    let arrived = comm.read_message().await?.expect("values");
    let arrived: Vec<&[u8]> = arrived.iter().map(AsRef::as_ref).collect();
    let mut count = 0;
    let (mut body, mut headers) = (vec![0; 1 << 12], vec![0; 1 << 12]);
    let mut slots = [&[][..]; 256];
    let mut builder = MessageBuilder::new(
        Layout::Modern,
        BuilderBuffers {
            body: &mut body,
            headers: &mut headers,
            slots: &mut slots,
        },
    );
    let mut scratch = Scratch::<8, 32>::new();
    let reading = ReadOptions::default();
    let message = Message::open(&arrived, Layout::Modern, &reading, &mut scratch);
    walk(message.expect("a good message"), &mut builder, &mut count);
    assert_eq!(count, 22);
    let frames = builder.finish().expect("a whole message");
    // The forwarded frames are the received ones, in the same memory.
    assert_eq!(frames.len(), arrived.len());
    for (out, came) in frames.iter().zip(&arrived).skip(1) {
        assert!(core::ptr::eq(*out, *came), "a frame was copied");
    }
    comm.write_message(frames).await?;
    let answer = comm.read_message().await?.expect("an answer");
    let mut reader = msgpack::Reader::new(answer[0].as_ref());
    assert_eq!(reader.find("problems"), Ok(true));
    let mut problems = Vec::new();
    for _ in 0..reader.array().expect("a list") {
        problems.push(reader.str().expect("a string").to_str().to_owned());
    }
    assert!(problems.is_empty(), "{problems:#?}");
    Ok(())
}

fn walk<'a, T: AsRef<[u8]>>(
    message: Message<'a, T>,
    builder: &mut MessageBuilder<'_, 'a>,
    count: &mut usize,
) {
    let mut scratch = Scratch::<8>::new();
    let mut walk = message.walk(&mut scratch);
    let mut name = String::new();
    while let Some(item) = walk.next_item().expect("it was checked") {
        match item {
            Item::Token(msgpack::Token::Str(string)) => {
                string.to_str().expect("UTF-8").clone_into(&mut name);
            }
            Item::Payload(number) => {
                check(&name, &message.payload(number).expect("exists"));
                *count += 1;
            }
            _ => {}
        }
        builder.item(item, &message).expect("the same layout");
    }
}

#[test]
fn values_round_trip_over_a_comm_of_dask() {
    assert_eq!(WriteOptions::default().shard_len, SHARD_LEN);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let address = "tcp://127.0.0.1:0".parse().expect("an address");
    let listener =
        runtime.block_on(daskwire_peer::transports().bind(&address, CommOptions::default()));
    let listener = listener.expect("a free port");
    let address = listener.local_address().expect("an address").to_string();
    let exchange = std::thread::spawn(move || {
        runtime.block_on(async {
            let mut comm = listener.accept().await?.handshake().await?;
            send(&mut comm).await?;
            store_and_forward(&mut comm).await?;
            let end = comm.read_message().await?;
            assert!(end.is_none());
            Ok::<_, CommError>(())
        })
    });
    let client = Peer::spawn(Environment::Current, "numpy_client.py", &[&address]);
    assert_eq!(client.address(), "done");
    exchange
        .join()
        .expect("it does not panic")
        .expect("the comm ends well");
}
