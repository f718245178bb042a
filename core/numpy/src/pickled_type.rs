//! The pickle of a `numpy.dtype`, read where it lies (PROTOCOL TYPED-7, TYPED-8).
//!
//! No stack and no memo are kept: numpy writes types in one way, which is
//! followed. What was memoized is looked for again from the beginning, which
//! takes time; a budget bounds that.

use super::dimensions::Dimensions;
use super::record::{MAX_DEPTH, OUTSIDE, TOO_DEEP, TOO_LARGE};
use super::{DType, DTypeError, ElementType, Field, Order, RecordType, TimeBase, TimeUnit};
use daskwire_pickle::{Argument, Opcode, Reader, Token};

/// Opcodes that are read at most to find all fields of a type, those that are
/// read again included. A type with a thousand fields takes some ten thousand.
const BUDGET: u32 = 1 << 22;

/// A place in a pickle, and how many entries the memo has there.
#[derive(Clone, Copy, Debug)]
struct Cursor<'a> {
    pickle: &'a [u8],
    reader: Reader<'a>,
    memo_count: u64,
}

impl PartialEq for Cursor<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.pickle, self.reader.position()) == (other.pickle, other.reader.position())
    }
}

/// What reading takes, and what was looked for before: there are few types and
/// byte orders in a record of many fields.
#[derive(Clone, Debug)]
struct Work<'a> {
    budget: u32,
    text: Option<(u64, &'a str)>,
    types: [Option<(u64, DType)>; 8],
    /// Which of the types is replaced next.
    next: usize,
}

impl Work<'_> {
    const fn new() -> Self {
        Self {
            budget: BUDGET,
            text: None,
            types: [None; 8],
            next: 0,
        }
    }
}

/// An opcode that does something to the stack, and where in the memo what it
/// made was put.
#[derive(Clone, Copy)]
struct Step<'a> {
    token: Token<'a>,
    put: Option<u64>,
}

type Found<T> = Result<T, DTypeError>;

const TYPE: &str = "a type as numpy pickles it";
const TEXT: &str = "text";
const DEFINED: &str = "what was memoized before";
const STATE: &str = "the state of a type as numpy pickles it";
const SHAPE: &str = "the shape of a field, in numbers of 0 or more";

/// Text, and where in the memo it is.
#[derive(Clone, Copy)]
struct Name<'a> {
    text: &'a str,
    index: Option<u64>,
}

impl<'a> Cursor<'a> {
    fn new(pickle: &'a [u8]) -> Self {
        Self {
            pickle,
            // Python 2 and protocols 0 and 1 have text opcodes.
            reader: Reader::new(pickle).text_opcodes(true),
            memo_count: 0,
        }
    }

    const fn error(&self, expected: &'static str) -> DTypeError {
        DTypeError {
            at: self.reader.position(),
            expected,
        }
    }

