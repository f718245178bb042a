//! PEP 574, section by section: its examples, and its requirements for writers
//! and readers of out-of-band buffers.
//!
//! `peer/tests/it/pickle_written.rs` exchanges the same with CPython.

use daskwire_pickle::{
    Argument, Data, Framing, Mutability, Opcode, OutOfBandReader, PickleBuffer, PickleBufferError,
    PickleError, PickleErrorKind, Placement, Protocol, Reader, Token, WriteError, Writer,
    WriterLevel, WriterOptions,
};

const READ_ONLY: Mutability = Mutability::ReadOnly;
const WRITABLE: Mutability = Mutability::Writable;

/// Protocol 5 without frames, which keeps the examples short.
const BARE: WriterOptions = WriterOptions::new()
    .with_protocol(Protocol::V5)
    .with_framing(Framing::None);

fn written(options: WriterOptions, write: impl FnOnce(&mut Writer<'_, '_>)) -> Vec<u8> {
    let (mut out, mut levels) = (vec![0; 256], [WriterLevel::EMPTY; 8]);
    let mut writer = Writer::with_options(&mut out, &mut levels, options);
    write(&mut writer);
    writer.finish().expect("a pickle").to_vec()
}

fn tokens(pickle: &[u8]) -> Vec<Token<'_>> {
    let mut reader = Reader::new(pickle);
    core::iter::from_fn(|| reader.next_token().expect("a pickle")).collect()
}

/// All in-band and out-of-band data of a pickle.
fn data<'p>(pickle: &'p [u8], buffers: &'p [&[u8]]) -> Result<Vec<Data<'p>>, PickleError> {
    let mut items = OutOfBandReader::new(Reader::new(pickle), buffers);
    let mut found = Vec::new();
    while let Some(item) = items.next_item()? {
        found.extend(item.data);
    }
    assert_eq!(items.used_count(), buffers.len());
    Ok(found)
}

fn bytes<'p>(data: &[Data<'p>]) -> Vec<&'p [u8]> {
    data.iter().map(|data| data.bytes).collect()
}

/// `bytearray` as the section "Producer API" reduces it.
fn bytearray<'d>(
    writer: &mut Writer<'_, '_>,
    data: &'d [u8],
    decide: impl FnOnce(PickleBuffer<'d>) -> Placement,
) {
    writer.reduce().global("builtins", "bytearray").tuple(1);
    writer.buffer(PickleBuffer::new(data, WRITABLE), decide);
}

// Section "Example".

#[test]
fn a_bytearray_of_protocol_4_is_copied_into_the_pickle() {
    // pickletools.optimize(pickle.dumps(b, protocol=4))
    let options = WriterOptions::new()
        .with_protocol(Protocol::V4)
        .with_framing(Framing::Frames);
    let pickle = written(options, |writer| {
        writer.bytearray(b"abc");
    });
    let tokens = tokens(&pickle);
    // pickletools.dis of it, line for line.
    let listing: Vec<_> = tokens
        .iter()
        .map(|token| (token.offset, token.opcode))
        .collect();
    assert_eq!(
        listing,
        [
            (0, Opcode::Proto),
            (2, Opcode::Frame),
            (11, Opcode::ShortBinUnicode),
            (21, Opcode::ShortBinUnicode),
            (32, Opcode::StackGlobal),
            (33, Opcode::ShortBinBytes),
            (38, Opcode::Tuple1),
            (39, Opcode::Reduce),
            (40, Opcode::Stop),
        ]
    );
    assert_eq!(tokens[0].argument, Argument::Version(4));
    assert_eq!(tokens[1].argument, Argument::Length(30));
    let text = |index: usize| match tokens[index].argument {
        Argument::Str(text) => text.to_str().expect("no surrogates"),
        other => panic!("{other:?}"),
    };
    assert_eq!((text(2), text(3)), ("builtins", "bytearray"));
    assert_eq!(tokens[5].argument, Argument::Bytes(b"abc"));
}

