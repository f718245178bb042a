//! Writing the pickle of a graph of 10,000 tasks, reading it opcode by opcode, and
//! the tree of a list of 100,000 small tuples.
//!
//! `cargo bench -p daskwire --features alloc --bench pickle` prints our times, and
//! for the tree time and memory of the crate `serde-pickle` beside them, round by
//! round by turns. It fails if writing or reading allocates, or if the tree takes
//! more than half of the memory. `benches/python_pickle.py` puts `pickle.dumps` and
//! `pickle.loads` of CPython beside it, by running `--nanoseconds` and
//! `--read-nanoseconds`, and compares what is written, by running `--write`.
#![allow(clippy::std_instead_of_alloc, reason = "a program has std")]

use core::hint::black_box;
use core::sync::atomic::Ordering;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use daskwire_pickle::tree::Tree;
use daskwire_pickle::{PickleError, Reader, WriteError, Writer, WriterLevel};

#[allow(dead_code, reason = "not every program reads all counters")]
#[path = "../../../testing/src/counting.rs"]
mod counting;

use counting::{ALLOCATIONS, HELD, PEAK};

const TASK_COUNT: usize = 10_000;
const ROUNDS: usize = 101;

/// `{key: Task(key, operator.add, TaskRef(key before), index)}`, as the
/// scheduler of Dask pickles it; the first is `operator.add(0, 1)`. Values that
/// are used again are memoized, in CPython's order.
fn graph<'b>(
    out: &'b mut [u8],
    levels: &mut [WriterLevel],
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

const TUPLE_COUNT: usize = 100_000;
const TREE_ROUNDS: usize = 31;

/// `[(0, "name 0", 0.0), (1, "name 1", 0.5), ...]`.
fn tuples(out: &mut [u8]) -> Result<&[u8], WriteError> {
    let mut levels = [WriterLevel::EMPTY; 3];
    let mut writer = Writer::new(out, &mut levels);
    writer.list(TUPLE_COUNT);
    for number in 0..TUPLE_COUNT {
        writer.tuple(3).u64(number as u64);
        writer.str(&format!("name {number}"));
        writer.f64(number as f64 / 2.0);
    }
    writer.finish()
}

/// The time in seconds, the peak memory, and the memory of the result in bytes.
fn measured<T>(make: impl FnOnce() -> T) -> (f64, usize, usize) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let made = black_box(make());
    let took = start.elapsed().as_secs_f64();
    let held = HELD.load(Ordering::Relaxed) - before;
    let peak = PEAK.load(Ordering::Relaxed) - before;
    drop(made);
    (took, peak, held)
}

/// Checks the memory of the tree. The times are only printed.
fn trees(rounds: usize) -> bool {
    let mut out = vec![0; 8 << 20];
    let pickle = tuples(&mut out).expect("written");
    let tree = Tree::new(pickle).expect("a tree");
    assert_eq!(tree.root().items().count(), TUPLE_COUNT);
    drop(tree);
    let options = serde_pickle::DeOptions::new();
    let (mut ratios, mut ours, mut theirs) = (vec![], vec![], vec![]);
    let (mut memory, mut their_memory) = ((0, 0), (0, 0));
    for _ in 0..rounds {
        let (took, peak, held) = measured(|| Tree::new(black_box(pickle)).expect("a tree"));
        memory = (peak, held);
        let (theirs_took, peak, held) = measured(|| {
            serde_pickle::value_from_slice(black_box(pickle), options.clone()).expect("a value")
        });
        their_memory = (peak, held);
        ratios.push(theirs_took / took);
        ours.push(took);
        theirs.push(theirs_took);
    }
    for samples in [&mut ratios, &mut ours, &mut theirs] {
        samples.sort_by(f64::total_cmp);
    }
    let middle = rounds / 2;
    println!(
        "tree of {TUPLE_COUNT} tuples, {} bytes: {:.2} ms (from {:.2}), serde-pickle {:.2} ms (from {:.2}): {:.1} times ours \
         ({:.1} to {:.1}); memory {} KiB (at most {}), serde-pickle {} KiB (at most {})",
        pickle.len(),
        ours[middle] * 1e3,
        ours[0] * 1e3,
        theirs[middle] * 1e3,
        theirs[0] * 1e3,
        ratios[middle],
        ratios[0],
        ratios[rounds - 1],
        memory.1 >> 10,
        memory.0 >> 10,
        their_memory.1 >> 10,
        their_memory.0 >> 10,
    );
    memory.0 * 2 <= their_memory.0 && memory.1 * 2 <= their_memory.1
}

/// The number of opcodes.
fn read(pickle: &[u8]) -> Result<usize, PickleError> {
    let mut reader = Reader::new(pickle);
    let mut count = 0;
    while let Some(token) = reader.next_token()? {
        black_box(token);
        count += 1;
    }
    Ok(count)
}

/// The median time of reading, in seconds.
fn read_seconds(pickle: &[u8], rounds: usize) -> f64 {
    let mut samples: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            black_box(read(black_box(pickle))).expect("read");
            start.elapsed().as_secs_f64()
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[rounds / 2]
}

fn main() -> ExitCode {
    let keys: Vec<String> = (0..TASK_COUNT)
        .map(|number| format!("add-{number}"))
        .collect();
    let mut levels = [WriterLevel::EMPTY; 8];
    let mut out = vec![0; 1 << 20];
    let len = graph(&mut out, &mut levels, &keys).expect("written").len();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|word| word == "--write") {
        std::io::stdout()
            .write_all(&out[..len])
            .expect("standard output is read");
        return ExitCode::SUCCESS;
    }

    if arguments.iter().any(|word| word == "--read-nanoseconds") {
        println!("{}", read_seconds(&out[..len], ROUNDS) * 1e9);
        return ExitCode::SUCCESS;
    }

    // `cargo test --benches` runs this too: once is enough then.
    let timed = arguments
        .iter()
        .any(|word| word == "--bench" || word == "--nanoseconds");
    let rounds = if timed { ROUNDS } else { 1 };
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
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let opcode_count = read(&out[..len]).expect("read");
    let read_allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let seconds = read_seconds(&out[..len], rounds);
    println!(
        "read it, {opcode_count} opcodes: {:.3} ms, {read_allocations} allocations",
        seconds * 1e3
    );
    let is_small = trees(if timed { TREE_ROUNDS } else { 1 });
    if allocations == 0 && read_allocations == 0 && is_small {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
