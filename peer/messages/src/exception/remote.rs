//! Exceptions of peers, read without executing Python.

use core::fmt;
use core::time::Duration;

use daskwire_pickle::Writer;
use daskwire_pickle::tree::Tree;

use super::{CAUSES, ExceptionReader, of_pickle};
use crate::Key;
use crate::pickling::Pickling;
use crate::protocol::Status;
use crate::scratch;
use crate::value::{Serialized, Value, ValueError, WrongType};

/// An exception that was raised in a peer, usually in Python.
///
/// Its parts are read from the pickle without executing it;
/// [`serialized`](Self::serialized) is that pickle, for forwarding. The messages of builtin
/// classes, and of classes that extend them without a `__str__` of their own, are those of
/// Python. Of other classes, the message shows the arguments of the exception.
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
    /// The notes that were added with `add_note`.
    pub notes: Box<[String]>,
    /// The exceptions in an `ExceptionGroup`: up to 64, including those of groups in it.
    pub exceptions: Box<[Self]>,
    /// The exception that this one was raised from, or that was being handled.
    ///
    /// Exceptions of Dask may lack details without it: for a function that the
    /// scheduler cannot import, only the cause has the name.
    pub cause: Option<Box<Self>>,
    /// The exception as it was received.
    pub serialized: Option<Box<Serialized>>,
}

/// Formats like the last lines that Python prints, with notes and the exceptions of groups, and
/// a line for each [`cause`](RemoteError::cause).
impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Lines { f, is_ended: true };
        let mut next = Some(self);
        while let Some(error) = next {
            let is_cause = !core::ptr::eq(error, self);
            error.write(&mut lines, if is_cause { "caused by " } else { "" }, 0)?;
            next = error.cause.as_deref();
        }
        Ok(())
    }
}

/// Lines, of which the last may lack its end.
struct Lines<'f, 'a> {
    f: &'f mut fmt::Formatter<'a>,
    is_ended: bool,
}

impl Lines<'_, '_> {
    fn write(&mut self, indent: usize, line: fmt::Arguments<'_>) -> fmt::Result {
        let line = line.to_string();
        let end = if self.is_ended { "" } else { "\n" };
        if indent == 0 {
            write!(self.f, "{end}{line}")?;
        } else {
            let line = line.replace('\n', &format!("\n{:indent$}", ""));
            write!(self.f, "{end}{:indent$}{line}", "")?;
        }
        self.is_ended = line.ends_with('\n');
        Ok(())
    }
}

impl RemoteError {
    /// Writes the exception without its cause.
    fn write(&self, lines: &mut Lines<'_, '_>, start: &str, depth: usize) -> fmt::Result {
        // Python prints three spaces for each group, see `format_exception_only`.
        let indent = 3 * depth;
        let class = &self.class;
        match self.message.as_str() {
            "" => lines.write(indent, format_args!("{start}{class}"))?,
            message => lines.write(indent, format_args!("{start}{class}: {message}"))?,
        }
        for note in &self.notes {
            lines.write(indent, format_args!("{note}"))?;
        }
        // A program may nest groups deeper than a peer.
        if depth < CAUSES {
            for error in &self.exceptions {
                error.write(lines, "", depth + 1)?;
            }
        }
        Ok(())
    }
}

impl core::error::Error for RemoteError {}

daskwire::kinds! {
    RemoteError: |_| ErrorKind::Exception;
}

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
    /// use daskwire_messages::RemoteError;
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
    pub fn of_fields(exception: &Value, traceback: Option<&Value>) -> Self {
        Self::read(exception, traceback).0
    }

    /// Reads the same fields. Returns also whether the message is only similar to that of
    /// Python.
    fn read(exception: &Value, traceback: Option<&Value>) -> (Self, bool) {
        let (mut error, is_approximate) = match exception {
            Value::Serialized(serialized) => match serialized.pickle() {
                Ok((pickle, buffers)) => of_pickle(&pickle, &buffers),
                Err(error) => match serialized.open() {
                    Ok(value) => (Self::new("Exception", &value.to_unquoted()), false),
                    Err(_) => (Self::new("Exception", &error.to_string()), true),
                },
            },
            Value::Bytes(data) => of_pickle(data, &[]),
            value => (Self::new("Exception", &value.to_unquoted()), false),
        };
        if let Value::Serialized(serialized) = exception {
            error.serialized = Some(Box::new(serialized.clone()));
        }
        if error.traceback.is_empty()
            && let Some(Value::Serialized(serialized)) = traceback
            && let Ok((pickle, buffers)) = serialized.pickle()
            && let Ok(tree) = Tree::with_buffers(&pickle, &buffers)
        {
            error.traceback = ExceptionReader::new(&pickle, &buffers).traceback(tree.root());
        }
        (error, is_approximate)
    }

    /// Reads a reply that reports an exception.
    pub fn of_status(status: &Status) -> Self {
        let (mut error, is_approximate) = match &status.exception {
            Some(exception) => Self::read(exception, status.traceback.as_ref()),
            None => {
                let message = status.message.as_deref();
                let error = Self::new("Exception", message.unwrap_or_default());
                (error, message.is_none())
            }
        };
        // The exception as `repr()` shows it: its class and its arguments.
        if is_approximate && let Some(string) = status.exception_text.as_deref() {
            let class = error.class.rsplit_once('.');
            let class = class.map_or(error.class.as_str(), |(_, class)| class);
            let arguments = string.strip_prefix(class);
            let arguments = arguments.and_then(|it| it.strip_prefix('(')?.strip_suffix(')'));
            error.message = match arguments {
                // Several arguments.
                Some(arguments) if error.message.starts_with('(') => format!("({arguments})"),
                Some(arguments) => arguments.to_owned(),
                None => string.to_owned(),
            };
        }
        if error.traceback.is_empty()
            && let Some(string) = &status.traceback_text
        {
            error.traceback.clone_from(string);
        }
        error
    }
}

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

