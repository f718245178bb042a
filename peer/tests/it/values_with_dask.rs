//! Tests of values with a real worker: values of Python are parsed and formatted as Python
//! formats them, and values written in Rust are the same objects in Python.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::support::client::client_at;
use daskwire_peer::client::TaskFuture;
use daskwire_peer::graph::{Argument, Arguments};
use daskwire_peer::value::Object;
use daskwire_peer::{Client, Value};
use daskwire_testing::Random;
use serde::{Deserialize, Serialize};

/// Timeout of a single step; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

async fn result(future: &TaskFuture) -> Value {
    let result = future.result_within(TIMEOUT).await;
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn submit(client: &Client, function: &str, arguments: impl Arguments) -> TaskFuture {
    client.submit(function, arguments).expect("submitted")
}

fn eval(client: &Client, expression: &str) -> TaskFuture {
    submit(client, "builtins.eval", [expression])
}

/// Evaluates expressions in Python, and checks that each value is formatted like its
/// `repr`, before and after it is sent back.
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

/// Python code that returns random values and their `repr`.
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
    // Values that are sent back have the same `repr` in Python.
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

/// Python code that returns numpy arrays of each dtype and their `repr`.
const ARRAYS: &str = r#"
import numpy as np
source = np.random.default_rng(7)
SHAPES = [(), (0,), (1,), (5,), (40,), (2, 0), (3, 4), (2, 3, 2), (30, 2), (1001,), (7, 200), (2, 9, 80), (8, 1, 9, 20), (1,) * 20]
def numbers(dtype, shape):
    kind = source.integers(7)
    scale = [1, 1, 100, 1e4, 1e6, 1e-3, 1e-9][kind] * (1 if dtype[-1] == '2' else source.choice([1, 1, 1e3]))
    found = source.normal(size=shape) * scale
    if kind in (1, 4): found = np.round(found, source.integers(4))
    found = np.asarray(found)
    if kind == 2: found[source.random(shape) < 0.2] = source.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.001953125])
    return found.astype(dtype)
def array(dtype, shape):
    kind = dtype.lstrip('<>')[0]
    if kind == 'b': return np.asarray(source.random(shape) < 0.5)
    if kind in 'iu':
        info = np.iinfo(dtype)
        found = source.integers(max(info.min, -10**source.integers(1, 19)), min(info.max, 10**int(source.integers(1, 19))), shape)
        return np.asarray(found).astype(dtype)
    if kind == 'f': return numbers(dtype, shape)
    if kind == 'c':
        part = 'f4' if dtype[-1] == '8' else 'f8'
        return np.asarray(numbers(part, shape) + 1j * numbers(part, shape)).astype(dtype)
    if kind == 'U': return np.asarray(source.choice(['', 'a', "it's", 'ß\n', 'longer'], shape)).astype(dtype)
    if kind == 'S': return np.asarray(source.choice([b'', b'a', b'\xff'], shape)).astype(dtype)
    found = np.asarray(source.integers(-10**9, 10**9, shape)).astype(dtype)
    found[source.random(shape) < 0.1] = 'NaT'
    return found
DTYPES = ['b1', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8', 'c8', 'c16', '>i4', '>f8', 'U6', 'S3',
          'M8[ns]', 'M8[s]', 'm8[us]', 'm8[D]']
arrays = [array(dtype, shape) for dtype in DTYPES for shape in SHAPES for _ in range(3 if dtype[-2] in 'fc' else 1)]
arrays += [numbers(dtype, (6,)) for _ in range(300) for dtype in ('f2', 'f4', 'f8')]
arrays += [np.matrix([[1, 2], [3, 4]]), np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(20)[::3], np.array([1e23, 5e-324])]
result = [(array, repr(array)) for array in arrays]
"#;

