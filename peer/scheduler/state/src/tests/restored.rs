//! States that continue from a journal.

use super::*;

/// Continues from the journal of a cluster. Returns the new journal.
fn restart(cluster: &mut Cluster, records: &[u8]) -> Vec<u8> {
    let mut live = Live::default();
    live.note(records).expect("they were written");
    let mut selected = Vec::new();
    let selecting = live.select(records, &mut selected);
    selecting.expect("they were written");
    let mut restoring = Restoring::new(Policy::default(), Duration::ZERO);
    restoring.add(&selected).expect("they were written");
    let mut written = Vec::new();
    restoring.take_journal(&mut written);
    cluster.state = restoring.finish();
    cluster.running.clear();
    written
}

#[test]
fn results_that_only_waiting_tasks_need_are_kept() {
    let mut cluster = Cluster::new();
    cluster.state.keep_journal();
    let client = cluster.client("me");
    let worker = cluster.worker("tcp://a:1", 1);
    let keys: Vec<String> = (0..20).map(|number| format!("t-{number}")).collect();
    let mut tasks = vec![add(&keys[0], &[])];
    tasks.extend(keys.windows(2).map(|pair| add(&pair[1], &[&pair[0]])));
    cluster.submit(client, tasks, &["t-19"]);
    for key in &keys[..19] {
        cluster.finish(worker, key);
    }
    let mut records = Vec::new();
    cluster.state.take_journal(&mut records);
    restart(&mut cluster, &records);
    let worker = cluster.worker_with("tcp://a:1", 1, &[]);
    cluster.handle(SchedulerInput::DataStored {
        client: None,
        who_has: vec![(Key::from("t-18"), vec!["tcp://a:1".to_owned()])],
        nbytes: Vec::new(),
    });
    cluster.handle(SchedulerInput::Resumed);
    assert_eq!(cluster.status("t-18"), Some(TaskState::Memory));
    assert_eq!(cluster.assigned_to("t-19"), Some(worker));
    assert_eq!(cluster.running.len(), 1);
}

#[test]
fn workers_are_awaited_until_the_state_is_resumed() {
    let mut cluster = Cluster::new();
    cluster.state.keep_journal();
    cluster.worker("tcp://a:1", 1);
    let mut records = Vec::new();
    cluster.state.take_journal(&mut records);
    // Two schedulers in a row are killed before the worker has returned.
    for _ in 0..2 {
        records = restart(&mut cluster, &records);
        assert!(cluster.state.awaits_workers());
    }
    let worker = cluster.worker("tcp://a:1", 1);
    assert!(!cluster.state.awaits_workers());
    cluster.state.take_journal(&mut records);
    cluster.handle(SchedulerInput::Resumed);
    cluster.lose_worker(worker);
    cluster.state.take_journal(&mut records);
    restart(&mut cluster, &records);
    assert!(!cluster.state.awaits_workers());
}

/// The holder of tasks that nothing waits for has the same number whenever it is there.
#[test]
fn a_holder_that_was_forgotten_and_is_there_again_is_kept_once() {
    let mut cluster = Cluster::new();
    cluster.state.keep_journal();
    let client = cluster.client("me");
    let worker = cluster.worker("tcp://a:1", 1);
    let fire = |cluster: &mut Cluster, key: &str| {
        cluster.submit(client, [add(key, &[])], &[key]);
        let desired = ClientDesiresKeys {
            keys: [key].into_iter().collect(),
            client: Some("fire-and-forget".to_owned()),
            ..ClientDesiresKeys::default()
        };
        cluster.send(client, desired);
        cluster.release(client, &[key]);
    };
    for (second, key) in ["a", "b", "c"].into_iter().enumerate() {
        fire(&mut cluster, key);
        cluster.finish(worker, key);
        let now = Duration::from_secs(second as u64 + 1);
        cluster.state.handle(now, SchedulerInput::Tick);
        assert_eq!(cluster.state.clients.len(), 1, "the holder is forgotten");
    }
    fire(&mut cluster, "d");
    let mut records = Vec::new();
    cluster.state.take_journal(&mut records);
    restart(&mut cluster, &records);
    assert_eq!(cluster.state.clients.len(), 2);
    assert_eq!(cluster.state.task_count(), 1);
    cluster.handle(SchedulerInput::Resumed);
    cluster.worker("tcp://a:1", 1);
    assert_eq!(cluster.status("d"), Some(TaskState::Processing));
}

#[test]
fn metadata_that_is_replaced_or_forgotten_is_not_kept() {
    let mut cluster = Cluster::new();
    cluster.state.keep_journal();
    let set = |cluster: &mut Cluster, path: &[&str], value: i64| {
        cluster.handle(SchedulerInput::MetadataSet {
            path: path.iter().copied().map(Key::from).collect(),
            value: Value::from(value),
        });
    };
    let client = cluster.client("me");
    cluster.submit(client, [add("x", &[])], &["x"]);
    for number in 0..100 {
        set(&mut cluster, &["a", &number.to_string()], number);
        set(&mut cluster, &["x", &number.to_string(), "y"], number);
    }
    set(&mut cluster, &["ab", "c"], 2);
    set(&mut cluster, &["a"], 1);
    set(&mut cluster, &["a", "d"], 3);
    cluster.release(client, &["x"]);
    assert_eq!(cluster.status("x"), None);
    let expected = cluster.state.metadata(&[]);
    assert!(matches!(&expected, Ok(Value::Dict(all)) if all.len() == 2));
    let mut records = Vec::new();
    cluster.state.take_journal(&mut records);
    let records = restart(&mut cluster, &records);
    assert_eq!(cluster.state.metadata(&[]), expected);
    assert!(records.len() < 1000, "{}", records.len());
}
