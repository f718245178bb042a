//! Tests that the command's output never contains a peer's unprintable characters.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::command::{Ran, run};
use daskwire::frame::{Prefix, encode_prelude, prelude_len};
use daskwire::msgpack::Writer;
use daskwire_comm::{Address, Comm, CommOptions};
use daskwire_peer::cluster::{ClusterTransport, LocalCluster};
use daskwire_peer::worker::{Functions, Worker};
use daskwire_peer::{Key, RemoteError, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// Characters that control a terminal, reorder text, break lines or are
/// invisible. Newlines and tabs are excluded, because the command prints them.
fn dangerous() -> impl Iterator<Item = char> {
    let controls = ('\0'..='\u{1f}').chain('\u{7f}'..='\u{9f}');
    let controls = controls.filter(|character| !"\n\t".contains(*character));
    let formats = "\u{ad}\u{61c}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{2028}\u{2029}\
        \u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2060}\u{2066}\u{2067}\u{2068}\u{2069}\u{feff}\
        \u{e0001}\u{e0041}\u{e007f}";
    controls.chain(formats.chars())
}

/// A string that contains all dangerous characters.
fn hostile() -> String {
    let mut text = String::from("\x1b[2J\x1b]0;owned\x07\r");
    for character in dangerous() {
        text.push(character);
        text.push('x');
    }
    text
}

#[track_caller]
fn is_clean(what: &str, printed: &str) {
    let found: Vec<char> = printed
        .chars()
        .filter(|character| dangerous().any(|other| other == *character))
        .collect();
    assert!(found.is_empty(), "{what}: {found:?} in {printed:?}");
}

/// Asserts that the output has some of the peer's data, and no dangerous characters.
#[track_caller]
fn clean(what: &str, ran: &Ran) {
    is_clean(what, ran.text());
    is_clean(what, &ran.err);
    let both = format!("{}{}", ran.text(), ran.err);
    assert!(both.contains("owned"), "{what}: {both}");
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![0; prelude_len(Prefix::U64, frames.len()).expect("few")];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    encode_prelude(Prefix::U64, lengths, &mut out).expect("fits");
    frames.iter().for_each(|frame| out.extend_from_slice(frame));
    out
}

fn document(write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut measure = Writer::new(&mut []);
    write(&mut measure);
    let mut out = vec![0; measure.len()];
    write(&mut Writer::new(&mut out));
    out
}

#[test]
fn recordings() {
    let text = hostile();
    let text = text.as_str();
    let body = document(|out| {
        out.map(3)
            .str("op")
            .str(text)
            .str(text)
            .bin(text.as_bytes());
        out.str("data").map(1).str("__Serialized__").u64(1);
    });
    // A payload with this name as serializer, type and codec.
    let payload = document(|out| {
        out.map(5).str("serializer").str(text).str("type").str(text);
        out.str("compression").array(1).str(text).str("dtype");
        out.array(2).u64(0).str(text).str("num-sub-frames").u64(1);
    });
    for stream in [
        message(&[&body, &payload, text.as_bytes()]),
        message(&[&document(|out| {
            out.map(1).str("op").str(text);
        })]),
        // Not MessagePack
        message(&[text.as_bytes()]),
    ] {
        for arguments in [
            &["inspect", "-"][..],
            &["inspect", "-", "--data"],
            &["inspect", "-", "--payloads"],
            &["inspect", "-", "--json"],
            &["inspect", "-", "--json", "--data"],
            &["inspect", "-", "--json", "--payloads"],
        ] {
            let ran = run(arguments, Some(&stream));
            is_clean(&arguments.join(" "), ran.text());
            is_clean(&arguments.join(" "), &ran.err);
        }
    }
    // JSON parsers recover the original value.
    let stream = message(&[&document(|out| {
        out.map(1).str("op").str(text);
    })]);
    let ran = run(&["inspect", "-", "--json"], Some(&stream));
    let json: serde_json::Value = serde_json::from_str(ran.good("json")).expect("JSON");
    let shown = json.to_string();
    let quoted = serde_json::Value::from(text).to_string();
    assert!(shown.contains(&quoted), "{shown}");
}

#[test]
fn pickles_documents_and_names_of_files() {
    let text = hostile();
    let mut pickle = b"\x80\x05X".to_vec();
    pickle.extend((text.len() as u32).to_le_bytes());
    pickle.extend(text.as_bytes());
    pickle.push(b'.');
    clean("pickle", &run(&["pickle", "-"], Some(&pickle)));
    let global = format!("cmodule{text}\nname{text}\n.").replace('\r', "");
    is_clean(
        "pickle",
        run(&["pickle", "-"], Some(global.as_bytes())).text(),
    );
    let ran = run(
        &["encode", "-"],
        Some(format!("{{\"{text}\": 1}}").as_bytes()),
    );
    is_clean("encode", &ran.err);
    let name = text.replace('\0', "");
    for command in ["inspect", "encode", "pickle"] {
        clean(command, &run(&[command, &name], None));
    }
    // Errors that mention an address
    let scheduler = format!("tcp://{name}");
    for arguments in [
        &["identity", &scheduler][..],
        &["worker", &scheduler],
        &["gather", &scheduler, "x"],
        &["submit", &scheduler, "operator.add"],
        &["relay", "--listen", &scheduler, "--connect", &scheduler],
    ] {
        clean(arguments[0], &run(arguments, None));
    }
}

/// Names that are longer than any terminal is wide: a table has the start of each.
#[test]
fn long_names() {
    let runtime = runtime();
    let name = "n".repeat(1 << 16);
    let started = runtime.block_on(async {
        let cluster = cluster(0).await;
        let worker = |name: &str| {
            Worker::builder(cluster.address().clone())
                .name(name)
                .functions(Functions::builtins())
        };
        let long = worker(&name).start().await.expect("a worker");
        let short = worker("short").start().await.expect("a worker");
        let client = cluster.client().await.expect("a client");
        let key = Key::from(name.as_str());
        let call = client.call("operator.add").argument(1).argument(2).key(key);
        let future = call.submit().expect("submitted");
        future.result().await.expect("a result");
        (cluster, [long, short], client, future)
    });
    let address = started.0.address().to_string();
    let start = format!("{}…", "n".repeat(79));
    for (command, is_cut) in [
        (&["identity", &address][..], true),
        (&["ps", &address], true),
        (&["story", &address, &name], false),
    ] {
        let ran = run(command, None);
        let printed = ran.good(command[0]);
        if is_cut {
            assert!(printed.contains(&start), "{}: {printed}", command[0]);
            assert!(printed.len() < 4096, "{}: {}", command[0], printed.len());
        }
    }
    runtime.block_on(async {
        let (cluster, workers, client, future) = started;
        drop(future);
        client.close().await.expect("it closes");
        for worker in workers {
            worker.close().await;
        }
        cluster.close().await;
    });
}

/// Forwards connections to a scheduler until a client leaves. Then it forwards nothing more
/// and closes nothing, like a scheduler that is busy.
async fn busy(scheduler: &Address) -> String {
    let scheduler = scheduler.location().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let is_left = Arc::new(AtomicBool::new(false));
        while let Ok((client, _)) = listener.accept().await {
            let peer = TcpStream::connect(&scheduler).await.expect("a scheduler");
            let (from_client, to_client) = client.into_split();
            let (from_peer, to_peer) = peer.into_split();
            tokio::spawn(forward(from_client, to_peer, Arc::clone(&is_left)));
            tokio::spawn(forward(from_peer, to_client, Arc::clone(&is_left)));
        }
    });
    format!("tcp://{address}")
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_left: Arc<AtomicBool>) {
    const LAST: &[u8] = b"close-client";
    let mut buffer = vec![0; 1 << 16];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        let data = &buffer[..len];
        if data.windows(LAST.len()).any(|part| part == LAST) {
            is_left.store(true, Ordering::SeqCst);
        }
        if is_left.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if to.write_all(data).await.is_err() {
            break;
        }
    }
}

