//! Checks `PROTOCOL.md` against the code: every rule has its details and is
//! cited by code and by a test, and every citation names a rule.
//!
//! A citation is a comment with `PROTOCOL FRAME-3`, or
//! `PROTOCOL FRAME-3, FRAME-4` on one line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const PROTOCOL: &str = include_str!("../../PROTOCOL.md");

/// A file that may cite rules.
struct Source {
    /// The path for messages.
    path: String,
    text: String,
}

impl Source {
    fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// The other files of the repository.
struct Tree {
    code: Vec<Source>,
    tests: Vec<Source>,
    /// Golden vectors, `<generation>/<name>` and `hostile/<name>`.
    vectors: BTreeSet<String>,
    /// The hostile vectors that need a decision in `PROTOCOL.md`.
    undecided: BTreeSet<String>,
}

/// One rule of `PROTOCOL.md`.
#[derive(Debug, PartialEq)]
struct Rule<'a> {
    id: &'a str,
    line: usize,
    releases: &'a str,
    vectors: Vec<&'a str>,
    tests: Vec<&'a str>,
}

/// Whether `word` has the form of a rule's name: `FRAME-3`.
fn is_rule_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(family, number)| {
        !family.is_empty()
            && family.bytes().all(|b| b.is_ascii_uppercase())
            && !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// The words of `text` that have the form of a rule's name.
fn rule_ids(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .filter(|word| is_rule_id(word))
}

/// The rules, in order: a heading `### FRAME-3: …`, and before the next
/// heading a line `Releases: … · Vector: … · Test: …`.
fn rules(protocol: &str) -> Vec<Rule<'_>> {
    let mut rules: Vec<Rule<'_>> = Vec::new();
    let mut in_rule = false;
    for (at, line) in protocol.lines().enumerate() {
        if line.starts_with('#') {
            let heading = line.trim_start_matches(['#', ' ']);
            let id = heading.split(':').next().unwrap_or_default();
            in_rule = is_rule_id(id);
            if in_rule {
                rules.push(Rule {
                    id,
                    line: at + 1,
                    releases: "",
                    vectors: Vec::new(),
                    tests: Vec::new(),
                });
            }
        }
        let Some(rule) = rules.last_mut().filter(|_| in_rule) else {
            continue;
        };
        if !line.starts_with("Releases:") {
            continue;
        }
        for part in line.split(" · ") {
            match part.split_once(':') {
                Some(("Releases", releases)) => rule.releases = releases.trim(),
                // The text between backticks.
                Some(("Vector", vectors)) => {
                    rule.vectors = vectors.split('`').skip(1).step_by(2).collect();
                }
                Some(("Test", tests)) => rule.tests = tests.split_whitespace().collect(),
                _ => {}
            }
        }
    }
    rules
}

/// The rules that `text` cites, with line numbers.
fn citations(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for rest in line.split("PROTOCOL ").skip(1) {
            for word in rest.split([' ', ',']).filter(|word| !word.is_empty()) {
                // "FRAME-3)." and "FRAME-3:" end a list.
                let id = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
                if is_rule_id(id) {
                    found.push((at + 1, id));
                }
                let goes_on = is_rule_id(word) || word == "and";
                if !goes_on {
                    break;
                }
            }
        }
    }
    found
}

/// The rows of the table of decisions: vector, decision, reason.
fn decisions(protocol: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    protocol.lines().filter_map(|line| {
        let row = line.strip_prefix("| `hostile/")?;
        let (name, row) = row.split_once("` | ")?;
        let (decision, reason) = row.split_once(" |")?;
        Some((name, decision, reason.trim_matches([' ', '|'])))
    })
}

/// All problems, one line each.
fn problems(protocol: &str, tree: &Tree) -> Vec<String> {
    let rules = rules(protocol);
    let known: BTreeSet<&str> = rules.iter().map(|rule| rule.id).collect();
    let mut problems = Vec::new();
    if rules.is_empty() {
        problems.push("PROTOCOL.md has no rules".into());
    }
    numbering(protocol, &rules, &known, &mut problems);

    let mut cited_by_code = BTreeSet::new();
    // Rule, and the names of the files that cite it.
    let mut cited_by_test: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in &tree.code {
        cited_by_code.extend(known_citations(source, &known, &mut problems));
    }
    for source in &tree.tests {
        for id in known_citations(source, &known, &mut problems) {
            let names = cited_by_test.entry(id).or_default();
            names.insert(source.file_name());
        }
    }

    for rule in &rules {
        let by_code = cited_by_code.contains(rule.id);
        let by_test = cited_by_test.get(rule.id);
        let wrong = particulars(rule, tree, by_code, by_test);
        problems.extend(
            wrong
                .iter()
                .map(|what| format!("PROTOCOL.md:{}: {} {what}", rule.line, rule.id)),
        );
    }
    table(protocol, tree, &mut problems);
    problems
}

