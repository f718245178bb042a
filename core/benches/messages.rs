//! Reading and writing of five real control messages, compared with other
//! crates.
//!
//! `cargo bench -p daskwire --bench messages` measures time: every peer does the
//! same work in the same run, rounds interleaved, and each row prints our median
//! time and our share of each peer's (median, and from min to max). It fails
//! if any of our work allocates.
//!
//! `benches/instructions.py` counts instructions under callgrind, which repeat
//! exactly, by running `--one WORK MESSAGE PEER COUNT`; `--list` prints what
//! there is to run. `benches/python_msgpack.py` compares our time with the C
//! extension of Python, by running `--nanoseconds WORK MESSAGE PEER`.
#![allow(clippy::std_instead_of_alloc, reason = "a program has std")]

use core::alloc::{GlobalAlloc, Layout};
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::alloc::System;
use std::process::ExitCode;
use std::time::Instant;

use daskwire::msgpack::{RawStr, Reader, Str, Writer};
use serde::{Deserialize, Serialize};

#[path = "messages/model.rs"]
mod model;
#[path = "messages/ours.rs"]
mod ours;
#[path = "messages/payload.rs"]
mod payload;
#[path = "messages/write.rs"]
mod write;

use model::{Batch, ComputeTask, Heartbeat, OnlyOp, RegisterWorker, TaskFinished};

/// An allocator that counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is forwarded to the system's allocator.
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

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

const COMPUTE_TASK: &[u8] = include_bytes!("messages/compute-task.msgpack");
const TASK_FINISHED: &[u8] = include_bytes!("messages/task-finished.msgpack");
const HEARTBEAT: &[u8] = include_bytes!("messages/heartbeat.msgpack");
const REGISTER_WORKER: &[u8] = include_bytes!("messages/register-worker.msgpack");
const BATCH: &[u8] = include_bytes!("messages/batch-100-task-finished.msgpack");

const MESSAGES: [(&str, &[u8]); 5] = [
    ("compute-task", COMPUTE_TASK),
    ("task-finished", TASK_FINISHED),
    ("heartbeat", HEARTBEAT),
    ("register-worker", REGISTER_WORKER),
    ("batch", BATCH),
];

/// One piece of work by one peer. The first peer of a work is ours.
struct Case {
    work: &'static str,
    message: &'static str,
    peer: &'static str,
    run: Box<dyn FnMut()>,
}

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn add(
        &mut self,
        work: &'static str,
        message: &'static str,
        peer: &'static str,
        run: impl FnMut() + 'static,
    ) {
        self.0.push(Case {
            work,
            message,
            peer,
            run: Box::new(run),
        });
    }
}

/// Reading all fields of one message: by hand, and by serde's derive.
macro_rules! read_all {
    ($cases:ident, $message:literal, $bytes:ident, $read:ident, $serde:ty) => {
        let bytes: &'static [u8] = $bytes;
        $cases.add("read", $message, "daskwire", move || {
            let mut reader = Reader::new(black_box(bytes));
            let message = ours::$read::<Str<'_>>(&mut reader).expect("read");
            reader.finish().expect("whole");
            black_box(&message);
        });
        $cases.add("read", $message, "rmp-serde", move || {
            let message: $serde = rmp_serde::from_slice(black_box(bytes)).expect("read");
            black_box(&message);
        });
        $cases.add("read-bytes", $message, "daskwire", move || {
            let mut reader = Reader::new(black_box(bytes));
            let message = ours::$read::<RawStr<'_>>(&mut reader).expect("read");
            reader.finish().expect("whole");
            black_box(&message);
        });
    };
}

