//! The recent history of tasks, which answers Dask's `get_story`.

use core::fmt;
use core::mem::size_of;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use daskwire_messages::protocol::Keys;
use daskwire_messages::{Key, Value};

/// Maximum number of events in a story (Dask's
/// `distributed.admin.low-level-log-length` is 1,000).
const MAX_COUNT: usize = 10_000;

/// Maximum bytes of the events of a story, with their keys, addresses and stimuli.
/// Shared strings count for each event.
const MAX_LEN: usize = 2 << 20;

/// Maximum number of older events that are kept of a pending task.
const MAX_KEPT_COUNT: usize = 16;

/// Maximum bytes of the older events of all pending tasks, counted as for
/// [`MAX_LEN`].
const MAX_KEPT_LEN: usize = 2 << 20;

/// Maximum length of a peer's stimulus in bytes; the rest is cut off.
const MAX_STIMULUS_LEN: usize = 200;

/// The cause of an event, called `stimulus_id` in Dask's messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Stimulus(Source);

#[derive(Clone, Debug, PartialEq)]
enum Source {
    /// The stimulus of a message.
    Message(Arc<str>),
    /// A local cause, and its time in seconds since 1970.
    Local(&'static str, f64),
}

impl Stimulus {
    /// The stimulus of a message, cut off after 200 bytes.
    #[doc(hidden)]
    pub fn of_message(id: &str) -> Self {
        let mut end = id.len().min(MAX_STIMULUS_LEN);
        while !id.is_char_boundary(end) {
            end -= 1;
        }
        Self(Source::Message(id[..end].into()))
    }

    /// A local stimulus at `now` seconds after 1970.
    #[doc(hidden)]
    pub const fn local(what: &'static str, now: f64) -> Self {
        Self(Source::Local(what, now))
    }

    fn len(&self) -> usize {
        match &self.0 {
            Source::Message(id) => id.len(),
            Source::Local(..) => 0,
        }
    }
}

/// Formats as in messages: `task-finished-1795299067.9`.
impl fmt::Display for Stimulus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Message(id) => f.write_str(id),
            Source::Local(what, now) => write!(f, "{what}-{now}"),
        }
    }
}

/// An event of a task or a datum.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TaskEvent {
    /// The key of the task.
    pub key: Key,
    /// The change.
    pub change: TaskChange,
    /// The cause.
    pub stimulus: Stimulus,
    /// The time in seconds since 1970.
    pub time: f64,
    /// The address of the worker to which the scheduler assigned the task, or on which it was, in
    /// stories of a scheduler.
    pub worker: Option<Arc<str>>,
}

/// The change in a task's event.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TaskChange {
    /// The state of the task changed. The names are Dask's.
    State {
        /// The state before.
        from: &'static str,
        /// The state now.
        to: &'static str,
    },
    /// The scheduler asked a worker to compute the task.
    ComputeRequested {
        /// The state of the task at that time.
        state: &'static str,
    },
    /// The data was requested from a peer.
    Requested {
        /// The address of the peer.
        peer: Arc<str>,
    },
    /// A peer did not send the requested data.
    NotSent {
        /// The address of the peer.
        peer: Arc<str>,
        /// The reason.
        reason: &'static str,
    },
    /// The data was moved from memory to a file.
    Spilled {
        /// Bytes of memory freed.
        len: u64,
    },
}

impl fmt::Display for TaskEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.change {
            TaskChange::State { from, to } => write!(f, "{from} -> {to}")?,
            TaskChange::ComputeRequested { state } => write!(f, "compute-task while {state}")?,
            TaskChange::Requested { peer } => write!(f, "requested from {peer}")?,
            TaskChange::NotSent { peer, reason } => write!(f, "not sent by {peer}: {reason}")?,
            TaskChange::Spilled { len } => write!(f, "spilled, {len} bytes")?,
        }
        write!(f, " ({})", self.stimulus)
    }
}

impl TaskEvent {
    /// Creates an event; the time is in seconds since 1970.
    #[doc(hidden)]
    pub const fn new(key: Key, change: TaskChange, stimulus: Stimulus, time: f64) -> Self {
        Self {
            key,
            change,
            stimulus,
            time,
            worker: None,
        }
    }

    fn len(&self) -> usize {
        let peer = match &self.change {
            TaskChange::Requested { peer } | TaskChange::NotSent { peer, .. } => peer.len(),
            _ => 0,
        };
        let worker = self.worker.as_ref().map_or(0, |worker| worker.len());
        size_of::<Self>() + self.key.as_msgpack().len() + peer + self.stimulus.len() + worker
    }

