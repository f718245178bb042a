//! The records of shared objects, and of plugins.
//!
//! Each begins with its *place*, a byte string that says which object of its kind it is about, and has
//! nothing else if the object is gone. The last record of a place is the one that counts.

use core::time::Duration;

use daskwire_extensions::{Change, Record as Shared};

use super::super::State;
use super::record::Kind;
use crate::record::{Content, RecordError, Writer};

/// Where a kind of record has its place.
pub(super) const fn has_place(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Variable
            | Kind::Event
            | Kind::Queue
            | Kind::QueueUsers
            | Kind::Item
            | Kind::Semaphore
            | Kind::Lease
            | Kind::Locks
            | Kind::Dataset
            | Kind::Plugin
    )
}

impl State {
    /// Writes a change of a shared object.
    pub(in super::super) fn journal_change(&mut self, change: &Change) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        journal.write(kind_of(change), |to| write(to, change));
    }

    /// Writes that a plugin is registered, or not any more.
    pub(in super::super) fn journal_plugin(&mut self, name: &str, is_registered: bool) {
        if let Some(journal) = &mut self.journal {
            journal.write(Kind::Plugin, |to| {
                to.bytes(name.as_bytes());
                if is_registered {
                    to.number(1);
                }
            });
        }
    }
}

const fn kind_of(change: &Change) -> Kind {
    match change {
        Change::Variable { .. } => Kind::Variable,
        Change::Event { .. } => Kind::Event,
        Change::Queue { .. } => Kind::Queue,
        Change::QueueUsers { .. } => Kind::QueueUsers,
        Change::Item { .. } => Kind::Item,
        Change::Semaphore { .. } => Kind::Semaphore,
        Change::Lease { .. } => Kind::Lease,
        Change::Locks { .. } => Kind::Locks,
        Change::Dataset { .. } => Kind::Dataset,
    }
}

fn write(to: &mut Writer<'_>, change: &Change) {
    match change {
        Change::Variable { name, value } => {
            to.key(name);
            if let Some(value) = value {
                to.shared(value);
            }
        }
        Change::Event { name, is_set } => {
            to.key(name);
            if *is_set {
                to.number(1);
            }
        }
        Change::Queue { name, max_len } => {
            to.key(name);
            if let Some(max_len) = max_len {
                to.number(*max_len as u64);
            }
        }
        Change::QueueUsers { name, count } => {
            to.key(name);
            if *count > 1 {
                to.number(*count);
            }
        }
        Change::Item { number, value } => {
            to.bytes(&number.to_le_bytes());
            if let Some((name, value)) = value {
                to.key(name);
                to.shared(value);
            }
        }
        Change::Semaphore { name, terms } => {
            to.key(name);
            if let Some((max_leases, lease_timeout)) = terms {
                to.signed(*max_leases);
                // Leases with a time-out of zero do not end.
                to.float(lease_timeout.unwrap_or_default().as_secs_f64());
            }
        }
        Change::Lease {
            name,
            lease_id,
            is_held,
        } => {
            to.bytes(&[name.as_msgpack(), lease_id.as_msgpack()].concat());
            if *is_held {
                to.number(1);
            }
        }
        Change::Locks { holder, locks } => {
            to.key(holder);
            if let Some(locks) = locks {
                to.keys(locks);
            }
        }
        Change::Dataset { name, value } => {
            to.key(name);
            if let Some((keys, data)) = value {
                to.keys(keys);
                to.value(data);
            }
        }
    }
}

/// Reads a change from a record of an object that is there.
pub(super) fn read(
    kind: Kind,
    place: &[u8],
    content: &mut Content<'_>,
) -> Result<Change, RecordError> {
    let at = *content;
    let expected = || at.expected("the name of a shared object");
    let mut names = Content::of(place).keys_to_end().map_err(|_| expected())?;
    let mut name = || match names.is_empty() {
        true => Err(expected()),
        false => Ok(names.remove(0)),
    };
    let change = match kind {
        Kind::Variable => Change::Variable {
            name: name()?,
            value: Some(content.shared()?),
        },
        Kind::Event => {
            content.number()?;
            let (name, is_set) = (name()?, true);
            Change::Event { name, is_set }
        }
        Kind::Queue => {
            let max_len = content.number()?;
            Change::Queue {
                name: name()?,
                max_len: Some(usize::try_from(max_len).unwrap_or(usize::MAX)),
            }
        }
        Kind::QueueUsers => Change::QueueUsers {
            name: name()?,
            count: content.number()?,
        },
        Kind::Semaphore => {
            let max_leases = content.signed()?;
            let timeout = content.float()?;
            let timeout = Some(timeout).filter(|timeout| *timeout > 0.0);
            let timeout = timeout.map(Duration::try_from_secs_f64);
            Change::Semaphore {
                name: name()?,
                terms: Some((max_leases, timeout.and_then(Result::ok))),
            }
        }
        Kind::Lease => {
            content.number()?;
            Change::Lease {
                name: name()?,
                lease_id: name()?,
                is_held: true,
            }
        }
        Kind::Locks => Change::Locks {
            holder: name()?,
            locks: Some(content.keys()?),
        },
        Kind::Dataset => {
            let keys = content.keys()?;
            Change::Dataset {
                name: name()?,
                value: Some((keys, content.value()?)),
            }
        }
        _ => return Err(at.expected("a record of a shared object")),
    };
    match names.is_empty() {
        true => Ok(change),
        false => Err(expected()),
    }
}

/// Reads a value of a queue.
pub(super) fn read_item(content: &mut Content<'_>) -> Result<Change, RecordError> {
    let name = content.key()?;
    let value = Some((name, content.shared()?));
    // Restored values get other numbers.
    Ok(Change::Item { number: 0, value })
}

impl Writer<'_> {
    fn shared(&mut self, value: &Shared) {
        match value {
            Shared::Future(key) => {
                self.number(1);
                self.key(key);
            }
            Shared::Data(data) => {
                self.number(2);
                self.value(data);
            }
        }
    }
}

impl Content<'_> {
    fn shared(&mut self) -> Result<Shared, RecordError> {
        let at = *self;
        match self.number()? {
            1 => Ok(Shared::Future(self.key()?)),
            2 => Ok(Shared::Data(self.value()?)),
            _ => Err(at.expected("a value that clients share")),
        }
    }
}
