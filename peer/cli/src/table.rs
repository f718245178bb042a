//! Formats the identity of a scheduler as a table.

use core::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use daskwire::display::Printable;
use daskwire_peer::identity::Identity;

use crate::inspect::text::{bytes, count};

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
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    out.push('\n');
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                if column < 3 {
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

/// The current time in seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

fn duration(seconds: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // clamped
    let seconds = seconds.clamp(0.0, 1e12) as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
