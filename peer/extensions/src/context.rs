//! What all extensions share: waiting requests, timers, the memory limit, and effects.

use core::time::Duration;
use std::collections::BTreeMap;

use daskwire_messages::protocol::{Field as _, Request};
use daskwire_messages::{Key, Value};

use super::{Change, RequestId, RequestRefusal};

/// Bytes of memory that every stored entry counts beyond its names and values.
const ENTRY: usize = 256;

/// Time in which a client confirms that it holds a future that it was sent. After that, the
/// client is assumed to have ended.
pub(crate) const HANDOVER: Duration = Duration::from_secs(300);

/// The name of the client that holds results for an object. That of a string is as in Dask; others
/// have quotation marks, which strings have escaped: the number 1 is not the string.
pub(crate) fn holder_of(prefix: &str, name: &Key) -> String {
    match name.as_str() {
        Some(_) => format!("{prefix}{name}"),
        None => format!("{prefix}\"{name}\""),
    }
}

/// What the scheduler has to do, in order.
#[derive(Debug)]
pub enum Effect {
    /// Reply to a request.
    Reply(RequestId, Result<Answer, RequestRefusal>),
    /// Keep the result of a task for a holder, as if a client of that name wanted it.
    Hold {
        /// The name of the holder, such as `variable-x`.
        holder: String,
        /// The key of the task.
        key: Key,
    },
    /// End an earlier `Hold`.
    Release {
        /// The name of the holder.
        holder: String,
        /// The key of the task.
        key: Key,
    },
    /// Note a change, if [changes are kept](super::Extensions::keep_changes). A hold comes before the
    /// change that needs it, and a release after the change that ends the need.
    Changed(Change),
}

/// The content of a reply.
#[derive(Debug)]
pub enum Answer {
    /// The reply as it is.
    Value(Value),
    /// A shared value. The scheduler adds the state of the task to a future.
    Record(Record),
    /// Several shared values.
    Records(Vec<Record>),
    /// A value of a variable, with the token by which a future is confirmed.
    Read(Record, u64),
}

/// A value that clients share.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The result of a task.
    Future(Key),
    /// Data of the client.
    Data(Value),
}

impl Record {
    pub(crate) fn new(key: Option<Key>, data: Option<Value>) -> Self {
        match key {
            Some(key) => Self::Future(key),
            None => Self::Data(data.unwrap_or_default()),
        }
    }

    /// The key of the task, for a future.
    pub(crate) const fn key(&self) -> Option<&Key> {
        match self {
            Self::Future(key) => Some(key),
            Self::Data(_) => None,
        }
    }

    pub(crate) fn cost(&self) -> usize {
        ENTRY
            + match self {
                Self::Future(key) => key.heap_len(),
                Self::Data(data) => data.heap_len(),
            }
    }
}

/// The bytes that an entry with a name counts.
pub(crate) fn cost_of(name: &Key) -> usize {
    ENTRY + name.heap_len()
}

/// The event that a request waits for.
#[derive(Debug)]
pub(crate) enum Awaited {
    /// The task of the request.
    Task { key: Key, request: Box<Request> },
    /// A variable to be set.
    Variable { name: Key },
    /// An event to be set.
    Event { name: Key },
    /// A value in a queue.
    Item { name: Key },
    /// Room in a queue.
    Room { name: Key },
    /// A lease of a semaphore.
    Lease { name: Key },
    /// The locks of a holder.
    Locks { holder: Key },
    /// The message on a client's stream that the request follows.
    Flush { uid: Key, request: Box<Request> },
}

impl Awaited {
    fn cost(&self) -> usize {
        ENTRY
            + match self {
                Self::Task { request, .. } | Self::Flush { request, .. } => request.heap_len(),
                Self::Variable { name }
                | Self::Event { name }
                | Self::Item { name }
                | Self::Room { name }
                | Self::Lease { name }
                | Self::Locks { holder: name } => name.heap_len(),
            }
    }

    /// The reply to a request that has waited until its time-out.
    pub(crate) fn too_late(self) -> Result<Answer, RequestRefusal> {
        let (what, name) = match self {
            Self::Task { key, .. } => return Err(RequestRefusal::UnknownTask { key }),
            Self::Event { .. } | Self::Lease { .. } | Self::Locks { .. } => {
                return Ok(Answer::Value(false.into()));
            }
            Self::Variable { name } => ("a value of the variable", name),
            Self::Item { name } => ("a value in the queue", name),
            Self::Room { name } => ("room in the queue", name),
            Self::Flush { uid, .. } => ("the message on the client's stream with the id", uid),
        };
        Err(RequestRefusal::Timeout { what, name })
    }
}

#[derive(Debug)]
struct Wait {
    awaited: Awaited,
    timer: Option<TimerId>,
    cost: usize,
}

/// The time of a timer, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId(Duration, u64);

/// What happens when a timer ends.
#[derive(Debug)]
pub(crate) enum Timer {
    /// The time-out of a request.
    Request(RequestId),
    /// A future of a variable that was read was not confirmed.
    Read { name: Key, token: u64 },
    /// A future that was removed from a queue was not confirmed.
    Removed { name: Key, key: Key, number: u64 },
    /// A lease was not refreshed.
    Lease { name: Key, lease_id: Key },
    /// The request that follows a message on a stream has not come.
    Flushed { uid: Key },
}

/// What a reply has handed over, and is taken back if the reply does not reach its client.
#[derive(Debug)]
pub(crate) enum Handed {
    /// A future of a variable.
    Read {
        name: Key,
        token: u64,
    },
    /// Values of a queue. They count until the reply is sent.
    Items {
        name: Key,
        values: Vec<Item>,
    },
    Lease {
        name: Key,
        lease_id: Key,
    },
    Locks {
        holder: Key,
    },
}

