//! As `open`, with a payload that is decompressed with lz4.

#![no_std]
#![no_main]

use core::hint::black_box;

use daskwire::message::{Item, Layout, Level, Message, PayloadSlot, ReadOptions};

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
    let options = black_box(ReadOptions::default());
    let (mut levels, mut slots) = ([Level::EMPTY; 8], [PayloadSlot::EMPTY; 4]);
    let layout = Layout::Modern;
    let message =
        Message::open(frames, layout, &options, &mut levels, &mut slots, &mut []).ok()?;
    let mut right = false;
    let mut walk = message.walk(&mut levels);
    while let Some(item) = walk.next_item().ok()? {
        if let Item::Payload(number) = item {
            let (mut data, mut ends) = ([0; 1024], [0; 4]);
            let payload = message.payload(number).ok()?;
            let merged = payload.merge_into(&mut data, &mut ends).ok()?;
            let (ones, rest) = merged.bytes().as_chunks();
            right = rest.is_empty()
                && ones.len() == 5
                && ones.iter().all(|one| f64::from_le_bytes(*one) == 1.0);
        }
    }
    Some(right)
}
