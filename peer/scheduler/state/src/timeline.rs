//! When and where tasks have run, for people who watch.

use std::collections::VecDeque;
use std::sync::Arc;

use daskwire_messages::Key;
use daskwire_messages::protocol::StartStop;

use super::{State, WorkerId};

/// Maximum number of spans that are kept. Nobody needs more who reads them twice a second: they would
/// not be told from each other.
const MAX_COUNT: usize = 1 << 13;

/// What a worker did in a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpanKind {
    /// It ran a task.
    Compute,
    /// It received inputs.
    Transfer,
    /// It wrote data to disk.
    DiskWrite,
    /// It read data from disk.
    DiskRead,
    /// It deserialized data.
    Deserialize,
    /// It ran a task that has failed.
    Failed,
    /// Anything else.
    Other,
}

impl SpanKind {
    fn of(action: &str, has_failed: bool) -> Self {
        match action {
            "compute" if has_failed => Self::Failed,
            "compute" => Self::Compute,
            "transfer" => Self::Transfer,
            "disk-write" => Self::DiskWrite,
            "disk-read" => Self::DiskRead,
            "deserialize" => Self::Deserialize,
            _ => Self::Other,
        }
    }
}

/// A span of time in which a worker did something for a task.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Span {
    /// The worker.
    pub worker: WorkerId,
    /// The worker's number of the thread; 0 if it has not told.
    pub thread: i64,
    /// The start in seconds since 1970.
    pub start: f64,
    /// The end in seconds since 1970.
    pub stop: f64,
    /// What the worker did.
    pub kind: SpanKind,
    /// The prefix of the task's key.
    pub prefix: Arc<str>,
}

/// The last spans, while they are recorded.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    is_recording: bool,
    spans: VecDeque<Span>,
    /// The number of spans since the start, without those in times without recording.
    count: u64,
}

impl State {
    /// Starts or ends the recording of what workers do for tasks. It changes nothing else, so that it is
    /// no event, and in no recording of events.
    pub fn record_spans(&mut self, is_recording: bool) {
        let timeline = &mut self.timeline;
        timeline.is_recording = is_recording;
        if !is_recording {
            timeline.spans = VecDeque::new();
        }
    }

    /// The number of spans since the start, without those in times without recording.
    pub const fn span_count(&self) -> u64 {
        self.timeline.count
    }

    /// At most `max` spans with numbers from `from` on, with the number of the first. It is higher than
    /// `from` if older ones are not kept: the last 8,192 are.
    pub fn spans(&self, from: u64, max: usize) -> (u64, Vec<Span>) {
        let Timeline { spans, count, .. } = &self.timeline;
        let first = count - spans.len() as u64;
        let from = from.clamp(first, *count);
        let skipped = usize::try_from(from - first).unwrap_or(usize::MAX);
        let part = spans.iter().skip(skipped).take(max);
        (from, part.cloned().collect())
    }

    /// Records the steps of a task that has ended on a worker.
    pub(super) fn record_steps(
        &mut self,
        worker: WorkerId,
        key: &Key,
        steps: &[StartStop],
        thread: Option<i64>,
        has_failed: bool,
    ) {
        /// A task has a few steps. A worker could name any number.
        const MAX_STEPS: usize = 32;
        if !self.timeline.is_recording {
            return;
        }
        let Some(id) = self.by_key.get(key) else {
            return;
        };
        let prefix = self.key_groups.prefix_name(self.tasks[*id].key_group);
        let timeline = &mut self.timeline;
        for step in steps.iter().take(MAX_STEPS) {
            if !step.start.is_finite() || !step.stop.is_finite() {
                continue;
            }
            if timeline.spans.len() >= MAX_COUNT {
                timeline.spans.pop_front();
            }
            timeline.count += 1;
            timeline.spans.push_back(Span {
                worker,
                thread: thread.unwrap_or(0),
                start: step.start,
                stop: step.stop.max(step.start),
                kind: SpanKind::of(&step.action, has_failed),
                prefix: Arc::clone(prefix),
            });
        }
    }
}
