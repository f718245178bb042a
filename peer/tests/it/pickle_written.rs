//! Tests that CPython loads the pickles that we write, and would have written the same.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use daskwire_pickle::{
    Framing, Mutability, OutOfBandReader, PickleBuffer, PickleErrorKind, Placement, Protocol,
    Reader, Writer, WriterLevel, WriterOptions,
};
use daskwire_testing::{Peer, Random};
use serde_json::json;

/// Number of values.
const COUNT: usize = 30_000;
const BATCH_COUNT: usize = 2_000;

/// A value as it is in Python.
#[derive(Debug)]
enum Value {
    None,
    Bool(bool),
    Int(Vec<u8>),
    Float(f64),
    Str(Vec<u8>),
    Bytes(Vec<u8>),
    ByteArray(Vec<u8>),
    Buffer(Vec<u8>, Mutability, Placement),
    Tuple(Vec<Self>),
    List(Vec<Self>),
    Set(Vec<Self>),
    FrozenSet(Vec<Self>),
    Dict(Vec<(Self, Self)>),
    Deque(Vec<Self>),
    OrderedDict(Vec<(Self, Self)>),
    Global(&'static str, &'static str),
}

/// A value that exists only once in CPython, so that equal occurrences are the same object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Single {
    Str(Vec<u8>),
    Bytes(Vec<u8>),
    /// The module name of the global with this index, the first one that has this name object.
    Module(usize),
    Global(&'static str, &'static str),
}

/// The globals that occur in the tests.
const GLOBALS: [(&str, &str); 6] = [
    ("builtins", "int"),
    ("builtins", "str"),
    ("builtins", "bytearray"),
    ("collections", "deque"),
    ("collections", "OrderedDict"),
    ("_operator", "add"),
];

/// For each global, the index of the first one whose module name is the same object.
type Modules = [usize; GLOBALS.len()];

impl Single {
    /// Strings that CPython shares: at most one character, below U+0100.
    fn str(string: &[u8]) -> Option<Self> {
        let single = matches!(string, [] | [_] | [0xc2 | 0xc3, _]);
        single.then(|| Self::Str(string.to_vec()))
    }

    fn bytes(data: &[u8]) -> Option<Self> {
        (data.len() < 2).then(|| Self::Bytes(data.to_vec()))
    }
}

/// The number of occurrences of each single value for which CPython consults its memo, and
/// the memo index once it has one.
struct Singles {
    seen: BTreeMap<Single, (usize, Option<u32>)>,
    modules: Modules,
}

impl Singles {
    fn count(&mut self, single: Option<Single>) {
        if let Some(single) = single {
            self.seen.entry(single).or_default().0 += 1;
        }
    }

    fn count_global(&mut self, module: &'static str, name: &'static str) {
        let global = Single::Global(module, name);
        if !self.seen.contains_key(&global) {
            self.count(Some(self.module_of(module, name)));
        }
        self.count(Some(global));
    }

    fn module_of(&self, module: &str, name: &str) -> Single {
        let index = GLOBALS.iter().position(|global| *global == (module, name));
        Single::Module(self.modules[index.expect("a known global")])
    }

    fn of(value: &Value, protocol: Protocol, modules: Modules) -> Self {
        let mut singles = Self {
            seen: BTreeMap::new(),
            modules,
        };
        singles.add(value, protocol);
        singles
    }

    fn add(&mut self, value: &Value, protocol: Protocol) {
        match value {
            Value::Str(string) => self.count(Single::str(string)),
            Value::Bytes(data) | Value::Buffer(data, Mutability::ReadOnly, Placement::InBand) => {
                self.count(Single::bytes(data));
            }
            Value::ByteArray(data) if protocol == Protocol::V4 => {
                self.count_global("builtins", "bytearray");
                if !data.is_empty() {
                    self.count(Single::bytes(data));
                }
            }
            Value::Deque(items) => {
                self.count_global("collections", "deque");
                items.iter().for_each(|item| self.add(item, protocol));
            }
            Value::Tuple(items)
            | Value::List(items)
            | Value::Set(items)
            | Value::FrozenSet(items) => items.iter().for_each(|item| self.add(item, protocol)),
            Value::OrderedDict(entries) | Value::Dict(entries) => {
                if matches!(value, Value::OrderedDict(_)) {
                    self.count_global("collections", "OrderedDict");
                }
                for (key, item) in entries {
                    self.add(key, protocol);
                    self.add(item, protocol);
                }
            }
            Value::Global(module, name) => self.count_global(module, name),
            _ => {}
        }
    }

