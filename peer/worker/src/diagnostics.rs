//! A worker's answers to diagnostic requests, about its log and its executing tasks.
//!
//! `client.get_worker_logs()`, `client.call_stack()` and `client.story()` ask
//! every worker of a cluster, and show nothing at all if one of them refuses.

use core::time::Duration;
use daskwire_comm::runtime;
use daskwire_messages::Value;
use daskwire_messages::protocol::{GetLogs, Keys};
use daskwire_rpc::panic_flag::lock_counter;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::builder::OnNotice;
use super::{Shared, now};
#[cfg(target_os = "linux")]
use daskwire_messages::protocol::PythonLogged;

/// Maximum number of lines in the log (Dask's `distributed.admin.log-length` is
/// 10,000).
const MAX_LINES: usize = 1000;

/// Maximum length of a line, in bytes; the rest is cut off.
const MAX_LINE_LEN: usize = 1000;

/// Maximum length of a line from Python in bytes, which may contain a traceback.
#[cfg(target_os = "linux")]
const MAX_PYTHON_LINE_LEN: usize = 10_000;

/// Maximum length of all lines, in bytes.
const MAX_LEN: usize = 1 << 20;

/// The severity of a line, named as in Python's `logging`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Info,
    Warning,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Warning => "WARNING",
        }
    }
}

/// The last lines that a worker has logged.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    /// In the order of their times.
    lines: VecDeque<Line>,
    /// The length of all lines in bytes.
    len: usize,
}

#[derive(Debug)]
struct Line {
    /// Time in seconds since 1970.
    time: f64,
    level: Cow<'static, str>,
    text: String,
}

impl Line {
    fn len(&self) -> usize {
        self.level.len() + self.text.len()
    }
}

impl Log {
    pub(super) fn add(&self, level: Level, message: &str) {
        // The clock may be set back, but a line must not be older than those before it.
        let last = self.lock().lines.back().map_or(0.0, |line| line.time);
        let time = now().as_secs_f64().max(last);
        let level = level.name();
        let message = cut(message, MAX_LINE_LEN);
        self.push(Line {
            time,
            level: level.into(),
            text: format!("{} - daskwire - {level} - {message}", date(time)),
        });
    }

    /// Adds a line that Python has formatted, which may be older than the last ones.
    #[cfg(target_os = "linux")]
    pub(super) fn add_logged(&self, line: &PythonLogged) {
        // A later time, or none (NaN), would keep the line from being replaced.
        let time = line.created.min(now().as_secs_f64());
        self.push(Line {
            time,
            level: cut(&line.level, MAX_LINE_LEN).to_owned().into(),
            text: cut(&line.text, MAX_PYTHON_LINE_LEN).to_owned(),
        });
    }

    fn push(&self, line: Line) {
        let mut log = self.lock();
        log.len += line.len();
        while log.lines.len() >= MAX_LINES || log.len > MAX_LEN {
            let Some(oldest) = log.lines.pop_front() else {
                break;
            };
            log.len -= oldest.len();
        }
        // Processes keep records until they can send them, so that they arrive late.
        let later = log.lines.iter().rev();
        let later = later.take_while(|other| other.time > line.time).count();
        let index = log.lines.len() - later;
        log.lines.insert(index, line);
    }

    /// Returns the lines that a request asks for, newest first.
    pub(super) fn answer(&self, request: &GetLogs) -> Value {
        let start = request.start.unwrap_or(0.0);
        let count = match request.n {
            None | Some(0) => usize::MAX,
            Some(n) => usize::try_from(n).unwrap_or(usize::MAX),
        };
        let log = self.lock();
        let newest = log.lines.iter().rev().take_while(|line| line.time >= start);
        let newest = newest.take(count).map(|line| {
            let mut fields = vec![Value::from(&*line.level), Value::from(&*line.text)];
            if request.timestamps == Some(true) {
                fields.insert(0, line.time.into());
            }
            Value::List(fields.into())
        });
        Value::List(newest.collect())
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        lock_counter(&self.0)
    }
}

