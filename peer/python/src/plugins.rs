//! The worker plugins that Python processes set up.

use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use daskwire_rpc::panic_flag::PanicFlag;

/// The name of Dask's plugin for P2P shuffles. Only the host has it, since it holds
/// the state of shuffles.
const SHUFFLE: &str = "shuffle";

/// The plugins of a worker, by name, with the number of their last change.
#[derive(Debug)]
pub struct Plugins {
    changes: Mutex<Changes>,
    panic_flag: PanicFlag,
}

#[derive(Debug, Default)]
struct Changes {
    last: u64,
    /// The last change of each plugin, in the order of `number`.
    changes: Vec<Change>,
}

#[derive(Debug)]
struct Change {
    number: u64,
    name: String,
    plugin: Option<Bytes>,
}

impl Plugins {
    /// Returns an empty set of plugins. A poisoned lock sets `panic_flag`.
    pub fn new(panic_flag: PanicFlag) -> Self {
        Self {
            changes: Mutex::default(),
            panic_flag,
        }
    }

    /// Adds or replaces a plugin, or removes it if `plugin` is `None`.
    pub fn change(&self, name: &str, plugin: Option<Bytes>) {
        let mut changes = self.lock();
        changes.last += 1;
        let number = changes.last;
        changes.changes.retain(|change| change.name != name);
        changes.changes.push(Change {
            number,
            name: name.to_owned(),
            plugin,
        });
    }

    /// Returns the names and pickles of all plugins, for the host.
    pub fn all(&self) -> Vec<(String, Bytes)> {
        let changes = self.lock();
        let all = changes.changes.iter();
        all.filter_map(|change| Some((change.name.clone(), change.plugin.clone()?)))
            .collect()
    }

    /// Whether any plugin has to be set up in the host before a task needs it. The shuffle
    /// plugin does not.
    pub fn needs_host(&self) -> bool {
        self.all().iter().any(|(name, _)| name != SHUFFLE)
    }

    /// Returns the changes after number `seen`, for a process that is not the host, and sets
    /// `seen` to the last number.
    pub fn since(&self, seen: &mut u64) -> Vec<(String, Option<Bytes>)> {
        let changes = self.lock();
        let from = core::mem::replace(seen, changes.last);
        let new = changes.changes.iter();
        new.filter(|change| change.number > from && change.name != SHUFFLE)
            .map(|change| (change.name.clone(), change.plugin.clone()))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.panic_flag.check(self.changes.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daskwire_rpc::panic_flag::poison;

    #[test]
    fn a_panic_under_the_lock_sets_the_flag() {
        let panic_flag = PanicFlag::default();
        let plugins = Plugins::new(panic_flag.clone());
        poison(&plugins.changes);
        assert!(!plugins.needs_host());
        assert!(panic_flag.is_set());
    }
}
