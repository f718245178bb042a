//! Submissions whose graphs Python has converted to tasks.

use std::io;

use daskwire_messages::graph::{Calls, Payload, split_tuple};
use daskwire_messages::protocol::{GraphTasks, UpdateGraph};
use daskwire_messages::{Key, Serialized};

use super::order::order;
use super::submission::{
    Annotations, Dependency, Refusal, RefusalReason, Submission, Submitted, in_order,
};

/// The tasks that Python has made of a graph so far.
#[derive(Debug)]
pub struct Conversion {
    /// The tasks. Their dependencies may come after them until all are here.
    tasks: Vec<Submitted>,
    /// Whether each is a value.
    is_data: Vec<bool>,
    annotations: Vec<Annotations>,
    user_priority: Option<f64>,
    /// The reason why an annotation is invalid; further tasks are ignored.
    invalid: Option<RefusalReason>,
}

impl Conversion {
    /// Creates a conversion without tasks, of a client's message.
    pub const fn new(message: &UpdateGraph) -> Self {
        Self {
            tasks: Vec::new(),
            is_data: Vec::new(),
            annotations: Vec::new(),
            user_priority: message.user_priority,
            invalid: None,
        }
    }

    /// Adds tasks.
    ///
    /// # Errors
    ///
    /// If the lists differ in length, or the number of an annotation is too high. A `GraphError` in the
    /// error says that the tasks cannot be split, but may be sent separately.
    pub fn add(&mut self, batch: GraphTasks) -> io::Result<()> {
        for annotations in batch.annotations {
            match Annotations::of_dict(annotations, self.user_priority) {
                Ok(annotations) => self.annotations.push(annotations),
                Err(reason) => self.invalid = self.invalid.take().or(Some(reason)),
            }
        }
        if self.invalid.is_some() {
            return Ok(());
        }
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut run_specs = match batch.tasks.is_empty() {
            true => Vec::new(),
            false => split_tuple(&batch.tasks).map_err(invalid)?,
        };
        let separate = batch.run_specs.iter();
        run_specs.extend(separate.map(|it| Payload::from(Serialized::pickled(it))));
        if let Some(large) = batch.large.0 {
            let (pickle, _) = large.pickle().map_err(io::Error::other)?;
            run_specs.push(Serialized::pickled(&pickle).into());
        }
        let mut run_specs = run_specs.into_iter();
        let mut dependencies = batch.dependencies.into_iter();
        let mut outside = batch.outside.into_iter();
        let mut annotated = batch.annotated.into_iter();
        let mut calls = batch.calls.into_iter();
        for key in batch.keys {
            let mut next = || {
                Some(Parts {
                    run_spec: run_specs.next()?,
                    inside: dependencies.next()?,
                    outside: outside.next()?,
                    annotations: annotated.next()?,
                    calls: calls.next()?,
                })
            };
            let added = next().and_then(|parts| self.add_task(key, parts));
            added.ok_or_else(incomplete)?;
        }
        Ok(())
    }

    fn add_task(&mut self, key: Key, parts: Parts) -> Option<()> {
        let annotations = usize::try_from(parts.annotations).ok()?;
        let annotations = self.annotations.get(annotations)?;
        let inside = parts.inside.into_iter().map(|number| {
            let number = usize::try_from(number).ok()?;
            (number != self.tasks.len()).then_some(Dependency::Inside(number))
        });
        let outside = parts.outside.into_iter();
        let outside = outside.map(|key| Some(Dependency::Outside(key)));
        self.is_data.push(parts.calls & 4 != 0);
        self.tasks.push(Submitted {
            key,
            dependencies: inside.chain(outside).collect::<Option<_>>()?,
            run_spec: parts.run_spec,
            calls: Calls {
                native: parts.calls & 1 != 0,
                python: parts.calls & 2 != 0,
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

    /// The submission of all tasks, in Dask's order unless the client gives another one.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if an annotation is invalid, or the tasks have a cycle.
    // ROLES SCHEDULER-12
    pub fn finish(self, mut message: UpdateGraph) -> Result<Submission, Refusal> {
        let given = message.internal_priority.0.take().unwrap_or_default();
        let tasks = match self.invalid {
            None => in_order(self.tasks, self.is_data, given, |graph, name| {
                order(graph, name)
            }),
            Some(reason) => Err(reason),
        };
        match tasks {
            Ok(tasks) => Ok(Submission::of_tasks(tasks, message)),
            Err(reason) => Err(Refusal::new(message.keys.0, reason)),
        }
    }
}

/// The error for an answer in which properties of a task are missing.
fn incomplete() -> io::Error {
    io::Error::other("it sent tasks that are incomplete")
}

/// The properties of a task besides its key.
struct Parts {
    run_spec: Payload,
    inside: Vec<u64>,
    outside: Vec<Key>,
    annotations: u64,
    calls: u64,
}
