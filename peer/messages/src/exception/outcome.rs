//! The return values of a worker's functions.

use super::RemoteError;
use crate::value::{IntoValue, Value};

/// A function's return value: a type with [`IntoValue`], or a [`Result`] of it. An error of
/// the conversion, as of an array with too many dimensions, is the error of the task.
pub trait Outcome {
    /// Converts into the result of a task.
    ///
    /// # Errors
    ///
    /// The function's error, if it returned one, or that of the conversion.
    fn into_result(self) -> Result<Value, RemoteError>;
}

impl<T: IntoValue> Outcome for T {
    fn into_result(self) -> Result<Value, RemoteError> {
        self.into_value().map_err(RemoteError::of_error)
    }
}

impl<T, E> Outcome for Result<T, E>
where
    T: IntoValue,
    E: Into<Box<dyn core::error::Error + Send + Sync>>,
{
    fn into_result(self) -> Result<Value, RemoteError> {
        self.map_err(|error| RemoteError::of_error(error.into()))?
            .into_result()
    }
}
