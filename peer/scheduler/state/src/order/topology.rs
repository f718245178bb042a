//! What the order of a task depends on besides its neighbours: its rank among all tasks, and the
//! roots and leaves that it is connected to.

use core::cmp::Reverse;
use core::iter;
use core::ops::Range;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::Node;

/// For each task, the tasks that it depends on, or that depend on it, in the order of their indices.
#[derive(Debug)]
pub(super) struct Links {
    /// The end of the items of each task.
    ends: Vec<usize>,
    items: Vec<Node>,
}

impl Links {
    /// Returns the links to those dependencies that are kept.
    pub(super) fn new(dependencies: &[Vec<usize>], is_kept: impl Fn(usize) -> bool) -> Self {
        let mut links = Self {
            ends: Vec::with_capacity(dependencies.len()),
            items: Vec::new(),
        };
        for dependencies in dependencies {
            let first = links.items.len();
            let kept = dependencies.iter().filter(|index| is_kept(**index));
            links.items.extend(kept.map(|index| *index as Node));
            links.items[first..].sort_unstable();
            links.ends.push(links.items.len());
        }
        links
    }

    /// Returns the links in the other direction.
    pub(super) fn reversed(&self) -> Self {
        let mut nexts = vec![0; self.ends.len() + 1];
        for item in &self.items {
            nexts[*item as usize + 1] += 1;
        }
        for index in 1..nexts.len() {
            nexts[index] += nexts[index - 1];
        }
        let mut items = vec![0; self.items.len()];
        for from in 0..self.ends.len() {
            for to in self.of(from as Node) {
                let next = &mut nexts[*to as usize];
                items[*next] = from as Node;
                *next += 1;
            }
        }
        // Each is now the end of its items.
        nexts.pop();
        Self { ends: nexts, items }
    }

    pub(super) fn of(&self, node: Node) -> &[Node] {
        let node = node as usize;
        let start = node.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items[start..self.ends[node]]
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn link_count(&self) -> usize {
        self.items.len()
    }
}

/// A number that may be too large for an integer: exact below 2^64, and rounded down above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Large {
    /// The power of two that the digits are multiplied by. The highest bit of the digits is set unless
    /// it is 0.
    exponent: u32,
    digits: u64,
}

impl Large {
    const ONE: Self = Self {
        exponent: 0,
        digits: 1,
    };

    fn sum(parts: impl Iterator<Item = Self> + Clone) -> Self {
        let mut exponent = parts.clone().map(|part| part.exponent).max().unwrap_or(0);
        // Less than 2^32 parts.
        let mut digits: u128 = parts
            .map(|part| {
                u128::from(
                    part.digits
                        .checked_shr(exponent - part.exponent)
                        .unwrap_or(0),
                )
            })
            .sum();
        while digits > u128::from(u64::MAX) {
            digits >>= 1;
            exponent += 1;
        }
        Self {
            exponent,
            digits: digits as u64,
        }
    }
}

/// A set of numbers, as spans that neither overlap nor touch.
type Spans = [Range<u32>];

/// Sets of numbers, each of which is stored once.
#[derive(Debug, Default)]
struct Sets {
    all: Vec<Rc<Spans>>,
    numbers: HashMap<Rc<Spans>, u32>,
    /// The number of spans that may still be read.
    budget: usize,
}

impl Sets {
    fn add(&mut self, spans: Vec<Range<u32>>) -> u32 {
        let spans: Rc<Spans> = spans.into();
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(Rc::clone(&spans)).or_insert(next);
        if number == next {
            self.all.push(spans);
        }
        number
    }

    /// Returns the union of sets, or `None` if the budget is spent.
    fn union(&mut self, numbers: &mut Vec<u32>) -> Option<u32> {
        numbers.sort_unstable();
        numbers.dedup();
        if let [number] = numbers[..] {
            return Some(number);
        }
        let parts = numbers.iter().map(|number| &self.all[*number as usize]);
        let mut spans: Vec<Range<u32>> = Vec::new();
        for part in parts {
            self.budget = self.budget.checked_sub(part.len())?;
            spans.extend_from_slice(part);
        }
        spans.sort_unstable_by_key(|span| span.start);
        spans.dedup_by(|next, span| {
            let is_joined = next.start <= span.end;
            if is_joined {
                span.end = span.end.max(next.end);
            }
            is_joined
        });
        Some(self.add(spans))
    }

