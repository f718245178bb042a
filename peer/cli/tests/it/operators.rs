//! Tests of what an operator of `daskwire scheduler` needs: several transports, certificates,
//! logs, and the way back to Dask's scheduler.

use std::fs;
use std::process::Command;

use crate::support::command;
use crate::support::scratch::Scratch;
use daskwire_comm::{Address, CommOptions};
use daskwire_peer::Client;
use daskwire_peer::client::ClientOptions;
use daskwire_peer::tls::{Tls, TlsSettings};
use daskwire_testing::{Environment, Peer, TLS_ARGUMENTS, TLS_PEM, address_after, python};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// Starts `daskwire scheduler` at free ports of the loopback interface.
fn scheduler(arguments: &[&str], variables: &[(&str, &str)]) -> Peer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.args(["scheduler", "--no-dashboard", "--host", "127.0.0.1"]);
    command.args(arguments).envs(variables.iter().copied());
    Peer::spawn_command("scheduler", &mut command, |log| {
        address_after(log, "Scheduler at:")
    })
}

/// Starts `dask worker` with the certificates of these files.
fn worker_with_tls(scheduler: &str, name: &str, files: &[String; 2]) -> Peer {
    let mut command = Command::new(python(Environment::Current));
    command.args(["-m", "distributed.cli.dask_worker", scheduler]);
    command.args(["--no-nanny", "--no-dashboard", "--nthreads", "1"]);
    command.args(["--name", name, "--host", "127.0.0.1", "--protocol", "tls"]);
    command.args(tls_arguments(files));
    Peer::spawn_command(name, &mut command, |log| {
        address_after(log, "Registered to:")
    })
}

fn tls_arguments([ca, cert]: &[String; 2]) -> [&str; 4] {
    ["--tls-ca-file", ca, "--tls-cert", cert]
}

/// The address of a scheme in the log of a scheduler.
fn address_over(log: &str, scheme: &str) -> String {
    let lines = log.lines();
    let mut addresses = lines.filter_map(|line| Some(line.split_once("Scheduler at:")?.1.trim()));
    let address = addresses.find(|address| address.starts_with(&format!("{scheme}://")));
    address
        .unwrap_or_else(|| panic!("no {scheme}: {log}"))
        .to_owned()
}

/// Runs checks of a client in Python, with the certificate of a file for TLS.
fn client(address: &str, pem: &str, steps: &[&str]) -> Peer {
    let arguments = [&[address, pem][..], steps].concat();
    Peer::spawn(Environment::Current, "operator_client.py", &arguments)
}

/// An authority for certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self {
            pem: params.self_signed(&key).expect("a certificate").pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate with its key.
    fn leaf(&self, name: &str) -> String {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([]).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        certificate.pem() + &key.serialize_pem()
    }

    /// Writes the files of a member of the cluster: authority and certificate.
    fn write(&self, scratch: &Scratch, name: &str) -> [String; 2] {
        let files = ["ca", "cert"].map(|file| format!("{}/{name}-{file}.pem", scratch.path()));
        fs::write(&files[0], &self.pem).expect("it is written");
        fs::write(&files[1], self.leaf(name)).expect("it is written");
        files
    }
}

fn tls_of([ca, cert]: &[String; 2]) -> Tls {
    let settings = TlsSettings::new(ca.as_str(), cert.as_str());
    settings.build().expect("valid files")
}

#[test]
fn a_cluster_mixes_transports() {
    let several = ["--port", "0", "--protocol", "tcp,tls,quic"];
    let scheduler = scheduler(&[&several[..], &TLS_ARGUMENTS].concat(), &[]);
    scheduler.wait_for_log("quic://");
    let over = |scheme| address_over(&scheduler.log(), scheme);
    let [tcp, tls, quic] = ["tcp", "tls", "quic"].map(over);
    let _tcp = daskwire_testing::worker(&tcp, "tcp");
    let _tls = daskwire_testing::worker(&tls, "tls");
    let mut over_quic = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    over_quic.args(["worker", &quic, "--name", "quic", "--nthreads", "1"]);
    over_quic.args(TLS_ARGUMENTS);
    let _quic = Peer::spawn_command("worker quic", &mut over_quic, |log| {
        log.contains("worker quic at").then(|| "quic".to_owned())
    });
    client(&tcp, "-", &["mixes"]);
    client(&tls, TLS_PEM, &["mixes"]);
    let log = scheduler.log();
    assert!(!log.contains(" left"), "{log}");
}

