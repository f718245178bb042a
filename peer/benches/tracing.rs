//! The cost of events for `tracing`.
//!
//! `cargo bench -p daskwire-peer [--features tracing] --bench tracing -- WORK SUBSCRIBER COUNT`
//!
//! WORK is `comm` (a comm in memory is made, with its handshakes, and closed), `message`
//! (100 bytes are sent over a comm in memory and answered) or `task` (a task on an
//! embedded cluster in memory, from `submit` to its result). SUBSCRIBER is `none`, or
//! the least important level that it formats: `info`, `debug` or `trace`. The work is
//! done COUNT times on one thread; `peer/benches/tracing.py` counts the instructions.
#![allow(missing_docs)]

use daskwire_comm::{Comm, CommOptions, Transports};
use daskwire_peer::cluster::{ClusterTransport, LocalCluster};

async fn pair(transports: &Transports, listener: &daskwire_comm::Listener) -> (Comm, Comm) {
    let address = listener.local_address().expect("bound");
    let options = CommOptions::default();
    let (near, far) = tokio::join!(transports.connect(&address, &options), async {
        listener.accept().await?.handshake().await
    });
    (near.expect("a comm"), far.expect("a comm"))
}

async fn work(work: &str, count: usize) {
    let transports = Transports::new();
    let address = "inproc://bench".parse().expect("an address");
    let listener = transports.bind(&address, CommOptions::default()).await;
    let listener = listener.expect("a listener");
    match work {
        "comm" => {
            for _ in 0..count {
                let (mut near, far) = pair(&transports, &listener).await;
                near.close().await.expect("closed");
                drop(far);
            }
        }
        "message" => {
            let (mut near, mut far) = pair(&transports, &listener).await;
            for _ in 0..count {
                near.write_message(&[[7; 100]]).await.expect("sent");
                far.read_message().await.expect("a message");
                far.write_message(&[[7; 100]]).await.expect("sent");
                near.read_message().await.expect("a message");
            }
        }
        "task" => {
            let cluster = LocalCluster::builder().transport(ClusterTransport::Memory);
            let cluster = cluster.start().await.expect("a cluster");
            let client = cluster.client().await.expect("a client");
            for number in 0..count {
                let call = client.call("operator.add").argument(number as i64);
                let future = call.argument(1).submit().expect("submitted");
                future.result().await.expect("a result");
            }
            client.close().await.expect("closed");
            cluster.close().await;
        }
        other => panic!("there is no work {other}"),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (what, subscriber, count) = match &arguments[..] {
        [what, subscriber, count] => (what, subscriber, count.parse().expect("a number")),
        // As `cargo test --benches` and a bare `cargo bench` run it.
        _ => return println!("see peer/benches/tracing.py"),
    };
    if subscriber != "none" {
        let level: tracing_subscriber::filter::LevelFilter = subscriber.parse().expect("a level");
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(std::io::sink)
            .init();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work(what, count));
}
