//! Tests that the cost of reading is linear in the size of the input.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::panic)]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;

use super::{Layout, Message, Payload, PayloadKind, ReadOptions, Scratch};
use crate::Limits;
use crate::msgpack::Writer;
use crate::steps::steps_of;

/// A document that `write` writes.
fn document(write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut writer = Writer::new(&mut []);
    write(&mut writer);
    let mut out = vec![0; writer.len()];
    let mut writer = Writer::new(&mut out);
    write(&mut writer);
    writer.finish().unwrap();
    out
}

/// Asserts that twice the size costs about twice as much.
fn assert_linear(what: &str, cost: impl Fn(u32) -> u64) {
    let (once, twice) = (cost(200), cost(400));
    assert!(once > 200, "{what}: {once} steps are not counted");
    assert!(
        twice <= once * 9 / 4,
        "{what}: {once} steps for 200, {twice} for 400"
    );
}

/// The steps to open a message and to walk it.
fn steps_to_walk(frames: &[&[u8]], layout: Layout) -> u64 {
    let mut scratch = Scratch::<{ Limits::MAX_DEPTH as usize }, { 1 << 12 }>::new();
    let mut walking = Scratch::<{ Limits::MAX_DEPTH as usize }>::new();
    steps_of(|| {
        let options = ReadOptions::default();
        let opened = Message::open(frames, layout, &options, &mut scratch);
        let message = opened.unwrap();
        let mut walk = message.walk(&mut walking);
        while walk.next_item().unwrap().is_some() {}
        message.check().unwrap();
    })
}

// PROTOCOL BODY-3 and BODY-4
#[test]
fn nested_sets_and_enum_members_are_read_once() {
    // As deep as it is long, so that each level that reads its content again
    // shows.
    let sets = |count: u32| {
        document(|writer| {
            for _ in 0..count {
                writer.map(2).str("__Set__").bool(true).str("as-list");
                writer.array(1);
            }
            writer.array(count);
            for _ in 0..count {
                writer.nil();
            }
        })
    };
    assert_linear("sets", |count| {
        steps_to_walk(&[&sets(count)], Layout::Modern)
    });
    // The last `as-list` is used; the values of other keys are dropped.
    let dropped = |count: u32| {
        document(|writer| {
            for _ in 0..count {
                writer.map(4).str("__Set__").bool(true);
                writer.str("as-list").array(0);
                writer.str("as-list").array(0).str("other");
            }
            writer.array(count);
            for _ in 0..count {
                writer.map(2).str("__Set__").bool(true);
                writer.str("as-list").array(0);
            }
        })
    };
    assert_linear("sets in what a set drops", |count| {
        steps_to_walk(&[&dropped(count)], Layout::Modern)
    });
    let members = |count: u32| {
        document(|writer| {
            for _ in 0..count {
                writer.map(5).str("__Enum__").bool(true).str("name");
                writer.str("a").str("__module__").str("b");
                writer.str("__name__").str("c").str("other");
            }
            writer.array(count);
            for _ in 0..count {
                writer.nil();
            }
        })
    };
    assert_linear("enum members", |count| {
        steps_to_walk(&[&members(count)], Layout::Modern)
    });
}

/// The steps to open and to walk a classic message with a payload at each path.
#[cfg(feature = "classic")]
fn steps_to_walk_classic(body: &[u8], paths: &[Vec<u8>]) -> u64 {
    let header = document(|writer| {
        let count = u32::try_from(paths.len()).unwrap();
        writer.map(2).str("headers").map(count);
        for path in paths {
            writer.encoded(path).map(2).str("count").u64(0);
            writer.str("lengths").array(0);
        }
        writer.str("keys").array(count);
        for path in paths {
            writer.encoded(path);
        }
    });
    steps_to_walk(&[b"", body, &header], Layout::Classic)
}

/// Writes a long map key.
#[cfg(feature = "classic")]
fn long_key(writer: &mut Writer<'_>, count: u32) {
    writer.array(count);
    for _ in 0..count {
        writer.nil();
    }
}

