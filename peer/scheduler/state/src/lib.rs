//! The scheduler's state machine: events in, actions out.
//!
//! [`State`] does no I/O and has no clock. The same events in the same order always lead
//! to the same decisions, so that each step can be tested separately. The steps are
//! those of Dask's "Journey of a Task". `daskwire_scheduler::Scheduler` adds the
//! connections; a program with other connections, or a simulation, can drive the state
//! itself:
//!
//! ```
//! use core::time::Duration;
//! use daskwire_messages::Value;
//! use daskwire_messages::graph::{Graph, Task};
//! use daskwire_messages::protocol::{
//!     RegisterWorker, TaskFinished, ToClient, ToWorker, UpdateGraph, WorkerStatus,
//! };
//! use daskwire_scheduler_state::{Action, ClientId, SchedulerInput, Policy, State, WorkerId};
//!
//! let mut state = State::new(Policy::default());
//! let (client, worker) = (ClientId(1), WorkerId(1));
//! // Since 1970; from a real clock, in a program.
//! let mut now = Duration::from_secs(1_795_300_000);
//!
//! let registration = Box::new(RegisterWorker {
//!     address: "tcp://10.0.0.7:1".to_owned(),
//!     nthreads: 1,
//!     status: WorkerStatus::Running,
//!     ..RegisterWorker::default()
//! });
//! let actions = state.handle(now, SchedulerInput::WorkerJoined { id: worker, registration });
//! assert!(matches!(actions[0], Action::AcceptWorker { .. }));
//!
//! let joined = SchedulerInput::ClientJoined {
//!     id: client,
//!     name: "me".to_owned(),
//!     versions: Value::None,
//!     returning: None,
//! };
//! let actions = state.handle(now, joined);
//! assert!(matches!(actions[0], Action::ToClient(_, ToClient::StreamStart(_))));
//!
//! // The client submits a task, which goes to the worker.
//! let graph: Graph = [Task::new("z", "operator.add", [1, 2])].into_iter().collect();
//! let message = UpdateGraph {
//!     expr_ser: graph.to_expression()?,
//!     keys: ["z"].into_iter().collect(),
//!     ..UpdateGraph::default()
//! };
//! let actions = state.handle(now, SchedulerInput::FromClient(client, message.into()));
//! let [Action::ToWorker(_, ToWorker::ComputeTask(task))] = &actions[..] else {
//!     panic!("the worker has a free thread");
//! };
//!
//! // The worker reports the result, of which the client is informed.
//! now += Duration::from_millis(3);
//! let finished = TaskFinished {
//!     key: task.key.clone(),
//!     run_id: task.run_id,
//!     nbytes: 28,
//!     ..TaskFinished::default()
//! };
//! let actions = state.handle(now, SchedulerInput::FromWorker(worker, finished.into()));
//! let [Action::ToClient(to, ToClient::KeyInMemory(message))] = &actions[..] else {
//!     panic!("the client wants the result");
//! };
//! assert_eq!((*to, message.key.to_string().as_str()), (client, "z"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Stages of tasks
//!
//! | stage | the task | leaves |
//! | --- | --- | --- |
//! | released | is known, but not needed now | when it is needed |
//! | waiting | needs results that are not in memory | when the last of them is |
//! | ready | may run; only until the event is handled, with its slices | to a worker |
//! | no-worker | may run, but no worker qualifies | when one joins |
//! | pooled | waits in the scheduler's pool, for any worker | when a worker has a slot |
//! | queued | waits in its worker's queue in the scheduler | when the worker has a slot |
//! | processing | was sent to its worker | with its result |
//! | memory | has a result, on workers | when the result is not needed, or all
//! copies are lost |
//! | erred | has failed | when no client wants it, or it is retried |
//!
//! # Slices
//!
//! An event that touches many tasks is cut into slices: [`State::handle`] takes a bounded number of
//! steps, and a caller continues with [`State::proceed`] while work [is pending](State::is_pending).
//! Other events may come between slices. What may interleave:
//!
//! * The tasks of a submission are inserted first, some at a time; then its keys are wanted and its tasks
//!   activated. Tasks that are inserted are kept until the end of the submission, whatever other
//!   clients release. Of a submission in [parts](SubmissionPart), tasks are activated as they are
//!   inserted, and kept until no other part needs them. If a dependency gets lost meanwhile, the keys are cancelled as
//!   if it had been lost right after the submission.
//! * Keys that a client releases, desires, cancels or retries are handled in parts, and so are
//!   those of stored data.
//! * A client or worker that leaves is removed at once. The tasks that a worker had are run again,
//!   and the results that only it had are computed again, in parts.
//! * The consequences of all of these (tasks that are released, fail, become ready or are assigned)
//!   are handled one by one. Those of later events come before those that earlier ones have left.
//! * Other workers are asked in parts to copy the results of a worker that retires.
//! * If a task has more than 512 dependents, these learn in parts that its result was stored or lost,
//!   or that the task is forgotten. None of them is sent to a worker without its inputs.
//!
//! Otherwise, a task is handled at once with its dependencies, its dependents and the clients that
//! want it.
//!
//! The order of events of one client or worker is the caller's matter: it must not pass an event of
//! a peer while work of an earlier event of this peer is pending, see [`State::is_done`].
//!
//! # Number of steps
//!
//! An event takes no more steps for a task, key or peer that it touches with more workers, tasks,
//! demands or clients, apart from logarithms. Tasks with the same demands form a group, and workers
//! are compared with groups. Of many alternatives, such as the holders of an input, or the workers
//! that a task names, at most 16 are compared.
//!
//! # Number of tasks sent to a worker
//!
//! A worker with *n* threads gets *n* tasks, and a tenth more that it can start before the
//! scheduler learns that others are done (see [`Policy::saturation`]). For tasks shorter than two milliseconds, this
//! is not enough to keep the worker busy: it gets tasks for two milliseconds in advance,
//! at most 16 for each thread. All other tasks stay in the scheduler, where idle workers
//! can take them over.
//!
//! Of the tasks that wait for a worker, those with the higher priority of the user are sent
//! first, then those that use results of other tasks, then those that were submitted earlier.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use daskwire_extensions::Extensions;
pub use daskwire_extensions::{RequestId, RequestRefusal, SemaphoreOverview, is_shared};
use daskwire_messages::protocol::Keys;
use daskwire_messages::scratch::PickleScratch;
use daskwire_messages::{Release, Value};
use daskwire_rpc::story::{Stimulus, Story};

