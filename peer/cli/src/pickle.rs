//! Listings of pickles, which show what loading them would do.
//!
//! The stack and the memo are simulated as far as names require it: only which values
//! are strings, names, or results of calls. No value is built. What cannot be
//! determined this way is reported as unknown.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter, Write as _};
use std::io::{self, Write};

use serde_json::json;

use crate::printable;
use daskwire_pickle::{
    Argument, Limits, Opcode, OutOfBandReader, PickleError, Reader, Token, Unescaped,
};

/// The options for listing a pickle.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options<'a> {
    /// The pickle's out-of-band buffers, if available.
    pub buffers: Option<&'a [Vec<u8>]>,
    /// Whether to read the text opcodes of protocols 0 and 1.
    pub text_opcodes: bool,
}

impl<'a> Options<'a> {
    daskwire_comm::with_fields! {
        with_buffers(buffers: impl Into<Option<&'a [Vec<u8>]>>);
        with_text_opcodes(text_opcodes: bool);
    }
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            buffers: None,
            text_opcodes: true,
        }
    }
}

/// A fault in a pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The pickle is malformed, or its buffers do not match it.
    Pickle(PickleError),
    /// An opcode finds too few values on the stack. Loading would fail there; the
    /// listing continues.
    Stack {
        /// Offset of the opcode, in bytes.
        offset: usize,
        /// The opcode.
        opcode: Opcode,
    },
    /// An opcode refers to a missing memo entry. Loading would fail there; the
    /// listing continues.
    Memo {
        /// Offset of the opcode, in bytes.
        offset: usize,
        /// The opcode.
        opcode: Opcode,
        /// The memo index.
        index: u64,
    },
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pickle(error) => error.fmt(f),
            Self::Stack { offset, opcode } => {
                write!(
                    f,
                    "at byte {offset}: {opcode} finds too few values on the stack"
                )
            }
            Self::Memo {
                offset,
                opcode,
                index,
            } => write!(
                f,
                "at byte {offset}: {opcode} refers to {index}, which is not in the memo"
            ),
        }
    }
}

impl std::error::Error for Fault {}

daskwire::kinds! {
    Fault: |_| ErrorKind::Value;
}

/// Indentation after a mark, in columns.
const INDENT: usize = 2;

/// Maximum number of marks that add indentation; a pickle can have a million open marks.
const MAX_INDENTS: usize = 24;

/// Maximum number of characters or bytes that are shown.
const MAX_TEXT: usize = 72;

/// The column of remarks, if the argument is short enough.
const REMARKS: usize = 44;

/// Writes the listing of `pickle` to `out`, with a summary of the opcodes that were
/// parsed. Returns the first fault.
///
/// Takes time and memory proportional to the length of the pickle.
///
/// # Errors
///
/// The error of writing to `out`.
pub fn list(
    pickle: &[u8],
    options: &Options<'_>,
    out: &mut impl Write,
) -> io::Result<Option<Fault>> {
    let width = pickle.len().to_string().len().max(5);
    let (machine, reader, fault) = walk(pickle, options, |line| {
        let indent = line.depth.min(MAX_INDENTS) * INDENT;
        let mut text = format!("{:indent$}{}", "", line.opcode);
        if let Some(argument) = line.argument {
            text.push(' ');
            text.push_str(&argument);
        }
        if let Some(remark) = line.remark {
            let room = REMARKS.saturating_sub(text.chars().count());
            write!(text, "{:room$}  # {remark}", "").map_err(io::Error::other)?;
        }
        writeln!(out, "{:>width$}  {text}", line.offset)
    })?;
    machine.summary(&reader, fault, out)?;
    Ok(fault)
}

/// Writes the listing as JSON, like [`list`]: a document for each opcode, and one for
/// the pickle.
///
/// # Errors
///
/// The error of writing to `out`.
pub fn list_json(
    pickle: &[u8],
    options: &Options<'_>,
    out: &mut impl Write,
) -> io::Result<Option<Fault>> {
    let (machine, reader, fault) = walk(pickle, options, |line| {
        let document = json!({
            "offset": line.offset,
            "opcode": line.opcode.to_string(),
            "depth": line.depth,
            "argument": line.argument,
            "remark": line.remark,
        });
        writeln!(out, "{}", printable::json(&document))
    })?;
    let names = machine.sorted_names().into_iter().map(|(name, mentions)| {
        json!({"name": name, "named": mentions.named_count, "called": mentions.called_count})
    });
    let names: Vec<_> = names.collect();
    let document = json!({
        "fault": fault.map(|fault| fault.to_string()),
        "opcodes": machine.opcode_count,
        "bytes": reader.position(),
        "is_whole": reader.is_finished(),
        "protocol": machine.newest_protocol,
        "trailing": reader.trailing().len(),
        "buffers": machine.used_buffers,
        "persistent_ids": machine.persistent_ids,
        "names": names,
        "unknown_names": machine.unknown_names,
        "other_calls": machine.other_calls,
    });
    writeln!(out, "{}", printable::json(&document))?;
    Ok(fault)
}

