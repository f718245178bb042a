//! Tasks of a graph that differ in numbers, strings and bytes only: what was found out about one of them holds for
//! the others.

use daskwire_pickle::tree::{self, Node, Pattern};

use super::copy::{Copier, Effects};
use super::depends::{Calls, Dependencies};
use super::payload::MAX_BASE_LEN;
use super::plan::Part;
use super::read::REPLACED_BY;
use super::spec::class_of;
use super::{GraphError, outline};
use crate::Key;
use crate::graph::spec::key_of;
use crate::value::Budget;

/// The families of a graph. By default, there are never any.
#[derive(Debug, Default)]
pub(super) struct Families<'t, 'p> {
    families: Vec<Family<'t, 'p>>,
    /// The families that were found last.
    recent: Vec<usize>,
    /// The last task of no family.
    last: Option<Node<'t, 'p>>,
    /// How often a task is compared in vain.
    attempts_left: usize,
}

/// Tasks that are alike, and what is known about them. It is found out about the task of the pattern.
#[derive(Debug)]
struct Family<'t, 'p> {
    pattern: Pattern<'t, 'p>,
    /// The strings in which the tasks differ.
    strings: Vec<Node<'t, 'p>>,
    dependencies: Option<Known<'t, 'p>>,
    /// The parts of calls that may be large.
    shareable: Option<Vec<Node<'t, 'p>>>,
    copy: Option<Template<'t, 'p>>,
}

/// What tasks depend on, and what they call.
#[derive(Debug)]
struct Known<'t, 'p> {
    /// The nodes with the keys.
    targets: Vec<Node<'t, 'p>>,
    calls: Calls,
    /// What it takes of the budget.
    steps: usize,
}

/// The copy of a task.
#[derive(Debug)]
struct Template<'t, 'p> {
    pickle: Vec<u8>,
    /// The numbers, strings and bytes in which others differ, in order, with their places in the pickle. None
    /// at all if others are not made of it.
    leaves: Vec<(core::ops::Range<usize>, Node<'t, 'p>)>,
    /// What it takes of the budget.
    cost: (usize, usize),
}

/// Maximum number of families that a task is compared with.
const MAX_RECENT: usize = 4;

/// The number of tasks that are compared in vain until no others are.
const MAX_ATTEMPTS: usize = 64;

/// The bytes of a pickle before its only frame.
const BEFORE_FRAME: usize = 11;

impl<'t, 'p: 't> Families<'t, 'p> {
    /// No families, of a pickle with these effects.
    pub(super) fn new(effects: &Effects<'t, 'p>) -> Self {
        Self {
            // A task may have effects that another one lacks.
            attempts_left: match effects.is_empty() {
                true => MAX_ATTEMPTS,
                false => 0,
            },
            ..Self::default()
        }
    }

    /// The family of the next task.
    ///
    /// # Errors
    ///
    /// If it takes more than the budget to compare it.
    pub(super) fn find(
        &mut self,
        node: Node<'t, 'p>,
        budget: &Budget,
    ) -> Result<Option<usize>, GraphError> {
        if self.attempts_left == 0 {
            return Ok(None);
        }
        for (place, family) in self.recent.iter().enumerate() {
            let family = &self.families[*family];
            if family.fits(node) {
                self.recent[..=place].rotate_right(1);
                self.attempts_left = MAX_ATTEMPTS.min(self.attempts_left + 1);
                return Ok(self.recent.first().copied());
            }
            budget.spend(family.pattern.part_count())?;
        }
        self.attempts_left -= 1;
        let Some(last) = self.last.replace(node) else {
            return Ok(None);
        };
        let (family, compared_count) = Family::of(last, node);
        budget.spend(compared_count)?;
        let Some(family) = family else {
            return Ok(None);
        };
        self.families.push(family);
        let family = self.families.len() - 1;
        self.recent.insert(0, family);
        self.recent.truncate(MAX_RECENT);
        Ok(Some(family))
    }

    /// The keys that a task of a family depends on, and what it calls, as [`Dependencies::of_part`].
    pub(super) fn dependencies(
        &mut self,
        family: usize,
        node: Node<'t, 'p>,
        dependencies: &mut Dependencies<'t, 'p>,
        budget: &Budget,
    ) -> Result<(Vec<Key>, Calls), GraphError> {
        let Family {
            pattern,
            dependencies: known,
            ..
        } = &mut self.families[family];
        let known = match known {
            Some(known) => known,
            None => {
                let (before, _) = budget.left();
                let (_, calls) = dependencies.of_part(&Part::Node(pattern.root()), budget)?;
                known.insert(Known {
                    targets: dependencies.targets.clone(),
                    calls,
                    steps: before - budget.left().0,
                })
            }
        };
        budget.spend(known.steps)?;
        let targets = known.targets.iter();
        let keys = targets.map(|target| key_of(pattern.counterpart(*target, node), budget));
        let mut keys = keys.collect::<Result<Vec<_>, _>>()?;
        keys.sort_unstable();
        keys.dedup();
        Ok((keys, known.calls))
    }

    /// The parts of the calls of a task of a family that may be large.
    pub(super) fn shareable(
        &mut self,
        family: usize,
        node: Node<'t, 'p>,
        budget: &Budget,
    ) -> Result<impl Iterator<Item = Node<'t, 'p>>, GraphError> {
        let Family {
            pattern, shareable, ..
        } = &mut self.families[family];
        let nodes = match shareable {
            Some(nodes) => nodes,
            None => {
                let mut nodes = Vec::new();
                Part::Node(pattern.root()).visit_called(budget, |node| {
                    // Those of other tasks may be longer.
                    let value = node.value();
                    let may_vary = matches!(value, tree::Value::Str(_) | tree::Value::Bytes(_));
                    if outline::is_shareable(node) || (may_vary && pattern.has(node)) {
                        nodes.push(node);
                    }
                })?;
                shareable.insert(nodes)
            }
        };
        budget.spend(nodes.len())?;
        let parts = nodes.iter();
        Ok(parts.map(move |part| pattern.counterpart(*part, node)))
    }

    /// Copies a task of a family to `out`. Returns whether it could.
    pub(super) fn copy(
        &mut self,
        family: usize,
        node: Node<'t, 'p>,
        (copier, effects): (&mut Copier<'t, 'p>, &Effects<'t, 'p>),
        budget: &Budget,
        out: &mut Vec<u8>,
    ) -> Result<bool, GraphError> {
        let Family { pattern, copy, .. } = &mut self.families[family];
        let template = match copy {
            Some(template) => template,
            None => {
                let root = pattern.root();
                // Of the last attempt, for which there is space.
                let (mut steps, mut bytes) = (0, 0);
                let pickle = copier.write(effects, budget, |copy, writer| {
                    (steps, bytes) = budget.left();
                    copy.write(root, writer)
                })?;
                let mut pickle = pickle.to_vec();
                let left = budget.left();
                let leaves = copier.leaves.iter().copied();
                let leaves = leaves.filter(|(_, leaf)| pattern.has(*leaf));
                let leaves = places(&pickle, leaves).filter(|_| !copier.has_recursive());
                if leaves.is_none() {
                    pickle = Vec::new();
                }
                copy.insert(Template {
                    leaves: leaves.unwrap_or_default(),
                    pickle,
                    cost: (steps - left.0, bytes - left.1),
                })
            }
        };
        if template.leaves.is_empty() {
            return Ok(false);
        }
        budget.spend(template.cost.0)?;
        budget.spend_copy(template.cost.1)?;
        out.clear();
        let mut end = 0;
        for (place, leaf) in &template.leaves {
            let Some(encoded) = pattern.counterpart(*leaf, node).encoded() else {
                return Ok(false);
            };
            let before = &template.pickle[end..place.start];
            // A number may be in many places.
            if out.len() + before.len() + encoded.len() > MAX_BASE_LEN {
                return Ok(false);
            }
            out.extend_from_slice(before);
            out.extend_from_slice(encoded);
            end = place.end;
        }
        out.extend_from_slice(&template.pickle[end..]);
        if out.len() > MAX_BASE_LEN {
            return Ok(false);
        }
        budget.spend_copy(out.len().saturating_sub(template.pickle.len()))?;
        let frame = (out.len() - BEFORE_FRAME) as u64;
        out[BEFORE_FRAME - 8..BEFORE_FRAME].copy_from_slice(&frame.to_le_bytes());
        Ok(true)
    }
}

