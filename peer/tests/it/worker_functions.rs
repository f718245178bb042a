//! Tests that Python functions implemented in Rust have the results of Python.

use daskwire_peer::Value;
use daskwire_peer::worker::{Arguments, Functions};
use daskwire_testing::{Environment, Peer, Random};

/// Functions of `operator` with two arguments.
const BINARY: [&str; 15] = [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge",
    "getitem", "contains",
];

/// Functions with one argument.
const UNARY: [&str; 17] = [
    "operator.neg",
    "operator.abs",
    "operator.not_",
    "operator.truth",
    "builtins.abs",
    "builtins.len",
    "builtins.str",
    "builtins.bool",
    "builtins.list",
    "builtins.tuple",
    "builtins.int",
    "builtins.float",
    "builtins.sum",
    "builtins.max",
    "builtins.min",
    "builtins.sorted",
    "math.sqrt",
];

/// Values of every kind, including those next to which results change.
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
    let strings = [
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
    values.extend(strings.map(Value::from));
    values.extend([
        Value::Complex(1.0, -2.5),
        Value::Complex(0.0, 1.0),
        Value::bytes(&b"a'\"\0\xff"[..]),
        Value::bytes(&b"'"[..]),
        Value::List([].into()),
        some(1),
        some(-1),
        Value::list([1.5, 2.0]),
        Value::list(["b", "a", "\u{e9}"]),
        Value::List([Value::from("x"), Value::from(1), Value::None].into()),
        Value::Tuple([].into()),
        Value::tuple([1]),
        Value::tuple([3, 1]),
        Value::Set([Value::from(1)].into()),
        Value::dict([("a", 1), ("b'c", 2)]),
        Value::dict([(1, Value::list(["x"]))]),
    ]);
    values
}

/// Calls of functions, and the equivalent Python expressions.
struct Calls {
    functions: Functions,
    expressions: Vec<String>,
    results: Vec<String>,
}

impl Calls {
    fn new() -> Self {
        Self {
            functions: Functions::builtins(),
            expressions: Vec::new(),
            results: Vec::new(),
        }
    }

    fn call(&mut self, name: &str, expression: String, arguments: Arguments) {
        let result = self.functions.call(name, arguments);
        self.results.push(match result.expect("it is registered") {
            // As the peer shows sets, whose order differs.
            Ok(Value::Set(items)) => {
                let mut items: Vec<String> = items.iter().map(Value::to_string).collect();
                items.sort_unstable();
                Value::list(items.iter().map(String::as_str)).to_string()
            }
            Ok(value) => value.to_string(),
            Err(error) => format!("!{}", error.class),
        });
        self.expressions.push(expression);
    }

