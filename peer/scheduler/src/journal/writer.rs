//! The thread that writes a journal.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use tokio::sync::watch;

use super::segment::{self, Directory, Kind, MAX_BATCH, Segment};
use super::{JournalError, JournalSync};
use crate::state::State;

/// Maximum time for which records wait, unless each event waits for its own.
const INTERVAL: Duration = Duration::from_millis(50);

/// Time after which writing is tried again that has failed.
const RETRY: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });

/// Maximum time after which a merge is tried again that has failed.
const MAX_MERGE_RETRY: Duration = Duration::from_secs(300);

/// Time after which it is reported that the disk has not answered.
const SLOW: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 5000 });

/// Time after which the disk counts as failed, once too much waits to be written.
const HANGING: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 30_000 });

/// Maximum time for which the end of a journal waits for the disk.
const MAX_CLOSING: Duration = Duration::from_secs(30);

/// Length in bytes from which on a segment is worth merging.
const MIN_MERGED: u64 = if cfg!(test) { 64 << 10 } else { 16 << 20 };

/// How many times as long as the live records a segment becomes while those before cannot be merged.
const MAX_UNMERGED: u64 = 16;

/// Maximum length in bytes of the records that wait to be written, for example while the disk is full.
const MAX_WAITING: usize = 1 << if cfg!(test) { 18 } else { 28 };

/// A journal that is being written. Dropping it writes what it has.
#[derive(Debug)]
pub(crate) struct Journal {
    shared: Arc<Shared>,
    sync: JournalSync,
    thread: Option<JoinHandle<()>>,
}

/// Whether a journal has what it should.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum JournalStatus {
    #[default]
    Written,
    /// The disk has not answered for this time.
    Slow(Duration),
    /// Older parts cannot be merged, for this reason, which is tried again.
    Unmerged(String),
    /// Writing fails, for this reason, and is tried again.
    Failing(String),
    /// The journal ends here, for this reason.
    Ended(String),
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Whether the state is to begin a new part of its records.
    wants_part: AtomicBool,
    is_ended: AtomicBool,
    /// Number of events whose records are stored.
    stored: watch::Sender<u64>,
    status: watch::Sender<JournalStatus>,
}

/// What waits to be written.
#[derive(Debug, Default)]
struct Waiting {
    records: Vec<u8>,
    /// Where a new part begins.
    part: Option<usize>,
    count: u64,
    /// When the thread began to write what it has.
    writing_since: Option<Instant>,
    is_closing: bool,
    has_thread_ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the journal. Those who wait are answered: the cluster goes on.
    fn end(&self, waiting: &mut Waiting, reason: String) {
        self.is_ended.store(true, Ordering::Release);
        waiting.records = Vec::new();
        waiting.part = None;
        self.status.send_replace(JournalStatus::Ended(reason));
        self.stored.send_replace(u64::MAX);
    }

    fn set_status(&self, status: JournalStatus) {
        self.status.send_if_modified(|known| {
            let is_over = matches!(known, JournalStatus::Ended(_));
            !is_over && core::mem::replace(known, status.clone()) != status
        });
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
        let writer = Writer {
            shared: Arc::clone(&shared),
            directory: Arc::new(directory),
            segment,
            base_len,
            sync,
            merging: None,
            unmerged: None,
            has_asked: false,
        };
        let thread = thread::Builder::new().name("journal".to_owned());
        let thread = thread.spawn(move || writer.run());
        let thread = thread.map_err(|error| JournalError::io("thread".as_ref(), error))?;
        Ok(Self {
            shared,
            sync,
            thread: Some(thread),
        })
    }

    /// Passes on what the state has written since the last call. Returns the number that
    /// [`stored`](Self::stored) has once all of it is stored.
    pub(crate) fn take(&self, state: &mut State) -> u64 {
        let mut waiting = self.shared.lock();
        let before = waiting.records.len();
        state.take_journal(&mut waiting.records);
        if self.shared.is_ended.load(Ordering::Acquire) {
            // Nothing reads the records any more.
            waiting.records.clear();
            return 0;
        }
        if waiting.records.len() > before {
            waiting.count += 1;
            if self.shared.wants_part.swap(false, Ordering::AcqRel) {
                state.begin_journal_part();
                waiting.part = Some(waiting.records.len());
            }
            if waiting.records.len() > MAX_WAITING
                && let Some(reason) = self.failure(&waiting)
            {
                let len = waiting.records.len() >> 20;
                let reason = format!("{reason}, and {len} MiB wait");
                self.shared.end(&mut waiting, reason);
            }
            self.shared.changed.notify_all();
        }
        waiting.count
    }