    /// The next opcode, without those that change nothing.
    fn step(&mut self, work: &mut Work<'a>) -> Found<Step<'a>> {
        loop {
            let error = self.error("the next opcode of a pickle");
            work.budget = work
                .budget
                .checked_sub(1)
                .ok_or(self.error("a type with fewer references to what it has before"))?;
            let Ok(Some(token)) = self.reader.next_token() else {
                return Err(error);
            };
            if matches!(token.opcode, Opcode::Proto | Opcode::Frame) {
                continue;
            }
            let put = self.puts(work)?;
            return Ok(Step { token, put });
        }
    }

    /// Where what was just made is put. CPython numbers entries of the memo one
    /// by one; in any other order MEMOIZE would mean something else.
    fn puts(&mut self, work: &mut Work<'a>) -> Found<Option<u64>> {
        let mut found = None;
        loop {
            let mut next = self.reader;
            let index = match next.next_token() {
                Ok(Some(token)) => match (token.opcode, token.argument) {
                    (Opcode::Memoize, _) => self.memo_count,
                    (Opcode::BinPut | Opcode::LongBinPut | Opcode::Put, Argument::Index(index)) => {
                        index
                    }
                    (Opcode::Frame, _) => {
                        self.reader = next;
                        continue;
                    }
                    _ => return Ok(found),
                },
                _ => return Ok(found),
            };
            work.budget = work.budget.saturating_sub(1);
            if index != self.memo_count {
                return Err(self.error("entries of the memo one after the other"));
            }
            self.memo_count = self.memo_count.saturating_add(1);
            self.reader = next;
            found = Some(index);
        }
    }

    fn peek(&self, work: &mut Work<'a>) -> Found<Step<'a>> {
        let mut copy = *self;
        copy.step(work)
    }

    /// Takes the next opcode if it is this one.
    fn take(&mut self, opcode: Opcode, work: &mut Work<'a>) -> Found<bool> {
        let mut copy = *self;
        let found = copy.step(work)?.token.opcode == opcode;
        if found {
            *self = copy;
        }
        Ok(found)
    }

    fn expect(&mut self, opcode: Opcode, work: &mut Work<'a>) -> Found<()> {
        let error = self.error(STATE);
        if self.take(opcode, work)? {
            return Ok(());
        }
        Err(error)
    }

    /// Text, or a reference to it.
    fn name(&mut self, work: &mut Work<'a>) -> Found<Name<'a>> {
        let error = self.error(TEXT);
        let step = self.step(work)?;
        if let Argument::Index(index) = step.token.argument {
            let text = self.memoized_text(index, work)?;
            let index = Some(index);
            return Ok(Name { text, index });
        }
        let text = text(&step.token).ok_or(error)?;
        let index = step.put;
        Ok(Name { text, index })
    }

    /// The same, but the text is not looked for.
    fn name_index(&mut self, work: &mut Work<'a>) -> Found<Result<u64, Name<'a>>> {
        let mut copy = *self;
        if let Argument::Index(index) = copy.step(work)?.token.argument {
            *self = copy;
            return Ok(Ok(index));
        }
        self.name(work).map(Err)
    }

    fn memoized_text(&self, index: u64, work: &mut Work<'a>) -> Found<&'a str> {
        if let Some((at, text)) = work.text
            && at == index
        {
            return Ok(text);
        }
        let token = self.memoized(index, work)?;
        let text = text(&token).ok_or(self.error(DEFINED))?;
        work.text = Some((index, text));
        Ok(text)
    }

    /// The opcode whose value has this index in the memo.
    fn memoized(&self, index: u64, work: &mut Work<'a>) -> Found<Token<'a>> {
        let mut scan = Self::new(self.pickle);
        while scan.reader.position() < self.reader.position() && scan.memo_count <= index {
            let step = scan.step(work)?;
            if step.put == Some(index) {
                return Ok(step.token);
            }
        }
        Err(self.error(DEFINED))
    }

    /// An integer of 64 bits.
    fn integer(&mut self, work: &mut Work<'a>) -> Found<i64> {
        let error = self.error("an integer");
        integer(&self.step(work)?.token).ok_or(error)
    }

    /// A number that is `None` if it is -1.
    fn length(&mut self, work: &mut Work<'a>) -> Found<Option<usize>> {
        let error = self.error("a length, or -1");
        match self.integer(work)? {
            -1 => Ok(None),
            number => usize::try_from(number).map(Some).map_err(|_| error),
        }
    }

    /// The name of something: what it is, wherever it was named before.
    fn global(&mut self, work: &mut Work<'a>) -> Found<(&'a str, &'a str)> {
        let error = self.error(TYPE);
        if let Some((names, _)) = self.named(work)? {
            return Ok(names);
        }
        let Argument::Index(index) = self.step(work)?.token.argument else {
            return Err(error);
        };
        let mut scan = Self::new(self.pickle);
        while scan.reader.position() < self.reader.position() && scan.memo_count <= index {
            let mut ahead = scan;
            if let Some((names, put)) = ahead.named(work)?
                && put == Some(index)
            {
                return Ok(names);
            }
            scan.step(work)?;
        }
        Err(self.error(DEFINED))
    }

    /// GLOBAL, or two texts and STACK_GLOBAL, if that is what comes, and where in
    /// the memo it is put.
    #[expect(clippy::type_complexity, reason = "two names and a number")]
    fn named(&mut self, work: &mut Work<'a>) -> Found<Option<((&'a str, &'a str), Option<u64>)>> {
        let mut copy = *self;
        let first = copy.step(work)?;
        if let Argument::Global { module, name } = first.token.argument {
            *self = copy;
            return Ok(Some(((module, name), first.put)));
        }
        let is_name = |token: &Token<'_>| {
            matches!(token.argument, Argument::Index(_)) || text(token).is_some()
        };
        if !is_name(&first.token) || !is_name(&copy.step(work)?.token) {
            return Ok(None);
        }
        let last = copy.step(work)?;
        if last.token.opcode != Opcode::StackGlobal {
            return Ok(None);
        }
        let (module, name) = (self.name(work)?.text, self.name(work)?.text);
        *self = copy;
        Ok(Some(((module, name), last.put)))
    }

    /// The callable and its arguments, up to REDUCE, if that is what comes: the
    /// name of the type, empty for `numpy.record`.
    fn head(&mut self, work: &mut Work<'a>) -> Found<Option<&'a str>> {
        // What is sure from the opcodes alone, before anything is looked for.
        let mut copy = *self;
        if !matches!(copy.skip_head(work), Ok(Some(_))) {
            return Ok(None);
        }
        let error = self.error(TYPE);
        if self.global(work)? != ("numpy", "dtype") {
            return Err(error);
        }
        self.take(Opcode::Mark, work)?;
        let mut ahead = *self;
        let first = ahead.step(work)?.token;
        let is_one = is_flag(ahead.peek(work)?.token.opcode);
        let name = match first.argument {
            Argument::Index(index) if is_one => self.memoized_text(index, work).ok(),
            _ if is_one => text(&first),
            _ => None,
        };
        let name = match name {
            Some(name) => name,
            None => match self.global(work)? {
                ("numpy" | "numpy.rec" | "numpy.core.records", "record") => "",
                _ => return Err(error),
            },
        };
        *self = copy;
        Ok(Some(name))
    }

    /// Whether this is a call with something and two flags, and where in the memo
    /// the result is put.
    fn skip_head(&mut self, work: &mut Work<'a>) -> Found<Option<Option<u64>>> {
        self.skip_name(work)?;
        self.take(Opcode::Mark, work)?;
        self.skip_name(work)?;
        let flags = [self.step(work)?, self.step(work)?];
        if !flags.iter().all(|flag| is_flag(flag.token.opcode)) {
            return Ok(None);
        }
        let tuple = self.step(work)?.token.opcode;
        if !matches!(tuple, Opcode::Tuple | Opcode::Tuple3) {
            return Ok(None);
        }
        let reduce = self.step(work)?;
        Ok((reduce.token.opcode == Opcode::Reduce).then_some(reduce.put))
    }

    /// One opcode, or two and STACK_GLOBAL.
    fn skip_name(&mut self, work: &mut Work<'a>) -> Found<()> {
        self.step(work)?;
        let mut copy = *self;
        copy.step(work)?;
        if copy.take(Opcode::StackGlobal, work)? {
            *self = copy;
        }
        Ok(())
    }

    /// Where the type with this index in the memo begins.
    fn memoized_type(&self, index: u64, work: &mut Work<'a>) -> Found<Self> {
        let mut scan = Self::new(self.pickle);
        while scan.reader.position() < self.reader.position() && scan.memo_count <= index {
            let mut ahead = scan;
            if ahead.skip_head(work)? == Some(Some(index)) {
                return Ok(scan);
            }
            scan.step(work)?;
        }
        Err(self.error(DEFINED))
    }

    /// A type, and behind it. One that is an array only if that is allowed.
    fn read_type(&mut self, depth: u8, array: bool, work: &mut Work<'a>) -> Found<Type<'a>> {
        let error = self.error(TYPE);
        let Some(name) = self.head(work)? else {
            let Argument::Index(index) = self.step(work)?.token.argument else {
                return Err(error);
            };
            let mut known = work.types.iter().flatten();
            if let Some((_, dtype)) = known.find(|(at, _)| *at == index) {
                return Ok(Type {
                    element_type: ElementType::Plain(*dtype),
                    dimensions: Dimensions::SCALAR,
                });
            }
            let mut there = self.memoized_type(index, work)?;
            let name = there.head(work)?.ok_or(error)?;
            let found = there.state(name, depth, array, work)?;
            if let ElementType::Plain(dtype) = found.element_type
                && found.dimensions.shape().is_empty()
            {
                if let Some(place) = work.types.get_mut(work.next) {
                    *place = Some((index, dtype));
                }
                work.next = work.next.saturating_add(1) & 7;
            }
            return Ok(found);
        };
        self.state(name, depth, array, work)
    }

    /// `(3, order, (type, shape), names, fields, length, alignment, flags)`, or 4
    /// and one more, and BUILD.
    fn state(
        &mut self,
        name: &str,
        depth: u8,
        array: bool,
        work: &mut Work<'a>,
    ) -> Found<Type<'a>> {
        let error = self.error(STATE);
        self.expect(Opcode::Mark, work)?;
        let version = self.integer(work)?;
        if !matches!(version, 3 | 4) {
            return Err(error);
        }
        let order = self.name(work)?.text;
        let mut element = None;
        if !self.take(Opcode::None, work)? {
            if !array {
                return Err(error);
            }
            let base = self.read_type(depth, false, work)?;
            let shape = self.shape(work)?;
            if !self.take(Opcode::Tuple2, work)? {
                self.expect(Opcode::Tuple, work)?;
            }
            element = Some((base, shape));
        }
        let names = *self;
        let field_count = self.skip_names(work)?;
        let fields = *self;
        if !self.take(Opcode::None, work)? {
            if field_count.is_none() {
                return Err(error);
            }
            self.skip_dict(work)?;
        }
        let len = self.length(work)?;
        self.integer(work)?;
        self.integer(work)?;
        let mut unit = None;
        if version == 4 {
            unit = self.metadata(matches!(name.as_bytes(), [b'm' | b'M', ..]), work)?;
        }
        self.expect(Opcode::Tuple, work)?;
        self.expect(Opcode::Build, work)?;
        if let Some((base, shape)) = element {
            let too_large = DTypeError {
                expected: TOO_LARGE,
                ..error
            };
            let item_len = base.element_type.dtype().map_or(0, DType::item_len);
            let dimensions = Dimensions::contiguous(shape.shape(), Order::C, item_len);
            return Ok(Type {
                dimensions: dimensions.map_err(|_| too_large)?,
                ..base
            });
        }
        let element_type = match field_count {
            Some(_) if !name.is_empty() && !name.starts_with('V') => return Err(error),
            Some(field_count) => {
                let depth = depth.checked_sub(1).ok_or(DTypeError {
                    expected: TOO_DEEP,
                    ..error
                })?;
                let len = len.ok_or(error)?;
                let record = PickledRecord { names, fields };
                ElementType::Record(RecordType::pickled(record, field_count, len, depth))
            }
            None => {
                // A record without fields, in the place of nothing.
                let name = if name.is_empty() { "V0" } else { name };
                let dtype = DType::from_state(name, order, len, unit);
                let dtype = dtype.map_err(|expected| DTypeError { expected, ..error })?;
                ElementType::Plain(dtype)
            }
        };
        Ok(Type {
            element_type,
            dimensions: Dimensions::SCALAR,
        })
    }

    /// A tuple of numbers.
    fn shape(&mut self, work: &mut Work<'a>) -> Found<Dimensions> {
        let error = self.error(SHAPE);
        let mut shape = Dimensions::SCALAR;
        if self.take(Opcode::EmptyTuple, work)? {
            return Ok(shape);
        }
        self.take(Opcode::Mark, work)?;
        loop {
            let token = self.step(work)?.token;
            let is_whole = match token.opcode {
                Opcode::Tuple => true,
                Opcode::Tuple1 => shape.shape().len() == 1,
                Opcode::Tuple2 => shape.shape().len() == 2,
                Opcode::Tuple3 => shape.shape().len() == 3,
                _ => {
                    let count = integer(&token).and_then(|count| usize::try_from(count).ok());
                    let pushed = shape.push(count.ok_or(error)?, 0);
                    pushed.map_err(|_| error)?;
                    continue;
                }
            };
            return if is_whole { Ok(shape) } else { Err(error) };
        }
    }

    /// Names in a tuple, which are counted, or `None`.
    fn skip_names(&mut self, work: &mut Work<'a>) -> Found<Option<usize>> {
        let error = self.error("names of fields");
        if self.take(Opcode::None, work)? {
            return Ok(None);
        }
        if self.take(Opcode::EmptyTuple, work)? {
            return Ok(Some(0));
        }
        self.take(Opcode::Mark, work)?;
        let mut count = 0_usize;
        loop {
            let token = self.step(work)?.token;
            let is_whole = match token.opcode {
                Opcode::Tuple => true,
                Opcode::Tuple1 => count == 1,
                Opcode::Tuple2 => count == 2,
                Opcode::Tuple3 => count == 3,
                _ if matches!(token.argument, Argument::Index(_)) || text(&token).is_some() => {
                    count = count.saturating_add(1);
                    continue;
                }
                _ => false,
            };
            return if is_whole {
                Ok(Some(count))
            } else {
                Err(error)
            };
        }
    }

    /// A dictionary whose keys are text, with a number behind it.
    fn skip_dict(&mut self, work: &mut Work<'a>) -> Found<()> {
        let error = self.error("fields of a type");
        let mut stack = Stack::default();
        loop {
            let step = self.step(work)?;
            stack.apply(step.token.opcode).ok_or(error)?;
            if stack.is_one_value() && integer(&self.peek(work)?.token).is_some() {
                return Ok(());
            }
        }
    }

    /// What the ninth part of a state is: of times the unit, otherwise what
    /// programs put there, which is not looked at.
    fn metadata(&mut self, is_time: bool, work: &mut Work<'a>) -> Found<Option<TimeUnit>> {
        if is_time {
            return self.time_unit(work).map(Some);
        }
        let error = self.error(STATE);
        let mut stack = Stack::default();
        loop {
            let mut copy = *self;
            let opcode = copy.step(work)?.token.opcode;
            if stack.is_one_value() && opcode == Opcode::Tuple {
                return Ok(None);
            }
            stack.apply(opcode).ok_or(error)?;
            *self = copy;
        }
    }

    /// `(None or {}, (unit, count, 1, 1))`.
    fn time_unit(&mut self, work: &mut Work<'a>) -> Found<TimeUnit> {
        let error = self.error("the unit of a time");
        self.take(Opcode::Mark, work)?;
        if !self.take(Opcode::None, work)? && !self.take(Opcode::EmptyDict, work)? {
            return Err(error);
        }
        self.expect(Opcode::Mark, work)?;
        let mut token = self.step(work)?.token;
        if let Argument::Index(index) = token.argument {
            token = self.memoized(index, work)?;
        }
        let name = match token.argument {
            Argument::Bytes(name) => name,
            _ => text(&token).ok_or(error)?.as_bytes(),
        };
        let count = self.integer(work)?;
        let parts = [self.integer(work)?, self.integer(work)?];
        self.expect(Opcode::Tuple, work)?;
        if !self.take(Opcode::Tuple2, work)? {
            self.expect(Opcode::Tuple, work)?;
        }
        TimeUnit::from_parts(name, count)
            .filter(|_| parts == [1, 1])
            .ok_or(error)
    }
}

const fn is_flag(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::NewFalse | Opcode::NewTrue | Opcode::BinInt1 | Opcode::Int
    )
}

fn text<'a>(token: &Token<'a>) -> Option<&'a str> {
    match token.argument {
        Argument::Str(text) => text.to_str().ok(),
        // Python 3 takes those of Python 2 for ASCII.
        Argument::ByteString(bytes) => core::str::from_utf8(bytes)
            .ok()
            .filter(|text| text.is_ascii()),
        Argument::Line(line) => {
            let line = match token.opcode {
                Opcode::Unicode => line,
                Opcode::String => line.strip_prefix(b"'")?.strip_suffix(b"'")?,
                _ => return None,
            };
            core::str::from_utf8(line)
                .ok()
                .filter(|text| text.is_ascii() && !text.contains('\\'))
        }
        _ => None,
    }
}

fn integer(token: &Token<'_>) -> Option<i64> {
    match token.argument {
        Argument::Int(value) => Some(value),
        Argument::BigInt(value) => value.to_i64(),
        Argument::Decimal(value) => value.to_i128()?.try_into().ok(),
        _ => None,
    }
}

/// How much is on a stack of plain values and types, and at each mark was.
#[derive(Default)]
struct Stack {
    count: u32,
    marks: [u32; 32],
    mark_count: usize,
}

impl Stack {
    const fn is_one_value(&self) -> bool {
        self.count == 1 && self.mark_count == 0
    }

    /// `None` if there is not enough, or for opcodes of other values.
    fn apply(&mut self, opcode: Opcode) -> Option<()> {
        let fence = match self.mark_count.checked_sub(1) {
            Some(last) => *self.marks.get(last)?,
            None => 0,
        };
        let above = self.count.checked_sub(fence)?;
        let (taken, made) = match opcode {
            Opcode::Mark => {
                *self.marks.get_mut(self.mark_count)? = self.count;
                self.mark_count = self.mark_count.checked_add(1)?;
                return Some(());
            }
            Opcode::Tuple | Opcode::Dict | Opcode::List => {
                self.mark_count = self.mark_count.checked_sub(1)?;
                self.count = fence.checked_add(1)?;
                return Some(());
            }
            Opcode::SetItems | Opcode::Appends => {
                self.mark_count = self.mark_count.checked_sub(1)?;
                self.count = fence;
                return (fence > 0).then_some(());
            }
            Opcode::None
            | Opcode::NewTrue
            | Opcode::NewFalse
            | Opcode::Int
            | Opcode::BinInt
            | Opcode::BinInt1
            | Opcode::BinInt2
            | Opcode::Long
            | Opcode::Long1
            | Opcode::Long4
            | Opcode::Float
            | Opcode::BinFloat
            | Opcode::String
            | Opcode::BinString
            | Opcode::ShortBinString
            | Opcode::BinBytes
            | Opcode::ShortBinBytes
            | Opcode::Unicode
            | Opcode::ShortBinUnicode
            | Opcode::BinUnicode
            | Opcode::BinUnicode8
            | Opcode::EmptyTuple
            | Opcode::EmptyDict
            | Opcode::EmptyList
            | Opcode::Get
            | Opcode::BinGet
            | Opcode::LongBinGet
            | Opcode::Global => (0, 1),
            Opcode::Tuple1 => (1, 1),
            Opcode::Tuple2 | Opcode::StackGlobal | Opcode::Reduce => (2, 1),
            Opcode::Tuple3 => (3, 1),
            Opcode::Build | Opcode::Append => (2, 1),
            Opcode::SetItem => (3, 1),
            _ => return None,
        };
        let left = above.checked_sub(taken)?;
        self.count = fence.checked_add(left)?.checked_add(made)?;
        Some(())
    }
}

/// A type, and its shape if it is one of arrays.
#[derive(Clone, Copy)]
struct Type<'a> {
    element_type: ElementType<'a>,
    dimensions: Dimensions,
}

/// Reads the pickle of a `numpy.dtype`.
pub(super) fn read(pickle: &[u8]) -> Found<ElementType<'_>> {
    let mut cursor = Cursor::new(pickle);
    let mut work = Work::new();
    let found = cursor.read_type(MAX_DEPTH, false, &mut work)?;
    let error = cursor.error("the end of the pickle");
    if cursor.take(Opcode::Stop, &mut work)? && cursor.reader.trailing().is_empty() {
        return Ok(found.element_type);
    }
    Err(error)
}

/// Where the fields of a type are in a pickle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PickledRecord<'a> {
    names: Cursor<'a>,
    fields: Cursor<'a>,
}

