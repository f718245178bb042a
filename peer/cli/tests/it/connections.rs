//! Log events of `daskwire -v` for connections that fail.

use crate::support::command::run;
use crate::support::relay::Relay;
use daskwire_testing::{TLS_PEM, certificate};

/// A port without a listener.
fn unused() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    format!("tcp://127.0.0.1:{port}")
}

#[test]
fn attempts_to_connect_are_logged() {
    let address = unused();
    let ran = run(&["-v", "gather", "--timeout", "1", &address, "key"], None);
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    let lines: Vec<&str> = ran.err.lines().collect();
    let of_peer = format!("peer={address}");
    let attempts = lines.iter().filter(|line| line.ends_with(&of_peer));
    assert!(attempts.count() > 3, "{}", ran.err);
    let first = "INFO daskwire_comm: attempt 1 to connect failed: Connection refused";
    assert!(lines[0].contains(first), "{}", ran.err);
    let [.., last, error] = &lines[..] else {
        panic!("{}", ran.err);
    };
    assert!(
        last.contains("INFO daskwire_comm: gave up after attempt "),
        "{last}"
    );
    assert!(error.starts_with("daskwire: cannot connect to "), "{error}");
    // Without -v, only the first attempt and the error are reported.
    let ran = run(&["gather", "--timeout", "1", &address, "key"], None);
    let [first, last] = ran.err.lines().collect::<Vec<_>>()[..] else {
        panic!("{}", ran.err);
    };
    assert!(first.ends_with("; trying again for 1 s"), "{first}");
    assert!(last.starts_with("daskwire: cannot connect to "), "{last}");
}

#[test]
fn failed_handshakes_are_logged_at_both_ends() {
    let ca = certificate("ca.pem");
    let ca = ca.to_str().expect("UTF-8");
    for scheme in ["tls", "quic"] {
        let relay = Relay::start(&format!("{scheme}://127.0.0.1:0"), &unused());
        // The peer trusts another authority.
        let arguments = ["-v", "identity", "--timeout", "5", &relay.address];
        let tls = ["--tls-ca-file", ca, "--tls-cert", TLS_PEM];
        let ran = run(&[&arguments[..], &tls].concat(), None);
        assert_eq!(ran.status, Some(1), "{scheme}: {}", ran.err);
        let begin = "INFO daskwire_comm: gave up after attempt 1: ";
        let end = format!("peer={}", relay.address);
        let is_event = |line: &str| line.contains(begin) && line.ends_with(&end);
        assert!(ran.err.lines().any(is_event), "{scheme}: {}", ran.err);
        assert!(ran.err.contains("it says CA:TRUE"), "{scheme}: {}", ran.err);
        let begin = format!("daskwire: {scheme}://127.0.0.1:");
        let line = relay.wait_for(|line| line.starts_with(&begin));
        assert!(line.contains(" was disconnected: "), "{line}");
        assert!(line.contains("refuse"), "{line}");
    }
    // The peer does not use TLS.
    let relay = Relay::start("tls://127.0.0.1:0", &unused());
    let address = relay.address.replace("tls://", "tcp://");
    let ran = run(&["-v", "identity", "--timeout", "5", &address], None);
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    let event = "INFO daskwire_comm: gave up after attempt 1: the peer speaks TLS";
    assert!(ran.err.contains(event), "{}", ran.err);
    let line = relay.wait_for(|line| line.contains(" was disconnected: "));
    assert!(line.contains("does not speak TLS"), "{line}");
}
