//! A state from the records of a journal.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use daskwire_extensions::{Change, RequestRefusal, is_holder};
use daskwire_messages::graph::Calls;
use daskwire_messages::{Key, Value};

use super::super::groups::GroupId;
use super::super::model::{Priority, TaskId, TaskStage};
use super::super::slices::Job;
use super::super::submission::{Demands, Failure, Resources};
use super::super::{ClientId, Policy, State, WorkerId};
use super::blank::blank;
use super::record::{Kind, Record, Records};
use super::shared;
use crate::record::{Content, RecordError};

/// Makes a state of the records of a journal that still matter, in their order.
///
/// The tasks of the state do not run before [`SchedulerInput::Resumed`], so that workers can return
/// before with the results that they hold. Its clients are those that had a stream, for which it
/// waits as long as for others that lose it, and holders of results in their names.
///
/// [`SchedulerInput::Resumed`]: crate::SchedulerInput::Resumed
#[derive(Debug)]
pub struct Restoring {
    state: State,
    clients: HashMap<u64, ClientId>,
    tasks: HashMap<u64, TaskId>,
    demands: HashMap<u64, Arc<Demands>>,
    failures: HashMap<u64, Arc<Failure>>,
    held: Held,
}

/// The tasks of a restored state, each of which is kept until the state is resumed.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) ids: Vec<TaskId>,
    /// The number of tasks that were activated, if they are needed.
    activated_count: usize,
    pub(crate) groups: BTreeMap<(usize, Calls), GroupId>,
    /// The names of the plugins that were registered.
    plugins: Vec<String>,
    /// The workers that had joined and can return: their numbers in the journal, and addresses.
    awaited: Vec<(WorkerId, String)>,
}

impl Restoring {
    /// Begins a state, which keeps a journal of its own. `now` is as in [`State::handle`].
    pub fn new(policy: Policy, now: Duration) -> Self {
        let mut state = State::new(policy);
        state.now = now;
        state.last_transition = now;
        state.keep_journal();
        state.extensions.advance(now);
        Self {
            state,
            clients: HashMap::new(),
            tasks: HashMap::new(),
            demands: HashMap::new(),
            failures: HashMap::new(),
            held: Held::default(),
        }
    }

    /// Begins a recording of the state and of the records that are added, as
    /// [`State::keep_recording`]. Without payloads, values of clients in them that are not serialized are
    /// left out.
    pub fn keep_recording(&mut self, has_payloads: bool) {
        let now = self.state.now;
        self.state.begin_recording(has_payloads, Some(now));
    }

    /// Adds records that follow those before, as [`Live::select`](super::Live::select) returns them.
    ///
    /// # Errors
    ///
    /// If a record is malformed, or refers to something that is not there.
    pub fn add(&mut self, records: &[u8]) -> Result<(), RecordError> {
        match self.state.records_payloads() {
            None => {}
            Some(true) => self.state.record_restored(records),
            Some(false) => {
                let mut blanked = Vec::with_capacity(records.len());
                blank(records, &mut blanked)?;
                self.state.record_restored(&blanked);
            }
        }
        let mut records = Records::new(records);
        while let Some(record) = records.next()? {
            self.add_record(record)?;
        }
        Ok(())
    }

    /// Appends the records of the new journal so far to `to`.
    pub fn take_journal(&mut self, to: &mut Vec<u8>) {
        self.state.take_journal(to);
    }

    /// Returns the state.
    pub fn finish(mut self) -> State {
        let state = &mut self.state;
        let holders = state.clients.values();
        let holders = holders.filter(|client| client.is_holder() && is_holder(&client.name));
        let tasks = &state.tasks;
        let held = holders.flat_map(|client| {
            let keys = client.wants.keys().map(|id| tasks[*id].key.clone());
            keys.map(|key| (client.name.to_string(), key))
        });
        state.extensions.restored(held);
        // Tasks that are released are kept with the others until the state is resumed.
        state.settle_requests(false);
        self.state.held = Some(Box::new(self.held));
        self.state
    }

