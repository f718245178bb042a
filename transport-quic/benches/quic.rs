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

async fn endpoints(quic: QuicOptions) -> (Endpoint, Listener, Address) {
    let (client, server) = tls();
    let quic = QuicOptions {
        tls: Tls {
            client: Some(Arc::new(client)),
            server: Some(Arc::new(server)),
            ..Tls::default()
        },
        ..quic
    };
    let ours = Endpoint::client(quic.clone()).unwrap();
    let address = "quic://127.0.0.1:0".parse().unwrap();
    let theirs = Endpoint::bind(&address, quic).await.unwrap();
    let theirs = Listener::new(Box::new(theirs), CommOptions::default());
    let address = theirs.local_address().unwrap();
    (ours, theirs, address)
}

/// A connection with quinn alone, with the same settings if `transport` is given.
async fn raw(transport: Option<QuicOptions>) -> (quinn::Connection, quinn::Connection, Raw) {
    use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
    let (mut client, mut server) = tls();
    client.alpn_protocols = vec![ALPN.to_vec()];
    server.alpn_protocols = vec![ALPN.to_vec()];
    let client = QuicClientConfig::try_from(client).unwrap();
    let server = QuicServerConfig::try_from(server).unwrap();
    let mut client = quinn::ClientConfig::new(Arc::new(client));
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(server));
    let mut config = quinn::EndpointConfig::default();
    let socket = || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        if transport.is_some() {
            let socket = socket2::SockRef::from(&socket);
            let len = 4 << 20;
            socket.set_recv_buffer_size(len).unwrap();
            socket.set_send_buffer_size(len).unwrap();
        }
        socket
    };
    if let Some(options) = &transport {
        let shared = options.to_transport_config();
        client.transport_config(Arc::clone(&shared));
        server.transport_config(shared);
        config.max_udp_payload_size(6_500).unwrap();
    }
    let runtime = Arc::new(quinn::TokioRuntime);
    let theirs =
        quinn::Endpoint::new(config.clone(), Some(server), socket(), runtime.clone()).unwrap();
    let mut ours = quinn::Endpoint::new(config, None, socket(), runtime).unwrap();
    ours.set_default_client_config(client);
    let connecting = ours.connect(theirs.local_addr().unwrap(), "127.0.0.1");
    let (a, b) = tokio::join!(connecting.unwrap(), async {
        theirs.accept().await.unwrap().await
    });
    (a.unwrap(), b.unwrap(), Raw(ours, theirs))
}

/// The endpoints, which must live as long as the connections.
struct Raw(
    #[allow(dead_code)] quinn::Endpoint,
    #[allow(dead_code)] quinn::Endpoint,
);

struct RawStream {
    send: quinn::SendStream,
    receive: quinn::RecvStream,
    _keep: (quinn::Connection, quinn::Connection, Raw),
}

