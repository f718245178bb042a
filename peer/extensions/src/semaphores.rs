//! Semaphores, and locks, which are semaphores with one lease.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};

use daskwire_messages::Key;

use super::context::{Answer, Awaited, Context, Handed, Timer, TimerId, cost_of};
use super::{Change, RequestId, RequestRefusal};

#[derive(Debug, Default)]
pub(crate) struct Semaphores(BTreeMap<Key, Semaphore>);

/// A semaphore, as an overview has it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SemaphoreOverview {
    /// Its name.
    pub name: Key,
    /// How many leases there may be.
    pub max_leases: i64,
    /// The number of leases.
    pub lease_count: usize,
    /// The number of requests that wait for a lease.
    pub waiter_count: usize,
    /// How many leases were granted.
    pub acquired: u64,
    /// How many leases have ended.
    pub released: u64,
    /// The mean time that requests have waited, in which the last one has half of the weight.
    pub mean_wait: Duration,
}

#[derive(Debug)]
struct Semaphore {
    max_leases: i64,
    /// Time after which a lease ends that is not refreshed.
    lease_timeout: Option<Duration>,
    /// The leases by their ids. There are more than `max_leases` if an ended one was refreshed.
    leases: HashMap<Key, Lease>,
    /// The requests that wait for a lease.
    waiters: BTreeMap<RequestId, Waiter>,
    acquired: u64,
    released: u64,
    mean_wait: Duration,
}

#[derive(Debug)]
struct Waiter {
    lease_id: Key,
    since: Duration,
}

#[derive(Debug)]
struct Lease {
    /// The last request that has acquired the lease.
    request: Option<RequestId>,
    timer: Option<TimerId>,
}

impl Semaphore {
    /// Adds a lease, or refreshes it.
    fn lease(
        &mut self,
        context: &mut Context,
        name: &Key,
        id: &Key,
        request: Option<RequestId>,
    ) -> Result<(), RequestRefusal> {
        let old = self.leases.get_mut(id);
        if old.is_none() {
            context.charge(cost_of(id))?;
        }
        let name = name.clone();
        let timer = start_timer(context, self.lease_timeout, &name, id);
        match old {
            Some(lease) => {
                lease.request = request.or(lease.request);
                if let Some(timer) = core::mem::replace(&mut lease.timer, timer) {
                    context.stop_timer(timer);
                }
            }
            None => {
                self.leases.insert(id.clone(), Lease { request, timer });
                // The lease of a refresh has ended without its holder's noticing.
                match request {
                    Some(_) => self.acquired += 1,
                    None => self.released = self.released.saturating_sub(1),
                }
                context.change(|| Change::Lease {
                    name,
                    lease_id: id.clone(),
                    is_held: true,
                });
            }
        }
        Ok(())
    }

    /// Grants leases to the requests that have waited longest.
    fn grant(&mut self, context: &mut Context, name: &Key) {
        while i64::try_from(self.leases.len()).is_ok_and(|count| count < self.max_leases) {
            let Some((id, waiter)) = self.waiters.pop_first() else {
                return;
            };
            context.end_wait(id);
            self.count_wait(context, &waiter);
            self.acquire(context, id, name, waiter.lease_id);
        }
    }

    /// Includes the time of a wait that has ended.
    fn count_wait(&mut self, context: &Context, waiter: &Waiter) {
        let waited = context.now.saturating_sub(waiter.since);
        self.mean_wait = self.mean_wait.saturating_add(waited) / 2;
    }

    /// Grants a lease.
    fn acquire(&mut self, context: &mut Context, id: RequestId, name: &Key, lease_id: Key) {
        if let Err(refusal) = self.lease(context, name, &lease_id, Some(id)) {
            return context.reply(id, Err(refusal));
        }
        let name = name.clone();
        context.hand_over(id, Handed::Lease { name, lease_id });
        context.reply_value(id, true);
    }
}

/// Starts the timer that ends a lease, unless it does not end.
fn start_timer(
    context: &mut Context,
    lease_timeout: Option<Duration>,
    name: &Key,
    lease_id: &Key,
) -> Option<TimerId> {
    let end = context.now.checked_add(lease_timeout?)?;
    let (name, lease_id) = (name.clone(), lease_id.clone());
    Some(context.start_timer(end, Timer::Lease { name, lease_id }))
}

fn missing(name: &Key) -> RequestRefusal {
    RequestRefusal::UnknownSemaphore { name: name.clone() }
}

