//! What the checks found, and the page that is made of it.

use core::fmt::{self, Write as _};

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Works,
    /// The release is refused by name, with this message.
    Refused(String),
    Fails(String),
    /// The check is made with other releases only.
    NotMade,
}

impl Outcome {
    pub(crate) fn of_error(error: &str) -> Self {
        let refusals = [
            "the scheduler runs distributed ",
            "this scheduler does not serve ",
        ];
        if refusals.iter().any(|refusal| error.contains(refusal)) {
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
            Self::NotMade => f.write_str("not made"),
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

    fn titles(&self) -> Vec<&'static str> {
        self.outcomes.iter().map(|(name, _)| *name).collect()
    }

    fn row(&self) -> String {
        let cells = self.outcomes.iter().map(|(_, outcome)| match outcome {
            Outcome::Works => "ok",
            Outcome::Refused(_) => "refused",
            Outcome::Fails(_) => "**fails**",
            Outcome::NotMade => "",
        });
        let cells = cells.collect::<Vec<_>>().join(" | ");
        format!("| {} | {} | {cells} |", self.release, self.python)
    }

    /// A line for each message, without repetitions.
    fn messages(&self) -> Vec<String> {
        let mut messages = Vec::new();
        for (name, outcome) in &self.outcomes {
            let line = match outcome {
                Outcome::Works | Outcome::NotMade => continue,
                Outcome::Refused(message) => format!("* {}: {message}", self.release),
                Outcome::Fails(error) => {
                    let error = error.lines().next().unwrap_or_default();
                    format!("* {} {name} **fails**: {error}", self.release)
                }
            };
            if !messages.contains(&line) {
                messages.push(line);
            }
        }
        messages
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

/// The page with a row for each release of `names`: those of `reports`, and for
/// others those that are on the old page.
pub(crate) fn page(names: &[&str], reports: &[Report], old: &str) -> String {
    let mut page = String::from(
        "# Releases of Dask\n\n\
         What works with which release of `distributed`, as found by the checks in `tests/releases`, each with a real\n\
         scheduler, workers and clients. Made by:\n\n\
         ```sh\nDASKWIRE_RELEASES=all cargo test -p daskwire-peer --test releases -- --nocapture\n```\n\n\
         *ok* works; *refused* by name, before anything is registered, with the message below. Cells are empty for\n\
         checks that are made with other releases only.\n\n",
    );
    let Some(first) = reports.first() else {
        return page;
    };
    let head = format!("| release | Python | {} |", first.titles().join(" | "));
    // Rows of other checks cannot be kept.
    let old = if old.contains(&head) { old } else { "" };
    let old: Vec<&str> = old.lines().collect();
    let _ = writeln!(page, "{head}");
    let columns = " --- |".repeat(first.outcomes.len());
    let _ = writeln!(page, "| --- | --- |{columns}");
    let mut messages: Vec<String> = Vec::new();
    for name in names {
        match reports.iter().find(|report| report.release == *name) {
            Some(report) => {
                let _ = writeln!(page, "{}", report.row());
                messages.extend(report.messages());
            }
            None => {
                let row = old
                    .iter()
                    .find(|line| line.starts_with(&format!("| {name} |")));
                page.extend(row.map(|row| format!("{row}\n")));
                let about = [format!("* {name}: "), format!("* {name} ")];
                let kept = old
                    .iter()
                    .filter(|line| about.iter().any(|start| line.starts_with(start)));
                messages.extend(kept.map(ToString::to_string));
            }
        }
    }
    if !messages.is_empty() {
        let _ = writeln!(page, "\n{}", messages.join("\n"));
    }
    page
}
