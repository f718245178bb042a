//! The arguments of the program, which the emulator passes by semihosting. A
//! program for a real board has constants instead.

use core::arch::asm;

/// Reads the command line into `buffer`; empty if there is none.
pub fn command_line(buffer: &mut [u8]) -> &str {
    // SYS_GET_CMDLINE takes the address and the length of a buffer, and sets the
    // length to that of the command line.
    let mut block = [buffer.as_mut_ptr().addr(), buffer.len()];
    let mut result = 0x15;
    // SAFETY: the operation writes to the buffer and to the block.
    unsafe {
        asm!(
            "bkpt 0xab",
            inout("r0") result,
            in("r1") block.as_mut_ptr(),
            options(nostack),
        );
    }
    let [_, len] = block;
    let text = buffer.get(..len).filter(|_| result == 0);
    core::str::from_utf8(text.unwrap_or_default()).unwrap_or_default()
}
