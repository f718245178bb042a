//! The worker and the client of fixed size, driven by sockets, time and messages in
//! any order.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read as _;

use daskwire::Limits;
use daskwire::frame::{FrameDecoder, Prefix, encode_prelude};
use daskwire::handshake::Handshake;
use daskwire::msgpack::{Reader, Writer};
use daskwire_embedded::client::{self, Argument, Client, Outcome, TaskId};
use daskwire_embedded::role::{Connections, Role, SocketState, Sockets, exchange};
use daskwire_embedded::value::{Args, Failure, Out, Value};
use daskwire_embedded::worker::{self, Function, Worker};

use super::streams::Frames;

/// The number of links of the worker: two to the scheduler, one to another worker
/// and two of peers.
const LINKS: usize = 5;
const WORKER_KEYS: usize = 6;
const CLIENT_KEYS: usize = 4;

type WorkerMemory = worker::Memory<WORKER_KEYS, 700, 768, 2>;

const WORKER: worker::Config<'_> =
    worker::Config::new("tcp://10.0.2.2:8786", "tcp://10.0.2.15:8000", "mcu");

type ClientMemory = client::Memory<CLIENT_KEYS, 700, 768>;

const CLIENT: client::Config<'_> = client::Config::new("tcp://10.0.2.2:8786", "mcu");

/// The maximum number of bytes that a socket buffers for a role.
const MAX_BUFFERED: usize = 1 << 14;

const FUNCTIONS: &[(&str, Function)] = &[("hypot", hypot), ("fail", fail)];

fn hypot(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [x, y] = args.floats()?;
    out.float(x.hypot(y))
}

fn fail(_: &Args<'_>, _: &mut Out<'_>) -> Result<(), Failure> {
    Err(Failure::value_error("it fails"))
}

/// Pickles of CPython: the task `a`, of two numbers, and `b`, of `a` and a number.
const TASKS: [&[u8]; 2] = [
    b"\x80\x05\x95l\x00\x00\x00\x00\x00\x00\x00\x8c\x0fdask._task_spec\x94\x8c\x04Task\x94\
    \x93\x94)\x81\x94(\x89(\x91\x94NNNK\x03G@\x10\x00\x00\x00\x00\x00\x00\x86\x94\x8c\x08operator\x94\
    \x8c\x0cmethodcaller\x94\x93\x94\x8c\x0cnative:hypot\x94\x85\x94R\x94\x8c\x01a\x94}\x94t\x94b.",
    b"\x80\x05\x95\x82\x00\x00\x00\x00\x00\x00\x00\x8c\x0fdask._task_spec\x94\x8c\x04Task\x94\
    \x93\x94)\x81\x94(\x89(\x8c\x01a\x94\x91\x94NNNh\x00\x8c\x07TaskRef\x94\x93\x94h\x04\x85\x94R\x94\
    G@\x10\x00\x00\x00\x00\x00\x00\x86\x94\x8c\x08operator\x94\x8c\x0cmethodcaller\x94\x93\x94\
    \x8c\x0cnative:hypot\x94\x85\x94R\x94\x8c\x01b\x94}\x94t\x94b.",
];

/// A pickle of the exception `ValueError("no")`.
const EXCEPTION: &[u8] = b"\x80\x04\x8c\x08builtins\x8c\x0aValueError\x93\x8c\x02no\x85R.";

/// Checks that for any messages of its peers in any order a worker's state is
/// consistent after each step, that all its messages are valid, that it stays within
/// its memory, that it never restarts after it has ended, that it works again after
/// faults of its peers, and that it forgets everything when it loses the scheduler.
///
/// With a scheduler without faults the worker stays registered, whatever its peers do and
/// however long the messages are: it loses no value, and no task fails for the sake of
/// others; see [`undisturbed`].
///
/// The input: whether the scheduler is without faults, and steps.
pub(crate) fn worker_role(input: &[u8]) {
    if let Some((b'\xff', steps)) = input.split_first() {
        return undisturbed(Steps(steps));
    }
    let mut memory = Box::new(WorkerMemory::new());
    let mut worker = Worker::new(WORKER, FUNCTIONS, &mut *memory);
    let mut driver = Driver::new();
    let mut steps = Steps(input);
    while let Some(step) = steps.byte() {
        if driver.act(step, &mut steps) {
            driver.push_for_worker(step, &mut steps);
        }
        let has_ended = worker.status() == worker::Status::Ended;
        driver.exchange(&mut worker);
        worker.check();
        assert!(worker.key_count() <= WORKER_KEYS);
        let status = worker.status();
        assert!(!has_ended || status == worker::Status::Ended);
    }
    driver.recover(&mut worker);
    driver.hang_up(&mut worker);
    worker.check();
    assert_ne!(worker.status(), worker::Status::Running);
    if worker.status() == worker::Status::Connecting {
        assert_eq!(worker.key_count(), 0, "values of a lost scheduler");
    }
}