use classes::{Class, ClassId};
use codes::Codes;
pub use data::REPLACED;
use groups::{Group, GroupId, GroupKey};
use journal::{Held, Journal};
use key_groups::KeyGroups;
use line::Line;
use members::Members;
use metadata::Metadata;
use model::{Client, Kind, Priority, Task, TaskId, Worker};
use no_worker::Waiting;
use pool::Pool;
use recording::Recorder;
use replicas::Replicas;
use result_classes::ResultClasses;
use returned::GivenBack;
use returns::{Claim, LostTasks};
use samplers::Samplers;
use send::free_keys;
use shuffles::Shuffles;
use slices::{SLICE, Work};
use steps::step;
use submission::Resources;
use submit::Submitting;
use table::{KeyIndex, Table};
use task_stream::TaskStream;
use timeline::Timeline;
use topics::Topics;
use versions::AllPackages;

pub use choose::next_random;
pub use close::CloseOptions;
#[cfg(target_os = "linux")]
pub use conversion::{Conversion, Converted};
pub use dump::Dump;
pub use event::{Action, SchedulerInput, WorkerRefusal};
pub use grace::MAX_IN_GRACE;
pub use journal::{Live, Restoring};
pub use key_groups::{GroupOverview, PrefixOverview, PrefixTotals, Prefixes, StateCounts};
pub use memory::MemoryMeasure;
pub use metadata::MetadataError;
pub use notice::{LeaveReason, LeftTasks, Notice};
pub use overview::{PeerVersions, Rate, WorkerOverview};
pub use overview_tasks::{
    RunningTask, TaskDetails, TaskFailure, TaskNode, TaskOverview, UnmetDemands,
};
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use parts::in_parts;
pub use query::{Place, Selection};
pub use rebalance::{Move, Rebalancing};
pub use record::RecordError;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use recording::rewrite_recording;
pub use recording::{Beginning, Outcome, Recorded, Recording};
pub use shuffles::is_about_run;
pub use shuffles::{CreatedRun, NewRun, RunFailure};
pub use slices::WorkId;
pub use submission::names;
pub use submission::{Refusal, RefusalReason, Submission, SubmissionPart};
pub use task_stream::RecordRange;
pub use timeline::{Span, SpanKind};
pub use unknown::UnknownOps;

mod actors;
mod balance;
#[cfg(any(test, feature = "checks"))]
mod check;
mod choose;
mod classes;
mod clients;
mod close;
mod codes;
#[cfg(target_os = "linux")]
mod conversion;
mod data;
mod diagnostics;
mod dump;
mod durations;
mod event;
mod few;
mod grace;
mod groups;
mod journal;
mod key_groups;
mod line;
mod members;
mod memory;
mod metadata;
mod model;
mod no_worker;
mod notice;
mod operations;
mod order;
mod overview;
mod overview_tasks;
#[cfg(any(target_os = "linux", test, feature = "fuzzing"))]
mod parts;
mod pool;
mod query;
mod rebalance;
mod record;
mod recording;
mod replicas;
mod requests;
mod result_classes;
mod retire;
mod returned;
mod returns;
mod samplers;
mod send;
mod shuffles;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod simulation;
mod slices;
mod steal;
#[doc(hidden)]
pub mod steps;
mod submission;
mod submit;
mod table;
mod task_stream;
#[cfg(test)]
mod tests;
mod timeline;
mod topics;
mod transitions;
mod unknown;
mod versions;
mod view;
mod workers;

