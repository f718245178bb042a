//! Checks of relays with a Python scheduler, a Python worker and a Python client.

use std::path::Path;
use std::sync::{Arc, Mutex};

use daskwire_cli::inspect::{Inspector, Options as InspectOptions};
use daskwire_comm::Transports;
use daskwire_comm::tls::TlsSettings;
use daskwire_peer::relay::{Options, serve};
use daskwire_testing::{Peer, TLS_PEM};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::{Failure, Trial, ensure};

pub(crate) const NAMES: [&str; 3] = ["relay tcp", "relay quic", "inspect"];

pub(crate) async fn checks(trial: &mut Trial, scheduler: &str) {
    let python = trial.interpreter.clone();
    let tcp = through(&python, scheduler, &["tcp://127.0.0.1:0"]);
    trial.check(NAMES[0], tcp).await;
    let quic = ["quic://127.0.0.1:0", "tcp://127.0.0.1:0"];
    let quic = through(&python, scheduler, &quic);
    trial.check(NAMES[1], quic).await;
    trial.check(NAMES[2], inspects(&python, scheduler)).await;
}

/// Translates from a transport and back to it, between a scheduler and a client that use it.
pub(crate) async fn through_both(
    python: &Path,
    scheduler: &str,
    scheme: &str,
) -> Result<(), Failure> {
    let outer = format!("{scheme}://127.0.0.1:0");
    match scheme {
        // A Python client needs settings for TLS.
        "tls" => through(python, scheduler, &[&outer, "tcp://127.0.0.1:0"]).await,
        _ => through(python, scheduler, &["tcp://127.0.0.1:0", &outer]).await,
    }
}

/// The bytes of connections: for each, those from the client and those from the scheduler.
type Recorded = Arc<Mutex<Vec<Arc<Mutex<[Vec<u8>; 2]>>>>>;

/// Forwards one direction of a connection, and records it.
async fn record(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    bytes: Arc<Mutex<[Vec<u8>; 2]>>,
    direction: usize,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        bytes.lock().expect("no panic")[direction].extend_from_slice(&buffer[..len]);
        if to.write_all(&buffer[..len]).await.is_err() {
            break;
        }
    }
}

/// The messages between a client and the scheduler can be inspected.
async fn inspects(python: &Path, scheduler: &str) -> Result<(), Failure> {
    let target = scheduler
        .strip_prefix("tcp://")
        .unwrap_or(scheduler)
        .to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("tcp://{}", listener.local_addr()?);
    let recorded = Recorded::default();
    let all = Arc::clone(&recorded);
    let forwarding = Relay(tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((inner, _)) = listener.accept().await {
            let Ok(outer) = TcpStream::connect(&target).await else {
                break;
            };
            let bytes = Arc::default();
            all.lock().expect("no panic").push(Arc::clone(&bytes));
            let ((from, back), (answers, to)) = (inner.into_split(), outer.into_split());
            connections.spawn(record(from, to, Arc::clone(&bytes), 0));
            connections.spawn(record(answers, back, bytes, 1));
        }
    }));
    let arguments = [&*address, "2000000"];
    let client = tokio::task::block_in_place(|| Peer::spawn_with(python, "client.py", &arguments));
    ensure!(client.address() == "5050", "{}", client.address());
    drop(forwarding);
    let recorded = recorded.lock().expect("no panic");
    let (mut message_count, mut shown) = (0, String::new());
    for connection in recorded.iter() {
        for bytes in connection.lock().expect("no panic").iter() {
            if bytes.is_empty() {
                continue;
            }
            let mut inspector = Inspector::new(bytes, InspectOptions::default());
            while let Some(message) = inspector.next_message()? {
                shown += &inspector.text(&message)?;
                inspector.json(&message)?;
                message_count += 1;
            }
        }
    }
    ensure!(message_count >= 8, "{message_count} messages");
    for op in ["register-client", "stream-start", "update-graph", "gather"] {
        ensure!(shown.contains(op), "no {op}: {shown}");
    }
    Ok(())
}

/// A relay task. Aborted when dropped.
struct Relay(JoinHandle<()>);

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a relay, and returns its address.
async fn start(
    transports: &Transports,
    listen: &str,
    to: &str,
) -> Result<(Relay, String), Failure> {
    let listener = transports
        .bind(&listen.parse()?, Default::default())
        .await?;
    let address = listener.local_address()?.to_string();
    let (transports, to) = (transports.clone(), to.parse()?);
    let task = tokio::spawn(async move {
        let stop = std::future::pending();
        let _ = serve(
            &listener,
            &transports,
            &to,
            Options::default(),
            |_, _| {},
            stop,
        )
        .await;
    });
    Ok((Relay(task), address))
}

/// A Python client computes, and transfers data in both directions.
/// The client connects to the last of the relays.
async fn through(python: &Path, scheduler: &str, listen: &[&str]) -> Result<(), Failure> {
    let settings = TlsSettings::new(Path::new(TLS_PEM), Path::new(TLS_PEM));
    let transports = daskwire_peer::transports_with_tls(&settings.build()?);
    let mut relays = Vec::new();
    let mut to = scheduler.to_owned();
    for listen in listen {
        let (relay, address) = start(&transports, listen, &to).await?;
        relays.push(relay);
        to = address;
    }
    let arguments = [&*to, "2000000"];
    let client = tokio::task::block_in_place(|| Peer::spawn_with(python, "client.py", &arguments));
    ensure!(client.address() == "5050", "{}", client.address());
    Ok(())
}