    /// Formats as in the log of a Dask worker.
    fn of_worker(&self) -> Value {
        let key = self.key.to_value();
        let mut fields = match &self.change {
            // The recommended state, the actual state, and the recommendations
            // for other tasks.
            TaskChange::State { from, to } => {
                let nothing = Value::Dict([].into());
                vec![key, (*from).into(), (*to).into(), (*to).into(), nothing]
            }
            TaskChange::ComputeRequested { state } => {
                vec![key, "compute-task".into(), (*state).into()]
            }
            TaskChange::Requested { peer } => vec![
                "gather-dependencies".into(),
                Value::from(&**peer),
                Value::list([key]),
            ],
            TaskChange::NotSent { peer, reason } => {
                vec![
                    key,
                    "missing-dep".into(),
                    Value::from(&**peer),
                    (*reason).into(),
                ]
            }
            TaskChange::Spilled { len } => vec![key, "spilled".into(), Value::from(*len)],
        };
        fields.push(self.stimulus.to_string().into());
        fields.push(self.time.into());
        Value::List(fields.into())
    }

    /// Formats as in the transition log of a Dask scheduler.
    fn of_scheduler(&self) -> Option<Value> {
        let TaskChange::State { from, to } = &self.change else {
            return None;
        };
        Some(Value::list([
            self.key.to_value(),
            (*from).into(),
            (*to).into(),
            Value::Dict([].into()),
            self.stimulus.to_string().into(),
            self.time.into(),
        ]))
    }
}

/// The last events of all tasks, and more events of each pending task, so that a stuck
/// task keeps its history when many other tasks change.
#[derive(Debug)]
pub struct Story {
    /// The last events of all tasks, oldest first.
    events: VecDeque<TaskEvent>,
    len: usize,
    /// [`MAX_COUNT`], or less in tests.
    max_count: usize,
    /// Events of pending tasks that are older than those in `events`, oldest first.
    kept: BTreeMap<Key, VecDeque<TaskEvent>>,
    kept_len: usize,
}

impl Default for Story {
    fn default() -> Self {
        Self {
            events: VecDeque::new(),
            len: 0,
            max_count: MAX_COUNT,
            kept: BTreeMap::new(),
            kept_len: 0,
        }
    }
}

impl Story {
    /// Adds an event, and keeps no older events of pending tasks.
    pub fn add(&mut self, event: TaskEvent) {
        self.add_and_keep(event, |_| false);
    }

    /// Adds an event. Older events are kept longer for tasks that are pending, until
    /// [`settle`](Self::settle).
    pub fn add_and_keep(&mut self, event: TaskEvent, is_pending: impl Fn(&Key) -> bool) {
        self.len += event.len();
        self.events.push_back(event);
        while self.events.len() > self.max_count || self.len > MAX_LEN {
            let Some(oldest) = self.events.pop_front() else {
                break;
            };
            self.len = self.len.saturating_sub(oldest.len());
            if is_pending(&oldest.key) {
                self.keep(oldest);
            }
        }
    }

    /// Keeps an event of a pending task, and drops older events of this task if there
    /// are too many. Once the limit for all tasks is reached, nothing is kept for
    /// further tasks, because stuck tasks are usually the oldest.
    fn keep(&mut self, event: TaskEvent) {
        let (key, len) = (event.key.clone(), event.len());
        let mut history = self.kept.remove(&key).unwrap_or_default();
        while history.len() >= MAX_KEPT_COUNT || self.kept_len + len > MAX_KEPT_LEN {
            let Some(oldest) = history.pop_front() else {
                return;
            };
            self.kept_len -= oldest.len();
        }
        history.push_back(event);
        self.kept_len += len;
        self.kept.insert(key, history);
    }

    /// Drops the events that were kept for a task that is no longer pending.
    pub fn settle(&mut self, key: &Key) {
        if let Some(history) = self.kept.remove(key) {
            let len: usize = history.iter().map(TaskEvent::len).sum();
            self.kept_len -= len;
        }
    }

    /// Sets the maximum number of events besides those of pending tasks.
    pub const fn limit(&mut self, max_count: usize) {
        self.max_count = max_count;
    }

    /// The keys of the tasks for which older events are kept.
    pub fn kept_keys(&self) -> impl Iterator<Item = &Key> {
        self.kept.keys()
    }

