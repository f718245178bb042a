//! Numpy arrays that own their data.

use core::fmt;

use std::sync::Arc;

use bytemuck::NoUninit;
use bytes::Bytes;
use daskwire_numpy::{
    ByteOrder, DType, Dimensions, Element, Kind, NumpyError, Order, TimeBase, TimeUnit, as_bytes,
    encode_into,
};

use super::{Object, Value, ValueError};
use crate::brief::Data;

/// A numpy array. Clones share its data.
///
/// ```
/// use daskwire_value::Array;
/// let array = Array::from_slice(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!(array.shape(), [2, 3]);
/// assert_eq!(array.to_vec::<f64>()?.iter().sum::<f64>(), 21.0);
/// # Ok::<(), daskwire_numpy::NumpyError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Array {
    data: Bytes,
    /// The properties, which are large, and shared by clones.
    properties: Arc<Properties>,
}

/// Formats the properties, and the first bytes of the data.
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array")
            .field("data", &Data(&self.data))
            .field("properties", &self.properties)
            .finish()
    }
}

/// The properties of an array besides its data.
#[derive(Clone, Debug, PartialEq)]
struct Properties {
    dtype: DType,
    dimensions: Dimensions,
    writeable: Option<bool>,
    is_matrix: bool,
}

/// Owned elements, viewed as bytes.
struct Elements<E>(Vec<E>);

impl<E: Element + NoUninit> AsRef<[u8]> for Elements<E> {
    fn as_ref(&self) -> &[u8] {
        as_bytes(&self.0)
    }
}

impl Array {
    /// Copies elements in row-major order, numpy's default.
    /// [`from_vec`](Self::from_vec) does not copy.
    ///
    /// # Errors
    ///
    /// If the number of elements does not match `shape`.
    pub fn from_slice<E: Element>(shape: &[usize], elements: &[E]) -> Result<Self, NumpyError> {
        let dtype = E::dtype(ByteOrder::Little);
        let mut data = vec![0; elements.len().saturating_mul(dtype.item_len())];
        encode_into(elements, &mut data)?;
        Self::from_bytes(dtype, shape, Order::C, data.into())
    }

    /// Like [`from_slice`](Self::from_slice), without copying. The array also
    /// keeps the vector's unused capacity.
    ///
    /// ```
    /// use daskwire_value::Array;
    /// let array = Array::from_vec(&[3], vec![1_i64, 2, 3])?;
    /// assert_eq!(array.view()?.memory_slice::<i64>()?, [1, 2, 3]);
    /// # Ok::<(), daskwire_numpy::NumpyError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the number of elements does not match `shape`.
    pub fn from_vec<E: Element>(shape: &[usize], elements: Vec<E>) -> Result<Self, NumpyError> {
        let dtype = E::dtype(ByteOrder::NATIVE);
        let elements = Elements(E::into_native(elements));
        Self::from_bytes(dtype, shape, Order::C, Bytes::from_owner(elements))
    }

    /// Makes an array from the bytes of its elements in row-major order.
    ///
    /// # Errors
    ///
    /// If the length of `data` does not match `shape` and `dtype`.
    pub fn from_bytes(
        dtype: DType,
        shape: &[usize],
        order: Order,
        data: Bytes,
    ) -> Result<Self, NumpyError> {
        let dimensions = *daskwire_numpy::Array::new(dtype, shape, order, &data)?.dimensions();
        let properties = Arc::new(Properties {
            dtype,
            dimensions,
            writeable: Some(true),
            is_matrix: false,
        });
        Ok(Self { data, properties })
    }

    /// Copies the properties of `view`. `data` are its bytes, or a copy of them.
    pub(super) fn of_view(view: &daskwire_numpy::Array<'_>, data: Bytes) -> Self {
        debug_assert_eq!(data.len(), view.bytes().len());
        Self {
            data,
            properties: Arc::new(Properties {
                dtype: view.dtype(),
                dimensions: *view.dimensions(),
                writeable: view.writeable(),
                is_matrix: view.is_matrix(),
            }),
        }
    }

    /// The address of the shared properties.
    pub(super) fn properties_address(&self) -> usize {
        Arc::as_ptr(&self.properties).addr()
    }

    /// Sets whether Python may change the array.
    #[must_use]
    pub fn with_writeable(mut self, writeable: bool) -> Self {
        Arc::make_mut(&mut self.properties).writeable = Some(writeable);
        self
    }