fn ended(name: &Key, lease_id: &Key) -> Change {
    Change::Lease {
        name: name.clone(),
        lease_id: lease_id.clone(),
        is_held: false,
    }
}

impl Semaphores {
    pub(crate) fn register(
        &mut self,
        context: &mut Context,
        name: Key,
        max_leases: i64,
        lease_timeout: Option<f64>,
    ) -> Result<Answer, RequestRefusal> {
        match self.0.get(&name) {
            Some(known) if known.max_leases != max_leases => {
                Err(RequestRefusal::InconsistentLeases {
                    expected: known.max_leases,
                    requested: max_leases,
                })
            }
            Some(_) => Ok(Answer::Value(().into())),
            None => {
                context.charge(cost_of(&name))?;
                // As in Dask, leases with a time-out of zero do not end.
                let lease_timeout = lease_timeout.filter(|seconds| *seconds > 0.0);
                let lease_timeout = lease_timeout.map(Duration::try_from_secs_f64);
                self.insert(
                    context,
                    name,
                    (max_leases, lease_timeout.and_then(Result::ok)),
                );
                Ok(Answer::Value(().into()))
            }
        }
    }

    fn insert(&mut self, context: &mut Context, name: Key, terms: (i64, Option<Duration>)) {
        let semaphore = Semaphore {
            max_leases: terms.0,
            lease_timeout: terms.1,
            leases: HashMap::new(),
            waiters: BTreeMap::new(),
            acquired: 0,
            released: 0,
            mean_wait: Duration::ZERO,
        };
        self.0.insert(name.clone(), semaphore);
        let terms = Some(terms);
        context.change(|| Change::Semaphore { name, terms });
    }

    /// Registers a semaphore as it was before the end of a scheduler.
    pub(crate) fn restore(
        &mut self,
        context: &mut Context,
        name: Key,
        terms: (i64, Option<Duration>),
    ) -> Result<(), RequestRefusal> {
        if self.0.contains_key(&name) {
            let message = format!("{name} is registered twice");
            return Err(RequestRefusal::wrong_value(message));
        }
        context.charge(cost_of(&name))?;
        self.insert(context, name, terms);
        Ok(())
    }

    /// Grants a lease as it was before the end of a scheduler. It does not end before
    /// [`start_timers`](Self::start_timers).
    pub(crate) fn restore_lease(
        &mut self,
        context: &mut Context,
        name: Key,
        lease_id: Key,
    ) -> Result<(), RequestRefusal> {
        let semaphore = self.0.get_mut(&name).ok_or_else(|| missing(&name))?;
        if semaphore.leases.contains_key(&lease_id) {
            let message = format!("{lease_id} is granted twice");
            return Err(RequestRefusal::wrong_value(message));
        }
        context.charge(cost_of(&lease_id))?;
        let lease = Lease {
            request: None,
            timer: None,
        };
        semaphore.leases.insert(lease_id.clone(), lease);
        semaphore.acquired += 1;
        context.change(|| Change::Lease {
            name,
            lease_id,
            is_held: true,
        });
        Ok(())
    }

    /// Starts the time-outs of restored leases that were not refreshed meanwhile.
    pub(crate) fn start_timers(&mut self, context: &mut Context) {
        for (name, semaphore) in &mut self.0 {
            for (id, lease) in &mut semaphore.leases {
                if lease.timer.is_none() {
                    lease.timer = start_timer(context, semaphore.lease_timeout, name, id);
                }
            }
        }
    }

    pub(crate) fn acquire(
        &mut self,
        context: &mut Context,
        id: RequestId,
        name: Key,
        lease_id: Key,
        deadline: Option<Duration>,
    ) {
        let Some(semaphore) = self.0.get_mut(&name) else {
            return context.reply(id, Err(missing(&name)));
        };
        if semaphore.leases.contains_key(&lease_id) {
            // A client repeats its request if it has lost the reply.
            return semaphore.acquire(context, id, &name, lease_id);
        }
        let since = context.now;
        semaphore.waiters.insert(id, Waiter { lease_id, since });
        semaphore.grant(context, &name);
        if semaphore.waiters.contains_key(&id)
            && !context.wait(id, Awaited::Lease { name }, deadline)
        {
            semaphore.waiters.remove(&id);
        }
    }