/// A value of a queue, with its number.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) number: u64,
    pub(crate) value: Record,
}

#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) now: Duration,
    /// Memory of all entries, in bytes.
    used: usize,
    max_len: usize,
    timers: BTreeMap<TimerId, Timer>,
    timer_count: u64,
    waits: BTreeMap<RequestId, Wait>,
    handed: BTreeMap<RequestId, Handed>,
    pub(crate) effects: Vec<Effect>,
    /// Whether changes are among the effects.
    pub(crate) keeps_changes: bool,
}

impl Context {
    pub(crate) fn new(max_len: usize) -> Self {
        Self {
            max_len,
            ..Self::default()
        }
    }

    /// Counts memory of an entry, or refuses the request that needs it.
    pub(crate) fn charge(&mut self, cost: usize) -> Result<(), RequestRefusal> {
        let used = self.used.saturating_add(cost);
        if used > self.max_len {
            return Err(RequestRefusal::Full {
                limit: self.max_len,
            });
        }
        self.used = used;
        Ok(())
    }

    pub(crate) fn refund(&mut self, cost: usize) {
        self.used -= cost;
    }

    pub(crate) fn start_timer(&mut self, at: Duration, timer: Timer) -> TimerId {
        self.timer_count += 1;
        let id = TimerId(at, self.timer_count);
        self.timers.insert(id, timer);
        id
    }

    pub(crate) fn stop_timer(&mut self, id: TimerId) {
        self.timers.remove(&id);
    }

    /// The next timer that has ended.
    pub(crate) fn next_timer(&mut self) -> Option<Timer> {
        let first = self.timers.first_entry()?;
        (first.key().0 <= self.now).then(|| first.remove())
    }

    pub(crate) fn reply(&mut self, id: RequestId, reply: Result<Answer, RequestRefusal>) {
        self.effects.push(Effect::Reply(id, reply));
    }

    pub(crate) fn reply_value(&mut self, id: RequestId, value: impl Into<Value>) {
        self.reply(id, Ok(Answer::Value(value.into())));
    }

    pub(crate) fn hold(&mut self, holder: String, key: &Key) {
        let key = key.clone();
        self.effects.push(Effect::Hold { holder, key });
    }

    pub(crate) fn change(&mut self, change: impl FnOnce() -> Change) {
        if self.keeps_changes {
            self.effects.push(Effect::Changed(change()));
        }
    }

    pub(crate) fn release(&mut self, holder: String, key: &Key) {
        let key = key.clone();
        self.effects.push(Effect::Release { holder, key });
    }

    /// The end of a time-out in seconds that begins now; `None` for one that never ends.
    pub(crate) fn deadline(&self, timeout: Option<f64>) -> Option<Duration> {
        let timeout = timeout?.max(0.0);
        let timeout = Duration::try_from_secs_f64(timeout).ok()?;
        self.now.checked_add(timeout)
    }

    /// Lets a request wait. If the deadline has passed or memory is short, replies instead, and
    /// returns false.
    pub(crate) fn wait(
        &mut self,
        id: RequestId,
        awaited: Awaited,
        deadline: Option<Duration>,
    ) -> bool {
        let cost = awaited.cost();
        if deadline.is_some_and(|deadline| deadline <= self.now) {
            self.reply(id, awaited.too_late());
            return false;
        }
        if let Err(refusal) = self.charge(cost) {
            self.reply(id, Err(refusal));
            return false;
        }
        let timer = deadline.map(|at| self.start_timer(at, Timer::Request(id)));
        let wait = Wait {
            awaited,
            timer,
            cost,
        };
        self.waits.insert(id, wait);
        true
    }

    /// Ends the wait of a request. Returns what it has waited for, and its deadline; `None` if it
    /// does not wait.
    pub(crate) fn end_wait(&mut self, id: RequestId) -> Option<(Awaited, Option<Duration>)> {
        let wait = self.waits.remove(&id)?;
        if let Some(timer) = wait.timer {
            self.stop_timer(timer);
        }
        self.refund(wait.cost);
        Some((wait.awaited, wait.timer.map(|timer| timer.0)))
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.waits.len()
    }

    /// Keeps what a reply hands over until the reply has reached its client.
    pub(crate) fn hand_over(&mut self, id: RequestId, handed: Handed) {
        self.handed.insert(id, handed);
    }

    /// Returns what was kept of a reply.
    pub(crate) fn end_handover(&mut self, id: RequestId) -> Option<Handed> {
        self.handed.remove(&id)
    }

    /// The values of a queue that replies hand over.
    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn handed_items(&self, name: &Key) -> impl Iterator<Item = &Item> {
        self.handed.values().flat_map(move |handed| match handed {
            Handed::Items { name: of, values } if of == name => &values[..],
            _ => &[],
        })
    }

    /// What a request waits for.
    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn awaited(&self, id: RequestId) -> Option<&Awaited> {
        self.waits.get(&id).map(|wait| &wait.awaited)
    }

    #[cfg(test)]
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn has_timer(&self, id: TimerId) -> bool {
        self.timers.contains_key(&id)
    }

    /// Panics if the memory that is counted is not that of the waits and of the objects, which take
    /// `cost` bytes.
    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn check(&self, cost: usize) {
        let waits: usize = self.waits.values().map(|wait| wait.cost).sum();
        let handed = self.handed.values().flat_map(|handed| match handed {
            Handed::Items { values, .. } => &values[..],
            _ => &[],
        });
        let handed: usize = handed.map(|item| item.value.cost()).sum();
        assert_eq!(self.used, cost + waits + handed);
        for (id, timer) in &self.timers {
            if let Timer::Request(request) = timer {
                assert_eq!(self.waits[request].timer, Some(*id));
            }
        }
    }
}
