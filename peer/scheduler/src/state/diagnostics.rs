//! Queries of clients that look for causes of failures and of waiting.

use std::collections::{BTreeMap, BTreeSet};

use daskwire_messages::{Key, Serialized, Value};

use super::model::{Task, TaskStage};
use super::{MetadataError, State};

/// The states that [`State::prefix_counts`] counts.
const COUNTED: [&str; 5] = ["memory", "erred", "released", "processing", "waiting"];

impl State {
    /// The numbers of tasks by the prefix of their keys and by Dask's name of their state. Counts all
    /// tasks.
    pub fn prefix_counts(&self) -> BTreeMap<String, [(&'static str, u64); 5]> {
        let mut counts = BTreeMap::new();
        for (_, task) in self.tasks.iter() {
            let name = task.stage.name();
            if let Some(place) = COUNTED.iter().position(|counted| *counted == name) {
                let prefix = task.key.prefix().into_owned();
                let counts = counts
                    .entry(prefix)
                    .or_insert_with(|| COUNTED.map(|name| (name, 0)));
                counts[place].1 += 1;
            }
        }
        counts
    }

    /// The payload of a task, as it is sent to workers; `None` for data that is not the result of a
    /// task.
    ///
    /// # Errors
    ///
    /// The key, if the task is not known.
    pub fn run_spec(&self, key: &Key) -> Result<Option<Serialized>, Key> {
        let id = self.by_key.get(key).ok_or_else(|| key.clone())?;
        let run_spec = self.tasks[*id].run_spec.as_ref();
        Ok(run_spec.map(|run_spec| run_spec.payload.clone()))
    }

    /// The key of the task whose failure is that of the first failed task among these.
    pub fn error_cause(&self, keys: &[Key]) -> Option<Key> {
        let known = keys.iter().filter_map(|key| self.by_key.get(key));
        let mut failed = known.filter_map(|id| match &self.tasks[*id].stage {
            TaskStage::Erred(failure) => Some(failure.cause.clone()),
            _ => None,
        });
        failed.next().flatten()
    }

    /// The running tasks among those with these keys and among what they wait for, by the address of
    /// their worker.
    ///
    /// # Errors
    ///
    /// The key of a task that is not known.
    pub fn running_for(&self, keys: &[Key]) -> Result<BTreeMap<String, Vec<Key>>, Key> {
        let mut running: BTreeMap<String, Vec<Key>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let known = keys
            .iter()
            .map(|key| self.by_key.get(key).copied().ok_or_else(|| key.clone()));
        let mut left = known.collect::<Result<Vec<_>, Key>>()?;
        while let Some(id) = left.pop() {
            if !seen.insert(id) {
                continue;
            }
            let task = &self.tasks[id];
            match task.stage {
                TaskStage::Waiting => left.extend(&task.dependencies),
                TaskStage::Processing(on) => {
                    let address = self.workers[&on].address.clone();
                    running.entry(address).or_default().push(task.key.clone());
                }
                _ => {}
            }
        }
        Ok(running)
    }

    /// The metadata at a path of keys; all of it for an empty path.
    ///
    /// # Errors
    ///
    /// [`MetadataError`] if there is none.
    pub fn metadata(&self, path: &[Key]) -> Result<Value, MetadataError> {
        self.metadata.get(path)
    }

    /// The reason why [`SchedulerInput::MetadataSet`](super::SchedulerInput::MetadataSet) would be ignored.
    pub fn metadata_refusal(&self, path: &[Key], value: &Value) -> Option<MetadataError> {
        self.metadata.check(path, value).err()
    }

    /// The state of the scheduler as in Dask's dumps, without the parts with the names in `exclude`.
    /// Reads all tasks.
    pub(crate) fn dump(&self, exclude: &[String]) -> Vec<(&'static str, Value)> {
        let is_wanted = |name: &str| exclude.iter().all(|excluded| excluded != name);
        let part = |name: &'static str, value: &dyn Fn() -> Value| {
            is_wanted(name).then(|| (name, value()))
        };
        let addresses = |ids: &[super::WorkerId]| {
            Value::list(ids.iter().map(|id| self.workers[id].address.as_str()))
        };
        let keys = |tasks: &mut dyn Iterator<Item = &super::model::TaskId>| {
            Value::list(tasks.map(|id| self.tasks[*id].key.to_string()))
        };
        let task = |task: &Task| {
            let run_spec = task.run_spec.as_ref();
            let demands = run_spec.map(|run_spec| &run_spec.demands);
            let workers = demands.map(|demands| Value::list(demands.workers.iter().cloned()));
            let clients = task.wanted_by.iter();
            let clients = clients.map(|id| self.client_name(*id));
            let on = match task.stage {
                TaskStage::Processing(on) => Value::from(self.workers[&on].address.as_str()),
                _ => Value::None,
            };
            let priority = &task.priority;
            let fields = [
                ("key", Value::from(task.key.to_string())),
                ("state", Value::from(task.stage.name())),
                ("prefix", Value::from(&*task.key.prefix())),
                ("nbytes", Value::from(task.nbytes)),
                ("run_id", Value::from(task.run_id)),
                ("retries", Value::from(task.retries)),
                ("suspicious", Value::from(task.kill_count)),
                ("processing_on", on),
                ("who_has", addresses(&task.who_has)),
                ("who_wants", Value::list(clients)),
                ("dependencies", keys(&mut task.dependencies.iter())),
                ("dependents", keys(&mut task.dependents.iter())),
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
            let fields = fields.into_iter().filter(|(name, _)| is_wanted(name));
            (task.key.to_string(), Value::dict(fields))
        };
        let parts = [
            part("tasks", &|| {
                Value::dict(self.tasks.iter().map(|(_, known)| task(known)))
            }),
            part("workers", &|| {
                Value::dict(self.workers.values().map(|worker| {
                    let (address, Value::Dict(fields)) = super::query::identity(worker) else {
                        unreachable!("an identity is a dictionary");
                    };
                    let mut fields = fields.into_vec();
                    fields.push(("has_what".into(), keys(&mut worker.has.iter())));
                    fields.push(("processing".into(), keys(&mut worker.processing.iter())));
                    let excluded = |name: &Value| !name.as_str().is_some_and(is_wanted);
                    fields.retain(|(name, _)| !excluded(name));
                    (address, Value::Dict(fields.into()))
                }))
            }),
            part("clients", &|| {
                Value::dict(self.clients.values().map(|client| {
                    let fields = [
                        ("client_key", Value::from(&*client.name)),
                        ("wants_what", keys(&mut client.wants.iter())),
                    ];
                    (client.name.to_string(), Value::dict(fields))
                }))
            }),
            part("task_groups", &|| {
                let groups = self.prefix_counts().into_iter();
                Value::dict(groups.map(|(prefix, counts)| {
                    let fields = [
                        ("name", Value::from(prefix.as_str())),
                        ("states", Value::dict(counts)),
                    ];
                    (prefix, Value::dict(fields))
                }))
            }),
            // Those of Dask's scheduler are parts of this one.
            part("extensions", &|| Value::Dict([].into())),
            part("transition_log", &|| self.story.all_of_scheduler()),
            part("events", &|| {
                let topics = self.all_events().into_iter();
                Value::dict(topics.map(|(topic, events)| (topic, Value::list(events))))
            }),
        ];
        let parts = parts.into_iter().flatten();
        parts.map(|(name, part)| (name, with_names(part))).collect()
    }
}

/// The value with strings in place of all other keys of dictionaries, and lists in place of sets,
/// since dumps are written and read with no others. Recursion is bounded by the depth of values that are read.
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
