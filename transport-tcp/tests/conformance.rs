//! The conformance checks over each transport of this package, on tokio and on smol.

use daskwire_comm::conformance::{check_comms, dying_peers_are_detected};

use daskwire_tcp::TcpOptions;

#[path = "it/support/mod.rs"]
mod support;
use support::bound;

/// Runs all checks over the transport of this address.
async fn check(address: &str, options: TcpOptions) {
    let scheme = bound(address, options).await;
    check_comms(&scheme).await;
    dying_peers_are_detected(&scheme, 1000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tcp_over_ipv4() {
    check("tcp://127.0.0.1:0", TcpOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tcp_over_ipv6() {
    check("tcp://[::1]:0", TcpOptions::default()).await;
}

#[cfg(feature = "ring")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tls() {
    check("tls://127.0.0.1:0", support::with_tls()).await;
}

/// On smol no tokio runtime is entered, so that sockets and timers are those of smol.
#[test]
fn tcp_on_smol() {
    smol::block_on(check("tcp://127.0.0.1:0", TcpOptions::default()));
}

#[cfg(feature = "ring")]
#[test]
fn tls_on_smol() {
    smol::block_on(check("tls://127.0.0.1:0", support::with_tls()));
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unix_sockets() {
    let path = std::env::temp_dir().join(format!("daskwire-{}.sock", std::process::id()));
    check(&format!("unix://{}", path.display()), TcpOptions::default()).await;
    assert!(!path.exists(), "the socket file was removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn within_the_process() {
    check("inproc://conformance", TcpOptions::default()).await;
}
