//! A message of the modern layout from a stream: its body item by item, and the
//! frames of its payload.

#![no_std]
#![no_main]

use core::hint::black_box;

use daskwire::Limits;
use daskwire::message::{Item, Layout, Message, ReadOptions, Scratch};

#[path = "../../../src/cortex_m.rs"]
mod cortex_m;
#[path = "../report.rs"]
mod report;
#[path = "../stream.rs"]
mod stream;

static STREAM: &[u8] =
    include_bytes!("../../../../vectors/modern-nosplit-2026.8.0/docs-get-data-ones5.bin");

fn program(out: &mut cortex_m::Semihosting) -> bool {
    let right = stream::decode::<8>(black_box(STREAM), &mut [0; 1024], read);
    report::report(out, STREAM.len());
    right == Some(true)
}

fn read(frames: &[&[u8]]) -> Option<bool> {
    let options = ReadOptions::new(Limits::MICROCONTROLLER);
    let (mut scratch, mut walk_scratch) = (Scratch::<8, 4>::new(), Scratch::<8>::new());
    let layout = Layout::Modern;
    let message = Message::open(frames, layout, &options, &mut scratch).ok()?;
    let mut payload_len = 0;
    let mut walk = message.walk(&mut walk_scratch);
    while let Some(item) = walk.next_item().ok()? {
        if let Item::Payload(number) = item {
            payload_len = message.payload(number).ok()?.frames().first()?.len();
        }
    }
    Some(payload_len == 40)
}
