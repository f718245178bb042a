//! The files of a journal.
//!
//! A segment begins with [`MAGIC`], its [`Kind`], its number of 64 bits, and the [checksum] of these.
//! Batches follow: the length of their records, the checksum of the records, the checksum of these eight
//! bytes, and the records. Words have 32 bits; all are little-endian. A batch without records ends a
//! segment that others follow.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use fs4::{FileExt, TryLockError};
use twox_hash::XxHash3_64;

use super::JournalError;
use crate::state::{Live, RecordError};

/// The first bytes of a segment, with the version of the format.
const MAGIC: &[u8; 16] = b"daskwire-jrnl\x00\x00\x02";

/// What a segment has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All that matters of those before, too.
    Complete,
    /// What follows the one before.
    Next,
}

impl Kind {
    const fn word(self) -> &'static [u8; 4] {
        match self {
            Self::Complete => b"base",
            Self::Next => b"next",
        }
    }

    /// The beginning of a segment.
    fn head(self, number: u64) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        let content = [&MAGIC[..], self.word(), &number.to_le_bytes()].concat();
        let (before, after) = head.split_at_mut(content.len());
        before.copy_from_slice(&content);
        after.copy_from_slice(&checksum(&content).to_le_bytes());
        head
    }

    fn of(word: &[u8]) -> Option<Self> {
        let mut kinds = [Self::Complete, Self::Next].into_iter();
        kinds.find(|kind| kind.word() == word)
    }
}

const HEAD_LEN: usize = MAGIC.len() + 16;

/// Length of what precedes the records of a batch.
const BATCH_HEAD_LEN: usize = 12;

/// The last number of a segment from which a scheduler continues. None counts that far.
const MAX_NUMBER: u64 = u64::MAX / 2;

/// Maximum length of a batch that is merged from several.
pub(super) const MAX_BATCH: usize = 1 << 20;

/// A locked directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Unlocked when it is closed.
    _lock: File,
}

/// A segment to read.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) number: u64,
    path: PathBuf,
    is_last: bool,
}

impl Directory {
    pub(super) fn lock(path: &Path) -> Result<Self, JournalError> {
        let error = |error| JournalError::io(path, error);
        let mut building = fs::DirBuilder::new();
        building.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut building, 0o700);
        building.create(path).map_err(error)?;
        let lock_path = path.join("lock");
        let lock = private().open(&lock_path);
        let lock = lock.map_err(|error| JournalError::io(&lock_path, error))?;
        match FileExt::try_lock(&lock) {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(JournalError::InUse {
                directory: path.to_owned(),
            }),
            Err(TryLockError::Error(error)) => Err(JournalError::io(&lock_path, error)),
        }
    }

    /// The segments and their numbers, in order.
    fn find(&self) -> Result<Vec<Found>, JournalError> {
        let error = |error| JournalError::io(&self.path, error);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(error)? {
            let path = entry.map_err(error)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some((number, kind)) = name.and_then(|name| name.split_once('.')) else {
                continue;
            };
            match (number.parse(), kind) {
                (Ok(MAX_NUMBER..), "segment") => return Err(JournalError::NotASegment { path }),
                (Ok(number), "segment") if path == self.path_of(number, "segment") => {
                    found.push(Found {
                        number,
                        path,
                        is_last: false,
                    });
                }
                // It was not finished.
                (Ok::<u64, _>(_), "new") => {
                    fs::remove_file(&path).map_err(|error| JournalError::io(&path, error))?;
                }
                _ => {}
            }
        }
        found.sort_by_key(|segment| segment.number);
        Ok(found)
    }

    /// The segments, in order, from the last one on that makes those before superfluous.
    pub(super) fn segments(&self) -> Result<Vec<Found>, JournalError> {
        let mut found = self.find()?;
        // The beginning of a segment is on disk before anything follows. The first one is whole before
        // it has its name.
        let missing = |number: u64, has_earlier| JournalError::Missing {
            path: self.path_of(number, "segment"),
            has_earlier,
        };
        let unbegun = found.pop_if(|last| last.is_unbegun());
        match (found.last_mut(), unbegun) {
            (Some(last), Some(unbegun)) if last.number + 1 == unbegun.number => {
                remove(&unbegun.path)?;
            }
            (Some(_), Some(unbegun)) => return Err(missing(unbegun.number - 1, true)),
            (None, unbegun) => found.extend(unbegun),
            (Some(last), None) => last.is_last = true,
        }
        // From the last to the last one that is complete, none is missing.
        let mut needed = Vec::new();
        while let Some(segment) = found.pop() {
            let is_complete = segment.open()?.0 == Kind::Complete;
            let before = segment.number.saturating_sub(1);
            needed.push(segment);
            if is_complete {
                break;
            }
            if found.last().is_none_or(|last| last.number != before) {
                return Err(missing(before, !found.is_empty()));
            }
        }
        needed.reverse();
        Ok(needed)
    }

    /// Removes the segments that a complete one makes superfluous.
    pub(super) fn remove_before(&self, number: u64) -> Result<(), JournalError> {
        let found = self.find()?.into_iter();
        found
            .take_while(|old| old.number < number)
            .try_for_each(|old| remove(&old.path))
    }

    fn path_of(&self, number: u64, kind: &str) -> PathBuf {
        self.path.join(format!("{number:08}.{kind}"))
    }

    /// Has the system store the names of files.
    fn sync(&self) -> Result<(), JournalError> {
        let synced = File::open(&self.path).and_then(|directory| directory.sync_all());
        synced.map_err(|error| JournalError::io(&self.path, error))
    }
}

