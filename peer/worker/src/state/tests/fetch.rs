//! Fetching the inputs of tasks.

use super::*;

#[test]
fn fetches_all_dependencies_of_one_peer_at_once() {
    let mut worker = Worker::new(1);
    let batch = vec![
        task_with("x", &[("a", &[A]), ("b", &[A])]).into(),
        task_with("y", &[("b", &[A]), ("c", &[B, HERE])]).into(),
    ];
    let actions = worker.batch(batch);
    assert_eq!(actions, ["fetch b a from A", "fetch c from B"]);
    assert_eq!(worker.stages(), "waiting 2, flight 3");
    assert_eq!(worker.received(B, &["c"]), ["add-keys c"]);
    assert_eq!(
        worker.received(A, &["a", "b"]),
        ["add-keys b a", "execute y with b c"]
    );
    assert_eq!(
        worker.executed("y"),
        [
            "finished y run 0 (transfer B, compute)",
            "execute x with a b"
        ]
    );
    assert_eq!(
        worker.executed("x"),
        ["finished x run 0 (transfer A, compute)"]
    );
}

#[test]
fn asks_for_at_most_fifty_megabytes_in_a_request() {
    let mut worker = Worker::new(1);
    let mut large = task_with("x", &[("a", &[A]), ("b", &[A]), ("c", &[A])]);
    for (_, nbytes) in &mut large.nbytes.0 {
        *nbytes = 30_000_000;
    }
    let first = worker.message(large);
    assert_eq!(first, ["fetch a from A", "fetch b from A"]);
    let mut huge = task_with("y", &[("d", &[B])]);
    huge.nbytes[0].1 = 1 << 40;
    assert_eq!(
        worker.message(huge),
        ["fetch d from B"],
        "a datum is not split"
    );
    assert_eq!(worker.received(A, &["a"]), ["add-keys a", "fetch c from A"]);
}

/// A second comm lets this worker copy what it receives on two threads.
#[test]
fn asks_a_peer_for_more_while_it_sends_much() {
    let mut worker = Worker::new(1);
    let ask = |worker: &mut Worker, key: &str, holders: &[&str], len| {
        let mut task = task_with(&format!("x{key}"), &[(key, holders)]);
        task.nbytes[0].1 = len;
        worker.message(task)
    };
    // While little is on its way, keys are gathered for one request.
    assert_eq!(ask(&mut worker, "a", &[A], 9_999_999), ["fetch a from A"]);
    assert_eq!(ask(&mut worker, "b", &[A], 10_000_000), [""; 0]);
    assert_eq!(ask(&mut worker, "c", &[A], 1), [""; 0]);
    let more = worker.received(A, &["a"]);
    assert!(more.contains(&"fetch c b from A".to_owned()), "{more:?}");
    // Other peers are preferred.
    assert_eq!(ask(&mut worker, "d", &[A, B], 10), ["fetch d from B"]);
    assert_eq!(ask(&mut worker, "e", &[A, B], 10), ["fetch e from A"]);
    assert_eq!(ask(&mut worker, "f", &[A, B], 10), [""; 0]);
    // A peer that refuses a second request is asked again once the other one ends.
    assert_eq!(worker.fetched(A, Answer::Busy), [""; 0]);
    assert_eq!(worker.received(B, &["d"]), ["add-keys d", "fetch f from B"]);
    let more = worker.received(A, &["e"]);
    assert!(more.contains(&"fetch c b from A".to_owned()), "{more:?}");
    assert_eq!(ask(&mut worker, "g", &[A], 10), ["fetch g from A"]);
    worker.received(A, &["c", "b"]);
    assert_eq!(
        worker.fetched(A, Answer::Busy),
        ["after 150ms: A is available", "where is g"]
    );
}

#[test]
fn bounds_the_number_of_concurrent_requests() {
    let mut worker = Worker::new(1);
    worker.0.limits.transfer_count = 2;
    let peers: Vec<String> = (0..3)
        .map(|n| format!("tcp://127.0.0.1:{}", n + 20))
        .collect();
    let keys = ["a", "b", "c"];
    let holders: Vec<[&str; 1]> = peers.iter().map(|peer| [peer.as_str()]).collect();
    let dependencies = keys.iter().zip(&holders);
    let dependencies: Vec<(&str, &[&str])> = dependencies
        .map(|(key, holder)| (*key, &holder[..]))
        .collect();
    let mut large = task_with("x", &dependencies);
    for (_, nbytes) in &mut large.nbytes.0 {
        *nbytes = 5_000_000;
    }
    assert_eq!(worker.message(large).len(), 2);
    assert_eq!(worker.stages(), "waiting 1, fetch 1, flight 2");
    let more = worker.received(&peers[0], &["a"]);
    assert_eq!(more[1], format!("fetch c from {}", peers[2]));

    let mut worker = Worker::new(1);
    worker.0.limits.transfer_count = 2;
    let small = task_with("x", &dependencies);
    assert_eq!(
        worker.message(small).len(),
        3,
        "small data is not held back"
    );
}

