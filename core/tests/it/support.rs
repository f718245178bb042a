//! Access to the recorded messages in `tests/vectors`, and shared test helpers.
#![allow(
    dead_code,
    reason = "each test takes what it needs, and is compiled for itself"
)]
#![allow(unreachable_pub, reason = "a module of several tests")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use daskwire::Limits;
use daskwire::compression::{Codec, CompressionError};
use daskwire::frame::{FramedMessage, Prefix};
use daskwire::message::{
    Layout, Message, MessageError, MessageErrorKind, Payload, ReadOptions, Workspace,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The minimum number of vectors, to detect a missing folder.
const MIN_VECTORS: usize = 750;
const MIN_HOSTILE: usize = 200;

/// Limits that no message of the tests reaches.
pub const LIMITS: Limits = Limits::HOST
    .with_document_len(4 << 20)
    .with_decompressed_len(16 << 20);

/// One recorded message with its meaning, as decoded by the release that wrote
/// it.
pub struct Vector {
    /// Generation and name, as in `PROTOCOL.md`.
    pub name: String,
    pub bytes: Vec<u8>,
    pub json: Value,
}

impl Vector {
    fn load(root: &Path, name: String) -> Self {
        let path = root.join(&name);
        let read = |extension: &str| {
            let path = path.with_file_name(format!(
                "{}.{extension}",
                path.file_name().unwrap_or_default().display()
            ));
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let json = serde_json::from_slice(&read("json"))
            .unwrap_or_else(|error| panic!("{name}.json: {error}"));
        Self {
            bytes: read("bin"),
            json,
            name,
        }
    }

    pub fn generation(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    pub fn layout(&self) -> Layout {
        if self.json["generation"]
            .as_str()
            .unwrap()
            .starts_with("classic")
        {
            Layout::Classic
        } else {
            Layout::Modern
        }
    }

    pub fn prefix(&self) -> Prefix {
        match self.json["prefix"].as_str().unwrap() {
            "none" => Prefix::None,
            _ => Prefix::U64,
        }
    }

    /// The release that wrote the message, in comparable form.
    pub fn release(&self) -> (u32, u32, u32) {
        let mut parts = self.json["version"]
            .as_str()
            .unwrap()
            .split('.')
            .map(|part| part.parse().unwrap());
        let mut next = || parts.next().unwrap_or_default();
        (next(), next(), next())
    }

    /// The options of the release that wrote the message.
    pub fn reading(&self) -> ReadOptions {
        ReadOptions::new(LIMITS)
            .with_sets_and_enums(self.release() >= (2020, 12, 0))
            .with_lengths_optional(self.prefix() == Prefix::U64)
    }

    pub fn frames(&self) -> Vec<&[u8]> {
        let framed = FramedMessage::parse(&self.bytes, self.prefix(), &LIMITS)
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        assert!(framed.rest.is_empty(), "{}", self.name);
        cut(&framed)
    }

    /// The description of the payloads.
    pub fn payloads(&self) -> &[Value] {
        self.json["payloads"].as_array().unwrap()
    }

    /// The codec of a payload, if it is unknown or not in this build.
    pub fn missing_codec(&self, payload: usize) -> Option<Missing> {
        self.payloads()[payload]["compression"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .find_map(|name| match Codec::from_name(name.as_bytes()) {
                None => Some(Missing::Unknown),
                Some(codec) if !codec.is_compiled_in() => Some(Missing::NotCompiledIn(codec)),
                Some(_) => None,
            })
    }

    /// The codec of the body, if this build lacks it.
    pub fn missing_body_codec(&self) -> Option<Codec> {
        let frames = self.frames();
        if self.layout() == Layout::Modern {
            return None;
        }
        [Codec::Lz4, Codec::Snappy, Codec::Zlib, Codec::Zstd]
            .into_iter()
            .find(|codec| {
                let name = codec.name().as_bytes();
                !codec.is_compiled_in() && frames[0].windows(name.len()).any(|part| part == name)
            })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Unknown,
    NotCompiledIn(Codec),
}

impl Missing {
    /// Whether this is the error of a reader without the codec.
    pub fn explains(self, error: &MessageError) -> bool {
        match error.kind {
            MessageErrorKind::UnknownCodec { .. } => self == Self::Unknown,
            MessageErrorKind::Compression(CompressionError::NotCompiledIn { codec }) => {
                self == Self::NotCompiledIn(codec)
            }
            _ => false,
        }
    }
}

/// One hostile message.
pub struct Hostile {
    /// As in `PROTOCOL.md`, without the folder: `nosplit--msg-c1`.
    pub name: String,
    pub bytes: Vec<u8>,
    pub json: Value,
}

impl Hostile {
    pub fn layout(&self) -> Layout {
        if self.name.starts_with("classic") {
            Layout::Classic
        } else {
            Layout::Modern
        }
    }

    pub fn prefix(&self) -> Prefix {
        match self.json["prefix"].as_str().unwrap() {
            "none" => Prefix::None,
            _ => Prefix::U64,
        }
    }

    pub fn level(&self) -> &str {
        self.json["level"].as_str().unwrap()
    }
}

/// The folder of the vectors, from this crate or one in a folder of it.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("tests/vectors"))
        .find(|folder| folder.is_dir())
        .expect("the folder tests/vectors of the crate daskwire")
}

/// The names of all `.bin` files in a folder of the vectors.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("no vectors in {}: {error}", folder.display()));
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".bin").map(Into::into)
        })
        .collect();
    names.sort();
    names
}

