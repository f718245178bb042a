//! Dumps of the state, as Dask's, which are made in slices.

use core::ops::Bound;
use std::collections::BTreeSet;

use daskwire_messages::protocol::Field as _;
use daskwire_messages::{Key, Value};

use super::key_groups::Prefixes;
use super::model::{Task, TaskId, TaskStage};
use super::{ClientId, State, WorkerId};

/// Number of items that a slice has about, such as fields and keys.
const SLICE: usize = 1 << 12;

/// A dump of the state, of which a part is done. Events that are handled between slices may be in one
/// part of it and not in another.
#[derive(Debug)]
pub struct Dump {
    exclude: Vec<String>,
    place: Place,
    /// The list of keys that is being read.
    list: Option<(Source, Option<TaskId>)>,
    tasks: Vec<Entry>,
    workers: Vec<Entry>,
    clients: Vec<Entry>,
    prefixes: Prefixes,
    events: Vec<(String, Value)>,
    transitions: Value,
}

/// What is read next.
#[derive(Debug)]
enum Place {
    /// The task with this id or the next higher one.
    Tasks(TaskId),
    /// A part of the groups of tasks.
    Prefixes(usize),
    Workers(Bound<WorkerId>),
    Clients(Bound<ClientId>),
    Transitions,
    Events(Bound<String>),
    End,
}

/// Lists of keys that may be long.
#[derive(Debug)]
enum Source {
    /// Those of a task. The id may be that of another task by now.
    Dependents(TaskId, Key),
    Data(WorkerId),
    Processing(WorkerId),
    Wants(ClientId),
}

/// A task, worker or client.
#[derive(Debug)]
struct Entry {
    name: String,
    fields: Vec<(Value, Value)>,
    lists: Vec<(&'static str, Vec<Key>)>,
}

impl Dump {
    /// A dump without the parts and fields with these names.
    pub fn new(exclude: &[String]) -> Self {
        Self {
            exclude: exclude.to_vec(),
            place: Place::Tasks(0),
            list: None,
            tasks: Vec::new(),
            workers: Vec::new(),
            clients: Vec::new(),
            prefixes: Prefixes::new(),
            events: Vec::new(),
            transitions: Value::None,
        }
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.exclude.iter().all(|excluded| excluded != name)
    }

    /// The parts with their names.
    pub fn into_parts(mut self) -> Vec<(&'static str, Value)> {
        let exclude = core::mem::take(&mut self.exclude);
        let is_wanted = |name: &str| exclude.iter().all(|excluded| excluded != name);
        let entries = |entries: Vec<Entry>| {
            let entries = entries.into_iter();
            Value::dict(entries.map(|entry| entry.into_value(&is_wanted)))
        };
        let groups = self.prefixes.iter().map(|(prefix, totals)| {
            let fields = [
                ("name", Value::from(&**prefix)),
                ("states", Value::dict(totals.dask_states())),
            ];
            (&**prefix, Value::dict(fields))
        });
        let parts = [
            ("tasks", entries(self.tasks)),
            ("workers", entries(self.workers)),
            ("clients", entries(self.clients)),
            ("task_groups", Value::dict(groups)),
            // Those of Dask's scheduler are parts of this one.
            ("extensions", Value::Dict([].into())),
            ("transition_log", self.transitions),
            ("events", Value::dict(self.events)),
        ];
        let parts = parts.into_iter().filter(|(name, _)| is_wanted(name));
        parts.map(|(name, part)| (name, with_names(part))).collect()
    }
}

impl Entry {
    fn into_value(self, is_wanted: &dyn Fn(&str) -> bool) -> (String, Value) {
        let lists = self.lists.into_iter().map(|(name, keys)| {
            let keys = keys.into_iter().map(|key| key.to_string());
            (Value::from(name), Value::list(keys))
        });
        let mut fields = self.fields;
        fields.extend(lists);
        fields.retain(|(name, _)| name.as_str().is_none_or(is_wanted));
        (self.name, Value::Dict(fields.into()))
    }
}

impl State {
    /// Reads a part of the state, with a bounded number of steps apart from the dependencies and
    /// holders of a single task. Returns whether the dump is complete.
    pub fn dump_slice(&self, dump: &mut Dump) -> bool {
        let mut left = SLICE;
        while left > 0 {
            if let Some((source, after)) = dump.list.take() {
                dump.list = self.dump_list(dump, source, after, &mut left);
                continue;
            }
            let cost = match &dump.place {
                Place::Tasks(next) => self.dump_task(*next, dump),
                Place::Prefixes(part) => {
                    let is_last = !self.add_prefixes(*part, &mut dump.prefixes);
                    dump.place = match is_last {
                        true => Place::Workers(Bound::Unbounded),
                        false => Place::Prefixes(part + 1),
                    };
                    SLICE
                }
                Place::Workers(after) => self.dump_worker(*after, dump),
                Place::Clients(after) => self.dump_client(*after, dump),
                Place::Transitions => {
                    dump.place = Place::Events(Bound::Unbounded);
                    if dump.is_wanted("transition_log") {
                        dump.transitions = self.story.all_of_scheduler();
                    }
                    SLICE
                }
                Place::Events(after) => match self.topic_after(after.as_ref()) {
                    Some(name) if dump.is_wanted("events") => {
                        let name = name.to_owned();
                        let events = Value::list(self.events(&name));
                        let cost = 1 + events.heap_len() / 64;
                        dump.events.push((name.clone(), events));
                        dump.place = Place::Events(Bound::Excluded(name));
                        cost
                    }
                    _ => {
                        dump.place = Place::End;
                        0
                    }
                },
                Place::End => return true,
            };
            left = left.saturating_sub(cost);
        }
        false
    }