/// The part of [`worker_role`] with a scheduler without faults.
fn undisturbed(mut steps: Steps<'_>) {
    let mut memory = Box::new(WorkerMemory::new());
    let mut worker = Worker::new(WORKER, FUNCTIONS, &mut *memory);
    let mut driver = Driver::new();
    driver.sockets.greeting_count = LINKS;
    driver.is_faultless = true;
    let mut model = Model::default();
    // The request to install the plugin is several times as long as the buffer for it.
    driver.drive(&mut worker, &mut model, 60);
    assert_eq!(worker.status(), worker::Status::Running);
    while let Some(step) = steps.byte() {
        if driver.act(step, &mut steps) {
            driver.push_without_faults(step, &mut steps, &mut model);
        }
        driver.drive(&mut worker, &mut model, 1);
        worker.check();
    }
    // Its peers get as much time as they may take.
    driver.sockets.max_transfer_len = usize::MAX;
    driver.sockets.is_slow = false;
    for _ in 0..60 {
        driver.now += Duration::from_secs(1);
        driver.drive(&mut worker, &mut model, 1);
    }
    driver.drive(&mut worker, &mut model, 400);
    let link = driver.sockets.links.iter().skip(3).position(|link| {
        link.as_ref()
            .is_some_and(|socket| socket.received.is_empty())
    });
    let link = 3 + link.expect("a peer can connect");
    for key in std::mem::take(&mut model.held) {
        model.sent.clear();
        driver.push(link, &[&request("get_data", true, [&key, "none"])]);
        driver.drive(&mut worker, &mut model, 20);
        assert!(model.has_sent(&[&key, "__Serialized__"]), "{key} is lost");
    }
    // It forgets what is released, and works on.
    for key in model.named.clone() {
        driver.push_about("free-keys", &key, &key, 0);
        driver.drive(&mut worker, &mut model, 2);
    }
    driver.drive(&mut worker, &mut model, 20);
    driver.push_task("last", TASKS[0], 1, |writer| {
        writer.str("who_has").map(0);
    });
    driver.drive(&mut worker, &mut model, 20);
    assert!(
        model.has_sent(&["task-finished", "last"]),
        "it does not work on"
    );
    assert_eq!(worker.key_count(), 1, "keys that were released");
    assert_eq!(driver.sockets.opened_count[0], 1, "it has registered again");
}

/// What a scheduler without faults knows of its worker.
#[derive(Default)]
struct Model {
    /// The keys of all tasks and values.
    named: BTreeSet<String>,
    /// The last run of each task that nothing was said about since.
    running: BTreeMap<String, u64>,
    run_count: u64,
    /// The values that the worker must have.
    held: BTreeSet<String>,
    /// The tasks that may fail for any reason.
    faulty: BTreeSet<String>,
    /// All that the worker has sent.
    sent: Vec<Sent>,
    /// The number of large batches that were sent: they take time.
    batch_count: usize,
}

impl Model {
    /// Records that a task is sent. Returns the number of the run.
    fn runs(&mut self, key: &str, is_faulty: bool) -> u64 {
        self.forgets(key);
        self.run_count += 1;
        self.running.insert(key.to_owned(), self.run_count);
        if is_faulty {
            self.faulty.insert(key.to_owned());
        }
        self.run_count
    }

    /// Records a message or a request about a key, after which its value may be gone.
    fn forgets(&mut self, key: &str) {
        self.named.insert(key.to_owned());
        self.running.remove(key);
        self.held.remove(key);
    }

    /// Whether the worker has sent a message with all these strings.
    fn has_sent(&self, strings: &[&str]) -> bool {
        let mut sent = self.sent.iter();
        sent.any(|sent| strings.iter().all(|string| sent.contains(string)))
    }

    /// Checks a message of the worker.
    fn sees(&mut self, sent: Sent) {
        let reader = Reader::new(&sent.0);
        let about = |mut reader: Reader<'_>, field: &str| {
            reader.array().ok()?;
            reader.find(field).ok()?.then_some(())?;
            Some(reader.str().ok()?.to_str().to_owned())
        };
        if let (Some(op), Some(key)) = (about(reader, "op"), about(reader, "key")) {
            let mut run_id = reader;
            let is_known = run_id.array().is_ok() && run_id.find("run_id") == Ok(true);
            let run_id = run_id.u64().ok().filter(|_| is_known);
            match &*op {
                "task-finished" if self.running.get(&key).copied() == run_id => {
                    self.held.insert(key);
                }
                "task-erred" => {
                    let text = about(reader, "exception_text").unwrap_or_default();
                    let is_full = text.contains("holds at most 6") || text.contains("does not fit");
                    assert!(is_full || self.faulty.contains(&key), "{key}: {text}");
                }
                // It gives back only what it does not understand.
                "reschedule" => assert!(self.faulty.contains(&key), "{key}"),
                _ => {}
            }
        }
        self.sent.push(sent);
    }
}

