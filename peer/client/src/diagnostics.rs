//! Diagnostics of a cluster: versions, data, logs and histories.

use core::fmt;
use std::collections::BTreeMap;

use daskwire_comm::runtime;
use daskwire_messages::graph::{Function, instance_pickle};
use daskwire_messages::protocol::{
    Broadcast, GetCallStack, GetMetadata, GetProfile, GetStory, HasWhat, Keys, Logs, NBytes,
    NCores, Processing, SetMetadata, Unknown, Versions, WorkerLogs,
};
use daskwire_messages::value::{IntoValue, WrongType};
use daskwire_messages::{Key, Value};
use daskwire_rpc::RequestError;
use daskwire_rpc::channel::with_timeout;

use super::Client;
use super::operation::Operation;
use super::request::{Workers, converted, key_of, value_of};

/// The versions of a cluster's software.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ClusterVersions {
    /// The versions in the scheduler.
    pub scheduler: NodeVersions,
    /// The versions in each worker that answered, by the worker's address.
    pub workers: Vec<(String, NodeVersions)>,
}

/// The versions of the software of a scheduler or worker.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct NodeVersions {
    /// Properties of the host, such as `python`, `OS` and `machine`.
    pub host: Vec<(String, String)>,
    /// Packages and their versions; `None` for those that are not installed.
    pub packages: Vec<(String, Option<String>)>,
}

impl NodeVersions {
    /// The version of a package.
    pub fn package(&self, name: &str) -> Option<&str> {
        let mut packages = self.packages.iter();
        let (_, version) = packages.find(|(package, _)| package == name)?;
        version.as_deref()
    }

    fn from_value(op: &str, value: &Value) -> Result<Self, RequestError> {
        let pairs = |name| {
            let pairs = match value.get(name) {
                Some(Value::Dict(entries)) => entries.iter().cloned().collect(),
                // A list of pairs.
                Some(other) => {
                    let pairs = converted::<Vec<Value>>(op, other.clone())?.into_iter();
                    let pair = |pair| match &converted::<Vec<Value>>(op, pair)?[..] {
                        [name, value] => Ok((name.clone(), value.clone())),
                        _ => Ok(<(Value, Value)>::default()),
                    };
                    pairs.map(pair).collect::<Result<Vec<_>, RequestError>>()?
                }
                None => Vec::new(),
            };
            Ok::<_, RequestError>(pairs)
        };
        Ok(Self {
            host: pairs("host")?
                .iter()
                .map(|(name, value)| (name.to_unquoted(), value.to_unquoted()))
                .collect(),
            packages: pairs("packages")?
                .iter()
                .map(|(name, version)| {
                    let is_installed = !matches!(version, Value::None);
                    (
                        name.to_unquoted(),
                        is_installed.then(|| version.to_unquoted()),
                    )
                })
                .collect(),
        })
    }
}

/// Numbers of tasks by state, such as `memory`, by prefix of their keys, such as `add`.
pub type TaskStates = BTreeMap<String, BTreeMap<String, u64>>;

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLine {
    /// The level, such as `INFO`.
    pub level: String,
    /// The formatted line, which may contain line breaks.
    pub line: String,
}

/// A step in the history of a task, recorded by the scheduler or by a worker.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StoryStep {
    /// The address of the worker; `None` for the scheduler.
    pub worker: Option<String>,
    /// The step: usually a key, the state before, the state after, and recommended states
    /// of other tasks. Workers also record single events.
    pub step: Vec<Value>,
    /// The cause.
    pub stimulus: String,
    /// The time in seconds since 1970, by the clock of the recorder.
    pub time: f64,
}

impl StoryStep {
    /// The states before and after the step, if it is a transition of a task.
    pub fn states(&self) -> Option<(&str, &str)> {
        match (&self.worker, &self.step[..]) {
            (None, [_, from, to, ..]) => Some((from.as_str()?, to.as_str()?)),
            // Key, state before, recommended and final state after, recommendations.
            (Some(_), [_, from, _, to, _]) => Some((from.as_str()?, to.as_str()?)),
            _ => None,
        }
    }

