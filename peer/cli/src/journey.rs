//! The journey of a task, shown: the example of Dask's documentation, with each
//! message that it takes.
//!
//! `x` and `y` are computed, `z = add(x, y)` is followed from `submit` until the
//! workers have forgotten it. A [`Recorder`] watches every comm of the roles that
//! run in this process: all of them on an embedded cluster, the client alone on a
//! real one.

use core::fmt::{self, Write as _};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use daskwire_peer::protocol::body;
use daskwire_peer::{Client, Key, ObservedMessage, Observer, PeerError, Value};

use crate::inspect::text::{bytes, count};

/// A message as it was seen.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// When.
    pub at: Instant,
    /// Who sent it.
    pub from: String,
    /// Who it is for.
    pub to: String,
    /// How many frames it has.
    pub frame_count: usize,
    /// Bytes of all frames.
    pub len: u64,
    /// The frames, the long ones empty: what they hold is not shown.
    frames: Vec<Bytes>,
}

impl Sighting {
    /// What each message of a batch, or the one message, says.
    pub fn says(&self) -> Vec<Summary> {
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

/// What a message says.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Its op, or `reply`.
    pub op: String,
    /// What it is about: keys, a status.
    pub about: String,
    /// All of it, payloads unopened.
    pub body: Value,
}

impl Summary {
    fn of(body: &Value) -> Self {
        let text = |name| body.get(name).and_then(Value::as_str);
        let op = text("op").unwrap_or("reply");
        let mut about = Vec::new();
        if op == "reply" {
            match (text("status"), body.as_str()) {
                (Some(status), _) | (None, Some(status)) => about.push(status.to_owned()),
                (None, None) if body.get("compression").is_some() => {
                    about.push("handshake".to_owned());
                }
                (None, None) => {}
            }
        }
        if let Some(key) = body.get("key") {
            about.push(shown(key));
        }
        for name in ["keys", "data", "who_has"] {
            match body.get(name) {
                Some(Value::List(keys) | Value::Set(keys)) => about.extend(keys.iter().map(shown)),
                Some(Value::Dict(entries)) if op != "compute-task" => {
                    about.extend(entries.iter().map(|(key, _)| shown(key)));
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

    /// Which step of the documentation it belongs to, as `from` says it.
    pub fn step(&self, from: &str) -> Option<Step> {
        Some(match self.op.as_str() {
            // A worker gathers what its task needs.
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

/// A key without the quotes that a text has.
fn shown(key: &Value) -> String {
    key.as_str().map_or_else(|| key.to_string(), str::to_owned)
}

/// The steps of the journey, as the documentation numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Step {
    /// 1: the client submits.
    Client,
    /// 2 to 4: the scheduler has connected the dependencies and chosen a worker,
    /// and sends the task there.
    Transmit,
    /// 5: the worker has gathered what it needs, and computed.
    Execute,
    /// 6: the scheduler tells those who wait.
    Aftermath,
    /// 7: the result is fetched.
    Gather,
    /// 8: what nobody needs is deleted.
    Collection,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "Step 1, client: the task is submitted, its future says \"pending\"",
            Self::Transmit => {
                "Steps 2 to 4, scheduler: dependencies connected, a worker chosen, the task sent"
            }
            Self::Execute => "Step 5, worker: missing data gathered, the task run, its size told",
            Self::Aftermath => "Step 6, scheduler: clients are told that the result is there",
            Self::Gather => "Step 7: the result is gathered",
            Self::Collection => "Step 8: what nobody needs any more is released and deleted",
        })
    }
}

/// Keeps all messages that it sees leave, and those that arrive from parties
/// that it does not see.
#[derive(Debug)]
pub struct Recorder {
    /// Whether it sees all parties: then each message is kept once.
    sees_all: bool,
    names: Mutex<HashMap<String, String>>,
    seen: Mutex<Vec<Sighting>>,
}

impl Recorder {
    /// One that sees all parties, or the client alone.
    pub fn new(sees_all: bool) -> Self {
        Self {
            sees_all,
            names: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// What to call whoever has an address, or a name that is too long.
    pub fn call(&self, address: &str, name: &str) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(address.to_owned(), name.to_owned());
    }

    fn name(&self, party: &str) -> String {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        match names.get(party) {
            Some(name) => name.clone(),
            // The port that somebody asks from says nothing.
            None if self.sees_all && party.contains("://") => "who asked".to_owned(),
            None => party.to_owned(),
        }
    }

    /// What was seen since the last time, in order.
    pub fn take(&self) -> Vec<Sighting> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::take(&mut *seen)
    }
}

impl Observer for Recorder {
    fn message(&self, seen: &ObservedMessage<'_>) {
        // Longer ones hold data: how long they are is enough.
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
        let sighting = Sighting {
            at: seen.at,
            from: self.name(from),
            to: self.name(to),
            frame_count: seen.frames.len(),
            len: seen.frames.iter().map(|frame| frame.len() as u64).sum(),
            frames: frames.collect(),
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(sighting);
    }
}

/// What the journey came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// `z`.
    pub result: Value,
    /// From `submit` of `z` to its result.
    pub took: Duration,
}

/// Goes on the journey: submits `x`, `y` and `z = add(x, y)`, gathers `z`, and
/// releases everything. `show` is called with lines as they come about.
///
/// # Errors
///
/// What goes wrong on the way.
pub async fn journey(
    client: &Client,
    recorder: &Recorder,
    verbose: bool,
    show: &mut dyn FnMut(&str),
) -> Result<Outcome, PeerError> {
    recorder.take();
    show("x = client.submit(add, 1, 2)\ny = client.submit(add, 3, 4)\n");
    // On a cluster of others these could be somebody's.
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
    show(&told(&recorder.take(), started, verbose));

    show("\nz = client.submit(add, x, y)   # we follow z\n");
    let started = Instant::now();
    let z = client
        .call("operator.add")
        .argument(&x)
        .argument(&y)
        .key(&third)
        .submit()?;
    // Writing this takes longer than the first steps.
    let status = z.status();
    let result = z.result().await?;
    let took = started.elapsed();
    show(&format!("z is {:?}\n", status.name()));
    show(&told(&recorder.take(), started, verbose));
    show(&format!(
        "\nz.result() is {result}, {} after it was submitted\n",
        time(took)
    ));

    show("\ndel x, y, z\n");
    let started = Instant::now();
    drop((x, y, z));
    // Deletions are sent every 500 ms.
    tokio::time::sleep(Duration::from_millis(700)).await;
    show(&told(&recorder.take(), started, verbose));
    Ok(Outcome { result, took })
}

/// A time for people: two or three digits of the unit that fits.
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

/// The messages as lines, under the steps that they belong to.
fn told(seen: &[Sighting], started: Instant, verbose: bool) -> String {
    let mut text = String::new();
    let mut step = None;
    for sighting in seen {
        let says = sighting.says();
        let own = says.iter().find_map(|said| said.step(&sighting.from));
        // Workers say all the time how they are.
        let is_heartbeat = |said: &Summary| {
            said.op.contains("heartbeat") || said.body.get("heartbeat-interval").is_some()
        };
        if !verbose && says.iter().all(is_heartbeat) {
            continue;
        }
        // A reply belongs to what it answers.
        if let Some(own) = own
            && step != Some(own)
        {
            let _ = writeln!(text, "  {own}");
            step = Some(own);
        }
        let after = sighting.at.saturating_duration_since(started);
        let ends = format!("{:>9} → {}", sighting.from, sighting.to);
        let said: Vec<String> = says
            .iter()
            .map(|said| format!("{} {}", said.op, said.about).trim_end().to_owned())
            .collect();
        let _ = writeln!(
            text,
            "    {:>9}  {ends:<24} {}  ({}, {})",
            time(after),
            said.join(", "),
            count(sighting.frame_count, "frame"),
            bytes(sighting.len),
        );
        if verbose {
            for said in says {
                let _ = writeln!(text, "               {}", said.body);
            }
        }
    }
    text
}
