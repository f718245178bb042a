//! What the dashboard shows of a scheduler, as documents in JSON.

pub(crate) mod metrics;
mod status;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::time::{SystemTime, UNIX_EPOCH};

use daskwire_scheduler::Scheduler;
use daskwire_scheduler::state::{GroupOverview, Prefixes, State, WorkerOverview};
use serde::Serialize;

use crate::http::{self, Request, Response};
use crate::live::{Snapshot, View, Views};

/// Maximum number of workers that are read at once, between which the scheduler goes on.
const SLICE: usize = 256;

/// Maximum number of characters of a peer's text in a list.
const MAX_TEXT: usize = 1_000;

/// A scheduler that is looked at, and what is read once for several views.
pub(crate) struct Viewed<'s> {
    pub(crate) scheduler: &'s Scheduler,
    /// Seconds since 1970.
    pub(crate) now: f64,
    workers: OnceCell<Vec<WorkerOverview>>,
    groups: OnceCell<Vec<GroupOverview>>,
    prefixes: OnceCell<Prefixes>,
}

impl<'s> Viewed<'s> {
    pub(crate) fn new(scheduler: &'s Scheduler) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            scheduler,
            now: now.unwrap_or_default().as_secs_f64(),
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
                std::thread::yield_now();
            }
        })
    }
}

impl Viewed<'_> {
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
                std::thread::yield_now();
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

/// What answers a request for data.
pub(crate) type Answer = Box<dyn FnOnce(&Viewed<'_>) -> Response + Send>;

/// Returns what answers a request for data; `None` if there is no such data.
pub(crate) fn find(request: &Request) -> Option<Answer> {
    let name = request.path().strip_prefix("/data/")?;
    if let Some(view) = View::ALL.into_iter().find(|view| view.name() == name) {
        return match view {
            View::Stream => None,
            view => Some(Box::new(move |viewed| {
                http::document(document(viewed, view))
            })),
        };
    }
    None
}

/// Takes snapshots of live views.
pub(crate) fn take(viewed: &Viewed<'_>, views: Views, to: &mut Snapshot) {
    for view in View::ALL {
        if views.contains(view) && view != View::Stream {
            to.add(view, &document(viewed, view));
        }
    }
}

/// The document of a live view other than the stream.
fn document(viewed: &Viewed<'_>, view: View) -> Vec<u8> {
    match view {
        View::Cluster => to_vec(&status::cluster(viewed)),
        View::Prefixes => to_vec(&status::prefixes(viewed)),
        View::Workers => to_vec(&status::workers(viewed)),
        View::Bandwidth | View::Graph | View::Stream => to_vec(&serde_json::json!({})),
    }
}

fn to_vec(document: &impl Serialize) -> Vec<u8> {
    // No document of this crate has a part that cannot be written.
    serde_json::to_vec(document).unwrap_or_default()
}

/// A peer's text, cut for a list.
fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_TEXT) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned([&text[..end], "\u{2026}"].concat()),
    }
}
