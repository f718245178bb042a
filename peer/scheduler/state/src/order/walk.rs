//! The walk through a graph that determines the order.
//!
//! It goes from one *target*, a leaf, to the next. A stack has the steps to the target: first the
//! tasks from the target back to a root, each the dependency with the highest rank of the one before,
//! then all that these need in addition.
//!
//! Tasks that have become runnable, but are not on the way, are followed forward as a *path*. A path
//! to a leaf is done at once. One to a task with other dependencies is *parked* there, until there
//! are as many as that task still needs.

use core::mem;
use std::collections::{BTreeSet, HashMap, VecDeque};

use super::topology::{Class, Links, Topology};
use super::{Graph, Node};

/// The index of the last piece of a path.
type PathId = usize;

/// A part of a path: its last task, and what comes before. Paths share pieces, so that a path with
/// many branches is stored once.
#[derive(Debug)]
struct Piece {
    node: Node,
    before: Before,
    /// The task before the last one.
    previous: Node,
    /// The number of tasks, where those that parts have in common are counted for each.
    len: u64,
}

#[derive(Debug)]
enum Before {
    Start,
    Path(PathId),
    /// Several paths to the last task of this one.
    Joined(Vec<PathId>),
}

/// A step to a target.
#[derive(Clone, Copy, Debug)]
enum Step {
    Task(Node),
    Path(PathId),
}