    /// Why records are not written, unless the disk is only slow.
    fn failure(&self, waiting: &Waiting) -> Option<String> {
        if let JournalStatus::Failing(reason) = &*self.shared.status.borrow() {
            return Some(reason.clone());
        }
        let waited = waiting.writing_since?.elapsed();
        (waited > HANGING).then(|| {
            let seconds = waited.as_secs();
            format!("the disk has not answered for {seconds} s")
        })
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
        *self.shared.stored.borrow() >= number
    }

    /// Number of events whose records are stored.
    pub(crate) fn stored(&self) -> watch::Receiver<u64> {
        self.shared.stored.subscribe()
    }

    pub(crate) fn status(&self) -> watch::Receiver<JournalStatus> {
        self.shared.status.subscribe()
    }

    /// Sets the status if the disk has not answered for a while. Called from time to time.
    pub(crate) fn check(&self) {
        let since = self.shared.lock().writing_since;
        let waited = since.map(|since| since.elapsed());
        let is_known = matches!(
            *self.shared.status.borrow(),
            JournalStatus::Slow(_) | JournalStatus::Failing(_)
        );
        if let Some(waited) = waited.filter(|waited| *waited > SLOW && !is_known) {
            self.shared.set_status(JournalStatus::Slow(waited));
        }
    }