/// The first release of `distributed` whose workers and clients a scheduler serves. Earlier ones are
/// refused when they register: their graphs and tasks have a different format.
pub const FIRST_SERVED: Release = Release::new(2025, 4, 0);

/// The id of a client's stream. The caller chooses the ids, and must not reuse any.
/// Those from 2^63 on are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The id of a worker's stream. The caller chooses the ids, and must not reuse any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u64);

impl ClientId {
    /// The first id of clients without a stream. Other clients hold results in their names.
    const FIRST_NAMED: Self = Self(1 << 63);

    fn is_of_stream(self) -> bool {
        self < Self::FIRST_NAMED
    }
}

/// The internal client that holds tasks without futures until they are done.
const FIRE_AND_FORGET: (ClientId, &str) = (ClientId(u64::MAX), "fire-and-forget");

/// The scheduling policy.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// Seed of the random numbers that break ties. Default: 0.
    pub seed: u64,
    /// Interval at which deletions are sent to workers. Results that are not needed fill their
    /// memory until then. Default: 20 ms.
    pub deletion_interval: Duration,
    /// Number of workers that may be lost while they run a task before the task fails.
    /// Default: 3.
    pub allowed_failures: u32,
    /// Number of tasks that are sent to a worker for each of its threads, rounded up; more if they
    /// take less than two milliseconds and the number exceeds one. Default: 1.1.
    pub saturation: f64,
    /// Whether tasks move from busy workers to idle ones. Default: true.
    pub is_stealing: bool,
    /// Interval at which workers are asked for tasks that they have not started and others could run.
    /// Tasks that were not sent yet move at once. Default: 500 ms; Dask uses one second.
    pub stealing_interval: Duration,
    /// Run times that are expected of tasks by the prefix of their keys, until one has ended. Default:
    /// one microsecond for `rechunk-split`, `split-shuffle`, `split-taskshuffle` and
    /// `split-stage`.
    pub durations: Vec<(String, Duration)>,
    /// Time after which a silent worker is removed, at least ten intervals of its
    /// heartbeats; `None` for never. Default: 5 minutes.
    pub worker_ttl: Option<Duration>,
    /// Maximum number of events that are kept of a topic. Those of all topics together take at most
    /// 64 MiB. Default: 1000.
    pub topic_length: usize,
    /// Maximum memory of variables, queues, events, locks, datasets, and of the requests that wait
    /// for them, in bytes. Each name, value, lease and request counts 256 bytes beside its data. A
    /// request that would exceed the limit is refused with [`RequestRefusal::Full`]. Default: 1
    /// GiB.
    pub max_shared_len: usize,
    /// Maximum memory of tasks, in bytes. Each task counts its function and arguments as the workers get
    /// them, its key, and one KiB, though similar tasks take less; annotations count once for all tasks
    /// that share them. What tasks have raised does not count. A submission that would exceed the limit fails with a
    /// `MemoryError`; one that would do so only with what others have yet to insert waits for them. Of one in
    /// parts, earlier parts count for other submissions, too.
    /// Default: no limit.
    pub max_tasks_len: usize,
    /// Interval at which workers are asked to delete superfluous copies of results, as by Dask's
    /// Active Memory Manager; `None` for only on request. Default: 2 seconds.
    pub replica_interval: Option<Duration>,
    /// What is compared of the memory of workers when superfluous copies are deleted. Default:
    /// optimistic.
    pub replica_measure: MemoryMeasure,
    /// Time for which a task waits while no worker qualifies for it, after which it fails with
    /// Dask's `NoValidWorkerError`, or `NoWorkerError` if no worker accepts tasks; `None` for
    /// without a limit. Default: none.
    pub no_worker_timeout: Option<Duration>,
    /// Maximum number of tasks of which the end is recorded. All records together take at most
    /// 64 MiB. Default: 100,000.
    pub task_stream_length: usize,
    /// The rules of moves of data between workers on request.
    pub rebalancing: Rebalancing,
    /// Time for which the keys of a client are kept whose connection breaks. It finds them if it
    /// registers again under its id by then; zero for not at all. A client that announces that it
    /// leaves has none. Clients of Python cancel their own futures when their connection breaks, but
    /// find the results if they submit the same tasks again within that time after their return.
    ///
    /// The tasks of such clients count for [`max_tasks_len`](Self::max_tasks_len), and their results
    /// take as much memory of workers as before; beside them, at most [`MAX_IN_GRACE`] clients with
    /// about a KiB each are kept. Default: zero.
    pub client_grace: Duration,
}

