//! How a scheduler continues from its journal, and writes to it.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use daskwire_comm::runtime;

use super::{Notice, SchedulerInput, SchedulerMachine, Shared};
use crate::JournalSync;
use crate::journal::{Journal, JournalStatus};
use crate::recording::Recorder;
use crate::state::State;

/// Interval at which is checked whether all workers have returned.
const STEP: Duration = Duration::from_millis(20);

/// Interval at which is checked whether the disk answers.
const CHECK: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 1000 });

impl Shared {
    pub(crate) fn has_journal(&self) -> bool {
        self.restored.is_some()
    }

    /// Lets the tasks of the journal run once the workers have returned that an earlier scheduler had,
    /// or the time for that is over.
    pub(crate) async fn resume(self: Arc<Self>) {
        let (Some(options), Some(restored)) = (&self.options.journal, self.restored) else {
            return;
        };
        let directory = options.directory.display().to_string();
        if restored.torn_len > 0 {
            self.notify(&Notice::JournalTorn {
                directory: directory.clone(),
                len: restored.torn_len,
            });
        }
        let plugins = self.inspect(|state| state.lost_plugins().to_vec());
        if !plugins.is_empty() {
            self.notify(&Notice::PluginsMissing { plugins });
        }
        if restored.task_count > 0 {
            self.notify(&Notice::JournalRead {
                directory,
                task_count: restored.task_count,
                worker_count: restored.worker_count,
            });
            let returned = async {
                while self.inspect(State::awaits_workers) {
                    runtime::sleep(STEP).await;
                }
            };
            // Those that have not returned by then count as lost. What a worker holds that has begun to
            // say so would be forgotten, so that it has the same time again.
            let _ = runtime::timeout(options.wait, returned).await;
            let rest = async {
                while self.inspect(State::has_returning_workers) {
                    runtime::sleep(STEP).await;
                }
            };
            let _ = runtime::timeout(options.wait, rest).await;
        }
        self.handle(SchedulerInput::Resumed);
        self.is_resumed.send_replace(true);
    }

    /// Ends all connections without a last message.
    pub(crate) async fn suspend(&self) {
        self.is_closing.store(true, Ordering::Release);
        #[cfg(target_os = "linux")]
        self.close_plugins().await;
        self.is_closed.send_replace(true);
    }

    /// Writes what is left to the journal and the recording, and ends them.
    pub(crate) fn end_files(&self) {
        let mut machine = self.lock();
        let files = (machine.journal.take(), machine.recorder.take());
        drop(machine);
        drop(files);
    }

    /// Reports if the recording ends early.
    pub(crate) async fn watch_recording(self: Arc<Self>) {
        let failure =
            |machine: &mut SchedulerMachine| machine.recorder.as_ref().map(Recorder::failure);
        let Some(mut failure) = self.with_machine(failure) else {
            return;
        };
        let reason = match failure.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => return,
        };
        self.notify(&Notice::RecordingFailed { reason });
    }

    /// Waits until clients are served.
    pub(super) async fn resumed(&self) {
        let mut is_resumed = self.is_resumed.subscribe();
        // Cannot fail while there is a sender.
        let _ = is_resumed.wait_for(|is_resumed| *is_resumed).await;
    }

    /// Waits until all that was done before is stored, if nothing may be answered earlier. Cancel safe.
    pub(super) async fn stored(&self) {
        let waiting = {
            let machine = self.lock();
            let journal = machine.journal.as_ref();
            let journal = journal.filter(|journal| journal.precedes_all());
            journal.map(|journal| (journal.count(), journal.stored()))
        };
        if let Some((number, mut stored)) = waiting {
            // Fails if the journal has ended.
            let _ = stored.wait_for(|stored| *stored >= number).await;
        }
    }

    /// Executes what waits for the journal, and reports whether it is written.
    pub(crate) async fn serve_journal(self: Arc<Self>) {
        let of_journal = |machine: &mut SchedulerMachine| {
            let journal = machine.journal.as_ref()?;
            Some((journal.stored(), journal.status()))
        };
        let Some((mut stored, mut status)) = self.with_machine(of_journal) else {
            return;
        };
        loop {
            tokio::select! {
                Ok(()) = stored.changed() => {}
                Ok(()) = status.changed() => {
                    let status = status.borrow_and_update().clone();
                    self.notify(&self.journal_notice(status));
                }
                () = runtime::sleep(CHECK) => {
                    let check = |machine: &mut SchedulerMachine| {
                        machine.journal.as_ref().map(Journal::check)
                    };
                    if self.with_machine(check).is_none() {
                        // It is closed.
                        return;
                    }
                }
            }
            let number = *stored.borrow_and_update();
            self.with_machine(|machine| machine.stored(number));
        }
    }

    fn journal_notice(&self, status: JournalStatus) -> Notice {
        match status {
            JournalStatus::Written => Notice::JournalWritten,
            JournalStatus::Slow(waited) => {
                let options = self.options.journal.as_ref();
                let delays_all = options.is_some_and(|options| options.sync == JournalSync::Always);
                Notice::JournalSlow { waited, delays_all }
            }
            JournalStatus::Unmerged(reason) => Notice::JournalUnmerged { reason },
            JournalStatus::Failing(reason) => Notice::JournalFailed {
                reason,
                is_over: false,
            },
            JournalStatus::Ended(reason) => Notice::JournalFailed {
                reason,
                is_over: true,
            },
        }
    }
}
