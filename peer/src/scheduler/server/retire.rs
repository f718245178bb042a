//! The retirement of workers.

use core::time::Duration;

use daskwire_comm::runtime;

use super::Shared;
use super::answer::Answer;
use crate::channel::within;
use crate::{RequestError, Value};

impl Shared {
    /// Retires workers after others have copies of their data.
    pub(super) async fn retire(
        &self,
        workers: Option<Vec<String>>,
        close: bool,
        remove: bool,
    ) -> Answer {
        const TIMEOUT: Duration = Duration::from_secs(30);
        // It is up to the client to name workers.
        let workers = workers.unwrap_or_default();
        let known = self.with(|state| state.thread_counts(Some(&workers), false));
        let mut retired = Vec::new();
        for (worker, _) in known {
            let (about, may_leave) = self.with(|state| {
                let about = state.identity_of(&worker);
                (about, state.retire(&worker))
            });
            let leaving = within(TIMEOUT, "a worker that is to leave", self.leaving(&worker));
            if !may_leave || leaving.await.is_err() {
                self.with(|state| state.cancel_retirement(&worker));
                continue;
            }
            if close || remove {
                self.with(|state| state.remove_retired(&worker, close));
            }
            retired.extend(about);
        }
        Answer::Value(Value::dict(retired))
    }

    /// Waits until others have copies of a worker's data.
    async fn leaving(&self, worker: &str) -> Result<(), RequestError> {
        /// Time after which other workers are asked to fetch the data.
        const AGAIN: Duration = Duration::from_secs(2);
        let mut only_there = None;
        let mut again = core::pin::pin!(runtime::sleep(AGAIN));
        loop {
            let mut changed = core::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.with(|state| state.has_retired(worker, &mut only_there)) {
                return Ok(());
            }
            tokio::select! {
                () = changed => {}
                () = &mut again => {
                    self.with(|state| state.copy_elsewhere(worker));
                    again.set(runtime::sleep(AGAIN));
                }
            }
        }
    }
}
