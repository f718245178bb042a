//! Why the command ends without success.

use std::fmt;

/// A message for the user, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

/// The outcome of a command.
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// The command line is wrong, as when an option has a value that cannot be
    /// read.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: BAD_USAGE,
        }
    }

    /// Something that the user has been told already.
    pub(crate) const fn silent(code: u8) -> Self {
        Self {
            message: String::new(),
            code,
        }
    }

    /// Whether the user has been told already.
    pub(crate) const fn is_silent(&self) -> bool {
        self.message.is_empty()
    }

    pub(crate) const fn code(&self) -> u8 {
        self.code
    }
}

/// Something else failed.
impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { message, code: 1 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The exit code for a wrong command line, as clap's.
const BAD_USAGE: u8 = 2;