impl<'a> PickledRecord<'a> {
    pub(super) fn fields(self) -> PickledFields<'a> {
        let mut names = self.names;
        let mut work = Work::new();
        // It was read before.
        let _ = names.take(Opcode::Mark, &mut work);
        PickledFields {
            names,
            first: self.fields,
            next: self.fields,
            work,
        }
    }
}

/// The fields of a type in a pickle, in the order of their names.
#[derive(Clone, Debug)]
pub(super) struct PickledFields<'a> {
    /// At the next name.
    names: Cursor<'a>,
    /// At the dictionary of fields.
    first: Cursor<'a>,
    /// In it, behind the field that was found last.
    next: Cursor<'a>,
    work: Work<'a>,
}

impl<'a> PickledFields<'a> {
    pub(super) fn next(&mut self, depth: u8, record_len: usize) -> Found<Field<'a>> {
        let work = &mut self.work;
        let missing = self.names.error("a name with a field");
        let name = self.names.name(work)?;
        // Twice around: numpy has them in the order of the names, but for those
        // that are there by their title too, and with the very names as keys.
        let mut left = 2_u8;
        let value = loop {
            let Some(entry) = Entry::next(&mut self.next, work)? else {
                left = left.checked_sub(1).ok_or(missing)?;
                self.next = self.first;
                continue;
            };
            let is_it = match entry.key {
                Ok(index) if name.index == Some(index) => true,
                Ok(index) => left == 0 && self.next.memoized_text(index, work)? == name.text,
                Err(key) => key.text == name.text,
            };
            if is_it {
                break entry.value;
            }
        };
        let value = match value {
            Ok(value) => value,
            // The same tuple as that of a title, which came first.
            Err(index) => {
                let mut entries = self.first;
                loop {
                    let entry = Entry::next(&mut entries, work)?.ok_or(missing)?;
                    if let Ok(value) = entry.value
                        && value.put == Some(index)
                    {
                        break value;
                    }
                }
            }
        };
        value.read(name.text, depth, record_len, work)
    }
}