    fn from_value(worker: Option<&str>, value: Value) -> Result<Self, RequestError> {
        const OP: &str = "get_story";
        let mut step: Vec<Value> = converted(OP, value)?;
        let time = converted(OP, step.pop().unwrap_or_default())?;
        let stimulus = step.pop().unwrap_or_default().to_unquoted();
        Ok(Self {
            worker: worker.map(str::to_owned),
            step,
            stimulus,
            time,
        })
    }
}

/// Formats as `x: waiting -> processing (stimulus)`.
impl fmt::Display for StoryStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.step.iter();
        if let Some(subject) = parts.next() {
            write!(f, "{}:", subject.to_unquoted())?;
        }
        match self.states() {
            Some((from, to)) => write!(f, " {from} -> {to}")?,
            None => parts.try_for_each(|part| write!(f, " {}", part.to_unquoted()))?,
        }
        write!(f, " ({})", self.stimulus)
    }
}

/// The call stack of a running task.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CallStack {
    /// The address of the worker.
    pub worker: String,
    /// The task.
    pub key: Key,
    /// The frames as Python shows them, outermost first.
    pub frames: Vec<String>,
}

/// The frames of tasks.
type Stacks = Vec<(Key, Vec<String>)>;

/// The code that a profile covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profiled {
    /// The tasks of the workers.
    #[default]
    Tasks,
    /// The event loops of the workers.
    Workers,
    /// The event loop of the scheduler.
    Scheduler,
}

/// The scope of a profile, see [`Client::profile`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ProfileOptions {
    /// The code that the profile covers. Default: tasks.
    pub of: Profiled,
    /// The prefix of tasks, such as `add`. Default: all.
    pub prefix: Option<String>,
    /// The workers. Default: all.
    pub workers: Workers,
    /// The earliest time in seconds since 1970. Default: the last hours.
    pub start: Option<f64>,
    /// The latest time in seconds since 1970. Default: now.
    pub stop: Option<f64>,
}

impl ProfileOptions {
    daskwire_comm::with_fields! {
        with_of(of: Profiled);
        with_prefix(prefix: impl Into<Option<String>>);
        with_workers(workers: Workers);
        with_start(start: impl Into<Option<f64>>);
        with_stop(stop: impl Into<Option<f64>>);
    }
}

/// A statistical profile: a call stack with the numbers of samples in it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// The name of the function.
    pub function: String,
    /// The file.
    pub file: String,
    /// The line in the file.
    pub line_number: u64,
    /// The source of the line; empty if it is not known.
    pub line: String,
    /// Number of samples in the function and its callees.
    pub count: u64,
    /// The called functions.
    pub children: Vec<Self>,
}

impl Profile {
    /// Values of messages are nested 100 levels at most, which bounds the recursion.
    fn from_value(value: &Value) -> Self {
        let text = |name| {
            let description = value.get("description")?;
            description.get(name).map(Value::to_unquoted)
        };
        let count = |value: Option<&Value>| value.cloned().and_then(|value| value.try_into().ok());
        let description = value.get("description");
        let children = match value.get("children") {
            Some(Value::Dict(children)) => children.iter(),
            _ => [].iter(),
        };
        Self {
            function: text("name").unwrap_or_default(),
            file: text("filename").unwrap_or_default(),
            line_number: count(description.and_then(|it| it.get("line_number"))).unwrap_or(0),
            line: text("line").unwrap_or_default(),
            count: count(value.get("count")).unwrap_or(0),
            children: children.map(|(_, child)| Self::from_value(child)).collect(),
        }
    }
}

fn lines(op: &str, value: Value) -> Result<Vec<LogLine>, RequestError> {
    let lines: Vec<Value> = converted(op, value)?;
    let line = |line| {
        let line: Vec<Value> = converted(op, line)?;
        let part = |index: usize| line.get(index).map(Value::to_unquoted).unwrap_or_default();
        Ok(LogLine {
            level: part(0),
            line: part(1),
        })
    };
    lines.into_iter().map(line).collect()
}

