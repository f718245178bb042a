//! Operations that change a cluster: restarts, retirement, copies of data, and
//! performance reports.

use core::time::Duration;
use std::sync::Arc;

use daskwire_messages::protocol::{Keys, RetireWorkers, TaskState, Terminate, Unknown};
use daskwire_messages::{Key, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::with_timeout;

use super::operation::Operation;
use super::request::{Workers, converted, key_of};
use super::shared::Shared;
use super::state::ClientInput;
use super::{Client, Status, TaskError, TaskFuture};

/// The client id for which Dask's scheduler holds results until they are computed.
const FIRE_AND_FORGET: &str = "fire-and-forget";

/// The outcome of the restart of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restarted {
    /// The worker was restarted.
    Ok,
    /// The worker left the cluster, for example because it has no nanny.
    Removed,
    /// The worker did not restart in time.
    TimedOut,
    /// Another outcome, of a later release.
    Other(String),
}

/// A running performance report, see [`Client::start_performance_report`].
#[derive(Debug)]
#[must_use = "the report is made by `finish`"]
pub struct PerformanceReport {
    shared: Arc<Shared>,
    start: f64,
}

impl PerformanceReport {
    /// Ends the report. Returns an HTML page, with `code` as its description.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Remote`] if bokeh is not installed where the scheduler runs;
    /// * other errors if the scheduler does not answer.
    pub async fn finish(self, code: &str) -> Result<String, RequestError> {
        let message = Unknown::new("performance_report")
            .field("start", self.start)
            .field("last_count", 0)
            .field("code", code);
        let request = message.into();
        let page: Value = self.shared.reply(&request).await?;
        converted(request.op(), page)
    }
}

/// Returns an error with the missing keys if a reply reports missing keys.
fn all_found(op: &'static str, reply: &Value) -> Result<(), RequestError> {
    if reply.get("status").and_then(Value::as_str).unwrap_or("OK") == "OK" {
        return Ok(());
    }
    let keys = match reply.get("keys") {
        Some(keys) => converted::<Vec<Value>>(op, keys.clone())?,
        None => Vec::new(),
    };
    let keys = keys.iter().map(|key| key_of(op, key));
    Err(RequestError::Missing {
        op,
        keys: keys.collect::<Result<_, _>>()?,
    })
}

impl Shared {
    /// Makes the cluster run a task to its end.
    async fn desire_until_done(&self, future: TaskFuture) -> Result<(), RequestError> {
        let keys = vec![future.key().clone()];
        self.request(ClientInput::DesireAs {
            client: FIRE_AND_FORGET.to_owned(),
            keys: keys.clone(),
        })?;
        self.settle::<RequestError>().await?;
        // The scheduler drops the request when the task ends, but not if that was before it read
        // the request.
        let states = self.task_status(Keys(keys.clone())).await;
        let state = states.map(|states| states.into_iter().next().and_then(|(_, state)| state));
        match state {
            Ok(None) => {
                let op = "fire_and_forget";
                Err(RequestError::Missing { op, keys })
            }
            Ok(Some(TaskState::Memory | TaskState::Erred)) | Err(_) => {
                self.request(ClientInput::ReleaseAs {
                    client: FIRE_AND_FORGET.to_owned(),
                    keys,
                })?;
                self.settle::<RequestError>().await?;
                state.map(|_| ())
            }
            Ok(Some(_)) => Ok(()),
        }
    }
}

impl Client {
    /// Sends a request that changes the cluster.
    async fn request_change(&self, message: Unknown) -> Result<Value, RequestError> {
        self.shared.needs(Operation::CHANGES)?;
        self.shared.reply(&message.into()).await
    }

    /// Restarts all workers and forgets all tasks, for all clients: their futures become
    /// cancelled. Workers without a nanny leave the cluster. Waits at most `timeout` for
    /// the workers to be back.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Remote`] if workers are not back in time;
    /// * [`RequestError::Unsupported`] before 2024.8.0;
    /// * other errors if the scheduler does not answer.
    pub async fn restart(&self, timeout: Duration) -> Result<(), RequestError> {
        self.shared.needs(Operation::RESTARTS)?;
        let message = Unknown::new("restart")
            .field("timeout", timeout.as_secs_f64())
            .field("wait_for_workers", true)
            .field("stimulus_id", stimulus("restart"));
        self.request_change(message).await?;
        Ok(())
    }

    /// Restarts workers, which must have a nanny, by their addresses. Returns the outcome
    /// of each.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Unsupported`] before 2024.8.0;
    /// * other errors if the scheduler does not answer.
    pub async fn restart_workers(
        &self,
        workers: impl Into<Workers>,
        timeout: Duration,
    ) -> Result<Vec<(String, Restarted)>, RequestError> {
        const OP: &str = "restart_workers";
        self.shared.needs(Operation::RESTARTS)?;
        let message = Unknown::new(OP)
            .field(
                "workers",
                Value::from(workers.into().into_field().map(|names| names.0)),
            )
            .field("timeout", timeout.as_secs_f64())
            .field("on_error", "return")
            .field("stimulus_id", stimulus("restart-workers"));
        let Value::Dict(outcomes) = self.request_change(message).await? else {
            return Ok(Vec::new());
        };
        let outcomes = outcomes.iter().map(|(worker, outcome)| {
            let outcome: String = converted(OP, outcome.clone())?;
            let outcome = match &*outcome {
                "OK" => Restarted::Ok,
                "removed" => Restarted::Removed,
                "timed out" => Restarted::TimedOut,
                _ => Restarted::Other(outcome),
            };
            Ok((converted(OP, worker.clone())?, outcome))
        });
        outcomes.collect()
    }

