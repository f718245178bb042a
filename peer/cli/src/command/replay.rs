//! The `daskwire replay` command.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;
use daskwire_messages::Key;
use daskwire_messages::protocol::{Body, Field, FromClient, FromWorker, ToClient, ToWorker, body};
use daskwire_messages::scratch::MessageScratch;
use daskwire_peer::TaskChange;
use daskwire_scheduler::state::{
    Action, ClientId, Dump, Outcome, Place, Policy, Recorded, Recording, SchedulerInput, State,
    WorkerId,
};
use serde_json::{Value as Json, json};

use crate::command::arguments::{name, read};
use crate::command::cluster_command::key;
use crate::command::failure::{Failure, Result};
use crate::command::show::value_json;
use crate::command::terminal;
use crate::command::worker_command::quantity::duration;
use crate::format::count;
use crate::inspect::capture::Time;
use crate::journey::Summary;
use crate::printable;

/// Number of tasks up to which the state is checked after each event.
const MAX_CHECKED: usize = 1_000;

/// Maximum number of lines for an event, unless all are asked for.
const MAX_LINES: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The recording of `daskwire scheduler --record`, or - for standard input
    file: PathBuf,
    /// Stop at this time since the start of the scheduler, such as 12.5s, or once the task with this
    /// key has a result, has failed or is forgotten
    #[arg(long, value_name = "KEY|TIME")]
    until: Option<String>,
    /// Show only what happened to the task with this key, and the events that led to it
    #[arg(long, value_name = "KEY")]
    story: Option<String>,
    /// Show also events of which nothing followed, such as heartbeats, and each message
    #[arg(long)]
    all: bool,
    /// Check the state machine after each event, also with more than 1,000 tasks, which takes long
    #[arg(long)]
    check_all: bool,
    /// Print the whole state at the end as a JSON document, as in a cluster dump of Dask, and not the
    /// steps
    #[arg(long)]
    state: bool,
    /// Print a JSON document for each step
    #[arg(long, conflicts_with = "state")]
    json: bool,
}

/// Where to stop.
enum Until {
    End,
    Time(Duration),
    Key(Key),
}

pub(crate) fn run(arguments: &Replay) -> Result {
    let until = match &arguments.until {
        None => Until::End,
        // `second` alone is a key, although it is also a duration.
        Some(text) if text.starts_with(|first: char| first.is_ascii_digit()) => {
            match duration(text) {
                Ok(time) => Until::Time(time),
                Err(_) => Until::Key(key("--until", text)?),
            }
        }
        Some(text) => Until::Key(key("--until", text)?),
    };
    let story = arguments.story.as_ref().map(|text| key("--story", text));
    let file = name(&arguments.file);
    let bytes = read(&arguments.file)?;
    let mut replay = Replaying {
        recording: Recording::new(&bytes),
        state: State::new(Policy::default()),
        names: Names::default(),
        began: None,
        now: Duration::ZERO,
        event_count: 0,
        unchecked_count: 0,
        checked_count: 0,
        arguments,
        until,
        has_ended: false,
        story: story.transpose()?,
        out: Box::new(terminal::stdout()),
    };
    let outcome = replay.run(&file);
    let flushed = terminal::outcome(replay.out.flush());
    outcome?;
    Ok(flushed?)
}

struct Replaying<'r> {
    recording: Recording<'r>,
    state: State,
    names: Names,
    /// The time of the first event.
    began: Option<Duration>,
    now: Duration,
    event_count: u64,
    /// Number of events since the last check, and number of checks.
    unchecked_count: usize,
    checked_count: u64,
    arguments: &'r Replay,
    until: Until,
    /// Whether the task was reached at which to stop.
    has_ended: bool,
    story: Option<Key>,
    out: Box<dyn Write>,
}