impl Policy {
    daskwire_comm::with_fields! {
        with_seed(seed: u64);
        with_client_grace(client_grace: Duration);
        with_deletion_interval(deletion_interval: Duration);
        with_allowed_failures(allowed_failures: u32);
        with_saturation(saturation: f64);
        with_is_stealing(is_stealing: bool);
        with_stealing_interval(stealing_interval: Duration);
        with_durations(durations: Vec<(String, Duration)>);
        with_worker_ttl(worker_ttl: impl Into<Option<Duration>>);
        with_topic_length(topic_length: usize);
        with_max_shared_len(max_shared_len: usize);
        with_max_tasks_len(max_tasks_len: usize);
        with_replica_interval(replica_interval: impl Into<Option<Duration>>);
        with_replica_measure(replica_measure: MemoryMeasure);
        with_no_worker_timeout(no_worker_timeout: impl Into<Option<Duration>>);
        with_task_stream_length(task_stream_length: usize);
        with_rebalancing(rebalancing: Rebalancing);
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            seed: 0,
            deletion_interval: Duration::from_millis(20),
            allowed_failures: 3,
            saturation: 1.1,
            is_stealing: true,
            stealing_interval: Duration::from_millis(500),
            durations: SHORT
                .map(|prefix| (prefix.to_owned(), Duration::from_micros(1)))
                .into(),
            worker_ttl: Some(Duration::from_secs(300)),
            topic_length: 1000,
            max_shared_len: 1 << 30,
            max_tasks_len: usize::MAX,
            replica_interval: Some(replicas::INTERVAL),
            replica_measure: MemoryMeasure::Optimistic,
            no_worker_timeout: None,
            task_stream_length: 100_000,
            rebalancing: Rebalancing::default(),
            client_grace: Duration::ZERO,
        }
    }
}

/// The state machine of a scheduler, without connections.
///
/// [`handle`](Self::handle) and [`proceed`](Self::proceed) change what it decides; all others are
/// queries, or about what is recorded. The [crate](self) has an example.
#[derive(Debug)]
pub struct State {
    policy: Policy,
    /// The time of the current event since the Unix epoch.
    now: Duration,
    /// The stimulus of the current event.
    stimulus: Stimulus,
    story: Story,
    is_watched: bool,
    is_observed: bool,
    last_deletion: Duration,
    last_review: Duration,
    last_steal: Duration,
    /// The time of the last transition of a task; at first that of the first event.
    last_transition: Duration,
    totals: Totals,
    random: u64,
    tasks: Table<Task>,
    /// The memory of all tasks and groups, see [`Policy::max_tasks_len`].
    tasks_len: usize,
    /// The part of that memory which is kept for tasks that are not inserted yet.
    reserved_len: usize,
    by_key: KeyIndex,
    clients: Members<ClientId, Client>,
    by_name: HashMap<Arc<str>, ClientId>,
    /// The clients that have returned, by their streams, which have other ids.
    returned_streams: BTreeMap<ClientId, ClientId>,
    /// The clients of which something is kept until a time.
    by_until: BTreeSet<(Duration, ClientId)>,
    /// The last clients whose grace was over, oldest first.
    gone: VecDeque<Arc<str>>,
    /// The clients that are to be told how many of their graphs were accepted.
    unacknowledged: Vec<ClientId>,
    /// The number of clients without a stream so far.
    named_count: u64,
    topics: Topics,
    metadata: Metadata,
    task_stream: TaskStream,
    timeline: Timeline,
    workers: Members<WorkerId, Worker>,
    /// The number of threads of all workers.
    thread_count: u64,
    by_address: HashMap<String, WorkerId>,
    worker_names: HashMap<String, WorkerId>,
    by_host: HashMap<String, BTreeSet<WorkerId>>,
    classes: Table<Class>,
    class_ids: BTreeMap<(Kind, Resources), ClassId>,
    groups: Table<Group>,
    group_ids: BTreeMap<GroupKey, GroupId>,
    /// The groups that name workers, by address, name and host.
    groups_by_name: HashMap<String, BTreeSet<GroupId>>,
    /// The groups with tasks for which no worker qualifies, and the number of these tasks.
    without_worker: BTreeSet<GroupId>,
    no_worker_count: usize,
    waiting: Waiting,
    /// The groups with tasks in queues that other workers could run.
    movable: BTreeSet<GroupId>,
    /// The workers with a free thread and an empty queue.
    idle: BTreeSet<WorkerId>,
    /// The workers with tasks that they do not start at once.
    with_surplus: BTreeSet<WorkerId>,
    /// The worker at which the next search for tasks that are not started begins.
    last_asked: WorkerId,
    /// The workers whose places by the time in which they can start a task are not up to date.
    stale_starts: Vec<WorkerId>,
    /// The workers that accept no tasks.
    not_running: BTreeSet<WorkerId>,
    /// The workers with data to delete.
    with_deletions: BTreeSet<WorkerId>,
    /// The workers by a time since which they may have been silent, not later than that of their
    /// last message.
    by_silence: BTreeSet<(Duration, WorkerId)>,
    /// Whether a worker has joined that runs Python. From then on, tasks in Python wait for such
    /// workers.
    has_seen_python: bool,
    /// Whether a task was reported that waits for a worker in Rust, and none has joined since.
    has_missed_native: bool,
    /// The packages of the workers, and those of the clients.
    packages: AllPackages,
    client_packages: AllPackages,
    key_groups: KeyGroups,
    codes: Codes,
    submission_count: u64,
    generation: u64,
    /// The time of the first submission of the generation.
    generation_began: Duration,
    run_count: i64,
    /// The cause of the tasks sent at a time, as in Dask, which has the time in it.
    compute_stimulus: (Duration, String),
    /// The last task that was taken from a worker, until its next stage is set, and the address of that
    /// worker, which may have left.
    unassigned: Option<(TaskId, Arc<str>)>,
    /// Number of tasks in the queues of workers.
    queued_count: usize,
    /// Number of tasks that workers were sent.
    processing_count: usize,
    /// Clients without a stream that may hold nothing any more.
    idle_holders: BTreeSet<ClientId>,
    /// The workers that were removed and asked to end, by the time; at most those of the last
    /// [`CLOSING_AGE`].
    closing: VecDeque<(Duration, String)>,
    pool: Pool,
    result_classes: ResultClasses,
    /// The workers that have given back tasks, because they cannot run them.
    returned: BTreeMap<TaskId, GivenBack>,
    /// The workers on which tasks have failed last that are tried again, or that have given them back.
    retried: BTreeMap<TaskId, WorkerId>,
    /// The tasks that go on at workers which have returned.
    claims: BTreeMap<TaskId, Claim>,
    lost: LostTasks,
    extensions: Extensions,
    replicas: Replicas,
    samplers: Samplers,
    pickle_scratch: PickleScratch,
    /// Room for the pickle of a task.
    pickle: Vec<u8>,
    shuffles: Shuffles,
    /// Actions of the current event.
    actions: Vec<Action>,
    /// Consequences of events that are not handled yet. Later ones are handled first. The entries of
    /// the lists are checked when they are handled: other events may have come between.
    todo: Todo,
    /// The numbers of failing, unrunnable and unneeded tasks, and of those to activate, that earlier
    /// events have left.
    left_counts: [usize; 3],
    left_activated_count: usize,
    left_recounted_count: usize,
    /// The number of steps that the current slice may still take.
    steps_left: usize,
    slice_len: usize,
    /// The rest of events that are handled in slices.
    work: VecDeque<Work>,
    /// The submissions that wait for their next parts.
    paused: BTreeMap<ClientId, Box<Submitting>>,
    /// The clients with a submission of which parts are missing.
    unfinished: BTreeSet<ClientId>,
    last_work: u64,
    /// The records for the journal, if there is one.
    journal: Option<Journal>,
    /// The records of all events, if they are recorded.
    recorder: Option<Box<Recorder>>,
    /// The number of actions of the last event or slice.
    action_count: u64,
    /// The tasks of a restored state that is not resumed yet.
    held: Option<Box<Held>>,
    /// The key of a result that makes the state machine panic while it handles the
    /// event, for tests.
    #[cfg(any(test, feature = "fuzzing"))]
    #[doc(hidden)]
    pub panics_over: Option<daskwire_messages::Key>,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Number of workers that have joined.
    pub workers_added: u64,
    /// Number of workers that have left.
    pub workers_removed: u64,
    /// Number of clients that have connected.
    pub clients_added: u64,
    /// Number of clients that have disconnected.
    pub clients_removed: u64,
}

