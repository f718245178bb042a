//! The encoding of a recording.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use daskwire::message::BuildError;
use daskwire_messages::protocol::{Body, Field, FromClient, FromWorker, Request};
use daskwire_messages::scratch::MessageScratch;
use daskwire_messages::{Serialized, Value};

use super::blank::{self, Blanked};
use super::{Demands, Failure, Kind, Refusal, Submission, SubmissionPart, VERSION};
use crate::event::SchedulerInput;
use crate::memory::MemoryMeasure;
use crate::notice::LeaveReason;
use crate::record::Writer;
use crate::shuffles::{CreatedRun, RunFailure};
use crate::submission::Dependency;
use crate::{Policy, Rebalancing};

/// Writes the first record.
pub(super) fn beginning(
    to: &mut Writer<'_>,
    policy: &Policy,
    slice_len: usize,
    has_payloads: bool,
    restored_at: Option<Duration>,
) {
    to.number(VERSION);
    to.bytes(env!("CARGO_PKG_VERSION").as_bytes());
    to.flag(has_payloads);
    to.number(slice_len as u64);
    to.maybe_duration(restored_at);
    let Policy {
        seed,
        deletion_interval,
        allowed_failures,
        saturation,
        is_stealing,
        stealing_interval,
        durations,
        worker_ttl,
        topic_length,
        max_shared_len,
        max_tasks_len,
        replica_interval,
        replica_measure,
        no_worker_timeout,
        task_stream_length,
        rebalancing,
        client_grace,
    } = policy;
    to.number(*seed);
    to.duration(*deletion_interval);
    to.number(u64::from(*allowed_failures));
    to.float(*saturation);
    to.flag(*is_stealing);
    to.duration(*stealing_interval);
    to.number(durations.len() as u64);
    for (prefix, duration) in durations {
        to.bytes(prefix.as_bytes());
        to.duration(*duration);
    }
    to.maybe_duration(*worker_ttl);
    to.number(*topic_length as u64);
    to.number(*max_shared_len as u64);
    to.number(*max_tasks_len as u64);
    to.maybe_duration(*replica_interval);
    to.number(measure_code(*replica_measure));
    to.maybe_duration(*no_worker_timeout);
    to.number(*task_stream_length as u64);
    let Rebalancing {
        is_of_data,
        sender_min,
        recipient_max,
        gap,
    } = rebalancing;
    to.flag(*is_of_data);
    to.float(*sender_min);
    to.float(*recipient_max);
    to.float(*gap);
    to.duration(*client_grace);
}

fn measure_code(measure: MemoryMeasure) -> u64 {
    // There are few of them.
    let place = MemoryMeasure::ALL.iter().position(|it| *it == measure);
    place.unwrap_or(0) as u64
}

fn reason_code(reason: LeaveReason) -> u64 {
    let place = LeaveReason::ALL.iter().position(|it| *it == reason);
    place.unwrap_or(0) as u64
}

impl Writer<'_> {
    pub(super) fn flag(&mut self, flag: bool) {
        self.number(u64::from(flag));
    }

    pub(super) fn string(&mut self, string: &str) {
        self.bytes(string.as_bytes());
    }

    /// Writes nanoseconds.
    pub(super) fn duration(&mut self, duration: Duration) {
        self.number(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    fn maybe_duration(&mut self, duration: Option<Duration>) {
        self.flag(duration.is_some());
        self.duration(duration.unwrap_or_default());
    }

    fn maybe_string(&mut self, string: Option<&str>) {
        self.flag(string.is_some());
        self.string(string.unwrap_or_default());
    }
}

/// Writes events.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) has_payloads: bool,
    scratch: MessageScratch,
}

impl Events {
    pub(super) fn new(has_payloads: bool) -> Self {
        Self {
            has_payloads,
            scratch: MessageScratch::new(),
        }
    }

    /// Appends the record of an event, with the time since the last one.
    ///
    /// # Errors
    ///
    /// If a message cannot be built, because it is too large for its format.
    pub(super) fn write(
        &mut self,
        records: &mut Vec<u8>,
        since: Duration,
        event: &SchedulerInput,
    ) -> Result<(), BuildError> {
        let mut written = Ok(());
        Writer::record(records, kind_of(event) as u8, |to| {
            to.duration(since);
            written = self.event(to, event);
        });
        self.scratch.shrink();
        written
    }

