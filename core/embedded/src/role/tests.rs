//! Tests of sockets whose closing takes time.
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::*;

/// A role with one link, which wants this.
struct Script {
    wanted: Wanted<'static>,
    unsent: &'static [u8],
    connected_count: usize,
    disconnected_count: usize,
}

impl Role for Script {
    fn link_count(&self) -> usize {
        1
    }

    fn wanted(&self, _: usize) -> Wanted<'_> {
        self.wanted
    }

    fn connected(&mut self, _: usize) {
        self.connected_count += 1;
    }

    fn disconnected(&mut self, _: usize) {
        self.disconnected_count += 1;
    }

    fn space(&mut self, _: usize) -> &mut [u8] {
        &mut []
    }

    fn received(&mut self, _: usize, _: usize) {}

    fn unsent(&self, _: usize) -> &[u8] {
        self.unsent
    }

    fn sent(&mut self, _: usize, count: usize) {
        self.unsent = &self.unsent[count..];
    }

    fn poll(&mut self, _: Duration) {}
}

/// A socket whose peer never closes its side.
struct Stubborn {
    state: SocketState,
    /// The number of bytes that the peer takes.
    room: usize,
    aborted_count: usize,
}

impl Sockets for Stubborn {
    fn connect(&mut self, _: usize, _: &str) {
        assert_eq!(self.state, SocketState::Closed, "it is in use");
        self.state = SocketState::Open;
    }

    fn accept(&mut self, link: usize) {
        self.connect(link, "");
    }

    fn close(&mut self, _: usize) {
        self.state = SocketState::Opening;
    }

    fn abort(&mut self, _: usize) {
        self.aborted_count += 1;
        self.state = SocketState::Closed;
    }

    fn state(&mut self, _: usize) -> SocketState {
        self.state
    }

    fn read(&mut self, _: usize, _: &mut [u8]) -> usize {
        0
    }

    fn write(&mut self, _: usize, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room);
        self.room -= count;
        count
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn script(wanted: Wanted<'static>) -> Script {
    Script {
        wanted,
        unsent: b"last words",
        connected_count: 0,
        disconnected_count: 0,
    }
}

fn stubborn(room: usize) -> Stubborn {
    Stubborn {
        state: SocketState::Closed,
        room,
        aborted_count: 0,
    }
}

#[test]
fn a_socket_that_does_not_close_is_aborted_after_a_while() {
    let (mut role, mut sockets) = (script(Wanted::Connection("tcp://10.0.2.2:1")), stubborn(99));
    let mut connections = Connections::<1>::new();
    for second in 0..3 {
        exchange(&mut role, &mut sockets, &mut connections, SECOND * second);
    }
    assert_eq!((role.connected_count, role.unsent), (1, &b""[..]));
    role.wanted = Wanted::Nothing;
    exchange(&mut role, &mut sockets, &mut connections, SECOND * 3);
    assert_eq!(role.disconnected_count, 1);
    role.wanted = Wanted::Connection("tcp://10.0.2.2:1");
    for second in 4..30 {
        exchange(&mut role, &mut sockets, &mut connections, SECOND * second);
        // It has ten seconds, and is used again only after that.
        assert_eq!(sockets.aborted_count, usize::from(second >= 13));
    }
    assert_eq!((role.connected_count, role.disconnected_count), (2, 1));
}

#[test]
fn a_failed_connection_is_aborted_at_once() {
    let (mut role, mut sockets) = (script(Wanted::Peer), stubborn(0));
    let mut connections = Connections::<1>::new();
    for second in 0..3 {
        exchange(&mut role, &mut sockets, &mut connections, SECOND * second);
    }
    role.wanted = Wanted::Abort;
    for second in 3..5 {
        exchange(&mut role, &mut sockets, &mut connections, SECOND * second);
    }
    assert_eq!((sockets.aborted_count, role.disconnected_count), (1, 1));
}

#[test]
fn a_peer_that_does_not_take_the_last_bytes_is_not_waited_for() {
    let (mut role, mut sockets) = (script(Wanted::Peer), stubborn(4));
    let mut connections = Connections::<1>::new();
    for second in 0..2 {
        exchange(&mut role, &mut sockets, &mut connections, SECOND * second);
    }
    role.wanted = Wanted::Draining;
    for second in 2..30 {
        exchange(&mut role, &mut sockets, &mut connections, SECOND * second);
        assert_eq!(sockets.aborted_count, usize::from(second >= 12));
    }
    assert_eq!((role.unsent, role.disconnected_count), (&b" words"[..], 1));
}