impl Replaying<'_> {
    fn run(&mut self, file: &str) -> Result {
        let mut last = String::new();
        let mut is_open = false;
        let mut version = String::new();
        while !self.is_over() {
            let at = self.recording.position();
            let entry = self.recording.next();
            let entry = entry.map_err(|error| format!("{file}: {error}"))?;
            let Some(entry) = entry else {
                break;
            };
            if version.is_empty() && !matches!(entry, Recorded::Beginning(_)) {
                break;
            }
            match entry {
                Recorded::Beginning(beginning) => {
                    version = beginning.version.clone();
                    let what = match beginning.has_payloads {
                        true => "with payloads",
                        false => "sizes only",
                    };
                    self.state = beginning.state;
                    // The first event follows at once: the time passes.
                    let at = self.recording.clone().next().ok().flatten();
                    let at = match at {
                        Some(Recorded::Event(now, _)) => format!(" from {}", date(now)),
                        _ => String::new(),
                    };
                    self.note(&format!("recorded by version {version}{at}, {what}"))?;
                }
                Recorded::Event(_, event) if matches!(*event, SchedulerInput::WatchTasks(_)) => {
                    is_open = false;
                }
                Recorded::Event(now, event) => {
                    self.event_count += 1;
                    self.at(now);
                    last = self.names.describe(&event);
                    let is_quiet = is_quiet(&event);
                    let actions = self.guarded(&last, |state| state.handle(now, *event))?;
                    self.show(&last, is_quiet, &actions)?;
                    is_open = true;
                }
                Recorded::Slice(now) => {
                    self.event_count += 1;
                    self.at(now);
                    last = "continues earlier work".to_owned();
                    let actions = self.guarded(&last, |state| state.proceed(now))?;
                    self.show(&last, true, &actions)?;
                    is_open = true;
                }
                Recorded::Outcome(outcome) if is_open => {
                    is_open = false;
                    self.compare(outcome, at, &last, &version)?;
                }
                Recorded::Unwritten(error) => {
                    self.note(&format!(
                        "an event could not be recorded, so that what follows may differ: {error}"
                    ))?;
                }
                _ => {}
            }
        }
        if version.is_empty() {
            return Err(format!(
                "{file}: not a recording of `daskwire scheduler --record`: it does not begin like one"
            )
            .into());
        }
        if is_open && matches!(self.until, Until::End) {
            self.note(&format!(
                "the recording ends in this event: the scheduler has panicked, or was killed: {last}"
            ))?;
        }
        self.check(&last, true)?;
        self.finish()
    }

    /// Notes the time of an event.
    fn at(&mut self, now: Duration) {
        self.began.get_or_insert(now);
        self.now = now;
    }

    fn since_start(&self) -> Duration {
        self.now.saturating_sub(self.began.unwrap_or_default())
    }

    fn is_over(&self) -> bool {
        match &self.until {
            Until::End => false,
            Until::Time(time) => self.since_start() >= *time && self.event_count > 0,
            Until::Key(_) => self.has_ended,
        }
    }

    /// Has the state do something, and checks it. A panic becomes an error that names the event.
    fn guarded(
        &mut self,
        what: &str,
        act: impl FnOnce(&mut State) -> Vec<Action>,
    ) -> Result<Vec<Action>> {
        let state = &mut self.state;
        let acted = quietly(|| act(state));
        let actions = acted.map_err(|panic| self.fault("panics", what, &panic))?;
        // Nothing reads the journal of a scheduler that had one.
        self.state.take_journal(&mut Vec::new());
        self.check(what, false)?;
        Ok(actions)
    }

    fn check(&mut self, what: &str, is_last: bool) -> Result {
        self.unchecked_count += 1;
        let is_due = is_last
            || self.arguments.check_all
            || self.unchecked_count * MAX_CHECKED >= self.state.task_count();
        if is_due {
            self.unchecked_count = 0;
            self.checked_count += u64::from(!is_last);
            let state = &self.state;
            let checked = quietly(|| state.check());
            checked.map_err(|panic| self.fault("is inconsistent", what, &panic))?;
        }
        Ok(())
    }

    fn fault(&self, how: &str, what: &str, panic: &str) -> Failure {
        let time = self.since_start().as_secs_f64();
        let number = self.event_count;
        Failure::from(format!(
            "the state machine {how} after event {number}, at {time:.3} s ({what}): {panic}"
        ))
    }

    /// Compares the state with that of the scheduler.
    fn compare(&self, recorded: Outcome, at: usize, what: &str, version: &str) -> Result {
        let here = self.state.outcome();
        if here == recorded {
            return Ok(());
        }
        let time = self.since_start().as_secs_f64();
        let number = self.event_count;
        let texts = [recorded, here].map(|outcome| {
            format!(
                "{} actions, {} tasks, {} processing, {} queued",
                outcome.action_count,
                outcome.task_count,
                outcome.processing_count,
                outcome.queued_count
            )
        });
        let [recorded, here] = texts;
        Err(format!(
            "this program decides otherwise than the scheduler of version {version} after event {number}, \
             at {time:.3} s ({what}; byte {at}): recorded are {recorded}; here are {here}"
        )
        .into())
    }

    fn show(&mut self, what: &str, is_quiet: bool, actions: &[Action]) -> Result {
        if let Until::Key(key) = &self.until
            && actions.iter().any(|action| has_ended(action, key))
        {
            self.has_ended = true;
        }
        if self.arguments.state {
            return Ok(());
        }
        let steps = self.names.steps(actions, self.story.as_ref());
        let is_shown = match (&self.story, steps.is_empty()) {
            (_, false) => true,
            (Some(_), true) => false,
            (None, true) => self.arguments.all || !is_quiet,
        };
        if !is_shown {
            return Ok(());
        }
        let time = self.since_start().as_secs_f64();
        if self.arguments.json {
            let line = json!({
                "number": self.event_count,
                "time": self.now.as_secs_f64(),
                "since_start": time,
                "event": what,
                "followed": steps,
            });
            return self.line(&printable::json(&line));
        }
        self.line(&format!("{time:10.3} s  {what}"))?;
        let max = match self.arguments.all {
            true => usize::MAX,
            false => MAX_LINES,
        };
        for step in steps.iter().take(max) {
            self.line(&format!("                {step}"))?;
        }
        if let Some(more) = steps.len().checked_sub(max).filter(|more| *more > 0) {
            self.line(&format!(
                "                and {more} more, which --all shows"
            ))?;
        }
        Ok(())
    }

    /// Prints where the recording stopped, and the tasks and workers there.
    fn finish(&mut self) -> Result {
        if self.arguments.state {
            let mut dump = Dump::new(&[]);
            while !self.state.dump_slice(&mut dump) {}
            let mut document = serde_json::Map::new();
            for (name, value) in dump.into_parts() {
                let value = value_json(&value).map_err(|error| error.to_string())?;
                document.insert(name.to_owned(), value);
            }
            return self.line(&printable::json(&Json::Object(document)));
        }
        let time = self.since_start().as_secs_f64();
        let events = count(
            usize::try_from(self.event_count).unwrap_or(usize::MAX),
            "event",
        );
        let of_all = match self.recording.remaining_len() {
            0 => String::new(),
            len => format!(", with {len} bytes of the recording left"),
        };
        self.note(&format!("stopped after {events} at {time:.3} s{of_all}"))?;
        let tasks = count(self.state.task_count(), "task");
        let counts = self.state.state_counts();
        let mut counts: Vec<(&str, u64)> = counts.iter().filter(|(_, count)| *count > 0).collect();
        counts.sort_unstable();
        let stages: Vec<String> = counts
            .iter()
            .map(|(stage, count)| format!("{count} {stage}"))
            .collect();
        self.note(&match stages.is_empty() {
            true => tasks,
            false => format!("{tasks}: {}", stages.join(", ")),
        })?;
        if let Some(key) = &self.story {
            let status = self.state.status(key);
            let holders: Vec<&str> = self.state.holders(key).collect();
            let text = match (status, holders.is_empty()) {
                (None, _) => format!("{key} is not known"),
                (Some(status), true) => format!("{key} is {}", status.as_str()),
                (Some(status), false) => {
                    format!("{key} is {}, on {}", status.as_str(), holders.join(", "))
                }
            };
            self.note(&text)?;
        }
        let addresses: Vec<String> = {
            let workers = self.state.worker_ids().take(MAX_LINES);
            workers.map(|(_, address)| address.to_owned()).collect()
        };
        for address in &addresses {
            let mut keys = Vec::new();
            let mut place = Place::default();
            while !self.state.processing(address, &mut place, &mut keys) {}
            let shown: Vec<String> = keys.iter().take(5).map(Key::to_string).collect();
            let more = if keys.len() > shown.len() {
                ", …"
            } else {
                ""
            };
            let text = match keys.is_empty() {
                true => format!("worker {address} processes nothing"),
                false => format!(
                    "worker {address} processes {}: {}{more}",
                    count(keys.len(), "task"),
                    shown.join(", ")
                ),
            };
            self.note(&text)?;
        }
        let workers = self.state.worker_count();
        if let Some(more) = workers
            .checked_sub(addresses.len())
            .filter(|more| *more > 0)
        {
            self.note(&format!("and {}", count(more, "more worker")))?;
        }
        let checks = match self.checked_count == self.event_count {
            true => "each event".to_owned(),
            false => format!(
                "each of {} events that were checked, of {events} (--check-all checks all)",
                self.checked_count
            ),
        };
        self.note(&format!("the state was consistent after {checks}"))
    }

    fn note(&mut self, text: &str) -> Result {
        if self.arguments.state {
            return Ok(());
        }
        match self.arguments.json {
            true => self.line(&printable::json(&json!({ "note": text }))),
            false => self.line(text),
        }
    }

    fn line(&mut self, text: &str) -> Result {
        Ok(terminal::outcome(writeln!(self.out, "{text}"))?)
    }
}

