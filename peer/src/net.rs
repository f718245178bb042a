//! The transports of this build, and a connector that uses them.

#[cfg(feature = "tls")]
use daskwire_comm::tls::Tls;
use daskwire_comm::{Address, Comm, CommError, CommOptions, RawConnection, Traffic, Transports};

/// The enabled transports that need no certificate: memory, TCP, Unix sockets.
pub fn transports() -> Transports {
    let transports = Transports::new();
    #[cfg(feature = "tcp")]
    let transports = transports.with(daskwire_tcp::Tcp::default());
    #[cfg(all(feature = "tcp", unix))]
    let transports = transports.with(daskwire_tcp::Unix);
    transports
}

/// Like [`transports`], with those that encrypt, using these certificates and
/// keys: TLS, and QUIC with the feature `quic`.
#[cfg(feature = "tls")]
pub fn transports_with_tls(tls: &Tls) -> Transports {
    let options = daskwire_tcp::TcpOptions::default().with_tls(tls.clone());
    let transports = transports().with(daskwire_tcp::Tcp::new(options));
    #[cfg(feature = "quic")]
    let transports = transports.with(daskwire_quic::Quic::new(daskwire_quic::QuicOptions {
        tls: tls.into(),
        ..daskwire_quic::QuicOptions::default()
    }));
    transports
}

/// A connector with fixed transports and options.
#[derive(Debug)]
pub(crate) struct Connector {
    transports: Transports,
    options: CommOptions,
}

impl Connector {
    pub(crate) const fn new(transports: Transports, options: CommOptions) -> Self {
        Self {
            transports,
            options,
        }
    }

    pub(crate) async fn connect(
        &self,
        address: &Address,
        traffic: Traffic,
    ) -> Result<Comm, CommError> {
        let connecting = self.transports.connect_for(address, &self.options, traffic);
        connecting.await
    }

    /// Connects without Dask's handshake.
    pub(crate) async fn connect_raw(&self, address: &Address) -> Result<RawConnection, CommError> {
        let connecting = self
            .transports
            .connect_raw(address, &self.options, Traffic::Normal);
        connecting.await
    }

    /// Waits until everything sent over connections shared by several comms has arrived.
    pub(crate) async fn close(&self) {
        self.transports.close().await;
    }
}
