//! An unmodified Dask client reaches an unmodified scheduler over QUIC.

mod support;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::{Environment, Peer};

/// A relay, as the command.
struct Relay {
    process: Child,
    address: String,
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Relay {
    fn start(listen: &str, connect: &str) -> Self {
        // One certificate for all, which is its own authority.
        let pem = "../transport-tcp/tests/tls/self-signed.pem";
        let pem = Path::new(env!("CARGO_MANIFEST_DIR")).join(pem);
        let mut process = Command::new(env!("CARGO_BIN_EXE_daskwire"))
            .args(["relay", "--listen", listen, "--connect", connect])
            .arg("--tls-ca-file")
            .arg(&pem)
            .arg("--tls-cert")
            .arg(&pem)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command runs");
        let mut said = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut first = String::new();
        said.read_line(&mut first).expect("text");
        let address = first
            .strip_prefix("daskwire: passing on from ")
            .and_then(|rest| rest.split_once(" to "))
            .unwrap_or_else(|| panic!("the relay says: {first}"))
            .0
            .to_owned();
        // Somebody has to read what else it says.
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                println!("{line}");
            }
        });
        Self { process, address }
    }
}

#[test]
fn a_client_submits_and_gathers_through_two_relays_over_quic() {
    let scheduler = support::scheduler_with_workers(1);
    let inner = Relay::start("quic://127.0.0.1:0", scheduler.address());
    assert!(inner.address.starts_with("quic://"), "{}", inner.address);
    let outer = Relay::start("tcp://127.0.0.1:0", &inner.address);
    let arguments = [outer.address.as_str(), "20000000"];
    let client = Peer::spawn(Environment::Current, "client.py", &arguments);
    assert_eq!(client.address(), "5050");

    // Our own question goes over QUIC too.
    let pem = "../transport-tcp/tests/tls/self-signed.pem";
    let pem = Path::new(env!("CARGO_MANIFEST_DIR")).join(pem);
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
