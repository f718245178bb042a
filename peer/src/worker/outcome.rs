//! The return values of a worker's functions.

use crate::{RemoteError, Value};

/// A function's return value: anything that converts into a [`Value`], or a
/// [`Result`] of it. An error of the conversion, as of an array with too many
/// dimensions, is the error of the task.
pub trait Outcome {
    /// Converts into the result of a task.
    ///
    /// # Errors
    ///
    /// The function's error, if it returned one, or that of the conversion.
    fn into_result(self) -> Result<Value, RemoteError>;
}

impl<T> Outcome for T
where
    Value: From<T>,
{
    fn into_result(self) -> Result<Value, RemoteError> {
        Ok(self.into())
    }
}

impl<T, E> Outcome for Result<T, E>
where
    Value: From<T>,
    E: Into<Box<dyn core::error::Error + Send + Sync>>,
{
    fn into_result(self) -> Result<Value, RemoteError> {
        self.map(Into::into)
            .map_err(|error| RemoteError::of_error(error.into()))
    }
}

/// Outcomes of types whose conversion may fail; its error is that of the task.
#[cfg(any(feature = "arrow", feature = "ndarray-017", feature = "serde"))]
macro_rules! fallible {
    ({$($parameter:tt)*} $type:ty, $convert:expr) => {
        impl<$($parameter)*> Outcome for $type {
            fn into_result(self) -> Result<Value, RemoteError> {
                $convert(self).map_err(|error| RemoteError::of_error(error.into()))
            }
        }

        impl<$($parameter)* Error> Outcome for Result<$type, Error>
        where
            Error: Into<Box<dyn core::error::Error + Send + Sync>>,
        {
            fn into_result(self) -> Result<Value, RemoteError> {
                self.map_err(|error| RemoteError::of_error(error.into()))?
                    .into_result()
            }
        }
    };
}

#[cfg(feature = "serde")]
fallible!({T: serde::Serialize,} crate::value::Serde<T>, |value: Self| {
    Value::from_serialize(&value.0)
});

#[cfg(feature = "arrow")]
fallible!({} arrow_array::RecordBatch, Value::try_from);

#[cfg(feature = "ndarray-017")]
fallible!({
    T: daskwire_numpy::Element + bytemuck::NoUninit + Send,
    D: ndarray_017::Dimension,
} ndarray_017::ArrayBase<ndarray_017::OwnedRepr<T>, D>, Value::try_from);
