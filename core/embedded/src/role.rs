//! The connection between a role and the sockets of a platform.

#[cfg(test)]
mod tests;

use core::time::Duration;

/// The connection that a role wants on one of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// No connection: close the one that is open.
    Nothing,
    /// No connection: drop the one that is open, with everything unsent. The peer has
    /// sent an invalid message, takes too long, or may still send for long.
    Abort,
    /// The open connection is kept until everything is sent.
    Draining,
    /// A connection to this address, such as `tcp://10.0.2.2:8786`.
    Connection(&'a str),
    /// A connection that a peer makes to the address of the worker.
    Peer,
}

/// A role without I/O and without a clock.
///
/// A role has a fixed number of links, each for one connection at a time. See
/// [`exchange`] for a loop that serves all of them.
pub trait Role {
    /// The number of links.
    fn link_count(&self) -> usize;

    /// The connection that the role wants on a link now.
    fn wanted(&self, link: usize) -> Wanted<'_>;

    /// Notifies the role that a wanted connection is established.
    fn connected(&mut self, link: usize);

    /// Notifies the role that the connection of a link is closed, or could not be
    /// established.
    fn disconnected(&mut self, link: usize);

    /// Space for the next received bytes. Empty while the role is busy with
    /// earlier ones.
    fn space(&mut self, link: usize) -> &mut [u8];

    /// Notifies the role that `count` bytes have been written to the start of
    /// [`space`](Self::space).
    fn received(&mut self, link: usize, count: usize);

    /// The next bytes to send.
    fn unsent(&self, link: usize) -> &[u8];

    /// Notifies the role that the first `count` of the [`unsent`](Self::unsent)
    /// bytes have been sent.
    fn sent(&mut self, link: usize, count: usize);

    /// Handles the received messages, and does the work that is due. `now` is
    /// the time since any fixed moment, such as the start of the program.
    fn poll(&mut self, now: Duration);
}

/// The state of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// There is no connection.
    Closed,
    /// The connection is being established.
    Opening,
    /// Bytes can be read and written.
    Open,
}

/// The sockets of a platform, one for each link of a role. No method blocks.
///
/// After [`close`](Self::close) and [`abort`](Self::abort) a socket may take time to
/// become [`SocketState::Closed`]; until then it is [`SocketState::Opening`], and the role
/// gets no new connection on its link.
pub trait Sockets {
    /// Begins to connect the socket of a link to an address.
    fn connect(&mut self, link: usize, address: &str);

    /// Accepts a connection on the socket of a link, as soon as there is one.
    fn accept(&mut self, link: usize);

    /// Closes the connection of a link, after all written bytes are sent. The peer may
    /// have more to send, which is not read. If the socket is not closed after some
    /// seconds, [`exchange`] aborts it.
    fn close(&mut self, link: usize);

    /// Drops the connection of a link, with everything unsent, and resets it, so that
    /// the peer does not wait for its data to be read.
    fn abort(&mut self, link: usize);

    /// The state of the socket of a link. A connection that the peer has closed
    /// is closed once everything that arrived has been read.
    fn state(&mut self, link: usize) -> SocketState;

    /// Reads bytes that have arrived, and returns their number; 0 if there are
    /// none.
    fn read(&mut self, link: usize, into: &mut [u8]) -> usize;

    /// Writes as many bytes as the socket takes, and returns their number.
    fn write(&mut self, link: usize, bytes: &[u8]) -> usize;
}

/// The connections of a role: which links have one.
#[derive(Clone, Debug)]
pub struct Connections<const LINKS: usize> {
    links: [Progress; LINKS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Closed,
    Opening,
    Open,
    /// The role waits until everything is sent.
    Draining {
        deadline: Duration,
    },
    /// The role has no connection, but its socket is not closed yet.
    Closing {
        deadline: Duration,
    },
}

/// The time that a peer has to take the last bytes, and then again to close its side.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

impl<const LINKS: usize> Connections<LINKS> {
    /// No connections.
    pub const fn new() -> Self {
        Self {
            links: [Progress::Closed; LINKS],
        }
    }
}

impl<const LINKS: usize> Default for Connections<LINKS> {
    fn default() -> Self {
        Self::new()
    }
}

/// Opens and closes the connections that the role wants, moves bytes between
/// the role and its sockets, and [polls](Role::poll) the role. Call it whenever
/// something may have arrived, and at least every few milliseconds.
///
/// A peer has ten seconds to take the last bytes of a connection that the role closes, and
/// ten more to close its side. After that, the connection is aborted.
///
/// Links beyond `LINKS` are not served.
pub fn exchange<R: Role, S: Sockets, const LINKS: usize>(
    role: &mut R,
    sockets: &mut S,
    connections: &mut Connections<LINKS>,
    now: Duration,
) {
    for (link, progress) in connections.links.iter_mut().enumerate() {
        if link >= role.link_count() {
            break;
        }
        let state = sockets.state(link);
        let deadline = now.saturating_add(CLOSE_TIMEOUT);
        if let Progress::Closing { deadline: end } = *progress {
            if state != SocketState::Closed {
                if now >= end {
                    sockets.abort(link);
                    *progress = Progress::Closing { deadline };
                }
                continue;
            }
            *progress = Progress::Closed;
        }
        let wanted = match (role.wanted(link), *progress) {
            // The peer does not take the rest.
            (Wanted::Draining, Progress::Draining { deadline: end }) if now >= end => Wanted::Abort,
            (wanted, _) => wanted,
        };
        match (wanted, *progress) {
            (Wanted::Nothing | Wanted::Abort | Wanted::Draining, Progress::Closed) => continue,
            (Wanted::Nothing | Wanted::Abort, _) => {
                if wanted == Wanted::Abort {
                    sockets.abort(link);
                } else {
                    sockets.close(link);
                }
                *progress = Progress::Closing { deadline };
                role.disconnected(link);
                continue;
            }
            (Wanted::Draining, Progress::Open) => *progress = Progress::Draining { deadline },
            // The peer has closed the previous connection, but the socket is still closing.
            (_, Progress::Closed) if state != SocketState::Closed => {
                *progress = Progress::Closing { deadline };
                continue;
            }
            (Wanted::Connection(address), Progress::Closed) => {
                sockets.connect(link, address);
                *progress = Progress::Opening;
                continue;
            }
            (Wanted::Peer, Progress::Closed) => {
                sockets.accept(link);
                *progress = Progress::Opening;
                continue;
            }
            (_, Progress::Opening) if state == SocketState::Open => {
                *progress = Progress::Open;
                role.connected(link);
            }
            (_, Progress::Opening) if state == SocketState::Opening => continue,
            _ => {}
        }
        if matches!(*progress, Progress::Open | Progress::Draining { .. }) {
            read(role, sockets, link);
            write(role, sockets, link);
        }
        if state == SocketState::Closed {
            *progress = Progress::Closed;
            role.disconnected(link);
        }
    }
    role.poll(now);
}

fn read<R: Role, S: Sockets>(role: &mut R, sockets: &mut S, link: usize) {
    loop {
        let space = role.space(link);
        if space.is_empty() {
            return;
        }
        let count = sockets.read(link, space);
        if count == 0 {
            return;
        }
        role.received(link, count);
    }
}

fn write<R: Role, S: Sockets>(role: &mut R, sockets: &mut S, link: usize) {
    loop {
        let count = match role.unsent(link) {
            [] => return,
            bytes => sockets.write(link, bytes),
        };
        if count == 0 {
            return;
        }
        role.sent(link, count);
    }
}
