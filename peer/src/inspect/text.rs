//! A message as a text for people.

use std::fmt::Write as _;

use daskwire::display::Document;
use daskwire::message::{Layout, Message, Payload, PayloadKind, Serializer, Workspace};

use super::json::{layout_name, merged};
use super::{InspectErrorKind, Options, Recorded};

type Result<T> = std::result::Result<T, InspectErrorKind>;

/// Frames shown one by one; of a longer table the rest is summed up.
const MOST_FRAMES: usize = 24;

/// Characters of a document shown; the rest is counted.
const MOST_TEXT: usize = 2000;

pub(super) fn describe(
    recorded: &Recorded<'_>,
    options: &Options,
    workspace: &mut Workspace,
) -> Result<String> {
    workspace.with_message(
        &recorded.frames,
        recorded.layout,
        &options.reading,
        |message, _levels| whole(recorded, options, message),
    )?
}

fn whole(
    recorded: &Recorded<'_>,
    options: &Options,
    message: Message<'_, &[u8]>,
) -> Result<String> {
    message.check()?;
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
            bytes(recorded.len),
            layout_name(recorded.layout),
            count(frames.len(), "frame"),
        ),
    );
    if let Some(value) = recorded.prefix_value {
        let all = recorded.len - 8;
        let meaning = if value == all {
            "all of it"
        } else {
            "read the rest frame by frame"
        };
        put(
            &mut text,
            format_args!("  leading length {value}: {meaning}\n"),
        );
    }
    put(
        &mut text,
        format_args!("  body  {}\n", clipped(message.body(), options)),
    );
    for (number, payload) in message.payloads().enumerate() {
        describe_payload(&mut text, number, &payload?, options)?;
    }
    let roles = roles(recorded.layout, &message)?;
    for (index, frame) in frames.iter().enumerate().take(MOST_FRAMES) {
        let role = roles.get(index).map_or("", String::as_str);
        put(
            &mut text,
            format_args!(
                "  frame {index:<3} {:>12}  {role}\n",
                bytes(frame.len() as u64)
            ),
        );
    }
    if let Some(rest) = frames.get(MOST_FRAMES..).filter(|rest| !rest.is_empty()) {
        let len = rest.iter().map(|frame| frame.len() as u64).sum();
        put(
            &mut text,
            format_args!(
                "  and {}, {}\n",
                count(rest.len(), "more frame"),
                bytes(len)
            ),
        );
    }
    Ok(text)
}

fn describe_payload(
    text: &mut String,
    number: usize,
    payload: &Payload<'_, &[u8]>,
    options: &Options,
) -> Result<()> {
    let header = payload.header()?;
    let what = match payload.kind() {
        PayloadKind::Pickled => "pickle with its buffers".to_owned(),
        PayloadKind::Serialized => {
            let family = match header.serializer()? {
                Serializer::Dask => "dask",
                Serializer::Pickle => "pickle",
                Serializer::Msgpack => "msgpack",
                Serializer::Error => "error",
                Serializer::Other(name) => name,
                _ => "unknown",
            };
            let mut what = family.to_owned();
            if header.is_collection()? {
                let name = header.type_serialized()?.unwrap_or_default();
                let elements = header.sub_headers()?.into_iter().flatten().count();
                what = format!("{} of {}", name.escape_ascii(), count(elements, "element"));
            }
            for name in [header.type_name()?, header.dtype()?].into_iter().flatten() {
                what.push(' ');
                what.push_str(name);
            }
            if let Some(shape) = header.shape().ok().flatten() {
                let shape: Vec<_> = shape.numbers().flatten().map(|n| n.to_string()).collect();
                what.push_str(&format!(" shape ({})", shape.join(", ")));
            }
            what
        }
    };
    let wire: u64 = payload
        .frames()
        .iter()
        .map(|frame| frame.len() as u64)
        .sum();
    put(
        text,
        format_args!(
            "  payload {number}: {what}; {}, {}",
            count(payload.frames().len(), "frame"),
            bytes(wire),
        ),
    );
    let mut codecs: Vec<String> = Vec::new();
    if let Some(list) = header.compression()? {
        for name in list.codec_names() {
            if let Some(name) = name? {
                let name = String::from_utf8_lossy(name.as_bytes()).into_owned();
                if !codecs.contains(&name) {
                    codecs.push(name);
                }
            }
        }
    }
    if !codecs.is_empty() {
        put(text, format_args!(" compressed by {}", codecs.join(", ")));
    }
    if options.payloads {
        let (data, ends) = merged(payload)?;
        put(
            text,
            format_args!(
                ", {} of data in {}",
                bytes(data.len() as u64),
                count(ends.len(), "logical frame"),
            ),
        );
    }
    text.push('\n');
    put(
        text,
        format_args!("    header {}\n", clipped(payload.header_bytes(), options)),
    );
    Ok(())
}

/// What each frame is for.
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
            set(0, "header".into());
            set(1, "body".into());
            set(2, "headers of payloads".into());
        }
    }
    for (number, payload) in message.payloads().enumerate() {
        let payload = payload?;
        let first = payload.first_frame();
        if layout == Layout::Modern {
            set(first - 1, format!("header of payload {number}"));
        }
        for index in 0..payload.frames().len() {
            set(first + index, format!("payload {number}"));
        }
    }
    Ok(roles)
}

fn clipped(document: &[u8], options: &Options) -> String {
    let text = Document::new(document).to_string();
    if options.data || text.chars().count() <= MOST_TEXT {
        return text;
    }
    let shown: String = text.chars().take(MOST_TEXT).collect();
    format!("{shown}… ({})", bytes(document.len() as u64))
}

pub(crate) fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A size for people: exact below 10 kB, in binary units above.
pub(crate) fn bytes(len: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // for reading, three digits of it
    let scaled = |unit: u32| len as f64 / f64::from(1_u32 << unit);
    match len {
        0..10_000 => format!("{len} B"),
        10_000..0x10_0000 => format!("{:.1} KiB", scaled(10)),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", scaled(20)),
        _ => format!("{:.2} GiB", scaled(30)),
    }
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = text.write_fmt(arguments);
}
