//! The items of a body.

use crate::msgpack::{Reader, Str, Token};

/// One item of a body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'a> {
    /// A token. The elements of an array, or the alternating keys and values of
    /// a map, follow its head.
    Token(Token<'a>),
    /// The head of a set with its number of members.
    Set(u32),
    /// A member of an enumeration.
    Enum(EnumMember<'a>),
    /// A payload, with its index for
    /// [`Message::payload`](super::Message::payload).
    Payload(usize),
}

impl Item<'_> {
    /// The number of items that follow as children of this one.
    pub const fn child_count(&self) -> u64 {
        match self {
            Self::Token(token) => token.child_count(),
            Self::Set(count) => *count as u64,
            Self::Enum(_) | Self::Payload(_) => 0,
        }
    }
}

/// A member of a Python enumeration, by name (PROTOCOL BODY-4).
///
/// In practice a member of `distributed.core.Status`. Names are not looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnumMember<'a> {
    /// The module of the class, such as `distributed.core`.
    pub module: Str<'a>,
    /// The name of the class, such as `Status`.
    pub class: Str<'a>,
    /// The name of the member, such as `running`.
    pub name: Str<'a>,
}

impl<'a> EnumMember<'a> {
    /// Parses the map of an enum member.
    pub(super) fn parse(map: &'a [u8]) -> Option<Self> {
        let mut strings = [None; 3];
        let mut reader = Reader::new(map);
        let count = reader.map().ok()?;
        let keys = ["__module__", "__name__", "name"];
        let mut note = |index, value: &Reader<'a>| {
            if let (Some(string), Ok(Token::Str(found))) = (strings.get_mut(index), value.peek()) {
                *string = found.check().ok();
            }
        };
        reader.pairs(count, &keys, &mut note).ok()?;
        let [module, class, name] = strings;
        Some(Self {
            module: module?,
            class: class?,
            name: name?,
        })
    }
}

/// One step from the root of a body to a value in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathElement<'a> {
    /// The encoded key of a map.
    Key(&'a [u8]),
    /// The index in an array.
    Index(u32),
}
