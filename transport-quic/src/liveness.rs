//! Notices that the process of a silent peer has ended (PROTOCOL QUIC-25).
//!
//! The kernel says nothing for a process that was killed: over QUIC its peers only hear
//! nothing more. But the host still answers a packet to a port that no process has, by ICMP,
//! which reaches a connected UDP socket as an error. So a peer that is silent is probed with
//! such a socket, one for each probe, since that of the endpoint is not connected.
//!
//! Each connection has one task, [`watch`], which ends with it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use daskwire_comm::runtime::sleep;
use tokio::sync::Semaphore;

use crate::connection::SharedConnection;
use crate::endpoint::canonical;

/// Watches the peer until the connection has ended, and ends it if the peer is silent in
/// spite of keep-alive packets and its host says that its port is closed.
///
/// `local` is the address of the endpoint's socket.
pub(crate) async fn watch(
    connection: Arc<SharedConnection>,
    local: Option<IpAddr>,
    keep_alive: Duration,
) {
    tokio::select! {
        _ = connection.quinn.closed() => {}
        outcome = process_end(&connection, local, keep_alive) => {
            // Without a first probe, there is nothing that later ones can be compared with.
            if matches!(outcome, Ok(true)) {
                connection.end_with_process();
            }
        }
    }
}

/// Waits until the process of the peer has ended; `false` if that cannot be found out.
///
/// # Errors
///
/// Those of the system for the first probe.
async fn process_end(
    connection: &SharedConnection,
    local: Option<IpAddr>,
    keep_alive: Duration,
) -> io::Result<bool> {
    // If a probe is refused while the peer is there, a router or a firewall does that, which
    // knows the connection alone: refusals mean nothing then.
    if is_refused(connection, local).await? {
        let received = connection.received();
        if silence(connection, keep_alive).await != received {
            return Ok(false);
        }
    }
    loop {
        let received = silence(connection, keep_alive).await;
        // An error says nothing of the peer, such as one for want of a route.
        let is_refused = is_refused(connection, local).await.unwrap_or(false);
        if is_refused && connection.received() == received {
            return Ok(true);
        }
    }
}

/// Whether the host of the peer refuses a probe.
async fn is_refused(connection: &SharedConnection, local: Option<IpAddr>) -> io::Result<bool> {
    // Never fails: the semaphore is not closed.
    let _permit = PROBES.acquire().await;
    let peer = canonical(connection.quinn.remote_address());
    let probe = Probe::send(connection.quinn.local_ip().or(local), peer)?;
    sleep(connection.answer_time()).await;
    Ok(probe.is_refused())
}

/// Waits until the peer has sent nothing for two keep-alive intervals, and returns the number
/// of packets that it has sent before.
async fn silence(connection: &SharedConnection, keep_alive: Duration) -> u64 {
    const STEPS: u32 = 4;
    let mut received = connection.received();
    let mut silent_steps = 0;
    while silent_steps < STEPS {
        sleep(keep_alive * 2 / STEPS).await;
        let before = core::mem::replace(&mut received, connection.received());
        silent_steps = if received == before {
            silent_steps + 1
        } else {
            0
        };
    }
    received
}

/// A packet to the port of a peer, and the socket that an error comes back to.
struct Probe(UdpSocket);

impl Probe {
    /// One byte without the fixed bit of QUIC: every implementation discards it, also one
    /// that has another connection with this host (RFC 9000, sections 10.3 and 17).
    const PACKET: [u8; 1] = [0];

    fn send(local: Option<IpAddr>, peer: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(any_port(local, peer))?;
        socket.set_nonblocking(true)?;
        socket.connect(peer)?;
        socket.send(&Self::PACKET)?;
        Ok(Self(socket))
    }

    /// Whether the host of the peer has answered that the port is closed.
    fn is_refused(&self) -> bool {
        let outcome = self.0.recv(&mut [0]);
        // Windows calls it a reset.
        outcome.is_err_and(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
            )
        })
    }
}

/// The address to probe `peer` from: that of the connection if it is known, so that the probe
/// takes the same way.
fn any_port(local: Option<IpAddr>, peer: SocketAddr) -> SocketAddr {
    match (local.map(|ip| ip.to_canonical()), peer) {
        (Some(IpAddr::V4(ip)), SocketAddr::V4(_)) => (ip, 0).into(),
        (Some(IpAddr::V6(ip)), SocketAddr::V6(peer)) => {
            SocketAddrV6::new(ip, 0, 0, peer.scope_id()).into()
        }
        (_, SocketAddr::V4(_)) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        (_, SocketAddr::V6(_)) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// The probes that are under way. Connections have no sockets of their own, so a process may have
/// more of them than it may open files.
static PROBES: Semaphore = Semaphore::const_new(64);
