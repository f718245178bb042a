//! Values with a real worker: what Python makes is read and shown as Python shows
//! it, and what is written is the same object in Python.

#[path = "support/client.rs"]
mod client;

use core::time::Duration;

use client::client_at;
use daskwire_peer::client::TaskFuture;
use daskwire_peer::{Client, Value};

/// Timeout of a single step; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

async fn result(future: &TaskFuture) -> Value {
    let result = future.result_within(TIMEOUT).await;
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn eval(client: &Client, expression: &str) -> TaskFuture {
    let future = client.submit("builtins.eval", [expression]);
    future.expect("submitted")
}

/// Evaluates the expressions in Python, and checks that each value is shown as
/// `repr` shows it, before and after it was sent back.
async fn agree(client: &Client, expressions: &[&str]) {
    let made = client.map("builtins.eval", expressions.iter().copied());
    let made = made.expect("submitted");
    let shown = client.map("builtins.repr", &made).expect("submitted");
    for ((future, shown), expression) in made.iter().zip(&shown).zip(expressions) {
        let value = result(future).await;
        let expected = String::try_from(result(shown).await).expect("a string");
        assert_eq!(value.to_string(), expected, "{expression}");
        let back = client.submit("builtins.repr", [value]).expect("submitted");
        let back = String::try_from(result(&back).await).expect("a string");
        assert_eq!(back, expected, "{expression}, sent back");
    }
}

/// Random values as Python makes them, with their `repr`.
const RANDOM: &str = r#"
import random, struct
source = random.Random(7)
ALPHABETS = ["abc'\"\\", "\n\t\r\x00\x7f", "äß\xa0\xad", "αβγ\u2028\u200b", "中文", "🎉𝒳"]
def value(depth):
    kind = source.randrange(8 if depth == 0 else 13)
    few = range(source.randrange(4))
    if kind == 0: return source.choice([None, True, False])
    if kind == 1: return source.choice([1, -1]) * source.getrandbits(source.choice([7, 31, 64, 127, 300]))
    if kind == 2: return struct.unpack("d", source.randbytes(8))[0]
    if kind == 3: return round(source.uniform(-1e6, 1e6), source.randrange(8))
    if kind == 4: return complex(source.choice([0.0, -0.0, 1.5, 1e300]), source.choice([0.0, -0.0, -2.5]))
    if kind == 5: return "".join(source.choice(source.choice(ALPHABETS)) for _ in range(source.randrange(9)))
    if kind == 6: return source.randbytes(source.randrange(9))
    if kind == 7: return bytearray(source.randbytes(source.randrange(9)))
    if kind == 8: return [value(depth - 1) for _ in few]
    if kind == 9: return tuple(value(depth - 1) for _ in few)
    if kind == 10: return {source.choice([i, str(i), None, 1.5]) for i in few}
    if kind == 11: return frozenset(few)
    return {source.choice([i, str(i), (i, None)]): value(depth - 1) for i in few}
values = [value(4) for _ in range(2000)]
result = [(value, repr(value)) for value in values]
"#;

#[tokio::test]
async fn values_are_shown_as_python_shows_them() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;

    let source = Value::from(RANDOM);
    let made = eval(
        &client,
        &format!("(lambda names: (exec({source}, names), names['result'])[1])({{}})"),
    );
    let Value::List(pairs) = result(&made).await else {
        panic!("a list")
    };
    assert_eq!(pairs.len(), 2000);
    let mut values = Vec::new();
    for pair in pairs {
        let (value, shown) = <(Value, String)>::try_from(pair).expect("a pair");
        assert_eq!(value.to_string(), shown);
        values.push(value);
    }
    // As Python shows what it is sent back.
    let all = Value::List(values.into());
    let back = client
        .submit("builtins.repr", [all.clone()])
        .expect("submitted");
    let back = String::try_from(result(&back).await).expect("a string");
    assert_eq!(all.to_string(), back);

    agree(
        &client,
        &[
            "__import__('numpy').float64(1.5).item()",
            "[1, 2.5, 'x', None, True, b'x', (1,), {2}, frozenset(), set(), {'a': [1]}]",
        ],
    )
    .await;
}
