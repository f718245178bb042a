//! A single worker, and what it is asked for: its log, its call stacks, its profile.

use std::collections::BTreeSet;

use daskwire_messages::protocol::{GetProfile, Proxy, Request, Unknown};
use daskwire_messages::{Key, Value};
use daskwire_scheduler::state::{Place, Selection};
use serde_json::{Value as Json, json};

use super::values::to_json;
use super::{Failed, Viewed, cut, cut_to, key_text, status};

/// Maximum number of keys in a list.
const MAX_LISTED: usize = 200;

/// Maximum number of lines of a log.
const MAX_LINES: usize = 1_000;

/// Maximum number of characters of a line of a log.
const MAX_LINE: usize = 10_000;

/// Maximum number of frames of a call stack.
const MAX_STACK: usize = 64;

/// Maximum number of characters of a frame's name in a profile.
const MAX_NAME: usize = 200;

/// Maximum depth of a profile.
const MAX_DEPTH: usize = 128;

/// Maximum number of frames of a profile.
const MAX_FRAMES: usize = 20_000;

/// A worker's page.
pub(super) fn worker(viewed: &Viewed<'_>, address: &str) -> Result<Json, Failed> {
    let known = |state: &daskwire_scheduler::state::State| {
        let overview = state.overview_worker(address)?;
        let (_, identity) = state.identity_of(address)?;
        let (mut processing, mut held) = (Vec::new(), Vec::new());
        // Those that were sent to it, and then those in its queue.
        let running = state.running_tasks(address, MAX_LISTED);
        processing.extend(running.into_iter().map(|task| task.key));
        if processing.len() < MAX_LISTED {
            let mut all = Vec::new();
            state.processing(address, &mut Place::default(), &mut all);
            let known: BTreeSet<Key> = processing.iter().cloned().collect();
            processing.extend(all.into_iter().filter(|key| !known.contains(key)));
            processing.truncate(MAX_LISTED);
        }
        state.has_what(address, &mut Place::default(), &mut held);
        held.truncate(MAX_LISTED);
        let sizes = state.nbytes(Selection::Keys(&held));
        Some((overview, identity, processing, sizes))
    };
    let (overview, identity, processing, sizes) = viewed.inspect(known).ok_or_else(unknown)?;
    let row = status::Worker::of(&overview, viewed.now);
    let mut document = serde_json::to_value(row).unwrap_or_default();
    if let Json::Object(fields) = &mut document {
        for name in [
            "resources",
            "nanny",
            "local_directory",
            "services",
            "metrics",
            "id",
        ] {
            let value = identity.get(name).map_or(Json::Null, to_json);
            fields.insert(name.to_owned(), value);
        }
    }
    let keys: Vec<String> = processing.iter().map(|key| key_text(viewed, key)).collect();
    let sizes = sizes.iter();
    let sizes: Vec<Json> = sizes
        .map(|(key, nbytes)| json!({"key": key_text(viewed, key), "nbytes": nbytes}))
        .collect();
    Ok(json!({
        "worker": document,
        "processing": keys,
        "processing_total": overview.processing_count + overview.queued_count,
        "in_memory": sizes,
        "in_memory_total": overview.result_count,
    }))
}

/// Checks that a worker has an address.
///
/// # Errors
///
/// If none has.
pub(crate) fn check(viewed: &Viewed<'_>, address: &str) -> Result<(), Failed> {
    let is_known = viewed.inspect(|state| state.has_worker(address));
    is_known.then_some(()).ok_or_else(unknown)
}

/// The error for a worker that has left, or was never there.
pub(super) fn unknown() -> Failed {
    Failed::missing(
        "no worker has this address; it may have left. /workers lists those that are there",
    )
}

/// A request for the worker with an address, which is forwarded.
fn forwarded(worker: &str, request: Unknown) -> Request {
    Proxy {
        worker: worker.to_owned(),
        msg: request,
        ..Proxy::default()
    }
    .into()
}

/// The request for the last lines of a worker's log.
pub(super) fn logs_request(worker: &str) -> Request {
    forwarded(worker, Unknown::new("get_logs").field("n", MAX_LINES))
}