/// Rules are numbered from 1 without gaps, and the text refers to no others.
fn numbering(
    protocol: &str,
    rules: &[Rule<'_>],
    known: &BTreeSet<&str>,
    problems: &mut Vec<String>,
) {
    let mut families: BTreeMap<&str, usize> = BTreeMap::new();
    for rule in rules {
        let (family, _) = rule.id.split_once('-').expect("a rule's name has a hyphen");
        let count = families.entry(family).or_default();
        *count += 1;
        let expected = format!("{family}-{count}");
        if rule.id != expected {
            problems.push(format!(
                "PROTOCOL.md:{}: {} where {expected} should be",
                rule.line, rule.id
            ));
        }
    }
    for (at, line) in protocol.lines().enumerate() {
        for id in rule_ids(line).filter(|id| !known.contains(id)) {
            let is_ours = id
                .split_once('-')
                .is_some_and(|(family, _)| families.contains_key(family));
            if is_ours {
                problems.push(format!(
                    "PROTOCOL.md:{}: refers to {id}, which does not exist",
                    at + 1
                ));
            }
        }
    }
}

/// The rules that `source` cites; citations of unknown rules are problems.
fn known_citations<'a>(
    source: &'a Source,
    known: &BTreeSet<&str>,
    problems: &mut Vec<String>,
) -> Vec<&'a str> {
    let mut found = Vec::new();
    for (line, id) in citations(&source.text) {
        if known.contains(id) {
            found.push(id);
        } else {
            problems.push(format!(
                "{}:{line}: cites {id}, which does not exist",
                source.path
            ));
        }
    }
    found
}

/// The problems of one rule.
fn particulars(
    rule: &Rule<'_>,
    tree: &Tree,
    by_code: bool,
    by_test: Option<&BTreeSet<&str>>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (particular, is_missing) in [
        ("Releases:", rule.releases.is_empty()),
        ("Vector:", rule.vectors.is_empty()),
        ("Test:", rule.tests.is_empty()),
    ] {
        if is_missing {
            wrong.push(format!("has no {particular}"));
        }
    }
    for vector in &rule.vectors {
        if !tree.vectors.contains(*vector) {
            wrong.push(format!("names the vector {vector}, which does not exist"));
        }
    }
    for test in &rule.tests {
        if !tree.tests.iter().any(|source| source.file_name() == *test) {
            wrong.push(format!("names the test {test}, which does not exist"));
        } else if !by_test.is_some_and(|names| names.contains(test)) {
            wrong.push(format!("names the test {test}, which does not cite it"));
        }
    }
    if !by_code {
        wrong.push("is cited by no code".into());
    }
    if by_test.is_none() {
        wrong.push("is cited by no test".into());
    }
    wrong
}

/// Every vector that needs a decision has one, with a reason.
fn table(protocol: &str, tree: &Tree, problems: &mut Vec<String>) {
    let mut decided = BTreeSet::new();
    for (name, decision, reason) in decisions(protocol) {
        let vector = format!("hostile/{name}");
        if !tree.vectors.contains(&vector) {
            problems.push(format!("Decisions: {vector} does not exist"));
        }
        if !["accept", "refuse"].contains(&decision) || reason.is_empty() {
            problems.push(format!(
                "Decisions: {vector} needs `accept` or `refuse`, and a reason"
            ));
        }
        if !decided.insert(vector.clone()) {
            problems.push(format!("Decisions: {vector} is there twice"));
        }
    }
    for vector in tree.undecided.difference(&decided) {
        problems.push(format!("Decisions: {vector} is missing"));
    }
}

/// All files below `folder` with this extension; none if there is no such folder.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry.expect("a folder that can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// `path` relative to `root`, with slashes.
fn shown(path: &Path, root: &Path) -> String {
    let path = path.strip_prefix(root).unwrap_or(path);
    path.display().to_string().replace('\\', "/")
}

