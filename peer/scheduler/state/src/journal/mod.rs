//! The journal: what a scheduler needs to know to continue after it has ended.
//!
//! A [`State`] that [keeps a journal](State::keep_journal) writes a record for each task that it
//! knows, in the form in which workers get it, for what clients want, for failures, for metadata and for
//! what clients share.
//! Results are not in it: workers return with those that they hold
//! ([`Returned`](daskwire_messages::protocol::Returned)). After the end of the scheduler, a
//! [`Restoring`] makes a state of the records; [`Live`] says which of them still matter, so that a
//! caller can bound the length of a journal without the state.
//!
//! The state does no I/O: its caller takes the records after each event
//! ([`State::take_journal`]), and has them stored before it executes the actions of the event.
//!
//! # Format
//!
//! A record is a byte for its kind, the length of its content, and the content. Numbers are LEB128;
//! byte strings follow their length. Tasks, clients, workers and what tasks share have numbers, which
//! are never used twice in a journal. Records of a kind that a reader does not know are an error:
//! they are of a later version.

use std::collections::HashMap;
use std::sync::Arc;

use daskwire_messages::{Key, Value};

use super::model::TaskId;
use super::submission::{Demands, Failure};
use super::{ClientId, State, WorkerId};

mod blank;
mod live;
mod record;
mod restore;
mod shared;

pub use live::Live;
pub(super) use restore::Held;
pub use restore::Restoring;

use crate::record::Writer;
use record::Kind;

/// Maximum number of demands whose numbers are kept. Then all are written again.
const MAX_DEMANDS: usize = 1 << 10;

/// The records that a state has written and its caller has not taken, and the numbers in them.
#[derive(Debug, Default)]
pub(super) struct Journal {
    records: Vec<u8>,
    /// The numbers of tasks, by index in the table.
    numbers: Vec<u64>,
    last_number: u64,
    /// The demands that were written last, with their numbers, by address. They are kept alive, so
    /// that no others have their address.
    demands: HashMap<usize, (Arc<Demands>, u64)>,
    /// The failure that was written last: many tasks may fail for the same reason.
    failure: Option<(Arc<Failure>, u64)>,
}

impl Journal {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn number(&self, id: TaskId) -> u64 {
        self.numbers.get(id as usize).copied().unwrap_or(0)
    }

    fn write(&mut self, kind: Kind, content: impl FnOnce(&mut Writer<'_>)) {
        Writer::record(&mut self.records, kind as u8, content);
    }

    /// Returns the number of demands, which are written unless they were before.
    fn demands(&mut self, demands: &Arc<Demands>) -> u64 {
        let address = Arc::as_ptr(demands).addr();
        if let Some((_, number)) = self.demands.get(&address) {
            return *number;
        }
        if self.demands.len() >= MAX_DEMANDS {
            self.demands.clear();
        }
        let number = self.next_number();
        self.demands.insert(address, (Arc::clone(demands), number));
        self.write(Kind::Demands, |to| {
            let Demands {
                workers,
                allow_other_workers,
                resources,
                annotations,
                span_id,
            } = &**demands;
            to.number(number);
            to.number(u64::from(*allow_other_workers));
            to.strings(workers);
            to.number(resources.0.len() as u64);
            for (name, amount) in &resources.0 {
                to.bytes(name.as_bytes());
                to.float(*amount);
            }
            to.value(annotations);
            to.strings(span_id.as_deref().as_slice());
        });
        number
    }

    fn failure(&mut self, failure: &Arc<Failure>) -> u64 {
        if let Some((known, number)) = &self.failure
            && Arc::ptr_eq(known, failure)
        {
            return *number;
        }
        let number = self.next_number();
        self.failure = Some((Arc::clone(failure), number));
        self.write(Kind::Failure, |to| {
            let Failure {
                exception,
                traceback,
                cause,
            } = &**failure;
            to.number(number);
            to.value(exception);
            to.number(u64::from(traceback.is_some()));
            to.value(traceback.as_ref().unwrap_or(&Value::None));
            to.bytes(cause.as_ref().map_or(&[], Key::as_msgpack));
        });
        number
    }
}

impl State {
    /// Begins a journal of a state to which no event has come yet.
    pub fn keep_journal(&mut self) {
        self.journal.get_or_insert_default();
        self.extensions.keep_changes();
    }

    /// Begins a part of the journal that does not refer to demands and failures of those before, which
    /// may be merged from now on.
    pub fn begin_journal_part(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.demands.clear();
            journal.failure = None;
        }
    }

    /// Appends the records since the last call to `to`.
    pub fn take_journal(&mut self, to: &mut Vec<u8>) {
        if let Some(journal) = &mut self.journal {
            to.append(&mut journal.records);
        }
    }

