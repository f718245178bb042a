//! Submissions that come in parts.

use std::collections::HashSet;

use daskwire_messages::Key;

use super::submission::{Dependency, SubmissionPart, Submitted};
use super::{ClientId, SchedulerInput, Submission};

/// When each task of a submission is no longer needed.
#[derive(Debug)]
pub(super) struct Uses {
    /// The last task that depends on each, by index; the maximum for what the client wants.
    last: Vec<usize>,
    /// The number of tasks in parts so far.
    count: usize,
}

impl Uses {
    /// Finds out what the keys need of tasks, each after its dependencies. The other tasks are removed.
    /// Returns the indices of those that are left, too.
    pub(super) fn of(tasks: &mut Vec<Submitted>, keys: &[Key]) -> (Self, Vec<usize>) {
        let wanted: HashSet<&Key> = keys.iter().collect();
        let mut last = vec![None; tasks.len()];
        for (index, task) in tasks.iter().enumerate().rev() {
            if wanted.contains(&task.key) {
                last[index] = Some(usize::MAX);
            }
            if last[index].is_none() {
                continue;
            }
            for dependency in &task.dependencies {
                if let Dependency::Inside(used) = dependency {
                    last[*used] = last[*used].max(Some(index));
                }
            }
        }
        let mut places = vec![usize::MAX; tasks.len()];
        let mut kept = Vec::with_capacity(tasks.len());
        for (index, _) in last.iter().enumerate().filter(|(_, last)| last.is_some()) {
            places[index] = kept.len();
            kept.push(index);
        }
        if kept.len() < tasks.len() {
            let mut is_kept = last.iter().map(Option::is_some);
            tasks.retain(|_| is_kept.next() == Some(true));
            for task in tasks {
                for dependency in &mut task.dependencies {
                    if let Dependency::Inside(index) = dependency {
                        *index = places[*index];
                    }
                }
            }
        }
        let last = last.into_iter().flatten();
        let last = last.map(|index| places.get(index).copied().unwrap_or(usize::MAX));
        let uses = Self {
            last: last.collect(),
            count: 0,
        };
        (uses, kept)
    }

    /// The part with the next tasks.
    pub(super) fn part(&mut self, tasks: Vec<Submitted>) -> SubmissionPart {
        let mut unneeded = Vec::new();
        for task in &tasks {
            for dependency in &task.dependencies {
                if let Dependency::Inside(used) = dependency
                    && self.last[*used] == self.count
                {
                    unneeded.push(*used);
                }
            }
            self.count += 1;
        }
        let has_more = self.count < self.last.len();
        if !has_more {
            // All are released at the end.
            unneeded.clear();
        }
        SubmissionPart {
            tasks,
            unneeded,
            has_more,
        }
    }
}

impl SubmissionPart {
    /// The event with this part. The first one has the rest of the submission.
    pub(super) fn into_event(
        self,
        client: ClientId,
        submission: &mut Option<Submission>,
    ) -> SchedulerInput {
        match submission.take() {
            Some(submission) => {
                let part = self;
                SchedulerInput::Submitted(client, Submission { part, ..submission })
            }
            None => SchedulerInput::SubmissionContinued(client, self),
        }
    }
}

/// The events with the parts of a submission, for tests. `len` returns the number of tasks of each.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub fn in_parts(
    client: ClientId,
    mut submission: Submission,
    mut len: impl FnMut() -> usize,
) -> Vec<SchedulerInput> {
    let mut tasks = core::mem::take(&mut submission.part.tasks);
    let (mut uses, _) = Uses::of(&mut tasks, &submission.keys);
    let mut submission = Some(submission);
    let mut events = Vec::new();
    loop {
        let rest = tasks.split_off(len().max(1).min(tasks.len()));
        let part = uses.part(core::mem::replace(&mut tasks, rest));
        let has_more = part.has_more;
        events.push(part.into_event(client, &mut submission));
        if !has_more {
            return events;
        }
    }
}