    fn is_shared(&self, single: &Single) -> bool {
        self.seen.get(single).is_some_and(|(count, _)| *count > 1)
    }

    /// Writes a value in full the first time, and from the memo later.
    fn write(
        &mut self,
        writer: &mut Writer<'_, '_>,
        single: Option<Single>,
        write: impl FnOnce(&mut Self, &mut Writer<'_, '_>),
    ) {
        let index = |singles: &Self| Some(singles.seen.get(single.as_ref()?)?.1);
        match index(self) {
            Some(Some(index)) => {
                writer.get(index);
            }
            _ => {
                write(self, writer);
                if let Some(single) = single
                    && let Some((2.., index)) = self.seen.get_mut(&single)
                {
                    *index = Some(writer.memoize());
                }
            }
        }
    }

    fn write_bytes(&mut self, writer: &mut Writer<'_, '_>, data: &[u8]) {
        self.write(writer, Single::bytes(data), |_, writer| {
            writer.bytes(data);
        });
    }

    fn write_global(
        &mut self,
        writer: &mut Writer<'_, '_>,
        module: &'static str,
        name: &'static str,
    ) {
        let global = Single::Global(module, name);
        let shared = self.module_of(module, name);
        self.write(writer, Some(global), |singles, writer| {
            if singles.is_shared(&shared) {
                writer.stack_global();
                singles.write(writer, Some(shared), |_, writer| {
                    writer.str(module);
                });
                writer.str(name).end();
            } else {
                writer.global(module, name);
            }
        });
    }

    fn write_value(&mut self, writer: &mut Writer<'_, '_>, value: &Value, protocol: Protocol) {
        match value {
            Value::None => {
                writer.none();
            }
            Value::Bool(value) => {
                writer.bool(*value);
            }
            Value::Int(bytes) => {
                // Integers of 8 bytes use `i64`, others `int_bytes`.
                if let Ok(small) = <[u8; 8]>::try_from(&bytes[..]) {
                    writer.i64(i64::from_le_bytes(small));
                } else {
                    writer.int_bytes(bytes);
                }
            }
            Value::Float(value) => {
                writer.f64(*value);
            }
            Value::Str(string) => self.write(writer, Single::str(string), |_, writer| {
                match core::str::from_utf8(string) {
                    Ok(string) => writer.str(string),
                    Err(_) => writer.str_bytes(string),
                };
            }),
            Value::Bytes(data) => self.write_bytes(writer, data),
            Value::ByteArray(data) => {
                let bytearray = Single::Global("builtins", "bytearray");
                let module = self.module_of("builtins", "bytearray");
                let shared = self.is_shared(&bytearray)
                    || self.is_shared(&module)
                    || Single::bytes(data).is_some_and(|bytes| self.is_shared(&bytes));
                if protocol == Protocol::V5 || !shared {
                    writer.bytearray(data);
                    return;
                }
                writer.reduce();
                self.write_global(writer, "builtins", "bytearray");
                writer.tuple(usize::from(!data.is_empty()));
                if !data.is_empty() {
                    self.write_bytes(writer, data);
                }
            }
            Value::Buffer(data, Mutability::ReadOnly, Placement::InBand) => {
                self.write(writer, Single::bytes(data), |_, writer| {
                    let buffer = PickleBuffer::new(data, Mutability::ReadOnly);
                    writer.buffer(buffer, |_| Placement::InBand);
                });
            }
            Value::Buffer(data, mutability, placement) => {
                writer.buffer(PickleBuffer::new(data, *mutability), |_| *placement);
            }
            Value::Tuple(items) => self.write_items(writer.tuple(items.len()), items, protocol),
            Value::List(items) => self.write_items(writer.list(items.len()), items, protocol),
            Value::Set(items) => self.write_items(writer.set(items.len()), items, protocol),
            Value::FrozenSet(items) => {
                self.write_items(writer.frozenset(items.len()), items, protocol);
            }
            Value::Dict(entries) => {
                self.write_entries(writer.dict(entries.len()), entries, protocol);
            }
            Value::Deque(items) => {
                writer.extend(items.len()).reduce();
                self.write_global(writer, "collections", "deque");
                self.write_items(writer.tuple(0), items, protocol);
            }
            Value::OrderedDict(entries) => {
                writer.update(entries.len()).reduce();
                self.write_global(writer, "collections", "OrderedDict");
                self.write_entries(writer.tuple(0), entries, protocol);
            }
            Value::Global(module, name) => self.write_global(writer, module, name),
        }
    }

