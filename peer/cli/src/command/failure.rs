//! The error of a command, with its exit code.

use std::fmt;

/// An error message for the user, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

/// The outcome of a command.
pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A wrong command line, such as an option with an invalid value.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            code: BAD_USAGE,
        }
    }

    /// A failure that has already been reported to the user.
    pub(crate) const fn silent(code: u8) -> Self {
        Self {
            message: String::new(),
            code,
        }
    }

    /// Whether the failure has already been reported.
    pub(crate) const fn is_silent(&self) -> bool {
        self.message.is_empty()
    }

    pub(crate) const fn code(&self) -> u8 {
        self.code
    }
}

/// Any other failure, with exit code 1.
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

/// The exit code for a wrong command line, the same as clap's.
const BAD_USAGE: u8 = 2;
