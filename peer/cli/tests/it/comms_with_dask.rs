//! Comms with a real Dask over TCP and TLS, with the kinds of certificates that
//! Dask clusters use.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use daskwire_comm::tls::{Tls, TlsSettings};
use daskwire_comm::{Address, CommError, CommOptions};
use daskwire_peer::identity::{identity, options};
use daskwire_peer::{transports, transports_with_tls};
use daskwire_testing::{Environment, Peer, certificate};

/// The authority, certificate and key, in the order of Dask's settings.
struct Files([PathBuf; 3]);

impl Files {
    /// A certificate of an authority, like Dask's own test certificates.
    fn member() -> Self {
        Self(["ca.pem", "cert.pem", "key.pem"].map(certificate))
    }

    /// A single self-signed certificate.
    fn self_signed() -> Self {
        Self([(); 3].map(|()| certificate("self-signed.pem")))
    }

    fn tls(&self) -> Tls {
        let [ca_file, cert, key] = &self.0;
        let settings = TlsSettings::new(ca_file.as_path(), cert.as_path());
        settings
            .with_key(key.as_path())
            .build()
            .expect("good settings")
    }

    fn arguments(&self) -> [&str; 3] {
        self.0.each_ref().map(|path| path.to_str().expect("UTF-8"))
    }
}

/// Timeout for a scheduler.
const PATIENCE: Duration = Duration::from_secs(30);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn asks(scheduler: &Peer, files: &Files) {
    let address: Address = scheduler.address().parse().expect("an address");
    let transports = transports_with_tls(&files.tls());
    let (answer, _) = runtime()
        .block_on(identity(&address, &transports, &options(PATIENCE)))
        .expect("an identity");
    assert_eq!(answer.kind, "Scheduler");
    assert_eq!(answer.address, scheduler.address());
    assert!(answer.address.starts_with("tls://"));
}

#[test]
fn identity_with_temporary_certificates() {
    let scratch =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tls-{}", std::process::id()));
    fs::create_dir_all(&scratch).expect("a test may write below target/");
    let arguments = [scratch.to_str().expect("UTF-8")];
    let scheduler = Peer::spawn(Environment::Current, "tls_scheduler.py", &arguments);
    let pem = scratch.join("temporary.pem");
    let text = fs::read_to_string(&pem).expect("the script wrote it");
    asks(&scheduler, &Files([(); 3].map(|()| pem.clone())));
    // The same certificate, from memory instead of files
    let from_text = TlsSettings::new(text.as_str(), text.as_str()).build();
    let transports = transports_with_tls(&from_text.expect("good settings"));
    let address = scheduler.address().parse().expect("an address");
    let asked = runtime().block_on(identity(&address, &transports, &options(PATIENCE)));
    asked.expect("an identity");

    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_daskwire"))
            .args(["identity", scheduler.address()])
            .args(arguments)
            .output()
            .expect("it runs")
    };
    let pem = pem.to_str().expect("UTF-8");
    let output = run(&["--tls-ca-file", pem, "--tls-cert", pem, "--tls-key", pem]);
    let table = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        table.contains(&format!("Scheduler {}", scheduler.address())),
        "{table}"
    );
    let output = run(&[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("--tls-ca-file"),
        "{said}"
    );
    // A certificate that neither side trusts
    let other = certificate("self-signed.pem");
    let other = other.to_str().expect("UTF-8");
    let output = run(&["--tls-ca-file", other, "--tls-cert", other]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("the certificate of the peer is refused"),
        "{said}"
    );
    assert!(said.contains(other), "{said}");
    // A certificate that Dask does not trust, although we trust Dask's
    let output = run(&["--tls-ca-file", pem, "--tls-cert", other]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("the peer refuses the certificate of this side")
            || said.contains("or refuse the certificate of this side"),
        "{said}"
    );
    fs::remove_dir_all(&scratch).expect("it was there");
}

#[test]
fn identity_with_certificates_of_an_authority() {
    let files = Files::member();
    let scheduler = Peer::spawn(Environment::Current, "tls_scheduler.py", &files.arguments());
    asks(&scheduler, &files);
}

#[test]
fn identity_with_a_self_signed_certificate() {
    let files = Files::self_signed();
    let scheduler = Peer::spawn(Environment::Current, "tls_scheduler.py", &files.arguments());
    asks(&scheduler, &files);
}

#[test]
fn detects_a_scheduler_without_tls() {
    let scheduler = daskwire_testing::scheduler();
    let address = scheduler.address().replace("tcp://", "tls://");
    let transports = transports_with_tls(&Files::member().tls());
    let address = address.parse().expect("an address");
    let asked = runtime().block_on(identity(&address, &transports, &options(PATIENCE)));
    let error = asked.expect_err("it is not TLS");
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
}

/// Accepts one comm of Dask, and echoes its messages until it ends.
///
/// Without files, the comm is not encrypted.
fn echo_to_dask(files: Option<&Files>, version: &str, close: &str, lengths: &[&str]) {
    let runtime = runtime();
    let transports = match files {
        Some(files) => transports_with_tls(&files.tls()),
        None => transports(),
    };
    let scheme = if files.is_some() { "tls" } else { "tcp" };
    let address = format!("{scheme}://127.0.0.1:0");
    let address = address.parse().expect("an address");
    let listener = runtime.block_on(transports.bind(&address, CommOptions::default()));
    let listener = listener.expect("a free port");
    let address = listener.local_address().expect("an address").to_string();
    let echo = std::thread::spawn(move || {
        runtime.block_on(async {
            let mut comm = listener.accept().await?.handshake().await?;
            let mut count = 0;
            while let Some(frames) = comm.read_message().await? {
                comm.write_message(&frames).await?;
                count += 1;
            }
            Ok::<_, CommError>(count)
        })
    });
    let mut arguments = vec![&*address];
    arguments.extend(files.map_or(["-"; 3], Files::arguments));
    arguments.extend([version, close]);
    arguments.extend(lengths);
    let client = Peer::spawn(Environment::Current, "echo_client.py", &arguments);
    let spoken = files.map_or("TCP".to_owned(), |_| format!("TLSv{version}"));
    assert_eq!(client.address(), spoken);
    // Dask closes without a message, so this also tests the end of a comm.
    let count = echo.join().expect("it does not panic");
    assert_eq!(count.expect("the comm ends well"), lengths.len());
}

#[test]
fn a_comm_of_dask_gets_back_what_it_sends() {
    echo_to_dask(
        Some(&Files::member()),
        "1.3",
        "close",
        &["1", "100000", "100000000"],
    );
}

#[test]
fn a_comm_of_dask_gets_back_what_it_sends_in_the_clear() {
    echo_to_dask(None, "-", "close", &["1", "100000", "100000000"]);
}

/// Exceeds a signed 32-bit length; uses several times as much memory.
#[test]
fn a_comm_of_dask_gets_back_two_gibibytes() {
    echo_to_dask(Some(&Files::member()), "1.3", "close", &["2148532224"]);
}

#[test]
fn dask_may_use_tls_1_2() {
    echo_to_dask(Some(&Files::member()), "1.2", "close", &["1", "100000"]);
}

#[test]
fn a_comm_of_dask_may_have_one_self_signed_certificate() {
    for version in ["1.2", "1.3"] {
        echo_to_dask(
            Some(&Files::self_signed()),
            version,
            "abort",
            &["1", "100000"],
        );
    }
}
