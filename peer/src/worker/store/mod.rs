//! Data at rest: the one place that owns the results and pieces of data that a
//! worker holds.
//!
//! Everything else sees a map of keys ([`Store`]). Inside, a [`Datum`] is
//! serialized, deserialized, both, or in a file:
//!
//! ```text
//!            network                        task
//!          │        ▲                     │      ▲
//!          ▼        │      open, once     ▼      │
//!        serialized ─┴──────────────────► value ──┘
//!          │   ▲    ◄──────────────────────┘
//!   spill  │   │      serialize, on demand
//!          ▼   │ read
//!        file ──
//! ```
//!
//! * what arrives over the network stays as it was sent, and goes out again as
//!   it was sent, by way of a file or not: nobody decodes a byte of it;
//! * it is deserialized when the first task needs its value, once, however many
//!   tasks start at that moment: the others wait for the same value;
//! * the result of a task stays a value until somebody asks for its bytes, or
//!   until it goes to disk;
//! * once data takes more memory than the target, what was not used for longest
//!   goes to disk, but not what a task uses, or one that is about to start. That
//!   a datum is larger than the target makes no difference: the task for which it
//!   came has it from memory.
//!
//! A datum that a task or a transfer is using lives on until they are done,
//! even if it is removed from the store in the meantime.
//!
//! Where things are:
//!
//! | | |
//! | --- | --- |
//! | `mod.rs` | the map of keys |
//! | `datum.rs` | one piece of data: its forms, and how one is made of another |
//! | `ledger.rs` | what is where, in which order it was used, and the thread that writes and removes files |
//! | `file.rs` | what is in a spill file |
//! | `directory.rs` | where spill files are, and how those of dead processes go |
//! | `meters.rs` | what is counted |
//!
//! Locks are taken in the order map, datum, ledger, and none of them is held
//! while something is written, read, serialized or deserialized.

mod datum;
mod directory;
mod file;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod ledger;
mod meters;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use crate::Key;
use crate::value::{Serialized, Value};

pub(crate) use datum::{Datum, DatumError, Done, InUse, Opened, Step, Steps};
pub(crate) use directory::SpillDirectory;
pub use meters::{Holdings, StoreCounters, Tally};

use crate::failure::Failure;
use ledger::Common;

/// The data that a worker holds.
#[derive(Debug)]
pub(crate) struct Store {
    held: Mutex<Held>,
    common: Arc<Common>,
    /// Writes and removes files.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Held {
    data: HashMap<Key, Datum>,
    nbytes: u64,
}

/// All data stays in memory.
impl Default for Store {
    fn default() -> Self {
        Self::of(Common::new(None, u64::MAX, u64::MAX))
    }
}

impl Store {
    fn of(common: Common) -> Self {
        Self {
            held: Mutex::default(),
            common: Arc::new(common),
            thread: Mutex::default(),
        }
    }

    /// A store whose data goes to `directory` once it takes more than `target`
    /// bytes of memory, and [is full](Self::is_full) with `full`.
    pub(crate) fn spilling(directory: SpillDirectory, target: u64, full: u64) -> Self {
        Self::of(Common::new(Some(directory), target, full))
    }

    /// Whether data is made faster than it goes to disk, so that nothing should
    /// make more of it until `relieved` is called.
    pub(crate) fn is_full(&self) -> bool {
        self.common.is_full()
    }

    /// Starts the thread that writes and removes files. `needed` are data that
    /// tasks need which are about to start; `notify` gets what people should
    /// know; `relieved` is called when the store was asked whether it is full, and
    /// is not any more.
    pub(crate) fn start(
        &self,
        needed: impl Fn() -> Vec<Datum> + Send + Sync + 'static,
        notify: impl Fn(&str) + Send + Sync + 'static,
        relieved: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<()> {
        let _ = self.common.relieved.set(Box::new(relieved));
        let _ = self.common.needed.set(Box::new(needed));
        let _ = self.common.notify.set(Box::new(notify));
        let thread = self.common.start()?;
        *self.common.failure.check(self.thread.lock()) = thread;
        Ok(())
    }

    /// Takes so many bytes more out of memory than the target asks for, as the
    /// process has too much. This replaces what was asked for before.
    pub(crate) fn free(&self, excess: u64) {
        self.common.lock().excess = excess;
        if excess != 0 {
            self.common.wake.notify_all();
        }
    }

    /// Removes all files. What is on disk is lost.
    ///
    /// Blocks until the last of them is written that is being written.
    pub(crate) fn close(&self) {
        self.common.close();
        let thread = self.common.failure.check(self.thread.lock()).take();
        if let Some(thread) = thread {
            // If it panicked there is nothing to wait for.
            let _ = thread.join();
        }
        if let Some(directory) = &self.common.directory {
            directory.remove();
        }
    }

    /// A datum of what was received, which is not opened. It is in no store yet.
    pub(crate) fn received(&self, serialized: Serialized) -> Datum {
        Datum::new(&self.common, serialized.len(), Some(serialized), None)
    }

    /// A datum of what a task made. It is in no store yet.
    pub(crate) fn made(&self, value: Value) -> Datum {
        match value {
            Value::Serialized(serialized) => self.received(serialized),
            value => Datum::new(&self.common, value.nbytes(), None, Some(value)),
        }
    }

    /// Takes a datum in. If the key has one already, that one stays: two that
    /// have the same key are the same.
    pub(crate) fn insert(&self, key: &Key, datum: Datum) {
        let mut held = self.lock();
        if !held.data.contains_key(key) {
            held.nbytes = held.nbytes.saturating_add(datum.nbytes());
            datum.enter();
            held.data.insert(key.clone(), datum);
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Datum> {
        self.lock().data.get(key).cloned()
    }

    /// The datum is returned so that the caller can drop it where that may take
    /// time.
    pub(crate) fn remove(&self, key: &Key) -> Option<Datum> {
        let mut held = self.lock();
        let datum = held.data.remove(key)?;
        held.nbytes = held.nbytes.saturating_sub(datum.nbytes());
        drop(held);
        datum.leave();
        Some(datum)
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.lock().data.keys().cloned().collect()
    }

    /// How many bytes all data counts for, wherever it is.
    pub(crate) fn nbytes(&self) -> u64 {
        self.lock().nbytes
    }

    /// How much of it is where.
    pub(crate) fn holdings(&self) -> Holdings {
        self.common.lock().holdings
    }

    /// Set when a panic may have left the store inconsistent.
    pub(in crate::worker) fn failure(&self) -> &Failure {
        &self.common.failure
    }

    pub(crate) fn counters(&self) -> StoreCounters {
        self.common.meters.read()
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.common.failure.check(self.held.lock())
    }
}

#[cfg(test)]
impl Store {
    /// Panics while the map is locked.
    pub(in crate::worker) fn poison(&self) {
        crate::failure::poison(&self.held);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.common.close();
    }
}

/// A path for a test, where nothing is.
#[cfg(test)]
pub(crate) fn scratch(name: &str) -> std::path::PathBuf {
    let id = crate::identifier();
    std::env::temp_dir().join(format!("daskwire-{name}-{id}"))
}

#[cfg(test)]
mod tests;
