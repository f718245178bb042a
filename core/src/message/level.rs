//! Levels of nesting while a body is scanned, walked or built.

use super::slot::offset;
use crate::Limits;
use crate::invariant::OrDefaultIfBug as _;
use crate::msgpack::{Reader, Token};

/// Limits for a document that has been validated before.
pub(super) const VALIDATED: Limits = Limits::HOST
    .with_depth(Limits::MAX_DEPTH)
    .with_items(u32::MAX);

/// One level of nesting of a body. The tag of an unused level is zero, so that a
/// scratch is initialised by clearing its memory, and a `static` scratch takes no
/// flash.
#[derive(Clone, Copy, Debug, Default)]
#[repr(u8)]
pub(super) enum Level {
    #[default]
    Free,
    Scan(ScanLevel),
    Walk(WalkLevel),
    /// A step of the path to a payload of a message that is built.
    Path(Container),
}

impl Level {
    /// The innermost of the first `depth` levels.
    #[inline]
    pub(super) fn innermost(levels: &mut [Self], depth: usize) -> Option<&mut Self> {
        levels.get_mut(depth.checked_sub(1)?)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Nesting {
    #[default]
    Array,
    Map,
    Set,
}

/// An open container and the position in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Container {
    pub(super) nesting: Nesting,
    pub(super) count: u32,
    /// Values that have not begun yet.
    pub(super) owed: u32,
    /// Offset of the key of the current pair.
    pub(super) key: u32,
}

impl Container {
    pub(super) const fn new(nesting: Nesting, count: u32) -> Self {
        Self {
            nesting,
            count,
            owed: count,
            key: 0,
        }
    }

    /// The container that `token` opens.
    pub(super) fn of(token: Token<'_>) -> Self {
        let nesting = match token {
            Token::Map(_) => Nesting::Map,
            _ => Nesting::Array,
        };
        Self::new(
            nesting,
            u32::try_from(token.child_count()).unwrap_or(u32::MAX),
        )
    }

    /// Whether the next value is a key: two values are owed per pair.
    pub(super) fn next_is_key(&self) -> bool {
        self.nesting == Nesting::Map && self.owed & 1 == 0
    }

    /// Index of the next element.
    pub(super) const fn index(&self) -> u32 {
        self.count.wrapping_sub(self.owed)
    }

    /// The encoded key of the current pair.
    pub(super) fn key<'b>(&self, body: &'b [u8]) -> &'b [u8] {
        let rest = body.get(self.key as usize..).or_default_if_bug();
        Reader::with_limits(rest, &VALIDATED)
            .skip()
            .or_default_if_bug()
    }
}

/// A container of a body that is walked.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkLevel {
    pub(super) container: Container,
    /// The payloads to insert after the pairs of a map.
    pub(super) absent: (usize, usize),
    /// The next of these.
    pub(super) next: usize,
    /// Offset after the map that encodes a set.
    pub(super) end: u32,
}

/// A container of a body that is scanned, with the reserved keys found in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScanLevel {
    pub(super) container: Container,
    /// The payloads whose paths lead through this container.
    pub(super) below: (usize, usize),
    /// Offset of the container's head.
    pub(super) start: u32,
    /// The number of entries in the table at the start of the container.
    pub(super) first_slot: usize,
    /// Whether the container is a key of a map or inside one.
    pub(super) in_key: bool,
    /// The key of the current pair, if it is reserved.
    pub(super) reserved: Option<Reserved>,
    /// The values of `__Serialized__` and `__Pickled__`, if there are such
    /// keys; `Some(None)` for a value that is not a number of 0 or more.
    pub(super) serialized: Option<Option<u64>>,
    pub(super) pickled: Option<Option<u64>>,
    pub(super) is_set: bool,
    pub(super) is_enum: bool,
    /// Whether each name of an enum member is a string.
    pub(super) names: [bool; 3],
    /// Offset of the last `as-list`, if it is an array.
    pub(super) list: Option<u32>,
    /// The range of table entries in that list.
    pub(super) list_slots: (usize, usize),
    pub(super) in_list: bool,
}

impl ScanLevel {
    /// Whether the container is a map with a reserved key.
    pub(super) const fn is_special(&self) -> bool {
        self.serialized.is_some() || self.pickled.is_some() || self.is_enum || self.is_set
    }

    /// Records a value, with `count` entries in the table. Of a duplicate key
    /// the last value is used, as in a Python dict.
    pub(super) fn note_value(&mut self, at: usize, token: Token<'_>, count: usize) {
        let number = match token {
            Token::UInt(value) => Some(value),
            _ => None,
        };
        match self.reserved.take() {
            None => {}
            Some(Reserved::Serialized) => self.serialized = Some(number),
            Some(Reserved::Pickled) => self.pickled = Some(number),
            Some(Reserved::Enum) => self.is_enum = true,
            Some(Reserved::Set) => self.is_set = true,
            Some(Reserved::List) => {
                self.list = matches!(token, Token::Array(_)).then(|| offset(at));
                self.list_slots.0 = count;
                self.in_list = true;
            }
            Some(Reserved::Name(index)) => {
                if let Some(name) = self.names.get_mut(usize::from(index)) {
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
            self.list_slots.1 = count;
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
    Name(u8),
}

impl Reserved {
    pub(super) fn of(key: Token<'_>) -> Option<Self> {
        let Token::Str(key) = key else { return None };
        // Rules out most keys.
        if !matches!(key.as_bytes(), [b'_' | b'a' | b'n', ..]) {
            return None;
        }
        let found = RESERVED.iter().find(|(reserved, _)| key == *reserved);
        found.map(|(_, reserved)| *reserved)
    }
}

// A table, since a match on strings is several times as large.
const RESERVED: [(&str, Reserved); 8] = [
    ("__Serialized__", Reserved::Serialized),
    ("__Pickled__", Reserved::Pickled),
    ("__Set__", Reserved::Set),
    ("as-list", Reserved::List),
    ("__Enum__", Reserved::Enum),
    ("name", Reserved::Name(0)),
    ("__module__", Reserved::Name(1)),
    ("__name__", Reserved::Name(2)),
];
