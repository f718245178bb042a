//! What clients of a Dask scheduler share by name: variables, queues, events, semaphores,
//! locks, multi-locks and datasets, which are extensions of Dask's scheduler.
//!
//! Each kind of object is a state machine of its own, below [`Extensions`]. None does I/O, has a
//! clock, or knows tasks: the scheduler tells them which tasks are known, and executes their
//! [`Effect`]s.
//!
//! * Requests wait in the order of their ids, which is that of their arrival.
//! * What a reply hands over, such as a value of a queue, is kept until the reply has been sent,
//!   and is taken back if the client has gone.
//! * The memory of all objects, values and waiting requests is limited by
//!   [`Extensions::new`]. A request that needs more is refused.
//! * The cost of a request does not depend on the number of objects, except for lists of them and
//!   logarithms.
//!
//! ```
//! use daskwire_extensions::{Extensions, RequestId};
//! use daskwire_messages::protocol::VariableGet;
//!
//! let mut extensions = Extensions::new(1 << 20);
//! let get = VariableGet { name: "x".into(), ..VariableGet::default() };
//! extensions.request(RequestId(1), get.into());
//! assert_eq!(extensions.waiting_count(), 1); // until the variable is set
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

use core::time::Duration;
use std::collections::{BTreeSet, HashMap, HashSet};

use daskwire_messages::Key;
use daskwire_messages::protocol::{FromClient, Request};
use daskwire_messages::quantity::seconds_of;

mod change;
mod context;
mod datasets;
mod error;
mod events;
mod multi_locks;
mod queues;
mod semaphores;
mod variables;

pub use change::Change;
pub use context::{Answer, Effect, Record};
use context::{Awaited, Context, Handed, Timer};
use datasets::Datasets;
pub use error::RequestRefusal;
use events::Events;
use multi_locks::MultiLocks;
use queues::Queues;
pub use semaphores::SemaphoreOverview;
use semaphores::Semaphores;
use variables::Variables;

/// The id of a request for which an [`Effect::Reply`] comes. The caller chooses the ids in ascending order,
/// and must not reuse any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The shared objects of all kinds.
#[derive(Debug)]
pub struct Extensions {
    context: Context,
    /// The requests that wait for tasks that are not known.
    by_task: HashMap<Key, BTreeSet<RequestId>>,
    /// The requests whose tasks have become known.
    ready: BTreeSet<RequestId>,
    variables: Variables,
    events: Events,
    queues: Queues,
    semaphores: Semaphores,
    multi_locks: MultiLocks,
    datasets: Datasets,
}

/// Whether a request is about shared objects, so that [`Extensions::request`] replies to it.
pub const fn is_shared(request: &Request) -> bool {
    matches!(
        request,
        Request::VariableSet(_)
            | Request::VariableGet(_)
            | Request::EventWait(_)
            | Request::EventSet(_)
            | Request::EventClear(_)
            | Request::EventIsSet(_)
            | Request::QueueCreate(_)
            | Request::QueuePut(_)
            | Request::QueueGet(_)
            | Request::QueueSize(_)
            | Request::SemaphoreRegister(_)
            | Request::SemaphoreAcquire(_)
            | Request::SemaphoreRelease(_)
            | Request::SemaphoreRefreshLeases(_)
            | Request::SemaphoreClose(_)
            | Request::SemaphoreValue(_)
            | Request::MultiLockAcquire(_)
            | Request::MultiLockRelease(_)
            | Request::PublishPut(_)
            | Request::PublishGet(_)
            | Request::PublishDelete(_)
            | Request::PublishList(_)
    )
}

