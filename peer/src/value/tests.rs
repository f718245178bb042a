use super::*;

fn round_trip(value: &Value) -> Value {
    let serialized = Serialized::of(value).expect("it is a plain value");
    serialized.open().expect("what was written is read")
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
        Value::from(vec![1_u8, 2]),
        Value::ByteArray(Bytes::from_static(b"xy")),
        Value::tuple([1, 2]),
        Value::Set(vec![Value::from(1)]),
        Value::FrozenSet(vec![Value::from("a")]),
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
        daskwire::typed::DType::U8,
        &[1 << 16],
        daskwire::typed::Order::C,
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
    // [[..], [..]] of the list before it, sixty times.
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
fn what_only_python_knows_is_named() {
    let pickle = b"\x80\x04\x8c\x0cpandas.core_\x8c\x09DataFrame\x93)R.";
    let opened = Serialized::of_written_pickle(Bytes::from_static(pickle)).open();
    let what = "pandas.core_.DataFrame".to_owned();
    assert_eq!(opened, Err(ValueError::Unknown { what }));
}
