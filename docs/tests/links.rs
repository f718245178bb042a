//! Checks the links between documents: files exist, and headings too.

use std::fs;
use std::path::{Path, PathBuf};

use daskwire_docs::{blocks, documents};

fn workspace() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    workspace.canonicalize().expect("a folder")
}

const REPOSITORY: &str = "https://github.com/daskwire/daskwire/blob/main/";

/// The documents that are checked.
fn checked() -> Vec<PathBuf> {
    let workspace = workspace();
    let mut checked = documents(&workspace).expect("the guide");
    let more = [
        "ARCHITECTURE.md",
        "BENCHMARKS.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "core/PROTOCOL.md",
        "core/README.md",
        "core/compression/README.md",
        "core/embedded/README.md",
        "core/numpy/README.md",
        "core/pickle/README.md",
        "core/tests/vectors/README.md",
        "fuzz/README.md",
        "peer/PROTOCOL.md",
        "peer/RELEASES.md",
        "transport-quic/PROTOCOL.md",
    ];
    checked.extend(more.map(|document| workspace.join(document)));
    checked
}

/// The targets of the links in a document, outside its code.
fn links(document: &str) -> Vec<String> {
    let mut text = document.to_owned();
    for block in blocks(document) {
        text = text.replace(&block.code, "");
    }
    let mut links = Vec::new();
    for (at, _) in text.match_indices("](") {
        let target = &text[at + 2..];
        let end = target.find(')').expect("a link has an end");
        links.push(target[..end].replace('\n', ""));
    }
    links
}

/// The names of the headings of a document, as GitHub and mdBook make them.
fn anchors(document: &str) -> Vec<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|heading| {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
            heading
                .chars()
                .filter(kept)
                .collect::<String>()
                .replace(' ', "-")
        })
        .collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut broken = Vec::new();
    let mut count = 0;
    for path in checked() {
        let document =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        for link in links(&document) {
            // mdBook has no pages for documents outside of the guide.
            let (folder, link) = match link.strip_prefix(REPOSITORY) {
                Some(link) => (workspace(), link),
                None if link.contains("://") => continue,
                None => (path.parent().expect("a folder").to_owned(), link.as_str()),
            };
            count += 1;
            let (file, anchor) = match link.split_once('#') {
                Some((file, anchor)) => (file, Some(anchor)),
                None => (link, None),
            };
            let target = match file {
                "" => path.clone(),
                file => folder.join(file),
            };
            let leads = match (target.exists(), anchor) {
                (true, Some(anchor)) => {
                    let there = fs::read_to_string(&target).expect("text");
                    anchors(&there).iter().any(|heading| heading == anchor)
                }
                (exists, _) => exists,
            };
            if !leads {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert_eq!(broken, [""; 0]);
    assert!(count > 40, "only {count} links were found");
}

/// mdBook leaves out what SUMMARY.md does not name.
#[test]
fn the_summary_has_all_chapters() {
    let folder = workspace().join("docs/src");
    let summary = fs::read_to_string(folder.join("SUMMARY.md")).expect("text");
    let named = links(&summary);
    for chapter in documents(&workspace()).expect("the guide") {
        let Ok(chapter) = chapter.strip_prefix(&folder) else {
            continue;
        };
        let chapter = chapter.to_string_lossy();
        assert!(
            chapter == "SUMMARY.md" || named.contains(&chapter.to_string()),
            "{chapter}"
        );
    }
}

/// The list of programs has every example and every program of its chapter, and each line leads to a
/// program.
#[test]
fn the_list_of_programs_is_complete() {
    let guide = workspace().join("docs/src");
    let chapter = fs::read_to_string(guide.join("recipes.md")).expect("text");
    let rows = chapter.lines().skip_while(|line| *line != "| --- | --- |");
    let rows = rows.skip(1).take_while(|line| line.starts_with("| "));
    let rows: Vec<Vec<String>> = rows.map(links).collect();
    assert!(rows.len() >= 20, "only {} purposes", rows.len());
    let named: Vec<String> = rows.concat();
    for row in &rows {
        let is_program = |link: &String| match link.strip_prefix(REPOSITORY) {
            Some(file) => file.ends_with(".rs") && workspace().join(file).is_file(),
            None => {
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                let file = if file.is_empty() { "recipes.md" } else { file };
                let document = fs::read_to_string(guide.join(file)).expect("a chapter");
                section(&document, anchor).is_some_and(|part| part.contains("```rust"))
            }
        };
        assert!(!row.is_empty() && row.iter().all(is_program), "{row:?}");
    }
    let mut examples = Vec::new();
    for folder in ["peer/examples", "peer/value/examples"] {
        for entry in fs::read_dir(workspace().join(folder)).expect("a folder") {
            let name = entry.expect("a file").file_name();
            let name = name.to_string_lossy();
            // `ordered.rs` is a tool of the scripts in `peer/tests`.
            if name.ends_with(".rs") && name != "ordered.rs" {
                examples.push(format!("{REPOSITORY}{folder}/{name}"));
            }
        }
    }
    // Attributes in programs are no headings.
    let headings = chapter.lines().filter(|line| line.starts_with("## "));
    let headings = headings.flat_map(anchors);
    examples.extend(headings.map(|heading| format!("#{heading}")));
    examples.retain(|example| !named.contains(example));
    assert_eq!(examples, [""; 0], "programs that are not in the list");
}

/// The lines below a heading, up to the next one; the whole document without a heading.
fn section(document: &str, anchor: &str) -> Option<String> {
    if anchor.is_empty() {
        return Some(document.to_owned());
    }
    let is_heading = |line: &&str| line.starts_with("## ");
    let mut lines = document.lines();
    lines.find(|line| is_heading(line) && anchors(line) == [anchor])?;
    let lines: Vec<&str> = lines.take_while(|line| !is_heading(line)).collect();
    Some(lines.join("\n"))
}

/// The front page of a package's documentation has an example of its own, besides the README.
#[test]
fn every_published_package_has_a_page_with_an_example() {
    let packages = [
        "core",
        "core/compression",
        "core/pickle",
        "core/numpy",
        "core/embedded",
        "comm",
        "transport-tcp",
        "transport-quic",
        "transport-ws",
        "peer",
        "peer/value",
        "peer/python",
        "peer/client",
        "peer/store",
        "peer/worker",
        "peer/extensions",
        "peer/cli",
    ];
    for package in packages {
        let source = workspace().join(package).join("src/lib.rs");
        let source = fs::read_to_string(source).expect("text");
        let lines = source.lines().filter_map(|line| line.strip_prefix("//!"));
        let page: Vec<&str> = lines.map(str::trim).collect();
        assert!(!blocks(&page.join("\n")).is_empty(), "{package}");
    }
}
