//! The retirement of workers.

use core::time::Duration;

use daskwire_comm::runtime;

use super::Shared;
use super::reply::Reply;
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
        // Without a list of workers, none is retired.
        let workers = workers.unwrap_or_default();
        let known = self.inspect(|state| state.thread_counts(Some(&workers), false));
        let mut retired = Vec::new();
        for (worker, _) in known {
            let (identity, can_retire) = self.with_machine(|machine| {
                let identity = machine.state.identity_of(&worker);
                machine.handle(Event::RetireWorker(worker.clone()));
                (identity, machine.state.can_retire(&worker))
            });
            if !(can_retire && self.may_leave(&worker).await) {
                self.handle(Event::KeepWorker(worker));
                continue;
            }
            if close || remove {
                self.handle(Event::RemoveWorker { worker, close });
            }
            retired.extend(identity);
        }
        Reply::Value(Value::dict(retired))
    }

    /// Waits until other workers have copies of a worker's data. Returns `false` if no
    /// worker can copy it, or none copies anything for [`TIMEOUT`].
    async fn may_leave(&self, worker: &str) -> bool {
        /// Time after which other workers are asked again to fetch the data.
        const AGAIN: Duration = Duration::from_secs(2);
        let mut only_there = None;
        let mut left_count = usize::MAX;
        let mut again = core::pin::pin!(runtime::sleep(AGAIN));
        let mut deadline = core::pin::pin!(runtime::sleep(TIMEOUT));
        loop {
            let mut changed = core::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.inspect(|state| state.has_retired(worker, &mut only_there)) {
                return true;
            }
            let left = only_there.get_or_insert_default();
            if left.len() < left_count {
                left_count = left.len();
                deadline.set(runtime::sleep(TIMEOUT));
            }
            tokio::select! {
                () = changed => {}
                () = &mut again => {
                    let can_retire = self.with_machine(|machine| {
                        machine.handle(Event::RetireWorker(worker.to_owned()));
                        // Until now, only copies of the last of these were noticed.
                        left.retain(|key| machine.state.holders(key).eq([worker]));
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

/// Time without progress after which a worker is not retired.
const TIMEOUT: Duration = Duration::from_secs(30);
