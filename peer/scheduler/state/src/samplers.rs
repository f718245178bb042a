//! Samples of the memory of all workers, as of Dask's `MemorySampler`.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::State;
use super::memory::{Memory, MemoryMeasure};

/// Maximum number of samplers.
const MAX_SAMPLERS: usize = 64;

/// Maximum number of samples of all samplers. Further ones are not taken.
const MAX_SAMPLES: usize = 1 << 20;

/// The shortest interval. Without one, samples of the same time would never end.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// What clients have sampled.
#[derive(Debug, Default)]
pub(super) struct Samplers {
    by_key: BTreeMap<String, Sampler>,
    /// The times of the next samples, with the keys.
    due: BTreeSet<(Duration, String)>,
    sample_count: usize,
}

#[derive(Debug)]
struct Sampler {
    /// The name of the client.
    client: String,
    measure: MemoryMeasure,
    interval: Duration,
    next: Duration,
    /// The times in seconds since 1970, and the bytes.
    samples: Vec<(f64, u64)>,
}

impl Samplers {
    fn remove(&mut self, key: &str) {
        if let Some(sampler) = self.by_key.remove(key) {
            self.due.remove(&(sampler.next, key.to_owned()));
            self.sample_count -= sampler.samples.len();
        }
    }
}

impl State {
    /// Whether as many samplers run as may at once.
    pub fn has_all_samplers(&self) -> bool {
        self.samplers.by_key.len() >= MAX_SAMPLERS
    }

    /// Starts to sample the memory of all workers, and takes the first sample.
    pub(super) fn start_sampler(
        &mut self,
        key: String,
        client: String,
        measure: MemoryMeasure,
        interval: Duration,
    ) {
        if self.has_all_samplers() || self.samplers.by_key.contains_key(&key) {
            return;
        }
        let next = self.now;
        self.samplers.due.insert((next, key.clone()));
        let sampler = Sampler {
            client,
            measure,
            interval: interval.max(MIN_INTERVAL),
            next,
            samples: Vec::new(),
        };
        self.samplers.by_key.insert(key, sampler);
        self.take_samples();
    }

    pub(super) fn stop_sampler(&mut self, key: &str) {
        self.samplers.remove(key);
    }

    /// Takes the samples that are due.
    pub(super) fn take_samples(&mut self) {
        let now = self.now;
        let is_due = |(next, _): &&(Duration, String)| *next <= now;
        if !self.samplers.due.first().as_ref().is_some_and(is_due) {
            return;
        }
        let mut memory = Memory::default();
        for worker in self.workers.values() {
            memory.add(&Memory::of(worker));
        }
        while let Some((next, key)) = self.samplers.due.pop_first() {
            if next > now {
                self.samplers.due.insert((next, key));
                break;
            }
            let is_full = self.samplers.sample_count >= MAX_SAMPLES;
            let Some(sampler) = self.samplers.by_key.get_mut(&key) else {
                continue;
            };
            if !self.by_name.contains_key(&*sampler.client) {
                self.samplers.remove(&key);
                continue;
            }
            if !is_full {
                let sample = (now.as_secs_f64(), memory.measure(sampler.measure));
                sampler.samples.push(sample);
                self.samplers.sample_count += 1;
            }
            sampler.next = now.saturating_add(sampler.interval);
            self.samplers.due.insert((sampler.next, key));
        }
    }

    /// The samples of a sampler: times in seconds since 1970, and bytes.
    pub fn memory_samples(&self, key: &str) -> Option<&[(f64, u64)]> {
        self.samplers
            .by_key
            .get(key)
            .map(|sampler| &*sampler.samples)
    }

    #[cfg(any(test, feature = "checks"))]
    pub(super) fn check_samplers(&self) {
        let Samplers {
            by_key,
            due,
            sample_count,
        } = &self.samplers;
        let counts = by_key.values().map(|sampler| sampler.samples.len());
        assert_eq!(counts.sum::<usize>(), *sample_count);
        let next = by_key
            .iter()
            .map(|(key, sampler)| (sampler.next, key.clone()));
        assert_eq!(next.collect::<BTreeSet<_>>(), *due);
    }
}
