//! The journey of a task: the example of Dask's documentation, with every
//! message.
//!
//! Computes `x` and `y`, and follows `z = add(x, y)` from `submit` until the
//! workers have forgotten it. A [`Recorder`] observes all comms of the roles in
//! this process: all roles on an embedded cluster, the client alone on a real
//! one.

use core::fmt::{self, Write as _};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use daskwire_messages::protocol::body;
use daskwire_peer::{Client, Error, Key, ObservedMessage, Observer, Value};

use serde_json::json;

use crate::format::{bytes, count};
use crate::printable;

/// A recorded message.
#[derive(Clone, Debug)]
pub struct RecordedMessage {
    /// The time of the message.
    pub at: Instant,
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// The number of frames.
    pub frame_count: usize,
    /// The length of all frames, in bytes.
    pub len: u64,
    /// The frames. Long ones, which hold data, are replaced by empty ones.
    frames: Vec<Bytes>,
}

impl RecordedMessage {
    /// The summary of each message in a batch, or of the single message.
    pub fn summaries(&self) -> Vec<Summary> {
        match body(&self.frames) {
            Ok(Value::List(batch)) if !batch.is_empty() => batch.iter().map(Summary::of).collect(),
            Ok(body) => vec![Summary::of(&body)],
            Err(error) => vec![Summary {
                op: "?".to_owned(),
                about: error.to_string(),
                body: Value::None,
            }],
        }
    }
}

/// The summary of a message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// The message's op, or `reply`.
    pub op: String,
    /// The keys or the status in the message.
    pub about: String,
    /// The whole body, with unopened payloads.
    pub body: Value,
}

impl Summary {
    /// The summary of a message with this body.
    pub(crate) fn of(body: &Value) -> Self {
        let field = |name| body.get(name).and_then(Value::as_str);
        let op = field("op").unwrap_or("reply");
        let mut about = Vec::new();
        if op == "reply" {
            match (field("status"), body.as_str()) {
                (Some(status), _) | (None, Some(status)) => about.push(status.to_owned()),
                (None, None) if body.get("compression").is_some() => {
                    about.push("handshake".to_owned());
                }
                (None, None) => {}
            }
        }
        if let Some(key) = body.get("key") {
            about.push(key.to_unquoted());
        }
        for name in ["keys", "data", "who_has"] {
            match body.get(name) {
                Some(Value::List(keys) | Value::Set(keys)) => {
                    about.extend(keys.iter().map(Value::to_unquoted))
                }
                Some(Value::Dict(entries)) if op != "compute-task" => {
                    about.extend(entries.iter().map(|(key, _)| key.to_unquoted()));
                }
                _ => {}
            }
        }
        Self {
            op: op.to_owned(),
            about: about.join(" "),
            body: body.clone(),
        }
    }

    /// The step of the documentation to which the message belongs when `from` sends
    /// it.
    pub fn step(&self, from: &str) -> Option<Step> {
        Some(match self.op.as_str() {
            // A worker fetches the inputs of its task.
            "get_data" if from.starts_with("worker") => Step::Execute,
            "update-graph" => Step::Client,
            "compute-task" => Step::Transmit,
            "task-finished" | "task-erred" | "add-keys" => Step::Execute,
            "key-in-memory" => Step::Aftermath,
            "gather" | "get_data" | "who_has" => Step::Gather,
            "client-releases-keys" | "free-keys" | "release-worker-data" => Step::Collection,
            _ => return None,
        })
    }
}

/// The steps of the journey, numbered as in the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Step {
    /// 1: the client submits the task.
    Client,
    /// 2 to 4: the scheduler registers the dependencies, chooses a worker, and
    /// sends it the task.
    Transmit,
    /// 5: the worker fetches the inputs and runs the task.
    Execute,
    /// 6: the scheduler notifies clients.
    Aftermath,
    /// 7: the client gathers the result.
    Gather,
    /// 8: unneeded data is deleted.
    Collection,
}

