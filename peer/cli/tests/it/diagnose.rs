//! Tests of `daskwire ps`, `logs`, `story` and `top`, of `--json` documents, and of
//! completions and manual pages.

use crate::support::command::{Ran, run};
use serde_json::Value;

/// Runs a command line, whose arguments contain no spaces.
fn daskwire(line: &str) -> Ran {
    let words: Vec<&str> = line.split_whitespace().collect();
    run(&words, None)
}

fn document(line: &str) -> Value {
    let ran = daskwire(line);
    serde_json::from_str(ran.good(line)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// The example documents in `JSON.md`.
fn examples() -> Vec<Value> {
    let page = include_str!("../../JSON.md");
    let blocks = page.split("```json\n").skip(1);
    let block = |block: &str| {
        let json = block.split("```").next().unwrap_or_default();
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
    };
    blocks.map(block).collect()
}

/// Collects the names in a document, in order, including objects in its lists.
fn names(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                let path = format!("{path}.{name}");
                out.push(path.clone());
                // The names in these objects are data.
                if !["prefixes", "tasks", "value", "message"].contains(&name.as_str()) {
                    names(value, &path, out);
                }
            }
        }
        Value::Array(items) => {
            if let Some(first) = items.first() {
                names(first, &format!("{path}[]"), out);
            }
        }
        _ => {}
    }
}

/// Asserts that a document has the same names as the example that contains the name `only`.
#[track_caller]
pub(crate) fn is_documented(only: &str, document: &Value) {
    is_documented_by(only, |example| example.get(only).is_some(), document);
}

/// Asserts that the document of an event has the same names as the example of this event
/// that contains the name `only`.
#[track_caller]
fn is_documented_event(event: &str, only: &str, document: &Value) {
    let is_of_it = |example: &Value| example["event"] == event && example.get(only).is_some();
    is_documented_by(event, is_of_it, document);
}

#[track_caller]
fn is_documented_by(name: &str, is_of_it: impl Fn(&Value) -> bool, document: &Value) {
    let mut examples = examples().into_iter().filter(is_of_it);
    let example = examples
        .next()
        .unwrap_or_else(|| panic!("no example with {name}"));
    assert_eq!(examples.next(), None, "{name}");
    let [mut expected, mut found] = [Vec::new(), Vec::new()];
    names(&example, "", &mut expected);
    names(document, "", &mut found);
    assert_eq!(found, expected, "{document}");
}

/// Parses the documents that a command line prints.
fn documents(ran: &Ran, line: &str) -> Vec<Value> {
    let lines = ran.good(line).lines();
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    lines.map(parse).collect()
}

/// A command that runs until it is stopped, and its events.
struct Running {
    process: std::process::Child,
    events: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(line: &str) -> Self {
        let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_daskwire"))
            .args(line.split_whitespace())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("the command starts");
        let out = std::io::BufReader::new(process.stdout.take().expect("it is piped"));
        let events = std::io::BufRead::lines(out);
        Self { process, events }
    }

    /// Reads the next event, which must have the name `event`.
    #[track_caller]
    fn event(&mut self, event: &str) -> Value {
        let line = self.events.next().expect("an event").expect("UTF-8");
        let document: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(document["event"], event, "{document}");
        document
    }

    fn terminate(&self) {
        let id = self.process.id().to_string();
        let sent = std::process::Command::new("kill").arg(&id).status();
        assert!(sent.expect("the command kill").success());
    }

