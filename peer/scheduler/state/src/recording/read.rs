//! The decoding of a recording.

use core::time::Duration;
use std::collections::HashSet;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use daskwire_messages::protocol::{Field, Keys, Opener, RegisterWorker};
use daskwire_messages::{Serialized, Value};

use super::{
    Demands, Failure, Kind, Outcome, Policy, Refusal, State, Submission, SubmissionPart, VERSION,
};
use crate::event::SchedulerInput;
use crate::memory::MemoryMeasure;
use crate::notice::LeaveReason;
use crate::record::{Content, LATER, RecordError};
use crate::shuffles::{CreatedRun, RunFailure};
use crate::submission::{Dependency, RefusalReason, Resources, Submitted};
use crate::{ClientId, Rebalancing, RequestId, Restoring, WorkerId};

/// Default of [`Recording::with_max_payload_len`].
const MAX_PAYLOAD_LEN: usize = 1 << 32;

/// What a recording begins with.
#[derive(Debug)]
#[non_exhaustive]
pub struct Beginning {
    /// The version of this crate that has written the recording. Others may decide otherwise.
    pub version: String,
    /// Whether payloads are in the recording.
    pub has_payloads: bool,
    /// The state that is to handle the events: a new one, or one that was restored from a journal. It
    /// reports transitions ([`Action::Task`](crate::Action::Task)) until an event changes that.
    pub state: State,
}

/// The first record of a recording.
struct Start {
    version: String,
    has_payloads: bool,
    slice_len: usize,
    /// The time at which the state was restored from a journal, if it was.
    restored_at: Option<Duration>,
    policy: Policy,
}

/// An entry of a recording.
#[derive(Debug)]
#[non_exhaustive]
pub enum Recorded {
    /// A scheduler has started, with a new state.
    Beginning(Box<Beginning>),
    /// The state has handled an event at this time since 1970.
    Event(Duration, Box<SchedulerInput>),
    /// The state has continued pending work at this time since 1970.
    Slice(Duration),
    /// What the state was like after the event or slice before. It is missing if the state has
    /// panicked, or the scheduler was killed.
    Outcome(Outcome),
    /// An event could not be written, for this reason. What follows may differ.
    Unwritten(String),
}

/// Reads the entries of a recording.
#[derive(Clone, Debug)]
pub struct Recording<'r> {
    content: Content<'r>,
    now: Duration,
    /// Zeros, which all payloads share.
    zeros: Bytes,
    max_payload_len: usize,
    /// The length of the zeros in headers that the current record may still have.
    zeros_left: usize,
}

impl<'r> Recording<'r> {
    /// Creates a reader of what [`State::take_recording`](crate::State::take_recording) has returned.
    pub const fn new(bytes: &'r [u8]) -> Self {
        Self {
            content: Content::of(bytes),
            now: Duration::ZERO,
            zeros: Bytes::new(),
            max_payload_len: MAX_PAYLOAD_LEN,
            zeros_left: 0,
        }
    }

    /// The same reader with another maximum length of payloads that are not in the recording, in
    /// bytes; the reader makes zeros of that length. Default: 4 GiB.
    #[must_use]
    pub const fn with_max_payload_len(mut self, len: usize) -> Self {
        self.max_payload_len = len;
        self
    }

    /// The offset of the next entry.
    pub const fn position(&self) -> usize {
        self.content.position()
    }

    /// The number of bytes that are left. At the end, these are a last entry that was not written
    /// whole.
    pub const fn remaining_len(&self) -> usize {
        self.content.len()
    }

    /// Returns the next entry; `None` at the end.
    ///
    /// # Errors
    ///
    /// If the entry is malformed, or of a kind that this version does not know.
    #[expect(clippy::should_implement_trait, reason = "an iterator has no errors")]
    pub fn next(&mut self) -> Result<Option<Recorded>, RecordError> {
        let before = self.content;
        let Ok(record) = self.content.record() else {
            // The last entry is not whole.
            return Ok(None);
        };
        let Some(record) = record else {
            return Ok(None);
        };
        let kind = Kind::read(record.code).ok_or_else(|| before.expected(LATER))?;
        let mut content = record.content;
        self.zeros_left = self.max_payload_len;
        let entry = self.entry(kind, &mut content)?;
        content.finish()?;
        Ok(Some(entry))
    }

