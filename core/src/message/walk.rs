//! Iteration over the body of a message.

use super::classic::{Elements, IndexKey, matching};
use super::level::{Level, Nesting};
use super::slot::{Location, PayloadSlot, offset, span};
use super::{EnumMember, Item, Message, MessageError, MessageErrorKind, PathElement};
use crate::msgpack::{MalformedKind, Reader, Token};

/// Iterator over the items of a message's body.
///
/// Created by [`Message::walk`]. The cost is a scan of the body, independent of
/// the size of the payloads, which are not read.
#[derive(Debug)]
pub struct Walk<'a, 'w, T> {
    message: Message<'a, T>,
    reader: Reader<'a>,
    levels: &'w mut [Level],
    depth: usize,
    state: State<'a>,
    /// The next payload and the next special in the order of the body.
    payload: usize,
    special: usize,
}

#[derive(Clone, Copy, Debug)]
enum State<'a> {
    Start,
    Body,
    /// Within the key of a payload that is missing in the body.
    Key {
        reader: Reader<'a>,
        owed: u64,
        place: usize,
    },
    /// After that key.
    Value {
        place: usize,
    },
    Done,
}

impl<'a, 'w, T: AsRef<[u8]>> Walk<'a, 'w, T> {
    pub(super) fn new(message: Message<'a, T>, levels: &'w mut [Level]) -> Self {
        Self {
            reader: message.reader(),
            message,
            levels,
            depth: 0,
            state: State::Start,
            payload: 0,
            special: 0,
        }
    }