/// Like [`worker_role`], for a client that submits and releases tasks: each has an
/// outcome until it is released, and a value stays the same.
///
/// The input: steps.
pub(crate) fn client_role(input: &[u8]) {
    let mut memory = Box::new(ClientMemory::new());
    let mut client = Client::new(CLIENT, &mut *memory);
    let mut driver = Driver::new();
    let mut steps = Steps(input);
    // Each task with its outcome as a string, once it has one.
    let mut tasks: Vec<(TaskId, Option<String>)> = Vec::new();
    let mut submitted = 0;
    while let Some(step) = steps.byte() {
        match step % 16 {
            12 | 13 => {
                let argument = match tasks.last() {
                    Some((task, _)) if step & 16 != 0 => Argument::Task(*task),
                    _ => Argument::Value(Value::Int(steps.number().into())),
                };
                let had_room = client.has_room();
                match client.submit("operator.neg", &[argument]) {
                    Ok(task) => {
                        submitted += 1;
                        tasks.push((task, None));
                    }
                    Err(failure) => assert!(!had_room || !tasks.is_empty(), "{failure:?}"),
                }
            }
            14 if !tasks.is_empty() => {
                let index = usize::from(steps.number()) % tasks.len();
                if client.release(tasks[index].0) {
                    let (task, _) = tasks.swap_remove(index);
                    assert!(matches!(client.outcome(task), Outcome::Released));
                }
            }
            15 if step & 0xf0 == 0xf0 => client.close(),
            _ => {
                if driver.act(step, &mut steps) {
                    driver.push_for_client(step, submitted, &mut steps);
                }
            }
        }
        let has_ended = client.status() == client::Status::Ended;
        driver.exchange(&mut client);
        client.check();
        assert!(!has_ended || client.status() == client::Status::Ended);
        assert!(tasks.len() <= CLIENT_KEYS);
        for (task, seen) in &mut tasks {
            let outcome = match client.outcome(*task) {
                Outcome::Pending => None,
                Outcome::Released => panic!("{task:?} has been forgotten"),
                outcome => Some(format!("{outcome:?}")),
            };
            // A failed task may be retried, and a finished one cancelled, but a value
            // stays the same.
            if let Some(before) = seen
                && before.starts_with("Value")
            {
                let is_same = outcome.as_ref() == Some(before);
                let has_failed = matches!(client.outcome(*task), Outcome::Failed(_));
                assert!(is_same || has_failed, "{before} has become {outcome:?}");
            }
            *seen = outcome;
        }
    }
    driver.hang_up(&mut client);
    client.check();
}

/// The input as a sequence of steps.
struct Steps<'i>(&'i [u8]);

impl<'i> Steps<'i> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn number(&mut self) -> u8 {
        self.byte().unwrap_or_default()
    }

    fn bytes(&mut self, len: u8) -> &'i [u8] {
        let (bytes, rest) = self.0.split_at(self.0.len().min(len.into()));
        self.0 = rest;
        bytes
    }

    fn key(&mut self) -> &'static str {
        ["a", "b", "c", "d", "e", "f", "g", "mcu-0"][usize::from(self.number() & 7)]
    }
}

/// The platform of a role: its clock and its sockets.
struct Driver {
    sockets: Fake,
    connections: Connections<LINKS>,
    now: Duration,
    /// Whether the scheduler makes no faults.
    is_faultless: bool,
}

struct Fake {
    links: [Option<Socket>; LINKS],
    /// Whether the role has closed the connection of a link, but its peer has not.
    is_closing: [bool; LINKS],
    /// Whether peers do not close their side of a connection.
    is_slow: bool,
    /// The number of connections that each link has had.
    opened_count: [usize; LINKS],
    /// The number of links, from the first, whose peers send a handshake by
    /// themselves.
    greeting_count: usize,
    sent: Vec<Sent>,
    /// Whether connections can be made.
    is_reachable: bool,
    /// The maximum number of bytes that a call reads or writes.
    max_transfer_len: usize,
}

/// The bytes of a message.
struct Sent(Vec<u8>);

/// A connection, and the message that is being sent on it.
struct Socket {
    received: VecDeque<u8>,
    decoder: FrameDecoder<Vec<u8>>,
    frames: Frames,
}

impl Sockets for Fake {
    fn connect(&mut self, link: usize, address: &str) {
        assert!(address.starts_with("tcp://") || link == 2, "{address}");
        self.accept(link);
    }

