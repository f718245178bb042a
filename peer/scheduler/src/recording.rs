//! The file to which a scheduler writes what its state machine handles.

use core::time::Duration;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use tokio::sync::watch;

use crate::state::State;

/// Maximum time for which records wait to be written.
const INTERVAL: Duration = Duration::from_millis(50);

/// Length in bytes of records that are written at once.
const BATCH: usize = 1 << 20;

/// Maximum length in bytes of the records that wait, for a disk that is too slow.
const MAX_WAITING: usize = 1 << 28;

/// The recording of a [`Scheduler`](crate::Scheduler): each event that its state machine handles, from
/// which `daskwire replay`, or a program with [`state::Recording`](crate::state::Recording), does
/// the same step by step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordingOptions {
    /// The file, which is created for the user of this process only. One that exists gets the suffix
    /// `.previous`, in place of any earlier one of that name.
    pub file: PathBuf,
    /// Whether to write also what tasks call, take, return and raise, and what clients store. Default:
    /// false, so that only the sizes are recorded, besides keys, names, addresses, annotations and
    /// metrics.
    pub has_payloads: bool,
}

impl RecordingOptions {
    /// The defaults, with a file.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self {
            file: file.into(),
            has_payloads: false,
        }
    }

    daskwire_comm::with_fields! {
        with_has_payloads(has_payloads: bool);
    }
}

/// A recording that is being written. Dropping it writes what it has.
#[derive(Debug)]
pub(crate) struct Recorder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    failure: watch::Receiver<Option<String>>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    records: Vec<u8>,
    is_closing: bool,
    /// Whether nothing is written any more.
    is_ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder {
    pub(crate) fn create(options: &RecordingOptions) -> io::Result<Self> {
        let path = &options.file;
        keep_previous(path)?;
        let file = private().open(path)?;
        let shared = Arc::new(Shared::default());
        let (failed, failure) = watch::channel(None);
        let writer = Arc::clone(&shared);
        let thread = thread::Builder::new().name("recording".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = writer.write(file) {
                failed.send_replace(Some(error.to_string()));
            }
            let mut waiting = writer.lock();
            waiting.is_ended = true;
            waiting.records = Vec::new();
        });
        Ok(Self {
            shared,
            thread: Some(thread?),
            failure,
        })
    }

    /// Passes on what the state has recorded since the last call.
    pub(crate) fn take(&self, state: &mut State) {
        let mut waiting = self.shared.lock();
        if waiting.is_ended {
            drop(waiting);
            return state.end_recording();
        }
        let before = waiting.records.len();
        state.take_recording(&mut waiting.records);
        if before == 0 || waiting.records.len() >= BATCH {
            self.shared.changed.notify_one();
        }
    }

    /// The reason why the recording has ended early, once it has.
    pub(crate) fn failure(&self) -> watch::Receiver<Option<String>> {
        self.failure.clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It has ended if it has panicked.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn write(&self, mut file: File) -> io::Result<()> {
        let mut last_write = Instant::now();
        loop {
            let mut waiting = self.lock();
            loop {
                let left = INTERVAL.saturating_sub(last_write.elapsed());
                if waiting.is_closing || waiting.records.len() >= BATCH {
                    break;
                }
                waiting = match waiting.records.is_empty() {
                    true => self
                        .changed
                        .wait(waiting)
                        .unwrap_or_else(PoisonError::into_inner),
                    false if left.is_zero() => break,
                    false => {
                        let waited = self.changed.wait_timeout(waiting, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
            if waiting.records.len() > MAX_WAITING {
                return Err(io::Error::other("the disk is too slow"));
            }
            let records = core::mem::take(&mut waiting.records);
            let is_closing = waiting.is_closing;
            drop(waiting);
            last_write = Instant::now();
            file.write_all(&records)?;
            if is_closing {
                return Ok(());
            }
        }
    }
}

/// Gives a file that exists another name.
fn keep_previous(path: &Path) -> io::Result<()> {
    let mut previous = path.as_os_str().to_owned();
    previous.push(".previous");
    match fs::metadata(path) {
        // A pipe or device.
        Ok(found) if !found.is_file() => Ok(()),
        Ok(_) => fs::rename(path, previous),
        Err(_) => Ok(()),
    }
}

/// How a file is created that only this user may read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
