//! The driver of a client's state machine, shared by the client and its futures.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use daskwire_comm::runtime::{self, Instant, Spawner, TaskSet};
use daskwire_comm::{Address, BoxFuture};
use daskwire_messages::dialect::Dialect;
use daskwire_messages::protocol::{Field, FromClient, Keys, Request, Retry};
use daskwire_messages::{Key, Release};
use daskwire_rpc::RequestError;
use daskwire_rpc::batched::BatchSender;
use daskwire_rpc::event::{Level, emit};
use daskwire_rpc::net::Connector;
use daskwire_rpc::panic_flag::PanicFlag;
use daskwire_rpc::pool::{Deadlines, Pool};
use tokio::sync::{Semaphore, oneshot, watch};

use super::event::ClientEvent;
use super::future::Watcher;
use super::session::Owner;
use super::state::{Action, ClientInput, Hold, Kept, Returned, State, Status};
use super::topic::{Topics, subscription, unsubscription};
use super::{Client, ClientOptions, Connection, Disconnected, TaskFuture};

/// The reason given after a panic of the client.
pub(super) const PANICKED: &str = "the client panicked";

/// The reason given after the end of the runtime on which the client was connected.
pub(super) const RUNTIME_ENDED: &str = "the async runtime on which the client was connected has ended, \
     and with it the connection; connect a client on each runtime";

/// The reason given after a failed attempt to send.
const BROKEN: &str = "the connection broke";

/// Maximum number of concurrent requests for results.
pub(super) const MAX_GATHER_REQUESTS: usize = 32;

/// The state shared by a client and its futures.
pub(super) struct Shared {
    id: String,
    address: Address,
    pub(super) options: ClientOptions,
    pub(super) pool: Pool,
    pub(super) connector: Arc<Connector>,
    /// The runtime of background work.
    pub(super) runtime: Spawner,
    pub(super) panic_flag: PanicFlag,
    pub(super) machine: Mutex<ClientMachine>,
    pub(super) topics: Topics,
    /// A permit for each request for results: a program may wait for thousands at once, and
    /// each request needs a comm.
    pub(super) gather_permits: Semaphore,
    /// Background work, such as requests that release dropped leases, which [`Client::close`](super::Client::close)
    /// waits for.
    pub(super) releases: Mutex<TaskSet<()>>,
    /// The state of the connection, for watchers.
    pub(super) connection: watch::Sender<Connection>,
    /// What was found at the last reconnection.
    pub(super) returned: watch::Sender<Option<Returned>>,
    /// The number of the last mark that was answered, or whose answer will never come.
    answered: watch::Sender<u64>,
    /// The origin of the state machine's times.
    origin: Instant,
    /// What all clones of the client share; set once it is connected.
    owner: OnceLock<Weak<Owner>>,
}

/// The state machine, and the data that its actions change.
pub(super) struct ClientMachine {
    pub(super) state: State,
    /// The stream to the scheduler, while connected.
    pub(super) stream: Option<BatchSender<FromClient>>,
    /// The client's id at the scheduler, of the current or last registration.
    pub(super) registered_id: Arc<str>,
    /// Data that may be stored for earlier registrations, with their ids. It is released on
    /// the next connection.
    abandoned: Vec<(Arc<str>, Vec<Key>)>,
    /// Whether the client has tried to register.
    has_registered: bool,
    /// The dialect of the scheduler's release.
    pub(super) dialect: Dialect,
    /// The time of the next tick.
    pub(super) wake_at: Duration,
    /// The next attempt to connect.
    pub(super) attempt: Option<Attempt>,
    /// Whether the client was closed: the scheduler closes the connection once it
    /// has read everything.
    pub(super) is_closing: bool,
    /// The watchers of pending holds.
    watchers: HashMap<Hold, Vec<Watcher>>,
}

/// An attempt to connect.
pub(super) struct Attempt {
    pub(super) at: Duration,
    pub(super) until: Duration,
}

