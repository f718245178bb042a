//! A millisecond clock, counted by the SysTick interrupt, so that it continues
//! while a function runs.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use super::register::Register;

// SAFETY: the SysTick registers of ARMv7-M, section B3.3.
const CONTROL: Register = unsafe { Register::at(0xe000_e010) };
// SAFETY: as above.
const RELOAD: Register = unsafe { Register::at(0xe000_e014) };
// SAFETY: as above.
const CURRENT: Register = unsafe { Register::at(0xe000_e018) };

/// Enabled, with its interrupt, at the clock of the processor.
const RUN: u32 = 0b111;

/// Ticks of the processor's clock in a millisecond, at the frequency given in
/// `uart.rs`.
const TICKS: u32 = 12_000;

/// Milliseconds since the start. Wraps after 49 days.
static MILLISECONDS: AtomicU32 = AtomicU32::new(0);

/// The handlers of exceptions 7 to 15, after those in `cortex_m.rs`; the last one
/// is that of SysTick.
#[used]
// SAFETY: link.x puts this section after the other vectors.
#[unsafe(link_section = ".vectors_rest")]
static VECTORS: [unsafe extern "C" fn(); 9] = [tick; 9];

/// # Safety
///
/// Must be called only by the processor, as an interrupt handler.
unsafe extern "C" fn tick() {
    // No other code writes it.
    let now = MILLISECONDS.load(Ordering::Relaxed);
    MILLISECONDS.store(now.wrapping_add(1), Ordering::Relaxed);
}

/// A clock that does not wrap, if it is read every few weeks.
pub struct Clock {
    last: u32,
    wraps: u64,
}

impl Clock {
    /// Starts the clock.
    pub fn start() -> Self {
        RELOAD.write(TICKS.wrapping_sub(1));
        CURRENT.write(0);
        CONTROL.write(RUN);
        Self { last: 0, wraps: 0 }
    }

    /// The time since the start.
    pub fn now(&mut self) -> Duration {
        let now = MILLISECONDS.load(Ordering::Relaxed);
        if now < self.last {
            self.wraps = self.wraps.wrapping_add(1 << 32);
        }
        self.last = now;
        Duration::from_millis(self.wraps.wrapping_add(now.into()))
    }
}

/// Milliseconds since the start, for short times.
pub fn milliseconds() -> u32 {
    MILLISECONDS.load(Ordering::Relaxed)
}

/// Waits for the next interrupt, a millisecond at most.
pub fn sleep() {
    // SAFETY: stops the processor until an interrupt.
    unsafe { asm!("wfi", options(nomem, nostack, preserves_flags)) }
}
