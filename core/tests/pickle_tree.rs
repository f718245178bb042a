//! Trees of pickles that CPython wrote, and of pickles that nobody should write.

#![allow(
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc,
    reason = "a test has std"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::thread;

use daskwire::Limits;
use daskwire::pickle::tree::{Event, Node, Operation, Tree, Value};
use daskwire::pickle::{Argument, Form, Opcode, Operand, PickleError, PickleErrorKind, Reader};

/// Counts what each thread has of the heap.
struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

fn count(before: usize, after: usize) {
    let _ = NOW.try_with(|now| {
        now.set((now.get() + after).saturating_sub(before));
        let _ = MOST.try_with(|most| most.set(most.get().max(now.get())));
    });
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator as it came.
#[allow(unsafe_code, reason = "an allocator can only be implemented so")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: the caller keeps the promises of this same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both may be there at once.
        count(0, new_size);
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Limits that an input of some megabytes cannot reach.
const WIDE: Limits = Limits {
    opcode_count: u32::MAX,
    pickle_value_count: u32::MAX,
    pickle_stack_count: u32::MAX,
    pickle_memo_count: u32::MAX,
    ..Limits::HOST
};

fn build<'p>(pickle: &'p [u8], buffers: &'p [Vec<u8>]) -> Result<Tree<'p>, PickleError> {
    let reader = Reader::with_limits(pickle, &WIDE).text_opcodes(true);
    Tree::build(reader, buffers, &WIDE)
}

/// What the tree is, and the most memory that building it took, which is bounded.
fn measured(pickle: &[u8]) -> (Result<Tree<'_>, PickleError>, usize) {
    let before = NOW.get();
    MOST.set(before);
    let tree = build(pickle, &[]);
    let most = MOST.get() - before;
    assert!(
        most <= 64 * pickle.len() + 256,
        "{most} bytes for a pickle of {}",
        pickle.len()
    );
    (tree, most)
}

fn kind_of(pickle: &[u8]) -> PickleErrorKind {
    match measured(pickle).0 {
        Ok(tree) => panic!("{} is {tree}", pickle.escape_ascii()),
        Err(error) => error.kind,
    }
}

fn shown(pickle: &[u8]) -> String {
    match measured(pickle).0 {
        Ok(tree) => tree.to_string(),
        Err(error) => panic!("{}: {error}", pickle.escape_ascii()),
    }
}

fn vectors() -> Vec<(String, Vec<u8>, Vec<Vec<u8>>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/pickles");
    let mut vectors = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder of pickles") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a readable file");
        for line in text.lines() {
            let json: serde_json::Value = serde_json::from_str(line).expect("JSON lines");
            let bytes = |hex: &serde_json::Value| unhex(hex.as_str().expect("hex"));
            vectors.push((
                format!("{} {} {}", path.display(), json["name"], json["protocol"]),
                bytes(&json["pickle"]),
                json["buffers"]
                    .as_array()
                    .map(|list| list.iter().map(bytes).collect())
                    .unwrap_or_default(),
            ));
        }
    }
    assert!(vectors.len() >= 350, "only {} pickles", vectors.len());
    vectors
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("hex")
        })
        .collect()
}

#[test]
fn every_pickle_of_cpython_is_a_tree() {
    for (name, pickle, buffers) in vectors() {
        let tree = build(&pickle, &buffers).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(tree.pickle_len(), pickle.len(), "{name}");
        let text = tree.to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{name}: {text}");
        let again = build(&pickle, &buffers).expect("the same");
        assert_eq!(tree, again, "{name}");
        // Without its last buffer, and with one more, it is none.
        let mut other = buffers.clone();
        other.push(vec![0]);
        assert!(matches!(
            build(&pickle, &other).map_err(|error| error.kind),
            Err(PickleErrorKind::TooManyBuffers { .. })
        ));
        if let Some((_, fewer)) = buffers.split_last() {
            assert!(matches!(
                build(&pickle, fewer).map_err(|error| error.kind),
                Err(PickleErrorKind::TooFewBuffers { .. })
            ));
        }
    }
}
