//! Tests of `daskwire pickle` as a command: files and standard input in; listing,
//! errors and exit status out.

use crate::support::command;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::command::Ran;
use daskwire_cli::pickle::{Options, list};
use serde_json::Value;

/// Runs `daskwire pickle`.
fn run(arguments: &[&str], input: &[u8]) -> Ran {
    let arguments: Vec<&str> = ["pickle"].iter().chain(arguments).copied().collect();
    command::run(&arguments, Some(input))
}

/// Writes a file into the build directory.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pickle-{name}"));
    std::fs::write(&path, bytes).expect("a test may write below target/");
    path
}

/// The listing and the fault that the library returns.
fn listed(pickle: &[u8]) -> (String, Option<String>) {
    let mut out = Vec::new();
    let fault = list(pickle, &Options::default(), &mut out).expect("a vector takes all");
    let out = String::from_utf8(out).expect("text");
    (out, fault.map(|fault| fault.to_string()))
}

#[test]
fn a_pickle_that_calls_is_listed_and_not_called() {
    // Two calls of os.system("touch …"), as made by the object's __reduce__, followed by
    // trailing data.
    let pickle = b"\x80\x04\x95\x2b\0\0\0\0\0\0\0](\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\
        \x8c\x08touch /x\x94\x85\x94R\x94h\x02h\x04Re.more";
    let ran = run(&["-"], pickle);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert_eq!(
        ran.text(),
        r#"    0  PROTO 4
    2  FRAME 43
   11  EMPTY_LIST
   12  MARK
   13    SHORT_BINUNICODE "posix"
   20    MEMOIZE                                     # memo 0
   21    SHORT_BINUNICODE "system"
   29    MEMOIZE                                     # memo 1
   30    STACK_GLOBAL                                # names posix:system
   31    MEMOIZE                                     # memo 2
   32    SHORT_BINUNICODE "touch /x"
   42    MEMOIZE                                     # memo 3
   43    TUPLE1
   44    MEMOIZE                                     # memo 4
   45    REDUCE                                      # calls posix:system
   46    MEMOIZE                                     # memo 5
   47    BINGET 2                                    # posix:system
   49    BINGET 4
   51    REDUCE                                      # calls posix:system
   52  APPENDS
   53  STOP

21 opcodes in 54 bytes; needs protocol 4
4 bytes after STOP, which loading ignores: b"more"
names, which loading imports:
  posix:system  called 2 times, named 1 time
"#
    );
}