/// Writing one message: by hand, and by serde's derive.
macro_rules! write_all {
    ($cases:ident, $message:literal, $bytes:ident, $write:path, $value:ident) => {
        let value = $value.clone();
        let mut out = vec![0; $bytes.len()];
        {
            let mut writer = Writer::new(&mut out);
            $write(&mut writer, &value);
            let document = writer.finish().expect("written");
            assert_eq!(document, $bytes, "another {} was written", $message);
        }
        let write = move || {
            let mut writer = Writer::new(black_box(&mut out));
            $write(&mut writer, black_box(&value));
            assert_eq!(writer.finish().expect("written").len(), $bytes.len());
            black_box(&out);
        };
        $cases.add("write", $message, "daskwire", write);

        let value = $value.clone();
        let mut out = vec![0; $bytes.len()];
        $cases.add("write", $message, "rmp-serde", move || {
            let mut rest = &mut black_box(&mut out)[..];
            let mut serializer = rmp_serde::Serializer::new(&mut rest).with_struct_map();
            black_box(&value)
                .serialize(&mut serializer)
                .expect("written");
            black_box(&out);
        });

        let value = rmpv::decode::read_value(&mut &$bytes[..]).expect("read");
        let mut out = vec![0; $bytes.len()];
        $cases.add("write", $message, "rmpv", move || {
            let mut rest = &mut black_box(&mut out)[..];
            rmpv::encode::write_value(&mut rest, black_box(&value)).expect("written");
            black_box(&out);
        });
    };
}

fn serde<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> T {
    rmp_serde::from_slice(bytes).expect("a message")
}

