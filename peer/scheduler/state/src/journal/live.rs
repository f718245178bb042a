//! Which records of a journal still matter.

use core::ops::Bound;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::record::{Kind, Record, Records};
use crate::record::{Content, RecordError};

/// The records of a journal that still matter: those about tasks, clients and workers that are
/// there. It takes a few words for each of these, and no payload.
///
/// All records are [noted](Self::note) in their order; after that, the same records are
/// [selected](Self::select) in the same order.
#[derive(Clone, Debug, Default)]
pub struct Live {
    clients: HashMap<u64, LiveClient>,
    workers: HashSet<u64>,
    tasks: HashMap<u64, LiveTask>,
    /// The client and the task.
    wants: HashSet<(u64, u64)>,
    /// The number of tasks that refer to demands and failures.
    used: HashMap<u64, usize>,
    /// The number of the last record with each path of metadata.
    metadata: BTreeMap<Box<[u8]>, u64>,
    /// The number of records of metadata that were noted, and that were selected.
    metadata_counts: [u64; 2],
    /// The number of the last record of each place of shared objects and plugins that are there.
    objects: HashMap<(Kind, Box<[u8]>), u64>,
    /// As of metadata.
    objects_counts: [u64; 2],
    /// The same for records of graphs.
    graphs_counts: [u64; 2],
}

#[derive(Clone, Debug, Default)]
struct LiveClient {
    /// The number of its last record of graphs; 0 without one.
    graphs: u64,
    is_selected: bool,
}

/// What a live task refers to.
#[derive(Clone, Debug, Default)]
struct LiveTask {
    /// The demands that were written with it, and those that it has.
    demands: [u64; 2],
    failure: Option<u64>,
}

impl Live {
    /// Notes records that follow those before.
    ///
    /// # Errors
    ///
    /// If a record is malformed. Those before it are noted.
    pub fn note(&mut self, records: &[u8]) -> Result<(), RecordError> {
        let mut records = Records::new(records);
        while let Some(record) = records.next()? {
            self.note_record(record)?;
        }
        Ok(())
    }

    /// Appends those of the records to `to` that still matter.
    ///
    /// # Errors
    ///
    /// If a record is malformed.
    pub fn select(&mut self, records: &[u8], to: &mut Vec<u8>) -> Result<(), RecordError> {
        let mut records = Records::new(records);
        while let Some(record) = records.next()? {
            if self.matters(&record)? {
                to.extend_from_slice(record.raw);
            }
        }
        Ok(())
    }

