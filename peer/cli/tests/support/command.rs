//! The `daskwire` command as it is used: arguments and standard input in, text out,
//! one line for people if something is wrong, and an exit status.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(
    unreachable_pub,
    reason = "a test has no outside; `pub` says what is for use"
)]

use std::ffi::OsStr;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// What a run of the command left behind.
pub struct Ran {
    pub status: Option<i32>,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ran {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("text on standard output")
    }

    /// What it printed, having found nothing to say about it.
    #[track_caller]
    pub fn good(&self, name: &str) -> &str {
        assert_eq!(self.err, "", "{name}");
        assert_eq!(self.status, Some(0), "{name}");
        self.text()
    }

    /// What it said, in one line, having refused the input.
    #[track_caller]
    pub fn refused(&self, name: &str) -> &str {
        assert_eq!(self.status, Some(1), "{name}: {}", self.err);
        let error = self.err.strip_suffix('\n').unwrap_or_default();
        assert!(!error.contains('\n'), "{name}: {error}");
        assert!(!error.contains("panicked"), "{name}: {error}");
        error
            .strip_prefix("daskwire: ")
            .unwrap_or_else(|| panic!("{name}: {error:?}"))
    }
}

/// Runs it to its end.
pub fn run<S: AsRef<OsStr>>(arguments: &[S], input: Option<&[u8]>) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_daskwire"))
        .args(arguments)
        .stdin(match input {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let pipe = child.stdin.take();
    let output = std::thread::scope(|scope| {
        if let (Some(mut pipe), Some(input)) = (pipe, input) {
            // What it does not read is its own affair.
            scope.spawn(move || pipe.write_all(input));
        }
        child.wait_with_output().expect("the command ends")
    });
    Ran {
        status: output.status.code(),
        out: output.stdout,
        err: String::from_utf8(output.stderr).expect("text on standard error"),
    }
}