fn remove(path: &Path) -> Result<(), JournalError> {
    let removed = fs::remove_file(path);
    #[cfg(test)]
    faults::copy(path);
    removed.map_err(|error| JournalError::io(path, error))
}

/// How files are created that only this user may read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Where a batch is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'p> {
    path: &'p Path,
    offset: u64,
}

impl Place<'_> {
    pub(super) fn record(self, error: RecordError) -> JournalError {
        JournalError::Record {
            path: self.path.to_owned(),
            offset: self.offset,
            error,
        }
    }
}

impl Found {
    /// Whether the beginning of the segment was not written whole.
    fn is_unbegun(&self) -> bool {
        match fs::metadata(&self.path).map(|metadata| metadata.len() as usize) {
            Ok(..HEAD_LEN) => true,
            // After a failure of the machine, what was not stored may be zero.
            Ok(HEAD_LEN) => fs::read(&self.path).is_ok_and(|head| head == [0; HEAD_LEN]),
            _ => false,
        }
    }

    /// Opens the segment, and reads its kind.
    fn open(&self) -> Result<(Kind, File), JournalError> {
        let error = |error| JournalError::io(&self.path, error);
        let mut file = File::open(&self.path).map_err(error)?;
        let mut head = [0; HEAD_LEN];
        match file.read_exact(&mut head) {
            Ok(()) => {}
            Err(short) if short.kind() == ErrorKind::UnexpectedEof => {
                let path = self.path.clone();
                return Err(JournalError::NotASegment { path });
            }
            Err(other) => return Err(error(other)),
        }
        let kind = Kind::of(&head[MAGIC.len()..][..4]);
        let kind = kind.filter(|kind| head == kind.head(self.number));
        let kind = kind.ok_or_else(|| JournalError::NotASegment {
            path: self.path.clone(),
        })?;
        Ok((kind, file))
    }

    /// Calls `each` with the records of each batch. Returns the length of a last batch that was not
    /// written whole.
    fn for_each(
        &self,
        each: &mut impl FnMut(Place<'_>, &[u8]) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError> {
        let path = &self.path;
        let error = |error| JournalError::io(path, error);
        let (_, file) = self.open()?;
        let len = file.metadata().map_err(error)?.len();
        let mut reader = BufReader::with_capacity(1 << 18, file);
        let mut offset = HEAD_LEN as u64;
        let mut records = Vec::new();
        let damaged = |offset| JournalError::Damaged {
            path: path.clone(),
            offset,
            len,
        };
        while offset < len {
            let left = len - offset;
            let torn = |rest: &[u8]| match self.is_last && !has_batch(rest) {
                true => Ok(left),
                false => Err(damaged(offset)),
            };
            let Some(left) = left.checked_sub(BATCH_HEAD_LEN as u64) else {
                return torn(&[]);
            };
            let mut head = [0; BATCH_HEAD_LEN];
            reader.read_exact(&mut head).map_err(error)?;
            records.clear();
            if checksum(&head[..8]) != word(&head[8..]) {
                reader.read_to_end(&mut records).map_err(error)?;
                return torn(&records);
            }
            let batch_len = u64::from(word(&head));
            let mut part = reader.by_ref().take(batch_len);
            part.read_to_end(&mut records).map_err(error)?;
            if checksum(&records) != word(&head[4..]) {
                reader.read_to_end(&mut records).map_err(error)?;
                return torn(&records);
            }
            if records.is_empty() {
                return match left {
                    0 => Ok(0),
                    _ => Err(damaged(offset + BATCH_HEAD_LEN as u64)),
                };
            }
            each(Place { path, offset }, &records)?;
            offset += BATCH_HEAD_LEN as u64 + batch_len;
        }
        match self.is_last {
            true => Ok(0),
            false => Err(damaged(offset)),
        }
    }
}

/// The lower half of the XXH3 hash.
fn checksum(bytes: &[u8]) -> u32 {
    XxHash3_64::oneshot(bytes) as u32
}

/// Whether there is a whole batch somewhere in these bytes. Then what precedes it was on disk.
fn has_batch(bytes: &[u8]) -> bool {
    bytes.windows(BATCH_HEAD_LEN).enumerate().any(|(at, head)| {
        let len = word(head) as usize;
        len > 0
            && checksum(&head[..8]) == word(&head[8..])
            && bytes[at + BATCH_HEAD_LEN..]
                .get(..len)
                .is_some_and(|records| checksum(records) == word(&head[4..]))
    })
}

/// The first four bytes as a number; zero if there are fewer.
fn word(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word))
}

