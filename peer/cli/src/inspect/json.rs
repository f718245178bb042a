//! Messages as JSON documents.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use daskwire::message::{
    Item, Layout, Message, PathElement, Payload, PayloadKind, Walk, Workspace,
};
use daskwire::msgpack::{Reader, Token};
use serde_json::{Map, Value, json};

use super::tagged::{Builder, digest};
use super::{Hooks, InspectErrorKind, Options, Recorded, TaggedError, tagged};

type Result<T> = std::result::Result<T, InspectErrorKind>;

impl From<daskwire::message::MessageError> for InspectErrorKind {
    fn from(error: daskwire::message::MessageError) -> Self {
        Self::Message(error)
    }
}

impl From<TaggedError> for InspectErrorKind {
    fn from(error: TaggedError) -> Self {
        Self::Tagged(error)
    }
}

/// The document of a message, with its keys in the order of the format's
/// description.
pub(super) fn document(
    recorded: &Recorded<'_>,
    options: &Options,
    workspace: &mut Workspace,
) -> Result<Value> {
    let (frames, layout) = (&recorded.frames, recorded.layout);
    let message = Message::open(frames, layout, &options.reading, workspace)?;
    whole(recorded, options, message)
}

fn whole(recorded: &Recorded<'_>, options: &Options, message: Message<'_, &[u8]>) -> Result<Value> {
    message.check()?;
    if options.payloads {
        message.decompressed_len()?;
    }
    let mut paths = Paths::new(&message, usize::MAX);
    let body = body(&message, options, &mut paths)?;
    let payloads = message
        .payloads()
        .zip(paths.paths)
        .map(|(payload, path)| self::payload(payload?, path, options))
        .collect::<Result<Vec<_>>>()?;

    let mut document = Map::new();
    document.insert("offset".into(), recorded.offset.into());
    document.insert("layout".into(), layout_name(recorded.layout).into());
    match recorded.prefix_value {
        Some(value) => {
            document.insert("prefix".into(), "u64".into());
            document.insert("prefix_value".into(), value.into());
        }
        None => {
            document.insert("prefix".into(), "none".into());
        }
    }
    let frames = recorded.frames.iter().map(|frame| shown(frame, options));
    document.insert("frames".into(), frames.collect::<Vec<_>>().into());
    document.insert("message".into(), body);
    document.insert("payloads".into(), payloads.into());
    Ok(Value::Object(document))
}

pub(super) const fn layout_name(layout: Layout) -> &'static str {
    match layout {
        Layout::Classic => "classic",
        Layout::Modern => "modern",
    }
}

fn shown(frame: &[u8], options: &Options) -> Value {
    let mut value = digest(frame);
    if options.data
        && let Value::Object(map) = &mut value
    {
        map.insert("bytes".into(), BASE64.encode(frame).into());
    }
    value
}

/// The paths of payloads in the body, in the order of the payloads. `null` for a path that
/// is not collected.
pub(super) struct Paths {
    pub(super) paths: Vec<Value>,
    /// The cost of the paths that may still be collected. All payloads may be at the same
    /// place far down in the body, and their paths would take much more memory than the
    /// message.
    budget: usize,
}

impl Paths {
    /// The cost of paths for each byte of the body, several times that of Dask's messages,
    /// and for any body.
    const COST: (usize, usize) = (16, 1 << 16);

    /// Collects the paths of up to `max_count` payloads.
    pub(super) fn new(message: &Message<'_, &[u8]>, max_count: usize) -> Self {
        let (per_byte, base) = Self::COST;
        let budget = message.body().len().saturating_mul(per_byte);
        Self {
            paths: vec![Value::Null; message.payload_count().min(max_count)],
            budget: budget.saturating_add(base),
        }
    }

