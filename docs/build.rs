//! Makes a module of each block of Rust code in the README and the guide, for
//! `tests/programs.rs`.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

#[path = "markdown.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is the library of this package too"
)]
mod markdown;

fn main() {
    // Read when it runs: a moved checkout does not compile this program again.
    let directory = env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo");
    let workspace = Path::new(&directory).join("..");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=../README.md");
    println!("cargo::rerun-if-changed=markdown.rs");
    let (mut modules, mut programs) = (String::new(), String::new());
    for path in markdown::documents(&workspace).expect("the guide") {
        let document = fs::read_to_string(&path).expect("text");
        let file = path.file_stem().expect("a file").to_string_lossy();
        let module = file.to_lowercase().replace('-', "_");
        writeln!(modules, "mod {module} {{").expect("a string");
        for block in markdown::blocks(&document) {
            if block.language != "rust" {
                continue;
            }
            // An example, which has a test of its own.
            let included = block.code.trim().strip_prefix("{{#include ");
            if let Some(example) = included.and_then(|path| path.strip_suffix("}}")) {
                let example = workspace.join("docs/src").join(example);
                assert!(example.is_file(), "{}", example.display());
                continue;
            }
            let name = match &block.name {
                Some(name) => name.clone(),
                None => format!("line_{}", block.line),
            };
            let mut code = block.code.replace("fn main()", "pub(crate) fn main()");
            code = code.replace("async pub(crate) fn", "pub(crate) async fn");
            for stands_for in STAND_INS {
                let literal = format!("\"{stands_for}\"");
                code = code.replace(&literal, &format!("crate::stand_in({literal})"));
            }
            // A program without a name is run on a cluster by one test for all.
            writeln!(modules, "pub(crate) mod {name} {{\n{code}}}").expect("a string");
            if block.name.is_none() {
                writeln!(
                    programs,
                    "(\"{file}.md:{}\", || {module}::{name}::main().map_err(|error| error.to_string())),",
                    block.line
                )
                .expect("a string");
            }
        }
        modules.push_str("}\n");
    }
    let text = format!(
        "{modules}\npub(crate) const PROGRAMS: &[(&str, fn() -> Result<(), String>)] = &[\n{programs}];\n"
    );
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("programs.rs"), text).expect("a folder to write to");
}

/// Strings of programs in whose place a test puts addresses of its clusters, files of its
/// certificates, and its interpreter of Python.
const STAND_INS: [&str; 6] = [
    "tcp://127.0.0.1:8786",
    "tls://127.0.0.1:8786",
    "ca.pem",
    "client.pem",
    "client-key.pem",
    "python3",
];
