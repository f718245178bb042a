//! The thread that writes a journal.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use tokio::sync::watch;

use super::segment::{self, Directory, MAX_BATCH, Segment};
use super::{JournalError, JournalSync};
use crate::state::State;

/// Maximum time for which records wait, unless each event waits for its own.
const INTERVAL: Duration = Duration::from_millis(50);

/// Time after which writing is tried again that has failed.
const RETRY: Duration = Duration::from_secs(1);

/// Length in bytes from which on a segment is worth merging.
const MIN_MERGED: u64 = if cfg!(test) { 64 << 10 } else { 16 << 20 };

/// Maximum length in bytes of the records that wait to be written, for example while the disk is full.
const MAX_WAITING: usize = 1 << 28;

/// A journal that is being written. Dropping it writes what it has.
#[derive(Debug)]
pub(crate) struct Journal {
    shared: Arc<Shared>,
    sync: JournalSync,
    thread: Option<JoinHandle<()>>,
    /// Number of events whose records are stored.
    stored: watch::Receiver<u64>,
    status: watch::Receiver<JournalStatus>,
}

/// Whether a journal has what it should.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum JournalStatus {
    #[default]
    Written,
    /// Writing fails, for this reason, and is tried again.
    Failing(String),
    /// Writing has failed for too long: the journal ends here, for this reason.
    Ended(String),
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Whether the state is to begin a new part of its records.
    wants_part: AtomicBool,
    is_ended: AtomicBool,
}

/// What waits to be written.
#[derive(Debug, Default)]
struct Waiting {
    records: Vec<u8>,
    /// Where a new part begins.
    part: Option<usize>,
    count: u64,
    is_closing: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal {
    pub(super) fn start(
        directory: Directory,
        segment: Segment,
        base_len: u64,
        sync: JournalSync,
    ) -> Result<Self, JournalError> {
        let shared = Arc::new(Shared::default());
        let (stored_sender, stored) = watch::channel(0);
        let (status_sender, status) = watch::channel(JournalStatus::default());
        let writer = Writer {
            shared: Arc::clone(&shared),
            directory: Arc::new(directory),
            segment,
            base_len,
            sync,
            merging: None,
            has_asked: false,
            stored: stored_sender,
            status: status_sender,
        };
        let thread = thread::Builder::new().name("journal".to_owned());
        let thread = thread.spawn(move || writer.run());
        let thread = thread.map_err(|error| JournalError::io("thread".as_ref(), error))?;
        Ok(Self {
            shared,
            sync,
            thread: Some(thread),
            stored,
            status,
        })
    }

    /// Passes on what the state has written since the last call. Returns the number that
    /// [`stored`](Self::stored) has once all of it is stored.
    pub(crate) fn take(&self, state: &mut State) -> u64 {
        if self.shared.is_ended.load(Ordering::Acquire) {
            // Nothing reads the records any more.
            state.take_journal(&mut Vec::new());
            return 0;
        }
        let mut waiting = self.shared.lock();
        let before = waiting.records.len();
        state.take_journal(&mut waiting.records);
        if waiting.records.len() > before {
            waiting.count += 1;
            if self.shared.wants_part.swap(false, Ordering::AcqRel) {
                state.begin_journal_part();
                waiting.part = Some(waiting.records.len());
            }
            self.shared.changed.notify_one();
        }
        waiting.count
    }

    /// Whether nothing may be answered before its records are stored.
    pub(crate) fn precedes_all(&self) -> bool {
        self.sync == JournalSync::Always
    }

    /// The number of all records so far, as [`take`](Self::take) returns it.
    pub(crate) fn count(&self) -> u64 {
        self.shared.lock().count
    }

    pub(crate) fn is_stored(&self, number: u64) -> bool {
        *self.stored.borrow() >= number
    }

    /// Number of events whose records are stored.
    pub(crate) fn stored(&self) -> watch::Receiver<u64> {
        self.stored.clone()
    }

    pub(crate) fn status(&self) -> watch::Receiver<JournalStatus> {
        self.status.clone()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It has ended if it has panicked.
            let _ = thread.join();
        }
    }
}

struct Writer {
    shared: Arc<Shared>,
    directory: Arc<Directory>,
    segment: Segment,
    /// Length of the segment with what mattered when it was written.
    base_len: u64,
    sync: JournalSync,
    merging: Option<JoinHandle<Result<u64, JournalError>>>,
    /// Whether the state was asked for a new part since the segment began.
    has_asked: bool,
    stored: watch::Sender<u64>,
    status: watch::Sender<JournalStatus>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Also after a panic: nothing waits for records that will never be stored.
        self.shared.is_ended.store(true, Ordering::Release);
        self.stored.send_replace(u64::MAX);
    }
}