/// The pickle of an exception of a builtin class, or of one with the name of its module before a
/// dot.
pub fn exception(class: &str, message: &str) -> Serialized {
    let (module, class) = class.rsplit_once('.').unwrap_or(("builtins", class));
    pickled(|writer| {
        writer.reduce().global(module, class).tuple(1);
        writer.str(message);
    })
}

const KILLED_WORKER: &str = "distributed.scheduler.KilledWorker";

/// The exception that Dask raises for a task that repeatedly kills workers. The message of the
/// class has no place for details, which are in the note.
pub fn killed_worker(
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
        let (module, name) = KILLED_WORKER.rsplit_once('.').expect("a dotted name");
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

/// The exception that Dask raises for a task that no worker was able to run in time, with the workers
/// and resources that it demands.
pub fn no_valid_worker(
    key: &Key,
    workers: &[String],
    resources: &[(String, f64)],
    timeout: Duration,
) -> Serialized {
    pickled(|writer| {
        writer.reduce();
        writer.global("distributed.scheduler", "NoValidWorkerError");
        writer.tuple(5);
        key.pickle(writer);
        // Names of hosts are among those of the workers.
        writer.set(0).set(workers.len());
        for worker in workers {
            writer.str(worker);
        }
        writer.dict(resources.len());
        for (name, amount) in resources {
            writer.str(name).f64(*amount);
        }
        writer.f64(timeout.as_secs_f64());
    })
}

/// The exception that Dask raises for a task for which there was no worker in time.
pub fn no_worker(key: &Key, timeout: Duration) -> Serialized {
    pickled(|writer| {
        writer.reduce();
        writer
            .global("distributed.scheduler", "NoWorkerError")
            .tuple(2);
        key.pickle(writer);
        writer.f64(timeout.as_secs_f64());
    })
}

fn pickled(write: impl Fn(&mut Writer<'_, '_>)) -> Serialized {
    let pickle = scratch::pickle(Pickling::PORTABLE, |writer| {
        write(writer);
        Ok::<(), daskwire_pickle::WriteError>(())
    });
    // Cannot fail: the buffer grows as needed.
    Serialized::of_written_pickle(pickle.expect("a buffer that grows").into())
}

#[cfg(test)]
mod tests {
    use super::super::SHORTENED;
    use super::*;

    fn read(write: impl Fn(&mut Writer<'_, '_>)) -> (RemoteError, usize) {
        let (pickle, _) = pickled(write).pickle().expect("a pickle");
        (of_pickle(&pickle, &[]).0, pickle.len())
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

    /// A group of `count` references to one exception, within `levels` groups of two
    /// references to the next one.
    #[test]
    fn members_of_groups_are_bounded() {
        let count = |levels: usize, count: usize| {
            let (error, _) = read(|writer| {
                let group = |writer: &mut Writer<'_, '_>, count| {
                    writer.reduce().global("builtins", "ExceptionGroup");
                    writer.tuple(2).str("some").list(count);
                };
                let repeat = |writer: &mut Writer<'_, '_>, count: usize| {
                    let index = writer.end().memoize();
                    (1..count).for_each(|_| {
                        writer.get(index);
                    });
                    writer.end().end();
                };
                (0..levels).for_each(|_| group(writer, 2));
                group(writer, count);
                writer
                    .reduce()
                    .global("builtins", "ValueError")
                    .tuple(1)
                    .str("x");
                writer.end();
                repeat(writer, count);
                (0..levels).for_each(|_| repeat(writer, 2));
            });
            let shown = error.to_string();
            (shown.matches("ValueError").count(), shown.len())
        };
        assert_eq!(count(0, 3).0, 3);
        assert_eq!(count(2, 1).0, 4);
        assert_eq!(count(0, 1000).0, 64);
        let (once, twice) = (count(30, 100).1, count(60, 100).1);
        assert!(twice <= once, "{once} bytes, then {twice}");
    }

    #[test]
    fn the_text_of_a_message_replaces_what_only_python_can_read() {
        let error = |write: &dyn Fn(&mut Writer<'_, '_>), text: &str| {
            RemoteError::of_status(&Status {
                exception: Some(Value::Serialized(pickled(write))),
                exception_text: Some(text.to_owned()),
                ..Status::default()
            })
            .to_string()
        };
        let unknown = |writer: &mut Writer<'_, '_>| {
            writer
                .reduce()
                .global("re", "_compile")
                .tuple(1)
                .str("x")
                .end()
                .end();
        };
        let one = |writer: &mut Writer<'_, '_>| {
            writer.reduce().global("a.b", "OwnError").tuple(1);
            unknown(writer);
        };
        assert_eq!(
            error(&one, "OwnError(re.compile('x'))"),
            "a.b.OwnError: re.compile('x')"
        );
        assert_eq!(error(&one, "another form"), "a.b.OwnError: another form");
        let two = |writer: &mut Writer<'_, '_>| {
            writer.reduce().global("a.b", "OwnError").tuple(2);
            unknown(writer);
            writer.i64(1);
        };
        assert_eq!(
            error(&two, "OwnError(re.compile('x'), 1)"),
            "a.b.OwnError: (re.compile('x'), 1)"
        );
        let empty = |writer: &mut Writer<'_, '_>| {
            writer.reduce().global("builtins", "ValueError").tuple(0);
        };
        assert_eq!(error(&empty, "ValueError()"), "ValueError");
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