#[test]
fn buffers_are_passed_out_of_band_as_views() {
    let payload = vec![b'x'; 100_000];
    let mut passed = None;
    let pickle = written(BARE, |writer| {
        bytearray(writer, &payload, |buffer| {
            passed = Some(buffer);
            Placement::OutOfBand
        });
    });
    assert_eq!(
        pickle,
        b"\x80\x05\x8c\x08builtins\x8c\x09bytearray\x93\x97\x85R."
    );
    // The writer passes a view of the same memory, and the reader returns it.
    let passed = [passed.expect("it was asked").as_bytes()];
    assert!(core::ptr::eq(passed[0], payload.as_slice()));
    let found = data(&pickle, &passed).expect("it has its buffer");
    assert!(core::ptr::eq(found[0].bytes, payload.as_slice()));

    // "For compatibility": the same in band.
    let pickle = written(BARE, |writer| {
        bytearray(writer, b"abc", |_| Placement::InBand);
    });
    assert_eq!(
        pickle,
        b"\x80\x05\x8c\x08builtins\x8c\x09bytearray\x93\x96\x03\0\0\0\0\0\0\0abc\x85R."
    );
    assert_eq!(bytes(&data(&pickle, &[]).expect("it needs none")), [b"abc"]);
}

// Section "Producer API".

/// Also "Allow serializing a PickleBuffer in protocol 4 and earlier" among the
/// rejected alternatives.
#[test]
fn a_buffer_in_protocol_4_is_an_error() {
    let options = WriterOptions::new()
        .with_protocol(Protocol::V4)
        .with_framing(Framing::None);
    for mutability in [READ_ONLY, WRITABLE] {
        let (mut out, mut levels) = ([0; 64], [WriterLevel::EMPTY; 8]);
        let mut writer = Writer::with_options(&mut out, &mut levels, options);
        writer.buffer(PickleBuffer::new(b"abc", mutability), |_| {
            panic!("it is in no protocol before 5, so there is nothing to decide")
        });
        assert_eq!(writer.finish(), Err(WriteError::NeedsProtocol5 { at: 2 }));
    }
}

#[test]
fn buffers_are_written_as_raw_data() {
    let data = [7; 24];
    let flat = PickleBuffer::new(&data, WRITABLE);
    let shaped = PickleBuffer::with_strides(&data, WRITABLE, 4, &[2, 3], &[12, 4]);
    let shaped = shaped.expect("contiguous");
    for placement in [Placement::InBand, Placement::OutOfBand] {
        let [one, other] = [flat, shaped].map(|buffer| {
            written(BARE, |writer| {
                writer.buffer(buffer, |_| placement);
            })
        });
        assert_eq!(one, other);
    }
}

/// Section "Buffer requirements".
#[test]
fn only_contiguous_buffers_are_accepted() {
    let data: Vec<u8> = (0..24).collect();
    let of = |strides: &[isize]| PickleBuffer::with_strides(&data, WRITABLE, 4, &[2, 3], strides);
    // "Either C-ordered or Fortran-ordered": of both it is the raw memory.
    for strides in [[12, 4], [4, 8]] {
        let buffer = of(&strides).expect("contiguous");
        assert!(core::ptr::eq(buffer.as_bytes(), data.as_slice()));
    }
    // Every other row, every other column, backwards, and one row again and again.
    for (strides, axis) in [([24, 4], 0), ([12, 8], 1), ([-12, 4], 0), ([0, 4], 0)] {
        let error = PickleBufferError::NotContiguous { axis };
        assert_eq!(of(&strides), Err(error), "{strides:?}");
    }
    // "A sophisticated provider may decide to return a sequence of contiguous
    // sub-buffers": the left half of each row.
    let rows = [&data[..8], &data[12..20]];
    let mut passed = Vec::new();
    let pickle = written(BARE, |writer| {
        writer.tuple(2);
        for row in rows {
            writer.buffer(PickleBuffer::new(row, WRITABLE), |buffer| {
                passed.push(buffer.as_bytes());
                Placement::OutOfBand
            });
        }
    });
    assert_eq!(pickle, b"\x80\x05\x97\x97\x86.");
    assert_eq!(bytes(&self::data(&pickle, &passed).expect("two")), rows);
}

// Section "Consumer API".