#[test]
fn bounds_the_bytes_of_all_requests() {
    let mut worker = Worker::new(1);
    worker.0.limits.transfer_total_len = 100;
    let mut task = task_with("x", &[("a", &[A]), ("b", &[B])]);
    task.nbytes[0].1 = 60;
    task.nbytes[1].1 = 41;
    assert_eq!(worker.message(task), ["fetch a from A"]);
    assert_eq!(worker.0.transfer_len(), 60);
    assert_eq!(worker.received(A, &["a"]), ["add-keys a", "fetch b from B"]);
    worker.received(B, &["b"]);
    assert_eq!(worker.0.transfer_len(), 0);

    let mut huge = task_with("y", &[("c", &[A])]);
    huge.nbytes[0].1 = 101;
    assert_eq!(
        worker.message(huge),
        ["fetch c from A"],
        "a datum that is too large is fetched alone"
    );
}

#[test]
fn trying_failed_holders_takes_linear_time() {
    let steps = |count: usize| {
        let mut worker = Worker::new(1);
        let peers: Vec<String> = (0..count)
            .map(|n| format!("tcp://127.0.0.1:{}", n + 20))
            .collect();
        let holders: Vec<&str> = peers.iter().map(String::as_str).collect();
        let mut actions = worker.message(task_with("x", &[("a", &holders)]));
        let (mut asked, mut steps) = (0, 0);
        while let Some(peer) = actions
            .iter()
            .find_map(|action| action.strip_prefix("fetch a from "))
        {
            asked += 1;
            // Each transfer looks at all peers, and the key is queued at each.
            steps += worker.0.peers.iter().count();
            actions = worker.fetched(peer, Answer::Gone);
        }
        assert_eq!(asked, count);
        assert_eq!(worker.stages(), "waiting 1, missing 1");
        steps
    };
    let (few, many) = (steps(200), steps(400));
    assert!(
        many <= 2 * few + MAX_HOLDERS * MAX_HOLDERS,
        "{many} steps for twice {few}"
    );
}

#[test]
fn retries_busy_peers_later() {
    let mut worker = Worker::new(1);
    worker.message(task_with("x", &[("a", &[A])]));
    // The scheduler may know further holders by now.
    assert_eq!(
        worker.fetched(A, Answer::Busy),
        ["after 150ms: A is available", "where is a"]
    );
    assert_eq!(worker.stages(), "waiting 1, fetch 1");
    assert_eq!(worker.message(refresh(&[("a", &[A])])), [""; 0]);
    assert_eq!(
        worker.event(WorkerInput::PeerAvailable(A.into())),
        ["fetch a from A"]
    );
    // Another holder is asked in the meantime.
    assert_eq!(
        worker.message(task_with("y", &[("b", &[A, B])])),
        ["fetch b from B"]
    );
    worker.fetched(A, Answer::Busy);
    assert_eq!(worker.received(B, &["b"]).len(), 2);
}

#[test]
fn asks_a_new_holder_while_the_others_are_busy() {
    let mut worker = Worker::new(1);
    worker.message(task_with("x", &[("a", &[A, B])]));
    let [first, second] = match worker.0.requests.values().next() {
        Some(request) if *request.peer == *A => [A, B],
        _ => [B, A],
    };
    // The second holder may not be busy.
    let other = worker.fetched(first, Answer::Busy);
    assert!(!other.contains(&"where is a".to_owned()), "{other:?}");
    let none = worker.fetched(second, Answer::Busy);
    assert!(none.contains(&"where is a".to_owned()), "{none:?}");
    assert_eq!(
        worker.message(refresh(&[("a", &[A, B, C])])),
        ["fetch a from C"]
    );
}

#[test]
fn prefers_holders_on_its_own_host() {
    const REMOTE: &str = "tcp://10.0.0.7:1";
    for port in 20..40 {
        let near = format!("tcp://127.0.0.1:{port}");
        let mut worker = Worker::new(1);
        let fetched = worker.message(task_with("x", &[("a", &[REMOTE, &near])]));
        assert_eq!(fetched, [format!("fetch a from {near}")]);
    }
}

#[test]
fn tries_another_holder_if_one_lacks_the_data() {
    let mut worker = Worker::new(1);
    let first = worker.message(task_with("x", &[("a", &[A, B])]));
    let (one, other) = if first == ["fetch a from A"] {
        (A, B)
    } else {
        (B, A)
    };
    let again = worker.received(one, &[]);
    assert_eq!(again, [format!("fetch a from {}", short(other))]);
    assert_eq!(
        worker.received(other, &[]),
        ["where is a", "after 1s: search"]
    );
    assert_eq!(worker.stages(), "waiting 1, missing 1");
    // Once a second, until a holder is known.
    assert_eq!(
        worker.event(WorkerInput::Search),
        ["where is a", "after 1s: search"]
    );
    assert_eq!(worker.message(refresh(&[("a", &[])])), [""; 0]);
    assert_eq!(worker.message(refresh(&[("a", &[HERE])])), [""; 0]);
    assert_eq!(worker.message(refresh(&[("a", &[one])])).len(), 1);
    assert_eq!(worker.event(WorkerInput::Search), [""; 0]);
    assert_eq!(
        worker.received(one, &["a"]),
        ["add-keys a", "execute x with a"]
    );
}