impl Client {
    /// Asks for the versions of Python and its packages in the scheduler and the
    /// workers, and of further packages. `get_versions` in Dask.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer. Workers that do not answer
    /// are left out.
    pub async fn versions(
        &self,
        packages: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<ClusterVersions, RequestError> {
        const OP: &str = "versions";
        let packages: Vec<String> = packages.into_iter().map(Into::into).collect();
        let more = Value::list(packages.iter().map(String::as_str));
        let request = Versions {
            packages: Some(packages),
            reply: Some(true),
            ..Versions::default()
        };
        let scheduler = self.shared.call("the versions of the scheduler", request);
        let scheduler = NodeVersions::from_value(OP, &scheduler.await?)?;
        let message = Unknown::new(OP).field("packages", more);
        let replies = self
            .broadcast(message, Workers::All, Some("ignore"))
            .await?;
        let workers = replies
            .into_iter()
            .map(|(worker, versions)| Ok((worker, NodeVersions::from_value(OP, &versions)?)));
        Ok(ClusterVersions {
            scheduler,
            workers: workers.collect::<Result<_, RequestError>>()?,
        })
    }

    /// Requests the scheduler to forward a request to workers. Waits for slow workers.
    pub(super) async fn broadcast(
        &self,
        message: Unknown,
        workers: Workers,
        on_error: Option<&str>,
    ) -> Result<Vec<(String, Value)>, RequestError> {
        self.shared.needs(Operation::BROADCASTS)?;
        let request = Broadcast {
            msg: message,
            workers: workers.into_field(),
            on_error: on_error.map(str::to_owned),
            reply: Some(true),
            ..Broadcast::default()
        };
        self.shared.reply(&request.into()).await
    }

    /// Asks for the number of threads of each worker, by address. `nthreads` or
    /// `ncores` in Dask.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn nthreads(
        &self,
        workers: impl Into<Workers>,
    ) -> Result<Vec<(String, u64)>, RequestError> {
        let request = NCores {
            workers: workers.into().into_field(),
            reply: Some(true),
            ..NCores::default()
        };
        self.shared.call("the threads of workers", request).await
    }

