//! Errors as Python exceptions.

use bytes::Bytes;

use super::state::Failure;
use crate::pickling::Pickling;
use crate::protocol::{ReplyStatus, Status};
use crate::scratch;
use crate::value::{Serialized, ValueError};
use crate::{RemoteError, Value};

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
    pub(crate) fn to_exception(&self) -> Value {
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

    pub(super) fn to_failure(&self) -> Failure {
        Failure {
            exception: self.to_exception(),
            traceback: Value::None,
            exception_text: self.repr(),
            traceback_text: self.traceback.clone(),
        }
    }

    /// Converts to the error reply to a request.
    pub(crate) fn to_status(&self) -> Status {
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
    fn repr(&self) -> String {
        let message = super::builtins::repr(&Value::from(self.message.as_str()));
        format!("{}({message})", self.class)
    }
}

/// The pickle of a value's class, which is sent along with results.
pub(super) fn class_of(value: &Value) -> Option<Bytes> {
    // PROTO 4, SHORT_BINUNICODE twice, STACK_GLOBAL, STOP
    let pickle: &'static [u8] = match value {
        // type(None) cannot be pickled by name.
        Value::None => b"\x80\x04\x8c\x08builtins\x8c\x04type\x93N\x85R.",
        Value::Bool(_) => b"\x80\x04\x8c\x08builtins\x8c\x04bool\x93.",
        Value::Int(_) | Value::LargeInt(_) => b"\x80\x04\x8c\x08builtins\x8c\x03int\x93.",
        Value::Float(_) => b"\x80\x04\x8c\x08builtins\x8c\x05float\x93.",
        Value::Complex(..) => b"\x80\x04\x8c\x08builtins\x8c\x07complex\x93.",
        Value::Str(_) => b"\x80\x04\x8c\x08builtins\x8c\x03str\x93.",
        Value::Bytes(_) => b"\x80\x04\x8c\x08builtins\x8c\x05bytes\x93.",
        Value::ByteArray(_) => b"\x80\x04\x8c\x08builtins\x8c\x09bytearray\x93.",
        Value::List(_) => b"\x80\x04\x8c\x08builtins\x8c\x04list\x93.",
        Value::Tuple(_) => b"\x80\x04\x8c\x08builtins\x8c\x05tuple\x93.",
        Value::Set(_) => b"\x80\x04\x8c\x08builtins\x8c\x03set\x93.",
        Value::FrozenSet(_) => b"\x80\x04\x8c\x08builtins\x8c\x09frozenset\x93.",
        Value::Dict(_) => b"\x80\x04\x8c\x08builtins\x8c\x04dict\x93.",
        Value::Array(array) if array.is_matrix() => b"\x80\x04\x8c\x05numpy\x8c\x06matrix\x93.",
        Value::Array(_) => b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93.",
        Value::Object(_) | Value::Serialized(_) => return None,
    };
    Some(Bytes::from_static(pickle))
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
