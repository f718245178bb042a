//! Helpers shared by several test files.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;

use daskwire_comm::conformance::{Pairs, Settings};
use daskwire_comm::tls::TlsSettings;
use daskwire_comm::{
    Address, Comm, CommError, CommOptions, CommReader, CommWriter, Incoming, Listener,
    RawConnection, Traffic,
};
use daskwire_quic::{Endpoint, QuicOptions, Tls};

/// An endpoint that may listen too.
#[derive(Debug)]
pub(crate) struct Node {
    endpoint: Arc<Endpoint>,
    listener: Listener,
}

impl Node {
    fn new(endpoint: Endpoint, options: CommOptions) -> Self {
        let endpoint = Arc::new(endpoint);
        let listener = Listener::new(Box::new(Arc::clone(&endpoint)), options);
        Self { endpoint, listener }
    }

    pub(crate) async fn bind(
        address: &Address,
        tls: &Tls,
        options: CommOptions,
        quic: QuicOptions,
    ) -> Result<Self, CommError> {
        let quic = quic
            .with_tls(tls.clone())
            .with_handshake_timeout(options.handshake_timeout);
        Ok(Self::new(Endpoint::bind(address, quic).await?, options))
    }

    pub(crate) fn client(tls: impl Into<Tls>, quic: QuicOptions) -> Result<Self, CommError> {
        let tls = tls.into();
        let endpoint = Endpoint::client(quic.with_tls(tls))?;
        Ok(Self::new(endpoint, CommOptions::default()))
    }

    pub(crate) async fn accept(&self) -> Result<Incoming, CommError> {
        self.listener.accept().await
    }

    pub(crate) async fn connect_for(
        &self,
        address: &Address,
        options: &CommOptions,
        traffic: Traffic,
    ) -> Result<Comm, CommError> {
        daskwire_comm::connect(&*self.endpoint, address, options, traffic).await
    }

    pub(crate) async fn connect_raw(
        &self,
        address: &Address,
        options: &CommOptions,
    ) -> Result<RawConnection, CommError> {
        daskwire_comm::connect_raw(&*self.endpoint, address, options, Traffic::Normal).await
    }
}

impl core::ops::Deref for Node {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Comms between two endpoints, on one connection.
pub(crate) struct Quic {
    pub(crate) near: Node,
    far: Node,
    address: Address,
}

impl Quic {
    pub(crate) async fn new(address: &str) -> Self {
        let tls = tls();
        let address = address.parse().expect("an address");
        let (options, quic) = (CommOptions::default(), QuicOptions::default());
        let far = Node::bind(&address, &tls, options, quic.clone()).await;
        let far = far.expect("it can be listened on");
        let client = tls.client.expect("it has both sides");
        let near = Node::client(client, quic).expect("a socket");
        let address = far.local_address().expect("it is bound");
        Self { near, far, address }
    }
}

impl Pairs for Quic {
    type Reader = CommReader;
    type Writer = CommWriter;

    async fn pair(&self) -> [(CommReader, CommWriter); 2] {
        let options = CommOptions::default();
        let far = async { self.far.accept().await?.handshake().await };
        let (near, far) = tokio::join!(self.near.connect(&self.address, &options), far);
        [near, far].map(|comm| comm.expect("a comm").split())
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.comm_count = 2000;
        settings
    }
}

/// Settings with one self-signed certificate for all, which is also the authority.
pub(crate) fn tls() -> Tls {
    let pem = daskwire_testing::certificate("self-signed.pem");
    let settings = TlsSettings::new(&*pem, &*pem);
    Tls::from(&settings.build().expect("a certificate and its key"))
}
