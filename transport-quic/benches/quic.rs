//! The cost of a comm over QUIC, as ratios within one run.
//!
//! The measurements of a round are taken one after the other, and each ratio is of
//! one round: the results are median, minimum and maximum. `DASKWIRE_BENCH_ROUNDS`
//! sets the number of rounds.
#![allow(clippy::unwrap_used, clippy::std_instead_of_alloc, missing_docs)]

use std::sync::Arc;
use std::time::Instant;

use daskwire::frame::Arena;
use daskwire::transport::{CommReader, CommWriter};
use daskwire_comm::{Address, Comm, CommOptions, Listener, Transports};
use daskwire_quic::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use daskwire_quic::{ALPN, Endpoint, QuicOptions, Tls};
use daskwire_tcp::Tcp;
use daskwire_testing::bench::show_ratios;

const BULK: usize = 64 << 20;

fn tls() -> (ClientConfig, ServerConfig) {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = own.cert.der().clone();
    let key = own.signing_key.serialize_der().try_into().unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = [&rustls::version::TLS13];
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    (client, server)
}

async fn endpoints() -> (Endpoint, Listener, Address) {
    let (client, server) = tls();
    let quic = QuicOptions::default().with_tls(
        Tls::default()
            .with_client(Arc::new(client))
            .with_server(Arc::new(server)),
    );
    let ours = Endpoint::client(quic.clone()).unwrap();
    let address = "quic://127.0.0.1:0".parse().unwrap();
    let theirs = Endpoint::bind(&address, quic).await.unwrap();
    let theirs = Listener::new(Box::new(theirs), CommOptions::default());
    let address = theirs.local_address().unwrap();
    (ours, theirs, address)
}

/// A stream of quinn alone, with the same settings.
struct RawStream {
    send: quinn::SendStream,
    receive: quinn::RecvStream,
    /// What must live as long as the stream.
    _keep: [(quinn::Endpoint, quinn::Connection); 2],
}

async fn raw_stream() -> RawStream {
    use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
    let (mut client, mut server) = tls();
    client.alpn_protocols = vec![ALPN.to_vec()];
    server.alpn_protocols = vec![ALPN.to_vec()];
    let client = QuicClientConfig::try_from(client).unwrap();
    let server = QuicServerConfig::try_from(server).unwrap();
    let mut client = quinn::ClientConfig::new(Arc::new(client));
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(server));
    let mut config = quinn::EndpointConfig::default();
    config.max_udp_payload_size(6_500).unwrap();
    let shared = QuicOptions::default().to_transport_config();
    client.transport_config(Arc::clone(&shared));
    server.transport_config(shared);
    let endpoint = |server| {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let sized = socket2::SockRef::from(&socket);
        sized.set_recv_buffer_size(4 << 20).unwrap();
        sized.set_send_buffer_size(4 << 20).unwrap();
        let runtime = Arc::new(quinn::TokioRuntime);
        quinn::Endpoint::new(config.clone(), server, socket, runtime).unwrap()
    };
    let (mut near, far) = (endpoint(None), endpoint(Some(server)));
    near.set_default_client_config(client);
    let connecting = near.connect(far.local_addr().unwrap(), "127.0.0.1");
    let (ours, theirs) = tokio::join!(connecting.unwrap(), async {
        far.accept().await.unwrap().await
    });
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
    let (mut send, _) = ours.open_bi().await.unwrap();
    send.write_all(b"x").await.unwrap();
    let (_, mut receive) = theirs.accept_bi().await.unwrap();
    receive.read_exact(&mut [0]).await.unwrap();
    RawStream {
        send,
        receive,
        _keep: [(near, ours), (far, theirs)],
    }
}

/// Sends the bytes of one message, header and payload, on a stream, and returns the time
/// in seconds.
async fn raw_bulk(stream: &mut RawStream, payload: &[u8], into: &mut [u8]) -> f64 {
    let start = Instant::now();
    let (send, receive) = (&mut stream.send, &mut stream.receive);
    let write = async {
        send.write_all(&[0; 24]).await.unwrap();
        send.write_all(payload).await.unwrap();
    };
    let read = async {
        receive.read_exact(&mut [0; 24]).await.unwrap();
        receive.read_exact(into).await.unwrap();
    };
    tokio::join!(write, read);
    start.elapsed().as_secs_f64()
}