    /// Number of tasks.
    pub fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// Number of workers that had joined, and can return.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    fn note_record(&mut self, record: Record<'_>) -> Result<(), RecordError> {
        let Record {
            kind,
            number,
            mut content,
            ..
        } = record;
        match kind {
            Kind::Client => drop(self.clients.insert(number, LiveClient::default())),
            Kind::Graphs => {
                self.graphs_counts[0] += 1;
                if let Some(client) = self.clients.get_mut(&number) {
                    client.graphs = self.graphs_counts[0];
                }
            }
            Kind::ClientLeft => drop(self.clients.remove(&number)),
            Kind::Worker => drop(self.workers.insert(number)),
            Kind::WorkerLeft => drop(self.workers.remove(&number)),
            Kind::Task => {
                let demands = demands_of(content)?;
                self.forget(number);
                self.tasks.insert(
                    number,
                    LiveTask {
                        demands: [demands; 2],
                        failure: None,
                    },
                );
                self.refer(demands);
                self.refer(demands);
            }
            Kind::Forgotten => self.forget(number),
            Kind::Wanted => drop(self.wants.insert((content.number()?, number))),
            Kind::Unwanted => drop(self.wants.remove(&(content.number()?, number))),
            Kind::Failed => {
                let failure = content.number()?;
                if let Some(task) = self.tasks.get_mut(&number) {
                    let before = task.failure.replace(failure);
                    self.refer(failure);
                    self.unrefer(before);
                }
            }
            Kind::Retried => {
                if let Some(task) = self.tasks.get_mut(&number) {
                    let before = task.failure.take();
                    self.unrefer(before);
                }
            }
            Kind::Moved => {
                let demands = content.number()?;
                if let Some(task) = self.tasks.get_mut(&number) {
                    let before = core::mem::replace(&mut task.demands[1], demands);
                    self.refer(demands);
                    self.unrefer(Some(before));
                }
            }
            Kind::Metadata => {
                self.metadata_counts[0] += 1;
                let path = content.bytes()?;
                self.forget_metadata(path);
                if !content.is_empty() {
                    self.metadata.insert(path.into(), self.metadata_counts[0]);
                }
            }
            Kind::Demands | Kind::Failure | Kind::Actor => {}
            kind => {
                self.objects_counts[0] += 1;
                let place = (kind, content.bytes()?.into());
                match content.is_empty() {
                    true => drop(self.objects.remove(&place)),
                    false => drop(self.objects.insert(place, self.objects_counts[0])),
                }
            }
        }
        Ok(())
    }

    fn forget(&mut self, task: u64) {
        if let Some(LiveTask { demands, failure }) = self.tasks.remove(&task) {
            for number in demands.into_iter().chain(failure) {
                self.unrefer(Some(number));
            }
        }
    }

    /// Forgets what was set at a path and below it. No key is the beginning of another one.
    fn forget_metadata(&mut self, path: &[u8]) {
        self.metadata.remove(path);
        let after = (Bound::Excluded(path), Bound::Unbounded);
        while let Some((below, _)) = self.metadata.range::<[u8], _>(after).next()
            && below.starts_with(path)
        {
            let below = below.clone();
            self.metadata.remove(&below);
        }
    }

    fn refer(&mut self, number: u64) {
        *self.used.entry(number).or_default() += 1;
    }

    fn unrefer(&mut self, number: Option<u64>) {
        if let Some(number) = number
            && let Some(count) = self.used.get_mut(&number)
        {
            *count -= 1;
            if *count == 0 {
                self.used.remove(&number);
            }
        }
    }

    /// Whether a record still matters.
    fn matters(&mut self, record: &Record<'_>) -> Result<bool, RecordError> {
        let number = record.number;
        let mut content = record.content;
        Ok(match record.kind {
            // A holder has the same number when it is there again. The first record precedes all that
            // refers to it.
            Kind::Client => {
                let client = self.clients.get_mut(&number);
                client.is_some_and(|client| !core::mem::replace(&mut client.is_selected, true))
            }
            Kind::Graphs => {
                self.graphs_counts[1] += 1;
                let client = self.clients.get(&number);
                client.is_some_and(|client| client.graphs == self.graphs_counts[1])
            }
            Kind::Worker => self.workers.contains(&number),
            Kind::Task | Kind::Actor => self.tasks.contains_key(&number),
            Kind::Demands | Kind::Failure => self.used.contains_key(&number),
            Kind::Wanted => {
                let client = content.number()?;
                self.clients.contains_key(&client)
                    && self.tasks.contains_key(&number)
                    // Of several records that say the same, the first is enough.
                    && self.wants.remove(&(client, number))
            }
            Kind::Failed => {
                let failure = Some(content.number()?);
                let task = self.tasks.get(&number);
                task.is_some_and(|task| task.failure == failure)
            }
            Kind::Moved => {
                let demands = content.number()?;
                let task = self.tasks.get(&number);
                task.is_some_and(|task| task.demands[1] == demands)
            }
            Kind::Metadata => {
                self.metadata_counts[1] += 1;
                self.metadata.get(content.bytes()?) == Some(&self.metadata_counts[1])
            }
            Kind::ClientLeft
            | Kind::WorkerLeft
            | Kind::Forgotten
            | Kind::Unwanted
            | Kind::Retried => false,
            kind => {
                self.objects_counts[1] += 1;
                let place = (kind, content.bytes()?.into());
                self.objects.get(&place) == Some(&self.objects_counts[1])
            }
        })
    }
}

/// The number of the demands of a task; 0 for data, which has none.
fn demands_of(mut content: Content<'_>) -> Result<u64, RecordError> {
    content.bytes()?;
    content.float()?;
    content.number()?;
    content.signed()?;
    content.number()?;
    content.number()?;
    for _ in 0..content.count()? {
        content.number()?;
    }
    content.number()
}
