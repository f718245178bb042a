//! Everything in daskwire that needs no heap, with the texts of all errors.

#![no_std]
#![no_main]

use daskwire::compression::Snappy;

#[path = "../../../src/cortex_m.rs"]
mod cortex_m;
#[path = "../panics.rs"]
mod panics;
#[path = "../report.rs"]
mod report;

fn program(out: &mut cortex_m::Semihosting) -> bool {
    let mut snappy = Snappy::new();
    let right = daskwire_bare_metal::everything(&mut snappy, &mut Nowhere).is_ok();
    report::report(out, daskwire_bare_metal::RECORDED_LEN);
    right
}

struct Nowhere;

impl core::fmt::Write for Nowhere {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        core::hint::black_box(text);
        Ok(())
    }
}