/// Calls `each` with the records of each batch. Returns the length of a last batch that was not
/// written whole.
pub(super) fn for_each_batch(
    segments: &[Found],
    mut each: impl FnMut(Place<'_>, &[u8]) -> Result<(), JournalError>,
) -> Result<u64, JournalError> {
    let mut torn_len = 0;
    for segment in segments {
        torn_len = segment.for_each(&mut each)?;
    }
    Ok(torn_len)
}

/// Finds which records matter. Returns also the length of a last batch that was not written whole.
pub(super) fn note(segments: &[Found]) -> Result<(Live, u64), JournalError> {
    let mut live = Live::default();
    let torn_len = for_each_batch(segments, |at, batch| {
        live.note(batch).map_err(|error| at.record(error))
    })?;
    Ok((live, torn_len))
}

/// Merges segments that are complete in themselves to one that takes the place of the last of them.
/// Returns its length.
pub(super) fn merge(directory: &Directory, before: u64) -> Result<u64, JournalError> {
    let mut segments = directory.segments()?;
    segments.retain(|segment| segment.number < before);
    let Some(last) = segments.last() else {
        return Ok(0);
    };
    let (mut live, _) = note(&segments)?;
    let mut writing = Segment::create(directory, last.number, Kind::Complete)?;
    let mut records = Vec::new();
    for_each_batch(&segments, |at, batch| {
        let selected = live.select(batch, &mut records);
        selected.map_err(|error| at.record(error))?;
        if records.len() >= MAX_BATCH {
            writing.append(&records)?;
            records.clear();
        }
        Ok(())
    })?;
    writing.append(&records)?;
    writing.end();
    writing.write()?;
    let len = writing.publish(directory)?;
    directory.remove_before(last.number)?;
    Ok(len)
}

/// A segment to write.
#[derive(Debug)]
pub(super) struct Segment {
    file: File,
    number: u64,
    path: PathBuf,
    /// Length of what is written.
    pub(super) len: u64,
    /// The last batches, as they are in the file: those that are still to be written, after those
    /// that are [kept](Self::add) until they are on disk.
    tail: Vec<u8>,
    /// How much of the tail is written.
    written: usize,
}

impl Segment {
    /// Begins a segment. One that is to replace others has another name until it is
    /// [published](Self::publish).
    pub(super) fn create(
        directory: &Directory,
        number: u64,
        kind: Kind,
    ) -> Result<Self, JournalError> {
        let path = directory.path_of(
            number,
            match kind {
                Kind::Complete => "new",
                Kind::Next => "segment",
            },
        );
        let file = private().truncate(true).open(&path);
        let mut segment = Self {
            file: file.map_err(|error| JournalError::io(&path, error))?,
            number,
            path,
            len: 0,
            tail: kind.head(number).to_vec(),
            written: 0,
        };
        segment.write()?;
        segment.sync()?;
        if kind == Kind::Next {
            directory.sync()?;
        }
        Ok(segment)
    }

    /// Writes a batch, unless it is empty, and does not keep it.
    pub(super) fn append(&mut self, records: &[u8]) -> Result<(), JournalError> {
        self.add(records)?;
        self.write()?;
        self.forget();
        Ok(())
    }

    /// Adds a batch to what is to be written, unless it is empty. It is kept until it is on disk.
    pub(super) fn add(&mut self, records: &[u8]) -> Result<(), JournalError> {
        // Each call has at most what a client can send at once, which is shorter.
        let Ok(len) = u32::try_from(records.len()) else {
            let error = io::Error::new(ErrorKind::FileTooLarge, "a batch of more than 4 GiB");
            return Err(JournalError::io(&self.path, error));
        };
        if len == 0 {
            return Ok(());
        }
        self.add_batch(len, records);
        Ok(())
    }

    /// Adds the end of a segment that another one follows to what is to be written.
    pub(super) fn end(&mut self) {
        self.add_batch(0, &[]);
    }

    fn add_batch(&mut self, len: u32, records: &[u8]) {
        let mut head = [0; BATCH_HEAD_LEN];
        head[..4].copy_from_slice(&len.to_le_bytes());
        head[4..8].copy_from_slice(&checksum(records).to_le_bytes());
        let check = checksum(&head[..8]).to_le_bytes();
        head[8..].copy_from_slice(&check);
        self.tail.extend_from_slice(&head);
        self.tail.extend_from_slice(records);
    }

    /// Writes what was added and is not written yet.
    pub(super) fn write(&mut self) -> Result<(), JournalError> {
        #[cfg(test)]
        faults::wait(&self.path);
        while let Some(left) = self.tail.get(self.written..)
            && !left.is_empty()
        {
            let error = match self.file.write(left) {
                Ok(0) => ErrorKind::WriteZero.into(),
                Ok(count) => {
                    self.written += count;
                    self.len += count as u64;
                    #[cfg(test)]
                    faults::copy(&self.path);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            return Err(JournalError::io(&self.path, error));
        }
        Ok(())
    }

    /// Has the system store what is written, which is all that was added. After an error, it is
    /// unknown what is on disk, also if another call succeeds: the segment has to be
    /// [replaced](Self::replaced).
    pub(super) fn sync(&mut self) -> Result<(), JournalError> {
        #[cfg(test)]
        faults::sync(&self.path, self.len - self.written as u64)?;
        let synced = self.file.sync_data();
        synced.map_err(|error| JournalError::io(&self.path, error))?;
        self.forget();
        Ok(())
    }

    /// Does not keep what is written.
    pub(super) fn forget(&mut self) {
        self.tail.clear();
        self.tail.shrink_to(MAX_BATCH);
        self.written = 0;
    }

    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Gives a segment that replaces others its name, once it is on disk. Returns its length.
    pub(super) fn publish(&mut self, directory: &Directory) -> Result<u64, JournalError> {
        self.sync()?;
        let path = directory.path_of(self.number, "segment");
        fs::rename(&self.path, &path).map_err(|error| JournalError::io(&path, error))?;
        self.path = path;
        #[cfg(test)]
        faults::copy(&self.path);
        directory.sync()?;
        Ok(self.len)
    }

    /// Writes the segment to another file, which takes its place once it is on disk: what was
    /// before, and what was added since.
    pub(super) fn replaced(&self, directory: &Directory) -> Result<Self, JournalError> {
        let path = directory.path_of(self.number, "new");
        let error = |error| JournalError::io(&path, error);
        let synced_len = self.len - self.written as u64;
        let mut synced = File::open(&self.path).map_err(error)?.take(synced_len);
        let mut file = private().truncate(true).open(&path).map_err(error)?;
        if io::copy(&mut synced, &mut file).map_err(error)? != synced_len {
            return Err(error(ErrorKind::UnexpectedEof.into()));
        }
        let mut segment = Self {
            file,
            number: self.number,
            path: path.clone(),
            len: synced_len,
            tail: self.tail.clone(),
            written: 0,
        };
        segment.write()?;
        segment.publish(directory)?;
        Ok(segment)
    }
}

/// Faults of a disk, and copies of it. A test causes them by files in the directory of the journal.
#[cfg(test)]
mod faults {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// If there is a directory `copies`, a copy of the segments is made in it, as a scheduler leaves them
    /// that is killed now.
    pub(super) fn copy(path: &Path) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let copies = path.with_file_name("copies");
        if !copies.exists() {
            return;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let to = copies.join(format!("{number:08}"));
        fs::create_dir(&to).expect("there is space");
        let directory = path.parent().expect("the journal's");
        for entry in fs::read_dir(directory).expect("it is there") {
            let from = entry.expect("it is there").path();
            // Another thread may rename or remove it.
            if from.is_file() {
                let _ = fs::copy(&from, to.join(from.file_name().expect("it has one")));
            }
        }
    }

    /// While there is a file `hanging`, nothing is written.
    pub(super) fn wait(path: &Path) {
        while path.with_file_name("hanging").exists() {
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
    }

    /// If there is a file `failing`, it is removed, and what was to be stored is lost.
    pub(super) fn sync(path: &Path, synced_len: u64) -> Result<(), JournalError> {
        wait(path);
        if fs::remove_file(path.with_file_name("failing")).is_err() {
            return Ok(());
        }
        let error = |error| JournalError::io(path, error);
        let file = private().open(path).map_err(error)?;
        let len = file.metadata().map_err(error)?.len();
        file.set_len(synced_len).map_err(error)?;
        file.set_len(len).map_err(error)?;
        Err(error(io::Error::other("the disk has failed")))
    }
}