/// A command that has its result succeeds, whether the scheduler reads its last messages or
/// not.
#[test]
fn a_busy_scheduler_does_not_keep_a_command_that_has_its_result() {
    let runtime = runtime();
    let cluster = runtime.block_on(cluster(1));
    let key = ["submit", "--key", "kept", "--hold"];
    let address = cluster.address().to_string();
    run(&[&key[..], &[&address, "operator.neg", "1"]].concat(), None).good("hold");
    for command in [
        &[
            "submit",
            "--timeout",
            "3s",
            "ADDRESS",
            "operator.add",
            "1",
            "2",
        ][..],
        &[
            "submit",
            "--timeout",
            "3s",
            "--hold",
            "ADDRESS",
            "operator.neg",
            "2",
        ],
        &["gather", "--timeout", "3s", "ADDRESS", "kept"],
        &["scatter", "--timeout", "3s", "ADDRESS", "Cargo.toml"],
        &["ps", "--timeout", "3s", "ADDRESS"],
        &["story", "--timeout", "3s", "ADDRESS", "kept"],
    ] {
        let address = runtime.block_on(busy(cluster.address()));
        let command: Vec<&str> = command
            .iter()
            .map(|part| {
                if *part == "ADDRESS" {
                    address.as_str()
                } else {
                    *part
                }
            })
            .collect();
        let ran = run(&command, None);
        assert_ne!(ran.good(&command.join(" ")), "");
    }
    // The scheduler does not answer this request, so its reading matters.
    let address = runtime.block_on(busy(cluster.address()));
    let ran = run(&["release", "--timeout", "3s", &address, "kept"], None);
    assert_eq!(
        ran.refused("release"),
        "the scheduler has not read the request after 3 seconds"
    );
    runtime.block_on(cluster.close());
}

