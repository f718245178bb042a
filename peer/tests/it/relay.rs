//! Tests of relays, which forward messages unopened.

use std::path::Path;
use std::time::Duration;

use daskwire_comm::tls::{Tls, TlsSettings};
use daskwire_comm::{Address, CommError, CommOptions, ErrorKind};
use daskwire_peer::relay::{Options, RelayError, RelayStats, relay, serve};
use daskwire_testing::certificate;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

type Outcome = Result<(RelayStats, RelayStats), RelayError>;

#[test]
fn a_connection_that_is_reset_may_be_tried_again() {
    let error = RelayError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(error.is_retryable());
    let error = RelayError::from(std::io::Error::from_raw_os_error(24));
    assert_eq!(
        (error.kind(), error.is_retryable()),
        (ErrorKind::System, false)
    );
}

/// Starts a relay whose pipes hold `room` bytes. Returns both peers' ends and its task.
fn between(room: usize) -> (DuplexStream, DuplexStream, tokio::task::JoinHandle<Outcome>) {
    let (near, near_end) = duplex(room);
    let (far, far_end) = duplex(room);
    let task =
        tokio::spawn(
            async move { relay(split(near_end), split(far_end), &Options::default()).await },
        );
    (near, far, task)
}

fn vector(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/vectors");
    let path = folder.join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test]
async fn forwards_sessions_byte_for_byte() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/vectors/streams");
    let mut stream_count = 0;
    for entry in std::fs::read_dir(folder).expect("the recorded streams") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "bin") {
            continue;
        }
        let bytes = std::fs::read(&path).expect("a stream");
        let described: serde_json::Value = serde_json::from_slice(
            &std::fs::read(path.with_extension("json")).expect("its meaning"),
        )
        .expect("JSON");
        let message_count = described["messages"].as_array().expect("messages").len() as u64;
        stream_count += 1;
        for room in [7, 4096, 1 << 20] {
            let (near, far, task) = between(room);
            let (mut near_reader, mut near_writer) = split(near);
            let (mut far_reader, mut far_writer) = split(far);
            let sent = bytes.clone();
            let writing = tokio::spawn(async move {
                near_writer.write_all(&sent).await.expect("written");
                near_writer.shutdown().await.expect("it ends");
            });
            let mut arrived = Vec::new();
            far_reader
                .read_to_end(&mut arrived)
                .await
                .expect("it arrives");
            assert!(arrived == bytes, "{} with {room}", path.display());
            // The other direction is idle, but still open.
            let answer = vector("modern-nosplit-2026.8.0/handshake.bin");
            let answering = async {
                far_writer.write_all(&answer).await.expect("written");
                far_writer.shutdown().await.expect("it ends");
            };
            let mut answered = Vec::new();
            let (_, outcome) = tokio::join!(answering, near_reader.read_to_end(&mut answered));
            outcome.expect("it arrives");
            assert!(answered == answer);
            writing.await.expect("it was written");
            let (there, back) = task.await.expect("no panic").expect("no error");
            assert_eq!(
                (there.message_count, there.len),
                (message_count, bytes.len() as u64)
            );
            assert_eq!((back.message_count, back.len), (1, answer.len() as u64));
        }
    }
    assert!(stream_count >= 10, "{stream_count} streams");
}

#[tokio::test]
async fn a_message_leaves_before_all_of_it_has_arrived() {
    let (near, mut far, _task) = between(1 << 20);
    let (_, mut near_writer) = split(near);
    let handshake = vector("modern-nosplit-2026.8.0/handshake.bin");
    near_writer.write_all(&handshake).await.expect("written");
    // A frame of 1 GiB, of which only 1 KiB is sent
    let mut start = Vec::new();
    start.extend((16 + (1_u64 << 30)).to_le_bytes());
    start.extend(1_u64.to_le_bytes());
    start.extend((1_u64 << 30).to_le_bytes());
    start.extend([7; 1024]);
    near_writer.write_all(&start).await.expect("written");
    let mut arrived = vec![0; handshake.len() + start.len()];
    far.read_exact(&mut arrived).await.expect("it arrives");
    assert_eq!(arrived, [handshake, start].concat());
}

#[tokio::test]
async fn disconnects_other_protocols_before_forwarding() {
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"[..],
        &[0; 64],
        &[255; 64],
        // A handshake of 1 MiB
        &[
            16, 0, 16, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 1, 2, 3,
        ],
    ] {
        let (mut near, mut far, task) = between(4096);
        near.write_all(bytes).await.expect("written");
        let error = task.await.expect("no panic").expect_err("it is refused");
        assert!(matches!(error, RelayError::Frame(_)), "{error}");
        let mut arrived = Vec::new();
        far.read_to_end(&mut arrived).await.expect("it ends");
        assert_eq!(arrived, b"", "{bytes:?}");
    }
}

