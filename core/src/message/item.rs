//! Items of a body.

use crate::msgpack::{Reader, Str, Token};

/// One item of a body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'a> {
    /// A token. After the head of an array its elements follow, after that of
    /// a map its keys and values in turn.
    Token(Token<'a>),
    /// The head of a set; so many members follow.
    Set(u32),
    /// A member of an enumeration.
    Enum(EnumMember<'a>),
    /// A payload stands here; [`Message::payload`](super::Message::payload) has it by this number.
    Payload(usize),
}

impl Item<'_> {
    /// How many items follow that belong to this one.
    pub const fn child_count(&self) -> u64 {
        match self {
            Self::Token(token) => token.child_count(),
            Self::Set(count) => *count as u64,
            Self::Enum(_) | Self::Payload(_) => 0,
        }
    }
}

/// A member of a Python enumeration, by its names (PROTOCOL BODY-4).
///
/// In practice one of `distributed.core.Status`. Nothing is looked up.
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
    /// Reads the map that stands for it.
    pub(super) fn parse(map: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(map);
        let (mut module, mut class, mut name) = (None, None, None);
        for _ in 0..reader.map().ok()? {
            let place = match reader.peek().ok()? {
                Token::Str(key) if key == "__module__" => &mut module,
                Token::Str(key) if key == "__name__" => &mut class,
                Token::Str(key) if key == "name" => &mut name,
                _ => {
                    reader.skip().ok()?;
                    reader.skip().ok()?;
                    continue;
                }
            };
            reader.skip().ok()?;
            *place = reader.str().ok();
            if place.is_none() {
                reader.skip().ok()?;
            }
        }
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
    /// Into a map: the key, encoded.
    Key(&'a [u8]),
    /// Into an array: the index.
    Index(u32),
}
