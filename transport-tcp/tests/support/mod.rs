//! What several tests need.

use daskwire_comm::conformance::Transport;
use daskwire_comm::{Address, CommOptions, CommReader, CommWriter};
use daskwire_tcp::{Listener, connect};

/// Comms of one scheme, all from one listener.
pub(crate) struct Scheme {
    listener: Listener,
    address: Address,
    options: CommOptions,
}

impl Scheme {
    pub(crate) async fn with_options(address: &str, options: CommOptions) -> Self {
        // Two sockets for each of 2,000 comms, in four tests at once.
        rlimit::increase_nofile_limit(20_000).expect("20,000 open files");
        let address = address.parse().expect("an address");
        let listener = Listener::bind(&address, options.clone())
            .await
            .expect("it can be listened on");
        let address = listener.local_address().expect("it is bound");
        Self {
            listener,
            address,
            options,
        }
    }
}

impl Transport for Scheme {
    type Reader = CommReader;
    type Writer = CommWriter;

    async fn pair(&self) -> [(CommReader, CommWriter); 2] {
        let far = async { self.listener.accept().await?.handshake().await };
        let (near, far) = tokio::join!(connect(&self.address, &self.options), far);
        [near, far].map(|comm| comm.expect("a comm").split())
    }

    fn comm_count(&self) -> usize {
        2000
    }
}

/// One certificate for all, which is its own authority.
#[cfg(feature = "ring")]
pub(crate) fn with_tls() -> CommOptions {
    let pem = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../comm/tests/tls/self-signed.pem"
    );
    let pem = std::path::Path::new(pem);
    let tls = daskwire_comm::tls::TlsSettings::new(pem, pem).build();
    CommOptions {
        tls: Some(tls.expect("a certificate and its key")),
        ..CommOptions::default()
    }
}