// PROTOCOL CLASSIC-5
#[test]
#[cfg(feature = "classic")]
fn paths_are_read_once() {
    // Values that other elements lead to, after or beside the long one.
    for is_inside in [true, false] {
        assert_linear("long elements", |count| {
            let body = document(|writer| {
                writer.map(count + 1);
                for index in 0..count {
                    writer.u64(index.into()).nil();
                }
                long_key(writer, count);
                long_key(writer, count);
            });
            let path = document(|writer| {
                writer.array(if is_inside { 2 } else { 1 });
                long_key(writer, count);
                if is_inside {
                    writer.u64(0);
                }
            });
            steps_to_walk_classic(&body, &[path])
        });
    }
    assert_linear("long paths", |count| {
        let body = document(|writer| {
            for _ in 0..count {
                writer.map(2).str("other").nil().str("key");
            }
            writer.nil();
        });
        let path = document(|writer| {
            writer.array(count);
            for _ in 0..count {
                writer.str("key");
            }
        });
        steps_to_walk_classic(&body, &[path])
    });
    // Of many paths, the one in the middle of their order is long. Nils outweigh the
    // binary searches.
    assert_linear("many paths", |count| {
        let body = document(|writer| {
            writer.map(1).str("nils").array(64 * count);
            for _ in 0..64 * count {
                writer.nil();
            }
        });
        let short = |index: u32| {
            document(|writer| {
                writer.array(1);
                match index % 2 {
                    0 => writer.u64(index.into()),
                    _ => writer.map(1).u64(index.into()).nil(),
                };
            })
        };
        let long = document(|writer| {
            writer.array(1);
            long_key(writer, count);
        });
        let paths: Vec<_> = (0..count).map(short).chain([long]).collect();
        steps_to_walk_classic(&body, &paths)
    });
    assert_linear("paths into many values", |count| {
        let body = document(|writer| {
            writer.array(count);
            for index in 0..count {
                writer.map(1).u64(index.into()).array(64);
                for _ in 0..64 {
                    writer.nil();
                }
            }
        });
        let path = |index: u32| {
            document(|writer| {
                writer.array(3).u64(index.into()).u64(index.into()).u64(1);
            })
        };
        let paths: Vec<_> = (0..count).map(path).collect();
        steps_to_walk_classic(&body, &paths)
    });
}

/// The steps to read the payload whose header is the first of `frames`.
fn steps_to_read(frames: &[Vec<u8>], read: fn(&Payload<'_, Vec<u8>>)) -> u64 {
    steps_of(|| {
        let options = ReadOptions::default();
        let payload = Payload::at(frames, 0, PayloadKind::Serialized, &options).unwrap();
        read(&payload);
    })
}

fn merge(payload: &Payload<'_, Vec<u8>>) {
    let count = payload.logical_count().unwrap();
    let len = usize::try_from(payload.merged_len().unwrap().unwrap()).unwrap();
    let (mut out, mut ends) = (vec![0; len], vec![0; count]);
    assert_eq!(
        payload
            .merge_into(&mut out, &mut ends)
            .unwrap()
            .iter()
            .len(),
        count
    );
}

fn take_apart(payload: &Payload<'_, Vec<u8>>) {
    let count = payload
        .logical_frames()
        .unwrap()
        .map(Result::unwrap)
        .count();
    assert_eq!(count, payload.logical_count().unwrap());
}

// PROTOCOL SPLIT-3 and COMPRESS-6
#[test]
fn frames_are_read_once() {
    let frames = |count: u32, offset: fn(u32, u32) -> u32| {
        let header = document(|writer| {
            writer.map(4).str("num-sub-frames").u64(count.into());
            writer.str("compression").array(count);
            for _ in 0..count {
                writer.nil();
            }
            writer.str("split-num-sub-frames").array(count);
            for _ in 0..count {
                writer.u64(1);
            }
            writer.str("split-offsets").array(count);
            for index in 0..count {
                writer.u64(offset(index, count).into());
            }
        });
        let mut frames = vec![header];
        frames.resize(count as usize + 1, b"x".to_vec());
        frames
    };
    let in_order = |count| frames(count, |index, _| index);
    assert_linear("logical frames", |count| {
        steps_to_read(&in_order(count), take_apart)
    });
    assert_linear("merging", |count| steps_to_read(&in_order(count), merge));
    // Out of order only up to the permitted number.
    let reversed = frames(800, |index, count| count - 1 - index);
    let payload = Payload::at(
        &reversed,
        0,
        PayloadKind::Serialized,
        &ReadOptions::default(),
    )
    .unwrap();
    assert!(payload.check().is_err());
    assert!(payload.logical_frames().is_err());
    let few = frames(64, |index, count| count - 1 - index);
    steps_to_read(&few, merge);
}

/// Many payloads in one message.
// PROTOCOL MODERN-2
#[test]
fn payloads_are_read_once() {
    let messages = |count: u32, backwards: bool| {
        let body = document(|writer| {
            writer.array(count);
            for index in 0..count {
                let index = if backwards { count - 1 - index } else { index };
                writer
                    .map(1)
                    .str("__Serialized__")
                    .u64(u64::from(index) * 2 + 1);
            }
        });
        let header = document(|writer| {
            writer.map(1).str("num-sub-frames").u64(1);
        });
        let mut frames: Vec<&[u8]> = vec![&body];
        for _ in 0..count {
            frames.extend([&header[..], b"data"]);
        }
        steps_to_walk(&frames, Layout::Modern)
    };
    for backwards in [false, true] {
        assert_linear("payloads", |count| messages(count, backwards));
    }
}
