//! The numbers of tasks by the names that their keys share: Dask's groups and prefixes of tasks.
//!
//! They are counted with each transition, so that all tasks need not be looked at. A name is looked up
//! once for a task. Tasks beyond the maximum number of names count for the name [`OTHERS`].

use core::time::Duration;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use daskwire_messages::Key;

use super::State;
use super::model::StateName;
use super::table::Table;

/// The index of a group in the table.
pub(super) type KeyGroupId = u32;

/// The index of a prefix in the table.
type PrefixId = u32;

/// Maximum number of prefixes, and of groups. Keys of any names may have any number of them.
const MAX_COUNT: usize = 1 << 14;

/// The prefix and the group of tasks beyond the maximum number of names, and Dask's of keys without a
/// name.
const OTHERS: &str = "Other";

/// Their indexes.
const OTHERS_ID: u32 = 0;

/// Maximum number of groups that the tasks of one depend on and that are remembered.
const MAX_DEPENDENCIES: usize = 32;

/// Maximum length of a name in bytes. The rest of longer ones does not count.
const MAX_NAME_LEN: usize = 1 << 10;

/// Numbers of tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts([u64; StateName::ALL.len()]);

impl StateCounts {
    /// Each of Dask's names of states with the number of tasks.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = StateName::ALL.map(StateName::as_str);
        names.into_iter().zip(self.0)
    }

    /// The number of tasks in a state with one of Dask's names.
    pub fn of(&self, name: &str) -> u64 {
        let found = self.iter().find(|(known, _)| *known == name);
        found.map_or(0, |(_, count)| count)
    }

    /// The number of all tasks.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds the numbers of others.
    pub fn add(&mut self, others: &Self) {
        for (count, other) in self.0.iter_mut().zip(others.0) {
            *count += other;
        }
    }
}

/// The tasks whose keys have the same name.
#[derive(Debug)]
struct KeyGroup {
    name: Arc<str>,
    /// A number that no other group has or had.
    serial: u64,
    prefix: PrefixId,
    counts: StateCounts,
    /// Bytes of results in memory.
    nbytes: u128,
    /// The groups that tasks of this one depend on, with their serial numbers. Their indexes may be
    /// those of others by now.
    dependencies: Vec<(KeyGroupId, u64)>,
    /// The pickle of a task that payloads of others are compared with.
    payload_base: Option<Arc<[u8]>>,
}

/// The groups whose names begin alike.
#[derive(Debug)]
struct Prefix {
    name: Arc<str>,
    group_count: usize,
    /// The average run time of tasks; `None` until one has ended.
    duration: Option<Duration>,
    totals: PrefixTotals,
    /// Whether it is in the list of those that may have no groups.
    is_listed: bool,
}

/// What has happened to tasks whose keys have the same prefix. Prefixes without tasks are forgotten, if
/// there are too many of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixTotals {
    /// How often a task has come to each state.
    pub entered: StateCounts,
    /// The number of tasks that were forgotten.
    pub forgotten: u64,
    /// How long tasks that have ended were computed.
    pub compute: Duration,
    /// How long they received inputs.
    pub transfer: Duration,
    /// How often a worker has ended that ran a task.
    pub suspicious: u64,
}

impl PrefixTotals {
    /// Adds the totals of another prefix.
    pub fn add(&mut self, other: &Self) {
        self.entered.add(&other.entered);
        self.forgotten += other.forgotten;
        self.compute = self.compute.saturating_add(other.compute);
        self.transfer = self.transfer.saturating_add(other.transfer);
        self.suspicious += other.suspicious;
    }
}

/// All groups and prefixes.
#[derive(Debug)]
pub(super) struct KeyGroups {
    groups: Table<KeyGroup>,
    by_name: HashMap<Arc<str>, KeyGroupId>,
    /// The group of the last task that was added.
    recent: KeyGroupId,
    last_serial: u64,
    prefixes: Table<Prefix>,
    by_prefix: HashMap<Arc<str>, PrefixId>,
    /// Prefixes that may have no groups, and then give way to others, oldest first.
    unused: VecDeque<PrefixId>,
    totals: StateCounts,
    finished_count: u64,
    forgotten_count: u64,
}

