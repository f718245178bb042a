//! Tests of `daskwire ps`, `logs`, `story` and `top`, of the documents of `--json`,
//! and of completions and manual pages.

#[path = "support/command.rs"]
mod command;

use command::{Ran, run};
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

/// The examples of `JSON.md`.
fn examples() -> Vec<Value> {
    let page = include_str!("../JSON.md");
    let blocks = page.split("```json\n").skip(1);
    let block = |block: &str| {
        let json = block.split("```").next().unwrap_or_default();
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
    };
    blocks.map(block).collect()
}

/// The names of a document, in order, also those of the objects in its lists.
fn names(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                let path = format!("{path}.{name}");
                out.push(path.clone());
                // Their names are data.
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

/// Asserts that a document has the names of the example that has the name `only`.
#[track_caller]
fn is_documented(only: &str, document: &Value) {
    let mut examples = examples()
        .into_iter()
        .filter(|example| example.get(only).is_some());
    let example = examples
        .next()
        .unwrap_or_else(|| panic!("no example with {only}"));
    assert_eq!(examples.next(), None, "{only}");
    let [mut expected, mut found] = [Vec::new(), Vec::new()];
    names(&example, "", &mut expected);
    names(document, "", &mut found);
    assert_eq!(found, expected, "{document}");
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
        // Of arrays only.
        let entries = document.as_object_mut().expect("an object");
        let value = entries.remove("value").expect("a value");
        entries.insert("dtype".into(), "".into());
        entries.insert("shape".into(), Value::Null);
        entries.insert("value".into(), value);
        document
    });
    is_documented("tasks", &document(&format!("ps {at} --json")));
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
        "neither the scheduler nor a worker remembers unknown"
    );
    assert_eq!(cluster.complaints(), [""; 0]);
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