    fn write_items(&mut self, writer: &mut Writer<'_, '_>, items: &[Value], protocol: Protocol) {
        for item in items {
            self.write_value(writer, item, protocol);
        }
    }

    fn write_entries(
        &mut self,
        writer: &mut Writer<'_, '_>,
        entries: &[(Value, Value)],
        protocol: Protocol,
    ) {
        for (key, item) in entries {
            self.write_value(writer, key, protocol);
            self.write_value(writer, item, protocol);
        }
    }
}

impl Value {
    /// Formats like `text` of `pickle_peer.py`.
    fn string(&self, out: &mut String) {
        let (name, data) = match self {
            Self::None => return out.push_str("None"),
            Self::Bool(true) => return out.push_str("True"),
            Self::Bool(false) => return out.push_str("False"),
            Self::Float(value) => {
                let _ = write!(out, "float {:016x}", value.to_bits());
                return;
            }
            Self::Global(module, name) => {
                let _ = write!(out, "global {module} {name}");
                return;
            }
            Self::Tuple(items) => return strings(out, "tuple", items, false),
            Self::List(items) => return strings(out, "list", items, false),
            Self::Deque(items) => return strings(out, "deque", items, false),
            Self::Set(items) => return strings(out, "set", items, true),
            Self::FrozenSet(items) => return strings(out, "frozenset", items, true),
            Self::Dict(entries) => return entry_texts(out, "dict", entries),
            Self::OrderedDict(entries) => return entry_texts(out, "OrderedDict", entries),
            Self::Int(data) => ("int", data),
            Self::Str(data) => ("str", data),
            Self::Bytes(data) | Self::Buffer(data, Mutability::ReadOnly, Placement::InBand) => {
                ("bytes", data)
            }
            Self::ByteArray(data) | Self::Buffer(data, Mutability::Writable, Placement::InBand) => {
                ("bytearray", data)
            }
            Self::Buffer(data, Mutability::ReadOnly, Placement::OutOfBand) => ("read-only", data),
            Self::Buffer(data, Mutability::Writable, Placement::OutOfBand) => ("writable", data),
        };
        out.push_str(name);
        out.push(' ');
        hex(out, data);
    }

    /// Collects the out-of-band buffers, in order.
    fn buffers<'v>(&'v self, out: &mut Vec<(&'v [u8], bool)>) {
        match self {
            Self::Buffer(data, mutability, Placement::OutOfBand) => {
                out.push((data, *mutability == Mutability::Writable));
            }
            Self::Tuple(items) | Self::List(items) | Self::Deque(items) => {
                items.iter().for_each(|item| item.buffers(out));
            }
            Self::Dict(entries) | Self::OrderedDict(entries) => {
                entries.iter().for_each(|(_, item)| item.buffers(out));
            }
            _ => {}
        }
    }

    /// Whether the value contains a set whose order is unspecified.
    fn has_order(&self) -> bool {
        match self {
            Self::Set(items) | Self::FrozenSet(items) => {
                let numbers = (0..items.len()).all(|number| {
                    matches!(&items[number], Self::Int(bytes) if *bytes == int(number as i64))
                });
                (items.len() < 2 || numbers) && items.iter().all(Self::has_order)
            }
            Self::Tuple(items) | Self::List(items) | Self::Deque(items) => {
                items.iter().all(Self::has_order)
            }
            Self::Dict(entries) | Self::OrderedDict(entries) => entries
                .iter()
                .all(|(key, item)| key.has_order() && item.has_order()),
            _ => true,
        }
    }
}

fn strings(out: &mut String, name: &str, items: &[Value], sorted: bool) {
    let mut parts: Vec<String> = items
        .iter()
        .map(|item| {
            let mut part = String::new();
            item.string(&mut part);
            part
        })
        .collect();
    if sorted {
        parts.sort_unstable();
    }
    let _ = write!(out, "{name}({})", parts.join(","));
}

fn entry_texts(out: &mut String, name: &str, entries: &[(Value, Value)]) {
    out.push_str(name);
    out.push('(');
    for (index, (key, item)) in entries.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        key.string(out);
        out.push(':');
        item.string(out);
    }
    out.push(')');
}

fn hex(out: &mut String, data: &[u8]) {
    for byte in data {
        let _ = write!(out, "{byte:02x}");
    }
}

