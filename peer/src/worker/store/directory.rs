//! Where spill files are: a private directory of this worker alone, below one that
//! several workers and users may share.
//!
//! The directory has a file that its process holds locked. The system releases the
//! lock when the process ends, however it does; so a directory whose lock can be
//! had belongs to a dead process, and the next worker of the same user removes it.
//! A process id would not do: processes in containers that share a disk do not see
//! each other.
//!
//! Nothing is shared between users, no file that exists is opened for writing but
//! the locks of directories of the same user, and nothing waits for a lock.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fs4::{FileExt, TryLockError};

/// How the names of directories start.
const PREFIX: &str = "daskwire-worker-";

/// The file in a directory that its process holds locked.
const LOCK: &str = "lock";

/// How often making a directory is tried while others take it for one of a dead
/// process, which they can until it is locked.
const ATTEMPTS: u32 = 16;

/// The directory of a worker.
#[derive(Debug)]
pub(crate) struct SpillDirectory {
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
    next: AtomicU64,
}

impl SpillDirectory {
    /// Makes a directory below `parent`, which is made if it is not there, and
    /// removes what dead processes of the same user left there.
    ///
    /// # Errors
    ///
    /// What the system says, with the path.
    pub(crate) fn new(parent: &Path, id: &str) -> io::Result<Self> {
        let in_parent = |error: io::Error| {
            let text = format!("{}: {error}", parent.display());
            io::Error::new(error.kind(), text)
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
                let error = "other processes remove every new directory";
                return Err(in_parent(io::Error::other(error)));
            }
        };
        let own = fs::symlink_metadata(&directory.path).map_err(in_parent)?;
        remove_dead(parent, |other| is_private(other, &own));
        Ok(directory)
    }

    /// `None` if another process removed it before it was locked.
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
        // From now on nobody removes it, but it may have been removed.
        if fs::symlink_metadata(&lock_path).is_err() {
            return Ok(None);
        }
        Ok(Some(Self {
            path,
            _lock: lock,
            next: AtomicU64::new(0),
        }))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file that is not there yet.
    pub(super) fn next_file(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.path.join(number.to_string())
    }

    /// Removes it and all that is in it.
    pub(super) fn remove(&self) {
        // What cannot be removed now is removed by the next worker.
        let _ = remove(&self.path);
    }
}

impl Drop for SpillDirectory {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Makes a file that only this user can read and write. It is an error if there is
/// anything of this name, be it a link.
pub(super) fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Makes directories that only this user can read and write.
fn private_directory() -> DirBuilder {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "there are no modes"))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

/// Whether something is a directory of the same user as `own`, in which no other
/// user can have put anything.
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

/// Removes the directories that nobody holds the lock of. What cannot be removed
/// is left to the next worker.
fn remove_dead(parent: &Path, is_own: impl Fn(&Metadata) -> bool) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_named = name.to_str().is_some_and(|name| name.starts_with(PREFIX));
        // This does not follow links.
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
            // Only if it is empty: its process ended, or is about to make the lock
            // and notices.
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

