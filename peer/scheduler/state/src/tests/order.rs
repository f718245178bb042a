//! The order of tasks, beside that of Dask.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use daskwire_messages::protocol::{GraphPickles, GraphTasks, UpdateGraph};
use daskwire_messages::{Key, Value};
use daskwire_testing::Environment;

use crate::order::{Graph, as_dask, depth_first, order};
use crate::submission::Dependency;
use crate::{ClientId, Conversion, SchedulerInput};

/// A line of `testing/python/order.py`.
struct Example {
    graph: Graph,
    /// Whether each task is a key outside of the graph.
    is_outside: Vec<bool>,
    order: Vec<usize>,
    /// The highest and the summed number of results in memory.
    pressure: (usize, usize),
}

impl Example {
    fn parse(line: &str) -> Self {
        let mut columns = line.split('\t').skip(1);
        let mut column = || columns.next().expect("all columns");
        let numbers = |text: &str| -> Vec<usize> {
            let numbers = text.split_whitespace();
            numbers
                .map(|number| number.parse().expect("a number"))
                .collect()
        };
        let tasks: Vec<&str> = column().split(';').collect();
        let is_outside = tasks.iter().map(|task| *task == "-").collect();
        let is_data = |task: &&str| matches!(*task, "-" | "=");
        Self {
            graph: Graph {
                is_data: tasks.iter().map(is_data).collect(),
                dependencies: tasks
                    .iter()
                    .map(|task| numbers(task.trim_start_matches(['-', '='])))
                    .collect(),
            },
            is_outside,
            order: numbers(column()),
            pressure: (numbers(column())[0], numbers(column())[0]),
        }
    }
}

fn name(index: usize) -> String {
    format!("{index:06}")
}

/// Runs tasks one at a time, and returns the highest and the summed number of results in memory.
fn pressure(dependencies: &[Vec<usize>], order: &[usize]) -> (usize, usize) {
    let mut users = vec![0; dependencies.len()];
    for index in dependencies.iter().flatten() {
        users[*index] += 1;
    }
    let (mut held, mut highest, mut sum) = (0, 0, 0);
    for index in order {
        highest = highest.max(held);
        sum += held;
        held += usize::from(users[*index] != 0);
        for used in &dependencies[*index] {
            users[*used] -= 1;
            held -= usize::from(users[*used] == 0);
        }
    }
    (highest, sum)
}

/// Asserts that all graphs have Dask's order, and returns the pressure of all: in our order, in that
/// of Dask with sets in a random order, and depth first.
fn compare(lines: &str) -> [(usize, usize); 3] {
    let mut sums = [(0, 0); 3];
    let add = |sum: &mut (usize, usize), (highest, held): (usize, usize)| {
        sum.0 += highest;
        sum.1 += held;
    };
    for line in lines.lines() {
        let example = Example::parse(line);
        let sequence = as_dask(&example.graph, name);
        let ours = sequence.unwrap_or_else(|| panic!("no order: {line}"));
        let inside = ours
            .iter()
            .copied()
            .filter(|index| !example.is_outside[*index]);
        assert_eq!(inside.collect::<Vec<_>>(), example.order, "{line}");
        let dependencies = &example.graph.dependencies;
        add(&mut sums[0], pressure(dependencies, &ours));
        add(&mut sums[1], example.pressure);
        let depth_first = depth_first(dependencies).expect("no cycle");
        add(&mut sums[2], pressure(dependencies, &depth_first));
    }
    sums
}

#[test]
fn recorded_graphs_have_the_order_of_dask() {
    let [ours, _, depth_first] = compare(include_str!("order.txt"));
    assert!(
        ours.0 < depth_first.0 && ours.1 < depth_first.1,
        "{ours:?} {depth_first:?}"
    );
    println!("{ours:?} {depth_first:?}");
}