    /// Removes workers from the cluster, after others have copies of their data, and
    /// closes them. Returns the addresses of those that were removed; a worker whose data
    /// cannot be copied stays.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn retire_workers(
        &self,
        workers: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Vec<String>, RequestError> {
        self.shared.needs(Operation::CHANGES)?;
        let workers: Vec<String> = workers.into_iter().map(Into::into).collect();
        let request = RetireWorkers {
            workers: Some(workers.into()),
            close_workers: Some(true),
            remove: Some(true),
            reply: Some(true),
            ..RetireWorkers::default()
        };
        let request = request.into();
        match self.shared.reply(&request).await? {
            Value::Dict(retired) => retired
                .iter()
                .map(|(worker, _)| converted(request.op(), worker.clone()))
                .collect(),
            _ => Ok(Vec::new()),
        }
    }

    /// Moves results between workers so that they use about the same memory: all
    /// results, or those of some futures or keys.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Missing`] if the scheduler does not have all results;
    /// * other errors if the scheduler does not answer.
    pub async fn rebalance(
        &self,
        keys: Option<&[Key]>,
        workers: impl Into<Workers>,
    ) -> Result<(), RequestError> {
        let mut message = Unknown::new("rebalance");
        if let Some(keys) = keys {
            message = message.field("keys", Value::list(keys.iter().map(Key::to_value)));
        }
        if let Workers::Only(workers) = workers.into() {
            message = message.field("workers", workers);
        }
        all_found("rebalance", &self.request_change(message).await?)
    }

    /// Copies results to `count` workers, or to all of them: of the given workers, or of
    /// the cluster. Removes surplus copies. Waits for results that are not finished.
    ///
    /// # Errors
    ///
    /// * [`TaskError::Request`] with [`RequestError::Missing`] if results are lost;
    /// * as [`TaskFuture::finished`].
    pub async fn replicate(
        &self,
        futures: &[TaskFuture],
        count: Option<u64>,
        workers: impl Into<Workers>,
    ) -> Result<(), TaskError> {
        for future in futures {
            future.finished().await?;
        }
        let Some(first) = futures.first() else {
            return Ok(());
        };
        let keys = futures.iter().map(|future| future.key().to_value());
        let mut message = Unknown::new("replicate")
            .field("keys", Value::list(keys))
            .field("n", Value::from(count));
        if let Workers::Only(workers) = workers.into() {
            message = message.field("workers", workers);
        }
        let replicated = self.request_change(message).await;
        let replicated = replicated.and_then(|reply| all_found("replicate", &reply));
        replicated.map_err(|error| TaskError::request(first.key(), error))
    }

    /// Makes the cluster run a task to its end even if no client holds its future any
    /// more. Waits until the scheduler has read the request. If the future is dropped, a request that was
    /// sent is still completed.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Missing`] if the scheduler does not know the task, because it was
    ///   cancelled or lost;
    /// * other errors if the scheduler does not answer.
    pub async fn fire_and_forget(&self, future: &TaskFuture) -> Result<(), RequestError> {
        // A scheduler confuses a request to hold a task with its submission if it has not
        // read the graph yet.
        self.shared.known("fire_and_forget", future).await?;
        if matches!(future.status(), Status::Finished | Status::Error(_)) {
            return Ok(());
        }
        let (shared, future) = (Arc::clone(&self.shared), future.clone());
        // A request that is not followed by a release, if that is necessary, would keep the
        // result for ever.
        let desiring = async move { shared.desire_until_done(future).await };
        self.shared.finish_and_wait(desiring).await
    }

    /// Ends the scheduler and its workers, and closes the client.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler cannot be asked to end.
    pub async fn shutdown(self) -> Result<(), RequestError> {
        let request = Terminate {
            reply: Some(true),
            ..Terminate::default()
        };
        let request = request.into();
        let ending = async {
            // Uses a separate comm: the scheduler may close the comm before it replies,
            // and the pool would then retry on another one.
            let mut channel = self.shared.pool.connect(self.shared.address()).await?;
            channel.call::<Value>(&request).await
        };
        match with_timeout(
            self.shared.options.timeout,
            "the end of the scheduler",
            ending,
        )
        .await
        {
            Ok(_) | Err(RequestError::Closed { .. } | RequestError::Comm(_)) => {}
            Err(error) => return Err(error),
        }
        // The scheduler may end before it has read the last messages.
        let _ = self.close().await;
        Ok(())
    }

    /// Begins a performance report: an HTML page about the work of the cluster until
    /// [`PerformanceReport::finish`]. `performance_report` in Dask.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn start_performance_report(&self) -> Result<PerformanceReport, RequestError> {
        let start = daskwire_rpc::clock::unix_time().as_secs_f64();
        // From now on, the scheduler records tasks.
        let message = Unknown::new("get_task_stream")
            .field("start", 0)
            .field("stop", 0);
        self.request_change(message).await?;
        Ok(PerformanceReport {
            shared: Arc::clone(&self.shared),
            start,
        })
    }
}

/// A unique cause (`stimulus_id`) for the scheduler's logs.
fn stimulus(what: &str) -> String {
    format!(
        "client-{what}-{}",
        daskwire_rpc::clock::unix_time().as_secs_f64()
    )
}
