//! Passes events to the state machine, and executes its actions.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use daskwire_comm::runtime::{self, Spawner, TaskSet};
use daskwire_messages::Key;
use daskwire_messages::protocol::{
    FromWorker, RefreshWhoHas, Request, RequestRefreshWhoHas, ToWorker, WhoHas, WorkerStatus,
};
use daskwire_rpc::batched::BatchSender;
use daskwire_rpc::event::{self, RoleEvent as _, emit};

use super::context::Cancellation;
use super::event::WorkerEvent;
#[cfg(target_os = "linux")]
use super::python::PythonProcesses;
use super::run::Job;
use super::state::{Action, State, WorkerInput};
use super::{Shared, now};
#[cfg(target_os = "linux")]
use daskwire_messages::protocol::{Nullable, TaskErred, TransitionForPython};
#[cfg(target_os = "linux")]
use daskwire_rpc::story::{TaskChange, TaskEvent};
use daskwire_store::{Datum, Store};

/// The state machine, and the stream on which its messages are sent in the order
/// of its events.
pub(super) struct WorkerMachine {
    pub(super) state: State,
    pub(super) stream: Option<BatchSender<FromWorker>>,
    /// Transfers and timers, which are aborted when the worker ends.
    pub(super) tasks: TaskSet<()>,
    /// Those of executing tasks whose functions have asked for their contexts.
    pub(super) cancellations: HashMap<Key, Cancellation>,
    /// Whether the store is full, as last reported to the state machine.
    is_full: bool,
    /// Whether tasks are observed, as last reported to the state machine.
    is_watched: bool,
    /// Whether plugins in Python observe transitions of tasks.
    pub(super) has_watching_host: bool,
}

impl WorkerMachine {
    pub(super) fn new(state: State) -> Self {
        Self {
            state,
            stream: None,
            tasks: TaskSet::new(),
            cancellations: HashMap::new(),
            is_full: false,
            is_watched: false,
            has_watching_host: false,
        }
    }

    /// Returns events for the conditions that changed since the last call.
    fn changes(&mut self, store: &Store) -> [Option<WorkerInput>; 2] {
        let is_full = store.is_full();
        let is_watched = self.has_watching_host || WorkerEvent::is_enabled(event::Level::Debug);
        let was_full = core::mem::replace(&mut self.is_full, is_full);
        let was_watched = core::mem::replace(&mut self.is_watched, is_watched);
        [
            (was_full != is_full).then_some(WorkerInput::StoreFull(is_full)),
            (was_watched != is_watched).then_some(WorkerInput::Watched(is_watched)),
        ]
    }

    /// Starts a transfer or a timer, unless the worker is leaving.
    pub(super) fn spawn(
        &mut self,
        task: impl Future<Output = ()> + Send + 'static,
        runtime: &Spawner,
    ) {
        if *self.state.status() == WorkerStatus::Closing {
            return;
        }
        while self.tasks.try_join_next().is_some() {}
        self.tasks.push(runtime.spawn(task));
    }
}

