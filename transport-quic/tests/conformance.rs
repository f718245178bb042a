//! The conformance checks over QUIC.

use daskwire_comm::conformance::{check_comms, dying_peers_are_detected};

#[path = "it/support/mod.rs"]
mod support;
use support::Quic;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn quic_over_ipv4() {
    let quic = Quic::new("quic://127.0.0.1:0").await;
    check_comms(&quic).await;
    dying_peers_are_detected(&quic, 1000).await;
    assert_eq!(quic.near.connection_count(), 1, "one for all comms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn quic_over_ipv6() {
    check_comms(&Quic::new("quic://[::1]:0").await).await;
}

/// On smol no tokio runtime is entered, so that sockets and timers are those of smol.
#[test]
fn quic_on_smol() {
    smol::block_on(async {
        let quic = Quic::new("quic://127.0.0.1:0").await;
        check_comms(&quic).await;
        dying_peers_are_detected(&quic, 1000).await;
    });
}
