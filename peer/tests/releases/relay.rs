//! Checks of relays, with a scheduler, a worker and a client in Python.

use std::path::Path;

use daskwire_comm::Transports;
use daskwire_comm::tls::TlsSettings;
use daskwire_peer::relay::{Options, serve};
use daskwire_testing::{Peer, TLS_PEM};
use tokio::task::JoinHandle;

use super::{Failure, Trial, ensure};

pub(crate) const NAMES: [&str; 2] = ["relay tcp", "relay quic"];

pub(crate) async fn checks(trial: &mut Trial, scheduler: &str) {
    let python = trial.interpreter.clone();
    let tcp = through(&python, scheduler, None);
    trial.check(NAMES[0], tcp).await;
    let quic = through(&python, scheduler, Some("quic://127.0.0.1:0"));
    trial.check(NAMES[1], quic).await;
}

/// Aborts the task when dropped.
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

/// A client in Python computes, and sends data there and back.
async fn through(python: &Path, scheduler: &str, middle: Option<&str>) -> Result<(), Failure> {
    let settings = TlsSettings::new(Path::new(TLS_PEM), Path::new(TLS_PEM));
    let transports = daskwire_peer::transports_with_tls(&settings.build()?);
    let mut relays = Vec::new();
    let mut to = scheduler.to_owned();
    for listen in middle.into_iter().chain(["tcp://127.0.0.1:0"]) {
        let (relay, address) = start(&transports, listen, &to).await?;
        relays.push(relay);
        to = address;
    }
    let arguments = [&*to, "2000000"];
    let client = tokio::task::block_in_place(|| Peer::spawn_with(python, "client.py", &arguments));
    ensure!(client.address() == "5050", "{}", client.address());
    Ok(())
}
