//! As `open`, with a payload that is decompressed with lz4.

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
    include_bytes!("../../../../vectors/modern-nosplit-2026.8.0/docs-get-data-ones5-lz4.bin");

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
    let mut right = false;
    let mut walk = message.walk(&mut walk_scratch);
    while let Some(item) = walk.next_item().ok()? {
        if let Item::Payload(number) = item {
            let (mut data, mut ends) = ([0; 1024], [0; 4]);
            let payload = message.payload(number).ok()?;
            let merged = payload.merge_into(&mut data, &mut ends).ok()?;
            let ones = merged.bytes();
            right = ones.len() == 40 && ones.ends_with(&1_f64.to_le_bytes());
        }
    }
    Some(right)
}