/// The places of leaves in a pickle, of which the ends are known; `None` if the pickle is long, or has
/// other forms of them.
fn places<'t, 'p>(
    pickle: &[u8],
    leaves: impl Iterator<Item = (usize, Node<'t, 'p>)>,
) -> Option<Vec<(core::ops::Range<usize>, Node<'t, 'p>)>> {
    let has_frame = pickle.starts_with(b"\x80\x05\x95") && pickle.len() <= MAX_BASE_LEN;
    let mut last = has_frame.then_some(BEFORE_FRAME)?;
    leaves
        .map(|(end, leaf)| {
            let encoded = leaf.encoded()?;
            let start = end.checked_sub(encoded.len())?;
            let is_there = start >= last && pickle.get(start..end) == Some(encoded);
            last = end;
            is_there.then_some((start..end, leaf))
        })
        .collect()
}

impl<'t, 'p: 't> Family<'t, 'p> {
    /// The family of two tasks, and the number of their parts that were compared.
    fn of(one: Node<'t, 'p>, other: Node<'t, 'p>) -> (Option<Self>, usize) {
        let class = class_of(other);
        if !class.is_some_and(|(class, _)| matches!(class, "Task" | "DataNode")) {
            return (None, 1);
        }
        let (pattern, count) = Pattern::of(one, other);
        (pattern.and_then(Self::with), count)
    }

    /// The family of a pattern; `None` if what the tasks differ in may decide what they are.
    fn with(pattern: Pattern<'t, 'p>) -> Option<Self> {
        let mut strings = Vec::new();
        for part in pattern.own() {
            match part.value() {
                tree::Value::Str(_) => strings.push(part),
                // Names decide what a value is.
                tree::Value::Global(_) => return None,
                tree::Value::Dict(mut entries) => {
                    let is_varying = |key: Node<'_, '_>| matches!(key.value(), tree::Value::Str(_));
                    if entries.any(|(key, _)| pattern.has(key) && is_varying(key)) {
                        return None;
                    }
                }
                _ => {}
            }
        }
        (!strings.iter().copied().any(is_name)).then_some(Self {
            pattern,
            strings,
            dependencies: None,
            shareable: None,
            copy: None,
        })
    }

    fn fits(&self, node: Node<'t, 'p>) -> bool {
        let mut strings = self.strings.iter();
        self.pattern.fits(node)
            && !strings.any(|string| is_name(self.pattern.counterpart(*string, node)))
    }
}

/// Whether a string decides what a value is in which it is.
fn is_name(node: Node<'_, '_>) -> bool {
    match node.value() {
        tree::Value::Str(string) => {
            let string = string.to_bytes();
            string.starts_with(b"native:") || *string == *REPLACED_BY.as_bytes()
        }
        _ => false,
    }
}
