//! Tests that the end of a peer's process is detected before the idle timeout, and that a
//! silent peer is not taken for an ended one.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use daskwire_comm::{Address, Comm, CommError, CommOptions};
use daskwire_quic::QuicOptions;
use tokio::net::UdpSocket;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::support::{Node, tls};

/// Options whose idle timeout is much shorter than the limit of [`error_of`].
fn impatient() -> QuicOptions {
    QuicOptions {
        keep_alive: Some(Duration::from_millis(200)),
        idle_timeout: Duration::from_secs(4),
        ..QuicOptions::default()
    }
}

/// One end of a comm, with its own threads.
struct End {
    runtime: Runtime,
    node: Arc<Node>,
}

impl End {
    fn new(host: &str, quic: QuicOptions) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build();
        let runtime = runtime.expect("threads");
        let address = format!("quic://{host}:0").parse().expect("an address");
        let tls = tls();
        let node = Node::bind(&address, &tls, CommOptions::default(), quic);
        let node = Arc::new(runtime.block_on(node).expect("a socket"));
        Self { runtime, node }
    }

    fn port(&self) -> u16 {
        self.node.local_address().expect("it is bound").port()
    }

    /// Stops the threads, so that this end sends nothing more, not even the end of its
    /// connections. Its socket stays open until the returned node and its comms are dropped.
    fn fall_silent(self) -> Arc<Node> {
        self.runtime.shutdown_timeout(Duration::from_secs(10));
        self.node
    }
}

/// Makes a comm from one end to the other, and sends a message on it.
fn comm(connector: &End, acceptor: &End, address: &str) -> [Comm; 2] {
    let node = Arc::clone(&acceptor.node);
    let accepted = acceptor.runtime.spawn(async move {
        let mut comm = node.accept().await?.handshake().await?;
        comm.read_message().await?;
        Ok::<_, CommError>(comm)
    });
    let node = Arc::clone(&connector.node);
    let address: Address = address.parse().expect("an address");
    let connected = connector.runtime.spawn(async move {
        let mut comm = node.connect(&address, &CommOptions::default()).await?;
        comm.write_message(&[b"message"]).await?;
        Ok::<_, CommError>(comm)
    });
    let connected = connector.runtime.block_on(connected);
    let accepted = acceptor.runtime.block_on(accepted);
    [connected, accepted].map(|comm| comm.expect("no panic").expect("a comm"))
}

/// Waits for the error that ends a comm, which must occur well before the default idle
/// timeout.
fn error_of(end: &End, comm: &mut Comm) -> io::Error {
    let limit = Duration::from_secs(20);
    let read = end
        .runtime
        .block_on(async { timeout(limit, comm.read_message()).await });
    let error = read.expect("an end in time").expect_err("a loss");
    assert!(error.is_closed(), "{error}");
    match error {
        CommError::Io(error) => error,
        other => panic!("{other:?}"),
    }
}

fn assert_process_ended(error: &io::Error) {
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    assert!(error.to_string().contains("process has ended"), "{error}");
}

// PROTOCOL QUIC-25
#[test]
fn the_end_of_a_process_is_noticed() {
    std::thread::scope(|scope| {
        for hosts in [
            ["127.0.0.1", "127.0.0.1"],
            ["", "127.0.0.1"],
            ["[::1]", "[::1]"],
        ] {
            // The peer that ends has accepted the connection, or made it.
            for accepted in [true, false] {
                let name = format!("{hosts:?}, accepted: {accepted}");
                let builder = std::thread::Builder::new().name(name);
                let run = move || the_end_is_noticed(hosts, accepted);
                builder.spawn_scoped(scope, run).expect("a thread");
            }
        }
    });
}

fn the_end_is_noticed(hosts: [&str; 2], accepted: bool) {
    let quic = QuicOptions {
        keep_alive: Some(Duration::from_millis(400)),
        ..QuicOptions::default()
    };
    let [near, far] = hosts.map(|host| End::new(host, quic.clone()));
    let theirs = hosts[1];
    let (mut ours, theirs) = if accepted {
        let address = format!("quic://{theirs}:{}", far.port());
        let [near, far] = comm(&near, &far, &address);
        (near, far)
    } else {
        let address = format!("quic://{theirs}:{}", near.port());
        let [far, near] = comm(&far, &near, &address);
        (near, far)
    };
    // The comm keeps the socket open too.
    drop((far.fall_silent(), theirs));
    assert_process_ended(&error_of(&near, &mut ours));
    // All operations of the comm fail for the same reason.
    let outcome = near.runtime.block_on(ours.write_message(&[b"late"]));
    match outcome.expect_err("a loss") {
        CommError::Io(error) => assert_process_ended(&error),
        error => assert!(error.is_closed(), "{error}"),
    }
}

