//! Submissions whose graphs Python has converted to tasks.

use std::io;

use bytes::Bytes;
use daskwire_messages::graph::Calls;
use daskwire_messages::protocol::{GraphTasks, UpdateGraph};
use daskwire_messages::{Key, Serialized};

use super::submission::{Annotations, Dependency, Refusal, RefusalReason, Submission, Submitted};

/// The tasks that Python has made of a graph so far.
#[derive(Debug)]
pub struct Conversion {
    tasks: Vec<Submitted>,
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
            annotations: Vec::new(),
            user_priority: message.user_priority,
            invalid: None,
        }
    }

    /// Adds tasks.
    ///
    /// # Errors
    ///
    /// If the lists differ in length, or a number is too high.
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
        let mut run_specs = batch.run_specs.into_iter();
        let mut dependencies = batch.dependencies.into_iter();
        let mut outside = batch.outside.into_iter();
        let mut orders = batch.orders.into_iter();
        let mut annotated = batch.annotated.into_iter();
        let mut calls = batch.calls.into_iter();
        for key in batch.keys {
            let mut next = || {
                Some(Parts {
                    run_spec: run_specs.next()?,
                    inside: dependencies.next()?,
                    outside: outside.next()?,
                    order: orders.next()?,
                    annotations: annotated.next()?,
                    calls: calls.next()?,
                })
            };
            let task = next().and_then(|parts| self.task(key, parts));
            let task = task.ok_or_else(|| io::Error::other("it sent tasks that are incomplete"))?;
            self.tasks.push(task);
        }
        Ok(())
    }

    fn task(&self, key: Key, parts: Parts) -> Option<Submitted> {
        let annotations = usize::try_from(parts.annotations).ok()?;
        let annotations = self.annotations.get(annotations)?;
        let inside = parts.inside.into_iter().map(|number| {
            let number = usize::try_from(number).ok()?;
            (number < self.tasks.len()).then_some(Dependency::Inside(number))
        });
        let outside = parts.outside.into_iter();
        let outside = outside.map(|key| Some(Dependency::Outside(key)));
        Some(Submitted {
            key,
            dependencies: inside.chain(outside).collect::<Option<_>>()?,
            run_spec: Serialized::pickled(&parts.run_spec),
            calls: Calls {
                native: parts.calls & 1 != 0,
                python: parts.calls & 2 != 0,
                replaceable: false,
            },
            order: parts.order,
            user_priority: annotations.priority,
            demands: annotations.demands.clone(),
            retries: annotations.retries,
        })
    }

    /// The submission of all tasks.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if an annotation is invalid.
    // ROLES SCHEDULER-12
    pub fn finish(self, message: UpdateGraph) -> Result<Submission, Refusal> {
        match self.invalid {
            None => Ok(Submission::of_tasks(self.tasks, message)),
            Some(reason) => Err(Refusal::new(message.keys.0, reason)),
        }
    }
}

/// The properties of a task besides its key.
struct Parts {
    run_spec: Bytes,
    inside: Vec<u64>,
    outside: Vec<Key>,
    order: i64,
    annotations: u64,
    calls: u64,
}
