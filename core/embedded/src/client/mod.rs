//! A client without a heap and without I/O.
//!
//! A [`Client`] submits calls of Python functions, waits for them, and gathers
//! their results. It is a [`Role`]: connect it to sockets with
//! [`exchange`](crate::role::exchange).

mod exception;
mod graph;

use core::fmt::Write as _;
use core::time::Duration;

use daskwire::msgpack::{Reader, Writer};
use daskwire_pickle::{Writer as PickleWriter, WriterLevel};

use crate::fixed_string::FixedString;
use crate::link::{Link, LinkBuffers, MAX_FRAMES, Piece, field, items, str_field};
use crate::pickle_tree::Tree;
use crate::role::{Role, Wanted};
use crate::store::{EntryId, Handle, Part, State, Store};
use crate::value::{Failure, NO_ROOM, Value};
use exception::describe;
use graph::{GRAPH_LEN, send_graph, write_graph};

/// The address of the scheduler and the name of a client.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config<'a> {
    /// The address of the scheduler, such as `tcp://10.0.2.2:8786`.
    pub scheduler: &'a str,
    /// The name of the client, of at most [`MAX_NAME`] bytes. It must be unique, also
    /// over time: the scheduler treats clients with the same name as one.
    pub name: &'a str,
}

impl<'a> Config<'a> {
    /// A client with the name `name` of the scheduler at `scheduler`.
    pub const fn new(scheduler: &'a str, name: &'a str) -> Self {
        Self { scheduler, name }
    }

    with_fields! {
        with_scheduler(scheduler: &'a str);
        with_name(name: &'a str);
    }
}

/// The maximum length of the name of a client, in bytes.
pub const MAX_NAME: usize = 64;

/// The maximum length of a task, in bytes: its function and its arguments.
pub const MAX_TASK: usize = 1024;

/// The memory of a client: for `KEYS` tasks at a time, whose keys and results take
/// up to `DATA` bytes in all, and for one result of up to `MESSAGE` bytes with its
/// headers.
///
/// The size is about 4.9 kB, 104 bytes for each of `KEYS`, `DATA` and `MESSAGE`:
///
/// ```
/// use daskwire_embedded::client::Memory;
///
/// const LEN: usize = size_of::<Memory<4, 1024, 1024>>();
/// assert!(LEN <= 4_900 + 4 * 104 + 1024 + 1024);
/// ```
pub struct Memory<const KEYS: usize, const DATA: usize, const MESSAGE: usize> {
    store: Store<KEYS, DATA>,
    stream: LinkBuffers<MAX_FRAMES, 2048, 2048>,
    requests: LinkBuffers<MAX_FRAMES, MESSAGE, 512>,
}

impl<const KEYS: usize, const DATA: usize, const MESSAGE: usize> Memory<KEYS, DATA, MESSAGE> {
    /// Unused memory.
    pub const fn new() -> Self {
        Self {
            store: Store::new(),
            stream: LinkBuffers::EMPTY,
            requests: LinkBuffers::EMPTY,
        }
    }
}

impl<const KEYS: usize, const DATA: usize, const MESSAGE: usize> Default
    for Memory<KEYS, DATA, MESSAGE>
{
    fn default() -> Self {
        Self::new()
    }
}

/// The status of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Status {
    /// The client is being registered with the scheduler.
    Connecting,
    /// Tasks can be submitted.
    Connected,
    /// The client was closed, or lost its connection to the scheduler.
    Ended,
}

/// A task of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId(Handle);

/// An argument of a task.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A value.
    Value(Value<'a>),
    /// The result of another task.
    Task(TaskId),
}

impl<'a> From<Value<'a>> for Argument<'a> {
    fn from(value: Value<'a>) -> Self {
        Self::Value(value)
    }
}

