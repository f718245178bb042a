//! The packages of workers and clients: unsupported releases, and warnings about versions
//! that differ.

use core::fmt::Write as _;
use std::collections::{BTreeMap, BTreeSet};

use crate::FIRST_SERVED;
use daskwire_messages::Release;
use daskwire_messages::Value;
use daskwire_messages::release::{UnsupportedPeer, is_of_rust};

use super::State;

/// The versions of a peer's packages, including Python; empty for peers without
/// Python.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Packages(BTreeMap<String, String>);

/// The packages of all workers or clients with Python.
#[derive(Debug, Default, PartialEq)]
pub(super) struct AllPackages {
    peer_count: usize,
    /// The number of workers by package and version.
    counts: BTreeMap<String, BTreeMap<String, usize>>,
}

/// Maximum number of packages of a peer. Dask reports ten.
const MAX_COUNT: usize = 32;

/// Maximum length of names and versions in bytes; longer ones are ignored.
const MAX_LEN: usize = 64;

/// Maximum number of characters of the versions on workers in a warning, to whose width each
/// row is padded.
const MAX_SHOWN: usize = 1024;

/// Checks that the release of a peer is not too old.
///
/// # Errors
///
/// [`UnsupportedPeer`], with the name of the role.
// ROLES SCHEDULER-1
pub(super) fn check(versions: &Value, role: &'static str) -> Result<(), UnsupportedPeer> {
    match Release::of_versions(versions) {
        Some(found) if found < FIRST_SERVED => Err(UnsupportedPeer {
            found,
            first: FIRST_SERVED,
            role,
        }),
        _ => Ok(()),
    }
}

impl Packages {
    /// Parses the versions that a peer registers with. A peer in Rust has none of its own: it
    /// registers those of the scheduler.
    pub(super) fn read(versions: &Value) -> Self {
        let Some(Value::Dict(packages)) = versions.get("packages") else {
            return Self::default();
        };
        if is_of_rust(versions) {
            return Self::default();
        }
        let is_python = |(name, version): &(Value, Value)| {
            let is_there = version.as_str().is_some_and(|version| version != "None");
            name.as_str() == Some("python") && is_there
        };
        if !packages.iter().any(is_python) {
            return Self::default();
        }
        let named = packages.iter().filter_map(|(name, version)| {
            let version = version.as_str().unwrap_or("None");
            let is_short = |name: &&str| name.len() <= MAX_LEN && version.len() <= MAX_LEN;
            let name = name.as_str().filter(is_short)?;
            Some((name.to_owned(), version.to_owned()))
        });
        Self(named.take(MAX_COUNT).collect())
    }
}

impl Packages {
    /// The packages with their versions.
    pub(super) fn pairs(&self) -> Vec<(String, String)> {
        let pairs = self.0.iter();
        pairs
            .map(|(name, version)| (name.clone(), version.clone()))
            .collect()
    }
}

impl State {
    /// The version of a package that workers with Python have, or without such workers that of the
    /// clients; `None` if versions differ, or none of them has the package.
    pub fn common_version(&self, package: &str) -> Option<&str> {
        let all = match self.packages.peer_count {
            0 => &self.client_packages,
            _ => &self.packages,
        };
        let counts = all.counts.get(package)?;
        let (version, count) = counts.first_key_value()?;
        (*count == all.peer_count && version != "None").then_some(version)
    }
}

