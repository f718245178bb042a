//! Hosts that share the tasks of all threads.
//!
//! A task runs in a thread of the host with the fewest tasks, unless it has an input that cannot
//! be pickled, which only one of them has.

use core::cmp::Reverse;
use core::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};

use daskwire_messages::protocol::StartPython;
use daskwire_python::{Executor, Host, HostEvent};
use daskwire_rpc::panic_flag::PanicFlag;

use super::{Call, PythonProcesses, RunError};
use daskwire_store::DatumError;

/// The hosts that share the tasks of a worker.
pub(super) struct SharedHosts {
    /// The places of the hosts, the first of which answers peers. Executors have clones of them.
    places: Mutex<Vec<Arc<()>>>,
    /// The hosts of further places, once they have been started. Never locked across blocking
    /// calls.
    further: Mutex<Vec<Option<Arc<Host>>>>,
    /// Locked while a host of a further place starts.
    starting: Mutex<()>,
    panic_flag: PanicFlag,
}

impl SharedHosts {
    /// Returns places for `count` hosts.
    pub(super) fn new(count: NonZeroUsize, panic_flag: PanicFlag) -> Self {
        let places = (0..count.get()).map(|_| Arc::new(())).collect();
        let further = (1..count.get()).map(|_| None).collect();
        Self {
            places: Mutex::new(places),
            further: Mutex::new(further),
            starting: Mutex::default(),
            panic_flag,
        }
    }

    /// Removes the hosts of further places, after the start of one has ended.
    pub(super) fn take_all(&self) -> Vec<Arc<Host>> {
        drop(self.panic_flag.check(self.starting.lock()));
        let mut further = self.further();
        further.iter_mut().filter_map(Option::take).collect()
    }

    fn further(&self) -> MutexGuard<'_, Vec<Option<Arc<Host>>>> {
        self.panic_flag.check(self.further.lock())
    }
}

impl PythonProcesses {
    /// Whether tasks share a number of processes.
    pub(crate) const fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Starts the hosts that share the tasks, if they do.
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host).
    pub(crate) fn start_shared(&self) -> Result<(), RunError> {
        if let Some(shared) = &self.shared {
            let count = self.panic_flag.check(shared.places.lock()).len();
            for index in 0..count {
                self.host_at(shared, index)?;
            }
        }
        Ok(())
    }

    /// The hosts that run.
    pub(super) fn running_hosts(&self) -> Vec<Arc<Host>> {
        let mut hosts: Vec<Arc<Host>> = self.running_host().into_iter().collect();
        if let Some(shared) = &self.shared {
            hosts.extend(shared.further().iter().flatten().cloned());
        }
        hosts
    }

    /// Returns an executor for a task.
    pub(super) fn take_shared(
        &self,
        shared: &SharedHosts,
        call: &Call<'_>,
    ) -> Result<Executor, RunError> {
        let home = self.home(call)?;
        let places = self.panic_flag.check(shared.places.lock());
        let index = home.unwrap_or_else(|| {
            let further = shared.further();
            let first = self.running_host();
            let host_at = |index: usize| match index.checked_sub(1) {
                None => first.as_ref(),
                Some(index) => further.get(index).and_then(Option::as_ref),
            };
            let rank = |index: &usize| {
                let cached = host_at(*index).map_or(0, |host| host.count_cached(call.data.keys()));
                (Arc::strong_count(&places[*index]), Reverse(cached))
            };
            (0..places.len()).min_by_key(rank).unwrap_or_default()
        });
        let place = Arc::clone(&places[index]);
        drop(places);
        let host = self.host_at(shared, index)?;
        if index != 0 {
            host.update_plugins(&self.plugins);
        }
        let mut executor = host.executor().map_err(RunError::Start)?;
        executor.place = Some(place);
        Ok(executor)
    }

    /// The index of the host that has to run a task, if only one of them can.
    fn home(&self, call: &Call<'_>) -> Result<Option<usize>, RunError> {
        let hosts = self.running_hosts();
        let mut found = call.is_in_host.then_some(0);
        for (key, datum) in call.data {
            let Some(home) = &datum.origin().home else {
                continue;
            };
            let index = hosts
                .iter()
                .position(|host| core::ptr::eq(Arc::as_ptr(host), home.as_ptr()))
                .filter(|index| !hosts[*index].has_ended())
                .ok_or_else(|| RunError::Input(key.clone(), DatumError::Lost))?;
            if found.is_some_and(|found| found != index) {
                return Err(RunError::Apart);
            }
            found = Some(index);
        }
        Ok(found)
    }

    /// Returns the host of a place, and starts it if none is running.
    fn host_at(&self, shared: &SharedHosts, index: usize) -> Result<Arc<Host>, RunError> {
        let Some(index) = index.checked_sub(1) else {
            return self.host();
        };
        let _starting = self.panic_flag.check(shared.starting.lock());
        let current = shared.further().get(index).cloned().flatten();
        if let Some(host) = current.filter(|host| !host.has_ended()) {
            return Ok(host);
        }
        if self.is_closed() {
            return Err(RunError::Closed);
        }
        let on = self.on_host_event()?;
        let mut last = 0;
        let plugins = self.plugins.since(&mut last).into_iter();
        let start = StartPython {
            is_host: true,
            plugins: plugins
                .filter_map(|(name, plugin)| Some((name, plugin?)))
                .collect(),
            ..self.start_message()
        };
        // Only the first host reports transitions of tasks to plugins.
        let on = move |event: HostEvent| {
            if !matches!(event, HostEvent::Watches(_)) {
                on(event);
            }
        };
        let panic_flag = self.panic_flag.clone();
        let host = Host::start(
            &self.template,
            (&start, last),
            &self.memory,
            Arc::new(on),
            panic_flag,
        );
        let host = host.map_err(RunError::Start)?;
        if let Some(place) = shared.further().get_mut(index) {
            *place = Some(Arc::clone(&host));
        }
        Ok(host)
    }
}