    /// The events of tasks with one of these keys, or with one of these stimuli,
    /// oldest first.
    pub fn events<'s>(&'s self, wanted: &'s Keys) -> impl Iterator<Item = &'s TaskEvent> {
        let keys: HashSet<&Key> = wanted.iter().collect();
        let stimuli: HashSet<&str> = wanted.iter().filter_map(Key::as_str).collect();
        let here = stimuli.iter().filter_map(|id| {
            let (what, time) = id.rsplit_once('-')?;
            Some((what, time.parse::<f64>().ok()?.to_bits()))
        });
        let here: HashSet<(&str, u64)> = here.collect();
        let is_wanted = move |event: &&TaskEvent| {
            keys.contains(&event.key)
                || match &event.stimulus.0 {
                    Source::Message(id) => stimuli.contains(&**id),
                    Source::Local(what, time) => here.contains(&(*what, time.to_bits())),
                }
        };
        let kept = self.kept.values().flatten();
        let mut kept: Vec<&TaskEvent> = kept.filter(&is_wanted).collect();
        kept.sort_by(|one, other| one.time.total_cmp(&other.time));
        kept.into_iter().chain(self.events.iter().filter(is_wanted))
    }

    /// All events in the form of a scheduler's reply to `get_story`, oldest first.
    pub fn all_of_scheduler(&self) -> Value {
        Value::List(
            (self.events.iter())
                .filter_map(TaskEvent::of_scheduler)
                .collect(),
        )
    }

    /// A scheduler's reply to `get_story`.
    pub fn of_scheduler(&self, wanted: &Keys) -> Value {
        Value::List(
            self.events(wanted)
                .filter_map(TaskEvent::of_scheduler)
                .collect(),
        )
    }
}

