//! Errors as Python exceptions.

use daskwire_pickle::Writer;

use super::{CAUSES, MEMBERS, NOTES};
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
    /// Converts to the form in which Python workers send exceptions: `bytes` with the pickle,
    /// with causes, notes and the exceptions of a group. A class with a module, such as
    /// `pandas.errors.ParserError`, is that class where Python can import it, and elsewhere a
    /// `RuntimeError` under that name. Any other class that is not built in becomes a
    /// `RuntimeError` that names the class.
    pub fn to_exception(&self) -> Value {
        if let Some(serialized) = &self.serialized {
            return Value::Serialized((**serialized).clone());
        }
        let pickle = scratch::pickle(Pickling::PORTABLE, |writer| {
            self.write_pickle(writer, CAUSES);
            Ok::<(), ValueError>(())
        });
        match pickle {
            Ok(pickle) => Value::Serialized(Serialized::of_bytes(&pickle.into())),
            // Clients convert a string to an exception.
            Err(_) => Value::from(self.to_string()),
        }
    }

    /// Writes the exception with at most `causes` causes, or groups within groups.
    fn write_pickle(&self, writer: &mut Writer<'_, '_>, causes: usize) {
        let rest = causes.checked_sub(1);
        let cause = self.cause.as_deref().zip(rest);
        let notes = self.notes.iter().take(NOTES);
        let entries = usize::from(cause.is_some()) + usize::from(notes.len() > 0);
        if entries > 0 {
            writer.build();
        }
        let members = rest.filter(|_| !self.exceptions.is_empty());
        let class = CLASSES.into_iter().find(|class| *class == self.class);
        match (members, class, located(&self.class)) {
            (Some(rest), _, place) => {
                let class = match self.class.as_str() {
                    "BaseExceptionGroup" => "BaseExceptionGroup",
                    _ if self.exceptions.iter().any(Self::is_base) => "BaseExceptionGroup",
                    _ => "ExceptionGroup",
                };
                // The builtin classes are missing before Python 3.11.
                write_class(writer, place.unwrap_or(("builtins", class)));
                let exceptions = self.exceptions.iter().take(MEMBERS);
                writer.tuple(2).str(self.group_message());
                writer.list(exceptions.len());
                exceptions.for_each(|error| error.write_pickle(writer, rest));
            }
            (None, Some(class), _) => {
                writer.reduce().global("builtins", class).tuple(1);
                match class {
                    "KeyError" => write_key(writer, &self.message),
                    _ => {
                        writer.str(&self.message);
                    }
                }
            }
            (None, None, Some(place)) => {
                write_class(writer, place);
                writer.tuple(1).str(&self.message);
            }
            (None, None, None) => {
                writer.reduce().global("builtins", "RuntimeError").tuple(1);
                let message = match self.message.as_str() {
                    "" => self.class.clone(),
                    message => format!("{}: {message}", self.class),
                };
                writer.str(&message);
            }
        }
        if entries == 0 {
            return;
        }
        writer.dict(entries);
        if notes.len() > 0 {
            writer.str("__notes__").list(notes.len());
            notes.for_each(|note| {
                writer.str(note);
            });
        }
        if let Some((cause, rest)) = cause {
            writer.str("__cause__");
            cause.write_pickle(writer, rest);
        }
    }

    /// Whether Python refuses the exception in an `ExceptionGroup`: those of its classes that are
    /// no `Exception`, as [`write_pickle`](Self::write_pickle) writes them.
    fn is_base(&self) -> bool {
        match self.class.as_str() {
            "BaseException"
            | "builtins.BaseException"
            | "builtins.GeneratorExit"
            | "builtins.KeyboardInterrupt"
            | "builtins.SystemExit"
            | "asyncio.CancelledError"
            | "asyncio.exceptions.CancelledError"
            | "concurrent.futures.CancelledError" => true,
            _ => self.exceptions.iter().any(Self::is_base),
        }
    }

    /// The message of a group without the number of its exceptions.
    fn group_message(&self) -> &str {
        let counted = self.message.rsplit_once(" (").filter(|(_, count)| {
            count.ends_with(" sub-exception)") || count.ends_with(" sub-exceptions)")
        });
        counted.map_or(&self.message, |(message, _)| message)
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

/// The module and the name of a class that is named with its module. Those of `__main__`
/// are others in each process.
fn located(class: &str) -> Option<(&str, &str)> {
    let (module, name) = class.rsplit_once('.')?;
    let is_name = |part: &str| {
        let mut characters = part.chars();
        let is_start = |first: char| first == '_' || first.is_alphabetic();
        characters.next().is_some_and(is_start)
            && characters.all(|next| next == '_' || next.is_alphanumeric())
    };
    let is_path = class.split('.').all(is_name);
    (is_path && module != "__main__").then_some((module, name))
}

/// Begins an instance of a class, which takes a tuple of arguments: of the class itself, if
/// it can be imported and is one of exceptions, or of a class with its name:
/// `next(filter(IS_EXCEPTION, [LOCATE(PATH), type(NAME, (RuntimeError,), {"__module__": MODULE})]))`.
///
/// `locate` fails if the module of the class does, and what tells classes of exceptions fails for
/// what is no class. `excepts` of toolz, on which all releases of Dask depend, returns `None` then.
fn write_class(writer: &mut Writer<'_, '_>, (module, name): (&str, &str)) {
    // The constructor of the class may take other arguments than its base.
    writer.newobj();
    writer.reduce().global("builtins", "next").tuple(1);
    writer.reduce().global("builtins", "filter").tuple(2);
    let tried = |writer: &mut Writer<'_, '_>, module, function| {
        writer.reduce().global("toolz.functoolz", "excepts");
        writer.tuple(2).global("builtins", "Exception");
        writer.global(module, function);
    };
    tried(writer, "builtins", "BaseException.__subclasscheck__");
    writer.list(2).reduce();
    tried(writer, "pydoc", "locate");
    writer.tuple(1).str(&format!("{module}.{name}"));
    writer.reduce().global("builtins", "type").tuple(3);
    writer.str(name);
    writer.tuple(1).global("builtins", "RuntimeError");
    writer.dict(1).str("__module__").str(module);
}

/// Writes the argument of a `KeyError`, whose `str()` is the `repr()` of that argument: the string or
/// the number that the message shows, or else the message.
fn write_key(writer: &mut Writer<'_, '_>, message: &str) {
    let quoted = ['\'', '"'].into_iter().find_map(|quote| {
        let inner = message.strip_prefix(quote)?.strip_suffix(quote)?;
        (!inner.contains([quote, '\\'])).then_some(inner)
    });
    match (quoted, message.parse::<i64>()) {
        (Some(key), _) => {
            writer.str(key);
        }
        (None, Ok(number)) if number.to_string() == message => {
            writer.i64(number);
        }
        _ => {
            writer.str(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(error: &RemoteError) -> RemoteError {
        let read = RemoteError::of_fields(&error.to_exception(), None);
        RemoteError {
            serialized: None,
            ..read
        }
    }

    #[test]
    fn exceptions_have_their_class_causes_notes_and_members() {
        let disk = RemoteError {
            notes: ["sda".to_owned(), "twice".to_owned()].into(),
            ..RemoteError::new("OSError", "no disk")
        };
        let parser = RemoteError {
            cause: Some(Box::new(disk.clone())),
            ..RemoteError::new("pandas.errors.ParserError", "line 3")
        };
        assert_eq!(again(&parser), parser);
        let group = RemoteError {
            exceptions: [parser, disk].into(),
            ..RemoteError::new("ExceptionGroup", "some (2 sub-exceptions)")
        };
        assert_eq!(again(&group), group);
        let outer = RemoteError {
            cause: Some(Box::new(group)),
            notes: ["a note".to_owned()].into(),
            ..RemoteError::new("KeyError", "")
        };
        let read = again(&outer);
        assert_eq!(read.cause, outer.cause);
        assert_eq!(read.notes, outer.notes);
    }

    #[test]
    fn the_argument_of_a_key_error_is_the_key() {
        for message in ["'x'", "5", "-3", "\"it's\""] {
            let error = RemoteError::new("KeyError", message);
            assert_eq!(again(&error), error);
        }
        for (message, shown) in [
            ("x", "'x'"),
            ("a\nb", "'a\\nb'"),
            // No string or number is written like that.
            ("05", "'05'"),
            ("'a\\nb'", "\"'a\\\\nb'\""),
            ("'", "\"'\""),
        ] {
            assert_eq!(again(&RemoteError::new("KeyError", message)).message, shown);
        }
    }

    #[test]
    fn names_that_are_no_classes_are_in_the_message() {
        for class in [
            "ParserError",
            "a..b",
            "a.b c",
            "a.1",
            "__main__.E",
            ".E",
            "",
        ] {
            let read = again(&RemoteError::new(class, "it failed"));
            let message = format!("RuntimeError: {class}: it failed");
            assert_eq!(read.to_string(), message);
        }
    }

    #[test]
    fn causes_of_causes_end() {
        let mut error = RemoteError::new("ValueError", "x");
        for _ in 0..1000 {
            error = RemoteError {
                cause: Some(Box::new(error)),
                ..RemoteError::new("ValueError", "x")
            };
        }
        let read = again(&error);
        let count = core::iter::successors(Some(&read), |error| error.cause.as_deref()).count();
        assert_eq!(count, CAUSES + 1);
    }

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
