//! The `daskwire ps`, `logs` and `story` commands.

use std::collections::HashMap;

use crate::format::{aligned, bytes, count, duration};
use crate::inspect::capture::Time;
use clap::Args;
use daskwire::display::Printable;
use daskwire_peer::client::{LogLine, StoryStep};
use daskwire_peer::{Client, Key, Value};
use serde_json::{Value as Json, json};

use crate::command::cluster_command::{SchedulerArguments, key, leave, list, message};
use crate::command::failure::Result;
use crate::command::show::{NotJson, value_json};
use crate::command::snapshot::Snapshot;
use crate::command::terminal;
use crate::printable;

#[derive(Debug, Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    scheduler: SchedulerArguments,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    scheduler: SchedulerArguments,
    /// Workers, by addresses or names [default: the scheduler's own log]
    workers: Vec<String>,
    /// Show only the last COUNT entries of each log
    #[arg(long, short = 'n', value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    lines: Option<u64>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Story {
    #[command(flatten)]
    scheduler: SchedulerArguments,
    /// Keys of tasks, or the causes that stories name; after -- if they begin with a
    /// dash
    #[arg(required = true)]
    keys: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) async fn ps(arguments: &Ps) -> Result {
    let client = arguments.scheduler.connect().await?;
    let snapshot = Snapshot::take(&client).await.map_err(message)?;
    if arguments.json {
        terminal::print(printable::json(&snapshot.json()))?;
    } else {
        terminal::print(table(&snapshot).trim_end())?;
    }
    leave(client).await;
    Ok(())
}

fn table(snapshot: &Snapshot) -> String {
    let mut out = format!("Scheduler {}", Printable(&snapshot.address));
    if let Some(release) = &snapshot.release {
        out.push_str(&format!(", distributed {release}"));
    }
    if let Some(uptime) = snapshot.uptime {
        out.push_str(&format!(", up for {}", duration(uptime)));
    }
    let threads = snapshot.sum(|worker| worker.nthreads);
    out.push_str(&format!(
        "\n  {}, {}, {} of memory used\n",
        count(snapshot.workers.len(), "worker"),
        count(usize::try_from(threads).unwrap_or(usize::MAX), "thread"),
        bytes(snapshot.sum(|worker| worker.memory)),
    ));
    if !snapshot.workers.is_empty() {
        let mut rows = vec![
            [
                "address", "name", "status", "threads", "cpu", "memory", "limit", "spilled",
                "assigned", "running", "ready", "stored", "in", "out",
            ]
            .map(str::to_owned),
        ];
        rows.extend(snapshot.workers.iter().map(|worker| {
            [
                Printable(&worker.address).to_string(),
                Printable(&worker.name).to_string(),
                Printable(&worker.status).to_string(),
                worker.nthreads.to_string(),
                format!("{:.0} %", worker.cpu),
                bytes(worker.memory),
                match worker.memory_limit {
                    0 => "none".to_owned(),
                    limit => bytes(limit),
                },
                bytes(worker.spilled),
                worker.processing.to_string(),
                worker.executing.to_string(),
                worker.ready.to_string(),
                worker.stored.to_string(),
                bytes(worker.incoming),
                bytes(worker.outgoing),
            ]
        }));
        out.push('\n');
        out.push_str(&aligned(&rows, 3));
    }
    if !snapshot.prefixes.is_empty() {
        let states = snapshot.shown_states();
        let titles = states.iter().map(|(state, _)| (*state).to_owned());
        let mut rows = vec![
            core::iter::once("tasks".to_owned())
                .chain(titles)
                .collect::<Vec<_>>(),
        ];
        rows.extend(snapshot.prefixes.iter().map(|(prefix, numbers)| {
            let number = |state| numbers.get(state).copied().unwrap_or(0).to_string();
            let numbers = states.iter().map(|(state, _)| number(*state));
            core::iter::once(Printable(prefix).to_string())
                .chain(numbers)
                .collect()
        }));
        out.push('\n');
        out.push_str(&aligned(&rows, 1));
    }
    out
}