    /// Ends a lease. Without it, nothing happens.
    pub(crate) fn release(&mut self, context: &mut Context, name: &Key, lease_id: &Key) {
        if let Some(semaphore) = self.0.get_mut(name)
            && let Some(lease) = semaphore.leases.remove(lease_id)
        {
            context.refund(cost_of(lease_id));
            if let Some(timer) = lease.timer {
                context.stop_timer(timer);
            }
            semaphore.released += 1;
            context.change(|| ended(name, lease_id));
            semaphore.grant(context, name);
        }
    }

    /// Ends a lease whose client has not got the reply, unless it has repeated the request.
    pub(crate) fn take_back(
        &mut self,
        context: &mut Context,
        id: RequestId,
        name: &Key,
        lease_id: &Key,
    ) {
        let semaphore = self.0.get(name);
        let lease = semaphore.and_then(|semaphore| semaphore.leases.get(lease_id));
        if lease.is_some_and(|lease| lease.request == Some(id)) {
            self.release(context, name, lease_id);
        }
    }

    /// Prolongs leases. One that has ended exists again: its holder has not noticed the end.
    pub(crate) fn refresh(
        &mut self,
        context: &mut Context,
        name: &Key,
        lease_ids: &[Key],
    ) -> Result<Answer, RequestRefusal> {
        if let Some(semaphore) = self.0.get_mut(name) {
            for lease_id in lease_ids {
                semaphore.lease(context, name, lease_id, None)?;
            }
        }
        Ok(Answer::Value(().into()))
    }

    /// Deletes a semaphore. Requests that wait for it are refused.
    pub(crate) fn close(&mut self, context: &mut Context, name: &Key) {
        let Some(semaphore) = self.0.remove(name) else {
            return;
        };
        context.refund(cost_of(name));
        for (id, lease) in semaphore.leases {
            context.refund(cost_of(&id));
            if let Some(timer) = lease.timer {
                context.stop_timer(timer);
            }
            context.change(|| ended(name, &id));
        }
        context.change(|| Change::Semaphore {
            name: name.clone(),
            terms: None,
        });
        for id in semaphore.waiters.into_keys() {
            context.end_wait(id);
            context.reply(id, Err(missing(name)));
        }
    }

    pub(crate) fn lease_count(&self, name: &Key) -> usize {
        self.0
            .get(name)
            .map_or(0, |semaphore| semaphore.leases.len())
    }

    /// Forgets a request whose wait has ended.
    pub(crate) fn leave(&mut self, context: &Context, id: RequestId, name: &Key) {
        if let Some(semaphore) = self.0.get_mut(name)
            && let Some(waiter) = semaphore.waiters.remove(&id)
        {
            semaphore.count_wait(context, &waiter);
        }
    }

    /// At most `max` semaphores, in the order of their names.
    pub(crate) fn overview(&self, max: usize) -> Vec<SemaphoreOverview> {
        let semaphores = self.0.iter().take(max);
        let overview = semaphores.map(|(name, semaphore)| SemaphoreOverview {
            name: name.clone(),
            max_leases: semaphore.max_leases,
            lease_count: semaphore.leases.len(),
            waiter_count: semaphore.waiters.len(),
            acquired: semaphore.acquired,
            released: semaphore.released,
            mean_wait: semaphore.mean_wait,
        });
        overview.collect()
    }

    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn objects(&self) -> Vec<Change> {
        let mut objects = Vec::new();
        for (name, semaphore) in &self.0 {
            objects.push(Change::Semaphore {
                name: name.clone(),
                terms: Some((semaphore.max_leases, semaphore.lease_timeout)),
            });
            objects.extend(semaphore.leases.keys().map(|lease_id| Change::Lease {
                name: name.clone(),
                lease_id: lease_id.clone(),
                is_held: true,
            }));
        }
        objects
    }

    /// The memory that all semaphores count. Panics if one is inconsistent.
    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn check(&self, context: &Context) -> usize {
        let mut cost = 0;
        for (name, semaphore) in &self.0 {
            cost += cost_of(name);
            cost += semaphore.leases.keys().map(cost_of).sum::<usize>();
            for lease in semaphore.leases.values() {
                assert!(lease.timer.is_none() || semaphore.lease_timeout.is_some());
                assert!(lease.timer.is_none_or(|timer| context.has_timer(timer)));
            }
            let lease_count = i64::try_from(semaphore.leases.len()).expect("few");
            assert!(semaphore.waiters.is_empty() || lease_count >= semaphore.max_leases);
            for waiter in semaphore.waiters.keys() {
                let awaited = context.awaited(*waiter);
                assert!(matches!(awaited, Some(Awaited::Lease { name: of }) if of == name));
            }
        }
        cost
    }
}
