//! Files that commands read before they begin their work.

use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::path::Path;

use serde_json::Value;

use crate::command::failure::Result;

/// Maximum length of such a file in bytes. Most have a few kilobytes, while a device may never
/// end.
pub(crate) const MAX_LEN: u64 = 1 << 20;

/// Reads a text file.
///
/// # Errors
///
/// That of the system, or [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let mut file = File::open(path)?.take(MAX_LEN);
    file.read_to_string(&mut text)?;
    match file.limit() {
        0 => Err(too_large()),
        _ => Ok(text),
    }
}

/// The error for a file of [`MAX_LEN`] bytes or more.
pub(crate) fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "it has 1 MiB or more")
}

/// Reads the first JSON document in a file: the writer of a FIFO may keep it open.
pub(crate) fn scheduler_document(path: &Path) -> io::Result<Value> {
    let mut file = BufReader::new(File::open(path)?.take(MAX_LEN));
    let documents = serde_json::Deserializer::from_reader(&mut file);
    let document = documents.into_iter().next();
    let read = match document {
        Some(document) => document.map_err(io::Error::from),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    };
    match read {
        Err(error)
            if error.kind() == io::ErrorKind::UnexpectedEof && file.get_ref().limit() == 0 =>
        {
            Err(too_large())
        }
        read => read,
    }
}

/// The address in the document of a scheduler's file.
///
/// # Errors
///
/// If it has none.
pub(crate) fn address_of<'d>(document: &'d Value, path: &Path) -> Result<&'d str> {
    let expected = || {
        let name = path.display();
        format!("{name}: expected a JSON object with the string `address`")
    };
    Ok(document["address"].as_str().ok_or_else(expected)?)
}

/// Runs a function that reads files, on a thread of its own: a file system that does not answer,
/// or a FIFO without a writer, blocks it for any time.
///
/// # Errors
///
/// That of the function, or if it panics.
///
/// # Cancel safety
///
/// If the future is dropped, the function continues, and the process can end nevertheless.
pub(crate) async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(read).await {
        Ok(outcome) => outcome,
        Err(error) => Err(error.to_string().into()),
    }
}

/// A file with the id of this process. Removed when dropped.
pub(crate) struct PidFile<'a>(&'a Path);

impl<'a> PidFile<'a> {
    /// Writes the file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(crate) fn new(path: &'a Path) -> Result<Self> {
        let written = std::fs::write(path, std::process::id().to_string());
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for PidFile<'_> {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = std::fs::remove_file(self.0);
    }
}
