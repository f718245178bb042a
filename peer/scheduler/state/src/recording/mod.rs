//! The recording: all events that a state machine has handled, so that another one can handle them
//! again.
//!
//! A [`State`] decides only by its policy, its events and their times. One that
//! [keeps a recording](State::keep_recording) writes a record for each event before it handles it,
//! and another one with what the state was like afterwards. [`Recording`] reads them: a program
//! that passes the same events to another state sees the same actions again, one by one, and
//! [`State::outcome`] says whether it is so.
//!
//! ```
//! use core::time::Duration;
//! use daskwire_messages::Value;
//! use daskwire_scheduler_state::{ClientId, Policy, Recorded, Recording, SchedulerInput, State};
//!
//! let mut recorded = State::new(Policy::default());
//! recorded.keep_recording(false);
//! let joined = SchedulerInput::ClientJoined {
//!     id: ClientId(1),
//!     name: "me".to_owned(),
//!     versions: Value::None,
//!     returning: None,
//! };
//! recorded.handle(Duration::from_secs(1_795_300_000), joined);
//! let mut bytes = Vec::new();
//! recorded.take_recording(&mut bytes);
//!
//! let mut recording = Recording::new(&bytes);
//! let mut state = State::new(Policy::default());
//! while let Some(entry) = recording.next()? {
//!     match entry {
//!         Recorded::Beginning(beginning) => state = beginning.state,
//!         Recorded::Event(now, event) => drop(state.handle(now, *event)),
//!         Recorded::Slice(now) => drop(state.proceed(now)),
//!         Recorded::Outcome(outcome) => assert_eq!(state.outcome(), outcome),
//!         _ => {}
//!     }
//! }
//! # Ok::<(), daskwire_scheduler_state::RecordError>(())
//! ```
//!
//! Without payloads, a recording has the sizes of what tasks call, take, return and raise, and of
//! what clients store in variables, queues, datasets, metadata and topics. Keys, names, addresses,
//! annotations and metrics are always in it.
//!
//! # Format
//!
//! Records are those of a [journal](super::Live), with other kinds. A message is the frames that
//! have it in a comm. A frame consists of parts: bytes, or a number of zeros in their place.

use core::time::Duration;
use daskwire_messages::protocol::FromClient;

use super::submission::{Demands, Failure, Refusal, Submission, SubmissionPart};
use super::{Action, Policy, SchedulerInput, State};
use crate::record::Writer;

mod blank;
mod read;
mod write;

pub(crate) use blank::pickle_in;
pub use read::{Beginning, Recorded, Recording};

use write::Events;

/// The version of the format.
const VERSION: u64 = 2;

macro_rules! kinds {
    ($($code:literal = $kind:ident,)*) => {
        /// The kinds of records.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        enum Kind {
            $($kind = $code,)*
        }

        impl Kind {
            const fn read(code: u8) -> Option<Self> {
                Some(match code {
                    $($code => Self::$kind,)*
                    _ => return None,
                })
            }
        }
    };
}

// The others are those of `SchedulerInput`.
kinds! {
    1 = Beginning,
    2 = Outcome,
    3 = Slice,
    4 = Unwritten,
    5 = Restored,
    16 = Tick,
    17 = ClientJoined,
    18 = ClientLeft,
    19 = ClientExpected,
    20 = ClientBehind,
    21 = ClientDrained,
    22 = FromClient,
    23 = Submitted,
    24 = SubmissionRefused,
    25 = WorkerJoined,
    26 = WorkerLeft,
    27 = FromWorker,
    28 = Drained,
    29 = Heartbeat,
    30 = DataStored,
    31 = DataExpected,
    32 = DataMissing,
    33 = ReplicasAdded,
    34 = ReplicasDropped,
    35 = ResourcesSet,
    36 = Restricted,
    37 = Retry,
    38 = RetireWorkers,
    39 = KeepWorker,
    40 = RemoveWorker,
    41 = CloseWorker,
    42 = Requested,
    43 = Replied,
    44 = RequestDropped,
    45 = RunCreated,
    46 = ShuffleRestarted,
    47 = SetReducingReplicas,
    48 = ReduceReplicas,
    49 = MemorySamplerStarted,
    50 = MemorySamplerStopped,
    51 = Restart,
    52 = Published,
    53 = MetadataSet,
    54 = RecordTasks,
    55 = CollectionStarted,
    56 = CollectionEnded,
    57 = WatchTasks,
    58 = ObserveEnds,
    59 = ObserveTopics,
    60 = PluginRegistered,
    61 = Resumed,
    62 = Close,
    63 = DataNotDeleted,
    64 = SubmissionContinued,
}

/// What a state was like after an event or a slice of its work: equal states have equal outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Number of the last actions, without reports of transitions ([`Action::Task`]).
    pub action_count: u64,
    /// Number of tasks.
    pub task_count: u64,
    /// Number of tasks that were sent to workers and have not ended.
    pub processing_count: u64,
    /// Number of tasks in the queues of workers.
    pub queued_count: u64,
}

