//! The conformance checks over WebSocket, on tokio and on smol.

use daskwire_comm::conformance::{check_comms, dying_peers_are_detected};

use daskwire_tcp::TcpOptions;

#[path = "it/support/mod.rs"]
mod support;
use support::bound;

/// Runs all checks at this address.
async fn check(address: &str, options: TcpOptions) {
    let pairs = bound(address, options).await;
    check_comms(&pairs).await;
    dying_peers_are_detected(&pairs, 1000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ws_over_ipv4() {
    check("ws://127.0.0.1:0", TcpOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ws_over_ipv6() {
    check("ws://[::1]:0", TcpOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn wss() {
    check("wss://127.0.0.1:0", support::with_tls()).await;
}

/// On smol no tokio runtime is entered, so that sockets and timers are those of smol.
#[test]
fn ws_on_smol() {
    smol::block_on(check("ws://127.0.0.1:0", TcpOptions::default()));
}

#[test]
fn wss_on_smol() {
    smol::block_on(check("wss://127.0.0.1:0", support::with_tls()));
}
