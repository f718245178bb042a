//! Sockets of the standard library for roles.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use daskwire_embedded::role::{SocketState, Sockets};

/// Sockets for a role. Links that accept share one listener.
pub(crate) struct StdSockets {
    listener: TcpListener,
    sockets: Vec<Socket>,
}

enum Socket {
    Closed,
    Accepting,
    Open(TcpStream),
}

impl StdSockets {
    pub(crate) fn new(listener: TcpListener, count: usize) -> Self {
        listener.set_nonblocking(true).expect("it is a socket");
        let sockets = (0..count).map(|_| Socket::Closed).collect();
        Self { listener, sockets }
    }

    fn outcome(&mut self, link: usize, outcome: std::io::Result<usize>) -> usize {
        match outcome {
            Ok(count) if count != 0 => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            // The end of the stream, or a connection that is lost.
            _ => {
                self.sockets[link] = Socket::Closed;
                0
            }
        }
    }
}

impl Sockets for StdSockets {
    fn connect(&mut self, link: usize, address: &str) {
        let address = address.strip_prefix("tcp://").unwrap_or(address);
        self.sockets[link] = match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_nonblocking(true).expect("it is a socket");
                stream.set_nodelay(true).expect("it is a socket");
                Socket::Open(stream)
            }
            Err(_) => Socket::Closed,
        };
    }

    fn accept(&mut self, link: usize) {
        self.sockets[link] = Socket::Accepting;
    }

    fn close(&mut self, link: usize) {
        self.sockets[link] = Socket::Closed;
    }

    fn abort(&mut self, link: usize) {
        // The system resets a connection with unread data.
        self.close(link);
    }

    fn state(&mut self, link: usize) -> SocketState {
        if matches!(self.sockets[link], Socket::Accepting)
            && let Ok((stream, _)) = self.listener.accept()
        {
            stream.set_nonblocking(true).expect("it is a socket");
            self.sockets[link] = Socket::Open(stream);
        }
        match self.sockets[link] {
            Socket::Closed => SocketState::Closed,
            Socket::Accepting => SocketState::Opening,
            Socket::Open(_) => SocketState::Open,
        }
    }

    fn read(&mut self, link: usize, into: &mut [u8]) -> usize {
        let Socket::Open(stream) = &mut self.sockets[link] else {
            return 0;
        };
        let outcome = stream.read(into);
        self.outcome(link, outcome)
    }

    fn write(&mut self, link: usize, bytes: &[u8]) -> usize {
        let Socket::Open(stream) = &mut self.sockets[link] else {
            return 0;
        };
        let outcome = stream.write(bytes);
        self.outcome(link, outcome)
    }
}
