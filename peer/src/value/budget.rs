//! A bound on what is made of a pickle.

use core::cell::Cell;

use super::ValueError;

/// How much may still be made of a pickle.
///
/// What a pickle shares is made again wherever it stands, so a few bytes can stand
/// for more than any memory holds. Every step, every value and every byte that is
/// copied therefore counts, and how many there may be depends on the length of the
/// pickle.
#[derive(Debug)]
pub(crate) struct Budget {
    steps: Cell<usize>,
    bytes: Cell<usize>,
}

impl Budget {
    /// So many steps or values, and so many bytes of data that is copied.
    pub(crate) const fn new(steps: usize, bytes: usize) -> Self {
        Self {
            steps: Cell::new(steps),
            bytes: Cell::new(bytes),
        }
    }

    /// Counts steps or values.
    ///
    /// # Errors
    ///
    /// [`ValueError::TooLarge`] if fewer are left.
    pub(crate) fn spend(&self, count: usize) -> Result<(), ValueError> {
        spend(&self.steps, count)
    }

    /// Counts bytes that are copied.
    ///
    /// # Errors
    ///
    /// [`ValueError::TooLarge`] if fewer are left.
    pub(crate) fn spend_copy(&self, len: usize) -> Result<(), ValueError> {
        spend(&self.bytes, len)
    }

    /// How many steps and bytes are left.
    #[cfg(test)]
    pub(crate) fn left(&self) -> (usize, usize) {
        (self.steps.get(), self.bytes.get())
    }
}

fn spend(left: &Cell<usize>, count: usize) -> Result<(), ValueError> {
    let rest = left.get().checked_sub(count);
    left.set(rest.ok_or(ValueError::TooLarge)?);
    Ok(())
}