impl Shared {
    pub(super) fn machine(&self) -> MutexGuard<'_, WorkerMachine> {
        self.panic_flag.check(self.machine.lock())
    }

    /// Puts data into the store and handles events. Returns the jobs to run.
    pub(super) fn react<'d>(
        self: &Arc<Self>,
        data: impl IntoIterator<Item = (&'d Key, Datum)>,
        events: impl IntoIterator<Item = WorkerInput>,
    ) -> Vec<Job> {
        let mut jobs = Vec::new();
        // Freeing much memory takes time, so it is done after the lock is
        // released.
        let mut forgotten = Vec::new();
        #[cfg(target_os = "linux")]
        let mut forgotten_keys = Vec::new();
        // Subscribers may be slow, so they are called after the lock is released, too.
        let mut reports = Vec::new();
        #[cfg(target_os = "linux")]
        let mut failures = HashMap::new();
        let mut has_results = false;
        let _guard = self.panic_flag.guard();
        let mut machine = self.machine();
        if self.panic_flag.is_set() {
            return jobs;
        }
        for (key, datum) in data {
            self.store.insert(key, datum);
        }
        let changes = machine.changes(&self.store);
        let events = changes.into_iter().flatten().chain(events);
        for action in machine.state.handle_all(now(), events) {
            match action {
                Action::Send(message) => match *message {
                    FromWorker::RequestRefreshWhoHas(message)
                        if !self.dialect.refreshes_holders =>
                    {
                        let asking = Arc::clone(self).ask_holders(message);
                        machine.spawn(asking, &self.runtime);
                    }
                    message => {
                        #[cfg(target_os = "linux")]
                        if machine.has_watching_host
                            && let FromWorker::TaskErred(erred) = &message
                        {
                            failures.insert(erred.key.clone(), erred.clone());
                        }
                        has_results |= matches!(
                            message,
                            FromWorker::TaskFinished(_)
                                | FromWorker::TaskErred(_)
                                | FromWorker::Reschedule(_)
                        );
                        if let Some(stream) = &machine.stream {
                            stream.send(self.dialect.worker_message(message));
                        }
                    }
                },
                Action::Forget(key) => {
                    forgotten.extend(self.store.remove(&key));
                    #[cfg(target_os = "linux")]
                    if self.python.is_some() {
                        forgotten_keys.push(key);
                    }
                }
                Action::Cancel(key) => {
                    if let Some(cancellation) = machine.cancellations.get(&key) {
                        cancellation.cancel();
                    }
                }
                Action::Execute(run) => jobs.push(self.job(*run)),
                #[cfg(target_os = "linux")]
                Action::Rejoin(key) => {
                    if let Some(python) = &self.python {
                        python.rejoined(&key);
                    }
                }
                // Only tasks in Python processes rejoin.
                #[cfg(not(target_os = "linux"))]
                Action::Rejoin(_) => {}
                Action::Fetch {
                    request,
                    peer,
                    keys,
                } => {
                    let address = Arc::clone(&peer);
                    let fetching = Arc::clone(self).fetch(request, peer, keys);
                    let fetching = event::in_comm(&address, fetching);
                    machine.spawn(fetching, &self.runtime);
                }
                Action::Report(event) => reports.push(event),
                Action::Disconnect(peer) => {
                    if let Ok(address) = peer.parse() {
                        self.pool.forget(&address);
                    }
                }
                Action::Wake { after, event } => {
                    let shared = Arc::clone(self);
                    let waking = async move {
                        runtime::sleep(after).await;
                        shared.handle([*event]);
                    };
                    machine.spawn(waking, &self.runtime);
                }
            }
        }
        // No further result will share a batch with these, and the scheduler sends new tasks
        // when it has them.
        if has_results
            && machine.state.is_idle()
            && let Some(stream) = &machine.stream
        {
            stream.flush();
        }
        // Send while the lock is held, so that transitions stay in order.
        #[cfg(target_os = "linux")]
        if machine.has_watching_host
            && let Some(host) = self.python.as_ref().and_then(PythonProcesses::running_host)
        {
            let transitions = reports
                .iter()
                .filter_map(|event| transition(event, &failures));
            let transitions: Vec<_> = transitions.collect();
            if !transitions.is_empty() {
                host.transitions(transitions);
            }
        }
        // Another thread may create an actor with the same key once the lock is released.
        #[cfg(target_os = "linux")]
        if let Some(python) = &self.python {
            python.release_kept(&forgotten_keys);
        }
        drop(machine);
        #[cfg(target_os = "linux")]
        if let Some(python) = &self.python {
            python.forget(&forgotten_keys);
        }
        for report in &reports {
            emit(event::Level::Debug, || WorkerEvent::Task(report));
        }
        jobs
    }

    /// Handles events, and starts the resulting jobs.
    pub(super) fn handle(self: &Arc<Self>, events: impl IntoIterator<Item = WorkerInput>) {
        let jobs = self.react([], events);
        self.begin(jobs);
    }

    /// Asks a scheduler before 2022.6.0 for the holders of keys.
    async fn ask_holders(self: Arc<Self>, message: RequestRefreshWhoHas) {
        let request = Request::WhoHas(WhoHas {
            keys: Some(message.keys),
            reply: Some(true),
            ..WhoHas::default()
        });
        // If the scheduler does not answer, the state machine asks again.
        if let Ok(who_has) = self.pool.call(&self.scheduler(), &request).await {
            let holders = RefreshWhoHas {
                who_has,
                stimulus_id: message.stimulus_id,
                ..RefreshWhoHas::default()
            };
            self.handle([WorkerInput::FromScheduler(ToWorker::RefreshWhoHas(holders))]);
        }
    }
}

/// The message about a change of a task's state. `failures` has the messages about tasks that have
/// just failed.
#[cfg(target_os = "linux")]
fn transition(
    event: &TaskEvent,
    failures: &HashMap<Key, TaskErred>,
) -> Option<TransitionForPython> {
    let TaskChange::State { from, to } = event.change else {
        return None;
    };
    let failure = failures.get(&event.key).filter(|_| to == "error");
    let failure = failure.cloned();
    let exception = failure.as_ref().map(|failure| failure.exception.clone());
    let failure = failure.unwrap_or_default();
    Some(TransitionForPython {
        exception: Nullable(exception),
        traceback: Nullable(failure.traceback),
        exception_text: failure.exception_text.unwrap_or_default(),
        traceback_text: failure.traceback_text.unwrap_or_default(),
        key: event.key.clone(),
        start: from.to_owned(),
        finish: to.to_owned(),
        ..TransitionForPython::default()
    })
}
