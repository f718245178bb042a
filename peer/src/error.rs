//! What can go wrong between peers.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use daskwire::message::BuildError;
use daskwire::pickle::tree::known::{self, Exception, Known, Native, native};
use daskwire::pickle::tree::{self, Node, Registry, Tree};
use daskwire::pickle::{Options, Writer};
use daskwire_tcp::CommError;

use crate::Key;
use crate::growing;
use crate::protocol::{ProtocolError, Status};
use crate::value::{Serialized, Value, ValueError, WrongType};

/// What went wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PeerError {
    /// The connection.
    Comm(Arc<CommError>),
    /// The peer closed the connection where an answer was expected.
    Closed {
        /// Its address.
        peer: String,
    },
    /// There was no answer in time.
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        after: Duration,
    },
    /// A message that was received is wrong.
    Protocol(ProtocolError),
    /// A message that was to be sent is too large for its format.
    Build(BuildError),
    /// A value cannot be read or written.
    Value(ValueError),
    /// A value is of another type than was asked for.
    Type(WrongType),
    /// A task failed, or the peer did what was asked for and failed.
    Remote(Box<RemoteError>),
    /// The peer said that it will not.
    Refused {
        /// What it said.
        reason: String,
    },
    /// A worker has no directory for data that does not stay in memory.
    Directory {
        /// Which, and what the system says.
        reason: String,
    },
    /// The task was cancelled.
    Cancelled {
        /// Its key.
        key: Key,
        /// Why, as the scheduler said.
        reason: String,
    },
    /// The result was there and is lost, with no way to compute it again.
    Lost {
        /// Its key.
        key: Key,
    },
    /// The peer does not read what it is sent; its connection was closed.
    NotReading {
        /// How many bytes of messages may wait for it.
        limit: usize,
    },
    /// The scheduler in this process panicked, and has ended.
    Panicked {
        /// What the panic said.
        reason: String,
    },
    /// The client has been closed, or its connection to the scheduler is gone.
    Disconnected {
        /// What ended it.
        reason: String,
    },
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Comm(error) => error.fmt(f),
            Self::Closed { peer } => write!(f, "{peer} closed the connection without an answer"),
            Self::Timeout { what, after } => {
                write!(f, "{what}: nothing within {} seconds", after.as_secs_f64())
            }
            Self::Protocol(error) => error.fmt(f),
            Self::Build(error) => write!(f, "the message cannot be sent: {error}"),
            Self::Value(error) => error.fmt(f),
            Self::Type(error) => error.fmt(f),
            Self::Remote(error) => error.fmt(f),
            Self::Refused { reason } => write!(f, "the peer refused: {reason}"),
            Self::Directory { reason } => {
                write!(
                    f,
                    "no directory for data that does not stay in memory: {reason}"
                )
            }
            Self::Cancelled { key, reason } if reason.is_empty() => {
                write!(f, "the task {key} was cancelled")
            }
            Self::Cancelled { key, reason } => write!(f, "the task {key} was cancelled: {reason}"),
            Self::Lost { key } => write!(f, "the result {key} is lost"),
            Self::NotReading { limit } => write!(
                f,
                "the peer does not read: more than {limit} bytes of messages wait for it"
            ),
            Self::Panicked { reason } => write!(f, "the scheduler panicked: {reason}"),
            Self::Disconnected { reason } => {
                write!(f, "there is no connection to the scheduler: {reason}")
            }
        }
    }
}

impl core::error::Error for PeerError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Comm(error) => Some(&**error),
            Self::Remote(error) => Some(&**error),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($type:ty, $error:ident => $made:expr;)*) => {$(
        impl From<$type> for PeerError {
            fn from($error: $type) -> Self {
                $made
            }
        }
    )*};
}

from! {
    CommError, error => Self::Comm(Arc::new(error));
    ProtocolError, error => Self::Protocol(error);
    BuildError, error => Self::Build(error);
    ValueError, error => Self::Value(error);
    WrongType, error => Self::Type(error);
    RemoteError, error => Self::Remote(Box::new(error));
    daskwire::typed::TypedError, error => Self::Value(error.into());
}

/// An exception that was raised elsewhere, in Python mostly.
///
/// Its parts are read from the pickle that was sent, without making anything of
/// it; [`serialized`](Self::serialized) is that pickle, to be passed on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteError {
    /// The class of the exception, such as `ZeroDivisionError` or
    /// `pandas.errors.ParserError`.
    pub class: String,
    /// Its text, as `str()` of it is.
    pub message: String,
    /// Where it was raised: a line for each frame, the outermost first, as Python
    /// prints them. Empty if it is not known.
    pub traceback: String,
    /// The exception as it was sent, if it was.
    pub serialized: Option<Serialized>,
}