    #[cfg(test)]
    pub(crate) fn waiting_len(&self) -> usize {
        self.shared.lock().records.len()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let mut waiting = self.shared.lock();
        waiting.is_closing = true;
        self.shared.changed.notify_all();
        // A disk that does not answer must not keep the process.
        let changed = &self.shared.changed;
        let is_running = |waiting: &mut Waiting| !waiting.has_thread_ended;
        let waited = changed.wait_timeout_while(waiting, MAX_CLOSING, is_running);
        let (waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let has_ended = waiting.has_thread_ended;
        drop(waiting);
        if let Some(thread) = self.thread.take().filter(|_| has_ended) {
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
    /// The merge that has failed.
    unmerged: Option<Unmerged>,
    /// Whether the state was asked for a new part since the segment began.
    has_asked: bool,
}

/// A merge that has failed, and is tried again.
struct Unmerged {
    reason: String,
    failed_at: Instant,
    retry: Duration,
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Also after a panic: nothing waits for records that will never be stored.
        let mut waiting = self.shared.lock();
        waiting.has_thread_ended = true;
        if !waiting.is_closing && !self.shared.is_ended.load(Ordering::Acquire) {
            let reason = "its thread has panicked".to_owned();
            self.shared.end(&mut waiting, reason);
        }
        self.shared.is_ended.store(true, Ordering::Release);
        self.shared.stored.send_replace(u64::MAX);
        self.shared.changed.notify_all();
    }
}

impl Writer {
    fn run(mut self) {
        let mut last_write = Instant::now();
        loop {
            let mut waiting = self.shared.lock();
            waiting.writing_since = None;
            while waiting.records.is_empty() && !waiting.is_closing && !self.is_ended() {
                waiting = self.wait(waiting, None);
            }
            if self.sync != JournalSync::Always {
                // More records are written at once.
                while !waiting.is_closing
                    && !self.is_ended()
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
            last_write = Instant::now();
            waiting.writing_since = Some(last_write);
            drop(waiting);
            if self.is_ended() || (records.is_empty() && is_closing) {
                break;
            }
            let (before, after) = records.split_at(part.unwrap_or(records.len()));
            if !self.append(before)
                || (part.is_some() && !self.begin_segment())
                || !self.append(after)
                || !self.sync()
            {
                break;
            }
            // Not if the journal has ended meanwhile.
            self.shared.stored.send_if_modified(|stored| {
                let is_new = !self.is_ended();
                if is_new {
                    *stored = count;
                }
                is_new
            });
            if !self.consider_merging() {
                break;
            }
            // What came while writing failed may still wait.
            let has_failed = matches!(*self.shared.status.borrow(), JournalStatus::Failing(_));
            if !has_failed || self.shared.lock().records.is_empty() {
                self.shared.set_status(match &self.unmerged {
                    None => JournalStatus::Written,
                    Some(unmerged) => JournalStatus::Unmerged(unmerged.reason.clone()),
                });
            }
        }
        if let Some(merging) = self.merging.take() {
            let _ = merging.join();
        }
    }

    fn is_ended(&self) -> bool {
        self.shared.is_ended.load(Ordering::Acquire)
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

    /// Has the system store the segment, as often as the mode says. Returns `false` if that is given
    /// up.
    fn sync(&mut self) -> bool {
        if self.sync == JournalSync::Never {
            self.segment.forget();
            return true;
        }
        self.sync_now()
    }

    /// Has the system store the segment. Returns `false` if that is given up.
    fn sync_now(&mut self) -> bool {
        let mut is_first = true;
        self.store(|writer| {
            if core::mem::take(&mut is_first) {
                return writer.segment.sync();
            }
            // What could not be stored may be lost, and the system would not say so again.
            if let Some(merging) = writer.merging.take() {
                // It removes files that are not finished.
                writer.note_merged(merging);
            }
            writer.segment = writer.segment.replaced(&writer.directory)?;
            Ok(())
        })
    }

    fn give_up(&self, reason: String) {
        let mut waiting = self.shared.lock();
        if !self.is_ended() {
            self.shared.end(&mut waiting, reason);
        }
    }

    /// Stores something, and tries again while that fails. Returns `false` if it is given up.
    fn store(&mut self, mut act: impl FnMut(&mut Self) -> Result<(), JournalError>) -> bool {
        loop {
            let result = act(self);
            if self.is_ended() {
                return false;
            }
            let Err(error) = result else {
                return true;
            };
            // Those who wait are answered: the cluster goes on.
            self.shared.stored.send_replace(u64::MAX);
            if self.shared.lock().is_closing {
                self.give_up(error.to_string());
                return false;
            }
            self.shared
                .set_status(JournalStatus::Failing(error.to_string()));
            thread::sleep(RETRY);
        }
    }

    /// Begins another segment, and merges those before.
    fn begin_segment(&mut self) -> bool {
        // The end is written once what precedes it is on disk: a failure of the machine costs one batch.
        if !self.sync_now() {
            return false;
        }
        self.segment.end();
        if !self.store(|writer| writer.segment.write()) || !self.sync_now() {
            return false;
        }
        let number = self.segment.number() + 1;
        let mut next = None;
        let is_begun = self.store(|writer| {
            next = Some(Segment::create(&writer.directory, number, Kind::Next)?);
            Ok(())
        });
        let Some(next) = next.filter(|_| is_begun) else {
            return false;
        };
        self.segment = next;
        self.has_asked = false;
        self.merge();
        true
    }

    /// Merges the segments before the last.
    fn merge(&mut self) {
        let number = self.segment.number();
        let directory = Arc::clone(&self.directory);
        let merging = thread::Builder::new().name("journal-merge".to_owned());
        match merging.spawn(move || segment::merge(&directory, number)) {
            Ok(merging) => self.merging = Some(merging),
            Err(error) => self.merge_failed(error.to_string()),
        }
    }

    fn note_merged(&mut self, merging: JoinHandle<Result<u64, JournalError>>) {
        match merging.join() {
            Ok(Ok(len)) => {
                self.base_len = len;
                self.unmerged = None;
            }
            Ok(Err(error)) => self.merge_failed(error.to_string()),
            Err(_) => self.merge_failed("the thread has panicked".to_owned()),
        }
    }

    fn merge_failed(&mut self, reason: String) {
        let before = self.unmerged.as_ref().map_or(RETRY, |last| last.retry);
        self.unmerged = Some(Unmerged {
            reason,
            failed_at: Instant::now(),
            retry: MAX_MERGE_RETRY.min(2 * before),
        });
    }

    /// Has the state begin a new part once the segment is long enough, and merges those before.
    /// Returns `false` if the journal is given up.
    fn consider_merging(&mut self) -> bool {
        if let Some(merging) = self.merging.take_if(|merging| merging.is_finished()) {
            self.note_merged(merging);
        }
        if self.merging.is_some() {
            return true;
        }
        let live_len = MIN_MERGED.max(self.base_len);
        match &self.unmerged {
            Some(unmerged) if self.segment.len > MAX_UNMERGED * live_len => {
                let reason = format!("its older parts cannot be merged: {}", unmerged.reason);
                self.give_up(reason);
                return false;
            }
            // No other segment begins until those are merged that there are.
            Some(unmerged) if unmerged.failed_at.elapsed() > unmerged.retry => self.merge(),
            None if self.segment.len > MIN_MERGED.max(2 * self.base_len) && !self.has_asked => {
                self.has_asked = true;
                self.shared.wants_part.store(true, Ordering::Release);
            }
            _ => {}
        }
        true
    }
}