impl AllPackages {
    pub(super) fn add(&mut self, packages: &Packages) {
        if packages.0.is_empty() {
            return;
        }
        self.peer_count += 1;
        for (name, version) in &packages.0 {
            let versions = self.counts.entry(name.clone()).or_default();
            *versions.entry(version.clone()).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, packages: &Packages) {
        if packages.0.is_empty() {
            return;
        }
        self.peer_count -= 1;
        for (name, version) in &packages.0 {
            let Some(versions) = self.counts.get_mut(name) else {
                continue;
            };
            if let Some(count) = versions.get_mut(version) {
                *count -= 1;
                if *count == 0 {
                    versions.remove(version);
                }
            }
            if versions.is_empty() {
                self.counts.remove(name);
            }
        }
    }

    /// Returns the versions of a package on workers.
    fn versions(&self, name: &str) -> BTreeSet<&str> {
        let counts = self.counts.get(name);
        let mut versions: BTreeSet<&str> = counts
            .into_iter()
            .flat_map(|counts| counts.keys().map(String::as_str))
            .collect();
        let count: usize = counts.map_or(0, |counts| counts.values().sum());
        if count < self.peer_count {
            versions.insert("MISSING");
        }
        versions
    }

    /// Returns the warning for a peer, formatted as in Dask; empty if all versions are equal.
    /// Dask's column for the scheduler is omitted, since this scheduler has no packages.
    // ROLES SCHEDULER-2
    pub(super) fn warning(&self, packages: &Packages, title: &str) -> String {
        if packages.0.is_empty() {
            return String::new();
        }
        let names: BTreeSet<&String> = packages.0.keys().chain(self.counts.keys()).collect();
        let mut rows = Vec::new();
        for name in names {
            let own = packages.0.get(name).map_or("MISSING", String::as_str);
            let others = self.versions(name);
            if others.iter().all(|other| *other == own) {
                continue;
            }
            let others: Vec<&str> = others.into_iter().collect();
            let mut shown = match others[..] {
                [one] => one.to_owned(),
                _ => format!("{{'{}'}}", others.join("', '")),
            };
            if let Some((end, _)) = shown.char_indices().nth(MAX_SHOWN) {
                shown.truncate(end);
                shown.push('…');
            }
            rows.push([name.clone(), own.to_owned(), shown]);
        }
        if rows.is_empty() {
            return String::new();
        }
        let heads = ["Package", title, "Workers"].map(str::to_owned);
        format!("Mismatched versions found\n\n{}", table(heads, &rows))
    }
}

/// Formats a table as Dask does.
fn table(heads: [String; 3], rows: &[[String; 3]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().chain([&heads]).map(|row| &row[column]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2)];
    let bar: String = widths
        .iter()
        .map(|width| format!("+{}", "-".repeat(width + 2)))
        .collect();
    let line = |row: &[String; 3]| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "| {cell:width$} ");
        }
        line + "|\n"
    };
    let lines: String = rows.iter().map(line).collect();
    format!("{bar}+\n{}{bar}+\n{lines}{bar}+", line(&heads))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(versions: &[(&str, &str)]) -> Packages {
        let python = [("python", "3.13")].into_iter();
        let python = python.filter(|_| versions.iter().all(|(name, _)| *name != "python"));
        let packages = versions.iter().map(|(name, version)| (*name, *version));
        Packages::read(&Value::dict([(
            "packages",
            Value::dict(python.chain(packages)),
        )]))
    }

    #[test]
    fn a_warning_does_not_grow_with_the_versions_of_others() {
        let len = |count: usize| {
            let mut all = AllPackages::default();
            for number in 0..count {
                all.add(&packages(&[("numpy", &format!("{number:064}"))]));
            }
            all.warning(&packages(&[("numpy", "1"), ("lz4", "2")]), "Client")
                .len()
        };
        let (once, twice) = (len(1000), len(2000));
        assert_eq!(once, twice);
    }

    // ROLES SCHEDULER-2
    #[test]
    fn versions_that_differ_are_in_a_table() {
        let mut all = AllPackages::default();
        let one = packages(&[("dask", "2026.8.0"), ("python", "3.11.7.final.0")]);
        let other = packages(&[("dask", "2026.8.0"), ("python", "3.12.1.final.0")]);
        let none = Packages::default();
        assert_eq!(all.warning(&one, "Client"), "");
        all.add(&one);
        all.add(&none);
        assert_eq!(all.warning(&one, "Client"), "");
        assert_eq!(all.warning(&none, "Client"), "");
        // Equal to that of `distributed.versions.error_message` in 2026.3.0, except for the
        // column of the scheduler.
        assert_eq!(
            all.warning(&other, "Client"),
            "Mismatched versions found\n\n\
             +---------+----------------+----------------+\n\
             | Package | Client         | Workers        |\n\
             +---------+----------------+----------------+\n\
             | python  | 3.12.1.final.0 | 3.11.7.final.0 |\n\
             +---------+----------------+----------------+"
        );
        all.add(&other);
        let with = packages(&[("dask", "2026.8.0"), ("lz4", "4"), ("python", "3.13")]);
        let warning = all.warning(&with, "This Worker");
        let lines: Vec<&str> = warning.lines().collect();
        assert_eq!(
            lines[3..7],
            [
                "| Package | This Worker | Workers                              |",
                "+---------+-------------+--------------------------------------+",
                "| lz4     | 4           | MISSING                              |",
                "| python  | 3.13        | {'3.11.7.final.0', '3.12.1.final.0'} |",
            ]
        );
        for left in [&one, &none, &other] {
            all.remove(left);
        }
        assert_eq!(all, AllPackages::default());
    }

    #[test]
    fn peers_in_rust_have_no_packages() {
        let python = [("python", Value::from("3.13")), ("numpy", Value::None)];
        let own = ("daskwire", Value::from("0.1.0"));
        let packages = Value::dict(python.into_iter().chain([own]));
        let read = Packages::read(&Value::dict([("packages", packages)]));
        assert_eq!(read, Packages::default());
    }

    #[test]
    fn what_a_peer_says_of_packages_is_bounded() {
        let name = "x".repeat(MAX_LEN + 1);
        let names: Vec<String> = (0..100).map(|index| format!("p{index}")).collect();
        let many = names.iter().map(|name| (&**name, "1"));
        let all: Vec<(&str, &str)> = [(&*name, "1"), ("long", &*name)]
            .into_iter()
            .chain(many)
            .collect();
        let read = packages(&all);
        assert_eq!(read.0.len(), MAX_COUNT);
        assert!(!read.0.contains_key(&name) && !read.0.contains_key("long"));
    }
}
