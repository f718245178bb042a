//! Elements of the types of other crates.

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

/// Checks that values are read from bytes in both orders, and written to them.
#[cfg(any(feature = "half", feature = "num-complex-04"))]
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

#[cfg(any(feature = "half", feature = "num-complex-04"))]
use daskwire_numpy::{Array, ByteOrder, DType, Element, Kind, Order, encode_into};
