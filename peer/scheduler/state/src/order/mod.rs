//! The order of the tasks of a graph, which is that of Dask 2026.8.0 (`dask.order.order`).
//!
//! Workers run tasks with a lower number first. An order is good if results are used soon after
//! they were made, so that few of them are in memory at once.
//!
//! Where the order of Dask depends on the iteration of its sets, it is that of the indices here.
//! Dask's sets of roots are spans of numbers here, and its paths share what they have in common, so
//! that the work is about that of sorting the tasks. A graph whose sets are too large, for which Dask
//! needs time and memory that grow with the square of its size, is ordered depth first.

mod topology;
mod walk;

use topology::{Links, Topology};
use walk::Walk;

/// The index of a task.
type Node = u32;

/// A graph whose tasks are to be ordered.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// The tasks that each depends on: lower than the number of tasks, not the task itself, and
    /// each once.
    pub(super) dependencies: Vec<Vec<usize>>,
    /// Whether each is data, which does not run: a value in the graph, or a key outside of it.
    pub(super) is_data: Vec<bool>,
}

/// Returns the tasks of a graph in order, each after its dependencies. `name` returns the string of a
/// key as in Python, which decides between tasks that are equal otherwise.
///
/// Returns `None` if the graph has a cycle.
pub(super) fn order(graph: &Graph, name: impl Fn(usize) -> String) -> Option<Vec<usize>> {
    let depth_first = depth_first(&graph.dependencies)?;
    Some(as_dask(graph, name).unwrap_or(depth_first))
}

/// Returns the tasks in Dask's order, or `None` if that takes too much memory or time.
pub(super) fn as_dask(graph: &Graph, name: impl Fn(usize) -> String) -> Option<Vec<usize>> {
    let count = graph.dependencies.len();
    Node::try_from(count).ok()?;
    let mut use_counts = vec![0_usize; count];
    for dependency in graph.dependencies.iter().flatten() {
        *use_counts.get_mut(*dependency)? += 1;
    }
    // Data that several tasks use comes before the first of them, and has no part in the rest.
    let is_attached: Vec<bool> = (0..count)
        .map(|index| {
            let is_root = graph.dependencies[index].is_empty();
            is_root && graph.is_data.get(index) == Some(&true) && use_counts[index] > 1
        })
        .collect();
    let up = Links::new(&graph.dependencies, |index| !is_attached[index]);
    let down = up.reversed();
    let topology = Topology::new(&up, &down, &is_attached, name)?;
    let sequence = Walk::new(graph, &up, &down, &is_attached, topology).run();
    is_valid(graph, &sequence).then_some(sequence)
}

/// Whether a sequence has each task once, after its dependencies.
fn is_valid(graph: &Graph, sequence: &[usize]) -> bool {
    let mut places = vec![None; graph.dependencies.len()];
    for (place, index) in sequence.iter().enumerate() {
        places[*index] = Some(place);
    }
    sequence.len() == places.len()
        && graph
            .dependencies
            .iter()
            .zip(&places)
            .all(|(used, place)| place.is_some() && used.iter().all(|used| places[*used] < *place))
}

/// Returns the tasks depth first, so that the inputs of one result are used before the next one is
/// started, or `None` if they have a cycle.
pub(super) fn depth_first(dependencies: &[Vec<usize>]) -> Option<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Visit {
        Unseen,
        Open,
        Done,
    }
    let mut is_needed = vec![false; dependencies.len()];
    for index in dependencies.iter().flatten() {
        *is_needed.get_mut(*index)? = true;
    }
    let mut visits = vec![Visit::Unseen; dependencies.len()];
    let mut sequence = Vec::with_capacity(dependencies.len());
    // Each task with the number of its dependencies visited so far.
    let mut path: Vec<(usize, usize)> = Vec::new();
    for end in (0..dependencies.len()).filter(|index| !is_needed[*index]) {
        path.push((end, 0));
        visits[end] = Visit::Open;
        while let Some((index, visited)) = path.last_mut() {
            let next = dependencies[*index].get(*visited);
            *visited += 1;
            match next {
                Some(next) if visits[*next] == Visit::Unseen => {
                    visits[*next] = Visit::Open;
                    path.push((*next, 0));
                }
                Some(next) if visits[*next] == Visit::Open => return None,
                Some(_) => {}
                None => {
                    visits[*index] = Visit::Done;
                    sequence.push(*index);
                    path.pop();
                }
            }
        }
    }
    // The remaining tasks form cycles that no other task leads to.
    (sequence.len() == dependencies.len()).then_some(sequence)
}
