//! Writing the pickle of a graph of 10,000 tasks.
//!
//! `cargo bench -p daskwire --bench pickle` prints our time, and fails if any of
//! it allocates. `benches/python_pickle.py` puts `pickle.dumps` of CPython beside
//! it, by running `--nanoseconds`, and compares what is written, by running
//! `--write`.
#![allow(clippy::std_instead_of_alloc, reason = "a program has std")]

use core::alloc::{GlobalAlloc, Layout};
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};
use std::alloc::System;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use daskwire::pickle::{Level, WriteError, Writer};

/// Counts what it hands on.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator as it came.
#[allow(unsafe_code, reason = "an allocator can only be implemented so")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of this same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

const TASK_COUNT: usize = 10_000;
const ROUNDS: usize = 101;

/// `{key: Task(key, operator.add, TaskRef(key before), index)}`, as the scheduler
/// of Dask pickles it; the first is `operator.add(0, 1)`. What is used again is
/// memoized, in the order in which CPython comes upon it.
fn graph<'b>(
    out: &'b mut [u8],
    levels: &mut [Level],
    keys: &[String],
) -> Result<&'b [u8], WriteError> {
    let mut writer = Writer::new(out, levels);
    writer.dict(keys.len());
    // The module, Task, operator.add, TaskRef; then the key before.
    let mut names: Option<(u32, u32, u32)> = None;
    let mut reference = None;
    let mut before = None;
    for (number, key) in keys.iter().enumerate() {
        writer.str(key);
        let key = writer.memoize();
        writer.build().newobj();
        let (module, add) = if let Some((module, task, add)) = names {
            writer.get(task);
            (module, Some(add))
        } else {
            writer.stack_global().str("dask._task_spec");
            let module = writer.memoize();
            writer.str("Task").end();
            let task = writer.memoize();
            names = Some((module, task, 0));
            (module, None)
        };
        writer.tuple(0).tuple(9).bool(false);
        writer.frozenset(usize::from(before.is_some()));
        if let Some(before) = before {
            writer.get(before);
        }
        writer.none().none().none().tuple(2);
        if let Some(before) = before {
            writer.reduce();
            if let Some(reference) = reference {
                writer.get(reference);
            } else {
                writer.stack_global().get(module).str("TaskRef").end();
                reference = Some(writer.memoize());
            }
            writer.tuple(1).get(before).u64(number as u64);
        } else {
            writer.i64(0).i64(1);
        }
        if let Some(add) = add {
            writer.get(add);
        } else {
            writer.global("_operator", "add");
            let add = writer.memoize();
            names = names.map(|(module, task, _)| (module, task, add));
        }
        writer.get(key).dict(0);
        before = Some(key);
    }
    writer.finish()
}

fn main() -> ExitCode {
    let keys: Vec<String> = (0..TASK_COUNT)
        .map(|number| format!("add-{number}"))
        .collect();
    let mut levels = [Level::EMPTY; 8];
    let mut out = vec![0; 1 << 20];
    let len = graph(&mut out, &mut levels, &keys).expect("written").len();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|word| word == "--write") {
        std::io::stdout()
            .write_all(&out[..len])
            .expect("somebody reads it");
        return ExitCode::SUCCESS;
    }

    // `cargo test --benches` runs this too: once is enough then.
    let measured = arguments
        .iter()
        .any(|word| word == "--bench" || word == "--nanoseconds");
    let rounds = if measured { ROUNDS } else { 1 };
    let mut samples = Vec::with_capacity(rounds);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..rounds {
        let start = Instant::now();
        let pickle = graph(black_box(&mut out), &mut levels, black_box(&keys));
        black_box(pickle).expect("written");
        samples.push(start.elapsed().as_secs_f64());
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    samples.sort_by(f64::total_cmp);
    let median = samples[rounds / 2];
    if arguments.iter().any(|word| word == "--nanoseconds") {
        println!("{}", median * 1e9);
        return ExitCode::SUCCESS;
    }
    println!(
        "write a graph of {TASK_COUNT} tasks, {len} bytes: {:.3} ms ({:.3} to {:.3}), \
         {allocations} allocations",
        median * 1e3,
        samples[0] * 1e3,
        samples[rounds - 1] * 1e3,
    );
    if allocations == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
