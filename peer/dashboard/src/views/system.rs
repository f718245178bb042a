//! Events, versions, settings, and the data of Dask's pages.

use std::collections::{BTreeMap, BTreeSet};

use daskwire_messages::Value;
use daskwire_scheduler::state::State;
use serde_json::{Value as Json, json};

use super::values::to_json;
use super::{Viewed, cut, long};
use crate::dashboard::Setting;

/// Maximum number of events in a list.
const MAX_EVENTS: usize = 500;

/// Maximum number of workers, and of clients, whose versions are compared.
const MAX_PEERS: usize = 500;

/// The last events of a topic, and the topics.
pub(super) fn events(viewed: &Viewed<'_>, topic: Option<&str>) -> Json {
    let topic = topic.unwrap_or("scheduler");
    let read = |state: &State| (state.topic_counts(), state.last_events(topic, MAX_EVENTS));
    let (topics, events) = viewed.inspect(read);
    let topics = topics.iter();
    let topics: Vec<Json> = topics
        .map(|(name, count)| json!({"name": cut(name), "count": count}))
        .collect();
    let event = |event: &Value| {
        let (Value::Tuple(parts) | Value::List(parts)) = event else {
            return None;
        };
        let (time, message) = (parts.first()?, parts.get(1)?);
        let text = to_json(message).to_string();
        Some(json!({"time": to_json(time), "text": long(&text)}))
    };
    let events: Vec<Json> = events.iter().rev().filter_map(event).collect();
    json!({"topic": topic, "topics": topics, "events": events})
}

/// The versions of packages, and which of them differ.
pub(super) fn versions(viewed: &Viewed<'_>) -> Json {
    let peers = viewed.inspect(|state| state.overview_versions(MAX_PEERS));
    let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for peer in &peers {
        for (name, version) in &peer.packages {
            seen.entry(name).or_default().insert(version);
        }
    }
    let different = seen.iter().filter(|(_, versions)| versions.len() > 1);
    let different: Vec<&str> = different.map(|(name, _)| *name).collect();
    let names: Vec<&str> = seen.keys().copied().collect();
    let rows = peers.iter().map(|peer| {
        let versions: BTreeMap<&str, &str> = peer
            .packages
            .iter()
            .map(|(name, version)| (&**name, &**version))
            .collect();
        let kind = if peer.is_worker { "worker" } else { "client" };
        json!({"who": cut(&peer.name), "kind": kind, "versions": versions})
    });
    let own = json!({
        "who": viewed.scheduler.address().to_string(),
        "kind": "scheduler",
        "versions": {"daskwire": env!("CARGO_PKG_VERSION")},
    });
    let rows: Vec<Json> = core::iter::once(own).chain(rows).collect();
    json!({"packages": names, "rows": rows, "different": different})
}

/// The settings of the scheduler.
pub(super) fn configuration(settings: &[Setting]) -> Json {
    let settings = settings.iter().map(
        |setting| json!({"name": setting.name, "value": setting.value, "source": setting.source}),
    );
    json!({"settings": settings.collect::<Vec<Json>>()})
}

/// Dask's `/json/counts.json`.
pub(super) fn counts(viewed: &Viewed<'_>) -> Json {
    let read = |state: &State| {
        (
            (state.client_count(), state.desired_worker_count(None)),
            (state.state_counts(), state.no_worker_count()),
            (state.worker_counts(), state.thread_count()),
        )
    };
    let ((clients, desired), (tasks, unrunnable), (states, threads)) = viewed.inspect(read);
    let workers = viewed.workers();
    let hosts: BTreeSet<&str> = workers.iter().map(|worker| &*worker.host).collect();
    let sum = |number: fn(&daskwire_scheduler::state::WorkerOverview) -> u64| -> u64 {
        workers.iter().map(number).sum()
    };
    json!({
        "bytes": sum(|worker| worker.managed.saturating_add(worker.spilled)),
        "clients": clients,
        "cores": threads,
        "erred": tasks.of("erred"),
        "hosts": hosts.len(),
        "idle": states.idle,
        "memory": sum(|worker| worker.result_count as u64),
        "processing": sum(|worker| worker.processing_count as u64),
        "released": tasks.of("released"),
        "saturated": states.saturated,
        "tasks": tasks.total(),
        "unrunnable": unrunnable,
        "waiting": tasks.of("waiting"),
        "workers": workers.len(),
        "desired_workers": desired,
    })
}
