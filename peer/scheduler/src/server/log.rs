//! The scheduler's log, which clients ask for.

use core::fmt;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use daskwire_messages::Value;
use daskwire_rpc::event::Level;

use crate::Notice;

/// The last notices, as lines.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<VecDeque<Line>>);

#[derive(Debug)]
struct Line {
    /// Time in seconds since 1970.
    time: f64,
    level: &'static str,
    text: String,
}

/// Which lines are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    /// Maximum number of lines; all if absent or 0.
    pub(super) count: Option<u64>,
    /// The earliest time in seconds since 1970.
    pub(super) start: Option<f64>,
    /// Whether lines include the time.
    pub(super) timestamps: bool,
}

/// Maximum number of lines. Dask's `distributed.admin.log-length` is 10,000.
const MAX_COUNT: usize = 10_000;

/// Maximum length of a notice in a line, in bytes; the rest is cut off.
const MAX_LEN: usize = 1000;

impl Log {
    /// Adds a notice at a time in seconds since 1970.
    pub(super) fn add(&self, notice: &Notice, time: f64) {
        let level = match notice.level() {
            Level::Warn => "WARNING",
            _ => "INFO",
        };
        let mut text = Text {
            text: format!("{} - distributed.scheduler - {level} - ", Date(time)),
            left: MAX_LEN,
        };
        // Fails if the notice is cut off.
        let _ = fmt::write(&mut text, format_args!("{notice}"));
        let text = text.text;
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= MAX_COUNT {
            lines.pop_front();
        }
        lines.push_back(Line { time, level, text });
    }

    /// The wanted lines in the form of Dask's reply, newest first.
    pub(super) fn lines(&self, wanted: Wanted) -> Value {
        let count = match wanted.count {
            None | Some(0) => usize::MAX,
            Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
        };
        let start = wanted.start.unwrap_or(0.0);
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = lines.iter().rev();
        let newest = newest.take_while(|line| line.time >= start).take(count);
        Value::list(newest.map(|line| {
            let level_and_text = [Value::from(line.level), Value::from(line.text.as_str())];
            let time = wanted.timestamps.then(|| Value::from(line.time));
            Value::tuple(time.into_iter().chain(level_and_text))
        }))
    }
}

/// A string that takes a limited number of further bytes.
struct Text {
    text: String,
    left: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for character in part.chars() {
            self.left = self
                .left
                .checked_sub(character.len_utf8())
                .ok_or(fmt::Error)?;
            self.text.push(character);
        }
        Ok(())
    }
}

/// A time in seconds since 1970, which is displayed as in Dask's logs, in UTC.
struct Date(f64);

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts saturate"
        )]
        let millis = (self.0 * 1000.0) as u64;
        let (seconds, millis) = (millis / 1000, millis % 1000);
        let (days, time) = (seconds / 86_400, seconds % 86_400);
        // Days since 0000-03-01, in eras of 400 years.
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, next) = if month < 10 {
            (month + 3, 0)
        } else {
            (month - 9, 1)
        };
        let year = era * 400 + year + next;
        let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02},{millis:03}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (time, expected) in [
            (0.0, "1970-01-01 00:00:00,000"),
            (951_782_400.25, "2000-02-29 00:00:00,250"),
            (1_795_299_067.5, "2026-11-21 22:11:07,500"),
            (1_798_761_599.0, "2026-12-31 23:59:59,000"),
        ] {
            assert_eq!(Date(time).to_string(), expected);
        }
        // Times are those of this machine, but none makes it panic.
        let _ = Date(f64::INFINITY).to_string();
        let _ = Date(f64::NAN).to_string();
    }

    #[test]
    fn lines_are_bounded_and_newest_first() {
        let log = Log::default();
        let notice = |op: &str| Notice::UnknownOp {
            peer: "tcp://w:1".to_owned(),
            op: op.to_owned(),
        };
        for number in 0..=MAX_COUNT {
            log.add(&notice(&format!("op-{number}")), number as f64);
        }
        log.add(&notice(&"ä".repeat(MAX_LEN)), 1e5);
        let texts = |wanted: Wanted| {
            let Value::List(lines) = log.lines(wanted) else {
                panic!("a list");
            };
            let text = |line: &Value| match line {
                Value::Tuple(parts) => parts.last().expect("a text").to_string(),
                other => panic!("{other}"),
            };
            lines.iter().map(text).collect::<Vec<_>>()
        };
        let all = texts(Wanted::default());
        assert_eq!(all.len(), MAX_COUNT);
        assert!(all[0].len() < MAX_LEN + 100, "{}", all[0]);
        assert!(all[1].contains(&format!("op-{MAX_COUNT}")), "{}", all[1]);
        let prefix = "'1970-01-01 02:46:40,000 - distributed.scheduler - WARNING - ";
        assert!(all[1].starts_with(prefix), "{}", all[1]);
        let count = Some(2);
        let two = texts(Wanted {
            count,
            ..Wanted::default()
        });
        assert_eq!(two, all[..2]);
        let start = Some(9_999.0);
        let late = texts(Wanted {
            start,
            ..Wanted::default()
        });
        assert_eq!(late, all[..3]);
    }
}
