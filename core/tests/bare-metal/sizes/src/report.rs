//! The end of each program: prints what it took, without `core::fmt`, which
//! would be larger than some of the programs.

use core::fmt::Write as _;

use crate::cortex_m::{self, Semihosting};

/// Prints the bytes of flash without those of the input, of stack and of static
/// variables.
pub(crate) fn report(out: &mut Semihosting, input_len: usize) {
    let (flash, stack) = cortex_m::memory_used();
    for number in [flash.wrapping_sub(input_len), stack, cortex_m::static_len()] {
        decimal(out, number);
    }
}

fn decimal(out: &mut Semihosting, number: usize) {
    let mut digits = [b' '; 11];
    let mut left = number;
    for digit in digits.iter_mut().rev().skip(1) {
        *digit = b'0'.wrapping_add((left % 10) as u8);
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let _ = out.write_str(core::str::from_utf8(&digits).unwrap_or_default());
}