fn cases() -> Cases {
    let mut cases = Cases::default();
    read_all!(
        cases,
        "compute-task",
        COMPUTE_TASK,
        compute_task,
        ComputeTask<&str>
    );
    read_all!(
        cases,
        "task-finished",
        TASK_FINISHED,
        task_finished,
        TaskFinished<'_, &str>
    );
    read_all!(cases, "heartbeat", HEARTBEAT, heartbeat, Heartbeat<&str>);
    read_all!(
        cases,
        "register-worker",
        REGISTER_WORKER,
        register_worker,
        RegisterWorker<&str>
    );
    read_all!(cases, "batch", BATCH, batch, Batch<TaskFinished<'_, &str>>);

    for (message, bytes) in MESSAGES {
        cases.add("walk", message, "daskwire", move || {
            black_box(ours::walk::<true>(black_box(bytes)).expect("walked"));
        });
        cases.add("walk", message, "rmpv-borrowed", move || {
            let tree = rmpv::decode::read_value_ref(&mut black_box(bytes)).expect("walked");
            black_box(&tree);
        });
        cases.add("walk-bytes", message, "daskwire", move || {
            black_box(ours::walk::<false>(black_box(bytes)).expect("walked"));
        });

        if message == "batch" {
            cases.add("find", message, "daskwire", move || {
                ours::ops(black_box(bytes)).expect("found");
            });
            cases.add("find", message, "rmp-serde", move || {
                black_box(serde::<Batch<OnlyOp<'_>>>(black_box(bytes)));
            });
        } else {
            cases.add("find", message, "daskwire", move || {
                black_box(ours::op(black_box(bytes)).expect("found"));
            });
            cases.add("find", message, "rmp-serde", move || {
                black_box(serde::<OnlyOp<'_>>(black_box(bytes)).op);
            });
        }

        cases.add("skip", message, "daskwire", move || {
            black_box(Reader::new(black_box(bytes)).skip().expect("skipped"));
        });
        cases.add("skip", message, "rmp-serde", move || {
            black_box(serde::<serde::de::IgnoredAny>(black_box(bytes)));
        });
    }

    let framed = payload::frames();
    cases.add("payload", "array", "daskwire", move || {
        payload::read(black_box(&framed));
    });
    cases.add("forward", "array", "daskwire", move || {
        payload::forward(black_box(&framed));
    });

    let compute_task: ComputeTask<&'static str> = serde(COMPUTE_TASK);
    let task_finished: TaskFinished<'static, &'static str> = serde(TASK_FINISHED);
    let heartbeat: Heartbeat<&'static str> = serde(HEARTBEAT);
    let register_worker: RegisterWorker<&'static str> = serde(REGISTER_WORKER);
    let batch: Vec<TaskFinished<'static, &'static str>> = serde(BATCH);
    write_all!(
        cases,
        "compute-task",
        COMPUTE_TASK,
        write::compute_task,
        compute_task
    );
    write_all!(
        cases,
        "task-finished",
        TASK_FINISHED,
        write::task_finished,
        task_finished
    );
    write_all!(cases, "heartbeat", HEARTBEAT, write::heartbeat, heartbeat);
    write_all!(
        cases,
        "register-worker",
        REGISTER_WORKER,
        write::register_worker,
        register_worker
    );
    write_all!(cases, "batch", BATCH, write::batch, batch);

    cases
}

/// Many short rounds, whose median is robust on a busy machine.
const ROUNDS: usize = 201;
const ROUND: Duration = Duration::from_micros(200);

fn time(run: &mut dyn FnMut(), count: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        run();
    }
    start.elapsed().as_secs_f64() / f64::from(count)
}

/// The number of iterations for the duration of a round.
fn calibrate(run: &mut dyn FnMut()) -> u32 {
    let mut count = 1;
    loop {
        let took = time(run, count) * f64::from(count);
        if took > ROUND.as_secs_f64() / 4.0 {
            return (f64::from(count) * ROUND.as_secs_f64() / took).ceil() as u32;
        }
        count *= 2;
    }
}

/// Median, minimum, maximum.
fn summary(mut samples: Vec<f64>) -> (f64, f64, f64) {
    samples.sort_by(f64::total_cmp);
    (
        samples[samples.len() / 2],
        samples[0],
        samples[samples.len() - 1],
    )
}

/// All peers that do the same work on the same message, ours first.
fn measure(group: &mut [&mut Case]) -> bool {
    let counts: Vec<u32> = group
        .iter_mut()
        .map(|case| calibrate(&mut case.run))
        .collect();
    let mut samples = vec![Vec::with_capacity(ROUNDS); group.len()];
    for _ in 0..ROUNDS {
        for ((case, count), samples) in group.iter_mut().zip(&counts).zip(&mut samples) {
            samples.push(time(&mut case.run, *count));
        }
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (group[0].run)();
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;

    let ours = samples[0].clone();
    let (median, min, max) = summary(ours.clone());
    print!(
        "{:10} {:15} {:>9.1} ns ({:.1} to {:.1}), {allocations} allocations",
        group[0].work,
        group[0].message,
        median * 1e9,
        min * 1e9,
        max * 1e9,
    );
    for (case, theirs) in group.iter().zip(&samples).skip(1) {
        let ratios = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
        let (median, min, max) = summary(ratios);
        print!("; {median:.2} of {} ({min:.2} to {max:.2})", case.peer);
    }
    println!();
    allocations == 0
}

fn find<'c>(cases: &'c mut [Case], work: &str, message: &str, peer: &str) -> &'c mut Case {
    cases
        .iter_mut()
        .find(|case| (case.work, case.message, case.peer) == (work, message, peer))
        .expect("no such case, see --list")
}

fn main() -> ExitCode {
    let mut cases = cases().0;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--one", work, message, peer, count] => {
            let count: u32 = count.parse().expect("COUNT is a number");
            let case = find(&mut cases, work, message, peer);
            for _ in 0..count {
                (case.run)();
            }
            return ExitCode::SUCCESS;
        }
        ["--nanoseconds", work, message, peer] => {
            let case = find(&mut cases, work, message, peer);
            let count = calibrate(&mut case.run);
            let samples = (0..ROUNDS).map(|_| time(&mut case.run, count));
            println!("{}", summary(samples.collect()).0 * 1e9);
            return ExitCode::SUCCESS;
        }
        ["--list"] => {
            for case in &cases {
                println!("{} {} {}", case.work, case.message, case.peer);
            }
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    // `cargo test --benches` runs this too: everything once is enough then.
    let measured = words.contains(&"--bench");
    println!("time per message; then our share of each peer's time, median (min to max)");
    let mut without_allocations = true;
    let mut done: Vec<(&str, &str)> = Vec::new();
    for index in 0..cases.len() {
        let (work, message) = (cases[index].work, cases[index].message);
        if done.contains(&(work, message)) {
            continue;
        }
        done.push((work, message));
        let mut group: Vec<&mut Case> = cases
            .iter_mut()
            .filter(|case| case.work == work && case.message == message)
            .collect();
        if measured {
            without_allocations &= measure(&mut group);
        } else {
            for case in group {
                (case.run)();
            }
        }
    }
    if without_allocations {
        ExitCode::SUCCESS
    } else {
        eprintln!("some of our work allocated");
        ExitCode::FAILURE
    }
}
