//! Tables of the command, among them the identity of a scheduler.

use core::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use daskwire::display::Printable;
use daskwire::message::Layout;
use daskwire_comm::Agreement;
use daskwire_peer::identity::{Identity, Worker};
use daskwire_peer::protocol::WorkerStatus;
use serde_json::{Value as Json, json};

/// Formats an identity; `now` is in seconds since 1970.
pub fn table(identity: &Identity, now: f64) -> String {
    let mut out = String::new();
    let threads: u64 = identity
        .workers
        .iter()
        .map(|worker| worker.thread_count)
        .sum();
    let memory: u64 = identity
        .workers
        .iter()
        .map(|worker| worker.memory_limit)
        .sum();
    let [kind, address, id] =
        [&identity.kind, &identity.address, &identity.id].map(|part| Printable(part));
    let _ = writeln!(out, "{kind} {address} ({id})");
    if let Some(started) = identity.started {
        let _ = writeln!(out, "  up for     {}", duration(now - started));
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
            worker.thread_count.to_string(),
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

/// The document of `daskwire identity --json`, described in `JSON.md`.
pub fn identity_json(identity: &Identity, agreement: &Agreement) -> Json {
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
        "python": agreement.peer_python.map(dotted),
        "layout": layout,
        "pickle_protocol": agreement.pickle_protocol,
        "workers": identity.workers.iter().map(worker_json).collect::<Vec<_>>(),
    })
}

fn worker_json(worker: &Worker) -> Json {
    json!({
        "address": worker.address,
        "name": worker.name,
        "status": worker.status.as_ref().map(WorkerStatus::as_str),
        "nthreads": worker.thread_count,
        "memory": worker.memory,
        "memory_limit": worker.memory_limit,
        "cpu": worker.cpu,
    })
}

/// Formats rows, the first of which is the heading. The first `left` columns are
/// aligned to the left, the others to the right. Cells must be printable.
pub fn aligned(rows: &[impl AsRef<[String]>], left: usize) -> String {
    let mut out = String::new();
    let rows = rows.iter().map(AsRef::as_ref);
    let mut widths = Vec::new();
    for row in rows.clone() {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, &width))| {
                if column < left {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        let line: Vec<String> = cells.collect();
        let _ = writeln!(out, "  {}", line.join("  ").trim_end());
    }
    out
}

/// Formats a count with its noun, in the plural unless the count is 1.
pub fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Formats a rounded size: exact below 10 kB, in binary units above.
pub fn bytes(len: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // three digits are shown
    let scaled = |unit: u32| len as f64 / f64::from(1_u32 << unit);
    match len {
        0..10_000 => format!("{len} B"),
        10_000..0x10_0000 => format!("{:.1} KiB", scaled(10)),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", scaled(20)),
        _ => format!("{:.2} GiB", scaled(30)),
    }
}

/// The current time in seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

/// Formats a rounded duration.
pub fn duration(seconds: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // clamped
    let seconds = seconds.clamp(0.0, 1e12) as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