    fn accept(&mut self, link: usize) {
        assert!(self.links[link].is_none(), "a connection is in use");
        if self.is_reachable {
            self.opened_count[link] += 1;
            let greeting = match link < self.greeting_count {
                true => message(&[&handshake()]),
                false => Vec::new(),
            };
            self.links[link] = Some(Socket {
                received: greeting.into(),
                decoder: FrameDecoder::new(Prefix::U64, Vec::new(), Limits::HOST),
                frames: Frames::default(),
            });
        }
    }

    fn close(&mut self, link: usize) {
        self.is_closing[link] = self.is_slow;
        if !self.is_slow {
            self.links[link] = None;
        }
    }

    fn abort(&mut self, link: usize) {
        self.links[link] = None;
    }

    fn state(&mut self, link: usize) -> SocketState {
        self.is_closing[link] &= self.links[link].is_some();
        match self.links[link] {
            Some(_) if self.is_closing[link] => SocketState::Opening,
            Some(_) => SocketState::Open,
            None => SocketState::Closed,
        }
    }

    fn read(&mut self, link: usize, into: &mut [u8]) -> usize {
        let max_len = into.len().min(self.max_transfer_len);
        assert!(!self.is_closing[link], "a closed connection is read");
        let Some(socket) = &mut self.links[link] else {
            return 0;
        };
        let count = max_len.min(socket.received.len());
        let read = socket.received.read_exact(&mut into[..count]);
        read.expect("that many are buffered");
        count
    }

    fn write(&mut self, link: usize, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.max_transfer_len);
        if let Some(socket) = &mut self.links[link] {
            let bodies = socket.take(&bytes[..count]);
            self.sent.extend(bodies.into_iter().map(Sent));
        }
        count
    }
}

impl Socket {
    /// Checks that the bytes sent by a role are messages. Returns the bodies of the
    /// messages that are complete.
    fn take(&mut self, mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        while !bytes.is_empty() {
            let is_complete = self.decoder.push(&mut bytes, &mut self.frames);
            if !is_complete.expect("a role sends messages") {
                break;
            }
            let frames = std::mem::take(&mut self.frames).0;
            let body = frames.into_iter().next().expect("a message has a body");
            let mut reader = Reader::new(&body);
            reader.skip().expect("a body is a document");
            reader.finish().expect("a body is one document");
            bodies.push(body);
            self.decoder.reset();
        }
        bodies
    }
}

impl Driver {
    fn new() -> Self {
        Self {
            sockets: Fake {
                links: [const { None }; LINKS],
                is_closing: [false; LINKS],
                is_slow: false,
                opened_count: [0; LINKS],
                greeting_count: 0,
                sent: Vec::new(),
                is_reachable: true,
                max_transfer_len: usize::MAX,
            },
            connections: Connections::new(),
            now: Duration::from_secs(1),
            is_faultless: false,
        }
    }

    fn exchange(&mut self, role: &mut impl Role) {
        exchange(role, &mut self.sockets, &mut self.connections, self.now);
    }

    /// Lets the worker and a scheduler without faults go on for some turns.
    fn drive(
        &mut self,
        worker: &mut Worker<'_, WORKER_KEYS, 700, 2>,
        model: &mut Model,
        turn_count: usize,
    ) {
        for _ in 0..turn_count {
            let was_running = worker.status() == worker::Status::Running;
            self.exchange(worker);
            let is_running = worker.status() == worker::Status::Running;
            assert!(is_running || !was_running, "the worker has left");
            for sent in std::mem::take(&mut self.sockets.sent) {
                if sent.contains("heartbeat_worker") {
                    self.push(1, &[&answer()]);
                }
                if is_running {
                    model.sees(sent);
                }
            }
            if !is_running {
                self.now += Duration::from_millis(500);
                for link in [0, 1] {
                    if self.is_waiting(link) {
                        self.push(link, &[&answer()]);
                    }
                }
            }
        }
    }

    /// Loses all connections, and makes new ones fail.
    fn hang_up(&mut self, role: &mut impl Role) {
        self.sockets.is_reachable = false;
        self.sockets.is_slow = false;
        self.sockets.links = [const { None }; LINKS];
        self.exchange(role);
        // Longer than all timeouts.
        for _ in 0..4 {
            self.now += Duration::from_secs(40);
            self.exchange(role);
        }
    }

