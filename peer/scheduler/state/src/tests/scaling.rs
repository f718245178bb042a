//! The number of steps for a task with more workers, tasks, demands and clients.

use super::growth::{Eager, constant, count, name, names, on};
use super::*;

/// The size of a cluster and its work.
#[derive(Clone, Copy, Debug)]
struct Size {
    workers: usize,
    tasks: usize,
    demands: usize,
    clients: usize,
}

const SMALL: Size = Size {
    workers: 64,
    tasks: 512,
    demands: 32,
    clients: 4,
};

/// Counts the steps of something for a size.
type Steps = fn(Size) -> u64;

/// Makes a graph of a size.
type Shape = fn(Size) -> Vec<Node>;

fn chains(size: Size) -> Vec<Node> {
    let next = |number: usize| match number % 8 {
        0 => constant(name(number)),
        _ => Node::new(name(number).as_str(), "operator.neg", [on(number - 1)]),
    };
    (0..size.tasks).map(next).collect()
}

/// Sums of 16 tasks each.
fn merges(size: Size) -> Vec<Node> {
    let task = |number: usize| match number % 17 {
        16 => {
            let inputs: Vec<Argument> = (number - 16..number).map(on).collect();
            Node::new(name(number).as_str(), "builtins.sum", inputs)
        }
        _ => constant(name(number)),
    };
    (0..size.tasks).map(task).collect()
}

/// Sums of two, in layers.
fn tree(size: Size) -> Vec<Node> {
    let leaves = size.tasks.div_ceil(2);
    let task = |number: usize| match number.checked_sub(leaves) {
        None => constant(name(number)),
        Some(pair) => {
            let inputs = [on(2 * pair), on(2 * pair + 1)];
            Node::new(name(number).as_str(), "operator.add", inputs)
        }
    };
    (0..2 * leaves - 1).map(task).collect()
}

/// Groups of 16 tasks, and 16 tasks that need all of these.
fn all_to_all(size: Size) -> Vec<Node> {
    let task = |number: usize| match number % 32 {
        0..16 => constant(name(number)),
        place => {
            let first = number - place;
            let inputs: Vec<Argument> = (first..first + 16).map(on).collect();
            Node::new(name(number).as_str(), "builtins.sum", inputs)
        }
    };
    (0..size.tasks).map(task).collect()
}

fn flat(size: Size) -> Vec<Node> {
    (0..size.tasks)
        .map(|number| constant(name(number)))
        .collect()
}

/// Many tasks that need one large result.
fn fan_out(size: Size) -> Vec<Node> {
    let next = |number: usize| Node::new(name(number).as_str(), "operator.neg", [on(0)]);
    let rest = (1..size.tasks).map(next);
    [constant(name(0))].into_iter().chain(rest).collect()
}

/// A cluster with this many workers and clients. Each third worker has resources.
fn cluster(size: Size) -> Eager {
    let mut cluster = Eager::new(0);
    for number in 0..size.workers {
        cluster.join_with(number, resources(number));
    }
    for number in 1..size.clients {
        cluster.add_client(number as u64, &format!("client-{number}"));
    }
    cluster
}

fn resources(number: usize) -> Vec<(String, f64)> {
    match number % 3 {
        0 => vec![("GPU".to_owned(), 4.0)],
        _ => Vec::new(),
    }
}

/// Submits tasks with some demands, in one graph for each of these, and runs and releases them.
fn with_demands(size: Size, demands: impl Fn(usize) -> Value) -> u64 {
    let mut cluster = cluster(size);
    let each = size.tasks / size.demands;
    count(|| {
        for number in 0..size.demands {
            let keys = number * each..(number + 1) * each;
            let tasks = keys.clone().map(|key| constant(name(key)));
            cluster.submit_with(tasks, keys.map(name).collect(), demands(number));
        }
        cluster.work();
        cluster.release(names(size.tasks));
        assert_eq!(cluster.state.task_count(), 0);
    })
}

fn run(size: Size, graph: Shape) -> u64 {
    let mut cluster = cluster(size);
    let tasks = graph(size);
    let keys = names(tasks.len());
    let steps = count(|| {
        cluster.submit(tasks, keys.clone());
        cluster.work();
        cluster.release(keys);
    });
    assert_eq!(cluster.state.task_count(), 0);
    steps
}