/// Numbers of workers by what they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerCounts {
    /// Workers with a thread that is free.
    pub idle: usize,
    /// Workers whose threads are all busy, and for which no task waits.
    pub partially_saturated: usize,
    /// Workers for which tasks wait.
    pub saturated: usize,
    /// Workers that have paused, because their memory is nearly full.
    pub paused: usize,
    /// All other workers, most of which are about to leave.
    pub retiring: usize,
}

#[derive(Debug, Default)]
struct Todo {
    /// Tasks with many dependents whose result was stored or lost, each with the last of the
    /// dependents whose missing dependencies were counted again.
    recounted: Vec<(TaskId, Option<TaskId>)>,
    /// Active tasks of which a dependency has failed.
    failing: Vec<TaskId>,
    /// Tasks that can never be computed.
    unrunnable: Vec<TaskId>,
    /// Tasks that are possibly no longer needed.
    unneeded: Vec<TaskId>,
    /// Released tasks that are needed.
    activated: Vec<TaskId>,
    /// Groups for whose tasks no worker qualified, until one has started to accept tasks, with the
    /// last task that was tried again.
    retried: BTreeMap<GroupId, Option<(Priority, TaskId)>>,
    /// Groups with tasks in the pool that no running worker runs any more.
    stranded: BTreeSet<GroupId>,
    ready: Line,
    /// Whether tasks of the pool could be sent.
    has_sendable: bool,
    /// Workers whose load may have changed.
    has_room: Vec<WorkerId>,
    /// Workers whose load has changed while tasks were in queues.
    unbalanced: BTreeSet<WorkerId>,
}

