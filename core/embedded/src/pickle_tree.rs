//! The values of a small pickle as a tree in arrays of fixed size.
//!
//! A pickle is a program for a stack machine. This runs the part that builds
//! values and stores calls as data; nothing is imported or called.

use daskwire::invariant::OrDefaultIfBug as _;
use daskwire_pickle::{Argument, Limits, Opcode, OutOfBandReader, Reader};

/// The maximum number of values in a pickle. A task with two numbers has 27.
const NODES: usize = 120;

/// The maximum number of items in all tuples, lists and sets.
const ITEMS: usize = 160;

/// The maximum number of values on the stack.
const STACK: usize = 64;

/// The entry that marks the start of a tuple on the stack.
const MARK: u8 = u8::MAX;

/// The index of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u8);

/// A value of the tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Node<'p> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(&'p str),
    /// `bytes`, `bytearray` or an out-of-band buffer.
    Bytes(&'p [u8]),
    /// A function or a class, by name.
    Global {
        module: &'p str,
        name: &'p str,
    },
    /// A tuple, a list or a set.
    Items(Items),
    /// A dict, with its keys and values in turn.
    Dict(Items),
    /// The result of a call, or an instance of a class.
    Call(Call),
    /// A value of a type that functions cannot take.
    Other,
}

/// A range of [`Tree::items`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Items {
    start: u8,
    count: u8,
}

/// A call in a pickle, or an object with its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) callable: Id,
    pub(crate) arguments: Id,
    pub(crate) state: Option<Id>,
}

/// The reason why a pickle is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreeError {
    /// The bytes are not a pickle as Python writes it.
    Malformed,
    /// The pickle has more values than fit.
    TooLarge,
}

/// The values of a pickle.
pub(crate) struct Tree<'p> {
    nodes: [Node<'p>; NODES],
    node_count: usize,
    items: [u8; ITEMS],
    item_count: usize,
    root: Id,
}

impl<'p> Tree<'p> {
    /// A tree of `None`.
    pub(crate) const fn new() -> Self {
        Self {
            nodes: [Node::None; NODES],
            node_count: 1,
            items: [0; ITEMS],
            item_count: 0,
            root: Id(0),
        }
    }

