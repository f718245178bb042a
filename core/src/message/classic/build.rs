//! The payload header of a classic message that is built.

use crate::message::BuildError;
use crate::message::builder::narrow;
use crate::message::level::{Level, Nesting};
use crate::message::slot::offset;
use crate::msgpack::{Reader, Token, Writer};

/// Storage for one payload until the body is complete; only used for the
/// classic layout.
#[derive(Clone, Copy, Debug)]
pub struct Pending<'a> {
    /// Offset of the nil in the body that the payload replaces.
    pub(in crate::message) at: u32,
    pub(in crate::message) header: &'a [u8],
    pub(in crate::message) bytestring: bool,
}

impl Pending<'_> {
    /// An unused entry, to initialise arrays.
    pub const EMPTY: Self = Self {
        at: 0,
        header: &[],
        bytestring: false,
    };
}

/// Writes `headers`, `keys` and `bytestrings` of a classic message.
pub(in crate::message) fn write_payload_header(
    writer: &mut Writer<'_>,
    body: &[u8],
    pending: &[Pending<'_>],
    levels: &mut [Level],
) -> Result<(), BuildError> {
    let count = narrow(pending.len());
    writer.map(3).str("headers").map(count);
    for_each_path(body, pending, levels, |path, pending| {
        write_path(writer, body, path);
        writer.encoded(pending.header);
    })?;
    writer.str("keys").array(count);
    for_each_path(body, pending, levels, |path, _| {
        write_path(writer, body, path);
    })?;
    let bytestring_count = pending.iter().filter(|pending| pending.bytestring).count();
    writer.str("bytestrings").array(narrow(bytestring_count));
    for_each_path(body, pending, levels, |path, pending| {
        if pending.bytestring {
            write_path(writer, body, path);
        }
    })
}

fn write_path(writer: &mut Writer<'_>, body: &[u8], path: &[Level]) {
    writer.array(narrow(path.len()));
    for level in path {
        match level.nesting {
            Nesting::Map => {
                let key = body.get(level.key as usize..).unwrap_or_default();
                writer.encoded(Reader::new(key).skip().unwrap_or_default());
            }
            _ => {
                writer.u64(u64::from(level.index().wrapping_sub(1)));
            }
        }
    }
}

/// Scans a body written by the builder and calls `found` for each payload with
/// the levels of its path.
fn for_each_path<'p, 'a>(
    body: &[u8],
    pending: &'p [Pending<'a>],
    levels: &mut [Level],
    mut found: impl FnMut(&[Level], &'p Pending<'a>),
) -> Result<(), BuildError> {
    let mut reader = Reader::new(body);
    let mut pending = pending;
    let mut depth = 0_usize;
    while !pending.is_empty() {
        let at = offset(reader.position());
        let token = reader.token().map_err(|_| BuildError::Entry)?;
        if let Some(level) = depth.checked_sub(1).and_then(|top| levels.get_mut(top)) {
            if level.next_is_key() {
                level.key = at;
            }
            level.owed = level.owed.wrapping_sub(1);
        }
        while let Some((payload, after)) = pending.split_first()
            && payload.at == at
        {
            pending = after;
            found(levels.get(..depth).unwrap_or_default(), payload);
        }
        let child_count = u32::try_from(token.child_count()).unwrap_or(u32::MAX);
        if child_count != 0 {
            let nesting = match token {
                Token::Map(_) => Nesting::Map,
                _ => Nesting::Array,
            };
            let available = levels.len();
            let level = levels
                .get_mut(depth)
                .ok_or(BuildError::TooFewLevels { available })?;
            *level = Level::new(nesting, at, child_count, (0, 0));
            depth = depth.saturating_add(1);
        }
        while let Some(top) = depth.checked_sub(1)
            && levels.get(top).is_some_and(|level| level.owed == 0)
        {
            depth = top;
        }
    }
    Ok(())
}
