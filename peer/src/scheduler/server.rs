//! The connections of a scheduler: streams of clients and workers, and requests.

use core::any::Any;
use core::time::Duration;
use daskwire_comm::runtime::{self, TaskSet};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use daskwire_comm::{Address, Incoming, Listener};
use tokio::sync::{Notify, watch};

use super::answer::{Answer, refused, uncaught};
use super::spread::spread;
use super::state::choose;
use super::{ClientId, Notice, Options, Output, Policy, State, Submission, WorkerId};
use crate::batched::{BatchSender, BatchWriter};
use crate::channel::{Channel, Ends, within};
use crate::event::{self, CommEvent, Event as _, SchedulerEvent, emit};
use crate::net::Connector;
use crate::pool::Pool;
use crate::protocol::{
    Broadcast, ClientDesiresKeys, Close, CloseStream, DataReply, Field as _, FromClient,
    FromWorker, HeartbeatReply, Keys, Nullable, RegisterWorker, RegisterWorkerReply, ReplyStatus,
    Request, Scatter, ToClient, ToWorker, UpdateData, UpdateDataReply,
};
use crate::rpc::IncomingRequest;
use crate::{Key, PeerError, Serialized, TaskEvent, Value};

/// Timeout for sending the last messages.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout for the replies of workers to a broadcast.
const BROADCAST_TIMEOUT: Duration = Duration::from_secs(30);

/// Time before a busy worker is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(150);

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

/// A message of a client, after the slow part of reading it.
enum ClientMessage {
    Submission(Submission),
    Refusal(super::Refusal),
    Other(FromClient),
}

impl ClientMessage {
    /// Reads a message. Many keys with an answer each are split into parts,
    /// between which the answers are sent.
    fn read(message: FromClient) -> Vec<Self> {
        const PART: usize = 1 << 10;
        match message {
            FromClient::UpdateGraph(message) => match Submission::read(message) {
                Ok(submission) => vec![Self::Submission(submission)],
                Err(refusal) => refusal.parts(PART).map(Self::Refusal).collect(),
            },
            FromClient::ClientDesiresKeys(message) if message.keys.len() > PART => {
                let parts = message.keys.chunks(PART);
                let parts = parts.map(|keys| ClientDesiresKeys {
                    keys: Keys(keys.to_vec()),
                    client: message.client.clone(),
                    ..ClientDesiresKeys::default()
                });
                parts.map(|part| Self::Other(part.into())).collect()
            }
            other => vec![Self::Other(other)],
        }
    }
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

    async fn handshake(self: Arc<Self>, incoming: Incoming) {
        let comm = match incoming.handshake().await {
            Ok(comm) => comm,
            Err(error) => {
                emit(event::Level::Info, || CommEvent::HandshakeFailed {
                    error: &error,
                });
                return;
            }
        };
        let peer = comm.peer_address().to_string();
        let ends = Ends::new("scheduler", &peer, self.options.observer.clone());
        let serving = async {
            emit(event::Level::Info, || CommEvent::Accepted);
            self.serve(Channel::new(comm, ends)).await;
            emit(event::Level::Info, || CommEvent::Closed);
        };
        event::in_comm(&peer, serving).await;
    }

    /// Answers requests until one makes the comm a stream, or the comm ends.
    async fn serve(self: Arc<Self>, mut channel: Channel) {
        while let Ok(Some(asked)) = channel.receiver.receive::<IncomingRequest>().await {
            if self.failure.borrow().is_some() {
                return;
            }
            if let Ok(request) = &asked.request {
                channel.set_traffic(request.traffic());
            }
            let answer = match asked.request {
                Ok(Request::RegisterClient(register)) => {
                    return self.client_stream(channel, &register.client).await;
                }
                Ok(Request::RegisterWorker(register)) => {
                    return self.worker_stream(channel, register).await;
                }
                Ok(request) => self.answer(request, &channel).await,
                Err(error) => Answer::Status(Box::new(uncaught(&error.to_string()))),
            };
            let is_last = matches!(answer, Answer::Bye | Answer::End) || asked.is_last;
            let is_end = matches!(answer, Answer::End);
            if asked.wants_reply && channel.sender.send(&answer).await.is_err() {
                return;
            }
            if is_last {
                channel.close().await;
                if is_end {
                    self.close().await;
                }
                return;
            }
        }
    }

