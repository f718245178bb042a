//! Two thousand concurrent comms release all their resources.
//!
//! Memory and open files are measured for the process, so this is the only test of its process.
#![cfg(target_os = "linux")]

use daskwire_comm::conformance::closed_comms_release_resources;

#[path = "it/support/mod.rs"]
mod support;
use support::Quic;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_two_thousand_comms() {
    let quic = Quic::new("quic://127.0.0.1:0").await;
    closed_comms_release_resources(&quic, 2000).await;
    assert!(quic.near.connection_count() <= 1, "one for all comms");
}
