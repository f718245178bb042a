//! What functions of a worker return.

use crate::{RemoteError, Value};

/// A function's return value: anything that converts into a [`Value`], or a
/// [`Result`] of it.
pub trait Outcome {
    /// Converts into a worker's result.
    ///
    /// # Errors
    ///
    /// The function's error, if it returned one.
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

#[cfg(feature = "serde")]
impl<T: serde::Serialize> Outcome for crate::value::Serde<T> {
    fn into_result(self) -> Result<Value, RemoteError> {
        Value::from_serialize(&self.0).map_err(|error| RemoteError::of_error(error.into()))
    }
}

#[cfg(feature = "serde")]
impl<T, E> Outcome for Result<crate::value::Serde<T>, E>
where
    T: serde::Serialize,
    E: Into<Box<dyn core::error::Error + Send + Sync>>,
{
    fn into_result(self) -> Result<Value, RemoteError> {
        self.map_err(|error| RemoteError::of_error(error.into()))?
            .into_result()
    }
}