/// All recorded messages.
pub fn vectors() -> Vec<Vector> {
    let root = root();
    let entries = std::fs::read_dir(&root)
        .unwrap_or_else(|error| panic!("no vectors in {}: {error}", root.display()));
    let mut generations: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("classic") || name.starts_with("modern"))
        .collect();
    generations.sort();
    let vectors: Vec<Vector> = generations
        .iter()
        .flat_map(|generation| {
            names(&root.join(generation))
                .into_iter()
                .map(move |name| format!("{generation}/{name}"))
        })
        .map(|name| Vector::load(&root, name))
        .collect();
    assert!(
        vectors.len() >= MIN_VECTORS,
        "{} messages in {}, of at least {MIN_VECTORS}",
        vectors.len(),
        root.display()
    );
    vectors
}

/// One recorded message, by generation and name.
pub fn vector(name: &str) -> Vector {
    Vector::load(&root(), name.into())
}

/// All hostile messages.
pub fn hostile() -> Vec<Hostile> {
    let folder = root().join("hostile");
    let hostile: Vec<Hostile> = names(&folder)
        .into_iter()
        .map(|name| {
            let Vector { name, bytes, json } = Vector::load(&folder, name);
            Hostile { name, bytes, json }
        })
        .collect();
    assert!(
        hostile.len() >= MIN_HOSTILE,
        "{} hostile messages in {}, of at least {MIN_HOSTILE}",
        hostile.len(),
        folder.display()
    );
    hostile
}

/// The frames of a message whose prelude has been read.
pub fn cut<'a>(framed: &FramedMessage<'a>) -> Vec<&'a [u8]> {
    let mut frames = vec![&[][..]; framed.prelude.frame_count()];
    framed.prelude.split(framed.frames, &mut frames).unwrap();
    frames
}

/// The memory for opening and walking, reused between messages.
pub struct Workspaces {
    open: Workspace,
    walk: Workspace,
}

impl Workspaces {
    /// Creates buffers large enough for every vector.
    pub fn new() -> Self {
        Self::with(1 << 10, 1 << 13, 2 << 20)
    }

    pub fn with(levels: usize, places: usize, scratch: usize) -> Self {
        Self {
            open: Workspace::fixed(levels, places, scratch),
            walk: Workspace::fixed(levels, 0, 0),
        }
    }

    /// Opens a message and returns it with levels to walk it.
    pub fn open<'a, T: AsRef<[u8]>>(
        &'a mut self,
        frames: &'a [T],
        layout: Layout,
        reading: &ReadOptions,
    ) -> Result<(Message<'a, T>, &'a mut Workspace), MessageError> {
        let message = Message::open(frames, layout, reading, &mut self.open)?;
        Ok((message, &mut self.walk))
    }
}

/// The logical frames of a payload.
pub fn merged<T: AsRef<[u8]>>(payload: &Payload<'_, T>) -> Result<Vec<Vec<u8>>, MessageError> {
    merged_over(payload, 0)
}

/// The logical frames of a payload, merged in a buffer initialised with
/// `poison`.
pub fn merged_over<T: AsRef<[u8]>>(
    payload: &Payload<'_, T>,
    poison: u8,
) -> Result<Vec<Vec<u8>>, MessageError> {
    let mut ends = vec![usize::from(poison); payload.logical_count()?];
    let known = payload.merged_len()?;
    // zlib has no declared length; no vector exceeds this.
    let len = known.map_or(LIMITS.decompressed_len + 1, |len| {
        assert!(len <= 2 * LIMITS.decompressed_len);
        len
    });
    let mut out = vec![poison; usize::try_from(len).unwrap()];
    let frames = payload.merge_into(&mut out, &mut ends)?;
    if let Some(known) = known {
        assert_eq!(frames.bytes().len() as u64, known);
    }
    let frames: Vec<Vec<u8>> = frames.iter().map(<[u8]>::to_vec).collect();
    assert_eq!(frames.len(), ends.len());
    Ok(frames)
}

/// A message as text, with its items and payloads, to compare messages.
pub fn reading_of<T: AsRef<[u8]>>(message: &Message<'_, T>, levels: &mut Workspace) -> Vec<String> {
    let mut walk = message.walk(levels);
    let mut items = Vec::new();
    while let Some(item) = walk.next_item().unwrap() {
        items.push(format!("{item:?}"));
    }
    items
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

/// Whether a frame matches the description `{"len", "sha256"}` of a vector.
pub fn is_frame(frame: &[u8], expected: &Value) -> bool {
    expected["len"] == frame.len() && expected["sha256"] == sha256(frame).as_str()
}

/// Maps every item on all processors and returns the results in order.
pub fn in_parallel<I: Sync, R: Send>(items: &[I], work: impl Fn(&I) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let thread_count = std::thread::available_parallelism().map_or(2, usize::from);
    let mut results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..thread_count)
            .map(|_| {
                scope.spawn(|| {
                    let mut results = Vec::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(item) = items.get(index) else {
                            return results;
                        };
                        results.push((index, work(item)));
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| match thread.join() {
                Ok(results) => results,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect::<Vec<_>>()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A deterministic pseudo-random generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).unwrap()
    }
}
