//! Iteration over the body of a message.

use super::classic::Elements;
use super::level::{Container, Level, Nesting, VALIDATED, WalkLevel};
use super::scratch::Storage;
use super::slot::{Slot, offset, span};
use super::{EnumMember, Item, Layout, Message, MessageError, MessageErrorKind, PathElement};
use crate::BufferTooSmall;
use crate::invariant::OrDefaultIfBug as _;
use crate::msgpack::{Reader, Token};

/// Iterator over the items of a message's body.
///
/// Created by [`Message::walk`]. The cost is a scan of the body, independent of
/// the size of the payloads, which are not read.
#[derive(Debug)]
pub struct Walk<'a, 'w> {
    message: Source<'a>,
    reader: Reader<'a>,
    levels: Storage<'w, Level>,
    depth: usize,
    state: State<'a>,
    /// The next payload and the next set or enum member, in the order of the body.
    next_payload: usize,
    next_special: usize,
}

/// The parts of a message that a walk reads.
#[derive(Clone, Copy, Debug)]
struct Source<'a> {
    layout: Layout,
    body: &'a [u8],
    payloads: &'a [Slot],
    specials: &'a [Slot],
    /// The payload header of the classic layout, which has the paths.
    paths: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
enum State<'a> {
    Start,
    Body,
    /// Within the key of a payload that is not in the body.
    Key {
        reader: Reader<'a>,
        owed: u64,
        payload: usize,
    },
    /// After that key.
    Value {
        payload: usize,
    },
    Done,
}

impl<'a, 'w> Walk<'a, 'w> {
    pub(super) fn new<T: AsRef<[u8]>>(
        message: &Message<'a, T>,
        levels: Storage<'w, Level>,
    ) -> Self {
        let paths = match message.layout.is_classic() {
            true => message.frames.get(2).map(AsRef::as_ref),
            false => None,
        };
        Self {
            reader: message.reader(),
            message: Source {
                layout: message.layout,
                body: message.body,
                payloads: message.payloads,
                specials: message.specials,
                paths: paths.unwrap_or_default(),
            },
            levels,
            depth: 0,
            state: State::Start,
            next_payload: 0,
            next_special: 0,
        }
    }

