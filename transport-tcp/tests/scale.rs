//! Two thousand concurrent comms release all their resources, and lose no message if they are closed
//! at once.
//!
//! Memory and open files are measured for the process, so this is the only test of its process.
#![cfg(target_os = "linux")]

use daskwire_comm::conformance::{Pairs, closed_comms_release_resources};
use daskwire_comm::{CommReader, CommWriter};

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
        // Over inproc:// there is no socket that could be reset.
        if !address.starts_with("inproc") {
            comms_closed_at_once_lose_nothing(&scheme, 1000).await;
        }
        closed_comms_release_resources(&scheme, 2000).await;
    }
}

/// Closes and drops `count` comms whose peers have sent something, and checks that the peers get
/// the last message of each.
async fn comms_closed_at_once_lose_nothing<T>(pairs: &T, count: usize)
where
    T: Pairs<Reader = CommReader, Writer = CommWriter>,
{
    let mut peers = Vec::new();
    let mut comms = Vec::new();
    for _ in 0..count {
        let [comm, mut peer] = pairs.pair().await;
        peer.1.write_message(&[b"unread"]).await.unwrap();
        comms.push(comm);
        peers.push(peer);
    }
    for (reader, mut writer) in comms {
        writer.write_message(&[b"last"]).await.unwrap();
        writer.close().await.unwrap();
        drop((reader, writer));
    }
    for (number, (reader, writer)) in peers.iter_mut().enumerate() {
        // The socket of a comm that did not linger is reset by now.
        let sent = writer.write_message(&[b"more"]).await;
        assert!(sent.is_ok(), "comm {number} was reset");
        let last = reader.read_message().await.unwrap().unwrap();
        assert_eq!(&last[0][..], b"last");
    }
}
