//! Conversions from and to arrays of ndarray 0.17.

use daskwire_numpy::{Element, NumpyError, NumpyErrorKind};
use ndarray_017::{ArrayBase, Dimension, IxDyn, OwnedRepr};

use super::convert::options;
use super::into_value::into_value;
use super::{Array, Value, WrongType};

/// Converts an array. Its elements are not copied if they are in row-major order.
/// Fails for more than 64 dimensions.
///
/// ```
/// use daskwire_value::{Array, Value};
/// use ndarray_017::{Array2, array};
/// let matrix = array![[1.0, 2.0], [3.0, 4.0]];
/// let value = Value::try_from(matrix.clone())?;
/// assert_eq!(Array2::<f64>::try_from(value)?, matrix);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<E, D> TryFrom<ArrayBase<OwnedRepr<E>, D>> for Array
where
    E: Element,
    D: Dimension,
{
    type Error = NumpyError;

    fn try_from(array: ArrayBase<OwnedRepr<E>, D>) -> Result<Self, NumpyError> {
        let shape = array.shape().to_vec();
        let count = array.len();
        if !array.is_standard_layout() {
            let elements: Vec<E> = array.iter().copied().collect();
            return Self::from_vec(&shape, elements);
        }
        // The vector may have more elements than the array.
        let (mut elements, offset) = array.into_raw_vec_and_offset();
        elements.drain(..offset.unwrap_or_default().min(elements.len()));
        elements.truncate(count);
        Self::from_vec(&shape, elements)
    }
}

/// Converts as for [`Array`].
impl<E, D> TryFrom<ArrayBase<OwnedRepr<E>, D>> for Value
where
    E: Element,
    D: Dimension,
{
    type Error = NumpyError;

    fn try_from(array: ArrayBase<OwnedRepr<E>, D>) -> Result<Self, NumpyError> {
        Array::try_from(array).map(Self::Array)
    }
}

/// Copies the elements of a numpy array. Fails if they are of another type, if the
/// number of dimensions differs, or if the array repeats so few bytes so often that
/// the copy would take far more memory.
impl<E: Element, D: Dimension> TryFrom<Value> for ArrayBase<OwnedRepr<E>, D> {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        let Value::Array(array) = &value else {
            return Err(WrongType::new("an array", &value));
        };
        let elements = array.to_vec::<E>().map_err(|error| match error.kind {
            NumpyErrorKind::OtherType { wanted, found } => WrongType {
                found: format!("array of {found}").into(),
                ..WrongType::new(format!("an array of {wanted}"), &value)
            },
            _ => WrongType {
                found: "array that repeats few elements".into(),
                ..WrongType::new("an array", &value)
            },
        })?;
        let shape = array.shape();
        let made = ArrayBase::from_shape_vec(IxDyn(shape), elements).ok();
        let made = made.and_then(|made| made.into_dimensionality::<D>().ok());
        made.ok_or_else(|| WrongType {
            found: format!("array of {} dimensions", shape.len()).into(),
            ..WrongType::new(
                format!("an array of {} dimensions", D::NDIM.unwrap_or_default()),
                &value,
            )
        })
    }
}

options! { {E: Element, D: Dimension} ArrayBase<OwnedRepr<E>, D>; }
into_value! { {E: Element, D: Dimension} ArrayBase<OwnedRepr<E>, D>; }
