//! Data frames in Parquet files, read by pandas.
#![allow(missing_docs, reason = "tests")]

use std::path::PathBuf;

#[path = "it/support/command.rs"]
#[allow(dead_code, reason = "the other tests use all of it")]
mod command;

use command::run;

/// The words of a line, with one space between them.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn pandas_reads_a_data_frame_that_was_written_as_parquet() {
    let python = daskwire_testing::python_with_libraries();
    let cluster = daskwire_testing::scheduler_in(&python, "tcp", 1);
    let at = cluster.address();
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("frame.parquet");
    let file = file.to_str().expect("UTF-8");
    let frame = r#"{"a": [1, 2], "b": ["x", "ü"], "c": [0.5, null]}"#;
    let ran = run(&["submit", at, "pandas.DataFrame", frame, "-o", file], None);
    assert_eq!(ran.good("write"), "");

    // Impure, so that a repeated run reads its own file.
    let code = "(lambda frame: [frame.to_dict('list'), [str(frame.a.dtype), str(frame.c.dtype)]])\
                (__import__('pandas').read_parquet({file}))";
    let code = serde_json::json!(code.replace("{file}", &format!("{file:?}"))).to_string();
    let call = ["submit", at, "builtins.eval", &code, "--impure", "--json"];
    let read: serde_json::Value =
        serde_json::from_str(run(&call, None).good("read")).expect("JSON");
    let columns = serde_json::json!({"a": [1, 2], "b": ["x", "ü"], "c": [0.5, {"$float": "nan"}]});
    assert_eq!(read["value"][0], columns);
    assert_eq!(read["value"][1], serde_json::json!(["int64", "float64"]));

    // As text, as CSV, and back as a table of pyarrow.
    let shown = run(&["submit", at, "pandas.DataFrame", frame], None);
    let lines: Vec<String> = shown.good("text").lines().map(words).collect();
    assert_eq!(lines, ["a b c", "1 x 0.5", "2 ü null", "2 rows, 3 columns"]);
    let csv = file.replace("parquet", "csv");
    let ran = run(&["submit", at, "pandas.DataFrame", frame, "-o", &csv], None);
    assert_eq!(ran.good("csv"), "");
    let text = std::fs::read_to_string(&csv).expect("it was written");
    assert_eq!(text, "a,b,c\n1,x,0.5\n2,ü,\n");
    for (file, name) in [(&*csv, "from-csv"), (file, "from-parquet")] {
        let ran = run(&["scatter", at, "--values", file, "--key", name], None);
        assert_eq!(ran.good("scatter").trim(), name);
        let call = [
            "submit",
            at,
            "pyarrow:Table.to_pydict",
            &format!("@{name}"),
            "--json",
        ];
        let read: serde_json::Value =
            serde_json::from_str(run(&call, None).good(name)).expect("JSON");
        let columns = serde_json::json!({"a": [1, 2], "b": ["x", "ü"], "c": [0.5, null]});
        assert_eq!(read["value"], columns, "{name}");
    }

    let ran = run(&["submit", at, "operator.neg", "1", "-o", file], None);
    let error = format!("{file}: expected a table or data frame, found int");
    assert_eq!(ran.refused("an integer"), error);
    assert_eq!(cluster.warnings(), [""; 0]);
}