fn named(size: Size) -> u64 {
    let workers = size.workers;
    // Some workers for each group of tasks, in part the same.
    with_demands(size, move |number| {
        let named = (number..number + 40).map(|worker| format!("tcp://w{}:1", worker % workers));
        Value::dict([("workers", Value::list(named))])
    })
}

fn pinned(size: Size) -> u64 {
    let workers = size.workers;
    with_demands(size, move |number| {
        Value::dict([("workers", Value::list([format!("w{}", number % workers)]))])
    })
}

fn preferred(size: Size) -> u64 {
    with_demands(size, |number| {
        Value::dict([
            ("workers", Value::list([format!("missing-{number}")])),
            ("allow_other_workers", Value::Bool(true)),
        ])
    })
}

fn equipped(size: Size) -> u64 {
    with_demands(size, |number| {
        let amount = 4.0 / (number + 1) as f64;
        Value::dict([("resources", Value::dict([("GPU", amount)]))])
    })
}

/// Tasks for which no worker qualifies, while workers join that do not qualify, and then one does.
fn without_worker(size: Size) -> u64 {
    let mut cluster = cluster(size);
    let demands = Value::dict([("workers", Value::list(["tcp://late:1"]))]);
    count(|| {
        let tasks = (0..size.tasks).map(|key| constant(name(key)));
        cluster.submit_with(tasks, names(size.tasks), demands);
        for number in 0..size.workers {
            cluster.join_with(size.workers + number, Vec::new());
        }
        assert_eq!(cluster.state.no_worker_count, size.tasks);
        let late = RegisterWorker {
            address: "tcp://late:1".to_owned(),
            status: WorkerStatus::Running,
            ..RegisterWorker::default()
        };
        cluster.join(1 << 20, late);
        cluster.work();
        assert_eq!(cluster.state.no_worker_count, 0);
    })
}

/// Tasks on one worker that others take over.
fn stolen(size: Size) -> u64 {
    let mut cluster = cluster(size);
    cluster.scatter(1, 0);
    let tasks =
        (1..size.tasks).map(|number| Node::new(name(number).as_str(), "operator.neg", [on(0)]));
    count(|| {
        cluster.submit(tasks, names(size.tasks));
        cluster.work();
    })
}

/// A worker leaves that has results of all tasks.
fn lost(size: Size) -> u64 {
    let mut cluster = cluster(size);
    let demands = Value::dict([
        ("workers", Value::list(["tcp://w0:1"])),
        ("allow_other_workers", Value::Bool(true)),
    ]);
    cluster.submit_with(chains(size), names(size.tasks), demands);
    cluster.work();
    count(|| {
        cluster.handle(SchedulerInput::WorkerLeft(WorkerId(0)));
        cluster.work();
    })
}

/// Workers join and leave.
fn joined(size: Size) -> u64 {
    let mut cluster = cluster(size);
    cluster.submit_with(
        flat(size),
        names(size.tasks),
        Value::dict([("workers", Value::list(["tcp://late:1"]))]),
    );
    // Without the message to each other worker.
    count(|| {
        for number in 0..100 {
            cluster.join_with((1 << 20) + number, resources(number));
        }
    })
}

/// A client leaves that wants all results.
fn client_lost(size: Size) -> u64 {
    let mut cluster = cluster(size);
    cluster.submit(flat(size), names(size.tasks));
    cluster.work();
    count(|| cluster.handle(SchedulerInput::ClientLeft(cluster.client)))
}

/// Time passes while workers run tasks.
fn ticks(size: Size) -> u64 {
    let mut cluster = cluster(size);
    cluster.submit(flat(size), names(size.tasks));
    let mut now = Duration::ZERO;
    count(|| {
        for _ in 0..100 {
            now += Duration::from_millis(20);
            cluster.state.handle(now, SchedulerInput::Tick);
        }
    })
}

/// A worker retires that has all results.
fn retired(size: Size) -> u64 {
    let mut cluster = cluster(size);
    cluster.scatter(size.tasks, 0);
    count(|| cluster.handle(SchedulerInput::RetireWorkers(vec!["tcp://w0:1".to_owned()])))
}

/// The steps of the longest of the calls that `act` makes.
fn longest(cluster: &mut Eager, act: impl FnOnce(&mut Eager)) -> u64 {
    cluster.longest = 0;
    act(cluster);
    cluster.longest
}