/// An entry in a dictionary of fields.
struct Entry<'a> {
    /// The key, or where in the memo it is.
    key: Result<u64, Name<'a>>,
    /// The value, or where in the memo it is: one field has two keys if it has a
    /// title.
    value: Result<Value<'a>, u64>,
}

/// `(type, offset)` or `(type, offset, title)`.
struct Value<'a> {
    start: Cursor<'a>,
    put: Option<u64>,
}

impl<'a> Entry<'a> {
    /// `None` at the end of the dictionary.
    fn next(cursor: &mut Cursor<'a>, work: &mut Work<'a>) -> Found<Option<Self>> {
        loop {
            let step = cursor.peek(work)?;
            match step.token.opcode {
                Opcode::EmptyDict
                | Opcode::Mark
                | Opcode::Dict
                | Opcode::SetItem
                | Opcode::SetItems => {
                    cursor.step(work)?;
                }
                _ if integer(&step.token).is_some() => return Ok(None),
                _ => break,
            }
        }
        let key = cursor.name_index(work)?;
        let start = *cursor;
        let mut stack = Stack::default();
        let error = cursor.error("a type, an offset and perhaps a title");
        let first = cursor.step(work)?;
        stack.apply(first.token.opcode).ok_or(error)?;
        // A reference is the whole if neither the arguments of a call follow nor
        // an offset.
        if let Argument::Index(index) = first.token.argument {
            let is_head = matches!(start.clone().skip_head(work), Ok(Some(_)));
            if !is_head && integer(&cursor.peek(work)?.token).is_none() {
                let value = Err(index);
                return Ok(Some(Self { key, value }));
            }
        }
        // Otherwise it is what the last tuple makes of two or three.
        loop {
            let step = cursor.step(work)?;
            let opcode = step.token.opcode;
            stack.apply(opcode).ok_or(error)?;
            let is_tuple = matches!(opcode, Opcode::Tuple | Opcode::Tuple2 | Opcode::Tuple3);
            if is_tuple && stack.is_one_value() {
                let put = step.put;
                let value = Ok(Value { start, put });
                return Ok(Some(Self { key, value }));
            }
        }
    }
}