    /// Gives the worker a task after all connections were lost, with peers without
    /// faults. The worker must finish the task, unless the scheduler has closed the
    /// worker.
    fn recover(&mut self, worker: &mut Worker<'_, WORKER_KEYS, 700, 2>) {
        self.sockets.is_reachable = true;
        self.sockets.max_transfer_len = usize::MAX;
        self.sockets.greeting_count = LINKS;
        self.sockets.is_slow = false;
        self.sockets.links = [const { None }; LINKS];
        self.sockets.sent.clear();
        for _ in 0..200 {
            self.exchange(worker);
            let is_outcome = |message: Sent| message.contains("task-finished");
            let has_finished = self.sockets.sent.drain(..).any(is_outcome);
            if has_finished || worker.status() == worker::Status::Ended {
                return;
            }
            self.now += Duration::from_millis(100);
            for link in [0, 1] {
                if !self.is_waiting(link) {
                    continue;
                }
                if link == 0 && worker.status() == worker::Status::Running {
                    self.push_task("a", TASKS[0], 1, |writer| {
                        writer.str("who_has").map(0);
                    });
                } else {
                    self.push(link, &[&answer()]);
                }
            }
        }
        panic!("the worker does not work again");
    }

    /// Whether there is a connection on a link, and the role has read all of it.
    fn is_waiting(&self, link: usize) -> bool {
        let socket = self.sockets.links[link].as_ref();
        socket.is_some_and(|socket| socket.received.is_empty())
    }

    /// Performs a step that needs no message. Returns whether the step is of another
    /// kind.
    fn act(&mut self, step: u8, steps: &mut Steps<'_>) -> bool {
        let mut link = usize::from(step >> 4) % LINKS;
        if self.is_faultless {
            // The links of others.
            link = 2 + link % 3;
        }
        match step % 16 {
            0 => self.now += Duration::from_millis(u64::from(steps.number()) * 10),
            1 if self.is_faultless => self.now += Duration::from_secs(2),
            1 => self.now += Duration::from_secs(steps.number().into()),
            2 if step >> 4 == 15 && !self.is_faultless => self.sockets.is_reachable ^= true,
            2 => self.sockets.abort(link),
            3 if step & 16 != 0 => {
                self.sockets.max_transfer_len = usize::from(steps.number()).max(1)
            }
            3 if step & 32 != 0 => self.sockets.is_slow ^= true,
            3 => self.sockets.max_transfer_len = usize::MAX,
            // A message that is too long, or none.
            5 | 6 if self.is_faultless => {
                let count = u64::from(steps.number() & 1);
                let head = [u64::MAX, count, 1 << 30].map(u64::to_le_bytes);
                self.push_bytes(link, head.as_flattened());
                let len = steps.number();
                self.push_bytes(link, steps.bytes(len));
            }
            4 => self.push(link, &[&handshake()]),
            5 => {
                // Any bytes.
                let len = steps.number();
                let bytes = steps.bytes(len);
                self.push_bytes(link, bytes);
            }
            6 => {
                // A message with any body, and perhaps another frame.
                let (len, other) = (steps.number(), steps.number());
                let (body, frame) = (steps.bytes(len), steps.bytes(other));
                match other {
                    0 => self.push(link, &[body]),
                    _ => self.push(link, &[body, frame]),
                }
            }
            _ => return true,
        }
        false
    }

    fn push(&mut self, link: usize, frames: &[&[u8]]) {
        self.push_bytes(link, &message(frames));
    }

    fn push_bytes(&mut self, link: usize, bytes: &[u8]) {
        let is_scheduler = self.is_faultless && link < 2;
        if let Some(socket) = &mut self.sockets.links[link]
            && (socket.received.len() < MAX_BUFFERED || is_scheduler)
        {
            socket.received.extend(bytes);
        }
    }

    /// Lets a peer of the worker send a message.
    fn push_for_worker(&mut self, step: u8, steps: &mut Steps<'_>) {
        let (key, other) = (steps.key(), steps.key());
        let choice = steps.number();
        match step % 16 {
            // The replies of the scheduler: versions, a registration, a heartbeat.
            7 => {
                self.push(usize::from(choice & 1), &[&answer()]);
            }
            8 | 9 => {
                let task = TASKS[usize::from(choice >> 7)];
                self.push_task(key, task, choice.into(), |writer| {
                    write_holders(writer, other, choice);
                });
            }
            10 | 11 => {
                self.push_about(ABOUT_KEYS[usize::from(choice) & 7], key, other, choice);
            }
            12..=14 => self.push_for_peers(step, key, other, choice),
            _ if choice & 15 == 0 => {
                let close = document(|writer| {
                    writer.array(1).map(1).str("op").str("close");
                });
                self.push(0, &[&close]);
            }
            15 if choice & 15 == 1 => self.push_large(key, choice, &mut Model::default()),
            _ => {}
        }
    }

