//! The store of a worker's data: the owner of results and of inputs from
//! other workers.
//!
//! The interface is a map of keys ([`Store`]). Internally, a [`Datum`] is serialized,
//! deserialized, both, or in a file:
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
//! * data that is received over the network is kept in serialized form, and sent on
//!   unchanged, also from a file: no byte is decoded;
//! * it is deserialized when a task first needs its value, and only once: tasks
//!   that start at the same time wait for the same value;
//! * the result of a task stays a value until its bytes are requested, or until
//!   it is spilled to disk;
//! * once data uses more memory than the target, or the process uses too much, the least
//!   recently used data is moved to disk, except for inputs of tasks that are running or
//!   start soon. This also applies to a datum larger than the target: the task that it was
//!   fetched for reads it from memory.
//!
//! A datum in use by a task or a transfer lives until they are done, even if it
//! is removed from the store.
//!
//! Modules:
//!
//! | | |
//! | --- | --- |
//! | `lib.rs` | the map of keys |
//! | `datum.rs` | a piece of data, its forms, and the conversions between them |
//! | `ledger.rs` | sizes, the order of use, and the thread that writes and
//! removes files |
//! | `file.rs` | the format of spill files |
//! | `directory.rs` | the directory of spill files, and the removal of those of
//! dead processes |
//! | `meters.rs` | counters |
//!
//! Locks are taken in the order map, datum, ledger. None is held while data is
//! written, read, serialized or deserialized.
//!
//! ```
//! use daskwire_messages::{Key, Value};
//! use daskwire_store::{Steps, Store};
//!
//! let store = Store::default(); // without a limit of memory
//! let key = Key::from("x");
//! store.insert(&key, store.made(Value::from("text")));
//! let datum = store.get(&key).ok_or("it was just stored")?;
//! let value = datum.open(&Steps::default()).map_err(|error| error.to_string())?;
//! assert_eq!(value.as_str(), Some("text"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Who uses it: `daskwire-worker`. Programs use that as `daskwire_peer::worker`.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod datum;
mod directory;
mod file;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod ledger;
mod meters;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use daskwire_comm::BufferPool;
use daskwire_messages::Key;
use daskwire_messages::pickling::Pickling;
use daskwire_messages::value::{Serialized, Value};
use daskwire_rpc::panic_flag::PanicFlag;

#[cfg(target_os = "linux")]
pub use datum::Origin;
pub use datum::{Datum, DatumError, Done, InUse, Opened, Step, Steps};
pub use directory::SpillDirectory;
pub use meters::{Holdings, StoreCounters, Tally};

use ledger::Common;

/// The data of a worker, by key.
#[derive(Debug)]
pub struct Store {
    held: Mutex<Held>,
    common: Arc<Common>,
    /// The thread that writes and removes files.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Held {
    data: HashMap<Key, Datum>,
    nbytes: u64,
}

/// A store that keeps all data in memory.
impl Default for Store {
    fn default() -> Self {
        Self::in_memory(Pickling::default())
    }
}

impl Store {
    /// Returns a store that never spills.
    pub fn in_memory(pickling: Pickling) -> Self {
        Self::of(Common::new(None, u64::MAX, u64::MAX, pickling))
    }

    fn of(common: Common) -> Self {
        Self {
            held: Mutex::default(),
            common: Arc::new(common),
            thread: Mutex::default(),
        }
    }

    /// Returns a store that spills data to `directory` once it takes more than `target` bytes
    /// of memory, or more than `full` bytes with the [other memory](Self::set_other_memory) of
    /// the process. It [is full](Self::is_full) at `full` bytes of data.
    pub fn spilling(directory: SpillDirectory, target: u64, full: u64, pickling: Pickling) -> Self {
        Self::of(Common::new(Some(directory), target, full, pickling))
    }

    /// Sets the maximum number of bytes on disk. Only the first call has an effect.
    pub fn limit_disk(&self, max_len: u64) {
        let _ = self.common.max_disk_len.set(max_len);
    }

    /// Whether data is produced faster than it is written to disk, so that no more
    /// should be produced until `relieved` is called.
    pub fn is_full(&self) -> bool {
        self.common.is_full()
    }

