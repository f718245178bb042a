//! An unmodified Dask client connects to an unmodified scheduler over QUIC.

use std::process::Command;

use crate::support::relay::{Relay, certificate};
use daskwire_testing::{Environment, Peer};

#[test]
fn a_target_that_is_down_is_reported_at_once() {
    // Port 1 refuses connections.
    let relay = Relay::start("tcp://127.0.0.1:0", "tcp://127.0.0.1:1");
    let address = relay.address.trim_start_matches("tcp://");
    let _client = std::net::TcpStream::connect(address).expect("it listens");
    let line = relay.wait_for(|line| line.contains("cannot connect to tcp://127.0.0.1:1 yet: "));
    assert!(line.ends_with("; trying again for 30 s"), "{line}");
}

#[test]
fn a_client_submits_and_gathers_through_two_relays_over_quic() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let inner = Relay::start("quic://127.0.0.1:0", scheduler.address());
    assert!(inner.address.starts_with("quic://"), "{}", inner.address);
    let outer = Relay::start("tcp://127.0.0.1:0", &inner.address);
    let arguments = [outer.address.as_str(), "20000000"];
    let client = Peer::spawn(Environment::Current, "client.py", &arguments);
    assert_eq!(client.address(), "5050");

    // The request of our own client uses QUIC, too.
    let pem = certificate();
    let output = Command::new(env!("CARGO_BIN_EXE_daskwire"))
        .args(["identity", &inner.address])
        .arg("--tls-ca-file")
        .arg(&pem)
        .arg("--tls-cert")
        .arg(&pem)
        .output()
        .expect("the command runs");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && table.contains("worker-0"),
        "{table}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