/// Two's complement without redundant sign bytes.
fn shortest(mut bytes: Vec<u8>) -> Vec<u8> {
    while let [.., before, last] = bytes[..]
        && last == if before < 0x80 { 0 } else { 0xff }
    {
        bytes.pop();
    }
    bytes
}

fn int(value: i64) -> Vec<u8> {
    shortest(value.to_le_bytes().to_vec())
}

/// A generator of random values, the same in each run.
struct Values {
    numbers: Random,
    protocol: Protocol,
}

impl Values {
    fn next(&mut self) -> u64 {
        self.numbers.next()
    }

    fn below(&mut self, end: usize) -> usize {
        self.numbers.below(end)
    }

    /// Returns a number of items, usually small and sometimes large.
    fn count(&mut self, depth: usize) -> usize {
        match (self.below(200), depth) {
            (0, 0) => self.below(2_100),
            (0..3, 0) => 998 + self.below(5),
            (0..60, _) => self.below(2),
            _ => self.below(5),
        }
    }

    fn data(&mut self) -> Vec<u8> {
        let len = match self.below(400) {
            0 => 65_500 + self.below(100),
            1..4 => 250 + self.below(10),
            4..100 => self.below(3),
            _ => self.below(24),
        };
        let first = self.next();
        let step = self.next() % 5;
        (0..len as u64)
            .map(|at| first.wrapping_add(at.wrapping_mul(step)).to_le_bytes()[0])
            .collect()
    }

    fn string(&mut self) -> Vec<u8> {
        if self.below(40) == 0 {
            return self.data().iter().map(|byte| byte & 0x7f).collect();
        }
        let mut string = Vec::new();
        for _ in 0..self.below(9) {
            let mut character = [0; 4];
            match self.below(20) {
                // A surrogate, which is not valid UTF-8. High and low ones are not combined.
                0 => string.extend([0xed, 0xa0 | self.below(0x20) as u8, 0x80]),
                1..4 => {
                    let code = u32::try_from(self.below(0x11_0000)).expect("small");
                    let code = char::from_u32(code).unwrap_or('\u{e4}');
                    string.extend(code.encode_utf8(&mut character).as_bytes());
                }
                4 => string.extend("é".as_bytes()),
                _ => string.push(b'a' + self.below(26) as u8),
            }
        }
        string
    }

    fn int(&mut self) -> Vec<u8> {
        match self.below(12) {
            0 => {
                let most = if self.below(30) == 0 { 300 } else { 40 };
                let len = 1 + self.below(most);
                shortest((0..len).map(|_| self.next().to_le_bytes()[3]).collect())
            }
            // Integers next to powers of two.
            1..4 => {
                let power = 1_i128 << self.below(70);
                let sign = if self.below(2) == 0 { 1 } else { -1 };
                let value = sign * power + self.below(3) as i128 - 1;
                shortest(value.to_le_bytes().to_vec())
            }
            4..8 => int(self.below(300) as i64 - 20),
            _ => int(self.next().cast_signed() >> self.below(64)),
        }
    }

    /// Returns a value that can be a key and differs from those with other indices.
    fn key(&mut self, index: usize) -> Value {
        match self.below(6) {
            0 => Value::Int(int(index as i64 * 77 - 100)),
            1 => Value::Bytes(format!("{index}").into_bytes()),
            2 => Value::Tuple(vec![
                Value::Int(int(index as i64)),
                Value::Str(self.string()),
                Value::FrozenSet(vec![Value::None]),
            ]),
            _ => Value::Str(format!("key {index} {}", self.below(100)).into_bytes()),
        }
    }

    fn set(&mut self, depth: usize) -> Vec<Value> {
        let count = self.count(depth);
        match self.below(3) {
            0 => (0..count).map(|index| self.key(index)).collect(),
            1 => vec![self.key(0)],
            // Small integers, whose order in a set is known.
            _ => (0..count)
                .map(|number| Value::Int(int(number as i64)))
                .collect(),
        }
    }

    fn values(&mut self, depth: usize) -> Vec<Value> {
        let count = self.count(depth);
        (0..count).map(|_| self.value(depth + 1)).collect()
    }

    fn entries(&mut self, depth: usize) -> Vec<(Value, Value)> {
        let count = self.count(depth);
        (0..count)
            .map(|index| (self.key(index), self.value(depth + 1)))
            .collect()
    }

    fn global(&mut self) -> Value {
        let (module, name) = GLOBALS[self.below(GLOBALS.len())];
        Value::Global(module, name)
    }