impl Step {
    /// The name of the step in documents.
    const fn name(self) -> &'static str {
        match self {
            Self::Client => "submit",
            Self::Transmit => "assign",
            Self::Execute => "execute",
            Self::Aftermath => "report",
            Self::Gather => "gather",
            Self::Collection => "release",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "Step 1, client: the task is submitted, its future is \"pending\"",
            Self::Transmit => {
                "Steps 2 to 4, scheduler: dependencies connected, a worker chosen, the task sent"
            }
            Self::Execute => {
                "Step 5, worker: missing data fetched, the task executed, its size reported"
            }
            Self::Aftermath => "Step 6, scheduler: clients are notified that the result is ready",
            Self::Gather => "Step 7: the result is gathered",
            Self::Collection => "Step 8: unneeded data is released and deleted",
        })
    }
}

/// Records every message when it is sent, and messages received from parties that
/// are not observed.
#[derive(Debug)]
pub struct Recorder {
    /// Whether all parties are observed. Received messages are then skipped, because
    /// they were recorded when they were sent.
    sees_all: bool,
    names: Mutex<HashMap<String, String>>,
    seen: Mutex<Vec<RecordedMessage>>,
}

impl Recorder {
    /// Returns a recorder that observes all parties, or the client alone.
    pub fn new(sees_all: bool) -> Self {
        Self {
            sees_all,
            names: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// Sets the displayed name of a party, given its address or longer name.
    pub fn set_name(&self, address: &str, name: &str) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(address.to_owned(), name.to_owned());
    }

    fn name(&self, party: &str) -> String {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        match names.get(party) {
            Some(name) => name.clone(),
            // A requester's port is not informative.
            None if self.sees_all && party.contains("://") => "requester".to_owned(),
            None => party.to_owned(),
        }
    }

    /// Returns the messages recorded since the last call, in order.
    pub fn take(&self) -> Vec<RecordedMessage> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::take(&mut *seen)
    }
}

impl Observer for Recorder {
    fn message(&self, seen: &ObservedMessage<'_>) {
        // Longer frames hold data, of which only the length is shown.
        const KEPT: usize = 16 << 10;
        if self.sees_all && !seen.is_leaving {
            return;
        }
        let frames = seen.frames.iter().enumerate().map(|(index, frame)| {
            if index == 0 || frame.len() <= KEPT {
                Bytes::copy_from_slice(frame)
            } else {
                Bytes::new()
            }
        });
        let (from, to) = if seen.is_leaving {
            (seen.local, seen.peer)
        } else {
            (seen.peer, seen.local)
        };
        let message = RecordedMessage {
            at: seen.at,
            from: self.name(from),
            to: self.name(to),
            frame_count: seen.frames.len(),
            len: seen.frames.iter().map(|frame| frame.len() as u64).sum(),
            frames: frames.collect(),
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(message);
    }
}

/// The outcome of the journey.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The value of `z`.
    pub result: Value,
    /// The time from submitting `z` to its result.
    pub took: Duration,
}

/// The form in which a journey is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text, with the bodies of messages or without.
    Text {
        /// Whether to show bodies, heartbeats, and acknowledgements of graphs.
        verbose: bool,
    },
    /// A JSON document in a line for each message, heartbeats included.
    Json,
}