#[tokio::test]
async fn an_end_within_a_message_is_an_error() {
    let (mut near, _far, task) = between(4096);
    let handshake = vector("modern-nosplit-2026.8.0/handshake.bin");
    near.write_all(&handshake[..handshake.len() - 1])
        .await
        .expect("written");
    near.shutdown().await.expect("it ends");
    let error = task.await.expect("no panic").expect_err("it is refused");
    assert!(matches!(error, RelayError::Frame(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn disconnects_silent_peers_after_the_timeout() {
    for bytes in [&b""[..], b"\x10", b"\x10\0\0\0\0\0\0\0\x01\0\0\0"] {
        let (mut near, _far, task) = between(4096);
        near.write_all(bytes).await.expect("written");
        let started = tokio::time::Instant::now();
        let error = task.await.expect("no panic").expect_err("it is refused");
        assert!(matches!(error, RelayError::Timeout { .. }), "{error}");
        assert!(started.elapsed() < Duration::from_secs(31));
    }
}

#[tokio::test]
async fn forwards_messages_before_a_malformed_one() {
    let (near, mut far, task) = between(1 << 20);
    let (_near_reader, mut near_writer) = split(near);
    let handshake = vector("modern-nosplit-2026.8.0/handshake.bin");
    let message = vector("modern-nosplit-2026.8.0/docs-get-data-ones5.bin");
    let good = [&handshake[..], &message, &message].concat();
    let all = [&good[..], &[255; 24]].concat();
    near_writer.write_all(&all).await.expect("written");
    let mut arrived = Vec::new();
    far.read_to_end(&mut arrived).await.expect("it ends");
    assert!(arrived == good, "{} of {} bytes", arrived.len(), good.len());
    let error = task.await.expect("no panic").expect_err("it is refused");
    assert!(matches!(error, RelayError::Frame(_)), "{error}");
}

#[tokio::test]
async fn forwards_the_last_data_of_a_peer_that_stopped_reading() {
    let (near, near_end) = duplex(1 << 20);
    let (far, far_end) = duplex(4096);
    // The peer at `near` sends much data, and no longer reads.
    let handshake = vector("modern-nosplit-2026.8.0/handshake.bin");
    let message = vector("modern-nosplit-2026.8.0/docs-get-data-ones5.bin");
    let words = [&handshake[..], &message.repeat(300)].concat();
    let (mut far_reader, mut far_writer) = split(far);
    let (near_reader, mut near_writer) = tokio::io::simplex(1 << 20);
    let (closed_reader, closed_writer) = duplex(16);
    drop(closed_reader);
    drop((near, near_end));
    near_writer.write_all(&words).await.expect("written");
    near_writer.shutdown().await.expect("it ends");
    let task = tokio::spawn(async move {
        relay(
            (near_reader, closed_writer),
            split(far_end),
            &Options::default(),
        )
        .await
    });
    // The peer at `far` sends first. Its data is never read.
    far_writer.write_all(&handshake).await.expect("written");
    tokio::task::yield_now().await;
    let mut arrived = Vec::new();
    far_reader.read_to_end(&mut arrived).await.expect("it ends");
    assert!(
        arrived == words,
        "{} of {} bytes",
        arrived.len(),
        words.len()
    );
    let (there, _) = task.await.expect("no panic").expect("no error");
    assert_eq!(there.message_count, 301);
}

/// A relay to a raw listener, and the outcomes that it reports.
struct Serving {
    address: Address,
    target: TcpListener,
    outcomes: Outcomes,
    task: tokio::task::JoinHandle<()>,
}

pub(super) fn tls() -> Tls {
    let pem = certificate("self-signed.pem");
    let settings = TlsSettings::new(&*pem, &*pem);
    settings.build().expect("a certificate and its key")
}

async fn serving(scheme: &str) -> Serving {
    let target = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let to = Address::from(target.local_addr().expect("bound"));
    let (address, outcomes, task) = serving_to(scheme, to).await;
    Serving {
        address,
        target,
        outcomes,
        task,
    }
}

type Outcomes = mpsc::UnboundedReceiver<(Address, Outcome)>;

async fn serving_to(scheme: &str, to: Address) -> (Address, Outcomes, tokio::task::JoinHandle<()>) {
    let address = format!("{scheme}://127.0.0.1:0")
        .parse()
        .expect("an address");
    let transports = daskwire_peer::transports_with_tls(&tls());
    let listener = transports.bind(&address, CommOptions::default()).await;
    let listener = listener.expect("a port");
    let address = listener.local_address().expect("bound");
    let (report, outcomes) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        let report = move |from: &Address, outcome| {
            let _ = report.send((from.clone(), outcome));
        };
        let never = core::future::pending();
        let served = serve(
            &listener,
            &transports,
            &to,
            Options::default(),
            report,
            never,
        );
        served.await.expect("it serves");
    });
    (address, outcomes, task)
}

/// Connections that close without sending, such as port scans, cause no connection to the
/// target.
#[tokio::test]
async fn does_not_connect_to_the_target_for_silent_peers() {
    let mut serving = serving("tcp").await;
    let target = (serving.address.host(), serving.address.port());
    let scan = TcpStream::connect(target).await.expect("it is accepted");
    let from = Address::from(scan.local_addr().expect("connected"));
    drop(scan);
    let (peer, outcome) = serving.outcomes.recv().await.expect("an outcome");
    assert_eq!(peer, from);
    assert_eq!(outcome.expect("no error"), Default::default());
    // The target's first connection is for the first client that sends data.
    let mut client = TcpStream::connect(target).await.expect("it is accepted");
    let handshake = vector("modern-nosplit-2026.8.0/handshake.bin");
    client.write_all(&handshake).await.expect("written");
    let (mut accepted, _) = serving.target.accept().await.expect("a connection");
    let mut arrived = vec![0; handshake.len()];
    accepted.read_exact(&mut arrived).await.expect("it arrives");
    assert_eq!(arrived, handshake);
    serving.task.abort();
}

/// Connectors up to 2023.7.1 read first; here through two relays with QUIC in between.
// PROTOCOL HANDSHAKE-1
#[tokio::test]
async fn a_client_that_reads_first_is_served_over_quic() {
    let mut far = serving("quic").await;
    let (address, mut outcomes, near) = serving_to("tcp", far.address.clone()).await;
    let target = (address.host(), address.port());
    let mut client = TcpStream::connect(target).await.expect("it is accepted");
    let (mut accepted, _) = far.target.accept().await.expect("a connection");
    let handshake = vector("modern-nosplit-2026.8.0/handshake.bin");
    accepted.write_all(&handshake).await.expect("written");
    let mut arrived = vec![0; handshake.len()];
    client.read_exact(&mut arrived).await.expect("it arrives");
    assert_eq!(arrived, handshake);
    client.write_all(&handshake).await.expect("written");
    accepted.read_exact(&mut arrived).await.expect("it arrives");
    for end in [&mut client, &mut accepted] {
        end.shutdown().await.expect("it ends");
    }
    for outcomes in [&mut outcomes, &mut far.outcomes] {
        let (_, outcome) = outcomes.recv().await.expect("an outcome");
        let (there, back) = outcome.expect("no error");
        assert_eq!((there.message_count, back.message_count), (1, 1));
    }
    near.abort();
    far.task.abort();
}

#[tokio::test]
async fn names_peers_that_fail_at_tls() {
    let mut serving = serving("tls").await;
    let target = (serving.address.host(), serving.address.port());
    let mut client = TcpStream::connect(target).await.expect("it is accepted");
    let from = client.local_addr().expect("connected");
    client.write_all(b"no TLS at all").await.expect("written");
    let (peer, outcome) = serving.outcomes.recv().await.expect("an outcome");
    assert_eq!(peer, Address::new("tls", from));
    let error = outcome.expect_err("it is refused");
    assert!(
        matches!(error, RelayError::Comm(CommError::Tls(_))),
        "{error}"
    );
    serving.task.abort();
}

#[tokio::test]
async fn names_peers_that_fail_at_quic() {
    let mut serving = serving("quic").await;
    // The peer trusts another authority, and aborts the handshake.
    let settings = TlsSettings::new(certificate("ca.pem"), certificate("self-signed.pem"));
    let tls = settings.build().expect("a certificate and its key");
    let client = daskwire_peer::transports_with_tls(&tls);
    let options = CommOptions::default();
    let connected = client.connect(&serving.address, &options).await;
    connected.expect_err("the relay is not trusted");
    let (peer, outcome) = serving.outcomes.recv().await.expect("an outcome");
    assert_eq!((peer.scheme(), peer.host()), ("quic", "127.0.0.1"));
    let error = outcome.expect_err("a failed handshake").to_string();
    assert!(error.contains("refused the TLS handshake"), "{error}");
    serving.task.abort();
}

/// The error names the target, although the client's connection succeeded.
#[tokio::test]
async fn names_a_target_that_fails_at_tls() {
    let target = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let to = Address::new("tls", target.local_addr().expect("bound"));
    let (address, mut outcomes, task) = serving_to("tcp", to).await;
    let near = (address.host(), address.port());
    let mut client = TcpStream::connect(near).await.expect("it is accepted");
    let handshake = vector("modern-nosplit-2026.8.0/handshake.bin");
    client.write_all(&handshake).await.expect("written");
    let (mut accepted, _) = target.accept().await.expect("a connection");
    accepted.write_all(b"no TLS at all").await.expect("written");
    let (peer, outcome) = outcomes.recv().await.expect("an outcome");
    assert_eq!(peer, Address::from(client.local_addr().expect("connected")));
    let error = outcome.expect_err("there is no target").to_string();
    assert!(error.starts_with("cannot reach the target: "), "{error}");
    task.abort();
}
