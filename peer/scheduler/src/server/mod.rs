//! The connections of a scheduler: streams of clients and workers, and requests.

use core::any::Any;
use core::time::Duration;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use daskwire_comm::runtime::{self, Instant, TaskSet};
use daskwire_comm::{Address, CommError, Listener};
use daskwire_messages::Value;
use daskwire_messages::protocol::{Close, CloseStream, Field as _, ToClient, ToWorker};
use daskwire_rpc::TaskEvent;
use daskwire_rpc::batched::BatchSender;
use daskwire_rpc::event::{self, RoleEvent as _, emit};
use daskwire_rpc::net::Connector;
use daskwire_rpc::pool::Pool;
use tokio::sync::{Notify, RwLock, oneshot, watch};

use super::event::SchedulerEvent;
use super::journal::{self, Journal, Restored};
#[cfg(target_os = "linux")]
use super::python::{PluginEvent, Python};
use super::recording::Recorder;
use super::state::{
    Action, ClientId, NewRun, Policy, RequestId, RequestRefusal, SchedulerInput, State, WorkId,
    WorkerId,
};
use super::{Notice, Options, ServeError, StartError};
use daskwire::frame::ReadHint;

mod broadcast;
mod console;
mod data;
#[cfg(target_os = "linux")]
mod functions;
mod journaling;
mod log;
mod operations;
mod pending;
mod plugins;
mod profile;
mod replicas;
mod reply;
mod requests;
mod restart;
mod retire;
mod shuffles;
mod spread;
mod streams;

#[cfg(target_os = "linux")]
use functions::{Calls, Observer};
use log::Log;
use plugins::Plugins;
pub(super) use requests::installs_routing;

/// Timeout for sending the last messages to a peer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct Shared {
    /// The state machine. A thread of its own would not serve others sooner: no event holds the
    /// lock for longer than a slice of work, and between slices [`Shared::work_off`] lets all others
    /// have it. Requests and messages are parsed before, and replies are encoded after it is locked.
    machine: Mutex<SchedulerMachine>,
    /// Number of threads that wait for the lock.
    waiting_count: AtomicUsize,
    /// Notified when the state has pending work, and when some of it has ended.
    work_left: Notify,
    work_ended: Notify,
    /// Notified when a run of a shuffle is to be created.
    run_wanted: Notify,
    /// What the journal said at the start, if there is one.
    restored: Option<Restored>,
    /// Whether tasks of the journal may run, and clients are served.
    is_resumed: watch::Sender<bool>,
    /// The error that ends the scheduler.
    failure: watch::Sender<Option<ServeError>>,
    /// Number of listeners that have not failed.
    listener_count: AtomicUsize,
    /// Whether the callback for notices has panicked.
    has_callback_panicked: AtomicBool,
    pool: Pool,
    plugins: Plugins,
    #[cfg(target_os = "linux")]
    python: Option<Arc<Python>>,
    #[cfg(target_os = "linux")]
    calls: Calls,
    log: Log,
    options: Options,
    id: String,
    address: String,
    clock: Clock,
    /// The time of the last event that the state machine has handled, in milliseconds.
    handled_at: AtomicU64,
    /// Notified when a worker has joined, or has received or lost data.
    changed: Notify,
    /// Locked while data is moved or copied on request, and shared by the retirements of workers. The
    /// results of one would else undo those of another.
    pub(super) moving: RwLock<()>,
    /// Number of streams, and of comms for heartbeats.
    member_comm_count: AtomicUsize,
    member_comm_ended: Notify,
    is_closing: AtomicBool,
    is_closed: watch::Sender<bool>,
    random: AtomicU64,
}

/// The state machine, and the streams for its messages.
#[derive(Debug)]
struct SchedulerMachine {
    state: State,
    /// The time passed to the state with the next events.
    now: Duration,
    /// The last id assigned to a client or worker.
    last_id: u64,
    /// Whether the state reports the steps of tasks.
    is_watched: bool,
    outbox: Outbox,
    recorder: Option<Recorder>,
    journal: Option<Journal>,
    /// The actions of events whose records are not stored yet, with their numbers.
    unstored: VecDeque<(u64, Vec<Action>)>,
}