    async fn client_stream(&self, mut channel: Channel, name: &str) {
        channel.rename_peer(name);
        let Channel {
            sender,
            mut receiver,
            ..
        } = channel;
        let Options {
            client_interval,
            max_queued_len,
            ..
        } = self.options;
        let (stream, mut writing) = BatchSender::new(sender, client_interval, max_queued_len);
        let backlog = stream.backlog();
        let id = self.with_core(|core| {
            let id = core.state.add_client(name);
            core.clients.insert(id, stream);
            id
        });
        let ending = StreamGuard::new(self, Member::Client(id));
        loop {
            let batch = async {
                backlog.has_room().await;
                receiver.receive_batch::<FromClient>().await
            };
            let batch = tokio::select! {
                batch = batch => batch,
                () = backlog.closing() => break,
                _ = writing.finished() => break,
            };
            let Some(batch) = self.batch(batch, name) else {
                break;
            };
            let is_last = |message: &FromClient| matches!(message, FromClient::CloseStream(_));
            let is_last = batch.iter().any(is_last);
            let heard: Vec<ClientMessage> =
                batch.into_iter().flat_map(ClientMessage::read).collect();
            self.with_core(|core| {
                for message in heard {
                    match message {
                        ClientMessage::Submission(submission) => core.state.submit(id, submission),
                        ClientMessage::Refusal(refusal) => core.state.refuse(id, &refusal),
                        ClientMessage::Other(message) => core.state.client_says(id, message),
                    }
                    core.dispatch();
                    if backlog.has_overflowed() {
                        break;
                    }
                }
            });
            if is_last {
                break;
            }
        }
        if backlog.has_overflowed() {
            self.notify_not_reading(name);
        }
        self.with(|state| state.remove_client(id));
        farewell(&mut writing).await;
        drop(ending);
    }

    async fn worker_stream(&self, mut channel: Channel, register: RegisterWorker) {
        channel.rename_peer(&register.address);
        let address = register.address.clone();
        let Channel {
            mut sender,
            mut receiver,
            ..
        } = channel;
        let joined = self.with_core(|core| match core.state.add_worker(&register) {
            Ok(id) => {
                let reply = RegisterWorkerReply {
                    status: ReplyStatus::Ok,
                    time: Some(unix_time()),
                    heartbeat_interval: Some(core.state.heartbeat_interval()),
                    extra: [
                        ("worker-plugins", Value::Dict([].into())),
                        ("warning", Value::from("")),
                        ("error", Value::from("")),
                    ]
                    .map(|(name, value)| (Value::from(name), value))
                    .into(),
                    ..RegisterWorkerReply::default()
                };
                let Options {
                    worker_interval,
                    max_queued_len,
                    ..
                } = self.options;
                let (stream, writing) =
                    BatchSender::after(Some(reply), sender, worker_interval, max_queued_len);
                let backlog = stream.backlog();
                core.workers.insert(id, stream);
                Ok((id, writing, backlog))
            }
            Err(reason) => Err(Box::new((reason, sender))),
        });
        let (id, mut writing, backlog) = match joined {
            Ok(joined) => joined,
            Err(refused) => {
                let (reason, back) = *refused;
                sender = back;
                let reply = RegisterWorkerReply {
                    status: ReplyStatus::Error,
                    message: Some(reason),
                    time: Some(unix_time()),
                    ..RegisterWorkerReply::default()
                };
                if sender.send(&reply).await.is_ok() {
                    let _ = sender.close().await;
                }
                return;
            }
        };
        let ending = StreamGuard::new(self, Member::Worker(id));
        self.changed.notify_waiters();
        loop {
            let batch = tokio::select! {
                batch = receiver.receive_batch::<FromWorker>() => batch,
                () = backlog.drained() => {
                    self.with(|state| state.drained(id));
                    continue;
                }
                () = backlog.closing() => break,
                _ = writing.finished() => break,
            };
            let Some(batch) = self.batch(batch, &address) else {
                break;
            };
            let is_last = |message: &FromWorker| matches!(message, FromWorker::CloseStream(_));
            let is_last = batch.iter().any(is_last);
            self.with_core(|core| {
                for message in batch {
                    core.state.worker_says(id, message);
                    core.dispatch();
                    if backlog.has_overflowed() {
                        break;
                    }
                }
            });
            self.changed.notify_waiters();
            if is_last {
                break;
            }
        }
        if backlog.has_overflowed() {
            self.notify_not_reading(&address);
        }
        self.with(|state| state.remove_worker(id));
        if let Ok(address) = address.parse() {
            self.pool.forget(&address);
        }
        self.changed.notify_waiters();
        farewell(&mut writing).await;
        drop(ending);
    }

