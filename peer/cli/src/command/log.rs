//! Logs of the roles, on standard error.
//!
//! Lines go through [`Printable`], so that a key or an address of a peer can
//! neither write escape sequences nor forge another line.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use daskwire::display::Printable;
use serde_json::{Value, json};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::command::config::Config;
use crate::command::failure::Failure;
use crate::command::terminal;

/// The variable that selects what to log, such as `daskwire_peer::worker=debug`.
const VARIABLE: &str = "RUST_LOG";

/// Starts logging as `RUST_LOG` selects. Without it, a verbosity of 1, 2, or 3 and more
/// selects info, debug or trace events of the roles and their comms.
///
/// # Errors
///
/// A message if `RUST_LOG` cannot be parsed.
pub(crate) fn start(verbosity: u8) -> Result<(), String> {
    let variable = std::env::var(VARIABLE).unwrap_or_default();
    let targets = match (variable.as_str(), verbosity) {
        ("", 0) => return Ok(()),
        ("", 1) => roles(LevelFilter::INFO),
        ("", 2) => roles(LevelFilter::DEBUG),
        ("", _) => roles(LevelFilter::TRACE),
        (directives, _) => {
            let parsed: Result<Targets, _> = directives.parse();
            let targets = parsed.map_err(|error| format!("{VARIABLE}={directives}: {error}"))?;
            // Spans name the task and the peer, whichever targets are logged.
            targets.with_target(SPAN, LevelFilter::INFO)
        }
    };
    log(targets)
}

/// The target of spans.
const SPAN: &str = "daskwire_peer::span";

fn log(targets: Targets) -> Result<(), String> {
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(Lines);
    let subscriber = tracing_subscriber::registry().with(targets).with(lines);
    subscriber.try_init().map_err(|error| error.to_string())
}

fn roles(level: LevelFilter) -> Targets {
    Targets::new()
        .with_target("daskwire_comm", level)
        .with_target("daskwire_peer", level)
}

/// Starts logging as Dask's configuration says, unless something logs already: the levels of
/// `logging` in `distributed`, or else at the top level, by the names of Dask's loggers.
///
/// # Errors
///
/// A usage error for a level that does not exist.
pub(crate) fn configure(config: &Config) -> Result<(), Failure> {
    let within = ["distributed.logging", "logging"];
    let Some((setting, levels)) = within
        .iter()
        .find_map(|name| Some((name, config.get(name)?.as_object()?)))
    else {
        return Ok(());
    };
    if is_on() {
        return Ok(());
    }
    if levels.contains_key("version") {
        terminal::event(
            "notice",
            format_args!(
                "{setting}: a dictionary for Python's logging has no effect here; give levels by \
                 the names of loggers, such as distributed.scheduler"
            ),
            json!({}),
        );
        return Ok(());
    }
    let mut targets: Vec<(&str, LevelFilter)> = Vec::new();
    // Names of parents come before those of their children, which have precedence.
    let levels: BTreeMap<&String, &Value> = levels.iter().collect();
    for (name, value) in levels {
        let found = LOGGERS.iter().find(|(logger, _)| logger == name);
        let Some((_, own)) = found else { continue };
        let level = level(value).ok_or_else(|| {
            Failure::usage(format_args!(
                "{setting}.{name}: {value}: expected debug, info, warning, error or critical"
            ))
        })?;
        targets.retain(|(target, _)| !own.contains(target));
        targets.extend(own.iter().map(|target| (*target, level)));
    }
    if targets.is_empty() {
        return Ok(());
    }
    let default = |target: &'static str| (target, LevelFilter::INFO);
    // As Dask's default for the loggers that are not named.
    let defaults = ["daskwire_peer::scheduler", "daskwire_peer::worker"].map(default);
    let targets = Targets::new()
        .with_targets(defaults)
        .with_targets(targets)
        .with_target(SPAN, LevelFilter::INFO);
    IS_CONFIGURED.store(true, Ordering::Relaxed);
    log(targets).map_err(Failure::usage)
}

/// Whether [`configure`] has chosen what is logged.
static IS_CONFIGURED: AtomicBool = AtomicBool::new(false);

/// Loggers of Dask, and the targets of events here.
const LOGGERS: [(&str, &[&str]); 6] = [
    (
        "distributed",
        &[
            "daskwire_comm",
            "daskwire_peer::client",
            "daskwire_peer::comm",
            "daskwire_peer::scheduler",
            "daskwire_peer::worker",
        ],
    ),
    ("distributed.client", &["daskwire_peer::client"]),
    ("distributed.comm", &["daskwire_comm"]),
    ("distributed.core", &["daskwire_peer::comm"]),
    ("distributed.scheduler", &["daskwire_peer::scheduler"]),
    ("distributed.worker", &["daskwire_peer::worker"]),
];

/// A level of Python's logging, by name or number.
fn level(value: &Value) -> Option<LevelFilter> {
    let number = match value {
        Value::String(name) => match &*name.to_lowercase() {
            "notset" => 0,
            "debug" => 10,
            "info" => 20,
            "warn" | "warning" => 30,
            "error" => 40,
            "critical" | "fatal" => 50,
            _ => return None,
        },
        value => value.as_u64()?,
    };
    Some(match number {
        0..=9 => LevelFilter::TRACE,
        10..=19 => LevelFilter::DEBUG,
        20..=29 => LevelFilter::INFO,
        30..=39 => LevelFilter::WARN,
        _ => LevelFilter::ERROR,
    })
}

/// Whether [`start`] has started to log.
pub(crate) fn is_on() -> bool {
    tracing::dispatcher::has_been_set()
}

/// Whether warnings of roles are logged, or the configuration says that they are not.
pub(crate) fn has_warnings() -> bool {
    IS_CONFIGURED.load(Ordering::Relaxed)
        || tracing::enabled!(target: "daskwire_peer::worker", tracing::Level::WARN)
        || tracing::enabled!(target: "daskwire_peer::scheduler", tracing::Level::WARN)
}

/// Writes each event as one line.
struct Lines;

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}

impl Write for Lines {
    /// Writes one whole event, which [`tracing_subscriber::fmt::Layer`] passes at once.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(event);
        let line = line.strip_suffix('\n').unwrap_or(&line);
        terminal::write_stderr(format_args!("{}\n", Printable(line)));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_python() {
        for (value, expected) in [
            (json!("debug"), Some(LevelFilter::DEBUG)),
            (json!("INFO"), Some(LevelFilter::INFO)),
            (json!("warning"), Some(LevelFilter::WARN)),
            (json!("critical"), Some(LevelFilter::ERROR)),
            (json!(15), Some(LevelFilter::DEBUG)),
            (json!(30), Some(LevelFilter::WARN)),
            (json!("loud"), None),
            (json!(null), None),
        ] {
            assert_eq!(level(&value), expected, "{value}");
        }
    }
}
