//! A bound on the work of reading a pickle.

use core::cell::Cell;

use super::ValueError;

/// The work that may still be done to read a pickle.
///
/// Shared objects are read again at each occurrence, so a few bytes of a pickle can
/// represent more data than fits into memory. Each step, value and copied byte is
/// therefore counted, up to a maximum that depends on the length of the pickle.
#[derive(Debug)]
pub struct Budget {
    steps: Cell<usize>,
    bytes: Cell<usize>,
}

impl Budget {
    /// A budget of steps and values, and of copied bytes.
    pub const fn new(steps: usize, bytes: usize) -> Self {
        Self {
            steps: Cell::new(steps),
            bytes: Cell::new(bytes),
        }
    }

    /// Spends steps or values.
    ///
    /// # Errors
    ///
    /// [`ValueError::TooLarge`] if fewer are left.
    pub fn spend(&self, count: usize) -> Result<(), ValueError> {
        spend(&self.steps, count)
    }

    /// Spends copied bytes.
    ///
    /// # Errors
    ///
    /// [`ValueError::TooLarge`] if fewer are left.
    pub fn spend_copy(&self, len: usize) -> Result<(), ValueError> {
        spend(&self.bytes, len)
    }

    /// The remaining steps and bytes.
    pub fn left(&self) -> (usize, usize) {
        (self.steps.get(), self.bytes.get())
    }
}

fn spend(left: &Cell<usize>, count: usize) -> Result<(), ValueError> {
    let rest = left.get().checked_sub(count);
    left.set(rest.ok_or(ValueError::TooLarge)?);
    Ok(())
}
