//! Tests of the Python environments that other tests use.

use core::time::Duration;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, thread};

use daskwire_testing::{Environment, Peer};

const ENVIRONMENTS: [Environment; 2] = [Environment::Current, Environment::Documented];

#[test]
fn each_environment_has_its_release() {
    for environment in ENVIRONMENTS {
        assert_eq!(
            daskwire_testing::loads(environment).address(),
            environment.release()
        );
    }
}

#[test]
fn a_release_reads_what_it_writes_and_refuses_a_cut_message() {
    for environment in ENVIRONMENTS {
        let mut peer = daskwire_testing::loads(environment);
        let (written, message) = peer.ask(r#"{"op": "write", "case": "compressed-zlib"}"#, &[]);
        assert!(
            written.starts_with(r#"{"ok": true"#) && written.contains(r#""zlib""#),
            "{written}"
        );
        let (read, _) = peer.ask(r#"{"op": "read"}"#, &message);
        assert_eq!(read, written);
        let (refused, _) = peer.ask(r#"{"op": "read"}"#, &message[..message.len() - 1]);
        assert!(refused.starts_with(r#"{"ok": false"#), "{refused}");
    }
}

#[test]
fn missing_named_python_is_an_error() {
    let (python, minor) = daskwire_testing::base_python(Environment::Current);
    let python = python.to_str().expect("a name in UTF-8");
    assert_eq!(
        daskwire_testing::named_pythons(python),
        Ok(vec![(python, minor)])
    );
    let names = format!("{python} python3.99 /nowhere");
    let error = daskwire_testing::named_pythons(&names).expect_err("two are missing");
    assert!(error.ends_with(": python3.99, /nowhere"), "{error}");
    assert!(daskwire_testing::named_pythons(" ").is_err());
}

#[test]
fn random_messages_are_the_same_for_the_same_seed() {
    let mut peer = daskwire_testing::loads(Environment::Current);
    let first = peer.ask(r#"{"op": "write", "seed": 11}"#, &[]);
    assert_eq!(peer.ask(r#"{"op": "write", "seed": 11}"#, &[]), first);
    assert_ne!(peer.ask(r#"{"op": "write", "seed": 12}"#, &[]).1, first.1);
}

#[test]
fn msgpack_python_packs_values_in_their_shortest_form() {
    let mut peer = daskwire_testing::msgpack();
    // uint 64 and str 8, although a fixint and a fixstr would be long enough
    let padded = [0x92, 0xcf, 0, 0, 0, 0, 0, 0, 0, 5, 0xd9, 1, b'x'];
    assert_eq!(
        peer.ask(r#"{"op": "repack"}"#, &padded).1,
        [0x92, 5, 0xa1, b'x']
    );
    assert_eq!(
        peer.ask(r#"{"op": "unpack"}"#, &padded).0,
        r#"{"ok": true, "value": [5, "x"]}"#
    );
    let (documents, packed) = peer.ask(r#"{"op": "random", "seed": 3, "count": 20}"#, &[]);
    assert_eq!(
        documents.matches(r#""len": "#).count(),
        20 + documents.matches(r#""$blob""#).count()
    );
    assert!(!packed.is_empty());
}

#[test]
fn echo_peers_send_back_what_they_get() -> io::Result<()> {
    for environment in ENVIRONMENTS {
        let mut release = daskwire_testing::loads(environment);
        let echo = daskwire_testing::echo(environment);
        let mut socket = TcpStream::connect(echo.socket_address())?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;

        let mut write = |case: &str| {
            release
                .ask(&format!(r#"{{"op": "write", "case": "{case}"}}"#), &[])
                .1
        };
        let (handshake, sent) = (write("handshake"), write("get-data-reply"));
        socket.write_all(&handshake)?;
        read_message(&mut socket, environment)?;
        socket.write_all(&sent)?;
        let received = read_message(&mut socket, environment)?;

        let mut value = |message: &[u8]| release.ask(r#"{"op": "value"}"#, message).0;
        assert!(value(&sent).contains("array("), "{}", value(&sent));
        assert_eq!(value(&received), value(&sent));
    }
    Ok(())
}

#[test]
fn a_scheduler_starts_with_its_workers_and_stops() -> io::Result<()> {
    let cluster = daskwire_testing::scheduler_with_workers(2);
    let addresses: Vec<String> = cluster
        .workers()
        .iter()
        .chain([&cluster])
        .map(|peer| peer.socket_address().to_owned())
        .collect();
    assert_eq!(addresses.len(), 3);
    for address in &addresses {
        TcpStream::connect(address)?;
    }
    assert!(cluster.log().contains("worker-1"), "{}", cluster.log());
    drop(cluster);
    for address in &addresses {
        let error = TcpStream::connect(address).expect_err("the port is closed");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
    }
    Ok(())
}

#[test]
fn finds_warnings_in_the_log() {
    let scheduler = daskwire_testing::scheduler();
    assert_eq!(scheduler.warnings(), [""; 0]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let address = scheduler.address().parse().expect("an address");
        let options = daskwire_comm::CommOptions::default();
        let mut comm = daskwire_peer::transports()
            .connect(&address, &options)
            .await;
        let comm = comm.as_mut().expect("a comm");
        // An unknown request, then a known one
        for request in [&b"\x81\xa2op\xa4nope"[..], b"\x81\xa2op\xa9terminate"] {
            comm.write_message(&[request]).await.expect("it goes");
            comm.read_message().await.expect("a good answer");
        }
    });
    scheduler.wait_for_log("INFO - End scheduler");
    let warnings = scheduler.warnings();
    let [warning, traceback] = &warnings[..] else {
        panic!("a warning and its traceback: {warnings:#?}");
    };
    assert!(
        warning.contains(" - WARNING - No handler nope"),
        "{warning}"
    );
    assert_eq!(traceback, "Traceback (most recent call last):");
}

#[test]
fn a_script_that_fails_shows_why() {
    let failure = thread::spawn(|| Peer::spawn(Environment::Current, "no_such_script.py", &[]))
        .join()
        .expect_err("there is no such script");
    let message = failure
        .downcast_ref::<String>()
        .expect("panics carry their message");
    assert!(
        message.starts_with("no_such_script.py is not ready"),
        "{message}"
    );
}

#[test]
fn concurrent_processes_create_an_environment_once() -> io::Result<()> {
    let scratch = Scratch::new("environment-made-once")?;
    let requirements = scratch.0.join("requirements.txt");
    fs::write(&requirements, "# nothing to install\n")?;
    let (python, _) = daskwire_testing::base_python(Environment::Current);
    let makers: Vec<_> = (0..3)
        .map(|_| {
            let (python, directory, requirements) =
                (python.clone(), scratch.0.join("made"), requirements.clone());
            thread::spawn(move || environment_py(&python, &directory, &requirements))
        })
        .collect();
    let mut creations = 0;
    for maker in makers {
        let output = maker.join().expect("it does not panic")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(Path::new(String::from_utf8_lossy(&output.stdout).trim_end()).exists());
        creations += stderr.matches("creating a Python environment").count();
    }
    assert_eq!(creations, 1);
    Ok(())
}

fn environment_py(python: &OsString, directory: &Path, requirements: &Path) -> io::Result<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/vectors/environment.py");
    Command::new(python)
        .arg(script)
        .args([directory, requirements])
        .output()
}

/// Reads one message from the socket, using its frame lengths.
fn read_message(socket: &mut TcpStream, environment: Environment) -> io::Result<Vec<u8>> {
    fn take(socket: &mut TcpStream, message: &mut Vec<u8>, len: usize) -> io::Result<u64> {
        let start = message.len();
        message.resize(start + len, 0);
        socket.read_exact(&mut message[start..])?;
        Ok(message[start..]
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }
    let mut message = Vec::new();
    if environment == Environment::Current {
        take(socket, &mut message, 8)?;
    }
    let frame_count = take(socket, &mut message, 8)?;
    let mut len = 0;
    for _ in 0..frame_count {
        len += take(socket, &mut message, 8)?;
    }
    take(
        socket,
        &mut message,
        usize::try_from(len).map_err(io::Error::other)?,
    )?;
    Ok(message)
}

/// A directory that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> io::Result<Self> {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Remove the directory, so that directories do not accumulate below target/.
        let _ = fs::remove_dir_all(&self.0);
    }
}
