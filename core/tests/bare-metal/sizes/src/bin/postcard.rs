//! postcard: a message from a stream, with zero bytes between messages.

#![no_std]
#![no_main]

use core::hint::black_box;

use postcard::accumulator::{CobsAccumulator, FeedResult};
use postcard_message::TaskFinished;

#[path = "../../../src/cortex_m.rs"]
mod cortex_m;
#[path = "../panics.rs"]
mod panics;
#[path = "../postcard_message.rs"]
mod postcard_message;
#[path = "../report.rs"]
mod report;

static STREAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/postcard.bin"));

fn program(out: &mut cortex_m::Semihosting) -> bool {
    let mut frames = CobsAccumulator::<512>::new();
    let mut right = false;
    for piece in black_box(STREAM).chunks(black_box(11).max(1)) {
        if let FeedResult::Success { data, .. } = frames.feed_ref::<TaskFinished<'_>>(piece) {
            right = data.op == "task-finished" && data.key.len() == 41 && data.nbytes == 8000;
        }
    }
    report::report(out, STREAM.len());
    right
}