/// Actions to perform after the state machine is unlocked, because they wake tasks and
/// call subscribers.
#[derive(Default)]
struct Notices {
    changes: Vec<Change>,
    answered: Option<u64>,
    disconnected: Option<String>,
    /// What the client has found after it has reconnected.
    returned: Option<Returned>,
    /// Whether the client has ended.
    has_ended: bool,
    /// Whether the state of the connection has changed.
    is_connection_changed: bool,
    /// Whether a message could not be sent.
    has_failed: bool,
}

/// A change of the status of a hold.
struct Change {
    hold: Hold,
    status: Status,
    watchers: Vec<Watcher>,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id)
            .field("scheduler", &format_args!("{}", self.address))
            .finish_non_exhaustive()
    }
}

impl ClientMachine {
    /// Handles an event: performs the actions that can be performed under the lock, and
    /// adds the others to `notices`.
    fn handle(&mut self, now: Duration, event: ClientInput, notices: &mut Notices) {
        let before = self.phase();
        for action in self.state.handle(now, event) {
            match action {
                Action::Send(message) => {
                    let stream = self.stream.as_ref();
                    notices.has_failed |= !stream.is_some_and(|stream| stream.send(message));
                }
                Action::Status { hold, status } => {
                    let watchers = match status {
                        // The watchers continue to wait.
                        Status::Pending => None,
                        _ => self.watchers.remove(&hold),
                    };
                    notices.changes.push(Change {
                        hold,
                        status,
                        watchers: watchers.unwrap_or_default(),
                    });
                }
                Action::Answered { mark } => notices.answered = Some(mark),
                Action::Wake { at } => self.wake_at = at,
                Action::Disconnect { reason } => {
                    self.stream = None;
                    notices.disconnected = Some(reason);
                }
                Action::Connect { at, until } => self.attempt = Some(Attempt { at, until }),
                Action::Returned(returned) => notices.returned = Some(returned),
            }
        }
        notices.has_ended |= self.state.has_ended();
        notices.is_connection_changed |= before != self.phase();
    }

    /// Releases data that was stored for earlier registrations.
    fn release_abandoned(&mut self, now: Duration, notices: &mut Notices) {
        for (id, mut keys) in core::mem::take(&mut self.abandoned) {
            if id == self.registered_id {
                // The program may have other futures of them.
                keys.retain(|key| self.state.hold(key).is_none());
            }
            let client = id.to_string();
            self.handle(now, ClientInput::ReleaseAs { client, keys }, notices);
        }
    }

    /// Ends the connection if a message could not be sent, so that the client reconnects at
    /// once. A client that does not reconnect still reads the last messages of the scheduler.
    fn check_stream(&mut self, now: impl FnOnce() -> Duration, notices: &mut Notices) {
        if notices.has_failed && self.state.reconnects() && self.state.is_connected() {
            let failure = self.stream.as_ref().and_then(BatchSender::failure);
            let reason = failure.map_or_else(|| BROKEN.to_owned(), ToString::to_string);
            self.handle(now(), ClientInput::Disconnected { reason }, notices);
        }
    }

    /// Whether the client is connected, whether it has found its keys, and whether it has ended.
    const fn phase(&self) -> (bool, bool, bool) {
        (
            self.state.is_connected(),
            self.state.is_returning(),
            self.state.has_ended(),
        )
    }

    /// The state of the connection.
    pub(super) fn connection(&self) -> Connection {
        match self.state.disconnected() {
            None if self.state.is_returning() => Connection::Reconnecting,
            None => Connection::Connected,
            Some(error) if self.state.has_ended() => Connection::Closed {
                reason: error.reason,
            },
            Some(_) => Connection::Reconnecting,
        }
    }
}