/// The streams for messages, and the reports to emit once the state is unlocked.
#[derive(Debug, Default)]
struct Outbox {
    clients: BTreeMap<ClientId, BatchSender<ToClient>>,
    workers: BTreeMap<WorkerId, BatchSender<ToWorker>>,
    /// The clients that do not read, and those of which the state does not know that yet.
    behind: HashSet<ClientId>,
    newly_behind: Vec<ClientId>,
    /// Where the replies of the state go.
    replies: HashMap<RequestId, oneshot::Sender<Result<Value, RequestRefusal>>>,
    /// A run of a shuffle that is to be created.
    new_run: Option<Box<NewRun>>,
    /// The plugins that observe events.
    #[cfg(target_os = "linux")]
    observer: Option<Observer>,
    notices: Vec<Notice>,
    /// Steps of tasks, for subscribers.
    reports: Vec<TaskEvent>,
}

impl SchedulerMachine {
    /// Handles an event, and executes the resulting actions. Returns the work that is left, if any.
    fn handle(&mut self, event: SchedulerInput) -> Option<WorkId> {
        if let SchedulerInput::ClientDrained(id) = event {
            self.outbox.behind.remove(&id);
        }
        let before = self.state.latest_work();
        let actions = self.state.handle(self.now, event);
        let work = self.state.latest_work();
        self.perform(actions);
        (work != before).then_some(work)
    }

    /// Continues pending work. Returns whether some of it has ended, and whether more is left.
    fn proceed(&mut self) -> (bool, bool) {
        let before = self.state.work_count();
        let actions = self.state.proceed(self.now);
        self.perform(actions);
        (self.state.work_count() != before, self.state.is_pending())
    }

    fn perform(&mut self, actions: Vec<Action>) {
        if let Some(recorder) = &self.recorder {
            recorder.take(&mut self.state);
        }
        let Some(journal) = &self.journal else {
            return self.perform_now(actions);
        };
        let number = journal.take(&mut self.state);
        if journal.is_stored(number) && self.unstored.is_empty() {
            return self.perform_now(actions);
        }
        if actions.is_empty() {
            return;
        }
        if journal.precedes_all() {
            return self.unstored.push_back((number, actions));
        }
        // A client does not send a graph again that was acknowledged.
        let is_acknowledgement =
            |action: &Action| matches!(action, Action::ToClient(_, ToClient::GraphsAccepted(_)));
        let (acknowledgements, others) = match actions.iter().any(is_acknowledgement) {
            true => actions.into_iter().partition(is_acknowledgement),
            false => (Vec::new(), actions),
        };
        if !acknowledgements.is_empty() {
            self.unstored.push_back((number, acknowledgements));
        }
        self.perform_now(others);
    }

    fn perform_now(&mut self, mut actions: Vec<Action>) {
        self.outbox.perform(actions.drain(..));
        self.state.reuse(actions);
        while let Some(id) = self.outbox.newly_behind.pop() {
            let event = SchedulerInput::ClientBehind(id);
            let actions = self.state.handle(self.now, event);
            self.perform(actions);
        }
    }