#[tokio::test]
async fn arrays_are_shown_as_numpy_shows_them() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let source = Value::from(ARRAYS);
    let made = eval(
        &client,
        &format!("(lambda names: (exec({source}, names), names['result'])[1])({{}})"),
    );
    let Value::List(pairs) = result(&made).await else {
        panic!("a list")
    };
    assert!(pairs.len() > 1_000);
    let mut wrong = Vec::new();
    for pair in pairs {
        let (value, shown) = <(Value, String)>::try_from(pair).expect("a pair");
        if value.to_string() != shown {
            wrong.push(format!("expected {shown}\nfound {value}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} are wrong, first:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(5)].join("\n")
    );
}

/// Expressions that create objects of Python's standard library and numpy.
const OBJECTS: &[&str] = &[
    "__import__('collections').Counter('abracadabra')",
    "__import__('collections').Counter()",
    "__import__('collections').defaultdict(list, a=[1], b=[])",
    "__import__('collections').defaultdict(None, {1: 2})",
    "__import__('collections').OrderedDict()",
    "__import__('datetime').date(2026, 11, 22)",
    "__import__('datetime').time(1, 2)",
    "__import__('datetime').time(1, 2, 3)",
    "__import__('datetime').time(1, 2, 3, 4, fold=1)",
    "__import__('datetime').datetime(2026, 11, 22)",
    "__import__('datetime').datetime(1, 12, 31, 23, 59, 59, 999999)",
    "__import__('datetime').datetime(2026, 11, 22, 0, 0, 0, 5, fold=1)",
    "__import__('datetime').datetime(2026, 11, 22, tzinfo=__import__('datetime').timezone.utc)",
    "__import__('datetime').datetime(2026, 11, 22, 3, 4, 5, tzinfo=__import__('datetime')\
     .timezone(__import__('datetime').timedelta(hours=-2), 'X'), fold=1)",
    "__import__('datetime').datetime(2026, 11, 22, \
     tzinfo=__import__('zoneinfo').ZoneInfo('Europe/Berlin'))",
    "__import__('datetime').timedelta()",
    "__import__('datetime').timedelta(days=-1, microseconds=5)",
    "__import__('decimal').Decimal('1.50')",
    "__import__('decimal').Decimal('1E+30')",
    "__import__('uuid').UUID(int=2**127 + 5)",
    "__import__('fractions').Fraction(-3, 4)",
    "__import__('pathlib').PurePosixPath('/a/b/c.txt')",
    "__import__('pathlib').PurePosixPath('.')",
    "__import__('pathlib').PureWindowsPath('c:/a/b')",
    "range(5)",
    "range(5, 1, -2)",
    "slice(1, None)",
    "[1, {'when': __import__('datetime').date(2026, 1, 2)}, (range(2),)]",
    "__import__('numpy').datetime64('2026-11-22')",
    "__import__('numpy').datetime64('2026-11')",
    "__import__('numpy').datetime64('1969-12-31T23:59:59.5', 'ns')",
    "__import__('numpy').timedelta64(5, 'h')",
    "__import__('urllib.parse').parse.urlsplit('http://x/y')",
    "__import__('pandas').Timestamp('2026-11-22')",
    "__import__('pandas').Timestamp('1969-12-31T23:59:59.5')",
    "__import__('pandas').Timestamp('2026-11-22T01:02:03.000000005')",
    "__import__('pandas').Timestamp('2026-11-22T01:02', tz='UTC')",
    "__import__('pandas').Timestamp('2026-11-22T01:02-03:30')",
    "__import__('pandas').Timedelta(5, 's')",
    "__import__('pandas').Timedelta(-5, 'ms')",
    "__import__('pandas').Timedelta(90061000000005, 'ns')",
    "[__import__('ipaddress').ip_network('10.0.0.0/8')] * 2",
];

/// Instances of classes that workers can import.
const INSTANCES: &str = "(lambda m: [m.FunctionProfile('1', 0.5, 0.25, 1.0, 1.0, 'x', n) \
                         for n in (3, 4)])(__import__('pstats'))";

#[tokio::test]
async fn objects_are_read_as_what_they_are() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let shown_without_names = "SplitResult('http', 'x', '/y', '', '')";
    let made = client.map("builtins.eval", OBJECTS.iter().copied());
    let made = made.expect("submitted");
    let shown = client.map("builtins.repr", &made).expect("submitted");
    for ((future, shown), expression) in made.iter().zip(&shown).zip(OBJECTS) {
        let value = result(future).await;
        let expected = String::try_from(result(shown).await).expect("a string");
        if expression.contains("urlsplit") {
            assert_eq!(value.to_string(), shown_without_names);
        } else {
            assert_eq!(value.to_string(), expected, "{expression}");
        }
        // The value equals the original in Python, too; the same `repr` would not prove it.
        let back = client.submit(
            "operator.eq",
            [Argument::from(value), Argument::from(future)],
        );
        let back = result(&back.expect("submitted")).await;
        assert_eq!(back, Value::from(true), "{expression}, sent back");
    }

    // Data classes, and enum members.
    let profiles = eval(&client, INSTANCES);
    let value = result(&profiles).await;
    let shown = submit(&client, "builtins.repr", [Argument::from(&profiles)]);
    assert_eq!(Value::from(value.to_string()), result(&shown).await);
    let back = submit(
        &client,
        "operator.eq",
        [Argument::from(value.clone()), Argument::from(&profiles)],
    );
    assert_eq!(result(&back).await, Value::from(true));
    let [_, second] = <[Object; 2]>::try_from(value.clone()).expect("two objects");
    assert_eq!(second.get("line_number"), Some(&Value::from(4)));
    #[derive(Debug, Deserialize, PartialEq)]
    struct Profile {
        tottime: f64,
        line_number: u8,
    }
    let [first, _] = value.deserialize::<[Profile; 2]>().expect("two");
    let expected = Profile {
        tottime: 0.5,
        line_number: 3,
    };
    assert_eq!(first, expected);
    // Entries that a struct has no field for may be anything, also what Rust cannot read.
    let profile = "{'tottime': 0.5, 'line_number': 3, 'n': 2**200, None: 1, \
                   'frame': __import__('pandas').DataFrame({'x': [1]}), 'function': print}";
    let read = eval(&client, profile).deserialize::<Profile>().await;
    assert_eq!(read.expect("a profile"), expected);
    let profile = "{'tottime': print, 'line_number': 3}";
    let read = eval(&client, profile).deserialize::<Profile>().await;
    let error = read.expect_err("a function").to_string();
    assert!(
        error.contains("builtins.print") && error.contains("['tottime']"),
        "{error}"
    );
    let status = eval(&client, "__import__('http').HTTPStatus.OK");
    let value = result(&status).await;
    assert_eq!(value.to_string(), "HTTPStatus(200)");
    assert_eq!(u16::try_from(value.clone()), Ok(200));
    let is = [Argument::from(value), Argument::from(&status)];
    assert_eq!(
        result(&submit(&client, "operator.is_", is)).await,
        Value::from(true)
    );

    // Scalars of numpy are converted to the equivalent Rust values.
    for (expression, expected) in [
        ("__import__('numpy').float64(1.5)", Value::from(1.5)),
        ("__import__('numpy').float16(1.5)", Value::from(1.5)),
        (
            "__import__('numpy').float32('-inf')",
            Value::from(f64::NEG_INFINITY),
        ),
        ("__import__('numpy').int8(-3)", Value::from(-3)),
        (
            "__import__('numpy').uint64(2**64 - 1)",
            Value::from(u64::MAX),
        ),
        ("__import__('numpy').bool_(True)", Value::from(true)),
        ("__import__('numpy').str_('häh')", Value::from("häh")),
        (
            "__import__('numpy').bytes_(b'a\\0b')",
            Value::bytes(&b"a\0b"[..]),
        ),
        (
            "__import__('numpy').complex64(1+2j)",
            Value::Complex(1.0, 2.0),
        ),
        ("[__import__('numpy').str_('a')]", Value::list(["a"])),
    ] {
        assert_eq!(
            result(&eval(&client, expression)).await,
            expected,
            "{expression}"
        );
    }

    // The format of Python 3.12 and later; and the values of arrays.
    let ordered = eval(&client, "__import__('collections').OrderedDict(b=1, a=2)");
    let ordered = result(&ordered).await;
    assert_eq!(ordered.to_string(), "OrderedDict({'b': 1, 'a': 2})");
    let back = client
        .submit("builtins.list", [ordered])
        .expect("submitted");
    assert_eq!(result(&back).await, Value::list(["b", "a"]));
    for expression in [
        "__import__('numpy').arange(6).reshape(2, 3)",
        "__import__('numpy').arange(6, dtype='>f2').reshape(2, 3).T",
        "__import__('numpy').array([['a', 'bcd']])",
        "__import__('numpy').array([b'a', b'bcd'])",
        "__import__('numpy').array([1.5+2j], dtype='c8')",
        "__import__('numpy').array(True)",
        "__import__('numpy').zeros((2, 0))",
    ] {
        let array = eval(&client, expression);
        let shown = eval(&client, &format!("{expression}.tolist()"));
        let Value::Array(array) = result(&array).await else {
            panic!("an array")
        };
        assert_eq!(array.to_value(), Ok(result(&shown).await), "{expression}");
    }
}

/// Classes that exist only in the program, so that Dask sends them with their objects.
const LOCAL: &str = "
import collections
Point = collections.namedtuple('Point', 'x y')
result = [Point(1, 2), Point(x=3, y='z')]
class Name(str): pass
names = [Name('x'), Point(Name('y'), None)]
import dataclasses
@dataclasses.dataclass
class Pair:
    left: int
    right: str = 'r'
class Plain:
    def __init__(self): self.x = 1
pairs = [Pair(1), Pair(2, 'b')]
plain = Plain()
";

fn names_after(source: &str, name: &str) -> String {
    let source = Value::from(source);
    format!(
        "(lambda names: (exec({source}, names), names['{name}'])[1])({{'__name__': '__main__'}})"
    )
}

#[tokio::test]
async fn named_tuples_have_names_if_their_class_is_sent() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let points = result(&eval(&client, &names_after(LOCAL, "result"))).await;
    assert_eq!(points.to_string(), "[Point(x=1, y=2), Point(x=3, y='z')]");
    let [first, second] = <[Value; 2]>::try_from(points.clone()).expect("two");
    assert_eq!(<(i32, i32)>::try_from(first), Ok((1, 2)));
    let second = Object::try_from(second).expect("a named tuple");
    assert_eq!(second.get("y"), Some(&Value::from("z")));
    assert_eq!(second.class(), "__main__.Point");
    // Other processes cannot import the class.
    let error = client
        .submit("builtins.len", [points])
        .expect_err("no class");
    assert!(error.to_string().contains("__main__.Point"), "{error}");

    let names = result(&eval(&client, &names_after(LOCAL, "names"))).await;
    let [name, point] = <[Value; 2]>::try_from(names).expect("two");
    assert_eq!(String::try_from(name), Ok("x".to_owned()));
    let point = <(String, Option<i32>)>::try_from(point);
    assert_eq!(point, Ok(("y".to_owned(), None)));

    let pairs = result(&eval(&client, &names_after(LOCAL, "pairs"))).await;
    assert_eq!(
        pairs.to_string(),
        "[Pair(left=1, right='r'), Pair(left=2, right='b')]"
    );
    // Only the class itself can interpret the attributes of other kinds of objects.
    let plain = result(&eval(&client, &names_after(LOCAL, "plain"))).await;
    assert!(matches!(plain, Value::Serialized(_)), "{plain}");
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
enum Shape {
    Empty,
    Circle(f64),
    Line((i32, i32), (i32, i32)),
    Text { content: String, size: Option<u8> },
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Drawing {
    shapes: Vec<Shape>,
    names: BTreeMap<i64, String>,
    id: i128,
    size: (u64, f32),
    #[serde(with = "bytes_of")]
    data: Vec<u8>,
    parent: Option<Box<Self>>,
}

/// Serializes bytes as a byte string, like the crate serde_bytes.
mod bytes_of {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(data: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(data)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        Vec::deserialize(from)
    }
}

#[tokio::test]
async fn any_type_of_serde_goes_to_python_and_back() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let drawing = Drawing {
        shapes: vec![
            Shape::Empty,
            Shape::Circle(1.5),
            Shape::Line((1, 2), (-3, 4)),
            Shape::Text {
                content: "ß'\n".to_owned(),
                size: None,
            },
        ],
        names: BTreeMap::from([(-1, "a".to_owned()), (i64::MAX, "b".to_owned())]),
        id: i128::MIN,
        size: (u64::MAX, 0.1),
        data: vec![0, 255],
        parent: None,
    };
    let drawing = Drawing {
        parent: Some(Box::new(drawing.clone())),
        ..drawing
    };
    let value = Value::from_serialize(&drawing).expect("plain values");
    let same = client
        .submit("copy.deepcopy", [value.clone()])
        .expect("submitted");
    assert_eq!(
        same.deserialize::<Drawing>().await.expect("the same"),
        drawing
    );
    let shown = client
        .submit("builtins.repr", [value.clone()])
        .expect("submitted");
    let shown: String = shown.deserialize().await.expect("a string");
    assert_eq!(shown, value.to_string());
    // Enums in the format of JSON.
    let json = serde_json::to_value(&drawing.shapes).expect("JSON");
    let json = json.to_string();
    let loaded = client
        .submit("json.loads", [json.as_str()])
        .expect("submitted");
    let shapes: Vec<Shape> = loaded.deserialize().await.expect("shapes");
    assert_eq!(shapes, drawing.shapes);

    // Values created in Python, converted to Rust types.
    let made = eval(
        &client,
        "{'counts': __import__('collections').Counter('aab'), 'matrix': \
         __import__('numpy').eye(2), 'when': __import__('datetime').date(2026, 1, 2), \
         'price': __import__('decimal').Decimal('1.5'), 'took': \
         __import__('datetime').timedelta(seconds=1.5), 'nan': float('nan'), 'raw': b'ab', \
         'kind': {1, 2}, 'more': ...}",
    );
    #[derive(Deserialize)]
    struct Made {
        counts: HashMap<char, u32>,
        matrix: Vec<[f64; 2]>,
        when: String,
        price: String,
        took: f64,
        nan: f64,
        raw: Vec<u8>,
        kind: HashSet<u8>,
    }
    #[derive(Debug, Deserialize)]
    struct WithMore {
        #[serde(rename = "more")]
        _more: String,
    }
    let error = made.deserialize::<WithMore>().await;
    let error = error.expect_err("an ellipsis").to_string();
    assert!(error.contains("Ellipsis"), "{error}");
    // A field that the struct does not have is skipped.
    let counts = made.deserialize::<Made>().await.expect("skipped").counts;
    assert_eq!(counts, HashMap::from([('a', 2), ('b', 1)]));
    let made = client.submit(
        "builtins.eval",
        [
            "{'counts': __import__('collections').Counter('aab'), 'matrix': \
         __import__('numpy').eye(2), 'when': __import__('datetime').date(2026, 1, 2), \
         'price': __import__('decimal').Decimal('1.5'), 'took': \
         __import__('datetime').timedelta(seconds=1.5), 'nan': float('nan'), 'raw': b'ab', \
         'kind': {1, 2}}",
        ],
    );
    let made: Made = made
        .expect("submitted")
        .deserialize()
        .await
        .expect("all parts");
    assert_eq!(made.counts, HashMap::from([('a', 2), ('b', 1)]));
    assert_eq!(made.matrix, [[1.0, 0.0], [0.0, 1.0]]);
    assert_eq!(
        (made.when.as_str(), made.price.as_str()),
        ("2026-01-02", "1.5")
    );
    assert_eq!((made.took, made.nan.is_nan()), (1.5, true));
    assert_eq!(
        (made.raw, made.kind),
        (b"ab".to_vec(), HashSet::from([1, 2]))
    );

    #[derive(Debug, Deserialize, PartialEq)]
    struct Point {
        y: Value64,
        x: i64,
    }
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(untagged)]
    enum Value64 {
        Number(i64),
        Name(String),
    }
    let points = eval(&client, &names_after(LOCAL, "result"));
    let points: Vec<Point> = points.deserialize().await.expect("by their names");
    let point = |x, y| Point { x, y };
    let expected = [
        point(1, Value64::Number(2)),
        point(3, Value64::Name("z".to_owned())),
    ];
    assert_eq!(points, expected);

    let wrong = eval(&client, "[{'x': 1, 'y': 2}, {'x': [], 'y': 2}]");
    let error = wrong.deserialize::<Vec<Point>>().await.expect_err("a list");
    let error = error.to_string();
    assert!(
        error.ends_with("invalid type: sequence, expected i64 at [1]['x']"),
        "{error}"
    );
}

