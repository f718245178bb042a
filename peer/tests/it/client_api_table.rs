//! Compares `docs/src/client-api.md` with `distributed.Client` of an installed release,
//! and with the sources of the Rust client.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use daskwire_testing::{Environment, python};

const PAGE: &str = include_str!("../../../docs/src/client-api.md");

/// The rows of the table below a heading: the Python names, and the Rust names.
fn rows(heading: &str) -> Vec<(String, Vec<String>)> {
    let (_, after) = PAGE.split_once(heading).expect("the heading exists");
    let section = after.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let names = |cell: &str| {
        let parts = cell.split('`').skip(1).step_by(2);
        parts.map(str::to_owned).collect::<Vec<String>>()
    };
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let [python] = &names(cells[1])[..] else {
            panic!("{row}: one name is expected");
        };
        (python.clone(), names(cells[2]))
    })
    .collect()
}

/// Runs Python code, and returns the names that it prints, one per line.
pub(crate) fn printed(code: &str) -> BTreeSet<String> {
    let output = Command::new(python(Environment::Current))
        .args(["-c", code])
        .output()
        .expect("Python runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let printed = String::from_utf8(output.stdout).expect("a string");
    printed.lines().map(str::to_owned).collect()
}

/// The names in the second column of the table below a heading.
pub(crate) fn rust_names(heading: &str) -> BTreeSet<String> {
    rows(heading)
        .into_iter()
        .flat_map(|(_, names)| names)
        .collect()
}

fn named(heading: &str) -> BTreeSet<String> {
    let rows = rows(heading);
    let names: BTreeSet<String> = rows.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names.len(), rows.len(), "a name is in two rows");
    names
}

#[test]
fn the_page_has_each_public_name_of_the_client() {
    let found = printed(
        "from distributed import Client\n\
         for name in dir(Client):\n    name.startswith('_') or print(name)",
    );
    assert_eq!(named("## Methods and properties"), found);
}

#[test]
fn the_page_has_each_keyword_of_submit() {
    let found = printed(
        "import inspect\nfrom distributed import Client\n\
         for name in inspect.signature(Client.submit).parameters:\n    name == 'self' or print(name)",
    );
    assert_eq!(named("## Keywords of `submit`"), found);
}

#[test]
fn names_of_python_beside_the_client_exist() {
    let names = named("## Beside the client");
    let found = printed("import distributed\nfor name in dir(distributed):\n    print(name)");
    let missing: Vec<_> = names.difference(&found).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Checks that the names in the second column are functions and types of the Rust client.
#[test]
fn names_in_rust_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("client/src");
    let mut sources = String::new();
    for entry in std::fs::read_dir(folder).expect("the folder exists") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            sources += &std::fs::read_to_string(path).expect("a file");
        }
    }
    let headings = [
        "## Methods and properties",
        "## Keywords of `submit`",
        "## Beside the client",
    ];
    for (_, names) in headings.iter().flat_map(|heading| rows(heading)) {
        for name in names {
            let last = name.rsplit("::").next().unwrap_or_default();
            let kinds = ["pub fn ", "pub async fn ", "pub const fn ", "pub struct "];
            let is_defined = kinds.iter().any(|kind| {
                let definition = format!("{kind}{last}");
                let mut found = sources.match_indices(&definition);
                found.any(|(at, text)| sources[at + text.len()..].starts_with(['(', '<', ' ']))
            });
            assert!(is_defined, "{name} does not exist");
        }
    }
}