/// An opcode of a listing.
struct Line {
    offset: usize,
    opcode: Opcode,
    /// Number of open marks.
    depth: usize,
    argument: Option<String>,
    remark: Option<String>,
}

/// Passes all opcodes that can be parsed to `each`, and returns the machine, the reader
/// and the first fault.
fn walk<'p, 'b>(
    pickle: &'p [u8],
    options: &Options<'b>,
    mut each: impl FnMut(Line) -> io::Result<()>,
) -> io::Result<(Machine<'p, 'b>, Reader<'p>, Option<Fault>)> {
    let limits = Limits::HOST.with_opcode_count(u32::MAX);
    let mut reader = Reader::with_limits(pickle, &limits).text_opcodes(options.text_opcodes);
    let mut fault = options
        .buffers
        .and_then(|buffers| wrong_buffers(reader, buffers))
        .map(Fault::Pickle);
    let mut machine = Machine {
        buffers: options.buffers,
        ..Machine::default()
    };
    loop {
        let token = match reader.next_token() {
            Ok(Some(token)) => token,
            Ok(None) => break,
            Err(error) => {
                fault = Some(Fault::Pickle(error));
                break;
            }
        };
        let before = machine.mark_count;
        let (remark, wrong) = machine.step(&token);
        let remark = match wrong {
            Some(wrong) => {
                machine.fault = machine.fault.or(Some(wrong));
                Some(match wrong {
                    Fault::Memo { index, .. } => format!("{index} is not in the memo"),
                    _ => "finds too few values on the stack".to_owned(),
                })
            }
            None => remark,
        };
        each(Line {
            offset: token.offset,
            opcode: token.opcode,
            depth: before.min(machine.mark_count),
            argument: argument(&token.argument),
            remark,
        })?;
    }
    let fault = first(fault, machine.fault);
    Ok((machine, reader, fault))
}

/// The error that the reader reports for these buffers, if any.
fn wrong_buffers(reader: Reader<'_>, buffers: &[Vec<u8>]) -> Option<PickleError> {
    let mut items = OutOfBandReader::new(reader, buffers);
    loop {
        match items.next_item() {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => return Some(error),
        }
    }
}

/// The first of two faults by offset, which is the one that loading would report.
fn first(one: Option<Fault>, other: Option<Fault>) -> Option<Fault> {
    let offset = |fault: &Fault| match fault {
        Fault::Pickle(error) => error.offset,
        Fault::Stack { offset, .. } | Fault::Memo { offset, .. } => *offset,
    };
    [one, other].into_iter().flatten().min_by_key(offset)
}

/// The simulated state of a value on the stack or in the memo.
#[derive(Clone, Copy, Debug)]
enum Known<'p> {
    Mark,
    /// A string that appears in the pickle without escapes.
    Str(&'p [u8]),
    /// A string that had escapes, by its index in `unescaped`.
    Unescaped(usize),
    /// The object of a name, by the name's index.
    Named(usize),
    /// The result of calling a name, by the name's index.
    Returned(usize),
    /// A value that is not callable, and otherwise irrelevant.
    Plain,
    Unknown,
}

/// A name in a pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name {
    /// Module and name, by their indices in `strings`.
    Global(usize, usize),
    Extension(i32),
}

#[derive(Debug)]
struct Mentions {
    name: Name,
    named_count: u64,
    called_count: u64,
}

