//! The outcomes of the checks, and the page generated from them.

use core::fmt::{self, Write as _};

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Works,
    /// The release is refused with this message, which names it.
    Refused(String),
    Fails(String),
    /// The check does not apply to this release.
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

    /// The distinct messages of the outcomes.
    fn messages(&self) -> Vec<Message> {
        let mut messages = Vec::new();
        for (name, outcome) in &self.outcomes {
            let text = match outcome {
                Outcome::Works | Outcome::NotMade => continue,
                Outcome::Refused(message) => message.clone(),
                Outcome::Fails(error) => {
                    let error = error.lines().next().unwrap_or_default();
                    format!("{name} **fails**: {error}")
                }
            };
            let message = Message {
                text: text.replace(&self.release, "RELEASE"),
                releases: vec![self.release.clone()],
            };
            if !messages.contains(&message) {
                messages.push(message);
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

/// A message of several releases, with `RELEASE` in place of their names.
#[derive(Clone, Debug, PartialEq)]
struct Message {
    text: String,
    releases: Vec<String>,
}

impl Message {
    /// Parses a line of the page.
    fn parse(line: &str) -> Option<Self> {
        let (text, releases) = line.strip_prefix("* ")?.rsplit_once(" (")?;
        let releases = releases.strip_suffix(')')?.split(", ");
        Some(Self {
            text: text.to_owned(),
            releases: releases.map(str::to_owned).collect(),
        })
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "* {} ({})", self.text, self.releases.join(", "))
    }
}

/// Splits a row of a table into cells.
fn cells(row: &str) -> Vec<&str> {
    let row = row.strip_prefix("| ").unwrap_or_default();
    let row = row.strip_suffix(" |").unwrap_or_default();
    row.split(" | ").map(str::trim).collect()
}

/// Consecutive releases with the same outcomes. A check that was run with some of them
/// counts for all.
struct Range<'a> {
    first: &'a str,
    last: &'a str,
    outcomes: Vec<&'a str>,
}

impl<'a> Range<'a> {
    fn new(cells: &[&'a str]) -> Self {
        Self {
            first: cells[0],
            last: cells[0],
            outcomes: cells[2..].to_vec(),
        }
    }

    /// Adds a release unless one of its outcomes differs. Returns whether it was added.
    fn extend(&mut self, cells: &[&'a str]) -> bool {
        let pairs = || self.outcomes.iter().zip(&cells[2..]);
        let is_same =
            pairs().all(|(ours, outcome)| ours == outcome || ours.is_empty() || outcome.is_empty());
        if is_same {
            self.outcomes = pairs()
                .map(|(ours, outcome)| if ours.is_empty() { *outcome } else { *ours })
                .collect();
            self.last = cells[0];
        }
        is_same
    }
}

/// Formats the table with a row for each check and a column for each range of releases.
fn summary(head: &str, rows: &[String]) -> String {
    let mut ranges: Vec<Range<'_>> = Vec::new();
    for row in rows {
        let cells = cells(row);
        let is_added = ranges.last_mut().is_some_and(|last| last.extend(&cells));
        if !is_added {
            ranges.push(Range::new(&cells));
        }
    }
    let mut table = String::from("| check |");
    for range in &ranges {
        let _ = match range.first == range.last {
            true => write!(table, " {} |", range.first),
            false => write!(table, " {} to {} |", range.first, range.last),
        };
    }
    let _ = writeln!(table, "\n| --- |{}", " --- |".repeat(ranges.len()));
    for (index, check) in cells(head)[2..].iter().enumerate() {
        let outcomes = ranges.iter().map(|range| range.outcomes[index]);
        let outcomes = outcomes.collect::<Vec<_>>().join(" | ");
        let _ = writeln!(table, "| {check} | {outcomes} |");
    }
    table
}

/// Formats the page with the releases in `names`: from `reports`, or else from the old
/// page.
pub(crate) fn page(names: &[&str], reports: &[Report], old: &str) -> String {
    let old_head = old
        .lines()
        .find(|line| line.starts_with("| release | Python |"));
    let head = match (reports.first(), old_head) {
        (Some(first), _) => format!("| release | Python | {} |", first.titles().join(" | ")),
        (None, Some(head)) => head.to_owned(),
        (None, None) => return old.to_owned(),
    };
    for report in reports {
        assert_eq!(report.titles(), reports[0].titles(), "{}", report.release);
    }
    // In the rows of a page without a check, it is not made. The first two columns have no outcomes,
    // but the name of one is also that of a check.
    let old_checks = cells(old_head.unwrap_or_default());
    let renewed = |row: &str| {
        let row = cells(row);
        let outcome = |check: &&str| {
            let mut old = old_checks.iter().zip(&row).skip(2);
            old.find(|(old, _)| *old == check)
                .map_or("", |(_, outcome)| *outcome)
        };
        let checks = cells(&head);
        let outcomes = checks.iter().skip(2).map(outcome);
        let renewed: Vec<&str> = row.iter().take(2).copied().chain(outcomes).collect();
        format!("| {} |", renewed.join(" | "))
    };
    let (mut rows, mut messages): (Vec<String>, Vec<Message>) = Default::default();
    for name in names {
        let said = match reports.iter().find(|report| report.release == *name) {
            Some(report) => {
                rows.push(report.row());
                report.messages()
            }
            None => {
                let start = format!("| {name} |");
                let row = old.lines().find(|line| line.starts_with(&start));
                rows.extend(row.map(renewed));
                let kept = old.lines().filter_map(Message::parse);
                let mut kept: Vec<Message> = kept.collect();
                kept.retain(|message| message.releases.iter().any(|release| release == name));
                kept
            }
        };
        for Message { text, .. } in said {
            match messages.iter_mut().find(|message| message.text == text) {
                Some(message) => message.releases.push((*name).to_owned()),
                None => messages.push(Message {
                    text,
                    releases: vec![(*name).to_owned()],
                }),
            }
        }
    }
    let columns = " --- |".repeat(cells(&head).len());
    let lines = |lines: &mut dyn Iterator<Item = String>| lines.collect::<Vec<_>>().join("\n");
    format!(
        "# Releases of Dask\n\n\
         What works with which release of `distributed`, as found by the checks in `tests/releases`, each with a real\n\
         scheduler, workers and clients. Made by:\n\n\
         ```sh\nDASKWIRE_RELEASES=all cargo test -p daskwire-peer --test releases -- --nocapture\n```\n\n\
         *ok*: it works. *refused*: before anything is registered, with one of the messages below. Some checks are made with\n\
         some releases of a range only; [each release](#each-release) has what was tried.\n\n\
         {}\n## Messages\n\n{}\n\n## Each release\n\n{head}\n|{columns}\n{}\n",
        summary(&head, &rows),
        lines(&mut messages.iter().map(ToString::to_string)),
        lines(&mut rows.into_iter()),
    )
}

#[test]
fn a_partial_run_keeps_the_other_lines_of_the_page() {
    let report = |release: &str, outcomes: [Outcome; 3]| Report {
        outcomes: ["release", "b", "c"].into_iter().zip(outcomes).collect(),
        ..Report::new(release, 11)
    };
    let refused = |release: &str| Outcome::Refused(format!("{release} is too old"));
    let names = ["2.0", "2.1", "3.0", "3.1"];
    let all = [
        report("2.0", [Outcome::Works, refused("2.0"), Outcome::NotMade]),
        report("2.1", [Outcome::Works, refused("2.1"), Outcome::Works]),
        report("3.0", [Outcome::Works, Outcome::Works, Outcome::Works]),
        report("3.1", [Outcome::Works, Outcome::Works, Outcome::NotMade]),
    ];
    let first = page(&names, &all, "");
    let summary = "| check | 2.0 to 2.1 | 3.0 to 3.1 |\n| --- | --- | --- |\n| release | ok | ok |\n\
                   | b | refused | ok |\n| c | ok | ok |\n";
    assert!(first.contains(summary), "{first}");
    assert!(
        first.contains("\n* RELEASE is too old (2.0, 2.1)\n"),
        "{first}"
    );
    assert_eq!(page(&names, &all[1..2], &first), first);
    // A new check is made in the releases of the run only.
    let added = Report {
        outcomes: ["release", "new", "b", "c"]
            .into_iter()
            .map(|name| (name, Outcome::Works))
            .collect(),
        ..Report::new("3.0", 11)
    };
    let added = page(&names, &[added], &first);
    for row in [
        "| 2.0 | 3.11 | ok |  | refused |  |",
        "| 3.0 | 3.11 | ok | ok | ok | ok |",
        "| 3.1 | 3.11 | ok |  | ok |  |",
    ] {
        assert!(added.contains(&format!("\n{row}\n")), "{added}");
    }

    let error = Outcome::Fails("late\nand more".to_owned());
    let again = page(
        &names,
        &[report("2.1", [error, Outcome::Works, Outcome::Works])],
        &first,
    );
    let summary = "| check | 2.0 | 2.1 | 3.0 to 3.1 |";
    assert!(again.contains(summary), "{again}");
    let messages = "\n* RELEASE is too old (2.0)\n* release **fails**: late (2.1)\n";
    assert!(again.contains(messages), "{again}");
}