    fn notify_not_reading(&self, peer: &str) {
        self.notify(&Notice::NotReading {
            peer: peer.to_owned(),
            limit: self.options.max_queued_len,
        });
    }

    /// The messages of a batch, if the stream continues.
    fn batch<T>(&self, batch: Result<Option<Vec<T>>, PeerError>, peer: &str) -> Option<Vec<T>> {
        match batch {
            Ok(batch) => batch,
            Err(error) => {
                if let PeerError::Protocol(_) = &error {
                    self.notify(&Notice::Ignored {
                        peer: peer.to_owned(),
                        reason: error.to_string(),
                    });
                }
                None
            }
        }
    }

    async fn answer(self: &Arc<Self>, request: Request, channel: &Channel) -> Answer {
        match request {
            Request::Identity(request) => self.identity(request.n_workers),
            Request::Ping(_) => Answer::Value(Value::bytes(&b"pong"[..])),
            Request::Echo(request) => Answer::Value(request.data),
            Request::Versions(_) => {
                let none = || Value::Dict([].into());
                Answer::Value(Value::dict([("host", none()), ("packages", none())]))
            }
            Request::HeartbeatWorker(request) => {
                let is_known = |state: &mut State| {
                    let is_known = state.heartbeat(&request.address, request.metrics);
                    is_known.then(|| state.heartbeat_interval())
                };
                let interval = self.with(is_known);
                Answer::Heartbeat(HeartbeatReply {
                    status: interval.map_or(ReplyStatus::Missing, |_| ReplyStatus::Ok),
                    time: Some(unix_time()),
                    heartbeat_interval: interval,
                    ..HeartbeatReply::default()
                })
            }
            Request::Unregister(request) => {
                self.with(|state| state.remove_retired(&request.address, false));
                Answer::Value(Value::None)
            }
            Request::Gather(request) => {
                Answer::Data(self.gather(request.keys.unwrap_or_default()).await)
            }
            Request::Scatter(request) => self.scatter(request).await,
            Request::WhoHas(request) => {
                let keys = request.keys.as_ref();
                Answer::WhoHas(self.with(|state| state.who_has(keys.map(|keys| &keys[..]))))
            }
            Request::NBytes(request) => {
                let keys = request.keys.as_ref();
                Answer::Sizes(self.with(|state| state.nbytes(keys.map(|keys| &keys[..]))))
            }
            Request::HasWhat(request) => {
                Answer::HasWhat(self.with(|state| state.has_what(request.workers.as_deref())))
            }
            Request::NCores(request) => {
                let workers = request.workers.as_deref();
                Answer::Counts(self.with(|state| state.thread_counts(workers, false)))
            }
            Request::NCoresRunning(request) => {
                let workers = request.workers.as_deref();
                Answer::Counts(self.with(|state| state.thread_counts(workers, true)))
            }
            Request::GetTaskStatus(request) => Answer::Stages(self.with(|state| {
                let stages = request.keys.into_iter().map(|key| {
                    let stage = state.status(&key);
                    (key, Nullable(stage))
                });
                stages.collect()
            })),
            Request::GetStory(request) => {
                let wanted = request.keys_or_stimuli.unwrap_or_default();
                Answer::Value(self.inspect(|state| state.story_value(&wanted)))
            }
            Request::Broadcast(request) => self.broadcast(request).await,
            Request::UpdateData(request) => {
                let (who_has, nbytes) = (request.who_has, request.nbytes);
                self.with(|state| {
                    let client = request.client.as_deref();
                    let who_has = who_has.unwrap_or_default();
                    state.update_data(client, &who_has, &nbytes.unwrap_or_default());
                });
                self.changed.notify_waiters();
                Answer::Value(Value::None)
            }
            Request::Retry(request) => {
                Answer::Keys(Keys(self.with(|state| state.retry(&request.keys))))
            }
            Request::RetireWorkers(request) => {
                let close = request.close_workers.unwrap_or(true);
                self.retire(request.workers, close, request.remove.unwrap_or(true))
                    .await
            }
            Request::CloseComm(_) => Answer::Bye,
            Request::Terminate(_) => Answer::End,
            other => {
                self.notify(&Notice::UnknownOp {
                    peer: channel.peer.to_string(),
                    op: other.op().to_owned(),
                });
                Answer::Value(Value::None)
            }
        }
    }

