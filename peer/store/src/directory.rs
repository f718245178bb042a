//! The directory of spill files: private to this worker, in a directory that
//! several workers and users may share.
//!
//! The directory contains a lock file that its process keeps locked. The system
//! releases the lock whenever the process ends. A directory whose lock is free
//! therefore belongs to a dead process, and the next worker of the same user
//! removes it. A process id would not suffice: processes in containers that share a
//! disk do not see each other.
//!
//! Files are never shared between users. The only existing files opened for writing are
//! the lock files of the same user's directories, and taking a lock never blocks.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fs4::{FileExt, TryLockError};

/// The prefix of the names of directories.
const PREFIX: &str = "daskwire-worker-";

/// The name of the lock file.
const LOCK: &str = "lock";

/// Maximum number of attempts to create a directory. Before it is locked, another
/// process may take it for that of a dead process and remove it.
const ATTEMPTS: u32 = 16;

/// The directory of a worker.
#[derive(Debug)]
pub struct SpillDirectory {
    path: PathBuf,
    /// The lock file, which stays locked while it is open.
    _lock: File,
    next: AtomicU64,
}

impl SpillDirectory {
    /// Creates a directory in `parent`, which is created if needed, and removes the
    /// directories that dead processes of the same user left there.
    ///
    /// # Errors
    ///
    /// The system's error, with the path.
    pub fn new(parent: &Path, id: &str) -> io::Result<Self> {
        let in_parent = |error: io::Error| {
            let message = format!("{}: {error}", parent.display());
            io::Error::new(error.kind(), message)
        };
        let mut builder = private_directory();
        builder.recursive(true).create(parent).map_err(in_parent)?;
        let process = std::process::id();
        let mut attempt = 0;
        let directory = loop {
            let path = parent.join(format!("{PREFIX}{process}-{id}-{attempt}"));
            if let Some(directory) = Self::make(path).map_err(in_parent)? {
                break directory;
            }
            attempt += 1;
            if attempt == ATTEMPTS {
                let error = "other processes removed every directory that was created";
                return Err(in_parent(io::Error::other(error)));
            }
        };
        let own = fs::symlink_metadata(&directory.path).map_err(in_parent)?;
        remove_dead(parent, |other| is_private(other, &own));
        Ok(directory)
    }

    /// Returns `None` if another process removed the directory before it was
    /// locked.
    fn make(path: PathBuf) -> io::Result<Option<Self>> {
        private_directory().create(&path)?;
        let lock_path = path.join(LOCK);
        let lock = match create_private(&lock_path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match FileExt::try_lock(&lock) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // No other process removes the directory once it is locked, but it may have been
        // removed before.
        if fs::symlink_metadata(&lock_path).is_err() {
            return Ok(None);
        }
        Ok(Some(Self {
            path,
            _lock: lock,
            next: AtomicU64::new(0),
        }))
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a new file.
    pub(super) fn next_file(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.path.join(number.to_string())
    }

    /// Removes the directory and its contents.
    pub(super) fn remove(&self) {
        // If this fails, the next worker removes the rest.
        let _ = remove(&self.path);
    }
}

impl Drop for SpillDirectory {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Creates a file that only this user can read and write. Fails if the name
/// exists, even as a link.
pub(super) fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Returns a builder of directories that only this user can read and write.
fn private_directory() -> DirBuilder {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "there are no modes"))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

/// Whether `other` is a directory of the same user as `own` to which no other
/// user can write.
fn is_private(other: &Metadata, own: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        if other.uid() != own.uid() || other.mode() & 0o077 != 0 {
            return false;
        }
    }
    other.is_dir() && own.is_dir()
}

/// Removes directories whose lock is free. Errors are ignored: the next worker tries
/// again.
fn remove_dead(parent: &Path, is_own: impl Fn(&Metadata) -> bool) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_named = name.to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Does not follow links.
        if is_named && entry.metadata().is_ok_and(|metadata| is_own(&metadata)) {
            remove_if_dead(&entry.path());
        }
    }
}

fn remove_if_dead(path: &Path) {
    let lock_path = path.join(LOCK);
    match fs::symlink_metadata(&lock_path) {
        Ok(metadata) if metadata.is_file() => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Only succeeds if the directory is empty: its process is dead, or is
            // about to create the lock file and will notice.
            let _ = fs::remove_dir(path);
            return;
        }
        _ => return,
    }
    let lock = OpenOptions::new().write(true).open(&lock_path);
    if let Ok(lock) = lock
        && FileExt::try_lock(&lock).is_ok()
    {
        let _ = remove(path);
    }
}

