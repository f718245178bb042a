//! What the checks found, and the page that is made of it.

use core::fmt::{self, Write as _};

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Works,
    /// The release is refused by name, with this message.
    Refused(String),
    Fails(String),
}

impl Outcome {
    pub(crate) fn of_error(error: &str) -> Self {
        if error.contains("the scheduler runs distributed ") {
            Self::Refused(error.to_owned())
        } else {
            Self::Fails(error.to_owned())
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.write_str("ok"),
            Self::Refused(message) => write!(f, "refused: {message}"),
            Self::Fails(message) => write!(f, "FAILED: {message}"),
        }
    }
}

/// The outcomes of a release.
#[derive(Debug)]
pub(crate) struct Report {
    release: String,
    python: String,
    outcomes: Vec<(&'static str, Outcome)>,
}

impl Report {
    pub(crate) fn new(release: &str, minor: u32) -> Self {
        Self {
            release: release.to_owned(),
            python: format!("3.{minor}"),
            outcomes: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, name: &'static str, outcome: Outcome) {
        self.outcomes.push((name, outcome));
    }

    /// The checks that failed.
    pub(crate) fn failures(&self) -> Vec<String> {
        let failed = |(name, outcome): &(&str, Outcome)| match outcome {
            Outcome::Fails(error) => Some(format!("{} {name}: {error}", self.release)),
            _ => None,
        };
        self.outcomes.iter().filter_map(failed).collect()
    }
}

/// The page with a row for each release.
pub(crate) fn page(reports: &[Report]) -> String {
    let mut page = String::from(
        "# Releases of Dask\n\n\
         What works with which release of `distributed`, as found by the checks in `tests/releases`, each with a real\n\
         scheduler, workers and clients. Made by:\n\n\
         ```sh\nDASKWIRE_RELEASES=all cargo test -p daskwire-peer --test releases -- --nocapture\n```\n\n\
         *ok* works; *refused* by name, before anything is registered, with the message below.\n\n",
    );
    let Some(first) = reports.first() else {
        return page;
    };
    let names = first.outcomes.iter().map(|(name, _)| *name);
    let _ = writeln!(
        page,
        "| release | Python | {} |",
        names.collect::<Vec<_>>().join(" | ")
    );
    let _ = writeln!(
        page,
        "| --- | --- |{}",
        " --- |".repeat(first.outcomes.len())
    );
    for report in reports {
        let cells = report.outcomes.iter().map(|(_, outcome)| match outcome {
            Outcome::Works => "ok",
            Outcome::Refused(_) => "refused",
            Outcome::Fails(_) => "**fails**",
        });
        let cells = cells.collect::<Vec<_>>().join(" | ");
        let _ = writeln!(page, "| {} | {} | {cells} |", report.release, report.python);
    }
    let mut messages: Vec<String> = Vec::new();
    for report in reports {
        for (name, outcome) in &report.outcomes {
            let line = match outcome {
                Outcome::Works => continue,
                Outcome::Refused(message) => format!("* {}: {message}", report.release),
                Outcome::Fails(error) => {
                    let error = error.lines().next().unwrap_or_default();
                    format!("* {} {name} **fails**: {error}", report.release)
                }
            };
            if !messages.contains(&line) {
                messages.push(line);
            }
        }
    }
    if !messages.is_empty() {
        let _ = writeln!(page, "\n{}", messages.join("\n"));
    }
    page
}