/// The state of a task.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// The task has not finished, or its result has not been received.
    Pending,
    /// The task has finished.
    Value(Value<'a>),
    /// The task has failed with this error.
    Failed(&'a str),
    /// The task was [released](Client::release).
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The deadline is set by the first poll.
    Connecting {
        is_requested: bool,
        deadline: Option<Duration>,
    },
    Connected,
    /// The last messages are being sent. The deadline is set by the next poll.
    Leaving {
        deadline: Option<Duration>,
    },
    Ended,
}

/// The interval of heartbeats. The scheduler forgets silent clients after minutes.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// The timeout for registering, for leaving, and for each part of a result.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The error of a task that failed for a reason that could not be read.
const FAILED: &str = "the task has failed";

/// The maximum number of errors in frames of one batch that are read. Further
/// tasks fail without the message of their errors.
const MAX_ERRORS: usize = 4;

/// The maximum length of a stored error, in bytes.
const MAX_ERROR: usize = 160;

const STREAM: usize = 0;
const REQUESTS: usize = 1;

/// A result that has been requested.
#[derive(Clone, Copy, Debug)]
struct Gathering {
    task: Handle,
    /// The time at which the request fails, unless more of the result is received.
    deadline: Duration,
}

/// A failed task and the frame with its error.
#[derive(Clone, Copy, Debug)]
struct ErrorFrame {
    task: Handle,
    frame: usize,
}

/// A client with its tasks.
pub struct Client<'b, const KEYS: usize, const DATA: usize> {
    config: Config<'b>,
    stream: Link<'b>,
    requests: Link<'b>,
    store: &'b mut Store<KEYS, DATA>,
    phase: Phase,
    /// The number of tasks submitted, for their keys.
    submitted: u64,
    /// The requested result.
    gathering: Option<Gathering>,
    /// The failed tasks whose errors are in frames after the body.
    error_frames: [Option<ErrorFrame>; MAX_ERRORS],
    heartbeat: Duration,
    now: Duration,
}

impl<'b, const KEYS: usize, const DATA: usize> Client<'b, KEYS, DATA> {
    /// The number of links, for [`Connections`](crate::role::Connections).
    pub const LINKS: usize = 2;

    /// A client that is not connected.
    pub fn new<const MESSAGE: usize>(
        config: Config<'b>,
        memory: &'b mut Memory<KEYS, DATA, MESSAGE>,
    ) -> Self {
        memory.store.clear();
        Self {
            config,
            stream: memory.stream.link_in_pieces(),
            requests: memory.requests.link(),
            store: &mut memory.store,
            phase: Phase::Connecting {
                is_requested: false,
                deadline: None,
            },
            submitted: 0,
            gathering: None,
            error_frames: [None; MAX_ERRORS],
            heartbeat: Duration::ZERO,
            now: Duration::ZERO,
        }
    }

    /// The status of the client.
    pub const fn status(&self) -> Status {
        match self.phase {
            Phase::Connecting { .. } => Status::Connecting,
            Phase::Connected | Phase::Leaving { .. } => Status::Connected,
            Phase::Ended => Status::Ended,
        }
    }

    /// Whether a task of [`MAX_TASK`] bytes can be submitted now. If not, there may
    /// be room after earlier submissions have been sent, or after a task is
    /// [released](Self::release).
    pub fn has_room(&self) -> bool {
        self.phase == Phase::Connected
            && self.stream.has_room(MAX_TASK.saturating_add(GRAPH_LEN))
            && self.store.first(State::Free).is_some()
    }

    /// Submits a call of a function, given by its full name, such as
    /// `operator.add`, or `native:hypot` for a worker that is not written in Python.
    ///
    /// # Errors
    ///
    /// * A `RuntimeError` if the client is not connected;
    /// * a `ValueError` if the name of the function has no module;
    /// * a `MemoryError` if there is no [room](Self::has_room) for the task.
    pub fn submit(
        &mut self,
        function: &str,
        arguments: &[Argument<'_>],
    ) -> Result<TaskId, Failure> {
        if self.phase != Phase::Connected {
            return Err(Failure {
                class: "RuntimeError",
                message: "the client is not connected",
            });
        }
        let mut key = FixedString::<{ MAX_NAME + 24 }>::new();
        // In hexadecimal: the standard library's decimal form of a u64 keeps a bounds
        // check, and so a panic, where it is compiled for size.
        write!(key, "{}-{:x}", self.config.name, self.submitted).map_err(|_| NO_ROOM)?;
        let mut encoded = [0; MAX_NAME + 32];
        let mut writer = Writer::new(&mut encoded);
        writer.str(key.as_str());
        let encoded = writer.finish().map_err(|_| NO_ROOM)?;

        let mut task = [0; MAX_TASK];
        let mut levels = [WriterLevel::EMPTY; 12];
        let mut writer = PickleWriter::new(&mut task, &mut levels);
        write_graph(&mut writer, key.as_str(), function, arguments, self.store)?;
        let task = writer.finish().map_err(|_| NO_ROOM)?;

        let id = self.store.add(encoded, State::Announced)?;
        if !send_graph(&mut self.stream.outgoing, encoded, task) {
            self.store.remove(id);
            return Err(NO_ROOM);
        }
        self.submitted = self.submitted.wrapping_add(1);
        Ok(TaskId(self.store.handle(id)))
    }

    /// The state of a task, with its result.
    pub fn outcome(&self, task: TaskId) -> Outcome<'_> {
        let Some(id) = self.store.resolve(task.0) else {
            return Outcome::Released;
        };
        match self.store.get(id).state {
            State::Memory => match self.store.value(id) {
                Some(value) => Outcome::Value(value),
                None => Outcome::Pending,
            },
            State::Failed => match Value::parse(self.store.part(id, Part::Value)) {
                Some(Value::Str(error)) => Outcome::Failed(error),
                _ => Outcome::Failed(""),
            },
            _ => Outcome::Pending,
        }
    }

