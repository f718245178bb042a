//! The stack machine that builds a tree.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use daskwire_compression::invariant::OrDefaultIfBug;

use super::{Kind, Op, Slot, Tree};
use crate::Limits;
use crate::{Argument, Opcode, Operand, PickleError, PickleErrorKind, Reader, Token};

/// The maximum number of items of a segment: an operation leaves 30 of 32 bits.
const MAX_COUNT: u32 = (1 << 30) - 1;

/// The number of values and words of a small tree, whose unused capacity does
/// not matter.
const SMALL: usize = 48;

/// The state of the machine: the tree so far, the stack, its marks and the memo.
pub(super) struct Builder<'p> {
    tree: Tree<'p>,
    stack: Vec<u32>,
    /// The length of the stack at each mark.
    marks: Vec<u32>,
    memo: Memo,
    value_limit: usize,
    stack_limit: usize,
    memo_limit: usize,
    limits: Limits,
    /// Offset of the current opcode in the pickle, in bytes.
    offset: usize,
}

/// The memo. Consecutive indices, as CPython writes them, are stored in a
/// vector, all others in a map, so that memory is proportional to the entries.
#[derive(Default)]
struct Memo {
    dense: Vec<u32>,
    sparse: BTreeMap<u64, u32>,
}

impl Memo {
    fn count(&self) -> usize {
        self.dense.len().saturating_add(self.sparse.len())
    }

    fn find(&self, index: u64) -> Option<u32> {
        let dense = usize::try_from(index).ok();
        match dense.and_then(|index| self.dense.get(index)) {
            Some(id) => Some(*id),
            None => self.sparse.get(&index).copied(),
        }
    }

    /// Stores a value. Returns false if the memo is full.
    fn put(&mut self, index: u64, id: u32, limit: usize) -> bool {
        let dense = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(entry) = self.dense.get_mut(dense) {
            *entry = id;
            return true;
        }
        if dense == self.dense.len() && self.sparse.is_empty() {
            if dense >= limit {
                return false;
            }
            self.dense.push(id);
            return true;
        }
        if self.count() >= limit && !self.sparse.contains_key(&index) {
            return false;
        }
        self.sparse.insert(index, id);
        // Moves entries that are now consecutive from the map to the vector.
        while let Some(first) = self.sparse.first_entry() {
            if usize::try_from(*first.key()) != Ok(self.dense.len()) {
                break;
            }
            self.dense.push(first.remove());
        }
        true
    }
}

type Step<T> = Result<T, PickleErrorKind>;

impl<'p> Builder<'p> {
    pub(super) fn new(pickle: &'p [u8], limits: &Limits) -> Self {
        let at_most = |limit: u32| {
            usize::try_from(limit)
                .unwrap_or(usize::MAX)
                .min(MAX_COUNT as usize)
        };
        // Initial capacity for most pickles, to avoid small reallocations.
        let likely = (pickle.len() >> 3).min(SMALL);
        let mut words = Vec::with_capacity(likely.saturating_add(1));
        // Index 0 means none.
        words.push(0);
        Self {
            tree: Tree {
                pickle,
                len: 0,
                base: 0,
                slots: Vec::with_capacity(likely),
                words,
                buffers: Vec::new(),
                root: 0,
            },
            stack: Vec::with_capacity(likely >> 1),
            marks: Vec::new(),
            memo: Memo {
                dense: Vec::with_capacity(likely >> 1),
                ..Memo::default()
            },
            value_limit: at_most(limits.value_count),
            stack_limit: at_most(limits.stack_count),
            memo_limit: at_most(limits.memo_count),
            limits: *limits,
            offset: 0,
        }
    }

