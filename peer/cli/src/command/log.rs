//! Logs of the roles, on standard error.
//!
//! Lines go through [`Printable`], so that a key or an address of a peer can
//! neither write escape sequences nor forge another line.

use std::io::{self, Write};

use daskwire::display::Printable;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

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
            targets.with_target("daskwire_peer::span", LevelFilter::INFO)
        }
    };
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

/// Whether [`start`] has started to log.
pub(crate) fn is_on() -> bool {
    tracing::dispatcher::has_been_set()
}

/// Whether warnings of workers are logged.
pub(crate) fn has_warnings() -> bool {
    tracing::enabled!(target: "daskwire_peer::worker", tracing::Level::WARN)
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
