//! Spill files: a message with one payload in wire format, followed by a
//! checksum.
//!
//! ```text
//! u64      number of frames                  (PROTOCOL FRAME-1, without a read hint)
//! u64 ...  length of each frame
//! ...      the frames: body, header, and the unchanged frames of the payload
//! u64      XXH3-64 of all of the above
//! ```
//!
//! All numbers are little-endian. Compressed frames stay compressed.

use core::fmt;
use core::hash::Hasher as _;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use daskwire_comm::BufferPool;
use daskwire_messages::value::Serialized;
use twox_hash::XxHash3_64;

use super::directory::create_private;

/// A complete spill file. The worker removes it when no datum uses it any more.
#[derive(Clone, Debug)]
pub(super) struct SpillFile {
    pub(super) path: PathBuf,
    /// Length of the file in bytes.
    pub(super) len: u64,
    /// The payload's header, which describes it.
    pub(super) header: Bytes,
}

/// The reason why a spill file cannot be used.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The system reported an error.
    Io(io::Error),
    /// The contents differ from what was written.
    Damaged(&'static str),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Damaged(what) => f.write_str(what),
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Self::Damaged("it ends too early");
        }
        Self::Io(error)
    }
}

/// Maximum length of what is written with one system call, in bytes.
const PART_LEN: usize = 1 << 20;

/// Writes a payload unchanged. An incomplete file is removed.
pub(super) fn write(path: &Path, serialized: &Serialized) -> io::Result<SpillFile> {
    let file = create_private(path)?;
    let written = write_to(file, serialized);
    if written.is_err() {
        // The first error is reported; the removal may fail too.
        let _ = fs::remove_file(path);
    }
    Ok(SpillFile {
        path: path.to_owned(),
        len: written?,
        header: Bytes::copy_from_slice(serialized.header()),
    })
}

fn write_to(file: File, serialized: &Serialized) -> io::Result<u64> {
    let frames = serialized.message();
    let mut hasher = XxHash3_64::new();
    // Longer frames bypass the buffer.
    let mut out = BufWriter::with_capacity(32 << 10, file);
    let mut len = 0;
    let mut put = |bytes: &[u8]| {
        len += bytes.len() as u64;
        // In parts, so that the system copies what the checksum has just read.
        bytes.chunks(PART_LEN).try_for_each(|part| {
            hasher.write(part);
            out.write_all(part)
        })
    };
    put(&(frames.len() as u64).to_le_bytes())?;
    for frame in frames {
        put(&(frame.len() as u64).to_le_bytes())?;
    }
    for frame in frames {
        put(frame)?;
    }
    out.write_all(&hasher.finish().to_le_bytes())?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(len.saturating_add(8))
}

/// Minimum length of a frame that is read into memory of a pool, in bytes.
const MIN_POOLED: usize = 1 << 20;

/// Reads a payload, each frame into its own allocation, or into memory of the pool.
pub(super) fn read(file: &SpillFile, pool: Option<&BufferPool>) -> Result<Serialized, ReadError> {
    let open = File::open(&file.path)?;
    if open.metadata()?.len() != file.len {
        return Err(ReadError::Damaged("its length differs"));
    }
    let mut input = Hashing {
        input: BufReader::with_capacity(32 << 10, open),
        hasher: XxHash3_64::new(),
        left: file.len,
    };
    let count = input.number()?;
    // Refuse counts for which the file is too short, before allocating.
    if count > file.len / 8 {
        return Err(ReadError::Damaged("its number of frames is wrong"));
    }
    let lengths = (0..count).map(|_| input.number());
    let lengths: Vec<u64> = lengths.collect::<Result<_, _>>()?;
    let mut frames = Vec::with_capacity(lengths.len());
    for len in lengths {
        frames.push(input.frame(len, pool)?);
    }
    let sum = input.hasher.finish();
    if input.number()? != sum || input.left != 0 {
        return Err(ReadError::Damaged("its checksum differs"));
    }
    Serialized::of_message(frames).ok_or(ReadError::Damaged("it is not a payload"))
}

struct Hashing<R> {
    input: R,
    hasher: XxHash3_64,
    /// Number of bytes of the file that are not read yet.
    left: u64,
}

impl<R: Read> Hashing<R> {
    fn number(&mut self) -> Result<u64, ReadError> {
        let mut bytes = [0; 8];
        self.input.read_exact(&mut bytes)?;
        self.hasher.write(&bytes);
        self.left = self.left.saturating_sub(8);
        Ok(u64::from_le_bytes(bytes))
    }

    fn frame(&mut self, len: u64, pool: Option<&BufferPool>) -> Result<Bytes, ReadError> {
        let too_long = ReadError::Damaged("the length of a frame is wrong");
        let Ok(capacity) = usize::try_from(len) else {
            return Err(too_long);
        };
        if len > self.left {
            return Err(too_long);
        }
        let frame = match pool.filter(|_| capacity >= MIN_POOLED) {
            Some(pool) => pool.fill(capacity, |frame| {
                self.input.read_exact(frame).map_err(ReadError::from)
            })?,
            None => {
                // Uninitialized capacity, so that the memory is not zeroed first.
                let mut frame = Vec::with_capacity(capacity);
                let read = (&mut self.input).take(len).read_to_end(&mut frame)?;
                if read != capacity {
                    return Err(ReadError::Damaged("it ends too early"));
                }
                frame.into()
            }
        };
        self.hasher.write(&frame);
        self.left -= len;
        Ok(frame)
    }
}
