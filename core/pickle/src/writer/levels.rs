//! Open values: each level counts down its values.

use super::{Batch, Kind, WriteError, Writer, WriterLevel};
use crate::Opcode;

impl Writer<'_, '_> {
    /// Counts one value that is about to be written.
    #[inline]
    pub(super) fn value(&mut self) {
        if self.level.left == 0 {
            self.prepare_value();
        }
        self.level.left = self.level.left.wrapping_sub(1);
        self.can_memoize = true;
    }

    /// Prepares for a value: ends complete values and begins a batch.
    #[inline(never)]
    pub(super) fn prepare_value(&mut self) {
        // After an error the levels are unspecified.
        while self.error.is_none() && self.level.left == 0 {
            if self.level.rest > 0 {
                self.end_batch();
                self.begin_batch();
            } else if self.level.kind == Kind::Root {
                self.fail(WriteError::TooMany { at: self.len });
            } else {
                self.close();
            }
        }
    }

    #[inline]
    pub(super) fn open(&mut self, level: WriterLevel) -> &mut Self {
        if let Some(slot) = self.levels.get_mut(self.depth) {
            *slot = self.level;
            self.depth = self.depth.wrapping_add(1);
            self.level = level;
        } else {
            self.fail(WriteError::TooDeep {
                at: self.len,
                levels: self.levels.len(),
            });
        }
        self
    }

    /// Begins a value of `count` values that ends with this opcode.
    #[inline]
    pub(super) fn open_fixed(&mut self, opcode: Opcode, count: usize) -> &mut Self {
        self.can_memoize = false;
        self.open(WriterLevel::new(Kind::Fixed(opcode), count, 0))
    }

    /// Ends the innermost level, which is complete and not the root.
    #[inline]
    pub(super) fn close(&mut self) {
        if let Kind::Fixed(opcode) = self.level.kind {
            self.opcode(opcode);
        } else {
            self.end_batch();
        }
        self.can_memoize = true;
        if let Some(depth) = self.depth.checked_sub(1)
            && let Some(level) = self.levels.get(depth)
        {
            self.depth = depth;
            self.level = *level;
        }
    }

    pub(super) fn begin_batch(&mut self) {
        let WriterLevel { rest, kind, .. } = self.level;
        let width = match kind {
            Kind::Dict | Kind::Update => 2,
            _ => 1,
        };
        // A single item has no mark. CPython checks the length of exact lists
        // and dictionaries, and looks ahead in iterators.
        let alone = match kind {
            Kind::List | Kind::Dict => self.level.batch == Batch::None,
            Kind::Extend | Kind::Update => true,
            _ => false,
        };
        let max_count = BATCH_COUNT.wrapping_mul(width);
        let batch_count = rest.min(max_count);
        self.level.left = batch_count;
        self.level.rest = rest.wrapping_sub(batch_count);
        self.level.batch = if alone && rest == width {
            Batch::One
        } else if rest == max_count && matches!(kind, Kind::Dict | Kind::Set) {
            Batch::Full
        } else {
            Batch::Many
        };
        if self.level.batch != Batch::One {
            self.opcode(Opcode::Mark);
        }
    }

    pub(super) fn end_batch(&mut self) {
        let (one, many) = match self.level.kind {
            Kind::List | Kind::Extend => (Opcode::Append, Opcode::Appends),
            Kind::Dict | Kind::Update => (Opcode::SetItem, Opcode::SetItems),
            _ => (Opcode::AddItems, Opcode::AddItems),
        };
        match self.level.batch {
            Batch::None => {}
            Batch::One => {
                self.opcode(one);
            }
            Batch::Many => {
                self.opcode(many);
            }
            Batch::Full => {
                self.opcode(many).opcode(Opcode::Mark).opcode(many);
            }
        }
    }
}

/// Items or entries per batch: `BATCHSIZE` of CPython.
const BATCH_COUNT: usize = 1000;