    fn event(&mut self, to: &mut Writer<'_>, event: &SchedulerInput) -> Result<(), BuildError> {
        match event {
            SchedulerInput::Tick
            | SchedulerInput::ReduceReplicas
            | SchedulerInput::Restart
            | SchedulerInput::RecordTasks
            | SchedulerInput::Resumed
            | SchedulerInput::Close => {}
            SchedulerInput::ClientJoined {
                id,
                name,
                versions,
                returning,
            } => {
                to.number(id.0);
                to.string(name);
                self.message(to, versions, Blanked::Nothing)?;
                to.number(returning.map_or(0, |returning| 1 + u64::from(returning)));
            }
            SchedulerInput::ClientLeft(id)
            | SchedulerInput::ClientBehind(id)
            | SchedulerInput::ClientDrained(id) => to.number(id.0),
            SchedulerInput::ClientExpected { name, graph_count } => {
                to.string(name);
                to.number(*graph_count);
            }
            SchedulerInput::FromClient(id, message) => {
                to.number(id.0);
                let is_known = !matches!(message, FromClient::Unknown(_));
                self.message(to, message, fields_if(is_known))?;
            }
            SchedulerInput::Submitted(id, submission) => {
                to.number(id.0);
                self.submission(to, submission)?;
            }
            SchedulerInput::SubmissionContinued(id, part) => {
                to.number(id.0);
                self.part(to, part)?;
            }
            SchedulerInput::SubmissionRefused(id, refusal) => {
                to.number(id.0);
                self.refusal(to, refusal)?;
            }
            SchedulerInput::WorkerJoined { id, registration } => {
                to.number(id.0);
                self.message(to, &**registration, Blanked::Nothing)?;
            }
            SchedulerInput::WorkerLeft(id) | SchedulerInput::Drained(id) => to.number(id.0),
            SchedulerInput::FromWorker(id, message) => {
                to.number(id.0);
                let is_known = !matches!(message, FromWorker::Unknown(_));
                self.message(to, message, fields_if(is_known))?;
            }
            SchedulerInput::Heartbeat { worker, metrics } => {
                to.string(worker);
                self.message(to, metrics, Blanked::Nothing)?;
            }
            SchedulerInput::DataStored {
                client,
                who_has,
                nbytes,
            } => {
                to.maybe_string(client.as_deref());
                to.number(who_has.len() as u64);
                for (key, workers) in who_has {
                    to.key(key);
                    to.strings(workers);
                }
                to.number(nbytes.len() as u64);
                for (key, nbytes) in nbytes {
                    to.key(key);
                    to.number(*nbytes);
                }
            }
            SchedulerInput::DataExpected { worker, keys }
            | SchedulerInput::DataNotDeleted { worker, keys }
            | SchedulerInput::DataMissing { worker, keys }
            | SchedulerInput::ReplicasDropped { worker, keys } => {
                to.string(worker);
                to.keys(keys);
            }
            SchedulerInput::ReplicasAdded { worker, keys } => {
                to.string(worker);
                to.keys(keys);
            }
            SchedulerInput::ResourcesSet { worker, resources } => {
                to.string(worker);
                to.number(resources.len() as u64);
                for (name, amount) in resources {
                    to.string(name);
                    to.float(*amount);
                }
            }
            SchedulerInput::Restricted(tasks) => {
                to.number(tasks.len() as u64);
                for (key, workers) in tasks {
                    to.key(key);
                    to.strings(workers);
                }
            }
            SchedulerInput::Retry(keys) => to.keys(keys),
            SchedulerInput::RetireWorkers(workers) => to.strings(workers),
            SchedulerInput::KeepWorker(text)
            | SchedulerInput::CloseWorker(text)
            | SchedulerInput::MemorySamplerStopped(text)
            | SchedulerInput::CollectionStarted(text)
            | SchedulerInput::CollectionEnded(text) => to.string(text),
            SchedulerInput::RemoveWorker {
                worker,
                close,
                reason,
            } => {
                to.string(worker);
                to.flag(*close);
                to.number(reason_code(*reason));
            }
            SchedulerInput::Requested { id, request } => {
                to.number(id.0);
                let is_known = !matches!(**request, Request::Unknown(_));
                self.message(to, &**request, fields_if(is_known))?;
            }
            SchedulerInput::Replied(id) | SchedulerInput::RequestDropped(id) => to.number(id.0),
            SchedulerInput::RunCreated { run_id, run } => {
                to.number(*run_id);
                self.run(to, run);
            }
            SchedulerInput::ShuffleRestarted { shuffle, run_id } => {
                to.string(shuffle);
                to.number(*run_id);
            }
            SchedulerInput::SetReducingReplicas(flag)
            | SchedulerInput::WatchTasks(flag)
            | SchedulerInput::ObserveEnds(flag)
            | SchedulerInput::ObserveTopics(flag) => to.flag(*flag),
            SchedulerInput::MemorySamplerStarted {
                key,
                client,
                measure,
                interval,
            } => {
                to.string(key);
                to.string(client);
                to.number(measure_code(*measure));
                to.duration(*interval);
            }
            SchedulerInput::Published { topics, message } => {
                self.message(to, topics, Blanked::Nothing)?;
                self.message(to, message, Blanked::All)?;
            }
            SchedulerInput::MetadataSet { path, value } => {
                to.keys(path);
                self.message(to, value, Blanked::All)?;
            }
            SchedulerInput::PluginRegistered {
                name,
                is_registered,
            } => {
                to.string(name);
                to.flag(*is_registered);
            }
        }
        Ok(())
    }

