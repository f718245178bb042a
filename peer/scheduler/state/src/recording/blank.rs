//! Zeros in place of payloads.

use core::ops::Range;

use daskwire::msgpack::{Malformed, Reader, Token};

use crate::record::Writer;

/// The fields of messages whose values are what tasks have made, or what clients store.
const BLANKED: [&str; 9] = [
    "data",
    "exception",
    "exception_text",
    "message",
    "msg",
    "traceback",
    "traceback_text",
    "type",
    "value",
];

/// What of the body of a message is replaced; payloads are in each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blanked {
    Nothing,
    /// The fields that are [`BLANKED`].
    Fields,
    /// All strings and byte strings but `op`.
    All,
}

/// Writes the frames of a message, with zeros in place of payloads.
pub(super) fn frames(to: &mut Writer<'_>, frames: &[&[u8]], blanked: Blanked) {
    to.number(frames.len() as u64);
    let Some((body, rest)) = frames.split_first() else {
        return;
    };
    parts(to, body, &ranges(body, blanked));
    let mut rest = rest.iter();
    while let Some(header) = rest.next() {
        let pickle = pickle_in(&mut Reader::new(header));
        parts(to, header, pickle.as_slice());
        let mut reader = Reader::new(header);
        let count = match reader.find("num-sub-frames") {
            Ok(true) => reader.u64().unwrap_or(0),
            _ => 0,
        };
        for frame in rest
            .by_ref()
            .take(usize::try_from(count).unwrap_or(usize::MAX))
        {
            parts(to, frame, core::slice::from_ref(&(0..frame.len())));
        }
    }
}

/// Where the pickle is in the header of a payload, if it is there.
pub(crate) fn pickle_in(reader: &mut Reader<'_>) -> Option<Range<usize>> {
    let is_there = reader.find("pickled-obj") == Ok(true);
    let pickle = reader.bin().ok().filter(|_| is_there)?;
    Some(before(reader, pickle.len()))
}

/// Writes frames as they are.
pub(super) fn whole_frames(to: &mut Writer<'_>, frames: &[impl AsRef<[u8]>]) {
    to.number(frames.len() as u64);
    for frame in frames {
        parts(to, frame.as_ref(), &[]);
    }
}

/// Writes a frame with zeros in these ranges, which follow each other.
pub(super) fn parts(to: &mut Writer<'_>, frame: &[u8], zeros: &[Range<usize>]) {
    let zeros = zeros.iter().filter(|range| !range.is_empty());
    let mut found = Vec::new();
    let mut at = 0;
    for range in zeros {
        if at < range.start {
            found.push((at..range.start, false));
        }
        found.push((range.clone(), true));
        at = range.end;
    }
    if at < frame.len() {
        found.push((at..frame.len(), false));
    }
    to.number(found.len() as u64);
    for (range, is_zero) in found {
        to.number((range.len() as u64) << 1 | u64::from(is_zero));
        if !is_zero {
            to.raw(&frame[range]);
        }
    }
}

/// The ranges of a body that are replaced.
fn ranges(body: &[u8], blanked: Blanked) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    // Bodies are written by this program, and can be read.
    let _ = match blanked {
        Blanked::Nothing => Ok(()),
        Blanked::All => find(Reader::new(body), body.len(), &mut found),
        Blanked::Fields => find_in_fields(body, &mut found),
    };
    found
}

fn find_in_fields(body: &[u8], found: &mut Vec<Range<usize>>) -> Result<(), Malformed> {
    let mut reader = Reader::new(body);
    for _ in 0..reader.map()? {
        let name = reader.token()?;
        let value = reader;
        reader.skip()?;
        if let Token::Str(name) = name
            && BLANKED.iter().any(|blanked| name == *blanked)
        {
            find(value, reader.position(), found)?;
        }
    }
    Ok(())
}

/// Finds the strings and byte strings up to an offset.
fn find(
    mut reader: Reader<'_>,
    end: usize,
    found: &mut Vec<Range<usize>>,
) -> Result<(), Malformed> {
    // The op of a message names no data.
    let mut is_op = false;
    while reader.position() < end {
        match reader.token()? {
            Token::Bin(bytes) => found.push(before(&reader, bytes.len())),
            Token::Ext(_, bytes) => found.push(before(&reader, bytes.len())),
            Token::Str(text) => {
                let bytes = text.as_bytes();
                // Names by which sets and payloads are recognized.
                let is_mark = bytes.starts_with(b"__") || bytes == b"as-list" || bytes == b"op";
                if !is_mark && !is_op {
                    found.push(before(&reader, bytes.len()));
                }
                is_op = bytes == b"op";
                continue;
            }
            _ => {}
        }
        is_op = false;
    }
    Ok(())
}

/// The range of the last bytes that were read.
fn before(reader: &Reader<'_>, len: usize) -> Range<usize> {
    let end = reader.position();
    end - len..end
}