    fn add_record(&mut self, record: Record<'_>) -> Result<(), RecordError> {
        let Record {
            kind,
            number,
            mut content,
            ..
        } = record;
        match kind {
            Kind::Client => {
                let at = content;
                let name = content.string()?;
                if self.state.by_name.contains_key(name) || self.clients.contains_key(&number) {
                    return Err(at.expected("a name and a number that no other client has"));
                }
                self.clients.insert(number, self.state.holder(name));
            }
            Kind::Graphs => {
                let at = content;
                let count = content.number()?;
                let client = self.clients.get(&number);
                let client = client.ok_or_else(|| at.expected("the number of a client"))?;
                let name = self.state.client_name(*client);
                self.state.expect_client(&name, count);
            }
            Kind::Demands => {
                let demands = read_demands(&mut content)?;
                self.demands.insert(number, Arc::new(demands));
            }
            Kind::Task => self.add_task(number, &mut content)?,
            Kind::Wanted => {
                let at = content;
                let client = self.clients.get(&content.number()?).copied();
                let client = client.ok_or_else(|| at.expected("the number of a client"))?;
                let id = self.task(number, at)?;
                self.state.want(client, 0, id);
            }
            Kind::Failure => {
                let exception = content.value()?;
                let has_traceback = content.number()? != 0;
                let traceback = content.value()?;
                let cause = read_cause(&mut content)?;
                let failure = Failure {
                    exception,
                    traceback: has_traceback.then_some(traceback),
                    cause,
                };
                self.failures.insert(number, Arc::new(failure));
            }
            Kind::Failed => {
                let at = content;
                let failure = self.failures.get(&content.number()?).cloned();
                let failure = failure.ok_or_else(|| at.expected("the number of a failure"))?;
                let id = self.task(number, at)?;
                self.state.set_stage(id, TaskStage::Erred(failure));
            }
            Kind::Moved => {
                let at = content;
                let demands = self.demands.get(&content.number()?).cloned();
                let demands = demands.ok_or_else(|| at.expected("the number of demands"))?;
                let id = self.task(number, at)?;
                self.state.restrict_task(id, demands.workers.clone());
            }
            Kind::Actor => {
                let id = self.task(number, content)?;
                self.state.tasks[id].is_actor = true;
                self.state.journal_actor(id);
            }
            Kind::Metadata => {
                let path = content.keys()?;
                let value = content.value()?;
                // What was accepted before is accepted again.
                let _ = self.state.set_metadata(&path, value);
            }
            Kind::Worker => {
                let address = content.string()?.to_owned();
                // Not one that a caller assigns to a worker.
                let id = WorkerId(u64::MAX - self.held.awaited.len() as u64);
                // The next scheduler has to wait for it, too, if this one ends before it returns.
                self.state.journal_worker(id, &address);
                self.held.awaited.push((id, address));
            }
            Kind::ClientLeft
            | Kind::WorkerLeft
            | Kind::Forgotten
            | Kind::Unwanted
            | Kind::Retried => return Err(content.expected("a record that matters")),
            Kind::Plugin => {
                let name = content.string()?;
                content.number()?;
                self.held.plugins.push(name.to_owned());
            }
            Kind::Item => {
                content.bytes()?;
                let at = content;
                let change = shared::read_item(&mut content)?;
                self.add_change(change, at)?;
            }
            kind => {
                let place = content.bytes()?;
                let at = content;
                let change = shared::read(kind, place, &mut content)?;
                self.add_change(change, at)?;
            }
        }
        content.finish()
    }

    fn add_change(&mut self, change: Change, at: Content<'_>) -> Result<(), RecordError> {
        let restored = self.state.extensions.restore(change);
        restored.map_err(|refusal| match refusal {
            RequestRefusal::Full { .. } => at.expected(
                "a shared object within the limit of memory (`max_shared_len`), which is lower than \
                 that of the scheduler that wrote the record",
            ),
            _ => at.expected("a shared object that agrees with those before"),
        })?;
        // They are written to the new journal.
        self.state.settle_requests(false);
        Ok(())
    }

    fn task(&self, number: u64, at: Content<'_>) -> Result<TaskId, RecordError> {
        let id = self.tasks.get(&number).copied();
        id.ok_or_else(|| at.expected("a record about a task that is there"))
    }

