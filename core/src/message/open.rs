//! Opening of a message: one pass over its body that validates and records all
//! references.

use super::classic::{self, ClassicHeader};
use super::level::{Container, Level, Nesting, Reserved, ScanLevel};
use super::modern::{placeholder, set_frame_limits};
use super::scratch::{ScratchRef, Storage};
use super::slot::{Slot, Table, offset, sort, span};
use super::{CodecName, Layout, Message, MessageError, MessageErrorKind, ReadOptions};
use crate::BufferTooSmall;
use crate::compression::Codec;
use crate::invariant::OrDefaultIfBug as _;
use crate::msgpack::{MalformedKind, Reader, Token};

impl<'a, T: AsRef<[u8]>> Message<'a, T> {
    /// Opens a message from its frames.
    ///
    /// Reads the body once, and in the classic layout the payload header;
    /// payloads are not read. `scratch` is a `&mut` [`Scratch`](super::Scratch),
    /// or with feature `alloc` a `&mut Workspace`.
    ///
    /// # Errors
    ///
    /// * a fault in the body, a placeholder or a path;
    /// * [`MessageErrorKind::FramesShared`] if two placeholders refer to the
    ///   same frame;
    /// * [`MessageErrorKind::WrongLayout`] if the message seems to have the
    ///   other layout;
    /// * [`MessageErrorKind::TooFewLevels`], [`MessageErrorKind::TooFewSlots`]
    ///   or [`MessageErrorKind::BodyBuffer`] if the scratch is too small. They
    ///   say what is enough.
    pub fn open(
        frames: &'a [T],
        layout: Layout,
        options: &ReadOptions,
        scratch: impl Into<ScratchRef<'a>>,
    ) -> Result<Self, MessageError> {
        Self::open_in(frames, layout, options, scratch.into())
    }

    fn open_in(
        frames: &'a [T],
        layout: Layout,
        options: &ReadOptions,
        scratch: ScratchRef<'a>,
    ) -> Result<Self, MessageError> {
        let ScratchRef {
            mut levels,
            mut slots,
            body: storage,
        } = scratch;
        let mut payload_header = None;
        let (body_frame, body) = match layout {
            // PROTOCOL MODERN-1
            Layout::Modern => {
                let body = frames.first().ok_or(no_body(0))?.as_ref();
                // The header of the classic layout; no body begins like this.
                let after = body.strip_prefix(b"\x81\xabcompression");
                let is_header = body.is_empty() || matches!(after, Some([0xa0..=0xbf, ..]));
                if is_header && frames.len() > 1 {
                    let likely = Layout::Classic;
                    let kind = MessageErrorKind::WrongLayout { likely };
                    return Err(MessageError::new(0, 0, kind));
                }
                (0, body)
            }
            Layout::Classic if !layout.is_classic() => {
                let kind = MessageErrorKind::NotCompiledIn { layout };
                return Err(MessageError::new(0, 0, kind));
            }
            Layout::Classic => {
                let body = classic::open_body(frames, options, storage)?;
                payload_header = ClassicHeader::parse(frames, options)?;
                (1, body)
            }
        };
        check_len(body_frame, body, options)?;
        #[cfg(feature = "alloc")]
        if layout == Layout::Modern && is_plain(body, options, levels.as_mut().len()) {
            return Ok(Self {
                layout,
                frames,
                body,
                payloads: &[],
                specials: &[],
                options: *options,
            });
        }
        let mut path_count = 0;
        let mut table = Table::new(&mut slots, 0);
        if let Some(payload_header) = &payload_header {
            if table.slots.reserve(payload_header.header_count) {
                path_count = payload_header.store_payloads(frames, table.slots.as_mut())?;
                table.count = path_count;
            } else {
                // Continue only to determine the number of slots needed.
                table.count = payload_header.key_count;
            }
            table.max_count = payload_header.header_count.max(table.count);
        }
        Scan {
            layout,
            options,
            frame: body_frame,
            frame_count: frames.len(),
            body,
            paths: frames.get(2).map(AsRef::as_ref).unwrap_or_default(),
            path_count,
        }
        .run(&mut levels, &mut table)?;

        table.check().map_err(|short| {
            MessageError::new(body_frame, 0, MessageErrorKind::TooFewSlots(short))
        })?;
        table.pack();
        let count = table.count;
        let slots = slots.into_slice().get_mut(..count).or_default_if_bug();
        // In the order of the body, and new entries of a map in that of `keys`.
        sort(slots, &|a, b| {
            let key = |slot: &Slot| {
                let number = slot.path().map_or(0, |entry| entry.number);
                (slot.is_special(), slot.start(), number)
            };
            key(a).cmp(&key(b))
        });
        if layout.is_classic() {
            classic::set_numbers(slots);
        }
        let payload_count = slots
            .iter()
            .position(|slot| slot.is_special())
            .unwrap_or(count);
        if layout == Layout::Modern
            && let Some(placeholders) = slots.get_mut(..payload_count)
        {
            set_frame_limits(placeholders, frames.len())?;
        }
        let slots: &'a [Slot] = slots;
        let (payloads, specials) = slots.split_at_checked(payload_count).or_default_if_bug();
        Ok(Self {
            layout,
            frames,
            body,
            payloads,
            specials,
            options: *options,
        })
    }
}