#[test]
fn random_graphs_have_the_order_of_dask() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testing/python/order.py");
    let output = Command::new(daskwire_testing::python(Environment::Current))
        .arg(script)
        .args(["random", "3000", "2"])
        .output()
        .expect("a Python with Dask");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let lines = String::from_utf8(output.stdout).expect("text");
    assert_eq!(lines.lines().count(), 3000);
    let [ours, theirs, depth_first] = compare(&lines);
    println!("{ours:?} {theirs:?} {depth_first:?}");
    // Dask's own varies with the iteration of its sets.
    assert!(ours.0 * 100 <= theirs.0 * 105, "{ours:?} {theirs:?}");
    assert!(ours.1 * 100 <= theirs.1 * 105, "{ours:?} {theirs:?}");
}

/// Returns a graph of tasks that depend on those that `used` returns.
fn made(count: usize, used: impl Fn(usize) -> Vec<usize>) -> Graph {
    Graph {
        dependencies: (0..count).map(used).collect(),
        is_data: vec![false; count],
    }
}

#[test]
fn cycles_are_found() {
    let graph = |dependencies: &[&[usize]]| Graph {
        dependencies: dependencies.iter().map(|used| used.to_vec()).collect(),
        is_data: vec![false; dependencies.len()],
    };
    assert_eq!(order(&graph(&[]), name), Some(vec![]));
    assert_eq!(order(&graph(&[&[1], &[]]), name), Some(vec![1, 0]));
    assert_eq!(order(&graph(&[&[1], &[0]]), name), None);
    assert_eq!(order(&graph(&[&[], &[0, 2], &[1], &[2]]), name), None);
}

#[test]
fn large_graphs_are_ordered_in_little_time() {
    const COUNT: usize = 60_000;
    let is_complete = |graph: &Graph| {
        let sequence = order(graph, name).expect("no cycle");
        assert_eq!(sequence.len(), graph.dependencies.len());
    };
    // A chain, independent tasks, and a task that needs half of all, and that the others need.
    is_complete(&made(COUNT, |index| {
        index.checked_sub(1).into_iter().collect()
    }));
    is_complete(&made(COUNT, |_| Vec::new()));
    is_complete(&made(COUNT, |index| match index {
        0 => (1..COUNT / 2).collect(),
        1.. if index < COUNT / 2 => Vec::new(),
        _ => vec![0],
    }));
    // A chain that branches at its end into chains that meet.
    is_complete(&made(COUNT, |index| match index {
        0 => Vec::new(),
        index if index < COUNT / 2 => vec![index - 1],
        index if index < COUNT - 1 => vec![COUNT / 2 - 1],
        _ => (COUNT / 2..COUNT - 1).collect(),
    }));
    // The sets of roots would have as many spans as the square of the number of tasks.
    is_complete(&made(COUNT, |index| match index % 2 {
        0 => Vec::new(),
        _ => [
            Some(index - 1),
            index.checked_sub(2),
            Some(index * 7919 % index / 2 * 2),
        ]
        .into_iter()
        .flatten()
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect(),
    }));
}

/// Tasks as Python sends them, with the numbers of their dependencies.
fn batch(tasks: &[(&str, &[u64])]) -> GraphTasks {
    GraphTasks {
        keys: tasks.iter().map(|(key, _)| Key::from(*key)).collect(),
        dependencies: tasks.iter().map(|(_, used)| used.to_vec()).collect(),
        outside: tasks.iter().map(|_| Vec::new()).collect(),
        annotated: vec![0; tasks.len()],
        calls: vec![2; tasks.len()],
        annotations: vec![Value::Dict([].into())],
        ..GraphTasks::default()
    }
}

fn pickles(count: usize) -> GraphPickles {
    GraphPickles {
        run_specs: vec![Bytes::from_static(b"N."); count],
        ..GraphPickles::default()
    }
}

/// The keys of the tasks of a part with their priorities, the indices of those that are not needed any
/// more, and whether other parts follow.
fn part(event: SchedulerInput) -> (Vec<(String, i64)>, Vec<usize>, bool) {
    let part = match event {
        SchedulerInput::Submitted(_, submission) => submission.part,
        SchedulerInput::SubmissionContinued(_, part) => part,
        other => panic!("{other:?}"),
    };
    let tasks = part.tasks.iter();
    let tasks = tasks.map(|task| (task.key.to_string(), task.order));
    (tasks.collect(), part.unneeded, part.has_more)
}