    fn add_task(&mut self, number: u64, content: &mut Content<'_>) -> Result<(), RecordError> {
        let at = *content;
        let key = content.key()?;
        let priority = Priority {
            user: content.float()?,
            is_root: false,
            generation: content.number()?,
            order: content.signed()?,
            submission: content.number()?,
        };
        let retries = u32::try_from(content.number()?).unwrap_or(u32::MAX);
        let mut dependencies = Vec::new();
        let mut is_orphan = false;
        for _ in 0..content.count()? {
            match self.tasks.get(&content.number()?) {
                Some(dependency) => dependencies.push(*dependency),
                // It is forgotten.
                None => is_orphan = true,
            }
        }
        let run_spec = match content.number()? {
            0 => None,
            demands => {
                let demands = self.demands.get(&demands).cloned();
                let demands = demands.ok_or_else(|| at.expected("the number of demands"))?;
                let calls = content.calls()?;
                let payload = content.payload()?;
                Some((payload.into(), demands, calls))
            }
        };
        let state = &mut self.state;
        if state.by_key.contains_key(&key) || self.tasks.contains_key(&number) {
            return Err(at.expected("a key and a number that no other task has"));
        }
        state.submission_count = state.submission_count.max(priority.submission);
        state.generation = state.generation.max(priority.generation);
        let spec = run_spec.map(|(payload, demands, calls)| {
            let place = (Arc::as_ptr(&demands).addr(), calls);
            // The restoration counts as a task, so that the group exists until the end.
            let group = match self.held.groups.get(&place) {
                Some(group) => *group,
                None => {
                    let group = state.join_group(&demands, calls);
                    self.held.groups.insert(place, group);
                    group
                }
            };
            state.groups[group].task_count += 1;
            (payload, demands, group)
        });
        let id = state.insert_task(key, spec, priority);
        if is_orphan {
            dependencies.clear();
        }
        dependencies.sort_unstable();
        dependencies.dedup();
        for dependency in &dependencies {
            state.add_dependent(*dependency, id);
        }
        let task = &mut state.tasks[id];
        task.dependencies = dependencies;
        task.is_orphan = is_orphan;
        task.retries = retries;
        task.waiter_count = 1;
        state.journal_task(id);
        self.tasks.insert(number, id);
        self.held.ids.push(id);
        Ok(())
    }
}

fn read_demands(content: &mut Content<'_>) -> Result<Demands, RecordError> {
    let allow_other_workers = content.number()? != 0;
    let workers = content.strings()?;
    let mut resources = Vec::new();
    for _ in 0..content.count()? {
        resources.push((content.string()?.to_owned(), content.float()?));
    }
    let annotations: Value = content.value()?;
    let span_id = content.strings()?.into_iter().next();
    Ok(Demands {
        workers,
        allow_other_workers,
        resources: Resources::new(resources),
        annotations,
        span_id: span_id.map(Arc::from),
    })
}

fn read_cause(content: &mut Content<'_>) -> Result<Option<Key>, RecordError> {
    let mut empty = *content;
    if empty.bytes()?.is_empty() {
        *content = empty;
        return Ok(None);
    }
    content.key().map(Some)
}

impl State {
    /// Whether the tasks of a restored state are kept from running, see [`Restoring`].
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Whether a worker that the state had before has not returned yet with all that it has, and the
    /// tasks of a restored state are kept from running.
    pub fn awaits_workers(&self) -> bool {
        let awaited = self.held.iter().flat_map(|held| &held.awaited);
        let mut workers = awaited.map(|(_, address)| {
            let id = self.by_address.get(address)?;
            self.workers.get(id)
        });
        workers.any(|worker| worker.is_none_or(|worker| worker.returning.is_some()))
    }

    /// Whether a worker has returned and not said yet all that it has.
    pub fn has_returning_workers(&self) -> bool {
        let mut workers = self.workers.values();
        workers.any(|worker| worker.returning.is_some())
    }

    /// The names of plugins that were registered, until a restored state is resumed. They have to be
    /// registered again: a journal does not have them.
    pub fn lost_plugins(&self) -> &[String] {
        self.held.as_ref().map_or(&[], |held| &held.plugins)
    }

    /// Lets the tasks of a restored state run.
    pub(crate) fn resume(&mut self) {
        self.set_stimulus("resume");
        if let Some(held) = self.held.take() {
            // Those who have leases can refresh them from now on.
            self.extensions.start_leases();
            for (id, _) in &held.awaited {
                self.journal_worker_left(*id);
            }
            self.start(Job::Resume(held));
        }
        self.settle();
    }

    /// Continues to resume. Returns whether it is done.
    pub(crate) fn resume_slice(&mut self, held: &mut Held) -> bool {
        for _ in 0..self.slice_len {
            if let Some(id) = held.ids.get(held.activated_count).copied() {
                held.activated_count += 1;
                let task = &self.tasks[id];
                if matches!(task.stage, TaskStage::Released) && !task.wanted_by.is_empty() {
                    self.activate(id);
                }
                if held.activated_count == held.ids.len() {
                    // With the next slice, all that the last ones need is activated.
                    return false;
                }
            } else if let Some(id) = held.ids.pop() {
                held.activated_count = held.ids.len();
                self.tasks[id].waiter_count -= 1;
                self.todo.unneeded.push(id);
            } else {
                for group in core::mem::take(&mut held.groups).into_values() {
                    self.leave_group(group);
                }
                return true;
            }
        }
        false
    }
}