    /// Computes the sets of all tasks: of one number for those that have a label, and otherwise the
    /// union of those that it is linked to, which come before it.
    fn spread(
        &mut self,
        labels: &[Option<u32>],
        links: &Links,
        sequence: impl Iterator<Item = Node>,
    ) -> Option<Vec<u32>> {
        let mut sets = vec![0; labels.len()];
        let mut linked = Vec::new();
        for node in sequence {
            sets[node as usize] = match labels[node as usize] {
                Some(label) => self.add(iter::once(label..label + 1).collect()),
                None => {
                    linked.clear();
                    linked.extend(links.of(node).iter().map(|to| sets[*to as usize]));
                    self.union(&mut linked)?
                }
            };
        }
        Some(sets)
    }
}

fn count(spans: &Spans) -> u64 {
    spans
        .iter()
        .map(|span| u64::from(span.end - span.start))
        .sum()
}

/// The leaves that need the same roots.
#[derive(Clone, Debug)]
pub(super) struct Class {
    /// The number of roots that are not done.
    pub(super) degree: u32,
    /// The lowest rank of its leaves.
    pub(super) first_rank: u32,
}

/// What the order of a task depends on besides its neighbours.
#[derive(Debug)]
pub(super) struct Topology {
    /// The place of each task in the sequence of all by the number of tasks that it needs, its number
    /// of dependencies and of roots, the use of the roots, and the name.
    pub(super) ranks: Vec<u32>,
    /// The tasks by their rank.
    pub(super) by_rank: Vec<Node>,
    pub(super) classes: Vec<Class>,
    /// The class of each leaf that is not a root.
    pub(super) class_of: Vec<Option<u32>>,
    /// The classes of each root, as spans of numbers.
    pub(super) classes_of_roots: HashMap<Node, Rc<Spans>>,
    /// The leaves by their rank.
    pub(super) leaves: VecDeque<Node>,
    /// Whether the target after the other ones is the leaf with the highest rank.
    pub(super) is_highest_first: bool,
}

