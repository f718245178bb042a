//! Messages as text.

use std::fmt::Write as _;

use daskwire::display::{Document, Printable};
use daskwire::message::{Layout, Message, Payload, PayloadKind, Serializer, Workspace};
use serde_json::Value;

use super::json::{self, layout_name, merged};
use super::{Hooks, InspectErrorKind, Options, Recorded, tagged};
use crate::format::{bytes, count};

type Result<T> = std::result::Result<T, InspectErrorKind>;

/// Maximum number of frames that are listed; the rest is summarized.
const MAX_FRAMES: usize = 24;

/// Maximum number of payloads that are listed; the rest is counted.
const MAX_PAYLOADS: usize = 12;

/// Maximum number of codecs that are listed of a payload; Dask uses one.
const MAX_CODECS: usize = 8;

/// Maximum number of characters of a document; the rest is counted.
const MAX_TEXT: usize = 2000;

/// Line width of documents.
const WIDTH: usize = 100;

pub(super) fn describe(
    recorded: &Recorded<'_>,
    options: &Options,
    workspace: &mut Workspace,
) -> Result<String> {
    let (frames, layout) = (&recorded.frames, recorded.layout);
    let message = Message::open(frames, layout, &options.reading, workspace)?;
    whole(recorded, options, message)
}

fn whole(
    recorded: &Recorded<'_>,
    options: &Options,
    message: Message<'_, &[u8]>,
) -> Result<String> {
    message.check()?;
    if options.payloads {
        message.decompressed_len()?;
    }
    let max_count = if options.data {
        usize::MAX
    } else {
        MAX_PAYLOADS
    };
    let mut paths = json::Paths::new(&message, max_count);
    json::body(&message, options, &mut paths)?;
    let mut text = String::new();
    let op = message
        .op()
        .map(|op| format!(" {op:?}"))
        .unwrap_or_default();
    let frames = &recorded.frames;
    put(
        &mut text,
        format_args!(
            "message{op} at byte {}: {}, {} layout, {}\n",
            recorded.offset,
            size(recorded.len),
            layout_name(recorded.layout),
            count(frames.len(), "frame"),
        ),
    );
    if let Some(value) = recorded.prefix_value {
        // PROTOCOL FRAME-7: the bytes that the prefix covers are read at once, the rest
        // frame by frame.
        let meaning = if value == recorded.len - 8 {
            "all that follows it"
        } else {
            "a read hint; the rest is read frame by frame"
        };
        put(
            &mut text,
            format_args!("  leading length {value} B: {meaning}\n"),
        );
    }
    if let (Layout::Classic, Some(&header)) = (recorded.layout, frames.first())
        && !header.is_empty()
    {
        document(&mut text, "  header ", header, options);
    }
    document(&mut text, "  body   ", message.body(), options);
    for (number, payload) in message.payloads().enumerate() {
        // Payloads that are not listed are described too, to detect faults.
        let path = paths.paths.get(number).unwrap_or(&Value::Null);
        let shown = describe_payload(number, &payload?, path, options)?;
        if number < max_count {
            text.push_str(&shown);
        }
    }
    if let Some(rest @ 1..) = message.payload_count().checked_sub(max_count) {
        put(
            &mut text,
            format_args!("  and {}\n", count(rest, "more payload")),
        );
    }
    frame_table(&mut text, recorded, options, &message)?;
    Ok(text)
}

fn describe_payload(
    number: usize,
    payload: &Payload<'_, &[u8]>,
    path: &Value,
    options: &Options,
) -> Result<String> {
    let path = match path {
        Value::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(Value::to_string).collect();
            elements.join(", ")
        }
        _ => "…".to_owned(),
    };
    let what = what(payload)?;
    let mut text = format!("  payload {number} at [{path}]: {what}\n");
    let wire: u64 = payload
        .frames()
        .iter()
        .map(|frame| frame.len() as u64)
        .sum();
    put(
        &mut text,
        format_args!(
            "    sent as {} in {}",
            size(wire),
            count(payload.frames().len(), "frame"),
        ),
    );
    let mut names: Vec<String> = Vec::new();
    for name in codecs(payload)?.into_iter().flatten() {
        if !names.contains(&name) {
            if names.len() == MAX_CODECS {
                names.push("others".to_owned());
                break;
            }
            names.push(name);
        }
    }
    if !names.is_empty() {
        put(
            &mut text,
            format_args!(", compressed by {}", names.join(" and ")),
        );
    }
    if options.payloads {
        let (data, ends) = merged(payload)?;
        put(
            &mut text,
            format_args!(
                "; holds {} in {}",
                size(data.len() as u64),
                count(ends.len(), "logical frame"),
            ),
        );
    }
    text.push('\n');
    document(&mut text, "    header ", payload.header_bytes(), options);
    Ok(text)
}

/// Describes a payload by its header.
fn what(payload: &Payload<'_, &[u8]>) -> Result<String> {
    let header = payload.header();
    if payload.kind() == PayloadKind::Pickled {
        return Ok("pickled with out-of-band buffers".to_owned());
    }
    if header.is_collection()? {
        let name = header.type_serialized()?.unwrap_or_default();
        let elements = header.sub_headers()?.into_iter().flatten().count();
        return Ok(format!(
            "{} of {}, each serialized for itself",
            name.escape_ascii(),
            count(elements, "element"),
        ));
    }
    let mut what = String::new();
    for name in [header.type_name()?, header.dtype()?].into_iter().flatten() {
        put(&mut what, format_args!("{} ", Printable(name)));
    }
    if let Some(shape) = header.shape().ok().flatten() {
        let shape: Vec<_> = shape.numbers().flatten().map(|n| n.to_string()).collect();
        put(&mut what, format_args!("shape ({}) ", shape.join(", ")));
    }
    let family = match header.serializer()? {
        Serializer::Dask => "dask",
        Serializer::Pickle => "pickle",
        Serializer::Msgpack => "msgpack",
        Serializer::Error => return Ok("an error: no serializer".to_owned()),
        Serializer::Other(name) => name,
        _ => "unknown",
    };
    put(
        &mut what,
        format_args!("serialized by {}", Printable(family)),
    );
    Ok(what)
}

