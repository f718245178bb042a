//! Levels of nesting of a body, while it is scanned or walked.

use super::slot::offset;
use crate::msgpack::Token;

/// Room for one level of nesting of a body.
///
/// Its content is the business of [`Message`]; supply as many as a body may be
/// nested deep. Fewer are a tighter limit, and cost less memory.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    pub(super) nesting: Nesting,
    /// Offset of the container's head.
    pub(super) start: u32,
    /// Values that have not begun yet.
    pub(super) owed: u32,
    pub(super) count: u32,
    /// Offset of the key of the pair at hand.
    pub(super) key: u32,
    /// The payloads whose paths go through here.
    pub(super) low: u32,
    high: u32,
    /// The next payload to be put in, for a map; and where this level ends,
    /// for a set.
    pub(super) next: u32,

    // For the scan of a body.
    /// The container is a key of a map, or stands in one.
    pub(super) in_key: bool,
    pub(super) reserved: Option<Reserved>,
    pub(super) marks: Marks,
    pub(super) serialized: Option<u64>,
    pub(super) pickled: Option<u64>,
    pub(super) list: u32,
    /// Which entries of the table were noted in that list.
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

/// Which reserved keys a map has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub(super) serialized: bool,
    pub(super) pickled: bool,
    pub(super) enumeration: bool,
    pub(super) set: bool,
    /// There is an `as-list`, and the last of them is an array.
    pub(super) list: bool,
    /// Which of the names of an enum member there are, and are strings.
    pub(super) names: [bool; 3],
}

impl Marks {
    pub(super) const fn is_none(self) -> bool {
        !(self.serialized || self.pickled || self.enumeration || self.set)
    }
}

impl Level {
    /// A level that is free.
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

    /// Whether the next value is a key: two values are owed for each pair.
    pub(super) fn next_is_key(&self) -> bool {
        self.nesting == Nesting::Map && self.owed & 1 == 0
    }

    /// Index of the element that comes next.
    pub(super) const fn index(&self) -> u32 {
        self.count.wrapping_sub(self.owed)
    }

    pub(super) const fn range(&self) -> (usize, usize) {
        (self.low as usize, self.high as usize)
    }

    /// Takes note of a value in the scan, with `count` entries in the table.
    /// Where a key occurs twice, the last one counts, as in a Python dict.
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

    /// Takes note that a value of the map has ended, with `count` entries in the
    /// table.
    pub(super) fn end_list(&mut self, count: usize) {
        if self.in_list {
            self.in_list = false;
            self.list_places.1 = offset(count);
        }
    }
}

/// The keys that make a map something else (PROTOCOL BODY-2).
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