impl Shared {
    pub(super) fn new(address: Address, options: ClientOptions) -> Self {
        let connector = Connector::new(
            options.transports.with_own_connections(),
            options.comm.clone(),
        );
        let connector = Arc::new(connector);
        let id = options
            .id
            .clone()
            .unwrap_or_else(|| format!("Client-daskwire-{}", daskwire_messages::key::identifier()));
        let panic_flag = PanicFlag::default();
        Self {
            pool: Pool::new(Arc::clone(&connector), "client", options.observer.clone())
                .metered(options.meter.clone()),
            connector,
            runtime: Spawner::current(),
            machine: Mutex::new(ClientMachine {
                state: State::new(id.as_str(), options.reconnect),
                stream: None,
                registered_id: id.as_str().into(),
                abandoned: Vec::new(),
                has_registered: false,
                dialect: Dialect::NEWEST,
                wake_at: Duration::ZERO,
                attempt: None,
                is_closing: false,
                watchers: HashMap::new(),
            }),
            topics: Topics::new(panic_flag.clone()),
            panic_flag,
            gather_permits: Semaphore::new(MAX_GATHER_REQUESTS),
            releases: Mutex::new(TaskSet::new()),
            connection: watch::Sender::new(Connection::Reconnecting),
            returned: watch::Sender::new(None),
            answered: watch::Sender::new(0),
            origin: runtime::now(),
            owner: OnceLock::new(),
            id,
            address,
            options,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The client's id at the scheduler.
    pub(super) fn registered_id(&self) -> Arc<str> {
        Arc::clone(&self.lock().registered_id)
    }

    /// The id for the next registration, and whether it is that of an earlier one. With schedulers of
    /// Dask, each has an id of its own: when such a scheduler notices that an earlier connection has
    /// ended, it forgets everything about the id.
    pub(super) fn next_id(&self, keeps_keys: bool) -> (Arc<str>, bool) {
        match core::mem::replace(&mut self.lock().has_registered, true) {
            is_return if keeps_keys || !is_return => (self.id.as_str().into(), is_return),
            _ => {
                let number = daskwire_messages::key::identifier();
                (format!("{}-{number}", self.id).into(), true)
            }
        }
    }

    pub(super) fn set_owner(&self, owner: &Arc<Owner>) {
        // A client is made once.
        let _ = self.owner.set(Arc::downgrade(owner));
    }

    /// A client that does not keep the session, for what the session itself calls; `None` before
    /// the client is connected for the first time, and once its last clone was dropped.
    pub(super) fn client(self: &Arc<Self>) -> Option<Client> {
        let session = Arc::new(self.owner.get()?.upgrade()?.borrowed());
        Some(Client {
            shared: Arc::clone(self),
            session,
        })
    }

    pub(super) const fn address(&self) -> &Address {
        &self.address
    }

    /// The state machine. If a panic has left it half changed, the client ends.
    pub(super) fn lock(&self) -> MutexGuard<'_, ClientMachine> {
        self.panic_flag.check(self.machine.lock())
    }

    fn now(&self) -> Duration {
        runtime::now().saturating_duration_since(self.origin)
    }

    /// Converts a time of the state machine to the clock that timers use.
    pub(super) fn instant(&self, at: Duration) -> Instant {
        runtime::now() + at.saturating_sub(self.now()).min(FAR)
    }

    /// Handles an event of the connection.
    pub(super) fn handle(&self, event: ClientInput) {
        self.handle_all([event]);
    }

    /// Handles events in one step.
    pub(super) fn handle_all(&self, events: impl IntoIterator<Item = ClientInput>) {
        let _guard = self.panic_flag.guard();
        let mut notices = Notices::default();
        let (mut machine, now) = (self.lock(), self.now());
        for event in events {
            machine.handle(now, event, &mut notices);
        }
        machine.check_stream(|| now, &mut notices);
        drop(machine);
        self.notify(notices);
    }

    /// Handles a new connection.
    pub(super) fn connected(
        &self,
        stream: BatchSender<FromClient>,
        id: Arc<str>,
        release: Option<Release>,
        dialect: Dialect,
        kept: Option<Kept>,
    ) {
        let _guard = self.panic_flag.guard();
        let mut notices = Notices::default();
        let mut machine = self.lock();
        machine.stream = Some(stream);
        let before = core::mem::replace(&mut machine.registered_id, id);
        machine.dialect = dialect;
        let event = ClientInput::Connected { release, kept };
        machine.handle(self.now(), event, &mut notices);
        if !machine.state.is_connected() {
            // The client has ended meanwhile.
            machine.stream = None;
        }
        if machine.state.is_connected() {
            machine.release_abandoned(self.now(), &mut notices);
        }
        if let Some(stream) = &machine.stream {
            // A scheduler has no subscriptions of a new id, and keeps those of the id before.
            for topic in self.topics.names() {
                if machine.registered_id != before {
                    stream.send(unsubscription(topic.clone(), &before));
                }
                stream.send(subscription(topic, &machine.registered_id));
            }
        }
        drop(machine);
        self.notify(notices);
    }

    /// Handles an event of the program, which needs a connection.
    pub(super) fn request(&self, event: ClientInput) -> Result<(), Disconnected> {
        self.request_and(event, |_| ())
    }

    /// Handles an event of the program, and reads the state under the same lock.
    fn request_and<T>(
        &self,
        event: ClientInput,
        read: impl FnOnce(&ClientMachine) -> T,
    ) -> Result<T, Disconnected> {
        self.change_and_request(|_| Some(event), read)
    }

    /// Like [`request_and`](Self::request_and), for a change that may have an event. The
    /// change is made even without a connection. It gets the client's id at the scheduler.
    fn change_and_request<T>(
        &self,
        change: impl FnOnce(&str) -> Option<ClientInput>,
        read: impl FnOnce(&ClientMachine) -> T,
    ) -> Result<T, Disconnected> {
        let _guard = self.panic_flag.guard();
        let mut machine = self.lock();
        let event = change(&machine.registered_id);
        if self.panic_flag.is_set() || !machine.state.is_connected() {
            return Err(self.disconnected_from(&machine));
        }
        let mut notices = Notices::default();
        if let Some(event) = event {
            machine.handle(self.now(), event, &mut notices);
        }
        let result = read(&machine);
        machine.check_stream(|| self.now(), &mut notices);
        let result = match notices.has_failed {
            true => Err(self.disconnected_from(&machine)),
            false => Ok(result),
        };
        drop(machine);
        self.notify(notices);
        result
    }

    /// Performs the deferred actions.
    fn notify(&self, mut notices: Notices) {
        // Waiting tasks first: a subscriber of events may panic.
        if let Some(mark) = notices.answered {
            // Another thread may have set a larger number.
            self.answered.send_if_modified(|answered| {
                let is_larger = mark > *answered;
                *answered = mark.max(*answered);
                is_larger
            });
        }
        for change in &mut notices.changes {
            let is_finished = change.status == Status::Finished;
            for watcher in change.watchers.drain(..) {
                watcher.notify(is_finished);
            }
        }
        if let Some(returned) = &notices.returned {
            self.returned.send_replace(Some(returned.clone()));
        }
        if notices.is_connection_changed {
            // Read the state again, because another thread may have changed it
            // meanwhile.
            self.connection.send_if_modified(|connection| {
                let now = self.lock().connection();
                let is_changed = *connection != now;
                *connection = now;
                is_changed
            });
        }
        if notices.has_ended {
            self.topics.clear();
        }
        if let Some(reason) = &notices.disconnected {
            emit(Level::Info, || ClientEvent::Disconnected { reason });
        }
        if let Some(returned) = &notices.returned {
            let level = match returned.lost {
                0 => Level::Info,
                _ => Level::Warn,
            };
            emit(level, || ClientEvent::Returned(returned));
        }
        for change in &notices.changes {
            emit(Level::Debug, || ClientEvent::Task {
                key: change.hold.key(),
                status: change.status.name(),
            });
        }
    }

    /// The reason why the client is not connected.
    pub(super) fn disconnected(&self) -> Disconnected {
        self.disconnected_from(&self.lock())
    }

    fn disconnected_from(&self, machine: &ClientMachine) -> Disconnected {
        let reason = if self.panic_flag.is_set() {
            PANICKED
        } else if let Some(disconnected) = machine.state.disconnected() {
            return disconnected;
        } else {
            // The stream cannot be written, and the end of the connection is noticed
            // soon.
            BROKEN
        };
        Disconnected {
            reason: reason.to_owned(),
            is_reconnecting: false,
        }
    }

    /// Handles an event that adds handles on keys, and returns these, in the order of
    /// the keys.
    pub(super) fn hold(
        self: &Arc<Self>,
        event: ClientInput,
        keys: &[Key],
    ) -> Result<Vec<TaskFuture>, Disconnected> {
        self.request_and(event, |machine| {
            let holds = keys.iter().filter_map(|key| machine.state.hold(key));
            let mut futures = Vec::with_capacity(keys.len());
            futures.extend(holds.map(|hold| TaskFuture::new(hold, Arc::clone(self))));
            futures
        })
    }

    /// Notes that data may be stored for the client of this id although the request has failed.
    /// What is stored later than its release stays at the scheduler.
    pub(super) fn not_stored(&self, keys: Vec<Key>, id: Arc<str>) {
        let mut notices = Notices::default();
        let mut machine = self.lock();
        // An id may be registered again.
        if Arc::ptr_eq(&machine.registered_id, &id) && machine.state.is_connected() {
            // The handles of the data are dropped, which releases it.
            return;
        }
        machine.abandoned.push((id, keys));
        if machine.state.is_connected() {
            machine.release_abandoned(self.now(), &mut notices);
        }
        drop(machine);
        self.notify(notices);
    }

    /// Notes that the data of holds was stored for the client of this id. Returns an error if
    /// that is an earlier registration: the data is then released.
    pub(super) fn stored(&self, holds: Vec<Hold>, id: Arc<str>) -> Result<(), Disconnected> {
        let _guard = self.panic_flag.guard();
        let mut notices = Notices::default();
        let mut machine = self.lock();
        let is_current = Arc::ptr_eq(&machine.registered_id, &id) && machine.state.is_connected();
        if is_current {
            machine.handle(self.now(), ClientInput::Stored(holds), &mut notices);
        } else {
            let keys = holds.iter().map(|hold| hold.key().clone()).collect();
            machine.abandoned.push((id, keys));
            if machine.state.is_connected() {
                machine.release_abandoned(self.now(), &mut notices);
            }
        }
        machine.check_stream(|| self.now(), &mut notices);
        let disconnected = machine.state.disconnected();
        drop(machine);
        self.notify(notices);
        match disconnected {
            Some(disconnected) => Err(disconnected),
            None if is_current => Ok(()),
            None => Err(Disconnected {
                reason: BROKEN.to_owned(),
                is_reconnecting: true,
            }),
        }
    }

    /// Releases a handle of a hold.
    pub(super) fn release_hold(&self, hold: &Hold) {
        let _guard = self.panic_flag.guard();
        let mut notices = Notices::default();
        let mut machine = self.lock();
        machine.handle(self.now(), ClientInput::Release(hold.clone()), &mut notices);
        if !machine.watchers.is_empty() && machine.state.status(hold).is_none() {
            // These watchers belong to waits that were dropped.
            machine.watchers.remove(hold);
        }
        machine.check_stream(|| self.now(), &mut notices);
        drop(machine);
        self.notify(notices);
    }

    /// The status of a hold that has handles.
    pub(super) fn status(&self, hold: &Hold) -> Status {
        let status = self.lock().state.status(hold);
        status.unwrap_or(Status::Pending)
    }

    /// Notifies the watcher when the hold is done, at once if it is.
    pub(super) fn watch(&self, hold: &Hold, watcher: Watcher) {
        let _guard = self.panic_flag.guard();
        let mut machine = self.lock();
        match machine.state.status(hold) {
            None | Some(Status::Pending) => {
                let watchers = machine.watchers.entry(hold.clone()).or_default();
                if watchers.len() == watchers.capacity() {
                    watchers.retain(|watcher| !watcher.is_closed());
                }
                if watchers.is_empty() {
                    // Most holds have one watcher.
                    watchers.reserve_exact(1);
                }
                watchers.push(watcher);
            }
            Some(status) => {
                drop(machine);
                watcher.notify(status == Status::Finished);
            }
        }
    }

    /// Waits until the scheduler has read all releases, and all messages of
    /// [`tell`](Self::tell). Requests use other comms than the stream; a key that is
    /// used again right after its release could be forgotten otherwise.
    ///
    /// Returns an error if the client is not connected any more.
    pub(super) async fn settle<E: From<RequestError> + From<Disconnected>>(&self) -> Result<(), E> {
        let mut answered = self.answered.subscribe();
        let read = |machine: &ClientMachine| {
            let mark = machine.state.unsettled()?;
            Some((mark, Arc::clone(&machine.registered_id)))
        };
        let Some((mark, id)) = self.request_and(ClientInput::Settle, read)? else {
            return Ok(());
        };
        // No timeout: the scheduler reads nothing while it handles a large graph. The wait
        // ends with the connection. The sender lives as long as `self`.
        let _ = answered.wait_for(|answered| *answered >= mark).await;
        // Marks that were sent before count as answered when the connection breaks.
        let machine = self.lock();
        match machine.state.disconnected() {
            Some(disconnected) => Err(disconnected.into()),
            None if machine.registered_id != id => {
                let disconnected = Disconnected {
                    reason: BROKEN.to_owned(),
                    is_reconnecting: true,
                };
                Err(disconnected.into())
            }
            None => Ok(()),
        }
    }

    /// Retries failed tasks.
    pub(super) async fn retry(&self, keys: Keys) -> Result<(), RequestError> {
        let request = Retry {
            keys,
            client: Some(self.registered_id().to_string()),
            reply: Some(true),
            ..Retry::default()
        };
        let retried: Keys = self.call("the scheduler to retry tasks", request).await?;
        // The tasks may have failed again already; the scheduler then reports the
        // failure once more. Without a connection, the futures have ended.
        let _ = self.request(ClientInput::Refresh(retried.0));
        Ok(())
    }

    /// Does work in the background, which [`Client::close`](super::Client::close) waits for.
    pub(super) fn finish(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut releases = self.panic_flag.check(self.releases.lock());
        while releases.try_join_next().is_some() {}
        releases.push(self.runtime.spawn(work));
    }

    /// Like [`finish`](Self::finish), and waits for the outcome.
    pub(super) async fn finish_and_wait<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Disconnected> + Send + 'static,
    {
        let (sender, outcome) = oneshot::channel();
        self.finish(async move {
            let _ = sender.send(work.await);
        });
        match outcome.await {
            Ok(outcome) => outcome,
            // The work panicked, or the runtime is shutting down.
            Err(_) => Err(self.disconnected().into()),
        }
    }

    /// Does work in the background, so that it continues if the caller is dropped. The work
    /// ends with the client. `too_late` gets a result that no call waits for any more.
    pub(super) async fn run_to_end<T, E>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        too_late: impl Fn(T) + Clone + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Disconnected> + Send + 'static,
    {
        // The runtime stores the task once more.
        let work: BoxFuture<'static, _> = Box::pin(work);
        let (sender, outcome) = oneshot::channel();
        let (shared, keep) = (Arc::clone(self), too_late.clone());
        drop(self.runtime.spawn(async move {
            let outcome = tokio::select! {
                outcome = work => outcome,
                () = shared.ended() => Err(shared.disconnected().into()),
            };
            if let Err(Ok(result)) = sender.send(outcome) {
                keep(result);
            }
        }));
        let mut awaited = Awaited { outcome, too_late };
        match (&mut awaited.outcome).await {
            Ok(outcome) => outcome,
            // The work panicked, or the runtime is shutting down.
            Err(_) => Err(self.disconnected().into()),
        }
    }

    /// Waits until the client has ended.
    async fn ended(&self) {
        let mut connection = self.connection.subscribe();
        let is_closed = |connection: &Connection| matches!(connection, Connection::Closed { .. });
        // The sender lives as long as `self`.
        let _ = connection.wait_for(is_closed).await;
    }

    /// The name of the type of a hold's result, if it is known.
    pub(super) fn type_name(&self, hold: &Hold) -> Option<Arc<str>> {
        self.lock().state.type_name(hold)
    }

    /// Sends a message on the stream that changes no hold.
    pub(super) fn tell(&self, message: impl Into<FromClient>) -> Result<(), Disconnected> {
        self.request(ClientInput::Send(Box::new(message.into())))
    }

    /// Makes a change and sends the message for it, if it has one, so that messages are
    /// sent in the order of the changes. The change gets the client's id at the scheduler.
    pub(super) fn change_and_tell<M: Into<FromClient>>(
        &self,
        change: impl FnOnce(&str) -> Option<M>,
    ) -> Result<(), Disconnected> {
        let change = |id: &str| Some(ClientInput::Send(Box::new(change(id)?.into())));
        self.change_and_request(change, |_| ())
    }

    /// Sends a request, and waits for the reply for a limited time.
    pub(super) async fn call<T: Field>(
        &self,
        what: &'static str,
        request: impl Into<Request>,
    ) -> Result<T, RequestError> {
        self.call_with_timeout(self.options.timeout, what, request)
            .await
    }

    /// Like [`call`](Self::call), with another timeout.
    pub(super) async fn call_with_timeout<T: Field>(
        &self,
        timeout: Duration,
        waiting_for: &'static str,
        request: impl Into<Request>,
    ) -> Result<T, RequestError> {
        let deadlines = Deadlines::with_timeout(timeout, waiting_for);
        self.reply_until(&request.into(), deadlines).await
    }

    /// Sends a request to the scheduler, and waits for the reply without a timeout.
    pub(super) async fn reply<T: Field>(&self, request: &Request) -> Result<T, RequestError> {
        self.reply_until(request, Deadlines::default()).await
    }

    /// Sends a request to the scheduler, and waits for the reply until the deadlines.
    pub(super) async fn reply_until<T: Field>(
        &self,
        request: &Request,
        deadlines: Deadlines,
    ) -> Result<T, RequestError> {
        let reply = self
            .pool
            .call_until(&self.address, request, deadlines)
            .await;
        reply.map_err(|error| match self.lock().state.disconnected() {
            // The sockets of the runtime have ended with it.
            Some(disconnected) if disconnected.reason == RUNTIME_ENDED => match error {
                RequestError::Comm(_) | RequestError::Closed { .. } => disconnected.into(),
                error => error,
            },
            _ => error,
        })
    }
}

/// An outcome that a caller waits for. It may arrive while the caller is dropped.
struct Awaited<T, E, F: Fn(T)> {
    outcome: oneshot::Receiver<Result<T, E>>,
    too_late: F,
}

impl<T, E, F: Fn(T)> Drop for Awaited<T, E, F> {
    fn drop(&mut self) {
        self.outcome.close();
        if let Ok(Ok(result)) = self.outcome.try_recv() {
            (self.too_late)(result);
        }
    }
}

/// A duration longer than any program runs, and still supported by timers.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
