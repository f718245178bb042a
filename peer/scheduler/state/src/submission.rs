//! Parsing and ordering of submissions. This is the slow part of handling them, and is done
//! without the scheduler's state, so that other requests are not delayed.

use core::cmp::Ordering;
use core::fmt;
use core::time::Duration;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use daskwire_messages::exception::exception;
use daskwire_messages::graph::{Calls, Graph, GraphError, Outline, Payload};
#[cfg(target_os = "linux")]
use daskwire_messages::protocol::HelperErred;
use daskwire_messages::protocol::{Actors, Field as _, UpdateGraph};
use daskwire_messages::quantity::duration_of;
use daskwire_messages::value::ValueError;
use daskwire_messages::{Key, Serialized, Value};

use super::codes;
use super::order::{self, depth_first};

/// A submitted graph: tasks and their dependencies, in an order in which they can
/// run.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// The tasks, or the first of them.
    pub(super) part: SubmissionPart,
    /// The keys that the client wants.
    pub(super) keys: Vec<Key>,
    /// The keys of tasks that make actors.
    pub(super) actors: Vec<Key>,
    /// The task that submits these.
    pub(super) submitting_task: Option<Key>,
    /// The time during which submissions of a client count as one.
    pub(super) fifo_timeout: Duration,
    /// The code that submits these, for people. It is in no recording.
    pub(super) code: Option<Arc<str>>,
}

/// Some tasks of a submission. The first part is in the [`Submission`], and the others follow with
/// [`SchedulerInput::SubmissionContinued`](super::SchedulerInput::SubmissionContinued). Tasks run as soon
/// as their part is there; the client learns of results once it has the last one.
#[derive(Clone, Debug, Default)]
pub struct SubmissionPart {
    /// The tasks, each after its dependencies, which may be in earlier parts.
    pub(super) tasks: Vec<Submitted>,
    /// The tasks up to this part that no later part depends on and that the client does not want, by
    /// index. Their results may be deleted once those that depend on them have run.
    pub(super) unneeded: Vec<usize>,
    /// Whether other parts follow.
    pub(super) has_more: bool,
}

impl SubmissionPart {
    /// The number of tasks.
    #[expect(clippy::len_without_is_empty, reason = "for people; no part is empty")]
    pub const fn len(&self) -> usize {
        self.tasks.len()
    }
}

impl Submission {
    /// The number of keys that the client wants, and that of tasks in the first part.
    pub const fn counts(&self) -> (usize, usize) {
        (self.keys.len(), self.part.tasks.len())
    }

    /// Whether no other parts follow.
    pub const fn is_whole(&self) -> bool {
        !self.part.has_more
    }

    /// The keys that the client wants, and the tasks, each a tuple of its key, its annotations, and
    /// its priority: the user's, negated, and that within the submission.
    pub fn view(&self) -> Vec<Value> {
        let keys = self.keys.iter().map(Key::to_value);
        let tasks = self.part.tasks.iter().map(|task| {
            let priority = [
                Value::from(-task.user_priority),
                Value::from(0_i64),
                Value::from(task.order),
            ];
            Value::tuple([
                task.key.to_value(),
                task.demands.annotations.clone(),
                Value::tuple(priority),
            ])
        });
        vec![Value::list(keys), Value::list(tasks)]
    }
}

/// A task of a submission.
#[derive(Clone, Debug)]
pub(super) struct Submitted {
    pub(super) key: Key,
    pub(super) dependencies: Vec<Dependency>,
    pub(super) run_spec: Payload,
    pub(super) calls: Calls,
    /// The priority within the submission; lower values run earlier.
    pub(super) order: i64,
    /// The user's priority; higher values run earlier.
    pub(super) user_priority: f64,
    pub(super) demands: Arc<Demands>,
    pub(super) retries: u32,
}

/// A dependency of a task.
#[derive(Clone, Debug)]
pub(super) enum Dependency {
    /// A task of the same graph, by its index among those of all parts, which is lower.
    Inside(usize),
    /// A key outside the graph, of a task or of scattered data, that the scheduler should
    /// have.
    Outside(Key),
}

