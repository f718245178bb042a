//! Objects that clients share by name, Dask's extensions of the scheduler.
//!
//! Each kind of object is a state machine of its own, below [`Extensions`]: variables, events. None does
//! I/O, has a clock, or knows tasks: the state tells them which tasks are known, and executes
//! their [`Effect`]s.
//!
//! * Requests wait in the order of their ids, which is that of their arrival.
//! * What a reply hands over, such as a value of a queue, is kept until the reply has been sent,
//!   and is taken back if the client has gone.
//! * The memory of all objects, values and waiting requests is limited by
//!   [`Policy::max_shared_len`](crate::Policy::max_shared_len). A request that needs more is
//!   refused.
//! * The cost of a request does not depend on the number of objects, except for lists of them and
//!   logarithms.

use core::time::Duration;
use std::collections::{BTreeSet, HashMap};

use daskwire_messages::Key;
use daskwire_messages::protocol::{FromClient, Request};

use crate::duration::seconds;

mod context;
mod error;
mod events;
mod variables;

pub(crate) use context::{Answer, Effect, Record};
use context::{Awaited, Context, Handed, Timer};
pub use error::RequestRefusal;
use events::Events;
use variables::Variables;

/// The id of a request that the state replies to. The caller chooses the ids in ascending order,
/// and must not reuse any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The shared objects of all kinds.
#[derive(Debug)]
pub(crate) struct Extensions {
    context: Context,
    /// The requests that wait for tasks that are not known.
    by_task: HashMap<Key, BTreeSet<RequestId>>,
    /// The requests whose tasks have become known.
    ready: BTreeSet<RequestId>,
    variables: Variables,
    events: Events,
}

/// Whether a request is about shared objects, so that the state replies to it.
pub(crate) const fn is_shared(request: &Request) -> bool {
    matches!(
        request,
        Request::VariableSet(_)
            | Request::VariableGet(_)
            | Request::EventWait(_)
            | Request::EventSet(_)
            | Request::EventClear(_)
            | Request::EventIsSet(_)
    )
}

/// The task of the future in a request.
pub(crate) const fn task_of(request: &Request) -> Option<&Key> {
    match request {
        Request::VariableSet(request) => request.key.as_ref(),
        _ => None,
    }
}

impl Extensions {
    pub(crate) fn new(max_len: usize) -> Self {
        Self {
            context: Context::new(max_len),
            by_task: HashMap::new(),
            ready: BTreeSet::new(),
            variables: Variables::default(),
            events: Events::default(),
        }
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.context.waiting_count()
    }

    /// The effects of the last calls, in order.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        core::mem::take(&mut self.context.effects)
    }

    /// Sets the time, and ends what was due by then.
    pub(crate) fn advance(&mut self, now: Duration) {
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
            }
        }
    }

    /// Lets a request wait until its task is known.
    pub(crate) fn await_task(&mut self, id: RequestId, key: Key, request: Request) {
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
    pub(crate) fn task_added(&mut self, key: &Key) {
        if !self.by_task.is_empty()
            && let Some(requests) = self.by_task.remove(key)
        {
            self.ready.extend(requests);
        }
    }

    /// Continues the requests whose tasks have become known. Those whose tasks are forgotten
    /// again continue to wait.
    pub(crate) fn resume(&mut self, is_known: impl Fn(&Key) -> bool) {
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
    pub(crate) fn request(&mut self, id: RequestId, request: Request) {
        let deadline = self.deadline(&request);
        self.handle(id, request, deadline);
    }

    fn deadline(&self, request: &Request) -> Option<Duration> {
        let timeout = match request {
            Request::VariableSet(request) => request.timeout.as_ref().and_then(seconds),
            Request::VariableGet(request) => request.timeout,
            Request::EventWait(request) => request.timeout,
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
            other => context.reply(id, Err(RequestRefusal::unsupported(other.op()))),
        }
    }

    /// Handles a message on the stream of a client.
    pub(crate) fn message(&mut self, message: FromClient) {
        let context = &mut self.context;
        match message {
            FromClient::VariableReceived(message) => {
                if let Ok(token) = message.token.parse() {
                    self.variables.end_read(context, &message.name, token);
                }
            }
            FromClient::VariableDelete(message) => self.variables.delete(context, &message.name),
            _ => {}
        }
    }

    /// Handles that a reply has been sent.
    pub(crate) fn replied(&mut self, id: RequestId) {
        self.context.end_handover(id);
    }

    /// Handles that a client does not get the reply to a request.
    pub(crate) fn dropped(&mut self, id: RequestId) {
        if self.leave(id).is_some() {
            return;
        }
        match self.context.end_handover(id) {
            Some(Handed::Read { name, token }) => {
                self.variables.end_read(&mut self.context, &name, token);
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
        }
        Some(awaited)
    }

    /// Panics if the objects are inconsistent.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn check(&self) {
        assert!(self.ready.is_empty() && self.context.effects.is_empty());
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
        ];
        self.context.check(costs.iter().sum());
    }
}

#[cfg(test)]
mod tests;
