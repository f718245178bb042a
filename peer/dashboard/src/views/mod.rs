//! What the dashboard shows of a scheduler, as documents in JSON.

mod graph;
mod keys;
pub(crate) mod metrics;
mod status;
mod stream;
mod stuck;
mod system;
mod tasks;
mod values;
pub(crate) mod worker;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use daskwire_messages::protocol;
use daskwire_messages::{Key, Value};

use daskwire_scheduler::Scheduler;
use daskwire_scheduler::state::{GroupOverview, Prefixes, State, WorkerOverview};
use hyper::StatusCode;
use serde::Serialize;
use serde_json::Value as Json;

use crate::dashboard::Setting;
use crate::http::{self, Request, Response};
use crate::live::{Snapshot, View, Views};

/// Maximum number of workers that are read at once, between which the scheduler goes on.
const SLICE: usize = 256;

/// Maximum number of characters of a peer's text in a list.
const MAX_TEXT: usize = 1_000;

/// Maximum number of characters of a peer's text on a page of its own.
const MAX_LONG_TEXT: usize = 100_000;

pub(crate) use keys::find as find_key;
use keys::text as key_text;
pub(crate) use stream::Streaming;
pub(crate) use values::to_json;

/// A scheduler that is looked at, and what is read once for several views.
pub(crate) struct Viewed<'s> {
    pub(crate) scheduler: &'s Scheduler,
    /// Seconds since 1970, by the clock of the scheduler.
    pub(crate) now: f64,
    workers: OnceCell<Vec<WorkerOverview>>,
    groups: OnceCell<Vec<GroupOverview>>,
    prefixes: OnceCell<Prefixes>,
}

impl<'s> Viewed<'s> {
    pub(crate) fn new(scheduler: &'s Scheduler) -> Self {
        Self {
            scheduler,
            now: scheduler.now().as_secs_f64(),
            workers: OnceCell::new(),
            groups: OnceCell::new(),
            prefixes: OnceCell::new(),
        }
    }

    pub(crate) fn inspect<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        self.scheduler.inspect(look)
    }

    /// All workers.
    pub(crate) fn workers(&self) -> &[WorkerOverview] {
        self.workers.get_or_init(|| {
            let mut workers: Vec<WorkerOverview> = Vec::new();
            loop {
                let last = workers.last().map(|worker| worker.id);
                let part = self.inspect(|state| state.overview_workers(last, SLICE));
                let is_last = part.len() < SLICE;
                workers.extend(part);
                if is_last {
                    return workers;
                }
                self.scheduler.give_way();
            }
        })
    }

    /// All groups of tasks.
    pub(crate) fn groups(&self) -> &[GroupOverview] {
        self.groups.get_or_init(|| {
            let mut groups = Vec::new();
            let mut parts = 0..;
            while let Some(part) = parts.next().filter(|part| {
                let count = self.inspect(State::group_part_count);
                *part < count
            }) {
                groups.extend(self.inspect(|state| state.overview_groups(part)));
                self.scheduler.give_way();
            }
            groups
        })
    }

    /// All tasks by the prefix of their keys.
    pub(crate) fn prefixes(&self) -> &Prefixes {
        self.prefixes.get_or_init(|| {
            let mut prefixes = Prefixes::new();
            for group in self.groups() {
                group.add_to(&mut prefixes);
            }
            prefixes
        })
    }
}

/// Why a request for data fails.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl Failed {
    pub(crate) fn missing(text: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            text: text.to_owned(),
        }
    }

    pub(crate) fn invalid(text: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            text: text.to_owned(),
        }
    }
}

impl From<Failed> for Response {
    fn from(failed: Failed) -> Self {
        http::error(failed.status, &failed.text)
    }
}

