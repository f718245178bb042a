//! Going through a value without recursion.

use alloc::vec::Vec;
use core::fmt;

use super::{Items, Kind, Node, Operation, Operations};

/// Goes through a value and all in it, from the outside to the inside, in the
/// order of the pickle.
///
/// A value that is shared comes as often as it is somewhere, and one that
/// contains itself never ends: 485 bytes are enough for 2^60 values. Therefore
/// there is a budget: the number of values that the walk enters at most.
/// [`Tree::nodes`](super::Tree::nodes) has each value once.
#[derive(Clone, Debug)]
pub struct Walk<'t, 'p> {
    start: Option<Node<'t, 'p>>,
    open: Vec<Open<'t, 'p>>,
    budget: usize,
    limit: usize,
}

/// One step of a walk.
#[derive(Clone, Copy, Debug)]
pub enum Event<'t, 'p> {
    /// Here a value begins. What it is made of follows: the items of a
    /// container, a key before its value; of an object first what it is made
    /// of, then what its [`Operation`]s take.
    Enter(Node<'t, 'p>),
    /// Of an object: the next values up to the next of these belong to this.
    Operation(Operation<'t, 'p>),
    /// Here it ends.
    Leave(Node<'t, 'p>),
}

/// A walk would take more steps than its budget.
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

/// A value whose parts are not all done.
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

    /// Leaves out what is in the value that was entered last.
    pub fn leave_out(&mut self) {
        if let Some(open) = self.open.last_mut() {
            let nothing = Node {
                tree: open.node.tree,
                id: u32::MAX,
            };
            open.items = nothing.items();
            open.operations = nothing.operations();
        }
    }

    fn enter(&mut self, node: Node<'t, 'p>) -> Result<Event<'t, 'p>, BudgetExceeded> {
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
        Ok(Event::Enter(node))
    }
}

impl<'t, 'p> Iterator for Walk<'t, 'p> {
    type Item = Result<Event<'t, 'p>, BudgetExceeded>;

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
            return Some(Ok(Event::Operation(operation)));
        }
        let node = self.open.pop()?.node;
        Some(Ok(Event::Leave(node)))
    }
}

impl<'t, 'p> Node<'t, 'p> {
    /// What it is made of, without operations; names are whole.
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
