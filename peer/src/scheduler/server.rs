//! The connections of a scheduler: streams of clients and workers, and requests.

use core::any::Any;
use core::time::Duration;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use daskwire_comm::Listener;
use daskwire_comm::runtime::{self, TaskSet};
use tokio::sync::{Notify, watch};

use super::{ClientId, Notice, Options, Output, Policy, State, WorkerId};
use crate::batched::BatchSender;
use crate::event::{self, Event as _, SchedulerEvent, emit};
use crate::net::Connector;
use crate::pool::Pool;
use crate::protocol::{Close, CloseStream, Field as _, ToClient, ToWorker};
use crate::{PeerError, TaskEvent, Value};

mod answer;
mod broadcast;
mod data;
mod requests;
mod retire;
mod spread;
mod streams;

/// Timeout for sending the last messages.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct Shared {
    core: Mutex<Core>,
    /// The message of the state machine's panic.
    failure: watch::Sender<Option<String>>,
    /// Whether the callback for notices has panicked.
    is_hook_broken: AtomicBool,
    pool: Pool,
    options: Options,
    id: String,
    address: String,
    started: Instant,
    /// Notified when a worker has joined, or has received or lost data.
    changed: Notify,
    stream_count: AtomicUsize,
    stream_ended: Notify,
    is_closed: watch::Sender<bool>,
    random: AtomicU64,
}

/// The state machine, and the streams for its messages.
#[derive(Debug)]
struct Core {
    state: State,
    clients: HashMap<ClientId, BatchSender<ToClient>>,
    workers: HashMap<WorkerId, BatchSender<ToWorker>>,
    notices: Vec<Notice>,
    /// Steps of tasks, for subscribers.
    reports: Vec<TaskEvent>,
}

impl Core {
    /// Dispatches the outputs of the state machine.
    fn dispatch(&mut self) {
        let Self {
            state,
            clients,
            workers,
            notices,
            reports,
        } = self;
        // Many tasks may fail for the same reason, which is in memory once.
        let mut last_failure = None;
        // A broken stream is removed when that is noticed.
        for output in state.outputs() {
            match output {
                Output::Client(id, message) => {
                    let failure = match &message {
                        ToClient::TaskErredForClient(message) => payload(&message.exception),
                        _ => None,
                    };
                    let shared = match failure {
                        Some((start, len)) if last_failure == Some(start) => len,
                        _ => 0,
                    };
                    last_failure = failure.map(|(start, _)| start).or(last_failure);
                    if let Some(stream) = clients.get(&id) {
                        let _ = stream.send_shared(message, shared);
                    }
                }
                Output::Worker(id, message) => {
                    // Queued tasks are bounded by the window for tasks.
                    let shared = match &message {
                        ToWorker::ComputeTask(message) => message.run_spec.heap_len(),
                        _ => 0,
                    };
                    if let Some(stream) = workers.get(&id) {
                        let _ = stream.send_shared(message, shared);
                    }
                }
                Output::NotifyDrained(id) => {
                    if let Some(stream) = workers.get(&id) {
                        stream.ask_drained();
                    }
                }
                Output::EndClient(id) => drop(clients.remove(&id)),
                Output::EndWorker(id) => drop(workers.remove(&id)),
                Output::Notice(notice) => notices.push(notice),
                Output::Task(event) => reports.push(event),
            }
        }
    }

    /// Replaces the inconsistent state by a new one, and notifies all peers.
    fn fail(&mut self, policy: &Policy, reason: &str) {
        self.state = State::new(policy.clone());
        let close = || Close {
            reason: Some(format!("the scheduler panicked: {reason}")),
            ..Close::default()
        };
        for stream in core::mem::take(&mut self.clients).into_values() {
            let _ = stream.send(close());
            let _ = stream.send(CloseStream::default());
        }
        for stream in core::mem::take(&mut self.workers).into_values() {
            let _ = stream.send(close());
            let _ = stream.send(CloseStream::default());
        }
        let reason = reason.to_owned();
        self.notices.push(Notice::Panicked { reason });
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
    pub(super) fn new(options: Options, address: String) -> Self {
        let mut comm = options.comm.clone();
        // Registered peers listen; one that does not is gone.
        comm.connect_retry = false;
        let connector = Arc::new(Connector::new(options.transports.separate(), comm));
        Self {
            core: Mutex::new(Core {
                state: State::new(options.policy.clone()),
                clients: HashMap::new(),
                workers: HashMap::new(),
                notices: Vec::new(),
                reports: Vec::new(),
            }),
            is_hook_broken: AtomicBool::new(false),
            failure: watch::Sender::new(None),
            pool: Pool::new(connector, "scheduler", options.observer.clone()),
            id: format!("Scheduler-{}", crate::identifier()),
            address,
            started: Instant::now(),
            changed: Notify::new(),
            stream_count: AtomicUsize::new(0),
            stream_ended: Notify::new(),
            is_closed: watch::Sender::new(false),
            random: AtomicU64::new(options.policy.seed),
            options,
        }
    }

    /// Runs an action on the state, and dispatches the outputs.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        self.with_core(|core| act(&mut core.state))
    }

