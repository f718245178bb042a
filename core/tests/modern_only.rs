//! A build without the feature `classic`, which turns on the tests in `it`.

#![cfg(not(feature = "classic"))]

use daskwire::message::{Layout, Message, MessageErrorKind, ReadOptions, Scratch};

#[test]
fn refuses_the_classic_layout() {
    let frames: [&[u8]; 2] = [b"", b"\x80"];
    let mut scratch = Scratch::<4, 4>::new();
    let options = ReadOptions::default();
    let layout = Layout::Classic;
    let opened = Message::open(&frames, layout, &options, &mut scratch);
    let error = opened.expect_err("the layout is not compiled in");
    assert_eq!(error.kind, MessageErrorKind::NotCompiledIn { layout });
    assert!(error.is_caller_fault());
}

#[test]
fn reads_the_modern_layout() {
    let frames: [&[u8]; 3] = [
        b"\x81\xa4data\x81\xae__Serialized__\x01",
        b"\x81\xaenum-sub-frames\x01",
        b"hello",
    ];
    let mut scratch = Scratch::<4, 4>::new();
    let options = ReadOptions::default();
    let layout = Layout::Modern;
    let message = Message::open(&frames, layout, &options, &mut scratch);
    let message = message.expect("the message is valid");
    let mut walk_scratch = Scratch::<4>::new();
    let mut walk = message.walk(&mut walk_scratch);
    let mut count = 0;
    while walk.next_item().expect("the body is valid").is_some() {
        count += 1;
    }
    assert_eq!(count, 3);
    let payload = message.payload(0).expect("the payload is valid");
    assert_eq!(payload.frames(), [b"hello"]);
}
