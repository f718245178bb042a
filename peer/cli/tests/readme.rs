//! Runs each code block of the README, and compares the output with it.

#[path = "support/command.rs"]
mod command;

use std::path::{Path, PathBuf};
use std::process::Command;

use daskwire_peer::cluster::LocalCluster;
use daskwire_peer::{Array, Client};

const README: &str = include_str!("../../../README.md");

/// A block of code.
struct Block<'r> {
    language: &'r str,
    text: &'r str,
}

fn blocks() -> Vec<Block<'static>> {
    let mut parts = README.split("\n```");
    // The part before the first block.
    parts.next();
    let mut blocks = Vec::new();
    while let Some(part) = parts.next() {
        let (language, text) = part.split_once('\n').expect("a line with the language");
        blocks.push(Block { language, text });
        parts.next().expect("the end of the block");
    }
    blocks
}

/// The block that contains `what`.
#[track_caller]
fn block(what: &str) -> &'static str {
    let found: Vec<_> = blocks()
        .into_iter()
        .filter(|block| block.text.contains(what))
        .collect();
    assert_eq!(found.len(), 1, "{what}");
    found[0].text
}

fn workspace() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.join("../..")
}

/// Runs lines of the README in a shell, where `daskwire` and `cargo run
/// --release` are the command of this build, and returns the output.
fn shell(lines: &str) -> String {
    let command = format!(
        "daskwire() {{ {} \"$@\"; }}\n{}",
        env!("CARGO_BIN_EXE_daskwire"),
        lines.replace("cargo run --release --", "daskwire")
    );
    let ran = Command::new("sh")
        .args(["-ec", &command])
        .current_dir(workspace())
        .output()
        .expect("there is a shell");
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{lines}: {error}");
    String::from_utf8(ran.stdout).expect("text")
}

/// The text without numbers and names that vary, and without the spaces that
/// depend on them.
fn shape(text: &str) -> String {
    let mut shape = String::new();
    for line in text.lines() {
        let words: Vec<String> = line.split_whitespace().map(word_shape).collect();
        shape.push_str(words.join(" ").trim());
        shape.push('\n');
    }
    shape
}

fn word_shape(word: &str) -> String {
    // Times may have other units, and random names contain letters among digits.
    if ["µs", "ms", "s"].contains(&word) {
        return "TIME".to_owned();
    }
    if let Some((kind, _)) = word.split_once("Scheduler-") {
        return format!("{kind}Scheduler-ID");
    }
    let mut shape = String::new();
    for c in word.chars() {
        let is_number = c.is_ascii_digit() || (c == '.' && shape.ends_with('0'));
        if !is_number {
            shape.push(c);
        } else if !shape.ends_with('0') {
            shape.push('0');
        }
    }
    shape
}

#[test]
fn every_block_has_a_test() {
    let known: [(&str, &str); 12] = [
        ("sh", "-- journey"),
        ("text", "# we follow z"),
        ("sh", "-- inspect"),
        ("text", "message \"get-data\""),
        // This test runs it.
        ("sh", "cargo test\n"),
        ("text", "$ daskwire identity"),
        // `worker_signals` runs a worker with a log.
        ("text", "$ daskwire worker"),
        ("text", "| daskwire pickle -"),
        ("sh", "daskwire relay"),
        // A documentation test of this package.
        ("rust", "fn relay<'a>"),
        ("rs", "async fn norm"),
        ("", ""),
    ];
    let blocks = blocks();
    for (block, (language, what)) in blocks.iter().zip(known) {
        assert_eq!(block.language, language);
        let text = format!("{}\n", block.text);
        assert!(text.contains(what), "{text}");
    }
    assert_eq!(blocks.len(), known.len() - 1);
}

#[test]
fn journey_prints_what_is_shown() {
    let lines = block("-- journey");
    let told = shell(lines);
    let steps = |text: &str| {
        let steps = shape(text);
        let steps = steps.split("z = client.submit").nth(1).expect("z");
        // The order of simultaneous messages varies.
        let mut lines: Vec<&str> = steps
            .lines()
            .take_while(|line| !line.starts_with("del"))
            .collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    let shown = block("# we follow z");
    // The status of z after `submit` depends on timing.
    let same = |text: &str| steps(&text.replace("\"finished\"", "\"pending\""));
    assert_eq!(same(&told).trim(), same(shown).trim(), "{told}");
}

#[test]
fn inspect_prints_what_is_shown() {
    let told = shell(block("-- inspect"));
    let mut told = told.lines();
    // Omitted parts follow the mark.
    for shown in block("message \"get-data\"").trim_end().lines() {
        let is_it = |line: &str| match shown.strip_suffix('…') {
            Some(begin) => line.starts_with(begin.trim_end()),
            None => line == shown,
        };
        let line = told.find(|line| !line.starts_with("            "));
        assert!(line.is_some_and(is_it), "{shown}: {line:?}");
    }
    assert_eq!(told.next(), None);
}

#[test]
fn encode_writes_the_other_layout() {
    let vector = "core/tests/vectors/modern-nosplit-2026.8.0/docs-get-data-ones5.bin";
    let line =
        "daskwire inspect --json --data a.bin \\| daskwire encode --layout classic --prefix none -";
    assert!(README.contains(line));
    let line = line.replace("a.bin", vector).replace("\\|", "|");
    let classic = shell(&format!("{line} | daskwire inspect -"));
    assert!(classic.contains("classic layout"), "{classic}");
}

#[test]
fn pickle_prints_what_is_shown() {
    let (line, shown) = block("| daskwire pickle -")
        .strip_prefix("$ ")
        .and_then(|text| text.split_once('\n'))
        .expect("a command and what it prints");
    assert_eq!(shell(line).trim_end(), shown.trim_end());
}

#[test]
fn identity_prints_what_is_shown() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let (line, shown) = block("$ daskwire identity")
        .strip_prefix("$ ")
        .and_then(|text| text.split_once('\n'))
        .expect("a command and what it prints");
    let told = shell(&line.replace("tcp://127.0.0.1:8786", cluster.address()));
    // Workers of tests have names, and one thread.
    let told = told
        .replace("worker-0", cluster.workers()[0].address())
        .replace("1 thread,", "2 threads,");
    assert_eq!(shape(&told), shape(shown), "{told}");
}

