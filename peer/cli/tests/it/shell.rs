//! Tests of `daskwire journey`, `scatter`, `submit`, `gather` and `release`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::command::{Ran, run};
use daskwire_testing::Peer;
use daskwire_testing::bench::Process;

/// Runs a command line, whose arguments contain no spaces.
fn daskwire(line: &str) -> Ran {
    let words: Vec<&str> = line.split_whitespace().collect();
    run(&words, None)
}

/// Starts a command line that waits. It is killed when it is dropped.
fn start(line: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command.args(line.split_whitespace()).stderr(Stdio::piped());
    Process(command.spawn().expect("the command starts"))
}

/// A path in the build directory without a file.
fn path(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("shell-{name}"));
    // There is no file the first time.
    let _ = std::fs::remove_file(&path);
    path
}

/// Checks that an output has the steps of the journey of `z`, in order.
fn tells_the_journey(text: &str) {
    // `z` is pending, unless it is computed before the next line of code runs.
    let mut from = text.find("z is \"").expect("the journey of z");
    for line in [
        "Step 1, client",
        "update-graph z",
        "Step 6, scheduler",
        "key-in-memory z",
        "Step 7",
        "reply OK z",
        "Step 8",
        "client-releases-keys z",
    ] {
        let at = text[from..].find(line);
        from += at.unwrap_or_else(|| panic!("{line} is missing, or too early\n{text}"));
    }
    assert!(text.contains("z = 10 took "), "{text}");
}

#[test]
fn a_journey_needs_nothing_installed() {
    for transport in ["mem", "tcp", "tls", "quic"] {
        let ran = daskwire(&format!("journey --transport {transport}"));
        let text = ran.good(transport);
        tells_the_journey(text);
        for step in ["Steps 2 to 4, scheduler", "Step 5, worker"] {
            assert!(text.contains(step), "{text}");
        }
    }
}

#[test]
fn a_journey_goes_through_a_real_cluster() {
    let cluster = daskwire_testing::scheduler_with_workers(2);
    let short = daskwire(&format!("journey --scheduler {}", cluster.address()));
    tells_the_journey(short.good("short"));
    let verbose = daskwire(&format!(
        "journey --bodies --scheduler {}",
        cluster.address()
    ));
    let text = verbose.good("verbose");
    tells_the_journey(text);
    let said = "{'op': 'gather', 'keys': ['z-";
    assert!(text.contains(said), "{text}");
    assert!(!short.text().contains(said), "{}", short.text());
    assert!(
        text.contains("scheduler → client       reply OK z"),
        "{text}"
    );
    assert_eq!(cluster.warnings(), [""; 0]);
}

#[test]
fn scatters_and_gathers_files() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    let bytes: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n.wrapping_mul(n) >> 8) as u8)
        .collect();
    let (there, back) = (path("there"), path("back"));
    std::fs::write(&there, &bytes).expect("a test may write below target/");
    for route in ["", "--direct"] {
        let line = format!("scatter {at} {} {route}", there.display());
        let ran = daskwire(&line);
        let key = ran.good(&line).trim();
        assert!(key.contains("shell-there"), "{key}");
        // The data outlives the command, and other clients can use it.
        let line = format!("submit {at} builtins.len @{key}");
        assert_eq!(daskwire(&line).good(&line), "3000000\n");
        let line = format!("gather {at} {key} --output {} {route}", back.display());
        assert_eq!(daskwire(&line).good(&line), "");
        assert!(std::fs::read(&back).expect("it was written") == bytes);
        let line = format!("release {at} {key}");
        assert_eq!(daskwire(&line).good(&line), "");
        gone(&cluster, key);
    }
    let line = format!("scatter {at} {} --key one", there.display());
    assert_eq!(daskwire(&line).good(&line), "one\n");
    let ran = daskwire(&format!("release {at} two one"));
    assert_eq!(
        ran.refused("two"),
        "the cluster has no result with the key two"
    );
    gone(&cluster, "one");
    for keys in ["no-such-key", "one --dirct", "one --timeout 5 x"] {
        let ran = daskwire(&format!("release {at} {keys}"));
        assert_ne!(ran.status, Some(0), "{keys}");
    }
    let ran = daskwire(&format!("ps {at} -v"));
    assert!(ran.err.contains("connected to"), "{}", ran.err);
    let two = format!("scatter {at} {0} {0}", there.display());
    assert_eq!(daskwire(&two).good(&two).lines().count(), 2);
    let error = daskwire(&format!("{two} --key one"));
    assert_eq!(error.misused(&two), "--key is for a single file");
    let error = daskwire(&format!("gather {at} one --output no/such/folder.npy"));
    let expected = "--output no/such/folder.npy: expected a file in an existing folder";
    assert_eq!(error.misused("no folder"), expected);
    let missing = daskwire(&format!("scatter {at} no-such-file"));
    assert!(missing.refused("missing").starts_with("no-such-file: "));
    assert_eq!(cluster.warnings(), [""; 0]);
}

