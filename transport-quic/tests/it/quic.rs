//! Comms over QUIC, on the loopback interface.
#![allow(clippy::unwrap_used, clippy::std_instead_of_alloc)]

use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::io;
use std::path::Path;
use std::sync::Arc;

use daskwire::Limits;
use daskwire_comm::tls::TlsSettings;
use daskwire_comm::{Address, Closed, Comm, CommError, CommOptions, Traffic, Transport};
use daskwire_quic::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use daskwire_quic::rustls::server::WebPkiClientVerifier;
use daskwire_quic::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto, version};
use daskwire_quic::{ALPN, Congestion, Quic, QuicOptions, Tls};
use daskwire_testing::cluster::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use crate::support::Node;

/// An authority, and one certificate that it has signed.
struct Authority {
    roots: Arc<RootCertStore>,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Authority {
    fn new() -> Self {
        Self::of(&["localhost", "127.0.0.1"])
    }

    /// Creates an authority and a certificate for these names.
    fn of(names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let own = rcgen::generate_simple_self_signed(names).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(own.cert.der().clone()).unwrap();
        Self {
            roots: Arc::new(roots),
            certificate: own.cert.der().clone(),
            key: own.signing_key.serialize_der().try_into().unwrap(),
        }
    }

    fn client(&self, with_certificate: bool) -> ClientConfig {
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_root_certificates(Arc::clone(&self.roots));
        if with_certificate {
            let chain = vec![self.certificate.clone()];
            config
                .with_client_auth_cert(chain, self.key.clone_key())
                .unwrap()
        } else {
            config.with_no_client_auth()
        }
    }

    fn server(&self, ask: bool) -> ServerConfig {
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .unwrap();
        let config = if ask {
            let roots = Arc::clone(&self.roots);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            config.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            config.with_no_client_auth()
        };
        let chain = vec![self.certificate.clone()];
        config
            .with_single_cert(chain, self.key.clone_key())
            .unwrap()
    }

    fn tls(&self) -> Tls {
        Tls::default()
            .with_client(Arc::new(self.client(true)))
            .with_server(Arc::new(self.server(true)))
    }
}

fn quick() -> QuicOptions {
    QuicOptions::default().with_linger(Duration::from_millis(100))
}

fn once() -> CommOptions {
    CommOptions::default()
        .with_connect_retry(false)
        .with_connect_timeout(Duration::from_secs(5))
        .with_handshake_timeout(Duration::from_secs(5))
}

async fn bind(tls: &Tls, options: CommOptions, quic: QuicOptions) -> (Node, Address) {
    let address = "quic://127.0.0.1:0".parse().unwrap();
    let endpoint = Node::bind(&address, tls, options, quic).await.unwrap();
    let address = endpoint.local_address().unwrap();
    (endpoint, address)
}

/// Two endpoints, and the address of the second.
async fn endpoints(quic: QuicOptions) -> (Node, Node, Address) {
    endpoints_with(&Authority::new().tls(), quic).await
}

async fn endpoints_with(tls: &Tls, quic: QuicOptions) -> (Node, Node, Address) {
    let (ours, _) = bind(tls, CommOptions::default(), quic.clone()).await;
    let (theirs, address) = bind(tls, CommOptions::default(), quic).await;
    (ours, theirs, address)
}

async fn comm(ours: &Node, theirs: &Node, address: &Address) -> (Comm, Comm) {
    let options = CommOptions::default();
    let (ours, theirs) = tokio::join!(ours.connect(address, &options), async {
        theirs.accept().await?.handshake().await
    });
    (ours.unwrap(), theirs.unwrap())
}

fn serve_echo(endpoint: Node) -> Arc<Node> {
    let endpoint = Arc::new(endpoint);
    let accepting = Arc::clone(&endpoint);
    tokio::spawn(async move {
        while let Ok(incoming) = accepting.accept().await {
            tokio::spawn(async move {
                let mut comm = incoming.handshake().await?;
                while let Some(frames) = comm.read_message().await? {
                    comm.write_message(&frames).await?;
                }
                comm.close().await
            });
        }
    });
    endpoint
}

fn pattern(len: usize) -> Vec<u8> {
    let bytes = (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8);
    bytes.collect()
}

// Messages.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn echo_of_all_sizes() {
    for congestion in [Congestion::Cubic, Congestion::Bbr] {
        let (ours, theirs, address) = endpoints(quick().with_congestion(congestion)).await;
        let theirs = serve_echo(theirs);
        let comm = ours
            .connect(&address, &CommOptions::default())
            .await
            .unwrap();
        assert_eq!(comm.peer_address(), &address);
        let (mut reader, mut writer) = comm.split();
        for len in [0, 1, 1_000, 16 << 10, 64 << 10, (1 << 20) + 1] {
            let bytes = pattern(len);
            let sent = [&bytes[..], b"", b"x"];
            let (wrote, read) = tokio::join!(writer.write_message(&sent), reader.read_message());
            wrote.unwrap();
            assert_eq!(read.unwrap().unwrap().as_slices(), sent);
        }
        writer.close().await.unwrap();
        writer.close().await.unwrap();
        assert!(reader.read_message().await.unwrap().is_none());
        assert!(reader.read_message().await.unwrap().is_none());
        let error = writer.write_message(&[b"late"]).await.unwrap_err();
        assert!(
            matches!(error, CommError::Closed(Closed::Locally)),
            "{error}"
        );
        drop((reader, writer));
        ours.close().await;
        theirs.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_larger_than_every_window() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let (mut ours, mut theirs) = comm(&ours, &theirs, &address).await;
    let bytes = pattern(100 << 20);
    let expected = bytes.clone();
    let reading = tokio::spawn(async move {
        let frames = theirs.read_message().await.unwrap().unwrap();
        assert!(frames[0] == expected[..], "other bytes arrived");
    });
    ours.write_message(&[&bytes[..]]).await.unwrap();
    reading.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_comms_on_one_connection() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let theirs = serve_echo(theirs);
    let ours = Arc::new(ours);
    let options = CommOptions::default();
    let mut tasks = tokio::task::JoinSet::new();
    // Concurrent comms share one attempt to connect.
    for _ in 0..2_000 {
        let (ours, address, options) = (Arc::clone(&ours), address.clone(), options.clone());
        tasks.spawn(async move { ours.connect(&address, &options).await.unwrap() });
    }
    let mut comms = tasks.join_all().await;
    assert_eq!(ours.connection_count(), 1);
    assert_eq!(theirs.connection_count(), 1);
    for (number, comm) in comms.iter_mut().enumerate() {
        comm.write_message(&[number.to_be_bytes()]).await.unwrap();
    }
    for (number, comm) in comms.iter_mut().enumerate() {
        let answer = comm.read_message().await.unwrap().unwrap();
        assert_eq!(answer[0][..], number.to_be_bytes());
    }
    drop(comms);
    until("the last comm closes the connection", || {
        ours.connection_count() == 0 && theirs.connection_count() == 0
    })
    .await;
}

#[tokio::test]
async fn comms_share_a_connection() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let theirs = serve_echo(theirs);
    let mut last = None;
    for _ in 0..100 {
        let mut comm = ours
            .connect(&address, &CommOptions::default())
            .await
            .unwrap();
        comm.write_message(&[b"ping"]).await.unwrap();
        comm.read_message().await.unwrap().unwrap();
        comm.close().await.unwrap();
        // The port at this end is that of the socket; another connection
        // would be counted.
        assert_eq!(theirs.connection_count(), 1);
        last = Some(comm);
    }
    drop(last);
    until("the connection is closed", || {
        theirs.connection_count() == 0
    })
    .await;
    // Another connection can follow.
    ours.connect(&address, &CommOptions::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn comms_beyond_the_limit_wait() {
    let tls = Authority::new().tls();
    let (ours, _) = bind(&tls, CommOptions::default(), quick()).await;
    let few = quick().with_max_comms(2);
    let (theirs, address) = bind(&tls, CommOptions::default(), few).await;
    let theirs = serve_echo(theirs);
    let first = ours
        .connect(&address, &CommOptions::default())
        .await
        .unwrap();
    let _second = ours
        .connect(&address, &CommOptions::default())
        .await
        .unwrap();
    let short = CommOptions::default().with_connect_timeout(Duration::from_millis(200));
    let error = ours.connect(&address, &short).await.unwrap_err();
    assert!(matches!(error, CommError::Timeout { .. }), "{error}");
    drop(first);
    ours.connect(&address, &CommOptions::default())
        .await
        .unwrap();
    assert_eq!(theirs.connection_count(), 1);
}

/// Comms with full windows do not block others.
#[tokio::test]
async fn unread_comms_do_not_block_others() {
    const WINDOW: u32 = 64 << 10;
    let quic = quick().with_max_comms(100).with_stream_window(WINDOW);
    let (ours, theirs, address) = endpoints(quic).await;
    let mut unread = Vec::new();
    for _ in 0..99 {
        let (mut near, far) = comm(&ours, &theirs, &address).await;
        let sending = tokio::spawn(async move {
            let outcome = near.write_message(&[&[7; 4 * WINDOW as usize]]).await;
            outcome.map(|()| near)
        });
        unread.push((sending, far));
    }
    let (mut near, mut far) = comm(&ours, &theirs, &address).await;
    for number in 0..20 {
        let large = vec![number; 2 * WINDOW as usize];
        let frames = [&large];
        let (sent, received) = tokio::join!(near.write_message(&frames), far.read_message());
        sent.unwrap();
        assert_eq!(received.unwrap().unwrap()[0][..], large[..]);
    }
    // Their windows were full, and their data arrives later.
    for (sending, mut far) in unread {
        assert!(!sending.is_finished());
        assert_eq!(far.read_message().await.unwrap().unwrap().len(), 1);
        sending.await.unwrap().unwrap();
    }
}

/// The opener may forward for a peer that reads before it writes.
// PROTOCOL QUIC-8
#[tokio::test]
async fn the_acceptor_may_be_the_first_to_write() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let options = CommOptions::default();
    let near = async {
        let mut near = ours.connect_raw(&address, &options).await?;
        let mut received = [0; 5];
        near.reader.read_exact(&mut received).await.unwrap();
        near.writer.write_all(b"after").await.unwrap();
        near.writer.shutdown().await.unwrap();
        Ok::<_, CommError>((received, near))
    };
    let far = async {
        let mut far = theirs.accept().await?.open().await?;
        far.writer.write_all(b"first").await.unwrap();
        far.writer.flush().await.unwrap();
        let mut received = Vec::new();
        far.reader.read_to_end(&mut received).await.unwrap();
        Ok::<_, CommError>((received, far))
    };
    let (near, far) = tokio::join!(near, far);
    assert_eq!(near.unwrap().0, *b"first");
    assert_eq!(far.unwrap().0, b"after");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_goes_ahead_of_bulk() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let options = CommOptions::default();
    let (bulk, mut their_bulk) = {
        let connecting = ours.connect_for(&address, &options, Traffic::Bulk);
        let accepting = async { theirs.accept().await.unwrap().handshake().await };
        let (a, b) = tokio::join!(connecting, accepting);
        (a.unwrap(), b.unwrap())
    };
    let (mut control, mut their_control) = {
        let connecting = ours.connect_for(&address, &options, Traffic::Control);
        let accepting = async { theirs.accept().await.unwrap().handshake().await };
        let (a, b) = tokio::join!(connecting, accepting);
        (a.unwrap(), b.unwrap())
    };
    let (_reader, mut writer) = bulk.split();
    let writing = tokio::spawn(async move {
        let bytes = vec![7; 64 << 20];
        writer.write_message(&[&bytes[..]]).await.unwrap();
        writer.close().await.unwrap();
    });
    let reading = tokio::spawn(async move {
        their_bulk.read_message().await.unwrap().unwrap();
    });
    // While the bulk data is being sent, control messages arrive.
    for _ in 0..5 {
        control.write_message(&[b"beat"]).await.unwrap();
        their_control.read_message().await.unwrap().unwrap();
    }
    assert!(
        !reading.is_finished(),
        "all of the bulk came before five beats"
    );
    writing.await.unwrap();
    reading.await.unwrap();
}

// Cancelling.

#[tokio::test]
async fn cancelled_reads_lose_nothing() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let (ours, mut theirs) = comm(&ours, &theirs, &address).await;
    let (_reader, mut writer) = ours.split();
    let writing = tokio::spawn(async move {
        for number in 0..50_u32 {
            let frames = [number.to_be_bytes().to_vec(), pattern(100_000)];
            writer.write_message(&frames).await.unwrap();
        }
        writer.close().await.unwrap();
    });
    let mut polls = 0;
    for number in 0..50_u32 {
        let frames = loop {
            polls += 1;
            let read = timeout(Duration::from_micros(50), theirs.read_message());
            if let Ok(outcome) = read.await {
                break outcome.unwrap().unwrap();
            }
        };
        assert_eq!(frames[0][..], number.to_be_bytes());
        assert!(frames[1] == pattern(100_000)[..]);
    }
    assert!(polls > 50, "no read was cancelled");
    assert!(theirs.read_message().await.unwrap().is_none());
    writing.await.unwrap();
}

