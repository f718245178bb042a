//! What several tests need.

#![allow(dead_code, reason = "each test file uses a part of it")]

use daskwire_comm::conformance::Transport;
use daskwire_comm::{
    Address, Comm, CommError, CommOptions, CommReader, CommWriter, Listener, Transports,
};
use daskwire_tcp::{Tcp, TcpOptions};

/// All transports of this package, with these settings.
pub(crate) fn transports(options: TcpOptions) -> Transports {
    let transports = Transports::new().with(Tcp::new(options));
    #[cfg(unix)]
    let transports = transports.with(daskwire_tcp::Unix);
    transports
}

pub(crate) async fn connect(address: &Address, options: &CommOptions) -> Result<Comm, CommError> {
    let transports = transports(TcpOptions::default());
    transports.connect(address, options).await
}

pub(crate) async fn bind(address: &Address, options: CommOptions) -> Result<Listener, CommError> {
    transports(TcpOptions::default())
        .bind(address, options)
        .await
}

/// Comms of one scheme, all from one listener.
pub(crate) struct Scheme {
    listener: Listener,
    address: Address,
    transports: Transports,
}

impl Scheme {
    pub(crate) async fn with_options(address: &str, options: TcpOptions) -> Self {
        // Two sockets for each of 2,000 comms, in four tests at once.
        rlimit::increase_nofile_limit(20_000).expect("20,000 open files");
        let transports = transports(options);
        let address = address.parse().expect("an address");
        let listener = transports.bind(&address, CommOptions::default()).await;
        let listener = listener.expect("it can be listened on");
        let address = listener.local_address().expect("it is bound");
        Self {
            listener,
            address,
            transports,
        }
    }
}

impl Transport for Scheme {
    type Reader = CommReader;
    type Writer = CommWriter;

    async fn pair(&self) -> [(CommReader, CommWriter); 2] {
        let far = async { self.listener.accept().await?.handshake().await };
        let options = CommOptions::default();
        let (near, far) = tokio::join!(self.transports.connect(&self.address, &options), far);
        [near, far].map(|comm| comm.expect("a comm").split())
    }

    fn comm_count(&self) -> usize {
        2000
    }
}

/// One certificate for all, which is its own authority.
#[cfg(feature = "ring")]
pub(crate) fn with_tls() -> TcpOptions {
    let pem = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../comm/tests/tls/self-signed.pem"
    );
    let pem = std::path::Path::new(pem);
    let tls = daskwire_comm::tls::TlsSettings::new(pem, pem).build();
    TcpOptions {
        tls: Some(tls.expect("a certificate and its key")),
    }
}