    fn value(&mut self, depth: usize) -> Value {
        // Containers only up to depth 4, scalars at any depth.
        let choice = self.below(if depth > 4 { 10 } else { 20 });
        match choice {
            0 => Value::None,
            1 => Value::Bool(self.below(2) == 0),
            2 | 3 => Value::Int(self.int()),
            4 => Value::Float(match self.below(4) {
                0 => f64::from_bits(self.next()),
                1 => [0.0, -0.0, f64::INFINITY, f64::NAN][self.below(4)],
                _ => self.below(1000) as f64 / 8.0,
            }),
            5 | 6 => Value::Str(self.string()),
            7 => Value::Bytes(self.data()),
            8 => match self.below(3) {
                0 => Value::ByteArray(self.data()),
                _ if self.protocol == Protocol::V4 => self.global(),
                _ => Value::Buffer(
                    self.data(),
                    [Mutability::ReadOnly, Mutability::Writable][self.below(2)],
                    [Placement::InBand, Placement::OutOfBand][self.below(2)],
                ),
            },
            9 => self.global(),
            10 | 11 => Value::Tuple(self.values(depth)),
            12 | 13 => Value::List(self.values(depth)),
            14 | 15 => Value::Dict(self.entries(depth)),
            16 => Value::Set(self.set(depth)),
            17 => Value::FrozenSet(self.set(depth)),
            18 => Value::Deque(self.values(depth)),
            _ => Value::OrderedDict(self.entries(depth)),
        }
    }
}

fn written(write: impl Fn(&mut Writer<'_, '_>), options: WriterOptions) -> Vec<u8> {
    let mut levels = [WriterLevel::EMPTY; 32];
    let mut measure = Writer::with_options(&mut [], &mut levels, options);
    write(&mut measure);
    let len = measure.measure().expect("a pickle");
    let mut out = vec![0xa5; len];
    let mut writer = Writer::with_options(&mut out, &mut levels, options);
    write(&mut writer);
    assert_eq!(writer.finish().expect("fits").len(), len);
    out
}

#[test]
fn cpython_loads_random_values_and_pickles_them_alike() {
    for interpreter in daskwire_testing::interpreters() {
        values_are_loaded_and_pickled_alike(&mut Peer::spawn_in(&interpreter, "pickle_peer.py"));
    }
}

fn values_are_loaded_and_pickled_alike(peer: &mut Peer) {
    let version = peer.address().to_owned();
    let mut random = Values {
        numbers: Random(0x7069_636b_6c65),
        protocol: Protocol::V5,
    };
    let question = json!({"op": "modules", "globals": GLOBALS});
    let (answer, _) = peer.ask(&question.to_string(), b"");
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    let modules: Modules = serde_json::from_value(answer["same"].clone()).expect("indices");
    let (mut exact_count, mut buffer_count, mut shared_count) = (0, 0, 0);
    for batch in 0..COUNT / BATCH_COUNT {
        let (mut data, mut described, mut strings) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..BATCH_COUNT {
            random.protocol = match random.below(4) {
                0 => Protocol::V4,
                _ => Protocol::V5,
            };
            let value = random.value(0);
            let options = WriterOptions::new()
                .with_protocol(random.protocol)
                .with_framing(match random.below(10) {
                    0 => Framing::None,
                    _ => Framing::Frames,
                });
            let pickle = written(
                |writer| {
                    let mut singles = Singles::of(&value, options.protocol, modules);
                    singles.write_value(writer, &value, options.protocol);
                },
                options,
            );
            let mut buffers = Vec::new();
            value.buffers(&mut buffers);
            let exact = options.framing == Framing::Frames && value.has_order();
            exact_count += usize::from(exact);
            buffer_count += buffers.len();
            shared_count += usize::from(
                Singles::of(&value, options.protocol, modules)
                    .seen
                    .values()
                    .any(|(count, _)| *count > 1),
            );
            described.push(json!({
                "len": pickle.len(),
                "protocol": match options.protocol { Protocol::V4 => 4, _ => 5 },
                "buffers": buffers.iter().map(|(data, writable)| json!([data.len(), writable]))
                    .collect::<Vec<_>>(),
                "exact": exact,
            }));
            data.extend(&pickle);
            buffers.iter().for_each(|(buffer, _)| data.extend(*buffer));
            let mut string = String::new();
            value.string(&mut string);
            strings.push((string, value, pickle));
        }
        let question = json!({"op": "written", "pickles": described});
        let (answer, _) = peer.ask(&question.to_string(), &data);
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        let values = answer["values"].as_array().expect("a list");
        assert_eq!(values.len(), strings.len());
        for (index, ((expected, value, _), loaded)) in strings.iter().zip(values).enumerate() {
            assert_eq!(
                loaded, expected,
                "Python {version}, value {index} of batch {batch}: {value:?}"
            );
        }
        if let Some([index, theirs]) = answer["wrong"][0].as_array().map(Vec::as_slice) {
            let index = usize::try_from(index.as_u64().expect("an index")).expect("small");
            let (_, value, pickle) = &strings[index];
            let mut ours = String::new();
            hex(&mut ours, pickle);
            panic!("Python {version} pickles {value:?} as\n{theirs}\nand not as\n{ours}");
        }
    }
    println!(
        "Python {version}: {exact_count} exact, {shared_count} of all with sharing, {buffer_count} buffers"
    );
    assert!(exact_count > COUNT * 3 / 4, "{exact_count} were compared");
    assert!(buffer_count > COUNT / 100 && shared_count > COUNT / 100);
}

