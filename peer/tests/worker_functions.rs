//! The functions of Python that are done in Rust have the results of Python.

mod support;

use daskwire_peer::Value;
use daskwire_peer::worker::{Arguments, Functions};
use support::{Environment, Peer};

/// Those of two arguments.
const BINARY: [&str; 22] = [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift",
    "rshift", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "contains", "concat", "countOf",
];

/// Those of one.
const UNARY: [&str; 39] = [
    "operator.neg",
    "operator.pos",
    "operator.abs",
    "operator.inv",
    "operator.not_",
    "operator.truth",
    "builtins.abs",
    "builtins.len",
    "builtins.repr",
    "builtins.str",
    "builtins.bool",
    "builtins.any",
    "builtins.all",
    "builtins.list",
    "builtins.tuple",
    "builtins.int",
    "builtins.float",
    "builtins.sum",
    "builtins.max",
    "builtins.min",
    "builtins.sorted",
    "builtins.round",
    "builtins.ord",
    "builtins.chr",
    "math.sqrt",
    "math.sin",
    "math.cos",
    "math.tan",
    "math.asin",
    "math.acos",
    "math.atan",
    "math.exp",
    "math.log",
    "math.log2",
    "math.log10",
    "math.fabs",
    "math.floor",
    "math.ceil",
    "math.trunc",
];

/// Values of every kind, and those at which results change.
fn values() -> Vec<Value> {
    let ints = [
        0,
        1,
        -1,
        2,
        -3,
        7,
        255,
        1 << 53,
        (1 << 53) + 1,
        -(1_i128 << 62),
        1 << 100,
    ];
    let floats = [
        0.0,
        -0.0,
        0.1,
        0.5,
        -1.5,
        2.5,
        3.0,
        1e16,
        1.5e-5,
        -1e100,
        5e-324,
        f64::MAX,
        f64::INFINITY,
        f64::NAN,
    ];
    let texts = [
        "",
        "a",
        "b'c",
        "\"'\\\n\t",
        "é\u{301}中😀\u{200b}\u{a0}\u{7f}",
        " 12 ",
        "-1_000",
        "1e3",
        "nan",
    ];
    let some = |n: i64| Value::list([n, 2, 3]);
    let mut values = vec![Value::None, Value::from(true), Value::from(false)];
    values.extend(ints.map(Value::from));
    values.extend(floats.map(Value::from));
    values.extend(texts.map(Value::from));
    values.extend([
        Value::Complex(1.0, -2.5),
        Value::Complex(0.0, 1.0),
        Value::from(&b"a'\"\0\xff"[..]),
        Value::from(&b"'"[..]),
        Value::List(vec![]),
        some(1),
        some(-1),
        Value::list([1.5, 2.0]),
        Value::list(["b", "a", "\u{e9}"]),
        Value::List(vec![Value::from("x"), Value::from(1), Value::None]),
        Value::Tuple(vec![]),
        Value::Tuple(vec![Value::from(1)]),
        Value::tuple([3, 1]),
        Value::dict([("a", 1), ("b'c", 2)]),
        Value::dict([(1, Value::list(["x"]))]),
    ]);
    values
}

/// What Rust has, as Python writes it.
fn text(functions: &Functions, value: Value) -> String {
    let arguments = [value].into_iter().collect();
    match functions.call("builtins.repr", arguments) {
        Some(Ok(Value::Str(text))) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn functions_have_the_results_of_python() {
    let mut python = Peer::spawn(Environment::Current, "functions_peer.py", &[]);
    let functions = Functions::python();
    let values = values();
    let texts: Vec<String> = values
        .iter()
        .map(|value| text(&functions, value.clone()))
        .collect();
    let mut expressions = Vec::new();
    let mut results = Vec::new();
    let mut call = |name: &str, expression: String, arguments: Arguments| {
        let result = functions.call(name, arguments).expect("it is registered");
        results.push(match result {
            Ok(value) => text(&functions, value),
            Err(error) => format!("!{}", error.class),
        });
        expressions.push(expression);
    };
    for (value, text) in values.iter().zip(&texts) {
        for name in UNARY {
            let expression = format!("{}({text})", name.trim_start_matches("builtins."));
            call(name, expression, [value.clone()].into_iter().collect());
        }
        let some = Value::list([value.clone(), Value::from(1.5)]);
        for (name, keyword) in [("sorted", "reverse"), ("max", "default"), ("sum", "start")] {
            let arguments: Arguments = [some.clone()].into_iter().collect();
            let expression = format!("{name}([{text}, 1.5], {keyword}=1)");
            let arguments = arguments.with_keyword(keyword, 1.into());
            call(&format!("builtins.{name}"), expression, arguments);
        }
        let arguments = [value.clone(), Value::from(2)].into_iter().collect();
        call("builtins.round", format!("round({text}, 2)"), arguments);
        for (other, other_text) in values.iter().zip(&texts) {
            for name in BINARY {
                // Python would try to find it.
                if name == "pow" && matches!(other, Value::Int(1000..)) {
                    continue;
                }
                let expression = format!("operator.{name}({text}, {other_text})");
                let arguments = [value.clone(), other.clone()].into_iter().collect();
                call(&format!("operator.{name}"), expression, arguments);
            }
        }
    }
    let question = serde_json::json!({"op": "evaluate", "expressions": expressions});
    let (answer, _) = python.ask(&question.to_string(), &[]);
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("a document");
    let wanted = answer["results"].as_array().expect("a list");
    assert_eq!(wanted.len(), results.len());
    let mut wrong = Vec::new();
    let mut not_covered_count = 0;
    for ((expression, result), wanted) in expressions.iter().zip(&results).zip(wanted) {
        let wanted = wanted.as_str().expect("a text");
        if result == "!NotImplementedError" {
            not_covered_count += 1;
        } else if result != wanted {
            wrong.push(format!("{expression} is {wanted}, not {result}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} are wrong:\n{}",
        wrong.len(),
        results.len(),
        wrong[..wrong.len().min(400)].join("\n")
    );
    // What is said not to be covered is little.
    assert!(
        not_covered_count * 25 < results.len(),
        "{not_covered_count} of {} are not covered",
        results.len()
    );
}
