//! The retirement of workers.

use core::time::Duration;

use daskwire_comm::runtime;

use super::Shared;
use super::reply::Reply;
use crate::channel::within;
use crate::scheduler::state::Event;
use crate::{RequestError, Value};

impl Shared {
    /// Retires workers once other workers have copies of their data.
    pub(super) async fn retire(
        &self,
        workers: Option<Vec<String>>,
        close: bool,
        remove: bool,
    ) -> Reply {
        const TIMEOUT: Duration = Duration::from_secs(30);
        // Without a list of workers, none is retired.
        let workers = workers.unwrap_or_default();
        let known = self.inspect(|state| state.thread_counts(Some(&workers), false));
        let mut retired = Vec::new();
        for (worker, _) in known {
            let (identity, may_leave) = self.with_core(|core| {
                let identity = core.state.identity_of(&worker);
                core.handle(Event::RetireWorker(worker.clone()));
                (identity, core.state.can_retire(&worker))
            });
            let has_left = may_leave && {
                let leaving = self.leaving(&worker);
                let leaving = within(TIMEOUT, "copies of the data of a retiring worker", leaving);
                leaving.await.is_ok()
            };
            if !has_left {
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

    /// Waits until other workers have copies of a worker's data.
    async fn leaving(&self, worker: &str) -> Result<(), RequestError> {
        /// Time after which other workers are asked again to fetch the data.
        const AGAIN: Duration = Duration::from_secs(2);
        let mut only_there = None;
        let mut again = core::pin::pin!(runtime::sleep(AGAIN));
        loop {
            let mut changed = core::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.inspect(|state| state.has_retired(worker, &mut only_there)) {
                return Ok(());
            }
            tokio::select! {
                () = changed => {}
                () = &mut again => {
                    self.handle(Event::RetireWorker(worker.to_owned()));
                    again.set(runtime::sleep(AGAIN));
                }
            }
        }
    }
}
