//! Accounts of all data of a store: sizes in memory and on disk, the order of
//! use, and the thread that moves data to disk.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;
use std::{fs, io};

use crate::pickling::Pickling;

use super::datum::{Evicted, Inner};
use super::meters::{Holdings, Meters};
use super::{Datum, SpillDirectory};
use crate::Key;
use crate::failure::Failure;

/// Pause after a failed write, and after finding nothing that can be moved.
const RETRY: Duration = Duration::from_millis(500);

/// Callback for data that tasks need soon, which stays in memory.
type Needed = dyn Fn() -> Vec<Datum> + Send + Sync;

/// Callback for operator-facing warnings.
type Notify = dyn Fn(&str) + Send + Sync;

/// Callback for data that left memory: its key, and the bytes of memory freed.
type Spilled = dyn Fn(Key, u64) + Send + Sync;

/// Callback for the store having free space again.
type Relieved = dyn Fn() + Send + Sync;

pub(super) struct Common {
    pub(super) failure: Failure,
    pub(super) meters: Meters,
    pub(super) pickling: Pickling,
    /// The directory for spilled data. Without one, all data stays in memory.
    pub(super) directory: Option<SpillDirectory>,
    /// Bytes of memory that data may take.
    pub(super) target: u64,
    /// Bytes of memory from which no new data should be made while some can be
    /// spilled.
    pub(super) full: u64,
    /// Maximum number of bytes on disk. No limit if unset.
    pub(super) max_disk_len: OnceLock<u64>,
    ledger: Mutex<Ledger>,
    /// Notified when there is work for the thread.
    pub(super) wake: Condvar,
    pub(super) needed: OnceLock<Box<Needed>>,
    pub(super) notify: OnceLock<Box<Notify>>,
    pub(super) spilled: OnceLock<Box<Spilled>>,
    pub(super) relieved: OnceLock<Box<Relieved>>,
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common")
            .field("directory", &self.directory)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) holdings: Holdings,
    /// Data that can leave memory, least recently used first.
    pub(super) order: BTreeMap<u64, Weak<Inner>>,
    next: u64,
    /// Files of dropped data.
    pub(super) unused_files: Vec<PathBuf>,
    /// Bytes that the process takes too much, in addition to the target.
    pub(super) excess: u64,
    /// No data can leave memory now.
    is_stuck: bool,
    /// The owner waits for free space.
    is_waited_for: bool,
    is_closed: bool,
}

impl Ledger {
    pub(super) fn enqueue(&mut self, datum: Weak<Inner>) -> u64 {
        let position = self.next;
        self.next += 1;
        self.order.insert(position, datum);
        position
    }

    pub(super) const fn entered_disk(&mut self, nbytes: u64, len: u64) {
        let holdings = &mut self.holdings;
        holdings.spilled_len = holdings.spilled_len.saturating_add(nbytes);
        holdings.disk_len = holdings.disk_len.saturating_add(len);
        holdings.disk_count = holdings.disk_count.saturating_add(1);
    }

    pub(super) const fn left_disk(&mut self, nbytes: u64, len: u64) {
        let holdings = &mut self.holdings;
        holdings.spilled_len = holdings.spilled_len.saturating_sub(nbytes);
        holdings.disk_len = holdings.disk_len.saturating_sub(len);
        holdings.disk_count = holdings.disk_count.saturating_sub(1);
    }
}

impl Common {
    pub(super) fn new(
        directory: Option<SpillDirectory>,
        target: u64,
        full: u64,
        pickling: Pickling,
    ) -> Self {
        Self {
            failure: Failure::default(),
            meters: Meters::default(),
            pickling,
            directory,
            target,
            full,
            max_disk_len: OnceLock::new(),
            ledger: Mutex::default(),
            wake: Condvar::new(),
            needed: OnceLock::new(),
            notify: OnceLock::new(),
            spilled: OnceLock::new(),
            relieved: OnceLock::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.failure.check(self.ledger.lock())
    }

    /// Reports a warning, unless the store is closed.
    pub(super) fn notice(&self, message: &str) {
        if let Some(notify) = self.notify.get()
            && !self.lock().is_closed
        {
            notify(message);
        }
    }

    /// Whether data takes so much memory that no more should be made until the
    /// `relieved` callback of [`Store::start`](super::Store::start) is called.
    pub(super) fn is_full(&self) -> bool {
        let mut ledger = self.lock();
        let is_full = self.is_above_full(&ledger);
        ledger.is_waited_for |= is_full;
        is_full
    }

    /// Whether no more data fits in memory. False if no data can be spilled: then only
    /// running tasks frees memory.
    const fn is_above_full(&self, ledger: &Ledger) -> bool {
        self.directory.is_some() && ledger.holdings.memory_len > self.full && !ledger.is_stuck
    }

    /// Whether the owner waits for free space, and there is some.
    pub(super) const fn is_relieved(&self, ledger: &Ledger) -> bool {
        ledger.is_waited_for && !self.is_above_full(ledger)
    }

    fn relieve(&self) {
        self.lock().is_waited_for = false;
        if let Some(relieved) = self.relieved.get() {
            relieved();
        }
    }

    /// Whether data takes more memory than allowed.
    pub(super) const fn is_above(&self, ledger: &Ledger) -> bool {
        self.directory.is_some() && self.too_much(ledger) != 0
    }

    /// Bytes to move out of memory.
    const fn too_much(&self, ledger: &Ledger) -> u64 {
        let above = ledger.holdings.memory_len.saturating_sub(self.target);
        if above > ledger.excess {
            above
        } else {
            ledger.excess
        }
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.wake.notify_all();
    }

    /// Starts the thread that writes and removes files. It ends when the store is
    /// closed.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<Option<JoinHandle<()>>> {
        if self.directory.is_none() {
            return Ok(None);
        }
        let own = Arc::clone(self);
        let builder = thread::Builder::new().name("spill".to_owned());
        builder.spawn(move || own.work()).map(Some)
    }

