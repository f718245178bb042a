//! Moves of data from workers with much memory in use to workers with little.

use std::collections::{BinaryHeap, HashSet};

use daskwire_messages::Key;

use super::model::TaskId;
use super::{State, WorkerId};

/// Data that is to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The key of the data.
    pub key: Key,
    /// The address of the worker that has the data.
    pub from: String,
    /// The address of the worker that is to have it.
    pub to: String,
}

/// A worker that gives or takes data. The order is by the number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Side {
    /// The bytes that the worker may give or take at most.
    most: i128,
    /// The bytes from which on it neither gives nor takes more.
    least: i128,
    id: WorkerId,
}

/// The rules of moves of data between workers. Dask's settings
/// `distributed.worker.memory.rebalance`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rebalancing {
    /// Whether only data counts as memory in use, and not what else a worker has used for 30
    /// seconds. Default: false.
    pub is_of_data: bool,
    /// The share of its memory limit that a worker which gives data uses at least. Default: 0.3.
    pub sender_min: f64,
    /// The share of its memory limit that a worker which takes data uses at most. Default: 0.6.
    pub recipient_max: f64,
    /// The difference between workers, as a share of the memory limit, below which nothing is
    /// moved. Default: 0.1.
    pub gap: f64,
}

impl Rebalancing {
    daskwire_comm::with_fields! {
        with_is_of_data(is_of_data: bool);
        with_sender_min(sender_min: f64);
        with_recipient_max(recipient_max: f64);
        with_gap(gap: f64);
    }
}

impl Default for Rebalancing {
    fn default() -> Self {
        Self {
            is_of_data: false,
            sender_min: 0.3,
            recipient_max: 0.6,
            gap: 0.1,
        }
    }
}

impl State {
    /// Returns which data is to be moved so that all workers use about the same memory, with the
    /// rules of Dask: only these keys and between these workers, if given. Looks at all data of
    /// workers with too much memory in use.
    pub fn rebalancing(
        &self,
        keys: Option<&HashSet<Key>>,
        workers: Option<&[WorkerId]>,
    ) -> Vec<Move> {
        let rules = &self.policy.rebalancing;
        let ids: Vec<WorkerId> = match workers {
            Some(workers) => workers.to_vec(),
            None => self.workers.keys().copied().collect(),
        };
        let known = ids
            .iter()
            .filter_map(|id| Some((*id, self.workers.get(id)?)));
        let used: Vec<_> = known
            .map(|(id, worker)| {
                let memory = match rules.is_of_data {
                    true => i128::try_from(worker.nbytes).unwrap_or(i128::MAX),
                    false => i128::from(worker.optimistic_memory()),
                };
                (id, worker, memory)
            })
            .collect();
        let Ok(count @ 1..) = i128::try_from(used.len()) else {
            return Vec::new();
        };
        let mean = used.iter().map(|(_, _, memory)| memory).sum::<i128>() / count;
        let mut senders = BinaryHeap::new();
        let mut recipients = BinaryHeap::new();
        for (id, worker, memory) in used {
            let limit = worker.info.memory_limit.filter(|limit| *limit > 0);
            let part = |fraction: f64| limit.map(|limit| share(limit, fraction));
            let half_gap = part(rules.gap / 2.0).unwrap_or(0);
            let side = |most: i128| Side {
                most,
                least: most - half_gap,
                id,
            };
            if !worker.has.is_empty()
                && memory >= mean + half_gap
                && memory >= part(rules.sender_min).unwrap_or(0)
            {
                senders.push(side(memory - mean));
            } else if memory < mean - half_gap
                && part(rules.recipient_max).is_none_or(|most| memory < most)
            {
                recipients.push(side(mean - memory));
            }
        }
        self.pair(senders, recipients, keys)
    }

    /// Moves data from the worker with the most to the one with the least, until either of them are
    /// close to the average.
    fn pair(
        &self,
        mut senders: BinaryHeap<Side>,
        mut recipients: BinaryHeap<Side>,
        keys: Option<&HashSet<Key>>,
    ) -> Vec<Move> {
        let mut moves = Vec::new();
        // The last task of each worker that was considered.
        let mut last: std::collections::HashMap<WorkerId, TaskId> = Default::default();
        while !recipients.is_empty()
            && let Some(mut sender) = senders.pop()
        {
            let worker = &self.workers[&sender.id];
            let left = match last.get(&sender.id) {
                Some(last) => worker.has.range(last + 1..),
                None => worker.has.range(..),
            };
            for id in left {
                last.insert(sender.id, *id);
                let task = &self.tasks[*id];
                let nbytes = i128::from(task.nbytes);
                let is_movable = keys.is_none_or(|keys| keys.contains(&task.key));
                if !is_movable || task.is_actor || nbytes > sender.most {
                    continue;
                }
                let mut skipped = Vec::new();
                let mut found = None;
                while let Some(recipient) = recipients.pop() {
                    if nbytes > recipient.most {
                        // The others may take even less.
                        skipped.push(recipient);
                        break;
                    }
                    if !self.workers[&recipient.id].has.contains(id) {
                        found = Some(recipient);
                        break;
                    }
                    skipped.push(recipient);
                }
                recipients.extend(skipped);
                let Some(mut recipient) = found else {
                    continue;
                };
                moves.push(Move {
                    key: task.key.clone(),
                    from: worker.address.to_string(),
                    to: self.workers[&recipient.id].address.to_string(),
                });
                sender.most -= nbytes;
                sender.least -= nbytes;
                recipient.most -= nbytes;
                recipient.least -= nbytes;
                if recipient.least > 0 {
                    recipients.push(recipient);
                }
                if sender.least > 0 {
                    senders.push(sender);
                }
                break;
            }
        }
        moves
    }
}

/// A fraction of a memory limit.
fn share(limit: u64, fraction: f64) -> i128 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "limits of memory need not be exact"
    )]
    let share = (limit as f64 * fraction) as i128;
    share
}