#[derive(Debug, Default)]
struct Machine<'p, 'b> {
    stack: Vec<Known<'p>>,
    mark_count: usize,
    memo: HashMap<u64, Known<'p>>,
    unescaped: Vec<Vec<u8>>,
    /// The strings in names. The maps find them by content and by location, so that a
    /// string used repeatedly is processed once.
    strings: Vec<Vec<u8>>,
    by_content: HashMap<Vec<u8>, usize>,
    by_place: HashMap<(usize, usize), usize>,
    names: Vec<Mentions>,
    by_name: HashMap<Name, usize>,
    unknown_names: u64,
    /// Number of calls of values other than names.
    other_calls: u64,
    persistent_ids: u64,
    buffers: Option<&'b [Vec<u8>]>,
    used_buffers: usize,
    opcode_count: u64,
    newest_protocol: u8,
    fault: Option<Fault>,
}

/// The error of an opcode that finds too few values on the stack.
struct Underflow;

impl<'p> Machine<'p, '_> {
    /// Applies an opcode. Returns the remark about it, and its fault.
    fn step(&mut self, token: &Token<'p>) -> (Option<String>, Option<Fault>) {
        self.opcode_count += 1;
        self.newest_protocol = self.newest_protocol.max(token.opcode.protocol());
        let (offset, opcode) = (token.offset, token.opcode);
        if let (Opcode::Get | Opcode::BinGet | Opcode::LongBinGet, Argument::Index(index)) =
            (opcode, token.argument)
        {
            let found = self.memo.get(&index).copied();
            self.stack.push(found.unwrap_or(Known::Unknown));
            let missing = Fault::Memo {
                offset,
                opcode,
                index,
            };
            return match found {
                Some(known) => (self.recalled(known), None),
                None => (None, Some(missing)),
            };
        }
        match self.apply(token) {
            Ok(remark) => (remark, None),
            Err(Underflow) => {
                // Continue as if the opcode had found its operands.
                if !matches!(opcode, Opcode::Pop | Opcode::PopMark | Opcode::Stop) {
                    self.stack.push(Known::Unknown);
                }
                (None, Some(Fault::Stack { offset, opcode }))
            }
        }
    }

    fn apply(&mut self, token: &Token<'p>) -> Result<Option<String>, Underflow> {
        use Opcode as O;
        let mut remark = None;
        let pushed = match (token.opcode, token.argument) {
            (_, Argument::Str(string)) => Some(Known::Str(string.as_bytes())),
            // Python 3 decodes ASCII byte strings.
            (_, Argument::ByteString(bytes)) => Some(Known::Str(bytes)),
            (O::String, Argument::Line(line)) => {
                let quoted = &line[1..line.len() - 1];
                Some(self.string_of(quoted, Unescaped::string(line)))
            }
            (O::Unicode, Argument::Line(line)) => {
                Some(self.string_of(line, Unescaped::unicode(line)))
            }
            (O::Global, Argument::Global { module, name }) => {
                let name = self.global(Known::Str(module.as_bytes()), Known::Str(name.as_bytes()));
                name.map(Known::Named).or(Some(Known::Unknown))
            }
            (O::Inst, Argument::Global { module, name }) => {
                let name = self.global(Known::Str(module.as_bytes()), Known::Str(name.as_bytes()));
                self.pop_to_mark()?;
                let callee = name.map_or(Known::Unknown, Known::Named);
                let (returned, note) = self.call(callee);
                remark = Some(note);
                Some(returned)
            }
            (_, Argument::Code(code)) => {
                let name = self.mention(Name::Extension(code));
                remark = Some(format!("names {}", self.shown(name)));
                Some(Known::Named(name))
            }
            (O::StackGlobal, _) => {
                let name = self.pop()?;
                let module = self.pop()?;
                let found = self.global(module, name);
                remark = Some(match found {
                    Some(name) => format!("names {}", self.shown(name)),
                    None => "names something unknown".to_owned(),
                });
                found.map(Known::Named).or(Some(Known::Unknown))
            }
            (O::Reduce | O::NewObj, _) => {
                self.pop()?;
                let callee = self.pop()?;
                let (returned, note) = self.call(callee);
                remark = Some(note);
                Some(returned)
            }
            (O::NewObjEx, _) => {
                self.pop()?;
                self.pop()?;
                let callee = self.pop()?;
                let (returned, note) = self.call(callee);
                remark = Some(note);
                Some(returned)
            }
            (O::Obj, _) => {
                let mark = self.mark()?;
                let callee = self.stack.get(mark + 1).copied().ok_or(Underflow)?;
                self.pop_to_mark()?;
                let (returned, note) = self.call(callee);
                remark = Some(note);
                Some(returned)
            }
            (O::Build, _) => {
                self.pop()?;
                remark = match self.top()? {
                    Known::Returned(name) => Some(format!(
                        "sets the state of what {} returned",
                        self.shown(name)
                    )),
                    Known::Named(name) => Some(format!("sets the state of {}", self.shown(name))),
                    _ => Some("sets the state of something unknown".to_owned()),
                };
                None
            }
            (O::PersId, _) => {
                self.persistent_ids += 1;
                Some(Known::Unknown)
            }
            (O::BinPersId, _) => {
                self.pop()?;
                self.persistent_ids += 1;
                Some(Known::Unknown)
            }
            (O::NextBuffer, _) => {
                let index = self.used_buffers;
                self.used_buffers += 1;
                remark = Some(match self.buffers.map(|buffers| buffers.get(index)) {
                    None => format!("buffer {index}"),
                    Some(Some(buffer)) => format!("buffer {index}, {} bytes", buffer.len()),
                    Some(None) => format!("buffer {index}, which is missing"),
                });
                Some(Known::Plain)
            }
            (O::Put | O::BinPut | O::LongBinPut, Argument::Index(index)) => {
                let top = self.top()?;
                self.memo.insert(index, top);
                None
            }
            (O::Memoize, _) => {
                let top = self.top()?;
                let index = self.memo.len() as u64;
                self.memo.insert(index, top);
                remark = Some(format!("memo {index}"));
                None
            }
            (O::Pop, _) => {
                if self
                    .stack
                    .pop()
                    .ok_or(Underflow)
                    .map(|known| matches!(known, Known::Mark))?
                {
                    self.mark_count -= 1;
                }
                None
            }
            (O::PopMark, _) => {
                self.pop_to_mark()?;
                None
            }
            (O::Dup, _) => Some(self.top()?),
            (O::Mark, _) => {
                self.mark_count += 1;
                Some(Known::Mark)
            }
            (O::Append, _) => {
                self.pop()?;
                self.top()?;
                None
            }
            (O::SetItem, _) => {
                self.pop()?;
                self.pop()?;
                self.top()?;
                None
            }
            (O::Appends | O::SetItems | O::AddItems, _) => {
                self.pop_to_mark()?;
                self.top()?;
                None
            }
            (O::List | O::Tuple | O::Dict | O::FrozenSet, _) => {
                self.pop_to_mark()?;
                Some(Known::Plain)
            }
            (O::Tuple1, _) => {
                self.pop()?;
                Some(Known::Plain)
            }
            (O::Tuple2, _) => {
                self.pop()?;
                self.pop()?;
                Some(Known::Plain)
            }
            (O::Tuple3, _) => {
                self.pop()?;
                self.pop()?;
                self.pop()?;
                Some(Known::Plain)
            }
            (O::Stop, _) => {
                self.pop()?;
                None
            }
            (O::ReadOnlyBuffer, _) => {
                self.top()?;
                None
            }
            (O::Proto | O::Frame, _) => None,
            _ => Some(Known::Plain),
        };
        self.stack.extend(pushed);
        Ok(remark)
    }

    fn top(&self) -> Result<Known<'p>, Underflow> {
        match self.stack.last() {
            None | Some(Known::Mark) => Err(Underflow),
            Some(&known) => Ok(known),
        }
    }

    fn pop(&mut self) -> Result<Known<'p>, Underflow> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// The position of the topmost mark.
    fn mark(&self) -> Result<usize, Underflow> {
        let is_mark = |known: &Known<'_>| matches!(known, Known::Mark);
        if self.mark_count == 0 {
            // Without a mark, each call would search the whole stack.
            return Err(Underflow);
        }
        self.stack.iter().rposition(is_mark).ok_or(Underflow)
    }

    fn pop_to_mark(&mut self) -> Result<(), Underflow> {
        let mark = self.mark()?;
        self.stack.truncate(mark);
        self.mark_count -= 1;
        Ok(())
    }

    fn string_of(&mut self, raw: &'p [u8], unescaped: Unescaped<'_>) -> Known<'p> {
        if raw.is_ascii() && !raw.contains(&b'\\') {
            return Known::Str(raw);
        }
        self.unescaped.push(unescaped.collect());
        Known::Unescaped(self.unescaped.len() - 1)
    }

    /// The index in `strings` of a string used in a name.
    fn string_number(&mut self, known: Known<'p>) -> Option<usize> {
        let bytes = match known {
            Known::Str(bytes) => bytes,
            Known::Unescaped(index) => self.unescaped.get(index)?,
            _ => return None,
        };
        let place = (bytes.as_ptr().addr(), bytes.len());
        if let Some(&number) = self.by_place.get(&place) {
            return Some(number);
        }
        let number = match self.by_content.get(bytes) {
            Some(&number) => number,
            None => {
                self.by_content.insert(bytes.to_vec(), self.strings.len());
                self.strings.push(bytes.to_vec());
                self.strings.len() - 1
            }
        };
        self.by_place.insert(place, number);
        Some(number)
    }

    /// Counts an occurrence of a name and returns its index; `None` if it is unknown.
    fn global(&mut self, module: Known<'p>, name: Known<'p>) -> Option<usize> {
        if let (Some(module), Some(name)) = (self.string_number(module), self.string_number(name)) {
            return Some(self.mention(Name::Global(module, name)));
        }
        self.unknown_names += 1;
        None
    }

    fn mention(&mut self, name: Name) -> usize {
        let number = *self.by_name.entry(name).or_insert(self.names.len());
        match self.names.get_mut(number) {
            Some(mentions) => mentions.named_count += 1,
            None => self.names.push(Mentions {
                name,
                named_count: 1,
                called_count: 0,
            }),
        }
        number
    }

    fn call(&mut self, callee: Known<'p>) -> (Known<'p>, String) {
        match callee {
            Known::Named(name) => {
                if let Some(mentions) = self.names.get_mut(name) {
                    mentions.called_count += 1;
                }
                (Known::Returned(name), format!("calls {}", self.shown(name)))
            }
            Known::Returned(name) => {
                self.other_calls += 1;
                let note = format!("calls what {} returned", self.shown(name));
                (Known::Unknown, note)
            }
            _ => {
                self.other_calls += 1;
                (Known::Unknown, "calls something unknown".to_owned())
            }
        }
    }

    /// The remark about a value from the memo.
    fn recalled(&self, known: Known<'p>) -> Option<String> {
        match known {
            Known::Str(bytes) => Some(quoted(bytes, "")),
            Known::Unescaped(index) => self.unescaped.get(index).map(|string| quoted(string, "")),
            Known::Named(name) => Some(self.shown(name)),
            Known::Returned(name) => Some(format!("what {} returned", self.shown(name))),
            Known::Mark | Known::Plain | Known::Unknown => None,
        }
    }

    /// A name as `module:name`, which is unambiguous.
    fn shown(&self, number: usize) -> String {
        let string = |number: usize| self.strings.get(number).map_or(&[][..], Vec::as_slice);
        match self.names.get(number).map(|mentions| mentions.name) {
            Some(Name::Global(module, name)) => {
                format!("{}:{}", bare(string(module)), bare(string(name)))
            }
            Some(Name::Extension(code)) => format!("extension code {code} of copyreg"),
            None => String::new(),
        }
    }

    /// All known names, sorted.
    fn sorted_names(&self) -> Vec<(String, &Mentions)> {
        let mut names: Vec<_> = (0..self.names.len())
            .zip(&self.names)
            .map(|(number, mentions)| (self.shown(number), mentions))
            .collect();
        names.sort_by(|one, other| one.0.cmp(&other.0));
        names
    }

    fn summary(
        &self,
        reader: &Reader<'_>,
        fault: Option<Fault>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        writeln!(out)?;
        if let Some(fault) = fault {
            writeln!(out, "BAD PICKLE {fault}")?;
        }
        let extent = if reader.is_finished() { "" } else { " so far" };
        writeln!(
            out,
            "{} in {}{extent}; needs protocol {}",
            counted(self.opcode_count, "opcode"),
            counted(reader.position() as u64, "byte"),
            self.newest_protocol,
        )?;
        let trailing = reader.trailing();
        if !trailing.is_empty() {
            writeln!(
                out,
                "{} after STOP, which loading ignores: {}",
                counted(trailing.len() as u64, "byte"),
                quoted(trailing, "b")
            )?;
        }
        let used = self.used_buffers as u64;
        match self.buffers {
            None if used == 0 => {}
            None => writeln!(out, "uses {}", counted(used, "out-of-band buffer"))?,
            Some(buffers) => writeln!(
                out,
                "uses {}; {} given",
                counted(used, "out-of-band buffer"),
                buffers.len()
            )?,
        }
        if self.persistent_ids > 0 {
            let ids = counted(self.persistent_ids, "persistent id");
            writeln!(out, "asks persistent_load for {ids}")?;
        }
        if self.names.is_empty() && self.unknown_names == 0 {
            writeln!(out, "names nothing{extent}")?;
        } else {
            writeln!(out, "names{extent}, which loading imports:")?;
            let lines = self.sorted_names();
            let width = lines.iter().map(|(shown, _)| shown.chars().count()).max();
            let width = width.unwrap_or_default().min(60);
            for (shown, mentions) in lines {
                let called = match mentions.called_count {
                    0 => "not called".to_owned(),
                    count => format!("called {}", counted(count, "time")),
                };
                let named = counted(mentions.named_count, "time");
                writeln!(out, "  {shown:<width$}  {called}, named {named}")?;
            }
            if self.unknown_names > 0 {
                let names = counted(self.unknown_names, "name");
                writeln!(out, "  {names} unknown without loading")?;
            }
        }
        if self.other_calls > 0 {
            let calls = counted(self.other_calls, "call");
            writeln!(
                out,
                "{calls} of values other than names: returned by a call, or unknown"
            )?;
        }
        Ok(())
    }
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Formats the argument of an opcode.
fn argument(argument: &Argument<'_>) -> Option<String> {
    Some(match argument {
        Argument::None => return None,
        Argument::Bool(value) => if *value { "True" } else { "False" }.to_owned(),
        Argument::Int(value) => value.to_string(),
        Argument::BigInt(value) => match value.to_i128() {
            Some(value) => value.to_string(),
            None => {
                let sign = if value.is_negative() {
                    "negative"
                } else {
                    "positive"
                };
                let len = value.as_bytes().len();
                format!("<{sign}, {len} bytes> {}", quoted(value.as_bytes(), "b"))
            }
        },
        Argument::Decimal(value) => bare(value.as_bytes()),
        Argument::DecimalFloat(value) => bare(value.as_bytes()),
        Argument::Float(value) => format!("{value:?}"),
        Argument::Bytes(bytes) | Argument::ByteString(bytes) => quoted(bytes, "b"),
        Argument::ByteArray(bytes) => quoted(bytes, "bytearray b"),
        Argument::Str(string) => quoted(string.as_bytes(), ""),
        Argument::Line(bytes) => quoted(bytes, "b"),
        Argument::Global { module, name } => {
            format!("{}:{}", bare(module.as_bytes()), bare(name.as_bytes()))
        }
        Argument::Index(value) | Argument::Length(value) => value.to_string(),
        Argument::Code(value) => value.to_string(),
        Argument::Version(value) => value.to_string(),
        other => format!("{other:?}"),
    })
}