#[test]
fn files_are_stored_as_values() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    let (array, document) = (path("array.npy"), path("document.json"));
    let line = format!("submit {at} numpy.ones [2,3] -o {}", array.display());
    assert_eq!(daskwire(&line).good(&line), "");
    std::fs::write(&document, r#"{"a": [1, 2]}"#).expect("a test may write below target/");
    for (file, function, result) in [
        (&array, "numpy.sum", "6.0\n"),
        (&document, "builtins.repr", "\"{'a': [1, 2]}\"\n"),
    ] {
        let line = format!("scatter {at} --values {}", file.display());
        let ran = daskwire(&line);
        let key = ran.good(&line).trim();
        let line = format!("submit {at} {function} @{key}");
        assert_eq!(daskwire(&line).good(&line), result);
        let line = format!("release {at} {key}");
        assert_eq!(daskwire(&line).good(&line), "");
    }
    let line = format!("scatter {at} --values Cargo.toml");
    let expected =
        "--values Cargo.toml: expected a name that ends with .npy, .csv, .parquet or .json";
    assert_eq!(daskwire(&line).misused(&line), expected);
    std::fs::write(&array, b"not an array").expect("a test may write below target/");
    let line = format!("scatter {at} --values {}", array.display());
    let expected = format!("{}: not a file of numpy.save", array.display());
    assert_eq!(daskwire(&line).refused(&line), expected);
    assert_eq!(cluster.warnings(), [""; 0]);
}

#[test]
fn the_scheduler_is_found_by_a_variable_or_a_file() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let run = |line: &str, variable: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
        command.args(line.split_whitespace());
        match variable {
            Some(address) => command.env("DASK_SCHEDULER_ADDRESS", address),
            None => command.env_remove("DASK_SCHEDULER_ADDRESS"),
        };
        let output = command.output().expect("the command runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (text(output.stdout), text(output.stderr))
    };
    let file = path("scheduler.json");
    let document = serde_json::json!({"type": "Scheduler", "address": cluster.address()});
    std::fs::write(&file, document.to_string()).expect("a test may write below target/");
    let with_file = format!("--scheduler-file {}", file.display());
    for (options, variable) in [
        ("", Some(cluster.address())),
        (&*with_file, None),
        // The file precedes the variable.
        (&*with_file, Some("tcp://127.0.0.1:1")),
    ] {
        for (line, start) in [
            ("submit operator.add 1 2", "3\n"),
            ("ps", "Scheduler tcp://"),
            ("identity", "Scheduler tcp://"),
            ("logs", "20"),
        ] {
            let (out, err) = run(&format!("{line} {options}"), variable);
            assert!(out.starts_with(start), "{line} {options}: {out} {err}");
        }
    }
    // An address on the command line precedes the variable.
    let line = format!("submit {} operator.add 1 2", cluster.address());
    assert_eq!(
        run(&line, Some("tcp://127.0.0.1:1")),
        ("3\n".to_owned(), String::new())
    );
    let (_, err) = run(&format!("ps {} {with_file}", cluster.address()), None);
    let expected = "daskwire: the scheduler is given by its address and by --scheduler-file\n";
    assert_eq!(err, expected);
    let (_, err) = run("ps --scheduler-file no-such-file", None);
    assert!(err.starts_with("daskwire: no-such-file: "), "{err}");
    assert_eq!(cluster.warnings(), [""; 0]);
}

