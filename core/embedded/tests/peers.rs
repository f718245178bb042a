//! The worker of fixed size with a scheduler and peers that send anything.

use std::collections::VecDeque;
use std::time::Duration;

use daskwire::frame::{Prefix, encode_prelude};
use daskwire::handshake::Handshake;
use daskwire::msgpack::Writer;
use daskwire_embedded::role::{Connections, SocketState, Sockets, exchange};
use daskwire_embedded::value::{Args, Failure, Out};
use daskwire_embedded::worker::{Config, Function, Memory, Status, Worker};
use daskwire_testing::Random;

const FUNCTIONS: &[(&str, Function)] = &[("hypot", hypot)];

fn hypot(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [x, y] = args.floats()?;
    out.float(x.hypot(y))
}

/// Pickles of CPython: the task `a`, of two numbers, and `b`, of `a` and a number.
const TASK_A: &[u8] = b"\x80\x05\x95l\x00\x00\x00\x00\x00\x00\x00\x8c\x0fdask._task_spec\x94\x8c\x04Task\x94\
    \x93\x94)\x81\x94(\x89(\x91\x94NNNK\x03G@\x10\x00\x00\x00\x00\x00\x00\x86\x94\x8c\x08operator\x94\
    \x8c\x0cmethodcaller\x94\x93\x94\x8c\x0cnative:hypot\x94\x85\x94R\x94\x8c\x01a\x94}\x94t\x94b.";
const TASK_B: &[u8] = b"\x80\x05\x95\x82\x00\x00\x00\x00\x00\x00\x00\x8c\x0fdask._task_spec\x94\x8c\x04Task\x94\
    \x93\x94)\x81\x94(\x89(\x8c\x01a\x94\x91\x94NNNh\x00\x8c\x07TaskRef\x94\x93\x94h\x04\x85\x94R\x94\
    G@\x10\x00\x00\x00\x00\x00\x00\x86\x94\x8c\x08operator\x94\x8c\x0cmethodcaller\x94\x93\x94\
    \x8c\x0cnative:hypot\x94\x85\x94R\x94\x8c\x01b\x94}\x94t\x94b.";

/// Sockets whose peer is a script.
struct Fake {
    links: [Option<VecDeque<u8>>; 5],
    sent: [Vec<u8>; 5],
    random: Random,
    /// One message in this many is damaged; 0 for none.
    damage: usize,
    /// Whether peers that connect to the worker say nothing.
    is_silent: bool,
    /// The number of connections that each link has had.
    opened: [usize; 5],
}

impl Fake {
    /// Lets the peer of a link send a message.
    fn push(&mut self, link: usize, mut message: Vec<u8>) {
        if self.damage != 0 && self.random.one_in(self.damage) {
            for _ in 0..=self.random.below(4) {
                let at = self.random.below(message.len());
                match self.random.below(3) {
                    0 => message[at] = self.random.next() as u8,
                    1 => message.truncate(at.max(1)),
                    _ => message.insert(at, self.random.next() as u8),
                }
            }
        }
        if let Some(input) = &mut self.links[link] {
            input.extend(message);
        }
    }
}

impl Sockets for Fake {
    fn connect(&mut self, link: usize, _: &str) {
        self.links[link] = Some(VecDeque::new());
        self.opened[link] += 1;
        if link < 3 || !self.is_silent {
            self.push(link, handshake());
        }
    }

    fn accept(&mut self, link: usize) {
        self.connect(link, "");
    }

    fn close(&mut self, link: usize) {
        self.links[link] = None;
    }

    fn abort(&mut self, link: usize) {
        self.close(link);
    }

    fn state(&mut self, link: usize) -> SocketState {
        match self.links[link] {
            Some(_) => SocketState::Open,
            None => SocketState::Closed,
        }
    }

    fn read(&mut self, link: usize, into: &mut [u8]) -> usize {
        let max_len = into.len().min(1 + self.random.below(600));
        let Some(input) = &mut self.links[link] else {
            return 0;
        };
        let count = max_len.min(input.len());
        for (place, byte) in into.iter_mut().zip(input.drain(..count)) {
            *place = byte;
        }
        count
    }

