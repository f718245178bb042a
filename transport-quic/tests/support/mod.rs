//! What several tests need.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::Path;

use daskwire_comm::conformance::Transport;
use daskwire_comm::tls::TlsSettings;
use daskwire_comm::{CommReader, CommWriter};
use daskwire_quic::{Address, CommOptions, Endpoint, QuicOptions, Tls};

/// Comms between two endpoints, on one connection.
pub(crate) struct Quic {
    pub(crate) near: Endpoint,
    far: Endpoint,
    address: Address,
}

impl Quic {
    pub(crate) async fn new(address: &str) -> Self {
        let tls = tls();
        let address = address.parse().expect("an address");
        let (options, quic) = (CommOptions::default(), QuicOptions::default());
        let far = Endpoint::bind(&address, &tls, options, quic.clone()).await;
        let far = far.expect("it can be listened on");
        let client = tls.client.expect("it has both sides");
        let near = Endpoint::client(client, quic).expect("a socket");
        let address = far.local_address().expect("it is bound");
        Self { near, far, address }
    }
}

impl Transport for Quic {
    type Reader = CommReader;
    type Writer = CommWriter;

    async fn pair(&self) -> [(CommReader, CommWriter); 2] {
        let options = CommOptions::default();
        let far = async { self.far.accept().await?.handshake().await };
        let (near, far) = tokio::join!(self.near.connect(&self.address, &options), far);
        [near, far].map(|comm| comm.expect("a comm").split())
    }

    fn comm_count(&self) -> usize {
        2000
    }
}

/// One certificate for all, which is its own authority.
pub(crate) fn tls() -> Tls {
    let pem = "../comm/tests/tls/self-signed.pem";
    let pem = Path::new(env!("CARGO_MANIFEST_DIR")).join(pem);
    let settings = TlsSettings::new(&*pem, &*pem);
    Tls::from(&settings.build().expect("a certificate and its key"))
}