#[test]
fn keys_of_standard_input_do_not_look_like_options() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    let ran = daskwire(&format!("release {at} unknown"));
    assert!(ran.refused("unknown").ends_with("unknown"));
    assert_eq!(cluster.warnings(), [""; 0]);
    let ran = run(&["scatter", at, "-"], Some(b"some bytes"));
    let key = ran.good("scatter").trim();
    assert!(key.starts_with("stdin-"), "{key}");
    let line = format!("gather {at} {key}");
    assert_eq!(daskwire(&line).good(&line), "b'some bytes'\n");
    // Keys of other clients may begin with a dash.
    let line = format!("submit {at} operator.add 1 2 --key --sum-1 --hold");
    assert_eq!(daskwire(&line).good(&line), "--sum-1\n");
    let line = format!("submit {at} operator.neg @--sum-1");
    assert_eq!(daskwire(&line).good(&line), "-3\n");
    let line = format!("gather {at} --sum-1 --timeout 20");
    assert_eq!(daskwire(&line).good(&line), "3\n");
    let line = format!("release --timeout 20 {at} --json -- --sum-1 {key}");
    let document = format!("{{\"released\":[\"--sum-1\",\"{key}\"]}}\n");
    assert_eq!(daskwire(&line).good(&line), document);
    gone(&cluster, "--sum-1");
    gone(&cluster, key);
}

/// Waits until the key is released, which the scheduler does with a delay.
fn gone(cluster: &Peer, key: &str) {
    for _ in 0..600 {
        let ran = daskwire(&format!("gather {} {key}", cluster.address()));
        if ran.status == Some(1) {
            let error = ran.refused(key);
            assert!(error.contains("has no result with the key"), "{error}");
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{key} is still there");
}

#[test]
fn functions_are_called_by_their_names() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    for (call, result) in [
        ("operator.add 1 2", "3"),
        ("operator.mul ab 2", "'abab'"),
        ("operator.neg -0.5", "0.5"),
        (
            "builtins.sorted [3,1,2] --keyword reverse=true",
            "[3, 2, 1]",
        ),
        ("numpy.linalg.norm [3,4]", "5.0"),
        ("builtins:str.upper text", "'TEXT'"),
        // Integers of more than 128 bits, just below and above a limit of their
        // encoded length
        (
            "builtins.repr [1,-340282366920938463463374607431768211457,{\"a\":null}]",
            "\"[1, -340282366920938463463374607431768211457, {'a': None}]\"",
        ),
        (
            "builtins:int.bit_length 87112285931760246646623899502532662132735",
            "136",
        ),
        (
            "builtins.hex -87112285931760246646623899502532662132736",
            "'-0x10000000000000000000000000000000000'",
        ),
        (
            "builtins.hex 43556142965880123323311949751266331066368",
            "'0x8000000000000000000000000000000000'",
        ),
        ("operator.mul 0.5 1e3", "500.0"),
    ] {
        let line = format!("submit {at} {call}");
        assert_eq!(daskwire(&line).good(&line).trim_end(), result, "{call}");
    }
    let line = format!("submit {at} operator.add 40 2 --key [\"answer\",0] --hold");
    let ran = daskwire(&line);
    let key = ran.good(&line).trim();
    assert_eq!(key, "[\"answer\",0]");
    let line = format!("submit {at} operator.neg @{key}");
    assert_eq!(daskwire(&line).good(&line), "-42\n");
    for key in [key, "('answer',0)"] {
        let line = format!("gather {at} {key}");
        assert_eq!(daskwire(&line).good(&line), "42\n");
        let story = daskwire(&format!("story {at} {key}"));
        let step = "  scheduler  [\"answer\",0]: released -> waiting (";
        assert!(story.good("story").contains(step), "{}", story.text());
    }
    for command in ["gather", "story", "release"] {
        let ran = daskwire(&format!("{command} {at} ('no',\"it's\")"));
        assert!(
            ran.refused(command).ends_with(" [\"no\",\"it's\"]"),
            "{}",
            ran.err
        );
    }
    daskwire(&format!("release {at} {key}")).good("release");
    gone(&cluster, key);
}

#[test]
fn reports_errors_to_the_user() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    let ran = daskwire(&format!("submit {at} operator.truediv 1 0"));
    assert_eq!(ran.status, Some(1));
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(lines[0], "daskwire: the task failed");
    assert_eq!(
        lines.last(),
        Some(&"ZeroDivisionError: division by zero"),
        "{}",
        ran.err
    );
    let ran = daskwire(&format!("submit {at} no_such_module.function"));
    assert_eq!(ran.status, Some(1));
    // For a missing module, the scheduler gives no further details.
    assert!(
        ran.err.contains("deserialization of the task graph"),
        "{}",
        ran.err
    );
    let ran = daskwire(&format!("submit {at} operator.neg 1 --keyword two"));
    assert_eq!(
        ran.misused("keyword"),
        "--keyword two: expected NAME=ARGUMENT"
    );
    let ran = daskwire(&format!("gather {at} there-is-none"));
    let error = ran.refused("no such key");
    assert!(error.contains("there-is-none"), "{error}");
    let ran = daskwire("submit tcp://127.0.0.1:1 operator.neg 1 --timeout 1");
    assert_eq!(ran.status, Some(1));
    let lines: Vec<&str> = ran.err.lines().collect();
    let [retrying, error] = lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        retrying
            .starts_with("daskwire: cannot connect to tcp://127.0.0.1:1 yet: Connection refused")
            && retrying.ends_with("; trying again for 1 s"),
        "{retrying}"
    );
    assert!(error.contains("tcp://127.0.0.1:1"), "{error}");
    assert_eq!(error.matches("127.0.0.1").count(), 1, "{error}");
    let ran = daskwire("ps tcp://127.0.0.1:1 --timeout 0.5");
    assert!(
        ran.err.contains("; trying again for 0.5 s\n"),
        "{}",
        ran.err
    );
    let worker = cluster.workers()[0].address();
    for command in ["ps", "worker --no-nanny"] {
        let ran = daskwire(&format!("{command} {worker}"));
        assert_eq!(
            ran.err.lines().last(),
            Some(&*format!(
                "daskwire: {worker}: this is a worker; give the address of its scheduler"
            ))
        );
    }
    let ran = daskwire(&format!("identity {worker}"));
    let identity = ran.good("identity");
    assert!(
        identity.starts_with(&format!("Worker {worker} (")),
        "{identity}"
    );
    assert!(
        identity.contains("a worker, not a scheduler\n"),
        "{identity}"
    );
    assert!(!identity.contains("workers "), "{identity}");
    let ran = daskwire("journey --scheduler nonsense");
    assert!(ran.misused("nonsense").starts_with("nonsense: "));
    let empty = daskwire_testing::scheduler();
    let ran = daskwire(&format!("journey --scheduler {}", empty.address()));
    let error = ran.refused("no workers");
    assert!(error.contains("has no workers"), "{error}");
}