/// Starts a scheduler that sends `reply` to the first request of each comm.
async fn fake(reply: Vec<u8>) -> Address {
    let address = "tcp://127.0.0.1:0".parse().expect("an address");
    let listener = daskwire_peer::transports()
        .bind(&address, CommOptions::default())
        .await;
    let listener = listener.expect("a port");
    let address = listener.local_address().expect("bound");
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            let mut comm: Comm = incoming.handshake().await.expect("a handshake");
            let reply = reply.clone();
            tokio::spawn(async move {
                while let Ok(Some(_)) = comm.read_message().await {
                    if comm.write_message(&[&reply]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn replies_of_schedulers() {
    let text = hostile();
    let text = text.as_str();
    let identity = document(|out| {
        out.map(4).str("type").str(text).str("id").str(text);
        out.str("address").str(text).str("workers").map(1).str(text);
        out.map(2).str("name").str(text).str("status").str(text);
    });
    let refusal = document(|out| {
        out.map(4)
            .str("status")
            .str("error")
            .str("message")
            .str(text);
        out.str("text").str(text).str("exception").str(text);
    });
    let runtime = runtime();
    let address = runtime.block_on(fake(identity.clone())).to_string();
    clean("identity", &run(&["identity", &address], None));
    for reply in [identity, refusal, text.as_bytes().to_vec()] {
        let address = runtime.block_on(fake(reply)).to_string();
        for command in [
            &["worker", &address][..],
            &[
                "submit",
                &address,
                "--timeout",
                "2",
                "operator.add",
                "1",
                "2",
            ],
            &["gather", &address, "--timeout", "2", "x"],
            &["scatter", &address, "--timeout", "2", "Cargo.toml"],
            &["release", &address, "--timeout", "2", "x"],
            &["ps", &address, "--timeout", "2"],
            &["logs", &address, "--timeout", "2"],
            &["story", &address, "--timeout", "2", "x"],
            &["journey", "--scheduler", &address],
        ] {
            let ran = run(command, None);
            assert_eq!(ran.status, Some(1), "{command:?}: {}", ran.text());
            is_clean(command[0], ran.text());
            is_clean(command[0], &ran.err);
        }
    }
}

async fn cluster(worker_count: usize) -> LocalCluster {
    let functions = Functions::builtins()
        .with("fail", |_| Err(RemoteError::new(&hostile(), &hostile())))
        .with("say", |_| Ok(Value::from(hostile())));
    let cluster = LocalCluster::builder()
        .transport(ClusterTransport::Tcp)
        .workers(worker_count)
        .functions(functions);
    cluster.start().await.expect("a cluster")
}

#[test]
fn results_and_exceptions() {
    let runtime = runtime();
    let cluster = runtime.block_on(cluster(1));
    let address = cluster.address().to_string();
    let client = runtime.block_on(cluster.client()).expect("a client");
    let held = client.call("native:say").key(Key::from("said")).submit();
    let held = held.expect("a future");
    for call in [
        &["submit", &address, "native:fail"][..],
        &["submit", &address, "native:say"],
        &["gather", &address, "said"],
        &[
            "submit",
            &address,
            "--key",
            &hostile().replace('\0', ""),
            "--hold",
            "native:say",
        ],
    ] {
        let ran = run(call, None);
        is_clean(call[2], ran.text());
        is_clean(call[2], &ran.err);
        let printed = format!("{}{}", ran.text(), ran.err);
        assert!(printed.contains("owned"), "{call:?}: {printed}");
    }
    drop(held);
    runtime.block_on(async {
        client.close().await.expect("it closes");
        cluster.close().await;
    });
}

/// Hostile strings in the name of a worker, in the prefix of a key, and in the reason why
/// the worker ended.
#[test]
fn output_of_a_worker() {
    let runtime = runtime();
    let cluster = runtime.block_on(cluster(0));
    let address = cluster.address().to_string();
    let mut worker = Command::new(env!("CARGO_BIN_EXE_daskwire"))
        .args(["worker", &address, "--name", &hostile().replace('\0', "")])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stderr = BufReader::new(worker.stderr.take().expect("a pipe"));
    let mut printed = String::new();
    stderr.read_line(&mut printed).expect("UTF-8");
    assert!(printed.contains("is registered with"), "{printed}");
    runtime.block_on(async {
        let client = cluster.client().await.expect("a client");
        let key = Key::from(hostile().as_str());
        let call = client.call("operator.add").argument(1).argument(2).key(key);
        let future = call.submit().expect("a future");
        future.result().await.expect("a sum");
        // While the worker is connected and has the task.
        let key = hostile().replace('\0', "");
        for command in [
            &["ps", &address][..],
            &["ps", &address, "--json"],
            &["story", &address, &key],
            &["story", &address, &key, "--json"],
            &["logs", &address, &key],
        ] {
            let ran = run(command, None);
            is_clean(command[0], ran.text());
            is_clean(command[0], &ran.err);
            let is_ps = command[0] == "ps";
            assert!(!is_ps || ran.text().contains("owned"), "{}", ran.err);
        }
        client.close().await.expect("it closes");
        cluster.close().await;
    });
    stderr.read_to_string(&mut printed).expect("UTF-8");
    worker.wait().expect("it ends");
    is_clean("worker", &printed);
    assert!(printed.matches("owned").count() >= 2, "{printed}");
}
