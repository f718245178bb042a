//! Processes on Linux.

use std::fs;

/// The ids of a process's children that have not ended.
///
/// # Panics
///
/// If there is no `/proc`.
pub fn children(parent: u32) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("Linux");
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    ids.filter(|id| stat(id).is_some_and(|(state, of)| of == parent.to_string() && state != "Z"))
        .collect()
}

/// The ids of the Python processes of a `daskwire worker` that have not ended, without the
/// template, from which they are forked. There are none if the template was killed.
///
/// # Panics
///
/// As [`children`].
pub fn python_processes(worker: u32) -> Vec<String> {
    let templates = children(worker).into_iter();
    let processes = templates.filter_map(|template| template.parse().ok());
    processes.flat_map(children).collect()
}

/// Whether a process has ended, even if its parent has not collected its status yet.
pub fn has_ended(id: &str) -> bool {
    stat(id).is_none_or(|(state, _)| state == "Z")
}

/// The state and the parent id of a process.
fn stat(id: &str) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
}

/// The starts of the lines that Dask's scheduler logs when the host of a worker ends while it
/// answers: the reply is an error, or the worker closes the comm.
pub fn host_ended(address: &str) -> [String; 2] {
    [
        "Exception: OSError('the Python host process of the worker ",
        "CommClosedError: ",
    ]
    .map(|reason| format!("broadcast to {address} failed: {reason}"))
}