/// The refusal of a submission that cannot be parsed. `Display` formats the reason.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The keys that the client wants.
    pub(super) keys: Vec<Key>,
    reason: Arc<RefusalReason>,
    pub(super) failure: Arc<Failure>,
    /// Whether no other part of the refusal follows.
    pub(super) is_last: bool,
}

/// The reason why a submission cannot be parsed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The annotations are malformed.
    Annotations(ValueError),
    /// The annotations are not a dict.
    AnnotationsType {
        /// The Python type of the annotations.
        found: String,
    },
    /// The value of an annotation is invalid.
    Annotation {
        /// The name of the annotation.
        name: Value,
        /// The value of the annotation.
        value: Value,
    },
    /// The graph cannot be parsed: for example the graph of a Python collection,
    /// which only Python can convert into tasks.
    Graph(GraphError),
    /// Python raised an exception when it converted the graph.
    Raised {
        /// The exception as a string.
        exception: String,
    },
    /// The Python process that converts graphs has failed, for example because the graph takes
    /// too long or too much memory.
    Helper {
        /// The reason.
        error: String,
    },
    /// Two tasks have the same key.
    DuplicateKey,
    /// Tasks depend on each other.
    Cycle,
    /// The reason as a recording has it.
    Recorded {
        /// The reason as a string.
        text: String,
    },
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = "the graph cannot be read by this scheduler";
        match self {
            Self::Annotations(error) => write!(f, "the annotations cannot be read: {error}"),
            Self::AnnotationsType { found } => {
                write!(f, "the annotations: expected dict, found {found}")
            }
            Self::Annotation { name, value } => {
                write!(f, "the annotation {name} has the invalid value {value}")
            }
            Self::Graph(error) => write!(f, "{graph}: {error}"),
            Self::Raised { exception } => write!(f, "the graph cannot be converted: {exception}"),
            Self::Helper { error } => write!(
                f,
                "the Python process of the scheduler did not convert the graph: {error}"
            ),
            Self::DuplicateKey => write!(f, "{graph}: two tasks have the same key"),
            Self::Cycle => write!(f, "{graph}: tasks depend on each other in a cycle"),
            Self::Recorded { text } => f.write_str(text),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl core::error::Error for Refusal {}

daskwire::kinds! {
    Refusal: |error| match &*error.reason {
        RefusalReason::Annotations(error) => error.kind(),
        RefusalReason::Graph(error) => error.kind(),
        RefusalReason::Raised { .. } => ErrorKind::Exception,
        RefusalReason::Helper { .. } => ErrorKind::System,
        RefusalReason::AnnotationsType { .. }
        | RefusalReason::Annotation { .. }
        | RefusalReason::DuplicateKey
        | RefusalReason::Cycle
        | RefusalReason::Recorded { .. } => ErrorKind::Invalid,
    };
}

impl Refusal {
    /// Creates the refusal of these keys.
    pub fn new(keys: Vec<Key>, reason: RefusalReason) -> Self {
        Self {
            keys,
            failure: Failure::new("RuntimeError", &reason.to_string(), None),
            reason: Arc::new(reason),
            is_last: true,
        }
    }

    /// A part of a refusal that was recorded.
    pub(super) fn recorded(
        keys: Vec<Key>,
        reason: RefusalReason,
        failure: Failure,
        is_last: bool,
    ) -> Self {
        Self {
            keys,
            reason: Arc::new(reason),
            failure: Arc::new(failure),
            is_last,
        }
    }

    /// Creates the refusal for an exception of Python, which the client raises.
    #[cfg(target_os = "linux")]
    pub fn raised(keys: Vec<Key>, error: HelperErred) -> Self {
        let payload = |pickle| Value::Serialized(Serialized::of_bytes(&pickle));
        Self {
            keys,
            failure: Arc::new(Failure {
                exception: payload(error.exception),
                traceback: error.traceback.0.map(payload),
                cause: None,
            }),
            reason: Arc::new(RefusalReason::Raised {
                exception: error.text,
            }),
            is_last: true,
        }
    }

    /// Whether the graph may be one that only Python can read.
    #[cfg(target_os = "linux")]
    pub fn may_need_python(&self) -> bool {
        matches!(
            *self.reason,
            RefusalReason::Annotations(_)
                | RefusalReason::AnnotationsType { .. }
                | RefusalReason::Graph(_)
                | RefusalReason::DuplicateKey
        )
    }

    /// The keys that the client wants.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The reason why the submission cannot be parsed.
    pub fn reason(&self) -> &RefusalReason {
        &self.reason
    }

    /// Splits the refusal into parts of at most `count` keys.
    pub fn parts(self, count: usize) -> impl Iterator<Item = Self> {
        let mut keys = self.keys.into_iter();
        let mut is_done = false;
        core::iter::from_fn(move || {
            if is_done {
                return None;
            }
            let part = keys.by_ref().take(count).collect();
            is_done = keys.len() == 0;
            Some(Self {
                keys: part,
                reason: Arc::clone(&self.reason),
                failure: Arc::clone(&self.failure),
                is_last: is_done,
            })
        })
    }
}

/// The exception and the traceback of a failed task.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    pub(super) exception: Value,
    pub(super) traceback: Option<Value>,
    /// The task that has failed, unless the scheduler refused the submission.
    pub(super) cause: Option<Key>,
}