async fn pair(ours: &Endpoint, theirs: &Listener, address: &Address) -> (Comm, Comm) {
    let options = CommOptions::default();
    let (ours, theirs) = tokio::join!(ours.connect(address, &options), async {
        theirs.accept().await.unwrap().handshake().await
    });
    (ours.unwrap(), theirs.unwrap())
}

/// Sends one message, which is read into an existing buffer, and returns the time in
/// seconds.
async fn comm_bulk(
    writer: &mut daskwire_comm::CommWriter,
    reader: &mut daskwire_comm::CommReader,
    payload: &[u8],
    into: &mut [u8],
) -> f64 {
    let start = Instant::now();
    let mut arena = Arena::new(into);
    let frames = [payload];
    let (wrote, read) = tokio::join!(
        CommWriter::write_message(writer, &frames),
        CommReader::read_message(reader, &mut arena)
    );
    wrote.unwrap();
    read.unwrap().unwrap();
    start.elapsed().as_secs_f64()
}

/// Opens [`NEW_COMMS`] comms and returns the time in seconds.
async fn new_comms(connect: impl AsyncFn() -> Comm, ended: &mut Vec<Comm>) -> f64 {
    let start = Instant::now();
    for _ in 0..NEW_COMMS {
        ended.push(connect().await);
    }
    let seconds = start.elapsed().as_secs_f64();
    ended.clear();
    // The ends of the comms are not measured.
    tokio::time::sleep(core::time::Duration::from_millis(20)).await;
    seconds
}

const NEW_COMMS: usize = 100;
#[tokio::main(worker_threads = 2)]
async fn main() {
    let rounds = std::env::var("DASKWIRE_BENCH_ROUNDS");
    let mut rounds = rounds.ok().and_then(|text| text.parse().ok()).unwrap_or(11);
    if !std::env::args().any(|argument| argument == "--bench") {
        // `cargo test --benches` only checks that it runs.
        rounds = 1;
    }
    println!("{rounds} rounds; ratio: median (least to most)");
    new_comm(rounds).await;
    bulk(rounds).await;
}

/// Accepts comms, and keeps them until their peers end them.
async fn serve(listener: Listener) {
    while let Ok(incoming) = listener.accept().await {
        tokio::spawn(async move {
            let mut comm = incoming.handshake().await?;
            comm.read_message().await
        });
    }
}

async fn new_comm(rounds: usize) {
    let (ours, theirs, address) = endpoints().await;
    tokio::spawn(serve(theirs));
    let loopback = "tcp://127.0.0.1:0".parse().unwrap();
    let transports = Transports::new().with(Tcp::default());
    let listener = transports.bind(&loopback, CommOptions::default());
    let listener = listener.await.unwrap();
    let tcp_address = listener.local_address().unwrap();
    tokio::spawn(serve(listener));
    let options = CommOptions::default();
    // The first comm makes the connection.
    let _first = ours.connect(&address, &options).await.unwrap();
    let mut ratios = Vec::new();
    let mut kept = Vec::new();
    for round in 0..=rounds {
        let quic = async || ours.connect(&address, &options).await.unwrap();
        let quic = new_comms(quic, &mut kept).await;
        let tcp = async || {
            let connecting = transports.connect(&tcp_address, &options);
            connecting.await.unwrap()
        };
        let tcp = new_comms(tcp, &mut kept).await;
        // The first round warms up.
        if round != 0 {
            ratios.push(quic / tcp);
        }
    }
    show_ratios(
        "new comm: QUIC stream on a live connection / TCP, time",
        ratios,
    );
}

async fn bulk(rounds: usize) {
    let payload = vec![7; BULK];
    let mut into = vec![0; BULK];
    let (ours, theirs, address) = endpoints().await;
    let (ours, theirs) = pair(&ours, &theirs, &address).await;
    let ((_our_reader, mut writer), (mut reader, _their_writer)) = (ours.split(), theirs.split());
    let mut stream = raw_stream().await;
    let (mut to_raw, mut noise) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let ours = comm_bulk(&mut writer, &mut reader, &payload, &mut into).await;
        let raw = raw_bulk(&mut stream, &payload, &mut into).await;
        let again = raw_bulk(&mut stream, &payload, &mut into).await;
        // The first message discovers the MTU of the path.
        if round != 0 {
            to_raw.push(raw / ours);
            noise.push(raw / again);
        }
    }
    show_ratios("64 MiB: comm / raw quinn, throughput", to_raw);
    show_ratios("64 MiB: raw quinn against itself, throughput", noise);
}
