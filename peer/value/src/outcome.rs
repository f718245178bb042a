//! The return values of a worker's functions.

use core::error::Error;

use crate::{IntoValue, Value};

/// A function's return value: a type with [`IntoValue`], or a [`Result`] of it. An error of
/// the conversion, as of an array with too many dimensions, is the error of the task.
pub trait Outcome {
    /// Converts into the result of a task.
    ///
    /// # Errors
    ///
    /// The function's error, if it returned one, or that of the conversion.
    fn into_result(self) -> Result<Value, Box<dyn Error + Send + Sync>>;
}

impl<T: IntoValue> Outcome for T {
    fn into_result(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        self.into_value()
    }
}

impl<T, E> Outcome for Result<T, E>
where
    T: IntoValue,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn into_result(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        self.map_err(Into::into)?.into_value()
    }
}
