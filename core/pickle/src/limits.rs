//! Limits on the resources that a pickle may use.

/// Limits on the resources that a pickle may use.
///
/// ```
/// use daskwire_pickle::Limits;
/// let limits = Limits::HOST.with_opcode_count(1000);
/// assert_eq!(limits.value_count, Limits::HOST.value_count);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Opcodes in one pickle.
    pub opcode_count: u32,
    /// Values in the tree of one pickle.
    pub value_count: u32,
    /// Values and marks on the stack at a time, while the tree is built.
    pub stack_count: u32,
    /// Values in the memo, while the tree is built.
    pub memo_count: u32,
}

impl Limits {
    with_fields! {
        with_opcode_count(opcode_count: u32);
        with_value_count(value_count: u32);
        with_stack_count(stack_count: u32);
        with_memo_count(memo_count: u32);
    }
}

impl Limits {
    /// Limits for machines with an operating system: 16 Mi of each.
    pub const HOST: Self = Self {
        opcode_count: 16 << 20,
        value_count: 16 << 20,
        stack_count: 16 << 20,
        memo_count: 16 << 20,
    };

    /// Limits for machines with some hundreds of KiB of memory.
    pub const MICROCONTROLLER: Self = Self {
        opcode_count: 4096,
        value_count: 1024,
        stack_count: 1024,
        memo_count: 1024,
    };
}

impl Default for Limits {
    /// Returns [`Limits::HOST`].
    fn default() -> Self {
        Self::HOST
    }
}
