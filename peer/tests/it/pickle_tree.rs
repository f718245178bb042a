//! Differential tests with CPython: our trees must match what its stack machine builds,
//! and known objects must match what it loads.

use core::fmt::Write as _;
use std::collections::HashMap;

use daskwire_numpy::known::{self, Known, KnownValue};
use daskwire_numpy::{ByteOrder, DType, ElementType, Kind, TimeBase};
use daskwire_pickle::tree::{Int, Node, Operation, Registry, Tree, Value};
use daskwire_pickle::{Limits, Reader};
use daskwire_testing::{Peer, interpreters};

const SCRIPT: &str = "pickle_tree_peer.py";

/// Formats each pickle of a reply, and compares it. Returns the number of pickles, and the
/// number of those that Python can format.
fn ask(peer: &mut Peer, question: &str, render: &dyn Fn(&Tree<'_>) -> String) -> (usize, usize) {
    let version = peer.address().to_owned();
    let (answer, data) = peer.ask(question, &[]);
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    let pickles = answer["pickles"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"));
    let mut rest = data.as_slice();
    let mut take = |len: &serde_json::Value| {
        let len = usize::try_from(len.as_u64().expect("a length")).expect("fits");
        let (part, after) = rest.split_at(len);
        rest = after;
        part
    };
    let mut accepted_count = 0;
    for described in pickles {
        let pickle = take(&described["len"]);
        let buffers = described["buffers"].as_array().expect("a list");
        let buffers: Vec<&[u8]> = buffers.iter().map(&mut take).collect();
        let reader = Reader::new(pickle).text_opcodes(true);
        let tree = Tree::build(reader, &buffers, &Limits::HOST);
        let string = tree.as_ref().ok().map(render);
        assert_eq!(
            string.as_deref(),
            described["text"].as_str(),
            "Python {version}, {question} {}: {} with {} buffers: {tree:?}",
            described["name"],
            pickle.escape_ascii(),
            buffers.len()
        );
        accepted_count += usize::from(string.is_some());
    }
    assert!(rest.is_empty());
    (pickles.len(), accepted_count)
}

/// Formats random pickles of each Python, in batches. The number that Python can format
/// must be within `accepted_counts`.
fn agree(
    question: &str,
    count: usize,
    accepted_counts: core::ops::RangeInclusive<usize>,
    render: &dyn Fn(&Tree<'_>) -> String,
) {
    const BATCH: usize = 2_000;
    for interpreter in interpreters() {
        let mut peer = Peer::spawn_in(&interpreter, SCRIPT);
        let mut accepted_count = 0;
        for seed in 0..count / BATCH {
            let question = format!(r#"{{{question}, "seed": {seed}, "count": {BATCH}}}"#);
            let (batch_count, accepted) = ask(&mut peer, &question, render);
            assert_eq!(batch_count, BATCH);
            accepted_count += accepted;
        }
        let version = peer.address();
        println!("Python {version}, {question}: {accepted_count} of {count} are values");
        assert!(
            accepted_counts.contains(&accepted_count),
            "Python {version}: {accepted_count}"
        );
    }
}

fn inert(tree: &Tree<'_>) -> String {
    let mut out = String::new();
    inert_text(&mut out, tree.root(), &mut HashMap::new());
    out
}

#[test]
fn trees_of_the_corpus_match_cpython() {
    for interpreter in interpreters() {
        let mut peer = Peer::spawn_in(&interpreter, SCRIPT);
        let has_dask = interpreter.has_dask;
        let question = format!(r#"{{"op": "corpus", "dask": {has_dask}}}"#);
        let (count, accepted_count) = ask(&mut peer, &question, &inert);
        println!("Python {}: {count} pickles of the corpus", peer.address());
        assert!(
            count > 300 && accepted_count == count,
            "{accepted_count} of {count}"
        );
    }
}

#[test]
fn trees_of_random_pickles_match_cpython() {
    // All except those with one buffer too many or too few
    let question = r#""op": "inert", "kind": "written""#;
    agree(question, 20_000, 16_800..=19_999, &inert);
}

#[test]
fn damaged_pickles_are_built_and_refused_as_cpython_does() {
    let question = r#""op": "inert", "kind": "damaged""#;
    agree(question, 30_000, 3_000..=27_000, &inert);
}

#[test]
fn text_opcodes_are_built_as_cpython_does() {
    let question = r#""op": "inert", "kind": "text""#;
    agree(question, 20_000, 400..=18_000, &inert);
}

#[test]
fn values_of_random_pickles_match_cpython() {
    let mut registry = Registry::<Known>::new();
    for names in [known::BUILTINS, known::NUMPY, known::EXCEPTIONS] {
        registry.allow_all(names);
    }
    agree(r#""op": "values""#, 30_000, 30_000..=30_000, &|tree| {
        let mut out = String::new();
        value_text(&mut out, tree.root(), &registry);
        out
    });
}

fn hex(out: &mut String, data: &[u8]) {
    for byte in data {
        let _ = write!(out, "{byte:02x}");
    }
}

fn hex_of(data: &[u8]) -> String {
    let mut out = String::new();
    hex(&mut out, data);
    out
}

/// Two's complement, with as many bytes as Python's `bit_length() // 8 + 1`.
fn integer(value: Int<'_>) -> Vec<u8> {
    let mut bytes = match value {
        Int::Big(big) if big.to_i128().is_none() => big.as_bytes().to_vec(),
        Int::Decimal(decimal) if decimal.to_i128().is_none() => of_digits(decimal.as_bytes()),
        _ => value.to_i128().expect("fits").to_le_bytes().to_vec(),
    };
    while let [.., before, last] = bytes[..]
        && last == if before < 0x80 { 0 } else { 0xff }
    {
        bytes.pop();
    }
    bytes
}

fn of_digits(string: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0_u8];
    for digit in string.iter().filter(|byte| byte.is_ascii_digit()) {
        let mut carry = u16::from(digit - b'0');
        for byte in &mut bytes {
            let value = u16::from(*byte) * 10 + carry;
            [*byte, _] = value.to_le_bytes();
            carry = value >> 8;
        }
        if carry > 0 {
            bytes.push(carry.to_le_bytes()[0]);
        }
    }
    bytes.push(0);
    if string.starts_with(b"-") {
        let mut carry = true;
        for byte in &mut bytes {
            (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
        }
    }
    bytes
}

/// Writes a node if it is a scalar; returns whether it is.
fn scalar(out: &mut String, node: Node<'_, '_>) -> bool {
    let (name, data) = match node.value() {
        Value::None => ("None", None),
        Value::Bool(true) => ("True", None),
        Value::Bool(false) => ("False", None),
        Value::Int(value) => ("int ", Some(integer(value))),
        Value::Float(value) => ("float ", Some(value.to_be_bytes().to_vec())),
        Value::Str(string) => ("str ", Some(string.to_bytes().into_owned())),
        Value::Bytes(data) => ("bytes ", Some(data.to_vec())),
        Value::ByteArray {
            data,
            read_only: false,
        } => ("bytearray ", Some(data.to_vec())),
        _ => return false,
    };
    out.push_str(name);
    if let Some(data) = data {
        hex(out, &data);
    }
    true
}

/// Formats like `inert_text` of `pickle_tree_peer.py`: repeated nodes are written as
/// their number.
fn inert_text(out: &mut String, node: Node<'_, '_>, seen: &mut HashMap<usize, usize>) {
    if scalar(out, node) {
        return;
    }
    let mut parts: Vec<Node<'_, '_>> = Vec::new();
    let mut done: Vec<(&str, Vec<Node<'_, '_>>)> = Vec::new();
    let name = match node.value() {
        Value::ByteString(string) => {
            let _ = write!(out, "bytestring {}", hex_of(&string.to_bytes()));
            return;
        }
        Value::ByteArray { data, .. } => {
            let _ = write!(out, "read-only bytearray {}", hex_of(data));
            return;
        }
        Value::Buffer {
            data,
            index,
            read_only,
        } => {
            let read_only = if read_only { "True" } else { "False" };
            let _ = write!(out, "buffer {index} {read_only} {}", hex_of(data));
            return;
        }
        Value::Tuple(items) => {
            parts.extend(items);
            "tuple".to_owned()
        }
        Value::List(items) => {
            done.extend(items.map(|item| ("append", vec![item])));
            "list".to_owned()
        }
        Value::Set(items) => {
            done.extend(items.map(|item| ("add", vec![item])));
            "set".to_owned()
        }
        Value::FrozenSet(items) => {
            done.extend(items.map(|item| ("add", vec![item])));
            "frozenset".to_owned()
        }
        Value::Dict(entries) => {
            done.extend(entries.map(|(key, item)| ("set", vec![key, item])));
            "dict".to_owned()
        }
        Value::Global(global) => format!(
            "global {} {}",
            hex_of(&global.module.to_bytes()),
            hex_of(&global.name.to_bytes())
        ),
        Value::Extension(code) => format!("extension {code}"),
        Value::PersistentLine(line) => {
            // Formatted in the same way as a value that is a string.
            let number = seen.len();
            if let Some(number) = seen.get(&node.index()) {
                let _ = write!(out, "@{number}");
                return;
            }
            seen.insert(node.index(), number);
            let _ = write!(out, "persistent(str {})", hex_of(line.as_bytes()));
            operations(out, node, seen);
            return;
        }
        Value::Persistent(id) => {
            parts.push(id);
            "persistent".to_owned()
        }
        Value::Call {
            callable,
            arguments,
        } => {
            parts.extend([callable, arguments]);
            "call".to_owned()
        }
        Value::New {
            class,
            arguments,
            keywords,
        } => {
            parts.extend([class, arguments]);
            parts.extend(keywords);
            "new".to_owned()
        }
        Value::Instance { class, arguments } => {
            parts.push(arguments);
            format!(
                "instance {} {}",
                hex_of(&class.module.to_bytes()),
                hex_of(&class.name.to_bytes())
            )
        }
        Value::InstanceOf { class, arguments } => {
            parts.extend([class, arguments]);
            "object".to_owned()
        }
        Value::ReadOnly(inner) => {
            parts.push(inner);
            "read-only".to_owned()
        }
        other => panic!("{other:?}"),
    };
    let happens = !done.is_empty() || node.operations().next().is_some();
    if !parts.is_empty() || happens {
        if let Some(number) = seen.get(&node.index()) {
            let _ = write!(out, "@{number}");
            return;
        }
        seen.insert(node.index(), seen.len());
    }
    out.push_str(&name);
    list(out, "", &parts, seen);
    for (name, items) in done {
        let name = format!(".{name}");
        list(out, &name, &items, seen);
    }
    operations(out, node, seen);
}

fn list(out: &mut String, name: &str, items: &[Node<'_, '_>], seen: &mut HashMap<usize, usize>) {
    let _ = write!(out, "{name}(");
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        inert_text(out, *item, seen);
    }
    out.push(')');
}

fn operations(out: &mut String, node: Node<'_, '_>, seen: &mut HashMap<usize, usize>) {
    for operation in node.operations() {
        match operation {
            Operation::Append(items) => {
                items.for_each(|item| list(out, ".append", &[item], seen));
            }
            Operation::Add(items) => items.for_each(|item| list(out, ".add", &[item], seen)),
            Operation::Set(entries) => {
                entries.for_each(|(key, item)| list(out, ".set", &[key, item], seen));
            }
            Operation::State(state) => list(out, ".state", &[state.node()], seen),
            other => panic!("{other:?}"),
        }
    }
}

/// Formats like `value_text` of `pickle_tree_peer.py`.
fn value_text(out: &mut String, node: Node<'_, '_>, registry: &Registry<Known>) {
    if scalar(out, node) {
        return;
    }
    let strings = |items: &mut dyn Iterator<Item = String>, is_set: bool| {
        let mut strings: Vec<String> = items.collect();
        if is_set {
            strings.sort_unstable();
            strings.dedup();
        }
        strings.join(",")
    };
    let of = |node| {
        let mut out = String::new();
        value_text(&mut out, node, registry);
        out
    };
    let _ = match node.value() {
        Value::Tuple(items) => write!(out, "tuple({})", strings(&mut items.map(of), false)),
        Value::List(items) => write!(out, "list({})", strings(&mut items.map(of), false)),
        Value::Set(items) => write!(out, "set({})", strings(&mut items.map(of), true)),
        Value::FrozenSet(items) => write!(out, "frozenset({})", strings(&mut items.map(of), true)),
        Value::Dict(entries) => {
            let mut entries = entries.map(|(key, item)| format!("{}:{}", of(key), of(item)));
            write!(out, "dict({})", strings(&mut entries, false))
        }
        _ => match known::convert(registry, node) {
            Err(error) => write!(out, "{error}: {node}"),
            Ok(converted) => match converted {
                KnownValue::Complex { real, imaginary } => write!(
                    out,
                    "complex {}{}",
                    hex_of(&real.to_be_bytes()),
                    hex_of(&imaginary.to_be_bytes())
                ),
                KnownValue::Set(items) => write!(out, "set({})", strings(&mut items.map(of), true)),
                KnownValue::FrozenSet(items) => {
                    write!(out, "frozenset({})", strings(&mut items.map(of), true))
                }
                KnownValue::ByteArray(data) => write!(out, "bytearray {}", hex_of(&data)),
                KnownValue::Bytes(data) => write!(out, "bytes {}", hex_of(&data)),
                KnownValue::DType {
                    element_type: ElementType::Plain(dtype),
                    ..
                } => write!(out, "dtype {}", dtype_text(dtype)),
                KnownValue::Array(found) => {
                    let array = found.array();
                    let mut elements = array.items().collect::<Vec<_>>().concat();
                    let dtype = little(array.dtype(), &mut elements);
                    let read_only = match array.writeable() {
                        Some(true) => "False",
                        _ => "True",
                    };
                    let (dtype, data) = (dtype_text(dtype), hex_of(&elements));
                    write!(out, "array {dtype} {:?} {read_only} {data}", array.shape())
                }
                KnownValue::Scalar(found) => {
                    let data = hex_of(found.bytes());
                    write!(out, "scalar {} {data}", dtype_text(found.dtype()))
                }
                KnownValue::Exception(exception) => write!(
                    out,
                    "exception {}({})",
                    exception.class.name.as_str().unwrap_or_default(),
                    strings(&mut exception.arguments.map(of), false)
                ),
                other => panic!("{other:?}"),
            },
        },
    };
}

/// Formats the kind, length, byte order and unit of a type.
fn dtype_text(dtype: DType) -> String {
    let string = dtype.type_string();
    let (order, rest) = string.as_str().split_at(1);
    let unit = match dtype.kind() {
        Kind::Datetime(unit) | Kind::Timedelta(unit) => match unit.base {
            TimeBase::Generic => format!("generic {}", unit.count),
            base => format!("{} {}", base.name(), unit.count),
        },
        _ => "-".to_owned(),
    };
    format!("{} {} {order} {unit}", &rest[..1], dtype.item_len())
}

/// Converts big-endian elements to little-endian.
fn little(dtype: DType, elements: &mut [u8]) -> DType {
    if dtype.order() != ByteOrder::Big {
        return dtype;
    }
    let len = match dtype.kind() {
        Kind::Str => 4,
        Kind::Complex => dtype.item_len() / 2,
        _ => dtype.item_len(),
    };
    elements.chunks_mut(len).for_each(<[u8]>::reverse);
    dtype.with_order(ByteOrder::Little)
}
