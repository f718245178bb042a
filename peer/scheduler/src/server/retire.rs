//! The retirement of workers.

use core::time::Duration;

use daskwire_comm::runtime;
use daskwire_messages::Value;
use daskwire_messages::protocol::{RetireWorkers, WorkersToClose};

use super::Shared;
use super::reply::{Reply, refused};
use crate::LeaveReason;
use crate::state::{CloseOptions, SchedulerInput, Selection, WorkerId};

impl Shared {
    /// Retires workers once other workers have copies of their data. Others may be retired meanwhile,
    /// but no data is moved or copied on request.
    pub(super) async fn retire(&self, request: RetireWorkers) -> Reply {
        let _shared = self.moving.read().await;
        let close = request.close_workers.unwrap_or(false);
        let remove = request.remove.unwrap_or(true);
        let RetireWorkers {
            n,
            target,
            minimum,
            memory_ratio,
            ..
        } = request;
        let choice = [
            ("n", n.map(Value::from)),
            ("target", target.map(Value::from)),
            ("minimum", minimum.map(Value::from)),
            ("memory_ratio", memory_ratio.map(Value::from)),
            ("key", request.key.clone()),
        ];
        let choice = choice.into_iter();
        let choice = choice.filter_map(|(name, value)| Some((name, value?)));
        let choice: Vec<(&str, Value)> = choice.collect();
        let workers = match (request.workers, request.names) {
            (Some(_), Some(_)) => {
                return refused("TypeError", "names and workers are mutually exclusive");
            }
            (Some(_), None) | (None, Some(_)) if !choice.is_empty() => {
                let message = format!(
                    "Parameters for workers_to_close() are mutually exclusive with names and \
                     workers: {}",
                    Value::dict(choice)
                );
                return refused("TypeError", &message);
            }
            (Some(workers), None) => self.inspect(|state| state.addresses(&workers)),
            (None, Some(names)) => self.inspect(|state| state.named(&names)),
            (None, None) => {
                let options = close_options(n, target, minimum, memory_ratio);
                match self.choose_to_close(&options, request.key.as_ref()) {
                    Ok(ids) => self.inspect(|state| {
                        let addresses = ids.into_iter().filter_map(|id| state.address_of(id));
                        addresses.map(str::to_owned).collect()
                    }),
                    Err(refused) => return refused,
                }
            }
        };
        let known = self.inspect(|state| state.thread_counts(Some(&workers), false));
        let workers: Vec<String> = known.into_iter().map(|(worker, _)| worker).collect();
        self.handle(SchedulerInput::RetireWorkers(workers.clone()));
        let mut retired = Vec::new();
        let mut kept = Vec::new();
        for worker in workers {
            let identity = self.inspect(|state| state.identity_of(&worker));
            let can_retire = self.inspect(|state| state.can_retire(&worker));
            if !(can_retire && self.wait_until_copied(&worker).await) {
                self.handle(SchedulerInput::KeepWorker(worker.clone()));
                kept.push(worker);
                continue;
            }
            if remove {
                self.handle(SchedulerInput::RemoveWorker {
                    worker,
                    close,
                    reason: LeaveReason::Retired,
                });
            } else if close {
                self.handle(SchedulerInput::CloseWorker(worker));
            }
            retired.extend(identity);
        }
        let stimulus = request.stimulus_id;
        let stimulus = stimulus
            .unwrap_or_else(|| format!("retire-workers-{}", self.clock.now().as_secs_f64()));
        let addresses = retired
            .iter()
            .map(|(address, _): &(String, Value)| address.as_str());
        let addresses: Vec<&str> = addresses.collect();
        let kept: Vec<&str> = kept.iter().map(String::as_str).collect();
        let stimulus = || ("stimulus_id", Value::from(stimulus.as_str()));
        let outcome = [
            ("retired", Value::list(addresses.iter().copied())),
            ("could-not-retire", Value::list(kept.iter().copied())),
            stimulus(),
        ];
        self.publish(&["all"], "retire-workers", outcome);
        self.publish(&addresses, "retired", [stimulus()]);
        self.publish(&kept, "could-not-retire", [stimulus()]);
        Reply::Value(Value::dict(retired))
    }

