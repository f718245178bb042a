//! Tests that the end of a peer's process is noticed, on both ends of a connection.

use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use daskwire_comm::{Comm, CommError, CommOptions};
use daskwire_quic::QuicOptions;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::support::{Node, tls};

/// One end of a comm, with its own threads.
struct End {
    runtime: Runtime,
    node: Arc<Node>,
}

impl End {
    fn new() -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build();
        let runtime = runtime.expect("threads");
        let address = "quic://127.0.0.1:0".parse().expect("an address");
        let tls = tls();
        let quic = QuicOptions::default()
            .with_keep_alive(Duration::from_millis(200))
            .with_idle_timeout(Duration::from_secs(1));
        let node = Node::bind(&address, &tls, CommOptions::default(), quic);
        let node = Arc::new(runtime.block_on(node).expect("a socket"));
        Self { runtime, node }
    }
}

/// Makes a comm from one end to the other.
fn comm(connector: &End, acceptor: &End) -> [Comm; 2] {
    let node = Arc::clone(&acceptor.node);
    let accepted = acceptor
        .runtime
        .spawn(async move { node.accept().await?.handshake().await });
    let node = Arc::clone(&connector.node);
    let address = acceptor.node.local_address().expect("it is bound");
    let connected = connector
        .runtime
        .spawn(async move { node.connect(&address, &CommOptions::default()).await });
    let connected = connector.runtime.block_on(connected);
    let accepted = acceptor.runtime.block_on(accepted);
    [connected, accepted].map(|comm| comm.expect("no panic").expect("a comm"))
}

// PROTOCOL QUIC-18, QUIC-19
#[test]
fn the_end_of_a_process_is_noticed() {
    assert_eq!(QuicOptions::default().idle_timeout, Duration::from_secs(10));
    for has_accepted in [true, false] {
        let [near, far] = [End::new(), End::new()];
        let (mut ours, theirs) = if has_accepted {
            let [theirs, ours] = comm(&far, &near);
            (ours, theirs)
        } else {
            let [ours, theirs] = comm(&near, &far);
            (ours, theirs)
        };
        let mut read = |limit| {
            let runtime = &near.runtime;
            runtime.block_on(async { timeout(limit, ours.read_message()).await })
        };
        // Longer than the idle timeout.
        let idle = read(Duration::from_millis(1_500));
        assert!(idle.is_err(), "the comm ended while the peer was there");
        // Stopped threads send nothing more, not even the end of their connections.
        far.runtime.shutdown_timeout(Duration::from_secs(10));
        drop((far.node, theirs));
        let stopped = Instant::now();
        let error = read(Duration::from_secs(10)).expect("an end in time");
        let error = error.expect_err("a loss");
        assert!(error.is_closed(), "{error}");
        match error {
            CommError::Io(error) => assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}"),
            error => panic!("{error:?}"),
        }
        let late = stopped.elapsed();
        assert!(late < Duration::from_secs(3), "noticed after {late:?}");
    }
}
