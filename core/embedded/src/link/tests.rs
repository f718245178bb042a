//! Tests of messages that are read in pieces.
#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::panic
)]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use daskwire::frame::{Prefix, encode_prelude};
use daskwire::msgpack::Writer;

/// What was read of a message: its values, each with its length and whether it was read
/// as a whole, then its frames, each with the bytes that were read and whether it was
/// read as a whole.
type Seen = (Vec<(Vec<u8>, bool)>, Vec<(usize, Vec<u8>, bool)>);

/// A message with a body and these frames.
fn message(body: &[u8], frames: &[&[u8]]) -> Vec<u8> {
    let frames = [&[body], frames].concat();
    let mut prelude = vec![0; 16 + 8 * frames.len()];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    encode_prelude(Prefix::U64, lengths, &mut prelude).expect("it fits");
    [prelude, frames.concat()].concat()
}

/// Passes messages to a link, in parts of this length, and reads them in pieces.
fn read(mut input: &[u8], known: usize, window: usize, part: usize) -> Vec<Seen> {
    let (mut lengths, mut incoming, mut outgoing) = ([0; 8], [0; 64], [0; 64]);
    let mut link = Link::in_pieces(
        &mut lengths[..known],
        &mut incoming[..window],
        &mut outgoing,
    );
    link.state = State::Open;
    let (mut messages, mut seen) = (Vec::new(), Seen::default());
    loop {
        let len = match link.incoming.piece() {
            Piece::Incomplete if input.is_empty() => return messages,
            Piece::Incomplete => {
                let space = link.space();
                let len = space.len().min(part).min(input.len());
                assert_ne!(len, 0, "there is space while a piece is incomplete");
                space[..len].copy_from_slice(&input[..len]);
                link.received(len);
                assert!(!link.has_failed());
                input = &input[len..];
                continue;
            }
            Piece::Value(value) => {
                seen.0.push((value.to_vec(), true));
                link.incoming.take_value();
                continue;
            }
            Piece::Start(start) => {
                seen.0.push((start.to_vec(), false));
                link.incoming.take_value();
                continue;
            }
            Piece::Frame(index, bytes) => {
                seen.1.push((index, bytes.to_vec(), true));
                bytes.len()
            }
            Piece::Part(index, bytes) => {
                match seen.1.last_mut() {
                    Some((last, before, false)) if *last == index => before.extend(bytes),
                    _ => seen.1.push((index, bytes.to_vec(), false)),
                }
                bytes.len()
            }
            Piece::End => {
                messages.push(core::mem::take(&mut seen));
                link.incoming.discard_message();
                continue;
            }
            Piece::Invalid => panic!("the message is valid"),
        };
        link.incoming.take(len);
    }
}

#[test]
fn messages_of_any_length_are_read_in_pieces() {
    let (long, nested) = ([b'x'; 100], [0x91; 14]);
    let mut body = [0; 256];
    let mut writer = Writer::new(&mut body);
    writer.array(5).str("first");
    writer
        .map(2)
        .str("op")
        .bin(&long)
        .str("b")
        .array(2)
        .u64(1)
        .bin(&long);
    writer.u64(7);
    for _ in nested {
        writer.array(1);
    }
    writer.nil().map(0);
    let body = writer.finish().expect("it fits").to_vec();
    let frames: [&[u8]; 7] = [b"one", b"", &[1; 40], b"four", &[2; 9], b"", b"end"];
    let stream = message(&body, &frames).repeat(2);
    for (known, window) in [(8, 64), (8, 32), (5, 24), (2, 64), (1, 33)] {
        let expected = read(&stream, known, window, usize::MAX);
        assert_eq!(expected.len(), 2);
        let (values, seen) = &expected[0];
        let whole = [true, false, true, false, true];
        assert!(values.iter().map(|(_, is_whole)| *is_whole).eq(whole));
        assert_eq!(values[0].0, b"\xa5first");
        assert!(values[1].0.starts_with(b"\x82\xa2op\xc4\x64xx"));
        assert_eq!(values[2].0, b"\x07");
        assert_eq!(values[4].0, b"\x80");
        for (index, bytes, is_whole) in seen {
            let (frame, rest) = (frames[index - 1], frames[index - 1..].concat());
            match *index < known {
                true => assert_eq!((&bytes[..], *is_whole), (frame, frame.len() <= window)),
                false => assert_eq!((bytes, *is_whole), (&rest, false)),
            }
        }
        assert_eq!(
            seen.len(),
            7.min(known),
            "the frames after the known ones are one"
        );
        for part in 1..90 {
            let found = read(&stream, known, window, part);
            // How much of a long value arrives at first depends on the parts.
            let is_same = |found: &Seen, expected: &Seen| {
                let values = found.0.iter().zip(&expected.0);
                found.1 == expected.1 && found.0.len() == expected.0.len() && { values }.all(
                    |(found, expected)| {
                        found.1 == expected.1 && (!found.1 || found.0 == expected.0)
                    },
                )
            };
            let mut pairs = found.iter().zip(&expected);
            assert!(
                found.len() == 2 && pairs.all(|(found, expected)| is_same(found, expected)),
                "{known} {window} {part}: {found:x?}"
            );
        }
    }
}