#[test]
fn bad_usage_has_its_own_exit_code() {
    for (line, part) in [
        (
            "submit tcp://127.0.0.1:1 f [1",
            "EOF while parsing a list at byte 2",
        ),
        (
            "submit tcp://127.0.0.1:1 f {a:1}",
            "key must be a string at byte 1",
        ),
        (
            "submit tcp://127.0.0.1:1 f 2026-11-22",
            "write '\"2026-11-22\"'",
        ),
        (
            "submit tcp://127.0.0.1:1 f None",
            "JSON is expected, which has null",
        ),
        (
            "submit tcp://127.0.0.1:1 f --keyword a=[",
            "argument [: EOF",
        ),
        (
            "submit tcp://127.0.0.1:1 f --keyword =1",
            "expected NAME=ARGUMENT",
        ),
        (
            "submit tcp://127.0.0.1:1 f --resources GPU",
            "expected NAME=AMOUNT",
        ),
        (
            "submit tcp://127.0.0.1:1 f --resources GPU=x",
            "expected an amount",
        ),
        (
            "identity http://127.0.0.1:8787",
            "by default with port 8786",
        ),
        ("submit tls://127.0.0.1:1 f", "needs TLS"),
        (
            "submit inproc://x f",
            "expected the scheme tcp, tls, quic, ws, wss or unix",
        ),
        (
            "scatter tcp://127.0.0.1:1 Cargo.toml --key [[]]",
            "--key: a key must not be empty",
        ),
        ("submit tcp://127.0.0.1:1 f @", "@: a key must not be empty"),
    ] {
        let ran = daskwire(line);
        let error = ran.misused(line);
        assert!(error.contains(part), "{line}: {error}");
    }
    // Errors detected by clap.
    for line in [
        "logs tcp://127.0.0.1:1 -n 0",
        "worker tcp://127.0.0.1:1 --nthreads -1",
        "submit",
        "no-such-command",
        "submit tcp://127.0.0.1:1 f --key a --impure",
    ] {
        assert_eq!(daskwire(line).status, Some(2), "{line}");
    }
}

