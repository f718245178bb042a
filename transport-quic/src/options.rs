//! The options of QUIC.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use quinn::congestion::{BbrConfig, CubicConfig};
use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use rustls::pki_types::ServerName;

/// The size in bytes of the largest packet, without the headers of UDP and IP: quinn hands
/// the system ten at a time, and such a batch must fit into 64 KiB.
pub(crate) const MAX_UDP_PAYLOAD: u16 = 6_500;

/// The maximum number of unacknowledged bytes that are kept for all comms of a connection.
///
/// It must not exceed the peer's [`QuicOptions::stream_window`]: otherwise two ends that
/// both close a comm before they have read it can wait for each other.
const SEND_WINDOW: u64 = 16 << 20;

/// The TLS side of the transport.
///
/// The configurations determine the verifier, the certificates, the crypto provider and
/// whether a client certificate is requested. The requirements of QUIC are set on a copy:
/// the only ALPN token is [`ALPN`](crate::ALPN), and early data is off. The
/// configurations must allow TLS 1.3, the only version that QUIC uses, and the provider
/// must have `TLS13_AES_128_GCM_SHA256`, with which every QUIC connection begins.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Tls {
    /// The configuration for connecting. Default: `None`, so that the transport does not
    /// connect.
    pub client: Option<Arc<rustls::ClientConfig>>,
    /// The configuration for listening. Default: `None`, so that the transport does not
    /// listen.
    pub server: Option<Arc<rustls::ServerConfig>>,
    /// The name to verify and to send (SNI) in place of the host in the
    /// address; Dask's `server_hostname`. Default: `None`.
    pub server_name: Option<ServerName<'static>>,
}

impl Tls {
    daskwire_comm::with_fields! {
        with_client(client: impl Into<Option<Arc<rustls::ClientConfig>>>);
        with_server(server: impl Into<Option<Arc<rustls::ServerConfig>>>);
        with_server_name(server_name: impl Into<Option<ServerName<'static>>>);
    }
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

/// The options of the transport [`Quic`](crate::Quic), except for those of its comms
/// ([`CommOptions`](daskwire_comm::CommOptions)).
///
/// ```
/// use daskwire_quic::{Congestion, QuicOptions};
/// let options = QuicOptions::default().with_congestion(Congestion::Bbr);
/// ```
#[derive(Clone)]
#[non_exhaustive]
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
    ///
    /// A peer can make this side store as much on each of [`Self::max_comms`] comms, even if
    /// all are read: data that arrives out of order is kept until the missing data arrives.
    /// If peers are not authenticated, lower [`Self::max_comms`], and
    /// [`Self::max_connections`] with it.
    pub stream_window: u32,
    /// The congestion control algorithm. Default: CUBIC.
    pub congestion: Congestion,
    /// The idle time after which a keep-alive packet is sent. It must be shorter than
    /// [`Self::idle_timeout`] of both ends, or connections with idle comms die.
    /// Default: 2 seconds.
    pub keep_alive: Option<Duration>,
    /// The time after which a silent peer is considered gone. The shorter one of both
    /// ends applies. Default: 10 seconds: a process that was killed sends no end of its
    /// connections, and its host does not answer for it, as it does for TCP.
    pub idle_timeout: Duration,
    /// The time for which a connection that this endpoint made is kept after its last
    /// comm has ended, to be reused by a new comm to the same address.
    /// Default: 1 second.
    pub linger: Duration,
    /// The time that the peer has to close a comm that was closed and dropped locally. Data
    /// that it sends meanwhile is received and discarded, up to [`Self::stream_window`]
    /// bytes. Default: 10 seconds.
    pub drain_timeout: Duration,
    /// The maximum number of connections of this endpoint, made and accepted; further ones
    /// are refused. Default: 16,384.
    pub max_connections: usize,
    /// The number of unfinished TLS handshakes above which peers must first validate
    /// their address, which takes a round trip. Default: 64.
    pub retry_threshold: usize,
}

impl QuicOptions {
    daskwire_comm::with_fields! {
        with_tls(tls: impl Into<Tls>);
        with_handshake_timeout(handshake_timeout: Duration);
        with_max_comms(max_comms: u32);
        with_stream_window(stream_window: u32);
        with_congestion(congestion: Congestion);
        with_keep_alive(keep_alive: impl Into<Option<Duration>>);
        with_idle_timeout(idle_timeout: Duration);
        with_linger(linger: Duration);
        with_drain_timeout(drain_timeout: Duration);
        with_max_connections(max_connections: usize);
        with_retry_threshold(retry_threshold: usize);
    }
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self {
            tls: Tls::default(),
            handshake_timeout: Duration::from_secs(30),
            max_comms: 4_096,
            stream_window: 16 << 20,
            congestion: Congestion::Cubic,
            keep_alive: Some(Duration::from_secs(2)),
            idle_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(10),
            max_connections: 16_384,
            retry_threshold: 64,
        }
    }
}

impl QuicOptions {
    /// Converts the time after which Dask ends a TCP connection to a silent peer
    /// (`distributed.comm.timeouts.tcp`) to an [`Self::idle_timeout`]: a third of it, but at
    /// least 5 seconds, which is longer than the interval of keep-alive packets.
    pub fn idle_timeout_for(tcp_timeout: Duration) -> Duration {
        (tcp_timeout / 3).max(Duration::from_secs(5))
    }

    /// The configuration of quinn, for benchmarks too.
    //
    // PROTOCOL QUIC-7, QUIC-18 to QUIC-22, QUIC-24
    #[doc(hidden)]
    pub fn to_transport_config(&self) -> Arc<TransportConfig> {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(MAX_UDP_PAYLOAD);
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(self.max_comms))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .stream_receive_window(VarInt::from_u32(self.stream_window))
            .receive_window(VarInt::MAX)
            .send_window(SEND_WINDOW)
            .keep_alive_interval(self.keep_alive)
            // A timeout beyond the range of QUIC means no timeout.
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
            .mtu_discovery_config(Some(discovery));
        match self.congestion {
            Congestion::Cubic => {
                transport.congestion_controller_factory(Arc::new(CubicConfig::default()))
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
            .field("congestion", &self.congestion)
            .field("keep_alive", &self.keep_alive)
            .field("idle_timeout", &self.idle_timeout)
            .field("linger", &self.linger)
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
    /// BBR, which follows the measured bandwidth instead of losses, for links that lose
    /// packets without being congested. It sends more packets.
    /// Experimental in quinn.
    Bbr,
}