    /// Reads a part of a list of keys. Returns the source and the last task, if keys are left.
    fn dump_list(
        &self,
        dump: &mut Dump,
        source: Source,
        after: Option<TaskId>,
        left: &mut usize,
    ) -> Option<(Source, Option<TaskId>)> {
        let worker = |id: &WorkerId| self.workers.get(id);
        let (name, tasks): (_, Option<&BTreeSet<TaskId>>) = match &source {
            Source::Dependents(id, key) => {
                let task = self.tasks.get(*id).filter(|task| task.key == *key);
                ("dependents", task.map(|task| &task.dependents))
            }
            Source::Data(id) => ("has_what", worker(id).map(|worker| &worker.has)),
            Source::Processing(id) => ("processing", worker(id).map(|worker| &worker.processing)),
            Source::Wants(_) => ("wants_what", None),
        };
        let entries = match source {
            Source::Dependents(..) => &mut dump.tasks,
            Source::Data(_) | Source::Processing(_) => &mut dump.workers,
            Source::Wants(_) => &mut dump.clients,
        };
        let entry = entries.last_mut()?;
        if entry.lists.last().is_none_or(|(last, _)| *last != name) {
            entry.lists.push((name, Vec::new()));
        }
        let (_, keys) = entry.lists.last_mut()?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = (from, Bound::Unbounded);
        let part: Vec<TaskId> = match &source {
            Source::Wants(id) => {
                let wants = self.clients.get(id)?.wants.range(range);
                wants.map(|(task, _)| *task).take(*left).collect()
            }
            _ => tasks?.range(range).copied().take(*left).collect(),
        };
        keys.extend(part.iter().map(|id| self.tasks[*id].key.clone()));
        *left -= part.len();
        match (source, *left) {
            (source, 0) => Some((source, part.last().copied().or(after))),
            (Source::Data(id), _) => Some((Source::Processing(id), None)),
            _ => None,
        }
    }

    /// Reads the next task. Returns the number of items.
    fn dump_task(&self, id: TaskId, dump: &mut Dump) -> usize {
        if id as usize >= self.tasks.slot_count() {
            dump.place = Place::Prefixes(0);
            return 1;
        }
        dump.place = Place::Tasks(id + 1);
        let Some(task) = self.tasks.get(id) else {
            return 1;
        };
        if !dump.is_wanted("tasks") {
            return 2;
        }
        let mut fields = vec![("key".into(), Value::from(task.key.to_string()))];
        fields.extend(self.plain_fields(task));
        let dependencies = task.dependencies.iter();
        let dependencies = dependencies.map(|id| self.tasks[*id].key.clone());
        let entry = Entry {
            name: task.key.to_string(),
            fields,
            lists: vec![("dependencies", dependencies.collect())],
        };
        let wanted_count = task.wanted_by.len();
        let cost = fields_len(&entry) + task.who_has.len() + wanted_count;
        dump.list = Some((Source::Dependents(id, task.key.clone()), None));
        dump.tasks.push(entry);
        cost
    }