    /// Forgets a task, here and in the cluster. Returns false if the message cannot
    /// be sent now; the task is then unchanged. Returns true if the task was released
    /// before.
    pub fn release(&mut self, task: TaskId) -> bool {
        let Some(id) = self.store.resolve(task.0) else {
            return true;
        };
        let key = self.store.part(id, Part::Key);
        let name = self.config.name;
        let is_sent = self.stream.is_open()
            && self.stream.outgoing.send(|writer| {
                writer.array(1).map(3).str("op").str("client-releases-keys");
                writer.str("keys").array(1).encoded(key);
                writer.str("client").str(name);
            });
        if is_sent {
            self.store.remove(id);
        }
        is_sent
    }

    /// Closes the client, once everything is sent.
    pub fn close(&mut self) {
        if self.phase == Phase::Connected {
            self.stream.outgoing.send(|writer| {
                writer.array(2);
                writer.map(1).str("op").str("close-client");
                writer.map(1).str("op").str("close-stream");
            });
            self.stream.close();
            self.phase = Phase::Leaving { deadline: None };
        } else {
            self.phase = Phase::Ended;
        }
    }

    /// Checks the state of the client, for fuzz targets.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold.
    #[doc(hidden)]
    pub fn check(&self) {
        self.store.check();
    }

    fn register(&mut self, is_requested: bool, deadline: Duration) {
        let name = self.config.name;
        if self.stream.is_open() && !is_requested {
            self.stream.outgoing.send(|writer| {
                writer.map(4).str("op").str("register-client");
                writer.str("client").str(name);
                writer.str("reply").bool(false);
                // The scheduler only compares the versions, for a warning.
                writer.str("versions").map(2);
                writer.str("host").map(0).str("packages").map(0);
            });
            self.phase = Phase::Connecting {
                is_requested: true,
                deadline: Some(deadline),
            };
        } else if let Piece::Value(reply) = self.stream.incoming.piece() {
            if str_field(Reader::new(reply), "op") != Some("stream-start") {
                return self.stream.fail();
            }
            self.stream.incoming.take_value();
            self.phase = Phase::Connected;
        } else if self.now >= deadline {
            self.stream.fail();
            self.phase = Phase::Ended;
        }
    }

    fn handle_stream(&mut self) {
        loop {
            let len = match self.stream.incoming.piece() {
                Piece::Incomplete => return,
                Piece::Value(message) | Piece::Start(message) => {
                    if let Some(error) = handle_one(message, self.store) {
                        let mut places = self.error_frames.iter_mut();
                        match places.find(|place| place.is_none()) {
                            Some(place) => *place = Some(error),
                            None => fail_unexplained(self.store, error),
                        }
                    }
                    self.stream.incoming.take_value();
                    continue;
                }
                Piece::Frame(index, bytes) => {
                    let errors = self.error_frames.iter().flatten();
                    for error in errors.filter(|error| error.frame == index) {
                        if let Some(id) = self.store.resolve(error.task) {
                            fail(self.store, id, bytes);
                        }
                    }
                    bytes.len()
                }
                Piece::Part(_, bytes) => bytes.len(),
                Piece::End => {
                    for error in self.error_frames.iter_mut().filter_map(Option::take) {
                        fail_unexplained(self.store, error);
                    }
                    self.stream.incoming.discard_message();
                    continue;
                }
                Piece::Invalid => return self.stream.fail(),
            };
            self.stream.incoming.take(len);
        }
    }

