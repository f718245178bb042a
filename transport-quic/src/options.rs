//! The options of QUIC.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use quinn::congestion::{BbrConfig, CubicConfig, NewRenoConfig};
use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use rustls::pki_types::ServerName;

/// The size in bytes of the largest packet that is sent in batches: quinn hands the
/// system ten at a time, and a batch must fit into 64 KiB.
const BATCHED_UDP_PAYLOAD: u16 = 6_550;

/// The TLS side of an [`Endpoint`](crate::Endpoint).
///
/// The configurations determine the verifier, the certificates, the crypto provider and
/// whether a client certificate is requested. The requirements of QUIC are set on a copy:
/// the only ALPN token is [`ALPN`](crate::ALPN), and early data is off. The
/// configurations must allow TLS 1.3, the only version that QUIC uses, and the provider
/// must have `TLS13_AES_128_GCM_SHA256`, with which every QUIC connection begins.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// The configuration for connecting. Default: `None`, so that the endpoint does not
    /// connect.
    pub client: Option<Arc<rustls::ClientConfig>>,
    /// The configuration for listening. Default: `None`, so that the endpoint does not
    /// listen.
    pub server: Option<Arc<rustls::ServerConfig>>,
    /// The name to verify and to send (SNI) in place of the host in the
    /// address; Dask's `server_hostname`. Default: `None`.
    pub server_name: Option<ServerName<'static>>,
}

impl From<Arc<rustls::ClientConfig>> for Tls {
    /// Uses a configuration for connecting only.
    fn from(client: Arc<rustls::ClientConfig>) -> Self {
        Self {
            client: Some(client),
            ..Self::default()
        }
    }
}

impl From<&daskwire_comm::tls::Tls> for Tls {
    /// Uses the configurations of comms over TLS, so that `tls://` and `quic://` share
    /// settings, certificates and verifier.
    fn from(tls: &daskwire_comm::tls::Tls) -> Self {
        Self {
            client: Some(Arc::clone(tls.client_config())),
            server: Some(Arc::clone(tls.server_config())),
            server_name: tls.server_name().cloned(),
        }
    }
}

/// The options of an [`Endpoint`](crate::Endpoint), except for those of its comms
/// ([`CommOptions`](daskwire_comm::CommOptions)).
///
/// ```
/// use daskwire_quic::{Congestion, QuicOptions};
/// let options = QuicOptions {
///     congestion: Congestion::Bbr,
///     ..QuicOptions::default()
/// };
/// ```
#[derive(Clone)]
pub struct QuicOptions {
    /// Certificates, keys and verifiers. Default: none, so that the transport can
    /// neither connect nor listen.
    pub tls: Tls,
    /// The timeout of connections that peers make. Default: 30 seconds.
    pub handshake_timeout: Duration,
    /// The maximum number of comms that a peer may have open on a connection that it made.
    /// A further comm waits for one of them to end. Default: 4,096, enough for a relay
    /// that has all workers of a cluster on one connection.
    pub max_comms: u32,
    /// The maximum number of unread bytes that a peer may send on one comm.
    /// Default: 16 MiB, which carries 1.3 Gbit/s over a path of 100 ms;
    /// quinn's 1.25 MB make a 64 MiB frame wait some 50 times.
    pub stream_window: u32,
    /// The maximum number of unread bytes that a peer may send on all comms of a connection.
    /// Default: [`Self::stream_window`] for each of [`Self::max_comms`], which is 64 GiB.
    ///
    /// Unread comms fill this window, with [`Self::stream_window`] bytes each, and all
    /// comms of the connection wait while it is full. With a smaller window a few comms
    /// can therefore block all others.
    ///
    /// A peer can make this side store as much as the window allows, even if all comms
    /// are read: data that arrives out of order is kept until the missing data arrives.
    /// If peers are not authenticated, lower [`Self::max_comms`], and
    /// [`Self::max_connections`] with it.
    pub connection_window: Option<u64>,
    /// The maximum number of unacknowledged bytes that are kept for all comms of a
    /// connection. Default: 16 MiB.
    ///
    /// It must not exceed the peer's [`Self::stream_window`]: otherwise two ends that
    /// both close a comm before they have read it can wait for each other.
    pub send_window: u64,
    /// The congestion control algorithm. Default: CUBIC.
    pub congestion: Congestion,
    /// The idle time after which a keep-alive packet is sent. It must be shorter than
    /// [`Self::idle_timeout`] of both ends, or connections with idle comms die.
    /// Default: 2 seconds.
    pub keep_alive: Option<Duration>,
    /// Whether to detect before the idle timeout that the process of a peer has ended.
    /// Default: `true`.
    ///
    /// After two intervals of [`Self::keep_alive`] without a packet, a probe of one byte is
    /// sent to the peer's port. If its host answers that the port is closed, the connection
    /// ends with [`io::ErrorKind::ConnectionReset`](std::io::ErrorKind::ConnectionReset).
    ///
    /// The idle timeout still decides if no host answers, as with many firewalls; if a probe
    /// was refused while the peer was alive; if the peer was started again at the same port;
    /// if [`Self::keep_alive`] is `None`; and with a [`Self::transport`].
    pub probe_port: bool,
    /// The time after which a silent peer is considered gone. The shorter one of both
    /// ends applies. Default: 30 seconds, as Dask sets it for TCP.
    pub idle_timeout: Duration,
    /// The time for which a connection that this endpoint made is kept after its last
    /// comm has ended, to be reused by a new comm to the same address.
    /// Default: 1 second.
    pub linger: Duration,
    /// The time that the peer has to close a comm that was closed and dropped locally. Data
    /// that it sends meanwhile is received and discarded, up to [`Self::stream_window`]
    /// bytes. Default: 10 seconds.
    pub drain_timeout: Duration,
    /// The largest packet that is sent and received, in bytes without the
    /// headers of UDP and IP. Path MTU discovery starts at 1,200. Default: 6,500, the
    /// largest size that is sent in batches; a larger one turns batches off.
    pub max_udp_payload: u16,
    /// Whether a peer may change its address during a connection. Default: `false`.
    pub migration: bool,
    /// The maximum number of connections of this endpoint, made and accepted; further ones
    /// are refused. Default: 16,384.
    pub max_connections: usize,
    /// The maximum number of connections that wait to be accepted. Default: 1,024.
    pub max_incoming: usize,
    /// The maximum number of bytes that are stored for one connection that waits to be
    /// accepted. Default: 64 KiB.
    pub incoming_buffer_len: u64,
    /// The maximum number of bytes that are stored for all connections that wait to be
    /// accepted. Default: 16 MiB.
    pub incoming_buffers_len: u64,
    /// The number of unfinished TLS handshakes above which peers must first validate
    /// their address, which takes a round trip. Default: 64.
    pub retry_threshold: usize,
    /// The maximum number of comms that wait to be
    /// [accepted](daskwire_comm::Listener::accept); further ones stay on their connections.
    /// Default: 1,024.
    pub backlog: usize,
    /// The requested size of the socket buffers in bytes, for each direction. The system
    /// may grant less. Default: 4 MiB.
    pub socket_buffer_len: usize,
    /// A [`TransportConfig`] that replaces the windows, [`Self::max_comms`], congestion
    /// control, keep-alive, idle timeout and packet sizes. By the protocol it must allow
    /// bidirectional streams and no unidirectional ones. Default: `None`.
    pub transport: Option<Arc<TransportConfig>>,
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self {
            tls: Tls::default(),
            handshake_timeout: Duration::from_secs(30),
            max_comms: 4_096,
            stream_window: 16 << 20,
            connection_window: None,
            send_window: 16 << 20,
            congestion: Congestion::Cubic,
            keep_alive: Some(Duration::from_secs(2)),
            probe_port: true,
            idle_timeout: Duration::from_secs(30),
            linger: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(10),
            max_udp_payload: 6_500,
            migration: false,
            max_connections: 16_384,
            max_incoming: 1_024,
            incoming_buffer_len: 64 << 10,
            incoming_buffers_len: 16 << 20,
            retry_threshold: 64,
            backlog: 1_024,
            socket_buffer_len: 4 << 20,
            transport: None,
        }
    }
}