#[test]
fn http_servers_are_recognized() {
    // Like Dask's own, this server waits for the end of a request, which we must send.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            std::thread::spawn(move || {
                let mut request = Vec::new();
                let mut byte = [0];
                while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
                    request.push(byte[0]);
                }
                // The client may have disconnected.
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            });
        }
    });
    let commands = [
        format!("identity tcp://{address}"),
        format!("submit tcp://{address} operator.neg 1"),
        format!("worker tcp://{address}"),
    ];
    let check = |command: &str| {
        let ran = daskwire(command);
        assert_eq!(ran.status, Some(1), "{command}");
        // The worker tells first that it tries again.
        let error = ran.err.lines().last().unwrap_or_default();
        let expected = "this is an HTTP server, such as the dashboard; did you mean the \
            scheduler's own port, by default 8786?";
        assert_eq!(
            error,
            format!("daskwire: tcp://{address}: {expected}"),
            "{command}"
        );
    };
    // Each waits for a reply.
    std::thread::scope(|scope| {
        for command in &commands {
            scope.spawn(|| check(command));
        }
    });
}

#[test]
fn submissions_have_options() {
    let cluster = daskwire_testing::scheduler_with_workers(2);
    let at = cluster.address();
    // The task runs on the named worker, and runs again each time.
    let line = format!("submit {at} distributed.get_worker --impure --workers worker-1 --hold");
    let ran = daskwire(&line);
    let first = ran.good(&line).trim().to_owned();
    let line = format!("submit {at} builtins.getattr @{first} name");
    assert_eq!(daskwire(&line).good(&line), "'worker-1'\n");
    let line = format!("submit {at} time.time --impure");
    let times = [daskwire(&line), daskwire(&line)];
    assert_ne!(times[0].good(&line), times[1].good(&line));
    // No worker has the resource, so that the task waits for one.
    let line = format!("submit {at} operator.neg 7 --resources GPU=1,MEMORY=2e9 --key scarce");
    let mut waiting = start(&line);
    let (sender, notes) = mpsc::channel();
    let stderr = BufReader::new(waiting.0.stderr.take().expect("it is piped"));
    std::thread::spawn(move || stderr.lines().try_for_each(|line| sender.send(line)));
    let note = notes.recv_timeout(Duration::from_secs(60));
    let note = note.expect("a note in time").expect("text");
    assert_eq!(note, "daskwire: waiting: no worker can run the task");
    let states = format!("submit {at} operator.neg 8 --retries 2 --json");
    let ran = daskwire(&states);
    let document: serde_json::Value = serde_json::from_str(ran.good(&states)).expect("JSON");
    assert_eq!(document["value"], -8);
    assert_eq!(waiting.0.try_wait().expect("a child"), None);
    drop(waiting);
    daskwire(&format!("release {at} {first}")).good("release");
}

#[test]
fn keys_are_looked_up_before_they_are_used() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    let ran = daskwire(&format!("submit {at} builtins.len @nosuch --keyword x=@x"));
    assert_eq!(
        ran.refused("inputs"),
        "the cluster has no result with the key nosuch, x"
    );
    let hold = format!("submit {at} operator.neg 1 --key dup --hold");
    daskwire(&hold).good(&hold);
    let existing = "the cluster already has a task with the key dup";
    let ran = daskwire(&format!("submit {at} operator.neg 2 --key dup"));
    assert_eq!((ran.status, ran.text()), (Some(0), "-1\n"));
    assert_eq!(
        ran.err,
        format!("daskwire: {existing}, whose result is kept\n")
    );
    let ran = daskwire(&format!("scatter {at} Cargo.toml --key dup"));
    assert_eq!(ran.refused("scatter"), existing);
    let ran = daskwire(&format!("submit {at} native:len a"));
    let note = "no worker in Rust runs this function; start one with `daskwire worker`";
    assert_eq!(ran.err.lines().last(), Some(note), "{}", ran.err);
    // A client of this kind stays connected while it waits.
    let line = format!("submit {at} time.sleep 60 --key other");
    let _other = start(&line);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !daskwire(&format!("story {at} other"))
        .text()
        .contains("processing")
    {
        assert!(Instant::now() < deadline, "the task does not start");
    }
    let ran = daskwire(&format!("release {at} other dup nosuch"));
    assert_eq!(
        ran.refused("release"),
        "the cluster has no result with the key nosuch; not held by `scatter` or `submit --hold`: \
         other"
    );
    gone(&cluster, "dup");
}

