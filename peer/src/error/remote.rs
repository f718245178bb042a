//! Exceptions of peers, read without executing Python.

use core::cell::Cell;
use core::fmt::{self, Write as _};
use daskwire::invariant::Ensured;

use bytes::Bytes;
use daskwire_numpy::known::{self, Known, KnownValue, convert};
use daskwire_pickle::Writer;
use daskwire_pickle::tree::{self, Node, Registry, Tree};

use crate::Key;
use crate::pickling::Pickling;
use crate::protocol::Status;
use crate::scratch;
use crate::value::{Serialized, Value, ValueError, WrongType};

/// An exception that was raised in a peer, usually in Python.
///
/// Its parts are read from the pickle without executing it;
/// [`serialized`](Self::serialized) is that pickle, for forwarding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteError {
    /// The class of the exception, such as `ZeroDivisionError` or
    /// `pandas.errors.ParserError`.
    pub class: String,
    /// The exception's message, as `str()` returns it.
    pub message: String,
    /// The traceback: a line for each frame, outermost first, as Python prints
    /// it. Empty if unknown.
    pub traceback: String,
    /// The exception that this one was raised from, or that was being handled.
    ///
    /// Exceptions of Dask may lack details without it: for a function that the
    /// scheduler cannot import, only the cause has the name.
    pub cause: Option<Box<Self>>,
    /// The exception as it was received.
    pub serialized: Option<Serialized>,
}

/// Formats like the last line that Python prints, and a line for each
/// [`cause`](RemoteError::cause).
impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut next = Some(self);
        while let Some(error) = next {
            f.write_str(&error.class)?;
            if !error.message.is_empty() {
                write!(f, ": {}", error.message)?;
            }
            next = error.cause.as_deref();
            if next.is_some() {
                let is_ended = error.message.ends_with('\n');
                f.write_str(if is_ended {
                    "caused by "
                } else {
                    "\ncaused by "
                })?;
            }
        }
        Ok(())
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
    daskwire_numpy::NumpyError, "ValueError";
    crate::graph::GraphError, "ValueError";
}

impl RemoteError {
    /// Returns an exception of a builtin class.
    pub fn new(class: &str, message: &str) -> Self {
        Self {
            class: class.to_owned(),
            message: message.to_owned(),
            ..Self::default()
        }
    }

    /// Returns an exception for an error in Rust, with its sources as causes. An
    /// error without an own class is a `RuntimeError`.
    ///
    /// ```
    /// use daskwire_peer::RemoteError;
    /// let error = "x".parse::<i64>().expect_err("no number");
    /// let error = RemoteError::of_error(error.into());
    /// assert_eq!(error.to_string(), "RuntimeError: invalid digit found in string");
    /// ```
    pub fn of_error(error: Box<dyn core::error::Error + Send + Sync>) -> Self {
        let error = match error.downcast::<Self>() {
            Ok(remote) => return *remote,
            Err(error) => error,
        };
        let mut chain: Vec<Self> =
            core::iter::successors(Some(&*error as &dyn core::error::Error), |error| {
                error.source()
            })
            .take(CAUSES)
            .map(|error| match error.downcast_ref::<Self>() {
                Some(remote) => remote.clone(),
                None => Self::new(class_of(error), &error.to_string()),
            })
            .collect();
        // Some errors have the message of their source as their own.
        chain.dedup_by(|source, error| source.message == error.message);
        let error = chain.into_iter().rev().reduce(|cause, error| Self {
            cause: Some(Box::new(cause)),
            ..error
        });
        error.unwrap_or_default()
    }

    /// Reads the fields `exception` and `traceback` of a message.
    pub(crate) fn of_fields(exception: &Value, traceback: Option<&Value>) -> Self {
        let mut error = match exception {
            Value::Serialized(serialized) => match serialized.pickle() {
                Ok((pickle, buffers)) => Self::of_pickle(&pickle, &buffers),
                Err(error) => match serialized.open() {
                    Ok(value) => Self::new("Exception", &value.to_unquoted()),
                    Err(_) => Self::new("Exception", &error.to_string()),
                },
            },
            Value::Bytes(data) => Self::of_pickle(data, &[]),
            value => Self::new("Exception", &value.to_unquoted()),
        };
        if let Value::Serialized(serialized) = exception {
            error.serialized = Some(serialized.clone());
        }
        if error.traceback.is_empty()
            && let Some(Value::Serialized(serialized)) = traceback
            && let Ok((pickle, buffers)) = serialized.pickle()
            && let Ok(tree) = Tree::with_buffers(&pickle, &buffers)
            && let Ok(KnownValue::Traceback(frames)) = convert(exceptions(), tree.root())
        {
            error.traceback = Renderer::new(&pickle).lines(frames);
        }
        error
    }

