//! Encodes JSON documents to a stream, the reverse of inspecting.
//!
//! A document is the output of
//! [`Inspector::json`](crate::inspect::Inspector::json) with all data
//! ([`Options::data`](crate::inspect::Options)). Values round-trip, but not the
//! width in which numbers and lengths were encoded: everything is written as
//! msgpack-python does.

use core::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use daskwire::frame::{Prefix, encode_prelude, prelude_len};
use daskwire::message::{
    BuildError, BuilderBuffers, Layout, Message, MessageBuilder, MessageError, PayloadKind,
    ReadOptions, Workspace,
};
use daskwire::msgpack::Writer;
use serde_json::Value;

/// Maximum nesting of JSON: a message of 1024 levels takes three JSON levels for each.
const MAX_DEPTH: usize = 4096;

/// The error of encoding a document.
#[derive(Debug)]
#[non_exhaustive]
pub enum EncodeError {
    /// The document is not JSON.
    Json(serde_json::Error),
    /// The document is nested deeper than any message.
    TooDeep,
    /// The document does not describe a message.
    Description {
        /// The location in the document.
        place: String,
        /// What was expected there.
        expected: &'static str,
    },
    /// The message cannot be built in the requested layout.
    Build(BuildError),
    /// The headers do not match the frames.
    Message(MessageError),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => {
                // Remove the line, because only the caller knows in which line the
                // document begins.
                let message = error.to_string();
                let place = format!(" at line {} column {}", error.line(), error.column());
                let what = message.strip_suffix(&place).unwrap_or(&message);
                write!(f, "at column {}: not JSON: {what}", error.column())
            }
            Self::TooDeep => write!(f, "nested deeper than {MAX_DEPTH} levels"),
            Self::Description { place, expected } => write!(f, "at {place}: expected {expected}"),
            Self::Build(error) => error.fmt(f),
            Self::Message(error) => write!(f, "the headers do not fit the frames: {error}"),
        }
    }
}

impl core::error::Error for EncodeError {}

daskwire::kinds! {
    EncodeError: |_| ErrorKind::Invalid;
}

impl EncodeError {
    /// The line of the fault in the document, from 1; the first line for faults
    /// of the whole document.
    pub fn line(&self) -> usize {
        match self {
            Self::Json(error) => error.line().max(1),
            _ => 1,
        }
    }

    /// Adds the location of the fault: `value` is a part of `root`, whose path is
    /// `place`.
    fn at(mut self, root: &Value, value: &Value, place: &str) -> Self {
        if let Self::Description { place: at, .. } = &mut self {
            *at = format!("{place}{}", path(root, value));
        }
        self
    }
}

/// The path from `root` to `value`, a part of it that is identified by its address.
fn path(root: &Value, value: &Value) -> String {
    // Each value with the index of its parent, and the path element that leads to it.
    let mut seen = vec![(root, 0, String::new())];
    let mut next = 0;
    while let Some(&(container, ..)) = seen.get(next) {
        if core::ptr::eq(container, value) {
            break;
        }
        match container {
            Value::Array(items) => seen.extend(
                items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| (item, next, format!("[{index}]"))),
            ),
            Value::Object(map) => {
                seen.extend(map.iter().map(|(key, item)| (item, next, key_step(key))))
            }
            _ => {}
        }
        next += 1;
    }
    let mut steps = Vec::new();
    while let Some((_, parent, step)) = seen.get(next).filter(|_| next != 0) {
        steps.push(step.as_str());
        next = *parent;
    }
    steps.reverse();
    steps.concat()
}

fn key_step(key: &str) -> String {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_$-".contains(&byte);
    if !key.is_empty() && key.bytes().all(is_word) {
        format!(".{key}")
    } else {
        format!("[{}]", Value::from(key))
    }
}

/// Splits a string into documents, each with its first line, from 1.
///
/// A document ends with the line in which its brackets are closed, so it may span
/// lines, as other tools write it.
pub fn documents(input: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = input;
    let mut line = 1;
    core::iter::from_fn(move || {
        let mut brackets = Brackets::default();
        let mut len = 0;
        let first = line;
        for part in rest.split_inclusive('\n') {
            len += part.len();
            line += 1;
            part.bytes().for_each(|byte| brackets.byte(byte));
            if brackets.depth == 0 && !brackets.in_string {
                break;
            }
        }
        let (document, after) = rest.split_at_checked(len)?;
        rest = after;
        (len != 0).then_some((first, document))
    })
    .filter(|(_, document)| !document.trim().is_empty())
}

