//! Directories for the data of workers.

use std::fs;
use std::path::{Path, PathBuf};

/// A directory for the data of workers. Removed with its contents when dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("a test may write below target/");
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("a UTF-8 path")
    }

    /// All spill files in the directory.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let entries = |path: &Path| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let directories = entries(&self.0).into_iter().filter(|path| path.is_dir());
        let files = directories.flat_map(|path| entries(&path));
        files.filter(|path| !path.ends_with("lock")).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Failing to remove it is harmless: it is in the build directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