/// Lists belong together by position, and single items hold for all listeners.
#[test]
fn listeners_follow_lists_of_options() {
    for (arguments, schemes) in [
        (&["--port", "0,0"][..], &["tcp", "tcp"][..]),
        (
            &["--host", "127.0.0.1:0,tcp://localhost:0"],
            &["tcp", "tcp"],
        ),
        (&["--interface", "lo,lo", "--port", "0"], &["tcp", "tcp"]),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
        command.args(["scheduler", "--no-dashboard"]);
        if arguments[0] == "--port" {
            command.args(["--host", "127.0.0.1"]);
        }
        let scheduler = Peer::spawn_command("scheduler", command.args(arguments), |log| {
            (log.matches("Scheduler at:").count() == schemes.len()).then(String::new)
        });
        let log = scheduler.log();
        for scheme in schemes {
            address_over(&log, scheme);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificates_are_used_without_a_restart() {
    let scratch = Scratch::new("renewed");
    let authority = Authority::new("cluster");
    let [files, of_worker, of_client] =
        ["scheduler", "worker", "client"].map(|name| authority.write(&scratch, name));
    let listen = ["--port", "0", "--protocol", "tls"];
    let scheduler = scheduler(&[&listen[..], &tls_arguments(&files)].concat(), &[]);
    let mut worker = worker_with_tls(scheduler.address(), "alice", &of_worker);
    let transports = daskwire_peer::transports_with_tls(&tls_of(&of_client));
    let address: Address = scheduler.address().parse().expect("an address");
    let certificate = async || {
        let comm = transports.connect(&address, &CommOptions::default()).await;
        let comm = comm.expect("it accepts");
        comm.encryption().expect("TLS").peer_certificates[0].clone()
    };
    let options = ClientOptions {
        transports: transports.clone(),
        ..ClientOptions::default()
    };
    let client = Client::connect_with(scheduler.address(), options).await;
    let client = client.expect("it accepts");
    let sum = client.submit("operator.add", [1, 2]).expect("valid");
    assert_eq!(i64::try_from(sum.result().await.expect("3")).ok(), Some(3));
    let first = certificate().await;

    // A certificate that does not work changes nothing.
    fs::write(&files[1], "no certificate").expect("it is written");
    scheduler.wait_for_line(&["the earlier certificates stay", "scheduler-cert.pem"]);
    assert_eq!(certificate().await, first);
    fs::write(&files[1], authority.leaf("scheduler")).expect("it is written");
    scheduler.wait_for_line(&["new connections use the renewed certificates"]);
    assert_ne!(certificate().await, first);

    // An authority that replaces the former one, after a time with both.
    let other = Authority::new("cluster");
    fs::write(&files[0], authority.pem.clone() + &other.pem).expect("it is written");
    let of_other = other.write(&scratch, "other");
    fs::write(&of_other[0], authority.pem.clone() + &other.pem).expect("it is written");
    let of_other = [
        &["identity", scheduler.address()][..],
        &tls_arguments(&of_other),
    ]
    .concat();
    while command::run(&of_other, None).status != Some(0) {}

    // The worker and the client were not disconnected meanwhile.
    let more = client.submit("operator.add", [3, 3]).expect("valid");
    assert_eq!(i64::try_from(more.result().await.expect("6")).ok(), Some(6));
    let log = scheduler.log();
    assert!(!log.contains(" left"), "{log}");
    client.close().await.expect("it closes");
    scheduler.signal("TERM");
    assert!(worker.ended());
}

/// Dask's settings of its loggers decide what is logged.
#[test]
fn logs_follow_the_levels_of_dask() {
    let of = |levels: &str| {
        let variables = [("DASK_DISTRIBUTED__LOGGING", levels)];
        let mut scheduler = scheduler(&["--port", "0"], &variables);
        let worker = daskwire_testing::worker(scheduler.address(), "alice");
        let client = client(scheduler.address(), "-", &["computes"]);
        drop((client, worker));
        assert!(scheduler.terminate());
        scheduler.log()
    };
    let has = |log: &str, parts: &[&str]| {
        let is_there = |line: &str| parts.iter().all(|part| line.contains(part));
        log.lines().any(is_there)
    };
    let log = of("{'distributed.scheduler': 'debug', 'tornado': 'critical'}");
    assert!(has(&log, &["DEBUG", "daskwire_peer::scheduler: "]), "{log}");
    assert!(has(&log, &["INFO", "(alice) joined"]), "{log}");
    let log = of("{'distributed.scheduler': 'error'}");
    assert!(!log.contains("joined"), "{log}");
    let log = of("{'distributed': 20}");
    assert!(!log.contains("DEBUG"), "{log}");
    assert!(has(&log, &["INFO", "(alice) joined"]), "{log}");
    let log = of("{'version': 1}");
    let ignored = "distributed.logging: a dictionary for Python's logging has no effect";
    assert!(log.contains(ignored), "{log}");
    assert!(has(&log, &["daskwire: ", "(alice) joined"]), "{log}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.args(["scheduler", "--port", "0"]);
    command.env("DASK_LOGGING", "{'distributed': 'loud'}");
    let output = command.output().expect("it starts");
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    let expected =
        "logging.distributed: \"loud\": expected debug, info, warning, error or critical";
    assert!(error.contains(expected), "{error}");
}

/// The scheduler claims no version of Python, and those of its workers for packages.
#[test]
fn the_scheduler_says_what_it_is() {
    let scheduler = scheduler(&["--port", "0"], &[]);
    let worker = daskwire_testing::worker(scheduler.address(), "alice");
    client(scheduler.address(), "-", &["agrees"]);
    let ran = command::run(&["identity", scheduler.address()], None);
    let shown = ran.good("identity");
    let expected = format!("  runs on    daskwire {}\n", env!("CARGO_PKG_VERSION"));
    assert!(shown.contains(&expected), "{shown}");
    let ran = command::run(&["identity", scheduler.address(), "--json"], None);
    let document: serde_json::Value = serde_json::from_str(ran.good("identity")).expect("JSON");
    assert_eq!(document["daskwire"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        [&document["python"], &document["release"]],
        [&serde_json::Value::Null; 2]
    );
    drop(worker);
}
