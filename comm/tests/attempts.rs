//! Attempts to connect to peers that do not answer.

use std::time::Duration;

use daskwire_comm::runtime::Instant;
use daskwire_comm::{Address, CommError, CommOptions, Listener, Phase, Traffic, Transports};

const SECOND: Duration = Duration::from_secs(1);

async fn bind(location: &str) -> (Transports, Listener, Address) {
    let transports = Transports::new();
    let address: Address = format!("inproc://{location}").parse().expect("an address");
    let listener = transports.bind(&address, CommOptions::default()).await;
    (transports, listener.expect("a listener"), address)
}

fn is_handshake_timeout(error: &CommError, wanted: Duration) -> bool {
    matches!(
        error,
        CommError::Timeout { phase: Phase::Handshake, timeout } if *timeout == wanted
    )
}

/// A scheduler that is busy accepts connections, and does their handshakes later.
#[tokio::test(start_paused = true)]
async fn connectors_try_again_after_a_handshake_that_took_too_long() {
    let (transports, listener, address) = bind("silent-at-first").await;
    let serving = tokio::spawn(async move {
        let mut silent = Vec::new();
        for _ in 0..3 {
            silent.push(listener.accept().await.expect("a connection"));
        }
        let comm = listener.accept().await.expect("a connection").handshake();
        let comm = comm.await.expect("a comm");
        (silent.len(), comm)
    });
    let options = CommOptions::default()
        // Shorter than all attempts together, and longer than one.
        .with_connect_timeout(2 * SECOND)
        .with_handshake_timeout(SECOND);
    let start = Instant::now();
    let comm = transports.connect(&address, &options).await;
    comm.expect("the fourth handshake is done");
    assert!(start.elapsed() >= 3 * SECOND && start.elapsed() < 4 * SECOND);
    assert_eq!(serving.await.expect("no panic").0, 3);
}

#[tokio::test(start_paused = true)]
async fn connectors_end_at_their_own_deadline() {
    let (transports, _listener, address) = bind("silent").await;
    let patient = CommOptions::default()
        .with_answer_timeout(10 * SECOND)
        .with_connect_timeout(SECOND)
        .with_handshake_timeout(3 * SECOND);
    for (options, after) in [
        (patient.clone(), 10 * SECOND),
        // A connector that may wait longer for a connection may do so for a handshake.
        (
            patient.clone().with_connect_timeout(20 * SECOND),
            20 * SECOND,
        ),
        (patient.clone().within(2 * SECOND), 2 * SECOND),
        (patient.clone().with_connect_retry(false), 3 * SECOND),
        (CommOptions::default(), 300 * SECOND),
    ] {
        let start = Instant::now();
        let error = transports.connect(&address, &options).await;
        let error = error.expect_err("the listener is silent");
        assert!(is_handshake_timeout(&error, after), "{error}");
        let late = start.elapsed() - after;
        assert!(late < SECOND / 10, "{late:?}");
    }
}

/// The listener of a peer that ends while it is busy.
#[tokio::test(start_paused = true)]
async fn the_error_is_that_of_the_last_attempt() {
    let (transports, listener, address) = bind("ending").await;
    let options = CommOptions::default()
        .with_connect_timeout(2 * SECOND)
        .with_handshake_timeout(SECOND);
    let ending = async {
        let silent = listener.accept().await;
        drop(listener);
        tokio::time::sleep(10 * SECOND).await;
        drop(silent);
    };
    let start = Instant::now();
    let connecting = transports.connect_for(&address, &options, Traffic::Control);
    let (connected, ()) = tokio::join!(
        async {
            let connected = connecting.await;
            (connected, start.elapsed())
        },
        ending
    );
    let (connected, elapsed) = connected;
    let error = connected.expect_err("there is no listener");
    assert!(matches!(error, CommError::Connect { .. }), "{error}");
    // The attempt that was silent, and the time for a connection.
    assert!(elapsed >= 3 * SECOND && elapsed < 4 * SECOND, "{elapsed:?}");
}