    fn identity(&self, count: Option<i64>) -> Answer {
        // A negative count means all; without a count, Dask lists five.
        let count = usize::try_from(count.unwrap_or(5)).ok();
        let identity = self.with(|state| {
            let workers = Value::dict(state.identities(count));
            Value::dict([
                ("type", Value::from("Scheduler")),
                ("id", Value::from(self.id.as_str())),
                ("address", Value::from(self.address.as_str())),
                ("services", Value::Dict([].into())),
                (
                    "started",
                    Value::from(unix_time() - self.started.elapsed().as_secs_f64()),
                ),
                ("n_workers", Value::from(state.worker_count())),
                ("total_threads", Value::from(state.thread_count())),
                ("total_memory", Value::from(state.memory_limit())),
                ("workers", workers),
            ])
        });
        Answer::Value(identity)
    }

    /// Sends a message to workers, by default to all, and returns the reply of
    /// each.
    async fn broadcast(self: &Arc<Self>, request: Broadcast) -> Answer {
        if request.nanny == Some(true) {
            return refused("NotImplementedError", "this scheduler cannot reach nannies");
        }
        let counts = self.inspect(|state| state.thread_counts(request.workers.as_deref(), false));
        let mut asking = TaskSet::new();
        for (worker, _) in counts {
            let Ok(address) = address(&worker) else {
                continue;
            };
            let asked = Request::Unknown(request.msg.clone());
            let shared = Arc::clone(self);
            asking.spawn(async move {
                let asking = shared.pool.call::<Value>(&address, &asked);
                (
                    worker,
                    within(BROADCAST_TIMEOUT, "an answer of a worker", asking).await,
                )
            });
        }
        let is_ignored = request.on_error.as_deref() == Some("ignore");
        let mut replies = Vec::new();
        while let Some(reply) = asking.join_next().await {
            match reply {
                Ok((worker, Ok(reply))) => replies.push((worker, reply)),
                Ok((_, Err(_))) if is_ignored => {}
                Ok((worker, Err(error))) => {
                    return refused("RuntimeError", &format!("{worker}: {error}"));
                }
                Err(_) => {}
            }
        }
        Answer::Value(Value::dict(replies))
    }

    /// Returns a random number.
    fn random(&self) -> u64 {
        // The order in which numbers are drawn does not matter.
        let mut state = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        choose::next(&mut state)
    }