    /// Writes a task, with its dependencies.
    pub(super) fn journal_task(&mut self, id: TaskId) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let task = &self.tasks[id];
        let spec = task.run_spec.as_ref().map(|spec| {
            let calls = self.groups[spec.group].key.calls;
            (
                journal.demands(&spec.demands),
                calls,
                spec.payload.to_serialized(),
            )
        });
        let number = journal.next_number();
        let place = id as usize;
        if journal.numbers.len() <= place {
            journal.numbers.resize(place + 1, 0);
        }
        journal.numbers[place] = number;
        let Journal {
            records, numbers, ..
        } = journal;
        Writer::record(records, Kind::Task as u8, |to| {
            to.number(number);
            to.bytes(task.key.as_msgpack());
            let priority = &task.priority;
            to.float(priority.user);
            to.number(priority.generation);
            to.signed(priority.order);
            to.number(priority.submission);
            to.number(u64::from(task.retries));
            to.number(task.dependencies.len() as u64);
            for dependency in &task.dependencies {
                let known = numbers.get(*dependency as usize);
                to.number(known.copied().unwrap_or(0));
            }
            let Some((demands, calls, payload)) = spec else {
                to.number(0);
                return;
            };
            to.number(demands);
            to.calls(calls);
            to.payload(&payload);
        });
    }

    pub(super) fn journal_forgotten(&mut self, id: TaskId) {
        self.journal_about(Kind::Forgotten, id, |_, _| {});
    }

    /// Writes that a task makes an actor.
    pub(super) fn journal_actor(&mut self, id: TaskId) {
        self.journal_about(Kind::Actor, id, |_, _| {});
    }

    /// Writes that a client wants a task, or wants it no more.
    pub(super) fn journal_wish(&mut self, client: ClientId, id: TaskId, is_wanted: bool) {
        let kind = if is_wanted {
            Kind::Wanted
        } else {
            Kind::Unwanted
        };
        self.journal_about(kind, id, |to, _| to.number(client.0));
    }

    /// Writes that a task has failed, or that a failed one is to run again.
    pub(super) fn journal_failure(&mut self, id: TaskId, failure: Option<&Arc<Failure>>) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        match failure {
            Some(failure) => {
                let number = journal.failure(failure);
                self.journal_about(Kind::Failed, id, |to, _| to.number(number));
            }
            None => self.journal_about(Kind::Retried, id, |_, _| {}),
        }
    }

    /// Writes that a task has other demands than before.
    pub(super) fn journal_demands(&mut self, id: TaskId) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if let Some(spec) = &self.tasks[id].run_spec {
            let number = journal.demands(&spec.demands);
            self.journal_about(Kind::Moved, id, |to, _| to.number(number));
        }
    }

    fn journal_about(
        &mut self,
        kind: Kind,
        id: TaskId,
        rest: impl FnOnce(&mut Writer<'_>, &Journal),
    ) {
        if let Some(journal) = &mut self.journal {
            let mut records = core::mem::take(&mut journal.records);
            Writer::record(&mut records, kind as u8, |to| {
                to.number(journal.number(id));
                rest(to, journal);
            });
            journal.records = records;
        }
    }

    pub(super) fn journal_client(&mut self, id: ClientId, name: &str) {
        if let Some(journal) = &mut self.journal {
            journal.write(Kind::Client, |to| {
                to.number(id.0);
                to.bytes(name.as_bytes());
            });
        }
    }

    /// Writes how many graphs of a client that may return were handled.
    pub(super) fn journal_graphs(&mut self, id: ClientId, count: u64) {
        if let Some(journal) = &mut self.journal {
            journal.write(Kind::Graphs, |to| {
                to.number(id.0);
                to.number(count);
            });
        }
    }

    pub(super) fn journal_client_left(&mut self, id: ClientId) {
        if let Some(journal) = &mut self.journal {
            journal.write(Kind::ClientLeft, |to| to.number(id.0));
        }
    }

    /// Writes that a worker has joined that can return.
    pub(super) fn journal_worker(&mut self, id: WorkerId, address: &str) {
        if let Some(journal) = &mut self.journal {
            journal.write(Kind::Worker, |to| {
                to.number(id.0);
                to.bytes(address.as_bytes());
            });
        }
    }

    pub(super) fn journal_worker_left(&mut self, id: WorkerId) {
        if let Some(journal) = &mut self.journal {
            journal.write(Kind::WorkerLeft, |to| to.number(id.0));
        }
    }

    /// Writes metadata; `None` if what was set at a path is forgotten.
    pub(super) fn journal_metadata(&mut self, path: &[Key], value: Option<&Value>) {
        if let Some(journal) = &mut self.journal {
            journal.write(Kind::Metadata, |to| {
                let mut place = Vec::new();
                for key in path {
                    place.extend_from_slice(key.as_msgpack());
                }
                to.bytes(&place);
                if let Some(value) = value {
                    to.value(value);
                }
            });
        }
    }
}
