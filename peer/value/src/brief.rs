//! Debug output of bounded length, for values and messages of any size.

use core::fmt::{self, Write as _};

/// The maximum length of the debug output of one value or message, in bytes.
pub const MAX_LEN: usize = 1 << 14;

/// The maximum length of the data shown of one byte string, in bytes.
const MAX_DATA: usize = 64;

/// Formats with `write`. After `MAX_LEN` bytes the output ends with an ellipsis, and
/// `write` gets an error, so that it does not go on.
pub fn bounded(
    f: &mut fmt::Formatter<'_>,
    write: impl Fn(&mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    let content = Content(write);
    let is_pretty = f.alternate();
    let mut limited = Limited {
        to: f,
        left: MAX_LEN,
        is_cut: false,
    };
    let written = match is_pretty {
        true => write!(limited, "{content:#?}"),
        false => write!(limited, "{content:?}"),
    };
    if limited.is_cut {
        return f.write_str("…");
    }
    written
}

struct Content<W>(W);

impl<W: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Debug for Content<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0(f)
    }
}

/// An output that accepts a limited number of bytes.
struct Limited<'f, 'g> {
    to: &'f mut fmt::Formatter<'g>,
    left: usize,
    is_cut: bool,
}

impl fmt::Write for Limited<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if let Some(left) = self.left.checked_sub(text.len()) {
            self.left = left;
            return self.to.write_str(text);
        }
        let is_whole = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=self.left).rev().find(is_whole).unwrap_or_default();
        self.to.write_str(&text[..end])?;
        self.is_cut = true;
        Err(fmt::Error)
    }
}

/// A byte string, of which the first bytes are shown, and the length.
pub(crate) struct Data<'a>(pub(crate) &'a [u8]);

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.get(..MAX_DATA) {
            Some(start) if self.0.len() > MAX_DATA => {
                write!(f, "b\"{}\"… {} bytes", start.escape_ascii(), self.0.len())
            }
            _ => write!(f, "b\"{}\"", self.0.escape_ascii()),
        }
    }
}

/// Implements `Debug` with bounded output, in the form of `derive`, for an enum of named or
/// single unnamed fields, or a struct.
#[doc(hidden)]
#[macro_export]
macro_rules! brief_debug {
    (enum $type:ident {
        $($(#[$attribute:meta])* $variant:ident $(($($item:ident),+))? $({ $($field:ident),+ })?,)*
    }) => {
        impl core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                $crate::brief::bounded(f, |f| match self {
                    $($(#[$attribute])* Self::$variant $(($($item),+))? $({ $($field),+ })? => {
                        $crate::brief_fields!(
                            f, $variant $(($($item),+))? $({ $($field),+ })?
                        )
                    })*
                })
            }
        }
    };
    (struct $type:ident { $($field:ident,)+ }) => {
        impl core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let Self { $($field),+ } = self;
                $crate::brief::bounded(f, |f| $crate::brief_fields!(f, $type { $($field),+ }))
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! brief_fields {
    ($f:ident, $name:ident) => {
        $f.write_str(stringify!($name))
    };
    ($f:ident, $name:ident ($($item:ident),+)) => {
        $f.debug_tuple(stringify!($name))$(.field($item))+.finish()
    };
    ($f:ident, $name:ident { $($field:ident),+ }) => {
        $f.debug_struct(stringify!($name))$(.field(stringify!($field), $field))+.finish()
    };
}