    /// Fetches results from workers, each from any of its holders, and from
    /// another one if that fails. Payloads are forwarded unopened.
    async fn gather(self: &Arc<Self>, keys: Keys) -> DataReply {
        let mut data: Vec<(Key, Serialized)> = Vec::with_capacity(keys.len());
        let mut missing = Vec::new();
        let mut wanted = keys.0;
        wanted.sort_unstable();
        wanted.dedup();
        let mut failed: HashMap<String, HashSet<Key>> = HashMap::new();
        while !wanted.is_empty() {
            let mut asked: BTreeMap<String, Vec<Key>> = BTreeMap::new();
            for (key, mut holders) in self.with(|state| state.who_has(Some(&wanted))) {
                holders
                    .retain(|holder| !failed.get(holder).is_some_and(|keys| keys.contains(&key)));
                if holders.is_empty() {
                    missing.push(key);
                    continue;
                }
                let chosen = self.random() % holders.len() as u64;
                let chosen = usize::try_from(chosen).unwrap_or_default();
                asked
                    .entry(holders.swap_remove(chosen))
                    .or_default()
                    .push(key);
            }
            wanted.clear();
            let mut is_busy = false;
            for (worker, keys, reply) in self.get_data(asked).await {
                match reply {
                    Ok(reply) if reply.status == ReplyStatus::Busy => {
                        is_busy = true;
                        wanted.extend(keys);
                    }
                    Ok(reply) => {
                        let found = reply.data.unwrap_or_default();
                        let names: HashSet<&Key> = found.iter().map(|(key, _)| key).collect();
                        let not_there = keys.into_iter().filter(|key| !names.contains(key));
                        let not_there: Vec<Key> = not_there.collect();
                        if !not_there.is_empty() {
                            self.with(|state| {
                                for key in &not_there {
                                    state.missing_data(key, &worker);
                                }
                            });
                        }
                        data.extend(found);
                        wanted.extend(not_there.iter().cloned());
                        failed.entry(worker).or_default().extend(not_there);
                    }
                    Err(_) => {
                        wanted.extend(keys.iter().cloned());
                        failed.entry(worker).or_default().extend(keys);
                    }
                }
            }
            if is_busy {
                runtime::sleep(BUSY_PAUSE).await;
            }
        }
        let is_all = missing.is_empty();
        DataReply {
            status: if is_all {
                ReplyStatus::Ok
            } else {
                ReplyStatus::Error
            },
            data: is_all.then_some(data),
            keys: (!is_all).then_some(Keys(missing)),
            ..DataReply::default()
        }
    }

    /// Requests data from several workers at once.
    async fn get_data(
        self: &Arc<Self>,
        asked: BTreeMap<String, Vec<Key>>,
    ) -> Vec<(String, Vec<Key>, Result<DataReply, PeerError>)> {
        let one = |shared: Arc<Self>, worker: String, keys: Vec<Key>| async move {
            let reply = match address(&worker) {
                Ok(address) => shared.pool.get_data(&address, keys.clone(), None).await,
                Err(error) => Err(error),
            };
            (worker, keys, reply)
        };
        let mut asked = asked.into_iter();
        if asked.len() == 1
            && let Some((worker, keys)) = asked.next()
        {
            return vec![one(Arc::clone(self), worker, keys).await];
        }
        let mut asking = TaskSet::new();
        for (worker, keys) in asked {
            asking.spawn(one(Arc::clone(self), worker, keys));
        }
        asking.join_all().await
    }

    /// Distributes data over workers in turn, weighted by their threads.
    async fn scatter(self: &Arc<Self>, request: Scatter) -> Answer {
        const TIMEOUT: Duration = Duration::from_secs(30);
        let patience = request.timeout.map(Duration::try_from_secs_f64);
        let patience = patience.and_then(Result::ok).unwrap_or(TIMEOUT);
        let chosen = request.workers.0.filter(|workers| !workers.is_empty());
        let Ok(workers) = within(patience, "a worker", self.running(chosen)).await else {
            return refused("TimeoutError", "No valid workers found");
        };
        let copies = match request.broadcast {
            Value::Bool(true) => workers.len(),
            Value::Int(count) => usize::try_from(count).unwrap_or(1),
            _ => 1,
        };
        let keys: Vec<Key> = request.data.iter().map(|(key, _)| key.clone()).collect();
        let threads: Vec<u64> = workers.iter().map(|(_, threads)| *threads).collect();
        let parts = spread(request.data, &threads, copies, self.random());
        let mut sending = TaskSet::new();
        for ((worker, _), data) in workers.into_iter().zip(parts) {
            if data.is_empty() {
                continue;
            }
            let shared = Arc::clone(self);
            sending.spawn(async move {
                let nbytes = shared.put(&worker, data).await;
                (worker, nbytes)
            });
        }
        let mut who_has: BTreeMap<Key, Vec<String>> = BTreeMap::new();
        let mut nbytes = Vec::new();
        let mut failure = None;
        for (worker, outcome) in sending.join_all().await {
            match outcome {
                Ok(sizes) => {
                    for (key, _) in &sizes {
                        let holders = who_has.entry(key.clone()).or_default();
                        holders.push(worker.clone());
                    }
                    nbytes.extend(sizes);
                }
                Err(error) => failure = Some(error),
            }
        }
        let is_all = keys.iter().all(|key| who_has.contains_key(key));
        let who_has: Vec<(Key, Vec<String>)> = who_has.into_iter().collect();
        self.with(|state| state.update_data(Some(&request.client), &who_has, &nbytes));
        match failure {
            Some(error) if !is_all => refused("OSError", &error.to_string()),
            _ => Answer::Keys(Keys(keys)),
        }
    }