    /// Lets the scheduler send a message about keys.
    fn push_about(&mut self, op: &str, key: &str, other: &str, choice: u8) {
        let body = document(|writer| {
            writer.array(1).map(6).str("op").str(op);
            writer.str("keys").array(2).str(key).str(other);
            writer.str("key").str(key).str("status").str("running");
            write_holders(writer, other, choice);
            writer.str("stimulus_id").str("");
        });
        self.push(0, &[&body]);
    }

    /// Lets another worker or a client send a reply or a request.
    fn push_for_peers(&mut self, step: u8, key: &str, other: &str, choice: u8) {
        match step % 16 {
            // The reply of another worker, and the values of a client.
            12 => {
                let op = ["", "update_data"][usize::from(choice & 1)];
                let body = document(|writer| {
                    writer.map(3).str("op").str(op).str("status").str("OK");
                    writer.str("data").map(1).str(key);
                    writer.map(1).str("__Serialized__").u64(1);
                });
                let link = [2, 3, 2, 4][usize::from(choice) & 3];
                self.push(link, &[&body, &header(), b"\x80\x05K\x05."]);
            }
            13 => {
                let op = ["get_data", "free_keys", "identity", "unknown"];
                let op = op[usize::from(choice >> 1) & 3];
                let request = request(op, choice & 32 == 0, [key, other]);
                self.push(3 + usize::from(choice & 1), &[&request]);
            }
            _ => {
                let acknowledgement = document(|writer| {
                    writer.str("OK");
                });
                self.push(3 + usize::from(choice & 1), &[&acknowledgement]);
            }
        }
    }

    /// Lets the scheduler, which makes no faults, or a peer of the worker send a message.
    fn push_without_faults(&mut self, step: u8, steps: &mut Steps<'_>, model: &mut Model) {
        let (key, other) = (steps.key(), steps.key());
        let choice = steps.number();
        match step % 16 {
            8 | 9 => {
                let with_input = choice & 64 != 0;
                if with_input {
                    model.forgets(other);
                }
                // The input of the second task is always `a`.
                let task = TASKS[usize::from(choice >> 7)];
                let run_id = model.runs(key, with_input || choice >> 7 != 0);
                self.push_task(key, task, run_id, |writer| {
                    write_holders(writer, other, choice);
                });
            }
            10 | 11 => {
                model.forgets(key);
                model.forgets(other);
                self.push_about(ABOUT_KEYS[usize::from(choice) & 7], key, other, choice);
            }
            12..=14 => {
                model.forgets(key);
                model.forgets(other);
                // These take their keys and the choice themselves.
                self.push_for_peers(step, key, other, choice);
            }
            _ => self.push_large(key, choice, model),
        }
    }

    /// Lets the scheduler send a batch, or a message about a task, that is too large.
    fn push_large(&mut self, key: &str, choice: u8, model: &mut Model) {
        let kind = choice & 7;
        if kind == 0 && model.batch_count < 4 {
            model.batch_count += 1;
            let count = 100 + u64::from(choice);
            let mut body = vec![0; 1 << 16];
            let mut writer = Writer::new(&mut body);
            writer.array(count as u32);
            for number in 0..count {
                let key = format!("{key}{number}");
                // Tasks of the end of the batch may not be read.
                let run_id = model.runs(&key, number >= 159);
                writer.map(5).str("op").str("compute-task");
                writer.str("key").str(&key).str("run_id").u64(run_id);
                writer.str("who_has").map(0);
                writer
                    .str("run_spec")
                    .map(1)
                    .str("__Pickled__")
                    .u64(number + 1);
            }
            let body = writer.finish().expect("it fits");
            let task = pickled(TASKS[0], 0);
            let mut frames = vec![body];
            frames.resize(1 + count as usize, &task[..]);
            return self.push(0, &frames);
        }
        let run_id = model.runs(key, true);
        let long = vec![0x2e; 1000 * usize::from(choice >> 3)];
        let body = document(|writer| {
            writer.array(1);
            writer.map(6).str("op").str("compute-task");
            writer.str("key").str(key).str("run_id").u64(run_id);
            writer.str("who_has").map(0);
            match kind {
                1 => writer.str("annotations").bin(&long),
                2 => {
                    writer.str("annotations");
                    (0..20)
                        .fold(&mut *writer, |writer, _| writer.array(1))
                        .nil()
                }
                3 => {
                    writer.str("nbytes").map(200);
                    (0..200).fold(&mut *writer, |writer, number| writer.u64(number).nil())
                }
                _ => writer.str("annotations").map(0),
            };
            writer.str("run_spec").map(1).str("__Pickled__").u64(1);
        });
        match kind {
            4 => self.push(0, &[&body, &pickled(&long, 0)]),
            5 => self.push(0, &[&body, &pickled(TASKS[0], 1), &long]),
            // A buffer that is missing, and a body without any pickle.
            6 => self.push(0, &[&body, &pickled(TASKS[0], 9)]),
            7 => self.push(0, &[&body]),
            _ => self.push(0, &[&body, &pickled(TASKS[0], 0)]),
        }
    }