    /// Executes the actions of events whose records are stored, up to a number.
    fn stored(&mut self, number: u64) {
        let is_stored = |(waiting, _): &(u64, _)| *waiting <= number;
        while self.unstored.front().is_some_and(is_stored)
            && let Some((_, actions)) = self.unstored.pop_front()
        {
            self.perform_now(actions);
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Replaces the inconsistent state with a new one, notifies all workers, and ends all
    /// streams.
    fn fail(&mut self, policy: &Policy, reason: &str) {
        // The event over which it has panicked is the last one of the recording.
        if let Some(recorder) = self.recorder.take() {
            recorder.take(&mut self.state);
        }
        self.state = State::new(policy.clone());
        // What is stored stays: a scheduler that starts again continues from there.
        self.journal = None;
        self.unstored.clear();
        self.is_watched = false;
        self.outbox.clients.clear();
        self.outbox.behind.clear();
        self.outbox.newly_behind.clear();
        self.outbox.replies.clear();
        self.outbox.new_run = None;
        for stream in core::mem::take(&mut self.outbox.workers).into_values() {
            let _ = stream.send(Close {
                reason: Some(format!("the scheduler panicked: {reason}")),
                ..Close::default()
            });
            let _ = stream.send(CloseStream::default());
        }
        let reason = reason.to_owned();
        self.outbox.notices.push(Notice::Panicked { reason });
    }
}

impl Outbox {
    /// Whether a plugin observes the transitions of tasks.
    fn wants_transitions(&self) -> bool {
        #[cfg(target_os = "linux")]
        let is_wanted = self
            .observer
            .as_ref()
            .is_some_and(Observer::has_transitions);
        #[cfg(not(target_os = "linux"))]
        let is_wanted = false;
        is_wanted
    }

    /// Executes the actions of the state machine.
    fn perform(&mut self, actions: impl IntoIterator<Item = Action>) {
        // Many tasks may fail for the same reason, whose payload is shared and counted once.
        let mut last_failure = None;
        // Errors of sending are ignored: a broken stream is removed by the task that reads it.
        for action in actions {
            match action {
                Action::ToClient(id, message) => {
                    let failure = match &message {
                        ToClient::TaskErredForClient(message) => payload(&message.exception),
                        _ => None,
                    };
                    let shared = match failure {
                        Some((start, len)) if last_failure == Some(start) => len,
                        _ => 0,
                    };
                    last_failure = failure.map(|(start, _)| start).or(last_failure);
                    if let Some(stream) = self.clients.get(&id) {
                        let _ = stream.send_shared(message, shared);
                        if stream.is_half_full() && self.behind.insert(id) {
                            self.newly_behind.push(id);
                        }
                    }
                }
                Action::ToWorker(id, message) => {
                    // Queued tasks are bounded by the window for tasks.
                    let shared = match &message {
                        ToWorker::ComputeTask(message) => message.run_spec.heap_len(),
                        _ => 0,
                    };
                    if let Some(stream) = self.workers.get(&id) {
                        let _ = stream.send_shared(message, shared);
                    }
                }
                Action::NotifyDrained(id) => {
                    if let Some(stream) = self.workers.get(&id) {
                        stream.ask_drained();
                    }
                }
                Action::NotifyClientDrained(id) => {
                    if let Some(stream) = self.clients.get(&id) {
                        stream.ask_drained();
                    }
                }
                Action::EndClient(id) => {
                    self.behind.remove(&id);
                    drop(self.clients.remove(&id));
                }
                Action::EndWorker(id) => drop(self.workers.remove(&id)),
                Action::Reply(id, reply) => {
                    if let Some(sender) = self.replies.remove(&id) {
                        // The request is dropped.
                        let _ = sender.send(reply);
                    }
                }
                Action::CreateRun(run) => self.new_run = Some(run),
                Action::Notice(notice) => self.notices.push(notice),
                Action::Task(event) => {
                    #[cfg(target_os = "linux")]
                    if let Some(observer) = &self.observer {
                        observer.observe(PluginEvent::Transition(event.clone()));
                    }
                    self.reports.push(event);
                }
                #[cfg(not(target_os = "linux"))]
                Action::Published { .. } | Action::TaskEnded(_) => {}
                #[cfg(target_os = "linux")]
                Action::TaskEnded(record) => {
                    if let Some(observer) = &self.observer {
                        observer.observe(PluginEvent::Ended(record));
                    }
                }
                #[cfg(target_os = "linux")]
                Action::Published {
                    topic,
                    message,
                    is_own,
                } => {
                    if let Some(observer) = &self.observer {
                        observer.observe(PluginEvent::Published {
                            topic,
                            message,
                            is_own,
                        });
                    }
                }
                // The reply is sent by `join`, which registers the worker.
                Action::AcceptWorker { .. } | Action::RefuseWorker(..) => {}
            }
        }
    }
}

/// The address and length of an exception's payload.
fn payload(value: &Value) -> Option<(*const u8, usize)> {
    let Value::Serialized(serialized) = value else {
        return None;
    };
    let frame = serialized.frames().iter().find(|frame| !frame.is_empty());
    let start = frame.map_or(serialized.header(), AsRef::as_ref).as_ptr();
    Some((start, value.heap_len()))
}

impl Shared {
    /// # Errors
    ///
    /// If the system does not provide what processes of Python need, or the journal cannot be opened.
    pub(super) fn new(
        options: Options,
        address: String,
        listener_count: usize,
    ) -> Result<Self, StartError> {
        #[cfg(target_os = "linux")]
        let python = options.python.clone().map(Python::new).transpose();
        #[cfg(target_os = "linux")]
        let python = python.map_err(|error| StartError::Python(Arc::new(error)))?;
        let plugins = Plugins::default();
        #[cfg(target_os = "linux")]
        if python.is_some() {
            plugins.add_shuffle();
        }
        let mut comm = options.comm.clone();
        // A registered peer listens. If it does not, it has ended, and retrying is
        // useless.
        comm.connect_retry = false;
        let connector = Arc::new(Connector::new(
            options.transports.with_own_connections(),
            comm,
        ));
        // All workers and clients that are served have releases that read frames apart.
        let pool = Pool::new(connector, "scheduler", options.observer.clone()).forwarding();
        pool.set_read_hint(ReadHint::Apart);
        let clock = Clock::new();
        let recording = options.recording.as_ref();
        let recorder = recording.map(Recorder::create).transpose();
        let recorder = recorder.map_err(|error| StartError::Recording(Arc::new(error)))?;
        let (journal, state, restored) = match &options.journal {
            Some(journal) => {
                let policy = options.policy.clone();
                let has_payloads = recording.map(|recording| recording.has_payloads);
                let opened = journal::open(journal, policy, clock.now(), has_payloads);
                let opened = opened.map_err(|error| StartError::Journal(Arc::new(error)))?;
                (Some(opened.0), opened.1, Some(opened.2))
            }
            None => {
                let mut state = State::new(options.policy.clone());
                if let Some(recording) = recording {
                    state.keep_recording(recording.has_payloads);
                }
                (None, state, None)
            }
        };
        let is_resumed = !state.is_held();
        Ok(Self {
            waiting_count: AtomicUsize::new(0),
            work_left: Notify::new(),
            work_ended: Notify::new(),
            run_wanted: Notify::new(),
            machine: Mutex::new(SchedulerMachine {
                state,
                now: Duration::ZERO,
                last_id: 0,
                is_watched: false,
                outbox: Outbox::default(),
                recorder,
                journal,
                unstored: VecDeque::new(),
            }),
            restored,
            is_resumed: watch::Sender::new(is_resumed),
            has_callback_panicked: AtomicBool::new(false),
            failure: watch::Sender::new(None),
            listener_count: AtomicUsize::new(listener_count),
            pool,
            plugins,
            #[cfg(target_os = "linux")]
            python: python.map(Arc::new),
            #[cfg(target_os = "linux")]
            calls: Calls::default(),
            log: Log::default(),
            id: format!("Scheduler-{}", daskwire_messages::key::identifier()),
            address,
            handled_at: AtomicU64::new(milliseconds(clock.now())),
            clock,
            changed: Notify::new(),
            moving: RwLock::new(()),
            member_comm_count: AtomicUsize::new(0),
            member_comm_ended: Notify::new(),
            is_closing: AtomicBool::new(false),
            is_closed: watch::Sender::new(false),
            random: AtomicU64::new(options.policy.seed),
            options,
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The time of the start, since the Unix epoch.
    pub(super) const fn started(&self) -> Duration {
        self.clock.start
    }

    /// Handles an event, of which work may be left.
    pub(super) fn handle(&self, event: SchedulerInput) {
        self.with_machine(|machine| machine.handle(event));
    }

    /// Publishes an action of the scheduler in topics.
    fn publish<const N: usize>(&self, topics: &[&str], action: &str, fields: [(&str, Value); N]) {
        if topics.is_empty() {
            return;
        }
        let action = [("action", Value::from(action))];
        self.handle(SchedulerInput::Published {
            topics: Value::list(topics.iter().copied()),
            message: Value::dict(action.into_iter().chain(fields)),
        });
    }

    /// Handles an event, and waits until none of its work is left. Cancel safe.
    pub(super) async fn complete(&self, event: SchedulerInput) {
        let work = self.with_machine(|machine| machine.handle(event));
        self.ended(work).await;
    }

    /// Waits for the end of some work. Cancel safe.
    async fn ended(&self, work: Option<WorkId>) {
        if let Some(work) = work {
            until(&self.work_ended, || {
                self.inspect(|state| state.is_done(work))
            })
            .await;
        }
    }

    /// Continues work that events have left, slice by slice. Between slices, other tasks of the
    /// executor run, and all threads that wait for the lock have it.
    pub(super) async fn work_off(self: Arc<Self>) {
        loop {
            self.work_left.notified().await;
            loop {
                let (has_ended, is_pending) = self.with_machine(SchedulerMachine::proceed);
                if has_ended {
                    self.work_ended.notify_waiters();
                }
                if !is_pending {
                    break;
                }
                self.give_way().await;
            }
        }
    }

    /// Lets other tasks of the executor run, and threads that wait for the lock have it.
    async fn give_way(&self) {
        runtime::yield_now().await;
        while self.waiting_count.load(Ordering::Acquire) > 0 {
            runtime::yield_now().await;
        }
    }

    /// As [`give_way`](Self::give_way), on a thread of its own. Ends after some attempts: if others
    /// always wait, this thread would never have the lock.
    pub(super) fn give_way_blocking(&self) {
        const ATTEMPTS: usize = 50;
        std::thread::yield_now();
        for _ in 0..ATTEMPTS {
            if self.waiting_count.load(Ordering::Acquire) == 0 {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn with_machine<R>(&self, act: impl FnOnce(&mut SchedulerMachine) -> R) -> R {
        self.try_with_machine(act)
            .unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Like [`with_machine`](Self::with_machine), but catches a panic. The scheduler ends
    /// after a panic, because the action may be incomplete.
    fn try_with_machine<R>(
        &self,
        act: impl FnOnce(&mut SchedulerMachine) -> R,
    ) -> Result<R, Panic> {
        let (result, notices, reports, now) = {
            let mut machine = self.lock();
            let result = catch_unwind(AssertUnwindSafe(|| {
                machine.now = self.clock.now();
                let is_watched = SchedulerEvent::is_enabled(event::Level::Debug)
                    || machine.outbox.wants_transitions();
                if machine.is_watched != is_watched {
                    machine.is_watched = is_watched;
                    machine.handle(SchedulerInput::WatchTasks(is_watched));
                }
                act(&mut machine)
            }));
            if let Err(panic) = &result {
                let reason = panic_message(panic);
                machine.fail(&self.options.policy, &reason);
                self.work_ended.notify_waiters();
                self.fail(ServeError::Panicked { reason });
            }
            if machine.state.is_pending() {
                self.work_left.notify_one();
            }
            if machine.outbox.new_run.is_some() {
                self.run_wanted.notify_one();
            }
            let notices = core::mem::take(&mut machine.outbox.notices);
            (
                result,
                notices,
                core::mem::take(&mut machine.outbox.reports),
                machine.now,
            )
        };
        self.handled_at
            .fetch_max(milliseconds(now), Ordering::Relaxed);
        for report in &reports {
            emit(event::Level::Debug, || SchedulerEvent::Task(report));
        }
        notices.iter().for_each(|notice| self.notify(notice));
        result
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The time since the last event.
    pub(super) fn stalled_for(&self) -> Duration {
        let handled = Duration::from_millis(self.handled_at.load(Ordering::Relaxed));
        self.clock.now().saturating_sub(handled)
    }

    /// Calls `look` with the state.
    pub(super) fn inspect<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        let machine = self.lock();
        // A panic of `look` cannot leave the state inconsistent, since it only reads.
        let result = catch_unwind(AssertUnwindSafe(|| look(&machine.state)));
        drop(machine);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Ends the scheduler with an error, unless another error has ended it already.
    fn fail(&self, error: ServeError) {
        self.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            failure.get_or_insert(error);
            is_first
        });
    }

    fn lock(&self) -> MutexGuard<'_, SchedulerMachine> {
        self.waiting_count.fetch_add(1, Ordering::AcqRel);
        let machine = self.machine.lock();
        self.waiting_count.fetch_sub(1, Ordering::AcqRel);
        machine.expect("panics are caught under the lock")
    }

    fn notify(&self, notice: &Notice) {
        emit(notice.level(), || SchedulerEvent::Notice(notice));
        self.log.add(notice, self.clock.now().as_secs_f64());
        let Some(callback) = &self.options.on_notice else {
            return;
        };
        if self.has_callback_panicked.load(Ordering::Acquire) {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| callback(notice))).is_err() {
            self.has_callback_panicked.store(true, Ordering::Release);
        }
    }

    /// Length of the messages queued for clients, in bytes.
    #[cfg(test)]
    pub(super) fn queued_len(&self) -> usize {
        let machine = self.lock();
        let streams = machine.outbox.clients.values();
        streams.map(|stream| stream.backlog().queued_len()).sum()
    }

    /// Makes the state machine panic when the result of `key` is in memory.
    #[cfg(test)]
    pub(super) fn panic_over(&self, key: daskwire_messages::Key) {
        self.lock().state.panics_over = Some(key);
    }

    #[cfg(test)]
    pub(super) fn pool_len(&self) -> usize {
        self.pool.peer_count()
    }

    #[cfg(test)]
    pub(super) fn member_comm_count(&self) -> usize {
        self.member_comm_count.load(Ordering::Acquire)
    }

    /// Returns the error that has ended the scheduler, if any.
    pub(super) fn failure(&self) -> Result<(), ServeError> {
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }

    /// Closes the scheduler after an error.
    pub(super) async fn close_on_failure(&self) {
        let mut failure = self.failure.subscribe();
        // Cannot fail while there is a sender.
        let _ = failure.wait_for(Option::is_some).await;
        self.close().await;
    }

    /// Advances the time of the state.
    pub(super) async fn tick(self: Arc<Self>) {
        const STEP: Duration = Duration::from_millis(500);
        let step = STEP.min(self.options.policy.deletion_interval);
        let mut killing = TaskSet::new();
        loop {
            let nannies = self.with_machine(|machine| {
                let nannies = machine.state.silent_nannies(machine.now);
                machine.handle(SchedulerInput::Tick);
                nannies
            });
            for nanny in nannies {
                let shared = Arc::clone(&self);
                // A nanny that does not reply has ended with its worker.
                killing.spawn(async move { drop(shared.kill(&nanny, "worker-ttl").await) });
            }
            while killing.try_join_next().is_some() {}
            if let Some(timeout) = self.options.idle_timeout {
                let now = self.clock.now();
                let since = self.inspect(State::idle_since);
                let is_idle = since.is_some_and(|since| now.saturating_sub(since) > timeout);
                if is_idle && !self.is_closing.load(Ordering::Acquire) {
                    self.notify(&Notice::Idle { timeout });
                    self.close().await;
                    return;
                }
            }
            runtime::sleep(step.max(Duration::from_millis(1))).await;
        }
    }

    /// Accepts connections. Dropping the future closes all of them.
    pub(super) async fn accept(self: Arc<Self>, listener: Listener, address: Address) {
        const PAUSE: Duration = Duration::from_millis(10);
        // Maximum time to wait for the end of a comm before a further one is refused.
        const FULL_PAUSE: Duration = Duration::from_millis(100);
        let mut connections = TaskSet::new();
        let mut is_closed = core::pin::pin!(self.closed());
        let mut is_listening = true;
        let mut is_failing = false;
        let mut is_full = false;
        loop {
            tokio::select! {
                incoming = listener.accept(), if is_listening => match incoming {
                    Ok(incoming) => {
                        is_failing = false;
                        while connections.try_join_next().is_some() {}
                        let limit = self.options.max_comms;
                        if connections.len() >= limit {
                            // Handshakes that were ended for newer ones may end only now.
                            let _ = runtime::timeout(FULL_PAUSE, connections.join_next()).await;
                        }
                        if connections.len() < limit {
                            is_full = false;
                            connections.spawn(Arc::clone(&self).handshake(incoming));
                        } else if !core::mem::replace(&mut is_full, true) {
                            let address = address.clone();
                            self.notify(&Notice::TooManyComms { address, limit });
                        }
                    }
                    // The cause is mostly that too many files are open.
                    Err(error @ CommError::Io(_)) => {
                        if !core::mem::replace(&mut is_failing, true) {
                            self.notify(&Notice::AcceptFailed {
                                address: address.clone(),
                                error: Arc::new(error),
                            });
                        }
                        runtime::sleep(PAUSE).await;
                    }
                    Err(error) => {
                        is_listening = false;
                        self.listener_failed(&address, error);
                    }
                },
                Some(_) = connections.join_next() => {}
                () = &mut is_closed => break,
            }
        }
        listener.close().await;
    }

    fn listener_failed(&self, address: &Address, error: CommError) {
        let (address, error) = (address.clone(), Arc::new(error));
        if self.listener_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.fail(ServeError::ListenerFailed {
                address: address.clone(),
                error: Arc::clone(&error),
            });
        }
        self.notify(&Notice::ListenerFailed { address, error });
    }

    /// Asks workers to leave, ends the streams of clients, and ends the scheduler once all have
    /// left. Until then, the heartbeats of workers are answered, since a worker without a reply
    /// reports an error.
    pub(super) async fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        #[cfg(target_os = "linux")]
        self.close_plugins().await;
        self.handle(SchedulerInput::Close);
        let gone = async {
            loop {
                let mut ended = core::pin::pin!(self.member_comm_ended.notified());
                ended.as_mut().enable();
                if self.member_comm_count.load(Ordering::Acquire) == 0 {
                    return;
                }
                ended.await;
            }
        };
        // After the timeout, the scheduler ends without waiting for the remaining peers.
        let _ = runtime::timeout(CLOSE_TIMEOUT, gone).await;
        self.is_closed.send_replace(true);
        self.pool.close().await;
    }

    /// Waits until the scheduler is closed.
    pub(super) async fn closed(&self) {
        let mut is_closed = self.is_closed.subscribe();
        // Cannot fail while there is a sender.
        let _ = is_closed.wait_for(|is_closed| *is_closed).await;
    }

    /// Waits until at least `count` workers have joined.
    pub(super) async fn wait_for_workers(&self, count: usize) {
        self.until(|state| state.worker_count() >= count).await;
    }

    /// Waits until a condition about workers or their data holds.
    async fn until(&self, holds: impl Fn(&State) -> bool) {
        until(&self.changed, || self.inspect(&holds)).await;
    }
}

/// Waits until a condition holds, which is checked after each notification.
async fn until(changed: &Notify, holds: impl Fn() -> bool) {
    loop {
        let mut notified = core::pin::pin!(changed.notified());
        notified.as_mut().enable();
        if holds() {
            return;
        }
        notified.await;
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The payload of a panic.
type Panic = Box<dyn Any + Send>;

fn panic_message(panic: &Panic) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .map(|message| (*message).to_owned());
    message
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// A clock that returns the time since the Unix epoch: the wall clock at the start, plus
/// the time that has passed since then on the monotonic clock of the runtime.
#[derive(Debug)]
struct Clock {
    start: Duration,
    started: Instant,
}

impl Clock {
    fn new() -> Self {
        Self {
            start: daskwire_rpc::clock::unix_time(),
            started: runtime::now(),
        }
    }

    fn now(&self) -> Duration {
        self.start + runtime::now().saturating_duration_since(self.started)
    }
}