/// As the last line of what Python prints.
impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            f.write_str(&self.class)
        } else {
            write!(f, "{}: {}", self.class, self.message)
        }
    }
}

impl core::error::Error for RemoteError {}

macro_rules! raised {
    ($($type:ty, $class:literal;)*) => {$(
        #[doc = concat!("A `", $class, "`.")]
        impl From<$type> for RemoteError {
            fn from(error: $type) -> Self {
                Self::new($class, &error.to_string())
            }
        }
    )*};
}

raised! {
    ValueError, "ValueError";
    WrongType, "TypeError";
    daskwire::typed::TypedError, "ValueError";
    crate::graph::GraphError, "ValueError";
}

impl RemoteError {
    /// An exception of a builtin class.
    pub fn new(class: &str, message: &str) -> Self {
        Self {
            class: class.to_owned(),
            message: message.to_owned(),
            ..Self::default()
        }
    }

    /// What the fields `exception` and `traceback` of a message say.
    pub(crate) fn of_fields(exception: &Value, traceback: Option<&Value>) -> Self {
        let mut error = match exception {
            Value::Serialized(serialized) => match serialized.pickle() {
                Ok((pickle, buffers)) => Self::of_pickle(&pickle, &buffers),
                Err(error) => match serialized.open() {
                    Ok(value) => Self::new("Exception", &text(&value)),
                    Err(_) => Self::new("Exception", &error.to_string()),
                },
            },
            Value::Bytes(data) => Self::of_pickle(data, &[]),
            value => Self::new("Exception", &text(value)),
        };
        if let Value::Serialized(serialized) = exception {
            error.serialized = Some(serialized.clone());
        }
        if error.traceback.is_empty()
            && let Some(Value::Serialized(serialized)) = traceback
            && let Ok((pickle, buffers)) = serialized.pickle()
            && let Ok(tree) = Tree::with_buffers(&pickle, &buffers)
            && let Ok(Native::Traceback(frames)) = native(exceptions(), tree.root())
        {
            error.traceback = lines(frames);
        }
        error
    }

    /// What a reply says that reports an exception.
    pub(crate) fn of_status(status: &Status) -> Self {
        let mut error = match &status.exception {
            Some(exception) => Self::of_fields(exception, status.traceback.as_ref()),
            None => Self::new("Exception", status.message.as_deref().unwrap_or_default()),
        };
        if error.message.is_empty()
            && let Some(text) = &status.exception_text
        {
            error.message.clone_from(text);
        }
        if error.traceback.is_empty()
            && let Some(text) = &status.traceback_text
        {
            error.traceback.clone_from(text);
        }
        error
    }

    fn of_pickle(pickle: &Bytes, buffers: &[Bytes]) -> Self {
        let Ok(tree) = Tree::with_buffers(pickle, buffers) else {
            return Self::new("Exception", &format!("b'{}'", pickle.escape_ascii()));
        };
        let root = tree.root();
        match native(exceptions(), root) {
            Ok(Native::Exception(exception)) => Self::of_exception(exception),
            // A class that is not built in: named by what is called with it.
            _ => Self::of_object(root),
        }
    }

    fn of_exception(exception: Exception<'_, '_>) -> Self {
        let class = exception.class.to_string();
        let class = class.strip_prefix("builtins.").unwrap_or(&class);
        Self {
            class: class.to_owned(),
            message: message(class, exception.arguments),
            traceback: exception.traceback.map(lines).unwrap_or_default(),
            serialized: None,
        }
    }

