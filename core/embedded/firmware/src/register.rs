//! Registers of the chip.

use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// One register of 32 bits.
#[derive(Clone, Copy)]
pub struct Register(usize);

impl Register {
    /// The register at `address`.
    ///
    /// # Safety
    ///
    /// There is one, and neither reading nor writing it touches memory.
    pub const unsafe fn at(address: usize) -> Self {
        Self(address)
    }

    /// What it holds. Reading may change what the device does.
    pub fn read(self) -> u32 {
        // SAFETY: as `at` was promised.
        unsafe { with_exposed_provenance::<u32>(self.0).read_volatile() }
    }

    /// Writes all of it.
    pub fn write(self, value: u32) {
        // SAFETY: as `at` was promised.
        unsafe { with_exposed_provenance_mut::<u32>(self.0).write_volatile(value) }
    }

    /// Sets these bits and leaves the others.
    pub fn set(self, bits: u32) {
        self.write(self.read() | bits);
    }
}