    fn write(&mut self, link: usize, bytes: &[u8]) -> usize {
        let count = bytes.len().min(1 + self.random.below(600));
        self.sent[link].extend(&bytes[..count]);
        count
    }
}

fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut prelude = [0; 128];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    let len = encode_prelude(Prefix::U64, lengths, &mut prelude).expect("it fits");
    [&prelude[..len], &frames.concat()].concat()
}

fn body(write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = [0; 1024];
    let mut writer = Writer::new(&mut bytes);
    write(&mut writer);
    writer.finish().expect("it is a document").to_vec()
}

fn handshake() -> Vec<u8> {
    message(&[&body(|writer| Handshake::new(None).encode(writer))])
}

/// What the scheduler answers on its two links: versions, a registration or a
/// heartbeat.
fn answer() -> Vec<u8> {
    message(&[&body(|writer| {
        writer.map(3).str("status").str("OK").str("time").f64(1.5e9);
        writer.str("heartbeat-interval").f64(0.5);
    })])
}

fn error() -> Vec<u8> {
    message(&[&body(|writer| {
        writer.map(1).str("status").str("error");
    })])
}

fn compute_task(writer: &mut Writer<'_>, key: &str, frame: u64, input: Option<&str>) {
    writer.map(6).str("op").str("compute-task");
    writer.str("key").str(key).str("run_id").u64(frame);
    let inputs = u32::from(input.is_some());
    writer.str("who_has").map(inputs);
    if let Some(input) = input {
        writer.str(input).array(1).str("tcp://10.0.2.2:9");
    }
    writer.str("nbytes").map(inputs);
    if let Some(input) = input {
        writer.str(input).u64(8);
    }
    writer.str("run_spec").map(1).str("__Pickled__").u64(frame);
}

/// A batch with two tasks.
fn tasks() -> Vec<u8> {
    let body = body(|writer| {
        writer.array(2);
        compute_task(writer, "a", 1, None);
        compute_task(writer, "b", 2, Some("a"));
    });
    message(&[&body, &pickled(TASK_A), &pickled(TASK_B)])
}

/// A batch with a task that is none.
fn no_task() -> Vec<u8> {
    let body = body(|writer| {
        writer.array(1);
        compute_task(writer, "d", 1, None);
    });
    message(&[&body, &pickled(b"\x80\x05N.")])
}

fn pickled(pickle: &[u8]) -> Vec<u8> {
    body(|writer| {
        writer.map(2).str("pickled-obj").bin(pickle);
        writer.str("num-sub-frames").u64(0);
    })
}

/// A batch with a message about keys.
fn about_keys(op: &str) -> Vec<u8> {
    message(&[&body(|writer| {
        writer.array(1).map(5).str("op").str(op);
        writer.str("keys").array(2).str("a").str("b");
        writer.str("key").str("b");
        writer
            .str("who_has")
            .map(1)
            .str("c")
            .array(1)
            .str("tcp://10.0.2.2:9");
        writer.str("stimulus_id").str("");
    })])
}

/// A batch that asks for a value without a holder.
fn without_holder() -> Vec<u8> {
    message(&[&body(|writer| {
        writer.array(1).map(2).str("op").str("acquire-replicas");
        writer.str("who_has").map(1).str("e").array(0);
    })])
}

/// A request of a peer about two values.
fn request(op: &str) -> Vec<u8> {
    message(&[&body(|writer| {
        writer.map(3).str("op").str(op).str("reply").bool(true);
        writer.str("keys").map(2).str("__Set__").bool(true);
        writer.str("as-list").array(2).str("a").str("b");
    })])
}

