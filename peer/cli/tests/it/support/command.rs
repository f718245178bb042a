//! Runs the `daskwire` command with arguments and standard input. Returns the output,
//! the error line, and the exit status.

#![allow(
    unreachable_pub,
    reason = "a test has no outside; `pub` says what is for use"
)]

use std::ffi::OsStr;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// The output and exit status of a command.
pub struct Ran {
    pub status: Option<i32>,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ran {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("text on standard output")
    }

    /// The standard output of a command that succeeded without errors.
    #[track_caller]
    pub fn good(&self, name: &str) -> &str {
        assert_eq!(self.err, "", "{name}");
        assert_eq!(self.status, Some(0), "{name}");
        self.text()
    }

    /// The error line of a command that failed.
    #[track_caller]
    pub fn refused(&self, name: &str) -> &str {
        assert_eq!(self.status, Some(1), "{name}: {}", self.err);
        self.error(name)
    }

    /// The error line of a command with wrong arguments.
    #[track_caller]
    pub fn misused(&self, name: &str) -> &str {
        assert_eq!(self.status, Some(2), "{name}: {}", self.err);
        self.error(name)
    }

    #[track_caller]
    fn error(&self, name: &str) -> &str {
        let error = self.err.strip_suffix('\n').unwrap_or_default();
        assert!(!error.contains('\n'), "{name}: {error}");
        assert!(!error.contains("panicked"), "{name}: {error}");
        error
            .strip_prefix("daskwire: ")
            .unwrap_or_else(|| panic!("{name}: {error:?}"))
    }
}

/// Runs a command until it ends.
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
            // The command may not read all of its input.
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