/// A value that Dask pickles, written by hand: its name in `pickle_peer.py`, and the `repr`
/// of the result.
type Known = (&'static str, fn(&mut Writer<'_, '_>), &'static str);

const KNOWN: [Known; 6] = [
    (
        "task",
        |writer| {
            writer.build();
            writer.newobj().global("dask._task_spec", "Task").tuple(0);
            writer
                .tuple(9)
                .bool(false)
                .frozenset(0)
                .none()
                .none()
                .none();
            writer.tuple(2).i64(1).i64(2);
            writer.global("_operator", "add").str("add-1").dict(0);
        },
        "3",
    ),
    (
        "task with a dependency",
        |writer| {
            writer.build();
            writer.newobj().stack_global().str("dask._task_spec");
            let module = writer.memoize();
            writer.str("Task").tuple(0);
            writer.tuple(9).bool(false).frozenset(1).str("add-1");
            let key = writer.memoize();
            writer.none().none().none();
            writer.tuple(1).reduce();
            writer.stack_global().get(module).str("TaskRef");
            writer.tuple(1).get(key);
            writer.global("_operator", "neg").str("neg-1").dict(0);
        },
        "-3",
    ),
    (
        "data",
        |writer| {
            writer.reduce().global("dask._task_spec", "DataNode");
            writer.tuple(2).str("x").list(2).i64(1).f64(2.5);
        },
        "DataNode([1, 2.5])",
    ),
    (
        "array",
        |writer| {
            let data: [[u8; 8]; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0].map(f64::to_le_bytes);
            let strides = (&[2, 3][..], &[24, 8][..]);
            array(writer, data.as_flattened(), 8, "f8", strides, "C");
        },
        "[[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], True, False]",
    ),
    (
        "array of Fortran",
        |writer| {
            let data: [[u8; 4]; 6] = [0_i32, 3, 1, 4, 2, 5].map(i32::to_le_bytes);
            let strides = (&[2, 3][..], &[4, 8][..]);
            array(writer, data.as_flattened(), 4, "i4", strides, "F");
        },
        "[[[0, 1, 2], [3, 4, 5]], True, True]",
    ),
    (
        "exception",
        |writer| {
            writer.reduce();
            writer.global("tblib.pickling_support", "unpickle_exception_with_attrs");
            writer.tuple(8).global("builtins", "KeyError");
            writer.dict(2).str("__dict__").dict(0);
            writer.str("args").tuple(1).str("missing");
            writer.none().none().none().bool(false).none().tuple(0);
        },
        "KeyError('missing')",
    ),
];

/// Writes a numpy array with two axes and out-of-band data.
fn array(
    writer: &mut Writer<'_, '_>,
    data: &[u8],
    item_len: usize,
    kind: &str,
    (shape, strides): (&[usize], &[isize]),
    order: &str,
) {
    let view = PickleBuffer::with_strides(data, Mutability::Writable, item_len, shape, strides)
        .expect("contiguous");
    writer.reduce();
    writer.global("numpy._core.numeric", "_frombuffer").tuple(4);
    writer.buffer(view, |_| Placement::OutOfBand);
    writer.build().reduce().global("numpy", "dtype");
    writer.tuple(3).str(kind).bool(false).bool(true);
    writer.tuple(8).i64(3).str("<").none().none().none();
    writer.i64(-1).i64(-1).i64(0);
    writer.tuple(shape.len());
    for count in shape {
        writer.u64(*count as u64);
    }
    writer.str(order);
}

