//! Numpy arrays.

use super::Value;
use daskwire::invariant::OrDefaultIfBug as _;

/// The maximum number of dimensions of an array.
pub const MAX_DIMENSIONS: usize = 4;

/// The type of the elements of an array: little-endian numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementType {
    pub(super) kind: u8,
    pub(super) len: u8,
}

impl ElementType {
    /// `float64`.
    pub const F64: Self = Self { kind: b'f', len: 8 };
    /// `float32`.
    pub const F32: Self = Self { kind: b'f', len: 4 };
    /// `int64`.
    pub const I64: Self = Self { kind: b'i', len: 8 };
    /// `int32`.
    pub const I32: Self = Self { kind: b'i', len: 4 };
    /// `int16`.
    pub const I16: Self = Self { kind: b'i', len: 2 };
    /// `int8`.
    pub const I8: Self = Self { kind: b'i', len: 1 };
    /// `uint32`.
    pub const U32: Self = Self { kind: b'u', len: 4 };
    /// `uint16`.
    pub const U16: Self = Self { kind: b'u', len: 2 };
    /// `uint8`.
    pub const U8: Self = Self { kind: b'u', len: 1 };
    /// `bool`.
    pub const BOOL: Self = Self { kind: b'b', len: 1 };

    const ALL: [Self; 10] = [
        Self::F64,
        Self::F32,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U32,
        Self::U16,
        Self::U8,
        Self::BOOL,
    ];

    /// The length of an element, in bytes.
    pub const fn item_len(self) -> usize {
        self.len as usize
    }

    /// The type with this numpy name, such as `<f8`; in pickles, the name has
    /// no byte order.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let name = name.strip_prefix(['<', '|', '=']).unwrap_or(name);
        let [kind, len] = *name.as_bytes() else {
            return None;
        };
        let this = Self {
            kind,
            len: len.wrapping_sub(b'0'),
        };
        Self::ALL.contains(&this).then_some(this)
    }

    /// The name of the type in numpy.
    pub(super) const fn name(self) -> [u8; 3] {
        let order = if self.len == 1 { b'|' } else { b'<' };
        [order, self.kind, self.len.wrapping_add(b'0')]
    }
}

/// A numpy array in row-major order.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub(super) element_type: ElementType,
    shape: [u32; MAX_DIMENSIONS],
    dimensions: u8,
    pub(super) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// An array over its elements. `None` if the length of `bytes` does not
    /// match, or there are more dimensions than [`MAX_DIMENSIONS`].
    pub fn new(element_type: ElementType, shape: &[u32], bytes: &'a [u8]) -> Option<Self> {
        if array_len(element_type, shape)? != bytes.len() {
            return None;
        }
        let mut stored = [0; MAX_DIMENSIONS];
        for (place, len) in stored.iter_mut().zip(shape) {
            *place = *len;
        }
        Some(Self {
            element_type,
            shape: stored,
            dimensions: u8::try_from(shape.len()).ok()?,
            bytes,
        })
    }

    /// The type of the elements.
    pub const fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// The length in each dimension.
    pub fn shape(&self) -> &[u32] {
        let count = usize::from(self.dimensions);
        self.shape.get(..count).or_default_if_bug()
    }

    /// The bytes of the elements.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        let item_len = self.element_type.item_len();
        self.bytes.len().checked_div(item_len).or_default_if_bug()
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All elements in row-major order, converted to `f64`.
    pub fn to_f64s(&self) -> impl ExactSizeIterator<Item = f64> + Clone + use<'a> {
        let element_type = self.element_type;
        let items = self.bytes.chunks_exact(element_type.item_len().max(1));
        items.map(move |item| element(element_type, item).to_f64().unwrap_or_default())
    }
}

/// The length of an array in bytes.
pub(super) fn array_len(element_type: ElementType, shape: &[u32]) -> Option<usize> {
    if shape.len() > MAX_DIMENSIONS {
        return None;
    }
    let mut len = element_type.item_len();
    for dimension in shape {
        len = len.checked_mul(usize::try_from(*dimension).ok()?)?;
    }
    Some(len)
}

/// One element of an array as a number.
pub(super) fn element(element_type: ElementType, item: &[u8]) -> Value<'static> {
    let mut bytes = [0; 8];
    crate::copy(&mut bytes, item);
    let raw = u64::from_le_bytes(bytes);
    // Shift to the left and back to extend the sign.
    let unused = 64_u32.saturating_sub(u32::from(element_type.len).wrapping_mul(8));
    let signed = raw.wrapping_shl(unused).cast_signed().wrapping_shr(unused);
    match (element_type.kind, element_type.len) {
        (b'f', 4) => {
            let [a, b, c, d, ..] = bytes;
            Value::Float(f32::from_le_bytes([a, b, c, d]).into())
        }
        (b'f', _) => Value::Float(f64::from_le_bytes(bytes)),
        (b'b', _) => Value::Bool(raw != 0),
        (b'i', _) => Value::Int(signed),
        // At most 32 bits.
        _ => Value::Int(raw.cast_signed()),
    }
}

/// The strides of an array in row-major order.
pub(super) fn row_major(
    element_type: ElementType,
    shape: &[u32],
) -> impl Iterator<Item = i64> + use<'_> {
    let item_len = i64::from(element_type.len);
    (1..=shape.len()).map(move |after| {
        let inner = shape.get(after..).or_default_if_bug();
        inner
            .iter()
            .fold(item_len, |stride, len| stride.saturating_mul((*len).into()))
    })
}
