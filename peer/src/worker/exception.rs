//! Errors as exceptions that Python raises.

use bytes::Bytes;
use daskwire::pickle::Options;

use super::state::Failure;
use crate::growing;
use crate::protocol::Status;
use crate::value::{Serialized, ValueError};
use crate::{RemoteError, Value};

/// The classes of Python that can be made of a text alone.
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
    /// The exception as Python workers send it: `bytes` that hold its pickle. A
    /// class that is not built in becomes a `RuntimeError` that names it.
    pub(crate) fn to_exception(&self) -> Value {
        if let Some(serialized) = &self.serialized {
            return Value::Serialized(serialized.clone());
        }
        let class = CLASSES.into_iter().find(|class| *class == self.class);
        let (class, text) = match class {
            Some(class) => (class, self.message.clone()),
            None => ("RuntimeError", self.to_string()),
        };
        let pickle = growing::pickle(Options::default(), |writer| {
            writer
                .reduce()
                .global("builtins", class)
                .tuple(1)
                .str(&text);
            Ok::<(), ValueError>(())
        });
        let exception = pickle.and_then(|pickle| Serialized::of(&Value::Bytes(pickle.into())));
        match exception {
            Ok(exception) => Value::Serialized(exception),
            // Clients make an exception of a text.
            Err(_) => Value::Str(self.to_string()),
        }
    }

    pub(super) fn to_failure(&self) -> Failure {
        Failure {
            exception: self.to_exception(),
            exception_text: self.text(),
            traceback_text: self.traceback.clone(),
        }
    }

    /// What a request is answered with that ended in it.
    pub(crate) fn to_status(&self) -> Status {
        Status {
            status: Some("uncaught-error".to_owned()),
            exception: Some(self.to_exception()),
            exception_text: Some(self.text()),
            traceback_text: Some(self.traceback.clone()),
            traceback: Some(Value::None),
            ..Status::default()
        }
    }

    /// As `repr()` of it.
    fn text(&self) -> String {
        let message = super::python::repr(&Value::from(self.message.as_str()));
        format!("{}({message})", self.class)
    }
}

/// The pickle of a class, which goes with results.
pub(super) fn class_of(value: &Value) -> Option<Bytes> {
    macro_rules! class {
        ($module:literal, $name:literal) => {{
            const PICKLE: &str = concat!("c", $module, "\n", $name, "\n.");
            Bytes::from_static(PICKLE.as_bytes())
        }};
    }
    Some(match value {
        // type(None) has no name of its own.
        Value::None => Bytes::from_static(b"\x80\x04\x8c\x08builtins\x8c\x04type\x93N\x85R."),
        Value::Bool(_) => class!("builtins", "bool"),
        Value::Int(_) | Value::LargeInt(_) => class!("builtins", "int"),
        Value::Float(_) => class!("builtins", "float"),
        Value::Complex(..) => class!("builtins", "complex"),
        Value::Str(_) => class!("builtins", "str"),
        Value::Bytes(_) => class!("builtins", "bytes"),
        Value::ByteArray(_) => class!("builtins", "bytearray"),
        Value::List(_) => class!("builtins", "list"),
        Value::Tuple(_) => class!("builtins", "tuple"),
        Value::Set(_) => class!("builtins", "set"),
        Value::FrozenSet(_) => class!("builtins", "frozenset"),
        Value::Dict(_) => class!("builtins", "dict"),
        Value::Array(array) if array.is_matrix() => class!("numpy", "matrix"),
        Value::Array(_) => class!("numpy", "ndarray"),
        Value::Serialized(_) => return None,
    })
}
