//! The transports of this build, and connecting by them.

#[cfg(feature = "tls")]
use daskwire_comm::tls::Tls;
use daskwire_comm::{Address, Comm, CommError, CommOptions, RawConnection, Traffic, Transports};

/// The transports that the features of this crate have and that need no
/// certificate: memory of this process, TCP, Unix sockets.
pub fn transports() -> Transports {
    let transports = Transports::new();
    #[cfg(feature = "tcp")]
    let transports = transports.with(daskwire_tcp::Tcp::default());
    #[cfg(all(feature = "tcp", unix))]
    let transports = transports.with(daskwire_tcp::Unix);
    transports
}

/// The same and those that encrypt, with these certificates and keys: TLS, and QUIC
/// where the feature `quic` is on.
#[cfg(feature = "tls")]
pub fn transports_with_tls(tls: &Tls) -> Transports {
    let options = daskwire_tcp::TcpOptions {
        tls: Some(tls.clone()),
    };
    let transports = transports().with(daskwire_tcp::Tcp::new(options));
    #[cfg(feature = "quic")]
    let transports = transports.with(daskwire_quic::Quic::new(daskwire_quic::QuicOptions {
        tls: tls.into(),
        ..daskwire_quic::QuicOptions::default()
    }));
    transports
}

/// Makes comms with the same options each time.
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

    /// Makes a connection without the handshake of Dask.
    pub(crate) async fn connect_raw(&self, address: &Address) -> Result<RawConnection, CommError> {
        let connecting = self
            .transports
            .connect_raw(address, &self.options, Traffic::Normal);
        connecting.await
    }

    /// Waits until everything has arrived that went over connections which several
    /// comms share.
    pub(crate) async fn close(&self) {
        self.transports.close().await;
    }
}