/// The out-of-band data of a value in [`KNOWN`].
fn beside(name: &str) -> Vec<u8> {
    match name {
        "array" => [0.0_f64, 1.0, 2.0, 3.0, 4.0, 5.0]
            .map(f64::to_le_bytes)
            .as_flattened()
            .to_vec(),
        "array of Fortran" => [0_i32, 3, 1, 4, 2, 5]
            .map(i32::to_le_bytes)
            .as_flattened()
            .to_vec(),
        _ => Vec::new(),
    }
}

#[test]
fn what_dask_pickles_is_written_alike_and_works() {
    let with_dask = daskwire_testing::interpreters()
        .into_iter()
        .filter(|python| python.has_dask);
    let mut asked_count = 0;
    for interpreter in with_dask {
        pickled_alike_and_works(&mut Peer::spawn_in(&interpreter, "pickle_peer.py"));
        asked_count += 1;
    }
    assert!(
        asked_count > 0,
        "none of DASKWIRE_PYTHONS has Dask: name one from 3.11 on"
    );
}

fn pickled_alike_and_works(peer: &mut Peer) {
    for (name, write, result) in KNOWN {
        let pickle = written(write, WriterOptions::default());
        let (answer, expected) = peer.ask(&json!({"op": "dumps", "name": name}).to_string(), b"");
        assert_eq!(pickle, expected, "{name}");
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        let buffer = beside(name);
        let mut beside = String::new();
        hex(&mut beside, &buffer);
        let buffers: Vec<usize> = [buffer.len()].into_iter().filter(|len| *len > 0).collect();
        assert_eq!(
            answer["buffers"],
            if beside.is_empty() {
                json!([])
            } else {
                json!([beside])
            },
            "{name}"
        );

        let question = json!({"op": "evaluate", "len": pickle.len(), "buffers": buffers});
        let (answer, _) = peer.ask(&question.to_string(), &[pickle, buffer].concat());
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["value"], result, "{name}");
    }
}

/// The data of `zero_copy` in `pickle_peer.py`.
const ZERO_COPY: [(&[u8], Mutability); 4] = [
    (b"abc", Mutability::Writable),
    (b"read-only", Mutability::ReadOnly),
    (
        b"defgdefgdefgdefgdefgdefgdefgdefgdefgdefg",
        Mutability::Writable,
    ),
    (b"writable", Mutability::Writable),
];

/// The pickle of the same values written by us, and its out-of-band buffers.
fn zero_copy(in_band: Option<[bool; 4]>) -> (Vec<u8>, Vec<&'static [u8]>) {
    let place = |index: usize| match in_band {
        Some(in_band) if !in_band[index] => Placement::OutOfBand,
        _ => Placement::InBand,
    };
    let beside = (0..4).filter(|index| place(*index) == Placement::OutOfBand);
    let beside = beside.map(|index| ZERO_COPY[index].0).collect();
    let pickle = written(
        |writer| {
            writer.list(4);
            let mut memo: Option<[u32; 3]> = None;
            for (index, (data, mutability)) in ZERO_COPY.into_iter().enumerate() {
                if matches!(index, 0 | 2) {
                    // `ZeroCopyByteArray._reconstruct(BUFFER)`.
                    writer.reduce().reduce();
                    if let Some([getattr, class, name]) = memo {
                        writer.get(getattr).tuple(2).get(class).get(name);
                    } else {
                        let getattr = writer.global("builtins", "getattr").memoize();
                        writer.tuple(2).global("example", "ZeroCopyByteArray");
                        let class = writer.memoize();
                        memo = Some([getattr, class, writer.str("_reconstruct").memoize()]);
                    }
                    writer.tuple(1);
                }
                let buffer = PickleBuffer::new(data, mutability);
                writer.buffer(buffer, |_| place(index));
            }
        },
        WriterOptions::default(),
    );
    (pickle, beside)
}

/// All data of a pickle in order, parsed with these buffers, and the index of each one's buffer.
fn data_of(pickle: &[u8], beside: &[&[u8]]) -> Vec<(String, bool, Option<usize>)> {
    let mut items = OutOfBandReader::new(Reader::new(pickle), beside);
    let mut found = Vec::new();
    while let Some(item) = items.next_item().expect("it has its buffers") {
        let Some(data) = item.data else { continue };
        let index = beside
            .iter()
            .position(|buffer| core::ptr::eq(*buffer, data.bytes));
        assert_eq!(index, data.buffer, "it was copied");
        found.push((hex_of(data.bytes), data.read_only, index));
    }
    found
}

