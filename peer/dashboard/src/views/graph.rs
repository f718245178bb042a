//! Groups of tasks and single tasks, with what they depend on.

use core::cmp::Reverse;
use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;

use super::status::States;
use super::{Failed, Viewed, cut, key_text};

/// Maximum number of groups.
const MAX_GROUPS: usize = 500;

/// Maximum number of tasks.
const MAX_TASKS: usize = 5_000;

/// Maximum number of tasks that are looked through for those of a group.
const MAX_SEARCHED: u32 = 1_000_000;

#[derive(Serialize)]
pub(super) struct Groups<'v> {
    groups: Vec<Group<'v>>,
    total: usize,
}

#[derive(Serialize)]
struct Group<'v> {
    name: Cow<'v, str>,
    prefix: Cow<'v, str>,
    states: States,
    dependencies: Vec<usize>,
    nbytes: u128,
}

/// The groups of tasks, those with the most tasks first.
pub(super) fn groups<'v>(viewed: &'v Viewed<'_>) -> Groups<'v> {
    let mut groups: Vec<_> = viewed.groups().iter().collect();
    let total = groups.len();
    groups.sort_by_key(|group| Reverse(group.counts.total()));
    groups.truncate(MAX_GROUPS);
    let places = groups.iter().enumerate();
    let places: HashMap<u64, usize> = places.map(|(place, group)| (group.serial, place)).collect();
    let groups = groups.iter().map(|group| Group {
        name: cut(&group.name),
        prefix: cut(&group.prefix),
        states: group.counts.into(),
        dependencies: group
            .dependencies
            .iter()
            .filter_map(|serial| places.get(serial).copied())
            .collect(),
        nbytes: group.nbytes,
    });
    Groups {
        groups: groups.collect(),
        total,
    }
}

#[derive(Serialize)]
pub(super) struct Tasks {
    tasks: Vec<Task>,
    total: u64,
}

#[derive(Serialize)]
struct Task {
    key: String,
    state: &'static str,
    dependencies: Vec<usize>,
}

/// The tasks of a group, or all tasks.
pub(super) fn tasks(viewed: &Viewed<'_>, group: Option<&str>) -> Result<Tasks, Failed> {
    let total = match group {
        None => viewed.inspect(|state| state.task_count() as u64),
        Some(name) => {
            let mut groups = viewed.groups().iter();
            let group = groups.find(|group| *group.name == *name);
            group.map_or(0, |group| group.counts.total())
        }
    };
    let max = usize::try_from(total).map_or(MAX_TASKS, |total| total.min(MAX_TASKS));
    let mut nodes = Vec::new();
    let mut from = Some(0);
    while let Some(place) = from.filter(|place| *place < MAX_SEARCHED)
        && nodes.len() < max
    {
        let (part, next) = viewed.inspect(|state| state.graph_of_tasks(place, group));
        nodes.extend(part);
        nodes.truncate(MAX_TASKS);
        from = next;
        viewed.scheduler.give_way();
    }
    let places = nodes.iter().enumerate();
    let places: HashMap<u32, usize> = places.map(|(place, node)| (node.id, place)).collect();
    let tasks = nodes.iter().map(|node| Task {
        key: key_text(viewed, &node.key),
        state: node.state,
        dependencies: node
            .dependencies
            .iter()
            .filter_map(|id| places.get(id).copied())
            .collect(),
    });
    Ok(Tasks {
        tasks: tasks.collect(),
        total,
    })
}
