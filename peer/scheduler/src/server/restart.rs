//! Restarts of workers by their nannies.

use core::time::Duration;
use std::sync::Arc;

use daskwire_comm::runtime::{self, TaskSet};
use daskwire_messages::Value;
use daskwire_messages::protocol::{Kill, Request, RestartCluster, RestartWorkers};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::with_timeout;

use super::Shared;
use super::reply::{Reply, refused};
use crate::LeaveReason;
use crate::state::{SchedulerInput, State, WorkerId};

/// Timeout of a restart without one of its own.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The outcome of a worker's restart, as in Dask.
const OK: &str = "OK";
const TIMED_OUT: &str = "timed out";
const REMOVED: &str = "removed";

/// A worker that is to be restarted.
struct Restarted {
    id: WorkerId,
    address: String,
    nanny: Option<String>,
    outcome: &'static str,
}

impl Shared {
    /// Forgets all tasks, and restarts all workers.
    pub(super) async fn restart(self: &Arc<Self>, request: RestartCluster) -> Reply {
        self.complete(SchedulerInput::Restart).await;
        #[cfg(target_os = "linux")]
        self.observe(crate::python::PluginEvent::Restarted);
        let request = RestartWorkers {
            client: request.client,
            timeout: request.timeout,
            wait_for_workers: request.wait_for_workers,
            stimulus_id: request.stimulus_id,
            ..RestartWorkers::default()
        };
        match self.restart_workers(request).await {
            Reply::Value(_) => Reply::Value(Value::None),
            failed => failed,
        }
    }

    /// Restarts workers by their nannies, and removes those without a nanny. Returns the outcome
    /// of each.
    pub(super) async fn restart_workers(self: &Arc<Self>, request: RestartWorkers) -> Reply {
        let timeout = request.timeout.map(Duration::try_from_secs_f64);
        let timeout = timeout.and_then(Result::ok).unwrap_or(TIMEOUT);
        let is_raising = request.on_error.as_deref() != Some("return");
        let reason = request.stimulus_id.unwrap_or_else(|| "restart".to_owned());
        let (count, mut workers) = self.inspect(|state| {
            let workers = state.thread_counts(request.workers.as_deref(), false);
            let workers = workers.into_iter().filter_map(|(address, _)| {
                Some(Restarted {
                    id: state.worker_id(&address)?,
                    nanny: state.nanny(&address),
                    address,
                    outcome: OK,
                })
            });
            (state.worker_count(), workers.collect::<Vec<_>>())
        });
        let deadline = runtime::now() + timeout;
        let left = || deadline.saturating_duration_since(runtime::now());
        for worker in workers.iter_mut().filter(|worker| worker.nanny.is_none()) {
            worker.outcome = REMOVED;
            self.remove_restarted(worker);
        }
        let mut killing = TaskSet::new();
        for (index, worker) in workers.iter().enumerate() {
            let Some(nanny) = worker.nanny.clone() else {
                continue;
            };
            let (shared, reason) = (Arc::clone(self), reason.clone());
            killing.spawn(async move {
                let killed = shared.kill(&nanny, &reason);
                (
                    index,
                    with_timeout(timeout, "the end of a worker", killed).await,
                )
            });
        }
        for (index, killed) in killing.join_all().await {
            match killed {
                Ok(()) => {}
                // A worker that is its own nanny leaves before it replies, which ends the comm.
                Err(_) if !self.inspect(|state| state.is_member(workers[index].id)) => {}
                Err(error @ RequestError::Remote(_)) => {
                    return Reply::raised(&workers[index].address, &error);
                }
                Err(_) => workers[index].outcome = TIMED_OUT,
            }
        }
        // The nanny may reply before the end of the worker's stream is read.
        let ids: Vec<WorkerId> = workers
            .iter()
            .filter(|worker| worker.outcome == OK)
            .map(|worker| worker.id)
            .collect();
        let gone = self.until(|state| !ids.iter().any(|id| state.is_member(*id)));
        let _ = runtime::timeout(left(), gone).await;
        for worker in &mut workers {
            if self.remove_restarted(worker) {
                worker.outcome = TIMED_OUT;
            }
        }
        let late: Vec<&str> = workers
            .iter()
            .filter(|worker| worker.outcome == TIMED_OUT)
            .map(|worker| &*worker.address)
            .collect();
        let seconds = timeout.as_secs_f64();
        if is_raising && !late.is_empty() {
            let message = format!(
                "{}/{} nanny worker(s) did not shut down within {seconds}s: {}",
                late.len(),
                workers.len(),
                late.join(", ")
            );
            return refused("TimeoutError", &message);
        }
        let restarted = Value::list(workers.iter().map(|worker| worker.address.as_str()));
        let client = request.client.map_or(Value::None, Value::from);
        if let Some(client) = client.as_str() {
            let restarted = [("workers", restarted.clone())];
            self.publish(&[client], "restart-workers", restarted);
        }
        let fields = [("workers", restarted), ("client", client)];
        self.publish(&["all"], "restart-workers", fields);
        if request.wait_for_workers.unwrap_or(true) {
            let returned = self.until(|state| state.worker_count() >= count);
            if runtime::timeout(left(), returned).await.is_err() {
                let present = self.inspect(State::worker_count);
                if is_raising {
                    return refused(
                        "TimeoutError",
                        &not_returned(&workers, count.saturating_sub(present), seconds),
                    );
                }
                let nannies = self.inspect(State::nannies);
                for worker in &mut workers {
                    let has_returned = worker
                        .nanny
                        .as_ref()
                        .is_none_or(|own| nannies.contains(own));
                    if !has_returned {
                        worker.outcome = TIMED_OUT;
                    }
                }
            }
        }
        let outcomes = workers
            .into_iter()
            .map(|worker| (worker.address, Value::from(worker.outcome)));
        Reply::Value(Value::dict(outcomes))
    }

    /// Asks a nanny to end its worker, which it then starts again. The future may be dropped.
    pub(super) async fn kill(&self, nanny: &str, reason: &str) -> Result<(), RequestError> {
        let nanny = RequestError::parse_address(nanny)?;
        let request = Request::from(Kill {
            reason: Some(reason.to_owned()),
            ..Kill::default()
        });
        self.pool.call::<Value>(&nanny, &request).await?;
        Ok(())
    }

    /// Removes a worker, unless it has left. Returns whether it had not.
    fn remove_restarted(&self, worker: &Restarted) -> bool {
        let is_there = self.inspect(|state| state.is_member(worker.id));
        if is_there {
            self.handle(SchedulerInput::RemoveWorker {
                worker: worker.address.clone(),
                close: true,
                reason: LeaveReason::Restarted,
            });
            self.changed.notify_waiters();
        }
        is_there
    }
}

/// The message of Dask about workers that have not returned.
fn not_returned(workers: &[Restarted], missing: usize, seconds: f64) -> String {
    let mut message = format!(
        "Waited for {} worker(s) to reconnect after restarting but, after {seconds}s, {missing} \
         have not returned. Consider a longer timeout, or `wait_for_workers=False`.",
        workers.len()
    );
    let without = workers.iter().filter(|worker| worker.nanny.is_none());
    let without = without.count();
    if without > 0 {
        message.push_str(&format!(
            " The {without} worker(s) not using Nannies were just shut down instead of restarted \
             (restart is only possible with Nannies). If your deployment system does not \
             automatically re-launch terminated processes, then those workers will never come \
             back, and `Client.restart` will always time out. Do not use `Client.restart` in that \
             case."
        ));
    }
    message
}
