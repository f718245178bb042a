//! Reading and writing of five real control messages, compared with other
//! crates.
//!
//! `cargo bench -p daskwire --bench messages` fails if any of our work allocates.
//!
//! `benches/instructions.py` counts instructions under callgrind, which repeat
//! exactly, by running `--one WORK MESSAGE PEER COUNT`; `--list` prints what
//! there is to run. `benches/python_msgpack.py` compares our time with the C
//! extension of Python, by running `--nanoseconds WORK MESSAGE PEER`.
#![allow(clippy::std_instead_of_alloc, reason = "a program has std")]

use core::hint::black_box;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::process::ExitCode;
use std::time::Instant;

use daskwire::msgpack::{RawStr, Reader, Str, Writer};
use serde::{Deserialize, Serialize};

#[allow(dead_code, reason = "not every program reads all counters")]
#[path = "../../testing/src/counting.rs"]
mod counting;
#[path = "messages/model.rs"]
mod model;
#[path = "messages/ours.rs"]
mod ours;
#[path = "messages/payload.rs"]
mod payload;
#[path = "messages/write.rs"]
mod write;

use counting::ALLOCATIONS;
use model::{Batch, ComputeTask, Heartbeat, OnlyOp, RegisterWorker, TaskFinished};

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

/// Whether the work of daskwire allocates.
fn allocates(case: &mut Case) -> bool {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (case.run)();
    ALLOCATIONS.load(Ordering::Relaxed) != before && case.peer == "daskwire"
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
    // `cargo test --benches` runs this too.
    for case in &mut cases {
        if allocates(case) {
            eprintln!("{} {} allocates", case.work, case.message);
            return ExitCode::FAILURE;
        }
    }
    println!("no work of daskwire allocates; see benches/instructions.py for its speed");
    ExitCode::SUCCESS
}