/// Whether a holder of this name holds results for shared objects.
pub fn is_holder(name: &str) -> bool {
    let prefixes = [variables::HOLDER, queues::HOLDER, datasets::HOLDER];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// The task of the future in a request.
pub const fn task_of(request: &Request) -> Option<&Key> {
    match request {
        Request::VariableSet(request) => request.key.as_ref(),
        Request::QueuePut(request) => request.key.as_ref(),
        _ => None,
    }
}

impl Extensions {
    /// No objects. They, their values, and waiting requests may use `max_len` bytes of memory.
    pub fn new(max_len: usize) -> Self {
        Self {
            context: Context::new(max_len),
            by_task: HashMap::new(),
            ready: BTreeSet::new(),
            variables: Variables::default(),
            events: Events::default(),
            queues: Queues::default(),
            semaphores: Semaphores::default(),
            multi_locks: MultiLocks::default(),
            datasets: Datasets::default(),
        }
    }

    /// The number of requests that wait for their replies.
    pub fn waiting_count(&self) -> usize {
        self.context.waiting_count()
    }

    /// At most `max` semaphores, with locks, in the order of their names.
    pub fn semaphores(&self, max: usize) -> Vec<SemaphoreOverview> {
        self.semaphores.overview(max)
    }

    /// The effects of the last calls, in order.
    pub fn effects(&mut self) -> Vec<Effect> {
        core::mem::take(&mut self.context.effects)
    }

    /// Sets the time, from any start that does not change, and ends what was due by then.
    pub fn advance(&mut self, now: Duration) {
        self.context.now = now;
        while let Some(timer) = self.context.next_timer() {
            match timer {
                Timer::Request(id) => {
                    if let Some(awaited) = self.leave(id) {
                        self.context.reply(id, awaited.too_late());
                    }
                }
                Timer::Read { name, token } => {
                    self.variables.end_read(&mut self.context, &name, token);
                }
                Timer::Removed { name, key, number } => {
                    self.queues
                        .end_removal(&mut self.context, &name, &key, number);
                }
                Timer::Lease { name, lease_id } => {
                    self.semaphores.release(&mut self.context, &name, &lease_id);
                }
                Timer::Flushed { uid } => self.datasets.forget_flush(&mut self.context, &uid),
            }
        }
    }

    /// Lets a request wait until its task is known.
    pub fn await_task(&mut self, id: RequestId, key: Key, request: Request) {
        let deadline = self.deadline(&request);
        self.await_task_until(id, key, Box::new(request), deadline);
    }

    fn await_task_until(
        &mut self,
        id: RequestId,
        key: Key,
        request: Box<Request>,
        deadline: Option<Duration>,
    ) {
        let awaited = Awaited::Task {
            key: key.clone(),
            request,
        };
        if self.context.wait(id, awaited, deadline) {
            self.by_task.entry(key).or_default().insert(id);
        }
    }

    /// Handles that a task has become known.
    pub fn task_added(&mut self, key: &Key) {
        if !self.by_task.is_empty()
            && let Some(requests) = self.by_task.remove(key)
        {
            self.ready.extend(requests);
        }
    }

    /// Continues the requests whose tasks have become known. Those whose tasks are forgotten
    /// again continue to wait.
    pub fn resume(&mut self, is_known: impl Fn(&Key) -> bool) {
        while let Some(id) = self.ready.pop_first() {
            match self.context.end_wait(id) {
                Some((Awaited::Task { key, request }, deadline)) => match is_known(&key) {
                    true => self.handle(id, *request, deadline),
                    false => self.await_task_until(id, key, request, deadline),
                },
                _ => unreachable!("it waits for a task"),
            }
        }
    }

    /// Handles a request whose task, if it has one, is known.
    pub fn request(&mut self, id: RequestId, request: Request) {
        let deadline = self.deadline(&request);
        self.handle(id, request, deadline);
    }

    fn deadline(&self, request: &Request) -> Option<Duration> {
        let timeout = match request {
            Request::VariableSet(request) => request.timeout.as_ref().and_then(seconds_of),
            Request::VariableGet(request) => request.timeout,
            Request::EventWait(request) => request.timeout,
            Request::QueuePut(request) => request.timeout,
            Request::QueueGet(request) => request.timeout,
            Request::SemaphoreAcquire(request) => request.timeout,
            Request::MultiLockAcquire(request) => request.timeout,
            _ => None,
        };
        self.context.deadline(timeout)
    }

    fn handle(&mut self, id: RequestId, request: Request, deadline: Option<Duration>) {
        let context = &mut self.context;
        match request {
            Request::VariableSet(request) => {
                let record = Record::new(request.key, request.data);
                self.variables.set(context, id, request.name, record);
            }
            Request::VariableGet(request) => {
                self.variables.get(context, id, request.name, deadline);
            }
            Request::EventWait(request) => self.events.wait(context, id, request.name, deadline),
            Request::EventSet(request) => self.events.set(context, id, &request.name),
            Request::EventClear(request) => self.events.clear(context, id, &request.name),
            Request::EventIsSet(request) => {
                context.reply_value(id, self.events.is_set(&request.name));
            }
            Request::QueueCreate(request) => {
                self.queues
                    .create(context, id, request.name, request.maxsize);
            }
            Request::QueuePut(request) => {
                let value = Record::new(request.key, request.data);
                self.queues.put(context, id, request.name, value, deadline);
            }
            Request::QueueGet(request) => {
                self.queues
                    .get(context, id, request.name, request.batch, deadline);
            }
            Request::QueueSize(request) => self.queues.len(context, id, &request.name),
            Request::SemaphoreRegister(request) => {
                let (max_leases, timeout) = (request.max_leases, request.lease_timeout);
                let semaphores = &mut self.semaphores;
                let reply = semaphores.register(context, request.name, max_leases, timeout);
                context.reply(id, reply);
            }
            Request::SemaphoreAcquire(request) => {
                self.semaphores
                    .acquire(context, id, request.name, request.lease_id, deadline);
            }
            Request::SemaphoreRelease(request) => {
                self.semaphores
                    .release(context, &request.name, &request.lease_id);
                context.reply_value(id, ());
            }
            Request::SemaphoreRefreshLeases(request) => {
                let leases = &request.lease_ids;
                let reply = self.semaphores.refresh(context, &request.name, leases);
                context.reply(id, reply);
            }
            Request::SemaphoreClose(request) => {
                self.semaphores.close(context, &request.name);
                context.reply_value(id, ());
            }
            Request::SemaphoreValue(request) => {
                context.reply_value(id, self.semaphores.lease_count(&request.name));
            }
            Request::MultiLockAcquire(request) => {
                let (locks, count) = (request.locks, request.num_locks);
                self.multi_locks
                    .acquire(context, id, request.id, locks, count, deadline);
            }
            Request::MultiLockRelease(request) => {
                let reply = self.multi_locks.release(context, &request.id);
                context.reply(id, reply);
            }
            request @ (Request::PublishPut(_)
            | Request::PublishGet(_)
            | Request::PublishDelete(_)
            | Request::PublishList(_)) => self.datasets.request(context, id, request),
            other => context.reply(id, Err(RequestRefusal::unsupported(other.op()))),
        }
    }

    /// Handles a message on the stream of a client.
    pub fn message(&mut self, message: FromClient) {
        let context = &mut self.context;
        match message {
            FromClient::VariableReceived(message) => {
                if let Ok(token) = message.token.parse() {
                    self.variables.end_read(context, &message.name, token);
                }
            }
            FromClient::VariableDelete(message) => self.variables.delete(context, &message.name),
            FromClient::QueueReceived(message) => {
                self.queues.received(context, &message.name, &message.key);
            }
            FromClient::QueueRelease(message) => self.queues.release(context, &message.name),
            FromClient::PublishFlush(message) => self.datasets.flush(context, message.uid),
            _ => {}
        }
    }

    /// Handles that a reply has been sent to its client.
    pub fn replied(&mut self, id: RequestId) {
        if let Some(Handed::Items { name, values }) = self.context.end_handover(id) {
            self.queues.sent(&mut self.context, &name, &values);
        }
    }

    /// Handles that a client does not get the reply to a request.
    pub fn dropped(&mut self, id: RequestId) {
        if self.leave(id).is_some() {
            return;
        }
        let context = &mut self.context;
        match context.end_handover(id) {
            Some(Handed::Read { name, token }) => self.variables.end_read(context, &name, token),
            Some(Handed::Items { name, values }) => self.queues.give_back(context, &name, values),
            Some(Handed::Lease { name, lease_id }) => {
                self.semaphores.take_back(context, id, &name, &lease_id);
            }
            Some(Handed::Locks { holder }) => {
                self.multi_locks.remove(context, &holder);
            }
            None => {}
        }
    }

    /// Ends the wait of a request without a reply.
    fn leave(&mut self, id: RequestId) -> Option<Awaited> {
        let context = &mut self.context;
        let (awaited, _) = context.end_wait(id)?;
        match &awaited {
            Awaited::Task { key, .. } => {
                self.ready.remove(&id);
                if let Some(requests) = self.by_task.get_mut(key) {
                    requests.remove(&id);
                    if requests.is_empty() {
                        self.by_task.remove(key);
                    }
                }
            }
            Awaited::Variable { name } => self.variables.leave(context, id, name),
            Awaited::Event { name } => self.events.leave(context, id, name),
            Awaited::Item { name } | Awaited::Room { name } => {
                self.queues.leave(context, id, name);
            }
            Awaited::Lease { name } => self.semaphores.leave(context, id, name),
            Awaited::Locks { holder } => {
                self.multi_locks.remove(context, holder);
            }
            Awaited::Flush { uid, .. } => self.datasets.leave(id, uid),
        }
        Some(awaited)
    }

    /// Has each change be among the effects, as [`Effect::Changed`].
    pub fn keep_changes(&mut self) {
        self.context.keeps_changes = true;
    }

    /// Makes a change that other objects had before the end of their scheduler. Changes are those that
    /// say what there was, in their order; [`restored`](Self::restored) comes after them. They are
    /// among the effects as others are, with numbers of their own.
    ///
    /// # Errors
    ///
    /// * [`RequestRefusal::Full`] if the memory is not enough.
    /// * Others if the objects before the change cannot be those that it was made of.
    pub fn restore(&mut self, change: Change) -> Result<(), RequestRefusal> {
        let context = &mut self.context;
        match change {
            Change::Variable {
                name,
                value: Some(value),
            } => self.variables.restore(context, name, value),
            Change::Event { name, is_set: true } => self.events.restore(context, name),
            Change::Queue {
                name,
                max_len: Some(max_len),
            } => self.queues.restore(context, name, max_len),
            Change::QueueUsers { name, count } => self.queues.restore_users(context, name, count),
            Change::Item {
                value: Some((name, value)),
                ..
            } => self.queues.restore_item(context, name, value),
            Change::Semaphore {
                name,
                terms: Some(terms),
            } => self.semaphores.restore(context, name, terms),
            Change::Lease {
                name,
                lease_id,
                is_held: true,
            } => self.semaphores.restore_lease(context, name, lease_id),
            Change::Locks {
                holder,
                locks: Some(locks),
            } => self.multi_locks.restore(context, holder, locks),
            Change::Dataset {
                name,
                value: Some(value),
            } => self.datasets.restore(context, name, value),
            Change::Variable { .. }
            | Change::Event { .. }
            | Change::Queue { .. }
            | Change::Item { .. }
            | Change::Semaphore { .. }
            | Change::Lease { .. }
            | Change::Locks { .. }
            | Change::Dataset { .. } => {
                let message = "what is gone cannot be restored".to_owned();
                Err(RequestRefusal::wrong_value(message))
            }
        }
    }

    /// Ends the restoration of objects, with the results that are held for them by the names of their
    /// holders. A result that no object uses was handed over, perhaps without a confirmation: it is
    /// held for some time more, or is released.
    pub fn restored(&mut self, held: impl IntoIterator<Item = (String, Key)>) {
        let mut used: HashSet<(String, Key)> = HashSet::new();
        let mut names: HashMap<String, Key> = HashMap::new();
        for (holder, name, key) in self.variables.uses() {
            used.extend(key.map(|key| (holder.clone(), key.clone())));
            names.insert(holder, name.clone());
        }
        for (holder, key) in self.queues.uses().chain(self.datasets.uses()) {
            used.insert((holder, key.clone()));
        }
        for (holder, name) in self.queues.names() {
            names.insert(holder, name.clone());
        }
        let context = &mut self.context;
        for place in held {
            if !is_holder(&place.0) || used.contains(&place) {
                continue;
            }
            let (holder, key) = place;
            let name = |prefix| {
                let name = holder.strip_prefix(prefix)?;
                let name = names.get(&holder).cloned().unwrap_or_else(|| name.into());
                // That of an object that is gone is a string, as nearly always. Others are released.
                (context::holder_of(prefix, &name) == holder).then_some(name)
            };
            let is_kept = if let Some(name) = name(variables::HOLDER) {
                let restored = self.variables.restore_read(context, name, &key);
                restored.is_ok()
            } else if let Some(name) = name(queues::HOLDER) {
                let restored = self.queues.restore_removed(context, name, key.clone());
                restored.is_ok()
            } else {
                false
            };
            if !is_kept {
                context.release(holder, &key);
            }
        }
    }

    /// Starts the time-outs of leases that were restored, from now on. Until then, they do not end.
    pub fn start_leases(&mut self) {
        self.semaphores.start_timers(&mut self.context);
    }

    /// The objects as changes that make them of none, with the values that replies hand over: those are
    /// put back. The numbers of values are those of their order.
    #[cfg(any(test, feature = "checks"))]
    #[doc(hidden)]
    pub fn objects(&self) -> Vec<Change> {
        let mut objects = self.variables.objects();
        objects.extend(self.events.objects());
        objects.extend(self.semaphores.objects());
        objects.extend(self.multi_locks.objects());
        objects.extend(self.datasets.objects());
        objects.sort_by_cached_key(|object| format!("{object:?}"));
        objects.extend(self.queues.objects(&self.context));
        objects
    }

    /// Panics if the objects are inconsistent.
    #[cfg(any(test, feature = "checks"))]
    pub fn check(&self) {
        assert!(self.context.effects.is_empty());
        for id in &self.ready {
            assert!(matches!(
                self.context.awaited(*id),
                Some(Awaited::Task { .. })
            ));
        }
        for (key, requests) in &self.by_task {
            assert!(!requests.is_empty());
            for id in requests {
                let awaited = self.context.awaited(*id);
                assert!(matches!(awaited, Some(Awaited::Task { key: of, .. }) if of == key));
            }
        }
        let costs = [
            self.variables.check(&self.context),
            self.events.check(&self.context),
            self.queues.check(&self.context),
            self.semaphores.check(&self.context),
            self.multi_locks.check(&self.context),
            self.datasets.check(&self.context),
        ];
        self.context.check(costs.iter().sum());
    }
}

#[cfg(test)]
mod tests;

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