    /// Gathers results, one after the other.
    fn handle_results(&mut self) {
        let has_progress = self.requests.take_progress();
        let deadline = self.now.saturating_add(TIMEOUT);
        let Some(gathering) = &mut self.gathering else {
            if self.requests.is_open()
                && let Some(id) = self.store.first(State::Wanted)
            {
                let key = self.store.part(id, Part::Key);
                self.requests.outgoing.send(|writer| {
                    writer.map(3).str("op").str("gather");
                    writer.str("reply").bool(true);
                    writer.str("keys").array(1).encoded(key);
                });
                let task = self.store.handle(id);
                self.gathering = Some(Gathering { task, deadline });
            }
            return;
        };
        if has_progress {
            gathering.deadline = deadline;
        }
        if !self.requests.has_message() {
            if self.now >= gathering.deadline {
                self.requests.fail();
            }
            return;
        }
        let task = gathering.task;
        self.gathering = None;
        let Some(id) = self.store.resolve(task) else {
            // The task was released in the meantime.
            self.requests.incoming.discard_message();
            return;
        };
        let store = &mut *self.store;
        let is_wanted = store.get(id).state == State::Wanted;
        let stored = self.requests.incoming.message(|message| {
            let mut data = field(message.reader(), "data")?;
            (is_wanted && data.map().ok()? == 1).then_some(())?;
            let key = data.skip().ok()?;
            (key == store.part(id, Part::Key)).then_some(())?;
            let payload = message.payload(data)?;
            Some(store.make_value(id, |_, out| Value::store_payload(&payload, out)))
        });
        self.requests.incoming.discard_message();
        match stored {
            Some(Some(Ok(()))) => {}
            Some(Some(Err(failure))) => fail_with(self.store, id, failure.message),
            // The scheduler could not get the value, which it reports only once: ask
            // it for the state of the task. Without room for that message, the value
            // is requested again.
            Some(None) if is_wanted => {
                let key = self.store.part(id, Part::Key);
                let is_sent = self.stream.outgoing.send(|writer| {
                    writer.array(1).map(2).str("op").str("report-key");
                    writer.str("key").encoded(key);
                });
                if is_sent {
                    set_state(self.store, id, State::Announced);
                }
            }
            Some(None) => {}
            None => self.requests.fail(),
        }
    }
}

/// Handles a message of the scheduler. Returns the task that has failed and the
/// frame with its error, if it is in one.
fn handle_one<const KEYS: usize, const DATA: usize>(
    message: &[u8],
    store: &mut Store<KEYS, DATA>,
) -> Option<ErrorFrame> {
    let message = Reader::new(message);
    let key = field(message, "key").and_then(|mut key| key.skip().ok());
    let id = key.and_then(|key| store.find(key));
    match (str_field(message, "op")?, id) {
        ("key-in-memory", Some(id)) if store.get(id).state == State::Announced => {
            set_state(store, id, State::Wanted);
        }
        ("lost-data" | "task-retried", Some(id)) if store.get(id).state != State::Memory => {
            set_state(store, id, State::Announced);
        }
        ("task-erred", Some(id)) => {
            let exception = field(message, "exception");
            let header = exception.and_then(|exception| field(exception, "__Serialized__"));
            let header = header.and_then(|mut frame| usize::try_from(frame.u64().ok()?).ok());
            if let Some(header) = header {
                // The task stays pending until its error has arrived.
                return Some(ErrorFrame {
                    task: store.handle(id),
                    // The payload is one frame, after its header.
                    frame: header.saturating_add(1),
                });
            }
            fail_with(store, id, FAILED);
            fail(store, id, exception?.bin().ok()?);
        }
        ("cancelled-keys", _) => {
            for key in field(message, "keys").into_iter().flat_map(items) {
                if let Some(id) = store.find(key) {
                    fail_with(store, id, "the task has been cancelled");
                }
            }
        }
        _ => {}
    }
    None
}

fn set_state<const KEYS: usize, const DATA: usize>(
    store: &mut Store<KEYS, DATA>,
    id: EntryId,
    state: State,
) {
    if let Some(entry) = store.get_mut(id) {
        entry.state = state;
    }
}