    /// The properties of a task apart from its key and the tasks that it is related to.
    pub(super) fn plain_fields(&self, task: &Task) -> Vec<(Value, Value)> {
        // The copies of workers that have left may not be removed yet.
        let address = |id: &WorkerId| self.address_of(*id).map(Value::from);
        let run_spec = task.run_spec.as_ref();
        let demands = run_spec.map(|run_spec| &run_spec.demands);
        let workers = demands.map(|demands| Value::list(demands.workers.iter().cloned()));
        let clients = task.wanted_by.iter();
        let clients = clients.map(|id| self.client_name(*id));
        let on = match &task.stage {
            TaskStage::Processing(on) => address(on).unwrap_or_default(),
            _ => Value::None,
        };
        let priority = &task.priority;
        let fields = [
            ("state", Value::from(task.stage.name())),
            ("prefix", Value::from(&*task.key.prefix())),
            ("nbytes", Value::from(task.nbytes)),
            ("run_id", Value::from(task.run_id)),
            ("retries", Value::from(task.retries)),
            ("suspicious", Value::from(task.kill_count)),
            ("processing_on", on),
            (
                "who_has",
                Value::list(task.who_has.iter().filter_map(address)),
            ),
            ("who_wants", Value::list(clients)),
            ("worker_restrictions", workers.unwrap_or_default()),
            (
                "annotations",
                demands.map_or(Value::None, |demands| demands.annotations.clone()),
            ),
            (
                "priority",
                Value::tuple([
                    Value::from(priority.user),
                    Value::from(priority.generation),
                    Value::from(priority.order),
                ]),
            ),
        ];
        let fields = fields.map(|(name, value)| (Value::from(name), value));
        fields.into()
    }

    fn dump_worker(&self, after: Bound<WorkerId>, dump: &mut Dump) -> usize {
        let mut next = self.workers.range_after(after);
        let Some((id, worker)) = next.next().filter(|_| dump.is_wanted("workers")) else {
            dump.place = Place::Clients(Bound::Unbounded);
            return 1;
        };
        dump.place = Place::Workers(Bound::Excluded(*id));
        let (name, Value::Dict(fields)) = super::query::identity(worker) else {
            unreachable!("an identity is a dictionary");
        };
        let entry = Entry {
            name,
            fields: fields.into_vec(),
            lists: Vec::new(),
        };
        let cost = fields_len(&entry);
        dump.list = Some((Source::Data(*id), None));
        dump.workers.push(entry);
        cost
    }

    fn dump_client(&self, after: Bound<ClientId>, dump: &mut Dump) -> usize {
        let mut next = self.clients.range_after(after);
        let Some((id, client)) = next.next().filter(|_| dump.is_wanted("clients")) else {
            dump.place = Place::Transitions;
            return 1;
        };
        dump.place = Place::Clients(Bound::Excluded(*id));
        dump.list = Some((Source::Wants(*id), None));
        let mut fields = vec![
            ("client_key".into(), Value::from(&*client.name)),
            ("connected".into(), Value::from(client.stream.is_some())),
        ];
        if client.is_in_grace() {
            let until = client.until.unwrap_or_default().as_secs_f64();
            fields.push(("grace_until".into(), Value::from(until)));
        }
        dump.clients.push(Entry {
            name: client.name.to_string(),
            fields,
            lists: Vec::new(),
        });
        4
    }
}

/// The number of items of an entry.
fn fields_len(entry: &Entry) -> usize {
    let lists = entry.lists.iter().map(|(_, keys)| keys.len());
    entry.fields.len() + lists.sum::<usize>()
}

/// The value with strings in place of all other keys of dictionaries, and lists in place of sets,
/// since dumps are written and read with no others. Recursion is bounded by the depth of values that
/// are read.
fn with_names(value: Value) -> Value {
    match value {
        Value::Dict(entries) => {
            let entries = entries.into_vec().into_iter();
            let entries = entries.map(|(key, value)| {
                let key = match key {
                    Value::Str(_) => key,
                    other => Value::from(other.to_string()),
                };
                (key, with_names(value))
            });
            Value::Dict(entries.collect())
        }
        Value::List(items) | Value::Set(items) | Value::FrozenSet(items) => {
            let items = items.into_vec().into_iter();
            Value::List(items.map(with_names).collect())
        }
        Value::Tuple(items) => {
            let items = items.into_vec().into_iter();
            Value::Tuple(items.map(with_names).collect())
        }
        other => other,
    }
}