/// Removes a directory with its contents, the lock file last, so that another process can
/// finish an interrupted removal. Does not follow links.
///
/// # Errors
///
/// The first error, after everything that can be removed has been removed.
fn remove(path: &Path) -> io::Result<()> {
    let mut removed = Ok(());
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name() == LOCK {
            continue;
        }
        // Python processes create directories: `__pycache__`, and those of shuffles.
        let removal = match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
        removed = removed.and(removal);
    }
    removed?;
    match fs::remove_file(path.join(LOCK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch;

    fn made(parent: PathBuf) -> PathBuf {
        fs::create_dir(&parent).expect("writable directory");
        parent
    }

    /// Creates a directory as a killed process leaves it.
    fn leave(parent: &Path, name: &str, files: &[&str]) -> PathBuf {
        let path = parent.join(format!("{PREFIX}{name}"));
        private_directory()
            .create(&path)
            .expect("writable directory");
        for file in files {
            create_private(&path.join(file)).expect("writable directory");
        }
        path
    }

    #[test]
    fn removes_directories_of_dead_processes_only() {
        let parent = scratch("directories");
        let one = SpillDirectory::new(&parent, "one").expect("writable directory");
        fs::write(one.next_file(), b"data").expect("writable directory");
        let dead = leave(&parent, "1-dead", &["lock", "0", "1"]);
        let shuffle = dead.join("shuffle-1");
        fs::create_dir_all(shuffle.join("parts")).expect("writable directory");
        fs::write(shuffle.join("parts/0"), b"data").expect("writable directory");
        let empty = leave(&parent, "1-empty", &[]);
        let unlocked = leave(&parent, "1-unlocked", &["0"]);
        fs::write(parent.join("notes.txt"), b"").expect("writable directory");

        let two = SpillDirectory::new(&parent, "two").expect("writable directory");
        assert!(!dead.exists() && !empty.exists());
        // Not a directory that a worker leaves.
        assert!(unlocked.join("0").exists());
        assert!(one.path().join("0").exists());
        assert!(parent.join("notes.txt").exists());
        let (first, second) = (one.path().to_owned(), two.path().to_owned());
        fs::create_dir(first.join("__pycache__")).expect("writable directory");
        drop((one, two));
        assert!(!first.exists() && !second.exists());
        let left = fs::read_dir(&parent).expect("exists").count();
        assert_eq!(left, 2, "foreign entries");
        fs::remove_dir_all(&parent).expect("exists");
    }

    #[test]
    fn does_not_wait_for_held_locks() {
        let parent = made(scratch("held"));
        let held = leave(&parent, "1-held", &["lock"]);
        let lock = File::open(held.join(LOCK)).expect("exists");
        FileExt::lock(&lock).expect("it is free");
        let directory = SpillDirectory::new(&parent, "x").expect("writable directory");
        assert!(held.exists());
        drop(directory);
        fs::remove_dir_all(&parent).expect("exists");
    }

    #[cfg(unix)]
    #[test]
    fn spilled_data_is_private_to_the_user() {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &Path| {
            let metadata = fs::symlink_metadata(path).expect("exists");
            metadata.permissions().mode() & 0o777
        };
        let parent = scratch("modes");
        let directory = SpillDirectory::new(&parent, "x").expect("writable directory");
        let file = directory.next_file();
        crate::file::write(&file, &Default::default()).expect("writable directory");
        assert_eq!(mode(&parent), 0o700);
        assert_eq!(mode(directory.path()), 0o700);
        assert_eq!(mode(&directory.path().join(LOCK)), 0o600);
        assert_eq!(mode(&file), 0o600);
        drop(directory);
        fs::remove_dir_all(&parent).expect("exists");
    }

    #[cfg(unix)]
    #[test]
    fn neither_follows_nor_removes_foreign_entries() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let parent = made(scratch("others"));
        let target = parent.join("target");
        fs::rename(leave(&parent, "1-moved", &["lock", "data"]), &target)
            .expect("writable directory");
        // A link to a directory, a link in place of a lock file, and a directory
        // that others can write to.
        symlink(&target, parent.join(format!("{PREFIX}1-link"))).expect("writable directory");
        let linked = leave(&parent, "1-linked", &["data"]);
        symlink(target.join("data"), linked.join(LOCK)).expect("writable directory");
        let open = leave(&parent, "1-open", &["lock", "data"]);
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("it is ours");
        drop(SpillDirectory::new(&parent, "x").expect("writable directory"));
        for path in [&target, &linked, &open] {
            assert!(path.join("data").exists(), "{}", path.display());
        }
        // Directories of other users are not touched either.
        let dead = leave(&parent, "1-dead", &["lock", "data"]);
        remove_dead(&parent, |_| false);
        assert!(dead.join("data").exists());
        // Files are never written through a link.
        let link = parent.join("link");
        symlink(target.join("new"), &link).expect("writable directory");
        let error = create_private(&link).expect_err("it exists");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        fs::remove_dir_all(&parent).expect("exists");
    }

    #[test]
    fn names_a_directory_that_cannot_be_made() {
        let parent = scratch("no-directory");
        fs::write(&parent, b"a file").expect("writable directory");
        let error = SpillDirectory::new(&parent, "x").expect_err("it is a file");
        assert!(error.to_string().contains("no-directory"), "{error}");
        fs::remove_file(&parent).expect("exists");
    }
}