/// The nesting of brackets at a position in a JSON document.
#[derive(Default)]
struct Brackets {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Brackets {
    fn byte(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' => self.in_string = !self.in_string,
            b'[' | b'{' if !self.in_string => self.depth += 1,
            b']' | b'}' if !self.in_string => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

impl From<BuildError> for EncodeError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

fn expected<T>(place: impl Into<String>, expected: &'static str) -> Result<T, EncodeError> {
    Err(EncodeError::Description {
        place: place.into(),
        expected,
    })
}

/// The format of the stream; `None` keeps the format of the document.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Target {
    /// The prefix of messages.
    pub prefix: Option<Prefix>,
    /// The layout of messages. Payloads are converted to the other layout where
    /// possible.
    pub layout: Option<Layout>,
}

impl Target {
    daskwire_comm::with_fields! {
        with_prefix(prefix: impl Into<Option<Prefix>>);
        with_layout(layout: impl Into<Option<Layout>>);
    }
}

/// Encodes a document to the bytes of one message.
///
/// # Errors
///
/// If the document is invalid, or cannot be encoded in the layout.
pub fn encode(document: &str, target: Target) -> Result<Vec<u8>, EncodeError> {
    check_depth(document)?;
    let mut parser = serde_json::Deserializer::from_str(document);
    parser.disable_recursion_limit();
    let value: Value = serde::Deserialize::deserialize(&mut parser).map_err(EncodeError::Json)?;
    parser.end().map_err(EncodeError::Json)?;
    if !value.is_object() {
        return expected(
            "the top",
            "an object, as `daskwire inspect --json --data` writes it",
        );
    }
    let layout = match value.get("layout").and_then(Value::as_str) {
        Some("classic") => Layout::Classic,
        Some("modern") => Layout::Modern,
        _ => return expected("layout", "\"classic\" or \"modern\""),
    };
    let prefix = match value.get("prefix").and_then(Value::as_str) {
        Some("none") => Prefix::None,
        // Recordings use these three names for a prefix of eight bytes.
        Some("u64" | "total" | "nosplit") => Prefix::U64,
        _ => return expected("prefix", "\"none\" or \"u64\""),
    };
    let prefix = target.prefix.unwrap_or(prefix);
    let Some(body) = value.get("message") else {
        return expected("message", "the message");
    };
    let mut body = body.clone();
    if layout == Layout::Classic {
        order_by_payload(&mut body);
    }
    let payloads = match value.get("payloads") {
        Some(Value::Array(payloads)) => payloads
            .iter()
            .enumerate()
            .map(|(number, payload)| Payload::read(number, payload))
            .collect::<Result<Vec<_>, _>>()?,
        _ => return expected("payloads", "an array"),
    };
    // No value takes more than four times the length of its JSON.
    let room = 4 * document.len() + 4096;
    build(layout, &body, &payloads, room, |frames| {
        let mut workspace = Workspace::new();
        let options = ReadOptions::default();
        let message = Message::open(frames, layout, &options, &mut workspace);
        let message = message.map_err(EncodeError::Message)?;
        message.check().map_err(EncodeError::Message)?;
        let other = match target.layout {
            Some(other) if other != layout => other,
            _ => return Ok(stream(prefix, frames)),
        };
        let (mut body, mut headers) = (vec![0; room], vec![0; room]);
        let mut slots = vec![&[][..]; 3 + 2 * frames.len()];
        let (mut scratch, mut walking) = (Workspace::new(), Workspace::new());
        let buffers = BuilderBuffers {
            body: &mut body,
            headers: &mut headers,
            slots: &mut slots,
        };
        let mut builder = MessageBuilder::new(other, buffers).with_scratch(&mut scratch);
        let mut walk = message.walk(&mut walking);
        while let Some(item) = walk.next_item().map_err(EncodeError::Message)? {
            builder.item(item, &message)?;
        }
        Ok(stream(prefix, builder.finish()?))
    })?
}

/// Orders the entries of maps by their first payload, and returns the lowest
/// payload number. The payloads of a classic message have their own order,
/// independent of the body; written in this order, they keep their numbers.
fn order_by_payload(value: &mut Value) -> u64 {
    #[cfg(test)]
    tests::STEPS.set(tests::STEPS.get() + 1);
    if let Some(number) = single(value, "$payload") {
        return number.as_u64().unwrap_or(u64::MAX);
    }
    let first = |values: &mut [Value]| {
        let first = values.iter_mut().map(order_by_payload).min();
        first.unwrap_or(u64::MAX)
    };
    match value {
        Value::Object(map) => {
            if map.len() == 1
                && let Some(Value::Array(pairs)) = map.get_mut("$map")
            {
                let mut ordered: Vec<(u64, Value)> = core::mem::take(pairs)
                    .into_iter()
                    .map(|mut pair| (order_by_payload(&mut pair), pair))
                    .collect();
                ordered.sort_by_key(|(first, _)| *first);
                let first = ordered.first().map_or(u64::MAX, |(first, _)| *first);
                pairs.extend(ordered.into_iter().map(|(_, pair)| pair));
                return first;
            }
            let mut entries: Vec<(u64, String, Value)> = core::mem::take(map)
                .into_iter()
                .map(|(key, mut value)| (order_by_payload(&mut value), key, value))
                .collect();
            entries.sort_by_key(|(first, ..)| *first);
            let first = entries.first().map_or(u64::MAX, |(first, ..)| *first);
            map.extend(entries.into_iter().map(|(_, key, value)| (key, value)));
            first
        }
        Value::Array(items) => first(items),
        _ => u64::MAX,
    }
}

/// Concatenates the prefix, the prelude and the frames.
fn stream(prefix: Prefix, frames: &[&[u8]]) -> Vec<u8> {
    let len = prelude_len(prefix, frames.len()).expect("frames in memory");
    let mut stream = vec![0; len];
    // A message has at least one frame, and all of them are in memory.
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    if encode_prelude(prefix, lengths, &mut stream).is_err() {
        return Vec::new();
    }
    for frame in frames {
        stream.extend_from_slice(frame);
    }
    stream
}

/// The description of a payload in a document.
struct Payload {
    kind: PayloadKind,
    header: Vec<u8>,
    frames: Vec<Vec<u8>>,
    bytestring: bool,
}

impl Payload {
    fn read(number: usize, value: &Value) -> Result<Self, EncodeError> {
        let place = format!("payloads[{number}]");
        let kind = match value.get("kind").and_then(Value::as_str) {
            Some("serialized") => PayloadKind::Serialized,
            Some("pickled") => PayloadKind::Pickled,
            _ => return expected(place + ".kind", "\"serialized\" or \"pickled\""),
        };
        let Some(header) = value.get("header") else {
            return expected(place + ".header", "the header");
        };
        let at = format!("{place}.header");
        let mut measure = Writer::new(&mut []);
        write(&mut measure, header, &at)?;
        let mut bytes = vec![0; measure.len()];
        let mut writer = Writer::new(&mut bytes);
        write(&mut writer, header, &at)?;
        let Some(Value::Array(frames)) = value.get("frames") else {
            return expected(place + ".frames", "an array");
        };
        let mut data = Vec::with_capacity(frames.len());
        for (index, frame) in frames.iter().enumerate() {
            let bytes = frame.get("bytes").and_then(Value::as_str);
            match bytes.map(|encoded| BASE64.decode(encoded)) {
                Some(Ok(bytes)) => data.push(bytes),
                _ => {
                    return expected(
                        format!("{place}.frames[{index}].bytes"),
                        "the frame in base64; `daskwire inspect --json --data` writes it",
                    );
                }
            }
        }
        let count = header
            .get("num-sub-frames")
            .or_else(|| header.get("count"))
            .and_then(Value::as_u64);
        if count.is_some_and(|count| count != data.len() as u64) {
            return expected(
                place + ".frames",
                "as many frames as the header says; `inspect` without --payloads leaves them alone",
            );
        }
        Ok(Self {
            kind,
            header: bytes,
            frames: data,
            bytestring: value.get("bytestring") == Some(&Value::Bool(true)),
        })
    }
}

/// Builds the message in its own layout and passes its frames to a callback.
fn build<R>(
    layout: Layout,
    message: &Value,
    payloads: &[Payload],
    room: usize,
    then: impl FnOnce(&[&[u8]]) -> R,
) -> Result<R, EncodeError> {
    let (mut body, mut headers) = (vec![0; room], vec![0; room]);
    let frame_count: usize = payloads
        .iter()
        .map(|payload| payload.frames.len() + 1)
        .sum();
    let mut slots = vec![&[][..]; 3 + frame_count];
    let mut scratch = Workspace::new();
    let buffers = BuilderBuffers {
        body: &mut body,
        headers: &mut headers,
        slots: &mut slots,
    };
    let mut builder = MessageBuilder::new(layout, buffers).with_scratch(&mut scratch);
    write_body(&mut builder, message, payloads)?;
    Ok(then(builder.finish()?))
}

/// A pending step of writing: an explicit stack instead of recursion.
enum Task<'v> {
    Value(&'v Value),
    Key(&'v str),
}

fn write_body<'a>(
    builder: &mut MessageBuilder<'_, 'a>,
    message: &Value,
    payloads: &'a [Payload],
) -> Result<(), EncodeError> {
    let mut tasks = vec![Task::Value(message)];
    let mut unused: Vec<_> = payloads.iter().map(Some).collect();
    while let Some(task) = tasks.pop() {
        match task {
            Task::Key(key) => {
                builder.body().str(key);
            }
            Task::Value(value) => {
                if let Some(number) = single(value, "$payload") {
                    let fault = |what| {
                        let fault: Result<(), _> = expected("", what);
                        fault.map_err(|error| error.at(message, value, "message"))
                    };
                    let number = number.as_u64();
                    let number = number.and_then(|number| usize::try_from(number).ok());
                    let Some(payload) = number.and_then(|number| unused.get_mut(number)) else {
                        return fault("$payload with the number of a payload");
                    };
                    let Some(payload) = payload.take() else {
                        return fault(
                            "the number of a payload that is not used before: a payload has one \
                             place, and an equal one needs an entry of its own in payloads",
                        );
                    };
                    let frames: Vec<&[u8]> = payload.frames.iter().map(Vec::as_slice).collect();
                    builder.payload_as_is(
                        payload.kind,
                        &payload.header,
                        &frames,
                        payload.bytestring,
                    )?;
                } else {
                    one(builder.body(), value, &mut tasks)
                        .map_err(|error| error.at(message, value, "message"))?;
                }
            }
        }
    }
    match unused.iter().position(Option::is_some) {
        Some(number) => expected(
            format!("payloads[{number}]"),
            "a payload that the message refers to with $payload; remove it if it is not to be sent",
        ),
        None => Ok(()),
    }
}

/// Writes a value without payloads.
fn write(writer: &mut Writer<'_>, root: &Value, place: &str) -> Result<(), EncodeError> {
    let mut tasks = vec![Task::Value(root)];
    while let Some(task) = tasks.pop() {
        match task {
            Task::Key(key) => {
                writer.str(key);
            }
            Task::Value(value) => {
                one(writer, value, &mut tasks).map_err(|error| error.at(root, value, place))?
            }
        }
    }
    Ok(())
}

/// The value of `tag`, if it is the object's only entry.
fn single<'v>(value: &'v Value, tag: &str) -> Option<&'v Value> {
    match value {
        Value::Object(map) if map.len() == 1 => map.get(tag),
        _ => None,
    }
}