/// A silent peer may be a stopped process, or one behind a link that drops all packets.
// PROTOCOL QUIC-25
#[test]
fn silence_is_not_the_end_while_the_port_is_open() {
    let [near, far] = ["127.0.0.1"; 2].map(|host| End::new(host, impatient()));
    let address = format!("quic://127.0.0.1:{}", far.port());
    let [mut ours, theirs] = comm(&near, &far, &address);
    let open = far.fall_silent();
    let error = error_of(&near, &mut ours);
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    drop((open, theirs));
}

#[test]
fn the_idle_timeout_alone_decides_without_probes() {
    let quic = QuicOptions {
        probe_port: false,
        ..impatient()
    };
    let [near, far] = ["127.0.0.1"; 2].map(|host| End::new(host, quic.clone()));
    let address = format!("quic://127.0.0.1:{}", far.port());
    let [mut ours, theirs] = comm(&near, &far, &address);
    drop((far.fall_silent(), theirs));
    let error = error_of(&near, &mut ours);
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
}

/// A firewall or a router with address translation refuses packets from any port but that of
/// the connection, so that its refusals do not tell whether the peer has ended.
// PROTOCOL QUIC-25
#[test]
fn refusals_of_a_router_do_not_count() {
    refusals_do_not_count(&impatient(), Duration::ZERO, true);
}

/// The same, if the router does not answer the first probe: the system limits such answers.
#[test]
fn refusals_of_a_router_do_not_count_if_the_first_probe_has_no_answer() {
    refusals_do_not_count(&impatient(), Duration::ZERO, false);
}

/// The same, if the router forwards nothing for a while after the first refusal.
#[test]
fn refusals_of_a_router_do_not_count_after_an_outage() {
    let quic = QuicOptions {
        keep_alive: Some(Duration::from_millis(400)),
        // Without discovery of the path MTU: its packets would fill the congestion window while
        // they are lost, and delay the message after the outage.
        max_udp_payload: 1_200,
        ..impatient()
    };
    // The first probe takes 250 ms. The outage outlasts the two silent intervals after it
    // (1,050 ms), and ends before the next probe (1,850 ms).
    refusals_do_not_count(&quic, Duration::from_millis(1_400), true);
}

fn refusals_do_not_count(quic: &QuicOptions, outage: Duration, answers_first: bool) {
    let is_out = Arc::new(AtomicBool::new(false));
    let [near, far] = ["127.0.0.1"; 2].map(|host| End::new(host, quic.clone()));
    let router = End::new("127.0.0.1", QuicOptions::default()).runtime;
    let loopback = |port| (core::net::Ipv4Addr::LOCALHOST, port);
    let ends = [&near, &far].map(|end| SocketAddr::from(loopback(end.port())));
    let outside = router.block_on(async {
        let outside = UdpSocket::bind(loopback(0)).await?;
        if answers_first {
            // For senders other than `near`, the port of a connected socket is closed.
            outside.connect(ends[0]).await?;
        }
        let outside = Arc::new(outside);
        let inside = Arc::new(UdpSocket::bind(loopback(0)).await?);
        for (from, to, ends) in [
            (&outside, &inside, ends),
            (&inside, &outside, [ends[1], ends[0]]),
        ] {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            let is_out = Arc::clone(&is_out);
            tokio::spawn(async move {
                let mut packet = vec![0; 1 << 16];
                while let Ok((len, sender)) = from.recv_from(&mut packet).await {
                    if sender != ends[0] {
                        // The first probe
                        let _ = from.connect(ends[0]).await;
                    } else if !is_out.load(Ordering::Relaxed) {
                        let _ = to.send_to(&packet[..len], ends[1]).await;
                    }
                }
            });
        }
        io::Result::Ok(outside)
    });
    let outside = outside.expect("sockets");
    let port = outside.local_addr().expect("it is bound").port();
    let [mut ours, mut theirs] = comm(&near, &far, &format!("quic://127.0.0.1:{port}"));
    if !outage.is_zero() {
        is_out.store(true, Ordering::Relaxed);
        std::thread::sleep(outage);
        is_out.store(false, Ordering::Relaxed);
        // A message is sent at once. Packets that keep the connection alive may be late, since
        // each lost one doubles the time to the next.
        let write = theirs.write_message(&[b"message"]);
        far.runtime.block_on(write).expect("a connection");
        let read = near.runtime.block_on(ours.read_message());
        assert!(matches!(read, Ok(Some(_))), "{read:?}");
    }
    // The connection is idle and kept alive, while probes are refused.
    let idle = async { timeout(Duration::from_secs(3), ours.read_message()).await };
    let outcome = near.runtime.block_on(idle);
    assert!(outcome.is_err(), "{outcome:?}");
    router.shutdown_timeout(Duration::from_secs(10));
    let error = error_of(&near, &mut ours);
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    drop((outside, theirs));
}