#[tokio::test]
async fn cancelled_writes_end_the_comm() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let (mut ours, mut theirs) = comm(&ours, &theirs, &address).await;
    {
        let bytes = vec![7; 64 << 20];
        let frames = [&bytes[..]];
        let writing = pin!(ours.write_message(&frames));
        // More than the windows hold, so it cannot have been sent.
        let polled = writing.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending));
    }
    let error = ours.write_message(&[b"next"]).await.unwrap_err();
    assert!(
        matches!(error, CommError::Closed(Closed::WriteCancelled)),
        "{error}"
    );
    let reading = tokio::spawn(async move { theirs.read_message().await });
    ours.close().await.unwrap();
    let error = reading.await.unwrap().unwrap_err();
    assert!(
        matches!(error, CommError::Closed(Closed::WithinMessage(_))),
        "{error}"
    );
}

// Closing.

/// Both sides write, close, drop and close their endpoints, in every order that
/// the executor chooses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_loses_nothing() {
    const MESSAGES: u32 = 40;
    let tls = Authority::new().tls();
    for round in 0..60 {
        let quic = QuicOptions::default().with_linger(Duration::from_millis(round % 3));
        let (ours, _) = bind(&tls, CommOptions::default(), quic.clone()).await;
        let (theirs, address) = bind(&tls, CommOptions::default(), quic).await;
        let (our_comm, their_comm) = comm(&ours, &theirs, &address).await;
        let side = |comm: Comm, endpoint: Node, reads_first: bool| async move {
            let (mut reader, mut writer) = comm.split();
            let write = async {
                for number in 0..MESSAGES {
                    let frames = [number.to_be_bytes().to_vec(), pattern(2_000)];
                    writer.write_message(&frames).await.unwrap();
                }
                writer.close().await.unwrap();
                drop(writer);
            };
            let read = async {
                for number in 0..MESSAGES {
                    let frames = reader.read_message().await.unwrap().unwrap();
                    assert_eq!(frames[0][..], number.to_be_bytes());
                }
                assert!(reader.read_message().await.unwrap().is_none());
                drop(reader);
            };
            if reads_first {
                read.await;
                write.await;
            } else {
                write.await;
                read.await;
            }
            endpoint.close().await;
        };
        let ours = tokio::spawn(side(our_comm, ours, round % 4 == 1));
        let theirs = tokio::spawn(side(their_comm, theirs, round % 4 == 2));
        timeout(Duration::from_secs(20), ours)
            .await
            .unwrap()
            .unwrap();
        timeout(Duration::from_secs(20), theirs)
            .await
            .unwrap()
            .unwrap();
    }
}