    /// Returns the next item, or `None` after the last.
    ///
    /// # Errors
    ///
    /// [`MessageErrorKind::TooFewLevels`] if there are fewer levels than the
    /// body needs. No other error occurs, since opening has validated the body.
    pub fn next_item(&mut self) -> Result<Option<Item<'a>>, MessageError> {
        match self.state {
            State::Done => Ok(None),
            State::Start => {
                self.state = State::Body;
                // PROTOCOL CLASSIC-5: an empty path is the whole message.
                if let [PayloadSlot(Location::Path(spot))] = self.message.payloads
                    && Elements::new(span(self.paths(), spot.path)).len() == 0
                {
                    self.state = State::Done;
                    return Ok(Some(Item::Payload(0)));
                }
                let all = (0, self.path_count());
                self.value(all).map(Some)
            }
            State::Body => self.body_item(),
            State::Key {
                mut reader,
                owed,
                place,
            } => {
                let token = self.read(|_| reader.token())?;
                let owed = owed.wrapping_sub(1).saturating_add(token.child_count());
                self.state = match owed {
                    0 => State::Value { place },
                    _ => State::Key {
                        reader,
                        owed,
                        place,
                    },
                };
                Ok(Some(Item::Token(token)))
            }
            State::Value { place } => {
                self.state = State::Body;
                Ok(Some(Item::Payload(self.number(place))))
            }
        }
    }

    /// The path of the item returned last, from the root.
    ///
    /// For a key of a map, the path of the value before it.
    pub fn path(&self) -> impl Iterator<Item = PathElement<'a>> + '_ {
        let inserted = match self.state {
            // After a key from a path: the last element of that path.
            State::Body => None,
            State::Key { place, .. } | State::Value { place } => Some(place),
            _ => None,
        };
        let last = inserted.or_else(|| self.just_inserted());
        let body = self.message.body;
        let open = self.depth.min(self.levels.len());
        let levels = self.levels.get(..open).unwrap_or_default();
        // The container opened by the last item has no child yet.
        let fresh = levels
            .last()
            .is_some_and(|level| level.owed == level.count && last.is_none());
        let shown = if fresh { open.saturating_sub(1) } else { open };
        let inserted_key = last.and_then(|place| self.last_element(place));
        levels
            .iter()
            .take(shown)
            .enumerate()
            .flat_map(move |(depth, level)| {
                let is_last = depth.saturating_add(1) == open;
                let index = PathElement::Index(level.index().wrapping_sub(1));
                match (level.nesting, inserted_key) {
                    (Nesting::Map, Some(key)) if is_last => [Some(PathElement::Key(key)), None],
                    (Nesting::Map, _) => {
                        let mut reader =
                            Reader::new(body.get(level.key as usize..).unwrap_or_default());
                        [
                            Some(PathElement::Key(reader.skip().unwrap_or_default())),
                            None,
                        ]
                    }
                    (Nesting::Set, _) => [Some(PathElement::Key(b"\xa7as-list")), Some(index)],
                    (Nesting::Array, _) => [Some(index), None],
                }
            })
            .flatten()
    }

    /// The payload that was just inserted into a map after its own pairs.
    fn just_inserted(&self) -> Option<usize> {
        let level = self.levels.get(self.depth.checked_sub(1)?)?;
        let before = (level.next as usize).checked_sub(1)?;
        (level.nesting == Nesting::Map && level.owed == 0 && level.next > level.low)
            .then_some(before)
    }

    fn last_element(&self, place: usize) -> Option<&'a [u8]> {
        let spot = self.message.payloads.get(place)?.0.path()?;
        Elements::new(span(self.paths(), spot.path)).last()
    }

    fn body_item(&mut self) -> Result<Option<Item<'a>>, MessageError> {
        loop {
            let Some(top) = self.depth.checked_sub(1) else {
                self.state = State::Done;
                return Ok(None);
            };
            let paths = self.paths();
            let payloads = self.message.payloads;
            let Some(level) = self.levels.get_mut(top) else {
                return Err(self.too_few_levels());
            };
            if level.owed == 0 {
                if level.nesting == Nesting::Map
                    && let Some(place) = next_absent(paths, payloads, level, self.depth)
                {
                    level.next = offset(place).saturating_add(1);
                    return self.insert(place).map(Some);
                }
                if level.nesting == Nesting::Set {
                    let end = level.next;
                    self.reader
                        .seek(self.message.body.get(end as usize..).unwrap_or_default());
                }
                self.depth = top;
                continue;
            }
            let is_key = level.next_is_key();
            let range = level.range();
            let at = self.reader.position();
            if is_key {
                level.key = offset(at);
            }
            let mut below = (0, 0);
            if range.0 != range.1 && level.nesting != Nesting::Set && !is_key {
                let index;
                let element = match level.nesting {
                    Nesting::Map => {
                        let key = self.message.body.get(level.key as usize..);
                        Reader::new(key.unwrap_or_default())
                            .skip()
                            .unwrap_or_default()
                    }
                    _ => {
                        index = IndexKey::new(level.index());
                        index.as_bytes()
                    }
                };
                below = matching(paths, payloads, range, top, element);
            }
            level.owed = level.owed.wrapping_sub(1);
            if below.0 < below.1
                && let Some(PayloadSlot(Location::Path(spot))) = payloads.get(below.0)
                && Elements::new(span(paths, spot.path)).len() == self.depth
            {
                self.read(|walk| walk.reader.skip())?;
                return Ok(Some(Item::Payload(self.number(below.0))));
            }
            return self.value(below).map(Some);
        }
    }

    /// The next value, with the payloads in it.
    fn value(&mut self, below: (usize, usize)) -> Result<Item<'a>, MessageError> {
        let at = self.reader.position();
        let body = self.message.body;
        if let Some(PayloadSlot(spot)) = self.message.payloads.get(self.payload)
            && let Location::Placeholder { start, end, .. } = *spot
            && start as usize == at
        {
            let number = self.payload;
            self.payload = number.saturating_add(1);
            self.reader
                .seek(body.get(end as usize..).unwrap_or_default());
            return Ok(Item::Payload(number));
        }
        if let Some(PayloadSlot(spot)) = self.message.specials.get(self.special)
            && spot.start() as usize == at
        {
            self.special = self.special.saturating_add(1);
            match *spot {
                Location::Enum { start, end } => {
                    self.reader
                        .seek(body.get(end as usize..).unwrap_or_default());
                    if let Some(member) = EnumMember::parse(span(body, (start, end))) {
                        return Ok(Item::Enum(member));
                    }
                }
                Location::Set { end, list, .. } => {
                    self.reader
                        .seek(body.get(list as usize..).unwrap_or_default());
                    let count = self.read(|walk| walk.reader.array())?;
                    let mut level = Level::new(Nesting::Set, list, count, (0, 0));
                    level.next = end;
                    self.push(level)?;
                    return Ok(Item::Set(count));
                }
                _ => {}
            }
        }
        let token = self.read(|walk| walk.reader.token())?;
        let owed = u32::try_from(token.child_count()).unwrap_or(u32::MAX);
        let (nesting, token) = match token {
            Token::Array(_) => (Nesting::Array, token),
            Token::Map(count) => {
                let absent = self.absent_count(below);
                (Nesting::Map, Token::Map(count.saturating_add(absent)))
            }
            _ => return Ok(Item::Token(token)),
        };
        if token.child_count() != 0 {
            self.push(Level::new(nesting, offset(at), owed, below))?;
        }
        Ok(Item::Token(token))
    }

    /// The number of payloads that the new map has no keys for.
    fn absent_count(&self, below: (usize, usize)) -> u32 {
        let here = self.depth.saturating_add(1);
        let paths = self.paths();
        let range = self.message.payloads.get(below.0..below.1);
        offset(
            range
                .unwrap_or_default()
                .iter()
                .filter(|place| is_absent(paths, place, here))
                .count(),
        )
    }

    fn insert(&mut self, place: usize) -> Result<Item<'a>, MessageError> {
        let key = self.last_element(place).unwrap_or_default();
        let mut reader = Reader::new(key);
        let token = self.read(|_| reader.token())?;
        self.state = match token.child_count() {
            0 => State::Value { place },
            owed => State::Key {
                reader,
                owed,
                place,
            },
        };
        Ok(Item::Token(token))
    }

    fn push(&mut self, level: Level) -> Result<(), MessageError> {
        match self.levels.get_mut(self.depth) {
            Some(place) => {
                *place = level;
                self.depth = self.depth.saturating_add(1);
                Ok(())
            }
            None => Err(self.too_few_levels()),
        }
    }

    /// The body has been validated before, so reading does not fail.
    fn read<R>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<R, crate::msgpack::Malformed>,
    ) -> Result<R, MessageError> {
        let frame = self.body_frame();
        read(self).map_err(MessageError::malformed(frame))
    }

    #[cold]
    fn too_few_levels(&self) -> MessageError {
        let available = self.levels.len();
        let limit = self.message.options.limits.depth;
        let kind = if self.depth as u64 >= u64::from(limit) {
            MessageErrorKind::Malformed(MalformedKind::TooDeep { limit })
        } else {
            MessageErrorKind::TooFewLevels { available }
        };
        MessageError::new(self.body_frame(), self.reader.position(), kind)
    }

    fn body_frame(&self) -> usize {
        match self.message.layout {
            super::Layout::Modern => 0,
            super::Layout::Classic => 1,
        }
    }

    fn path_count(&self) -> usize {
        match self.message.layout {
            super::Layout::Modern => 0,
            super::Layout::Classic => self.message.payloads.len(),
        }
    }

    fn paths(&self) -> &'a [u8] {
        self.message
            .frames
            .get(2)
            .map(AsRef::as_ref)
            .unwrap_or_default()
    }

    fn number(&self, place: usize) -> usize {
        match self.message.payloads.get(place).map(|place| &place.0) {
            Some(Location::Path(spot)) => spot.number as usize,
            _ => place,
        }
    }
}

/// Whether this payload is a new entry of the map at depth `here`, which has no
/// such key in the body.
fn is_absent(paths: &[u8], place: &PayloadSlot, here: usize) -> bool {
    place
        .0
        .path()
        .is_some_and(|spot| !spot.present && Elements::new(span(paths, spot.path)).len() == here)
}

fn next_absent(
    paths: &[u8],
    payloads: &[PayloadSlot],
    level: &Level,
    here: usize,
) -> Option<usize> {
    let (first, high) = (level.next as usize, level.range().1);
    let rest = payloads.get(first..high)?;
    rest.iter()
        .position(|place| is_absent(paths, place, here))
        .and_then(|found| first.checked_add(found))
}