impl<'a> Value<'a> {
    fn read(
        self,
        name: &'a str,
        depth: u8,
        record_len: usize,
        work: &mut Work<'a>,
    ) -> Found<Field<'a>> {
        let mut cursor = self.start;
        let outside = cursor.error(OUTSIDE);
        cursor.take(Opcode::Mark, work)?;
        let found = cursor.read_type(depth, true, work)?;
        let offset = usize::try_from(cursor.integer(work)?).map_err(|_| outside)?;
        let is_end = |opcode| matches!(opcode, Opcode::Tuple | Opcode::Tuple2 | Opcode::Tuple3);
        let title = match cursor.peek(work)?.token {
            token if is_end(token.opcode) => None,
            _ => Some(cursor.name(work)?.text),
        };
        let error = cursor.error("a type, an offset and perhaps a title");
        if !is_end(cursor.step(work)?.token.opcode) {
            return Err(error);
        }
        let dtype = found.element_type.dtype();
        let item_len = dtype.map_or(0, DType::item_len);
        let len = found.dimensions.len(item_len).ok();
        let end = len.and_then(|len| offset.checked_add(len));
        if end.is_none_or(|end| end > record_len) {
            return Err(outside);
        }
        Ok(Field {
            name,
            title,
            offset,
            element_type: found.element_type,
            dimensions: found.dimensions,
        })
    }
}

impl TimeUnit {
    /// A unit by numpy's name and a number that is 1 or more.
    pub(crate) fn from_parts(name: &[u8], count: i64) -> Option<Self> {
        let count = u32::try_from(count).ok().filter(|count| *count != 0)?;
        let base = match name {
            b"generic" => TimeBase::Generic,
            name => TimeBase::from_name(name)?,
        };
        Some(Self { count, base })
    }
}