    /// Reads a reply that reports an exception.
    pub(crate) fn of_status(status: &Status) -> Self {
        let mut error = match &status.exception {
            Some(exception) => Self::of_fields(exception, status.traceback.as_ref()),
            None => Self::new("Exception", status.message.as_deref().unwrap_or_default()),
        };
        if error.message.is_empty()
            && let Some(string) = &status.exception_text
        {
            error.message.clone_from(string);
        }
        if error.traceback.is_empty()
            && let Some(string) = &status.traceback_text
        {
            error.traceback.clone_from(string);
        }
        error
    }

    fn of_pickle(pickle: &Bytes, buffers: &[Bytes]) -> Self {
        let Ok(tree) = Tree::with_buffers(pickle, buffers) else {
            return Self::new("Exception", &format!("b'{}'", pickle.escape_ascii()));
        };
        Self::of_node(tree.root(), &Renderer::new(pickle), CAUSES)
    }

    /// Reads an exception with at most `causes` causes.
    fn of_node(node: Node<'_, '_>, renderer: &Renderer, causes: usize) -> Self {
        match convert(exceptions(), node) {
            Ok(KnownValue::Exception(exception)) => {
                let context = exception.context.filter(|_| !exception.suppress_context);
                Self {
                    cause: cause(exception.cause.or(context), renderer, causes),
                    ..Self::of_parts(
                        Some(exception.class),
                        Some(exception.arguments),
                        exception.traceback,
                        renderer,
                    )
                }
            }
            // An instance of another class, which is named by the call that makes it.
            _ => Self::of_object(node, renderer, causes),
        }
    }

