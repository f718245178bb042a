//! The transports of this build, and a connector that uses them.

use daskwire_comm::runtime::{self, Instant};
#[cfg(feature = "tls")]
use daskwire_comm::tls::Tls;
use daskwire_comm::{Address, Comm, CommError, CommOptions, Traffic, Transports, Wrap};

/// The enabled transports that need no certificate: memory, TCP, Unix sockets.
pub fn transports() -> Transports {
    let transports = Transports::new();
    #[cfg(feature = "tcp")]
    let transports = transports.with(daskwire_tcp::Tcp::default());
    #[cfg(feature = "ws")]
    let transports = transports.with(daskwire_ws::Ws::new(daskwire_tcp::Tcp::default()));
    #[cfg(all(feature = "tcp", unix))]
    let transports = transports.with(daskwire_tcp::Unix);
    transports
}

/// Like [`transports`], with those that encrypt, using these certificates and
/// keys: TLS, QUIC with the feature `quic`, and WebSocket over TLS with the feature `ws`.
#[cfg(feature = "tls")]
pub fn transports_with_tls(tls: &Tls) -> Transports {
    let options = daskwire_tcp::TcpOptions::default().with_tls(tls.clone());
    let tcp = daskwire_tcp::Tcp::new(options);
    let transports = transports().with(tcp.clone());
    #[cfg(feature = "ws")]
    let transports = transports.with(daskwire_ws::Ws::new(tcp));
    #[cfg(feature = "quic")]
    let transports = transports.with(daskwire_quic::Quic::new(
        daskwire_quic::QuicOptions::default().with_tls(tls),
    ));
    transports
}

/// A connector with fixed transports and options.
#[derive(Debug)]
pub struct Connector {
    transports: Transports,
    options: CommOptions,
}

impl Connector {
    pub const fn new(transports: Transports, options: CommOptions) -> Self {
        Self {
            transports,
            options,
        }
    }

    /// Connects until `deadline`; the error is that of the last attempt.
    pub async fn connect(
        &self,
        address: &Address,
        traffic: Traffic,
        deadline: Option<Instant>,
    ) -> Result<Comm, CommError> {
        let options = self.options_until(deadline);
        let connecting = self.transports.connect_for(address, &options, traffic);
        connecting.await
    }

    /// Like [`connect`](Self::connect), over a connection that `wrap` returns.
    pub async fn connect_through(
        &self,
        address: &Address,
        deadline: Option<Instant>,
        wrap: &Wrap<'_>,
    ) -> Result<Comm, CommError> {
        let (options, traffic) = (self.options_until(deadline), Traffic::Normal);
        let connecting = self
            .transports
            .connect_through(address, &options, traffic, wrap);
        connecting.await
    }

    fn options_until(&self, deadline: Option<Instant>) -> CommOptions {
        let options = self.options.clone();
        match deadline {
            Some(deadline) => options.within(deadline.saturating_duration_since(runtime::now())),
            None => options,
        }
    }

    /// Waits until everything sent over connections shared by several comms has arrived.
    pub async fn close(&self) {
        self.transports.close().await;
    }
}
