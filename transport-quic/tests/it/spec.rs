//! Tests that `PROTOCOL.md` and the code name the same rules.

use std::collections::BTreeSet;
use std::path::Path;

/// The numbers of all `QUIC-n` in a text.
fn numbers(text: &str) -> Vec<u32> {
    let rest = text.split("QUIC-").skip(1);
    rest.filter_map(|rest| {
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest.get(..end)?.parse().ok()
    })
    .collect()
}

/// The numbers that the sources in a folder cite. `QUIC-2 to QUIC-5` are four.
fn cited(folder: &Path) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(cited(&path));
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "rs") || path.ends_with("spec.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("UTF-8");
        for line in text.lines().filter(|line| line.contains("PROTOCOL ")) {
            found.extend(numbers(line));
            for range in line.split(", ").filter(|part| part.contains(" to QUIC-")) {
                if let [first, last] = numbers(range)[..] {
                    found.extend(first..=last);
                }
            }
        }
    }
    found
}

#[test]
fn every_rule_is_cited_and_every_citation_is_a_rule() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(package.join("PROTOCOL.md")).expect("PROTOCOL.md");
    let rules: Vec<u32> = page
        .lines()
        .filter(|line| line.starts_with("**QUIC-"))
        .filter_map(|line| numbers(line).first().copied())
        .collect();
    let in_order: Vec<u32> = (1..=rules.len() as u32).collect();
    assert!(rules.len() > 20 && rules == in_order, "rules {rules:?}");
    let mut all = cited(&package.join("src"));
    all.extend(cited(&package.join("tests")));
    let rules: BTreeSet<u32> = rules.into_iter().collect();
    let missing: Vec<_> = rules.difference(&all).collect();
    assert!(missing.is_empty(), "cited nowhere: {missing:?}");
    let unknown: Vec<_> = all.difference(&rules).collect();
    assert!(unknown.is_empty(), "cited, but no rules: {unknown:?}");
}