/// Fails a task whose error has not been read.
fn fail_unexplained<const KEYS: usize, const DATA: usize>(
    store: &mut Store<KEYS, DATA>,
    error: ErrorFrame,
) {
    if let Some(id) = store.resolve(error.task)
        && store.get(id).state != State::Failed
    {
        fail_with(store, id, FAILED);
    }
}

/// Fails a task with a message. Without room for the message, the task fails without
/// one.
fn fail_with<const KEYS: usize, const DATA: usize>(
    store: &mut Store<KEYS, DATA>,
    id: EntryId,
    message: &str,
) {
    let _ = store.make_value(id, |_, out| out.str(message));
    set_state(store, id, State::Failed);
}

/// Fails a task with an exception, which is a pickle.
fn fail<const KEYS: usize, const DATA: usize>(
    store: &mut Store<KEYS, DATA>,
    id: EntryId,
    exception: &[u8],
) {
    let mut tree = Tree::new();
    if tree.read(exception, &[]).is_err() {
        return;
    }
    let mut message = FixedString::<MAX_ERROR>::new();
    if describe(&tree, &mut message).is_some() {
        fail_with(store, id, message.as_str());
    }
}

impl<const KEYS: usize, const DATA: usize> Role for Client<'_, KEYS, DATA> {
    fn link_count(&self) -> usize {
        Self::LINKS
    }

    fn wanted(&self, link: usize) -> Wanted<'_> {
        let found = if link == STREAM {
            &self.stream
        } else {
            &self.requests
        };
        if let Some(wanted) = found.wanted() {
            return wanted;
        }
        let scheduler = Wanted::Connection(self.config.scheduler);
        match (link, self.phase) {
            (STREAM, Phase::Connecting { .. } | Phase::Connected) => scheduler,
            (REQUESTS, Phase::Connected) => scheduler,
            _ => Wanted::Nothing,
        }
    }

    fn connected(&mut self, link: usize) {
        match link {
            STREAM => self.stream.open(),
            _ => self.requests.open(),
        }
    }

    fn disconnected(&mut self, link: usize) {
        if link == STREAM {
            self.stream.reset();
            self.phase = Phase::Ended;
            return;
        }
        self.requests.reset();
        // Probably because the result is too long.
        if let Some(gathering) = self.gathering.take()
            && let Some(id) = self.store.resolve(gathering.task)
            && self.store.get(id).state == State::Wanted
        {
            fail_with(self.store, id, "the result could not be received");
        }
    }

    fn space(&mut self, link: usize) -> &mut [u8] {
        match link {
            STREAM => self.stream.space(),
            _ => self.requests.space(),
        }
    }

    fn received(&mut self, link: usize, count: usize) {
        match link {
            STREAM => self.stream.received(count),
            _ => self.requests.received(count),
        }
    }

    fn unsent(&self, link: usize) -> &[u8] {
        match link {
            STREAM => self.stream.unsent(),
            _ => self.requests.unsent(),
        }
    }

    fn sent(&mut self, link: usize, count: usize) {
        match link {
            STREAM => self.stream.sent(count),
            _ => self.requests.sent(count),
        }
    }

    fn poll(&mut self, now: Duration) {
        self.now = now;
        match self.phase {
            Phase::Connecting {
                is_requested,
                deadline,
            } => {
                let deadline = deadline.unwrap_or(now.saturating_add(TIMEOUT));
                self.phase = Phase::Connecting {
                    is_requested,
                    deadline: Some(deadline),
                };
                self.register(is_requested, deadline);
            }
            Phase::Connected => {
                self.handle_stream();
                self.handle_results();
                if now >= self.heartbeat {
                    self.stream.outgoing.send(|writer| {
                        writer.array(1).map(1).str("op").str("heartbeat-client");
                    });
                    self.heartbeat = now.saturating_add(HEARTBEAT);
                }
            }
            Phase::Leaving { deadline: None } => {
                self.phase = Phase::Leaving {
                    deadline: Some(now.saturating_add(TIMEOUT)),
                };
            }
            Phase::Leaving {
                deadline: Some(deadline),
            } if now >= deadline => {
                self.stream.fail();
                self.phase = Phase::Ended;
            }
            Phase::Leaving { .. } | Phase::Ended => {}
        }
    }
}