/// A result that many tasks need is stored.
fn needed_by_many(count: usize) -> u64 {
    let mut cluster = Eager::new(3);
    let demands = Value::dict([("workers", Value::list(["tcp://w0:1"]))]);
    cluster.submit_with(fan_out(with_tasks(count)), names(count), demands);
    longest(&mut cluster, |cluster| cluster.work())
}

/// A task fails that many others need.
fn failed_for_many(count: usize) -> u64 {
    let mut cluster = Eager::new(3);
    let needed = Argument::Result(Key::from("bad"));
    let rest =
        (0..count).map(|key| Node::new(name(key).as_str(), "operator.neg", [needed.clone()]));
    let tasks = [constant("bad".to_owned())].into_iter().chain(rest);
    cluster.submit(tasks, names(count));
    longest(&mut cluster, |cluster| cluster.work())
}

/// A result is lost while many tasks wait that need it, and so is the last copy of data.
fn lost_for_many(count: usize) -> u64 {
    let mut cluster = Eager::new(1);
    cluster.submit(fan_out(with_tasks(count)), names(count));
    cluster.work_on(1);
    let lost = longest(&mut cluster, |cluster| {
        cluster.handle(SchedulerInput::WorkerLeft(WorkerId(0)));
    });
    let mut cluster = Eager::new(1);
    cluster.scatter(1, 0);
    cluster.submit(fan_out(with_tasks(count)).split_off(1), names(count));
    lost.max(longest(&mut cluster, |cluster| {
        cluster.handle(SchedulerInput::WorkerLeft(WorkerId(0)));
        assert_eq!(cluster.state.task_count(), 0);
    }))
}

/// A worker retires that has many results.
fn retired_with_many(count: usize) -> u64 {
    let mut cluster = Eager::new(3);
    cluster.scatter(count, 0);
    longest(&mut cluster, |cluster| {
        cluster.handle(SchedulerInput::RetireWorkers(vec!["tcp://w0:1".to_owned()]));
    })
}

const fn with_tasks(tasks: usize) -> Size {
    Size { tasks, ..SMALL }
}

#[test]
fn an_event_about_many_tasks_is_handled_in_bounded_calls() {
    type Steps = fn(usize) -> u64;
    let events: [(&str, Steps); 4] = [
        ("needed by many", needed_by_many),
        ("failed for many", failed_for_many),
        ("lost for many", lost_for_many),
        ("retired with many", retired_with_many),
    ];
    for (name, steps) in events {
        let (few, many) = (steps(2_000), steps(8_000));
        assert!(
            many <= few + few / 2,
            "{name}: {few} steps at once for 2,000 tasks, and {many} for 8,000"
        );
    }
}

#[test]
fn a_task_takes_the_same_number_of_steps_in_larger_clusters() {
    let graphs: [(&str, Shape); 6] = [
        ("flat", flat),
        ("merge", merges),
        ("tree", tree),
        ("all to all", all_to_all),
        ("chains", chains),
        ("fan out", fan_out),
    ];
    let others: [(&str, Steps); 11] = [
        ("named", named),
        ("pinned", pinned),
        ("preferred", preferred),
        ("equipped", equipped),
        ("without worker", without_worker),
        ("stolen", stolen),
        ("lost", lost),
        ("client lost", client_lost),
        ("joined", joined),
        ("ticks", ticks),
        ("retired", retired),
    ];
    let graphs = graphs.into_iter().map(|(name, graph)| {
        let steps: Box<dyn Fn(Size) -> u64> = Box::new(move |size| run(size, graph));
        (name, steps)
    });
    let others = others.into_iter().map(|(name, steps)| {
        let steps: Box<dyn Fn(Size) -> u64> = Box::new(steps);
        (name, steps)
    });
    for (name, steps) in graphs.chain(others) {
        let per_task = |size: Size| steps(size) as f64 / size.tasks as f64;
        let small = per_task(SMALL);
        let check = |change: fn(&mut Size)| {
            let mut size = SMALL;
            change(&mut size);
            let large = per_task(size);
            // Some searches stop after a number of alternatives, which small clusters do not have.
            assert!(
                large <= small * 1.7 + 1.0,
                "{name}: {small:.1} steps for a task, and {large:.1} with {size:?}"
            );
        };
        check(|size| size.workers *= 16);
        check(|size| size.tasks *= 2);
        check(|size| size.demands *= 4);
        check(|size| size.clients *= 16);
        check(|size| {
            size.workers *= 2;
            size.tasks *= 2;
            size.demands *= 2;
            size.clients *= 2;
        });
    }
}
