//! The worker of fixed size with peers that stall, and with old schedulers. The fuzz target
//! `worker_role` has peers that send anything.

use std::collections::VecDeque;
use std::time::Duration;

use daskwire::frame::{Prefix, encode_prelude};
use daskwire::handshake::Handshake;
use daskwire::msgpack::Writer;
use daskwire_embedded::role::{Connections, SocketState, Sockets, exchange};
use daskwire_embedded::value::{Args, Failure, Out};
use daskwire_embedded::worker::{Config, Function, Memory, Status, Worker};

const FUNCTIONS: &[(&str, Function)] = &[("hypot", hypot)];

fn hypot(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [x, y] = args.floats()?;
    out.float(x.hypot(y))
}

/// Sockets whose peer is a script.
struct Fake {
    links: [Option<VecDeque<u8>>; 5],
    /// Whether peers that connect to the worker say nothing.
    is_silent: bool,
    /// The number of connections that each link has had.
    opened: [usize; 5],
}

impl Fake {
    fn new(is_silent: bool) -> Self {
        Self {
            links: [const { None }; 5],
            is_silent,
            opened: [0; 5],
        }
    }

    /// Lets the peer of a link send a message.
    fn push(&mut self, link: usize, message: &[u8]) {
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
            self.push(link, &handshake());
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
        let max_len = into.len().min(600);
        let Some(input) = &mut self.links[link] else {
            return 0;
        };
        let count = max_len.min(input.len());
        for (place, byte) in into.iter_mut().zip(input.drain(..count)) {
            *place = byte;
        }
        count
    }

    fn write(&mut self, _: usize, bytes: &[u8]) -> usize {
        bytes.len()
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

/// A request of a peer about two values.
fn request(op: &str) -> Vec<u8> {
    message(&[&body(|writer| {
        writer.map(3).str("op").str(op).str("reply").bool(true);
        writer.str("keys").map(2).str("__Set__").bool(true);
        writer.str("as-list").array(2).str("a").str("b");
    })])
}

#[test]
fn silent_and_stalled_peers_make_way_for_others() {
    let config = Config::new("tcp://10.0.2.2:8786", "tcp://10.0.2.15:8000", "mcu");
    for is_silent in [true, false] {
        let mut memory = Memory::<8, 1500, 1024, 2>::new();
        let mut worker = Worker::new(config, FUNCTIONS, &mut memory);
        let mut connections = Connections::<5>::new();
        let mut fake = Fake::new(is_silent);
        let mut now = Duration::from_secs(1);
        while now < Duration::from_secs(30) {
            now += Duration::from_millis(20);
            for link in 0..2 {
                let is_waiting = worker.status() != Status::Running || link == 1;
                if is_waiting && fake.links[link].as_ref().is_some_and(VecDeque::is_empty) {
                    fake.push(link, &answer());
                }
            }
            let opened = fake.opened;
            exchange(&mut worker, &mut fake, &mut connections, now);
            for (link, before) in opened.into_iter().enumerate().skip(3) {
                if !is_silent && fake.opened[link] != before {
                    // Half a message.
                    let request = request("get_data");
                    fake.push(link, &request[..request.len() / 2]);
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
    let config = Config::new("tcp://10.0.2.2:8786", "tcp://10.0.2.15:8000", "mcu");
    let mut memory = Memory::<8, 1500, 1024, 2>::new();
    let mut worker = Worker::new(config, FUNCTIONS, &mut memory);
    let mut connections = Connections::<5>::new();
    let mut fake = Fake::new(true);
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
                    fake.push(link, &message(&[&versions]));
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