impl State {
    /// Returns a state without clients, workers or tasks.
    pub fn new(policy: Policy) -> Self {
        Self {
            random: policy.seed,
            now: Duration::ZERO,
            stimulus: Stimulus::local("start", 0.0),
            story: Story::default(),
            is_watched: false,
            is_observed: false,
            last_deletion: Duration::ZERO,
            last_review: Duration::ZERO,
            last_steal: Duration::ZERO,
            last_transition: Duration::ZERO,
            totals: Totals::default(),
            tasks: Table::default(),
            tasks_len: 0,
            reserved_len: 0,
            by_key: KeyIndex::default(),
            clients: Members::default(),
            by_name: HashMap::new(),
            returned_streams: BTreeMap::new(),
            by_until: BTreeSet::new(),
            gone: VecDeque::new(),
            unacknowledged: Vec::new(),
            named_count: 0,
            topics: Topics::new(),
            metadata: Metadata::default(),
            task_stream: TaskStream::default(),
            timeline: Timeline::default(),
            workers: Members::default(),
            thread_count: 0,
            by_address: HashMap::new(),
            worker_names: HashMap::new(),
            by_host: HashMap::new(),
            classes: Table::default(),
            class_ids: BTreeMap::new(),
            groups: Table::default(),
            group_ids: BTreeMap::new(),
            groups_by_name: HashMap::new(),
            without_worker: BTreeSet::new(),
            no_worker_count: 0,
            waiting: Waiting::default(),
            movable: BTreeSet::new(),
            idle: BTreeSet::new(),
            with_surplus: BTreeSet::new(),
            last_asked: WorkerId(0),
            stale_starts: Vec::new(),
            not_running: BTreeSet::new(),
            with_deletions: BTreeSet::new(),
            by_silence: BTreeSet::new(),
            has_seen_python: false,
            has_missed_native: false,
            packages: AllPackages::default(),
            client_packages: AllPackages::default(),
            key_groups: KeyGroups::new(&policy.durations),
            codes: Codes::default(),
            submission_count: 0,
            generation: 0,
            generation_began: Duration::ZERO,
            run_count: 0,
            compute_stimulus: (Duration::ZERO, "compute-task-0".to_owned()),
            unassigned: None,
            queued_count: 0,
            processing_count: 0,
            idle_holders: BTreeSet::new(),
            closing: VecDeque::new(),
            pool: Pool::default(),
            result_classes: ResultClasses::default(),
            returned: BTreeMap::new(),
            retried: BTreeMap::new(),
            claims: BTreeMap::new(),
            lost: LostTasks::default(),
            extensions: Extensions::new(policy.max_shared_len),
            replicas: Replicas::new(policy.replica_interval),
            samplers: Samplers::default(),
            pickle_scratch: PickleScratch::default(),
            pickle: Vec::new(),
            shuffles: Shuffles::default(),
            actions: Vec::new(),
            todo: Todo::default(),
            left_counts: [0; 3],
            left_activated_count: 0,
            left_recounted_count: 0,
            steps_left: 0,
            slice_len: SLICE,
            work: VecDeque::new(),
            paused: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            last_work: 0,
            journal: None,
            recorder: None,
            action_count: 0,
            held: None,
            policy,
            #[cfg(any(test, feature = "fuzzing"))]
            panics_over: None,
        }
    }

    /// Handles an event, and returns the actions that follow from it, in order. Work may be left
    /// for [`proceed`](Self::proceed).
    ///
    /// `now` is the time since the Unix epoch, for the times in stories and in
    /// `identity`. It should be the time of a clock that does not jump, because it
    /// determines when silent workers are removed: for example the wall clock at the start of
    /// the program, plus the monotonic time since then. A time earlier than that of the
    /// last event counts as that of the last event.
    pub fn handle(&mut self, now: Duration, event: SchedulerInput) -> Vec<Action> {
        self.now = self.now.max(now);
        if self.last_transition.is_zero() {
            self.last_transition = self.now;
        }
        // A client may cancel a task with the next message of a batch. As in Dask, requests that
        // wait for the task do not notice it in between.
        let is_in_batch = matches!(
            event,
            SchedulerInput::FromClient(..)
                | SchedulerInput::Submitted(..)
                | SchedulerInput::SubmissionContinued(..)
                | SchedulerInput::SubmissionRefused(..)
        );
        let todo = &self.todo;
        self.left_counts = [&todo.failing, &todo.unrunnable, &todo.unneeded].map(Vec::len);
        self.left_activated_count = todo.activated.len();
        self.left_recounted_count = todo.recounted.len();
        let event = self.record_event(event);
        self.apply(event);
        self.settle_requests(!is_in_batch);
        self.take_actions()
    }

    /// Takes back the memory of actions that were performed, for those of later events.
    pub fn reuse(&mut self, mut actions: Vec<Action>) {
        /// Most events have fewer actions.
        const MAX_COUNT: usize = 64;
        if self.actions.capacity() == 0 && actions.capacity() <= MAX_COUNT {
            actions.clear();
            self.actions = actions;
        }
    }