pub(super) const fn no_body(frame: usize) -> MessageError {
    MessageError::new(frame, 0, MessageErrorKind::NoBody)
}

/// Checks the length of a document, which must fit in a `u32` regardless of the
/// limit.
pub(super) fn check_len(
    frame: usize,
    document: &[u8],
    options: &ReadOptions,
) -> Result<(), MessageError> {
    let limit = options.limits.document_len.min(u64::from(u32::MAX));
    let len = document.len() as u64;
    if len > limit {
        let kind = MessageErrorKind::DocumentTooLong { len, limit };
        return Err(MessageError::new(frame, 0, kind));
    }
    Ok(())
}

/// Parses a value of a `compression` entry: nil and false mean none
/// (PROTOCOL COMPRESS-5, COMPRESS-6).
pub(super) fn codec_entry(value: &[u8]) -> Result<Option<Codec>, MessageErrorKind> {
    let mut reader = Reader::new(value);
    match reader.token() {
        Ok(Token::Nil | Token::Bool(false)) => Ok(None),
        Ok(Token::Str(name)) => match Codec::from_name(name.as_bytes()) {
            None => Err(MessageErrorKind::UnknownCodec {
                name: CodecName::new(name.as_bytes()),
            }),
            codec => Ok(codec),
        },
        _ => Err(MessageErrorKind::EntryKind {
            key: "compression",
            expected: "nil or the name of a codec",
        }),
    }
}

/// Whether a body of the modern layout is valid, and has no map with a reserved key, so that there is
/// nothing to record. Most messages between members of a cluster are such, and this takes a fraction
/// of the time of a [`Scan`], which finds the reason otherwise.
#[cfg(feature = "alloc")]
fn is_plain(body: &[u8], options: &ReadOptions, level_count: usize) -> bool {
    /// Messages have fewer levels.
    const DEPTH: usize = 8;
    let mut reader = Reader::with_limits(body, &options.limits);
    let max_depth = level_count.min(options.limits.depth as usize);
    // The containers around the innermost one: the values that have not begun, and whether it is a map.
    let mut outer = [(0_u32, false); DEPTH];
    let mut depth = 0_usize;
    let (mut owed, mut is_map) = (1_u32, false);
    loop {
        // Most tokens are short strings.
        let token = match reader.short_str() {
            Some(string) => Token::Str(string),
            None => match reader.token() {
                Ok(token) => token,
                Err(_) => return false,
            },
        };
        match token {
            Token::Str(string) => {
                let is_key = is_map && owed & 1 == 0;
                if string.check().is_err() || is_key && string.as_bytes().starts_with(b"__") {
                    return false;
                }
                owed = owed.wrapping_sub(1);
            }
            Token::Array(1..) | Token::Map(1..) => {
                let place = outer.get_mut(depth).filter(|_| depth < max_depth);
                let (Some(place), Ok(count)) = (place, u32::try_from(token.child_count())) else {
                    return false;
                };
                *place = (owed.wrapping_sub(1), is_map);
                depth = depth.saturating_add(1);
                (owed, is_map) = (count, matches!(token, Token::Map(_)));
            }
            _ => owed = owed.wrapping_sub(1),
        }
        while owed == 0 {
            depth = match depth.checked_sub(1) {
                Some(depth) => depth,
                None => return reader.is_empty(),
            };
            (owed, is_map) = outer.get(depth).copied().or_default_if_bug();
        }
    }
}

/// One pass over a body.
pub(super) struct Scan<'s> {
    layout: Layout,
    options: &'s ReadOptions,
    frame: usize,
    frame_count: usize,
    pub(super) body: &'s [u8],
    /// The payload header, which has the paths.
    pub(super) paths: &'s [u8],
    path_count: usize,
}

