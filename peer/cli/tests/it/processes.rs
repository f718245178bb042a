//! Tests of what peers observe when a process ends, cleanly or by `kill -9`.

use std::time::{Duration, Instant};

use crate::support::relay::{Relay, certificate};
use daskwire_comm::tls::TlsSettings;
use daskwire_comm::{Address, Comm, CommError, CommOptions, Transports};
use daskwire_quic::{Quic, QuicOptions};

/// Length of each message in bytes.
const LEN: usize = 1 << 20;

fn transports() -> Transports {
    let pem = certificate();
    let tls = TlsSettings::new(&*pem, &*pem).build();
    let tls = tls.expect("a certificate");
    let quic = QuicOptions::default().with_tls(&tls);
    daskwire_peer::transports_with_tls(&tls).with(Quic::new(quic))
}

/// Starts a peer that endlessly sends messages of 1 MiB on each comm.
async fn talker() -> Address {
    let any = "tcp://127.0.0.1:0".parse().expect("an address");
    let listener = transports()
        .bind(&any, CommOptions::default())
        .await
        .expect("a port");
    let address = listener.local_address().expect("bound address");
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            tokio::spawn(async move {
                let mut comm = incoming.handshake().await?;
                let frame = vec![7; LEN];
                loop {
                    comm.write_message(&[&frame]).await?;
                }
                #[allow(unreachable_code, reason = "for the type")]
                Ok::<_, CommError>(())
            });
        }
    });
    address
}

/// Connects to the peer through a relay that listens at `listen`.
async fn through_a_relay(talker: &Address, listen: &str) -> (Relay, Transports, Comm) {
    let relay = Relay::start(listen, &talker.to_string());
    let transports = transports();
    let options = CommOptions::default();
    let address = relay.address.parse().expect("an address");
    let comm = transports.connect(&address, &options).await;
    (relay, transports, comm.expect("a comm"))
}

/// Reads until the comm ends, and returns the time since `since`.
async fn read_to_the_end(comm: &mut Comm, since: Instant) -> Duration {
    loop {
        match comm.read_message().await {
            Ok(Some(frames)) => assert_eq!((frames.len(), frames[0].len()), (1, LEN)),
            Ok(None) => return since.elapsed(),
            Err(error) => {
                assert!(error.is_closed(), "{error}");
                return since.elapsed();
            }
        }
    }
}

fn unix(name: &str) -> String {
    let file = format!("daskwire-{name}-{}.sock", std::process::id());
    format!("unix://{}", std::env::temp_dir().join(file).display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn detects_a_killed_process() {
    let talker = talker().await;
    let unix = unix("killed");
    for listen in ["tcp://127.0.0.1:0", "tls://127.0.0.1:0", &unix] {
        for round in 0..10 {
            check_kill(&talker, listen, round, Duration::from_secs(1)).await;
        }
    }
    // Nothing closes a QUIC connection of a killed process: the idle timeout of 10 seconds
    // ends it.
    let quic = |round| {
        check_kill(
            &talker,
            "quic://127.0.0.1:0",
            round,
            Duration::from_secs(15),
        )
    };
    tokio::join!(quic(0), quic(1), quic(2));
}

/// Checks that the end of a killed relay is noticed in time.
async fn check_kill(talker: &Address, listen: &str, round: u64, at_most: Duration) {
    let (mut relay, _connector, mut comm) = through_a_relay(talker, listen).await;
    let killing = async {
        tokio::time::sleep(Duration::from_millis(3 + 7 * round)).await;
        let before = Instant::now();
        relay.signal("KILL");
        (before, Instant::now())
    };
    // Data received before the kill must still be read, which takes time.
    let reading = read_to_the_end(&mut comm, Instant::now());
    let ((before, killed), end) = tokio::time::timeout(Duration::from_secs(30), async {
        tokio::join!(killing, async {
            reading.await;
            Instant::now()
        })
    })
    .await
    .unwrap_or_else(|_| panic!("{listen}: not detected"));
    assert!(end >= before, "{listen}: the end came by itself");
    let late = end.saturating_duration_since(killed);
    assert!(late <= at_most, "{listen}: noticed after {late:?}");
    assert!(!relay.wait().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_a_relay_closes_its_connections() {
    let talker = talker().await;
    let unix = unix("stopped");
    for listen in [
        "tcp://127.0.0.1:0",
        "tls://127.0.0.1:0",
        &unix,
        "quic://127.0.0.1:0",
    ] {
        for signal in ["TERM", "INT"] {
            let (mut relay, _connector, mut comm) = through_a_relay(&talker, listen).await;
            assert!(comm.read_message().await.expect("a message").is_some());
            relay.signal(signal);
            let asked = Instant::now();
            let reading = read_to_the_end(&mut comm, asked);
            let late = tokio::time::timeout(Duration::from_secs(30), reading).await;
            let late = late.unwrap_or_else(|_| panic!("{listen}: not detected"));
            assert!(
                late < Duration::from_secs(2),
                "{listen}: noticed after {late:?}"
            );
            assert!(relay.wait().success(), "{listen}: {signal}");
        }
    }
    let path = unix.strip_prefix("unix://").expect("its scheme");
    assert!(
        !std::path::Path::new(path).exists(),
        "the socket was not removed"
    );
}
