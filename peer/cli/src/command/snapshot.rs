//! The state of a cluster, requested from its scheduler.

use std::collections::{BTreeMap, HashMap};

use daskwire_messages::protocol::Unknown;
use daskwire_peer::client::{TaskStates, Workers};
use daskwire_peer::{Client, Release, RequestError, Value};
use serde_json::{Value as Json, json};

/// The state of a cluster at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// The address of the scheduler.
    pub(crate) address: String,
    /// The release of Dask.
    pub(crate) release: Option<String>,
    /// The time for which the scheduler has run, in seconds.
    pub(crate) uptime: Option<f64>,
    /// The workers, in the scheduler's order.
    pub(crate) workers: Vec<Worker>,
    /// The number of tasks in each state, for each prefix of keys.
    pub(crate) prefixes: Vec<(String, States)>,
}

/// The states of tasks in the order of a task's life, with their labels.
const STATES: [(&str, &str); 7] = [
    ("waiting", "waiting"),
    ("no-worker", "no worker"),
    ("queued", "queued"),
    ("processing", "processing"),
    ("memory", "in memory"),
    ("released", "released"),
    ("erred", "erred"),
];

/// The states that are shown only while there are tasks in them.
const RARE: [&str; 2] = ["no-worker", "queued"];

/// The numbers of tasks by state.
pub(crate) type States = BTreeMap<String, u64>;

/// The state of a worker, as reported by its last heartbeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    pub(crate) address: String,
    pub(crate) name: String,
    pub(crate) status: String,
    pub(crate) nthreads: u64,
    /// Processor use of the process in percent of one processor.
    pub(crate) cpu: f64,
    /// Bytes of memory that the process uses.
    pub(crate) memory: u64,
    /// Memory limit in bytes; 0 if there is none.
    pub(crate) memory_limit: u64,
    /// Bytes of results in memory, as Dask estimates them.
    pub(crate) managed: u64,
    /// Bytes of results on disk.
    pub(crate) spilled: u64,
    /// Number of tasks that the scheduler has assigned.
    pub(crate) processing: u64,
    /// Number of tasks that are running.
    pub(crate) executing: u64,
    /// Number of tasks that are ready to run.
    pub(crate) ready: u64,
    /// Number of results in memory or on disk.
    pub(crate) stored: u64,
    /// Bytes that are being received from other workers.
    pub(crate) incoming: u64,
    /// Bytes that are being sent to other workers and clients.
    pub(crate) outgoing: u64,
}

impl Snapshot {
    /// Requests the state from the scheduler.
    pub(crate) async fn take(client: &Client) -> Result<Self, RequestError> {
        let mut identity = Unknown::new("identity");
        // Without this field, newer schedulers list only a few workers. Older ones do not
        // accept it.
        if client
            .release()
            .is_none_or(|it| it >= Release::new(2025, 4, 0))
        {
            identity = identity.field("n_workers", -1);
        }
        let identity: Value = client.request(identity).await?;
        let processing = known(client.processing(Workers::All).await)?;
        let states = known(client.task_states().await)?;
        let mut snapshot = Self::of(&identity, states, crate::command::terminal::now());
        snapshot.release = client.release().map(|release| release.to_string());
        let counts = processing.iter();
        let counts = counts.map(|(address, keys)| (address.as_str(), keys.len() as u64));
        let counts: HashMap<&str, u64> = counts.collect();
        for worker in &mut snapshot.workers {
            let own = counts.get(worker.address.as_str());
            worker.processing = own.copied().unwrap_or_default();
        }
        Ok(snapshot)
    }

    /// Builds a snapshot from replies; missing or unexpected values are skipped.
    fn of(identity: &Value, states: TaskStates, now: f64) -> Self {
        let workers = entries(identity.get("workers"));
        Self {
            address: string(identity.get("address")),
            release: None,
            uptime: identity
                .get("started")
                .map(|started| now - float(Some(started))),
            workers: workers
                .iter()
                .map(|(address, about)| Worker::of(address, about))
                .collect(),
            prefixes: states.into_iter().collect(),
        }
    }

