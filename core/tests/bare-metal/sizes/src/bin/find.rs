//! The smallest use of daskwire: the frames of a message from a stream, and the
//! entries of its body that the program needs, by their keys.

#![no_std]
#![no_main]

use core::hint::black_box;

use daskwire::Limits;
use daskwire::msgpack::Reader;

#[path = "../../../src/cortex_m.rs"]
mod cortex_m;
#[path = "../report.rs"]
mod report;
#[path = "../stream.rs"]
mod stream;

/// The prelude of one frame, then its length and the frame.
const PRELUDE: [u8; 24] = [
    42, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 26, 1, 0, 0, 0, 0, 0, 0,
];
const BODY: &[u8; 282] = include_bytes!("../../../../../benches/messages/task-finished.msgpack");

static STREAM: [u8; 306] = {
    let mut stream = [0; 306];
    let mut at = 0;
    while at < stream.len() {
        stream[at] = if at < 24 { PRELUDE[at] } else { BODY[at - 24] };
        at += 1;
    }
    stream
};

fn program(out: &mut cortex_m::Semihosting) -> bool {
    let right = stream::decode::<1>(black_box(&STREAM), &mut [0; 512], |frames| {
        read(frames.first()?)
    });
    report::report(out, STREAM.len());
    right == Some(true)
}

fn read(body: &[u8]) -> Option<bool> {
    let limits = Limits::MICROCONTROLLER;
    let value = |key| {
        let mut reader = Reader::with_limits(body, &limits);
        reader.find(key).ok()?.then_some(reader)
    };
    let (op, key) = (value("op")?.str().ok()?, value("key")?.str().ok()?);
    let nbytes = value("nbytes")?.u64().ok()?;
    Some(op == "task-finished" && key.len() == 41 && nbytes == 8000)
}