/// One side closes before the end of the other one has arrived, as requests end.
/// No data is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_comm_closed_and_dropped_lets_the_peer_close() {
    let (ours, theirs, address) = endpoints(quick()).await;
    for _ in 0..50 {
        let (mut ours, mut theirs) = comm(&ours, &theirs, &address).await;
        ours.write_message(&[b"request"]).await.unwrap();
        let theirs = tokio::spawn(async move {
            theirs.read_message().await.unwrap().unwrap();
            theirs.write_message(&[b"reply"]).await.unwrap();
            assert!(theirs.read_message().await.unwrap().is_none());
            tokio::time::sleep(Duration::from_millis(5)).await;
            theirs.close().await.unwrap();
        });
        ours.read_message().await.unwrap().unwrap();
        ours.close().await.unwrap();
        drop(ours);
        theirs.await.unwrap();
    }
    assert_eq!(theirs.connection_count(), 1);
}

#[tokio::test]
async fn closing_waits_for_acknowledgements() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let (mut ours, theirs) = comm(&ours, &theirs, &address).await;
    // More than one window.
    let (mut their_reader, _their_writer) = theirs.split();
    let written = tokio::spawn(async move {
        let bytes = vec![7; 20 << 20];
        ours.write_message(&[&bytes[..]]).await.unwrap();
        ours.close().await.unwrap();
        Instant::now()
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!written.is_finished(), "closed before the peer has it");
    let frames = their_reader.read_message().await.unwrap().unwrap();
    assert_eq!(frames[0].len(), 20 << 20);
    timeout(Duration::from_secs(5), written)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_dropped_comm_is_closed_by_an_error() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let (first, mut their_first) = comm(&ours, &theirs, &address).await;
    let (mut second, mut their_second) = comm(&ours, &theirs, &address).await;
    drop(first);
    let error = their_first.read_message().await.unwrap_err();
    assert!(error.is_closed(), "{error}");
    let error = loop {
        match their_first.write_message(&[b"more"]).await {
            Ok(()) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert!(error.is_closed(), "{error}");
    // The others continue.
    second.write_message(&[b"ping"]).await.unwrap();
    assert!(their_second.read_message().await.unwrap().is_some());
}

/// Tests PROTOCOL QUIC-10, QUIC-12, QUIC-14, QUIC-15 against quinn alone.
#[tokio::test]
async fn connections_close_with_the_right_code() {
    let authority = Authority::new();
    let mut tls = authority.server(true);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let raw = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = Address::new("quic", raw.local_addr().unwrap());
    let ours = Node::client(Arc::new(authority.client(true)), quick()).unwrap();
    for (is_closed, code) in [(true, 1_u32), (false, 2)] {
        let accepting = async {
            let connection = raw.accept().await.unwrap().await.unwrap();
            let (mut send, mut receive) = connection.accept_bi().await.unwrap();
            // The peer's own handshake is sent back as ours.
            let handshake = receive.read_chunk(1_000, true).await.unwrap().unwrap();
            send.write_all(&handshake.bytes).await.unwrap();
            (connection, send, receive)
        };
        let options = CommOptions::default();
        let (comm, theirs) = tokio::join!(ours.connect(&address, &options), accepting);
        let (mut comm, (connection, mut send, mut receive)) = (comm.unwrap(), theirs);
        if is_closed {
            comm.close().await.unwrap();
            drop(comm);
            receive.read_to_end(0).await.unwrap();
            // QUIC receives this data although it is not read.
            send.write_all(b"late").await.unwrap();
            send.finish().unwrap();
        } else {
            drop(comm);
            let error = receive.read_to_end(0).await.unwrap_err();
            assert!(error.to_string().contains("error 2"), "{error}");
            assert_eq!(send.stopped().await.unwrap(), Some(2_u32.into()));
        }
        match timeout(Duration::from_secs(5), connection.closed())
            .await
            .unwrap()
        {
            quinn::ConnectionError::ApplicationClosed(close) => {
                assert_eq!(close.error_code, code.into());
            }
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn closing_a_comm_that_the_peer_has_dropped_fails() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let (mut ours, theirs) = comm(&ours, &theirs, &address).await;
    ours.write_message(&[b"unread"]).await.unwrap();
    drop(theirs);
    let _ = ours.read_message().await.unwrap_err();
    let error = ours.close().await.unwrap_err();
    assert!(error.is_closed(), "{error}");
}

/// The test of the same name for TCP explains the expectations.
#[tokio::test]
async fn an_empty_host_is_every_interface() {
    let tls = Authority::of(&["127.0.0.1", "::1"]).tls();
    let any = "quic://:0".parse().unwrap();
    let (options, quic) = (CommOptions::default(), QuicOptions::default());
    let theirs = Node::bind(&any, &tls, options.clone(), quic.clone()).await;
    let theirs = theirs.unwrap();
    let address = theirs.local_address().unwrap();
    assert_eq!(address.host(), "0.0.0.0");
    let mut hosts = vec!["127.0.0.1"];
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        hosts.push("::1");
    }
    for host in &hosts {
        let ours = Node::client(tls.clone(), quic.clone()).unwrap();
        let contact = address.contact(host);
        let (near, far) = comm(&ours, &theirs, &contact).await;
        assert_eq!(near.peer_address(), &contact);
        assert_eq!(near.local_address().port(), far.peer_address().port());
        assert_eq!(far.local_address(), &contact);
    }
    // The port is in use for both families.
    for host in ["", "0.0.0.0", "[::]"] {
        if host == "[::]" && hosts.len() == 1 {
            continue;
        }
        let address = format!("quic://{host}:{}", address.port());
        let address = address.parse().unwrap();
        let again = Node::bind(&address, &tls, options.clone(), quic.clone());
        assert!(matches!(again.await, Err(CommError::Bind { .. })), "{host}");
    }
}

// Peers that end.

/// A peer that vanishes without closing: its runtime is dropped.
struct Vanishing {
    runtime: tokio::runtime::Runtime,
    node: Arc<Node>,
    address: Address,
}

impl Vanishing {
    /// A peer that echoes.
    fn new(tls: &Tls, quic: QuicOptions) -> Self {
        let runtime = runtime();
        let (node, address) = runtime.block_on(async {
            let (node, address) = bind(tls, CommOptions::default(), quic).await;
            (serve_echo(node), address)
        });
        Self {
            runtime,
            node,
            address,
        }
    }

    fn vanish(self) {
        // A stopped runtime sends no more packets; its socket is dropped last.
        let runtime = self.runtime;
        let stopped = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(10)));
        stopped.join().unwrap();
        drop(self.node);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

async fn ping(comm: &mut Comm) {
    comm.write_message(&[b"ping"]).await.unwrap();
    comm.read_message().await.unwrap().unwrap();
}

#[test]
fn a_peer_that_vanishes_is_noticed() {
    let quic = quick()
        .with_idle_timeout(Duration::from_millis(600))
        .with_keep_alive(Duration::from_millis(200));
    let tls = Authority::new().tls();
    let theirs = Vanishing::new(&tls, quic.clone());
    let address = theirs.address.clone();
    runtime().block_on(async {
        let (ours, _) = bind(&tls, CommOptions::default(), quic.clone()).await;
        let mut comm = ours
            .connect(&address, &CommOptions::default())
            .await
            .unwrap();
        // The connection is idle for longer than the timeout, and kept alive.
        let idle = timeout(Duration::from_millis(1_500), comm.read_message());
        assert!(
            idle.await.is_err(),
            "the comm ended while the peer was there"
        );

        theirs.vanish();
        let start = Instant::now();
        let error = timeout(Duration::from_secs(10), comm.read_message()).await;
        let error = error.unwrap().unwrap_err();
        assert!(error.is_closed(), "{error}");
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "{:?}",
            start.elapsed()
        );
        let error = comm.write_message(&[b"x"]).await.unwrap_err();
        assert!(error.is_closed(), "{error}");
        let error = comm.close().await.unwrap_err();
        assert!(error.is_closed(), "{error}");
        drop(comm);

        // Another endpoint at the same address: the dead connection is replaced.
        let theirs = Node::bind(&address, &tls, CommOptions::default(), quic).await;
        let _theirs = serve_echo(theirs.unwrap());
        let mut comm = ours
            .connect(&address, &CommOptions::default())
            .await
            .unwrap();
        ping(&mut comm).await;
    });
}

/// A comm to a peer that was killed and started again, while the connection with its
/// predecessor is within the idle timeout.
// PROTOCOL QUIC-4
#[test]
fn a_peer_that_was_started_again_is_reached() {
    let tls = Authority::new().tls();
    let theirs = Vanishing::new(&tls, QuicOptions::default());
    let address = theirs.address.clone();
    runtime().block_on(async {
        let (ours, _) = bind(&tls, CommOptions::default(), QuicOptions::default()).await;
        let mut before = ours.connect(&address, &once()).await.unwrap();
        ping(&mut before).await;
        theirs.vanish();
        let quic = QuicOptions::default();
        let theirs = Node::bind(&address, &tls, CommOptions::default(), quic).await;
        let _theirs = serve_echo(theirs.unwrap());
        // Two concurrent comms and a later one: all use the new connection.
        let options = once();
        let both = tokio::join!(
            ours.connect(&address, &options),
            ours.connect(&address, &options)
        );
        for comm in [both.0, both.1, ours.connect(&address, &options).await] {
            ping(&mut comm.unwrap()).await;
        }
        assert_eq!(ours.connection_count(), 2);
    });
}

/// A comm that its peer does not accept for a while stays on the connection of others.
// PROTOCOL QUIC-4
#[tokio::test]
async fn a_busy_peer_keeps_its_connection() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let first = comm(&ours, &theirs, &address).await;
    let raw = ours.connect_raw(&address, &once()).await.unwrap();
    assert_eq!(ours.connection_count(), 1);
    drop((first, raw));
}

#[tokio::test]
async fn an_endpoint_that_closes_takes_its_comms_along() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let (_our_comm, mut their_comm) = comm(&ours, &theirs, &address).await;
    ours.close().await;
    let start = Instant::now();
    let error = their_comm.read_message().await.unwrap_err();
    assert!(error.is_closed(), "{error}");
    assert!(start.elapsed() < Duration::from_secs(2));
    let error = ours.accept().await.unwrap_err();
    assert!(error.is_closed(), "{error}");
}

