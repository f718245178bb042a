//! Runs the commands in the README and the guide, and compares their output with the
//! output shown. The Rust programs are run by the package `daskwire-docs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use daskwire_docs::{Block, blocks, documents};
use daskwire_peer::cluster::LocalCluster;

/// The code blocks of a document, such as `README.md` or `docs/src/quic.md`.
fn blocks_of(document: &str) -> Vec<Block> {
    let text = fs::read_to_string(workspace().join(document));
    blocks(&text.expect("a document"))
}

/// The code block of a document that contains `what`.
#[track_caller]
pub(crate) fn block(document: &str, what: &str) -> String {
    let mut found = blocks_of(document);
    found.retain(|block| block.code.contains(what));
    assert_eq!(found.len(), 1, "{document}: {what}");
    found.remove(0).code
}

fn workspace() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.join("../..")
}

/// Runs lines of the README in a shell, where `daskwire`, `cargo run --release --` and
/// `cargo run --` are replaced by the command of this build, and returns the output.
fn shell(lines: &str) -> String {
    let lines = lines.replace("cargo run --release --", "daskwire");
    let command = format!(
        "daskwire() {{ {} \"$@\"; }}\n{}",
        env!("CARGO_BIN_EXE_daskwire"),
        lines.replace("cargo run --", "daskwire")
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

/// Removes numbers and names that vary from a text, and the spaces that depend on
/// them.
pub(crate) fn shape(text: &str) -> String {
    let mut shape = String::new();
    for line in text.lines() {
        let words: Vec<String> = line.split_whitespace().map(word_shape).collect();
        shape.push_str(words.join(" ").trim());
        shape.push('\n');
    }
    shape
}

fn word_shape(word: &str) -> String {
    // The unit of times may vary, and random names contain letters among digits.
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

/// Fails if a block of commands or of output has no test.
#[test]
fn every_block_has_a_test() {
    let known = [
        ("README.md", "sh", "-- journey"),
        ("README.md", "text", "# we follow z"),
        ("README.md", "sh", "daskwire identity"),
        // This test itself.
        ("README.md", "sh", "cargo test\n"),
        ("codec.md", "sh", "-- inspect"),
        ("codec.md", "text", "message \"get-data\""),
        ("codec.md", "sh", "daskwire encode"),
        ("command.md", "text", "$ daskwire identity"),
        ("journey.md", "sh", "daskwire journey"),
        ("journey.md", "text", "# we follow z"),
        ("pickles.md", "text", "| daskwire pickle -"),
        ("quic.md", "sh", "daskwire relay"),
        // `peer/cli/tests/dask/managers.sh` runs such a cluster of dask-jobqueue.
        ("replace-dask-scheduler.md", "text", "SLURMCluster"),
        // `recording` runs a cluster that is recorded.
        ("replay.md", "text", "$ daskwire replay"),
        // `worker_signals` runs a worker with a log.
        ("stuck-task.md", "text", "$ daskwire worker"),
        ("tls.md", "sh", "openssl req"),
    ];
    let mut found = Vec::new();
    for path in documents(&workspace()).expect("the guide") {
        let document = fs::read_to_string(&path).expect("text");
        let name = path.file_name().expect("a file").to_string_lossy();
        for block in blocks(&document) {
            match &*block.language {
                "sh" | "text" => found.push((name.clone().into_owned(), block)),
                // `docs/tests/programs.rs` runs or resolves them.
                "rust" | "toml" | "python" => {}
                // Commands that tests cannot run, such as `pip install`.
                "console" => {}
                // `peer/tests/nginx.sh` runs nginx with such lines.
                "nginx" => {}
                other => panic!("{name}: a block of {other:?}"),
            }
        }
    }
    for ((document, block), (place, language, what)) in found.iter().zip(known) {
        assert_eq!((&**document, &*block.language), (place, language));
        assert!(block.code.contains(what), "{place}: {}", block.code);
    }
    assert_eq!(found.len(), known.len());
}

/// Checks that options exist in `--help` for commands that are not run.
#[test]
fn options_that_are_shown_exist() {
    let mut count = 0;
    for path in documents(&workspace()).expect("the guide") {
        let document = fs::read_to_string(&path).expect("text");
        for block in blocks(&document) {
            let lines = block.code.lines().filter(|_| block.language == "console");
            for line in lines.filter_map(|line| line.strip_prefix("$ daskwire ")) {
                let mut words = line.split_whitespace();
                let subcommand = words.next().expect("a subcommand");
                let help = shell(&format!("daskwire {subcommand} --help"));
                for option in words.filter(|word| word.starts_with("--")) {
                    assert!(help.contains(option), "{line}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 5, "only {count} options are shown");
}

/// Splits a line of a journey into one line per message; other lines are unchanged.
fn messages(line: &str) -> Vec<String> {
    let parts = line.split_once(" → ").and_then(|(from, rest)| {
        let (to, rest) = rest.split_once(' ')?;
        let (messages, _length) = rest.rsplit_once(" (")?;
        Some((from, to, messages))
    });
    let Some((from, to, messages)) = parts else {
        return vec![line.to_owned()];
    };
    let messages = messages.split(", ");
    messages
        .map(|message| format!("{from} → {to} {message}"))
        .collect()
}

#[test]
fn journey_prints_what_is_shown() {
    let output = shell(&block("README.md", "-- journey"));
    assert_eq!(
        block("docs/src/journey.md", "daskwire journey"),
        "daskwire journey\n"
    );
    let steps = |text: &str| {
        let steps = shape(text);
        let steps = steps.split("z = client.submit").nth(1).expect("z");
        // The order of simultaneous messages varies, and so does which are sent together.
        let mut lines: Vec<String> = steps
            .lines()
            .take_while(|line| !line.starts_with("del"))
            .flat_map(messages)
            .collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    let shown = block("docs/src/journey.md", "# we follow z");
    // The status of z after `submit` depends on timing.
    let same = |text: &str| steps(&text.replace("\"finished\"", "\"pending\""));
    assert_eq!(same(&output).trim(), same(&shown).trim(), "{output}");

    // The README shows a part of the journey.
    for line in block("README.md", "# we follow z").lines() {
        assert!(line.trim() == "…" || shown.contains(line), "{line}");
    }
}

#[test]
fn inspect_prints_what_is_shown() {
    let output = shell(&block("docs/src/codec.md", "-- inspect"));
    let mut output = output.lines();
    // Omitted parts follow the mark.
    let shown = block("docs/src/codec.md", "message \"get-data\"");
    for shown in shown.trim_end().lines() {
        let is_it = |line: &str| match shown.strip_suffix('…') {
            Some(begin) => line.starts_with(begin.trim_end()),
            None => line == shown,
        };
        let line = output.find(|line| !line.starts_with("            "));
        assert!(line.is_some_and(is_it), "{shown}: {line:?}");
    }
    assert_eq!(output.next(), None);
}

#[test]
fn encode_writes_the_other_layout() {
    let classic = shell(&block("docs/src/codec.md", "daskwire encode"));
    assert!(classic.contains("classic layout"), "{classic}");
}

/// Runs the commands for a scheduler.
#[test]
fn first_commands_work() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let lines = block("README.md", "daskwire identity");
    let output = shell(&lines.replace("tcp://127.0.0.1:8786", cluster.address()));
    assert!(output.contains("workers    1, 1 thread"), "{output}");
    assert!(output.ends_with("\n3\n"), "{output}");
}

#[test]
fn the_test_certificate_of_the_guide_is_valid() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme-tls");
    fs::create_dir_all(&directory).expect("a test may write below target/");
    let lines = block("docs/src/tls.md", "openssl req");
    shell(&format!("cd {}\n{lines}", directory.display()));
    let pem = directory.join("cluster.pem");
    let pem = pem.as_path();
    let tls = daskwire_peer::tls::TlsSettings::new(pem, pem).build();
    tls.expect("a certificate and its key");
}

#[test]
fn pickle_prints_what_is_shown() {
    let block = block("docs/src/pickles.md", "| daskwire pickle -");
    let (line, shown) = block
        .strip_prefix("$ ")
        .and_then(|text| text.split_once('\n'))
        .expect("a command and what it prints");
    assert_eq!(shell(line).trim_end(), shown.trim_end());
}

#[test]
fn identity_prints_what_is_shown() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let block = block("docs/src/command.md", "$ daskwire identity");
    let (line, shown) = block
        .strip_prefix("$ ")
        .and_then(|text| text.split_once('\n'))
        .expect("a command and what it prints");
    let output = shell(&line.replace("tcp://127.0.0.1:8786", cluster.address()));
    // Workers in tests have names and one thread.
    let output = output
        .replace("worker-0", cluster.workers()[0].address())
        .replace("1 thread,", "2 threads,");
    assert_eq!(shape(&output), shape(shown), "{output}");
}

/// Runs the commands for both sides, with free ports.
#[test]
fn relays_carry_a_cluster_over_quic() {
    let scheduler = daskwire_testing::scheduler();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme-relay");
    fs::create_dir_all(&directory).expect("a test may write below target/");
    let lines = block("docs/src/quic.md", "daskwire relay");
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
        .split_once("# beside the client, which connects to tcp://127.0.0.1:8786 as before\n")
        .expect("the other side");
    let inner = inner
        .replace("tcp://127.0.0.1:8786", scheduler.address())
        .replace("0.0.0.0:8787", "127.0.0.1:0");
    let inner = Relay::start(&inner, &directory);
    let outer = outer
        .replace("quic://scheduler.example:8787", &inner.address)
        .replace("tcp://127.0.0.1:8786", "tcp://127.0.0.1:0");
    let outer = Relay::start(&outer, &directory);
    let output = shell(&format!("daskwire identity {}", outer.address));
    assert!(output.contains("workers    0"), "{output}");
}

/// A `daskwire relay` process with the given command line.
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
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn futures_can_be_moved_into_a_call() {
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