/// What makes the document that answers a request.
pub(crate) type Answer = Box<dyn FnOnce(&Viewed<'_>) -> Result<Vec<u8>, Failed> + Send>;

fn json(make: impl FnOnce(&Viewed<'_>) -> Result<Json, Failed> + Send + 'static) -> Answer {
    Box::new(move |viewed| make(viewed).map(|document| to_vec(&document)))
}

/// Returns what answers a request for data that is in the state.
///
/// # Errors
///
/// If there is no such data, or a parameter is missing or malformed.
pub(crate) fn find(request: &Request, settings: &Arc<[Setting]>) -> Result<Answer, Failed> {
    let path = request.path();
    if let Some(name) = path.strip_prefix("/data/")
        && let Some(view) = View::ALL.into_iter().find(|view| view.name() == name)
        && view != View::Stream
    {
        return Ok(Box::new(move |viewed| {
            Ok(document(viewed, view, &mut Streaming::default()))
        }));
    }
    let needed = |name: &str| needed(request, name);
    Ok(match path {
        "/data/worker" => {
            let address = needed("address")?;
            json(move |viewed| worker::worker(viewed, &address))
        }
        "/data/tasks" => {
            let query = request.parameter("query").unwrap_or_default();
            let state = request.parameter("state").filter(|state| !state.is_empty());
            let from = request.parameter("from");
            let from = from.map_or(Ok(0), |from| from.parse::<u32>());
            let from = from.map_err(|_| {
                Failed::invalid("from= takes a number, the `next` of an answer before")
            })?;
            json(move |viewed| tasks::search(viewed, &query, state.as_deref(), from))
        }
        "/data/task" => {
            let key = needed("key")?;
            json(move |viewed| tasks::task(viewed, &key))
        }
        "/data/graph/tasks" => {
            let group = request.parameter("group").filter(|group| !group.is_empty());
            Box::new(move |viewed| {
                graph::tasks(viewed, group.as_deref()).map(|tasks| to_vec(&tasks))
            })
        }
        "/data/stuck" => Box::new(|viewed| Ok(to_vec(&stuck::stuck(viewed)))),
        "/data/events" => {
            let topic = request.parameter("topic").filter(|topic| !topic.is_empty());
            json(move |viewed| Ok(system::events(viewed, topic.as_deref())))
        }
        "/data/versions" => json(|viewed| Ok(system::versions(viewed))),
        "/data/configuration" => {
            let settings = Arc::clone(settings);
            json(move |_| Ok(system::configuration(&settings)))
        }
        "/json/counts.json" => json(|viewed| Ok(system::counts(viewed))),
        _ => return Err(Failed::missing("there is no such view")),
    })
}

/// The value of a parameter.
///
/// # Errors
///
/// If it is missing.
pub(crate) fn needed(request: &Request, name: &str) -> Result<String, Failed> {
    let value = request.parameter(name);
    value.ok_or_else(|| Failed::invalid(&format!("this needs the parameter {name}=")))
}

/// A request that the scheduler answers as it does for clients.
pub(crate) struct Question {
    /// The address of the worker that it is about. If no worker has it, the scheduler is not asked: it
    /// would connect to any address.
    pub(crate) worker: Option<String>,
    pub(crate) request: protocol::Request,
    /// Makes a document of the reply.
    pub(crate) document: fn(&Viewed<'_>, &Value) -> Json,
}

/// Returns what the scheduler is asked to answer a request for data; `None` if it is not asked.
///
/// # Errors
///
/// If a parameter is missing.
pub(crate) fn question(request: &Request) -> Result<Option<Question>, Failed> {
    let (worker, request, document): (_, _, fn(&Viewed<'_>, &Value) -> Json) = match request.path()
    {
        "/data/worker/logs" => {
            let address = needed(request, "address")?;
            let logs = worker::logs_request(&address);
            (Some(address), logs, |_, reply| worker::logs(reply))
        }
        "/data/worker/call-stack" => {
            let address = needed(request, "address")?;
            let stacks = worker::call_stack_request(&address);
            (Some(address), stacks, worker::call_stacks)
        }
        "/data/worker/profile" => {
            let address = request.parameter("address");
            let address = address.filter(|address| !address.is_empty());
            let profile = worker::profile_request(address.as_deref());
            (address, profile, |_, reply| worker::profile(reply))
        }
        "/data/logs" => (None, protocol::GetLogs::default().into(), |_, reply| {
            worker::logs(reply)
        }),
        "/json/identity.json" => (None, protocol::Identity::default().into(), |_, reply| {
            to_json(reply)
        }),
        _ => return Ok(None),
    };
    Ok(Some(Question {
        worker,
        request,
        document,
    }))
}

/// The workers that may know more of a task, and its key.
pub(crate) fn story_places(viewed: &Viewed<'_>, text: &str) -> Result<(Key, Vec<String>), Failed> {
    /// More is not read by people.
    const MAX_WORKERS: usize = 8;
    let task = tasks::find(viewed, text)?;
    let mut workers: Vec<String> = task.processing_on.into_iter().chain(task.holders).collect();
    workers.truncate(MAX_WORKERS);
    Ok((task.overview.key, workers))
}

/// Takes snapshots of live views.
pub(crate) fn take(viewed: &Viewed<'_>, views: Views, streaming: &mut Streaming) -> Snapshot {
    let mut snapshot = Snapshot::default();
    streaming.record(viewed, views.contains(View::Stream));
    for view in View::ALL {
        match view {
            view if !views.contains(view) => {}
            View::Stream => snapshot.add_stream(streaming.parts(viewed)),
            view => snapshot.add(view, &document(viewed, view, streaming)),
        }
    }
    snapshot
}

/// The document of a live view other than the stream.
fn document(viewed: &Viewed<'_>, view: View, streaming: &mut Streaming) -> Vec<u8> {
    match view {
        View::Cluster => to_vec(&status::cluster(viewed)),
        View::Prefixes => to_vec(&status::prefixes(viewed)),
        View::Workers => to_vec(&status::workers(viewed)),
        View::Bandwidth => to_vec(&streaming.bandwidth(viewed)),
        View::Graph => to_vec(&graph::groups(viewed)),
        View::Stream => Vec::new(),
    }
}

fn to_vec(document: &impl Serialize) -> Vec<u8> {
    // No document of this crate has a part that cannot be written.
    serde_json::to_vec(document).unwrap_or_default()
}

/// A peer's text, cut for a list.
fn cut(text: &str) -> Cow<'_, str> {
    cut_to(text, MAX_TEXT)
}

/// A peer's text, cut for a page of its own.
fn long(text: &str) -> String {
    cut_to(text, MAX_LONG_TEXT).into_owned()
}

fn cut_to(text: &str, count: usize) -> Cow<'_, str> {
    if text.len() <= count {
        return Cow::Borrowed(text);
    }
    match text.char_indices().nth(count) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned([&text[..end], "\u{2026}"].concat()),
    }
}