    fn apply(&mut self, event: SchedulerInput) {
        match event {
            SchedulerInput::Tick => self.tick(),
            SchedulerInput::ClientJoined {
                id,
                name,
                versions,
                returning,
            } => self.add_client(id, &name, &versions, returning),
            SchedulerInput::ClientLeft(id) => self.client_left(id),
            SchedulerInput::ClientExpected { name, graph_count } => {
                self.expect_client(&name, graph_count);
            }
            SchedulerInput::ClientBehind(id) => {
                if let Some(id) = self.of_stream(id) {
                    self.client_behind(id);
                }
            }
            SchedulerInput::ClientDrained(id) => {
                if let Some(id) = self.of_stream(id) {
                    self.client_drained(id);
                }
            }
            SchedulerInput::FromClient(id, message) => {
                if let Some(id) = self.of_stream(id) {
                    self.client_message(id, message);
                }
            }
            SchedulerInput::Submitted(id, submission) => {
                if let Some(id) = self.of_stream(id) {
                    self.submit(id, submission);
                }
            }
            SchedulerInput::SubmissionContinued(id, part) => {
                if let Some(id) = self.of_stream(id) {
                    self.continue_submission(id, part);
                }
            }
            SchedulerInput::SubmissionRefused(id, refusal) => {
                if let Some(id) = self.of_stream(id) {
                    self.refuse(id, &refusal);
                }
            }
            SchedulerInput::WorkerJoined { id, registration } => {
                if let Err(refusal) = self.add_worker(id, *registration) {
                    self.actions.push(Action::RefuseWorker(id, refusal));
                }
            }
            SchedulerInput::WorkerLeft(id) => self.remove_worker(id),
            SchedulerInput::FromWorker(id, message) => self.worker_message(id, message),
            SchedulerInput::Drained(id) => self.drained(id),
            SchedulerInput::Heartbeat { worker, metrics } => self.heartbeat(&worker, metrics),
            SchedulerInput::DataStored {
                client,
                who_has,
                nbytes,
            } => self.update_data(client.as_deref(), who_has, nbytes),
            SchedulerInput::DataExpected { worker, keys } => self.forget_deletions(&worker, &keys),
            SchedulerInput::DataNotDeleted { worker, keys } => {
                self.restore_deletions(&worker, keys);
            }
            SchedulerInput::DataMissing { worker, keys } => self.missing_data(&worker, &keys),
            SchedulerInput::Retry(keys) => self.retry(keys),
            SchedulerInput::RetireWorkers(workers) => self.retire(&workers),
            SchedulerInput::KeepWorker(worker) => self.cancel_retirement(&worker),
            SchedulerInput::RemoveWorker {
                worker,
                close,
                reason,
            } => self.remove_named(&worker, close, reason),
            SchedulerInput::CloseWorker(worker) => self.close_named(&worker),
            SchedulerInput::Requested { id, request } => self.request(id, *request),
            SchedulerInput::Replied(id) => self.request_ended(id, true),
            SchedulerInput::RequestDropped(id) => self.request_ended(id, false),
            SchedulerInput::RunCreated { run_id, run } => self.run_created(run_id, run),
            SchedulerInput::ShuffleRestarted { shuffle, run_id } => {
                self.restart_inconsistent(&shuffle, run_id);
            }
            SchedulerInput::SetReducingReplicas(is_reducing) => {
                self.set_reducing_replicas(is_reducing)
            }
            SchedulerInput::ReduceReplicas => self.reduce_replicas(),
            SchedulerInput::MemorySamplerStarted {
                key,
                client,
                measure,
                interval,
            } => self.start_sampler(key, client, measure, interval),
            SchedulerInput::MemorySamplerStopped(key) => self.stop_sampler(&key),
            SchedulerInput::Restart => self.restart(),
            SchedulerInput::Published { topics, message } => self.publish(&topics, &message),
            SchedulerInput::MetadataSet { path, value } => {
                // Refused metadata is ignored.
                let _ = self.set_metadata(&path, value);
            }
            SchedulerInput::ReplicasAdded { worker, keys } => self.add_replicas(&worker, keys),
            SchedulerInput::ReplicasDropped { worker, keys } => self.drop_replicas(&worker, &keys),
            SchedulerInput::ResourcesSet { worker, resources } => {
                self.set_resources(&worker, resources)
            }
            SchedulerInput::Restricted(tasks) => self.restrict(tasks),
            SchedulerInput::RecordTasks => self.record_tasks(),
            SchedulerInput::CollectionStarted(name) => self.start_collection(name),
            SchedulerInput::CollectionEnded(name) => self.end_collection(&name),
            SchedulerInput::WatchTasks(is_watched) => self.is_watched = is_watched,
            SchedulerInput::ObserveEnds(is_observed) => self.task_stream.is_observed = is_observed,
            SchedulerInput::ObserveTopics(is_observed) => self.is_observed = is_observed,
            SchedulerInput::PluginRegistered {
                name,
                is_registered,
            } => self.journal_plugin(&name, is_registered),
            SchedulerInput::Resumed => self.resume(),
            SchedulerInput::Close => self.close(),
        }
    }

