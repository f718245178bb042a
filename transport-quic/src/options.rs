//! What can be set.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use quinn::congestion::{BbrConfig, CubicConfig, NewRenoConfig};
use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use rustls::pki_types::ServerName;

/// The largest packet that is sent in batches: quinn hands the system ten at a
/// time, and a batch must fit into 64 KiB.
const BATCHED_UDP_PAYLOAD: u16 = 6_550;

/// The TLS side of an [`Endpoint`](crate::Endpoint).
///
/// Verifier, certificates, crypto provider and whether a certificate is asked
/// of the other side are as these configurations say. What QUIC needs is set
/// on a copy: ALPN is [`ALPN`](crate::ALPN) alone and early data is off. They
/// must allow TLS 1.3, which is all that QUIC uses, and the provider must have
/// `TLS13_AES_128_GCM_SHA256`, with which every QUIC connection begins.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// For connecting; without it the endpoint does not connect.
    pub client: Option<Arc<rustls::ClientConfig>>,
    /// For listening; without it the endpoint does not listen.
    pub server: Option<Arc<rustls::ServerConfig>>,
    /// The name to verify and to send (SNI) in place of the host in the
    /// address; Dask's `server_hostname`. Default: none.
    pub server_name: Option<ServerName<'static>>,
}

impl From<Arc<rustls::ClientConfig>> for Tls {
    /// For connecting alone.
    fn from(client: Arc<rustls::ClientConfig>) -> Self {
        Self {
            client: Some(client),
            ..Self::default()
        }
    }
}

impl From<&daskwire_comm::tls::Tls> for Tls {
    /// What comms over TLS use, so that the same settings, certificates and
    /// verifier serve `tls://` and `quic://`.
    fn from(tls: &daskwire_comm::tls::Tls) -> Self {
        Self {
            client: Some(Arc::clone(tls.client_config())),
            server: Some(Arc::clone(tls.server_config())),
            server_name: tls.server_name().cloned(),
        }
    }
}

/// How QUIC is spoken: every setting of an [`Endpoint`](crate::Endpoint)
/// beside those of its comms ([`CommOptions`](daskwire_comm::CommOptions)).
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
    /// How long a connection that a peer makes may take. Default: 30 seconds.
    pub handshake_timeout: Duration,
    /// How many comms a peer may have open at once on a connection that it
    /// made to us. One more waits for one of them to end. Default: 4,096, enough
    /// for a relay that has all workers of a cluster on one connection.
    pub max_comms: u32,
    /// How many bytes of one comm may be under way or wait here for a reader.
    /// Default: 16 MiB, which carries 1.3 Gbit/s over a path of 100 ms;
    /// quinn's 1.25 MB make a 64 MiB frame wait some 50 times.
    pub stream_window: u32,
    /// How many bytes of all comms of one connection may be under way or wait
    /// here for readers. Default: [`Self::stream_window`] for each of
    /// [`Self::max_comms`], which is 64 GiB.
    ///
    /// Comms that are not read fill it, [`Self::stream_window`] bytes each, and
    /// when it is full all comms of the connection wait. So with a smaller number
    /// a few comms can stop all others.
    ///
    /// A peer can make this side hold as much as the window allows, also where all
    /// comms are read: data that arrives out of order waits for what is missing.
    /// Where peers are not authenticated, lower [`Self::max_comms`], and
    /// [`Self::max_connections`] with it.
    pub connection_window: Option<u64>,
    /// How many bytes of all comms of one connection are kept here until they
    /// are acknowledged. Default: 16 MiB.
    ///
    /// Not more than the peer's [`Self::stream_window`], or two ends that both
    /// close a comm before they have read it can wait for each other.
    pub send_window: u64,
    /// Which congestion control. Default: CUBIC.
    pub congestion: Congestion,
    /// How long a connection is silent before it is made to say something.
    /// Shorter than [`Self::idle_timeout`] of both sides, or connections with
    /// idle comms die. Default: 10 seconds.
    pub keep_alive: Option<Duration>,
    /// After how long a silent peer counts as gone. The shorter one of both
    /// sides holds. Default: 30 seconds, as Dask sets it for TCP.
    pub idle_timeout: Duration,
    /// How long a connection that we made is kept when its last comm has
    /// ended; a new comm to the same address within that time costs no new
    /// connection. Default: 1 second.
    pub linger: Duration,
    /// How long we wait for the peer to close a comm too, when it has been
    /// closed and dropped here; what the peer sends then is received and thrown away, up
    /// to [`Self::stream_window`] bytes. Default: 10 seconds.
    pub drain_timeout: Duration,
    /// The largest packet that is sent and received, in bytes without the
    /// headers of UDP and IP, if the path takes it; that is found out by
    /// trying, from 1,200 upwards. Default: 6,500, the most that is sent in
    /// batches. A larger number turns batches off.
    pub max_udp_payload: u16,
    /// Whether a peer may change its address in the middle of a connection.
    /// Default: no.
    pub migration: bool,
    /// How many connections others may have with this endpoint, and this
    /// endpoint with others, in sum; further ones are refused. Default: 16,384.
    pub max_connections: usize,
    /// How many connections may wait to be looked at. Default: 1,024.
    pub max_incoming: usize,
    /// How many bytes each of these may send meanwhile. Default: 64 KiB.
    pub incoming_buffer_len: u64,
    /// How many bytes all of these may send meanwhile. Default: 16 MiB.
    pub incoming_buffers_len: u64,
    /// From how many TLS handshakes under way on a peer must prove that its
    /// address is its own before it gets one, which costs it a round trip.
    /// Default: 64.
    pub retry_threshold: usize,
    /// How many comms may wait to be [accepted](crate::Endpoint::accept); no
    /// more are taken from the connections while these wait. Default: 1,024.
    pub backlog: usize,
    /// How many bytes the system is asked to buffer for the socket, in each
    /// direction. It may grant less. Default: 4 MiB.
    pub socket_buffer_len: usize,
    /// In place of all that is in a [`TransportConfig`]: the windows,
    /// [`Self::max_comms`], congestion control, keep-alive, idle timeout and
    /// packet sizes. Rules of the protocol that it must keep: room for streams
    /// in both directions, none for streams in one. Default: none.
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
            keep_alive: Some(Duration::from_secs(10)),
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
    /// What these settings are to quinn: [`Self::transport`], or what the
    /// others come to.
    //
    // PROTOCOL QUIC-7, QUIC-18 to QUIC-22, QUIC-24
    pub fn to_transport_config(&self) -> Arc<TransportConfig> {
        if let Some(transport) = &self.transport {
            return Arc::clone(transport);
        }
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.max_udp_payload);
        // What is too much for QUIC is as good as no limit.
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
            // What is too long for QUIC is as good as never.
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
            .field("idle_timeout", &self.idle_timeout)
            .field("linger", &self.linger)
            .field("max_udp_payload", &self.max_udp_payload)
            .field("migration", &self.migration)
            .finish_non_exhaustive()
    }
}

/// How much is sent at once over a path that may lose packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Congestion {
    /// What most of the Internet does (RFC 9438).
    #[default]
    Cubic,
    /// Its plain forerunner (RFC 9002).
    NewReno,
    /// Goes by measured bandwidth and not by loss: several times as fast where
    /// packets get lost for other reasons than congestion, at the price of
    /// more packets. Experimental in quinn.
    Bbr,
}
