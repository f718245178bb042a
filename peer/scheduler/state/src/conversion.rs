//! Submissions whose graphs Python has converted to tasks.

use std::io;
use std::vec;

use daskwire_messages::graph::{Calls, Payload, split_tuple};
use daskwire_messages::protocol::{GraphPickles, GraphTasks, UpdateGraph};
use daskwire_messages::{Key, Serialized};

use super::order::order;
use super::parts::Uses;
use super::submission::{
    Annotations, Dependency, Refusal, RefusalReason, Submission, Submitted, in_order,
};
use super::{ClientId, SchedulerInput};

/// The tasks that Python has made of a graph so far, without their pickles.
#[derive(Debug)]
pub struct Conversion {
    message: UpdateGraph,
    /// The tasks. Their dependencies may come after them until all are here.
    tasks: Vec<Submitted>,
    /// Whether each is a value.
    is_data: Vec<bool>,
    annotations: Vec<Annotations>,
    /// The place of a pickle that has not come.
    missing: Payload,
    /// The reason why an annotation is invalid; further tasks are ignored.
    invalid: Option<RefusalReason>,
}

impl Conversion {
    /// Creates a conversion without tasks, of a client's message.
    pub fn new(message: UpdateGraph) -> Self {
        Self {
            message,
            tasks: Vec::new(),
            is_data: Vec::new(),
            annotations: Vec::new(),
            missing: Serialized::pickled(&[]).into(),
            invalid: None,
        }
    }

    /// Adds tasks.
    ///
    /// # Errors
    ///
    /// If the lists differ in length, or the number of an annotation is too high.
    pub fn add(&mut self, batch: GraphTasks) -> io::Result<()> {
        for annotations in batch.annotations {
            match Annotations::of_dict(annotations, self.message.user_priority) {
                Ok(annotations) => self.annotations.push(annotations),
                Err(reason) => self.invalid = self.invalid.take().or(Some(reason)),
            }
        }
        if self.invalid.is_some() {
            return Ok(());
        }
        let mut dependencies = batch.dependencies.into_iter();
        let mut outside = batch.outside.into_iter();
        let mut annotated = batch.annotated.into_iter();
        let mut calls = batch.calls.into_iter();
        for key in batch.keys {
            let mut next = || {
                Some(Fields {
                    inside: dependencies.next()?,
                    outside: outside.next()?,
                    annotations: annotated.next()?,
                    calls: calls.next()?,
                })
            };
            let added = next().and_then(|fields| self.add_task(key, fields));
            added.ok_or_else(incomplete)?;
        }
        Ok(())
    }

    fn add_task(&mut self, key: Key, fields: Fields) -> Option<()> {
        let annotations = usize::try_from(fields.annotations).ok()?;
        let annotations = self.annotations.get(annotations)?;
        let inside = fields.inside.into_iter().map(|number| {
            let number = usize::try_from(number).ok()?;
            (number != self.tasks.len()).then_some(Dependency::Inside(number))
        });
        let outside = fields.outside.into_iter();
        let outside = outside.map(|key| Some(Dependency::Outside(key)));
        self.is_data.push(fields.calls & 4 != 0);
        self.tasks.push(Submitted {
            key,
            dependencies: inside.chain(outside).collect::<Option<_>>()?,
            run_spec: self.missing.clone(),
            calls: Calls {
                native: fields.calls & 1 != 0,
                python: fields.calls & 2 != 0,
                replaceable: false,
            },
            order: 0,
            user_priority: annotations.priority,
            demands: annotations.demands.clone(),
            retries: annotations.retries,
        });
        Some(())
    }

    /// Checks that there are all tasks that others depend on.
    ///
    /// # Errors
    ///
    /// If one is missing.
    pub fn check(&self) -> io::Result<()> {
        let mut dependencies = self.tasks.iter().flat_map(|task| &task.dependencies);
        let is_complete = dependencies.all(|dependency| match dependency {
            Dependency::Inside(index) => *index < self.tasks.len(),
            Dependency::Outside(_) => true,
        });
        match is_complete || self.invalid.is_some() {
            true => Ok(()),
            false => Err(incomplete()),
        }
    }

