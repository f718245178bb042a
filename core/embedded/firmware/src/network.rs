//! The sockets of smoltcp for a role, over the Ethernet controller.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use daskwire_embedded::role::{SocketState, Sockets};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr};

use super::ethernet::Ethernet;

/// The hardware address, one for private use.
const HARDWARE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// The address of the board in the user network of qemu.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// The address of the host in that network, which is also the gateway.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// The port at which the board accepts connections.
pub const PORT: u16 = 8000;

/// The first of the ports for connections of the board.
const FIRST_PORT: u16 = 49152;

/// Timeout for a peer that does not answer.
const TIMEOUT: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(20);

/// Interval of the keep-alive packets to a silent peer.
const KEEP_ALIVE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(5);

/// The buffers of one socket.
pub struct SocketBuffers<const IN: usize, const OUT: usize> {
    incoming: [u8; IN],
    outgoing: [u8; OUT],
}

impl<const IN: usize, const OUT: usize> SocketBuffers<IN, OUT> {
    /// Empty buffers.
    pub const EMPTY: Self = Self {
        incoming: [0; IN],
        outgoing: [0; OUT],
    };

    /// A closed socket.
    pub fn socket(&mut self) -> Socket<'_> {
        let incoming = SocketBuffer::new(&mut self.incoming[..]);
        let outgoing = SocketBuffer::new(&mut self.outgoing[..]);
        let mut socket = Socket::new(incoming, outgoing);
        socket.set_timeout(Some(TIMEOUT));
        socket.set_keep_alive(Some(KEEP_ALIVE));
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket
    }
}

/// The network: one socket for each link of a role.
pub struct Network<'a> {
    ethernet: Ethernet,
    interface: Interface,
    sockets: SocketSet<'a>,
    /// The sockets, indexed by link.
    handles: &'a mut [Option<SocketHandle>],
    next_port: u16,
}

impl<'a> Network<'a> {
    /// Starts the controller. `seed` should differ at each start, so that
    /// connections of an earlier start are not mistaken for new ones.
    pub fn start(
        storage: &'a mut [SocketStorage<'a>],
        handles: &'a mut [Option<SocketHandle>],
        seed: u64,
    ) -> Self {
        let mut ethernet = Ethernet::start(HARDWARE);
        let mut config = Config::new(EthernetAddress(HARDWARE).into());
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut ethernet, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // Cannot fail: it is the first address.
            let _ = addresses.push(IpCidr::new(ADDRESS.into(), 24));
        });
        let _ = interface.routes_mut().add_default_ipv4_route(HOST);
        let [low, high, ..] = seed.to_le_bytes();
        Self {
            ethernet,
            interface,
            sockets: SocketSet::new(storage),
            handles,
            next_port: FIRST_PORT | (u16::from_le_bytes([low, high]) & 0x3fff),
        }
    }

    /// Sets the socket of the next link.
    pub fn add(&mut self, socket: Socket<'a>) {
        let handle = self.sockets.add(socket);
        if let Some(place) = self.handles.iter_mut().find(|place| place.is_none()) {
            *place = Some(handle);
        }
    }

    /// Receives and sends pending packets. Returns whether a socket has changed.
    pub fn poll(&mut self, now: Duration) -> bool {
        let milliseconds = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        let now = Instant::from_millis(milliseconds);
        let result = self
            .interface
            .poll(now, &mut self.ethernet, &mut self.sockets);
        result == smoltcp::iface::PollResult::SocketStateChanged
    }

    fn socket(&mut self, link: usize) -> Option<&mut Socket<'a>> {
        let handle = self.handles.get(link).copied().flatten()?;
        Some(self.sockets.get_mut(handle))
    }
}

impl Sockets for Network<'_> {
    fn connect(&mut self, link: usize, address: &str) {
        let address = address.strip_prefix("tcp://").unwrap_or(address);
        let Ok(mut address) = address.parse::<SocketAddrV4>() else {
            return;
        };
        // Processes on the emulator's host announce their loopback address.
        if address.ip().is_loopback() {
            address.set_ip(HOST);
        }
        self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        let Some(handle) = self.handles.get(link).copied().flatten() else {
            return;
        };
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        // A socket that cannot connect stays closed, which `state` reports.
        let _ = socket.connect(self.interface.context(), address, self.next_port);
    }

    fn accept(&mut self, link: usize) {
        if let Some(socket) = self.socket(link) {
            let _ = socket.listen(PORT);
        }
    }

    fn close(&mut self, link: usize) {
        if let Some(socket) = self.socket(link) {
            socket.close();
        }
    }

    fn abort(&mut self, link: usize) {
        if let Some(socket) = self.socket(link) {
            socket.abort();
        }
    }

    fn state(&mut self, link: usize) -> SocketState {
        let Some(socket) = self.socket(link) else {
            return SocketState::Closed;
        };
        match socket.state() {
            State::Closed | State::TimeWait => SocketState::Closed,
            State::Established => SocketState::Open,
            State::CloseWait if socket.can_recv() => SocketState::Open,
            State::CloseWait => {
                socket.close();
                SocketState::Closed
            }
            // This includes connections that are being closed.
            _ => SocketState::Opening,
        }
    }

    fn read(&mut self, link: usize, into: &mut [u8]) -> usize {
        let socket = self.socket(link);
        let read = socket.and_then(|socket| socket.recv_slice(into).ok());
        read.unwrap_or_default()
    }

    fn write(&mut self, link: usize, bytes: &[u8]) -> usize {
        let socket = self.socket(link);
        let written = socket.and_then(|socket| socket.send_slice(bytes).ok());
        written.unwrap_or_default()
    }
}
