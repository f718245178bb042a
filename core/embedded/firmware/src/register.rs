//! Registers of the chip.

use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// A register of 32 bits.
#[derive(Clone, Copy)]
pub struct Register(usize);

impl Register {
    /// The register at `address`.
    ///
    /// # Safety
    ///
    /// A register exists at `address`, and reading or writing it does not
    /// access memory.
    pub const unsafe fn at(address: usize) -> Self {
        Self(address)
    }

    /// Reads the register, which may have side effects.
    pub fn read(self) -> u32 {
        // SAFETY: guaranteed by the caller of `at`.
        unsafe { with_exposed_provenance::<u32>(self.0).read_volatile() }
    }

    /// Writes the register.
    pub fn write(self, value: u32) {
        // SAFETY: guaranteed by the caller of `at`.
        unsafe { with_exposed_provenance_mut::<u32>(self.0).write_volatile(value) }
    }

    /// Sets these bits and leaves the others.
    pub fn set(self, bits: u32) {
        self.write(self.read() | bits);
    }
}