/// The answer to `get_data`, or values that a client sends.
fn data(op: &str) -> Vec<u8> {
    let body = body(|writer| {
        writer.map(3).str("op").str(op).str("status").str("OK");
        writer.str("data").map(1).str("c");
        writer.map(1).str("__Serialized__").u64(1);
    });
    let header = self::body(|writer| {
        writer.map(3).str("serializer").str("pickle");
        writer
            .str("writeable")
            .array(0)
            .str("num-sub-frames")
            .u64(1);
    });
    message(&[&body, &header, b"\x80\x05K\x05."])
}

fn acknowledgement() -> Vec<u8> {
    message(&[&body(|writer| {
        writer.str("OK");
    })])
}

/// Lets the peers of some links send something.
fn step(fake: &mut Fake) {
    for link in 0..5 {
        if fake.links[link]
            .as_ref()
            .is_none_or(|input| !input.is_empty())
            || fake.random.one_in(3)
        {
            continue;
        }
        let next = match (link, fake.random.below(8)) {
            (0, 0) => answer(),
            (0, 1) => about_keys("free-keys"),
            (0, 2) => about_keys("steal-request"),
            (0, 3) => about_keys("acquire-replicas"),
            (0, 4) => about_keys("remove-replicas"),
            (0, 5) => about_keys("worker-status-change"),
            (0, 6) if fake.random.one_in(2) => no_task(),
            (0, 6) => without_holder(),
            (0, _) => tasks(),
            // Such as the refusal of the plugin: tasks that are not understood then fail.
            (1, 0..3) => error(),
            (1, _) => answer(),
            (2, 0..5) => {
                fake.close(link);
                continue;
            }
            (2, _) => data(""),
            (_, 0) => data("update_data"),
            (_, 1 | 2) => request("get_data"),
            (_, 3) => request("free_keys"),
            (_, 4) => request("no such operation"),
            _ => acknowledgement(),
        };
        fake.push(link, next);
        if fake.random.one_in(100) {
            fake.close(link);
        }
    }
}

fn contains(bytes: &[u8], string: &str) -> bool {
    bytes
        .windows(string.len())
        .any(|part| part == string.as_bytes())
}

#[test]
fn silent_and_stalled_peers_make_way_for_others() {
    let config = Config {
        scheduler: "tcp://10.0.2.2:8786",
        contact: "tcp://10.0.2.15:8000",
        name: "mcu",
    };
    for is_silent in [true, false] {
        let mut memory = Memory::<8, 1500, 1024, 2>::new();
        let mut worker = Worker::new(config, FUNCTIONS, &mut memory);
        let mut connections = Connections::<5>::new();
        let mut fake = Fake {
            links: [const { None }; 5],
            sent: [const { Vec::new() }; 5],
            random: Random(1),
            damage: 0,
            is_silent,
            opened: [0; 5],
        };
        let mut now = Duration::from_secs(1);
        while now < Duration::from_secs(30) {
            now += Duration::from_millis(20);
            for link in 0..2 {
                let is_waiting = worker.status() != Status::Running || link == 1;
                if is_waiting && fake.links[link].as_ref().is_some_and(VecDeque::is_empty) {
                    fake.push(link, answer());
                }
            }
            let opened = fake.opened;
            exchange(&mut worker, &mut fake, &mut connections, now);
            for (link, before) in opened.into_iter().enumerate().skip(3) {
                if !is_silent && fake.opened[link] != before {
                    // Half a message.
                    let request = request("get_data");
                    fake.push(link, request[..request.len() / 2].to_vec());
                }
            }
        }
        assert_eq!(worker.status(), Status::Running);
        for link in 3..5 {
            assert!(fake.opened[link] > 1, "{is_silent} {:?}", fake.opened);
        }
    }
}

