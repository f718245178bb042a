//! The link test for this machine: no standard library, no allocator, and a
//! panic handler that must not be reachable.
//!
//! Links with the C library for the start of a program, `write` and `memcpy`.

#![no_std]
#![no_main]

use core::ffi::{c_char, c_int, c_void};
use core::fmt;

use daskwire::compression::Snappy;

#[link(name = "c")]
unsafe extern "C" {
    fn write(file: c_int, bytes: *const c_void, len: usize) -> isize;
    /// An undefined function: a program that calls it does not link.
    #[cfg(not(feature = "async"))]
    fn daskwire_panics() -> !;
    #[cfg(feature = "async")]
    fn abort() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(not(feature = "async"))]
    // SAFETY: never linked, so never called.
    unsafe {
        daskwire_panics()
    }
    #[cfg(feature = "async")]
    // SAFETY: it takes no arguments and may be called at any time.
    unsafe {
        abort()
    }
}

struct Out;

impl fmt::Write for Out {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            // SAFETY: `rest` is that many bytes that can be read.
            let count = unsafe { write(1, rest.as_ptr().cast(), rest.len()) };
            let after = usize::try_from(count)
                .ok()
                .filter(|count| *count != 0)
                .and_then(|count| rest.get(count..));
            match after {
                Some(after) => rest = after,
                None => return Err(fmt::Error),
            }
        }
        Ok(())
    }
}

/// The entry point for the C library.
// SAFETY: the name is that of the program's start, and this is its signature.
#[unsafe(no_mangle)]
pub extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    use fmt::Write;
    let mut snappy = Snappy::new();
    match daskwire_bare_metal::everything(&mut snappy, &mut Out) {
        Ok(()) => c_int::from(daskwire_bare_metal::break_a_promise()),
        Err(fault) => {
            let _ = writeln!(Out, "    failed: {fault}");
            1
        }
    }
}
