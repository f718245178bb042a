//! A `daskwire relay` process.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// A running `daskwire relay`.
pub(crate) struct Relay {
    process: Child,
    /// The address at which the relay listens.
    pub address: String,
    /// The lines of standard error after the first one.
    lines: mpsc::Receiver<String>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Relay {
    pub(crate) fn start(listen: &str, connect: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
        command.args(["relay", "--listen", listen, "--connect", connect]);
        let is_encrypted = |address: &str| {
            let mut schemes = ["tls:", "quic:", "wss:"].into_iter();
            schemes.any(|scheme| address.starts_with(scheme))
        };
        if is_encrypted(listen) || is_encrypted(connect) {
            command.arg("--tls-ca-file").arg(certificate());
            command.arg("--tls-cert").arg(certificate());
        }
        let mut process = command
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command runs");
        let mut said = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut first = String::new();
        said.read_line(&mut first).expect("text");
        let address = first
            .strip_prefix("daskwire: forwarding from ")
            .and_then(|rest| rest.split_once(" to "))
            .unwrap_or_else(|| panic!("the relay says: {first}"))
            .0
            .to_owned();
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                println!("{line}");
                // Most tests do not look at the lines.
                let _ = sender.send(line);
            }
        });
        Self {
            process,
            address,
            lines,
        }
    }

    /// Waits for a matching line on standard error, and returns it.
    pub(crate) fn wait_for(&self, is_wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(20));
            let line = line.expect("the line comes");
            if is_wanted(&line) {
                return line;
            }
        }
    }

    /// Sends a signal, given by its name without `SIG`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let outcome = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(outcome.expect("the command kill").success());
    }

    /// Waits until the relay ends.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait().expect("it was started")
    }
}

/// A self-signed certificate for all parties.
pub(crate) fn certificate() -> PathBuf {
    daskwire_testing::certificate("self-signed.pem")
}