    fn collect(&mut self, payload: usize, walk: &Walk<'_, '_>, own: Option<&[u8]>) -> Result<()> {
        let Some(place) = self.paths.get_mut(payload) else {
            return Ok(());
        };
        if let Some(path) = own {
            *place = classic_path(path)?;
            return Ok(());
        }
        let mut elements = Vec::new();
        for element in walk.path() {
            let cost = match element {
                PathElement::Key(key) => key.len(),
                PathElement::Index(_) => 0,
            };
            match self
                .budget
                .checked_sub(cost.saturating_add(size_of::<Value>()))
            {
                Some(left) => self.budget = left,
                None => {
                    self.budget = 0;
                    return Ok(());
                }
            }
            elements.push(match element {
                PathElement::Key(key) => tagged(key, Hooks::SetsAndEnums, true, 0)?,
                PathElement::Index(index) => index.into(),
            });
        }
        *place = elements.into();
        Ok(())
    }
}

/// The body as a tree. Collects the paths of the payloads in it.
pub(super) fn body(
    message: &Message<'_, &[u8]>,
    options: &Options,
    paths: &mut Paths,
) -> Result<Value> {
    // The walk yields sets and enum members as items, so the builder needs no hooks.
    let mut builder = Builder::new(Hooks::None, options.data);
    let mut workspace = Workspace::new();
    let mut walk = message.walk(&mut workspace);
    loop {
        let Some(item) = walk.next_item()? else {
            return Err(InspectErrorKind::Empty);
        };
        if let Item::Payload(number) = item {
            paths.collect(number, &walk, message.payload(number)?.path())?;
        }
        let frame = match message.layout() {
            Layout::Modern => 0,
            Layout::Classic => 1,
        };
        let whole = builder
            .item(item)
            .map_err(|fault| TaggedError { frame, fault })?;
        if let Some(value) = whole {
            return Ok(value);
        }
    }
}

fn classic_path(path: &[u8]) -> Result<Value> {
    let value = tagged(path, Hooks::None, true, 2)?;
    Ok(match Reader::new(path).token() {
        Ok(Token::Array(_)) => value,
        _ => json!([value]),
    })
}

fn payload(payload: Payload<'_, &[u8]>, path: Value, options: &Options) -> Result<Value> {
    let hooks = match (payload.layout(), payload.kind()) {
        (Layout::Modern, PayloadKind::Serialized) if options.reading.sets_and_enums => {
            Hooks::SetsAndEnums
        }
        _ => Hooks::None,
    };
    let frame = match payload.layout() {
        Layout::Modern => payload.first_frame().saturating_sub(1),
        Layout::Classic => 2,
    };
    let header = tagged(payload.header_bytes(), hooks, options.data, frame)?;
    let compression = match payload.header().list("compression")? {
        Some(list) => list
            .map(|value| tagged(value, Hooks::None, true, frame))
            .collect::<std::result::Result<Vec<_>, _>>()?,
        None => Vec::new(),
    };
    let frames: Vec<Value> = if options.payloads {
        let (bytes, ends) = merged(&payload)?;
        let mut start = 0;
        ends.iter()
            .map(|&end| {
                let frame = &bytes[start..end];
                start = end;
                shown(frame, options)
            })
            .collect()
    } else {
        payload
            .frames()
            .iter()
            .map(|frame| shown(frame, options))
            .collect()
    };
    let kind = match payload.kind() {
        PayloadKind::Serialized => "serialized",
        PayloadKind::Pickled => "pickled",
    };
    let mut document = Map::new();
    document.insert("path".into(), path);
    document.insert("kind".into(), kind.into());
    document.insert("header".into(), header);
    document.insert("frames".into(), frames.into());
    document.insert("compression".into(), compression.into());
    if let Some(bytestring) = payload.bytestring() {
        document.insert("bytestring".into(), bytestring.into());
    }
    Ok(Value::Object(document))
}

/// Concatenates the logical frames of a payload; returns the bytes and the end of
/// each frame.
pub(super) fn merged(payload: &Payload<'_, &[u8]>) -> Result<(Vec<u8>, Vec<usize>)> {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    payload.merge_onto(&mut bytes, &mut ends)?;
    Ok((bytes, ends))
}
