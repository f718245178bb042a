//! Access to native elements without copying.

use bytemuck::{NoUninit, Pod};
use daskwire::invariant::OrDefaultIfBug;

use super::{Array, Element, NumpyError, NumpyErrorKind};

impl<'d, const MAX: usize> Array<'d, MAX> {
    /// The elements in memory [order](Self::order) as a slice, without copying
    /// and without repetitions.
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::OtherType`] if `E` is not the type of the elements;
    /// * [`NumpyErrorKind::NotNative`] if they have the other byte order or
    ///   are not aligned for `E`; use [`decode_into`](Self::decode_into) to
    ///   copy them.
    pub fn memory_slice<E: Element + Pod>(&self) -> Result<&'d [E], NumpyError> {
        // Checks the type.
        let _ = self.memory_elements::<E>()?;
        let not_native = NumpyError::of_value(NumpyErrorKind::NotNative);
        if !self.dtype().is_native() {
            return Err(not_native);
        }
        if self.bytes().is_empty() {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(self.bytes()).map_err(|_| not_native)
    }
}

/// The bytes of native elements without copying, as data for an [`Array`] of
/// [`Element::dtype`] in [`ByteOrder::NATIVE`](super::ByteOrder::NATIVE).
///
/// ```
/// use daskwire_numpy::{Array, ByteOrder, Element, Order, NumpyError, as_bytes};
///
/// let values = [1.0_f64, 2.0, 3.0];
/// let dtype = f64::dtype(ByteOrder::NATIVE);
/// let array = Array::new(dtype, &[3], Order::C, as_bytes(&values))?;
/// assert_eq!(array.memory_slice::<f64>()?.as_ptr(), values.as_ptr());
/// # Ok::<(), NumpyError>(())
/// ```
pub fn as_bytes<E: Element + NoUninit>(elements: &[E]) -> &[u8] {
    bytemuck::try_cast_slice(elements).or_default_if_bug()
}
