//! The payload header of a classic message that is built.

use crate::BufferTooSmall;
use crate::invariant::OrDefaultIfBug as _;
use crate::message::BuildError;
use crate::message::builder::narrow;
use crate::message::level::{Container, Level, Nesting};
use crate::message::scratch::Storage;
use crate::message::slot::{Slot, offset};
use crate::msgpack::{Reader, Writer};

/// Writes `headers`, `keys` and `bytestrings` of a classic message.
pub(in crate::message) fn write_payload_header(
    writer: &mut Writer<'_>,
    body: &[u8],
    payloads: &[Slot],
    headers: &[&[u8]],
    levels: &mut Storage<'_, Level>,
) -> Result<(), BuildError> {
    let count = narrow(payloads.len());
    writer.map(3).str("headers").map(count);
    for_each_path(body, payloads, headers, levels, |path, header, _| {
        write_path(writer, body, path);
        writer.encoded(header);
    })?;
    writer.str("keys").array(count);
    for_each_path(body, payloads, headers, levels, |path, _, _| {
        write_path(writer, body, path);
    })?;
    let bytestring_count = payloads.iter().filter(|slot| slot.is_bytestring()).count();
    writer.str("bytestrings").array(narrow(bytestring_count));
    for_each_path(body, payloads, headers, levels, |path, _, is_bytestring| {
        if is_bytestring {
            write_path(writer, body, path);
        }
    })
}

fn write_path(writer: &mut Writer<'_>, body: &[u8], path: &[Level]) {
    writer.array(narrow(path.len()));
    for level in path {
        let Level::Path(container) = level else {
            continue;
        };
        match container.nesting {
            Nesting::Map => writer.encoded(container.key(body)),
            _ => writer.u64(u64::from(container.index().wrapping_sub(1))),
        };
    }
}

/// Scans a body written by the builder and calls `found` for each payload with
/// the levels of its path, its header, and whether it is plain bytes. The headers
/// are in reverse order.
fn for_each_path(
    body: &[u8],
    payloads: &[Slot],
    headers: &[&[u8]],
    levels: &mut Storage<'_, Level>,
    mut found: impl FnMut(&[Level], &[u8], bool),
) -> Result<(), BuildError> {
    let mut reader = Reader::new(body);
    let mut payloads = payloads.iter().zip(headers.iter().rev()).peekable();
    let mut depth = 0_usize;
    while payloads.peek().is_some() {
        let at = offset(reader.position());
        let token = reader.token().map_err(|_| BuildError::Entry)?;
        if let Some(Level::Path(container)) = Level::innermost(levels.as_mut(), depth) {
            if container.next_is_key() {
                container.key = at;
            }
            container.owed = container.owed.wrapping_sub(1);
        }
        while let Some(&(slot, header)) = payloads.peek()
            && slot.start() == at
        {
            payloads.next();
            let path = levels.as_slice().get(..depth).or_default_if_bug();
            found(path, header, slot.is_bytestring());
        }
        let container = Container::of(token);
        if container.count != 0 {
            let Some(level) = levels.at(depth) else {
                let available = depth;
                let needed = Reader::new(body).levels();
                let needed = needed.map_err(|_| BuildError::Entry)?;
                let short = BufferTooSmall { needed, available };
                return Err(BuildError::TooFewLevels(short));
            };
            *level = Level::Path(container);
            depth = depth.saturating_add(1);
        }
        while let Some(Level::Path(container)) = Level::innermost(levels.as_mut(), depth)
            && container.owed == 0
        {
            depth = depth.saturating_sub(1);
        }
    }
    Ok(())
}