impl Topology {
    /// Returns `None` if the graph has a cycle, or its sets are too large.
    pub(super) fn new(
        up: &Links,
        down: &Links,
        is_attached: &[bool],
        name: impl Fn(usize) -> String,
    ) -> Option<Self> {
        let task_count = up.len();
        let nodes = || (0..task_count as Node).filter(|node| !is_attached[*node as usize]);
        let sequence = sequence(up, down);
        if sequence.len() != task_count {
            return None;
        }
        let roots: Vec<Node> = nodes().filter(|node| up.of(*node).is_empty()).collect();
        let leaves: Vec<Node> = nodes().filter(|node| down.of(*node).is_empty()).collect();
        let mut sets = Sets {
            budget: (task_count + up.link_count()) * BUDGET + MIN_BUDGET,
            ..Sets::default()
        };

        // Neighbours in the graph have similar numbers, so that the sets have few spans.
        let labels = labels(&leaves, up, |node| {
            up.of(node).is_empty() && !is_attached[node as usize]
        });
        let roots_of = sets.spread(&labels, up, sequence.iter().copied())?;
        let root_counts: Vec<u64> = sets.all.iter().map(|spans| count(spans)).collect();
        let root_count = |node: Node| match up.of(node) {
            [] => 0,
            _ => root_counts[roots_of[node as usize] as usize],
        };

        let mut totals = vec![Large::ONE; task_count];
        let mut root_uses = vec![0; task_count];
        for node in &sequence {
            let used = up.of(*node).iter().map(|used| *used as usize);
            let parts = used.clone().map(|used| totals[used]);
            totals[*node as usize] = Large::sum(parts.chain([Large::ONE]));
            root_uses[*node as usize] = used
                .map(|used| root_uses[used])
                .max()
                .unwrap_or(down.of(*node).len());
        }
        let weight = |node: Node| {
            let root_use = Reverse(root_uses[node as usize]);
            let dependency_count = up.of(node).len();
            (
                totals[node as usize],
                dependency_count,
                root_count(node),
                root_use,
            )
        };
        let mut by_rank: Vec<Node> = (0..task_count as Node).collect();
        by_rank.sort_by_key(|node| weight(*node));
        for equal in by_rank.chunk_by_mut(|one, other| weight(*one) == weight(*other)) {
            if equal.len() > 1 {
                equal.sort_by_cached_key(|node| name(*node as usize));
            }
        }
        let mut ranks = vec![0; task_count];
        for (rank, node) in (0..).zip(&by_rank) {
            ranks[*node as usize] = rank;
        }

        // The leaves that need the same roots.
        let mut first_leaves: HashMap<u32, Class> = HashMap::new();
        for leaf in leaves.iter().filter(|leaf| !up.of(**leaf).is_empty()) {
            let rank = ranks[*leaf as usize];
            let class = first_leaves
                .entry(roots_of[*leaf as usize])
                .or_insert_with(|| Class {
                    degree: u32::try_from(root_count(*leaf)).unwrap_or(u32::MAX),
                    first_rank: rank,
                });
            class.first_rank = class.first_rank.min(rank);
        }
        let is_leaf = |node: Node| down.of(node).is_empty() && !up.of(node).is_empty();
        let leaf_labels = self::labels(&roots, down, is_leaf);
        let mut labelled: Vec<Node> = leaves
            .iter()
            .copied()
            .filter(|node| is_leaf(*node))
            .collect();
        labelled.sort_unstable_by_key(|leaf| leaf_labels[*leaf as usize]);
        let mut classes: Vec<Class> = Vec::new();
        let mut sizes: Vec<u64> = Vec::new();
        let mut class_of = vec![None; task_count];
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        for leaf in labelled {
            let set = roots_of[leaf as usize];
            let next = classes.len() as u32;
            let number = *numbers.entry(set).or_insert(next);
            if number == next {
                classes.push(first_leaves.get(&set)?.clone());
                sizes.push(0);
            }
            sizes[number as usize] += 1;
            class_of[leaf as usize] = Some(number);
        }
        // Leaves without dependencies have a set that is not used.
        let none = classes.len() as u32;
        let labels: Vec<Option<u32>> = (0..task_count as Node)
            .map(|node| match down.of(node) {
                [] => Some(class_of[node as usize].unwrap_or(none)),
                _ => None,
            })
            .collect();
        let budget = sets.budget;
        let mut sets = Sets {
            budget,
            ..Sets::default()
        };
        let classes_of = sets.spread(&labels, down, sequence.iter().rev().copied())?;
        // The number of leaves in the classes before each.
        let mut before = vec![0];
        for size in sizes {
            before.push(before.last().copied().unwrap_or(0) + size);
        }
        let mut step_count = sets.budget;
        let mut classes_of_roots = HashMap::new();
        let mut leaf_counts = Vec::new();
        for root in &roots {
            if down.of(*root).is_empty() {
                leaf_counts.push(0);
                continue;
            }
            let spans = &sets.all[classes_of[*root as usize] as usize];
            step_count = step_count.checked_sub(usize::try_from(count(spans)).ok()?)?;
            classes_of_roots.insert(*root, Rc::clone(spans));
            let leaves = spans.iter();
            let leaves = leaves.map(|span| before[span.end as usize] - before[span.start as usize]);
            leaf_counts.push(leaves.sum::<u64>());
        }

        // The quickest target comes first if roots lead to results in similar numbers, but are not
        // alike.
        let is_balanced = roots.len().abs_diff(leaves.len()) * 5 < roots.len() * 4;
        let mut leaf_counts = leaf_counts.iter().skip_while(|count| **count == 0);
        let first = leaf_counts.next();
        let is_symmetric = leaf_counts.all(|count| Some(count) == first);
        let mut leaves = leaves;
        leaves.sort_unstable_by_key(|leaf| ranks[*leaf as usize]);
        Some(Self {
            ranks,
            by_rank,
            classes,
            class_of,
            classes_of_roots,
            leaves: leaves.into(),
            is_highest_first: !is_balanced || is_symmetric,
        })
    }
}

/// Returns the tasks, each after its dependencies. Those of cycles are missing.
fn sequence(up: &Links, down: &Links) -> Vec<Node> {
    let mut missing: Vec<usize> = (0..up.len() as Node)
        .map(|node| up.of(node).len())
        .collect();
    let nodes = 0..up.len() as Node;
    let mut sequence: Vec<Node> = nodes.filter(|node| up.of(*node).is_empty()).collect();
    let mut next = 0;
    while let Some(node) = sequence.get(next).copied() {
        next += 1;
        for user in down.of(node) {
            let missing = &mut missing[*user as usize];
            *missing -= 1;
            if *missing == 0 {
                sequence.push(*user);
            }
        }
    }
    sequence
}

/// Numbers the tasks that are wanted, as they are found depth first from some starts.
fn labels(starts: &[Node], links: &Links, is_wanted: impl Fn(Node) -> bool) -> Vec<Option<u32>> {
    let mut labels = vec![None; links.len()];
    let mut is_seen = vec![false; links.len()];
    let mut next = 0;
    let mut open: Vec<Node> = starts.iter().rev().copied().collect();
    while let Some(node) = open.pop() {
        if is_seen[node as usize] {
            continue;
        }
        is_seen[node as usize] = true;
        if is_wanted(node) {
            labels[node as usize] = Some(next);
            next += 1;
        }
        open.extend(links.of(node).iter().rev());
    }
    labels
}

/// The number of spans that are read for each task and each dependency, and for a small graph.
const BUDGET: usize = 32;
const MIN_BUDGET: usize = 1 << 20;