impl Writer {
    fn run(mut self) {
        let mut last_write = Instant::now();
        loop {
            let mut waiting = self.shared.lock();
            while waiting.records.is_empty() && !waiting.is_closing {
                waiting = self.wait(waiting, None);
            }
            if self.sync != JournalSync::Always {
                // More records are written at once.
                while !waiting.is_closing
                    && waiting.records.len() < MAX_BATCH
                    && let Some(left) = INTERVAL.checked_sub(last_write.elapsed())
                    && !left.is_zero()
                {
                    waiting = self.wait(waiting, Some(left));
                }
            }
            let is_closing = waiting.is_closing;
            let records = core::mem::take(&mut waiting.records);
            let part = waiting.part.take();
            let count = waiting.count;
            drop(waiting);
            last_write = Instant::now();
            if records.is_empty() && is_closing {
                break;
            }
            let (before, after) = records.split_at(part.unwrap_or(records.len()));
            if !self.append(before)
                || (part.is_some() && !self.begin_segment())
                || !self.append(after)
                || (self.sync != JournalSync::Never && !self.store(|writer| writer.segment.sync()))
            {
                break;
            }
            self.stored.send_replace(count);
            self.consider_merging();
        }
        if let Some(merging) = self.merging.take() {
            let _ = merging.join();
        }
    }

    fn wait<'w>(
        &self,
        waiting: MutexGuard<'w, Waiting>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'w, Waiting> {
        let changed = &self.shared.changed;
        match timeout {
            None => changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = changed.wait_timeout(waiting, timeout);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Appends records. Returns `false` if that is given up.
    fn append(&mut self, records: &[u8]) -> bool {
        if let Err(error) = self.segment.add(records) {
            self.give_up(error.to_string());
            return false;
        }
        self.store(|writer| writer.segment.write())
    }

    fn give_up(&self, reason: String) {
        self.status.send_replace(JournalStatus::Ended(reason));
        self.shared.lock().records = Vec::new();
    }

    /// Stores something, and tries again while that fails. Returns `false` if it is given up.
    fn store(&mut self, mut act: impl FnMut(&mut Self) -> Result<(), JournalError>) -> bool {
        loop {
            let Err(error) = act(self) else {
                self.status.send_if_modified(|status| {
                    core::mem::replace(status, JournalStatus::Written) != JournalStatus::Written
                });
                return true;
            };
            let reason = error.to_string();
            // Those who wait are answered: the cluster goes on.
            self.stored.send_replace(u64::MAX);
            let waiting = self.shared.lock();
            let is_over = waiting.is_closing || waiting.records.len() > MAX_WAITING;
            drop(waiting);
            if is_over {
                self.give_up(reason);
                return false;
            }
            self.status.send_replace(JournalStatus::Failing(reason));
            thread::sleep(RETRY);
        }
    }

    /// Begins another segment, and merges those before.
    fn begin_segment(&mut self) -> bool {
        let number = self.segment.number() + 1;
        let mut next = None;
        let is_begun = self.store(|writer| {
            writer.segment.sync()?;
            next = Some(Segment::create(&writer.directory, number, false)?);
            Ok(())
        });
        let Some(next) = next.filter(|_| is_begun) else {
            return false;
        };
        self.segment = next;
        self.has_asked = false;
        let directory = Arc::clone(&self.directory);
        let merging = thread::Builder::new().name("journal-merge".to_owned());
        let merging = merging.spawn(move || segment::merge(&directory, number));
        // Without a thread, the segments are merged at the next start.
        self.merging = merging.ok();
        true
    }

    /// Has the state begin a new part once the segment is long enough.
    fn consider_merging(&mut self) {
        if let Some(merging) = self.merging.take_if(|merging| merging.is_finished()) {
            match merging.join() {
                Ok(Ok(len)) => self.base_len = len,
                Ok(Err(error)) => {
                    let reason = format!("older parts cannot be merged: {error}");
                    self.status.send_replace(JournalStatus::Failing(reason));
                }
                Err(_) => {}
            }
        }
        let is_long = self.segment.len > MIN_MERGED.max(2 * self.base_len);
        if is_long && self.merging.is_none() && !self.has_asked {
            self.has_asked = true;
            self.shared.wants_part.store(true, Ordering::Release);
        }
    }
}