    fn work(&self) {
        // Without this thread, memory would fill up.
        let _guard = self.failure.guard();
        let mut is_failing = false;
        let mut is_stuck = false;
        let mut retry_at: Option<Instant> = None;
        let mut ledger = self.lock();
        loop {
            let files = core::mem::take(&mut ledger.unused_files);
            if !files.is_empty() {
                drop(ledger);
                for file in files {
                    // A file that cannot be removed goes with the directory.
                    let _ = fs::remove_file(file);
                }
                ledger = self.lock();
                continue;
            }
            if ledger.is_closed {
                return;
            }
            if self.is_relieved(&ledger) {
                drop(ledger);
                self.relieve();
                ledger = self.lock();
                continue;
            }
            if !self.is_above(&ledger) {
                ledger.is_stuck = false;
                ledger = self.failure.check(self.wake.wait(ledger));
                continue;
            }
            let pause = retry_at.map(|at| at.saturating_duration_since(Instant::now()));
            // After a failed write the thread pauses; if all data is in use, it
            // waits for changes.
            let pause = pause.filter(|pause| !pause.is_zero());
            let pause = pause.or_else(|| core::mem::take(&mut is_stuck).then_some(RETRY));
            if let Some(pause) = pause {
                let waited = self.wake.wait_timeout(ledger, pause);
                ledger = self.failure.check(waited).0;
                continue;
            }
            drop(ledger);
            let (freed, failure) = self.evict();
            match &failure {
                Some(error) if !is_failing => self.notice(&format!(
                    "cannot write to disk, and data stays in memory: {error}"
                )),
                None if is_failing && freed != 0 => self.notice("can write to disk again"),
                _ => {}
            }
            is_failing = failure.is_some() || (is_failing && freed == 0);
            retry_at = failure.map(|_| Instant::now() + RETRY);
            is_stuck = freed == 0;
            ledger = self.lock();
            ledger.is_stuck = is_stuck;
            ledger.excess = ledger.excess.saturating_sub(freed);
        }
    }

    /// The error of writing a datum beyond the maximum number of bytes on disk.
    fn exceeds_disk(&self, datum: &Datum) -> Option<io::Error> {
        let max_len = *self.max_disk_len.get()?;
        let disk_len = self.lock().holdings.disk_len;
        (!datum.is_on_disk() && disk_len.saturating_add(datum.nbytes()) > max_len).then(|| {
            io::Error::other(format!(
                "{disk_len} of at most {max_len} bytes are on disk (max-spill)"
            ))
        })
    }

    /// Moves excess data to disk, least recently used first. Returns the number
    /// of bytes freed, and the error if writing failed.
    pub(super) fn evict(&self) -> (u64, Option<io::Error>) {
        // Data that arrives or is used from now on is not considered: it is not
        // known yet whether it is needed soon.
        let end = self.lock().next;
        let needed = self.needed.get().map(|needed| needed());
        let needed = needed.unwrap_or_default();
        let mut freed = 0_u64;
        let mut start = 0;
        loop {
            let next = {
                let ledger = self.lock();
                let above = ledger.holdings.memory_len.saturating_sub(self.target);
                if above == 0 && ledger.excess <= freed || ledger.is_closed {
                    return (freed, None);
                }
                let next = ledger.order.range(start..end.max(start)).next();
                let is_relieved = self.is_relieved(&ledger);
                next.map(|(position, datum)| (*position, Datum::of(datum), is_relieved))
            };
            let Some((position, datum, is_relieved)) = next else {
                return (freed, None);
            };
            start = position + 1;
            if is_relieved {
                self.relieve();
            }
            let Some(datum) = datum else {
                continue;
            };
            if needed.iter().any(|needed| needed.is(&datum)) {
                continue;
            }
            if let Some(error) = self.exceeds_disk(&datum) {
                return (freed, Some(error));
            }
            match datum.evict() {
                Evicted::Bytes(len) => freed = freed.saturating_add(len),
                Evicted::Nothing => {}
                Evicted::Failed(error) => return (freed, Some(error)),
            }
        }
    }
}
