//! The battery, for each transport of this package.

use daskwire_tcp::conformance::{Transport, battery};
use daskwire_tcp::{Address, CommReader, CommWriter, Listener, Options, connect};

/// Comms of one scheme, all from one listener.
struct Scheme {
    listener: Listener,
    address: Address,
    options: Options,
}

impl Scheme {
    async fn new(address: &str) -> Self {
        Self::with_options(address, Options::default()).await
    }

    async fn with_options(address: &str, options: Options) -> Self {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tcp_over_ipv4() {
    battery(&Scheme::new("tcp://127.0.0.1:0").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tcp_over_ipv6() {
    battery(&Scheme::new("tcp://[::1]:0").await).await;
}

#[cfg(feature = "ring")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tls() {
    // One certificate for all, which is its own authority.
    let pem = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/self-signed.pem");
    let pem = std::path::Path::new(pem);
    let tls = daskwire_tcp::tls::TlsSettings::new(pem, pem).build();
    let options = Options {
        tls: Some(tls.expect("a certificate and its key")),
        ..Options::default()
    };
    battery(&Scheme::with_options("tls://127.0.0.1:0", options).await).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unix_sockets() {
    let path = std::env::temp_dir().join(format!("daskwire-{}.sock", std::process::id()));
    battery(&Scheme::new(&format!("unix://{}", path.display())).await).await;
    assert!(!path.exists(), "the socket is left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn within_the_process() {
    battery(&Scheme::new("inproc://conformance").await).await;
}