impl KeyGroups {
    /// Returns no groups yet. Run times of prefixes are expected until a task has ended.
    pub(super) fn new(durations: &[(String, Duration)]) -> Self {
        let mut groups = Self {
            groups: Table::default(),
            by_name: HashMap::new(),
            recent: OTHERS_ID,
            last_serial: 0,
            prefixes: Table::default(),
            by_prefix: HashMap::new(),
            unused: VecDeque::new(),
            totals: StateCounts::default(),
            finished_count: 0,
            forgotten_count: 0,
        };
        // These two have the index of others, and stay.
        let prefix = groups.prefix(OTHERS);
        groups.insert_group(OTHERS, prefix);
        for (name, duration) in durations {
            let prefix = groups.prefix(name);
            groups.prefixes[prefix].duration = Some(*duration);
            groups.list_if_unused(prefix);
        }
        groups
    }

    /// Adds a released task. Returns its group.
    pub(super) fn add(&mut self, key: &Key) -> KeyGroupId {
        let name = key.group();
        let name = beginning(&name);
        // Most tasks have the group of the one before.
        let recent = self.groups.get(self.recent);
        let is_recent = recent.is_some_and(|group| *group.name == *name);
        let known = match is_recent {
            true => Some(&self.recent),
            false => self.by_name.get(name),
        };
        let id = match known {
            Some(id) => *id,
            None if self.by_name.len() >= MAX_COUNT => OTHERS_ID,
            None => {
                let prefix = self.prefix(beginning(&key.prefix()));
                self.insert_group(name, prefix)
            }
        };
        self.recent = id;
        self.groups[id].counts.0[StateName::Released as usize] += 1;
        self.totals.0[StateName::Released as usize] += 1;
        id
    }

    /// The pickle that payloads of tasks of a group are compared with.
    pub(super) fn payload_base(&mut self, id: KeyGroupId) -> &mut Option<Arc<[u8]>> {
        &mut self.groups[id].payload_base
    }

    /// Removes a task that was in a state.
    pub(super) fn remove(&mut self, id: KeyGroupId, state: StateName) {
        self.totals.0[state as usize] -= 1;
        self.forgotten_count += 1;
        self.totals_of(id).forgotten += 1;
        let group = &mut self.groups[id];
        group.counts.0[state as usize] -= 1;
        if group.counts.total() == 0
            && id != OTHERS_ID
            && let Some(group) = self.groups.remove(id)
        {
            self.by_name.remove(&group.name);
            self.prefixes[group.prefix].group_count -= 1;
            self.list_if_unused(group.prefix);
        }
    }

    /// Counts a transition of a task with a result of some bytes.
    pub(super) fn change(&mut self, id: KeyGroupId, from: StateName, to: StateName, nbytes: u64) {
        let group = &mut self.groups[id];
        for counts in [&mut group.counts, &mut self.totals] {
            counts.0[from as usize] -= 1;
            counts.0[to as usize] += 1;
        }
        match (from, to) {
            (StateName::Memory, _) => group.nbytes -= u128::from(nbytes),
            (_, StateName::Memory) => group.nbytes += u128::from(nbytes),
            _ => {}
        }
        if (from, to) == (StateName::Processing, StateName::Memory) {
            self.finished_count += 1;
        }
        self.totals_of(id).entered.0[to as usize] += 1;
    }

    /// The totals of a group's prefix.
    fn totals_of(&mut self, id: KeyGroupId) -> &mut PrefixTotals {
        let prefix = self.groups[id].prefix;
        &mut self.prefixes[prefix].totals
    }

    /// Records that a task of a group depends on one of another group.
    pub(super) fn depend(&mut self, id: KeyGroupId, on: KeyGroupId) {
        if id == on {
            return;
        }
        let (id, on) = (id, (on, self.groups[on].serial));
        let known = &self.groups[id].dependencies;
        if known.contains(&on) {
            return;
        }
        let is_gone = |(id, serial): &(KeyGroupId, u64)| {
            self.groups
                .get(*id)
                .is_none_or(|group| group.serial != *serial)
        };
        let gone = known.iter().position(is_gone);
        let known = &mut self.groups[id].dependencies;
        match gone {
            Some(place) => known[place] = on,
            None if known.len() < MAX_DEPENDENCIES => known.push(on),
            None => {}
        }
    }

    /// The group with a name.
    pub(super) fn id(&self, name: &str) -> Option<KeyGroupId> {
        self.by_name.get(name).copied()
    }

    /// The name of a group.
    pub(super) fn name(&self, id: KeyGroupId) -> &Arc<str> {
        &self.groups[id].name
    }