impl Failure {
    /// Creates a failure with an exception of the scheduler.
    pub(super) fn new(class: &str, message: &str, cause: Option<Key>) -> Arc<Self> {
        Arc::new(Self {
            exception: Value::Serialized(exception(class, message)),
            traceback: None,
            cause,
        })
    }

    /// Creates a failure of a task with an exception of the scheduler.
    pub(super) fn raised(exception: Serialized, cause: Key) -> Arc<Self> {
        Arc::new(Self {
            exception: Value::Serialized(exception),
            traceback: None,
            cause: Some(cause),
        })
    }
}

/// The requirements of tasks on their worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Demands {
    /// Addresses, names or hosts, sorted; empty for any worker.
    pub(super) workers: Vec<String>,
    /// Whether other workers may be used while none of these is available.
    pub(super) allow_other_workers: bool,
    pub(super) resources: Resources,
    /// All annotations, for the worker.
    pub(super) annotations: Value,
    /// The id of the innermost span, for the metrics of the worker.
    pub(super) span_id: Option<Arc<str>>,
}

impl Demands {
    /// The memory of the demands, as in [`Policy::max_tasks_len`](super::Policy::max_tasks_len). Tasks
    /// with the same demands share it.
    pub(super) fn len(&self) -> usize {
        self.annotations.heap_len()
    }
}

/// Amounts of resources, sorted by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Resources(pub(super) Vec<(String, f64)>);

impl Resources {
    /// Keeps the positive amounts; other values count as zero. Amounts are capped
    /// at 10^12, so that sums stay accurate.
    pub(super) fn new(amounts: impl IntoIterator<Item = (String, f64)>) -> Self {
        let mut amounts: Vec<_> = amounts
            .into_iter()
            .filter(|(_, amount)| *amount > 0.0)
            .map(|(name, amount)| (name, amount.min(1e12)))
            .collect();
        amounts.sort_by(|one, other| one.0.cmp(&other.0));
        amounts.dedup_by(|one, other| one.0 == other.0);
        Self(amounts)
    }