/// The names of clients and the addresses of workers.
#[derive(Default)]
struct Names {
    clients: BTreeMap<ClientId, String>,
    workers: BTreeMap<WorkerId, String>,
    scratch: MessageScratch,
}

impl Names {
    fn client(&self, id: ClientId) -> String {
        match self.clients.get(&id) {
            Some(name) => format!("client {name}"),
            None => format!("client {}", id.0),
        }
    }

    fn worker(&self, id: WorkerId) -> String {
        match self.workers.get(&id) {
            Some(address) => format!("worker {address}"),
            None => format!("worker {}", id.0),
        }
    }

    /// The op of a message, and what it is about.
    fn message(&mut self, message: &impl Field) -> String {
        let frames = self.scratch.with_frames(&Body(message), |frames| {
            let frames = frames.iter().map(|frame| Bytes::copy_from_slice(frame));
            frames.collect::<Vec<Bytes>>()
        });
        let Summary { op, about, .. } = match frames.ok().and_then(|frames| body(&frames).ok()) {
            Some(body) => Summary::of(&body),
            None => return "a message".to_owned(),
        };
        match about.is_empty() {
            true => op,
            false => format!("{op} {about}"),
        }
    }

    /// Describes an event, and notes the names in it.
    fn describe(&mut self, event: &SchedulerInput) -> String {
        match event {
            SchedulerInput::Tick => "time passes".to_owned(),
            SchedulerInput::ClientJoined { id, name, .. } => {
                self.clients.insert(*id, name.clone());
                format!("client {name} joins")
            }
            SchedulerInput::ClientLeft(id) => format!("{} leaves", self.client(*id)),
            SchedulerInput::ClientExpected { name, .. } => format!("client {name} may return"),
            SchedulerInput::ClientBehind(id) => {
                format!("{} does not read its messages", self.client(*id))
            }
            SchedulerInput::ClientDrained(id) => {
                format!("{} has read its messages", self.client(*id))
            }
            SchedulerInput::FromClient(id, message) => {
                format!("{}: {}", self.client(*id), self.message(message))
            }
            SchedulerInput::Submitted(id, submission) => {
                let (wanted, tasks) = submission.counts();
                let tasks = count(tasks, "task");
                let more = if submission.is_whole() {
                    ""
                } else {
                    " and more"
                };
                let client = self.client(*id);
                format!("{client} submits {tasks}{more}, and wants {wanted}")
            }
            SchedulerInput::SubmissionContinued(id, part) => {
                let tasks = count(part.len(), "task");
                format!("{} submits {tasks} more", self.client(*id))
            }
            SchedulerInput::SubmissionRefused(id, refusal) => {
                let keys = count(refusal.keys().len(), "key");
                format!(
                    "{} submits a graph that is refused, with {keys}: {refusal}",
                    self.client(*id)
                )
            }
            SchedulerInput::WorkerJoined { id, registration } => {
                let address = &registration.address;
                self.workers.insert(*id, address.clone());
                let threads = usize::try_from(registration.nthreads).unwrap_or(usize::MAX);
                format!("worker {address} joins, with {}", count(threads, "thread"))
            }
            SchedulerInput::WorkerLeft(id) => format!("{} leaves", self.worker(*id)),
            SchedulerInput::FromWorker(id, message) => {
                format!("{}: {}", self.worker(*id), self.message(message))
            }
            SchedulerInput::Drained(id) => format!("{} has read its messages", self.worker(*id)),
            SchedulerInput::Heartbeat { worker, .. } => format!("worker {worker}: heartbeat"),
            SchedulerInput::DataStored {
                client, who_has, ..
            } => {
                let client = client.as_deref().unwrap_or("without a name");
                format!("data of client {client}: {}", count(who_has.len(), "key"))
            }
            SchedulerInput::DataExpected { worker, keys } => {
                format!("worker {worker} is about to get {}", list(keys))
            }
            SchedulerInput::DataNotDeleted { worker, keys } => {
                format!(
                    "worker {worker} could not be asked to delete {}",
                    list(keys)
                )
            }
            SchedulerInput::DataMissing { worker, keys } => {
                format!("worker {worker} lacks {}", list(keys))
            }
            SchedulerInput::ReplicasAdded { worker, keys } => {
                format!("worker {worker} has copies of {}", list(keys))
            }
            SchedulerInput::ReplicasDropped { worker, keys } => {
                format!("worker {worker} is to delete its copies of {}", list(keys))
            }
            SchedulerInput::ResourcesSet { worker, .. } => {
                format!("worker {worker} has other resources")
            }
            SchedulerInput::Restricted(tasks) => {
                format!("{} may run on other workers", count(tasks.len(), "task"))
            }
            SchedulerInput::Retry(keys) => format!("retries {}", list(keys)),
            SchedulerInput::RetireWorkers(workers) => format!("retires {}", workers.join(", ")),
            SchedulerInput::KeepWorker(worker) => format!("keeps worker {worker}"),
            SchedulerInput::RemoveWorker { worker, .. } => format!("removes worker {worker}"),
            SchedulerInput::CloseWorker(worker) => format!("asks worker {worker} to end"),
            SchedulerInput::Requested { id, request } => {
                format!("request {}: {}", id.0, self.message(&**request))
            }
            SchedulerInput::Replied(id) => format!("the reply to request {} was sent", id.0),
            SchedulerInput::RequestDropped(id) => format!("request {} is dropped", id.0),
            SchedulerInput::RunCreated { run_id, run } => match run {
                Ok(_) => format!("run {run_id} of a shuffle was created"),
                Err(failure) => format!("run {run_id} of a shuffle failed: {}", failure.text),
            },
            SchedulerInput::ShuffleRestarted { shuffle, run_id } => {
                format!("run {run_id} of shuffle {shuffle} starts again")
            }
            SchedulerInput::SetReducingReplicas(is_on) => {
                let what = if *is_on { "starts" } else { "stops" };
                format!("{what} to delete superfluous copies")
            }
            SchedulerInput::ReduceReplicas => "deletes superfluous copies".to_owned(),
            SchedulerInput::MemorySamplerStarted { key, .. } => {
                format!("starts to sample memory as {key}")
            }
            SchedulerInput::MemorySamplerStopped(key) => format!("ends to sample memory as {key}"),
            SchedulerInput::Restart => "forgets all tasks (restart)".to_owned(),
            SchedulerInput::Published { topics, .. } => {
                format!("publishes in {}", topics.to_unquoted())
            }
            SchedulerInput::MetadataSet { path, .. } => format!("sets metadata {}", list(path)),
            SchedulerInput::RecordTasks => "records the ends of tasks".to_owned(),
            SchedulerInput::CollectionStarted(name) => format!("collects metadata as {name}"),
            SchedulerInput::CollectionEnded(name) => format!("ends to collect metadata as {name}"),
            SchedulerInput::WatchTasks(_)
            | SchedulerInput::ObserveEnds(_)
            | SchedulerInput::ObserveTopics(_) => "changes what is observed".to_owned(),
            SchedulerInput::PluginRegistered {
                name,
                is_registered,
            } => {
                let what = if *is_registered {
                    "registers"
                } else {
                    "removes"
                };
                format!("{what} the plugin {name}")
            }
            SchedulerInput::Resumed => "the tasks of the journal may run".to_owned(),
            SchedulerInput::Close => "closes".to_owned(),
            other => format!("{other:?}"),
        }
    }