#[test]
fn finds_names_of_all_forms() {
    for (pickle, remark) in [
        (&b"cos\nsystem\n)R."[..], "calls os:system"),
        (b"(ios\nsystem\n.", "calls os:system"),
        (b"(cos\nsystem\no.", "calls os:system"),
        (b"cos\nsystem\n)\x81.", "calls os:system"),
        (b"cos\nsystem\n)}\x92.", "calls os:system"),
        (
            b"\x8c\x02osp1\n0\x8c\x06systemp7\n0g1\ng7\n\x93.",
            "names os:system",
        ),
        (b"U\x02os\x8c\x06system\x93.", "names os:system"),
        (b"S'\\x6f\\163'\nV\\u0073ystem\n\x93.", "names os:system"),
        (
            b"\x8c\x02os\x8c\x06system2000\x8c\x02os\x8c\x04path\x93.",
            "names os:path",
        ),
        (b"\x8c\x03a:b\x8c\x01c\x93.", r"names a\x3ab:c"),
        (b"cm\nf\n)R)R.", "calls what m:f returned"),
        (b"cm\nf\n)R}b.", "sets the state of what m:f returned"),
        (b"NN\x93.", "names something unknown"),
        (b"N)R.", "calls something unknown"),
        (b"\x82\x05)R.", "calls extension code 5 of copyreg"),
    ] {
        let (text, _) = listed(pickle);
        let found = text
            .lines()
            .any(|line| line.ends_with(remark) && line.contains("# "));
        assert!(found, "{}\n{text}", pickle.escape_ascii());
    }
    let (text, _) = listed(b"NN\x93Pid\nQcm\nf\n)R)R.");
    for line in [
        "names, which loading imports:",
        "  m:f  called 1 time, named 1 time",
        "  1 name unknown without loading",
        "1 call of values other than names: returned by a call, or unknown",
        "asks persistent_load for 2 persistent ids",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn output_has_no_control_characters() {
    let message = "\u{1b}[2J\n\u{202e}é".repeat(40);
    let mut pickle = vec![b'X'];
    pickle.extend(u32::try_from(message.len()).expect("short").to_le_bytes());
    pickle.extend_from_slice(message.as_bytes());
    pickle.extend_from_slice(b"B\x03\0\0\0\xff\n\"cm\x1b\nf\xc2\x85\n.");
    let (shown, fault) = listed(&pickle);
    assert_eq!(fault, None);
    assert_eq!(shown.lines().count(), 4 + 4, "{shown}");
    assert!(
        shown
            .chars()
            .all(|shown| shown == '\n' || !shown.is_control()),
        "{shown}"
    );
    assert!(
        !shown.contains('\u{202e}') && shown.contains(r"\u{1b}[2J\n\u{202e}é"),
        "{shown}"
    );
    assert!(
        shown.contains("… 400 bytes") && shown.contains(r#"b"\xff\n\"""#),
        "{shown}"
    );
    assert!(shown.contains(r"m\u{1b}:f\u{85}"), "{shown}");
    // Byte strings are shown as bytes, even if they encode characters.
    let (shown, _) = listed(b"C\x06\x07\n\xc3\xa9\"\x7f.");
    assert!(shown.contains(r#"b"\x07\n\xc3\xa9\"\x7f""#), "{shown}");
}

#[test]
fn buffers_are_matched_and_counted() {
    let pickle = b"\x80\x05\x97\x97\x98\x86.";
    let pickle = file("buffers", pickle);
    let (one, two) = (file("one", b"one"), file("two", b"second"));
    let run = |buffers: &[&PathBuf]| {
        // The pickle may be given after the buffers.
        let mut arguments = Vec::new();
        for buffer in buffers {
            arguments.extend(["--buffers".to_owned(), buffer.display().to_string()]);
        }
        arguments.push(pickle.display().to_string());
        run(
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
            b"",
        )
    };

    let ran = run(&[&one, &two]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    assert!(
        ran.text().contains("# buffer 0, 3 bytes\n"),
        "{}",
        ran.text()
    );
    assert!(
        ran.text().contains("# buffer 1, 6 bytes\n"),
        "{}",
        ran.text()
    );
    assert!(
        ran.text().contains("uses 2 out-of-band buffers; 2 given\n"),
        "{}",
        ran.text()
    );

    let ran = run(&[]);
    assert_eq!(ran.status, Some(0));
    assert!(
        ran.text().contains("uses 2 out-of-band buffers\n"),
        "{}",
        ran.text()
    );

    // The listing is complete despite the fault.
    for (buffers, fault) in [
        (vec![&one], "at byte 3: NEXT_BUFFER needs one more"),
        (vec![&one, &two, &one], "at byte 6: the pickle uses 2 of 3"),
    ] {
        let ran = run(&buffers);
        assert_eq!(ran.status, Some(1));
        assert!(
            ran.err.contains(fault) && ran.err.lines().count() == 1,
            "{}",
            ran.err
        );
        assert!(ran.text().contains("    6  STOP\n"), "{}", ran.text());
        assert!(ran.text().contains("BAD PICKLE at byte"), "{}", ran.text());
    }
}

#[test]
fn lists_malformed_pickles_up_to_the_fault() {
    for (pickle, lines, fault) in [
        (&b""[..], 0, "at byte 0: the pickle ends without STOP"),
        (
            b"NN\xff.",
            2,
            "at byte 2: the byte 0xff is not an opcode of protocols 0 to 5",
        ),
        (
            b"N\x80\x06.",
            1,
            "at byte 1: the pickle is of protocol 6; expected 0 to 5",
        ),
        (
            b"NI1",
            1,
            "at byte 1: the pickle ends inside INT; expected a line feed",
        ),
        // Loading fails at these opcodes, checked with CPython; the listing
        // continues.
        (
            b"R(0N.",
            5,
            "at byte 0: REDUCE finds too few values on the stack",
        ),
        (
            b"h\x05N.\xff",
            3,
            "at byte 0: BINGET refers to 5, which is not in the memo",
        ),
        (
            b"h\x05N\xff",
            2,
            "at byte 0: BINGET refers to 5, which is not in the memo",
        ),
    ] {
        let ran = run(&["-"], pickle);
        assert_eq!(ran.status, Some(1), "{pickle:?}");
        assert_eq!(ran.err, format!("daskwire: standard input: {fault}\n"));
        let listing: Vec<_> = ran
            .text()
            .lines()
            .take_while(|line| !line.is_empty())
            .collect();
        assert_eq!(listing.len(), lines, "{}", ran.text());
        assert!(
            ran.text().contains(&format!("\nBAD PICKLE {fault}\n")),
            "{}",
            ran.text()
        );
    }
    let ran = run(&["-", "--text-opcodes", "false"], b"NI1\n.");
    assert_eq!(ran.status, Some(1));
    assert!(
        ran.err.contains("INT is a text opcode of protocol 0"),
        "{}",
        ran.err
    );
    let ran = run(&["no such file"], b"");
    assert_eq!(
        (ran.status, ran.err.lines().count()),
        (Some(1), 1),
        "{}",
        ran.err
    );
}

/// With quadratic time or memory, this test would take minutes.
#[test]
fn lists_hostile_pickles_in_linear_time() {
    const COUNT: usize = 300_000;
    let text = |len: usize| {
        let mut pickle = vec![b'X'];
        pickle.extend(u32::try_from(len).expect("short").to_le_bytes());
        pickle.resize(pickle.len() + len, b'a');
        pickle
    };
    let marks = vec![b'('; COUNT];
    // A long string in many names
    let names = [
        text(COUNT),
        b"q\0q\x01".to_vec(),
        b"h\0h\x01\x93".repeat(COUNT / 5),
    ]
    .concat();
    let no_mark = [vec![b'N'; COUNT], vec![b't'; COUNT]].concat();
    // Many strings that differ only at their ends
    let escaped = b"V\\u0061a\n0".repeat(COUNT / 10);
    let memo = b"Nr\x00\xc2\xeb\x0b0".repeat(COUNT / 7);
    for mut pickle in [marks, names, no_mark, escaped, memo] {
        pickle.extend_from_slice(b"N.");
        let start = Instant::now();
        let (text, _) = listed(&pickle);
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
        assert!(
            text.len() < 200 * pickle.len(),
            "{} of {}",
            text.len(),
            pickle.len()
        );
    }
}

/// Pickles written by CPython must have no faults, and the listing must have every name
/// that CPython's disassembler shows.
#[test]
fn lists_pickles_of_cpython_completely() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../core/tests/vectors/pickles");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder of pickles") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("text");
        for line in text.lines() {
            let vector: Value = serde_json::from_str(line).expect("JSON");
            let unhex = |hex: &Value| -> Vec<u8> {
                let hex = hex.as_str().expect("hex").as_bytes().chunks(2);
                hex.map(|pair| {
                    let pair = std::str::from_utf8(pair).expect("ASCII");
                    u8::from_str_radix(pair, 16).expect("hex")
                })
                .collect()
            };
            let pickle = unhex(&vector["pickle"]);
            let buffers: Option<Vec<Vec<u8>>> = vector["buffers"]
                .as_array()
                .map(|list| list.iter().map(unhex).collect());
            let options = Options::default().with_buffers(buffers.as_deref());
            let mut out = Vec::new();
            let fault = list(&pickle, &options, &mut out).expect("a vector takes all");
            let text = String::from_utf8(out).expect("text");
            assert_eq!(fault, None, "{}\n{text}", vector["name"]);
            assert!(
                !text.contains("cannot be known"),
                "{}\n{text}",
                vector["name"]
            );
            assert!(
                !text.contains("calls something unknown"),
                "{}\n{text}",
                vector["name"]
            );
            let tokens = vector["tokens"].as_array().expect("a list");
            let listing = text.lines().take_while(|line| !line.is_empty()).count();
            assert_eq!(listing, tokens.len(), "{}", vector["name"]);
            count += 1;
        }
    }
    assert!(count >= 350, "only {count} pickles");
}
