//! Deadlines, measured with the SysTick counter of the Cortex-M.

use super::register::Register;

// SAFETY: the SysTick registers of ARMv7-M, section B3.3.
const CONTROL: Register = unsafe { Register::at(0xe000_e010) };
// SAFETY: as above.
const RELOAD: Register = unsafe { Register::at(0xe000_e014) };
// SAFETY: as above.
const CURRENT: Register = unsafe { Register::at(0xe000_e018) };

/// Enabled, without an interrupt, at the clock of the processor.
const RUN: u32 = 0b101;

/// The counter has 24 bits and counts down.
const MASK: u32 = 0x00ff_ffff;

/// A point in time at which waiting ends.
///
/// Call [`has_passed`](Self::has_passed) at least once per period of the
/// counter, 1.4 seconds at 12 MHz; otherwise periods are missed.
pub struct Deadline {
    last: u32,
    ticks_left: u32,
}

impl Deadline {
    /// Starts the counter. The time is in ticks of the processor's clock.
    pub fn after(ticks: u32) -> Self {
        RELOAD.write(MASK);
        CURRENT.write(0);
        CONTROL.write(RUN);
        Self {
            last: CURRENT.read() & MASK,
            ticks_left: ticks,
        }
    }

    /// Whether the deadline has passed.
    pub fn has_passed(&mut self) -> bool {
        let now = CURRENT.read() & MASK;
        let ticks = self.last.wrapping_sub(now) & MASK;
        self.last = now;
        self.ticks_left = self.ticks_left.saturating_sub(ticks);
        self.ticks_left == 0
    }
}