    /// A borrowed view of the array.
    ///
    /// # Errors
    ///
    /// Never in practice: the properties were checked when the array was made.
    pub fn view(&self) -> Result<daskwire_numpy::Array<'_>, NumpyError> {
        let view = daskwire_numpy::Array::with_dimensions(
            self.properties.dtype,
            self.properties.dimensions,
            &self.data,
        )?;
        Ok(match self.properties.writeable {
            Some(writeable) => view.with_writeable(writeable),
            None => view,
        })
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.properties.dtype
    }

    /// The length of each dimension.
    pub fn shape(&self) -> &[usize] {
        self.properties.dimensions.shape()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.properties
            .dimensions
            .item_count()
            .expect("checked when it was made")
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether Python may change the array; `None` if the sender did not declare it.
    pub fn writeable(&self) -> Option<bool> {
        self.properties.writeable
    }

    /// Whether the array is a `numpy.matrix`.
    pub fn is_matrix(&self) -> bool {
        self.properties.is_matrix
    }

    /// The bytes of the array in memory order.
    pub const fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// Copies the elements in row-major order.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherType`](daskwire_numpy::NumpyErrorKind::OtherType) if
    ///   the elements are of another type;
    /// * [`DimensionsError::Repetitive`](daskwire_numpy::DimensionsError::Repetitive)
    ///   if the array repeats so few bytes so often that the vector would take far more
    ///   memory. The elements of [`view`](Self::view) have no such limit.
    pub fn to_vec<E: Element>(&self) -> Result<Vec<E>, NumpyError> {
        let view = self.view()?;
        let elements = view.elements::<E>()?;
        view.check_repetition()?;
        Ok(elements.collect())
    }

    /// The elements as nested lists, as numpy's `tolist()` returns them; an array
    /// without dimensions as its element.
    ///
    /// ```
    /// use daskwire_value::Array;
    /// let array = Array::from_slice(&[2, 2], &[1_i32, 2, 3, 4])?;
    /// assert_eq!(array.to_value()?.to_string(), "[[1, 2], [3, 4]]");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * [`ValueError::Unknown`] if elements of this type have no counterpart in
    ///   [`Value`]: void elements, `long double`;
    /// * [`ValueError::TooLarge`] if the array repeats so few bytes so often that
    ///   the list would take far more memory.
    pub fn to_value(&self) -> Result<Value, ValueError> {
        let shape = self.shape();
        if self.view()?.check_repetition().is_err() {
            return Err(ValueError::TooLarge);
        }
        let mut values = self.element_values()?;
        for (axis, len) in shape.iter().enumerate().rev() {
            let outer: usize = shape.get(..axis).unwrap_or_default().iter().product();
            let mut left = values.into_iter();
            let lists = (0..outer).map(|_| Value::List(left.by_ref().take(*len).collect()));
            values = lists.collect();
        }
        Ok(values.pop().unwrap_or_default())
    }

    /// The elements in row-major order.
    pub(super) fn element_values(&self) -> Result<Vec<Value>, ValueError> {
        let view = self.view()?;
        let dtype = self.dtype();
        fn all<E: Element + Into<Value>>(
            view: &daskwire_numpy::Array<'_>,
        ) -> Result<Vec<Value>, ValueError> {
            Ok(view.elements::<E>()?.map(Into::into).collect())
        }
        match (dtype.kind(), dtype.item_len()) {
            (Kind::Bool, _) => all::<bool>(&view),
            (Kind::Int, 1) => all::<i8>(&view),
            (Kind::Int, 2) => all::<i16>(&view),
            (Kind::Int, 4) => all::<i32>(&view),
            (Kind::Int, 8) => all::<i64>(&view),
            (Kind::UInt, 1) => all::<u8>(&view),
            (Kind::UInt, 2) => all::<u16>(&view),
            (Kind::UInt, 4) => all::<u32>(&view),
            (Kind::UInt, 8) => all::<u64>(&view),
            (Kind::Float, 4) => all::<f32>(&view),
            (Kind::Float, 8) => all::<f64>(&view),
            _ => view.items().map(|item| element(dtype, item)).collect(),
        }
    }
}

/// The value of an element of the less frequent types.
pub(super) fn element(dtype: DType, item: &[u8]) -> Result<Value, ValueError> {
    let one = daskwire_numpy::Array::new(dtype, &[], Order::C, item)?;
    let is_little = dtype.with_order(ByteOrder::Little) == dtype;
    Ok(match (dtype.kind(), dtype.item_len()) {
        (Kind::Float, 2) => {
            let bytes = item.first_chunk().copied().unwrap_or_default();
            Value::Float(half(if is_little {
                u16::from_le_bytes(bytes)
            } else {
                u16::from_be_bytes(bytes)
            }))
        }
        (Kind::Complex, 8) => {
            let [real, imaginary] = one.elements::<[f32; 2]>()?.next().unwrap_or_default();
            Value::Complex(real.into(), imaginary.into())
        }
        (Kind::Complex, 16) => {
            let [real, imaginary] = one.elements::<[f64; 2]>()?.next().unwrap_or_default();
            Value::Complex(real, imaginary)
        }
        // Strip the padding with zeros, as numpy does.
        (Kind::Bytes, _) => {
            let len = item.iter().rposition(|byte| *byte != 0);
            let len = len.map_or(0, |last| last.saturating_add(1));
            Value::bytes(item.get(..len).unwrap_or_default().to_vec())
        }
        (Kind::Str, _) => {
            let characters = item.as_chunks::<4>().0.iter().map(|code| {
                let code = if is_little {
                    u32::from_le_bytes(*code)
                } else {
                    u32::from_be_bytes(*code)
                };
                char::from_u32(code)
            });
            let string: Option<String> = characters.collect();
            let string = string.ok_or_else(|| ValueError::Unknown {
                what: "a string with half a surrogate pair".to_owned(),
            })?;
            Value::from(string.trim_end_matches('\0'))
        }
        (Kind::Datetime(unit), _) => time("datetime64", unit, &one)?,
        (Kind::Timedelta(unit), _) => time("timedelta64", unit, &one)?,
        _ => {
            return Err(ValueError::Unknown {
                what: format!("an element of the type {dtype}"),
            });
        }
    })
}

/// The value of a `datetime64` or `timedelta64` element.
fn time(name: &str, unit: TimeUnit, one: &daskwire_numpy::Array<'_>) -> Result<Value, ValueError> {
    let number = match one.elements::<i64>()?.next() {
        None | Some(i64::MIN) => Value::from("NaT"),
        Some(number) => Value::from(number),
    };
    let unit = match (unit.base, unit.count) {
        (TimeBase::Generic, _) => "generic".to_owned(),
        (base, 1) => base.name().to_owned(),
        (base, count) => format!("{count}{}", base.name()),
    };
    Ok(Object::new("numpy", name, [number, Value::from(unit)]).into())
}

/// The value of a float of 16 bits.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2_f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        exponent => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent.wrapping_sub(15)),
    }
}
