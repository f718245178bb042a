//! Checks `PROTOCOL.md` of this crate against the code: each rule must be cited by code, by
//! the tests that it names, and by one with real releases. A citation is a comment such as
//! `ROLES CLIENT-3` or, for several rules, `ROLES CLIENT-3, CLIENT-4`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const PROTOCOL: &str = include_str!("../../PROTOCOL.md");

/// The cited rules, with the names of the files that cite them.
type Citations = BTreeMap<String, BTreeSet<String>>;

/// All Rust files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder that can be listed");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

fn is_test(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().collect();
    parts
        .iter()
        .any(|part| *part == "tests" || *part == "tests.rs")
}

/// Whether a word has the format of a rule's name.
fn is_rule(word: &str) -> bool {
    let parts = word.split_once('-');
    parts.is_some_and(|(family, number)| {
        ["CLIENT", "WORKER", "SCHEDULER"].contains(&family) && number.parse::<u32>().is_ok()
    })
}

/// Adds the rules that a file cites to `citations`.
fn cite(path: &Path, citations: &mut Citations) {
    let source = std::fs::read_to_string(path).expect("UTF-8");
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for line in source.lines() {
        let Some((_, rest)) = line.split_once("ROLES ") else {
            continue;
        };
        let words = rest.split([' ', ',']).filter(|word| !word.is_empty());
        for word in words.map(|word| word.trim_end_matches([':', '.', ')'])) {
            if !is_rule(word) {
                break;
            }
            let names = citations.entry(word.to_owned()).or_default();
            names.insert(name.clone().into_owned());
        }
    }
}

#[test]
fn every_rule_has_code_and_the_tests_that_it_names() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut by_code, mut by_test) = (Citations::new(), Citations::new());
    let all = [
        "src",
        "value/src",
        "messages/src",
        "rpc/src",
        "python/src",
        "client/src",
        "store/src",
        "worker/src",
        "scheduler/src",
        "scheduler/state/src",
        "tests",
    ]
    .map(|folder| files(&package.join(folder)));
    let own = all
        .iter()
        .flatten()
        .filter(|path| !path.ends_with("tests/it/roles.rs"));
    for path in own {
        let inside = path.strip_prefix(package).expect("a path in the package");
        let citations = if is_test(inside) {
            &mut by_test
        } else {
            &mut by_code
        };
        cite(path, citations);
    }

    let mut by_releases = Citations::new();
    for path in files(&package.join("tests/releases")) {
        cite(&path, &mut by_releases);
    }

    let mut problems = Vec::new();
    let mut rules: BTreeSet<&str> = BTreeSet::new();
    let mut current = "";
    for line in PROTOCOL.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            current = heading.split(':').next().unwrap_or_default();
            rules.insert(current);
        }
        let Some(details) = line.strip_prefix("Releases: ") else {
            continue;
        };
        let (releases, tests) = details.split_once(" · Test: ").unwrap_or((details, ""));
        if !releases.contains(" to ") {
            problems.push(format!("{current} has no releases"));
        }
        if !by_releases.contains_key(current) {
            problems.push(format!("{current} is tested with no release"));
        }
        for test in tests.split_whitespace() {
            let cites = by_test
                .get(current)
                .is_some_and(|names| names.contains(test));
            if !cites {
                problems.push(format!(
                    "{current} names the test {test}, which does not cite it"
                ));
            }
        }
        if !by_code.contains_key(current) {
            problems.push(format!("{current} is cited by no code"));
        }
    }
    assert!(rules.len() > 10, "{rules:?}");
    let words = PROTOCOL.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let cited = by_code.keys().chain(by_test.keys()).map(String::as_str);
    for rule in words.filter(|word| is_rule(word)).chain(cited) {
        if !rules.contains(rule) {
            problems.push(format!("there is no {rule}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