/// The repository around this package.
fn tree() -> Tree {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let repository = package.parent().unwrap_or(package);
    let read = |folder: &str| -> Vec<Source> {
        // transport-quic has its own page and test.
        [
            "core",
            "core/compression",
            "core/pickle",
            "core/numpy",
            "core/embedded",
            "comm",
            "transport-tcp",
            "peer",
            "peer/value",
            "peer/messages",
            "peer/rpc",
            "peer/python",
            "peer/client",
            "peer/store",
            "peer/worker",
            "peer/scheduler",
        ]
        .iter()
        .flat_map(|member| files(&repository.join(member).join(folder), "rs"))
        // The samples below are not citations.
        .filter(|path| !path.ends_with("core/tests/it/spec.rs"))
        .map(|path| Source {
            text: std::fs::read_to_string(&path).expect("a source file is UTF-8"),
            path: shown(&path, repository),
        })
        .collect()
    };
    let vectors = package.join("tests/vectors");
    let name = |path: &PathBuf| {
        let name = shown(path, &vectors);
        name.rsplit_once('.').unwrap_or((&name, "")).0.to_string()
    };
    let is_policy = |path: &&PathBuf| {
        let mut text = std::fs::read_to_string(path).expect("JSON is UTF-8");
        text.retain(|c| !c.is_whitespace());
        text.contains(r#""level":"policy""#)
    };
    Tree {
        code: read("src"),
        tests: read("tests"),
        vectors: files(&vectors, "bin").iter().map(name).collect(),
        undecided: files(&vectors.join("hostile"), "json")
            .iter()
            .filter(is_policy)
            .map(name)
            .collect(),
    }
}

#[test]
fn every_rule_has_code_a_test_and_a_vector() {
    let problems = problems(PROTOCOL, &tree());
    assert!(
        problems.is_empty(),
        "{} problems between PROTOCOL.md and the repository:\n  {}",
        problems.len(),
        problems.join("\n  ")
    );
}

// Tests of the checker itself.

const SAMPLE: &str = "\
# The wire

See FRAME-1; PEP-574 is not a rule.

## FRAME: frames

### FRAME-1: the first

Text.

Releases: all · Vector: `new/a`, `hostile/b` · Test: frames.rs

### FRAME-2: the second

Releases: 2.0 to 3.0 · Vector: `new/a` · Test: frames.rs hostile.rs

## Decisions

| vector | decision | reason |
| --- | --- | --- |
| `hostile/b` | refuse | it is wrong |
";

fn source(path: &str, text: &str) -> Source {
    Source {
        path: path.into(),
        text: text.into(),
    }
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.into()).collect()
}

/// A repository that is consistent with [`SAMPLE`].
fn sample_tree() -> Tree {
    Tree {
        code: vec![source(
            "core/src/frame.rs",
            "/// The prelude (PROTOCOL FRAME-1).\n// PROTOCOL FRAME-2",
        )],
        tests: vec![
            source("core/tests/frames.rs", "// PROTOCOL FRAME-1, FRAME-2"),
            source("core/tests/hostile.rs", "// PROTOCOL FRAME-2: short"),
        ],
        vectors: names(&["new/a", "hostile/b"]),
        undecided: names(&["hostile/b"]),
    }
}

