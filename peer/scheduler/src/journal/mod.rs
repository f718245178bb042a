//! The journal of a scheduler on disk, from which a later one continues.
//!
//! A journal is a directory with *segments*, which are numbered and hold batches of records in the
//! format of [`state::Live`](crate::state::Live). A thread appends what the state machine has
//! written; once the last segment is longer than twice the first, it begins another one, and merges
//! those before to what still matters of them. A scheduler that starts merges all of them.

use core::fmt;
use core::time::Duration;
use std::io;
use std::path::{Path, PathBuf};

use crate::state::{Policy, RecordError, Restoring, State};

#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(
    not(feature = "fuzzing"),
    expect(unreachable_pub, reason = "fuzz targets use it")
)]
pub mod fuzzing;
mod segment;
mod writer;

pub(crate) use writer::{Journal, JournalStatus};

use segment::{Directory, Kind, Segment};

/// When the records of an event are on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum JournalSync {
    /// Before anything of the event is answered or sent.
    Always,
    /// At most 50 ms after the event.
    #[default]
    Interval,
    /// When the system writes them, to whose cache they are passed within 50 ms.
    Never,
}

/// The journal of a [`Scheduler`](crate::Scheduler).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JournalOptions {
    /// The directory, which is created if it does not exist, for the user of this process only.
    /// One scheduler at a time can use it.
    pub directory: PathBuf,
    /// When records are on disk. Default: at most 50 ms later.
    pub sync: JournalSync,
    /// Maximum time for which a scheduler that starts waits for the workers that an earlier one had
    /// and that can return. Until then, no task runs and no client is served. It ends as soon as
    /// all have returned. Default: 15 s.
    pub wait: Duration,
}

impl JournalOptions {
    /// The defaults, with a directory.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            sync: JournalSync::default(),
            wait: Duration::from_secs(15),
        }
    }

    /// With another time at which records are on disk.
    pub fn with_sync(mut self, sync: JournalSync) -> Self {
        self.sync = sync;
        self
    }

    /// With another time to wait for workers.
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

/// The error of a journal that a scheduler cannot continue from.
#[derive(Debug)]
#[non_exhaustive]
pub enum JournalError {
    /// Another scheduler uses the directory.
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// A file cannot be read or written.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file is not a segment of a journal of this version.
    NotASegment {
        /// The file.
        path: PathBuf,
    },
    /// A segment before the last one is not there.
    Missing {
        /// The file.
        path: PathBuf,
        /// Whether one that precedes it is there.
        has_earlier: bool,
    },
    /// A batch in the middle of a journal is damaged.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The offset of the batch in bytes.
        offset: u64,
        /// The length of the file in bytes.
        len: u64,
    },
    /// The records of a batch are not those of a journal, although its checksum is right.
    Record {
        /// The file.
        path: PathBuf,
        /// The offset of the batch in bytes.
        offset: u64,
        /// What is wrong, with the offset in the batch.
        error: RecordError,
    },
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { directory } => write!(
                f,
                "another scheduler uses the journal {}: each needs a directory of its own",
                directory.display()
            ),
            Self::Io { path, error } => write!(f, "journal {}: {error}", path.display()),
            Self::NotASegment { path } => write!(
                f,
                "{} is not part of a journal of this version of the scheduler: use another \
                 directory, or the version that wrote it",
                path.display()
            ),
            Self::Missing {
                path,
                has_earlier: true,
            } => write!(
                f,
                "{} is missing: to continue from what precedes it, remove the segments with higher numbers",
                path.display()
            ),
            Self::Missing { path, .. } => write!(
                f,
                "{} is missing, without which the later segments are of no use: restore it, or use another directory",
                path.display()
            ),
            Self::Damaged { path, offset, len } => write!(
                f,
                "journal {}: the batch at byte {offset} is damaged, and {} bytes follow; to \
                 continue from the last whole batch before it, cut the file to {offset} bytes, and \
                 remove later files of the directory",
                path.display(),
                len - offset
            ),
            Self::Record {
                path,
                offset,
                error,
            } => write!(
                f,
                "journal {}: the batch at byte {offset} cannot be read: {error}",
                path.display()
            ),
        }
    }
}

impl core::error::Error for JournalError {}

daskwire_rpc::kinds! {
    JournalError: |error| match error {
        Self::InUse { .. } | Self::Io { .. } => ErrorKind::System,
        Self::NotASegment { .. } | Self::Missing { .. } | Self::Damaged { .. } => ErrorKind::Invalid,
        Self::Record { error, .. } => error.kind(),
    };
}

impl JournalError {
    fn io(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        Self::Io { path, error }
    }
}

/// What a journal says when a scheduler starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// Number of tasks.
    pub(crate) task_count: usize,
    /// Number of workers that had joined, and can return.
    pub(crate) worker_count: usize,
    /// Length in bytes of a last batch that was not written whole, and is ignored.
    pub(crate) torn_len: u64,
}

/// Opens a journal, or begins one, and returns the state that it describes, which records what it
/// handles if `recording` says so, and whether with payloads.
///
/// # Errors
///
/// [`JournalError`]; the journal is as before.
pub(crate) fn open(
    options: &JournalOptions,
    policy: Policy,
    now: Duration,
    recording: Option<bool>,
) -> Result<(Journal, State, Restored), JournalError> {
    let directory = Directory::lock(&options.directory)?;
    let segments = directory.segments()?;
    let (mut live, torn_len) = segment::note(&segments)?;
    let restored = Restored {
        task_count: live.task_count(),
        worker_count: live.worker_count(),
        torn_len,
    };
    let number = segments.last().map_or(1, |last| last.number + 1);
    let mut writing = Segment::create(&directory, number, Kind::Complete)?;
    let mut restoring = Restoring::new(policy, now);
    if let Some(has_payloads) = recording {
        restoring.keep_recording(has_payloads);
    }
    let mut records = Vec::new();
    let mut written = Vec::new();
    segment::for_each_batch(&segments, |at, batch| {
        records.clear();
        let added = live.select(batch, &mut records);
        let added = added.and_then(|()| restoring.add(&records));
        added.map_err(|error| at.record(error))?;
        restoring.take_journal(&mut written);
        writing.append(&written)?;
        written.clear();
        Ok(())
    })?;
    let len = writing.publish(&directory)?;
    directory.remove_before(number)?;
    let journal = Journal::start(directory, writing, len, options.sync)?;
    Ok((journal, restoring.finish(), restored))
}
