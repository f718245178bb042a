//! The failures and results of tasks in the forms that Python workers send.

use bytes::Bytes;
use daskwire_messages::{RemoteError, Value};

use super::state::Failure;

impl From<&RemoteError> for Failure {
    fn from(error: &RemoteError) -> Self {
        Self {
            exception: error.to_exception(),
            traceback: Value::None,
            exception_text: error.repr(),
            traceback_text: error.traceback.clone(),
        }
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
        _ => return None,
    };
    Some(Bytes::from_static(pickle))
}