/// The start of a text, of at most `max_len` bytes.
fn cut(text: &str, max_len: usize) -> &str {
    let mut end = text.len().min(max_len);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The reporter of warnings to the builder's callback.
#[derive(Clone)]
pub(super) struct Notifier(pub(super) Option<Arc<OnNotice>>);

impl Notifier {
    /// Calls the callback, and catches its panics.
    pub(super) fn notify(&self, message: &str) {
        if let Some(hook) = &self.0 {
            let _ = catch_unwind(AssertUnwindSafe(|| hook(message)));
        }
    }

    /// Waits for `work` at most for `timeout`. If this takes longer than a second,
    /// reports what the worker waits for, which `what` describes, and the deadline, if any.
    pub(super) async fn with_notice<T>(
        &self,
        what: impl FnOnce() -> String,
        timeout: Duration,
        work: impl Future<Output = T>,
    ) -> T {
        const QUIET: Duration = Duration::from_secs(1);
        // Longer than any program waits.
        const ENDLESS: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        let until = now().saturating_add(timeout).as_secs_f64();
        let mut work = core::pin::pin!(work);
        if let Ok(done) = runtime::timeout(QUIET, &mut work).await {
            return done;
        }
        let until = match timeout < ENDLESS {
            true => format!(" until {}", date(until)),
            false => String::new(),
        };
        self.notify(&format!("{}{until}", what()));
        work.await
    }
}

/// Formats a time in seconds since 1970 as date and time of day in UTC.
#[expect(clippy::cast_possible_truncation, reason = "casts saturate")]
fn date(seconds: f64) -> String {
    let date = OffsetDateTime::from_unix_timestamp(seconds as i64).ok();
    let date = date.and_then(|date| date.format(&Rfc3339).ok());
    date.unwrap_or_else(|| format!("{seconds:.3}"))
}

impl Shared {
    /// Returns the keys that are executing, and for how long.
    pub(super) fn call_stack(&self, keys: Option<&Keys>) -> Value {
        let now = now();
        let machine = self.machine();
        let running = machine.state.executing();
        let running = running.filter(|(key, _)| keys.is_none_or(|keys| keys.contains(key)));
        let stacks = running.map(|(key, since)| {
            #[cfg(target_os = "linux")]
            let process = self
                .python
                .as_ref()
                .and_then(|python| python.process_of(key));
            #[cfg(target_os = "linux")]
            let is_in_rust = self.python.is_none();
            #[cfg(not(target_os = "linux"))]
            let (process, is_in_rust) = (None::<u32>, true);
            let place = match process {
                Some(id) => format!("in the Python process {id} of the worker {}", self.title),
                None if is_in_rust => format!("in Rust on the worker {}", self.title),
                // In Rust, or before a process is found or started.
                None => format!("on the worker {}", self.title),
            };
            let time = now.saturating_sub(since).as_secs_f64();
            let message = format!("{key}\n\t{place}, for {time:.1} s so far");
            (key.to_value(), Value::list([message]))
        });
        Value::Dict(stacks.collect())
    }
}

pub(super) fn profile_metadata() -> Value {
    Value::dict([
        ("counts", Value::List([].into())),
        ("keys", Value::List([].into())),
    ])
}

/// The reply to `get_monitor_info`: empty, because no history is kept. Heartbeats carry
/// the metrics.
pub(super) fn monitor_info() -> Value {
    Value::dict([
        ("range_query", Value::Dict([].into())),
        ("count", Value::from(0)),
        ("last_time", Value::from(0.0)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(log: &Log, request: &GetLogs) -> Vec<String> {
        let Value::List(lines) = log.answer(request) else {
            panic!("a list");
        };
        let message = |line: &Value| match line {
            Value::List(fields) => match fields.last() {
                Some(Value::Str(message)) => message.as_ref().to_owned(),
                other => panic!("a string: {other:?}"),
            },
            other => panic!("a list: {other:?}"),
        };
        lines.iter().map(message).collect()
    }

    #[test]
    fn log_keeps_the_last_lines_newest_first_and_cuts_long_ones() {
        let log = Log::default();
        let all = GetLogs::default();
        assert!(messages(&log, &all).is_empty());
        for index in 0..=MAX_LINES {
            log.add(Level::Info, &format!("line {index}"));
        }
        log.add(Level::Warning, &"ä".repeat(MAX_LINE_LEN));
        let lines = messages(&log, &all);
        assert_eq!(lines.len(), MAX_LINES);
        assert!(lines[0].contains(" - WARNING - ä") && lines[0].len() < MAX_LINE_LEN + 100);
        assert!(lines[1].ends_with(&format!(" - INFO - line {MAX_LINES}")));
        assert!(lines[MAX_LINES - 1].ends_with(" - line 2"));
        let two = GetLogs {
            n: Some(2),
            ..GetLogs::default()
        };
        assert_eq!(messages(&log, &two), lines[..2]);
        let all_with_time = GetLogs {
            n: Some(0),
            timestamps: Some(true),
            ..GetLogs::default()
        };
        assert_eq!(messages(&log, &all_with_time), lines);
        let Value::List(timed) = log.answer(&all_with_time) else {
            panic!("a list");
        };
        let Some(Value::List(fields)) = timed.first() else {
            panic!("{timed:?}");
        };
        assert!(
            matches!(fields[0], Value::Float(time) if time <= now().as_secs_f64()),
            "{fields:?}"
        );
        assert_eq!(fields[1], Value::from("WARNING"));
        let later = GetLogs {
            start: Some(now().as_secs_f64() + 1.0),
            ..GetLogs::default()
        };
        assert!(messages(&log, &later).is_empty());
    }

    #[cfg(target_os = "linux")]
    fn logged(created: f64, text: &str) -> PythonLogged {
        PythonLogged {
            created,
            level: "ERROR".to_owned(),
            text: text.to_owned(),
            ..PythonLogged::default()
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn lines_of_python_are_bounded() {
        let log = Log::default();
        let long = logged(1.0, &"ä".repeat(MAX_PYTHON_LINE_LEN));
        log.add_logged(&long);
        let all = GetLogs::default();
        assert_eq!(messages(&log, &all)[0].len(), MAX_PYTHON_LINE_LEN);
        for _ in 0..MAX_LINES {
            log.add_logged(&long);
        }
        let count = MAX_LEN / (MAX_PYTHON_LINE_LEN + "ERROR".len());
        assert_eq!(messages(&log, &all).len(), count);
        let lines = log.lock();
        assert_eq!(lines.len, lines.lines.iter().map(Line::len).sum::<usize>());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn lines_of_python_have_their_own_times() {
        let log = Log::default();
        let start = now().as_secs_f64();
        for (created, text) in [
            (2.0, "second"),
            (4.0, "fourth"),
            (1.0, "first"),
            (2.0, "third"),
            (f64::INFINITY, "later"),
            (f64::NAN, "none"),
        ] {
            log.add_logged(&logged(created, text));
        }
        log.add(Level::Info, "last");
        let all = messages(&log, &GetLogs::default());
        assert!(all[0].ends_with(" - last"), "{all:?}");
        assert_eq!(
            all[1..],
            ["none", "later", "fourth", "third", "second", "first"]
        );
        let since = |start| GetLogs {
            start: Some(start),
            ..GetLogs::default()
        };
        assert_eq!(messages(&log, &since(4.0)), all[..4]);
        assert_eq!(messages(&log, &since(start)), all[..3]);
    }

    #[test]
    fn formats_dates() {
        assert_eq!(date(0.0), "1970-01-01T00:00:00Z");
        assert_eq!(date(1_795_299_067.9), "2026-11-21T22:11:07Z");
        assert_eq!(date(1e300), format!("{:.3}", 1e300));
    }
}