    /// Asks for the number of tasks in each state, by prefix of their keys.
    ///
    /// Dask's request for this omits the states `queued` and `no-worker`. The method
    /// therefore lets the scheduler evaluate an expression of Python, on a comm of its own.
    /// If the scheduler refuses that, because it does not load pickles or blocks the
    /// handler `feed`, the two states are missing.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn task_states(&self) -> Result<TaskStates, RequestError> {
        match self.all_task_states().await {
            // The scheduler refuses, or is closing and ends the comm without a reply.
            Err(RequestError::Remote(_) | RequestError::Reply { .. }) => {
                let request = Unknown::new("get_task_prefix_states");
                self.request(request).await
            }
            states => states,
        }
    }

    /// Asks for the keys that a client holds, given by its id, as
    /// [`hold_as`](Self::hold_as) does.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer, or refuses to evaluate an
    /// expression of Python.
    pub async fn keys_held_by(&self, client: &str) -> Result<Vec<Key>, RequestError> {
        let id = Value::from(client);
        let keys = format!(
            "lambda scheduler: [[task.key for task in scheduler.clients[{id}].wants_what] \
             if {id} in scheduler.clients else []]"
        );
        let keys = self.evaluate::<Vec<Value>>("the keys of a client", &keys);
        keys.await?.iter().map(|key| key_of("feed", key)).collect()
    }

    async fn all_task_states(&self) -> Result<TaskStates, RequestError> {
        const STATES: &str = "lambda scheduler: [{prefix.name: {state: count for state, count \
                              in prefix.states.items() if state != 'forgotten'} \
                              for prefix in scheduler.task_prefixes.values() \
                              if any(count for state, count in prefix.states.items() \
                              if state != 'forgotten')}]";
        self.evaluate("the states of tasks", STATES).await
    }

    /// Evaluates a function of the scheduler, written in Python, which returns a list of one
    /// value: a dictionary may have the name of a field of failed replies.
    async fn evaluate<T>(&self, what: &'static str, function: &str) -> Result<T, RequestError>
    where
        [T; 1]: TryFrom<Value>,
        <[T; 1] as TryFrom<Value>>::Error: Into<WrongType>,
    {
        let eval = Function::from("builtins.eval");
        let pickling = self.dialect().pickling;
        let function = instance_pickle(&eval, Some(&[Value::from(function)]), &[], pickling);
        let request = Unknown::new("feed")
            .field(
                "function",
                function.map_err(|error| RequestError::Value(Box::new(error)))?,
            )
            .field("interval", 1.0);
        let timeout = self.shared.options.timeout;
        let deadline = runtime::later(timeout);
        let pool = &self.shared.pool;
        let connecting = pool.connect_until(self.shared.address(), Some(deadline));
        let mut channel = connecting.await?;
        // The scheduler repeats the reply until the comm is closed.
        let request = request.into();
        let reply = with_timeout(timeout, what, channel.call::<Value>(&request)).await;
        channel.close().await;
        let [value] = converted::<[T; 1]>("feed", reply?)?;
        Ok(value)
    }

    /// Asks for the keys of the results that each worker holds.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn has_what(
        &self,
        workers: impl Into<Workers>,
    ) -> Result<Vec<(String, Vec<Key>)>, RequestError> {
        let request = HasWhat {
            workers: workers.into().into_field(),
            reply: Some(true),
            ..HasWhat::default()
        };
        self.shared
            .call("the keys that workers hold", request)
            .await
    }

    /// Asks for the tasks that each worker runs or is about to run.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer, or does not know a worker.
    pub async fn processing(
        &self,
        workers: impl Into<Workers>,
    ) -> Result<Vec<(String, Vec<Key>)>, RequestError> {
        let request = Processing {
            workers: workers.into().into_field(),
            reply: Some(true),
            ..Processing::default()
        };
        self.shared.call("the tasks of workers", request).await
    }

    /// Asks for the sizes of all results in bytes, added up for each prefix of keys,
    /// such as `add`.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn nbytes_by_prefix(&self) -> Result<Vec<(Key, u64)>, RequestError> {
        let request = NBytes {
            summary: Some(true),
            reply: Some(true),
            ..NBytes::default()
        };
        self.shared.call("the sizes of results", request).await
    }

    /// Asks for the call stacks of tasks. For a waiting task, these are the call stacks
    /// of the running tasks that it depends on. Finished tasks have none.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer, or does not know a key.
    pub async fn call_stack(
        &self,
        keys: impl IntoIterator<Item = impl Into<Key>>,
    ) -> Result<Vec<CallStack>, RequestError> {
        let dialect = self.dialect();
        let keys = keys.into_iter().map(|key| dialect.key(&key.into()));
        self.call_stacks_of(Some(keys.collect())).await
    }

    /// Asks for the call stacks of all running tasks.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn call_stacks(&self) -> Result<Vec<CallStack>, RequestError> {
        self.call_stacks_of(None).await
    }

    async fn call_stacks_of(&self, keys: Option<Keys>) -> Result<Vec<CallStack>, RequestError> {
        // To a scheduler, an empty list means all tasks.
        if keys.as_ref().is_some_and(|keys| keys.is_empty()) {
            return Ok(Vec::new());
        }
        let request = GetCallStack {
            keys,
            reply: Some(true),
            ..GetCallStack::default()
        };
        let stacks: Vec<(String, Stacks)> = self.shared.call("call stacks", request).await?;
        let stacks = stacks.into_iter().flat_map(|(worker, stacks)| {
            stacks.into_iter().map(move |(key, frames)| CallStack {
                worker: worker.clone(),
                key,
                frames,
            })
        });
        Ok(stacks.collect())
    }

    /// Asks for the logs of workers, newest line first; `count` lines of each, or all
    /// that they keep. `get_worker_logs` in Dask.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler or a worker does not answer.
    pub async fn worker_logs(
        &self,
        workers: impl Into<Workers>,
        count: Option<u64>,
    ) -> Result<Vec<(String, Vec<LogLine>)>, RequestError> {
        let request = WorkerLogs {
            n: count,
            workers: workers.into().into_field(),
            reply: Some(true),
            ..WorkerLogs::default()
        };
        let logs: Vec<(String, Value)> = self.shared.call("the logs of workers", request).await?;
        let logs = logs.into_iter();
        logs.map(|(worker, log)| Ok((worker, lines("worker_logs", log)?)))
            .collect()
    }

    /// Asks for the log of the scheduler, newest line first; `count` lines, or all that
    /// it keeps. `get_scheduler_logs` in Dask.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn scheduler_logs(&self, count: Option<u64>) -> Result<Vec<LogLine>, RequestError> {
        let request = Logs {
            n: count,
            reply: Some(true),
            ..Logs::default()
        };
        lines(
            "logs",
            self.shared.call("the scheduler's log", request).await?,
        )
    }

    /// Asks the scheduler and the workers for the history of tasks, in the order of
    /// time. `keys` are keys of tasks, or names of causes (`stimulus_id` in Dask).
    ///
    /// # Errors
    ///
    /// * [`RequestError::Unsupported`] before 2022.6.1;
    /// * other errors if the scheduler does not answer. Workers that do not answer are
    ///   left out.
    pub async fn story(
        &self,
        keys: impl IntoIterator<Item = impl Into<Key>>,
    ) -> Result<Vec<StoryStep>, RequestError> {
        self.shared.needs(Operation::STORIES)?;
        let keys: Keys = keys.into_iter().collect();
        let names = Value::list(keys.iter().map(Key::to_value));
        let request = GetStory {
            keys_or_stimuli: Some(keys),
            reply: Some(true),
            ..GetStory::default()
        };
        let of_scheduler: Vec<Value> = self.shared.call("stories", request).await?;
        let mut steps = of_scheduler
            .into_iter()
            .map(|step| StoryStep::from_value(None, step))
            .collect::<Result<Vec<_>, _>>()?;
        let message = Unknown::new("get_story").field("keys_or_stimuli", names);
        for (worker, story) in self
            .broadcast(message, Workers::All, Some("ignore"))
            .await?
        {
            for step in converted::<Vec<Value>>("get_story", story)? {
                steps.push(StoryStep::from_value(Some(&worker), step)?);
            }
        }
        steps.sort_by(|one, other| one.time.total_cmp(&other.time));
        Ok(steps)
    }

    /// Asks for a statistical profile of the code that the cluster ran. Workers in Rust
    /// have no profile.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn profile(&self, options: ProfileOptions) -> Result<Profile, RequestError> {
        let request = GetProfile {
            key: options.prefix,
            workers: options.workers.into_field(),
            start: options.start,
            stop: options.stop,
            server: Some(options.of == Profiled::Workers),
            scheduler: Some(options.of == Profiled::Scheduler),
            reply: Some(true),
            ..GetProfile::default()
        };
        let profile: Value = self.shared.call("a profile", request).await?;
        Ok(Profile::from_value(&profile))
    }

    /// Asks for metadata that clients and tasks have stored in the scheduler, by its
    /// path in nested dictionaries; `None` if nothing is stored there. `get_metadata` in
    /// Dask.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn metadata(
        &self,
        path: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Option<Value>, RequestError> {
        // A unique default: without one, the scheduler replies with an error that is hard
        // to distinguish from others.
        let absent = Value::from(format!("{}-absent", self.id()));
        let request = GetMetadata {
            keys: path
                .into_iter()
                .map(|part| Key::from(part.into()))
                .collect(),
            default: absent.clone(),
            reply: Some(true),
            ..GetMetadata::default()
        };
        let found: Value = self.shared.call("metadata", request).await?;
        Ok((found != absent).then_some(found))
    }

    /// Stores metadata in the scheduler, under a path in nested dictionaries.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Value`] if the value does not convert;
    /// * other errors if the scheduler does not answer.
    pub async fn set_metadata(
        &self,
        path: impl IntoIterator<Item = impl Into<String>>,
        value: impl IntoValue,
    ) -> Result<(), RequestError> {
        let request = SetMetadata {
            keys: path
                .into_iter()
                .map(|part| Key::from(part.into()))
                .collect(),
            value: value_of(value)?,
            reply: Some(true),
            ..SetMetadata::default()
        };
        let _: Value = self.shared.call("metadata", request).await?;
        Ok(())
    }
}