#[test]
fn a_task_that_fails_first_is_retried() {
    // One worker, whose process counts the tries.
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    for (module, retries, is_good) in [("math", "", false), ("cmath", "--retries 1", true)] {
        // The first try divides by zero.
        let code = format!(
            "(m:=__import__('{module}'),setattr(m,'tries',getattr(m,'tries',0)+1),1//(m.tries-1))[-1]"
        );
        let line = format!("submit {at} builtins.eval {code} {retries}");
        let ran = daskwire(&line);
        if is_good {
            assert_eq!(ran.good(&line), "1\n");
        } else {
            assert_eq!(ran.status, Some(1));
            assert!(ran.err.contains("ZeroDivisionError"), "{}", ran.err);
        }
    }
}

/// The value of a result in JSON, on standard output and in a file.
#[test]
fn json_has_the_whole_result_or_there_is_an_error() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    let file = path("result.json");
    let submit = |expression: &str, options: &str| {
        let expression = serde_json::Value::from(expression);
        daskwire(&format!("submit {at} builtins.eval {expression} {options}"))
    };
    let written = |expression: &str| -> serde_json::Value {
        submit(expression, &format!("-o {}", file.display())).good(expression);
        let json = std::fs::read(&file).expect("it was written");
        std::fs::remove_file(&file).expect("removed");
        serde_json::from_slice(&json).expect("JSON")
    };
    for (expression, json) in [
        (
            "[None,True,-7,0.5,'x']",
            serde_json::json!([null, true, -7, 0.5, "x"]),
        ),
        ("(1,{2},frozenset())", serde_json::json!([1, [2], []])),
        (
            "[2**63,2**64,-2**200]",
            serde_json::json!([
                1_u64 << 63,
                {"$int": "18446744073709551616"},
                {"$int": "-1606938044258990275541962092341162602522202993782792835301376"}
            ]),
        ),
        (
            "[float('nan'),float('inf'),-float('inf')]",
            serde_json::json!([{"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"}]),
        ),
        (
            "[1j,complex('nan')]",
            serde_json::json!([{"$complex": [0.0, 1.0]}, {"$complex": [{"$float": "nan"}, 0.0]}]),
        ),
        (
            "[b'ab',bytearray(b'')]",
            serde_json::json!([{"$bytes": "YWI="}, {"$bytes": ""}]),
        ),
        ("{'a':{'b':()}}", serde_json::json!({"a": {"b": []}})),
        (
            "{('x',0):1,'y':b'z'}",
            serde_json::json!({"$map": [[["x", 0], 1], ["y", {"$bytes": "eg=="}]]}),
        ),
        // Not bytes, but a dictionary that looks like them.
        (
            "{'$bytes':'YWI='}",
            serde_json::json!({"$map": [["$bytes", "YWI="]]}),
        ),
        (
            "__import__('datetime').date(2026,8,1)",
            serde_json::json!({"$object": {"class": "datetime.date", "arguments": [2026, 8, 1]}}),
        ),
        (
            "[__import__('decimal').Decimal('0.10')]",
            serde_json::json!([{"$object": {"class": "decimal.Decimal", "arguments": ["0.10"]}}]),
        ),
        (
            "{'a':__import__('numpy').array([[1,2.5]])}",
            serde_json::json!({"a": [[1.0, 2.5]]}),
        ),
    ] {
        assert_eq!(written(expression), json, "{expression}");
        let ran = submit(expression, "--json");
        let document: serde_json::Value = serde_json::from_str(ran.good(expression)).expect("JSON");
        assert_eq!(document["value"], json, "{expression}");
    }
    let pattern = "__import__('re').compile('x')";
    let times = "__import__('numpy').array(['NaT'],'M8[ns]')";
    let only_python = "only Python can read re._compile; convert it on the cluster, for example \
        with builtins.str, or write a data frame or table as .parquet";
    let elements = |dtype: &str| format!("elements of type {dtype} have no form in JSON; use .npy");
    for (expression, error) in [
        (pattern.to_owned(), only_python.to_owned()),
        (
            format!("[0,{{'a':({pattern},)}}]"),
            format!("at [1]['a'][0]: {only_python}"),
        ),
        (format!("{{{pattern}:1}}"), only_python.to_owned()),
        (
            format!("[{times}]"),
            format!("at [0]: {}", elements("<M8[ns]")),
        ),
        (
            "__import__('numpy').ones(2,'longdouble')".to_owned(),
            elements("<f16"),
        ),
        (
            "[10**5000]".to_owned(),
            "at [0]: <int of 16616 bits> is too long for JSON".to_owned(),
        ),
    ] {
        let ran = submit(&expression, "--json");
        let refused = ran.refused(&expression);
        assert!(refused.starts_with(&error), "{expression}: {refused}");
        assert!(ran.out.is_empty(), "{expression}");
        let ran = submit(&expression, &format!("-o {}", file.display()));
        let refused = ran.refused(&expression);
        let of_file = format!("{}: {error}", file.display());
        assert!(refused.starts_with(&of_file), "{expression}: {refused}");
        assert!(!file.exists(), "{expression}");
    }
    // The document of an array has its type, its file does not.
    let ran = submit(times, "--json");
    let document: serde_json::Value = serde_json::from_str(ran.good(times)).expect("JSON");
    assert_eq!(document["dtype"], "<M8[ns]");
    assert_eq!(document["value"], serde_json::json!([null]));
    let ran = submit(times, &format!("-o {}", file.display()));
    assert!(
        ran.refused(times).ends_with(&elements("<M8[ns]")),
        "{}",
        ran.err
    );
    // Text in a file is not a description either.
    let text = path("result.txt");
    let ran = submit(&format!("[{pattern}]"), &format!("-o {}", text.display()));
    let refused = ran.refused(pattern);
    let expected = format!("{}: at [0]: {only_python}", text.display());
    assert_eq!(refused, expected);
    assert!(!text.exists());
    assert_eq!(cluster.warnings(), [""; 0]);
}