impl Scan<'_> {
    fn fault(&self, at: usize, kind: MessageErrorKind) -> MessageError {
        MessageError::new(self.frame, at, kind)
    }

    fn run(
        &self,
        levels: &mut Storage<'_, Level>,
        table: &mut Table<'_, '_>,
    ) -> Result<(), MessageError> {
        let malformed = MessageError::malformed(self.frame);
        let mut reader = Reader::with_limits(self.body, &self.options.limits);
        let mut depth = 0_usize;
        loop {
            let at = reader.position();
            let token = reader.token().map_err(&malformed)?;
            if let Token::Str(string) = token
                && let Err(error) = string.check()
            {
                let kind = MalformedKind::NotUtf8 {
                    valid_len: error.valid_up_to(),
                };
                return Err(self.fault(at, MessageErrorKind::Malformed(kind)));
            }
            let mut in_key = false;
            // The payloads whose paths lead through this value.
            let below = match Level::innermost(levels.as_mut(), depth) {
                Some(Level::Scan(level)) => {
                    let is_key = level.container.next_is_key();
                    in_key = level.in_key || is_key;
                    if is_key {
                        level.end_list(table.count);
                        level.container.key = offset(at);
                        level.reserved = Reserved::of(token);
                    } else {
                        level.note_value(at, token, table.count);
                    }
                    let below =
                        if !self.layout.is_classic() || level.below.0 == level.below.1 || is_key {
                            (0, 0)
                        } else {
                            let slots = table.slots.as_mut();
                            self.below(&level.container, level.below, (at, depth), slots)?
                        };
                    level.container.owed = level.container.owed.wrapping_sub(1);
                    below
                }
                _ => (0, self.path_count),
            };
            let below = match self.layout.is_classic() {
                true => self.resolve(token, below, (at, depth), table.slots.as_mut())?,
                false => (0, 0),
            };
            let container = Container::of(token);
            // An empty map with payloads to insert is a level for the walk.
            if container.count != 0 || below.0 != below.1 {
                if depth as u64 >= u64::from(self.options.limits.depth) {
                    let kind = MalformedKind::TooDeep {
                        limit: self.options.limits.depth,
                    };
                    return Err(self.fault(at, MessageErrorKind::Malformed(kind)));
                }
                let Some(level) = levels.at(depth) else {
                    return Err(self.too_few_levels(at, depth, table));
                };
                *level = Level::Scan(ScanLevel {
                    container,
                    start: offset(at),
                    below,
                    first_slot: table.count,
                    in_key,
                    ..ScanLevel::default()
                });
                depth = depth.saturating_add(1);
            }
            // Close the complete containers.
            while let Some(Level::Scan(level)) = Level::innermost(levels.as_mut(), depth)
                && level.container.owed == 0
            {
                level.end_list(table.count);
                self.close(level, reader.position(), table)?;
                let below = level.below;
                depth = depth.saturating_sub(1);
                if below.0 != below.1
                    && let Some(Level::Scan(outer)) = Level::innermost(levels.as_mut(), depth)
                {
                    classic::leave(table.slots.as_mut(), below, outer.container.key);
                }
            }
            if depth == 0 {
                break;
            }
        }
        reader.finish().map_err(&malformed)?;
        let slots = table.slots.as_slice();
        let mut paths = slots.iter().take(self.path_count);
        let missing = |slot: &Slot| slot.path().is_some_and(|entry| !entry.resolved);
        match paths.position(missing) {
            Some(payload) => Err(classic::path_missing(slots, payload)),
            None => Ok(()),
        }
    }

    /// The error for a body that is nested deeper than there are levels.
    #[cold]
    #[inline(never)]
    fn too_few_levels(&self, at: usize, available: usize, table: &Table<'_, '_>) -> MessageError {
        let body = Reader::with_limits(self.body, &self.options.limits);
        let needed = match body.levels() {
            Ok(needed) => needed,
            Err(error) => return MessageError::malformed(self.frame)(error),
        };
        let paths = table.slots.as_slice().iter().take(self.path_count);
        let needed = paths
            .filter_map(|slot| slot.path())
            .map(|entry| classic::Elements::new(span(self.paths, entry.path)).len())
            .fold(needed, usize::max);
        let short = BufferTooSmall { needed, available };
        self.fault(at, MessageErrorKind::TooFewLevels(short))
    }

    /// Records a container after its last value.
    fn close(
        &self,
        level: &ScanLevel,
        end: usize,
        table: &mut Table<'_, '_>,
    ) -> Result<(), MessageError> {
        if level.container.nesting != Nesting::Map || !level.is_special() {
            return Ok(());
        }
        let (start, end) = (level.start, offset(end));
        let fault = |kind| self.fault(start as usize, kind);
        // PROTOCOL BODY-2: in this order. PROTOCOL CLASSIC-13: no placeholders
        // in classic, where `true` marks an inline payload, which remains a map
        // in the body (PROTOCOL BODY-5).
        if !self.layout.is_classic()
            && let Some(location) = placeholder(level, end, self.frame_count).map_err(fault)?
        {
            table.count = level.first_slot;
            table.push(location);
        } else if !self.options.sets_and_enums {
        } else if level.below.0 != level.below.1 && (level.is_enum || level.is_set) {
            // PROTOCOL CLASSIC-5: Dask reads the value before it follows paths.
            return Err(classic::path_missing(table.slots.as_slice(), level.below.0));
        } else if level.is_enum {
            // PROTOCOL BODY-4
            if level.names != [true; 3] {
                return Err(fault(MessageErrorKind::EnumWithoutName));
            }
            table.count = level.first_slot;
            table.push(Slot::Enum { start, end });
        } else if level.is_set {
            // PROTOCOL BODY-3
            let list = level.list.ok_or(fault(MessageErrorKind::SetWithoutList))?;
            // Other contents of the set are dropped.
            table.retain(level.first_slot, level.list_slots.0..level.list_slots.1);
            table.push(Slot::Set { start, end, list });
        }
        Ok(())
    }
}
