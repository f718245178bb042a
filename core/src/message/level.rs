//! Levels of nesting while a body is scanned or walked.

use super::slot::offset;
use crate::msgpack::Token;

/// Storage for one level of nesting of a body.
///
/// Only used by [`Message`](super::Message); supply one for each level of nesting to accept.
/// Fewer levels are a tighter limit and take less memory.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    pub(super) nesting: Nesting,
    /// Offset of the container's head.
    pub(super) start: u32,
    /// Values that have not begun yet.
    pub(super) owed: u32,
    pub(super) count: u32,
    /// Offset of the key of the current pair.
    pub(super) key: u32,
    /// The first of the payloads whose paths lead through this container.
    pub(super) low: u32,
    high: u32,
    /// For a map the next payload to insert; for a set the end of this level.
    pub(super) next: u32,

    // For the scan of a body.
    /// Whether the container is a key of a map or inside one.
    pub(super) in_key: bool,
    pub(super) reserved: Option<Reserved>,
    pub(super) marks: Marks,
    pub(super) serialized: Option<u64>,
    pub(super) pickled: Option<u64>,
    pub(super) list: u32,
    /// The range of table entries in that list.
    pub(super) list_places: (u32, u32),
    in_list: bool,
    pub(super) first_place: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nesting {
    Array,
    Map,
    Set,
}

/// The reserved keys of a map.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub(super) serialized: bool,
    pub(super) pickled: bool,
    pub(super) enumeration: bool,
    pub(super) set: bool,
    /// Whether the last `as-list` is an array.
    pub(super) list: bool,
    /// Whether each name of an enum member is a string.
    pub(super) names: [bool; 3],
}

impl Marks {
    pub(super) const fn is_none(self) -> bool {
        !(self.serialized || self.pickled || self.enumeration || self.set)
    }
}

impl Level {
    /// An unused level, to initialise arrays.
    pub const EMPTY: Self = Self::new(Nesting::Array, 0, 0, (0, 0));

    #[allow(clippy::cast_possible_truncation)] // positions in a table of u32 numbers
    pub(super) const fn new(
        nesting: Nesting,
        start: u32,
        owed: u32,
        below: (usize, usize),
    ) -> Self {
        Self {
            nesting,
            start,
            owed,
            count: owed,
            key: 0,
            low: below.0 as u32,
            high: below.1 as u32,
            next: below.0 as u32,
            in_key: false,
            reserved: None,
            marks: Marks {
                serialized: false,
                pickled: false,
                enumeration: false,
                set: false,
                list: false,
                names: [false; 3],
            },
            serialized: None,
            pickled: None,
            list: 0,
            list_places: (0, 0),
            in_list: false,
            first_place: 0,
        }
    }

    /// Whether the next value is a key: two values are owed per pair.
    pub(super) fn next_is_key(&self) -> bool {
        self.nesting == Nesting::Map && self.owed & 1 == 0
    }

    /// Index of the next element.
    pub(super) const fn index(&self) -> u32 {
        self.count.wrapping_sub(self.owed)
    }

    pub(super) const fn range(&self) -> (usize, usize) {
        (self.low as usize, self.high as usize)
    }

    /// Records a value during the scan, with `count` entries in the table. Of a
    /// duplicate key the last value is used, as in a Python dict.
    pub(super) fn note_value(&mut self, at: usize, token: Token<'_>, count: usize) {
        let number = match token {
            Token::UInt(value) => Some(value),
            _ => None,
        };
        match self.reserved.take() {
            None => {}
            Some(Reserved::Serialized) => {
                self.marks.serialized = true;
                self.serialized = number;
            }
            Some(Reserved::Pickled) => {
                self.marks.pickled = true;
                self.pickled = number;
            }
            Some(Reserved::Enum) => self.marks.enumeration = true,
            Some(Reserved::Set) => self.marks.set = true,
            Some(Reserved::List) => {
                self.list = offset(at);
                self.marks.list = matches!(token, Token::Array(_));
                self.list_places.0 = offset(count);
                self.in_list = true;
            }
            Some(Reserved::Name(index)) => {
                if let Some(name) = self.marks.names.get_mut(index) {
                    *name = matches!(token, Token::Str(_));
                }
            }
        }
    }

    /// Records the end of a value of the map, with `count` entries in the
    /// table.
    pub(super) fn end_list(&mut self, count: usize) {
        if self.in_list {
            self.in_list = false;
            self.list_places.1 = offset(count);
        }
    }
}

/// The reserved keys, which give a map another meaning (PROTOCOL BODY-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reserved {
    Serialized,
    Pickled,
    Set,
    List,
    Enum,
    /// One of the three names of an enum member.
    Name(usize),
}

impl Reserved {
    pub(super) fn of(key: Token<'_>) -> Option<Self> {
        let Token::Str(key) = key else { return None };
        match key.as_bytes() {
            b"__Serialized__" => Some(Self::Serialized),
            b"__Pickled__" => Some(Self::Pickled),
            b"__Set__" => Some(Self::Set),
            b"as-list" => Some(Self::List),
            b"__Enum__" => Some(Self::Enum),
            b"name" => Some(Self::Name(0)),
            b"__module__" => Some(Self::Name(1)),
            b"__name__" => Some(Self::Name(2)),
            _ => None,
        }
    }
}