impl QuicOptions {
    /// The configuration of quinn: [`Self::transport`], or one with the other options.
    //
    // PROTOCOL QUIC-7, QUIC-18 to QUIC-22, QUIC-24
    pub fn to_transport_config(&self) -> Arc<TransportConfig> {
        if let Some(transport) = &self.transport {
            return Arc::clone(transport);
        }
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.max_udp_payload);
        // A limit beyond the range of QUIC means no limit.
        let connection_window = self.connection_window.map(VarInt::try_from);
        let connection_window = connection_window.and_then(Result::ok);
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(self.max_comms))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .stream_receive_window(VarInt::from_u32(self.stream_window))
            .receive_window(connection_window.unwrap_or(VarInt::MAX))
            .send_window(self.send_window)
            .keep_alive_interval(self.keep_alive)
            // A timeout beyond the range of QUIC means no timeout.
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
            .mtu_discovery_config(Some(discovery))
            .enable_segmentation_offload(self.max_udp_payload <= BATCHED_UDP_PAYLOAD);
        match self.congestion {
            Congestion::Cubic => {
                transport.congestion_controller_factory(Arc::new(CubicConfig::default()))
            }
            Congestion::NewReno => {
                transport.congestion_controller_factory(Arc::new(NewRenoConfig::default()))
            }
            Congestion::Bbr => {
                transport.congestion_controller_factory(Arc::new(BbrConfig::default()))
            }
        };
        Arc::new(transport)
    }
}

impl fmt::Debug for QuicOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicOptions")
            .field("max_comms", &self.max_comms)
            .field("stream_window", &self.stream_window)
            .field("connection_window", &self.connection_window)
            .field("send_window", &self.send_window)
            .field("congestion", &self.congestion)
            .field("keep_alive", &self.keep_alive)
            .field("probe_port", &self.probe_port)
            .field("idle_timeout", &self.idle_timeout)
            .field("linger", &self.linger)
            .field("max_udp_payload", &self.max_udp_payload)
            .field("migration", &self.migration)
            .finish_non_exhaustive()
    }
}

/// The congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Congestion {
    /// CUBIC, which most of the Internet uses (RFC 9438).
    #[default]
    Cubic,
    /// New Reno, the predecessor of CUBIC (RFC 9002).
    NewReno,
    /// BBR, which follows the measured bandwidth instead of losses, for links that lose
    /// packets without being congested. It sends more packets.
    /// Experimental in quinn.
    Bbr,
}
