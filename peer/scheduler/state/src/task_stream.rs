//! The tasks that have ended, and the metadata of tasks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use daskwire_messages::protocol::{Field as _, StartStop, TaskErred, TaskFinished};
use daskwire_messages::{Key, Value};

use super::{Action, State, WorkerId};

/// Records of tasks that have ended, if a peer has asked for them.
#[derive(Debug, Default)]
pub(super) struct TaskStream {
    /// Whether [`Action::TaskEnded`] is wanted.
    pub(super) is_observed: bool,
    is_recording: bool,
    records: VecDeque<Record>,
    /// The number of tasks since the recording began.
    count: u64,
    /// The size of all records in bytes.
    len: usize,
    collections: Vec<Collection>,
}

#[derive(Debug)]
struct Record {
    /// The end of the last step, in seconds since 1970.
    stop: f64,
    len: usize,
    value: Value,
}

/// The metadata of tasks that are submitted after its start.
#[derive(Debug, Default)]
struct Collection {
    name: String,
    /// The keys of tasks that have not ended.
    keys: BTreeSet<Key>,
    ended: BTreeMap<Key, (Value, &'static str)>,
    /// The size of the metadata in bytes.
    len: usize,
}

/// Which records are wanted, see [`TaskStream`](daskwire_messages::protocol::TaskStream).
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RecordRange {
    /// The earliest end in seconds since 1970.
    pub start: Option<f64>,
    /// The latest end in seconds since 1970.
    pub stop: Option<f64>,
    /// Maximum number of records.
    pub count: Option<i64>,
    /// The number of records that are skipped since the start, in place of the other fields.
    pub start_index: Option<i64>,
}

impl RecordRange {
    daskwire_comm::with_fields! {
        with_start(start: impl Into<Option<f64>>);
        with_stop(stop: impl Into<Option<f64>>);
        with_count(count: impl Into<Option<i64>>);
        with_start_index(start_index: impl Into<Option<i64>>);
    }
}

/// Maximum size of all records in bytes, and of the metadata of a collection.
const MAX_LEN: usize = 64 << 20;

/// The size of a record without the parts that vary, in bytes.
const OVERHEAD: usize = 1024;

/// Maximum number of collections of metadata at once.
const MAX_COLLECTIONS: usize = 16;

/// Maximum number of tasks of a collection. Further ones are not collected.
const MAX_TASKS: usize = 1 << 17;

impl TaskStream {
    fn add(&mut self, value: Value, stop: f64, max_count: usize) {
        self.count += 1;
        let len = value.heap_len() + OVERHEAD;
        self.records.push_back(Record { stop, len, value });
        self.len += len;
        while (self.records.len() > max_count || self.len > MAX_LEN)
            && let Some(oldest) = self.records.pop_front()
        {
            self.len -= oldest.len;
        }
    }

    /// Returns the records in a range, oldest first, with the rules of Dask.
    fn collect(&self, range: &RecordRange) -> Vec<Value> {
        let count = i64::try_from(self.records.len()).unwrap_or(i64::MAX);
        let (start, stop) = if let Some(index) = range.start_index {
            let dropped = i64::try_from(self.count).unwrap_or(i64::MAX) - count;
            (Some(index.saturating_sub(dropped)), None)
        } else {
            let before = |time: f64| {
                let index = self.records.partition_point(|record| record.stop < time);
                i64::try_from(index).unwrap_or(i64::MAX)
            };
            match (range.start.map(before), range.stop.map(before), range.count) {
                (None, None, Some(most)) => (Some(count.saturating_sub(most)), Some(count)),
                (None, Some(stop), Some(most)) => (Some(stop.saturating_sub(most)), Some(stop)),
                (Some(start), None, Some(most)) => (Some(start), Some(start.saturating_add(most))),
                (start, stop, _) => (start, stop),
            }
        };
        let limit = |index: i64| usize::try_from(index.clamp(0, count)).unwrap_or(0);
        let (start, stop) = (limit(start.unwrap_or(0)), limit(stop.unwrap_or(count)));
        let records = self.records.range(start..stop.max(start));
        records.map(|record| record.value.clone()).collect()
    }
}

impl State {
    /// Starts to record tasks that end.
    pub(super) fn record_tasks(&mut self) {
        self.task_stream.is_recording = true;
    }

    /// The recorded tasks in a range, oldest first, each a dictionary. Recording starts with
    /// [`SchedulerInput::RecordTasks`](super::SchedulerInput::RecordTasks), and keeps the last
    /// [`Policy::task_stream_length`](super::Policy::task_stream_length) tasks, and at most 64 MiB.
    pub fn recorded_tasks(&self, range: &RecordRange) -> Vec<Value> {
        self.task_stream.collect(range)
    }

    /// The number of tasks that have ended since recording started.
    pub const fn recorded_count(&self) -> u64 {
        self.task_stream.count
    }