fn hex_of(data: &[u8]) -> String {
    let mut out = String::new();
    hex(&mut out, data);
    out
}

/// The example of PEP 574 in both directions; `core/pickle/tests/it/pep_574.rs` has the rest.
#[test]
fn zero_copy_bytearrays_go_both_ways() {
    for interpreter in daskwire_testing::interpreters() {
        let mut peer = Peer::spawn_in(&interpreter, "pickle_peer.py");
        let decisions = (0..16).map(|bits| [1, 2, 4, 8].map(|bit| bits & bit != 0));
        for in_band in core::iter::once(None).chain(decisions.map(Some)) {
            both_ways(&mut peer, in_band);
        }
    }
}

fn both_ways(peer: &mut Peer, in_band: Option<[bool; 4]>) {
    let what = format!("Python {}, in band {in_band:?}", peer.address());
    let is_in_band = |index: usize| in_band.is_none_or(|in_band| in_band[index]);
    let (pickle, beside) = zero_copy(in_band);

    // From Python to Rust: the same pickle, with buffers in the order of the callback.
    let question = json!({"op": "zero-copy dumps", "in_band": in_band});
    let (answer, theirs) = peer.ask(&question.to_string(), b"");
    assert_eq!(pickle, theirs, "{what}");
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    let asked = if in_band.is_some() {
        &ZERO_COPY[..]
    } else {
        &[]
    };
    let asked = asked
        .iter()
        .map(|(data, mutability)| json!([hex_of(data), *mutability == Mutability::ReadOnly]));
    assert_eq!(
        answer["buffers"],
        json!(asked.collect::<Vec<_>>()),
        "{what}"
    );
    let mut next = 0..;
    let expected: Vec<_> = ZERO_COPY
        .iter()
        .enumerate()
        .map(|(index, (data, mutability))| {
            let number = if is_in_band(index) { None } else { next.next() };
            (hex_of(data), *mutability == Mutability::ReadOnly, number)
        })
        .collect();
    assert_eq!(data_of(&theirs, &beside), expected, "{what}");

    // From Rust to Python: the receiver's buffers determine the types.
    let mut loads = |beside: &[&[u8]], kind: &str| {
        let lens: Vec<usize> = beside.iter().map(|buffer| buffer.len()).collect();
        let len = pickle.len();
        let question = json!({"op": "zero-copy loads", "len": len, "buffers": lens, "as": kind});
        let data = [&pickle, beside.concat().as_slice()].concat();
        let (answer, _) = peer.ask(&question.to_string(), &data);
        serde_json::from_str::<serde_json::Value>(&answer).expect("JSON")
    };
    for kind in ["ZeroCopyByteArray", "bytearray", "bytes"] {
        let values = expected.iter().enumerate();
        let values = values.map(|(index, (data, is_read_only, number))| {
            match (index, number) {
                // The class accepts its own type without a copy, and copies other types.
                (0 | 2, _) if kind == "ZeroCopyByteArray" && number.is_some() => {
                    json!([kind, data, false, number])
                }
                (0 | 2, _) => json!(["ZeroCopyByteArray", data, false, null]),
                (_, None) if *is_read_only => json!(["bytes", data, true, null]),
                (_, None) => json!(["bytearray", data, false, null]),
                // A read-only view of writable memory.
                (_, Some(_)) if *is_read_only && kind != "bytes" => {
                    json!(["memoryview", data, true, number])
                }
                (_, Some(_)) => json!([kind, data, kind == "bytes", number]),
            }
        });
        let answer = loads(&beside, kind);
        assert_eq!(
            answer["values"],
            json!(values.collect::<Vec<_>>()),
            "{what}: {answer}"
        );
    }
    // Too few buffers are an error for both. CPython ignores surplus buffers.
    if let [fewer @ .., _] = beside.as_slice() {
        let error = loads(fewer, "bytes")["error"].to_string();
        assert!(error.contains("buffers"), "{what}: {error}");
        let mut items = OutOfBandReader::new(Reader::new(&pickle), fewer);
        let error = core::iter::from_fn(|| items.next_item().transpose()).find_map(Result::err);
        let kind = error.expect("one is missing").kind;
        let buffer_count = fewer.len();
        assert_eq!(kind, PickleErrorKind::TooFewBuffers { buffer_count });
    }
    let more = [beside.as_slice(), &[b"more"]].concat();
    assert!(loads(&more, "bytes")["values"].is_array(), "{what}");
}