/// A worker's reply to `get_story`.
pub fn of_worker<'e>(events: impl Iterator<Item = &'e TaskEvent>) -> Value {
    Value::List(events.map(TaskEvent::of_worker).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: &str, stimulus: Stimulus) -> TaskEvent {
        TaskEvent {
            key: key.into(),
            change: TaskChange::Spilled { len: 1 },
            stimulus,
            time: 1.5,
            worker: None,
        }
    }

    fn keys(story: &Story, wanted: &[&str]) -> Vec<String> {
        let wanted: Keys = wanted.iter().copied().collect();
        let events = story.events(&wanted);
        events.map(|event| event.key.to_string()).collect()
    }

    #[test]
    fn events_are_found_by_key_and_stimulus() {
        let mut story = Story::default();
        story.add(event("x", Stimulus::of_message("compute-task-1")));
        story.add(event("y", Stimulus::of_message("compute-task-2")));
        story.add(event("x", Stimulus::local("spill", 1_795_299_067.25)));
        assert_eq!(keys(&story, &["x"]), ["x", "x"]);
        assert_eq!(keys(&story, &["compute-task-2", "z"]), ["y"]);
        assert_eq!(keys(&story, &["spill-1795299067.25"]), ["x"]);
        assert_eq!(keys(&story, &["y", "spill-1795299067.25"]), ["y", "x"]);
        assert!(keys(&story, &["spill", "spill-1", "compute-task"]).is_empty());
    }

    #[test]
    fn memory_is_bounded_by_count_and_by_the_length_of_keys() {
        let mut story = Story::default();
        for index in 0..=MAX_COUNT {
            story.add(event(&format!("x-{index}"), Stimulus::local("spill", 1.5)));
        }
        assert_eq!(story.events.len(), MAX_COUNT);
        assert_eq!(story.events[0].key, Key::from("x-1"));
        for index in 0..10 {
            let long = format!("{index}{}", "k".repeat(MAX_LEN / 4));
            story.add(event(&long, Stimulus::of_message("s")));
        }
        assert_eq!(story.events.len(), 3);
        assert!(story.len <= MAX_LEN);
        let len: usize = story.events.iter().map(TaskEvent::len).sum();
        assert_eq!(story.len, len);
        // An event that exceeds the limit by itself
        story.add(event(&"k".repeat(MAX_LEN), Stimulus::of_message("s")));
        assert_eq!((story.events.len(), story.len), (0, 0));
    }

    #[test]
    fn a_pending_task_keeps_its_last_events_until_it_is_settled() {
        let mut story = Story::default();
        story.limit(10);
        let is_pending = |key: &Key| *key == Key::from("stuck");
        let add = |story: &mut Story, key: &str, time: f64| {
            let event = TaskEvent {
                time,
                ..event(key, Stimulus::local("spill", time))
            };
            story.add_and_keep(event, is_pending);
        };
        let times = |story: &Story| -> Vec<f64> {
            let wanted: Keys = ["stuck"].into_iter().collect();
            story.events(&wanted).map(|event| event.time).collect()
        };
        add(&mut story, "stuck", 0.0);
        for n in 1..=100 {
            add(&mut story, "other", f64::from(n));
        }
        add(&mut story, "stuck", 101.0);
        assert_eq!(times(&story), [0.0, 101.0]);
        assert_eq!(keys(&story, &["other"]).len(), 9);
        assert_eq!(keys(&story, &["spill-0"]), ["stuck"]);
        // The last of its own events
        for n in 102..200 {
            add(&mut story, "stuck", f64::from(n));
        }
        let last: Vec<f64> = (200 - 10 - 16..200).map(f64::from).collect();
        assert_eq!(times(&story), last);
        story.settle(&Key::from("stuck"));
        assert_eq!(times(&story), last[16..]);
        assert_eq!((story.kept.len(), story.kept_len), (0, 0));
    }

    #[test]
    fn memory_for_pending_tasks_is_bounded_and_the_first_ones_keep_it() {
        let mut story = Story::default();
        story.limit(1);
        let long = "k".repeat(MAX_KEPT_LEN / 4);
        for index in 0..10 {
            let event = event(&format!("{index}{long}"), Stimulus::of_message("s"));
            story.add_and_keep(event, |_| true);
        }
        let len: usize = story.kept.values().flatten().map(TaskEvent::len).sum();
        assert_eq!(story.kept_len, len);
        assert!(len <= MAX_KEPT_LEN);
        let first: Vec<Key> = (0..3)
            .map(|index| Key::from(format!("{index}{long}")))
            .collect();
        assert!(story.kept_keys().eq(&first));
        // An event that exceeds the limit by itself
        for _ in 0..2 {
            let event = event(&"k".repeat(MAX_LEN / 2), Stimulus::of_message("s"));
            story.add_and_keep(event, |_| true);
        }
        assert!(story.kept_keys().eq(&first));
        for key in &first {
            story.settle(key);
        }
        assert_eq!(story.kept_len, 0);
    }

    #[test]
    fn a_long_stimulus_is_cut_off_between_characters() {
        let stimulus = Stimulus::of_message(&"ä☃".repeat(MAX_STIMULUS_LEN));
        let id = stimulus.to_string();
        assert!(id.len() <= MAX_STIMULUS_LEN && id.len() > MAX_STIMULUS_LEN - 3);
        assert!(id.starts_with("ä☃ä"));
    }

    #[test]
    fn formats_events_as_dask_does() {
        let change = |change| TaskEvent {
            change,
            ..event("x", Stimulus::local("spill", 1.5))
        };
        let (from, to) = ("waiting", "ready");
        let peer: Arc<str> = "tcp://a:1".into();
        let reason = "it is busy";
        for (change, expected) in [
            (
                TaskChange::State { from, to },
                "['x', 'waiting', 'ready', 'ready', {}, 'spill-1.5', 1.5]",
            ),
            (
                TaskChange::ComputeRequested { state: "released" },
                "['x', 'compute-task', 'released', 'spill-1.5', 1.5]",
            ),
            (
                TaskChange::Requested { peer: peer.clone() },
                "['gather-dependencies', 'tcp://a:1', ['x'], 'spill-1.5', 1.5]",
            ),
            (
                TaskChange::NotSent { peer, reason },
                "['x', 'missing-dep', 'tcp://a:1', 'it is busy', 'spill-1.5', 1.5]",
            ),
            (
                TaskChange::Spilled { len: 8 },
                "['x', 'spilled', 8, 'spill-1.5', 1.5]",
            ),
        ]
        .map(|(kind, expected)| (change(kind), expected))
        {
            assert_eq!(change.of_worker().to_string(), expected);
        }
        let state = change(TaskChange::State { from, to });
        assert_eq!(
            state
                .of_scheduler()
                .map(|value| value.to_string())
                .as_deref(),
            Some("['x', 'waiting', 'ready', {}, 'spill-1.5', 1.5]")
        );
        assert_eq!(change(TaskChange::Spilled { len: 8 }).of_scheduler(), None);
    }
}
