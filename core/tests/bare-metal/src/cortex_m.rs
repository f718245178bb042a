//! Start, text output and exit on a bare Cortex-M. Text and exit status use
//! semihosting, which qemu and debuggers support.
//!
//! A program includes this file as a module and defines the function `program`.

use core::arch::asm;
use core::fmt::{self, Write};

unsafe extern "C" {
    /// An undefined function: a program that calls it does not link.
    fn daskwire_panics() -> !;

    // Addresses from link.x; nothing is stored there.
    static __flash_start: u8;
    static __flash_end: u8;
    static __data_load: u8;
    static mut __data_start: u8;
    static mut __data_end: u8;
    static mut __bss_start: u8;
    static mut __bss_end: u8;
    static mut __stack_top: u8;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: never linked, so never called.
    unsafe { daskwire_panics() }
}

/// The vector table: the top of the stack, then the handlers of reset and
/// faults.
#[repr(C)]
struct Vectors {
    stack_top: *mut u8,
    reset: unsafe extern "C" fn() -> !,
    faults: [unsafe extern "C" fn() -> !; 5],
}

// SAFETY: it is never written.
unsafe impl Sync for Vectors {}

#[used]
// SAFETY: link.x puts this section where the chip looks for it.
#[unsafe(link_section = ".vectors")]
static VECTORS: Vectors = Vectors {
    stack_top: &raw mut __stack_top,
    reset,
    faults: [fault; 5],
};

/// The pattern of unused stack, to measure the stack in use.
const PAINT: u8 = 0xa5;

/// # Safety
///
/// For the chip to call, once.
// SAFETY: link.x names it as the entry.
#[unsafe(no_mangle)]
unsafe extern "C" fn reset() -> ! {
    // SAFETY: before this no variable exists: the ranges are those that link.x
    // has set aside. The stack is painted below the part in use here.
    unsafe {
        let data_len = (&raw const __data_end).addr() - (&raw const __data_start).addr();
        (&raw mut __data_start).copy_from_nonoverlapping(&raw const __data_load, data_len);
        let bss_len = (&raw const __bss_end).addr() - (&raw const __bss_start).addr();
        (&raw mut __bss_start).write_bytes(0, bss_len);
        let paint_len = stack_pointer()
            .wrapping_sub((&raw const __bss_end).addr())
            .wrapping_sub(64);
        (&raw mut __bss_end).write_bytes(PAINT, paint_len);
    }
    let ok = crate::program(&mut Semihosting);
    exit(u32::from(!ok))
}

/// # Safety
///
/// For the chip to call.
unsafe extern "C" fn fault() -> ! {
    let _ = Semihosting.write_str("    the processor faulted\n");
    exit(2)
}

#[inline(always)]
fn stack_pointer() -> usize {
    let at;
    // SAFETY: reads one register.
    unsafe { asm!("mov {}, sp", out(reg) at, options(nomem, nostack, preserves_flags)) };
    at
}

/// The bytes of flash, and the peak of stack use in bytes.
#[inline(never)]
pub fn memory_used() -> (usize, usize) {
    // SAFETY: the stack is memory that can be read from its end up.
    unsafe {
        let flash = (&raw const __flash_end).addr() - (&raw const __flash_start).addr();
        let top = (&raw const __stack_top).addr();
        let mut at = &raw const __bss_end;
        while at.addr() < top && at.read_volatile() == PAINT {
            at = at.wrapping_add(1);
        }
        (flash, top.wrapping_sub(at.addr()))
    }
}

/// Bytes of static variables.
pub fn static_len() -> usize {
    let start = (&raw const __data_start).addr();
    (&raw const __bss_end).addr().wrapping_sub(start)
}

/// Text output to the debugging interface.
pub struct Semihosting;

impl Write for Semihosting {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.as_bytes() {
            // SYS_WRITEC: one byte, by address.
            semihosting(3, core::ptr::from_ref(byte).addr());
        }
        Ok(())
    }
}

fn exit(status: u32) -> ! {
    // SYS_EXIT_EXTENDED with ADP_Stopped_ApplicationExit.
    let block = [0x2_0026, status];
    loop {
        semihosting(0x20, block.as_ptr().addr());
    }
}

fn semihosting(operation: u32, argument: usize) {
    // SAFETY: the operations used here read what `argument` points to.
    unsafe {
        asm!(
            "bkpt 0xab",
            inout("r0") operation => _,
            in("r1") argument,
            options(nostack),
        );
    }
}
