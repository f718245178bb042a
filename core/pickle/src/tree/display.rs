//! Formatting of trees.

use alloc::vec;
use core::fmt::{self, Write as _};

use super::{Kind, Node, Operation, Tree, Value, WalkEvent};

/// The maximum number of values shown. Default for the formatter's precision.
const MAX_VALUES: usize = 10_000;

/// The maximum length of data shown, in bytes.
const MAX_BYTES: usize = 32;
/// The maximum length of strings shown, in bytes.
const MAX_STR_BYTES: usize = 256;

impl fmt::Display for Tree<'_> {
    /// Formats as [`Node`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.root(), f)
    }
}

impl fmt::Debug for Tree<'_> {
    /// Formats as [`Node`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.root(), f)
    }
}

impl fmt::Debug for Node<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Node<'_, '_> {
    /// Formats on one line, similar to Python's `repr`, with names, calls and
    /// operations. Strings are escaped, long data is truncated, and a value
    /// that was shown before is referred to by its offset. The precision is the
    /// maximum number of values, by default 10,000: `{:.100}` shows up to 100.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let budget = f.precision().unwrap_or(MAX_VALUES);
        let mut shown = vec![0_u64; self.tree.slots.len().div_ceil(64)];
        let mut walk = self.walk(budget);
        // The open values and the number of parts of each so far.
        let mut counts = vec![];
        while let Some(event) = walk.next() {
            match event {
                Ok(WalkEvent::Enter(node)) => {
                    if let Some((parent, count)) = counts.last_mut() {
                        separate(f, *parent, *count)?;
                        *count = count.wrapping_add(1);
                    }
                    let is_simple =
                        node.parts().next().is_none() && node.operations().next().is_none();
                    let is_whole = mark(&mut shown, node.index()) || is_simple;
                    if is_whole {
                        begin(f, node)?;
                    } else {
                        walk.skip_contents();
                        write!(f, "<again: see byte {}>", node.offset())?;
                    }
                    let bracket = is_whole.then(|| node.slot().kind());
                    counts.push((Frame::Value(bracket), 0_usize));
                }
                Ok(WalkEvent::Operation(operation)) => {
                    if let Some((frame, count)) = counts.last_mut() {
                        end(f, *frame, *count)?;
                        *count = 0;
                        *frame = Frame::Operation;
                        if matches!(operation, Operation::Set(_)) {
                            *frame = Frame::Entries;
                        }
                    }
                    f.write_str(match operation {
                        Operation::Append(_) => ".append(",
                        Operation::Set(_) => ".set(",
                        Operation::Add(_) => ".add(",
                        Operation::State(_) => ".state(",
                    })?;
                }
                Ok(WalkEvent::Leave(_)) => {
                    if let Some((frame, count)) = counts.pop() {
                        end(f, frame, count)?;
                    }
                }
                Err(_) => return f.write_str("…"),
            }
        }
        Ok(())
    }
}

/// The owner of the parts that follow.
#[derive(Clone, Copy)]
enum Frame {
    /// A value; `None` if it was shown before.
    Value(Option<Kind>),
    Operation,
    Entries,
}

/// Marks a value and returns whether it was unmarked.
fn mark(shown: &mut [u64], index: usize) -> bool {
    let Some(word) = shown.get_mut(index >> 6) else {
        return false;
    };
    let bit = 1_u64 << (index & 63);
    let is_new = *word & bit == 0;
    *word |= bit;
    is_new
}

fn separate(f: &mut fmt::Formatter<'_>, parent: Frame, count: usize) -> fmt::Result {
    let is_entries = matches!(parent, Frame::Entries | Frame::Value(Some(Kind::Dict)));
    f.write_str(match (parent, count) {
        (_, 0) => "",
        _ if is_entries && count & 1 == 1 => ": ",
        (_, _) => ", ",
    })
}

fn begin(f: &mut fmt::Formatter<'_>, node: Node<'_, '_>) -> fmt::Result {
    match node.value() {
        Value::None => f.write_str("None"),
        Value::Bool(true) => f.write_str("True"),
        Value::Bool(false) => f.write_str("False"),
        Value::Int(value) => write!(f, "{value:?}"),
        Value::Float(value) => write!(f, "{value:?}"),
        Value::Str(string) => write!(f, "\"{}\"", Escaped(&string.to_bytes())),
        Value::ByteString(string) => {
            f.write_str("str ")?;
            data(f, &string.to_bytes())
        }
        Value::Bytes(bytes) => data(f, bytes),
        Value::ByteArray {
            data: bytes,
            read_only,
        } => {
            f.write_str(if read_only {
                "read-only bytearray "
            } else {
                "bytearray "
            })?;
            data(f, bytes)
        }
        Value::Buffer {
            data: bytes,
            index,
            read_only,
        } => {
            let kind = if read_only { "read-only " } else { "" };
            write!(f, "<{kind}buffer {index} of {} bytes>", bytes.len())
        }
        Value::Tuple(_) => f.write_str("("),
        Value::List(_) => f.write_str("["),
        Value::Set(_) => f.write_str("set("),
        Value::FrozenSet(_) => f.write_str("frozenset("),
        Value::Dict(_) => f.write_str("{"),
        Value::Global(global) => write!(f, "global {global}"),
        Value::Extension(code) => write!(f, "extension {code}"),
        Value::PersistentLine(line) => {
            write!(f, "persistent \"{}\"", Escaped(line.as_bytes()))
        }
        Value::Persistent(_) => f.write_str("persistent("),
        Value::Call { .. } => f.write_str("call("),
        Value::New { .. } => f.write_str("new("),
        Value::Instance { class, .. } => write!(f, "instance({class}, "),
        Value::InstanceOf { .. } => f.write_str("object("),
        Value::ReadOnly(_) => f.write_str("read-only("),
    }
}

/// Writes the end of a value or of an operation on it.
fn end(f: &mut fmt::Formatter<'_>, frame: Frame, count: usize) -> fmt::Result {
    f.write_str(match frame {
        Frame::Operation | Frame::Entries => ")",
        Frame::Value(Some(Kind::Tuple)) if count == 1 => ",)",
        Frame::Value(Some(kind)) => match kind {
            Kind::List => "]",
            Kind::Dict => "}",
            Kind::Tuple | Kind::Set | Kind::FrozenSet => ")",
            kind if kind.operand_count() > 0 && !matches!(kind, Kind::StackGlobal) => ")",
            _ => "",
        },
        Frame::Value(None) => "",
    })
}

fn data(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    match bytes.get(..MAX_BYTES) {
        Some(start) if bytes.len() > MAX_BYTES => {
            write!(f, "b\"{}\"… {} bytes", start.escape_ascii(), bytes.len())
        }
        _ => write!(f, "b\"{}\"", bytes.escape_ascii()),
    }
}

/// Formats a UTF-8 string, which may contain surrogates: escaped, on one line,
/// truncated to 256 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.get(..MAX_STR_BYTES).unwrap_or(self.0);
        for chunk in shown.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\'' => f.write_char(character)?,
                    _ => write!(f, "{}", character.escape_debug())?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        if self.0.len() > MAX_STR_BYTES {
            write!(f, "… {} bytes", self.0.len())?;
        }
        Ok(())
    }
}
