//! The first serial line of the chip, a PL011, without interrupts.
//!
//! The line has no flow control, so bytes that are not read in time may be
//! lost. For that reason the two sides in `main.rs` take turns.

use core::fmt;

use super::deadline::Deadline;
use super::register::Register;

/// Ticks of the clock in a second: after a reset the chip runs on its internal
/// oscillator.
pub const TICKS_PER_SECOND: u32 = 12_000_000;

/// 115,200 baud: the clock over 16 times that is 6.51, in 64ths.
const DIVISOR: (u32, u32) = (6, 33);

// SAFETY: the registers in the manual of the LM3S6965, chapters 5 (system
// control), 8 (port A, whose pins 0 and 1 are the line) and 12 (UART0).
mod at {
    use super::Register;

    pub const CLOCK_OF_UARTS: Register = unsafe { Register::at(0x400f_e104) };
    pub const CLOCK_OF_PORTS: Register = unsafe { Register::at(0x400f_e108) };
    pub const PINS_FUNCTION: Register = unsafe { Register::at(0x4000_4420) };
    pub const PINS_DIGITAL: Register = unsafe { Register::at(0x4000_451c) };
    pub const DATA: Register = unsafe { Register::at(0x4000_c000) };
    pub const FLAGS: Register = unsafe { Register::at(0x4000_c018) };
    pub const DIVISOR_WHOLE: Register = unsafe { Register::at(0x4000_c024) };
    pub const DIVISOR_FRACTION: Register = unsafe { Register::at(0x4000_c028) };
    pub const LINE: Register = unsafe { Register::at(0x4000_c02c) };
    pub const CONTROL: Register = unsafe { Register::at(0x4000_c030) };
}

const RECEIVE_EMPTY: u32 = 1 << 4;
const TRANSMIT_FULL: u32 = 1 << 5;

/// The error bits above a byte: overrun, break, parity, framing.
const BYTE_ERRORS: u32 = 0xf00;

/// The serial line.
pub struct Uart(());

/// The error of reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UartError {
    /// The deadline has passed.
    Timeout,
    /// A byte before this one was lost because it was not read in time.
    Overrun,
    /// The line was disturbed, or runs at another speed.
    Line,
}

impl fmt::Display for UartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "the peer has not said enough before the time was over",
            Self::Overrun => "bytes came faster than they were read",
            Self::Line => "the serial line is disturbed, or runs at another speed",
        })
    }
}

impl Uart {
    /// Enables the line with 115,200 baud, 8 bits, no parity.
    ///
    /// The queue of 16 bytes stays disabled. Enabling it empties it, and an
    /// emulated line may have received its first byte before the program
    /// starts.
    pub fn start() -> Self {
        at::CLOCK_OF_UARTS.set(1);
        at::CLOCK_OF_PORTS.set(1);
        // The clocks need three ticks to start, which reading a register takes.
        at::CLOCK_OF_PORTS.read();
        at::PINS_FUNCTION.set(0b11);
        at::PINS_DIGITAL.set(0b11);
        let (whole, fraction) = DIVISOR;
        at::DIVISOR_WHOLE.write(whole);
        at::DIVISOR_FRACTION.write(fraction);
        at::LINE.write(0b11 << 5);
        at::CONTROL.write(0x301);
        Self(())
    }

    /// Waits for a byte, reads all further bytes available to `into`, and
    /// returns their number.
    ///
    /// # Errors
    ///
    /// * [`UartError::Timeout`] if no byte arrived, or if bytes keep arriving
    ///   after the deadline;
    /// * [`UartError::Overrun`] or [`UartError::Line`] if a byte is faulty.
    pub fn read(&mut self, into: &mut [u8], deadline: &mut Deadline) -> Result<usize, UartError> {
        let mut count = 0_usize;
        for place in into {
            while at::FLAGS.read() & RECEIVE_EMPTY != 0 {
                if count != 0 {
                    return Ok(count);
                }
                if deadline.has_passed() {
                    return Err(UartError::Timeout);
                }
            }
            // A peer that never stops sending must not block this loop.
            if deadline.has_passed() {
                return Err(UartError::Timeout);
            }
            let [byte, ..] = match at::DATA.read() {
                data if data & BYTE_ERRORS == 0 => data.to_le_bytes(),
                data if data & 0x800 != 0 => return Err(UartError::Overrun),
                _ => return Err(UartError::Line),
            };
            *place = byte;
            count = count.wrapping_add(1);
        }
        Ok(count)
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    ///
    /// [`UartError::Timeout`] if the line does not accept them in time.
    pub fn write(&mut self, bytes: &[u8], deadline: &mut Deadline) -> Result<(), UartError> {
        for byte in bytes {
            while at::FLAGS.read() & TRANSMIT_FULL != 0 {
                if deadline.has_passed() {
                    return Err(UartError::Timeout);
                }
            }
            at::DATA.write(u32::from(*byte));
        }
        Ok(())
    }
}
