//! The retirement of workers.

use core::time::Duration;

use daskwire_comm::runtime;

use super::Shared;
use super::reply::{Reply, refused};
use crate::Value;
use crate::scheduler::state::Event;

impl Shared {
    /// Retires workers once other workers have copies of their data.
    pub(super) async fn retire(
        &self,
        workers: Option<Vec<String>>,
        close: bool,
        remove: bool,
    ) -> Reply {
        // Dask chooses the workers itself, or by other arguments such as names.
        let Some(workers) = workers else {
            let message = "this scheduler retires workers by their addresses only (workers=)";
            return refused("NotImplementedError", message);
        };
        let known = self.inspect(|state| state.thread_counts(Some(&workers), false));
        let workers: Vec<String> = known.into_iter().map(|(worker, _)| worker).collect();
        self.handle(Event::RetireWorkers(workers.clone()));
        let mut retired = Vec::new();
        for worker in workers {
            let identity = self.inspect(|state| state.identity_of(&worker));
            let can_retire = self.inspect(|state| state.can_retire(&worker));
            if !(can_retire && self.may_leave(&worker).await) {
                self.handle(Event::KeepWorker(worker));
                continue;
            }
            if close || remove {
                self.handle(Event::RemoveWorker {
                    worker,
                    close,
                    is_expected: true,
                });
            }
            retired.extend(identity);
        }
        Reply::Value(Value::dict(retired))
    }

    /// Waits until other workers have copies of a worker's data. Returns `false` if no
    /// worker can copy it, or none copies anything for the time of [`timeout_of`].
    async fn may_leave(&self, worker: &str) -> bool {
        /// Time after which other workers are asked again to fetch the data.
        const AGAIN: Duration = Duration::from_secs(2);
        let mut left = Vec::new();
        let mut left_count = usize::MAX;
        let mut timeout = None;
        let mut again = core::pin::pin!(runtime::sleep(AGAIN));
        let mut deadline = core::pin::pin!(runtime::sleep(TIMEOUT));
        loop {
            let mut changed = core::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.inspect(|state| state.has_retired(worker, &mut left)) {
                return true;
            }
            if left.len() < left_count {
                left_count = left.len();
                let timeout = *timeout.get_or_insert_with(|| {
                    let sizes = self.inspect(|state| state.nbytes(Some(&left)));
                    timeout_of(sizes.iter().map(|(_, len)| *len).max().unwrap_or_default())
                });
                deadline.set(runtime::sleep(timeout));
            }
            tokio::select! {
                () = changed => {}
                () = &mut again => {
                    let can_retire = self.with_machine(|machine| {
                        machine.handle(Event::RetireWorkers(vec![worker.to_owned()]));
                        // Until now, only copies of the last of these were noticed.
                        left.retain(|key| machine.state.is_left(key, worker));
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

/// Time without progress after which a worker is not retired whose largest result has `len`
/// bytes.
fn timeout_of(len: u64) -> Duration {
    /// Bytes per second, on a slow network.
    const RATE: u64 = 5_000_000;
    TIMEOUT + Duration::from_secs(len / RATE)
}

/// Time without progress after which a worker is not retired, however little is left.
const TIMEOUT: Duration = Duration::from_secs(30);
