//! Parts of the state for functions and plugins of Python, which read them one by one.

use core::ops::Bound;

use daskwire_messages::{Key, Value};

use super::State;
use super::model::{Task, TaskId, TaskStage};

/// Maximum number of keys or tasks that are read at once.
const SLICE: u32 = 1000;

impl State {
    /// The addresses of all workers, in the order in which they joined.
    pub fn view_workers(&self) -> Value {
        Value::list(self.workers_on(None))
    }

    /// The properties of the worker with an address; `None` if there is none.
    pub fn view_worker(&self, address: &str) -> Option<Value> {
        let id = self.by_address.get(address)?;
        let (_, identity) = self.identity_of(address)?;
        let Value::Dict(fields) = identity else {
            return None;
        };
        let mut fields = fields.into_vec();
        let nbytes = u64::try_from(self.workers[id].nbytes).unwrap_or(u64::MAX);
        fields.push(("nbytes".into(), nbytes.into()));
        Some(Value::Dict(fields.into()))
    }

    /// The names of all clients with a stream.
    pub fn view_clients(&self) -> Value {
        let clients = self.clients.values();
        let clients = clients.filter(|client| client.stream.is_some());
        Value::list(clients.map(|client| Value::from(&*client.name)))
    }

    /// The properties of the client with a name; `None` if there is none.
    pub fn view_client(&self, name: &str) -> Option<Value> {
        let id = self.by_name.get(name)?;
        let client = self.clients.get(id)?;
        Some(Value::dict([("client_key", Value::from(&*client.name))]))
    }

    /// A part of all tasks, each a tuple of its key and its properties, and the number from which
    /// the next part starts; [`Value::None`] after the last one. The first part starts from 0.
    pub fn view_tasks(&self, from: u32) -> Value {
        let next = from.saturating_add(SLICE);
        let tasks = (from..next).filter_map(|id| self.tasks.get(id));
        let tasks = tasks.map(|task| Value::tuple([task.key.to_value(), self.fields_of(task)]));
        let is_last = next as usize >= self.tasks.slot_count();
        let next = (!is_last).then(|| Value::from(next));
        Value::tuple([Value::list(tasks), next.unwrap_or_default()])
    }

    /// The properties of a task; `None` if it is not known.
    pub fn view_task(&self, key: &Key) -> Option<Value> {
        let id = self.by_key.get(key)?;
        Some(self.fields_of(&self.tasks[*id]))
    }

    /// A part of the tasks that depend on a task, as [`view_tasks`](Self::view_tasks), with the
    /// keys only.
    pub fn view_dependents(&self, key: &Key, from: u32) -> Value {
        let id = self.by_key.get(key);
        let tasks = id.map(|id| &self.tasks[*id].dependents);
        let range = (Bound::Included(from), Bound::Unbounded);
        let tasks = tasks.into_iter().flat_map(|tasks| tasks.range(range));
        self.keys_of(tasks.copied())
    }

    /// A part of the tasks that a client wants, as [`view_tasks`](Self::view_tasks), with the
    /// keys only.
    pub fn view_wanted(&self, client: &str, from: u32) -> Value {
        let id = self.by_name.get(client);
        let client = id.and_then(|id| self.clients.get(id));
        let wants = client
            .into_iter()
            .flat_map(|client| client.wants.range(from..));
        self.keys_of(wants.map(|(task, _)| *task))
    }

    fn keys_of(&self, mut rest: impl Iterator<Item = TaskId>) -> Value {
        let part = rest.by_ref().take(SLICE as usize);
        let part = Value::list(part.map(|id| self.tasks[id].key.to_value()));
        let next = rest.next().map(Value::from);
        Value::tuple([part, next.unwrap_or_default()])
    }

    fn fields_of(&self, task: &Task) -> Value {
        // The copies of workers that have left may not be removed yet.
        let failure = match &task.stage {
            TaskStage::Erred(failure) => Some(failure),
            _ => None,
        };
        let exception = failure.map(|failure| failure.exception.clone());
        let traceback = failure.and_then(|failure| failure.traceback.clone());
        let cause = failure.and_then(|failure| failure.cause.as_ref());
        let dependencies = task.dependencies.iter();
        let dependencies = dependencies.map(|id| self.tasks[*id].key.to_value());
        let mut fields = self.plain_fields(task);
        fields.extend(
            [
                ("dependencies", Value::list(dependencies)),
                ("exception", exception.unwrap_or_default()),
                ("traceback", traceback.unwrap_or_default()),
                ("cause", cause.map_or(Value::None, Key::to_value)),
                ("is_orphan", Value::from(task.is_orphan)),
                ("actor", Value::from(task.is_actor)),
            ]
            .map(|(name, value)| (Value::from(name), value)),
        );
        Value::Dict(fields.into())
    }
}
