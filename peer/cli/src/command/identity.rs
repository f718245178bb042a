//! The identity of a scheduler, as a table and as JSON.

use core::fmt::Write as _;

use daskwire::display::Printable;
use daskwire::message::Layout;
use daskwire_comm::Agreement;
use daskwire_peer::WorkerStatus;
use daskwire_peer::identity::{Identity, WorkerIdentity};
use serde_json::{Value as Json, json};

use crate::command::connect::is_worker;
use crate::format::{aligned, bytes, count, duration};

/// Formats an identity; `now` is in seconds since 1970.
pub(crate) fn table(identity: &Identity, now: f64) -> String {
    let mut out = String::new();
    let sum = |number: fn(&WorkerIdentity) -> u64| {
        let workers = identity.workers.iter();
        workers.map(number).fold(0, u64::saturating_add)
    };
    let threads = sum(|worker| worker.nthreads);
    let memory = sum(|worker| worker.memory_limit);
    let [kind, address, id] =
        [&identity.kind, &identity.address, &identity.id].map(|part| Printable(part));
    let _ = writeln!(out, "{kind} {address} ({id})");
    if let Some(started) = identity.started {
        let _ = writeln!(out, "  up for     {}", duration(now - started));
    }
    if is_worker(identity) {
        out.push_str("  role       a worker, not a scheduler\n");
        return out;
    }
    let _ = writeln!(
        out,
        "  workers    {}, {}, {}",
        identity.workers.len(),
        count(usize::try_from(threads).unwrap_or(usize::MAX), "thread"),
        bytes(memory),
    );
    if identity.workers.is_empty() {
        return out;
    }
    let mut rows = vec![
        [
            "address", "name", "status", "threads", "memory", "limit", "cpu",
        ]
        .map(str::to_owned),
    ];
    for worker in &identity.workers {
        rows.push([
            Printable(&worker.address).to_string(),
            Printable(&worker.name).to_string(),
            worker
                .status
                .as_ref()
                .map(|status| Printable(status.as_str()).to_string())
                .unwrap_or_default(),
            worker.nthreads.to_string(),
            bytes(worker.memory),
            if worker.memory_limit == 0 {
                "none".into()
            } else {
                bytes(worker.memory_limit)
            },
            format!("{:.0} %", worker.cpu),
        ]);
    }
    out.push('\n');
    out.push_str(&aligned(&rows, 3));
    out
}

/// The version of Python that a peer runs on. One in Rust only claims a version in its handshake.
pub(crate) fn python_of(identity: &Identity, agreement: &Agreement<'_>) -> Option<[u64; 3]> {
    agreement
        .peer_python
        .filter(|_| identity.rust_version.is_none())
}

/// The document of `daskwire identity --json`, described in `JSON.md`.
pub(crate) fn document(identity: &Identity, agreement: &Agreement<'_>) -> Json {
    let layout = match agreement.layout {
        Layout::Classic => "classic",
        Layout::Modern => "modern",
    };
    let dotted = |[major, minor, micro]: [u64; 3]| format!("{major}.{minor}.{micro}");
    json!({
        "type": identity.kind,
        "id": identity.id,
        "address": identity.address,
        "started": identity.started,
        "release": identity.release.map(|release| release.to_string()),
        "daskwire": identity.rust_version,
        "python": python_of(identity, agreement).map(dotted),
        "layout": layout,
        "pickle_protocol": agreement.negotiated.pickle_protocol,
        "workers": identity.workers.iter().map(worker_json).collect::<Vec<_>>(),
    })
}

fn worker_json(worker: &WorkerIdentity) -> Json {
    json!({
        "address": worker.address,
        "name": worker.name,
        "status": worker.status.as_ref().map(WorkerStatus::as_str),
        "nthreads": worker.nthreads,
        "memory": worker.memory,
        "memory_limit": worker.memory_limit,
        "cpu": worker.cpu,
    })
}