    /// Starts the thread that writes and removes files. `needed` returns the
    /// inputs of tasks that start soon; `notify` gets operator-facing warnings;
    /// `spilled` is called with the key of data that was moved to disk, and the number of
    /// bytes that this freed; `relieved` is called once the store has free space
    /// after [`is_full`](Self::is_full) returned true.
    ///
    /// # Errors
    ///
    /// If the system starts no thread.
    pub fn start(
        &self,
        needed: impl Fn() -> Vec<Datum> + Send + Sync + 'static,
        notify: impl Fn(&str) + Send + Sync + 'static,
        spilled: impl Fn(Key, u64) + Send + Sync + 'static,
        relieved: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<()> {
        let _ = self.common.relieved.set(Box::new(relieved));
        let _ = self.common.needed.set(Box::new(needed));
        let _ = self.common.notify.set(Box::new(notify));
        let _ = self.common.spilled.set(Box::new(spilled));
        let thread = self.common.start()?;
        *self.common.panic_flag.check(self.thread.lock()) = thread;
        Ok(())
    }

    /// Sets the memory that the process uses beside the data, in bytes: while both together use
    /// more than `full` bytes, data is moved to disk until an eighth of the target is left.
    /// Requests that at least `excess` bytes are moved, also of that eighth. Both replace the
    /// values of the last call.
    pub fn set_other_memory(&self, other_len: u64, excess: u64) {
        let mut ledger = self.common.lock();
        ledger.other_len = other_len;
        ledger.excess = excess;
        let has_work = self.common.is_above(&ledger) && !ledger.is_stuck;
        let is_news = has_work || self.common.is_relieved(&ledger);
        drop(ledger);
        if is_news {
            self.common.wake.notify_all();
        }
    }

    /// Sets the pool for large frames that are read from disk. Only the first call has an
    /// effect.
    pub fn read_into(&self, pool: BufferPool) {
        let _ = self.common.buffers.set(pool);
    }

    /// Removes all files. Data on disk is lost.
    ///
    /// Blocks until a file that is being written is complete.
    pub fn close(&self) {
        self.common.close();
        let thread = self.common.panic_flag.check(self.thread.lock()).take();
        if let Some(thread) = thread {
            // After a panic there is nothing to wait for.
            let _ = thread.join();
        }
        if let Some(directory) = &self.common.directory {
            directory.remove();
        }
    }

    /// Creates a datum from received bytes, without deserializing or storing it.
    pub fn received(&self, serialized: Serialized) -> Datum {
        Datum::new(&self.common, serialized.len(), Some(serialized), None)
    }

    /// Creates a datum from a result of Python, without storing it. Its size is `nbytes`, as
    /// Dask counts it.
    #[cfg(target_os = "linux")]
    pub fn computed(&self, serialized: Serialized, nbytes: u64, origin: Origin) -> Datum {
        Datum::with_origin(&self.common, nbytes, Some(serialized), None, origin)
    }

    /// Creates a datum from the value of a task, without storing it.
    pub fn made(&self, value: Value) -> Datum {
        match value {
            Value::Serialized(serialized) => self.received(serialized),
            value => Datum::new(&self.common, value.nbytes(), None, Some(value)),
        }
    }

    /// Stores a datum. If the key exists, its datum is kept: data with the same
    /// key is equal.
    pub fn insert(&self, key: &Key, datum: Datum) {
        let mut held = self.lock();
        if !held.data.contains_key(key) {
            held.nbytes = held.nbytes.saturating_add(datum.nbytes());
            datum.enter(key);
            held.data.insert(key.clone(), datum);
        }
    }

    /// Returns the datum of a key.
    pub fn get(&self, key: &Key) -> Option<Datum> {
        self.lock().data.get(key).cloned()
    }

    /// Whether a datum is stored under a key.
    #[cfg(target_os = "linux")]
    pub fn holds(&self, key: &Key, datum: &Datum) -> bool {
        let held = self.lock();
        held.data.get(key).is_some_and(|stored| stored.is(datum))
    }

    /// Removes a datum, and returns it so that the caller can drop it where this
    /// may take time.
    pub fn remove(&self, key: &Key) -> Option<Datum> {
        let mut held = self.lock();
        let datum = held.data.remove(key)?;
        held.nbytes = held.nbytes.saturating_sub(datum.nbytes());
        drop(held);
        datum.leave();
        Some(datum)
    }

    /// The keys of all data.
    pub fn keys(&self) -> Vec<Key> {
        self.lock().data.keys().cloned().collect()
    }

    /// Total size of all data in bytes as Dask counts them, in memory and on
    /// disk.
    pub fn nbytes(&self) -> u64 {
        self.lock().nbytes
    }

    /// The amount of data by location.
    pub fn holdings(&self) -> Holdings {
        self.common.lock().holdings
    }

    /// The flag set when a panic may have left the store inconsistent.
    pub fn panic_flag(&self) -> &PanicFlag {
        &self.common.panic_flag
    }

    /// The counters of what was done with data so far.
    pub fn counters(&self) -> StoreCounters {
        self.common.meters.read()
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.common.panic_flag.check(self.held.lock())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.common.close();
    }
}

/// An unused path, for tests.
#[cfg(test)]
pub(crate) fn scratch(name: &str) -> std::path::PathBuf {
    let id = daskwire_messages::key::identifier();
    std::env::temp_dir().join(format!("daskwire-{name}-{id}"))
}

#[cfg(test)]
mod tests;

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