#[test]
fn more_frames_cost_no_memory() {
    // The body of a batch, and as many frames.
    for count in [100_u32, 200, 400, 10_000] {
        let mut body = vec![0xdd];
        body.extend(count.to_be_bytes());
        body.resize(body.len() + count as usize, 0xc0);
        let frames = vec![&b"frame"[..]; count as usize];
        let stream = message(&body, &frames);
        let messages = read(&stream, 4, 64, 1000);
        let (values, seen) = &messages[0];
        assert_eq!(values.len(), count as usize);
        assert_eq!(seen.len(), 4, "three frames, and the rest");
        assert_eq!(seen[3].1.len(), 5 * (count as usize - 3));
    }
}

#[test]
fn lengths_beyond_four_gigabytes_are_counted() {
    let (mut lengths, mut incoming, mut outgoing) = ([0; 8], [0; 64], [0; 64]);
    for (frames, is_valid) in [
        ([1, 1 << 40, 3], true),
        ([1, u64::MAX - 4, 3], true),
        ([1, u64::MAX, 3], false),
    ] {
        let mut link = Link::in_pieces(&mut lengths, &mut incoming, &mut outgoing);
        link.state = State::Open;
        let words = [u64::MAX, 3].into_iter().chain(frames);
        for byte in words.flat_map(u64::to_le_bytes) {
            if let Some(place) = link.space().first_mut() {
                *place = byte;
                link.received(1);
            }
        }
        assert_eq!(link.has_failed(), !is_valid, "{frames:?}");
        if is_valid {
            assert_eq!(link.incoming.known_count(), 1);
            link.space()[0] = 0x90;
            link.received(1);
            assert_eq!(link.incoming.piece(), Piece::Incomplete);
            let len = link.space().len();
            assert_eq!(len, 64);
            link.received(len);
            assert!(matches!(link.incoming.piece(), Piece::Part(1, bytes) if bytes.len() == 64));
        }
    }
}

#[test]
fn bodies_that_are_not_valid_are_found() {
    for (body, window) in [
        (&b"\xc1"[..], 64),
        (b"\x92\xc0\xc1", 64),
        (b"\x92\xc0\xc1xxxxxxxxxxxxxxxxxxxxxx", 16),
        (b"\x92\xc0\x92\xc0", 64),
        (b"\x92\xc0\xc4\x30xxxxxxxxxxxxxxxxxxx", 16),
        (b"\xdd\0\0", 64),
        (b"\x91\xc0\xc0", 64),
        (b"", 64),
    ] {
        let (mut lengths, mut incoming, mut outgoing) = ([0; 4], [0; 64], [0; 64]);
        let mut link = Link::in_pieces(&mut lengths, &mut incoming[..window], &mut outgoing);
        link.state = State::Open;
        let stream = message(body, &[b"frame"]);
        let mut input = &stream[..];
        let found = loop {
            match link.incoming.piece() {
                Piece::Incomplete => {}
                Piece::Value(_) | Piece::Start(_) => link.incoming.take_value(),
                piece => break piece,
            }
            if let (Some(place), Some((byte, rest))) =
                (link.space().first_mut(), input.split_first())
            {
                (*place, input) = (*byte, rest);
                link.received(1);
            }
        };
        assert_eq!(found, Piece::Invalid, "{body:x?}");
    }
}