    fn message(
        &mut self,
        to: &mut Writer<'_>,
        message: &impl Field,
        blanked: Blanked,
    ) -> Result<(), BuildError> {
        let has_payloads = self.has_payloads;
        self.scratch
            .with_frames(&Body(message), |frames| match has_payloads {
                true => blank::whole_frames(to, frames),
                false => blank::frames(to, frames, blanked),
            })
    }

    fn payload(&self, to: &mut Writer<'_>, payload: &Serialized) {
        let frames = payload.message();
        match self.has_payloads {
            true => blank::whole_frames(to, frames),
            false => {
                let frames: Vec<&[u8]> = frames.iter().map(AsRef::as_ref).collect();
                blank::frames(to, &frames, Blanked::Nothing);
            }
        }
    }

    fn submission(
        &mut self,
        to: &mut Writer<'_>,
        submission: &Submission,
    ) -> Result<(), BuildError> {
        let Submission {
            part,
            keys,
            actors,
            submitting_task,
            fifo_timeout,
            code: _,
        } = submission;
        to.keys(keys);
        to.keys(actors);
        to.keys(submitting_task.as_slice());
        to.duration(*fifo_timeout);
        self.part(to, part)
    }

    fn part(&mut self, to: &mut Writer<'_>, part: &SubmissionPart) -> Result<(), BuildError> {
        let SubmissionPart {
            tasks,
            unneeded,
            has_more,
        } = part;
        to.flag(*has_more);
        to.number(unneeded.len() as u64);
        for index in unneeded {
            to.number(*index as u64);
        }
        // By address; the part keeps them alive.
        let mut numbers = HashMap::new();
        let mut demands = Vec::new();
        for task in tasks {
            numbers
                .entry(Arc::as_ptr(&task.demands).addr())
                .or_insert_with(|| {
                    demands.push(&*task.demands);
                    demands.len() as u64 - 1
                });
        }
        to.number(demands.len() as u64);
        for demands in demands {
            self.demands(to, demands)?;
        }
        to.number(tasks.len() as u64);
        for task in tasks {
            to.key(&task.key);
            to.signed(task.order);
            to.float(task.user_priority);
            to.number(u64::from(task.retries));
            to.calls(task.calls);
            let number = numbers.get(&Arc::as_ptr(&task.demands).addr());
            to.number(number.copied().unwrap_or(0));
            to.number(task.dependencies.len() as u64);
            for dependency in &task.dependencies {
                match dependency {
                    Dependency::Inside(index) => to.number(*index as u64 + 1),
                    Dependency::Outside(key) => {
                        to.number(0);
                        to.key(key);
                    }
                }
            }
            self.payload(to, &task.run_spec.to_serialized());
        }
        Ok(())
    }

    fn demands(&mut self, to: &mut Writer<'_>, demands: &Demands) -> Result<(), BuildError> {
        let Demands {
            workers,
            allow_other_workers,
            resources,
            annotations,
            span_id,
        } = demands;
        to.strings(workers);
        to.flag(*allow_other_workers);
        to.number(resources.0.len() as u64);
        for (name, amount) in &resources.0 {
            to.string(name);
            to.float(*amount);
        }
        self.message(to, annotations, Blanked::Nothing)?;
        to.maybe_string(span_id.as_deref());
        Ok(())
    }

    fn refusal(&mut self, to: &mut Writer<'_>, refusal: &Refusal) -> Result<(), BuildError> {
        to.keys(&refusal.keys);
        to.string(&refusal.reason().to_string());
        to.flag(refusal.is_last);
        let Failure {
            exception,
            traceback,
            cause,
        } = &*refusal.failure;
        self.message(to, exception, Blanked::All)?;
        to.flag(traceback.is_some());
        let traceback = traceback.as_ref().unwrap_or(&Value::None);
        self.message(to, traceback, Blanked::All)?;
        to.keys(cause.as_slice());
        Ok(())
    }