    /// The name of a group's prefix.
    pub(super) fn prefix_name(&self, id: KeyGroupId) -> &Arc<str> {
        &self.prefixes[self.groups[id].prefix].name
    }

    /// The run time that tasks of a group are expected to have; `None` until one with the same prefix
    /// has ended.
    pub(super) fn duration(&self, id: KeyGroupId) -> Option<Duration> {
        self.prefixes[self.groups[id].prefix].duration
    }

    /// Includes the run time of a task that has ended. As in Dask, it has half of the weight.
    pub(super) fn add_duration(&mut self, id: KeyGroupId, took: Duration) {
        let prefix = &mut self.prefixes[self.groups[id].prefix];
        let duration = prefix.duration.map_or(took, |average| (average + took) / 2);
        prefix.duration = Some(duration);
        prefix.totals.compute = prefix.totals.compute.saturating_add(took);
    }

    /// Includes the time in which a task that has ended received its inputs.
    pub(super) fn add_transfer(&mut self, id: KeyGroupId, took: Duration) {
        let total = &mut self.totals_of(id).transfer;
        *total = total.saturating_add(took);
    }

    /// Counts that a worker has ended that ran a task.
    pub(super) fn suspect(&mut self, id: KeyGroupId) {
        self.totals_of(id).suspicious += 1;
    }

    /// The prefix of a name.
    fn prefix(&mut self, name: &str) -> PrefixId {
        if let Some(id) = self.by_prefix.get(name) {
            return *id;
        }
        while self.by_prefix.len() >= MAX_COUNT {
            let Some(id) = self.unused.pop_front() else {
                return OTHERS_ID;
            };
            self.prefixes[id].is_listed = false;
            if self.prefixes[id].group_count == 0
                && let Some(prefix) = self.prefixes.remove(id)
            {
                self.by_prefix.remove(&prefix.name);
                self.prefixes[OTHERS_ID].totals.add(&prefix.totals);
            }
        }
        let name: Arc<str> = name.into();
        let id = self.prefixes.insert(Prefix {
            name: Arc::clone(&name),
            group_count: 0,
            duration: None,
            totals: PrefixTotals::default(),
            is_listed: false,
        });
        self.by_prefix.insert(name, id);
        id
    }

    /// Lists a prefix without groups. It stays with its run time until others need its place.
    fn list_if_unused(&mut self, id: PrefixId) {
        let prefix = &mut self.prefixes[id];
        if id != OTHERS_ID && prefix.group_count == 0 && !prefix.is_listed {
            prefix.is_listed = true;
            self.unused.push_back(id);
        }
    }

    fn insert_group(&mut self, name: &str, prefix: PrefixId) -> KeyGroupId {
        let name: Arc<str> = name.into();
        self.last_serial += 1;
        let id = self.groups.insert(KeyGroup {
            name: Arc::clone(&name),
            serial: self.last_serial,
            prefix,
            counts: StateCounts::default(),
            nbytes: 0,
            dependencies: Vec::new(),
            payload_base: None,
        });
        self.prefixes[prefix].group_count += 1;
        self.by_name.insert(name, id);
        id
    }
}

/// The beginning of a name, which counts.
fn beginning(name: &str) -> &str {
    cut(name, MAX_NAME_LEN)
}

/// The beginning of a text, of at most `max_len` bytes.
pub(super) fn cut(text: &str, max_len: usize) -> &str {
    let mut end = text.len().min(max_len);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The tasks whose keys have the same name, as an overview has it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupOverview {
    /// A number that no other group has.
    pub serial: u64,
    /// Its name, such as `x-3f` for `('x-3f', 0)`.
    pub name: Arc<str>,
    /// The prefix of the name, such as `x`.
    pub prefix: Arc<str>,
    /// The numbers of tasks.
    pub counts: StateCounts,
    /// Bytes of results in memory.
    pub nbytes: u128,
    /// The run time that is expected of tasks; `None` until one has ended.
    pub duration: Option<Duration>,
    /// The serial numbers of groups that tasks of this one depend on, at most 32.
    pub dependencies: Vec<u64>,
}

impl GroupOverview {
    /// Adds the group to its prefix.
    pub fn add_to(&self, prefixes: &mut Prefixes) {
        let prefix = prefixes.entry(Arc::clone(&self.prefix)).or_default();
        prefix.counts.add(&self.counts);
        prefix.nbytes += self.nbytes;
        prefix.duration = self.duration;
    }
}

/// The tasks whose keys have the same prefix.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct PrefixOverview {
    /// The numbers of tasks.
    pub counts: StateCounts,
    /// Bytes of results in memory.
    pub nbytes: u128,
    /// The run time that is expected of tasks; `None` until one has ended.
    pub duration: Option<Duration>,
}

