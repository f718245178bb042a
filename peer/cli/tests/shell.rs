//! Tests of `daskwire journey`, `scatter`, `submit`, `gather` and `release`.

#[path = "support/command.rs"]
mod command;

use std::path::PathBuf;

use command::{Ran, run};
use daskwire_testing::Peer;

/// Runs a command line, whose arguments contain no spaces.
fn daskwire(line: &str) -> Ran {
    let words: Vec<&str> = line.split_whitespace().collect();
    run(&words, None)
}

/// A path below `target/` without a file.
fn path(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("shell-{name}"));
    // Fails the first time.
    let _ = std::fs::remove_file(&path);
    path
}

/// Checks the steps of the journey of `z`, in order.
fn tells_the_journey(text: &str) {
    // It is pending, unless it is computed before the next line of code runs.
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
    let verbose = daskwire(&format!("journey -v --scheduler {}", cluster.address()));
    let text = verbose.good("verbose");
    tells_the_journey(text);
    let said = "{'op': 'gather', 'keys': ['z-";
    assert!(text.contains(said), "{text}");
    assert!(!short.text().contains(said), "{}", short.text());
    assert!(
        text.contains("scheduler → client       reply OK z"),
        "{text}"
    );
    assert_eq!(cluster.complaints(), [""; 0]);
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
        // The data outlives the command, for other clients too.
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
    daskwire(&format!("release {at} one")).good("release");
    let two = format!("scatter {at} {0} {0}", there.display());
    assert_eq!(daskwire(&two).good(&two).lines().count(), 2);
    let error = daskwire(&format!("{two} --key one"));
    assert_eq!(error.refused(&two), "--key is for a single file");
    let missing = daskwire(&format!("scatter {at} no-such-file"));
    assert!(missing.refused("missing").starts_with("no-such-file: "));
    assert_eq!(cluster.complaints(), [""; 0]);
}

#[test]
fn keys_of_standard_input_do_not_look_like_options() {
    let cluster = daskwire_testing::scheduler_with_workers(1);
    let at = cluster.address();
    let ran = run(&["scatter", at, "-"], Some(b"some bytes"));
    let key = ran.good("scatter").trim();
    assert!(key.starts_with("stdin-"), "{key}");
    let line = format!("gather {at} {key}");
    assert_eq!(daskwire(&line).good(&line), "b'some bytes'\n");
    // Keys made by others may begin with a dash.
    let line = format!("submit {at} operator.add 1 2 --key --sum-1 --hold");
    assert_eq!(daskwire(&line).good(&line), "--sum-1\n");
    let line = format!("submit {at} operator.neg @--sum-1");
    assert_eq!(daskwire(&line).good(&line), "-3\n");
    let line = format!("gather {at} --sum-1 --timeout 20");
    assert_eq!(daskwire(&line).good(&line), "3\n");
    let line = format!("release --timeout 20 {at} --sum-1 {key}");
    assert_eq!(daskwire(&line).good(&line), "");
    gone(&cluster, "--sum-1");
    gone(&cluster, key);
}

/// Waits until the key is released, which the cluster learns a little later.
fn gone(cluster: &Peer, key: &str) {
    for _ in 0..600 {
        let ran = daskwire(&format!("gather {} {key}", cluster.address()));
        if ran.status == Some(1) {
            let error = ran.refused(key);
            assert!(error.contains("has nothing under the key"), "{error}");
            return;
        }
        std::thread::sleep(core::time::Duration::from_millis(100));
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
        // More than 128 bits, just below and above a change of the number of
        // bytes
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
    assert_eq!(key, "('answer', 0)");
    let line = format!("submit {at} operator.neg @[\"answer\",0]");
    assert_eq!(daskwire(&line).good(&line), "-42\n");
    let line = format!("gather {at} [\"answer\",0]");
    assert_eq!(daskwire(&line).good(&line), "42\n");
    daskwire(&format!("release {at} [\"answer\",0]")).good("release");
    gone(&cluster, "[\"answer\",0]");
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
        ran.refused("keyword"),
        "--keyword two: expected NAME=ARGUMENT"
    );
    let ran = daskwire(&format!("gather {at} there-is-none"));
    let error = ran.refused("no such key");
    assert!(error.contains("there-is-none"), "{error}");
    let ran = daskwire("submit tcp://127.0.0.1:1 operator.neg 1 --timeout 1");
    let error = ran.refused("no scheduler");
    assert!(error.contains("tcp://127.0.0.1:1"), "{error}");
    let ran = daskwire("journey --scheduler nonsense");
    assert!(ran.refused("nonsense").starts_with("nonsense: "));
    let empty = daskwire_testing::scheduler();
    let ran = daskwire(&format!("journey --scheduler {}", empty.address()));
    let error = ran.refused("no workers");
    assert!(error.contains("has no workers"), "{error}");
}