/// Returns a random value of serde's data model.
fn random_json(random: &mut Random, depth: usize) -> serde_json::Value {
    use serde_json::Value as Json;
    let few = random.below(4);
    match random.below(if depth == 0 { 5 } else { 7 }) {
        0 => Json::Null,
        1 => Json::from(random.one_in(2)),
        2 => Json::from(random.next()),
        3 => Json::from(random.next() as i64),
        4 => {
            let bits = f64::from_bits(random.next());
            let number = if bits.is_finite() { bits } else { 0.5 };
            match random.below(2) {
                0 => Json::from(number),
                _ => Json::from(format!("{number}\u{1F980}'\"")),
            }
        }
        5 => (0..few).map(|_| random_json(random, depth - 1)).collect(),
        _ => {
            let entry = |index| (format!("k{index}"), random_json(random, depth - 1));
            Json::Object((0..few).map(entry).collect())
        }
    }
}

#[tokio::test]
async fn random_documents_go_through_python_unchanged() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    let mut random = Random(7);
    let documents: Vec<serde_json::Value> = (0..500).map(|_| random_json(&mut random, 5)).collect();
    let value = Value::from_serialize(&documents).expect("plain values");
    assert_eq!(
        value.deserialize::<Vec<serde_json::Value>>().as_ref(),
        Ok(&documents)
    );
    let dumped = client
        .call("json.dumps")
        .argument(value)
        .keyword("ensure_ascii", false);
    let dumped: String = dumped
        .submit()
        .expect("submitted")
        .deserialize()
        .await
        .expect("JSON");
    let parsed: Vec<serde_json::Value> = serde_json::from_str(&dumped).expect("JSON");
    assert_eq!(parsed, documents);
    let loaded = client.submit("json.loads", [dumped]).expect("submitted");
    let loaded: Vec<serde_json::Value> = loaded.deserialize().await.expect("the same");
    assert_eq!(loaded, documents);
}
