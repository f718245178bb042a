//! Elements of times, and of the types of other crates.

use daskwire_numpy::{
    Array, ByteOrder, DType, Datetime64, Element, Kind, Order, Timedelta64, encode_into,
};

#[cfg(feature = "half")]
#[test]
fn elements_of_half() {
    use half::f16;
    let values = [f16::MIN, f16::from_f32(1.5), f16::INFINITY];
    same(&values, DType::F16, |value| value.to_bits().to_le_bytes());
}

#[cfg(feature = "num-complex-04")]
#[test]
fn elements_of_num_complex() {
    use num_complex_04::Complex;
    let values = [Complex::new(1.5_f64, -2.0), Complex::new(0.0, 1e300)];
    same(&values, DType::COMPLEX_F64, |value| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&value.re.to_le_bytes());
        bytes[8..].copy_from_slice(&value.im.to_le_bytes());
        bytes
    });
    let values = [Complex::new(1.5_f32, -2.0)];
    same(&values, DType::COMPLEX_F32, |value| {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&value.re.to_le_bytes());
        bytes[4..].copy_from_slice(&value.im.to_le_bytes());
        bytes
    });
}

/// The type strings are those of numpy's documentation.
#[test]
fn elements_of_times_in_every_unit() {
    use daskwire_numpy::unit::*;
    macro_rules! units {
        ($($unit:ident $name:literal;)*) => {$(
            let dtype = DType::parse(concat!("<M8[", $name, "]")).expect("a type");
            let values = [Datetime64::<$unit>::new(-2), Datetime64::NAT, Datetime64::new(i64::MAX)];
            let bytes = |number: Option<i64>| number.unwrap_or(i64::MIN).to_le_bytes();
            same(&values, dtype, |value| bytes(value.number()));
            assert_eq!(format!("{values:?}"), format!(
                "[Datetime64(-2 {unit}), Datetime64(NaT), Datetime64({} {unit})]",
                i64::MAX,
                unit = $name
            ));
            let dtype = DType::parse(concat!("<m8[", $name, "]")).expect("a type");
            let values = [Timedelta64::<$unit>::new(1), Timedelta64::NAT];
            same(&values, dtype, |value| bytes(value.number()));
        )*};
    }
    units! {
        Year "Y"; Month "M"; Week "W"; Day "D"; Hour "h"; Minute "m"; Second "s";
        Millisecond "ms"; Microsecond "us"; Nanosecond "ns"; Picosecond "ps"; Femtosecond "fs";
        Attosecond "as";
    }
}

/// Checks that values are read from bytes in both orders, and written to them.
fn same<E, const N: usize>(values: &[E], dtype: DType, bytes: impl Fn(&E) -> [u8; N])
where
    E: Element + PartialEq + core::fmt::Debug,
{
    let data: Vec<u8> = values.iter().flat_map(bytes).collect();
    let array = Array::new(dtype, &[values.len()], Order::C, &data).expect("as many");
    let read: Vec<E> = array.elements().expect("of this type").collect();
    assert_eq!(read, values);
    let mut written = vec![0xa5; data.len()];
    encode_into(values, &mut written).expect("there is room");
    assert_eq!(written, data);

    let part_len = match dtype.kind() {
        Kind::Complex => N / 2,
        _ => N,
    };
    let mut swapped = data;
    swapped.chunks_mut(part_len).for_each(<[u8]>::reverse);
    let dtype = dtype.with_order(ByteOrder::Big);
    let array = Array::new(dtype, &[values.len()], Order::C, &swapped).expect("as many");
    let read: Vec<E> = array.elements().expect("of this type").collect();
    assert_eq!(read, values);
}
