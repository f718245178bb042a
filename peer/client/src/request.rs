//! Requests to the scheduler that have no method of their own.

use daskwire_messages::protocol::{Request, WorkerNames};
use daskwire_messages::value::{IntoValue, ValueError, WrongType};
use daskwire_messages::{Key, Value};
use daskwire_rpc::RequestError;

use super::Client;
use super::operation::Operation;
use super::shared::Shared;

/// Converts a value of the program for a request.
pub(super) fn value_of(value: impl IntoValue) -> Result<Value, RequestError> {
    let value = value.into_value();
    value.map_err(|error| RequestError::unserializable(ValueError::of_conversion(&*error)))
}

/// The workers that a request is about. Converts from addresses:
///
/// ```
/// use daskwire_peer::client::Workers;
/// assert_eq!(Workers::from("tcp://10.0.0.8:40331"), ["tcp://10.0.0.8:40331"].into());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Workers {
    /// All workers of the cluster.
    #[default]
    All,
    /// The workers with these addresses.
    Only(Vec<String>),
}

impl Workers {
    /// Converts to the field of a message, which is absent if all workers are meant.
    pub(super) fn into_field(self) -> Option<WorkerNames> {
        match self {
            Self::All => None,
            Self::Only(workers) => Some(workers.into()),
        }
    }
}

impl From<&str> for Workers {
    fn from(worker: &str) -> Self {
        Self::Only(vec![worker.to_owned()])
    }
}

impl From<String> for Workers {
    fn from(worker: String) -> Self {
        Self::Only(vec![worker])
    }
}

impl<W: Into<String>> From<Vec<W>> for Workers {
    fn from(workers: Vec<W>) -> Self {
        Self::Only(workers.into_iter().map(Into::into).collect())
    }
}

impl<W: Into<String>, const N: usize> From<[W; N]> for Workers {
    fn from(workers: [W; N]) -> Self {
        Self::Only(workers.into_iter().map(Into::into).collect())
    }
}

impl<W: Clone + Into<String>> From<&[W]> for Workers {
    fn from(workers: &[W]) -> Self {
        Self::Only(workers.iter().cloned().map(Into::into).collect())
    }
}

/// Converts a reply, or a part of it.
pub(super) fn converted<T>(op: &str, value: Value) -> Result<T, RequestError>
where
    T: TryFrom<Value>,
    T::Error: Into<WrongType>,
{
    T::try_from(value).map_err(|error| RequestError::Reply {
        op: op.into(),
        error: Box::new(error.into()),
    })
}

/// Reads a key in a reply. Values of messages are nested 100 levels at most, which
/// bounds the recursion.
pub(super) fn key_of(op: &str, value: &Value) -> Result<Key, RequestError> {
    Ok(match value {
        Value::Int(number) => match i64::try_from(*number) {
            Ok(number) => Key::from(number),
            Err(_) => Key::from(number.to_string()),
        },
        Value::Float(number) => Key::from(*number),
        Value::Bytes(data) => Key::from(&data[..]),
        Value::List(parts) => {
            let parts = parts.iter().map(|part| key_of(op, part));
            Key::list(parts.collect::<Result<Vec<_>, _>>()?)
        }
        other => Key::from(converted::<String>(op, other.clone())?),
    })
}

impl Shared {
    /// Returns an error if the client does not support an operation with the scheduler's
    /// release.
    pub(super) fn needs(&self, operation: Operation) -> Result<(), RequestError> {
        let release = self.lock().state.release();
        operation.check(release)
    }
}

impl Client {
    /// Sends a request to the scheduler, and returns its reply: one of the typed
    /// messages of [`protocol`](daskwire_messages::protocol), or any other as
    /// [`Unknown`](daskwire_messages::protocol::Unknown).
    ///
    /// ```no_run
    /// # async fn example(client: &daskwire_peer::Client) -> Result<(), daskwire_peer::RequestError> {
    /// use daskwire_peer::Value;
    /// use daskwire_messages::protocol::Unknown;
    ///
    /// let target = Unknown::new("adaptive_target").field("target_duration", "5s");
    /// let target: i64 = client.request(target).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// There is no timeout. A Dask scheduler replies `None` to an unknown op, and logs
    /// the op. Cancel safe for requests without effects.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Remote`] if the request raises an exception;
    /// * [`RequestError::Reply`] if the reply is not a `T`;
    /// * other errors if the scheduler does not answer.
    pub async fn request<T>(&self, request: impl Into<Request>) -> Result<T, RequestError>
    where
        T: TryFrom<Value>,
        T::Error: Into<WrongType>,
    {
        let request = request.into();
        let reply = self.shared.reply(&request).await?;
        converted(request.op(), reply)
    }
}