    /// Reads a pickle with its out-of-band buffers, in place: a tree has some
    /// kilobytes, which are not moved.
    pub(crate) fn read(
        &mut self,
        pickle: &'p [u8],
        buffers: &'p [&'p [u8]],
    ) -> Result<(), TreeError> {
        let tree = self;
        tree.node_count = 0;
        tree.item_count = 0;
        let mut stack = Stack {
            ids: [0; STACK],
            len: 0,
        };
        // The memo, by index. Only values are memoized, so it has no more entries.
        let mut memo = [0_u8; NODES];
        let mut memo_count = 0_usize;
        let reader = Reader::with_limits(pickle, &Limits::MICROCONTROLLER);
        let mut buffers = OutOfBandReader::new(reader, buffers);
        while let Some(item) = buffers.next_item().map_err(|_| TreeError::Malformed)? {
            let node = match (item.token.opcode, item.token.argument) {
                _ if item.data.is_some() => {
                    let data = item.data.map(|data| data.bytes);
                    Node::Bytes(data.or_default_if_bug())
                }
                (Opcode::None, _) => Node::None,
                (Opcode::NewTrue, _) => Node::Bool(true),
                (Opcode::NewFalse, _) => Node::Bool(false),
                (_, Argument::Int(value)) => Node::Int(value),
                (_, Argument::BigInt(value)) => value.to_i64().map_or(Node::Other, Node::Int),
                (_, Argument::Float(value)) => Node::Float(value),
                (_, Argument::Str(value)) => value.to_str().map_or(Node::Other, Node::Str),
                (Opcode::EmptyTuple | Opcode::EmptyList | Opcode::EmptySet, _) => {
                    Node::Items(Items::default())
                }
                (Opcode::EmptyDict, _) => Node::Dict(Items::default()),
                (Opcode::Mark, _) => {
                    stack.push(MARK)?;
                    continue;
                }
                (Opcode::Tuple | Opcode::FrozenSet, _) => {
                    let from = stack.mark()?;
                    Node::Items(tree.collect(&mut stack, from, Items::default())?)
                }
                (Opcode::Tuple1, _) => tree.tuple(&mut stack, 1)?,
                (Opcode::Tuple2, _) => tree.tuple(&mut stack, 2)?,
                (Opcode::Tuple3, _) => tree.tuple(&mut stack, 3)?,
                (Opcode::Append, _) => {
                    let from = stack.len.checked_sub(1).ok_or(TreeError::Malformed)?;
                    tree.extend(&mut stack, from)?;
                    continue;
                }
                (Opcode::SetItem, _) => {
                    let from = stack.len.checked_sub(2).ok_or(TreeError::Malformed)?;
                    tree.extend(&mut stack, from)?;
                    continue;
                }
                (Opcode::Appends | Opcode::SetItems | Opcode::AddItems, _) => {
                    let from = stack.mark()?;
                    tree.extend(&mut stack, from)?;
                    continue;
                }
                (Opcode::StackGlobal, _) => {
                    let (name, module) = (stack.pop()?, stack.pop()?);
                    match (tree.get(module), tree.get(name)) {
                        (Node::Str(module), Node::Str(name)) => Node::Global { module, name },
                        _ => return Err(TreeError::Malformed),
                    }
                }
                (Opcode::Reduce | Opcode::NewObj, _) => {
                    let (arguments, callable) = (stack.pop()?, stack.pop()?);
                    Node::Call(Call {
                        callable,
                        arguments,
                        state: None,
                    })
                }
                (Opcode::Build, _) => {
                    let (state, object) = (stack.pop()?, stack.pop()?);
                    if let Some(Node::Call(call)) = tree.nodes.get_mut(usize::from(object.0)) {
                        call.state = Some(state);
                    }
                    stack.push(object.0)?;
                    continue;
                }
                (Opcode::Memoize, _) => {
                    let top = stack.top()?;
                    *memo.get_mut(memo_count).ok_or(TreeError::TooLarge)? = top.0;
                    memo_count = memo_count.wrapping_add(1);
                    continue;
                }
                (Opcode::BinGet | Opcode::LongBinGet, Argument::Index(index)) => {
                    let memo = memo.get(..memo_count).or_default_if_bug();
                    let id = usize::try_from(index)
                        .ok()
                        .and_then(|index| memo.get(index));
                    stack.push(*id.ok_or(TreeError::Malformed)?)?;
                    continue;
                }
                (Opcode::Proto | Opcode::Frame | Opcode::ReadOnlyBuffer, _) => continue,
                (Opcode::Stop, _) => {
                    tree.root = stack.pop()?;
                    continue;
                }
                // The parts of tasks use no other opcodes in protocols 4 and 5.
                _ => return Err(TreeError::Malformed),
            };
            let id = tree.add(node)?;
            stack.push(id.0)?;
        }
        Ok(())
    }

    /// The value of the whole pickle.
    pub(crate) const fn root(&self) -> Id {
        self.root
    }

    /// A value.
    pub(crate) fn get(&self, id: Id) -> Node<'p> {
        let node = self.nodes.get(usize::from(id.0));
        node.copied().unwrap_or(Node::Other)
    }

    /// The items of a tuple, a list, a set or a dict; none for other values.
    pub(crate) fn items(&self, id: Id) -> impl ExactSizeIterator<Item = Id> + Clone + '_ {
        let items = match self.get(id) {
            Node::Items(items) | Node::Dict(items) => items,
            _ => Items::default(),
        };
        let start = usize::from(items.start);
        let end = start.wrapping_add(usize::from(items.count));
        let range = self.items.get(start..end).or_default_if_bug();
        range.iter().map(|id| Id(*id))
    }

    /// The items of a tuple or a list, if it has exactly `N`.
    pub(crate) fn exactly<const N: usize>(&self, id: Id) -> Option<[Id; N]> {
        let mut found = [Id(0); N];
        let items = self.items(id);
        if items.len() != N {
            return None;
        }
        for (place, item) in found.iter_mut().zip(items) {
            *place = item;
        }
        Some(found)
    }

    /// Whether a value is a function or a class of this name.
    pub(crate) fn is_global(&self, id: Id, modules: &[&str], wanted: &str) -> bool {
        match self.get(id) {
            Node::Global { module, name } => name == wanted && modules.contains(&module),
            _ => false,
        }
    }

    fn add(&mut self, node: Node<'p>) -> Result<Id, TreeError> {
        let place = self.nodes.get_mut(self.node_count);
        *place.ok_or(TreeError::TooLarge)? = node;
        let id = u8::try_from(self.node_count).map_err(|_| TreeError::TooLarge)?;
        self.node_count = self.node_count.wrapping_add(1);
        Ok(Id(id))
    }

    fn tuple(&mut self, stack: &mut Stack, count: usize) -> Result<Node<'p>, TreeError> {
        let from = stack.len.checked_sub(count).ok_or(TreeError::Malformed)?;
        let items = self.collect(stack, from, Items::default())?;
        Ok(Node::Items(items))
    }

    /// Adds the values from `from` on to the list, the set or the dict below them.
    fn extend(&mut self, stack: &mut Stack, from: usize) -> Result<(), TreeError> {
        let below = from.checked_sub(1).and_then(|at| stack.ids.get(at));
        let below = usize::from(*below.ok_or(TreeError::Malformed)?);
        let items = match self.nodes.get(below) {
            Some(Node::Items(items) | Node::Dict(items)) => *items,
            _ => return Err(TreeError::Malformed),
        };
        let extended = self.collect(stack, from, items)?;
        if let Some(Node::Items(items) | Node::Dict(items)) = self.nodes.get_mut(below) {
            *items = extended;
        }
        Ok(())
    }

    /// Moves the values from `from` on from the stack to the end of `items`.
    fn collect(
        &mut self,
        stack: &mut Stack,
        from: usize,
        items: Items,
    ) -> Result<Items, TreeError> {
        let end = usize::from(items.start).wrapping_add(usize::from(items.count));
        // A list of more than 1000 items is pickled in several parts, which need
        // not be adjacent.
        if items.count != 0 && end != self.item_count {
            return Err(TreeError::TooLarge);
        }
        let start = if items.count == 0 {
            u8::try_from(self.item_count).map_err(|_| TreeError::TooLarge)?
        } else {
            items.start
        };
        let ids = stack.ids.get(from..stack.len).unwrap_or_default();
        if ids.contains(&MARK) {
            return Err(TreeError::Malformed);
        }
        let space = self.items.get_mut(self.item_count..).or_default_if_bug();
        let space = space.get_mut(..ids.len()).ok_or(TreeError::TooLarge)?;
        crate::copy(space, ids);
        self.item_count = self.item_count.wrapping_add(ids.len());
        let count = u8::try_from(ids.len()).map_err(|_| TreeError::TooLarge)?;
        stack.len = from;
        Ok(Items {
            start,
            count: items.count.checked_add(count).ok_or(TreeError::TooLarge)?,
        })
    }
}

struct Stack {
    ids: [u8; STACK],
    len: usize,
}

impl Stack {
    fn push(&mut self, id: u8) -> Result<(), TreeError> {
        *self.ids.get_mut(self.len).ok_or(TreeError::TooLarge)? = id;
        self.len = self.len.wrapping_add(1);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, TreeError> {
        let top = self.top()?;
        self.len = self.len.wrapping_sub(1);
        Ok(top)
    }

    fn top(&self) -> Result<Id, TreeError> {
        let top = self.ids.get(..self.len).and_then(<[u8]>::last);
        match top {
            Some(&id) if id != MARK => Ok(Id(id)),
            _ => Err(TreeError::Malformed),
        }
    }

    /// Removes the topmost mark and returns the offset of the first value above
    /// it.
    fn mark(&mut self) -> Result<usize, TreeError> {
        let ids = self.ids.get_mut(..self.len).or_default_if_bug();
        let at = ids.iter().rposition(|id| *id == MARK);
        let at = at.ok_or(TreeError::Malformed)?;
        crate::link::shift(ids, at.wrapping_add(1), self.len, at);
        self.len = self.len.wrapping_sub(1);
        Ok(at)
    }
}