    fn entry(&mut self, kind: Kind, content: &mut Content<'_>) -> Result<Recorded, RecordError> {
        Ok(match kind {
            Kind::Beginning => {
                self.now = Duration::ZERO;
                Recorded::Beginning(Box::new(self.beginning(content)?))
            }
            Kind::Outcome => Recorded::Outcome(Outcome {
                action_count: content.number()?,
                task_count: content.number()?,
                processing_count: content.number()?,
                queued_count: content.number()?,
            }),
            Kind::Unwritten => Recorded::Unwritten(content.string()?.to_owned()),
            Kind::Slice => Recorded::Slice(self.time(content)?),
            kind => {
                let now = self.time(content)?;
                Recorded::Event(now, Box::new(self.event(kind, content)?))
            }
        })
    }

    fn beginning(&mut self, content: &mut Content<'_>) -> Result<Beginning, RecordError> {
        let Start {
            version,
            has_payloads,
            slice_len,
            restored_at,
            policy,
        } = start(content)?;
        let mut state = match restored_at {
            None => State::new(policy),
            Some(now) => {
                let mut restoring = Restoring::new(policy, now);
                let mut ahead = self.content;
                while let Ok(Some(record)) = ahead.record()
                    && record.code == Kind::Restored as u8
                {
                    self.content = ahead;
                    let added = restoring.add(record.content.rest());
                    added.map_err(|error| RecordError {
                        at: record.content.position() + error.at,
                        ..error
                    })?;
                    restoring.take_journal(&mut Vec::new());
                }
                restoring.finish()
            }
        };
        state.slice_len = slice_len;
        state.is_watched = true;
        Ok(Beginning {
            version,
            has_payloads,
            state,
        })
    }

    fn time(&mut self, content: &mut Content<'_>) -> Result<Duration, RecordError> {
        let since = content.duration()?;
        self.now = self.now.saturating_add(since);
        Ok(self.now)
    }