/// Removes a directory that has nothing but files, the lock last: while that is
/// there, another process can finish this.
fn remove(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name() != LOCK {
            fs::remove_file(entry.path())?;
        }
    }
    match fs::remove_file(path.join(LOCK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::store::scratch;

    fn made(parent: PathBuf) -> PathBuf {
        fs::create_dir(&parent).expect("it is writable");
        parent
    }

    /// As a process leaves it that is killed.
    fn leave(parent: &Path, name: &str, files: &[&str]) -> PathBuf {
        let path = parent.join(format!("{PREFIX}{name}"));
        private_directory().create(&path).expect("it is writable");
        for file in files {
            create_private(&path.join(file)).expect("it is writable");
        }
        path
    }

    #[test]
    fn directories_of_the_dead_go_and_those_of_the_living_stay() {
        let parent = scratch("directories");
        let one = SpillDirectory::new(&parent, "one").expect("it is writable");
        fs::write(one.next_file(), b"data").expect("it is writable");
        let dead = leave(&parent, "1-dead", &["lock", "0", "1"]);
        let empty = leave(&parent, "1-empty", &[]);
        let unlocked = leave(&parent, "1-unlocked", &["0"]);
        fs::write(parent.join("notes.txt"), b"").expect("it is writable");

        let two = SpillDirectory::new(&parent, "two").expect("it is writable");
        assert!(!dead.exists() && !empty.exists());
        // It is none that a worker leaves.
        assert!(unlocked.join("0").exists());
        assert!(one.path().join("0").exists());
        assert!(parent.join("notes.txt").exists());
        let (first, second) = (one.path().to_owned(), two.path().to_owned());
        drop((one, two));
        assert!(!first.exists() && !second.exists());
        let left = fs::read_dir(&parent).expect("it is there").count();
        assert_eq!(left, 2, "what is not ours");
        fs::remove_dir_all(&parent).expect("it is there");
    }

    #[test]
    fn a_lock_that_another_process_holds_delays_nothing() {
        let parent = made(scratch("held"));
        let held = leave(&parent, "1-held", &["lock"]);
        let lock = File::open(held.join(LOCK)).expect("it is there");
        FileExt::lock(&lock).expect("it is free");
        let directory = SpillDirectory::new(&parent, "x").expect("it is writable");
        assert!(held.exists());
        drop(directory);
        fs::remove_dir_all(&parent).expect("it is there");
    }

    #[cfg(unix)]
    #[test]
    fn only_this_user_can_read_what_is_spilled() {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &Path| {
            let metadata = fs::symlink_metadata(path).expect("it is there");
            metadata.permissions().mode() & 0o777
        };
        let parent = scratch("modes");
        let directory = SpillDirectory::new(&parent, "x").expect("it is writable");
        let file = directory.next_file();
        crate::worker::store::file::write(&file, &Default::default()).expect("it is writable");
        assert_eq!(mode(&parent), 0o700);
        assert_eq!(mode(directory.path()), 0o700);
        assert_eq!(mode(&directory.path().join(LOCK)), 0o600);
        assert_eq!(mode(&file), 0o600);
        drop(directory);
        fs::remove_dir_all(&parent).expect("it is there");
    }

    #[cfg(unix)]
    #[test]
    fn what_others_put_there_is_neither_followed_nor_removed() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let parent = made(scratch("others"));
        let target = parent.join("target");
        fs::rename(leave(&parent, "1-moved", &["lock", "data"]), &target).expect("it is writable");
        // A link to a directory, a link in place of a lock, and a directory that
        // others can write to.
        symlink(&target, parent.join(format!("{PREFIX}1-link"))).expect("it is writable");
        let linked = leave(&parent, "1-linked", &["data"]);
        symlink(target.join("data"), linked.join(LOCK)).expect("it is writable");
        let open = leave(&parent, "1-open", &["lock", "data"]);
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("it is ours");
        drop(SpillDirectory::new(&parent, "x").expect("it is writable"));
        for path in [&target, &linked, &open] {
            assert!(path.join("data").exists(), "{}", path.display());
        }
        // Nor is anything of another user.
        let dead = leave(&parent, "1-dead", &["lock", "data"]);
        remove_dead(&parent, |_| false);
        assert!(dead.join("data").exists());
        // A file is never written through a link.
        let link = parent.join("link");
        symlink(target.join("new"), &link).expect("it is writable");
        let error = create_private(&link).expect_err("it exists");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        fs::remove_dir_all(&parent).expect("it is there");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let parent = scratch("no-directory");
        fs::write(&parent, b"a file").expect("it is writable");
        let error = SpillDirectory::new(&parent, "x").expect_err("it is a file");
        assert!(error.to_string().contains("no-directory"), "{error}");
        fs::remove_file(&parent).expect("it is there");
    }
}