#[test]
fn schedulers_of_old_releases_are_refused() {
    let config = Config {
        scheduler: "tcp://10.0.2.2:8786",
        contact: "tcp://10.0.2.15:8000",
        name: "mcu",
    };
    let mut memory = Memory::<8, 1500, 1024, 2>::new();
    let mut worker = Worker::new(config, FUNCTIONS, &mut memory);
    let mut connections = Connections::<5>::new();
    let mut fake = Fake {
        links: [const { None }; 5],
        sent: [const { Vec::new() }; 5],
        random: Random(1),
        damage: 0,
        is_silent: true,
        opened: [0; 5],
    };
    let mut now = Duration::from_secs(1);
    let mut status_with = |release: &str| {
        let versions = body(|writer| {
            writer.map(2).str("status").str("OK");
            writer
                .str("packages")
                .map(1)
                .str("distributed")
                .str(release);
        });
        for _ in 0..400 {
            now += Duration::from_millis(200);
            for link in 0..2 {
                if fake.links[link].as_ref().is_some_and(VecDeque::is_empty) {
                    fake.push(link, message(&[&versions]));
                }
            }
            exchange(&mut worker, &mut fake, &mut connections, now);
        }
        let refused = worker.refused_release().map(str::to_owned);
        (worker.status(), refused, fake.opened[0])
    };
    for release in ["2024.1.0", "2025.2.0"] {
        let refused = (Status::Refused, Some(release.to_owned()), 0);
        assert_eq!(status_with(release), refused);
    }
    // It asks again after a minute, and registers with a later release.
    assert_eq!(status_with("2025.3.0"), (Status::Running, None, 1));
}

#[test]
fn it_survives_peers_that_send_anything() {
    let mut memory = Memory::<8, 1500, 1024, 2>::new();
    let mut runs = [0; 2];
    // What it has to have said in some of the runs, on which link.
    let mut seen = [
        (0, "task-finished", 0),
        (0, "task-erred", 0),
        (0, "reschedule", 0),
        (0, "steal-response", 0),
        (0, "add-keys", 0),
        (0, "request-refresh-who-has", 0),
        (0, "worker-status-change", 0),
        (1, "heartbeat_worker", 0),
        (2, "get_data", 0),
        (3, "__Serialized__", 0),
        (3, "nbytes", 0),
        (4, "uncaught-error", 0),
    ];
    for seed in 1..400 {
        let config = Config {
            scheduler: "tcp://10.0.2.2:8786",
            contact: "tcp://10.0.2.15:8000",
            name: "mcu",
        };
        let mut worker = Worker::new(config, FUNCTIONS, &mut memory);
        let mut connections = Connections::<5>::new();
        let mut fake = Fake {
            links: [const { None }; 5],
            sent: [const { Vec::new() }; 5],
            random: Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed)),
            damage: (seed % 4 * 10) as usize,
            is_silent: false,
            opened: [0; 5],
        };
        let mut now = Duration::from_secs(1);
        for _ in 0..400 {
            step(&mut fake);
            now += Duration::from_millis(fake.random.below(40) as u64);
            exchange(&mut worker, &mut fake, &mut connections, now);
            assert!(worker.key_count() <= 8);
        }
        for (link, string, count) in &mut seen {
            *count += usize::from(contains(&fake.sent[*link], string));
        }
        // With peers that behave, it works again after any failure.
        fake.damage = 0;
        for link in 0..5 {
            fake.close(link);
            fake.sent[link].clear();
        }
        let mut finished = false;
        for _ in 0..2000 {
            if worker.status() == Status::Ended || finished {
                break;
            }
            now += Duration::from_millis(20);
            for link in 0..2 {
                if fake.links[link].as_ref().is_some_and(VecDeque::is_empty) {
                    let next = match (link, worker.status()) {
                        (0, Status::Running) => tasks(),
                        _ => answer(),
                    };
                    fake.push(link, next);
                }
            }
            exchange(&mut worker, &mut fake, &mut connections, now);
            let sent = &fake.sent[0];
            finished = contains(sent, "task-finished");
        }
        assert!(finished || worker.status() == Status::Ended, "seed {seed}");
        runs[usize::from(finished)] += 1;
    }
    for (link, string, count) in seen {
        assert!(count > 10, "link {link}: {string} in {count} runs");
    }
    // A damaged message rarely becomes `close`.
    assert!(runs[1] > 390, "{runs:?}");
}
