//! Detection of silent peers whose process has ended (PROTOCOL QUIC-25).
//!
//! When a process is killed, its kernel does not close QUIC connections: the peers only
//! receive no more packets. But the host answers a packet to a closed port by ICMP, which a
//! connected UDP socket reports as an error. So a silent peer is probed with such a socket.
//! Each probe has its own, since the socket of the endpoint is not connected.
//!
//! Each connection has one task, [`watch`], which ends with it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use daskwire_comm::runtime::sleep;
use tokio::sync::Semaphore;

use crate::config::canonical;
use crate::connection::SharedConnection;

/// Watches the peer until the connection has ended. Ends the connection if the peer is silent
/// in spite of keep-alive packets, and its host reports that its port is closed.
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
            // Otherwise the first probes failed, or probes are refused while the peer is
            // alive: the idle timeout decides.
            if matches!(outcome, Ok(true)) {
                connection.end_with_process();
            }
        }
    }
}

/// Returns `true` once the process of the peer has ended, or `false` if probes cannot
/// determine that.
///
/// # Errors
///
/// Those of the system for the first probes.
async fn process_end(
    connection: &SharedConnection,
    local: Option<IpAddr>,
    keep_alive: Duration,
) -> io::Result<bool> {
    // If a probe is refused while the peer is alive, a router or a firewall refuses all
    // packets outside of the connection: refusals have no meaning then.
    let mut refused_at = None;
    for _ in 0..FIRST_PROBE_COUNT {
        if is_refused(connection, local).await? {
            let received = connection.received();
            if silence(connection, keep_alive).await != received {
                return Ok(false);
            }
            refused_at = Some(received);
            break;
        }
    }
    loop {
        let received = silence(connection, keep_alive).await;
        if refused_at.is_some_and(|refused_at| refused_at != received) {
            return Ok(false);
        }
        // Other errors, such as a missing route, say nothing about the peer.
        if is_refused(connection, local).await.unwrap_or(false) {
            return Ok(connection.received() == received);
        }
    }
}

/// Sends a probe and returns whether the host of the peer refuses it.
async fn is_refused(connection: &SharedConnection, local: Option<IpAddr>) -> io::Result<bool> {
    // Never fails: the semaphore is not closed.
    let _permit = PROBES.acquire().await;
    let peer = canonical(connection.quinn.remote_address());
    let probe = Probe::send(connection.quinn.local_ip().or(local), peer)?;
    sleep(connection.acknowledgement_time()).await;
    Ok(probe.is_refused())
}

/// Waits until nothing was received from the peer for two keep-alive intervals, and returns
/// the number of datagrams received before.
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

/// A packet to the port of a peer, and the socket that reports the answer as an error.
struct Probe(UdpSocket);

impl Probe {
    /// One byte. Every implementation of QUIC discards a packet of this length, even if it
    /// has another connection with this host (RFC 9000, section 10.3).
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
        // Windows reports a reset.
        outcome.is_err_and(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
            )
        })
    }
}

/// The address to probe `peer` from: the local address of the connection if it is known, so
/// that the probe takes the same route.
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

/// The number of probes at the start of a connection, of which one must be refused to show
/// that refusals have no meaning. A packet may be lost, and systems limit their answers.
const FIRST_PROBE_COUNT: u32 = 3;

/// The permits for concurrent probes. Each probe needs a socket, and a process may have more
/// connections, which share sockets, than it may open files.
static PROBES: Semaphore = Semaphore::const_new(64);
