//! Code blocks and links of the README and the guide, for their tests.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A fenced block of code.
#[derive(Clone, Debug)]
pub struct Block {
    /// The language, such as `rust`.
    pub language: String,
    /// What follows the language after a comma: the name by which a test runs the
    /// block.
    pub name: Option<String>,
    /// The code.
    pub code: String,
    /// The number of the line before the code.
    pub line: usize,
}

/// The blocks of a document, in order.
///
/// # Panics
///
/// If a block has no end.
pub fn blocks(document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = document.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else {
            continue;
        };
        let (language, name) = match info.split_once(',') {
            Some((language, name)) => (language, Some(name.to_owned())),
            None => (info, None),
        };
        let mut code = String::new();
        loop {
            let (_, line) = lines.next().expect("a block has an end");
            if line.trim_start().starts_with("```") {
                break;
            }
            code.push_str(line);
            code.push('\n');
        }
        blocks.push(Block {
            language: language.to_owned(),
            name,
            code,
            line: index + 1,
        });
    }
    blocks
}

/// The README and the chapters of the guide, in the order of their names.
///
/// # Errors
///
/// If the folder of the guide cannot be read.
pub fn documents(workspace: &Path) -> io::Result<Vec<PathBuf>> {
    let mut documents = vec![workspace.join("README.md")];
    for entry in fs::read_dir(workspace.join("docs/src"))? {
        documents.push(entry?.path());
    }
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.sort();
    Ok(documents)
}