/// Quotes, escapes and shortens bytes; adds the length if shortened.
fn quoted(bytes: &[u8], prefix: &str) -> String {
    let (shown, is_whole) = escaped(bytes, prefix.ends_with('b'));
    if is_whole {
        format!("{prefix}\"{shown}\"")
    } else {
        format!("{prefix}\"{shown}\"… {} bytes", bytes.len())
    }
}

/// Escapes and shortens bytes, without quotes. Colons are escaped too, because
/// they separate module and name.
fn bare(bytes: &[u8]) -> String {
    let (shown, is_whole) = escaped(bytes, false);
    let shown = shown.replace(':', "\\x3a");
    if is_whole {
        shown
    } else {
        format!("{shown}… {} bytes", bytes.len())
    }
}

/// Escapes the start of the bytes onto one line. Also returns whether that is all of
/// them.
fn escaped(bytes: &[u8], ascii: bool) -> (String, bool) {
    let start = bytes.get(..4 * MAX_TEXT).unwrap_or(bytes);
    let mut shown = String::new();
    let mut count = 0;
    for chunk in start.utf8_chunks() {
        for character in chunk.valid().chars() {
            if count == MAX_TEXT {
                return (shown, false);
            }
            count += 1;
            // In a byte string, each byte is escaped.
            let is_raw = !character.is_ascii() || character.is_ascii_control();
            if ascii && is_raw && !matches!(character, '\n' | '\r' | '\t') {
                let mut buffer = [0; 4];
                for byte in character.encode_utf8(&mut buffer).bytes() {
                    let _ = write!(shown, "\\x{byte:02x}");
                }
            } else if character == '\'' {
                shown.push('\'');
            } else {
                shown.extend(character.escape_debug());
            }
        }
        for byte in chunk.invalid() {
            if count == MAX_TEXT {
                return (shown, false);
            }
            count += 1;
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    (shown, start.len() == bytes.len())
}