#[tokio::test]
async fn dropped_listeners_refuse_comms() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let (mut our_comm, mut their_comm) = comm(&ours, &theirs, &address).await;
    drop(theirs);
    let start = Instant::now();
    let error = ours.connect(&address, &once()).await.unwrap_err();
    assert!(matches!(error, CommError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("accepts no comms"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(2));
    // Existing comms are unaffected.
    our_comm.write_message(&[b"ping"]).await.unwrap();
    assert!(their_comm.read_message().await.unwrap().is_some());
}

#[tokio::test]
async fn endpoints_that_close_refuse_comms() {
    let (ours, theirs, address) = endpoints(quick()).await;
    let (our_comm, mut their_comm) = comm(&ours, &theirs, &address).await;
    // The endpoint waits for the end of a comm that only its own side has closed.
    their_comm.close().await.unwrap();
    drop(their_comm);
    let closing = tokio::spawn(async move { theirs.close().await });
    tokio::task::yield_now().await;
    let error = ours.connect(&address, &once()).await.unwrap_err();
    assert!(error.to_string().contains("accepts no comms"), "{error}");
    drop(our_comm);
    closing.await.unwrap();
}

/// Programs that forward bytes, such as a relay, do no handshake that could fail on a
/// stream of a reused connection.
// PROTOCOL QUIC-4, QUIC-13
#[tokio::test]
async fn refused_comms_without_a_handshake_are_not_returned() {
    let tls = Authority::new().tls();
    let (ours, theirs, address) = endpoints_with(&tls, quick()).await;
    let (our_comm, mut their_comm) = comm(&ours, &theirs, &address).await;
    their_comm.close().await.unwrap();
    drop(their_comm);
    let closing = tokio::spawn(async move { theirs.close().await });
    tokio::task::yield_now().await;
    let error = ours.connect_raw(&address, &once()).await.unwrap_err();
    assert!(error.to_string().contains("accepts no comms"), "{error}");

    // With retries, the next listener at the address is reached.
    let listening = async {
        drop(our_comm);
        closing.await.unwrap();
        let theirs = loop {
            match Node::bind(&address, &tls, CommOptions::default(), quick()).await {
                Ok(endpoint) => break endpoint,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let mut raw = theirs.accept().await.unwrap().open().await.unwrap();
        raw.writer.write_all(b"hello").await.unwrap();
        (theirs, raw)
    };
    let connecting = async {
        let options = CommOptions::default();
        ours.connect_raw(&address, &options).await.unwrap()
    };
    let (mut raw, _far) = tokio::join!(connecting, listening);
    let mut hello = [0; 5];
    raw.reader.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello");
}

/// A connection that ends while a comm is opened on it.
// PROTOCOL QUIC-4
#[tokio::test]
async fn a_connection_that_ends_meanwhile_is_replaced() {
    let authority = Authority::new();
    let server = quinn::crypto::rustls::QuicServerConfig::try_from({
        let mut server = authority.server(true);
        server.alpn_protocols = vec![ALPN.to_vec()];
        server
    });
    let server = quinn::ServerConfig::with_crypto(Arc::new(server.unwrap()));
    let theirs = quinn::Endpoint::server(server, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = Address::new("quic", theirs.local_addr().unwrap());
    let accepting = async {
        let first = theirs.accept().await.unwrap().await.unwrap();
        let _kept = first.accept_bi().await.unwrap();
        let _second = first.accept_bi().await.unwrap();
        first.close(2_u32.into(), b"");
        let second = theirs.accept().await.unwrap().await.unwrap();
        let (mut send, receive) = second.accept_bi().await.unwrap();
        send.write_all(b"hello").await.unwrap();
        (second, send, receive)
    };
    let connecting = async {
        let ours = Node::client(authority.tls(), quick()).unwrap();
        let first = ours.connect_raw(&address, &once()).await.unwrap();
        let mut second = ours.connect_raw(&address, &once()).await.unwrap();
        let mut hello = [0; 5];
        second.reader.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        drop(first);
    };
    tokio::join!(accepting, connecting);
}

#[tokio::test]
async fn connecting_waits_for_a_late_listener() {
    let tls = Authority::new().tls();
    let (ours, _) = bind(&tls, CommOptions::default(), quick()).await;
    let (placeholder, address) = bind(&tls, CommOptions::default(), quick()).await;
    placeholder.close().await;
    drop(placeholder);
    let listening = async {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let theirs = loop {
            let options = CommOptions::default();
            match Node::bind(&address, &tls, options, quick()).await {
                Ok(endpoint) => break endpoint,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        serve_echo(theirs)
    };
    let options = CommOptions::default().with_connect_timeout(Duration::from_secs(10));
    let (comm, _theirs) = tokio::join!(ours.connect(&address, &options), listening);
    comm.unwrap();
}

#[tokio::test]
async fn connecting_to_a_silent_address_times_out() {
    let tls = Authority::new().tls();
    let (ours, _) = bind(&tls, CommOptions::default(), quick()).await;
    // A socket that is not read.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let address = format!("quic://127.0.0.1:{port}").parse().unwrap();
    let options = CommOptions::default().with_connect_timeout(Duration::from_millis(500));
    let start = Instant::now();
    let error = ours.connect(&address, &options).await.unwrap_err();
    assert!(matches!(error, CommError::Timeout { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(2));
    for text in ["tcp://127.0.0.1:1", "tls://127.0.0.1:1"] {
        let error = ours
            .connect(&text.parse().unwrap(), &options)
            .await
            .unwrap_err();
        assert!(matches!(error, CommError::Scheme { .. }), "{error}");
    }
}

// Accepted peers.

#[tokio::test]
async fn invalid_client_certificates_are_refused() {
    let authority = Authority::new();
    let (theirs, address) = bind(&authority.tls(), CommOptions::default(), quick()).await;
    for (client, says) in [
        (authority.client(false), "certificate_required"),
        // A certificate of another authority; the client trusts ours, so that it
        // accepts the server.
        (
            {
                let stranger = Authority::new();
                let mut config = authority.client(true);
                config.client_auth_cert_resolver = stranger.client(true).client_auth_cert_resolver;
                config
            },
            "alert",
        ),
    ] {
        let ours = Node::client(Arc::new(client), quick()).unwrap();
        // With retries, but this error is not temporary.
        let start = Instant::now();
        let error = ours
            .connect(&address, &CommOptions::default())
            .await
            .unwrap_err();
        assert!(matches!(error, CommError::Connect { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.kind(), daskwire_comm::ErrorKind::Refused, "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
        // The listener reports the peer and the error.
        let incoming = theirs.accept().await.unwrap();
        let port = ours.local_address().unwrap().port();
        assert_eq!(incoming.peer_address().host(), "127.0.0.1");
        assert_eq!(incoming.peer_address().port(), port);
        let error = incoming.handshake().await.unwrap_err();
        let says = "the cryptographic handshake failed";
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.kind(), daskwire_comm::ErrorKind::Refused, "{error}");
    }
    // The listener still works.
    let ours = Node::client(Arc::new(authority.client(true)), quick()).unwrap();
    comm(&ours, &theirs, &address).await;
}

/// A peer that begins a handshake and vanishes.
#[tokio::test]
async fn unfinished_handshakes_are_reported() {
    let authority = Authority::new();
    let hasty = CommOptions::default().with_handshake_timeout(Duration::from_millis(200));
    let (theirs, address) = bind(&authority.tls(), hasty, quick()).await;
    // Forwards the first packet, and no answer.
    let between = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let from = between.local_addr().unwrap();
    let client = raw_client(authority.client(true), ALPN);
    let _connecting = client.connect(from, "localhost").unwrap();
    let mut packet = [0; 2048];
    let len = between.recv(&mut packet).await.unwrap();
    between
        .send_to(&packet[..len], socket(&address))
        .await
        .unwrap();
    let incoming = theirs.accept().await.unwrap();
    assert_eq!(incoming.peer_address(), &Address::new("quic", from));
    let error = incoming.handshake().await.unwrap_err();
    assert!(matches!(error, CommError::Timeout { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_trusted_is_refused() {
    let authority = Authority::new();
    let (_theirs, address) = bind(&authority.tls(), CommOptions::default(), quick()).await;
    let ours = Node::client(Arc::new(Authority::new().client(true)), quick()).unwrap();
    let error = ours
        .connect(&address, &CommOptions::default())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("invalid peer certificate"),
        "{error}"
    );
    assert!(!error.is_closed());
    assert_eq!(error.kind(), daskwire_comm::ErrorKind::Refused, "{error}");
    assert!(!error.is_retryable());
}

/// A name that is set for comms over TLS applies over QUIC too.
#[tokio::test]
async fn the_server_name_can_be_set() {
    let authority = Authority::of(&["scheduler.example"]);
    let (_theirs, address) = bind(&authority.tls(), CommOptions::default(), quick()).await;
    let over_tls = daskwire_comm::tls::Tls::from_configs(
        Arc::new(authority.client(true)),
        Arc::new(authority.server(true)),
    );
    let ours = Node::client(&over_tls, quick()).unwrap();
    let error = ours.connect_raw(&address, &once()).await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("not valid for name"), "{error}");

    let name = "scheduler.example".try_into().unwrap();
    let over_tls = over_tls.with_server_name(name);
    let ours = Node::client(&over_tls, quick()).unwrap();
    ours.connect_raw(&address, &once()).await.unwrap();
}

#[tokio::test]
async fn comms_expose_the_certificate_of_the_peer() {
    let authority = Authority::new();
    let (theirs, address) = bind(&authority.tls(), CommOptions::default(), quick()).await;
    let ours = Node::client(Arc::new(authority.client(true)), quick()).unwrap();
    let options = CommOptions::default();
    let (near, far) = tokio::join!(ours.connect(&address, &options), async {
        theirs.accept().await.unwrap().handshake().await
    });
    for comm in [near.unwrap(), far.unwrap()] {
        let encryption = comm.encryption().unwrap();
        assert_eq!(encryption.version, "TLSv1_3");
        assert_eq!(encryption.peer_certificates.len(), 1);
        assert_eq!(
            encryption.peer_certificates[0][..],
            authority.certificate[..]
        );
    }
}

/// As over TLS, which has more tests of it.
#[tokio::test]
async fn renewed_certificates_are_used_after_a_reload() {
    let name = format!("quic-{}.pem", std::process::id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let [old, new] = [(); 2].map(|()| {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        own.cert.pem() + &own.signing_key.serialize_pem()
    });
    let settings = TlsSettings::new(file.as_path(), file.as_path());
    std::fs::write(&file, &old).unwrap();
    let tls = settings.build().unwrap();
    let (theirs, address) = bind(&Tls::from(&tls), CommOptions::default(), quick()).await;
    let theirs = serve_echo(theirs);
    let is_accepted = async |pem: &str| {
        let peer = TlsSettings::new(pem, pem).build().unwrap();
        let (peer, at) = bind(&Tls::from(&peer), CommOptions::default(), quick()).await;
        let peer = serve_echo(peer);
        let near = peer.connect(&address, &once()).await;
        let far = theirs.connect(&at, &once()).await;
        [near.is_ok(), far.is_ok()]
    };
    assert_eq!(is_accepted(&old).await, [true; 2]);
    std::fs::write(&file, &new).unwrap();
    tls.reload().unwrap();
    assert_eq!(is_accepted(&new).await, [true; 2]);
    assert_eq!(is_accepted(&old).await, [false; 2]);
    std::fs::remove_file(&file).unwrap();
}

/// A quinn endpoint without this crate.
fn raw_client(mut tls: ClientConfig, alpn: &[u8]) -> quinn::Endpoint {
    tls.alpn_protocols = vec![alpn.to_vec()];
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
    endpoint
}

fn socket(address: &Address) -> core::net::SocketAddr {
    format!("{}:{}", address.host(), address.port())
        .parse()
        .unwrap()
}

#[tokio::test]
async fn another_protocol_is_refused_on_both_sides() {
    let authority = Authority::new();
    let (theirs, address) = bind(&authority.tls(), CommOptions::default(), quick()).await;
    let raw = raw_client(authority.client(true), b"h3");
    let connecting = raw.connect(socket(&address), "localhost").unwrap();
    let error = connecting.await.unwrap_err();
    assert!(error.to_string().contains("120"), "{error}");

    let mut tls = authority.server(true);
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let raw = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = Address::new(address.scheme(), raw.local_addr().unwrap());
    tokio::spawn(async move { while raw.accept().await.unwrap().await.is_ok() {} });
    let error = theirs
        .connect(&address, &CommOptions::default())
        .await
        .unwrap_err();
    assert!(matches!(error, CommError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("dask-comm/1"), "{error}");
    assert!(!error.is_closed());
}

#[tokio::test]
async fn early_data_is_off() {
    let authority = Authority::new();
    // The configuration of the server would allow it.
    let mut server = authority.server(false);
    server.max_early_data_size = u32::MAX;
    let mut client = authority.client(false);
    client.enable_early_data = true;
    let tls = Tls::default().with_server(Arc::new(server));
    let (_theirs, address) = bind(&tls, CommOptions::default(), quick()).await;
    let raw = raw_client(client, ALPN);
    for _ in 0..2 {
        let connecting = raw.connect(socket(&address), "localhost").unwrap();
        // The second connection has a ticket, which does not allow early data.
        let connecting = match connecting.into_0rtt() {
            Ok(_) => panic!("early data would be sent"),
            Err(connecting) => connecting,
        };
        let connection = connecting.await.unwrap();
        // Time for the ticket to arrive.
        tokio::time::sleep(Duration::from_millis(50)).await;
        connection.close(0_u32.into(), b"");
    }
}

#[tokio::test]
async fn invalid_configurations_are_refused() {
    let authority = Authority::new();
    let provider = Arc::new(crypto::ring::default_provider());
    let old = |_| {
        ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_root_certificates(Arc::clone(&authority.roots))
            .with_no_client_auth()
    };
    let mut ciphers = crypto::ring::default_provider();
    ciphers
        .cipher_suites
        .retain(|suite| suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    let without_initial = ClientConfig::builder_with_provider(Arc::new(ciphers))
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_root_certificates(Arc::clone(&authority.roots))
        .with_no_client_auth();
    let error = Node::client(Arc::new(without_initial), quick()).unwrap_err();
    assert!(matches!(error, CommError::Bind { .. }), "{error}");
    Node::client(Arc::new(old(())), quick()).unwrap();
    let address = "tcp://127.0.0.1:0".parse().unwrap();
    let error = Node::bind(&address, &authority.tls(), CommOptions::default(), quick()).await;
    assert!(matches!(error.unwrap_err(), CommError::Scheme { .. }));
}

// Limits.

#[tokio::test]
async fn announcements_beyond_the_limits_are_refused() {
    let authority = Authority::new();
    let limits = Limits::HOST.with_frame_len(1_000).with_message_len(2_000);
    let options = CommOptions::default().with_limits(limits);
    let (theirs, address) = bind(&authority.tls(), options, quick()).await;
    let ours = Node::client(Arc::new(authority.client(true)), quick()).unwrap();
    let (mut ours, mut theirs) = comm(&ours, &theirs, &address).await;
    ours.write_message(&[[7; 1_000]]).await.unwrap();
    assert!(theirs.read_message().await.unwrap().is_some());
    ours.write_message(&[[7; 1_001]]).await.unwrap();
    let error = theirs.read_message().await.unwrap_err();
    assert!(matches!(error, CommError::Frame(_)), "{error}");
    assert!(!error.is_closed());
    let error = theirs.read_message().await.unwrap_err();
    assert!(error.is_closed(), "{error}");
}

/// The limits of a stream are lower before the handshake.
#[tokio::test]
async fn invalid_handshakes_are_refused() {
    let authority = Authority::new();
    let options = CommOptions::default().with_handshake_timeout(Duration::from_millis(300));
    let (theirs, address) = bind(&authority.tls(), options, quick()).await;
    let raw = raw_client(authority.client(true), ALPN);
    let connection = raw
        .connect(socket(&address), "localhost")
        .unwrap()
        .await
        .unwrap();
    // One frame of 8 GiB.
    let mut announced = Vec::new();
    for number in [8_u64 << 30, 1, 8 << 30] {
        announced.extend_from_slice(&number.to_le_bytes());
    }
    for (sent, closed) in [(&announced[..], false), (b"\x3d", true)] {
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(sent).await.unwrap();
        let outcome = theirs.accept().await.unwrap().handshake().await;
        let error = outcome.unwrap_err();
        if closed {
            assert!(matches!(error, CommError::Timeout { .. }), "{error}");
        } else {
            assert!(matches!(error, CommError::Frame(_)), "{error}");
        }
        // The peer gets an error.
        let error = receive.read_to_end(1 << 20).await.unwrap_err();
        assert!(error.to_string().contains("reset"), "{error}");
    }
    // This protocol has no unidirectional streams and no datagrams.
    assert_eq!(connection.max_datagram_size(), None);
    assert!(
        timeout(Duration::from_millis(50), connection.open_uni())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn connections_beyond_the_limit_are_refused() {
    let authority = Authority::new();
    let few = quick()
        .with_max_connections(1)
        // Every peer has to validate its address.
        .with_retry_threshold(0);
    let (theirs, address) = bind(&authority.tls(), CommOptions::default(), few).await;
    let theirs = serve_echo(theirs);
    let tls = Arc::new(authority.client(true));
    let first = Node::client(Arc::clone(&tls), quick()).unwrap();
    let comm = first.connect(&address, &once()).await.unwrap();
    let second = Node::client(tls, quick()).unwrap();
    let error = second.connect(&address, &once()).await.unwrap_err();
    assert!(
        matches!(&error, CommError::Connect { error, .. }
            if error.kind() == io::ErrorKind::ConnectionRefused),
        "{error}"
    );
    // With retries it is accepted after the first one has ended.
    drop(comm);
    second
        .connect(&address, &CommOptions::default())
        .await
        .unwrap();
    drop(theirs);
}

/// A comm that was closed and read to its end may be dropped after its connection.
#[tokio::test]
async fn closing_a_connection_fails_unfinished_comms_only() {
    let authority = Authority::new();
    for is_over in [true, false] {
        let (theirs, address) = bind(&authority.tls(), CommOptions::default(), quick()).await;
        let ours = Node::client(Arc::new(authority.client(true)), quick()).unwrap();
        let options = CommOptions::default();
        let (near, far) = tokio::join!(ours.connect(&address, &options), async {
            theirs.accept().await.unwrap().handshake().await
        });
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        let ends = async {
            far.write_message(&[b"last"]).await.unwrap();
            far.close().await.unwrap();
            if is_over {
                assert!(far.read_message().await.unwrap().is_none());
            }
            theirs.close().await;
        };
        let reads = async {
            assert!(near.read_message().await.unwrap().is_some());
            assert!(near.read_message().await.unwrap().is_none());
            if is_over {
                near.close().await
            } else {
                close_late(&mut near).await
            }
        };
        let ((), outcome) = tokio::join!(ends, reads);
        assert_eq!(outcome.is_ok(), is_over, "{outcome:?}");
    }
}

fn transport(authority: &Authority) -> Quic {
    Quic::new(quick().with_tls(authority.tls()))
}

/// A program may call `block_on` of several executors, one after another.
#[test]
fn a_transport_outlives_its_executor() {
    let authority = Authority::new();
    let executor = || tokio::runtime::Runtime::new().unwrap();
    let servers = executor();
    let (_theirs, address) = servers.block_on(async {
        let (theirs, address) = bind(&authority.tls(), CommOptions::default(), quick()).await;
        (serve_echo(theirs), address)
    });
    let quic = transport(&authority);
    for _ in 0..2 {
        executor().block_on(async {
            let options = once();
            let connecting = daskwire_comm::connect(&quic, &address, &options, Traffic::Normal);
            ping(&mut connecting.await.unwrap()).await;
        });
    }
}

#[tokio::test]
async fn a_transport_can_be_closed_after_a_cancelled_close() {
    let authority = Authority::new();
    let (theirs, address) = bind(&authority.tls(), CommOptions::default(), quick()).await;
    let quic = transport(&authority);
    let options = CommOptions::default();
    let connecting = daskwire_comm::connect(&quic, &address, &options, Traffic::Normal);
    let (near, far) = tokio::join!(connecting, async {
        theirs.accept().await?.handshake().await
    });
    let (mut near, _far) = (near.unwrap(), far.unwrap());
    {
        let mut closing = quic.close();
        let first = core::future::poll_fn(|context| Poll::Ready(closing.as_mut().poll(context)));
        assert!(first.await.is_pending(), "the comm is open");
    }
    quic.close().await;
    let read = timeout(Duration::from_secs(5), near.read_message()).await;
    let error = read.expect("the comm has ended").unwrap_err();
    assert!(error.is_closed(), "{error}");
}

/// Closes a comm after its connection has ended.
async fn close_late(comm: &mut Comm) -> Result<(), CommError> {
    loop {
        if let Err(error) = comm.write_message(&[[7; 1000]]).await {
            assert!(error.is_closed(), "{error}");
            return comm.close().await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
