//! Numpy arrays that own their data.

use std::sync::Arc;

use bytemuck::NoUninit;
use bytes::Bytes;
use daskwire_numpy::{
    ByteOrder, DType, Dimensions, Element, NumpyError, Order, as_bytes, encode_into,
};

/// A numpy array. Clones share its data.
///
/// ```
/// use daskwire_peer::Array;
/// let array = Array::from_slice(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!(array.shape(), [2, 3]);
/// assert_eq!(array.to_vec::<f64>()?.iter().sum::<f64>(), 21.0);
/// # Ok::<(), daskwire_numpy::NumpyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    data: Bytes,
    /// Boxed, because it is large.
    form: Arc<Form>,
}

/// The properties of an array besides its data.
#[derive(Clone, Debug, PartialEq)]
struct Form {
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
    /// use daskwire_peer::Array;
    /// let array = Array::from_vec(&[3], vec![1_i64, 2, 3])?;
    /// assert_eq!(array.view()?.memory_slice::<i64>()?, [1, 2, 3]);
    /// # Ok::<(), daskwire_numpy::NumpyError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the number of elements does not match `shape`.
    pub fn from_vec<E: Element + NoUninit + Send>(
        shape: &[usize],
        elements: Vec<E>,
    ) -> Result<Self, NumpyError> {
        let dtype = E::dtype(ByteOrder::NATIVE);
        Self::from_bytes(
            dtype,
            shape,
            Order::C,
            Bytes::from_owner(Elements(elements)),
        )
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
        let form = Arc::new(Form {
            dtype,
            dimensions,
            writeable: Some(true),
            is_matrix: false,
        });
        Ok(Self { data, form })
    }

    /// Copies the properties of `view`, whose bytes are `data`.
    pub(super) fn of_view(view: &daskwire_numpy::Array<'_>, data: &Bytes) -> Self {
        Self {
            data: data.slice_ref(view.bytes()),
            form: Arc::new(Form {
                dtype: view.dtype(),
                dimensions: *view.dimensions(),
                writeable: view.writeable(),
                is_matrix: view.is_matrix(),
            }),
        }
    }

    /// The address of the shared properties.
    pub(super) fn form_at(&self) -> usize {
        Arc::as_ptr(&self.form).addr()
    }

    /// Sets whether Python may change the array.
    #[must_use]
    pub fn with_writeable(mut self, writeable: bool) -> Self {
        Arc::make_mut(&mut self.form).writeable = Some(writeable);
        self
    }

    /// A borrowed view of the array.
    ///
    /// # Errors
    ///
    /// None in practice: the properties were checked when the array was made.
    pub fn view(&self) -> Result<daskwire_numpy::Array<'_>, NumpyError> {
        let view = daskwire_numpy::Array::with_dimensions(
            self.form.dtype,
            self.form.dimensions,
            &self.data,
        )?;
        Ok(match self.form.writeable {
            Some(writeable) => view.with_writeable(writeable),
            None => view,
        })
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.form.dtype
    }

    /// The length of each dimension.
    pub fn shape(&self) -> &[usize] {
        self.form.dimensions.shape()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.form.dimensions.item_count().unwrap_or_default()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether Python may change the array; `None` if the sender did not declare it.
    pub fn writeable(&self) -> Option<bool> {
        self.form.writeable
    }

    /// Whether the array is a `numpy.matrix`.
    pub fn is_matrix(&self) -> bool {
        self.form.is_matrix
    }

    /// The bytes of the array in memory order.
    pub const fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// Copies the elements in row-major order.
    ///
    /// # Errors
    ///
    /// If the elements are of another type.
    pub fn to_vec<E: Element>(&self) -> Result<Vec<E>, NumpyError> {
        Ok(self.view()?.elements::<E>()?.collect())
    }
}
