//! A peer whose process has ended is noticed before the idle timeout, and one that is only
//! silent is not.

use core::time::Duration;
use std::io;
use std::sync::Arc;

use daskwire_comm::{Address, Comm, CommError, CommOptions};
use daskwire_quic::QuicOptions;
use tokio::net::UdpSocket;
use tokio::runtime::Runtime;
use tokio::time::timeout;

mod support;
use support::{Node, tls};

/// Options whose idle timeout comes long before the end of [`error_of`].
fn impatient() -> QuicOptions {
    QuicOptions {
        keep_alive: Some(Duration::from_millis(200)),
        idle_timeout: Duration::from_secs(4),
        ..QuicOptions::default()
    }
}

/// One end of a comm, with threads of its own.
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

    /// Has the end send nothing more, not even the end of its connections. Its socket is
    /// open until what is returned and its comms are dropped.
    fn fall_silent(self) -> Arc<Node> {
        self.runtime.shutdown_timeout(Duration::from_secs(10));
        self.node
    }
}

/// A comm from one end to the other, on which a message has arrived.
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

/// The error by which a comm ends, which comes well before the usual idle timeout.
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
    for (ours, theirs) in [
        ("127.0.0.1", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("[::1]", "[::1]"),
    ] {
        // The peer that ends has accepted the connection, or made it.
        for accepted in [true, false] {
            let quic = QuicOptions {
                keep_alive: Some(Duration::from_millis(400)),
                ..QuicOptions::default()
            };
            let [near, far] = [ours, theirs].map(|host| End::new(host, quic.clone()));
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
            // All operations of the comm have the same cause.
            let outcome = near.runtime.block_on(ours.write_message(&[b"late"]));
            match outcome.expect_err("a loss") {
                CommError::Io(error) => assert_process_ended(&error),
                error => assert!(error.is_closed(), "{error}"),
            }
        }
    }
}

/// A process that is stopped, or a link that has become silent.
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
    let [near, far] = ["127.0.0.1"; 2].map(|host| End::new(host, impatient()));
    let router = End::new("127.0.0.1", QuicOptions::default()).runtime;
    let loopback = |port| (core::net::Ipv4Addr::LOCALHOST, port);
    let outside = router.block_on(async {
        // A connected socket: others than `near` find its port closed.
        let outside = UdpSocket::bind(loopback(0)).await?;
        outside.connect(loopback(near.port())).await?;
        let inside = UdpSocket::bind(loopback(0)).await?;
        inside.connect(loopback(far.port())).await?;
        let (outside, inside) = (Arc::new(outside), Arc::new(inside));
        for (from, to) in [(&outside, &inside), (&inside, &outside)] {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            tokio::spawn(async move {
                let mut packet = vec![0; 1 << 16];
                while let Ok(len) = from.recv(&mut packet).await {
                    let _ = to.send(&packet[..len]).await;
                }
            });
        }
        io::Result::Ok(outside)
    });
    let outside = outside.expect("sockets");
    let port = outside.local_addr().expect("it is bound").port();
    let [mut ours, theirs] = comm(&near, &far, &format!("quic://127.0.0.1:{port}"));
    // Idle and kept alive, while probes are refused.
    let idle = async { timeout(Duration::from_secs(3), ours.read_message()).await };
    let outcome = near.runtime.block_on(idle);
    assert!(outcome.is_err(), "{outcome:?}");
    router.shutdown_timeout(Duration::from_secs(10));
    let error = error_of(&near, &mut ours);
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    drop((outside, theirs));
}