/// Writes a scalar or the head of a container, and pushes the container's contents to
/// the tasks. The caller adds the location of errors.
fn one<'v>(
    writer: &mut Writer<'_>,
    value: &'v Value,
    tasks: &mut Vec<Task<'v>>,
) -> Result<(), EncodeError> {
    match value {
        Value::Null => writer.nil(),
        Value::Bool(value) => writer.bool(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(value), ..) => writer.u64(value),
            (_, Some(value), _) => writer.i64(value),
            (.., Some(value)) => writer.f64(value),
            _ => return expected("", "a number of 64 bits"),
        },
        Value::String(string) => writer.str(string),
        Value::Array(items) => {
            tasks.extend(items.iter().rev().map(Task::Value));
            writer.array(count(items.len()))
        }
        Value::Object(map) => match map.iter().next() {
            Some((tag, tagged)) if map.len() == 1 && tag.starts_with('$') => {
                return tagged_value(writer, tag, tagged, tasks);
            }
            _ => {
                let entries = map.iter().rev();
                tasks.extend(entries.flat_map(|(key, value)| [Task::Value(value), Task::Key(key)]));
                writer.map(count(map.len()))
            }
        },
    };
    Ok(())
}

fn tagged_value<'v>(
    writer: &mut Writer<'_>,
    tag: &str,
    value: &'v Value,
    tasks: &mut Vec<Task<'v>>,
) -> Result<(), EncodeError> {
    match (tag, value) {
        ("$int", Value::String(digits)) => match (digits.parse::<u64>(), digits.parse::<i64>()) {
            (Ok(value), _) => writer.u64(value),
            (_, Ok(value)) => writer.i64(value),
            _ => return expected("", "$int with an integer of 64 bits"),
        },
        ("$float", Value::String(string)) => match string.as_str() {
            "nan" => writer.f64(f64::NAN),
            "inf" => writer.f64(f64::INFINITY),
            "-inf" => writer.f64(f64::NEG_INFINITY),
            "-0.0" => writer.f64(-0.0),
            _ => return expected("", "$float with nan, inf, -inf or -0.0"),
        },
        ("$bytes", Value::String(encoded)) => match BASE64.decode(encoded) {
            Ok(data) => writer.bin(&data),
            Err(_) => return expected("", "$bytes in base64"),
        },
        ("$blob", _) => {
            return expected(
                "",
                "the bytes themselves, not their hash; `daskwire inspect --json --data` writes them",
            );
        }
        ("$ext", Value::Array(parts)) => {
            let [code, data] = parts.as_slice() else {
                return expected("", "$ext with a code and data");
            };
            let code = code.as_i64().and_then(|code| i8::try_from(code).ok());
            let data = data
                .as_str()
                .and_then(|encoded| BASE64.decode(encoded).ok());
            match (code, data) {
                (Some(code), Some(data)) => writer.extension(code, &data),
                _ => return expected("", "$ext with a code of 8 bits and data in base64"),
            }
        }
        ("$set", Value::Array(members)) => {
            tasks.extend(members.iter().rev().map(Task::Value));
            writer.map(2).str("__Set__").bool(true);
            writer.str("as-list").array(count(members.len()))
        }
        ("$enum", Value::Object(names)) => {
            let name = |key| names.get(key).and_then(Value::as_str);
            let (Some(module), Some(class), Some(name)) =
                (name("module"), name("class"), name("name"))
            else {
                return expected("", "$enum with module, class and name");
            };
            writer.map(4).str("__Enum__").bool(true);
            writer.str("name").str(name);
            writer.str("__module__").str(module);
            writer.str("__name__").str(class)
        }
        ("$map", Value::Array(pairs)) => {
            for pair in pairs.iter().rev() {
                match pair.as_array().map(Vec::as_slice) {
                    Some([key, value]) => tasks.extend([Task::Value(value), Task::Value(key)]),
                    _ => return expected("", "$map with pairs of key and value"),
                }
            }
            writer.map(count(pairs.len()))
        }
        _ => {
            return expected(
                "",
                "$payload, $int, $float, $bytes, $ext, $set, $enum or $map",
            );
        }
    };
    Ok(())
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Refuses JSON that is nested too deep to parse without overflowing the stack.
fn check_depth(document: &str) -> Result<(), EncodeError> {
    let mut brackets = Brackets::default();
    for byte in document.bytes() {
        brackets.byte(byte);
        if brackets.depth > MAX_DEPTH {
            return Err(EncodeError::TooDeep);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    thread_local! {
        /// Number of values visited to order entries.
        pub(super) static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn orders_nested_maps_in_linear_time() {
        let steps = |depth: usize| {
            let mut value = (0..depth).fold(
                Value::from(1),
                |value, _| serde_json::json!({ "$map": [[2, value], [{ "$payload": 7 }, 3]] }),
            );
            STEPS.set(0);
            assert_eq!(order_by_payload(&mut value), 7);
            let Some(Value::Array(pairs)) = single(&value, "$map") else {
                panic!("a map: {value}");
            };
            assert_eq!(pairs[0][0], serde_json::json!(2));
            STEPS.get()
        };
        let (one, two) = (steps(50), steps(100));
        assert!(two <= 2 * one, "{one} steps, then {two}");
    }
}