    /// Records the end of a task.
    pub(super) fn record_finished(&mut self, worker: WorkerId, message: &TaskFinished) {
        let metadata = || match &message.metadata[..] {
            [] => Value::None,
            entries => Value::Dict(entries.to_vec().into()),
        };
        self.collect_metadata(&message.key, "memory", metadata);
        let fields = || {
            vec![
                ("metadata", Value::Dict(message.metadata.clone().into())),
                ("nbytes", Value::from(message.nbytes)),
                (
                    "type",
                    message.class.0.clone().map_or(Value::None, Value::Bytes),
                ),
                ("typename", Value::from(message.typename.as_str())),
                ("status", Value::from("OK")),
                ("thread", message.thread.map_or(Value::None, Value::from)),
            ]
        };
        let stimulus = &message.stimulus_id;
        self.record_end(worker, &message.key, stimulus, &message.startstops, fields);
        let steps = &message.startstops;
        self.record_steps(worker, &message.key, steps, message.thread, false);
    }

    /// Records the failure of a task.
    pub(super) fn record_erred(&mut self, worker: WorkerId, message: &TaskErred) {
        self.collect_metadata(&message.key, "erred", || Value::None);
        let text = |text: &Option<String>| text.clone().map_or(Value::None, Value::from);
        let fields = || {
            vec![
                ("cause", message.key.to_value()),
                ("exception", message.exception.clone()),
                ("exception_text", text(&message.exception_text)),
                ("traceback", message.traceback.clone().unwrap_or_default()),
                ("traceback_text", text(&message.traceback_text)),
                ("status", Value::from("error")),
                ("thread", message.thread.map_or(Value::None, Value::from)),
            ]
        };
        let steps = message.startstops.as_deref().unwrap_or_default();
        self.record_end(worker, &message.key, &message.stimulus_id, steps, fields);
        self.record_steps(worker, &message.key, steps, message.thread, true);
    }

    fn record_end(
        &mut self,
        worker: WorkerId,
        key: &Key,
        stimulus: &str,
        steps: &[StartStop],
        fields: impl FnOnce() -> Vec<(&'static str, Value)>,
    ) {
        let stream = &self.task_stream;
        if !stream.is_recording && !stream.is_observed {
            return;
        }
        let Some(worker) = self.workers.get(&worker) else {
            return;
        };
        let stops = steps.iter().map(|step| step.stop);
        // As records are searched by their end, it does not decrease.
        let last = self.task_stream.records.back();
        let last = last.map_or(0.0, |record| record.stop);
        let stop = stops.fold(last, f64::max);
        let mut record = fields();
        record.extend([
            ("key", key.to_value()),
            ("worker", Value::from(&*worker.address)),
            ("stimulus_id", Value::from(stimulus)),
            ("startstops", Value::list(steps.iter().map(step))),
        ]);
        let record = Value::dict(record);
        if self.task_stream.is_observed {
            self.actions.push(Action::TaskEnded(record.clone()));
        }
        if self.task_stream.is_recording {
            let max_count = self.policy.task_stream_length;
            self.task_stream.add(record, stop, max_count);
        }
    }

    /// Starts to collect the metadata of tasks. At most 16 collections exist; further ones replace
    /// the oldest.
    pub(super) fn start_collection(&mut self, name: String) {
        let collections = &mut self.task_stream.collections;
        collections.retain(|collection| collection.name != name);
        if collections.len() >= MAX_COLLECTIONS {
            collections.remove(0);
        }
        collections.push(Collection {
            name,
            ..Collection::default()
        });
    }

    /// The metadata and the final states of the tasks of a collection; `None` if there is none of
    /// this name.
    pub fn collected_metadata(&self, name: &str) -> Option<Value> {
        let collections = &self.task_stream.collections;
        let found = collections
            .iter()
            .find(|collection| collection.name == name)?;
        let ended = found.ended.iter();
        let metadata = ended
            .clone()
            .map(|(key, (metadata, _))| (key.to_value(), metadata.clone()));
        let states = ended.map(|(key, (_, state))| (key.to_value(), Value::from(*state)));
        Some(Value::dict([
            ("metadata", Value::Dict(metadata.collect())),
            ("state", Value::Dict(states.collect())),
        ]))
    }

    pub(super) fn end_collection(&mut self, name: &str) {
        let collections = &mut self.task_stream.collections;
        collections.retain(|collection| collection.name != name);
    }

    /// Adds the keys of a submission to all collections.
    pub(super) fn collect_keys(&mut self, keys: &[Key]) {
        for collection in &mut self.task_stream.collections {
            let used = collection.keys.len() + collection.ended.len();
            let room = MAX_TASKS.saturating_sub(used);
            collection.keys.extend(keys.iter().take(room).cloned());
        }
    }

    fn collect_metadata(&mut self, key: &Key, state: &'static str, metadata: impl Fn() -> Value) {
        for collection in &mut self.task_stream.collections {
            if !collection.keys.remove(key) {
                continue;
            }
            let mut metadata = metadata();
            let len = metadata.heap_len();
            match collection.len + len > MAX_LEN {
                true => metadata = Value::None,
                false => collection.len += len,
            }
            collection.ended.insert(key.clone(), (metadata, state));
        }
    }
}

fn step(step: &StartStop) -> Value {
    let fields = [
        ("action", Value::from(step.action.as_str())),
        ("start", Value::from(step.start)),
        ("stop", Value::from(step.stop)),
    ];
    let source = step.source.as_deref();
    let source = source.map(|source| ("source", Value::from(source)));
    Value::dict(fields.into_iter().chain(source))
}