    fn with_core<R>(&self, act: impl FnOnce(&mut Core) -> R) -> R {
        self.try_with_core(act)
            .unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Like [`with_core`](Self::with_core), but returns a panic, after which the
    /// scheduler ends: the action may be half done.
    fn try_with_core<R>(&self, act: impl FnOnce(&mut Core) -> R) -> Result<R, Panic> {
        let (result, notices, reports) = {
            let mut core = self.lock();
            let result = catch_unwind(AssertUnwindSafe(|| {
                core.state.set_unix_time(unix_time());
                let is_watched = SchedulerEvent::is_enabled(event::Level::Debug);
                core.state.watch_tasks(is_watched);
                let result = act(&mut core);
                core.dispatch();
                result
            }));
            if let Err(panic) = &result {
                let reason = panic_message(panic);
                core.fail(&self.options.policy, &reason);
                self.failure.send_if_modified(|failure| {
                    let is_first = failure.is_none();
                    failure.get_or_insert(reason);
                    is_first
                });
            }
            let notices = core::mem::take(&mut core.notices);
            (result, notices, core::mem::take(&mut core.reports))
        };
        for report in &reports {
            emit(event::Level::Debug, || SchedulerEvent::Task(report));
        }
        notices.iter().for_each(|notice| self.notify(notice));
        result
    }

    /// Calls `look` with the state.
    pub(super) fn inspect<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        let core = self.lock();
        // Reading leaves no inconsistent state.
        let result = catch_unwind(AssertUnwindSafe(|| look(&core.state)));
        drop(core);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("panics are caught under the lock")
    }

    fn notify(&self, notice: &Notice) {
        emit(notice.level(), || SchedulerEvent::Notice(notice));
        let Some(hook) = &self.options.on_notice else {
            return;
        };
        if self.is_hook_broken.load(Ordering::Acquire) {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| hook.notice(notice))).is_err() {
            self.is_hook_broken.store(true, Ordering::Release);
        }
    }

    /// Bytes of messages queued for clients.
    #[cfg(test)]
    pub(super) fn queued_len(&self) -> usize {
        let core = self.lock();
        let streams = core.clients.values();
        streams.map(|stream| stream.backlog().queued_len()).sum()
    }

    #[cfg(test)]
    pub(super) fn pool_len(&self) -> usize {
        self.pool.peer_count()
    }

    #[cfg(test)]
    pub(super) fn open_stream_count(&self) -> usize {
        self.stream_count.load(Ordering::Acquire)
    }

    /// The error, if the scheduler ended because of a panic.
    pub(super) fn failure(&self) -> Result<(), PeerError> {
        match self.failure.borrow().clone() {
            Some(reason) => Err(PeerError::Panicked { reason }),
            None => Ok(()),
        }
    }

    /// Closes the scheduler after a panic of the state machine.
    pub(super) async fn close_on_failure(&self) {
        let mut failure = self.failure.subscribe();
        // Cannot fail while there is a sender.
        let _ = failure.wait_for(Option::is_some).await;
        self.close().await;
    }

    /// Advances the time of the state.
    pub(super) async fn tick(&self) {
        const STEP: Duration = Duration::from_millis(500);
        let step = STEP.min(self.options.policy.deletion_interval);
        loop {
            self.with(|state| state.advance(self.started.elapsed()));
            runtime::sleep(step.max(Duration::from_millis(1))).await;
        }
    }

    /// Accepts connections. Dropping the future closes all of them.
    pub(super) async fn accept(self: Arc<Self>, listener: Listener) {
        const PAUSE: Duration = Duration::from_millis(10);
        let mut connections = TaskSet::new();
        let mut is_closed = core::pin::pin!(self.closed());
        loop {
            tokio::select! {
                incoming = listener.accept() => match incoming {
                    Ok(incoming) => {
                        connections.spawn(Arc::clone(&self).handshake(incoming));
                    }
                    // Mostly too many open files.
                    Err(_) => runtime::sleep(PAUSE).await,
                },
                Some(_) = connections.join_next() => {}
                () = &mut is_closed => break,
            }
        }
        listener.close().await;
    }

    /// Notifies all peers, and ends.
    pub(super) async fn close(&self) {
        self.with(State::close);
        let gone = async {
            loop {
                let mut ended = core::pin::pin!(self.stream_ended.notified());
                ended.as_mut().enable();
                if self.stream_count.load(Ordering::Acquire) == 0 {
                    return;
                }
                ended.await;
            }
        };
        // Peers that take longer are not waited for.
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
        loop {
            let mut changed = core::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.with(|state| state.worker_count()) >= count {
                return;
            }
            changed.await;
        }
    }
}

/// The payload of a panic.
type Panic = Box<dyn Any + Send>;

fn panic_message(panic: &Panic) -> String {
    let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    message
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// The current time in seconds since 1970.
fn unix_time() -> f64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    time.map_or(0.0, |time| time.as_secs_f64())
}