/// Submits `x`, `y` and `z = add(x, y)`, gathers `z`, and releases everything.
/// Calls `show` with each part of the output.
///
/// # Errors
///
/// The first error of the client.
pub async fn journey(
    client: &Client,
    recorder: &Recorder,
    form: Form,
    show: &mut dyn FnMut(&str),
) -> Result<Outcome, Error> {
    let format = |part, started| match form {
        Form::Text { verbose } => format_messages(&recorder.take(), started, verbose),
        Form::Json => messages_json(&recorder.take(), started, part),
    };
    let is_text = form != Form::Json;
    let show = &mut |text: &str, is_shown: bool| {
        if is_shown {
            show(text);
        }
    };
    recorder.take();
    show(
        "x = client.submit(add, 1, 2)\ny = client.submit(add, 3, 4)\n",
        is_text,
    );
    // Unique keys: a real cluster may already have keys with these names.
    let [first, second, third] = ["x", "y", "z"].map(|name| match recorder.sees_all {
        true => Key::from(name),
        false => Key::unique(name),
    });
    let started = Instant::now();
    let x = client
        .call("operator.add")
        .argument(1)
        .argument(2)
        .key(&first)
        .submit()?;
    let y = client
        .call("operator.add")
        .argument(3)
        .argument(4)
        .key(&second)
        .submit()?;
    x.finished().await?;
    y.finished().await?;
    show(&format("inputs", started), true);

    show("\nz = client.submit(add, x, y)   # we follow z\n", is_text);
    let started = Instant::now();
    let z = client
        .call("operator.add")
        .argument(&x)
        .argument(&y)
        .key(&third)
        .submit()?;
    // Printing this takes longer than the first steps.
    let status = z.status();
    let result = z.result().await?;
    let took = started.elapsed();
    show(&format!("z is {:?}\n", status.name()), is_text);
    show(&format("z", started), true);
    let taken = time(took);
    show(
        &format!("\nz.result() is {result}, {taken} after it was submitted\n"),
        is_text,
    );

    show("\ndel x, y, z\n", is_text);
    let started = Instant::now();
    drop((x, y, z));
    // The scheduler reports deletions to workers after a short time.
    tokio::time::sleep(Duration::from_millis(700)).await;
    show(&format("release", started), true);
    Ok(Outcome { result, took })
}

/// Formats a duration with two or three digits in a suitable unit.
pub fn time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1e3 {
        format!("{micros:.0} µs")
    } else if micros < 1e6 {
        format!("{:.2} ms", micros / 1e3)
    } else {
        format!("{:.2} s", micros / 1e6)
    }
}

/// Formats messages as JSON documents, one in each line.
fn messages_json(seen: &[RecordedMessage], started: Instant, part: &str) -> String {
    let mut output = String::new();
    for message in seen {
        let summaries = message.summaries();
        let step = summaries
            .iter()
            .find_map(|summary| summary.step(&message.from));
        let summaries = summaries
            .iter()
            .map(|summary| json!({"op": summary.op, "about": summary.about}));
        let document = json!({
            "part": part,
            "seconds": message.at.saturating_duration_since(started).as_secs_f64(),
            "from": message.from,
            "to": message.to,
            "step": step.map(Step::name),
            "frames": message.frame_count,
            "bytes": message.len,
            "messages": summaries.collect::<Vec<_>>(),
        });
        output.push_str(&printable::json(&document));
        output.push('\n');
    }
    output
}

/// Formats messages as lines, grouped by step.
fn format_messages(seen: &[RecordedMessage], started: Instant, verbose: bool) -> String {
    let mut output = String::new();
    let mut step = None;
    for message in seen {
        let summaries = message.summaries();
        let own = summaries
            .iter()
            .find_map(|summary| summary.step(&message.from));
        // Workers send heartbeats all the time, and Dask has no acknowledgements.
        let is_heartbeat = |summary: &Summary| {
            summary.op.contains("heartbeat")
                || summary.op == "graphs-accepted"
                || summary.body.get("heartbeat-interval").is_some()
        };
        if !verbose && summaries.iter().all(is_heartbeat) {
            continue;
        }
        // A reply belongs to the step of its request.
        if let Some(own) = own
            && step != Some(own)
        {
            let _ = writeln!(output, "  {own}");
            step = Some(own);
        }
        let after = message.at.saturating_duration_since(started);
        let ends = format!("{:>9} → {}", message.from, message.to);
        let summary: Vec<String> = summaries
            .iter()
            .map(|summary| {
                format!("{} {}", summary.op, summary.about)
                    .trim_end()
                    .to_owned()
            })
            .collect();
        let _ = writeln!(
            output,
            "    {:>9}  {ends:<24} {}  ({}, {})",
            time(after),
            summary.join(", "),
            count(message.frame_count, "frame"),
            bytes(message.len),
        );
        if verbose {
            for summary in summaries {
                let _ = writeln!(output, "               {}", summary.body);
            }
        }
    }
    output
}