/// What is written of events, and not taken yet.
#[derive(Debug)]
pub(super) struct Recorder {
    records: Vec<u8>,
    events: Events,
    /// The time of the last event.
    last: Duration,
}

/// Reads the events of a recording, and writes them again, with zeros for the payloads that are not
/// in it.
///
/// # Errors
///
/// As [`Recording::next`].
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn rewrite_recording(
    bytes: &[u8],
    max_payload_len: usize,
) -> Result<Vec<u8>, super::RecordError> {
    let mut recording = Recording::new(bytes).with_max_payload_len(max_payload_len);
    let mut events = Events::new(true);
    let mut written = Vec::new();
    let mut last = Duration::ZERO;
    while let Some(entry) = recording.next()? {
        if let Recorded::Event(now, event) = entry {
            // Too large for its format.
            let _ = events.write(&mut written, now.saturating_sub(last), &event);
            last = now;
        }
    }
    Ok(written)
}

impl State {
    /// Begins a recording of a state to which no event has come yet. `has_payloads` says whether to
    /// write also what tasks call, take, return and raise, and what clients store.
    ///
    /// The recording of a state that is restored from a journal begins with
    /// [`Restoring::keep_recording`](super::Restoring::keep_recording).
    pub fn keep_recording(&mut self, has_payloads: bool) {
        self.begin_recording(has_payloads, None);
    }

    pub(super) fn begin_recording(&mut self, has_payloads: bool, restored_at: Option<Duration>) {
        let mut recorder = Recorder {
            records: Vec::new(),
            events: Events::new(has_payloads),
            last: Duration::ZERO,
        };
        Writer::record(&mut recorder.records, Kind::Beginning as u8, |to| {
            write::beginning(to, &self.policy, self.slice_len, has_payloads, restored_at);
        });
        self.recorder = Some(Box::new(recorder));
    }

    /// Appends what was recorded since the last call to `to`.
    pub fn take_recording(&mut self, to: &mut Vec<u8>) {
        if let Some(recorder) = &mut self.recorder {
            to.append(&mut recorder.records);
        }
    }

    /// Ends the recording. What was not taken is lost.
    pub fn end_recording(&mut self) {
        self.recorder = None;
    }

    /// The outcome of the last event or slice, to be compared with a recording.
    pub fn outcome(&self) -> Outcome {
        Outcome {
            action_count: self.action_count,
            task_count: self.by_key.len() as u64,
            processing_count: self.processing_count as u64,
            queued_count: self.queued_count as u64,
        }
    }

    /// Whether a recording is kept, and whether it has payloads.
    pub(super) fn records_payloads(&self) -> Option<bool> {
        let recorder = self.recorder.as_ref()?;
        Some(recorder.events.has_payloads)
    }

    /// Writes records of a journal from which the state is restored.
    pub(super) fn record_restored(&mut self, restored: &[u8]) {
        if let Some(recorder) = &mut self.recorder {
            Writer::record(&mut recorder.records, Kind::Restored as u8, |to| {
                to.raw(restored);
            });
        }
    }

    /// Writes an event that is about to be handled. Returns the event as it can be written.
    pub(super) fn record_event(&mut self, event: SchedulerInput) -> SchedulerInput {
        let Some(recorder) = &mut self.recorder else {
            return event;
        };
        // The parsed graph says the same without its payloads.
        let event = match event {
            SchedulerInput::FromClient(id, FromClient::UpdateGraph(message)) => {
                match Submission::read(message) {
                    Ok(submission) => SchedulerInput::Submitted(id, submission),
                    Err(refusal) => SchedulerInput::SubmissionRefused(id, refusal),
                }
            }
            other => other,
        };
        let Recorder {
            records,
            events,
            last,
        } = &mut **recorder;
        let since = self.now.saturating_sub(*last);
        *last = self.now;
        let start = records.len();
        if let Err(error) = events.write(records, since, &event) {
            records.truncate(start);
            Writer::record(records, Kind::Unwritten as u8, |to| {
                to.bytes(error.to_string().as_bytes());
            });
        }
        event
    }

    /// Writes that work was continued.
    pub(super) fn record_slice(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            let since = self.now.saturating_sub(recorder.last);
            recorder.last = self.now;
            Writer::record(&mut recorder.records, Kind::Slice as u8, |to| {
                to.duration(since)
            });
        }
    }

    /// Takes the actions of an event or slice, and writes the outcome.
    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        let actions = core::mem::take(&mut self.actions);
        let is_decision = |action: &&Action| !matches!(action, Action::Task(_));
        self.action_count = match self.is_watched {
            true => actions.iter().filter(is_decision).count(),
            false => actions.len(),
        } as u64;
        let outcome = self.outcome();
        if let Some(recorder) = &mut self.recorder {
            Writer::record(&mut recorder.records, Kind::Outcome as u8, |to| {
                to.number(outcome.action_count);
                to.number(outcome.task_count);
                to.number(outcome.processing_count);
                to.number(outcome.queued_count);
            });
        }
        actions
    }
}