/// A conversion of tasks of which the client wants `sum`.
fn conversion(tasks: &[(&str, &[u64])]) -> Conversion {
    let mut conversion = Conversion::new(UpdateGraph {
        keys: ["sum"].into_iter().collect(),
        ..UpdateGraph::default()
    });
    conversion.add(batch(tasks)).expect("all properties");
    conversion.check().expect("all tasks");
    conversion
}

#[test]
fn converted_tasks_are_sorted() {
    let tasks: &[(&str, &[u64])] = &[("unused", &[2]), ("sum", &[3, 2]), ("b", &[3]), ("a", &[])];
    let (order, mut converted) = conversion(tasks).order().expect("no cycle");
    // Without `unused`, which no key needs.
    assert_eq!(order, [3, 2, 1]);
    let named = |tasks: &[(&str, i64)]| -> Vec<(String, i64)> {
        let tasks = tasks.iter();
        tasks
            .map(|(key, order)| ((*key).to_owned(), *order))
            .collect()
    };
    converted.add(pickles(3)).expect("as many as tasks");
    assert!(converted.is_complete());
    let (tasks, unneeded, has_more) = part(converted.take(ClientId(1)));
    assert_eq!(tasks, named(&[("a", 0), ("b", 1), ("sum", 2)]));
    assert!(unneeded.is_empty() && !has_more);
}

#[test]
fn converted_tasks_come_in_parts() {
    let tasks: &[(&str, &[u64])] = &[("sum", &[1, 2]), ("c", &[2]), ("b", &[3]), ("a", &[])];
    let names = |event| {
        let (tasks, unneeded, has_more) = part(event);
        let names: Vec<String> = tasks.into_iter().map(|(key, _)| key).collect();
        (names.join(" "), unneeded, has_more)
    };
    let (order, mut converted) = conversion(tasks).order().expect("no cycle");
    assert_eq!(order, [3, 2, 1, 0]);
    converted.add(pickles(2)).expect("at most as many as tasks");
    assert_eq!(
        (converted.ready_count(), converted.is_complete()),
        (2, false)
    );
    // `a` is needed by `b` alone.
    let first = converted.take(ClientId(1));
    assert!(matches!(first, SchedulerInput::Submitted(ClientId(1), _)));
    assert_eq!(names(first), ("a b".to_owned(), vec![0], true));
    converted.add(pickles(1)).expect("at most as many as tasks");
    let second = converted.take(ClientId(1));
    assert_eq!(names(second), ("c".to_owned(), vec![], true));
    converted.add(pickles(1)).expect("at most as many as tasks");
    assert_eq!(
        names(converted.take(ClientId(1))),
        ("sum".to_owned(), vec![], false)
    );
    assert!(
        converted.add(pickles(1)).is_err(),
        "there are no more tasks"
    );
}

#[test]
fn a_graph_that_is_converted_again_follows_its_first_parts() {
    let tasks: &[(&str, &[u64])] = &[("sum", &[1]), ("a", &[])];
    let (_, mut converted) = conversion(tasks).order().expect("no cycle");
    converted.continue_after(7);
    converted.add(pickles(2)).expect("as many as tasks");
    let SchedulerInput::SubmissionContinued(_, part) = converted.take(ClientId(1)) else {
        panic!("there was a first part");
    };
    let sum = part.tasks.last().expect("two tasks");
    assert!(matches!(sum.dependencies[..], [Dependency::Inside(7)]));
}

#[test]
fn converted_tasks_may_be_wrong() {
    let mut conversion = Conversion::new(UpdateGraph::default());
    conversion
        .add(batch(&[("a", &[1])]))
        .expect("all properties");
    assert!(conversion.check().is_err());
    conversion
        .add(batch(&[("b", &[0])]))
        .expect("all properties");
    conversion.check().expect("all tasks");
    assert!(conversion.order().is_err());
}
