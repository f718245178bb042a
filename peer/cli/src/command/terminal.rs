//! Output of the command for users.
//!
//! Much of the output originates from peers, which must not be able to move the
//! cursor, hide or reorder text, or reprogram the terminal. All output therefore
//! passes through this module, which escapes characters that are not
//! [printable](daskwire::display::is_printable).

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use crate::printable;
use daskwire::display::{Printable, is_printable};

/// A writer that escapes invalid UTF-8, and unprintable characters except newlines and
/// tabs. A character must not be split between two writes.
#[derive(Debug)]
pub(crate) struct Escaping<W>(pub(crate) W);

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for chunk in bytes.utf8_chunks() {
            let mut rest = chunk.valid();
            while let Some(at) = rest.find(|character| !is_plain(character)) {
                let (plain, escaped) = rest.split_at(at);
                self.0.write_all(plain.as_bytes())?;
                let mut characters = escaped.chars();
                let character = characters.next().expect("the escaped one");
                write!(self.0, "{}", character.escape_default())?;
                rest = characters.as_str();
            }
            self.0.write_all(rest.as_bytes())?;
            write!(self.0, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn is_plain(character: char) -> bool {
    matches!(character, '\n' | '\t') || is_printable(character)
}

/// Standard output, buffered until it is flushed or dropped.
pub(crate) fn stdout() -> Escaping<io::BufWriter<io::StdoutLock<'static>>> {
    Escaping(io::BufWriter::new(io::stdout().lock()))
}

/// Prints a line on standard output.
///
/// # Errors
///
/// As [`outcome`].
pub(crate) fn print(line: impl Display) -> Result<(), String> {
    let mut out = stdout();
    outcome(writeln!(out, "{line}").and_then(|()| out.flush()))
}

/// The outcome of writing to standard output. A reader that has closed the pipe, such as `head`,
/// has all that it wants.
///
/// # Errors
///
/// The system's error, as a message.
pub(crate) fn outcome(written: io::Result<()>) -> Result<(), String> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// Prints a single-line message on standard error.
pub(crate) fn note(message: impl Display) {
    let message = message.to_string();
    error(Printable(&message));
}

/// Prints a message of any number of lines on standard error.
pub(crate) fn error(message: impl Display) {
    write_stderr(format_args!("daskwire: {message}\n"));
}

/// Writes to standard error, unchanged except for unprintable characters.
pub(crate) fn write_stderr(output: impl Display) {
    let mut out = Escaping(io::BufWriter::new(io::stderr().lock()));
    // An error is ignored, because it could only be reported to standard error.
    let _ = write!(out, "{output}").and_then(|()| out.flush());
}

/// Whether events are printed as documents on standard output.
static ARE_EVENTS_JSON: AtomicBool = AtomicBool::new(false);

/// Makes [`event`] print documents: the `--json` option of commands that run until they
/// are stopped.
pub(crate) fn print_events_as_json() {
    ARE_EVENTS_JSON.store(true, Ordering::Relaxed);
}

/// Whether [`event`] prints documents.
pub(crate) fn are_events_json() -> bool {
    ARE_EVENTS_JSON.load(Ordering::Relaxed)
}

/// Reports an event: as a line on standard error, or as a document with these fields
/// on standard output.
pub(crate) fn event(name: &str, message: impl Display, fields: serde_json::Value) {
    if !are_events_json() {
        return note(message);
    }
    let mut document = serde_json::json!({
        "event": name,
        "time": now(),
        "message": message.to_string(),
    });
    if let (Some(document), serde_json::Value::Object(fields)) = (document.as_object_mut(), fields)
    {
        document.extend(fields);
    }
    // The command continues if its events cannot be written.
    let _ = print(printable::json(&document));
}

/// Whether warnings are logged.
#[cfg(feature = "tracing")]
pub(crate) fn is_logging() -> bool {
    crate::command::log::has_warnings()
}

/// Whether warnings are logged.
#[cfg(not(feature = "tracing"))]
pub(crate) const fn is_logging() -> bool {
    false
}

/// The current time in seconds since 1970.
pub(crate) fn now() -> f64 {
    let since = SystemTime::UNIX_EPOCH.elapsed();
    since.map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(bytes: &[u8]) -> String {
        let mut out = Escaping(Vec::new());
        out.write_all(bytes).expect("a vector takes all");
        String::from_utf8(out.0).expect("UTF-8")
    }

    /// The expected output: characters for which `is_kept` is true are unchanged, others
    /// are escaped.
    fn expected(input: &str, is_kept: fn(char) -> bool) -> String {
        let escape = |character: char| match is_kept(character) {
            true => character.to_string(),
            false => character.escape_default().to_string(),
        };
        input.chars().map(escape).collect()
    }

    #[test]
    fn every_character_is_printable_or_escaped() {
        let all: Vec<char> = ('\0'..=char::MAX).collect();
        for some in all.chunks(4096) {
            let input: String = some.iter().collect();
            assert_eq!(escaped(input.as_bytes()), expected(&input, is_plain));
            let line = Printable(&input).to_string();
            assert_eq!(line, expected(&input, is_printable));
        }
    }

    #[test]
    fn what_is_no_utf_8_is_escaped() {
        assert_eq!(escaped(b"a\xffb\xc2\x1b\n"), "a\\xffb\\xc2\\u{1b}\n");
    }
}