/// The lines of a log, of a worker or the scheduler, oldest first.
pub(super) fn logs(reply: &Value) -> Json {
    let (Value::List(lines) | Value::Tuple(lines)) = reply else {
        return json!({"lines": []});
    };
    let line = |line: &Value| {
        let (Value::List(parts) | Value::Tuple(parts)) = line else {
            return None;
        };
        let parts: Vec<String> = parts.iter().map(Value::to_unquoted).collect();
        let [level, text] = &parts[..] else {
            return None;
        };
        // Dask's lines begin with the time.
        let time = text.split_once(" - ").map(|(time, _)| time);
        Some(json!({"level": cut(level), "time": time.map(cut), "text": cut_to(text, MAX_LINE)}))
    };
    let mut lines: Vec<Json> = lines.iter().take(MAX_LINES).filter_map(line).collect();
    lines.reverse();
    json!({"lines": lines})
}

/// The request for what a worker executes.
pub(super) fn call_stack_request(worker: &str) -> Request {
    forwarded(
        worker,
        Unknown::new("call_stack").field("keys", Value::None),
    )
}

/// The call stacks of tasks.
pub(super) fn call_stacks(viewed: &Viewed<'_>, reply: &Value) -> Json {
    let mut stacks = Vec::new();
    if let Value::Dict(tasks) = reply {
        for (key, frames) in tasks.iter().take(MAX_LISTED) {
            let frames: Vec<String> = match frames {
                Value::List(frames) | Value::Tuple(frames) => {
                    let frames = frames.iter().take(MAX_STACK);
                    frames
                        .map(|frame| cut(&frame.to_unquoted()).into_owned())
                        .collect()
                }
                other => vec![cut(&other.to_unquoted()).into_owned()],
            };
            let key = match key.as_str() {
                Some(key) => key_text(viewed, &Key::from(key)),
                None => cut(&key.to_string()).into_owned(),
            };
            stacks.push(json!({"key": key, "frames": frames}));
        }
    }
    json!({"stacks": stacks})
}

/// The request for the profile of a worker, or of all.
pub(super) fn profile_request(worker: Option<&str>) -> Request {
    GetProfile {
        workers: worker.map(|worker| vec![worker.to_owned()].into()),
        ..GetProfile::default()
    }
    .into()
}

/// A profile as a tree of frames.
pub(super) fn profile(reply: &Value) -> Json {
    let mut left = MAX_FRAMES;
    frame(reply, MAX_DEPTH, &mut left)
}

/// A frame, with those that it calls. Recursion is bounded by `depth`.
fn frame(value: &Value, depth: usize, left: &mut usize) -> Json {
    *left = left.saturating_sub(1);
    let count = match value.get("count") {
        Some(Value::Int(count)) => u64::try_from(*count).unwrap_or(0),
        _ => 0,
    };
    let text = |name: &str| {
        let part = value.get("description").and_then(|it| it.get(name));
        part.map(Value::to_unquoted).unwrap_or_default()
    };
    let (name, file, line) = (text("name"), text("filename"), text("line_number"));
    let name = match (name.is_empty(), file.is_empty()) {
        (true, _) => "all".to_owned(),
        (false, true) => name,
        (false, false) => format!("{name} ({file}:{line})"),
    };
    let mut children = Vec::new();
    if let (Some(Value::Dict(calls)), Some(depth)) = (value.get("children"), depth.checked_sub(1)) {
        for (_, child) in calls.iter() {
            if *left == 0 {
                break;
            }
            children.push(frame(child, depth, left));
        }
    }
    json!({"name": cut_to(&name, MAX_NAME), "value": count, "children": children})
}

/// The request for the story of a task on a worker.
pub(crate) fn story_request(worker: &str, key: &Key) -> Request {
    let keys = Value::list([key.to_value()]);
    forwarded(
        worker,
        Unknown::new("get_story").field("keys_or_stimuli", keys),
    )
}

/// The steps of a story on a worker, each as a text and, where it has one, with its time.
pub(crate) fn story(reply: &Value) -> Vec<Json> {
    let (Value::List(steps) | Value::Tuple(steps)) = reply else {
        return Vec::new();
    };
    let excess = steps.len().saturating_sub(MAX_LISTED);
    let steps = steps.iter().skip(excess).map(|step| {
        let time = match step {
            Value::List(parts) | Value::Tuple(parts) => match parts.last() {
                Some(Value::Float(time)) => Some(*time),
                _ => None,
            },
            _ => None,
        };
        json!({"time": time, "text": cut(&step.to_unquoted())})
    });
    steps.collect()
}