/// The commands for both sides, with free ports.
#[test]
fn relays_carry_a_cluster_over_quic() {
    let scheduler = daskwire_testing::scheduler();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme-relay");
    std::fs::create_dir_all(&directory).expect("a test may write below target/");
    let lines = block("daskwire relay");
    let (certificate, relays) = lines
        .split_once("# beside the scheduler\n")
        .expect("first the certificate");
    let ran = Command::new("sh")
        .args(["-ec", certificate])
        .current_dir(&directory)
        .output()
        .expect("there is a shell");
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{error}");
    let (inner, outer) = relays
        .split_once("# beside the client, which connects to tcp://127.0.0.1:8786 as ever\n")
        .expect("the other side");
    let inner = inner
        .replace("tcp://127.0.0.1:8786", scheduler.address())
        .replace("0.0.0.0:8787", "127.0.0.1:0");
    let inner = Relay::start(&inner, &directory);
    let outer = outer
        .replace("quic://scheduler.example:8787", &inner.address)
        .replace("tcp://127.0.0.1:8786", "tcp://127.0.0.1:0");
    let outer = Relay::start(&outer, &directory);
    let told = shell(&format!("daskwire identity {}", outer.address));
    assert!(told.contains("workers    0"), "{told}");
}

/// A relay with the given command line.
struct Relay {
    process: std::process::Child,
    address: String,
}

impl Relay {
    fn start(line: &str, directory: &Path) -> Self {
        use std::io::BufRead as _;
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("daskwire"));
        let mut process = Command::new(env!("CARGO_BIN_EXE_daskwire"))
            .args(words)
            .current_dir(directory)
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut said = std::io::BufReader::new(process.stderr.take().expect("a pipe"));
        let mut first = String::new();
        said.read_line(&mut first).expect("text");
        // Drain its output, because a full pipe would block it.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let address = first
            .strip_prefix("daskwire: forwarding from ")
            .and_then(|rest| rest.split_once(" to "))
            .unwrap_or_else(|| panic!("the relay says: {first}"))
            .0
            .to_owned();
        Self { process, address }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The example of the README, which the test below compares with this.
#[rustfmt::skip]
async fn norm(scheduler: &str) -> Result<f64, Box<dyn std::error::Error>> {
    let client = Client::connect(scheduler).await?; // such as "tcp://10.0.0.7:8786"
    let array = client.scatter([Array::from_slice(&[2, 2], &[1.0, 2.0, 3.0, 4.0])?]).await?;
    let norm = client.submit("numpy.linalg.norm", [&array[0]])?; // on the workers, in Python
    let twice = client.submit("operator.mul", [norm.clone(), norm])?;
    let result = f64::try_from(twice.result().await?)?;
    client.close().await?;
    Ok(result)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_of_the_readme_runs() {
    let program = block("async fn norm");
    let program = &program[program.find("async fn norm").expect("just found")..];
    assert!(include_str!("readme.rs").contains(program), "{program}");
    let cluster = daskwire_testing::scheduler_with_workers(2);
    for _ in 0..5 {
        let result = norm(cluster.address()).await.expect("it works");
        assert!((result - 30.0).abs() < 1e-9, "{result}");
    }
    assert_eq!(cluster.complaints(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_may_be_given_away() {
    let cluster = LocalCluster::start().await.expect("a cluster");
    let client = cluster.client().await.expect("a client");
    for _ in 0..20 {
        let x = client.call("operator.add").argument(1).argument(2).impure();
        let x = x.submit().expect("submitted");
        let y = client.submit("operator.mul", [x.clone(), x]);
        let y = y.expect("submitted").result().await.expect("a result");
        assert_eq!(i64::try_from(y).expect("a number"), 9);
    }
    client.close().await.expect("closed");
    cluster.close().await;
}