/// The tasks by the prefix of their keys.
pub type Prefixes = BTreeMap<Arc<str>, PrefixOverview>;

impl PrefixOverview {
    /// The numbers of tasks in the states that Dask's replies about prefixes have.
    pub fn dask_states(&self) -> [(&'static str, u64); 5] {
        let names = ["memory", "erred", "released", "processing", "waiting"];
        names.map(|name| (name, self.counts.of(name)))
    }
}

impl State {
    /// The numbers of all tasks by state.
    pub const fn state_counts(&self) -> StateCounts {
        self.key_groups.totals
    }

    /// The number of tasks that have ended with a result since the start.
    pub const fn finished_count(&self) -> u64 {
        self.key_groups.finished_count
    }

    /// The number of tasks that were forgotten since the start.
    pub const fn forgotten_count(&self) -> u64 {
        self.key_groups.forgotten_count
    }

    /// The number of parts of all prefixes.
    pub const fn prefix_part_count(&self) -> usize {
        self.key_groups.prefixes.part_count()
    }

    /// A part of all prefixes with what has happened to their tasks, at most 1,024 of them, each with its
    /// place, which no other one has as long as it is known. There are at most 16,384; those of further
    /// ones, and of those that were forgotten, count for the prefix at place 0, which is `Other`.
    pub fn prefix_totals(&self, part: usize) -> Vec<(u32, Arc<str>, PrefixTotals)> {
        let prefixes = self.key_groups.prefixes.entries(part);
        let totals = prefixes.map(|(id, prefix)| (id, Arc::clone(&prefix.name), prefix.totals));
        totals.collect()
    }

    /// The number of parts of all groups of tasks.
    pub const fn group_part_count(&self) -> usize {
        self.key_groups.groups.part_count()
    }

    /// A part of all groups of tasks, at most 1,024 of them. There are at most 16,384 groups; the tasks
    /// of further ones count for the group `Other`.
    pub fn overview_groups(&self, part: usize) -> Vec<GroupOverview> {
        let groups = &self.key_groups.groups;
        let part = groups.part(part).filter(|group| group.counts.total() > 0);
        let overview = |group: &KeyGroup| {
            let prefix = &self.key_groups.prefixes[group.prefix];
            let dependencies = group.dependencies.iter();
            let dependencies = dependencies.map(|(_, serial)| *serial);
            GroupOverview {
                serial: group.serial,
                name: Arc::clone(&group.name),
                prefix: Arc::clone(&prefix.name),
                counts: group.counts,
                nbytes: group.nbytes,
                duration: prefix.duration,
                dependencies: dependencies.collect(),
            }
        };
        part.map(overview).collect()
    }

    /// Adds a part of all groups of tasks to the numbers by prefix. Returns whether more parts follow.
    pub fn add_prefixes(&self, part: usize, to: &mut Prefixes) -> bool {
        for group in self.overview_groups(part) {
            group.add_to(to);
        }
        part + 1 < self.group_part_count()
    }