    fn event(
        &mut self,
        kind: Kind,
        content: &mut Content<'_>,
    ) -> Result<SchedulerInput, RecordError> {
        Ok(match kind {
            Kind::Beginning | Kind::Outcome | Kind::Slice | Kind::Unwritten | Kind::Restored => {
                return Err(content.expected("an event"));
            }
            Kind::Tick => SchedulerInput::Tick,
            Kind::ClientJoined => SchedulerInput::ClientJoined {
                id: ClientId(content.number()?),
                name: content.owned()?,
                versions: self.message(content)?,
                returning: match content.number()? {
                    0 => None,
                    code => Some(code > 1),
                },
            },
            Kind::ClientLeft => SchedulerInput::ClientLeft(ClientId(content.number()?)),
            Kind::ClientExpected => SchedulerInput::ClientExpected {
                name: content.owned()?,
                graph_count: content.number()?,
            },
            Kind::ClientBehind => SchedulerInput::ClientBehind(ClientId(content.number()?)),
            Kind::ClientDrained => SchedulerInput::ClientDrained(ClientId(content.number()?)),
            Kind::FromClient => {
                let id = ClientId(content.number()?);
                SchedulerInput::FromClient(id, self.message(content)?)
            }
            Kind::Submitted => {
                let id = ClientId(content.number()?);
                SchedulerInput::Submitted(id, self.submission(content)?)
            }
            Kind::SubmissionContinued => {
                let id = ClientId(content.number()?);
                SchedulerInput::SubmissionContinued(id, self.part(content, false)?)
            }
            Kind::SubmissionRefused => {
                let id = ClientId(content.number()?);
                SchedulerInput::SubmissionRefused(id, self.refusal(content)?)
            }
            Kind::WorkerJoined => SchedulerInput::WorkerJoined {
                id: WorkerId(content.number()?),
                registration: Box::new(self.message::<RegisterWorker>(content)?),
            },
            Kind::WorkerLeft => SchedulerInput::WorkerLeft(WorkerId(content.number()?)),
            Kind::FromWorker => {
                let id = WorkerId(content.number()?);
                SchedulerInput::FromWorker(id, self.message(content)?)
            }
            Kind::Drained => SchedulerInput::Drained(WorkerId(content.number()?)),
            Kind::Heartbeat => SchedulerInput::Heartbeat {
                worker: content.owned()?,
                metrics: self.message(content)?,
            },
            Kind::DataStored => SchedulerInput::DataStored {
                client: content.maybe_string()?,
                who_has: content.list(|item| Ok((item.key()?, item.strings()?)))?,
                nbytes: content.list(|item| Ok((item.key()?, item.number()?)))?,
            },
            Kind::DataExpected => SchedulerInput::DataExpected {
                worker: content.owned()?,
                keys: content.keys()?,
            },
            Kind::DataNotDeleted => SchedulerInput::DataNotDeleted {
                worker: content.owned()?,
                keys: content.keys()?,
            },
            Kind::DataMissing => SchedulerInput::DataMissing {
                worker: content.owned()?,
                keys: content.keys()?,
            },
            Kind::ReplicasAdded => SchedulerInput::ReplicasAdded {
                worker: content.owned()?,
                keys: Keys(content.keys()?),
            },
            Kind::ReplicasDropped => SchedulerInput::ReplicasDropped {
                worker: content.owned()?,
                keys: content.keys()?,
            },
            Kind::ResourcesSet => SchedulerInput::ResourcesSet {
                worker: content.owned()?,
                resources: content.amounts()?,
            },
            Kind::Restricted => {
                SchedulerInput::Restricted(content.list(|item| Ok((item.key()?, item.strings()?)))?)
            }
            Kind::Retry => SchedulerInput::Retry(content.keys()?),
            Kind::RetireWorkers => SchedulerInput::RetireWorkers(content.strings()?),
            Kind::KeepWorker => SchedulerInput::KeepWorker(content.owned()?),
            Kind::RemoveWorker => SchedulerInput::RemoveWorker {
                worker: content.owned()?,
                close: content.flag()?,
                reason: content.one_of(&LeaveReason::ALL)?,
            },
            Kind::CloseWorker => SchedulerInput::CloseWorker(content.owned()?),
            Kind::Requested => SchedulerInput::Requested {
                id: RequestId(content.number()?),
                request: Box::new(self.message(content)?),
            },
            Kind::Replied => SchedulerInput::Replied(RequestId(content.number()?)),
            Kind::RequestDropped => SchedulerInput::RequestDropped(RequestId(content.number()?)),
            Kind::RunCreated => SchedulerInput::RunCreated {
                run_id: content.number()?,
                run: match content.flag()? {
                    true => Ok(CreatedRun {
                        run_spec: self.frame(content)?,
                        workers: content.strings()?,
                    }),
                    false => Err(RunFailure {
                        exception: self.payload(content)?,
                        text: content.owned()?,
                    }),
                },
            },
            Kind::ShuffleRestarted => SchedulerInput::ShuffleRestarted {
                shuffle: content.owned()?,
                run_id: content.number()?,
            },
            Kind::SetReducingReplicas => SchedulerInput::SetReducingReplicas(content.flag()?),
            Kind::ReduceReplicas => SchedulerInput::ReduceReplicas,
            Kind::MemorySamplerStarted => SchedulerInput::MemorySamplerStarted {
                key: content.owned()?,
                client: content.owned()?,
                measure: content.one_of(&MemoryMeasure::ALL)?,
                interval: content.duration()?,
            },
            Kind::MemorySamplerStopped => SchedulerInput::MemorySamplerStopped(content.owned()?),
            Kind::Restart => SchedulerInput::Restart,
            Kind::Published => SchedulerInput::Published {
                topics: self.message(content)?,
                message: self.message(content)?,
            },
            Kind::MetadataSet => SchedulerInput::MetadataSet {
                path: content.keys()?,
                value: self.message(content)?,
            },
            Kind::RecordTasks => SchedulerInput::RecordTasks,
            Kind::CollectionStarted => SchedulerInput::CollectionStarted(content.owned()?),
            Kind::CollectionEnded => SchedulerInput::CollectionEnded(content.owned()?),
            Kind::WatchTasks => SchedulerInput::WatchTasks(content.flag()?),
            Kind::ObserveEnds => SchedulerInput::ObserveEnds(content.flag()?),
            Kind::ObserveTopics => SchedulerInput::ObserveTopics(content.flag()?),
            Kind::PluginRegistered => SchedulerInput::PluginRegistered {
                name: content.owned()?,
                is_registered: content.flag()?,
            },
            Kind::Resumed => SchedulerInput::Resumed,
            Kind::Close => SchedulerInput::Close,
        })
    }

