//! Iteration over a value without recursion.

use alloc::vec::Vec;
use core::fmt;

use super::{Items, Kind, Node, Operation, Operations};

/// Iterator over a value and all values in it, from the outside in, in the
/// order of the pickle.
///
/// A shared value is visited once per occurrence, and a value that contains
/// itself has no end: 485 bytes are enough for 2^60 values. The budget is the
/// maximum number of values to visit. [`Tree::nodes`](super::Tree::nodes) has
/// each value once.
#[derive(Clone, Debug)]
pub struct Walk<'t, 'p> {
    start: Option<Node<'t, 'p>>,
    open: Vec<Open<'t, 'p>>,
    budget: usize,
    limit: usize,
}

/// One step of a walk.
#[derive(Clone, Copy, Debug)]
pub enum WalkEvent<'t, 'p> {
    /// The start of a value. Its parts follow: the items of a container, a key
    /// before its value; for an object first its operands, then the values of
    /// its [`Operation`]s.
    Enter(Node<'t, 'p>),
    /// An operation of an object; the following values up to the next operation
    /// belong to it.
    Operation(Operation<'t, 'p>),
    /// The end of a value.
    Leave(Node<'t, 'p>),
}

/// The walk would visit more values than its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetExceeded {
    /// The budget, in values.
    pub budget: usize,
}

impl fmt::Display for BudgetExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there are more values than the budget of {}, counting shared ones each time",
            self.budget
        )
    }
}

impl core::error::Error for BudgetExceeded {}

/// A value with parts that have not been visited.
#[derive(Clone, Debug)]
struct Open<'t, 'p> {
    node: Node<'t, 'p>,
    items: Items<'t, 'p>,
    operations: Operations<'t, 'p>,
}

impl<'t, 'p> Walk<'t, 'p> {
    pub(super) const fn new(start: Node<'t, 'p>, budget: usize) -> Self {
        Self {
            start: Some(start),
            open: Vec::new(),
            budget,
            limit: budget,
        }
    }

    /// Skips the contents of the value that was entered last.
    pub fn skip_contents(&mut self) {
        if let Some(open) = self.open.last_mut() {
            let nothing = Node {
                tree: open.node.tree,
                id: u32::MAX,
            };
            open.items = nothing.items();
            open.operations = nothing.operations();
        }
    }

    fn enter(&mut self, node: Node<'t, 'p>) -> Result<WalkEvent<'t, 'p>, BudgetExceeded> {
        if self.budget == 0 {
            self.open.clear();
            return Err(BudgetExceeded { budget: self.limit });
        }
        self.budget = self.budget.wrapping_sub(1);
        self.open.push(Open {
            node,
            items: node.parts(),
            operations: node.operations(),
        });
        Ok(WalkEvent::Enter(node))
    }
}

impl<'t, 'p> Iterator for Walk<'t, 'p> {
    type Item = Result<WalkEvent<'t, 'p>, BudgetExceeded>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(start) = self.start.take() {
            return Some(self.enter(start));
        }
        let open = self.open.last_mut()?;
        if let Some(item) = open.items.next() {
            return Some(self.enter(item));
        }
        if let Some(operation) = open.operations.next() {
            open.items = operation.items();
            return Some(Ok(WalkEvent::Operation(operation)));
        }
        let node = self.open.pop()?.node;
        Some(Ok(WalkEvent::Leave(node)))
    }
}

impl<'t, 'p> Node<'t, 'p> {
    /// The parts of the value without its operations. Names have no parts.
    pub(super) fn parts(self) -> Items<'t, 'p> {
        let slot = self.slot();
        match slot.kind() {
            Kind::Dict => self.entries().0,
            Kind::StackGlobal => self.block(0),
            kind if kind.has_operands() => {
                let start = slot.link.saturating_add(1);
                Items {
                    ids: self.tree.words(start, kind.operand_count()),
                    ..self.block(0)
                }
            }
            _ => self.items(),
        }
    }
}

impl<'t, 'p> Operation<'t, 'p> {
    pub(super) const fn items(self) -> Items<'t, 'p> {
        match self {
            Self::Append(items) | Self::Add(items) => items,
            Self::Set(entries) => entries.0,
            Self::State(state) => state.0,
        }
    }
}
