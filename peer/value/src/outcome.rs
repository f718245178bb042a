//! The return values of a worker's functions.

use core::error::Error;

use crate::{IntoValue, Value};

/// A function's return value: a type with [`IntoValue`], or a [`Result`] of it. An error of
/// the conversion, as of an array with too many dimensions, is the error of the task.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a function",
    note = "a function returns a type with `IntoValue`: numbers, `String`, `Value`, `Array`, options, \
            vectors, tuples and maps of these, `()`, with features types of other crates and `Serde<T>`; or \
            a `Result` of it, whose error converts into `Box<dyn Error + Send + Sync>`",
    note = "implement `IntoValue` for a type of your own"
)]
pub trait Outcome {
    /// Converts into the result of a task.
    ///
    /// # Errors
    ///
    /// The function's error, if it returned one, or that of the conversion.
    fn into_result(self) -> Result<Value, Box<dyn Error + Send + Sync>>;
}

#[diagnostic::do_not_recommend]
impl<T: IntoValue> Outcome for T {
    fn into_result(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        self.into_value()
    }
}

#[diagnostic::do_not_recommend]
impl<T, E> Outcome for Result<T, E>
where
    T: IntoValue,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn into_result(self) -> Result<Value, Box<dyn Error + Send + Sync>> {
        self.map_err(Into::into)?.into_value()
    }
}
