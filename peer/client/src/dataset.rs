//! Datasets: values and futures that clients publish by name.

use core::time::Duration;

use super::operation::Operation;
use super::request::{converted, key_of, value_of};
use super::shared::Shared;
use super::state::ClientInput;
use super::{Client, Status, TaskFuture};
use daskwire_comm::BoxFuture;
use daskwire_messages::graph::futures_pickle;
use daskwire_messages::protocol::{Keys, Unknown};
use daskwire_messages::{Key, Release, Serialized, Value};
use daskwire_rpc::RequestError;
use daskwire_value::IntoValue;

/// The first release that publishes several datasets at once.
const MANY_SINCE: Release = Release::new(2026, 6, 0);

/// A published dataset, see [`Client::dataset`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dataset {
    /// The object that was published. Futures in it are those of Python.
    pub data: Serialized,
    /// The futures in the object, in the order in which they were published.
    pub futures: Vec<TaskFuture>,
}

impl Client {
    /// Publishes a value by name. It is kept in the scheduler, for all clients, until it
    /// is [unpublished](Self::unpublish_dataset).
    ///
    /// # Errors
    ///
    /// * [`RequestError::Remote`] if the name is in use;
    /// * [`RequestError::Unsupported`] before 2022.1.0;
    /// * other errors if the value cannot be serialized or the scheduler does not answer.
    pub async fn publish_dataset(
        &self,
        name: impl Into<Key>,
        value: impl IntoValue,
    ) -> Result<(), RequestError> {
        let data = Serialized::with_pickling(&value_of(value)?, self.dialect().pickling);
        let data = data.map_err(RequestError::unserializable)?;
        self.publish(&name.into(), data, &[]).await
    }

    /// Publishes futures by name. A Python client gets a list of futures. The cluster
    /// keeps their results until the dataset is
    /// [unpublished](Self::unpublish_dataset).
    ///
    /// # Errors
    ///
    /// * [`RequestError::Missing`] if a task was cancelled or lost;
    /// * as [`publish_dataset`](Self::publish_dataset).
    pub async fn publish_futures(
        &self,
        name: impl Into<Key>,
        futures: &[TaskFuture],
    ) -> Result<(), RequestError> {
        let keys: Vec<_> = futures.iter().map(TaskFuture::key).collect();
        let pickle = futures_pickle(&keys).map_err(RequestError::unserializable)?;
        let data = Serialized::of_written_pickle(pickle);
        self.publish(&name.into(), data, futures).await
    }

    async fn publish(
        &self,
        name: &Key,
        data: Serialized,
        futures: &[TaskFuture],
    ) -> Result<(), RequestError> {
        self.shared.needs(Operation::DATASETS)?;
        // A scheduler confuses a request to hold a task with its submission if it has not
        // read the graph yet.
        for future in futures {
            self.shared.known("publish_put", future).await?;
        }
        let keys = Value::list(futures.iter().map(|future| future.key().to_value()));
        let (name, data) = (name.to_value(), Value::Serialized(data));
        let message = if self.has_many() {
            Unknown::new("publish_put")
                .field("names", Value::list([name]))
                .field("keys", Value::list([keys]))
                .field("data", Value::list([data]))
                .field("uid", self.flush()?)
        } else {
            Unknown::new("publish_put")
                .field("name", name)
                .field("keys", keys)
                .field("data", data)
        };
        let message = message
            .field("override", false)
            .field("client", &*self.shared.registered_id());
        let _: Value = self
            .shared
            .call("the scheduler to publish a dataset", message)
            .await?;
        Ok(())
    }