pub(crate) async fn logs(arguments: &Logs) -> Result {
    let client = arguments.scheduler.connect().await?;
    let logs = if arguments.workers.is_empty() {
        let lines = client.scheduler_logs(arguments.lines).await;
        vec![(None, lines.map_err(message)?)]
    } else {
        let addresses = addresses(&client, &arguments.workers).await?;
        let logs = client.worker_logs(addresses, arguments.lines).await;
        let logs = logs.map_err(message)?.into_iter();
        logs.map(|(worker, lines)| (Some(worker), lines)).collect()
    };
    if arguments.json {
        let logs = logs.iter().map(|(worker, lines)| log_json(worker, lines));
        let document = json!({"logs": logs.collect::<Vec<_>>()});
        terminal::print(printable::json(&document))?;
    } else {
        let is_one = logs.len() == 1;
        for (worker, lines) in &logs {
            if let (false, Some(worker)) = (is_one, worker) {
                terminal::print(format_args!("{}:", Printable(worker)))?;
            }
            // The scheduler sends the newest line first.
            for line in lines.iter().rev() {
                terminal::print(&line.line)?;
            }
        }
    }
    leave(client).await;
    Ok(())
}

fn log_json(worker: &Option<String>, lines: &[LogLine]) -> Json {
    let lines = lines.iter().rev();
    let lines = lines.map(|line| json!({"level": line.level, "line": line.line}));
    json!({"worker": worker, "lines": lines.collect::<Vec<_>>()})
}

/// Resolves worker addresses and names to addresses.
async fn addresses(client: &Client, names: &[String]) -> Result<Vec<String>> {
    let workers = client.workers().await.map_err(message)?;
    let mut addresses = Vec::new();
    for name in names {
        let mut workers = workers.iter();
        let found = workers.find(|worker| worker.address == *name || worker.name == *name);
        let found = found.ok_or_else(|| format!("the cluster has no worker {name}"))?;
        addresses.push(found.address.clone());
    }
    Ok(addresses)
}

pub(crate) async fn story(arguments: &Story) -> Result {
    let keys = arguments.keys.iter().map(|input| key("KEYS", input));
    let keys: Vec<Key> = keys.collect::<Result<_>>()?;
    let client = arguments.scheduler.connect().await?;
    let steps = client.story(&keys).await.map_err(message)?;
    let workers = client.workers().await.map_err(message)?;
    if arguments.json {
        let steps: Result<Vec<Json>, NotJson> = steps.iter().map(step_json).collect();
        let steps = steps.map_err(|error| error.to_string())?;
        terminal::print(printable::json(&json!({"steps": steps})))?;
    }
    if steps.is_empty() {
        let keys = list(&keys);
        return Err(format!("neither the scheduler nor a worker has a record of {keys}").into());
    }
    if !arguments.json {
        let names = workers.iter();
        let names = names.map(|worker| (worker.address.as_str(), worker.name.as_str()));
        let names: HashMap<&str, &str> = names.collect();
        let name = |address: &Option<String>| match address {
            None => "scheduler".to_owned(),
            Some(address) => {
                let name = names.get(address.as_str()).copied();
                Printable(name.unwrap_or(address)).to_string()
            }
        };
        let rows: Vec<[String; 3]> = steps
            .iter()
            .map(|step| {
                let mut step = step.clone();
                // A key is formatted as in a command line.
                if let Some(key @ (Value::List(_) | Value::Tuple(_))) = step.step.first_mut()
                    && let Ok(json) = value_json(key)
                {
                    *key = Value::from(json.to_string());
                }
                let line = step.to_string();
                [
                    when(step.time),
                    name(&step.worker),
                    Printable(&line).to_string(),
                ]
            })
            .collect();
        terminal::print(aligned(&rows, 3).trim_end())?;
    }
    leave(client).await;
    Ok(())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "casts saturate"
)]
fn when(seconds: f64) -> String {
    Time((seconds * 1e9) as u64).to_string()
}

fn step_json(step: &StoryStep) -> Result<Json, NotJson> {
    let parts: Vec<Json> = step.step.iter().map(value_json).collect::<Result<_, _>>()?;
    let (from, to) = step.states().unzip();
    Ok(json!({
        "time": step.time,
        "worker": step.worker,
        "from": from,
        "to": to,
        "stimulus": step.stimulus,
        "step": parts,
    }))
}