    /// `CLASS(ARGUMENTS...)`, or what `tblib` makes of exceptions with attributes.
    fn of_object(node: Node<'_, '_>) -> Self {
        let parts = match node.value() {
            tree::Value::Call {
                callable,
                arguments,
            } => Some((callable, arguments)),
            tree::Value::New {
                class, arguments, ..
            } => Some((class, arguments)),
            _ => None,
        };
        let Some((callable, arguments)) = parts else {
            return Self::new("Exception", &node.to_string());
        };
        let called = callable.as_global();
        let is_tblib = called.is_some_and(|name| {
            name.is("tblib.pickling_support", "unpickle_exception_with_attrs")
                || name.is("tblib.pickling_support", "unpickle_exception")
        });
        if !is_tblib {
            let class = called.map_or_else(|| "Exception".to_owned(), |name| name.to_string());
            let class = class.strip_prefix("builtins.").unwrap_or(&class).to_owned();
            let message = message(&class, arguments.items());
            return Self {
                class,
                message,
                ..Self::default()
            };
        }
        let mut parts = arguments.items();
        let class = parts.next().and_then(Node::as_global);
        let class = class.map_or_else(|| "Exception".to_owned(), |name| name.to_string());
        let class = class.strip_prefix("builtins.").unwrap_or(&class).to_owned();
        let given = parts.next();
        let given = given.map(|given| given.get("args").unwrap_or(given).items());
        let traceback = parts
            .nth(1)
            .and_then(|node| match native(exceptions(), node) {
                Ok(Native::Traceback(frames)) => Some(lines(frames)),
                _ => None,
            });
        Self {
            message: given
                .map(|items| message(&class, items))
                .unwrap_or_default(),
            class,
            traceback: traceback.unwrap_or_default(),
            serialized: None,
        }
    }
}

fn exceptions() -> &'static Registry<Known> {
    static NAMES: std::sync::OnceLock<Registry<Known>> = std::sync::OnceLock::new();
    NAMES.get_or_init(|| {
        let mut registry = Registry::new();
        registry.allow_all(known::EXCEPTIONS);
        registry
    })
}

/// A text as it is, anything else as Python shows it.
fn text(value: &Value) -> String {
    match value {
        Value::Str(text) => text.as_ref().to_owned(),
        other => other.to_string(),
    }
}

/// What `str()` makes of an exception with these arguments.
fn message(class: &str, arguments: tree::Items<'_, '_>) -> String {
    let all: Vec<Node<'_, '_>> = arguments.collect();
    match all.as_slice() {
        [key, worker, allowed_failures] if class == KILLED_WORKER => {
            let key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
            let count = allowed_failures
                .as_u64()
                .unwrap_or_default()
                .saturating_add(1);
            let state = worker.operations().find_map(|operation| match operation {
                tree::Operation::State(state) => state.node().get("address"),
                _ => None,
            });
            let last = state.and_then(Node::as_str).unwrap_or("unknown");
            format!("the task {key} took down {count} workers, the last of them {last}")
        }
        [] => String::new(),
        // It shows a key as it would be written.
        [one] if class == "KeyError" => match one.as_str() {
            Some(text) => Value::from(text).to_string(),
            None => one.to_string(),
        },
        [one] => one.as_str().map_or_else(|| one.to_string(), str::to_owned),
        [number, reason, ..] if class.ends_with("Error") && number.as_i64().is_some() => {
            let reason = reason
                .as_str()
                .map_or_else(|| reason.to_string(), str::to_owned);
            format!("[Errno {number}] {reason}")
        }
        many => {
            let texts: Vec<String> = many.iter().map(ToString::to_string).collect();
            format!("({})", texts.join(", "))
        }
    }
}

fn lines(traceback: known::Traceback<'_, '_>) -> String {
    let mut text = String::new();
    for frame in traceback {
        text.push_str(&format!("  {frame}\n"));
    }
    text
}

/// An exception of a builtin class, as Python takes it.
pub(crate) fn exception(class: &str, message: &str) -> Serialized {
    pickled(|writer| {
        writer.reduce().global("builtins", class).tuple(1);
        writer.str(message);
    })
}

const KILLED_WORKER: &str = "distributed.scheduler.KilledWorker";

/// What Dask raises for a task that takes down worker after worker.
pub(crate) fn killed_worker(key: &Key, last_worker: &str, allowed_failures: u32) -> Serialized {
    pickled(|writer| {
        writer.reduce();
        let (module, name) = KILLED_WORKER.rsplit_once('.').unwrap_or_default();
        writer.global(module, name);
        writer.tuple(3);
        key.pickle(writer);
        // It takes a worker, and asks it for its address.
        writer.build().reduce();
        writer.global("types", "SimpleNamespace").tuple(0);
        writer.dict(1).str("address").str(last_worker);
        writer.i64(allowed_failures.into());
    })
}

fn pickled(write: impl Fn(&mut Writer<'_, '_>)) -> Serialized {
    let pickle = growing::pickle(Options::default(), |writer| {
        write(writer);
        Ok::<(), daskwire::pickle::WriteError>(())
    });
    // There is room for whatever it is.
    Serialized::of_written_pickle(pickle.unwrap_or_default().into())
}
