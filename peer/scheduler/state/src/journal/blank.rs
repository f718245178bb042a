//! Records of a journal without the data in them, for recordings.

use daskwire::msgpack::Reader;

use super::record::{Kind, Records};
use crate::record::{Content, RecordError, Writer};
use crate::recording::pickle_in;

/// Appends records with zeros in place of what tasks call and take, and of failures and values of
/// clients that are serialized. Other values of clients become `None`.
///
/// # Errors
///
/// If a record is malformed.
pub(super) fn blank(records: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
    let mut records = Records::new(records);
    while let Some(record) = records.next()? {
        let content = Content::of(record.raw).record()?;
        let content = content.map_or(Content::of(&[]), |record| record.content);
        match blanked(record.kind, content)? {
            Some(blanked) => Writer::record(out, record.kind as u8, |to| to.raw(&blanked)),
            None => out.extend_from_slice(record.raw),
        }
    }
    Ok(())
}

/// The content of a record without the data in it; `None` if it has none.
fn blanked(kind: Kind, mut content: Content<'_>) -> Result<Option<Vec<u8>>, RecordError> {
    let whole = content.rest();
    let mut blanked = Vec::new();
    let mut to = Writer::appending(&mut blanked);
    let mut copied = 0;
    // Copies what was read since the last data.
    let mut copy = |to: &mut Writer<'_>, content: &Content<'_>| {
        let read = whole.len() - content.len();
        to.raw(&whole[copied..read]);
        copied = read;
    };
    match kind {
        Kind::Task => {
            content.number()?;
            content.key()?;
            content.float()?;
            for _ in 0..4 {
                content.number()?;
            }
            for _ in 0..content.count()? {
                content.number()?;
            }
            if content.number()? == 0 {
                return Ok(None);
            }
            content.number()?;
            copy(&mut to, &content);
            payload(&mut to, &mut content)?;
        }
        Kind::Failure => {
            content.number()?;
            copy(&mut to, &content);
            value(&mut to, &mut content)?;
            let traceback = content.number()?;
            to.number(traceback);
            value(&mut to, &mut content)?;
            to.raw(content.rest());
        }
        Kind::Metadata | Kind::Dataset => {
            content.bytes()?;
            if content.is_empty() {
                return Ok(None);
            }
            if kind == Kind::Dataset {
                content.bytes()?;
            }
            copy(&mut to, &content);
            value(&mut to, &mut content)?;
        }
        Kind::Variable | Kind::Item => {
            content.bytes()?;
            if content.is_empty() {
                return Ok(None);
            }
            if kind == Kind::Item {
                content.bytes()?;
            }
            if content.number()? != DATA {
                return Ok(None);
            }
            copy(&mut to, &content);
            value(&mut to, &mut content)?;
        }
        _ => return Ok(None),
    }
    Ok(Some(blanked))
}

/// The number before a shared value that is not a task.
const DATA: u64 = 2;

fn value(to: &mut Writer<'_>, content: &mut Content<'_>) -> Result<(), RecordError> {
    let mut ahead = *content;
    match ahead.count()? {
        0 | 1 => {
            content.value()?;
            to.number(0);
            Ok(())
        }
        _ => payload(to, content),
    }
}

fn payload(to: &mut Writer<'_>, content: &mut Content<'_>) -> Result<(), RecordError> {
    let count = content.count()?;
    to.number(count as u64);
    for index in 0..count {
        let part = content.bytes()?;
        match index {
            0 => to.bytes(part),
            1 => {
                let mut header = part.to_vec();
                if let Some(pickle) = pickle_in(&mut Reader::new(part)) {
                    header[pickle].fill(0);
                }
                to.bytes(&header);
            }
            _ => to.bytes(&vec![0; part.len()]),
        }
    }
    Ok(())
}
