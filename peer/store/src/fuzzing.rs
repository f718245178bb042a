//! Spill files for fuzz targets.

use core::hash::Hasher as _;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use daskwire_messages::Value;
use daskwire_messages::pickling::Pickling;
use daskwire_messages::value::Serialized;
use twox_hash::XxHash3_64;

use super::datum::Evicted;
use super::file::{self, SpillFile};
use super::{Datum, DatumError, SpillDirectory, Steps, Store};

/// Reads a spill file with the given contents at `path`; `None` if it is refused.
pub fn read_spill_file(path: &Path, contents: &[u8]) -> Option<Serialized> {
    fs::write(path, contents).expect("a writable directory");
    let file = SpillFile {
        path: path.to_owned(),
        len: contents.len() as u64,
        header: Bytes::new(),
    };
    let read = file::read(&file, None);
    fs::remove_file(path).expect("the file is there");
    read.ok()
}

/// The checksum of the contents of a file.
pub fn checksum(contents: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(contents);
    hasher.finish()
}

/// A datum that is only on disk.
#[derive(Debug)]
pub struct Spilled {
    store: Store,
    datum: Datum,
    file: PathBuf,
}

impl Spilled {
    /// Spills a datum to a directory in `parent`. Returns `None` if it uses no
    /// memory or cannot be serialized.
    pub fn new(parent: &Path, value: Value) -> Option<Self> {
        let directory = SpillDirectory::new(parent, "fuzz").expect("a writable directory");
        let file = directory.path().join("0");
        let store = Store::spilling(directory, 0, u64::MAX, Pickling::default());
        let datum = store.made(value);
        store.insert(&"x".into(), datum.clone());
        if !matches!(datum.evict(), Evicted::Bytes(_)) {
            return None;
        }
        Some(Self { store, datum, file })
    }

    /// The path of the spill file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The value, read from disk; `None` if the datum is lost.
    pub fn open(&self) -> Option<Value> {
        let opened = self.datum.open(&Steps::default());
        assert_eq!(
            matches!(opened, Err(DatumError::Lost)),
            self.store.holdings().disk_len == 0 && self.datum.is_lost()
        );
        opened.ok().map(|value| Value::clone(&value))
    }

    /// The serialized form, read from disk; `None` if the datum is lost.
    pub fn serialize(&self) -> Option<Serialized> {
        self.datum.serialize(&Steps::default()).ok()
    }
}