    /// Sorts the tasks, in Dask's order unless the client gives another one, and leaves out those that
    /// the client's keys do not need. Returns the numbers of those that need a pickle, in this order.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if an annotation is invalid, or the tasks have a cycle.
    // ROLES SCHEDULER-12
    pub fn order(mut self) -> Result<(Vec<u64>, Converted), Refusal> {
        let given = self.message.internal_priority.0.take().unwrap_or_default();
        let tasks = match self.invalid {
            None => in_order(self.tasks, self.is_data, given, |graph, name| {
                order(graph, name)
            }),
            Some(reason) => Err(reason),
        };
        let (mut tasks, sequence) = match tasks {
            Ok(tasks) => tasks,
            Err(reason) => return Err(Refusal::new(self.message.keys.0, reason)),
        };
        let (uses, kept) = Uses::of(&mut tasks, &self.message.keys);
        let numbers = kept.into_iter().map(|index| sequence[index] as u64);
        let converted = Converted {
            submission: Some(Submission::of_tasks(Vec::new(), self.message)),
            left: tasks.into_iter(),
            ready: Vec::new(),
            uses,
            first_index: 0,
        };
        Ok((numbers.collect(), converted))
    }
}

/// The tasks that Python has made of a graph, and as many of their pickles as have come so far.
#[derive(Debug)]
pub struct Converted {
    /// The submission without its tasks, until its first part is taken.
    submission: Option<Submission>,
    /// The tasks without pickles.
    left: vec::IntoIter<Submitted>,
    /// Those with pickles, for the next part.
    ready: Vec<Submitted>,
    uses: Uses,
    /// The number of tasks in earlier parts of the submission that are not among these.
    first_index: usize,
}

impl Converted {
    /// Has all tasks follow the parts of an earlier conversion of the graph, which had so many tasks.
    pub fn continue_after(&mut self, task_count: usize) {
        self.submission = None;
        self.first_index = task_count;
    }

    /// Adds the pickles of the next tasks.
    ///
    /// # Errors
    ///
    /// If they are too many. A `GraphError` in the error says that the tasks cannot be split, but may be
    /// sent separately.
    pub fn add(&mut self, pickles: GraphPickles) -> io::Result<()> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut run_specs = match pickles.tasks.is_empty() {
            true => Vec::new(),
            false => split_tuple(&pickles.tasks).map_err(invalid)?,
        };
        let separate = pickles.run_specs.iter();
        run_specs.extend(separate.map(|it| Payload::from(Serialized::pickled(it))));
        if let Some(large) = pickles.large.0 {
            let (pickle, _) = large.pickle().map_err(io::Error::other)?;
            run_specs.push(Serialized::pickled(&pickle).into());
        }
        for run_spec in run_specs {
            let task = self.left.next().ok_or_else(incomplete)?;
            self.ready.push(Submitted { run_spec, ..task });
        }
        Ok(())
    }

    /// The number of tasks that the next part has.
    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Whether the next part is the last one.
    pub fn is_complete(&self) -> bool {
        self.left.len() == 0
    }

    /// The event with the next part of the submission of a client, which is the last one once there are all
    /// pickles.
    pub fn take(&mut self, client: ClientId) -> SchedulerInput {
        let mut part = self.uses.part(core::mem::take(&mut self.ready));
        if self.first_index > 0 {
            let inside = part
                .tasks
                .iter_mut()
                .flat_map(|task| &mut task.dependencies);
            for dependency in inside {
                if let Dependency::Inside(index) = dependency {
                    *index += self.first_index;
                }
            }
        }
        part.into_event(client, &mut self.submission)
    }
}

/// The error for an answer in which properties of a task are missing.
fn incomplete() -> io::Error {
    io::Error::other("it sent tasks that are incomplete")
}

/// The properties of a task besides its key.
struct Fields {
    inside: Vec<u64>,
    outside: Vec<Key>,
    annotations: u64,
    calls: u64,
}
