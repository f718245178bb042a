//! The files of a journal for tests and fuzz targets.

use std::path::Path;

use super::JournalError;
use super::segment::{self, Directory, Kind, Segment};

/// Writes a journal: a segment with all that matters, and others that follow. Each has batches.
///
/// # Errors
///
/// [`JournalError`], if a file cannot be written.
pub fn write(path: &Path, segments: &[Vec<&[u8]>]) -> Result<(), JournalError> {
    let directory = Directory::lock(path)?;
    for (number, batches) in (1..).zip(segments) {
        let kind = match number {
            1 => Kind::Complete,
            _ => Kind::Next,
        };
        let mut segment = Segment::create(&directory, number, kind)?;
        for batch in batches {
            segment.append(batch)?;
        }
        if number < segments.len() as u64 {
            segment.end();
            segment.write()?;
        }
        match kind {
            Kind::Complete => drop(segment.publish(&directory)?),
            Kind::Next => segment.sync()?,
        }
    }
    Ok(())
}

/// Reads the batches of a journal, and the length of a last one that was not written whole.
///
/// # Errors
///
/// [`JournalError`], as of a scheduler that starts.
pub fn read(path: &Path) -> Result<(Vec<Vec<u8>>, u64), JournalError> {
    let directory = Directory::lock(path)?;
    let mut batches = Vec::new();
    let torn_len = segment::for_each_batch(&directory.segments()?, |_, batch| {
        batches.push(batch.to_vec());
        Ok(())
    })?;
    Ok((batches, torn_len))
}