#[test]
fn results_are_readable_and_become_files() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    let submit = |call: &str| {
        let line = format!("submit {at} {call}");
        daskwire(&line).good(&line).to_owned()
    };
    assert_eq!(submit("builtins:str.upper text --raw"), "TEXT\n");
    assert_eq!(submit("builtins:str.encode text --raw"), "text");
    assert_eq!(
        submit("numpy.arange 6"),
        "array of <i8, shape (6), 48 B\n[0, 1, 2, 3, 4, 5]\n"
    );
    assert_eq!(
        submit("numpy.full [2000,2] 0.5")
            .lines()
            .collect::<Vec<_>>(),
        [
            "array of <f8, shape (2000, 2), 31.2 KiB",
            "[[0.5, 0.5],",
            " [0.5, 0.5],",
            " [0.5, 0.5],",
            " ...,",
            " [0.5, 0.5],",
            " [0.5, 0.5],",
            " [0.5, 0.5]]",
        ]
    );
    assert_eq!(submit("numpy.ones [10,100]").matches("1.0").count(), 1000);
    // Few bytes with many elements
    let repeated = "numpy.broadcast_to 1 [1000000000000]";
    assert!(submit(repeated).ends_with("\n[1, 1, 1, ..., 1, 1, 1]\n"));
    let file = path("repeated.csv");
    for output in ["--json".to_owned(), format!("--output {}", file.display())] {
        let ran = daskwire(&format!("submit {at} {repeated} {output}"));
        let error = ran.refused(repeated);
        assert!(error.contains("1000000000000"), "{error}");
    }
    let empty = submit("numpy.zeros [1000000000,0]");
    assert!(
        empty.ends_with("\n[[],\n [],\n [],\n ...,\n [],\n [],\n []]\n"),
        "{empty}"
    );
    let json = |call: &str| -> serde_json::Value {
        serde_json::from_str(&submit(&format!("{call} --json"))).expect("JSON")
    };
    let document = json("numpy.eye 2 --key eye");
    assert_eq!(
        document,
        serde_json::json!({
            "key": "eye", "type": "ndarray", "dtype": "<f8", "shape": [2, 2],
            "value": [[1.0, 0.0], [0.0, 1.0]],
        })
    );
    assert_eq!(
        json("builtins:str.encode ab")["value"],
        serde_json::json!({"$bytes": "YWI="})
    );
    assert_eq!(
        json("builtins.dict [[1,2],[\"a\",null]]")["value"],
        serde_json::json!({"$map": [[1, 2], ["a", null]]})
    );
    for (call, value) in [
        ("numpy.float16 -1.5", serde_json::json!(-1.5)),
        (
            "numpy.array [1,-2] --keyword dtype=>i2",
            serde_json::json!([1, -2]),
        ),
        (
            "numpy.array [1,2] --keyword dtype=complex64",
            serde_json::json!([{"$complex": [1.0, 0.0]}, {"$complex": [2.0, 0.0]}]),
        ),
        (
            "numpy.array [\"a\",\"ü\"] --keyword dtype=>U3",
            serde_json::json!(["a", "ü"]),
        ),
        ("numpy.array [true,false]", serde_json::json!([true, false])),
        (
            "numpy.array [0.1,6e-8,7e4] --keyword dtype=float16",
            serde_json::json!([0.0999755859375, 5.960464477539063e-8, {"$float": "inf"}]),
        ),
        (
            "numpy.array [\"2026-01-02\",\"NaT\"] --keyword dtype=M8[D]",
            serde_json::json!([20455, null]),
        ),
    ] {
        assert_eq!(json(call)["value"], value, "{call}");
    }
    let (npy, csv, document) = (path("a.npy"), path("a.csv"), path("a.json"));
    for (call, file) in [
        ("numpy.array [[1,2],[3,4]] --keyword order=F", &npy),
        (
            "builtins.list [{\"a\":1,\"b\":\"x,y\"},{\"a\":2.5,\"b\":null}]",
            &csv,
        ),
        ("builtins.list [1,[true]]", &document),
    ] {
        assert_eq!(submit(&format!("{call} -o {}", file.display())), "");
    }
    let read = |file| std::fs::read_to_string(file).expect("it was written");
    assert_eq!(submit("builtins:str.encode ab -o -"), "ab");
    let upper = path("A.NPY");
    submit(&format!("numpy.ones 1 -o {}", upper.display()));
    assert!(
        std::fs::read(&upper)
            .expect("it was written")
            .starts_with(b"\x93NUMPY")
    );
    assert_eq!(read(&csv), "a,b\n1,\"x,y\"\n2.5,\n");
    assert_eq!(read(&document), "[1,[true]]\n");
    // numpy reads its own format.
    let line = format!("submit {at} numpy.load {} --impure --json", npy.display());
    let loaded: serde_json::Value =
        serde_json::from_str(daskwire(&line).good(&line)).expect("JSON");
    assert_eq!(loaded["value"], serde_json::json!([[1, 2], [3, 4]]));
    for (call, file, error) in [
        (
            "operator.neg 1",
            "x.npy",
            "this format is for arrays, and the result is of type int",
        ),
        (
            "numpy.ones [1,1,1]",
            "x.csv",
            "an array with 3 dimensions has no rows; use .npy or .json",
        ),
    ] {
        let file = path(file);
        let line = format!("submit {at} {call} -o {}", file.display());
        let ran = daskwire(&line);
        assert_eq!(ran.refused(&line), format!("{}: {error}", file.display()));
    }
    let ran = daskwire("submit tcp://127.0.0.1:1 operator.neg 1 -o x.feather");
    assert!(ran.misused("feather").contains(".feather is not supported"));
    assert_eq!(cluster.warnings(), [""; 0]);
}