    fn of_parts(
        class: Option<tree::Global<'_>>,
        arguments: Option<tree::Items<'_, '_>>,
        traceback: Option<known::Traceback<'_, '_>>,
        renderer: &Renderer,
    ) -> Self {
        let class = class.map_or_else(|| "Exception".to_owned(), |class| renderer.show(&class));
        let class = class.strip_prefix("builtins.").unwrap_or(&class).to_owned();
        Self {
            message: arguments
                .map(|arguments| renderer.message(&class, arguments))
                .unwrap_or_default(),
            class,
            traceback: traceback
                .map(|frames| renderer.lines(frames))
                .unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Reads `CLASS(ARGUMENTS...)`, or the form of `tblib` for exceptions with
    /// attributes.
    fn of_object(node: Node<'_, '_>, renderer: &Renderer, causes: usize) -> Self {
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
            return Self::new("Exception", &renderer.show(&node));
        };
        let called = callable.as_global();
        let is_tblib = called.is_some_and(|name| {
            name.is("tblib.pickling_support", "unpickle_exception_with_attrs")
                || name.is("tblib.pickling_support", "unpickle_exception")
        });
        if !is_tblib {
            let mut error = Self::of_parts(called, Some(arguments.items()), None, renderer);
            for note in notes(node) {
                error.message.push('\n');
                error.message.push_str(&renderer.of_node(note));
            }
            return error;
        }
        let mut parts = arguments.items();
        let mut next = || parts.next().filter(|node| !node.is_none());
        let (class, given) = (next(), next());
        let (from, traceback, context, suppress_context) = (next(), next(), next(), next());
        let given = given.map(|given| given.get("args").unwrap_or(given).items());
        let traceback = traceback.and_then(|node| match convert(exceptions(), node) {
            Ok(KnownValue::Traceback(frames)) => Some(frames),
            _ => None,
        });
        let is_suppressed = suppress_context.and_then(Node::as_bool) == Some(true);
        let context = context.filter(|_| !is_suppressed);
        Self {
            cause: cause(from.or(context), renderer, causes),
            ..Self::of_parts(class.and_then(Node::as_global), given, traceback, renderer)
        }
    }
}

/// The notes that were added to an exception, which Python shows below its message.
fn notes<'t, 'p>(node: Node<'t, 'p>) -> impl Iterator<Item = Node<'t, 'p>> {
    let state = node.operations().find_map(|operation| match operation {
        tree::Operation::State(state) => Some(state.node()),
        _ => None,
    });
    let notes = state.and_then(|state| state.get("__notes__"));
    notes.into_iter().flat_map(Node::items)
}

/// Maximum number of causes that are read.
const CAUSES: usize = 16;

/// The class of the exception for an error of this type.
fn class_of(error: &(dyn core::error::Error + 'static)) -> &'static str {
    if error.is::<WrongType>() {
        "TypeError"
    } else if error.is::<ValueError>() || error.is::<daskwire_numpy::NumpyError>() {
        "ValueError"
    } else if error.is::<std::io::Error>() {
        "OSError"
    } else {
        "RuntimeError"
    }
}

/// The end of a shortened message.
const SHORTENED: &str = "… (shortened)";

fn cause(
    node: Option<Node<'_, '_>>,
    renderer: &Renderer,
    causes: usize,
) -> Option<Box<RemoteError>> {
    let causes = causes.checked_sub(1)?;
    Some(Box::new(RemoteError::of_node(node?, renderer, causes)))
}

fn exceptions() -> &'static Registry<Known> {
    static NAMES: std::sync::OnceLock<Registry<Known>> = std::sync::OnceLock::new();
    NAMES.get_or_init(|| {
        let mut registry = Registry::new();
        registry.allow_all(known::EXCEPTIONS);
        registry
    })
}

/// Writes the strings of an exception, up to a total length in proportion to the pickle.
/// Without the limit, shared parts of a pickle, which are written at each occurrence,
/// could take much memory.
struct Renderer {
    left: Cell<usize>,
}

impl Renderer {
    fn new(pickle: &[u8]) -> Self {
        let len = pickle.len().saturating_mul(4).saturating_add(1 << 16);
        Self {
            left: Cell::new(len),
        }
    }

    fn show(&self, part: &dyn fmt::Display) -> String {
        self.written(|to| write!(to, "{part}"))
    }

    /// Writes a string until the limit is reached, then [`SHORTENED`].
    fn written(&self, write: impl FnOnce(&mut Limited<'_>) -> fmt::Result) -> String {
        let mut to = Limited {
            string: String::new(),
            left: &self.left,
        };
        if write(&mut to).is_err() {
            to.string.push_str(SHORTENED);
        }
        to.string
    }

    /// Returns a string as it is, and anything else as Python shows it.
    fn of_node(&self, node: Node<'_, '_>) -> String {
        match node.as_str() {
            Some(string) => self.show(&string),
            None => self.show(&node),
        }
    }

    /// The result of `str()` for an exception with these arguments.
    fn message(&self, class: &str, arguments: tree::Items<'_, '_>) -> String {
        let all: Vec<Node<'_, '_>> = arguments.collect();
        match all.as_slice() {
            [key, worker, allowed_failures] if class == KILLED_WORKER => {
                let key = self.of_node(*key);
                let count = allowed_failures
                    .as_u64()
                    .unwrap_or_default()
                    .saturating_add(1);
                let state = worker.operations().find_map(|operation| match operation {
                    tree::Operation::State(state) => state.node().get("address"),
                    _ => None,
                });
                let last = state.and_then(Node::as_str).unwrap_or("unknown");
                self.show(&format_args!(
                    "the task {key} killed {count} workers, last {last}"
                ))
            }
            [] => String::new(),
            // `KeyError` shows the `repr` of its argument.
            [one] if class == "KeyError" => match one.as_str() {
                Some(string) => self.show(&Value::from(string)),
                None => self.show(one),
            },
            [one] => self.of_node(*one),
            [number, reason, ..] if class.ends_with("Error") && number.as_i64().is_some() => {
                let reason = self.of_node(*reason);
                self.show(&format_args!("[Errno {number}] {reason}"))
            }
            many => self.written(|to| {
                to.write_char('(')?;
                for (index, node) in many.iter().enumerate() {
                    to.write_str(if index == 0 { "" } else { ", " })?;
                    write!(to, "{node}")?;
                }
                to.write_char(')')
            }),
        }
    }

    fn lines(&self, traceback: known::Traceback<'_, '_>) -> String {
        self.written(|to| {
            for frame in traceback {
                writeln!(to, "  {frame}")?;
            }
            Ok(())
        })
    }
}

/// A string of limited length.
struct Limited<'l> {
    string: String,
    left: &'l Cell<usize>,
}

impl fmt::Write for Limited<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let left = self.left.get();
        let mut len = part.len().min(left);
        while !part.is_char_boundary(len) {
            len = len.saturating_sub(1);
        }
        self.left.set(left.saturating_sub(len));
        self.string.push_str(part.get(..len).ensured());
        if len == part.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

/// The pickle of an exception of a builtin class.
pub(crate) fn exception(class: &str, message: &str) -> Serialized {
    pickled(|writer| {
        writer.reduce().global("builtins", class).tuple(1);
        writer.str(message);
    })
}

const KILLED_WORKER: &str = "distributed.scheduler.KilledWorker";

/// The exception that Dask raises for a task that repeatedly kills workers. The message of the
/// class has no place for details, which are in the note.
pub(crate) fn killed_worker(
    key: &Key,
    last_worker: &str,
    allowed_failures: u32,
    note: Option<&str>,
) -> Serialized {
    pickled(|writer| {
        if note.is_some() {
            writer.build();
        }
        writer.reduce();
        let (module, name) = KILLED_WORKER.rsplit_once('.').ensured();
        writer.global(module, name);
        writer.tuple(3);
        key.pickle(writer);
        // The exception takes a worker object, and reads its address.
        writer.build().reduce();
        writer.global("types", "SimpleNamespace").tuple(0);
        writer.dict(1).str("address").str(last_worker);
        writer.i64(allowed_failures.into());
        if let Some(note) = note {
            writer.dict(1).str("__notes__").list(1).str(note);
        }
    })
}

fn pickled(write: impl Fn(&mut Writer<'_, '_>)) -> Serialized {
    let pickle = scratch::pickle(Pickling::PORTABLE, |writer| {
        write(writer);
        Ok::<(), daskwire_pickle::WriteError>(())
    });
    // Cannot fail: the buffer grows as needed.
    Serialized::of_written_pickle(pickle.ensured().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(write: impl Fn(&mut Writer<'_, '_>)) -> (RemoteError, usize) {
        let (pickle, _) = pickled(write).pickle().expect("a pickle");
        (RemoteError::of_pickle(&pickle, &[]), pickle.len())
    }

    /// `unpickle_exception` with a class and an argument. The caller adds the cause;
    /// the arguments after it are no traceback, the context, and whether the context
    /// is hidden.
    fn exception(writer: &mut Writer<'_, '_>, class: &str, argument: &str) {
        writer
            .reduce()
            .global("tblib.pickling_support", "unpickle_exception")
            .tuple(6);
        writer.global("builtins", class).tuple(1).str(argument);
    }

    #[test]
    fn causes_are_kept_and_shown() {
        let (error, _) = read(|writer| {
            exception(writer, "RuntimeError", "it failed");
            exception(writer, "ValueError", "not this\n");
            // Without a cause, the context is shown.
            writer.none().none();
            exception(writer, "KeyError", "x");
            writer
                .none()
                .none()
                .none()
                .bool(false)
                .bool(false)
                .none()
                .none()
                .bool(true);
        });
        assert_eq!(
            error.to_string(),
            "RuntimeError: it failed\ncaused by ValueError: not this\ncaused by KeyError: 'x'"
        );
        let (hidden, _) = read(|writer| {
            exception(writer, "RuntimeError", "it failed");
            writer.none().none();
            exception(writer, "KeyError", "x");
            writer.none().none().none().bool(false).bool(true);
        });
        assert_eq!(hidden.cause, None);
    }

    #[test]
    fn causes_of_causes_end() {
        let count = |levels: usize| {
            let (error, _) = read(|writer| {
                for _ in 0..levels {
                    exception(writer, "ValueError", "x");
                }
                writer.none();
                for _ in 1..levels {
                    writer.none().none().bool(false);
                }
                writer.none().none().bool(false);
            });
            core::iter::successors(Some(&error), |error| error.cause.as_deref()).count()
        };
        assert_eq!(count(2), 2);
        assert_eq!(count(40), CAUSES + 1);
        assert_eq!(count(80), CAUSES + 1);
    }

    #[test]
    fn strings_are_bounded_by_the_length_of_the_pickle() {
        let len = |count: usize| {
            let (error, pickle_len) = read(|writer| {
                writer
                    .reduce()
                    .global("builtins", "ValueError")
                    .tuple(count);
                let shared = writer.list(count).memoize();
                for _ in 0..count {
                    writer.i64(1_000_000);
                }
                for _ in 1..count {
                    writer.get(shared);
                }
            });
            let max_len = 4 * pickle_len + (1 << 16) + SHORTENED.len();
            assert!(
                error.message.len() <= max_len,
                "{} of {max_len}",
                error.message.len()
            );
            assert!(error.message.ends_with(SHORTENED));
            error.message.len()
        };
        let (one, two) = (len(2000), len(4000));
        assert!(two <= one * 2, "{one}, and of twice as much {two}");
    }
}