    /// Lets the scheduler send a task, with its inputs as `write_inputs` writes them.
    fn push_task(
        &mut self,
        key: &str,
        task: &[u8],
        run_id: u64,
        write_inputs: impl Fn(&mut Writer<'_>),
    ) {
        let task = pickled(task, 0);
        let body = document(|writer| {
            writer.array(1);
            writer.map(6).str("op").str("compute-task");
            writer.str("key").str(key).str("run_id").u64(run_id);
            write_inputs(writer);
            writer.str("nbytes").map(0);
            writer.str("run_spec").map(1).str("__Pickled__").u64(1);
        });
        self.push(0, &[&body, &task]);
    }

    /// Lets the scheduler of the client send a message about a task.
    fn push_for_client(&mut self, step: u8, submitted: u8, steps: &mut Steps<'_>) {
        let choice = steps.number();
        let number = choice.checked_rem(submitted).unwrap_or_default();
        let key = format!("mcu-{number:x}");
        match step % 16 {
            7 => {
                let answer = document(|writer| {
                    writer.array(1).map(1).str("op").str("stream-start");
                });
                self.push(0, &[&answer]);
            }
            8 | 9 => {
                const OPS: [&str; 4] = [
                    "key-in-memory",
                    "lost-data",
                    "task-retried",
                    "cancelled-keys",
                ];
                let body = document(|writer| {
                    writer.array(1).map(3);
                    writer.str("op").str(OPS[usize::from(choice >> 6)]);
                    writer.str("key").str(&key).str("keys").array(1).str(&key);
                });
                self.push(0, &[&body]);
            }
            10 => {
                let body = document(|writer| {
                    writer.array(1).map(3).str("op").str("task-erred");
                    writer.str("key").str(&key).str("exception");
                    match choice >> 7 {
                        0 => writer.bin(EXCEPTION),
                        _ => writer.map(1).str("__Serialized__").u64(1),
                    };
                });
                match choice >> 7 {
                    0 => self.push(0, &[&body]),
                    _ => self.push(0, &[&body, &header(), EXCEPTION]),
                }
            }
            _ => {
                let body = document(|writer| {
                    writer.map(2).str("status").str("OK");
                    writer.str("data").map(1).str(&key);
                    writer.map(1).str("__Serialized__").u64(1);
                });
                self.push(1, &[&body, &header(), b"\x80\x05K\x05."]);
            }
        }
    }
}

const ABOUT_KEYS: [&str; 8] = [
    "free-keys",
    "remove-replicas",
    "acquire-replicas",
    "refresh-who-has",
    "steal-request",
    "worker-status-change",
    "free-keys",
    "acquire-replicas",
];

fn write_holders(writer: &mut Writer<'_>, key: &str, choice: u8) {
    writer.str("who_has").map(u32::from(choice >> 6 & 1));
    if choice & 64 != 0 {
        let holders = [&["tcp://10.0.2.2:9"][..], &["tcp://10.0.2.15:8000"], &[]];
        let holders = holders[usize::from(choice >> 4 & 3) % 3];
        writer.str(key).array(holders.len() as u32);
        for holder in holders {
            writer.str(holder);
        }
    }
}

impl Sent {
    fn contains(&self, string: &str) -> bool {
        let mut parts = self.0.windows(string.len());
        parts.any(|part| part == string.as_bytes())
    }
}

fn handshake() -> Vec<u8> {
    document(|writer| Handshake::new(None).encode(writer))
}

/// The reply of the scheduler to a worker: versions, a registration or a heartbeat.
fn answer() -> Vec<u8> {
    document(|writer| {
        writer.map(3).str("status").str("OK").str("time").f64(1.5e9);
        writer.str("heartbeat-interval").f64(0.5);
    })
}

/// A request of a peer about two values.
fn request(op: &str, has_reply: bool, keys: [&str; 2]) -> Vec<u8> {
    document(|writer| {
        writer.map(3).str("op").str(op);
        writer.str("reply").bool(has_reply);
        writer.str("keys").map(2).str("__Set__").bool(true);
        writer.str("as-list").array(2).str(keys[0]).str(keys[1]);
    })
}

/// The first frame of a task, with its pickle.
fn pickled(pickle: &[u8], buffer_count: u64) -> Vec<u8> {
    document(|writer| {
        writer.map(2).str("pickled-obj").bin(pickle);
        writer.str("num-sub-frames").u64(buffer_count);
    })
}

/// A message on the wire.
fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut prelude = vec![0; 16 + 8 * frames.len()];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    let len = encode_prelude(Prefix::U64, lengths, &mut prelude).expect("it fits");
    [&prelude[..len], &frames.concat()].concat()
}