    fn message<T: Field>(&mut self, content: &mut Content<'_>) -> Result<T, RecordError> {
        let at = *content;
        let frames = self.frames(content)?;
        let read = Opener::default().read(&frames, T::read);
        read.map_err(|_| at.expected("a message"))
    }

    fn payload(&mut self, content: &mut Content<'_>) -> Result<Serialized, RecordError> {
        let at = *content;
        let frames = self.frames(content)?;
        Serialized::of_message(frames).ok_or_else(|| at.expected("a payload"))
    }

    fn frames(&mut self, content: &mut Content<'_>) -> Result<Vec<Bytes>, RecordError> {
        content.list(|item| self.frame(item))
    }

    /// Reads the parts of a frame.
    fn frame(&mut self, content: &mut Content<'_>) -> Result<Bytes, RecordError> {
        let at = *content;
        let count = content.count()?;
        let mut frame = BytesMut::new();
        for _ in 0..count {
            let number = content.number()?;
            let len = usize::try_from(number >> 1).unwrap_or(usize::MAX);
            if number & 1 == 0 {
                frame.extend_from_slice(content.take(len, "the bytes of a frame")?);
                continue;
            }
            let expected = "payloads up to the maximum length";
            if len > self.max_payload_len {
                return Err(at.expected(expected));
            }
            if count == 1 {
                return Ok(self.zeros(len));
            }
            let left = self.zeros_left.checked_sub(len);
            self.zeros_left = left.ok_or_else(|| at.expected(expected))?;
            frame.resize(frame.len() + len, 0);
        }
        Ok(frame.freeze())
    }

    fn zeros(&mut self, len: usize) -> Bytes {
        if self.zeros.len() < len {
            // The system provides them without work.
            self.zeros = vec![0; len].into();
        }
        self.zeros.slice(..len)
    }

    fn submission(&mut self, content: &mut Content<'_>) -> Result<Submission, RecordError> {
        let keys = content.keys()?;
        let actors = content.keys()?;
        let submitting_task = content.keys()?.pop();
        let fifo_timeout = content.duration()?;
        Ok(Submission {
            part: self.part(content, true)?,
            keys,
            actors,
            submitting_task,
            fifo_timeout,
            code: None,
        })
    }

    fn part(
        &mut self,
        content: &mut Content<'_>,
        is_first: bool,
    ) -> Result<SubmissionPart, RecordError> {
        let has_more = content.flag()?;
        let unneeded = content.list(Content::size)?;
        let demands: Vec<Arc<Demands>> = content.list(|item| self.demands(item).map(Arc::new))?;
        let mut known = HashSet::new();
        let tasks = content.list(|item| {
            let at = *item;
            // The state machine checks the dependencies in earlier parts.
            let before = is_first.then_some(known.len());
            let task = self.task(item, before, &demands)?;
            match known.insert(task.key.clone()) {
                true => Ok(task),
                false => Err(at.expected("a task with another key than those before")),
            }
        })?;
        Ok(SubmissionPart {
            tasks,
            unneeded,
            has_more,
        })
    }

    fn task(
        &mut self,
        content: &mut Content<'_>,
        before: Option<usize>,
        demands: &[Arc<Demands>],
    ) -> Result<Submitted, RecordError> {
        Ok(Submitted {
            key: content.key()?,
            order: content.signed()?,
            user_priority: content.float()?,
            retries: content.count_of_u32()?,
            calls: content.calls()?,
            demands: Arc::clone(content.item_of(demands)?),
            dependencies: content.list(|item| {
                let at = *item;
                Ok(match item.number()? {
                    0 => Dependency::Outside(item.key()?),
                    number => {
                        let index = usize::try_from(number - 1).ok();
                        let index =
                            index.filter(|index| before.is_none_or(|before| *index < before));
                        Dependency::Inside(index.ok_or_else(|| at.expected("a task before"))?)
                    }
                })
            })?,
            run_spec: self.payload(content)?.into(),
        })
    }