/// Asserts that `found` are the problems `expected`, in any order.
#[track_caller]
fn assert_problems(mut found: Vec<String>, expected: &[&str]) {
    let mut expected: Vec<String> = expected.iter().map(|&problem| problem.into()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn consistent_repository_has_no_problems() {
    assert_problems(problems(SAMPLE, &sample_tree()), &[]);
}

#[test]
fn rule_details_are_parsed() {
    let rules = rules(SAMPLE);
    assert_eq!(
        rules[0],
        Rule {
            id: "FRAME-1",
            line: 7,
            releases: "all",
            vectors: vec!["new/a", "hostile/b"],
            tests: vec!["frames.rs"],
        }
    );
    assert_eq!(rules[1].releases, "2.0 to 3.0");
    assert_eq!(rules[1].tests, ["frames.rs", "hostile.rs"]);
    assert_eq!(rules.len(), 2);
}

#[test]
fn citations_are_parsed() {
    let text = "PROTOCOL FRAME-1\n\
                /// see (PROTOCOL FRAME-2), not FRAME-3\n\
                // PROTOCOL MSGPACK-10, FRAME-4 and FRAME-5: why FRAME-6\n\
                const PROTOCOL: &str; // PROTOCOL.md\n\
                // PROTOCOL FRAME-7. FRAME-8; PROTOCOL FRAME-9 says FRAME-10";
    assert_eq!(
        citations(text),
        [
            (1, "FRAME-1"),
            (2, "FRAME-2"),
            (3, "MSGPACK-10"),
            (3, "FRAME-4"),
            (3, "FRAME-5"),
            (5, "FRAME-7"),
            (5, "FRAME-9"),
        ]
    );
}

#[test]
fn rules_without_citations_are_found() {
    let mut tree = sample_tree();
    tree.code.clear();
    tree.tests[0].text = "// PROTOCOL FRAME-2".into();
    assert_problems(
        problems(SAMPLE, &tree),
        &[
            "PROTOCOL.md:7: FRAME-1 is cited by no code",
            "PROTOCOL.md:13: FRAME-2 is cited by no code",
            "PROTOCOL.md:7: FRAME-1 is cited by no test",
            "PROTOCOL.md:7: FRAME-1 names the test frames.rs, which does not cite it",
        ],
    );
}

#[test]
fn citations_without_rules_are_found() {
    let mut tree = sample_tree();
    tree.code
        .push(source("peer/src/lib.rs", "\n// PROTOCOL FRAME-12"));
    tree.tests
        .push(source("peer/tests/a.rs", "// PROTOCOL FRAMES-1"));
    assert_problems(
        problems(SAMPLE, &tree),
        &[
            "peer/src/lib.rs:2: cites FRAME-12, which does not exist",
            "peer/tests/a.rs:1: cites FRAMES-1, which does not exist",
        ],
    );
}

#[test]
fn missing_files_are_found() {
    let mut tree = sample_tree();
    tree.tests.remove(1);
    tree.vectors.remove("new/a");
    assert_problems(
        problems(SAMPLE, &tree),
        &[
            "PROTOCOL.md:13: FRAME-2 names the test hostile.rs, which does not exist",
            "PROTOCOL.md:7: FRAME-1 names the vector new/a, which does not exist",
            "PROTOCOL.md:13: FRAME-2 names the vector new/a, which does not exist",
        ],
    );
}

#[test]
fn missing_rule_details_are_found() {
    let text = SAMPLE.replace(
        "Releases: all · Vector: `new/a`, `hostile/b`",
        "Releases: · Vector:",
    );
    assert_problems(
        problems(&text, &sample_tree()),
        &[
            "PROTOCOL.md:7: FRAME-1 has no Releases:",
            "PROTOCOL.md:7: FRAME-1 has no Vector:",
        ],
    );
    // A heading ends a rule: FRAME-2 does not lend FRAME-1 its line.
    let text = SAMPLE.replace(
        "Releases: all · Vector: `new/a`, `hostile/b` · Test: frames.rs",
        "",
    );
    assert_problems(
        problems(&text, &sample_tree()),
        &[
            "PROTOCOL.md:7: FRAME-1 has no Releases:",
            "PROTOCOL.md:7: FRAME-1 has no Vector:",
            "PROTOCOL.md:7: FRAME-1 has no Test:",
        ],
    );
}

#[test]
fn gaps_in_rule_numbers_are_found() {
    let text = SAMPLE.replace("### FRAME-2", "### FRAME-1");
    let found = problems(&text, &sample_tree());
    let expected = "PROTOCOL.md:13: FRAME-1 where FRAME-2 should be";
    assert!(found.contains(&expected.into()), "{found:#?}");

    let text = SAMPLE.replace("See FRAME-1", "See FRAME-3");
    assert_problems(
        problems(&text, &sample_tree()),
        &["PROTOCOL.md:3: refers to FRAME-3, which does not exist"],
    );

    let found = problems("", &sample_tree());
    assert_eq!(found[0], "PROTOCOL.md has no rules");
}

#[test]
fn decisions_are_checked() {
    let mut tree = sample_tree();
    tree.undecided.insert("hostile/c".into());
    let text = SAMPLE.replace("| refuse |", "| perhaps |")
        + "| `hostile/d` | accept | harmless |\n| `hostile/b` | accept | |\n";
    assert_problems(
        problems(&text, &tree),
        &[
            "Decisions: hostile/b needs `accept` or `refuse`, and a reason",
            "Decisions: hostile/b needs `accept` or `refuse`, and a reason",
            "Decisions: hostile/b is there twice",
            "Decisions: hostile/d does not exist",
            "Decisions: hostile/c is missing",
        ],
    );
}
