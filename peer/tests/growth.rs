//! Memory tests: the bytes allocated for a message of twice the size are at most
//! about twice as many, for any counts and shared parts in the message.
#![allow(
    missing_docs,
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::Bytes;
use daskwire::msgpack::Writer;
use daskwire_messages::protocol::{ProtocolError, body};
use daskwire_peer::{Serialized, Value};

/// An allocator that counts the bytes that this thread allocates.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: delegates to the system's allocator; the counter does not allocate.
#[allow(unsafe_code, reason = "only an allocator sees what a library asks for")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ASKED.try_with(|asked| asked.set(asked.get().saturating_add(layout.size())));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of bytes that `work` allocates, including those it frees again.
fn asked_for<R>(work: impl FnOnce() -> R) -> usize {
    let before = ASKED.get();
    drop(work());
    ASKED.get() - before
}

#[track_caller]
fn assert_linear(what: &str, size: usize, asked: impl Fn(usize) -> usize) {
    let (once, twice) = (asked(size), asked(2 * size));
    assert!(once > size, "{what}: {once} bytes are not counted");
    assert!(
        twice <= once / 4 * 9 + 4096,
        "{what}: {once} bytes for {size}, {twice} for twice as much"
    );
}

fn document(write: impl Fn(&mut Writer<'_>)) -> Bytes {
    let mut writer = Writer::new(&mut []);
    write(&mut writer);
    let mut out = vec![0; writer.len()];
    let mut writer = Writer::new(&mut out);
    write(&mut writer);
    writer.finish().expect("as long as measured");
    out.into()
}

/// Encodes a list of placeholders for payloads at these frames.
fn placeholders(indexes: impl ExactSizeIterator<Item = usize> + Clone) -> Bytes {
    document(|writer| {
        writer.array(u32::try_from(indexes.len()).expect("small"));
        for index in indexes.clone() {
            writer.map(1).str("__Serialized__").u64(index as u64);
        }
    })
}

fn header(frame_count: usize) -> Bytes {
    document(|writer| {
        writer.map(1).str("num-sub-frames").u64(frame_count as u64);
    })
}

#[test]
fn messages_with_many_payloads() {
    assert_linear("payloads", 2000, |count| {
        let mut frames = vec![placeholders((0..count).map(|index| 2 * index + 1))];
        for _ in 0..count {
            frames.extend([header(1), Bytes::from_static(b"data")]);
        }
        asked_for(|| body(&frames).expect("a list"))
    });
}

#[test]
fn messages_whose_payloads_share_frames() {
    let refused = |frames: &[Bytes]| {
        asked_for(|| {
            let found = body(frames);
            assert!(matches!(found, Err(ProtocolError::Message(_))));
        })
    };
    assert_linear("one payload, many times", 2000, |count| {
        let mut frames = vec![placeholders((0..count).map(|_| 1)), header(count)];
        frames.resize(count + 2, Bytes::new());
        refused(&frames)
    });
    assert_linear("payloads that take all that follows", 2000, |count| {
        let mut frames = vec![placeholders(1..count + 1)];
        frames.extend((1..=count).map(|index| header(count - index)));
        refused(&frames)
    });
    assert_linear("the same, from the last", 2000, |count| {
        let mut frames = vec![placeholders((1..count + 1).rev())];
        frames.extend((1..=count).map(|index| header(count - index)));
        refused(&frames)
    });
}

/// A payload of zstd-compressed bytes: blocks of 128 KiB of zeros, and empty blocks.
fn zstd_frame(declared: u64, block_count: usize) -> Serialized {
    let header = document(|writer| {
        writer.map(4).str("serializer").str("dask");
        writer.str("type-serialized").str("builtins.bytes");
        writer.str("compression").array(1).str("zstd");
        writer.str("num-sub-frames").u64(1);
    });
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xc0, 13 << 3];
    frame.extend_from_slice(&declared.to_le_bytes());
    frame.extend_from_slice(&[0x02, 0, 0x10, 0].repeat(block_count));
    frame.resize(64 << 10, 0);
    let frames = [placeholders(core::iter::once(1)), header, frame.into()];
    match body(&frames) {
        Ok(Value::List(items)) => match &items[..] {
            [Value::Serialized(serialized)] => serialized.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn payloads_that_declare_more_than_they_contain() {
    let asked = |declared, block_count| {
        let serialized = zstd_frame(declared, block_count);
        asked_for(|| serialized.open().expect_err("it holds less"))
    };
    // The first call reads the size of the system's memory, which allocates.
    asked(64 << 20, 8);
    let (once, twice) = (asked(64 << 20, 8), asked(128 << 20, 8));
    assert_eq!(once, twice, "for what is claimed");
    assert!(once < 16 << 20, "{once} bytes for 1 MiB");
    // Below and above the decoder's window of 8 MiB
    for block_count in [16, 128] {
        assert_linear("blocks", block_count, |count| asked(128 << 20, count));
    }
}

#[test]
fn values_that_are_nested_or_shared() {
    let nested = |depth: usize| {
        (0..depth).fold(Value::from(1), |value, level| match level % 3 {
            0 => Value::list([value]),
            1 => Value::tuple([value]),
            _ => Value::dict([("key", value)]),
        })
    };
    // The last level has 3^depth values.
    let shared = |depth: usize| {
        (0..depth).fold(Value::from("leaf"), |value, _| {
            Value::list([value.clone(), value.clone(), value])
        })
    };
    let written = |value: Value| {
        asked_for(|| {
            assert_eq!(value.clone().nbytes(), value.nbytes());
            Serialized::of(&value).expect("plain")
        })
    };
    assert_linear("nested", 8000, |depth| written(nested(depth)));
    assert_linear("shared", 4000, |depth| written(shared(depth)));
    let string = Value::from("x".repeat(1 << 20));
    let read = |count: usize| {
        let serialized = Serialized::of(&Value::List(vec![string.clone(); count].into()));
        let serialized = serialized.expect("plain");
        asked_for(|| serialized.open().expect("as it was written"))
    };
    let (once, twice) = (read(1000), read(2000));
    assert!(twice - once < 1 << 20, "{once} bytes, then {twice}");
}