    /// Checks the counts against all tasks.
    #[cfg(any(test, feature = "checks"))]
    pub(super) fn check_key_groups(&self) {
        let groups = &self.key_groups;
        let (mut counts, mut sizes) = (HashMap::new(), HashMap::new());
        let mut totals = StateCounts::default();
        for (id, task) in self.tasks.iter() {
            let state = task.last_recorded_stage;
            // Neither these nor tasks that the next slice forgets are released in their stories.
            let is_between = matches!(task.stage, super::model::TaskStage::Ready)
                || task.is_orphan && self.todo.unrunnable.contains(&id);
            if !is_between {
                assert_eq!(task.stage.state_name(), state, "{}", task.key);
            }
            let of_group: &mut StateCounts = counts.entry(task.key_group).or_default();
            of_group.0[state as usize] += 1;
            totals.0[state as usize] += 1;
            if state == StateName::Memory {
                *sizes.entry(task.key_group).or_default() += u128::from(task.nbytes);
            }
        }
        assert_eq!(totals, groups.totals);
        let mut group_counts = HashMap::new();
        for (id, group) in groups.groups.iter() {
            assert_eq!(groups.by_name.get(&group.name), Some(&id));
            assert_eq!(counts.remove(&id).unwrap_or_default(), group.counts);
            assert_eq!(sizes.remove(&id).unwrap_or(0), group.nbytes);
            assert!(id == OTHERS_ID || group.counts.total() > 0);
            *group_counts.entry(group.prefix).or_default() += 1;
        }
        assert!(counts.is_empty());
        for (id, prefix) in groups.prefixes.iter() {
            assert_eq!(groups.by_prefix.get(&prefix.name), Some(&id));
            assert_eq!(group_counts.remove(&id).unwrap_or(0), prefix.group_count);
            assert_eq!(groups.unused.contains(&id), prefix.is_listed);
            assert!(prefix.group_count > 0 || prefix.is_listed || id == OTHERS_ID);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_prefixes_keep_their_run_times() {
        let mut groups = KeyGroups::new(&[("known".to_owned(), Duration::from_secs(1))]);
        let known = groups.add(&Key::from("known-1"));
        assert_eq!(groups.duration(known), Some(Duration::from_secs(1)));
        groups.add_duration(known, Duration::from_secs(3));
        groups.remove(known, StateName::Released);
        let again = groups.add(&Key::from("known-2"));
        assert_eq!(groups.duration(again), Some(Duration::from_secs(2)));
        groups.remove(again, StateName::Released);
        // Names with nothing in common, all in use at once.
        let name = |number: usize| {
            let letter = |place: u32| char::from(b'g' + (number / 16_usize.pow(place) % 16) as u8);
            Key::from((0..5).map(letter).collect::<String>())
        };
        let ids: Vec<KeyGroupId> = (0..2 * MAX_COUNT)
            .map(|number| groups.add(&name(number)))
            .collect();
        assert_eq!(
            (groups.by_name.len(), groups.by_prefix.len()),
            (MAX_COUNT, MAX_COUNT)
        );
        let others = ids.iter().filter(|id| **id == OTHERS_ID).count();
        assert_eq!(others, MAX_COUNT + 1);
        assert_eq!(groups.totals.of("released"), 2 * MAX_COUNT as u64);
        let forgotten = |groups: &KeyGroups| -> u64 {
            let prefixes = groups.prefixes.iter();
            prefixes.map(|(_, prefix)| prefix.totals.forgotten).sum()
        };
        assert_eq!(forgotten(&groups), 2);
        for id in ids {
            groups.remove(id, StateName::Released);
        }
        assert_eq!((groups.by_name.len(), groups.totals.total()), (1, 0));
        // Names that were used before give way to new ones.
        let first = groups.add(&name(2 * MAX_COUNT));
        assert_ne!(first, OTHERS_ID);
        assert_eq!(
            (groups.by_prefix.len(), groups.unused.len()),
            (MAX_COUNT, MAX_COUNT - 2)
        );
        // What has happened to their tasks still counts.
        assert_eq!(forgotten(&groups), 2 * MAX_COUNT as u64 + 2);
        let long = groups.add(&Key::from("é".repeat(MAX_NAME_LEN)));
        assert_eq!(groups.groups[long].name.len(), MAX_NAME_LEN);
    }

    #[test]
    fn groups_remember_some_of_those_that_they_depend_on() {
        let mut groups = KeyGroups::new(&[]);
        let add = |groups: &mut KeyGroups, name: String| groups.add(&Key::list([Key::from(name)]));
        let user = add(&mut groups, "user".to_owned());
        let needed: Vec<KeyGroupId> = (0..=MAX_DEPENDENCIES)
            .map(|number| add(&mut groups, format!("needed-{number}")))
            .collect();
        for _ in 0..2 {
            needed.iter().for_each(|id| groups.depend(user, *id));
        }
        groups.depend(user, user);
        assert_eq!(groups.groups[user].dependencies.len(), MAX_DEPENDENCIES);
        let serial = groups.groups[needed[MAX_DEPENDENCIES]].serial;
        let knows = |groups: &KeyGroups, serial| {
            let mut known = groups.groups[user].dependencies.iter();
            known.any(|(_, known)| *known == serial)
        };
        assert!(!knows(&groups, serial));
        // The place of one that is gone is free, and its index is not taken for another one's.
        groups.remove(needed[3], StateName::Released);
        let other = add(&mut groups, "other".to_owned());
        assert_eq!(other, needed[3]);
        groups.depend(user, needed[MAX_DEPENDENCIES]);
        assert!(knows(&groups, serial));
        assert!(!knows(&groups, groups.groups[other].serial));
    }
}