    pub(super) fn run<T: AsRef<[u8]>>(
        mut self,
        mut reader: Reader<'p>,
        buffers: &'p [T],
    ) -> Result<Tree<'p>, PickleError> {
        let base = reader.position();
        self.tree.base = base;
        // The most frequent opcodes have separate code in which the opcode is a
        // constant, so that the compiler specialises it.
        macro_rules! do_next {
            ($next:expr, $($common:ident)*) => {
                match $next {
                    $(Opcode::$common => {
                        let token = reader.take(Opcode::$common)?;
                        let offset = token.offset.wrapping_sub(base);
                        self.step(&token, offset).map_err(|kind| token.error(kind))?;
                    })*
                    opcode => self.execute(opcode, &mut reader, buffers)?,
                }
            };
        }
        while let Some(next) = reader.next_opcode()? {
            do_next!(next, BinInt BinInt1 BinInt2 BinFloat ShortBinUnicode BinUnicode
                ShortBinBytes Memoize BinGet LongBinGet BinPut EmptyTuple EmptyDict Tuple Tuple1
                Tuple2 Tuple3 Mark None Reduce NewObj Build FrozenSet);
        }
        let mut tree = self.tree;
        tree.len = reader.position().wrapping_sub(base);
        shrink(&mut tree.slots);
        shrink(&mut tree.words);
        tree.buffers.shrink_to_fit();
        Ok(tree)
    }

    /// Executes the next opcode, whichever it is.
    #[inline(never)]
    fn execute<T: AsRef<[u8]>>(
        &mut self,
        opcode: Opcode,
        reader: &mut Reader<'p>,
        buffers: &'p [T],
    ) -> Result<(), PickleError> {
        let token = reader.take(opcode)?;
        let offset = token.offset.wrapping_sub(self.tree.base);
        let step = match opcode {
            Opcode::NextBuffer => self.next_buffer(offset, buffers),
            Opcode::Stop => self.stop(buffers.len()),
            _ => self.step(&token, offset),
        };
        step.map_err(|kind| token.error(kind))
    }

    fn next_buffer<T: AsRef<[u8]>>(&mut self, offset: usize, buffers: &'p [T]) -> Step<()> {
        self.offset = offset;
        let count = self.tree.buffers.len();
        let buffer = buffers.get(count).ok_or(PickleErrorKind::TooFewBuffers {
            buffer_count: buffers.len(),
        })?;
        let index =
            u32::try_from(count).map_err(|_| PickleErrorKind::TooManyValues { limit: u32::MAX })?;
        self.push(Kind::Buffer, offset, index)?;
        self.tree.buffers.push(buffer.as_ref());
        Ok(())
    }

    fn stop(&mut self, buffer_count: usize) -> Step<()> {
        self.tree.root = self.pop(Opcode::Stop)?;
        let used_count = self.tree.buffers.len();
        if used_count < buffer_count {
            return Err(PickleErrorKind::TooManyBuffers {
                used_count,
                buffer_count,
            });
        }
        Ok(())
    }

    /// Applies an opcode to the stack and the memo.
    #[inline(always)]
    fn step(&mut self, token: &Token<'p>, offset: usize) -> Step<()> {
        self.offset = offset;
        let opcode = token.opcode;
        match opcode {
            Opcode::None => self.push(Kind::None, offset, 0),
            Opcode::NewTrue => self.push(Kind::True, offset, 0),
            Opcode::NewFalse => self.push(Kind::False, offset, 0),
            Opcode::BinInt | Opcode::BinInt1 | Opcode::BinInt2 | Opcode::Long => {
                self.push(Kind::Int, offset, 0)
            }
            Opcode::Long1 | Opcode::Long4 => {
                let len = match token.argument {
                    Argument::BigInt(value) => value.as_bytes().len(),
                    _ => 0,
                };
                self.push(Kind::Int, offset, u32::try_from(len).unwrap_or(u32::MAX))
            }
            Opcode::Int => {
                let kind = match token.argument {
                    Argument::Bool(true) => Kind::True,
                    Argument::Bool(false) => Kind::False,
                    _ => Kind::Int,
                };
                self.push(kind, offset, 0)
            }
            Opcode::Float | Opcode::BinFloat => self.push(Kind::Float, offset, 0),
            // pickletools accepts a single quote as quoted, unpicklers do not.
            Opcode::String if matches!(token.argument, Argument::Line([_])) => {
                Err(PickleErrorKind::NotQuoted)
            }
            Opcode::String | Opcode::BinString | Opcode::ShortBinString => {
                self.push(Kind::ByteString, offset, 0)
            }
            Opcode::BinBytes | Opcode::ShortBinBytes | Opcode::BinBytes8 => {
                self.push(Kind::Bytes, offset, 0)
            }
            Opcode::ByteArray8 => self.push(Kind::ByteArray, offset, 0),
            Opcode::Unicode
            | Opcode::ShortBinUnicode
            | Opcode::BinUnicode
            | Opcode::BinUnicode8 => self.push(Kind::Str, offset, 0),
            Opcode::EmptyList => self.push(Kind::List, offset, 0),
            Opcode::EmptyTuple => self.push(Kind::Tuple, offset, 0),
            Opcode::EmptyDict => self.push(Kind::Dict, offset, 0),
            Opcode::EmptySet => self.push(Kind::Set, offset, 0),
            Opcode::Append => {
                let item = self.pop(opcode)?;
                let list = self.top(opcode)?;
                self.check_container(list, Kind::List, opcode, Operand::List)?;
                self.attach(list, Op::Append, &[item])
            }
            Opcode::Appends => self.attach_marked(opcode, Op::Append, Kind::List, Operand::List),
            Opcode::AddItems => self.attach_marked(opcode, Op::Add, Kind::Set, Operand::Set),
            Opcode::SetItems => self.attach_marked(opcode, Op::Set, Kind::Dict, Operand::Dict),
            Opcode::SetItem => {
                let item = self.pop(opcode)?;
                let key = self.pop(opcode)?;
                let dict = self.top(opcode)?;
                self.check_container(dict, Kind::Dict, opcode, Operand::Dict)?;
                self.attach(dict, Op::Set, &[key, item])
            }
            Opcode::List => self.build_from_mark(opcode, offset, Kind::List),
            Opcode::Dict => self.build_from_mark(opcode, offset, Kind::Dict),
            Opcode::Tuple => self.build_from_mark(opcode, offset, Kind::Tuple),
            Opcode::FrozenSet => self.build_from_mark(opcode, offset, Kind::FrozenSet),
            Opcode::Tuple1 => self.tuple::<1>(opcode, offset),
            Opcode::Tuple2 => self.tuple::<2>(opcode, offset),
            Opcode::Tuple3 => self.tuple::<3>(opcode, offset),
            Opcode::Pop => {
                if self.stack.len() > self.stack_floor() {
                    self.stack.pop();
                    Ok(())
                } else if self.marks.pop().is_some() {
                    Ok(())
                } else {
                    Err(PickleErrorKind::StackUnderflow { opcode })
                }
            }
            Opcode::Dup => {
                let top = self.top(opcode)?;
                self.push_id(top)
            }
            Opcode::Mark => {
                self.check_stack()?;
                let len = u32::try_from(self.stack.len()).unwrap_or(u32::MAX);
                self.marks.push(len);
                Ok(())
            }
            Opcode::PopMark => {
                let mark = self.pop_mark(opcode)?;
                self.stack.truncate(mark);
                Ok(())
            }
            Opcode::Get | Opcode::BinGet | Opcode::LongBinGet => {
                let index = index(token);
                let id = self.memo.find(index);
                self.push_id(id.ok_or(PickleErrorKind::NotMemoized { index })?)
            }
            Opcode::Put | Opcode::BinPut | Opcode::LongBinPut => self.memoize(opcode, index(token)),
            Opcode::Memoize => {
                let index = self.memo.count();
                self.memoize(opcode, u64::try_from(index).unwrap_or(u64::MAX))
            }
            Opcode::Ext1 | Opcode::Ext2 | Opcode::Ext4 => match token.argument {
                Argument::Code(code) if code < 1 => Err(PickleErrorKind::ExtensionCode { code }),
                _ => self.push(Kind::Extension, offset, 0),
            },
            Opcode::Global => self.push(Kind::Global, offset, 0),
            Opcode::StackGlobal => {
                let name = self.pop(opcode)?;
                let module = self.pop(opcode)?;
                for id in [name, module] {
                    if !matches!(self.tree.kind(id), Kind::Str | Kind::ByteString) {
                        return wrong_operand(opcode, Operand::Str);
                    }
                }
                self.object(Kind::StackGlobal, offset, &[module, name])
            }
            Opcode::Reduce | Opcode::NewObj => {
                let arguments = self.pop(opcode)?;
                let callable = self.pop(opcode)?;
                self.check_call(opcode, callable, arguments)?;
                let kind = match opcode {
                    Opcode::Reduce => Kind::Call,
                    _ => Kind::New,
                };
                self.object(kind, offset, &[callable, arguments])
            }
            Opcode::NewObjEx => {
                let keywords = self.pop(opcode)?;
                let arguments = self.pop(opcode)?;
                let class = self.pop(opcode)?;
                self.check_call(opcode, class, arguments)?;
                self.check_container(keywords, Kind::Dict, opcode, Operand::Dict)?;
                self.object(Kind::NewWithKeywords, offset, &[class, arguments, keywords])
            }
            Opcode::Build => {
                let state = self.pop(opcode)?;
                let object = self.top(opcode)?;
                if !self.tree.kind(object).is_object() {
                    return wrong_operand(opcode, Operand::Object);
                }
                self.attach(object, Op::State, &[state])
            }
            Opcode::Inst => {
                self.build_from_mark(opcode, offset, Kind::Tuple)?;
                let arguments = self.pop(opcode)?;
                self.object(Kind::Instance, offset, &[arguments])
            }
            Opcode::Obj => {
                let mark = self.pop_mark(opcode)?;
                let class = *self
                    .stack
                    .get(mark)
                    .ok_or(PickleErrorKind::StackUnderflow { opcode })?;
                if !self.tree.kind(class).is_object() {
                    return wrong_operand(opcode, Operand::Callable);
                }
                self.build_from_stack(opcode, offset, Kind::Tuple, mark.saturating_add(1))?;
                let arguments = self.pop(opcode)?;
                self.stack.truncate(mark);
                self.object(Kind::InstanceOf, offset, &[class, arguments])
            }
            Opcode::PersId => self.push(Kind::PersistentLine, offset, 0),
            Opcode::BinPersId => {
                let id = self.pop(opcode)?;
                self.object(Kind::Persistent, offset, &[id])
            }
            Opcode::ReadOnlyBuffer => {
                let top = self.top(opcode)?;
                let slot = self.tree.slot(top);
                match slot.kind() {
                    Kind::Bytes | Kind::ReadOnlyByteArray | Kind::ReadOnlyBuffer => Ok(()),
                    Kind::ByteArray => {
                        self.stack.pop();
                        self.push(Kind::ReadOnlyByteArray, slot.offset(), 0)
                    }
                    Kind::Buffer => {
                        self.stack.pop();
                        self.push(Kind::ReadOnlyBuffer, slot.offset(), slot.link)
                    }
                    kind if kind.is_object() => {
                        self.stack.pop();
                        self.object(Kind::ReadOnly, offset, &[top])
                    }
                    _ => Err(PickleErrorKind::NoBuffer),
                }
            }
            // The first two have no effect; the last two were handled before.
            Opcode::Proto | Opcode::Frame | Opcode::NextBuffer | Opcode::Stop => Ok(()),
        }
    }

    /// The length of the stack at the topmost mark, below which opcodes do not reach.
    fn stack_floor(&self) -> usize {
        self.marks.last().map_or(0, |mark| to_usize(*mark))
    }

    fn check_stack(&self) -> Step<()> {
        if self.stack.len().saturating_add(self.marks.len()) >= self.stack_limit {
            return Err(PickleErrorKind::StackTooLarge {
                limit: self.limits.stack_count,
            });
        }
        Ok(())
    }

    fn push_id(&mut self, id: u32) -> Step<()> {
        self.check_stack()?;
        self.stack.push(id);
        Ok(())
    }

    /// Creates a value and pushes it.
    #[inline]
    fn push(&mut self, kind: Kind, offset: usize, link: u32) -> Step<()> {
        let id = self.tree.slots.len();
        if id >= self.value_limit {
            return Err(self.too_many());
        }
        let id = u32::try_from(id).map_err(|_| self.too_many())?;
        self.push_id(id)?;
        make_room(&mut self.tree.slots, 1, self.offset, self.tree.pickle.len());
        self.tree.slots.push(Slot::new(kind, offset, link));
        Ok(())
    }

    fn too_many(&self) -> PickleErrorKind {
        PickleErrorKind::TooManyValues {
            limit: self.limits.value_count.min(MAX_COUNT),
        }
    }

    /// The index of the next word.
    fn next_word(&self) -> Step<u32> {
        u32::try_from(self.tree.words.len()).map_err(|_| self.too_many())
    }

    #[inline]
    fn pop(&mut self, opcode: Opcode) -> Step<u32> {
        if self.stack.len() > self.stack_floor()
            && let Some(id) = self.stack.pop()
        {
            return Ok(id);
        }
        Err(PickleErrorKind::StackUnderflow { opcode })
    }

    #[inline]
    fn top(&self, opcode: Opcode) -> Step<u32> {
        match self.stack.last() {
            Some(id) if self.stack.len() > self.stack_floor() => Ok(*id),
            _ => Err(PickleErrorKind::StackUnderflow { opcode }),
        }
    }

    /// Removes the topmost mark and returns its position on the stack.
    fn pop_mark(&mut self, opcode: Opcode) -> Step<usize> {
        match self.marks.pop() {
            Some(mark) => Ok(to_usize(mark)),
            None => Err(PickleErrorKind::NoMark { opcode }),
        }
    }

    fn memoize(&mut self, opcode: Opcode, index: u64) -> Step<()> {
        let top = self.top(opcode)?;
        if self.memo.put(index, top, self.memo_limit) {
            return Ok(());
        }
        Err(PickleErrorKind::MemoTooLarge {
            limit: self.limits.memo_count,
        })
    }

    /// Creates a value from all values above the topmost mark.
    #[inline(never)]
    fn build_from_mark(&mut self, opcode: Opcode, offset: usize, kind: Kind) -> Step<()> {
        let mark = self.pop_mark(opcode)?;
        self.build_from_stack(opcode, offset, kind, mark)
    }

    #[inline(always)]
    fn tuple<const N: usize>(&mut self, opcode: Opcode, offset: usize) -> Step<()> {
        match self.stack.len().checked_sub(N) {
            Some(start) if start >= self.stack_floor() => {
                self.build_from_stack(opcode, offset, Kind::Tuple, start)
            }
            _ => Err(PickleErrorKind::StackUnderflow { opcode }),
        }
    }

    /// Creates a value from the stack from `start` on.
    #[inline(always)]
    fn build_from_stack(
        &mut self,
        opcode: Opcode,
        offset: usize,
        kind: Kind,
        start: usize,
    ) -> Step<()> {
        let items = self.stack.get(start..).or_default_if_bug();
        let count = items.len();
        let len = self.tree.pickle.len();
        make_room(
            &mut self.tree.words,
            count.saturating_add(2),
            self.offset,
            len,
        );
        if count == 0 {
            return self.push(kind, offset, 0);
        }
        let link = self.next_word()?;
        let packed = u32::try_from(count).map_err(|_| self.too_many())?;
        match kind {
            Kind::List | Kind::Dict => {
                let is_dict = matches!(kind, Kind::Dict);
                if is_dict && !count.is_multiple_of(2) {
                    return Err(PickleErrorKind::OddItems { opcode, count });
                }
                let op = if is_dict { Op::Set } else { Op::Append };
                // The only segment is both the first and the last.
                let head = [link, op.with_count(count).ok_or_else(|| self.too_many())?];
                self.tree.words.extend_from_slice(&head);
            }
            _ => self.tree.words.push(packed),
        }
        self.tree.words.extend_from_slice(items);
        self.stack.truncate(start);
        self.push(kind, offset, link)
    }

    /// Creates an object with operands.
    fn object(&mut self, kind: Kind, offset: usize, operands: &[u32]) -> Step<()> {
        let link = self.next_word()?;
        let len = self.tree.pickle.len();
        make_room(
            &mut self.tree.words,
            operands.len().saturating_add(1),
            self.offset,
            len,
        );
        self.tree.words.push(0);
        self.tree.words.extend_from_slice(operands);
        self.push(kind, offset, link)
    }

    fn check_container(&self, id: u32, kind: Kind, opcode: Opcode, expected: Operand) -> Step<()> {
        let found = self.tree.kind(id);
        if found == kind || found.is_object() {
            return Ok(());
        }
        wrong_operand(opcode, expected)
    }

    fn check_call(&self, opcode: Opcode, callable: u32, arguments: u32) -> Step<()> {
        if !self.tree.kind(callable).is_object() {
            return wrong_operand(opcode, Operand::Callable);
        }
        self.check_container(arguments, Kind::Tuple, opcode, Operand::Tuple)
    }

    fn attach_marked(&mut self, opcode: Opcode, op: Op, kind: Kind, expected: Operand) -> Step<()> {
        let mark = self.pop_mark(opcode)?;
        let items = self.stack.get(mark..).or_default_if_bug();
        let below = match mark.checked_sub(1) {
            Some(below) if below >= self.stack_floor() => self.stack.get(below),
            _ => None,
        };
        let target = *below.ok_or(PickleErrorKind::StackUnderflow { opcode })?;
        // Without items the target is not changed.
        if items.is_empty() {
            return Ok(());
        }
        if matches!(op, Op::Set) && !items.len().is_multiple_of(2) {
            return Err(PickleErrorKind::OddItems {
                opcode,
                count: items.len(),
            });
        }
        self.check_container(target, kind, opcode, expected)?;
        let items = core::mem::take(&mut self.stack);
        let attached = self.attach(target, op, items.get(mark..).or_default_if_bug());
        self.stack = items;
        self.stack.truncate(mark);
        attached
    }

    /// Adds an operation to a value, or extends the last one if it is the same.
    fn attach(&mut self, target: u32, op: Op, items: &[u32]) -> Step<()> {
        let segment = self.next_word()?;
        let slot = self.tree.slot(target);
        let last = if slot.kind().has_operands() {
            self.tree.word(slot.link)
        } else {
            slot.link
        };
        let len = self.tree.pickle.len();
        let words = &mut self.tree.words;
        make_room(words, items.len().saturating_add(2), self.offset, len);
        let mut next = segment;
        if last != 0 {
            let count_index = to_usize(last).saturating_add(1);
            let (last_op, count) = Op::unpack(words.get(count_index).copied().unwrap_or(0));
            let end = count_index.saturating_add(1).saturating_add(count);
            if last_op == op && !matches!(op, Op::State) && end == words.len() {
                let packed = count
                    .checked_add(items.len())
                    .and_then(|count| op.with_count(count));
                let packed = packed.ok_or(PickleErrorKind::TooManyValues { limit: MAX_COUNT })?;
                if let Some(word) = words.get_mut(count_index) {
                    *word = packed;
                }
                words.extend_from_slice(items);
                return Ok(());
            }
            if let Some(word) = words.get_mut(to_usize(last)) {
                // The new last segment links to the first.
                next = core::mem::replace(word, segment);
            }
        }
        let packed = op
            .with_count(items.len())
            .ok_or(PickleErrorKind::TooManyValues { limit: MAX_COUNT })?;
        words.extend_from_slice(&[next, packed]);
        words.extend_from_slice(items);
        if slot.kind().has_operands() {
            if let Some(word) = words.get_mut(to_usize(slot.link)) {
                *word = segment;
            }
        } else if let Some(slot) = self.tree.slots.get_mut(to_usize(target)) {
            slot.link = segment;
        }
        Ok(())
    }
}