    pub(super) fn get(&self, name: &str) -> f64 {
        let found = self
            .0
            .binary_search_by(|(known, _)| known.as_str().cmp(name));
        found
            .ok()
            .and_then(|index| self.0.get(index))
            .map_or(0.0, |(_, amount)| *amount)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PartialEq for Resources {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Resources {}

impl PartialOrd for Resources {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Resources {
    fn cmp(&self, other: &Self) -> Ordering {
        let pair = |one: &(String, f64), other: &(String, f64)| {
            one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
        };
        let mut others = other.0.iter();
        for one in &self.0 {
            match others.next().map(|other| pair(one, other)) {
                Some(Ordering::Equal) => {}
                Some(different) => return different,
                None => return Ordering::Greater,
            }
        }
        others.next().map_or(Ordering::Equal, |_| Ordering::Less)
    }
}

impl Submission {
    /// Parses an `update-graph` message. Never executes any code in it.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if the graph or its annotations cannot be parsed, or its tasks cannot be
    /// ordered, for [`SchedulerInput::SubmissionRefused`].
    ///
    /// [`SchedulerInput::SubmissionRefused`]: super::SchedulerInput::SubmissionRefused
    pub fn read(mut message: UpdateGraph) -> Result<Self, Refusal> {
        let keys = &mut message.keys.0;
        let tasks = Annotations::read(message.annotations.take(), message.user_priority)
            .and_then(|annotations| {
                let tasks = Graph::read_outline(&message.expr_ser, Some(keys));
                Ok((tasks.map_err(RefusalReason::Graph)?, annotations))
            })
            .and_then(|(tasks, annotations)| {
                let given = message.internal_priority.0.take().unwrap_or_default();
                ordered(tasks, given, &annotations)
            });
        match tasks {
            Ok(tasks) => Ok(Self::of_tasks(tasks, message)),
            Err(reason) => Err(Refusal::new(message.keys.0, reason)),
        }
    }

    /// Combines the tasks of a message, each after its dependencies, with the rest of it.
    pub(super) fn of_tasks(tasks: Vec<Submitted>, message: UpdateGraph) -> Self {
        let keys = message.keys.0;
        let field = |name| {
            let mut fields = message.extra.iter();
            let found = fields.find(|(known, _)| known.as_str() == Some(name));
            found.map(|(_, value)| value)
        };
        let fifo_timeout = field("fifo_timeout").and_then(duration_of);
        let code = field("code").and_then(codes::read);
        Self {
            part: SubmissionPart {
                tasks,
                ..SubmissionPart::default()
            },
            actors: match message.actors {
                Actors::None => Vec::new(),
                Actors::Wanted => keys.clone(),
                Actors::Keys(keys) => keys.0,
            },
            keys,
            submitting_task: message.submitting_task.0,
            fifo_timeout: fifo_timeout.unwrap_or_default(),
            code,
        }
    }
}

/// The annotations that a scheduler uses.
#[derive(Clone, Debug, Default)]
pub(super) struct Annotations {
    pub(super) demands: Arc<Demands>,
    pub(super) priority: f64,
    pub(super) retries: u32,
}

impl Annotations {
    pub(super) fn read(
        annotations: Option<Value>,
        user_priority: Option<f64>,
    ) -> Result<Self, RefusalReason> {
        let annotations = annotations.unwrap_or_default();
        let annotations = annotations.opened().map_err(RefusalReason::Annotations)?;
        match annotations {
            Value::Dict(_) => Self::of_dict(annotations, user_priority),
            Value::None => Self::of_dict(Value::Dict([].into()), user_priority),
            other => Err(RefusalReason::AnnotationsType {
                found: other.type_name().to_owned(),
            }),
        }
    }

    /// Returns the annotations of a layer's tasks, which precede those of all tasks.
    // ROLES SCHEDULER-6
    fn with_layer(&self, layer: &Value) -> Result<Self, RefusalReason> {
        let entries = |value: &Value| match value {
            Value::Dict(entries) => entries.to_vec(),
            _ => Vec::new(),
        };
        let mut merged = entries(layer);
        merged.retain(|(_, value)| *value != Value::None);
        let all = entries(&self.demands.annotations).into_iter();
        let all: Vec<_> = all
            .filter(|(name, _)| merged.iter().all(|(known, _)| known != name))
            .collect();
        merged.extend(all);
        Self::of_dict(Value::Dict(merged.into()), Some(self.priority))
    }

    /// Returns the annotations of data that tasks share.
    fn for_shared(&self) -> Self {
        let mut shared = self.clone();
        Arc::make_mut(&mut shared.demands).resources = Resources::default();
        shared
    }

    pub(super) fn of_dict(
        annotations: Value,
        user_priority: Option<f64>,
    ) -> Result<Self, RefusalReason> {
        let Value::Dict(entries) = &annotations else {
            return Ok(Self::default());
        };
        let mut demands = Demands::default();
        let mut priority = user_priority;
        let mut retries = 0;
        for (name, value) in entries {
            let wrong = || {
                Err(RefusalReason::Annotation {
                    name: name.clone(),
                    value: value.clone(),
                })
            };
            match (name.as_str(), value) {
                (_, Value::None) => {}
                (Some("workers" | "restrictions"), value) => match names(value) {
                    Some(mut workers) => {
                        workers.sort_unstable();
                        demands.workers = workers;
                    }
                    None => return wrong(),
                },
                (Some("allow_other_workers" | "loose_restrictions"), Value::Bool(flag)) => {
                    demands.allow_other_workers = *flag;
                }
                (Some("resources"), Value::Dict(amounts)) => {
                    let amounts = amounts.iter().map(|(name, amount)| {
                        let amount = f64::try_from(amount.clone()).ok()?;
                        Some((worker_name(name)?, amount))
                    });
                    match amounts.collect::<Option<Vec<_>>>() {
                        Some(amounts) => demands.resources = Resources::new(amounts),
                        None => return wrong(),
                    }
                }
                (Some("priority"), value) => match f64::try_from(value.clone()) {
                    Ok(value) => priority = Some(value),
                    Err(_) => return wrong(),
                },
                (Some("span"), span) => demands.span_id = span_id(span),
                (Some("retries"), Value::Int(count)) => {
                    retries = u32::try_from(*count).unwrap_or(0);
                }
                (
                    Some("allow_other_workers" | "loose_restrictions" | "resources" | "retries"),
                    _,
                ) => return wrong(),
                _ => {}
            }
        }
        demands.annotations = annotations;
        Ok(Self {
            demands: Arc::new(demands),
            priority: priority
                .filter(|priority| !priority.is_nan())
                .unwrap_or(0.0),
            retries,
        })
    }
}

/// The id of the innermost of the spans that `distributed.span` has annotated.
fn span_id(span: &Value) -> Option<Arc<str>> {
    let Some(Value::List(ids) | Value::Tuple(ids)) = span.get("ids") else {
        return None;
    };
    ids.last()?.as_str().map(Arc::from)
}

/// Parses a name or a list of names.
pub fn names(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.iter().map(worker_name).collect()
        }
        one => Some(vec![worker_name(one)?]),
    }
}

/// Converts the name of a worker, which is a string or a number, to a string.
pub(super) fn worker_name(value: &Value) -> Option<String> {
    match value {
        Value::Str(name) => Some(name.as_ref().to_owned()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Sorts the tasks of a graph that was read as data depth first, each after its dependencies, so that
/// the inputs of one result are used, and can be deleted, before the next one is started.
fn ordered(
    tasks: Vec<Outline>,
    given: Vec<(Key, i64)>,
    annotations: &Annotations,
) -> Result<Vec<Submitted>, RefusalReason> {
    let for_shared = annotations.for_shared();
    // By the address of the layer's annotations.
    let mut of_layers: HashMap<*const Value, Annotations> = HashMap::new();
    for layer in tasks.iter().filter_map(|task| task.annotations.as_ref()) {
        if let Entry::Vacant(entry) = of_layers.entry(Arc::as_ptr(layer)) {
            entry.insert(annotations.with_layer(layer)?);
        }
    }
    let mut index: HashMap<&Key, usize> = HashMap::new();
    if tasks.iter().any(|task| !task.dependencies.is_empty()) {
        index.extend(tasks.iter().map(|task| &task.key).zip(0..));
        if index.len() != tasks.len() {
            return Err(RefusalReason::DuplicateKey);
        }
    }
    let dependencies: Vec<Vec<Dependency>> = tasks
        .iter()
        .map(|task| {
            let keys = task.dependencies.iter();
            // A task that refers to itself does not wait for itself, as in Dask.
            keys.filter(|key| **key != task.key)
                .map(|key| match index.get(key) {
                    Some(index) => Dependency::Inside(*index),
                    None => Dependency::Outside(key.clone()),
                })
                .collect()
        })
        .collect();
    drop(index);
    let mut is_data = Vec::with_capacity(tasks.len());
    let mut submitted = Vec::with_capacity(tasks.len());
    for (task, dependencies) in tasks.into_iter().zip(dependencies) {
        let layer = task.annotations.as_ref().map(Arc::as_ptr);
        let layer = layer.and_then(|layer| of_layers.get(&layer));
        let annotations = match task.is_shared {
            true => &for_shared,
            false => layer.unwrap_or(annotations),
        };
        is_data.push(task.is_shared);
        submitted.push(Submitted {
            order: 0,
            key: task.key,
            dependencies,
            run_spec: task.run_spec,
            calls: task.calls,
            user_priority: annotations.priority,
            demands: Arc::clone(&annotations.demands),
            retries: annotations.retries,
        });
    }
    let (tasks, _) = in_order(submitted, is_data, given, |graph, _| {
        depth_first(&graph.dependencies)
    })?;
    Ok(tasks)
}

/// Sorts the tasks of a graph by the sequence that `order` returns, and gives them priorities: their
/// places, unless the client gives others. The dependencies within the graph may have any index. Returns
/// the index that each had before, too.
pub(super) fn in_order(
    tasks: Vec<Submitted>,
    is_data: Vec<bool>,
    given: Vec<(Key, i64)>,
    order: impl FnOnce(&order::Graph, &dyn Fn(usize) -> String) -> Option<Vec<usize>>,
) -> Result<(Vec<Submitted>, Vec<usize>), RefusalReason> {
    // Keys outside of the graph are part of it as values.
    let mut outside: HashMap<&Key, usize> = HashMap::new();
    let mut graph = order::Graph {
        dependencies: Vec::with_capacity(tasks.len()),
        is_data,
    };
    for task in &tasks {
        let next = tasks.len();
        let dependencies = task.dependencies.iter().map(|dependency| match dependency {
            Dependency::Inside(index) => *index,
            Dependency::Outside(key) => {
                let next = next + outside.len();
                *outside.entry(key).or_insert(next)
            }
        });
        let mut dependencies: Vec<usize> = dependencies.collect();
        dependencies.sort_unstable();
        dependencies.dedup();
        graph.dependencies.push(dependencies);
    }
    let mut keys: Vec<&Key> = tasks.iter().map(|task| &task.key).collect();
    let mut others: Vec<(usize, &Key)> = outside
        .into_iter()
        .map(|(key, index)| (index, key))
        .collect();
    others.sort_unstable_by_key(|(index, _)| *index);
    keys.extend(others.into_iter().map(|(_, key)| key));
    graph.dependencies.resize(keys.len(), Vec::new());
    graph.is_data.resize(keys.len(), true);
    let name = |index: usize| match keys[index].as_str() {
        Some(name) => name.to_owned(),
        None => keys[index].to_string(),
    };
    let mut sequence = order(&graph, &name).ok_or(RefusalReason::Cycle)?;
    drop(graph);
    sequence.retain(|index| *index < tasks.len());
    let mut places = vec![0; tasks.len()];
    for (place, index) in sequence.iter().enumerate() {
        places[*index] = place;
    }
    let given: HashMap<Key, i64> = given.into_iter().collect();
    let mut sorted: Vec<(usize, Submitted)> = places.iter().copied().zip(tasks).collect();
    sorted.sort_unstable_by_key(|(place, _)| *place);
    let sorted = sorted.into_iter().map(|(place, mut task)| {
        for dependency in &mut task.dependencies {
            if let Dependency::Inside(index) = dependency {
                *index = places[*index];
            }
        }
        let order = given.get(&task.key).copied();
        task.order = order.unwrap_or_else(|| i64::try_from(place).unwrap_or(i64::MAX));
        task
    });
    Ok((sorted.collect(), sequence))
}