pub(super) struct Walk<'a> {
    graph: &'a Graph,
    up: &'a Links,
    down: &'a Links,
    is_attached: &'a [bool],
    topology: Topology,
    sequence: Vec<usize>,
    is_done: Vec<bool>,
    /// The number of dependencies of each task that are not done.
    missing: Vec<usize>,
    runnable: Vec<Node>,
    /// Whether each task is on a path of those that are runnable.
    is_followed: Vec<bool>,
    /// The tasks that are not done, but have a dependency that is.
    is_reached: Vec<bool>,
    reached_count: usize,
    pieces: Vec<Piece>,
    /// The last walk over each piece.
    walks: Vec<u32>,
    walk: u32,
    parked: HashMap<Node, Vec<PathId>>,
    /// The classes of leaves whose roots are not all done, by the number of these roots and by the
    /// lowest rank of their leaves.
    classes: BTreeSet<(u32, u32, u32)>,
    /// The same for the leaves that are reached.
    reached_classes: BTreeSet<(u32, u32, u32)>,
    /// The lowest rank of the leaves of each class that are reached.
    reached_ranks: Vec<Option<u32>>,
    steps: Vec<Step>,
    /// The number of tasks in the steps.
    step_count: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        up: &'a Links,
        down: &'a Links,
        is_attached: &'a [bool],
        topology: Topology,
    ) -> Self {
        let count = up.len();
        let entry = |(number, class): (u32, &Class)| (class.degree, class.first_rank, number);
        Self {
            graph,
            up,
            down,
            is_attached,
            sequence: Vec::with_capacity(count),
            is_done: vec![false; count],
            missing: (0..count).map(|node| up.of(node as Node).len()).collect(),
            runnable: Vec::new(),
            is_followed: vec![false; count],
            is_reached: vec![false; count],
            reached_count: 0,
            pieces: Vec::new(),
            walks: Vec::new(),
            walk: 0,
            parked: HashMap::new(),
            classes: (0..).zip(&topology.classes).map(entry).collect(),
            reached_classes: BTreeSet::new(),
            reached_ranks: vec![None; topology.classes.len()],
            steps: Vec::new(),
            step_count: 0,
            topology,
        }
    }

    /// Returns the sequence of all tasks.
    pub(super) fn run(mut self) -> Vec<usize> {
        // Each leaf is a target twice at most: by its roots, and by its rank.
        for _ in 0..self.topology.leaves.len() * 2 {
            let Some(target) = self.next_target() else {
                break;
            };
            if !self.is_done[target as usize] {
                self.plan(target);
                self.go();
            }
        }
        self.sequence
    }

    /// Returns the next target: if tasks are reached, that which needs the least further roots.
    fn next_target(&mut self) -> Option<Node> {
        let fewest = self.classes.first().filter(|_| self.reached_count != 0);
        let Some((degree, rank, _)) = fewest else {
            let highest_first = self.topology.is_highest_first;
            return match highest_first {
                true => self.topology.leaves.pop_back(),
                false => self.topology.leaves.pop_front(),
            };
        };
        let reached = self.reached_classes.range((*degree, 0, 0)..).next();
        let rank = match reached {
            Some((reached_degree, rank, _)) if reached_degree == degree => rank,
            _ => rank,
        };
        self.topology.by_rank.get(*rank as usize).copied()
    }

    fn highest(&self, nodes: &[Node]) -> Option<Node> {
        let nodes = nodes.iter().copied();
        nodes.max_by_key(|node| self.topology.ranks[*node as usize])
    }

    fn not_done(&self, nodes: &[Node]) -> Vec<Node> {
        let nodes = nodes.iter().copied();
        nodes.filter(|node| !self.is_done[*node as usize]).collect()
    }

    fn push(&mut self, step: Step) {
        self.steps.push(step);
        let len = match step {
            Step::Task(_) => 1,
            Step::Path(path) => self.pieces[path].len,
        };
        self.step_count = self.step_count.saturating_add(len);
    }

    fn pop(&mut self) -> Option<Step> {
        let step = self.steps.pop()?;
        let len = match step {
            Step::Task(_) => 1,
            Step::Path(path) => self.pieces[path].len,
        };
        self.step_count = match self.steps.is_empty() {
            true => 0,
            false => self.step_count.saturating_sub(len),
        };
        Some(step)
    }

    /// Pushes the way from a target back to a root.
    fn plan(&mut self, target: Node) {
        self.push(Step::Task(target));
        let mut next = self.highest(self.up.of(target));
        while let Some(node) = next {
            self.push(Step::Task(node));
            next = None;
            if !self.is_done[node as usize] {
                let others = self.not_done(self.up.of(node));
                next = self.highest(&others);
                for other in others {
                    self.push(Step::Task(other));
                }
            }
        }
    }

    /// Takes all steps.
    fn go(&mut self) {
        let mut is_detour = false;
        while let Some(step) = self.pop() {
            let node = match step {
                Step::Task(node) => node,
                Step::Path(path) => {
                    for node in self.tasks_of(path).into_iter().rev() {
                        self.push(Step::Task(node));
                    }
                    continue;
                }
            };
            if self.is_done[node as usize] {
                continue;
            }
            if self.missing[node as usize] == 0 {
                if is_detour && (self.runnable.len() as u64) < self.step_count {
                    self.follow_runnable();
                }
                self.finish(node);
                continue;
            }
            self.push(Step::Task(node));
            let mut needed = self.not_done(self.up.of(node));
            needed.sort_unstable_by_key(|node| self.topology.ranks[*node as usize]);
            let (known, unknown): (Vec<Node>, Vec<Node>) = needed
                .into_iter()
                .partition(|node| self.parked.contains_key(node));
            is_detour |= unknown.len() > 1;
            for node in unknown {
                self.push(Step::Task(node));
            }
            for node in known {
                for path in self.parked.remove(&node).unwrap_or_default() {
                    self.push(Step::Path(path));
                }
            }
        }
        self.follow_runnable();
    }

    /// Adds a task to the sequence, and those that only it leads to, if they are runnable.
    fn finish(&mut self, node: Node) {
        let mut next = vec![node];
        while let Some(node) = next.pop() {
            let index = node as usize;
            self.is_followed[index] = false;
            if mem::take(&mut self.is_reached[index]) {
                self.reached_count -= 1;
            }
            if mem::replace(&mut self.is_done[index], true) {
                continue;
            }
            for used in &self.graph.dependencies[index] {
                if self.is_attached[*used] && !mem::replace(&mut self.is_done[*used], true) {
                    self.sequence.push(*used);
                }
            }
            self.sequence.push(index);
            if self.up.of(node).is_empty() {
                self.finish_root(node);
            }
            let users = self.down.of(node);
            for user in users {
                self.reach(*user);
                let missing = &mut self.missing[*user as usize];
                *missing -= 1;
                if *missing == 0 {
                    match users.len() {
                        1 => next.push(*user),
                        _ => self.runnable.push(*user),
                    }
                }
            }
        }
    }

    /// Counts a root for the leaves that need it.
    fn finish_root(&mut self, root: Node) {
        let Some(spans) = self.topology.classes_of_roots.get(&root) else {
            return;
        };
        for number in spans.iter().cloned().flatten() {
            let class = &mut self.topology.classes[number as usize];
            let degree = class.degree;
            class.degree -= 1;
            let ranks = [Some(class.first_rank), self.reached_ranks[number as usize]];
            let sets = [&mut self.classes, &mut self.reached_classes];
            for (set, rank) in sets.into_iter().zip(ranks) {
                let Some(rank) = rank else { continue };
                set.remove(&(degree, rank, number));
                if degree > 1 {
                    set.insert((degree - 1, rank, number));
                }
            }
        }
    }

    /// Marks a task as reached.
    fn reach(&mut self, node: Node) {
        let index = node as usize;
        if self.is_done[index] || mem::replace(&mut self.is_reached[index], true) {
            return;
        }
        self.reached_count += 1;
        let Some(number) = self.topology.class_of[index] else {
            return;
        };
        let degree = self.topology.classes[number as usize].degree;
        let rank = self.topology.ranks[index];
        let first = &mut self.reached_ranks[number as usize];
        if first.is_none_or(|first| rank < first) {
            if let Some(first) = first.replace(rank) {
                self.reached_classes.remove(&(degree, first, number));
            }
            if degree != 0 {
                self.reached_classes.insert((degree, rank, number));
            }
        }
    }

    /// Follows the tasks that are runnable.
    fn follow_runnable(&mut self) {
        while !self.runnable.is_empty() {
            for node in mem::take(&mut self.runnable).into_iter().rev() {
                let index = node as usize;
                if self.is_followed[index] || self.is_done[index] {
                    continue;
                }
                if self.down.of(node).is_empty() {
                    self.finish(node);
                    continue;
                }
                let start = self.piece(node, Before::Start, node, 1);
                // Paths with the number of times that they have branched.
                let mut paths = VecDeque::from([(0, start)]);
                while let Some((branch_count, path)) = paths.pop_front() {
                    self.follow(branch_count, path, &mut paths);
                }
            }
        }
    }

    /// Follows a path until it ends or branches.
    fn follow(
        &mut self,
        branch_count: usize,
        mut path: PathId,
        paths: &mut VecDeque<(usize, PathId)>,
    ) {
        loop {
            let node = self.pieces[path].node;
            let index = node as usize;
            self.is_followed[index] = true;
            let is_start = matches!(self.pieces[path].before, Before::Start);
            let needs_others = self.up.of(node).len() != 1;
            match *self.down.of(node) {
                [] if self.missing[index] <= 1 => self.finish_path(path),
                [] => self.is_followed[index] = false,
                [user] if is_start || !needs_others => {
                    path = self.extended(path, user);
                    continue;
                }
                _ if is_start || !needs_others => {
                    let users = self.down.of(node).iter().copied();
                    let mut users: Vec<_> =
                        users.filter(|user| self.up.of(*user).len() == 1).collect();
                    users.sort_unstable_by_key(|user| self.topology.ranks[*user as usize]);
                    for user in users {
                        paths.push_back((branch_count + 1, self.extended(path, user)));
                    }
                }
                _ => match self.parked.get_mut(&node) {
                    Some(parked) => {
                        parked.push(path);
                        self.is_followed[index] = false;
                        if parked.len() >= self.missing[index] {
                            self.use_parked(node, branch_count, paths);
                        }
                    }
                    None if self.missing[index] <= 1 => self.finish_path(path),
                    None => {
                        self.parked.insert(node, vec![path]);
                        self.is_followed[index] = false;
                    }
                },
            }
            return;
        }
    }

    /// Takes the paths that are parked at a task, which may be all that it needs.
    fn use_parked(
        &mut self,
        node: Node,
        branch_count: usize,
        paths: &mut VecDeque<(usize, PathId)>,
    ) {
        let mut parked = self.parked.remove(&node).unwrap_or_default();
        parked.retain(|path| !self.is_done[self.pieces[*path].previous as usize]);
        if parked.len() < self.missing[node as usize] {
            self.parked.insert(node, parked);
        } else if branch_count > 1 {
            let Some(last) = parked.last() else { return };
            let previous = self.pieces[*last].previous;
            let len = parked.iter().map(|path| self.pieces[*path].len);
            let len = len.fold(0, u64::saturating_add);
            let joined = self.piece(node, Before::Joined(parked), previous, len);
            paths.push_back((branch_count - 1, joined));
        } else {
            for path in parked {
                for node in self.tasks_of(path) {
                    if self.missing[node as usize] == 0 {
                        self.finish(node);
                    }
                }
            }
        }
    }

    fn piece(&mut self, node: Node, before: Before, previous: Node, len: u64) -> PathId {
        self.pieces.push(Piece {
            node,
            before,
            previous,
            len,
        });
        self.walks.push(0);
        self.pieces.len() - 1
    }

    fn extended(&mut self, path: PathId, node: Node) -> PathId {
        let before = &self.pieces[path];
        let (previous, len) = (before.node, before.len.saturating_add(1));
        self.piece(node, Before::Path(path), previous, len)
    }

    fn finish_path(&mut self, path: PathId) {
        for node in self.tasks_of(path) {
            self.finish(node);
        }
    }

    /// Returns the tasks of a path that are not done, each once.
    fn tasks_of(&mut self, path: PathId) -> Vec<Node> {
        self.walk += 1;
        let last = self.pieces[path].node;
        let mut tasks = Vec::new();
        // Pieces, with whether what comes before them has been visited.
        let mut open = vec![(path, false)];
        while let Some((id, is_after)) = open.pop() {
            let piece = &self.pieces[id];
            if is_after {
                // Paths that are joined end in the same task.
                if piece.node != last || id == path {
                    tasks.push(piece.node);
                }
                continue;
            }
            let is_seen = mem::replace(&mut self.walks[id], self.walk) == self.walk;
            if is_seen || self.is_done[piece.node as usize] {
                continue;
            }
            open.push((id, true));
            match &piece.before {
                Before::Start => {}
                Before::Path(before) => open.push((*before, false)),
                Before::Joined(paths) => open.extend(paths.iter().rev().map(|id| (*id, false))),
            }
        }
        tasks
    }
}
