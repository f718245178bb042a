//! Two thousand concurrent comms release all their resources.
//!
//! Memory and open files are measured for the process, so this is the only test of its process.
#![cfg(target_os = "linux")]

use daskwire_comm::conformance::closed_comms_release_resources;

use daskwire_tcp::TcpOptions;

#[path = "it/support/mod.rs"]
mod support;
use support::bound;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_two_thousand_comms_of_any_scheme() {
    let path = std::env::temp_dir().join(format!("daskwire-scale-{}.sock", std::process::id()));
    let unix = format!("unix://{}", path.display());
    for (address, options) in [
        ("tcp://127.0.0.1:0", TcpOptions::default()),
        (&*unix, TcpOptions::default()),
        ("inproc://scale", TcpOptions::default()),
        #[cfg(feature = "ring")]
        ("tls://127.0.0.1:0", support::with_tls()),
    ] {
        let scheme = bound(address, options).await;
        closed_comms_release_resources(&scheme, 2000).await;
    }
}