    /// Returns the next item, or `None` after the last.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::TooFewLevels`] if the scratch has fewer levels than
    /// the body needs. No other error occurs, since opening has validated the body.
    pub fn next_item(&mut self) -> Result<Option<Item<'a>>, MessageError> {
        match self.state {
            State::Done => Ok(None),
            State::Start => {
                self.state = State::Body;
                // PROTOCOL CLASSIC-5: an empty path is the whole message.
                if let [slot] = self.message.payloads
                    && let Some(entry) = slot.path()
                    && Elements::new(span(self.message.paths, entry.path)).len() == 0
                {
                    self.state = State::Done;
                    return Ok(Some(Item::Payload(0)));
                }
                self.value().map(Some)
            }
            State::Body => self.body_item(),
            State::Key {
                mut reader,
                owed,
                payload,
            } if Layout::Classic.is_classic() => {
                let token = validated(&mut reader);
                let owed = owed.wrapping_sub(1).saturating_add(token.child_count());
                self.state = match owed {
                    0 => State::Value { payload },
                    _ => State::Key {
                        reader,
                        owed,
                        payload,
                    },
                };
                Ok(Some(Item::Token(token)))
            }
            State::Value { payload } if Layout::Classic.is_classic() => {
                self.state = State::Body;
                Ok(Some(Item::Payload(self.number(payload))))
            }
            State::Key { .. } | State::Value { .. } => Ok(None),
        }
    }

    /// The path of the item returned last, from the root.
    ///
    /// For a key of a map, the path of the value before it.
    pub fn path(&self) -> impl Iterator<Item = PathElement<'a>> + '_ {
        let inserted = match self.state {
            // After a key from a path: the last element of that path.
            State::Body => None,
            State::Key { payload, .. } | State::Value { payload } => Some(payload),
            _ => None,
        };
        let last = inserted.or_else(|| self.just_inserted());
        let body = self.message.body;
        let levels = self.levels.as_slice();
        let open = self.depth.min(levels.len());
        let levels = levels.get(..open).or_default_if_bug();
        let containers = levels.iter().filter_map(|level| match level {
            Level::Walk(level) => Some(level.container),
            _ => None,
        });
        // The container opened by the last item has no child yet.
        let fresh = containers
            .clone()
            .next_back()
            .is_some_and(|container| container.owed == container.count && last.is_none());
        let shown = if fresh { open.saturating_sub(1) } else { open };
        let inserted_key = last.and_then(|payload| self.last_element(payload));
        containers
            .take(shown)
            .enumerate()
            .flat_map(move |(depth, container)| {
                let is_last = depth.saturating_add(1) == open;
                let index = PathElement::Index(container.index().wrapping_sub(1));
                match (container.nesting, inserted_key) {
                    (Nesting::Map, Some(key)) if is_last => [Some(PathElement::Key(key)), None],
                    (Nesting::Map, _) => [Some(PathElement::Key(container.key(body))), None],
                    (Nesting::Set, _) => [Some(PathElement::Key(b"\xa7as-list")), Some(index)],
                    (Nesting::Array, _) => [Some(index), None],
                }
            })
            .flatten()
    }

    /// The payload that was just inserted into a map after its own pairs.
    fn just_inserted(&self) -> Option<usize> {
        let levels = self.levels.as_slice();
        let Level::Walk(level) = levels.get(self.depth.checked_sub(1)?)? else {
            return None;
        };
        let is_after_pairs = level.container.nesting == Nesting::Map && level.container.owed == 0;
        (is_after_pairs && level.next > level.absent.0)
            .then(|| level.next.checked_sub(1))
            .flatten()
    }

    fn last_element(&self, payload: usize) -> Option<&'a [u8]> {
        let entry = self.message.payloads.get(payload)?.path()?;
        Elements::new(span(self.message.paths, entry.path)).last()
    }

    fn body_item(&mut self) -> Result<Option<Item<'a>>, MessageError> {
        loop {
            let Some(outer_depth) = self.depth.checked_sub(1) else {
                self.state = State::Done;
                return Ok(None);
            };
            let Some(Level::Walk(level)) = Level::innermost(self.levels.as_mut(), self.depth)
            else {
                return Err(self.too_few_levels());
            };
            let container = &mut level.container;
            if container.owed == 0 {
                if self.message.layout.is_classic() && level.next < level.absent.1 {
                    let payload = level.next;
                    level.next = payload.saturating_add(1);
                    return self.insert(payload).map(Some);
                }
                if container.nesting == Nesting::Set {
                    let end = level.end;
                    self.seek(end);
                }
                self.depth = outer_depth;
                continue;
            }
            if container.next_is_key() {
                container.key = offset(self.reader.position());
            }
            container.owed = container.owed.wrapping_sub(1);
            return self.value().map(Some);
        }
    }

    /// The next value.
    fn value(&mut self) -> Result<Item<'a>, MessageError> {
        let at = self.reader.position();
        if let Some(slot) = self.message.payloads.get(self.next_payload)
            && slot.start() as usize == at
        {
            let payload = self.next_payload;
            if let Slot::Placeholder { end, .. } = slot {
                self.next_payload = payload.saturating_add(1);
                self.seek(*end);
                return Ok(Item::Payload(payload));
            }
            if slot.path().is_some_and(|entry| entry.present) {
                self.next_payload = payload.saturating_add(1);
                self.reader.skip().or_default_if_bug();
                // The replaced value may contain sets and enum members.
                let after = self.reader.position();
                let specials = self.message.specials.iter().skip(self.next_special);
                let skipped = specials.take_while(|slot| (slot.start() as usize) < after);
                self.next_special = self.next_special.saturating_add(skipped.count());
                return Ok(Item::Payload(self.number(payload)));
            }
        }
        if let Some(slot) = self.message.specials.get(self.next_special)
            && slot.start() as usize == at
        {
            self.next_special = self.next_special.saturating_add(1);
            match *slot {
                Slot::Enum { start, end } => {
                    self.seek(end);
                    let member = EnumMember::parse(span(self.message.body, (start, end)));
                    if let Some(member) = member {
                        return Ok(Item::Enum(member));
                    }
                }
                Slot::Set { end, list, .. } => {
                    self.seek(list);
                    let count = self.reader.array().or_default_if_bug();
                    self.push(Container::new(Nesting::Set, count), (0, 0), end)?;
                    return Ok(Item::Set(count));
                }
                _ => {}
            }
        }
        let token = validated(&mut self.reader);
        let container = Container::of(token);
        let mut absent = (0, 0);
        let token = match token {
            Token::Map(count) if self.message.layout.is_classic() => {
                absent = self.absent(at);
                let absent_count = absent.1.saturating_sub(absent.0);
                Token::Map(count.saturating_add(offset(absent_count)))
            }
            token => token,
        };
        if token.child_count() != 0 {
            self.push(container, absent, 0)?;
        }
        Ok(Item::Token(token))
    }

    /// The payloads that the map at `at` has no keys for.
    fn absent(&mut self, at: usize) -> (usize, usize) {
        let first = self.next_payload;
        let rest = self.message.payloads.get(first..).unwrap_or_default();
        let is_other = |slot: &Slot| {
            slot.start() as usize != at || slot.path().is_none_or(|entry| entry.present)
        };
        let count = rest.iter().position(is_other).unwrap_or(rest.len());
        self.next_payload = first.saturating_add(count);
        (first, self.next_payload)
    }

    /// Begins a new entry of the current map: the key from the path of a payload.
    fn insert(&mut self, payload: usize) -> Result<Item<'a>, MessageError> {
        let key = self.last_element(payload).or_default_if_bug();
        let mut reader = Reader::with_limits(key, &VALIDATED);
        let token = validated(&mut reader);
        self.state = match token.child_count() {
            0 => State::Value { payload },
            owed => State::Key {
                reader,
                owed,
                payload,
            },
        };
        Ok(Item::Token(token))
    }

    fn push(
        &mut self,
        container: Container,
        absent: (usize, usize),
        end: u32,
    ) -> Result<(), MessageError> {
        let Some(level) = self.levels.at(self.depth) else {
            return Err(self.too_few_levels());
        };
        *level = Level::Walk(WalkLevel {
            container,
            absent,
            next: absent.0,
            end,
        });
        self.depth = self.depth.saturating_add(1);
        Ok(())
    }

    fn seek(&mut self, to: u32) {
        let rest = self.message.body.get(to as usize..);
        self.reader.seek(rest.or_default_if_bug());
    }

    #[cold]
    fn too_few_levels(&self) -> MessageError {
        let available = self.levels.as_slice().len();
        let body = Reader::with_limits(self.message.body, &VALIDATED);
        // A payload in an empty container takes a level of its own.
        let needed = body
            .levels()
            .or_default_if_bug()
            .max(self.depth.saturating_add(1));
        let kind = MessageErrorKind::TooFewLevels(BufferTooSmall { needed, available });
        let frame = usize::from(self.message.layout.is_classic());
        MessageError::new(frame, self.reader.position(), kind)
    }

    /// The index of a payload, for [`Message::payload`].
    fn number(&self, payload: usize) -> usize {
        let slot = self.message.payloads.get(payload);
        match slot.and_then(|slot| slot.path()) {
            Some(entry) => entry.number as usize,
            None => payload,
        }
    }
}

/// The next token of a document that has been validated.
fn validated<'a>(reader: &mut Reader<'a>) -> Token<'a> {
    let token = reader.token();
    debug_assert!(token.is_ok(), "an invariant is broken");
    token.unwrap_or(Token::Nil)
}
