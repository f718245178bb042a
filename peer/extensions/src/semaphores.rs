//! Semaphores, and locks, which are semaphores with one lease.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};

use daskwire_messages::Key;

use super::context::{Answer, Awaited, Context, Handed, Timer, TimerId, cost_of};
use super::{RequestId, RequestRefusal};

#[derive(Debug, Default)]
pub(crate) struct Semaphores(HashMap<Key, Semaphore>);

#[derive(Debug)]
struct Semaphore {
    max_leases: i64,
    /// Time after which a lease ends that is not refreshed.
    lease_timeout: Option<Duration>,
    /// The leases by their ids. There are more than `max_leases` if an ended one was refreshed.
    leases: HashMap<Key, Lease>,
    /// The requests that wait for a lease, with its id.
    waiters: BTreeMap<RequestId, Key>,
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
        let (name, lease_id) = (name.clone(), id.clone());
        let end = self
            .lease_timeout
            .and_then(|after| context.now.checked_add(after));
        let timer = end.map(|end| context.start_timer(end, Timer::Lease { name, lease_id }));
        match old {
            Some(lease) => {
                lease.request = request.or(lease.request);
                if let Some(timer) = core::mem::replace(&mut lease.timer, timer) {
                    context.stop_timer(timer);
                }
            }
            None => {
                self.leases.insert(id.clone(), Lease { request, timer });
            }
        }
        Ok(())
    }

    /// Grants leases to the requests that have waited longest.
    fn grant(&mut self, context: &mut Context, name: &Key) {
        while i64::try_from(self.leases.len()).is_ok_and(|count| count < self.max_leases) {
            let Some((id, lease_id)) = self.waiters.pop_first() else {
                return;
            };
            context.end_wait(id);
            self.acquire(context, id, name, lease_id);
        }
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

fn missing(name: &Key) -> RequestRefusal {
    RequestRefusal::UnknownSemaphore { name: name.clone() }
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
                let semaphore = Semaphore {
                    max_leases,
                    lease_timeout: lease_timeout.and_then(Result::ok),
                    leases: HashMap::new(),
                    waiters: BTreeMap::new(),
                };
                self.0.insert(name, semaphore);
                Ok(Answer::Value(().into()))
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
        semaphore.waiters.insert(id, lease_id);
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
        }
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
    pub(crate) fn leave(&mut self, id: RequestId, name: &Key) {
        if let Some(semaphore) = self.0.get_mut(name) {
            semaphore.waiters.remove(&id);
        }
    }

    /// The memory that all semaphores count. Panics if one is inconsistent.
    #[cfg(any(test, feature = "fuzzing"))]
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
