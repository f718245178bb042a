//! minicbor: a whole message, since it has no framing.

#![no_std]
#![no_main]

use core::hint::black_box;

use minicbor_message::TaskFinished;

#[path = "../../../src/cortex_m.rs"]
mod cortex_m;
#[path = "../minicbor_message.rs"]
mod minicbor_message;
#[path = "../panics.rs"]
mod panics;
#[path = "../report.rs"]
mod report;

static DOCUMENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/minicbor.bin"));

fn program(out: &mut cortex_m::Semihosting) -> bool {
    let read = minicbor::decode::<TaskFinished<'_>>(black_box(DOCUMENT));
    let right = read.is_ok_and(|message| {
        message.op == "task-finished" && message.key.len() == 41 && message.nbytes == 8000
    });
    report::report(out, DOCUMENT.len());
    right
}