    /// Fails if a result differs from Python's, or if at least one in `not_covered` calls is
    /// not implemented.
    fn check(self, not_covered: usize) {
        let Self {
            expressions,
            results,
            ..
        } = self;
        let mut python = Peer::spawn(Environment::Current, "functions_peer.py", &[]);
        let question = serde_json::json!({"op": "evaluate", "expressions": expressions});
        let (answer, _) = python.ask(&question.to_string(), &[]);
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("a document");
        let wanted = answer["results"].as_array().expect("a list");
        assert_eq!(wanted.len(), results.len());
        let mut wrong = Vec::new();
        let mut not_covered_count = 0;
        for ((expression, result), wanted) in expressions.iter().zip(&results).zip(wanted) {
            let wanted = wanted.as_str().expect("a string");
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
        assert!(
            not_covered_count * not_covered < results.len(),
            "{not_covered_count} of {} are not covered",
            results.len()
        );
    }
}

#[test]
fn functions_take_the_arguments_that_they_take_in_python() {
    const KEYWORDS: [&str; 10] = [
        "x", "key", "default", "start", "reverse", "exp", "object", "iterable", "obj", "self",
    ];
    let pool = [
        Value::None,
        Value::from(true),
        Value::from(0),
        Value::from(1),
        Value::from(-2),
        Value::from(3),
        Value::from(16),
        Value::from(0.0),
        Value::from(1.0),
        Value::from(2.5),
        Value::from(f64::NAN),
        Value::Complex(1.0, 2.0),
        Value::from(""),
        Value::from("ff"),
        Value::from(&b"12"[..]),
        Value::list([0; 0]),
        Value::list([3, 1, 2]),
        Value::list([2.5, 1.0, 2.5]),
        Value::list(["b", "a"]),
        Value::list([Value::from("x"), Value::from(1)]),
        Value::list([Value::list(["k", "v"]), Value::list(["k", "w"])]),
        Value::tuple([1, 1]),
        Value::dict([("a", 1)]),
        Value::dict([(1, 2), (2, 3)]),
        Value::Set([Value::from(1)].into()),
    ];
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut below = |end: usize| random.below(end);
    let mut calls = Calls::new();
    let strings: Vec<String> = pool.iter().map(Value::to_string).collect();
    let names: Vec<String> = calls.functions.names().map(str::to_owned).collect();
    // `time.sleep` would only delay the test.
    for name in names.iter().filter(|name| *name != "time.sleep") {
        let count = if name.starts_with("builtins.") {
            1500
        } else {
            150
        };
        for _ in 0..count {
            let positional: Vec<usize> = (0..[0, 1, 1, 1, 2, 2, 2, 3, 3, 4][below(10)])
                .map(|_| below(pool.len()))
                .collect();
            let mut keywords: Vec<(&str, usize)> = (0..[0, 0, 0, 1, 1, 2][below(6)])
                .map(|_| (KEYWORDS[below(KEYWORDS.len())], below(pool.len())))
                .collect();
            keywords.dedup_by_key(|(keyword, _)| *keyword);
            let mut arguments: Arguments = positional.iter().map(|at| pool[*at].clone()).collect();
            let mut words: Vec<String> = positional.iter().map(|at| strings[*at].clone()).collect();
            for (keyword, at) in keywords {
                arguments = arguments.with_keyword(keyword, pool[at].clone());
                words.push(format!("{keyword}={}", strings[at]));
            }
            let called = name.trim_start_matches("builtins.");
            calls.call(name, format!("{called}({})", words.join(", ")), arguments);
        }
    }
    // Cases that random arguments reach too rarely.
    for (name, arguments, keywords) in [
        (
            "builtins.sum",
            vec![Value::list([1, 2])],
            vec![("start", 0.5.into())],
        ),
        (
            "builtins.sorted",
            vec![Value::list([1, 3, 2])],
            vec![("reverse", true.into())],
        ),
        (
            "builtins.max",
            vec![Value::list([0; 0])],
            vec![("default", Value::None)],
        ),
    ] {
        let mut given: Arguments = arguments.iter().cloned().collect();
        let mut words: Vec<String> = arguments.iter().map(Value::to_string).collect();
        for (keyword, value) in keywords {
            words.push(format!("{keyword}={value}"));
            given = given.with_keyword(keyword, value);
        }
        let called = name.trim_start_matches("builtins.");
        calls.call(name, format!("{called}({})", words.join(", ")), given);
    }
    calls.check(15);
}

#[test]
fn functions_have_the_results_of_python() {
    let mut calls = Calls::new();
    let values = values();
    let strings: Vec<String> = values.iter().map(Value::to_string).collect();
    let mut call = |name: &str, expression, arguments| calls.call(name, expression, arguments);
    for (value, string) in values.iter().zip(&strings) {
        for name in UNARY {
            let expression = format!("{}({string})", name.trim_start_matches("builtins."));
            call(name, expression, [value.clone()].into_iter().collect());
        }
        let some = Value::list([value.clone(), Value::from(1.5)]);
        for (name, keyword) in [("sorted", "reverse"), ("max", "default"), ("sum", "start")] {
            let arguments: Arguments = [some.clone()].into_iter().collect();
            let expression = format!("{name}([{string}, 1.5], {keyword}=1)");
            let arguments = arguments.with_keyword(keyword, 1.into());
            call(&format!("builtins.{name}"), expression, arguments);
        }
        for (other, other_string) in values.iter().zip(&strings) {
            for name in BINARY {
                // Python would try to compute the huge result.
                if name == "pow" && matches!(other, Value::Int(1000..)) {
                    continue;
                }
                let expression = format!("operator.{name}({string}, {other_string})");
                let arguments = [value.clone(), other.clone()].into_iter().collect();
                call(&format!("operator.{name}"), expression, arguments);
            }
        }
    }
    // Only a small part of the calls is not implemented.
    calls.check(15);
}