    /// The number of all tasks by state.
    pub(crate) fn states(&self) -> States {
        let mut all = States::new();
        for (state, count) in self.prefixes.iter().flat_map(|(_, states)| states) {
            let total = all.entry(state.clone()).or_default();
            *total = total.saturating_add(*count);
        }
        all
    }

    /// The states to show, with their labels.
    pub(crate) fn shown_states(&self) -> Vec<(&'static str, &'static str)> {
        let states = self.states();
        let is_shown =
            |state| !RARE.contains(&state) || states.get(state).is_some_and(|it| *it > 0);
        let mut shown = STATES.to_vec();
        shown.retain(|(state, _)| is_shown(*state));
        shown
    }

    /// The sum of a number over all workers.
    pub(crate) fn sum(&self, of: impl Fn(&Worker) -> u64) -> u64 {
        self.workers.iter().map(of).fold(0, u64::saturating_add)
    }

    /// The document of `daskwire ps --json`, described in `JSON.md`.
    pub(crate) fn json(&self) -> Json {
        let workers = self.workers.iter().map(Worker::json);
        let prefixes = self.prefixes.iter();
        json!({
            "address": self.address,
            "release": self.release,
            "uptime": self.uptime,
            "tasks": self.states(),
            "prefixes": prefixes.map(|(name, states)| (name.clone(), json!(states)))
                .collect::<serde_json::Map<_, _>>(),
            "workers": workers.collect::<Vec<_>>(),
        })
    }
}

impl Worker {
    fn of(address: &Value, about: &Value) -> Self {
        let metrics = about.get("metrics");
        let metric = |name| metrics.and_then(|metrics| metrics.get(name));
        let tasks = metric("task_counts").map(counts).unwrap_or_default();
        let count = |state| tasks.get(state).copied().unwrap_or(0);
        let transfer = |name| metric("transfer").and_then(|transfer| transfer.get(name));
        // Before 2022.6.0, the metric is a single number.
        let spilled = metric("spilled_bytes").or_else(|| metric("spilled_nbytes"));
        let spilled = spilled.map(|spilled| spilled.get("disk").unwrap_or(spilled));
        Self {
            address: string(Some(address)),
            name: string(about.get("name")),
            status: string(about.get("status")),
            nthreads: integer(about.get("nthreads")),
            cpu: float(metric("cpu")),
            memory: integer(metric("memory")),
            memory_limit: integer(about.get("memory_limit")),
            managed: integer(metric("managed_bytes")),
            spilled: integer(spilled),
            processing: 0,
            executing: count("executing").saturating_add(count("long-running")),
            ready: count("ready").saturating_add(count("constrained")),
            stored: count("memory"),
            incoming: integer(transfer("incoming_bytes")),
            outgoing: integer(transfer("outgoing_bytes")),
        }
    }

    fn json(&self) -> Json {
        json!({
            "address": self.address,
            "name": self.name,
            "status": self.status,
            "nthreads": self.nthreads,
            "cpu": self.cpu,
            "memory": self.memory,
            "memory_limit": self.memory_limit,
            "managed": self.managed,
            "spilled": self.spilled,
            "processing": self.processing,
            "executing": self.executing,
            "ready": self.ready,
            "stored": self.stored,
            "incoming": self.incoming,
            "outgoing": self.outgoing,
        })
    }
}

/// The reply, or a default value if the scheduler does not support the request.
fn known<T: Default>(reply: Result<T, RequestError>) -> Result<T, RequestError> {
    match reply {
        Err(RequestError::Remote(_)) => Ok(T::default()),
        reply => reply,
    }
}

fn entries(value: Option<&Value>) -> &[(Value, Value)] {
    match value {
        Some(Value::Dict(entries)) => entries,
        _ => &[],
    }
}

fn counts(states: &Value) -> States {
    let entries = entries(Some(states)).iter();
    entries
        .map(|(state, count)| (string(Some(state)), integer(Some(count))))
        .collect()
}

fn string(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::None) => String::new(),
        Some(value) => value.to_unquoted(),
    }
}

fn integer(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::Int(value)) => u64::try_from(*value).unwrap_or(0),
        _ => 0,
    }
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn float(value: Option<&Value>) -> f64 {
    match value {
        Some(Value::Float(value)) => *value,
        Some(Value::Int(value)) => *value as f64,
        _ => 0.0,
    }
}