    fn run(&self, to: &mut Writer<'_>, run: &Result<CreatedRun, RunFailure>) {
        match run {
            Ok(CreatedRun { run_spec, workers }) => {
                to.flag(true);
                let zeros = 0..run_spec.len();
                let is_zero = !self.has_payloads;
                blank::parts(to, run_spec, is_zero.then_some(zeros).as_slice());
                to.strings(workers);
            }
            Err(RunFailure { exception, text }) => {
                to.flag(false);
                self.payload(to, exception);
                to.string(text);
            }
        }
    }
}

/// What of a message is replaced: unknown ones are those of plugins, which may have data anywhere.
const fn fields_if(is_known: bool) -> Blanked {
    match is_known {
        true => Blanked::Fields,
        false => Blanked::All,
    }
}

const fn kind_of(event: &SchedulerInput) -> Kind {
    match event {
        SchedulerInput::Tick => Kind::Tick,
        SchedulerInput::ClientJoined { .. } => Kind::ClientJoined,
        SchedulerInput::ClientLeft(_) => Kind::ClientLeft,
        SchedulerInput::ClientExpected { .. } => Kind::ClientExpected,
        SchedulerInput::ClientBehind(_) => Kind::ClientBehind,
        SchedulerInput::ClientDrained(_) => Kind::ClientDrained,
        SchedulerInput::FromClient(..) => Kind::FromClient,
        SchedulerInput::Submitted(..) => Kind::Submitted,
        SchedulerInput::SubmissionContinued(..) => Kind::SubmissionContinued,
        SchedulerInput::SubmissionRefused(..) => Kind::SubmissionRefused,
        SchedulerInput::WorkerJoined { .. } => Kind::WorkerJoined,
        SchedulerInput::WorkerLeft(_) => Kind::WorkerLeft,
        SchedulerInput::FromWorker(..) => Kind::FromWorker,
        SchedulerInput::Drained(_) => Kind::Drained,
        SchedulerInput::Heartbeat { .. } => Kind::Heartbeat,
        SchedulerInput::DataStored { .. } => Kind::DataStored,
        SchedulerInput::DataExpected { .. } => Kind::DataExpected,
        SchedulerInput::DataNotDeleted { .. } => Kind::DataNotDeleted,
        SchedulerInput::DataMissing { .. } => Kind::DataMissing,
        SchedulerInput::ReplicasAdded { .. } => Kind::ReplicasAdded,
        SchedulerInput::ReplicasDropped { .. } => Kind::ReplicasDropped,
        SchedulerInput::ResourcesSet { .. } => Kind::ResourcesSet,
        SchedulerInput::Restricted(_) => Kind::Restricted,
        SchedulerInput::Retry(_) => Kind::Retry,
        SchedulerInput::RetireWorkers(_) => Kind::RetireWorkers,
        SchedulerInput::KeepWorker(_) => Kind::KeepWorker,
        SchedulerInput::RemoveWorker { .. } => Kind::RemoveWorker,
        SchedulerInput::CloseWorker(_) => Kind::CloseWorker,
        SchedulerInput::Requested { .. } => Kind::Requested,
        SchedulerInput::Replied(_) => Kind::Replied,
        SchedulerInput::RequestDropped(_) => Kind::RequestDropped,
        SchedulerInput::RunCreated { .. } => Kind::RunCreated,
        SchedulerInput::ShuffleRestarted { .. } => Kind::ShuffleRestarted,
        SchedulerInput::SetReducingReplicas(_) => Kind::SetReducingReplicas,
        SchedulerInput::ReduceReplicas => Kind::ReduceReplicas,
        SchedulerInput::MemorySamplerStarted { .. } => Kind::MemorySamplerStarted,
        SchedulerInput::MemorySamplerStopped(_) => Kind::MemorySamplerStopped,
        SchedulerInput::Restart => Kind::Restart,
        SchedulerInput::Published { .. } => Kind::Published,
        SchedulerInput::MetadataSet { .. } => Kind::MetadataSet,
        SchedulerInput::RecordTasks => Kind::RecordTasks,
        SchedulerInput::CollectionStarted(_) => Kind::CollectionStarted,
        SchedulerInput::CollectionEnded(_) => Kind::CollectionEnded,
        SchedulerInput::WatchTasks(_) => Kind::WatchTasks,
        SchedulerInput::ObserveEnds(_) => Kind::ObserveEnds,
        SchedulerInput::ObserveTopics(_) => Kind::ObserveTopics,
        SchedulerInput::PluginRegistered { .. } => Kind::PluginRegistered,
        SchedulerInput::Resumed => Kind::Resumed,
        SchedulerInput::Close => Kind::Close,
    }
}