    /// Sends data to a worker. Returns the sizes of the data, for the requested
    /// keys only.
    async fn put(
        &self,
        worker: &str,
        data: Vec<(Key, Serialized)>,
    ) -> Result<Vec<(Key, u64)>, PeerError> {
        let mut names: HashSet<Key> = data.iter().map(|(key, _)| key.clone()).collect();
        self.with(|state| state.forget_deletions(&names, worker));
        let request = Request::from(UpdateData {
            data: Some(data),
            stimulus_id: Some("scatter".to_owned()),
            reply: Some(true),
            ..UpdateData::default()
        });
        let mut reply: UpdateDataReply = self.pool.call(&address(worker)?, &request).await?;
        reply.nbytes.retain(|(key, _)| names.remove(key));
        Ok(reply.nbytes)
    }

    /// Waits until one of the given workers, or any worker, is running.
    async fn running(&self, among: Option<Vec<String>>) -> Result<Vec<(String, u64)>, PeerError> {
        loop {
            let mut changed = core::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let running = self.with(|state| state.thread_counts(among.as_deref(), true));
            if !running.is_empty() {
                return Ok(running);
            }
            changed.await;
        }
    }

    /// Retires workers after others have copies of their data.
    async fn retire(&self, workers: Option<Vec<String>>, close: bool, remove: bool) -> Answer {
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
    async fn leaving(&self, worker: &str) -> Result<(), PeerError> {
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

    /// Notifies all peers, and ends.
    pub(super) async fn close(&self) {
        self.with(State::close);
        let gone = async {
            loop {
                let mut ended = core::pin::pin!(self.stream_ended.notified());
                ended.as_mut().enable();
                if self.stream_count.load(Ordering::Acquire) == 0 {
                    return Ok(());
                }
                ended.await;
            }
        };
        // Peers that take longer are not waited for.
        let _ = within(CLOSE_TIMEOUT, "streams to end", gone).await;
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

/// The client or worker of a stream.
#[derive(Clone, Copy)]
enum Member {
    Client(ClientId),
    Worker(WorkerId),
}

/// Counts an open stream, and removes its client or worker if a panic ends it,
/// for example one of an observer.
struct StreamGuard<'s> {
    shared: &'s Shared,
    member: Member,
}

impl<'s> StreamGuard<'s> {
    fn new(shared: &'s Shared, member: Member) -> Self {
        shared.stream_count.fetch_add(1, Ordering::AcqRel);
        Self { shared, member }
    }
}

impl Drop for StreamGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A second panic here would abort the process.
            let _ = self.shared.try_with_core(|core| match self.member {
                Member::Client(id) => core.state.remove_client(id),
                Member::Worker(id) => core.state.remove_worker(id),
            });
            self.shared.changed.notify_waiters();
        }
        self.shared.stream_count.fetch_sub(1, Ordering::AcqRel);
        self.shared.stream_ended.notify_waiters();
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

/// Waits until the last messages are sent.
async fn farewell(writing: &mut BatchWriter) {
    if runtime::timeout(CLOSE_TIMEOUT, writing.finished())
        .await
        .is_err()
    {
        writing.abort();
    }
}

fn address(worker: &str) -> Result<Address, PeerError> {
    worker.parse().map_err(|_| PeerError::Refused {
        reason: format!("{worker} is not an address"),
    })
}

/// The current time in seconds since 1970.
fn unix_time() -> f64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    time.map_or(0.0, |time| time.as_secs_f64())
}