#[test]
fn callback_is_called_for_each_buffer_in_order() {
    let payloads = [&b"one"[..], b"two", b"three", b"four"];
    for decisions in 0..1 << payloads.len() {
        let (mut asked, mut out_of_band) = (Vec::new(), Vec::new());
        let pickle = written(BARE, |writer| {
            writer.list(payloads.len());
            for (index, payload) in payloads.into_iter().enumerate() {
                bytearray(writer, payload, |buffer| {
                    asked.push(buffer.as_bytes());
                    if decisions & 1 << index == 0 {
                        out_of_band.push(buffer.as_bytes());
                        Placement::OutOfBand
                    } else {
                        Placement::InBand
                    }
                });
            }
        });
        assert_eq!(asked, payloads);
        let found = data(&pickle, &out_of_band).expect("what the callback took");
        assert_eq!(
            bytes(&found),
            payloads,
            "in band and out of band look alike"
        );
        let mut next = 0..;
        for (index, data) in found.iter().enumerate() {
            let out_of_band = decisions & 1 << index == 0;
            assert_eq!(data.buffer, out_of_band.then(|| next.next()).flatten());
            assert_eq!(core::ptr::eq(data.bytes, payloads[index]), out_of_band);
        }
    }
}

/// "Consumed each time the pickle stream references an out-of-band buffer view",
/// and "it is an error for *buffers* to be None".
///
/// CPython ignores unused buffers; here they are an error.
#[test]
fn number_of_buffers_must_match_the_pickle() {
    let payloads = [&b"one"[..], b"two"];
    let pickle = written(BARE, |writer| {
        writer.tuple(2);
        for payload in payloads {
            bytearray(writer, payload, |_| Placement::OutOfBand);
        }
    });
    let references: Vec<usize> = tokens(&pickle)
        .iter()
        .filter(|token| token.opcode == Opcode::NextBuffer)
        .map(|token| token.offset)
        .collect();
    let error = |buffers: &[&[u8]]| {
        let error = data(&pickle, buffers).expect_err("another number");
        (error.offset, error.kind)
    };
    for (count, offset) in references.iter().enumerate() {
        let kind = PickleErrorKind::TooFewBuffers {
            buffer_count: count,
        };
        assert_eq!(error(&payloads[..count]), (*offset, kind));
    }
    let kind = PickleErrorKind::TooManyBuffers {
        used_count: 2,
        buffer_count: 3,
    };
    let stop = pickle.len() - 1;
    assert_eq!(error(&[b"one", b"two", b"three"]), (stop, kind));

    // Taken one by one, and not before they are referenced.
    let mut items = OutOfBandReader::new(Reader::new(&pickle), &payloads);
    let mut used = Vec::new();
    while let Some(item) = items.next_item().expect("all are there") {
        if item.token.opcode == Opcode::NextBuffer {
            used.push((item.token.offset, items.used_count()));
        }
    }
    assert_eq!(used, [(references[0], 1), (references[1], 2)]);
}

// Section "Protocol changes".

#[test]
fn protocol_5_adds_three_opcodes() {
    let new = [
        (Opcode::ByteArray8, 0x96, "BYTEARRAY8"),
        (Opcode::NextBuffer, 0x97, "NEXT_BUFFER"),
        (Opcode::ReadOnlyBuffer, 0x98, "READONLY_BUFFER"),
    ];
    for (opcode, byte, name) in new {
        assert_eq!((opcode.byte(), opcode.name()), (byte, name));
    }
    for opcode in Opcode::ALL {
        let is_new = new.iter().any(|(new, ..)| new == opcode);
        assert_eq!(opcode.protocol() == 5, is_new, "{opcode}");
    }
}

#[test]
fn buffers_in_band_and_out_of_band_read_only_and_writable() {
    use Placement::{InBand, OutOfBand};
    for (mutability, placement, pickle) in [
        (WRITABLE, InBand, &b"\x80\x05\x96\x02\0\0\0\0\0\0\0hi."[..]),
        (READ_ONLY, InBand, b"\x80\x05C\x02hi."),
        (WRITABLE, OutOfBand, b"\x80\x05\x97."),
        (READ_ONLY, OutOfBand, b"\x80\x05\x97\x98."),
    ] {
        let buffer = PickleBuffer::new(b"hi", mutability);
        let written = written(BARE, |writer| {
            writer.buffer(buffer, |_| placement);
        });
        assert_eq!(written, pickle);
        // Section "Mutability": it is recreated as it was.
        let out_of_band: &[&[u8]] = if placement == OutOfBand {
            &[b"hi"]
        } else {
            &[]
        };
        let expected = Data {
            bytes: b"hi",
            read_only: mutability == READ_ONLY,
            buffer: (placement == OutOfBand).then_some(0),
        };
        assert_eq!(data(pickle, out_of_band), Ok(vec![expected]));
    }
}

// Section "Caveats".

