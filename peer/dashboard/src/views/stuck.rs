//! Why tasks do not run, in plain sentences.

use daskwire_messages::Key;
use daskwire_messages::protocol::WorkerStatus;
use daskwire_scheduler::state::{RunningTask, State, UnmetDemands};
use serde::Serialize;

use super::{Viewed, cut, key_text};

/// Maximum number of keys and workers that a sentence names.
const MAX_NAMED: usize = 20;

/// Maximum number of kinds of demands that get a sentence.
const MAX_DEMANDS: usize = 20;

/// Maximum number of workers whose running tasks are looked at.
const MAX_WORKERS: usize = 1_000;

/// Maximum number of running tasks of a worker that are looked at.
const MAX_RUNNING: usize = 32;

/// The part of its memory limit above which a worker is called full.
const FULL: f64 = 0.8;

/// The run time from which on a task may be called long-running, in seconds.
const LONG: f64 = 60.0;

/// The factor by which its run time exceeds what was expected.
const LONGER: f64 = 10.0;

/// Something that keeps tasks from running.
#[derive(Debug, Serialize)]
struct Sentence {
    kind: &'static str,
    text: String,
    detail: Vec<String>,
    keys: Vec<String>,
    workers: Vec<String>,
    count: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Stuck {
    sentences: Vec<Sentence>,
}

/// Says what keeps tasks from running.
pub(super) fn stuck(viewed: &Viewed<'_>) -> Stuck {
    let mut sentences = Vec::new();
    let read = |state: &State| {
        (
            (state.is_waiting_for_workers(), state.heartbeat_interval()),
            (state.unmet_demands(MAX_DEMANDS), state.no_worker_count()),
            state.state_counts(),
        )
    };
    let ((is_held, interval), (unmet, unmet_count), counts) = viewed.inspect(read);
    let workers = viewed.workers();
    if is_held {
        sentences.push(Sentence::new(
            "held",
            "The scheduler has continued from its journal, and waits for the workers of the one before \
             it. Tasks run when they have returned, or when --journal-wait is over.",
        ));
    }
    let waiting = counts.of("waiting") + counts.of("queued") + counts.of("no-worker");
    if workers.is_empty() && waiting > 0 {
        sentences.push(Sentence {
            count: usize::try_from(waiting).unwrap_or(usize::MAX),
            ..Sentence::new(
                "no-workers",
                "No worker has joined, so that no task can run. Start one with `daskwire worker` or \
                 `dask worker` and the address of this scheduler.",
            )
        });
    } else {
        sentences.extend(unmet.iter().map(|unmet| no_worker(viewed, unmet)));
        let told: usize = unmet.iter().map(|unmet| unmet.count).sum();
        if told < unmet_count {
            let count = unmet_count - told;
            let text = format!(
                "{} with other demands wait for a worker, too.",
                tasks(count)
            );
            sentences.push(Sentence {
                count,
                ..Sentence::new("no-worker", &text)
            });
        }
    }
    let named = |kind, verb: (&str, &str), text: &str, detail: &str, is_so: &dyn Fn(&_) -> bool| {
        let those: Vec<_> = workers.iter().filter(|worker| is_so(worker)).collect();
        let count = those.len();
        let named = those.iter().take(MAX_NAMED);
        (count > 0).then(|| Sentence {
            detail: vec![detail.to_owned()],
            workers: named
                .map(|worker| cut(&worker.address).into_owned())
                .collect(),
            count,
            ..Sentence::new(
                kind,
                &format!(
                    "{} {} {text}",
                    count_of(count, "worker"),
                    match count {
                        1 => verb.0,
                        _ => verb.1,
                    }
                ),
            )
        })
    };
    let of_limit = |worker: &daskwire_scheduler::state::WorkerOverview| {
        let limit = worker.memory_limit.filter(|limit| *limit > 0)?;
        #[expect(clippy::cast_precision_loss, reason = "a part of a whole")]
        Some(worker.process_memory as f64 / limit as f64)
    };
    sentences.extend(named(
        "paused",
        ("is", "are"),
        "paused, without new tasks until memory is free.",
        "A worker pauses when its memory is nearly full. It goes on when results have been released, \
         written to disk or moved. See distributed.worker.memory.pause.",
        &|worker| worker.status == WorkerStatus::Paused,
    ));
    sentences.extend(named(
        "full",
        ("has", "have"),
        "nearly no memory left.",
        "Such workers write results to disk, which takes time, and pause if that is not enough. Memory that is \
         not that of results belongs to the functions and their libraries.",
        &|worker| {
            worker.status != WorkerStatus::Paused && of_limit(worker).is_some_and(|part| part > FULL)
        },
    ));
    let silence = (10.0 * interval).max(5.0);
    sentences.extend(named(
        "silent",
        ("has", "have"),
        "sent nothing for a while.",
        "Their machine may be overloaded or asleep, or the network is interrupted. The scheduler removes \
         them when distributed.scheduler.worker-ttl is over, and runs their tasks elsewhere.",
        &|worker| viewed.now - worker.last_seen.as_secs_f64() > silence,
    ));
    let queued = counts.of("queued");
    if queued > 0 || counts.of("no-worker") > 0 {
        sentences.extend(named(
            "idle",
            ("is", "are"),
            "idle, though tasks wait for others.",
            "The tasks that wait must run elsewhere: they name other workers, or need resources or kinds \
             of functions that these do not have.",
            &|worker| {
                worker.status == WorkerStatus::Running
                    && worker.processing_count == 0
                    && worker.queued_count == 0
            },
        ));
    }
    sentences.extend(long_running(viewed));
    Stuck { sentences }
}

impl Sentence {
    fn new(kind: &'static str, text: &str) -> Self {
        Self {
            kind,
            text: text.to_owned(),
            detail: Vec::new(),
            keys: Vec::new(),
            workers: Vec::new(),
            count: 0,
        }
    }
}

/// A number of things.
fn count_of(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

fn tasks(count: usize) -> String {
    count_of(count, "task")
}

fn keys(viewed: &Viewed<'_>, keys: &[Key]) -> Vec<String> {
    keys.iter()
        .take(MAX_NAMED)
        .map(|key| key_text(viewed, key))
        .collect()
}

/// What tasks demand that no worker has.
fn no_worker(viewed: &Viewed<'_>, unmet: &UnmetDemands) -> Sentence {
    let mut detail = Vec::new();
    if !unmet.workers.is_empty() {
        let names: Vec<_> = unmet
            .workers
            .iter()
            .take(MAX_NAMED)
            .map(|name| cut(name))
            .collect();
        detail.push(format!("They must run on one of: {}.", names.join(", ")));
    }
    for (name, amount) in unmet.resources.iter().take(MAX_NAMED) {
        detail.push(format!("They need {amount} of the resource {}.", cut(name)));
    }
    if unmet.needs_python {
        detail.push(
            "They call functions of Python, for which a worker of Dask, or of Rust with --python, is \
             needed."
                .to_owned(),
        );
    }
    if unmet.needs_rust {
        detail.push("They call functions of workers in Rust, native:NAME.".to_owned());
    }
    let text = format!(
        "{} {} for a worker: none that accepts tasks meets their demands.",
        tasks(unmet.count),
        if unmet.count == 1 { "waits" } else { "wait" },
    );
    Sentence {
        detail,
        keys: keys(viewed, &unmet.keys),
        count: unmet.count,
        ..Sentence::new("no-worker", &text)
    }
}

/// Tasks that have run for much longer than others with their prefix.
fn long_running(viewed: &Viewed<'_>) -> Option<Sentence> {
    let mut running: Vec<(f64, RunningTask)> = Vec::new();
    let mut is_partial = viewed.workers().len() > MAX_WORKERS;
    for worker in viewed.workers().iter().take(MAX_WORKERS) {
        if worker.processing_count == 0 {
            continue;
        }
        let tasks = viewed.inspect(|state| state.running_tasks(&worker.address, MAX_RUNNING));
        is_partial |= tasks.len() == MAX_RUNNING;
        viewed.scheduler.give_way();
        running.extend(tasks.into_iter().filter_map(|task| {
            let took = viewed.now - f64::from(task.since);
            let expected = task.expected.unwrap_or(0.0);
            (took > LONG && took > LONGER * expected).then_some((took, task))
        }));
    }
    if running.is_empty() {
        return None;
    }
    running.sort_by(|one, other| other.0.total_cmp(&one.0));
    let count = running.len();
    let detail = running.iter().take(MAX_NAMED).map(|(took, task)| {
        let expected = match task.expected {
            Some(expected) => format!("{expected:.1} s were expected"),
            None => "no task with its prefix has ended yet".to_owned(),
        };
        let seceded = match task.is_long_running {
            true => "; it has left its thread (secede)",
            false => "",
        };
        format!(
            "{} for {took:.0} s; {expected}{seceded}",
            key_text(viewed, &task.key)
        )
    });
    let at_least = if is_partial { "At least " } else { "" };
    let text = format!(
        "{at_least}{} with a worker for much longer than expected. Their call stacks say what they do.",
        match count {
            1 => "1 task is".to_owned(),
            _ => format!("{count} tasks are"),
        }
    );
    let named = || running.iter().take(MAX_NAMED);
    let mut workers: Vec<String> = named()
        .map(|(_, task)| cut(&task.worker).into_owned())
        .collect();
    workers.sort_unstable();
    workers.dedup();
    Some(Sentence {
        detail: detail.collect(),
        keys: named()
            .map(|(_, task)| key_text(viewed, &task.key))
            .collect(),
        workers,
        count,
        ..Sentence::new("long-running", &text)
    })
}
