//! Conversion of arrays to views of ndarray 0.17.

use bytemuck::Pod;
use daskwire::invariant::OrDefaultIfBug;
use ndarray_017::{ArrayViewD, IxDyn, ShapeBuilder as _};

use super::{Array, DimensionsError, Element, NumpyError, NumpyErrorKind};

impl<'d, const MAX: usize> Array<'d, MAX> {
    /// The array as a view of ndarray 0.17, without copying.
    ///
    /// ```
    /// use daskwire_numpy::{Array, ByteOrder, Element, Order, NumpyError, as_bytes};
    ///
    /// let values = [1.0_f64, 2.0, 3.0, 4.0, 5.0, 6.0];
    /// let dtype = f64::dtype(ByteOrder::NATIVE);
    /// let array = Array::new(dtype, &[2, 3], Order::Fortran, as_bytes(&values))?;
    /// let view = array.to_ndarray_017::<f64>()?;
    /// assert_eq!(view[[1, 0]], 2.0);
    /// assert_eq!(view.as_ptr(), values.as_ptr());
    /// # Ok::<(), NumpyError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// * as [`memory_slice`](Self::memory_slice);
    /// * [`NumpyErrorKind::Dimensions`] with [`DimensionsError::NotContiguous`]
    ///   if strides are not multiples of the element size, or ndarray refuses
    ///   them.
    pub fn to_ndarray_017<E: Element + Pod>(&self) -> Result<ArrayViewD<'d, E>, NumpyError> {
        let elements = self.memory_slice::<E>()?;
        let not_contiguous =
            NumpyError::of_value(NumpyErrorKind::Dimensions(DimensionsError::NotContiguous));
        let mut strides = IxDyn(self.strides());
        let slice = ndarray_017::Dimension::slice_mut(&mut strides);
        for (stride, count) in slice.iter_mut().zip(self.shape()) {
            // The stride leads to no other element; that of a field of a record
            // may be no multiple of the element size.
            if *count <= 1 {
                *stride = 0;
            }
            // Elements are not empty, since their length is that of `E`.
            if stride.checked_rem(size_of::<E>()) != Some(0) {
                return Err(not_contiguous);
            }
            *stride = stride.checked_div(size_of::<E>()).or_default_if_bug();
        }
        ArrayViewD::from_shape(IxDyn(self.shape()).strides(strides), elements)
            .map_err(|_| not_contiguous)
    }
}