    /// Describes what followed from an event; only what is about a task, if one is given.
    fn steps(&mut self, actions: &[Action], about: Option<&Key>) -> Vec<String> {
        let mut steps: Vec<(Option<(Key, &'static str)>, String)> = Vec::new();
        for action in actions {
            if about.is_some_and(|key| !is_about(action, key)) {
                continue;
            }
            let text = match action {
                Action::Task(event) => {
                    if let TaskChange::State { from, to } = &event.change {
                        if let Some((Some((key, last)), text)) = steps.last_mut()
                            && *key == event.key
                            && *last == *from
                        {
                            *last = to;
                            *text = format!("{text} -> {to}");
                        } else {
                            let text = format!("{}: {from} -> {to}", event.key);
                            steps.push((Some((event.key.clone(), to)), text));
                        }
                        continue;
                    }
                    format!("{}: {event}", event.key)
                }
                Action::ToClient(id, message) => {
                    format!("to {}: {}", self.client(*id), self.message(message))
                }
                Action::ToWorker(id, message) => {
                    format!("to {}: {}", self.worker(*id), self.message(message))
                }
                Action::RefuseWorker(id, refusal) => {
                    format!("refuses {}: {refusal}", self.worker(*id))
                }
                Action::EndClient(id) => format!("ends the stream of {}", self.client(*id)),
                Action::EndWorker(id) => format!("ends the stream of {}", self.worker(*id)),
                Action::Reply(id, Ok(_)) => format!("replies to request {}", id.0),
                Action::Reply(id, Err(refusal)) => {
                    format!("refuses request {}: {refusal}", id.0)
                }
                Action::CreateRun(run) => {
                    format!("has Python create run {} of a shuffle", run.run_id)
                }
                Action::Notice(notice) => notice.to_string(),
                Action::AcceptWorker { .. }
                | Action::NotifyDrained(_)
                | Action::NotifyClientDrained(_)
                | Action::TaskEnded(_)
                | Action::Published { .. } => continue,
            };
            steps.push((None, text));
        }
        steps.into_iter().map(|(_, text)| text).collect()
    }
}

/// A time since 1970.
fn date(time: Duration) -> Time {
    Time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Keys for a line of text.
fn list(keys: &[Key]) -> String {
    let shown: Vec<String> = keys.iter().take(5).map(Key::to_string).collect();
    match keys.len().checked_sub(shown.len()) {
        None | Some(0) => shown.join(", "),
        Some(more) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Whether an event is shown only if something follows from it.
fn is_quiet(event: &SchedulerInput) -> bool {
    match event {
        SchedulerInput::Tick
        | SchedulerInput::Heartbeat { .. }
        | SchedulerInput::Drained(_)
        | SchedulerInput::ClientDrained(_)
        | SchedulerInput::Replied(_)
        | SchedulerInput::WatchTasks(_)
        | SchedulerInput::ObserveEnds(_)
        | SchedulerInput::ObserveTopics(_) => true,
        SchedulerInput::FromClient(_, message) => matches!(message, FromClient::HeartbeatClient(_)),
        SchedulerInput::FromWorker(_, message) => matches!(message, FromWorker::KeepAlive(_)),
        _ => false,
    }
}

/// Whether an action is about a task.
fn is_about(action: &Action, key: &Key) -> bool {
    match action {
        Action::Task(event) => event.key == *key,
        Action::ToClient(_, message) => match message {
            ToClient::KeyInMemory(message) => message.key == *key,
            ToClient::TaskErredForClient(message) => message.key == *key,
            ToClient::LostData(message) => message.key == *key,
            ToClient::TaskRetried(message) => message.key == *key,
            ToClient::CancelledKey(message) => message.key == *key,
            ToClient::CancelledKeys(message) => message.keys.contains(key),
            _ => false,
        },
        Action::ToWorker(_, message) => match message {
            ToWorker::ComputeTask(message) => message.key == *key,
            ToWorker::StealRequest(message) => message.key == *key,
            ToWorker::FreeKeys(message) => message.keys.contains(key),
            ToWorker::RemoveReplicas(message) => message.keys.contains(key),
            ToWorker::AcquireReplicas(message) => {
                message.who_has.iter().any(|(known, _)| known == key)
            }
            _ => false,
        },
        _ => false,
    }
}

/// Whether the task with this key has a result, has failed or is forgotten.
fn has_ended(action: &Action, key: &Key) -> bool {
    match action {
        Action::Task(event) if event.key == *key => match &event.change {
            TaskChange::State { to, .. } => matches!(*to, "memory" | "erred" | "forgotten"),
            _ => false,
        },
        _ => false,
    }
}

/// Calls a function whose panic is expected, and returns the panic's message.
fn quietly<R>(act: impl FnOnce() -> R) -> Result<R, String> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = catch_unwind(AssertUnwindSafe(act));
    std::panic::set_hook(hook);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("a panic without a message").to_owned()
    })
}
