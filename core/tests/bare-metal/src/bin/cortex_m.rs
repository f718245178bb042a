//! The link test for a Cortex-M4: everything, as on the host.

#![no_std]
#![no_main]

use core::fmt::Write;

use daskwire::compression::Snappy;

#[path = "../cortex_m.rs"]
mod cortex_m;

fn program(out: &mut cortex_m::Semihosting) -> bool {
    match run(out) {
        Ok(()) => daskwire_bare_metal::break_a_promise() == 0,
        Err(fault) => {
            let _ = writeln!(out, "    failed: {fault}");
            false
        }
    }
}

fn run(out: &mut cortex_m::Semihosting) -> Result<(), daskwire_bare_metal::Fault> {
    let mut snappy = Snappy::new();
    daskwire_bare_metal::everything(&mut snappy, out)?;
    let (flash, stack) = cortex_m::memory_used();
    writeln!(
        out,
        "    flash {} bytes ({} more are the recorded messages), stack {stack}, static {}",
        flash.wrapping_sub(daskwire_bare_metal::RECORDED_LEN),
        daskwire_bare_metal::RECORDED_LEN,
        cortex_m::static_len(),
    )?;
    Ok(())
}
