//! The payload header of a classic message that is built.

use crate::invariant::Ensured as _;
use crate::message::BuildError;
use crate::message::builder::narrow;
use crate::message::level::{Container, Job, Level, Nesting};
use crate::message::slot::offset;
use crate::msgpack::{Reader, Writer};

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
        let Level(Job::Path(container)) = level else {
            continue;
        };
        match container.nesting {
            Nesting::Map => writer.encoded(container.key(body)),
            _ => writer.u64(u64::from(container.index().wrapping_sub(1))),
        };
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
        if let Some(container) = Level::path(levels, depth) {
            if container.next_is_key() {
                container.key = at;
            }
            container.owed = container.owed.wrapping_sub(1);
        }
        while let Some((payload, after)) = pending.split_first()
            && payload.at == at
        {
            pending = after;
            found(levels.get(..depth).ensured(), payload);
        }
        let container = Container::of(token);
        if container.count != 0 {
            let available = levels.len();
            let level = levels
                .get_mut(depth)
                .ok_or(BuildError::TooFewLevels { available })?;
            *level = Level(Job::Path(container));
            depth = depth.saturating_add(1);
        }
        while Level::path(levels, depth).is_some_and(|container| container.owed == 0) {
            depth = depth.saturating_sub(1);
        }
    }
    Ok(())
}
