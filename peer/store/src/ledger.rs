//! Accounting for all data of a store: sizes in memory and on disk, the order of
//! use, and the thread that moves data to disk.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;
use std::{fs, io};

use daskwire_comm::BufferPool;
use daskwire_messages::Key;
use daskwire_messages::pickling::Pickling;
use daskwire_rpc::panic_flag::PanicFlag;

use super::datum::{Evicted, Inner};
use super::meters::{Holdings, Meters};
use super::{Datum, SpillDirectory};

/// Pause after a failed write, and when no data can be moved.
const RETRY: Duration = Duration::from_millis(500);

/// The target divided by this is the length of data that stays in memory even if other memory
/// takes everything, unless an excess is set.
const MIN_DIVISOR: u64 = 8;

/// Callback that returns the data that tasks need soon, which stays in memory.
type Needed = dyn Fn() -> Vec<Datum> + Send + Sync;

/// Callback for operator-facing warnings.
type Notify = dyn Fn(&str) + Send + Sync;

/// Callback for data that left memory: its key, and the bytes of memory freed.
type Spilled = dyn Fn(Key, u64) + Send + Sync;

/// Callback for the store having free space again.
type Relieved = dyn Fn() + Send + Sync;

pub(super) struct Common {
    pub(super) panic_flag: PanicFlag,
    pub(super) meters: Meters,
    pub(super) pickling: Pickling,
    /// The directory for spilled data. Without one, all data stays in memory.
    pub(super) directory: Option<SpillDirectory>,
    /// Length of the data in memory above which data is moved to disk, in bytes.
    pub(super) target: u64,
    /// Length of the data in memory above which no new data should be produced while some can
    /// be spilled, in bytes. Data is moved to disk if it takes more than this with the other
    /// memory of the process.
    pub(super) full: u64,
    /// Maximum number of bytes on disk. Default: no limit.
    pub(super) max_disk_len: OnceLock<u64>,
    /// The pool for large frames that are read from disk.
    pub(super) buffers: OnceLock<BufferPool>,
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
    /// Length of the files of all data, also of data that was read back to memory, in bytes.
    pub(super) files_len: u64,
    /// Memory that the process uses beside the data, when it was last measured, in bytes.
    pub(super) other_len: u64,
    /// Number of bytes to free because the process uses too much memory.
    pub(super) excess: u64,
    /// Whether currently no data can leave memory.
    pub(super) is_stuck: bool,
    /// Whether the owner of the store waits for free space.
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
            panic_flag: PanicFlag::default(),
            meters: Meters::default(),
            pickling,
            directory,
            target,
            full,
            max_disk_len: OnceLock::new(),
            buffers: OnceLock::new(),
            ledger: Mutex::default(),
            wake: Condvar::new(),
            needed: OnceLock::new(),
            notify: OnceLock::new(),
            spilled: OnceLock::new(),
            relieved: OnceLock::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.panic_flag.check(self.ledger.lock())
    }

    /// Reports a warning, unless the store is closed.
    pub(super) fn notice(&self, message: &str) {
        if let Some(notify) = self.notify.get()
            && !self.lock().is_closed
        {
            notify(message);
        }
    }

    /// Whether data uses so much memory that no more should be produced until the
    /// `relieved` callback of [`Store::start`](super::Store::start) is called.
    pub(super) fn is_full(&self) -> bool {
        let mut ledger = self.lock();
        let is_full = self.is_above_full(&ledger);
        ledger.is_waited_for |= is_full;
        is_full
    }

    /// Whether data uses more memory than [`full`](Self::full). False if no data can be
    /// spilled: then only running tasks frees memory.
    const fn is_above_full(&self, ledger: &Ledger) -> bool {
        self.directory.is_some() && ledger.holdings.memory_len > self.full && !ledger.is_stuck
    }

    /// Number of bytes of data that have to be moved to disk, without the excess.
    fn above(&self, ledger: &Ledger) -> u64 {
        let data = ledger.holdings.memory_len;
        let above_target = data.saturating_sub(self.target);
        let total = data.saturating_add(ledger.other_len);
        // If other memory takes almost everything, moving each new datum would not help.
        let above_min = data.saturating_sub(self.target / MIN_DIVISOR);
        above_target.max(total.saturating_sub(self.full).min(above_min))
    }

    /// Whether the owner waits for free space, and the store has some.
    pub(super) const fn is_relieved(&self, ledger: &Ledger) -> bool {
        ledger.is_waited_for && !self.is_above_full(ledger)
    }

    fn relieve(&self) {
        self.lock().is_waited_for = false;
        if let Some(relieved) = self.relieved.get() {
            relieved();
        }
    }

    /// Whether data has to be moved to disk.
    pub(super) fn is_above(&self, ledger: &Ledger) -> bool {
        self.directory.is_some() && self.too_much(ledger) != 0
    }

    /// Number of bytes to move out of memory.
    fn too_much(&self, ledger: &Ledger) -> u64 {
        self.above(ledger).max(ledger.excess)
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
        let _guard = self.panic_flag.guard();
        let mut is_failing = false;
        let mut is_stuck = false;
        let mut retry_at: Option<Instant> = None;
        let mut ledger = self.lock();
        loop {
            let files = core::mem::take(&mut ledger.unused_files);
            if !files.is_empty() {
                drop(ledger);
                for file in files {
                    // A file that cannot be removed now is removed with the directory.
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
                ledger = self.panic_flag.check(self.wake.wait(ledger));
                continue;
            }
            let pause = retry_at.map(|at| at.saturating_duration_since(Instant::now()));
            // After a failed write the thread pauses; if all data is in use, it
            // waits for changes.
            let pause = pause.filter(|pause| !pause.is_zero());
            let pause = pause.or_else(|| core::mem::take(&mut is_stuck).then_some(RETRY));
            if let Some(pause) = pause {
                let waited = self.wake.wait_timeout(ledger, pause);
                ledger = self.panic_flag.check(waited).0;
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

    /// Returns an error if writing a datum would exceed the maximum number of bytes on disk.
    fn exceeds_disk(&self, datum: &Datum) -> Option<io::Error> {
        let max_len = *self.max_disk_len.get()?;
        let files_len = self.lock().files_len;
        (!datum.has_file() && files_len.saturating_add(datum.nbytes()) > max_len).then(|| {
            io::Error::other(format!(
                "{files_len} of at most {max_len} bytes are on disk (max-spill)"
            ))
        })
    }

    /// Moves excess data to disk, least recently used first. Returns the number
    /// of bytes freed, and the error if writing failed.
    pub(super) fn evict(&self) -> (u64, Option<io::Error>) {
        // Data that is received or used from now on is not moved: it may be needed soon,
        // and `needed` was called before.
        let end = self.lock().next;
        let needed = self.needed.get().map(|needed| needed());
        let needed = needed.unwrap_or_default();
        let mut freed = 0_u64;
        let mut start = 0;
        let mut refused = None;
        loop {
            let next = {
                let ledger = self.lock();
                if self.above(&ledger) == 0 && ledger.excess <= freed || ledger.is_closed {
                    return (freed, refused);
                }
                let next = ledger.order.range(start..end.max(start)).next();
                let is_relieved = self.is_relieved(&ledger);
                next.map(|(position, datum)| (*position, Datum::of(datum), is_relieved))
            };
            let Some((position, datum, is_relieved)) = next else {
                return (freed, refused);
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
                // Other data may have files already.
                refused = Some(error);
                continue;
            }
            match datum.evict() {
                Evicted::Bytes(len) => freed = freed.saturating_add(len),
                Evicted::Nothing => {}
                Evicted::Failed(error) => return (freed, Some(error)),
            }
        }
    }
}