/// Releases unused capacity if it is worth a move: an eighth, or more than that
/// of a small tree.
fn shrink<T>(items: &mut Vec<T>) {
    let unused = items.capacity().wrapping_sub(items.len());
    if items.capacity() > SMALL && unused >= items.capacity() >> 3 {
        items.shrink_to_fit();
    }
}

/// Reserves space for `count` more items, after `offset` of `len` bytes of the
/// pickle have been read.
#[inline]
fn make_room<T>(items: &mut Vec<T>, count: usize, offset: usize, len: usize) {
    if items.capacity().wrapping_sub(items.len()) < count {
        grow(items, count, offset, len);
    }
}

/// Large vectors grow to the size extrapolated for the whole pickle, but by at
/// least an eighth and at most to twice their size, to limit the peak memory of
/// large trees.
#[cold]
fn grow<T>(items: &mut Vec<T>, count: usize, offset: usize, len: usize) {
    const LARGE: usize = 1 << 14;
    let have = items.len();
    if have < LARGE {
        items.reserve(count);
        return;
    }
    let rest = len.saturating_sub(offset) >> 10;
    let for_1024 = have.checked_div(offset >> 10).unwrap_or(have);
    let expected = rest
        .saturating_add(2)
        .saturating_mul(for_1024.saturating_add(1));
    items.reserve_exact(expected.min(have).max(have >> 3).max(count));
}

fn index(token: &Token<'_>) -> u64 {
    match token.argument {
        Argument::Index(index) => index,
        _ => 0,
    }
}

#[cold]
fn wrong_operand<T>(opcode: Opcode, expected: Operand) -> Step<T> {
    Err(PickleErrorKind::WrongOperand { opcode, expected })
}

pub(super) fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