    /// Waits for the end of the command. There must be no further events.
    #[track_caller]
    fn end(mut self) {
        assert!(self.events.next().is_none());
        assert!(self.process.wait().expect("it was started").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn documents_of_pickles_and_journeys_are_as_described() {
    let pickle = b"\x80\x04(\x8c\x05posix\x8c\x06system\x93)R\x85.";
    let ran = run(&["pickle", "-", "--json"], Some(pickle));
    let mut listed = documents(&ran, "pickle");
    let whole = listed.pop().expect("a document");
    is_documented("trailing", &whole);
    assert_eq!(whole["names"][0]["name"], "posix:system");
    assert_eq!(whole["opcodes"], listed.len());
    for opcode in &listed {
        is_documented("opcode", opcode);
    }
    assert_eq!(listed[2]["argument"], "\"posix\"");
    assert_eq!(
        (&listed[1]["depth"], &listed[2]["depth"]),
        (&0.into(), &1.into())
    );
    // The last document reports the fault, too.
    let ran = run(&["pickle", "-", "--json"], Some(b"\x80\x04R."));
    assert_eq!(ran.status, Some(1));
    let last = ran.text().lines().last().expect("a document");
    let last: Value = serde_json::from_str(last).expect("JSON");
    assert!(last["fault"].is_string(), "{last}");

    let ran = daskwire("journey --json");
    let mut messages = documents(&ran, "journey");
    let result = messages.pop().expect("a document");
    is_documented("took", &result);
    assert_eq!(result["result"], 10);
    for message in &messages {
        is_documented_by("part", |example| example.get("part").is_some(), &{
            let mut message = message.clone();
            // The example shows one message of a batch, so the first one is compared.
            message["messages"] = message["messages"][0].clone();
            message["messages"] = Value::Array(vec![message["messages"].take()]);
            message
        });
    }
    let mut steps: Vec<&str> = messages
        .iter()
        .filter(|message| message["part"] == "z")
        .filter_map(|message| message["step"].as_str())
        .collect();
    steps.dedup();
    assert_eq!(steps.first(), Some(&"submit"), "{steps:?}");
    assert!(
        steps.contains(&"execute") && steps.contains(&"gather"),
        "{steps:?}"
    );
}

#[cfg(unix)]
#[test]
fn events_of_relays_and_workers_are_as_described() {
    let cluster = daskwire_testing::scheduler_with_workers(0);
    let at = cluster.address();
    let mut relay = Running::start(&format!(
        "relay --json --listen tcp://127.0.0.1:0 --connect {at}"
    ));
    let forwarding = relay.event("forwarding");
    is_documented_event("forwarding", "from", &forwarding);
    let through = forwarding["from"].as_str().expect("an address");
    daskwire(&format!("identity {through}")).good("identity");
    is_documented_event("ended", "there", &relay.event("ended"));
    let port = through.trim_start_matches("tcp://");
    let mut stream = std::net::TcpStream::connect(port).expect("it listens");
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    is_documented_event("disconnected", "error", &relay.event("disconnected"));
    relay.terminate();
    is_documented_event("stopping", "message", &relay.event("stopping"));
    relay.end();

    // Port 1 refuses connections.
    let mut relay =
        Running::start("relay --json --listen tcp://127.0.0.1:0 --connect tcp://127.0.0.1:1");
    let forwarding = relay.event("forwarding");
    let port = forwarding["from"].as_str().expect("an address");
    let _stream = std::net::TcpStream::connect(port.trim_start_matches("tcp://"));
    let waiting = relay.event("waiting");
    let message = waiting["message"].as_str().expect("a string");
    assert!(message.ends_with("; trying again for 30 s"), "{message}");
    drop(relay);

    let mut worker = Running::start(&format!("worker {at} --json --nthreads 1 --name alice"));
    let registered = worker.event("registered");
    is_documented_event("registered", "scheduler", &registered);
    assert_eq!(registered["name"], "alice");
    daskwire(&format!("submit {at} operator.add 1 2")).good("submit");
    worker.terminate();
    for _ in 0..2 {
        is_documented_event("stopping", "message", &{
            let mut notice = worker.event("notice");
            notice["event"] = "stopping".into();
            notice
        });
    }
    let ended = worker.event("ended");
    is_documented_event("ended", "tasks", &ended);
    assert_eq!(ended["tasks"][0]["prefix"], "add");
    worker.end();

    let ran = daskwire("worker --functions --json");
    for function in documents(&ran, "functions") {
        is_documented("function", &function);
    }
}

#[test]
fn documents_are_as_described() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    is_documented("python", &document(&format!("identity {at} --json")));
    let submit = format!("submit {at} numpy.ones [2] --key ones --json");
    is_documented("dtype", &document(&submit));
    let hold = document(&format!("submit {at} operator.neg 1 --key x --hold --json"));
    assert_eq!(hold, serde_json::json!({"key": "x"}));
    is_documented("dtype", &{
        let mut document = document(&format!("gather {at} x --json"));
        assert_eq!(document["value"], -1);
        // The example is that of an array, with two names more.
        let entries = document.as_object_mut().expect("an object");
        let value = entries.remove("value").expect("a value");
        entries.insert("dtype".into(), "".into());
        entries.insert("shape".into(), Value::Null);
        entries.insert("value".into(), value);
        document
    });
    is_documented("prefixes", &document(&format!("ps {at} --json")));
    is_documented("logs", &document(&format!("logs {at} worker-0 --json")));
    is_documented("steps", &document(&format!("story {at} x --json")));
    is_documented("released", &document(&format!("release --json {at} x")));
    let scattered = run(&["scatter", at, "-", "--json"], Some(b"data"));
    is_documented(
        "keys",
        &serde_json::from_str(scattered.good("scatter")).expect("JSON"),
    );
    let inspected = daskwire("inspect tests/captures/lo.pcap --json");
    let first = inspected.good("inspect").lines().next().expect("a message");
    is_documented("conversation", &serde_json::from_str(first).expect("JSON"));
}

#[test]
fn shows_workers_and_tasks() {
    let cluster = daskwire_testing::scheduler_with_workers(2);
    let at = cluster.address();
    daskwire(&format!("submit {at} operator.add 1 2 --key mine-1 --hold")).good("submit");
    daskwire(&format!("submit {at} operator.truediv 1 0 --key bad-1"))
        .status
        .expect("it ends");
    let ps = daskwire(&format!("ps {at}"));
    let ps = ps.good("ps");
    let first = ps.lines().next().expect("a line");
    assert!(
        first.starts_with(&format!("Scheduler {at}, distributed 2026.8.0, up for ")),
        "{first}"
    );
    assert!(ps.contains("\n  2 workers, 2 threads, "), "{ps}");
    for worker in cluster.workers() {
        assert!(ps.contains(worker.address()), "{ps}");
    }
    let line = |start: &str| {
        let mut lines = ps
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines
            .find(|words| words.first() == Some(&start))
            .unwrap_or_else(|| panic!("{ps}"))
    };
    assert_eq!(
        line("tasks")[1..],
        ["waiting", "processing", "memory", "released", "erred"]
    );
    assert_eq!(line("mine")[1..], ["0", "0", "1", "0", "0"]);
    let document = document(&format!("ps {at} --json"));
    assert_eq!(document["tasks"]["memory"], 1, "{document}");
    assert_eq!(document["workers"].as_array().map(Vec::len), Some(2));
}

#[test]
fn shows_logs_and_stories() {
    let cluster = daskwire_testing::scheduler_with_workers(2);
    let at = cluster.address();
    let logs = daskwire(&format!("logs {at}"));
    assert!(
        logs.good("logs").contains("Register worker addr: "),
        "{}",
        logs.text()
    );
    let last = daskwire(&format!("logs {at} -n 1"));
    assert_eq!(last.good("last").lines().count(), 1);
    let address = cluster.workers()[1].address();
    let logs = daskwire(&format!("logs {at} worker-0 {address}"));
    for worker in cluster.workers() {
        let heading = format!("{}:\n", worker.address());
        assert!(logs.good("workers").contains(&heading), "{}", logs.text());
    }
    assert!(logs.text().contains("Registered to:"), "{}", logs.text());
    let ran = daskwire(&format!("logs {at} nobody"));
    assert_eq!(ran.refused("nobody"), "the cluster has no worker nobody");

    daskwire(&format!(
        "submit {at} operator.add 1 2 --key mine --workers worker-1 --hold"
    ))
    .good("submit");
    let story = daskwire(&format!("story {at} mine"));
    let mut from = 0;
    for step in [
        "  scheduler  mine: released -> waiting (",
        "  scheduler  mine: waiting -> processing (",
        "  worker-1   mine: executing -> memory (",
        "  scheduler  mine: processing -> memory (",
    ] {
        let at = story.good("story")[from..].find(step);
        from += at.unwrap_or_else(|| panic!("{step} is missing, or too early\n{}", story.text()));
    }
    let ran = daskwire(&format!("story {at} unknown"));
    assert_eq!(
        ran.refused("unknown"),
        "neither the scheduler nor a worker has a record of unknown"
    );
    let ran = daskwire(&format!("story {at} unknown --json"));
    assert_eq!((ran.status, ran.text()), (Some(1), "{\"steps\":[]}\n"));
    assert_eq!(cluster.warnings(), [""; 0]);
}

#[test]
fn top_needs_a_terminal() {
    let ran = daskwire("top tcp://127.0.0.1:1");
    let error = ran.misused("top");
    assert!(error.contains("`daskwire ps`"), "{error}");
    assert_eq!(
        daskwire("top tcp://127.0.0.1:1 --interval 0").status,
        Some(2)
    );
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let help = daskwire("--help");
    let commands: Vec<&str> = help
        .good("help")
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty() && *name != "help")
        .collect();
    assert!(commands.contains(&"top"), "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = daskwire(&format!("completions {shell}"));
        for command in &commands {
            assert!(script.good(shell).contains(command), "{shell}: {command}");
        }
    }
    assert_eq!(daskwire("completions cobol").status, Some(2));
    let directory = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("man");
    std::fs::create_dir_all(&directory).expect("a test may write below target/");
    daskwire(&format!("man {}", directory.display())).good("man");
    for command in commands {
        let page = directory.join(format!("daskwire-{command}.1"));
        let page = std::fs::read_to_string(&page).expect("a page");
        assert!(page.contains("Examples:"), "{command}");
    }
    assert!(directory.join("daskwire.1").is_file());
    let ran = daskwire("man no-such-directory");
    assert!(ran.refused("man").starts_with("no-such-directory: "));
}
