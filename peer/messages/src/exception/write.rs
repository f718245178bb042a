//! Errors as Python exceptions.

use crate::pickling::Pickling;
use crate::protocol::{ReplyStatus, Status};
use crate::value::{Serialized, ValueError};
use crate::{RemoteError, Value, scratch};

/// Python's exception classes that take a message as their only argument.
const CLASSES: [&str; 48] = [
    "ArithmeticError",
    "AssertionError",
    "AttributeError",
    "BaseException",
    "BlockingIOError",
    "BrokenPipeError",
    "BufferError",
    "BytesWarning",
    "ChildProcessError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "DeprecationWarning",
    "EOFError",
    "Exception",
    "FileExistsError",
    "FileNotFoundError",
    "FloatingPointError",
    "FutureWarning",
    "ImportError",
    "IndentationError",
    "IndexError",
    "InterruptedError",
    "IsADirectoryError",
    "KeyError",
    "LookupError",
    "MemoryError",
    "ModuleNotFoundError",
    "NameError",
    "NotADirectoryError",
    "NotImplementedError",
    "OSError",
    "OverflowError",
    "PermissionError",
    "ProcessLookupError",
    "RecursionError",
    "ReferenceError",
    "RuntimeError",
    "RuntimeWarning",
    "SyntaxError",
    "TimeoutError",
    "TypeError",
    "UnboundLocalError",
    "UserWarning",
    "ValueError",
    "Warning",
    "ZeroDivisionError",
];

impl RemoteError {
    /// Converts to the form in which Python workers send exceptions: `bytes` with the pickle.
    /// A class that is not built in becomes a `RuntimeError` that names the class.
    pub fn to_exception(&self) -> Value {
        if let Some(serialized) = &self.serialized {
            return Value::Serialized((**serialized).clone());
        }
        let class = CLASSES.into_iter().find(|class| *class == self.class);
        let (class, message) = match (class, &self.cause) {
            (Some(class), None) => (class, self.message.clone()),
            (Some(class), Some(cause)) => (class, format!("{}\ncaused by {cause}", self.message)),
            (None, _) => ("RuntimeError", self.to_string()),
        };
        let pickle = scratch::pickle(Pickling::PORTABLE, |writer| {
            writer
                .reduce()
                .global("builtins", class)
                .tuple(1)
                .str(&message);
            Ok::<(), ValueError>(())
        });
        match pickle {
            Ok(pickle) => Value::Serialized(Serialized::of_bytes(&pickle.into())),
            // Clients convert a string to an exception.
            Err(_) => Value::from(self.to_string()),
        }
    }

    /// Converts to the error reply to a request.
    pub fn to_status(&self) -> Status {
        Status {
            status: Some(ReplyStatus::UncaughtError),
            exception: Some(self.to_exception()),
            exception_text: Some(self.repr()),
            traceback_text: Some(self.traceback.clone()),
            traceback: Some(Value::None),
            ..Status::default()
        }
    }

    /// Formats the exception like Python's `repr()`.
    pub fn repr(&self) -> String {
        let message = Value::from(self.message.as_str());
        format!("{}({message})", self.class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clusters with Python 3.7 have clients that cannot read pickle protocol 5.
    #[test]
    fn exceptions_can_be_read_by_python_3_7() {
        let error = RemoteError {
            class: "ValueError".to_owned(),
            ..RemoteError::default()
        };
        let Value::Serialized(exception) = error.to_exception() else {
            panic!("not a payload");
        };
        let parts = [exception.header()].into_iter();
        for part in parts.chain(exception.frames().iter().map(AsRef::as_ref)) {
            assert!(!part.windows(2).any(|pair| pair == [0x80, 5]), "{part:?}");
        }
    }
}