async fn raw_stream(transport: Option<QuicOptions>) -> RawStream {
    let keep = raw(transport).await;
    let (mut send, _) = keep.0.open_bi().await.unwrap();
    send.write_all(b"x").await.unwrap();
    let (_, mut receive) = keep.1.accept_bi().await.unwrap();
    receive.read_exact(&mut [0]).await.unwrap();
    RawStream {
        send,
        receive,
        _keep: keep,
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
const PINGS: usize = 500;

/// Sends [`PINGS`] messages of 100 bytes that are echoed, and returns the time in seconds.
async fn comm_pings(comm: &mut Comm) -> f64 {
    let start = Instant::now();
    for _ in 0..PINGS {
        comm.write_message(&[[7; 100]]).await.unwrap();
        comm.read_message().await.unwrap().unwrap();
    }
    start.elapsed().as_secs_f64()
}

async fn raw_pings(stream: &mut (quinn::SendStream, quinn::RecvStream)) -> f64 {
    let start = Instant::now();
    for _ in 0..PINGS {
        stream.0.write_all(&[7; 124]).await.unwrap();
        stream.1.read_exact(&mut [0; 124]).await.unwrap();
    }
    start.elapsed().as_secs_f64()
}

struct Ratios {
    what: &'static str,
    all: Vec<f64>,
}

impl Ratios {
    const fn new(what: &'static str) -> Self {
        let all = Vec::new();
        Self { what, all }
    }

    fn print(&mut self) {
        self.all.sort_by(f64::total_cmp);
        let (least, most) = (self.all[0], self.all[self.all.len() - 1]);
        let median = self.all[self.all.len() / 2];
        println!("{:72} {median:6.2} ({least:.2} to {most:.2})", self.what);
    }
}

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
    pings(rounds).await;
    bulk(rounds).await;
}

async fn new_comm(rounds: usize) {
    let (ours, theirs, address) = endpoints(QuicOptions::default()).await;
    let accepted = async move {
        let mut comms = Vec::new();
        while let Ok(incoming) = theirs.accept().await {
            comms.push(tokio::spawn(async move {
                let mut comm = incoming.handshake().await?;
                comm.read_message().await
            }));
        }
    };
    tokio::spawn(accepted);
    let loopback = "tcp://127.0.0.1:0".parse().unwrap();
    let transports = Transports::new().with(Tcp::default());
    let listener = transports.bind(&loopback, CommOptions::default());
    let listener = listener.await.unwrap();
    let tcp_address = listener.local_address().unwrap();
    tokio::spawn(async move {
        let mut comms = Vec::new();
        while let Ok(incoming) = listener.accept().await {
            comms.push(tokio::spawn(async move {
                let mut comm = incoming.handshake().await?;
                comm.read_message().await
            }));
        }
    });
    let options = CommOptions::default();
    // The first comm makes the connection.
    let _first = ours.connect(&address, &options).await.unwrap();
    let mut ratios =
        Ratios::new("new comm: QUIC stream on a live connection / TCP connection, time");
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
            ratios.all.push(quic / tcp);
        }
    }
    ratios.print();
}

async fn pings(rounds: usize) {
    let (ours, theirs, address) = endpoints(QuicOptions::default()).await;
    let (mut comm, mut echo) = pair(&ours, &theirs, &address).await;
    tokio::spawn(async move {
        while let Ok(Some(frames)) = echo.read_message().await {
            echo.write_message(&frames).await.unwrap();
        }
    });
    let keep = raw(Some(QuicOptions::default())).await;
    let mut stream = keep.0.open_bi().await.unwrap();
    stream.0.write_all(&[7; 124]).await.unwrap();
    let mut echo = keep.1.accept_bi().await.unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 124];
        while echo.1.read_exact(&mut bytes).await.is_ok() {
            echo.0.write_all(&bytes).await.unwrap();
        }
    });
    stream.1.read_exact(&mut [0; 124]).await.unwrap();
    let mut ratios = Ratios::new("100-byte round trips: comm / raw quinn, same settings, time");
    for round in 0..=rounds {
        let ratio = comm_pings(&mut comm).await / raw_pings(&mut stream).await;
        if round != 0 {
            ratios.all.push(ratio);
        }
    }
    ratios.print();
}

async fn bulk(rounds: usize) {
    let payload = vec![7; BULK];
    let mut into = vec![0; BULK];
    let (ours, theirs, address) = endpoints(QuicOptions::default()).await;
    let (ours, theirs) = pair(&ours, &theirs, &address).await;
    let ((_our_reader, mut writer), (mut reader, _their_writer)) = (ours.split(), theirs.split());
    let mut same = raw_stream(Some(QuicOptions::default())).await;
    let mut plain = raw_stream(None).await;
    let mut to_same = Ratios::new("64 MiB messages: comm / raw quinn, same settings, throughput");
    let mut to_plain = Ratios::new("64 MiB messages: comm / raw quinn, its defaults, throughput");
    let mut noise = Ratios::new("64 MiB: raw quinn, same settings, against itself, throughput");
    for round in 0..=rounds {
        let ours = comm_bulk(&mut writer, &mut reader, &payload, &mut into).await;
        let raw = raw_bulk(&mut same, &payload, &mut into).await;
        let defaults = raw_bulk(&mut plain, &payload, &mut into).await;
        let again = raw_bulk(&mut same, &payload, &mut into).await;
        // The first message discovers the MTU of the path.
        if round != 0 {
            to_same.all.push(raw / ours);
            to_plain.all.push(defaults / ours);
            noise.all.push(raw / again);
        }
    }
    to_same.print();
    to_plain.print();
    noise.print();
}