/// The header of a value that is a pickle.
fn header() -> Vec<u8> {
    document(|writer| {
        writer.map(3).str("serializer").str("pickle");
        writer
            .str("writeable")
            .array(0)
            .str("num-sub-frames")
            .u64(1);
    })
}

fn document(write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut measure = Writer::new(&mut []);
    write(&mut measure);
    let mut bytes = vec![0; measure.len()];
    let mut writer = Writer::new(&mut bytes);
    write(&mut writer);
    writer.finish().expect("it is a document");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_cannot_be_gathered_is_asked_for_again() {
        let mut memory = Box::new(ClientMemory::new());
        let mut client = Client::new(CLIENT, &mut *memory);
        let mut driver = Driver::new();
        driver.sockets.greeting_count = LINKS;
        // Runs the client until it has sent a message, and returns the message.
        let until_sent =
            |driver: &mut Driver, client: &mut Client<'_, CLIENT_KEYS, 700>, string: &str| {
                for _ in 0..10 {
                    driver.exchange(client);
                }
                let sent = std::mem::take(&mut driver.sockets.sent);
                assert!(
                    sent.iter().any(|message| message.contains(string)),
                    "{string}"
                );
            };
        until_sent(&mut driver, &mut client, "register-client");
        let start = document(|writer| {
            writer.array(1).map(1).str("op").str("stream-start");
        });
        driver.push(0, &[&start]);
        for _ in 0..10 {
            driver.exchange(&mut client);
        }
        let task = client.submit("operator.neg", &[Argument::Value(Value::Int(-5))]);
        let task = task.expect("it is connected");
        until_sent(&mut driver, &mut client, "update-graph");
        let in_memory = document(|writer| {
            writer.array(1).map(2).str("op").str("key-in-memory");
            writer.str("key").str("mcu-0");
        });
        driver.push(0, &[&in_memory]);
        until_sent(&mut driver, &mut client, "gather");
        let unreachable = document(|writer| {
            writer.map(2).str("status").str("error");
            writer.str("keys").array(1).str("mcu-0");
        });
        driver.push(1, &[&unreachable]);
        // The scheduler reports the state of the task again only when it is asked.
        until_sent(&mut driver, &mut client, "report-key");
        driver.push(0, &[&in_memory]);
        until_sent(&mut driver, &mut client, "gather");
        let data = document(|writer| {
            writer.map(2).str("status").str("OK");
            writer.str("data").map(1).str("mcu-0");
            writer.map(1).str("__Serialized__").u64(1);
        });
        driver.push(1, &[&data, &header(), b"\x80\x05K\x05."]);
        for _ in 0..10 {
            driver.exchange(&mut client);
        }
        assert!(matches!(
            client.outcome(task),
            Outcome::Value(Value::Int(5))
        ));
    }

    #[test]
    fn faults_of_peers_and_large_messages_do_not_disturb_the_worker() {
        // Xorshift; most steps are messages of the scheduler.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let count =
            std::env::var("DASKWIRE_INPUTS").map_or(100, |count| count.parse().expect("a number"));
        for _ in 0..count {
            let len = 50 + usize::from(random());
            let steps: Vec<u8> = (0..len).map(|_| random()).collect();
            worker_role(&[&b"\xff"[..], &steps].concat());
        }
    }

    #[test]
    fn silent_and_stalled_peers_make_way_for_others() {
        // Peers that connect to the worker send nothing, or begin a request.
        for greeting_count in [3, LINKS] {
            let mut memory = Box::new(WorkerMemory::new());
            let mut worker = Worker::new(WORKER, FUNCTIONS, &mut *memory);
            let mut driver = Driver::new();
            driver.sockets.greeting_count = greeting_count;
            while driver.now < Duration::from_secs(30) {
                driver.now += Duration::from_millis(20);
                for link in [0, 1] {
                    let is_idle = link == 0 && worker.status() == worker::Status::Running;
                    if !is_idle && driver.is_waiting(link) {
                        driver.push(link, &[&answer()]);
                    }
                }
                let before = driver.sockets.opened_count;
                driver.exchange(&mut worker);
                let after = driver.sockets.opened_count;
                let accepting = (0..greeting_count).skip(3);
                for link in accepting.filter(|&link| after[link] != before[link]) {
                    let request = message(&[&request("get_data", true, ["a", "b"])]);
                    driver.push_bytes(link, &request[..request.len() / 2]);
                }
            }
            assert_eq!(worker.status(), worker::Status::Running);
            let opened = driver.sockets.opened_count;
            assert!(opened[3] > 1 && opened[4] > 1, "{opened:?}");
        }
    }
}
