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
    let options = ClientOptions::default().with_transports(transports.clone());
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

#[test]
fn the_certificate_of_the_dashboard_is_renewed_as_that_of_comms() {
    let scratch = Scratch::new("renewed-page");
    let authority = Authority::new("cluster");
    let [_, cert] = authority.write(&scratch, "page");
    let page = ["--dashboard", "--dashboard-address", "127.0.0.1:0"];
    let arguments = [&page[..], &["--port", "0", "--dashboard-cert", &cert]].concat();
    let scheduler = scheduler(&arguments, &[]);
    scheduler.wait_for_log("https://127.0.0.1:");
    fs::write(&cert, "no certificate").expect("it is written");
    scheduler.wait_for_line(&["the earlier certificates stay", "page-cert.pem"]);
    fs::write(&cert, authority.leaf("page")).expect("it is written");
    scheduler.wait_for_line(&["new connections use the renewed certificates"]);
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

/// Certificates of workers do not do what those of clients do.
#[test]
fn certificates_have_roles() {
    let scratch = Scratch::new("roles");
    let authority = Authority::new("cluster");
    let [files, of_worker, of_client] =
        ["scheduler", "worker", "client"].map(|name| authority.write(&scratch, name));
    let listen = ["--port", "0", "--protocol", "tls"];
    let names = |role: &str, names: &'static str| {
        (format!("DASK_DISTRIBUTED__COMM__TLS__{role}__NAMES"), names)
    };
    let variables = [names("CLIENT", "['client']"), names("WORKER", "['worker']")];
    let variables = variables.each_ref().map(|(name, value)| (&**name, *value));
    let arguments = [&listen[..], &tls_arguments(&files)].concat();
    let scheduler = scheduler(&arguments, &variables);
    let _worker = worker_with_tls(scheduler.address(), "alice", &of_worker);
    // One file with the authority, the certificate and the key.
    let bundle = |files: &[String; 2]| {
        let [ca, cert] = files
            .each_ref()
            .map(|file| fs::read_to_string(file).expect("it exists"));
        let path = format!("{}-bundle.pem", files[1]);
        fs::write(&path, cert + &ca).expect("it is written");
        path
    };
    client(scheduler.address(), &bundle(&of_client), &["computes"]);
    let rejected = [scheduler.address(), &bundle(&of_worker), "rejected"];
    Peer::spawn(Environment::Current, "operator_client.py", &rejected);
    scheduler.wait_for_line(&["the certificate of \"worker\"", "\"terminate\""]);
    // A worker needs a certificate of a worker.
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.args(["worker", scheduler.address(), "--name", "bob"]);
    command.args(tls_arguments(&of_client));
    let output = command.output().expect("it starts");
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(
        error.contains("the certificate of \"client\" may not ask for"),
        "{error}"
    );
    // Peers at another address would have no certificates.
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.args(["scheduler", "--port", "0", "--protocol", "tcp,tls"]);
    command.args(tls_arguments(&files)).envs(variables);
    let output = command.output().expect("it starts");
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(
        error.contains("peers have no certificates at tcp://"),
        "{error}"
    );
}

/// Dask's scheduler takes over with the same port and scheduler file.
#[test]
fn the_scheduler_of_dask_can_take_over() {
    for signal in ["TERM", "KILL"] {
        let scratch = Scratch::new(&format!("back-{signal}"));
        let file = format!("{}/scheduler.json", scratch.path());
        let with_file = ["--scheduler-file", &file];
        let interpreter = python(Environment::Current);
        let dask = |module: &str, arguments: &[&str], ready: &str| {
            let mut command = Command::new(&interpreter);
            command.args(["-m", module]).args(with_file).args(arguments);
            Peer::spawn_command(module, &mut command, |log| address_after(log, ready))
        };
        let worker = |nanny: &str| {
            let arguments = [
                "--host",
                "127.0.0.1",
                "--nthreads",
                "1",
                "--no-dashboard",
                nanny,
            ];
            dask("distributed.cli.dask_worker", &arguments, "Registered to:")
        };
        let mut ours = scheduler(&[&["--port", "0"][..], &with_file].concat(), &[]);
        let address = ours.address().to_owned();
        let mut workers = [worker("--nanny"), worker("--no-nanny")];
        client(&address, "-", &["computes"]);
        ours.signal(signal);
        ours.ended();
        assert_eq!(fs::exists(&file).expect("it is known"), signal == "KILL");
        // They end with their scheduler, as with that of Dask.
        for worker in &mut workers {
            worker.ended();
        }
        let (_, port) = address.rsplit_once(':').expect("a port");
        let arguments = ["--host", "127.0.0.1", "--port", port, "--no-dashboard"];
        let theirs = dask(
            "distributed.cli.dask_scheduler",
            &arguments,
            "Scheduler at:",
        );
        assert_eq!(theirs.address(), address);
        let _workers = [worker("--nanny"), worker("--no-nanny")];
        client(&address, "-", &["computes"]);
    }
}

