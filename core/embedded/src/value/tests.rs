//! Tests of values in payloads.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::panic)]

use daskwire::Limits;
use daskwire::message::{Layout, Message, ReadOptions, Scratch};
use daskwire::msgpack::Writer;

use super::{ElementType, Failure, Out, Value};

/// Stores an array of float64 from its header and data.
fn store(shape: &[u32], strides: &[i64], data: &[u8]) -> Result<(), Failure> {
    let mut header = [0; 128];
    let mut writer = Writer::new(&mut header);
    writer.map(4).str("serializer").str("dask");
    writer.str("type").str("numpy.ndarray");
    writer.str("num-sub-frames").u64(1);
    writer.str("sub-header").map(3).str("dtype").array(2).u64(0);
    writer.str("<f8").str("shape");
    writer.array(u32::try_from(shape.len()).unwrap());
    for len in shape {
        writer.u64((*len).into());
    }
    let count = u32::try_from(strides.len()).unwrap();
    writer.str("strides").array(count);
    for stride in strides {
        writer.i64(*stride);
    }
    let header = writer.finish().unwrap();
    let frames: [&[u8]; 3] = [b"\x81\xae__Serialized__\x01", header, data];
    let mut scratch = Scratch::<{ Limits::MAX_DEPTH as usize }, 1>::new();
    let options = ReadOptions::default();
    let message = Message::open(&frames, Layout::Modern, &options, &mut scratch).unwrap();
    let mut space = [0; 128];
    let mut out = Out::new(&mut space)?;
    Value::store_payload(&message.payload(0).unwrap(), &mut out)?;
    let len = out.len();
    let Some(Value::Array(array)) = Value::parse(&space[..len]) else {
        panic!("not an array");
    };
    assert_eq!(array.element_type(), ElementType::F64);
    assert_eq!((array.shape(), array.bytes()), (shape, data));
    Ok(())
}

// PROTOCOL TYPED-3
#[test]
fn strides_that_lead_to_no_element_have_any_value() {
    store(&[2, 2], &[16, 8], &[1; 32]).unwrap();
    // Of numpy.ones((5, 3)): [:1, :2], [::-1][:1, :2] and [:0].
    store(&[1, 2], &[24, 8], &[1; 16]).unwrap();
    store(&[1, 2], &[-24, 8], &[1; 16]).unwrap();
    store(&[0, 3], &[24, 8], &[]).unwrap();
    for stride in [0, 8] {
        store(&[0], &[stride], &[]).unwrap();
    }
    store(&[2, 2], &[8, 16], &[1; 32]).unwrap_err();
    store(&[1, 2], &[24, 24], &[1; 16]).unwrap_err();
    store(&[1, 2], &[24], &[1; 16]).unwrap_err();
    store(&[0], &[], &[]).unwrap_err();
}
