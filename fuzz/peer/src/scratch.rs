//! A directory for the files of fuzz targets.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A directory for this process, in memory where the system has one.
pub(crate) fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let name = format!("daskwire-fuzz-{}", std::process::id());
        let memory = Some(PathBuf::from("/dev/shm")).filter(|memory| memory.is_dir());
        let directory = memory.unwrap_or_else(std::env::temp_dir).join(name);
        std::fs::create_dir_all(&directory).expect("a writable directory");
        directory
    })
}