#[test]
fn unreachable_peers_are_no_holders() {
    let mut worker = Worker::new(1);
    let batch = vec![
        task_with("x", &[("a", &[A])]).into(),
        task_with("y", &[("b", &[A]), ("c", &[A, B])]).into(),
    ];
    worker.batch(batch);
    let actions = worker.fetched(A, Answer::Gone);
    assert!(actions.contains(&"where is a b".to_owned()), "{actions:?}");
    assert_eq!(worker.stages(), "waiting 2, flight 1, missing 2");
}

#[test]
fn does_not_ask_workers_that_left() {
    let mut worker = Worker::new(1);
    worker.0.limits.transfer_total_len = 0;
    worker.message(task_with("x", &[("a", &[B])]));
    worker.message(task_with("y", &[("b", &[A])]));
    assert_eq!(
        worker.message(remove_worker(A)),
        ["disconnect A", "where is b", "after 1s: search"]
    );
    assert_eq!(
        worker.received(B, &["a"]),
        ["add-keys a", "execute x with a"]
    );
}

#[test]
fn request_to_a_worker_that_left_ends_and_others_are_asked() {
    let mut worker = Worker::new(1);
    let needs = task_with("x", &[("a", &[A]), ("b", &[A])]);
    assert_eq!(worker.message(needs), ["fetch a b from A"]);
    assert_eq!(worker.message(refresh(&[("a", &[A, B])])), [""; 0]);
    assert_eq!(worker.message(remove_worker(A)), ["disconnect A"]);
    assert_eq!(
        worker.fetched(A, Answer::Gone),
        ["fetch a from B", "where is b", "after 1s: search"]
    );
}

#[test]
fn a_dependency_that_is_listed_twice_counts_once() {
    let mut worker = Worker::new(1);
    let needs = task_with("x", &[("a", &[A]), ("a", &[A])]);
    assert_eq!(worker.message(needs), ["fetch a from A"]);
    assert_eq!(
        worker.received(A, &["a"]),
        ["add-keys a", "execute x with a"]
    );
    let needs = task_with("y", &[("a", &[]), ("b", &[B, B]), ("b", &[B]), ("a", &[])]);
    worker.executed("x");
    assert_eq!(worker.message(needs), ["fetch b from B"]);
    assert_eq!(
        worker.received(B, &["b"]),
        ["add-keys b", "execute y with a b"]
    );
}

#[test]
fn computes_requested_data_that_does_not_arrive() {
    let mut worker = Worker::new(1);
    worker.message(task_with("y", &[("a", &[A])]));
    worker.message(run(5, task_with("a", &[("b", &[B])])));
    assert_eq!(worker.received(A, &[]), ["fetch b from B"]);
    assert_eq!(
        worker.received(B, &["b"]),
        ["add-keys b", "execute a with b"]
    );
    assert_eq!(
        worker.executed("a"),
        ["finished a run 5 (transfer B, compute)", "execute y with a"]
    );
}

#[test]
fn data_from_clients_replaces_computations() {
    let mut worker = Worker::new(1);
    assert_eq!(worker.stored("a"), [""; 0]);
    assert_eq!(worker.stages(), "memory 1");
    assert_eq!(
        worker.message(task_with("x", &[("a", &[HERE])])),
        ["execute x with a"]
    );
    worker.message(run(3, task_with("y", &[("b", &[A])])));
    assert_eq!(worker.stored("y"), ["finished y run 3 ()"]);
    assert_eq!(worker.received(A, &["b"]), ["forget b"]);
    // While it runs
    assert_eq!(worker.stored("x"), ["finished x run 0 ()"]);
    assert_eq!(worker.executed("x"), [""; 0]);
    assert_eq!(worker.stages(), "memory 3");
}

#[test]
fn a_task_may_depend_on_one_that_is_computed_here_too() {
    let mut worker = Worker::new(1);
    let batch = vec![
        task_with("x", &[("a", &[A])]).into(),
        task_with("y", &[("x", &[B])]).into(),
    ];
    assert_eq!(worker.batch(batch), ["fetch a from A"]);
    // The task is stolen, so its result has to be fetched.
    assert_eq!(
        worker.steal("x"),
        ["steal x: waiting", "where is x", "after 1s: search"]
    );
    assert_eq!(worker.received(A, &["a"]), ["forget a"]);
    assert_eq!(worker.message(refresh(&[("x", &[B])])), ["fetch x from B"]);
    assert_eq!(
        worker.received(B, &["x"]),
        ["add-keys x", "execute y with x"]
    );
}

#[test]
fn a_task_that_lists_itself_is_not_fetched_while_it_is_computed() {
    let mut worker = Worker::new(1);
    // A dependency without holders
    worker.message(task_with("x", &[("y", &[])]));
    assert_eq!(
        worker.message(task_with("y", &[("y", &[A])])),
        ["execute y"],
        "not fetched"
    );
    assert_eq!(
        worker.executed("y"),
        ["finished y run 0 (compute)", "execute x with y"]
    );
}