    /// Returns the workers that can be closed at low cost.
    pub(super) fn to_close(&self, request: &WorkersToClose) -> Reply {
        let WorkersToClose {
            n,
            target,
            minimum,
            memory_ratio,
            ..
        } = *request;
        let options = close_options(n, target, minimum, memory_ratio);
        let ids = match self.choose_to_close(&options, request.key.as_ref()) {
            Ok(ids) => ids,
            Err(refused) => return refused,
        };
        let is_name = match request.attribute.as_deref() {
            None | Some("address") => false,
            Some("name") => true,
            Some(other) => {
                let message = format!("expected the attribute address or name, not {other:?}");
                return refused("NotImplementedError", &message);
            }
        };
        let workers = self.inspect(|state| {
            let workers = ids.into_iter().filter_map(|id| match is_name {
                true => state.name_of(id).cloned(),
                false => state.address_of(id).map(Value::from),
            });
            workers.collect::<Vec<_>>()
        });
        Reply::Value(Value::list(workers))
    }

    fn choose_to_close(
        &self,
        options: &CloseOptions,
        key: Option<&Value>,
    ) -> Result<Vec<WorkerId>, Reply> {
        if key.is_some_and(|key| *key != Value::None) {
            let message = "this scheduler runs no Python, and chooses each worker by itself (key=)";
            return Err(refused("NotImplementedError", message));
        }
        Ok(self.inspect(|state| state.workers_to_close(options)))
    }

    /// Waits until other workers have copies of a worker's data. Returns `false` if no
    /// worker can copy it, or none copies anything for the time of [`timeout_of`].
    async fn wait_until_copied(&self, worker: &str) -> bool {
        /// Time after which other workers are asked again to fetch the data.
        const AGAIN: Duration = Duration::from_secs(2);
        let mut keys = Vec::new();
        let mut key_count = usize::MAX;
        let mut timeout = None;
        let mut again = core::pin::pin!(runtime::sleep(AGAIN));
        let mut deadline = core::pin::pin!(runtime::sleep(TIMEOUT));
        loop {
            let mut changed = core::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            self.inspect(|state| state.update_keys_without_copy(worker, &mut keys));
            if keys.is_empty() {
                return true;
            }
            if keys.len() < key_count {
                key_count = keys.len();
                let timeout = *timeout.get_or_insert_with(|| {
                    let sizes = self.inspect(|state| state.nbytes(Selection::Keys(&keys)));
                    timeout_of(sizes.iter().map(|(_, len)| *len).max().unwrap_or_default())
                });
                deadline.set(runtime::sleep(timeout));
            }
            tokio::select! {
                () = changed => {}
                () = &mut again => {
                    let can_retire = self.with_machine(|machine| {
                        machine.handle(SchedulerInput::RetireWorkers(vec![worker.to_owned()]));
                        // Until now, only copies of the last of these were noticed.
                        keys.retain(|key| machine.state.is_sole_copy(key, worker));
                        machine.state.can_retire(worker)
                    });
                    if !can_retire {
                        return false;
                    }
                    again.set(runtime::sleep(AGAIN));
                }
                () = &mut deadline => return false,
            }
        }
    }
}

fn close_options(
    n: Option<i64>,
    target: Option<i64>,
    minimum: Option<i64>,
    memory_ratio: Option<f64>,
) -> CloseOptions {
    let count = |count: i64| usize::try_from(count).unwrap_or(0);
    CloseOptions::default()
        .with_count(n.map(count))
        .with_target(target.map(count))
        .with_minimum(minimum.map_or(0, count))
        .with_memory_ratio(memory_ratio)
}

/// Time without progress after which a worker is not retired whose largest result has `len`
/// bytes.
fn timeout_of(len: u64) -> Duration {
    /// Bytes per second, on a slow network.
    const RATE: u64 = 5_000_000;
    TIMEOUT + Duration::from_secs(len / RATE)
}

/// Time without progress after which a worker is not retired, however little is left.
const TIMEOUT: Duration = Duration::from_secs(30);
