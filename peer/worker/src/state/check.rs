//! Consistency checks of the state machine's redundant data.

use std::collections::BTreeSet;

use daskwire_messages::Key;

use super::State;
use super::task::{MAX_HOLDERS, PHASE_COUNT, TaskStage};

impl State {
    /// The keys of all tasks.
    #[cfg(feature = "fuzzing")]
    #[doc(hidden)]
    pub fn keys(&self) -> Vec<Key> {
        self.tasks.keys().cloned().collect()
    }

    /// The keys of tasks whose results are in the store.
    #[doc(hidden)]
    pub fn in_memory(&self) -> BTreeSet<Key> {
        let tasks = self.tasks.iter();
        let in_memory = tasks.filter(|(_, task)| task.stage == TaskStage::Memory);
        in_memory.map(|(key, _)| key.clone()).collect()
    }

    /// Panics if the state is inconsistent. Called between events.
    #[doc(hidden)]
    pub fn check(&self) {
        let mut counts = [0; PHASE_COUNT];
        for (key, task) in &self.tasks {
            counts[task.stage as usize] += 1;
            let entry = (task.priority, key.clone());
            let is_ready = self.ready.contains(&entry) || self.constrained.contains(&entry);
            assert_eq!(is_ready, task.stage == TaskStage::Ready, "{key}");
            assert_eq!(
                self.missing.contains(key),
                task.stage == TaskStage::Missing,
                "{key}"
            );
            let is_running = self.executing.contains_key(key);
            // A task whose result was obtained from elsewhere may still be executing.
            assert!(is_running || task.stage != TaskStage::Executing, "{key}");
            if task.stage == TaskStage::Flight {
                let mut requests = self.requests.values();
                assert!(requests.any(|request| request.keys.contains(key)), "{key}");
            }
            for (peer, state) in self.peers.iter() {
                let is_listed = task.stage == TaskStage::Fetch && task.holders.contains(peer);
                assert_eq!(state.keys.contains(&entry), is_listed, "{key} at {peer}");
            }
            if task.stage == TaskStage::Fetch {
                assert!(!task.holders.is_empty(), "{key}");
                assert!(task.holders.len() <= MAX_HOLDERS, "{key}");
            }
            if let Some(computation) = &task.computation {
                let missing = computation.dependencies.iter().filter(|dependency| {
                    let dependency = &self.tasks[*dependency];
                    assert!(dependency.dependents.contains(key), "{key}");
                    dependency.stage != TaskStage::Memory
                });
                assert_eq!(missing.count(), computation.missing_count, "{key}");
                if task.stage == TaskStage::Waiting {
                    let is_waiting = computation.missing_count != 0;
                    assert!(is_waiting || computation.is_unsupported, "{key}");
                }
            }
            for dependent in &task.dependents {
                let dependent = &self.tasks[dependent];
                assert!(matches!(
                    dependent.stage,
                    TaskStage::Waiting | TaskStage::Ready
                ));
            }
        }
        if !self.is_connected() {
            assert!(self.ready.is_empty() && self.constrained.is_empty());
            assert!(self.missing.is_empty());
        }
        for key in self.story.kept_keys() {
            assert!(self.tasks[key].stage.is_pending(), "{key}");
        }
        assert_eq!(counts, self.counts);
        let queued: usize = self.ready.len() + self.constrained.len();
        assert_eq!(queued as u64, self.counts[TaskStage::Ready as usize]);
        assert_eq!(
            self.missing.len() as u64,
            self.counts[TaskStage::Missing as usize]
        );
        assert!(self.busy_count() <= self.limits.nthreads);
        let mut executing = self.executing.values();
        assert!(executing.all(|running| running.has_seceded || running.rejoins_since.is_none()));
        let executing = self.executing.values();
        let seceded = executing.filter(|running| running.has_seceded);
        assert_eq!(seceded.count(), self.seceded_count);
        let executing = self.executing.iter();
        let rejoining = executing.filter_map(|(key, running)| {
            let since = running.rejoins_since?;
            Some((since, key.clone()))
        });
        assert_eq!(rejoining.collect::<BTreeSet<_>>(), self.rejoining);
        assert!(self.gone.is_empty() || !self.requests.is_empty());
        let lengths = self.requests.values().map(|request| request.len);
        assert_eq!(lengths.sum::<u64>(), self.flight_len);
        for (peer, state) in self.peers.iter() {
            let requests = self.requests.values();
            let requests = requests.filter(|request| request.peer == *peer);
            assert_eq!(requests.clone().count(), state.request_count, "{peer}");
            let lengths = requests.map(|request| request.len);
            assert_eq!(lengths.sum::<u64>(), state.flight_len, "{peer}");
            assert!(!state.is_idle(), "{peer}");
        }
        let requests = self.requests.values();
        assert!(
            requests
                .map(|request| &request.peer)
                .all(|peer| self.peers.get(peer).is_some())
        );
        self.peers.check();
        let is_within = self.flight_len <= self.limits.transfer_total_len;
        assert!(is_within || self.requests.len() == 1);
    }
}
