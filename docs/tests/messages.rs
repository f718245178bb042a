//! Checks what the compiler says about programs that give the client or a worker a type that does
//! not convert.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The start of each program.
const START: &str = "\
#![allow(dead_code, unused)]
use daskwire_peer::Client;
use daskwire_peer::value::IntoValue;
use daskwire_peer::worker::Functions;
struct Point(f64, f64);
fn of_point(point: Point) -> f64 { point.0 }
fn point_of(x: f64) -> Point { Point(x, x) }
fn value(value: impl IntoValue) {}
fn main() {}
";

/// What is wrong, the first line of the error, and a part of a note in it.
const CASES: &[(&str, &str, &str)] = &[
    (
        "client.submit(\"f\", Point(0.0, 1.0));",
        "`Point` is not the arguments of a call",
        "for one argument of another type, write `(argument,)`",
    ),
    (
        "client.submit(\"f\", (Point(0.0, 1.0), 2));",
        "`Point` does not convert to a `Value`",
        "implement `IntoValue` for a type of your own",
    ),
    (
        "client.submit(\"f\", vec![Point(0.0, 1.0)]);",
        "`Point` does not convert to a `Value`",
        "and `Serde(value)` of any type with `Serialize`",
    ),
    (
        "value(Point(0.0, 1.0));",
        "`Point` does not convert to a `Value`",
        "implement `IntoValue` for a type of your own",
    ),
    (
        "client.submit_as::<Point>(\"f\", 1);",
        "a result cannot be converted into `Point`",
        "results are converted by `TryFrom<Value>`: into numbers, `String`, `Array`",
    ),
    (
        "client.submit(\"f\", 1).unwrap().result_as::<Point>();",
        "a result cannot be converted into `Point`",
        "`TaskFuture::deserialize` converts into any type with `Deserialize`",
    ),
    (
        "Functions::new().function(\"f\", \"no function\");",
        "`&str` cannot be a function of a worker",
        "it is a closure or a function of up to eight arguments",
    ),
    (
        "Functions::new().function(\"f\", of_point);",
        "`fn(Point) -> f64 {of_point}` cannot be a function of a worker",
        "its arguments have `FromArguments`, as types that `Value` converts into do",
    ),
    (
        "Functions::new().function(\"f\", point_of);",
        "`fn(f64) -> Point {point_of}` cannot be a function of a worker",
        "it returns a type with `IntoValue`, or a `Result` of it",
    ),
    (
        "Functions::new().async_function(\"f\", async |x: f64| Point(x, x));",
        "cannot be an async function of a worker",
        "the output of its future has `IntoValue`, or is a `Result` of it",
    ),
    // With the type of the function, the compiler names the argument or the result.
    (
        "Functions::new().function::<fn(Point) -> f64>(\"f\", of_point);",
        "`Point` cannot be an argument of a worker's function",
        "implement `TryFrom<Value>` for a type of your own, with an error that is `Display`",
    ),
    (
        "Functions::new().function::<fn(f64) -> Point>(\"f\", point_of);",
        "`Point` cannot be the result of a function",
        "implement `IntoValue` for a type of your own",
    ),
];

/// The program is a package beside this workspace with the same dependencies, which are checked
/// once.
#[test]
fn errors_of_the_compiler_say_what_converts() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let workspace = workspace.canonicalize().expect("a folder");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("messages");
    fs::create_dir_all(folder.join("src")).expect("a folder");
    fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
    let manifest = format!(
        "[workspace]\n[package]\nname = \"messages\"\nedition = \"2024\"\n[dependencies]\n\
         daskwire-peer = {{ path = {:?}, default-features = false, features = [\"client\", \
         \"worker\"] }}\n[profile.dev]\ndebug = false\n",
        workspace.join("peer")
    );
    fs::write(folder.join("Cargo.toml"), manifest).expect("written");
    let mut program = START.to_owned();
    let start = START.lines().count();
    for (index, (code, ..)) in CASES.iter().enumerate() {
        program.push_str(&format!("fn case_{index}(client: &Client) {{ {code} }}\n"));
    }
    fs::write(folder.join("src/main.rs"), program).expect("written");

    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let cargo = cargo.args(["check", "--quiet", "--offline", "--color", "never"]);
    let cargo = cargo.current_dir(&folder);
    let checked = cargo
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .output();
    let checked = String::from_utf8(checked.expect("cargo runs").stderr).expect("UTF-8");
    let errors: Vec<&str> = checked.split("\n\n").collect();
    for (index, (code, first, note)) in CASES.iter().enumerate() {
        let place = format!("--> src/main.rs:{}:", start + index + 1);
        // The first place in an error is that of the fault.
        let of_case = errors.iter().find(|error| {
            let found = error.lines().nth(1).unwrap_or_default();
            error.starts_with("error") && found.contains(&place)
        });
        let error = of_case.unwrap_or_else(|| panic!("no error of {code}\n{checked}"));
        let found = error.lines().next().unwrap_or_default();
        assert!(found.ends_with(first), "{code}\n{error}");
        let notes = error.lines().filter(|line| line.contains("= note: "));
        assert!(
            notes.into_iter().any(|line| line.contains(note)),
            "{code}\n{error}"
        );
    }
}