/// Without the feature `parquet`, which `.ci/nightly tables` leaves out.
#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_tables_says_how_to_get_them() {
    const REMEDY: &str =
        "tables are not part of this build: install daskwire-cli with its feature parquet";
    // Before anything is connected or computed.
    let line = "submit tcp://127.0.0.1:1 operator.neg 1 -o x.parquet";
    let expected = format!("{REMEDY}, or use .npy, .csv or .json");
    assert_eq!(daskwire(line).misused(line), expected);
    for name in ["table.csv", "table.parquet", "TABLE.CSV"] {
        let file = path(name);
        std::fs::write(&file, "a,b\n1,2\n").expect("a test may write below target/");
        let line = format!("scatter tcp://127.0.0.1:1 --values {}", file.display());
        let expected = format!("--values {}: {REMEDY}", file.display());
        assert_eq!(daskwire(&line).misused(&line), expected);
    }
    // The type of a result is known when it is there.
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    let file = path("frame.csv");
    let line = format!("submit {at} pandas.DataFrame [[1,2]] -o {}", file.display());
    let expected = format!("{}: {REMEDY}", file.display());
    assert_eq!(daskwire(&line).refused(&line), expected);
    // It does not help with other classes.
    let line = format!("submit {at} types.SimpleNamespace -o {}", file.display());
    let ran = daskwire(&line);
    assert!(!ran.refused(&line).contains("part of this build"), "{line}");
    // The bytes of such a file can be sent.
    let file = path("table.parquet");
    std::fs::write(&file, "a,b\n1,2\n").expect("a test may write below target/");
    let line = format!("scatter {at} {}", file.display());
    let key = daskwire(&line);
    let line = format!("submit {at} builtins.len @{}", key.good(&line).trim());
    assert_eq!(daskwire(&line).good(&line), "8\n");
    assert_eq!(cluster.warnings(), [""; 0]);
}