/// The codec of each frame.
fn codecs(payload: &Payload<'_, &[u8]>) -> Result<Vec<Option<String>>> {
    let Some(list) = payload.header().list("compression")? else {
        return Ok(Vec::new());
    };
    list.codec_names()
        .map(|name| {
            let printable = |name: &[u8]| Printable(&String::from_utf8_lossy(name)).to_string();
            Ok(name?.map(|name| printable(name.as_bytes())))
        })
        .collect()
}

/// Lists the length, role and codec of each frame.
fn frame_table(
    text: &mut String,
    recorded: &Recorded<'_>,
    options: &Options,
    message: &Message<'_, &[u8]>,
) -> Result<()> {
    let frames = &recorded.frames;
    let roles = roles(recorded.layout, message)?;
    let max_count = if options.data {
        frames.len()
    } else {
        MAX_FRAMES
    };
    for (index, frame) in frames.iter().enumerate().take(max_count) {
        let role = roles.get(index).map_or("", String::as_str);
        let role = if role.is_empty() { "not used" } else { role };
        let len = format!("{} B", frame.len());
        put(text, format_args!("  frame {index:<3} {len:>12}  {role}\n"));
        if options.data {
            hex(text, frame);
        }
    }
    if let Some(rest) = frames.get(max_count..).filter(|rest| !rest.is_empty()) {
        let len = rest.iter().map(|frame| frame.len() as u64).sum();
        put(
            text,
            format_args!("  and {}, {}\n", count(rest.len(), "more frame"), size(len)),
        );
    }
    Ok(())
}

/// The role of each frame.
fn roles(layout: Layout, message: &Message<'_, &[u8]>) -> Result<Vec<String>> {
    let mut roles = vec![String::new(); message.frames().len()];
    let mut set = |index: usize, role: String| {
        if let Some(place) = roles.get_mut(index) {
            *place = role;
        }
    };
    match layout {
        Layout::Modern => set(0, "body".into()),
        Layout::Classic => {
            let header = message.frames()[0];
            let body = match body_codec(header)? {
                Some(codec) => {
                    let len = message.body().len() as u64;
                    format!("body, {} compressed by {codec}", size(len))
                }
                None => "body".into(),
            };
            set(0, "header".into());
            set(1, body);
            set(2, "headers of payloads".into());
        }
    }
    for (number, payload) in message.payloads().enumerate() {
        let payload = payload?;
        let first = payload.first_frame();
        if layout == Layout::Modern {
            set(first - 1, format!("header of payload {number}"));
        }
        let codecs = codecs(&payload)?;
        for index in 0..payload.frames().len() {
            let codec = match codecs.get(index) {
                Some(Some(codec)) => format!(", compressed by {codec}"),
                _ => String::new(),
            };
            set(first + index, format!("payload {number}{codec}"));
        }
    }
    Ok(roles)
}

/// The codec of the body, from a classic header.
fn body_codec(header: &[u8]) -> Result<Option<String>> {
    if header.is_empty() {
        return Ok(None);
    }
    let header = tagged(header, Hooks::None, true, 0)?;
    Ok(header
        .get("compression")
        .and_then(Value::as_str)
        .map(|name| Printable(name).to_string()))
}

/// Writes a labelled document, broken into lines.
fn document(text: &mut String, label: &str, document: &[u8], options: &Options) {
    let mut shown = Document::new(document).to_string();
    if !options.data
        && let Some((end, _)) = shown.char_indices().nth(MAX_TEXT)
    {
        shown.truncate(end);
        put(
            &mut shown,
            format_args!("… cut short, {} in all", size(document.len() as u64)),
        );
    }
    let indent = " ".repeat(label.len() + 1);
    put(text, format_args!("{label} "));
    let mut column = indent.len();
    for (index, part) in parts(&shown).enumerate() {
        let len = part.chars().count();
        if index != 0 && column + len > WIDTH {
            // Each part but the last ends with the space after its comma.
            text.truncate(text.trim_end().len());
            put(text, format_args!("\n{indent}"));
            column = indent.len();
        }
        text.push_str(part);
        column += len;
    }
    text.push('\n');
}

/// Splits a document after each comma outside of strings.
fn parts(document: &str) -> impl Iterator<Item = &str> {
    let (mut in_string, mut escaped, mut after_comma) = (false, false, false);
    document.split_inclusive(move |character| {
        let is_end = !in_string && after_comma && character == ' ';
        after_comma = character == ',';
        match character {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
        is_end
    })
}

/// Formats a frame as bytes and ASCII, sixteen per line.
fn hex(text: &mut String, frame: &[u8]) {
    for (line, bytes) in frame.chunks(16).enumerate() {
        put(text, format_args!("    {:06x} ", 16 * line));
        for byte in bytes {
            put(text, format_args!(" {byte:02x}"));
        }
        put(text, format_args!("{:1$}", "", 3 * (16 - bytes.len()) + 2));
        text.extend(bytes.iter().map(|byte| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '.',
        }));
        text.push('\n');
    }
}

/// Formats a size exactly, followed by a rounded one where that is easier to read.
fn size(len: u64) -> String {
    match len {
        0..10_000 => bytes(len),
        _ => format!("{len} B ({})", bytes(len)),
    }
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = text.write_fmt(arguments);
}