    fn demands(&mut self, content: &mut Content<'_>) -> Result<Demands, RecordError> {
        let mut workers = content.strings()?;
        workers.sort_unstable();
        Ok(Demands {
            workers,
            allow_other_workers: content.flag()?,
            resources: Resources::new(content.amounts()?),
            annotations: self.message(content)?,
            span_id: content.maybe_string()?.map(Arc::from),
        })
    }

    fn refusal(&mut self, content: &mut Content<'_>) -> Result<Refusal, RecordError> {
        let keys = content.keys()?;
        let text = content.owned()?;
        let is_last = content.flag()?;
        let exception = self.message(content)?;
        let has_traceback = content.flag()?;
        let traceback: Value = self.message(content)?;
        let failure = Failure {
            exception,
            traceback: has_traceback.then_some(traceback),
            cause: content.keys()?.pop(),
        };
        Ok(Refusal::recorded(
            keys,
            RefusalReason::Recorded { text },
            failure,
            is_last,
        ))
    }
}

fn start(content: &mut Content<'_>) -> Result<Start, RecordError> {
    let at = *content;
    if content.number()? != VERSION {
        return Err(at.expected("a recording of a version that this program reads"));
    }
    let version = content.owned()?;
    let has_payloads = content.flag()?;
    let slice_len = content.size()?.max(1);
    let restored_at = content.maybe_duration()?;
    let policy = Policy {
        seed: content.number()?,
        deletion_interval: content.duration()?,
        allowed_failures: content.count_of_u32()?,
        saturation: content.float()?,
        is_stealing: content.flag()?,
        stealing_interval: content.duration()?,
        durations: content.list(|item| Ok((item.owned()?, item.duration()?)))?,
        worker_ttl: content.maybe_duration()?,
        topic_length: content.size()?,
        max_shared_len: content.size()?,
        max_tasks_len: content.size()?,
        replica_interval: content.maybe_duration()?,
        replica_measure: content.one_of(&MemoryMeasure::ALL)?,
        no_worker_timeout: content.maybe_duration()?,
        task_stream_length: content.size()?,
        rebalancing: Rebalancing {
            is_of_data: content.flag()?,
            sender_min: content.float()?,
            recipient_max: content.float()?,
            gap: content.float()?,
        },
        client_grace: content.duration()?,
    };
    Ok(Start {
        version,
        has_payloads,
        slice_len,
        restored_at,
        policy,
    })
}

impl Content<'_> {
    fn flag(&mut self) -> Result<bool, RecordError> {
        Ok(self.number()? != 0)
    }

    fn owned(&mut self) -> Result<String, RecordError> {
        self.string().map(str::to_owned)
    }

    fn size(&mut self) -> Result<usize, RecordError> {
        Ok(usize::try_from(self.number()?).unwrap_or(usize::MAX))
    }

    fn count_of_u32(&mut self) -> Result<u32, RecordError> {
        let at = *self;
        u32::try_from(self.number()?).map_err(|_| at.expected("a number of at most 32 bits"))
    }

    fn duration(&mut self) -> Result<Duration, RecordError> {
        self.number().map(Duration::from_nanos)
    }

    fn maybe_duration(&mut self) -> Result<Option<Duration>, RecordError> {
        let is_there = self.flag()?;
        let duration = self.duration()?;
        Ok(is_there.then_some(duration))
    }

    fn maybe_string(&mut self) -> Result<Option<String>, RecordError> {
        let is_there = self.flag()?;
        let string = self.owned()?;
        Ok(is_there.then_some(string))
    }

    fn amounts(&mut self) -> Result<Vec<(String, f64)>, RecordError> {
        self.list(|item| Ok((item.owned()?, item.float()?)))
    }

    /// Reads a list whose items have at least one byte each.
    fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, RecordError>,
    ) -> Result<Vec<T>, RecordError> {
        (0..self.count()?).map(|_| item(self)).collect()
    }

    fn item_of<'i, T>(&mut self, items: &'i [T]) -> Result<&'i T, RecordError> {
        let at = *self;
        let item = items.get(self.size()?);
        item.ok_or_else(|| at.expected("the number of one of a list"))
    }

    fn one_of<T: Copy>(&mut self, items: &[T]) -> Result<T, RecordError> {
        self.item_of(items).copied()
    }
}
