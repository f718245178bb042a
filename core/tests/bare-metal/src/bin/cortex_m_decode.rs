//! The minimum size on a Cortex-M4: decodes one message of the modern layout
//! from a stream and decompresses its payload with lz4.

#![no_std]
#![no_main]

use core::fmt::Write;
use core::hint::black_box;

#[path = "../cortex_m.rs"]
mod cortex_m;

fn program(out: &mut cortex_m::Semihosting) -> bool {
    let [message, _] = daskwire_bare_metal::ONES;
    let decoded = daskwire_bare_metal::decode::<1024>(
        black_box(message.bytes),
        message.prefix,
        message.layout,
    );
    let right = decoded.is_ok_and(|found| found == (message.plain_len, message.plain_hash));
    let (flash, stack) = cortex_m::memory_used();
    let printed = writeln!(
        out,
        "    flash {} bytes ({} more are the recorded message), stack {stack}, static {}",
        flash.wrapping_sub(message.bytes.len()),
        message.bytes.len(),
        cortex_m::static_len(),
    );
    right && printed.is_ok()
}