/// The rows of a table: setting and whether it is honoured.
fn settings_of_guide() -> Vec<(String, bool)> {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/src/scheduler-settings.md"
    );
    let page = fs::read_to_string(page).expect("it is part of the source");
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, setting, honoured, ..] = cells[..] else {
            return None;
        };
        let setting = setting.trim_matches('`');
        let is_honoured = ["yes", "no"].iter().position(|word| *word == honoured)? == 0;
        Some((setting.to_owned(), is_honoured))
    });
    rows.collect()
}

/// The guide has each setting of Dask, and the code honours those that it says it does.
#[test]
fn settings_of_dask_are_in_the_guide() {
    let source = "import dask, distributed\n\
                  def leaves(name, value):\n\
                  \x20   if isinstance(value, dict) and not name.endswith('durations'):\n\
                  \x20       for key, inner in value.items(): leaves(name + '.' + key, inner)\n\
                  \x20   else: print(name)\n\
                  from distributed.config import defaults\n\
                  for part in ('scheduler', 'comm', 'admin'):\n\
                  \x20   leaves('distributed.' + part, defaults['distributed'][part])\n";
    let python = Command::new(python(Environment::Current))
        .args(["-c", source])
        .output()
        .expect("Python starts");
    let leaves = String::from_utf8(python.stdout).expect("ASCII");
    let leaves: Vec<&str> = leaves.lines().collect();
    let rows = settings_of_guide();
    let names: Vec<&str> = rows.iter().map(|(name, _)| &**name).collect();
    assert!(leaves.len() > 70, "{leaves:?}");
    assert_eq!(names, leaves);

    // The scheduler names those that it ignores.
    let of_scheduler = |(name, _): &&(String, bool)| name.starts_with("distributed.scheduler.");
    let ignored = rows
        .iter()
        .filter(of_scheduler)
        .filter(|(_, is_honoured)| !is_honoured);
    let mut ignored: Vec<String> = ignored.map(|(name, _)| name.replace('_', "-")).collect();
    ignored.sort_unstable();
    let variables = rows
        .iter()
        .filter(of_scheduler)
        .filter(|(_, is_honoured)| !is_honoured);
    let variables = variables.map(|(name, _)| {
        let name = name.to_uppercase().replace('.', "__").replace('-', "_");
        (format!("DASK_{name}"), "'another'")
    });
    let variables: Vec<(String, &str)> = variables.collect();
    let variables: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (&**name, *value))
        .collect();
    let scheduler = scheduler(&["--port", "0"], &variables);
    let log = scheduler.log();
    let (_, named) = log.split_once("no effect here: ").expect("a line");
    let named = named.lines().next().unwrap_or_default().replace('_', "-");
    let mut named: Vec<&str> = named.split(", ").collect();
    named.sort_unstable();
    assert_eq!(named, ignored);

    // The others are read by name.
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/command/");
    let read = |file: &str| fs::read_to_string(format!("{folder}{file}")).expect("a source");
    let code = ["scheduler_command/settings.rs", "tls.rs", "config.rs"]
        .map(read)
        .concat();
    for (name, is_honoured) in rows.iter().filter(|row| !of_scheduler(row)) {
        let tls = name.strip_prefix("distributed.comm.tls.").map(|name| {
            let name = name.replace("scheduler.", "{role}.");
            format!("string(\"{name}\")").replace("string(\"{role}", "format!(\"{role}")
        });
        let is_read = match &tls {
            Some(tls) => code.contains(tls.trim_end_matches(')')),
            None => code.contains(&format!("\"{name}\"")),
        };
        assert_eq!(is_read, *is_honoured, "{name}");
    }
}
