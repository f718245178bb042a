//! Where spill files are: a directory of this worker alone, below one that
//! several may share, and that what others left behind is removed from.
//!
//! Beside each directory lies a file that its process holds locked. The system
//! lets go of the lock when the process ends, however it does; so a directory
//! whose lock can be had is nobody's. A process id would not do: processes in
//! containers that share a disk do not see each other.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fs4::FileExt;

/// What directories of workers are called, before what tells them apart.
const PREFIX: &str = "worker-";

/// The directory of a worker.
#[derive(Debug)]
pub(crate) struct SpillDirectory {
    path: PathBuf,
    lock_path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
    next: AtomicU64,
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

impl SpillDirectory {
    /// Makes a directory below `parent`, which is made if it is not there, and
    /// removes what processes left there that are no more.
    ///
    /// Blocks while another process does the same.
    pub(crate) fn new(parent: &Path, id: &str) -> io::Result<Self> {
        let in_parent = |error: io::Error| {
            let text = format!("{}: {error}", parent.display());
            io::Error::new(error.kind(), text)
        };
        fs::create_dir_all(parent).map_err(in_parent)?;
        // Nobody takes a lock for nobody's that is only about to be taken.
        let global = open_lock(&parent.join("global.lock")).map_err(in_parent)?;
        FileExt::lock(&global).map_err(in_parent)?;
        remove_dead(parent);
        let name = format!("{PREFIX}{}-{id}", std::process::id());
        let path = parent.join(&name);
        let lock_path = parent.join(format!("{name}.lock"));
        let lock = open_lock(&lock_path).map_err(in_parent)?;
        FileExt::lock(&lock).map_err(in_parent)?;
        fs::create_dir(&path).map_err(in_parent)?;
        Ok(Self {
            path,
            lock_path,
            _lock: lock,
            next: AtomicU64::new(0),
        })
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
}

impl SpillDirectory {
    /// Removes it and all that is in it.
    pub(super) fn remove(&self) {
        // What cannot be removed now is removed by the next worker.
        if fs::remove_dir_all(&self.path).is_ok() {
            let _ = fs::remove_file(&self.lock_path);
        }
    }
}

impl Drop for SpillDirectory {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes the directories that nobody holds the lock of. What cannot be removed
/// is left to the next one.
fn remove_dead(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            continue;
        };
        let own = name.strip_suffix(".lock");
        let Some(own) = own.filter(|own| own.starts_with(PREFIX)) else {
            continue;
        };
        let is_dead = open_lock(&entry.path()).is_ok_and(|lock| FileExt::try_lock(&lock).is_ok());
        if !is_dead {
            continue;
        }
        let removed = fs::remove_dir_all(parent.join(own));
        let is_gone = match removed {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if is_gone {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::store::scratch;

    #[test]
    fn directories_of_the_dead_go_and_those_of_the_living_stay() {
        let parent = scratch("directories");
        let one = SpillDirectory::new(&parent, "one").expect("it is writable");
        fs::write(one.next_file(), b"data").expect("it is writable");
        // As a process leaves it that is killed.
        let dead = parent.join("worker-1-dead");
        fs::create_dir(&dead).expect("it is writable");
        fs::write(dead.join("0"), b"data").expect("it is writable");
        fs::write(parent.join("worker-1-dead.lock"), b"").expect("it is writable");
        fs::write(parent.join("notes.txt"), b"").expect("it is writable");

        let two = SpillDirectory::new(&parent, "two").expect("it is writable");
        assert!(!dead.exists());
        assert!(!parent.join("worker-1-dead.lock").exists());
        assert!(one.path().join("0").exists());
        assert!(parent.join("notes.txt").exists());
        let (first, second) = (one.path().to_owned(), two.path().to_owned());
        drop((one, two));
        assert!(!first.exists() && !second.exists());
        let left = fs::read_dir(&parent).expect("it is there").count();
        assert_eq!(left, 2, "the common lock and what is not ours");
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
