//! Futures whose results have a type of Rust.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::time::Duration;

use daskwire_comm::BoxFuture;
use daskwire_messages::Value;
use daskwire_messages::graph::{Argument, Arguments, Function};

use super::{Client, SubmitError, TaskError, TaskFuture};

/// A type that a [`Value`] converts into, with any error.
///
/// It is implemented for all types with `TryFrom<Value>`: numbers, strings, arrays, containers of
/// these, with features those of other crates, and `Serde<T>`.
#[diagnostic::on_unimplemented(
    message = "a result cannot be converted into `{Self}`",
    note = "results are converted by `TryFrom<Value>`: into numbers, `String`, `Array`, vectors, options, \
            tuples and maps of these, and with features into types of other crates",
    note = "with the feature `serde`, `TaskFuture::deserialize` converts into any type with `Deserialize`"
)]
pub trait FromResult: Sized {
    /// Converts the value of a result.
    ///
    /// # Errors
    ///
    /// That of the conversion.
    fn from_result(value: Value) -> Result<Self, Box<dyn core::error::Error + Send + Sync>>;
}

#[diagnostic::do_not_recommend]
impl<T> FromResult for T
where
    T: TryFrom<Value, Error: Into<Box<dyn core::error::Error + Send + Sync>>>,
{
    fn from_result(value: Value) -> Result<Self, Box<dyn core::error::Error + Send + Sync>> {
        Self::try_from(value).map_err(Into::into)
    }
}

/// A handle on a result that is a `T`: a [`TaskFuture`] that also knows the type, see
/// [`Client::submit_as`]. Awaiting it fetches the result, and converts it.
pub struct TypedFuture<T> {
    future: TaskFuture,
    result: PhantomData<fn() -> T>,
}

impl<T> TypedFuture<T> {
    /// The handle without the type.
    pub fn into_untyped(self) -> TaskFuture {
        self.future
    }
}

impl<T: FromResult> TypedFuture<T> {
    /// Waits for the result, fetches and converts it, as [`TaskFuture::result_as`]. Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`TaskFuture::result_as`].
    pub async fn result(&self) -> Result<T, TaskError> {
        self.future.result_as().await
    }

    /// Like [`result`](Self::result), with a timeout.
    ///
    /// # Errors
    ///
    /// As [`result`](Self::result), and [`TaskError::Timeout`].
    pub async fn result_within(&self, timeout: Duration) -> Result<T, TaskError> {
        let value = self.future.result_within(timeout).await?;
        self.future.converted(value)
    }
}

impl<T> Deref for TypedFuture<T> {
    type Target = TaskFuture;

    fn deref(&self) -> &TaskFuture {
        &self.future
    }
}

impl<T> Clone for TypedFuture<T> {
    fn clone(&self) -> Self {
        Self {
            future: self.future.clone(),
            result: PhantomData,
        }
    }
}

impl<T> fmt::Debug for TypedFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.future.fmt(f)
    }
}

/// Waits for the result, fetches and converts it.
impl<T: FromResult + 'static> IntoFuture for TypedFuture<T> {
    type Output = Result<T, TaskError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.result().await })
    }
}

/// Waits for the result, fetches and converts it.
impl<'f, T: FromResult + 'static> IntoFuture for &'f TypedFuture<T> {
    type Output = Result<T, TaskError>;
    type IntoFuture = BoxFuture<'f, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.result())
    }
}

/// Uses the task's result as an argument of another task, which holds it.
impl<T> From<&TypedFuture<T>> for Argument {
    fn from(future: &TypedFuture<T>) -> Self {
        Self::from(&future.future)
    }
}

/// Uses the task's result as an argument of another task, which holds it.
impl<T> From<TypedFuture<T>> for Argument {
    fn from(future: TypedFuture<T>) -> Self {
        Self::from(future.future)
    }
}

/// The task's result as the only argument of a call.
impl<T> Arguments for &TypedFuture<T> {
    fn into_arguments(self) -> Vec<Argument> {
        vec![self.into()]
    }
}

/// The task's result as the only argument of a call.
impl<T> Arguments for TypedFuture<T> {
    fn into_arguments(self) -> Vec<Argument> {
        vec![self.into()]
    }
}

impl TaskFuture {
    /// Adds the type of the result, to which it is converted when the future is awaited.
    pub const fn typed<T: FromResult>(self) -> TypedFuture<T> {
        TypedFuture {
            future: self,
            result: PhantomData,
        }
    }

    /// Waits for the result, fetches it, and converts it into any type with `TryFrom<Value>`. Cancel
    /// safe.
    ///
    /// ```no_run
    /// # use daskwire_peer::client::{Client, TaskError};
    /// # async fn example(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let counts = client.submit("collections.Counter", ["abracadabra"])?;
    /// let counts: std::collections::HashMap<char, u32> = counts.result_as().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With the feature `serde`, `deserialize` converts into types with `Deserialize`.
    ///
    /// # Errors
    ///
    /// As [`result`](Self::result), and [`TaskError::Type`] if the result is of
    /// another type.
    pub async fn result_as<T: FromResult>(&self) -> Result<T, TaskError> {
        let value = self.result().await?;
        self.converted(value)
    }

    /// The result as another type.
    fn converted<T: FromResult>(&self, value: Value) -> Result<T, TaskError> {
        T::from_result(value).map_err(|error| TaskError::Type {
            key: self.key().clone(),
            error: error.into(),
        })
    }
}

impl Client {
    /// Calls a function on the cluster as [`submit`](Self::submit) does. Awaiting the future converts
    /// the result:
    ///
    /// ```no_run
    /// # use daskwire_peer::Client;
    /// # async fn example(client: &Client) -> Result<(), daskwire_peer::Error> {
    /// let root = client.submit_as::<f64>("math.sqrt", 2.0)?;
    /// let half: f64 = client.submit_as("operator.truediv", (&root, 2))?.await?;
    /// assert_eq!(half, root.await? / 2.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub fn submit_as<T: FromResult>(
        &self,
        function: impl Into<Function>,
        arguments: impl Arguments,
    ) -> Result<TypedFuture<T>, SubmitError> {
        self.submit(function, arguments).map(TaskFuture::typed)
    }
}
