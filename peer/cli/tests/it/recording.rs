//! Recordings of schedulers, and their replay.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use daskwire_peer::client::SubmitOptions;
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::worker::{Functions, Worker};
use daskwire_peer::{Client, Key, Value};
use daskwire_testing::{Peer, address_after};

use crate::diagnose::is_documented;
use crate::readme::{block, shape};
use crate::support::scratch::Scratch;

/// What must not be in a recording without payloads.
const SECRET: &str = "a value that is for its owner only";

fn scheduler(arguments: &[&str]) -> Peer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.args([
        "scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
    ]);
    command.args(arguments);
    Peer::spawn_command("scheduler", &mut command, |log| {
        address_after(log, "Scheduler at:")
    })
}

fn replay(file: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.args(["replay", file]).args(arguments);
    command.output().expect("it starts")
}

/// The output of a replay that succeeds.
fn replayed(file: &str, arguments: &[&str]) -> String {
    let output = replay(file, arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}\n{text}");
    text
}

/// The error of a replay that fails.
fn refused(file: &str) -> String {
    let output = replay(file, &[]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn contains(file: &Path, text: &str) -> bool {
    let bytes = fs::read(file).expect("a file");
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

fn echo(text: String) -> String {
    text
}

/// Runs a chain of tasks, of which the last one fails, and stores a secret in each way.
async fn incident(address: &str) {
    let functions = Functions::builtins()
        .function("echo", echo)
        .function("fails", |text: String| -> Result<i64, String> { Err(text) });
    let worker = Worker::builder(address.parse().expect("an address"));
    let worker = worker.name("one").nthreads(2).functions(functions);
    let worker = worker.start().await.expect("it starts");
    let client = Client::connect(address).await.expect("it connects");
    let graph: Graph = [
        Task::new("first", "native:echo", [Argument::from(SECRET)]),
        Task::new(
            "second",
            "native:echo",
            [Argument::from(&Key::from("first"))],
        ),
        Task::new(
            "third",
            "native:fails",
            [Argument::from(&Key::from("second"))],
        ),
    ]
    .into_iter()
    .collect();
    let keys = vec![Key::from("second"), Key::from("third")];
    let futures = client.submit_graph(&graph, keys, &SubmitOptions::default());
    let futures = futures.expect("it is connected");
    assert_eq!(
        futures[0].result().await.expect("a text"),
        Value::from(SECRET)
    );
    futures[1].result().await.expect_err("it fails");
    let variable = client.variable("noted").expect("served");
    variable.set(Value::from(SECRET)).await.expect("it is set");
    client
        .log_event("topic", SECRET)
        .await
        .expect("it is logged");
    let scattered = client.scatter([SECRET]).await.expect("stored");
    scattered[0].finished().await.expect("stored");
    client.close().await.expect("it is connected");
    worker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_is_replayed_without_its_data() {
    let directory = Scratch::new("recording");
    let file = format!("{}/incident", directory.path());
    let mut scheduler = scheduler(&["--record", &file]);
    incident(&scheduler.address().to_owned()).await;
    tokio::task::block_in_place(|| {
        scheduler.signal("TERM");
        scheduler.ended();
    });
    assert!(!contains(file.as_ref(), SECRET));

    let text = replayed(&file, &["--check-all"]);
    for expected in [
        "sizes only",
        "worker tcp://127.0.0.1:",
        "joins, with 2 threads",
        "submits 3 tasks, and wants 2",
        "first: processing -> memory",
        "third: processing -> erred",
        "task-erred third",
        "publishes in topic",
        "0 tasks",
        "the state was consistent after each event",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }

    // The story of a task has only what is about it.
    let story = replayed(&file, &["--story", "second"]);
    assert!(story.contains("second: processing -> memory"), "{story}");
    assert!(!story.contains("first:"), "{story}");
    assert!(story.contains("second is not known"), "{story}");

    let until = replayed(&file, &["--until", "second", "--story", "second"]);
    assert!(
        until.contains("second is memory, on tcp://127.0.0.1:"),
        "{until}"
    );
    assert!(until.contains("bytes of the recording left"), "{until}");
    let nothing = replayed(&file, &["--until", "0s"]);
    assert!(
        nothing.contains("stopped after 1 event at 0.000 s"),
        "{nothing}"
    );

    let state = replayed(&file, &["--until", "second", "--state"]);
    let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!(state["tasks"]["second"]["state"], "memory");
    assert_eq!(state["tasks"]["third"]["state"], "processing");
    for line in replayed(&file, &["--json"]).lines() {
        let line = serde_json::from_str(line).expect("JSON");
        match &line {
            serde_json::Value::Object(fields) if fields.contains_key("note") => {
                is_documented("note", &line);
            }
            _ => is_documented("followed", &line),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_has_payloads_if_asked_and_survives_a_kill() {
    let directory = Scratch::new("recording-payloads");
    let file = format!("{}/incident", directory.path());
    let mut scheduler = scheduler(&["--record", &file, "--record-payloads"]);
    incident(&scheduler.address().to_owned()).await;
    // Records are written within 50 ms.
    tokio::time::sleep(Duration::from_millis(500)).await;
    tokio::task::block_in_place(|| {
        scheduler.signal("KILL");
        scheduler.ended();
    });
    assert!(contains(file.as_ref(), SECRET));
    let text = replayed(&file, &[]);
    assert!(text.contains("with payloads"), "{text}");
    assert!(text.contains("third: processing -> erred"), "{text}");

    // An end that was not written is no error, and neither is one in the middle of a step.
    let whole = fs::read(&file).expect("a file");
    let cut = format!("{}/cut", directory.path());
    for len in [whole.len() - 1, whole.len() * 2 / 3, whole.len() / 3] {
        fs::write(&cut, &whole[..len]).expect("written");
        assert!(
            replayed(&cut, &[]).contains("the state was consistent"),
            "{len}"
        );
    }
    let mut damaged = whole.clone();
    // The version follows the kind and the length of the first record.
    damaged[if whole[1] < 0x80 { 2 } else { 3 }] ^= 0x40;
    fs::write(&cut, damaged).expect("written");
    let error = refused(&cut);
    assert!(
        error.contains("expected a recording of a version"),
        "{error}"
    );
    fs::write(&cut, "something else").expect("written");
    let error = refused(&cut);
    assert!(error.contains("not a recording"), "{error}");

    // A later scheduler keeps it.
    let mut later = self::scheduler(&["--record", &file]);
    tokio::task::block_in_place(|| {
        later.signal("TERM");
        later.ended();
    });
    let previous = fs::read(format!("{file}.previous")).expect("it was kept");
    assert!(previous == whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_begins_with_the_tasks_of_a_journal() {
    let directory = Scratch::new("recording-journal");
    let journal = format!("{}/journal", directory.path());
    let file = format!("{}/incident", directory.path());
    let arguments = [
        "--journal",
        &journal,
        "--journal-sync",
        "always",
        "--journal-wait",
        "1s",
    ];
    let recorded = [&arguments[..], &["--record", &file]].concat();
    let mut first = scheduler(&recorded);
    let client = Client::connect(first.address()).await.expect("it connects");
    let future = client
        .submit("native:echo", [SECRET])
        .expect("it is connected");
    let key = future.key().to_string();
    let variable = client.variable("noted").expect("served");
    variable.set(Value::from(SECRET)).await.expect("it is set");
    for number in 0..2 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        tokio::task::block_in_place(|| {
            first.signal("KILL");
            first.ended();
            if number == 0 {
                first = scheduler(&recorded);
            }
        });
    }
    assert!(!contains(file.as_ref(), SECRET));
    let text = replayed(&file, &["--all"]);
    assert!(text.contains("the tasks of the journal may run"), "{text}");
    assert!(
        text.contains(&format!("{key}: released -> waiting")),
        "{text}"
    );
    assert!(text.contains("1 task: 1 no-worker"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_prints_what_is_shown() {
    let directory = Scratch::new("recording-shown");
    let file = format!("{}/incident", directory.path());
    let mut scheduler = scheduler(&["--record", &file]);
    let worker = Worker::builder(scheduler.address().parse().expect("an address"));
    let worker = worker
        .name("one")
        .functions(Functions::builtins().function("echo", echo));
    let worker = worker.start().await.expect("it starts");
    let client = Client::connect(scheduler.address())
        .await
        .expect("it connects");
    let first = Argument::from(&Key::from("first"));
    let graph: Graph = [
        Task::new("first", "native:echo", [Argument::from("x")]),
        Task::new("second", "native:echo", [first]),
    ]
    .into_iter()
    .collect();
    let keys = vec![Key::from("second")];
    let futures = client.submit_graph(&graph, keys, &SubmitOptions::default());
    let futures = futures.expect("it is connected");
    futures[0].result().await.expect("a text");
    client.close().await.expect("it is connected");
    worker.close().await;
    tokio::task::block_in_place(|| {
        scheduler.signal("TERM");
        scheduler.ended();
    });
    let block = block("docs/src/replay.md", "$ daskwire replay");
    let (line, shown) = block
        .split_once('\n')
        .expect("a command and what it prints");
    let arguments: Vec<&str> = line.split(' ').skip(4).collect();
    let output = replayed(&file, &arguments);
    let name = output.split(' ').find(|word| word.starts_with("Client-"));
    let output = output.replace(name.expect("a client"), "Client-4f");
    assert_eq!(shape(&output), shape(shown), "{output}");
}

/// The cluster goes on if the disk is full.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_recording_that_cannot_be_written_ends() {
    let scheduler = scheduler(&["--record", "/dev/full"]);
    incident(scheduler.address()).await;
    tokio::task::block_in_place(|| scheduler.wait_for_log("the recording ends"));
}