    /// Sets the stimulus of an event that has none in a message.
    fn set_stimulus(&mut self, what: &'static str) {
        self.stimulus = Stimulus::local(what, self.now.as_secs_f64());
    }

    /// Sends deletions that are due, takes tasks back, and removes workers that have been silent
    /// for too long.
    fn tick(&mut self) {
        self.set_stimulus("time");
        self.extensions.advance(self.now);
        self.acknowledge();
        self.end_graces();
        if self.now - self.last_deletion >= self.policy.deletion_interval {
            self.last_deletion = self.now;
            for id in core::mem::take(&mut self.with_deletions) {
                let Some(worker) = self.workers.get_mut(&id) else {
                    continue;
                };
                let keys: Keys = core::mem::take(&mut worker.deletions).into_iter().collect();
                if !keys.is_empty() {
                    self.send_worker(id, free_keys(keys, "deletions"));
                }
            }
        }
        if self.now - self.last_review >= REVIEW_INTERVAL {
            self.last_review = self.now;
            self.drop_idle_holders();
        }
        if self.now - self.last_steal >= self.policy.stealing_interval {
            self.last_steal = self.now;
            self.request_steals();
        }
        self.take_samples();
        self.reduce_due_replicas();
        self.fail_waiting();
        while let Some((since, _)) = self.closing.front()
            && self.now - *since > CLOSING_AGE
        {
            self.closing.pop_front();
        }
        let mut removed = Vec::new();
        for (since, id) in self.maybe_silent(self.now).collect::<Vec<_>>() {
            let Some(worker) = self.workers.get_mut(&id) else {
                continue;
            };
            if worker.last_seen > since {
                self.by_silence.remove(&(since, id));
                worker.silent_since = worker.last_seen;
                self.by_silence.insert((worker.last_seen, id));
            } else {
                removed.push(Value::from(&*worker.address));
                self.send_close(id, "worker-ttl");
                self.drop_worker(id, false, LeaveReason::Silent);
            }
        }
        if !removed.is_empty() {
            let ttl = self.ttl().unwrap_or_default().as_secs_f64();
            let fields = [("workers", Value::list(removed)), ("ttl", Value::from(ttl))];
            self.log(&["scheduler"], "worker-ttl-timed-out", fields);
        }
    }

    /// The time after which a silent worker is removed.
    fn ttl(&self) -> Option<Duration> {
        let interval = Duration::from_secs_f64(10.0 * self.heartbeat_interval());
        self.policy.worker_ttl.map(|ttl| ttl.max(interval))
    }

    /// The workers that have been silent for too long at a time, unless they have sent a message
    /// since the time that is returned with each.
    fn maybe_silent(&self, now: Duration) -> impl Iterator<Item = (Duration, WorkerId)> {
        let ttl = self.ttl();
        let silent = self.by_silence.iter().copied();
        silent.take_while(move |(since, _)| {
            step();
            ttl.is_some_and(|ttl| now.saturating_sub(*since) > ttl)
        })
    }

    /// The nannies of the workers that [`SchedulerInput::Tick`] removes at this time, because they have been
    /// silent for too long.
    pub fn silent_nannies(&self, now: Duration) -> Vec<String> {
        let silent = self.maybe_silent(now).filter_map(|(since, id)| {
            let worker = self.workers.get(&id)?;
            (worker.last_seen <= since).then(|| worker.info.nanny.clone())?
        });
        silent.collect()
    }

    /// Asks workers to leave, and ends all streams. Clients get no message, as from Dask's
    /// scheduler: those in Python would log an error, or wait for their futures forever.
    fn close(&mut self) {
        for id in self.workers.keys().copied().collect::<Vec<_>>() {
            self.send_close(id, "scheduler-close");
            self.actions.push(Action::EndWorker(id));
        }
        let streams = self.clients.values().filter_map(|client| client.stream);
        self.actions.extend(streams.map(Action::EndClient));
    }
}

/// The prefixes of tasks that only hand on parts of a result.
const SHORT: [&str; 4] = [
    "rechunk-split",
    "split-shuffle",
    "split-taskshuffle",
    "split-stage",
];

/// Interval at which what is rarely needed is looked through.
const REVIEW_INTERVAL: Duration = Duration::from_millis(500);

/// The time in which a worker that was asked to end stops its heartbeats.
const CLOSING_AGE: Duration = Duration::from_secs(5);

/// Maximum length of the tasks sent to a worker that are not written yet, in bytes.
const WINDOW: usize = 64 << 20;

/// What a worker in Rust with Python registers in `extra`, for tests.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub fn rust_worker() -> Value {
    Value::dict([("daskwire", Value::list(["native", "python"]))])
}

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