    /// Removes a dataset. Does nothing if no dataset has that name.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn unpublish_dataset(&self, name: impl Into<Key>) -> Result<(), RequestError> {
        self.shared.needs(Operation::DATASETS)?;
        let name = name.into().to_value();
        let message = Unknown::new("publish_delete");
        let message = if self.has_many() {
            message
                .field("names", Value::list([name]))
                .field("client", &*self.shared.registered_id())
                .field("uid", self.flush()?)
        } else {
            message.field("name", name)
        };
        let _: Value = self
            .shared
            .call("the scheduler to remove a dataset", message)
            .await?;
        Ok(())
    }

    /// Asks for the names of all datasets.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn list_datasets(&self) -> Result<Vec<Key>, RequestError> {
        const OP: &str = "publish_list";
        let names: Value = self.shared.call("datasets", Unknown::new(OP)).await?;
        let names: Vec<Value> = converted(OP, names)?;
        names.iter().map(|name| key_of(OP, name)).collect()
    }

    /// Fetches a dataset; `None` if no dataset has that name. The client holds the
    /// futures in the dataset. `get_dataset` in Dask.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn dataset(&self, name: impl Into<Key>) -> Result<Option<Dataset>, RequestError> {
        const OP: &str = "publish_get";
        self.shared.needs(Operation::DATASETS)?;
        let name = name.into().to_value();
        let message = Unknown::new(OP);
        let reply: Value = match self.has_many() {
            true => {
                let message = message.field("names", Value::list([name]));
                let reply = self.shared.call("a dataset", message).await?;
                converted::<Vec<Value>>(OP, reply)?
                    .pop()
                    .unwrap_or_default()
            }
            false => {
                let message = message
                    .field("name", name)
                    .field("client", &*self.shared.registered_id());
                self.shared.call("a dataset", message).await?
            }
        };
        if matches!(reply, Value::None) {
            return Ok(None);
        }
        let data = match reply.get("data") {
            Some(Value::Serialized(data)) => data.clone(),
            other => {
                let data = other.cloned().unwrap_or_default();
                Serialized::of(&data).map_err(RequestError::unserializable)?
            }
        };
        let keys = reply.get("keys").cloned().unwrap_or_default();
        let keys: Vec<Value> = converted(OP, keys)?;
        let mut futures = Vec::with_capacity(keys.len());
        for key in keys {
            let key = key_of(OP, &key)?;
            let keys = [key.clone()];
            futures.extend(self.shared.hold(ClientInput::Desire(key), &keys)?);
        }
        Ok(Some(Dataset { data, futures }))
    }

    fn has_many(&self) -> bool {
        self.release().is_none_or(|release| release >= MANY_SINCE)
    }

    /// Announces a request on the stream, so that the scheduler handles the request only
    /// after it has read all earlier messages. Returns the id that the request refers to.
    fn flush(&self) -> Result<String, RequestError> {
        let uid = daskwire_messages::key::identifier();
        let message = Unknown::new("publish_flush_batched_send").field("uid", uid.as_str());
        self.shared.tell(message)?;
        Ok(uid)
    }
}

impl Shared {
    /// Waits until the scheduler knows the task of a future, or the future is done. A request
    /// about an unknown task may never be answered.
    ///
    /// Returns [`RequestError::Missing`] for the request `op` if the future ended without a
    /// result and without an error.
    pub(super) fn known<'a>(
        &'a self,
        op: &'static str,
        future: &'a TaskFuture,
    ) -> BoxFuture<'a, Result<(), RequestError>> {
        Box::pin(self.known_unboxed(op, future))
    }

    async fn known_unboxed(
        &self,
        op: &'static str,
        future: &TaskFuture,
    ) -> Result<(), RequestError> {
        let mut pause = Duration::from_millis(5);
        loop {
            match future.status() {
                Status::Pending => {}
                Status::Finished | Status::Error(_) => return Ok(()),
                Status::Disconnected { reason } => {
                    return Err(RequestError::Disconnected {
                        reason,
                        is_reconnecting: false,
                    });
                }
                Status::Cancelled { .. } | Status::Lost => {
                    let keys = vec![future.key().clone()];
                    return Err(RequestError::Missing { op, keys });
                }
            }
            let status = self.task_status(Keys(vec![future.key().clone()])).await?;
            if status.iter().any(|(_, state)| state.is_some()) {
                return Ok(());
            }
            daskwire_comm::runtime::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }
}