/// Section "Data sharing": numpy's array, with its `dtype` left out as the PEP
/// leaves out shapes.
#[test]
fn buffer_data_is_shared_without_a_copy() {
    let mut memory = vec![0_u8; 80];
    let pickle = written(BARE, |writer| {
        writer.reduce().global("numpy", "frombuffer").tuple(1);
        let buffer = PickleBuffer::new(&memory, WRITABLE);
        writer.buffer(buffer, |_| Placement::OutOfBand);
    });
    let first = |memory: &[u8]| {
        let buffers = [memory];
        let found = data(&pickle, &buffers).expect("its buffer");
        assert!(core::ptr::eq(found[0].bytes, memory) && !found[0].read_only);
        found[0].bytes[0]
    };
    assert_eq!(first(&memory), 0);
    memory[0] = 42;
    assert_eq!(first(&memory), 42, "there is no copy of it");

    // "This won't happen" in band.
    let pickle = written(BARE, |writer| {
        writer.buffer(PickleBuffer::new(&memory, WRITABLE), |_| Placement::InBand);
    });
    memory[0] = 0;
    assert_eq!(data(&pickle, &[]).expect("none")[0].bytes[0], 42);
}

// Section "Rejected alternatives".

/// Section "Using the existing persistent load interface": what `MyPickle` writes
/// of two bytearrays names them by ids, which are no buffers.
#[test]
fn persistent_ids_are_not_buffers() {
    let pickle = b"\x80\x05\x95\x1a\0\0\0\0\0\0\0](\x8c\x09bytearray\x94K\0\x86Qh\0K\x01\x86Qe.";
    let ids = tokens(pickle);
    let ids = ids.iter().filter(|token| token.opcode == Opcode::BinPersId);
    assert_eq!(ids.count(), 2);
    assert_eq!(data(pickle, &[]), Ok(vec![]));
    let kind = PickleErrorKind::TooManyBuffers {
        used_count: 0,
        buffer_count: 2,
    };
    let error = data(pickle, &[b"abc", b"de"]).expect_err("they are not referenced");
    assert_eq!(error.kind, kind);
}

/// The same with trees: `ZeroCopyByteArray` uses the buffer without a copy if
/// possible.
#[cfg(feature = "alloc")]
mod tree {
    use daskwire_pickle::Limits;
    use daskwire_pickle::tree::{Tree, Value};

    use super::*;

    /// `ZeroCopyByteArray._reconstruct(BUFFER)` of CPython's documentation,
    /// which evolved from the PEP's example.
    fn reconstruct(writer: &mut Writer<'_, '_>, buffer: PickleBuffer<'_>, placement: Placement) {
        writer.reduce();
        writer.reduce().global("builtins", "getattr").tuple(2);
        writer.global("example", "ZeroCopyByteArray");
        writer.str("_reconstruct");
        writer.tuple(1).buffer(buffer, |_| placement);
    }

    #[test]
    fn zero_copy_bytearray_is_built_from_its_buffer() {
        let memory = b"abc".to_vec();
        let out_of_band = [memory.as_slice()];
        for (mutability, placement) in [
            (WRITABLE, Placement::InBand),
            (READ_ONLY, Placement::InBand),
            (WRITABLE, Placement::OutOfBand),
            (READ_ONLY, Placement::OutOfBand),
        ] {
            let pickle = written(WriterOptions::default(), |writer| {
                reconstruct(writer, PickleBuffer::new(&memory, mutability), placement);
            });
            let buffers = match placement {
                Placement::InBand => &[][..],
                Placement::OutOfBand => &out_of_band,
            };
            let tree = Tree::build(Reader::new(&pickle), buffers, &Limits::HOST).expect("a tree");
            let Value::Call { arguments, .. } = tree.root().value() else {
                panic!("{tree}");
            };
            let [argument] = arguments.items().exactly().expect("one");
            let (data, read_only, index) = match argument.value() {
                Value::Bytes(data) => (data, true, None),
                Value::ByteArray { data, read_only } => (data, read_only, None),
                Value::Buffer {
                    data,
                    index,
                    read_only,
                } => (data, read_only, Some(index)),
                other => panic!("{other:?}"),
            };
            assert_eq!(data, b"abc");
            assert_eq!(read_only, mutability == READ_ONLY);
            let out_of_band = placement == Placement::OutOfBand;
            assert_eq!(index, out_of_band.then_some(0));
            assert_eq!(core::ptr::eq(data, memory.as_slice()), out_of_band);
        }
    }
}
