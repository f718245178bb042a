//! Compares the client's information about a real cluster with that of a Python
//! client.

use core::time::Duration;

use crate::support::client::client_at;
use daskwire_messages::protocol::Unknown;
use daskwire_peer::client::{
    ProfileOptions, Profiled, StoryStep, SubmitOptions, TaskStates, Workers,
};
use daskwire_peer::cluster::LocalCluster;
use daskwire_peer::{Key, RequestError, Value};
use daskwire_testing::cluster::{Cluster, until};

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_described_as_to_a_python_client() {
    let mut cluster = Cluster::new(2);
    let client = client_at(cluster.scheduler.address()).await;
    let workers = cluster.scheduler.worker_addresses();

    let versions = client
        .versions(["no-such-package"])
        .await
        .expect("versions");
    assert_eq!(versions.scheduler.package("distributed"), Some("2026.8.0"));
    let missing = ("no-such-package".to_owned(), None);
    assert!(versions.scheduler.packages.contains(&missing));
    assert_eq!(versions.workers.len(), 2);
    for (worker, versions) in &versions.workers {
        assert!(workers.contains(worker), "{worker}");
        assert_eq!(versions.package("distributed"), Some("2026.8.0"));
        assert!(versions.packages.contains(&missing));
        let python = versions.host.iter().find(|(name, _)| name == "python");
        assert!(python.is_some_and(|(_, version)| version.starts_with("3.")));
    }

    let mut threads = client.nthreads(Workers::All).await.expect("threads");
    threads.sort();
    let mut expected: Vec<_> = workers.iter().map(|worker| (worker.clone(), 1)).collect();
    expected.sort();
    assert_eq!(threads, expected);
    let one = client.nthreads(workers[0].as_str()).await.expect("threads");
    assert_eq!(one, [(workers[0].clone(), 1)]);

    let sum = client
        .call("operator.add")
        .argument(1)
        .argument(2)
        .key("add-1");
    let sum = sum.submit().expect("submitted");
    sum.finished().await.expect("a result");
    let holder = client.who_has([&sum]).await.expect("holders")[0].1[0].clone();
    let held = client.has_what([holder.as_str()]).await.expect("keys");
    assert_eq!(held, [(holder.clone(), vec![Key::from("add-1")])]);
    assert_eq!(client.has_what(Workers::All).await.expect("keys").len(), 2);
    let len = client.nbytes(["add-1"]).await.expect("lengths")[0].1;
    let by_prefix = client.nbytes_by_prefix().await.expect("lengths");
    assert_eq!(by_prefix, [(Key::from("add"), len)]);

    let story = client.story([sum.key()]).await.expect("a story");
    let finished = |step: &StoryStep| step.states().is_some_and(|(_, to)| to == "memory");
    assert!(
        story
            .iter()
            .any(|step| step.worker.is_none() && finished(step)),
        "{story:?}"
    );
    let by_worker = |step: &StoryStep| step.worker.as_ref() == Some(&holder);
    assert!(
        story.iter().any(|step| by_worker(step) && finished(step)),
        "{story:?}"
    );
    assert!(story.is_sorted_by(|one, other| one.time <= other.time));
    let count = cluster.python("len(client.story('add-1'))");
    assert_eq!(story.len().to_string(), count);

    let log = client.scheduler_logs(None).await.expect("a log");
    assert!(
        log.iter().any(|line| line.line.contains("Register worker")),
        "{log:?}"
    );
    assert!(log.iter().all(|line| line.level == "INFO"), "{log:?}");
    assert_eq!(
        client.scheduler_logs(Some(1)).await.expect("a log").len(),
        1
    );
    let logs = client.worker_logs(Workers::All, None).await.expect("logs");
    assert_eq!(logs.len(), 2);
    assert!(
        logs.iter()
            .all(|(_, log)| log.iter().any(|line| line.line.contains("Registered to")))
    );

    assert_eq!(client.metadata(["a", "b"]).await.expect("metadata"), None);
    client.set_metadata(["a", "b"], 7).await.expect("stored");
    assert_eq!(cluster.python("client.get_metadata(['a', 'b'])"), "7");
    assert_eq!(
        client.metadata(["a", "b"]).await.expect("metadata"),
        Some(Value::from(7))
    );
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn running_tasks_are_shown() {
    let cluster = Cluster::new(1);
    let client = client_at(cluster.scheduler.address()).await;
    let worker = cluster.scheduler.workers()[0].address();
    // Sleeps in many steps, so that the profiler takes samples of it.
    let slow = client.call("time.sleep").argument(100).key("slow-1");
    let slow = slow.submit().expect("submitted");
    let mut processing = client.processing(Workers::All).await.expect("keys");
    while processing[0].1.is_empty() {
        processing = client.processing(Workers::All).await.expect("keys");
    }
    assert_eq!(processing, [(worker.to_owned(), vec![Key::from("slow-1")])]);
    let mut stacks = Vec::new();
    while stacks.is_empty() {
        stacks = client.call_stack([&slow]).await.expect("stacks");
    }
    assert_eq!(
        (stacks[0].worker.as_str(), stacks[0].key.clone()),
        (worker, Key::from("slow-1"))
    );
    let frames = stacks[0].frames.concat();
    assert!(frames.contains("threadpoolexecutor.py"), "{frames}");
    assert_eq!(client.call_stacks().await.expect("stacks").len(), 1);
    let none: [Key; 0] = [];
    assert_eq!(client.call_stack(none).await.expect("stacks"), []);
    let mut profile = client
        .profile(ProfileOptions::default())
        .await
        .expect("a profile");
    while profile.count == 0 {
        profile = client
            .profile(ProfileOptions::default())
            .await
            .expect("a profile");
    }
    assert!(!profile.children.is_empty());
    let mut found = &profile;
    while let Some(child) = found.children.first() {
        assert!(child.count <= found.count);
        found = child;
    }
    assert!(
        found.file.ends_with(".py") && found.line_number > 0,
        "{found:?}"
    );
    let options = ProfileOptions::default().with_of(Profiled::Scheduler);
    client.profile(options).await.expect("a profile");
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_counted_in_every_state() {
    let cluster = Cluster::new(1);
    let client = client_at(cluster.scheduler.address()).await;
    assert_eq!(client.task_states().await.expect("states").len(), 0);
    let done = client.submit("operator.add", (1, 2)).expect("submitted");
    done.finished().await.expect("a result");
    let nowhere = SubmitOptions::default().workers(["tcp://127.0.0.1:1"]);
    let stranded = client.calls("operator.neg").over([1_i64, 2, 3]);
    let _stranded = stranded.with(nowhere).submit().expect("submitted");
    // Of many tasks without inputs, a worker gets a few more than it has threads.
    let _slow = client.map("time.sleep", 100..150_i64).expect("submitted");
    let count = |states: &TaskStates, prefix: &str, state: &str| {
        let states = states.get(prefix);
        states.and_then(|states| states.get(state)).copied()
    };
    let mut states = TaskStates::new();
    let running = async {
        while count(&states, "sleep", "processing") != Some(2) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            states = client.task_states().await.expect("states");
        }
    };
    let running = tokio::time::timeout(Duration::from_secs(60), running).await;
    running.expect("two tasks are processing");
    assert_eq!(count(&states, "sleep", "queued"), Some(48), "{states:?}");
    assert_eq!(count(&states, "neg", "no-worker"), Some(3), "{states:?}");
    assert_eq!(count(&states, "add", "memory"), Some(1), "{states:?}");
    assert_eq!(count(&states, "add", "queued"), Some(0), "{states:?}");
    assert_eq!(states.len(), 3, "{states:?}");

    // A scheduler may refuse to run functions.
    let block = "[scheduler.blocked_handlers.append('feed') \
                 for scheduler in __import__('distributed').Scheduler._instances]";
    let blocked = client.run_on_scheduler("builtins.eval", (block,)).await;
    blocked.expect("it runs Dask");
    let states = client.task_states().await.expect("states");
    assert_eq!(count(&states, "sleep", "processing"), Some(2), "{states:?}");
    assert_eq!(count(&states, "sleep", "queued"), None, "{states:?}");
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_shared_with_python() {
    let mut cluster = Cluster::new(1);
    let client = client_at(cluster.scheduler.address()).await;
    let mut subscription = client.subscribe_topic("news").await.expect("subscribed");
    let mut second = client.subscribe_topic("news").await.expect("subscribed");
    cluster.python("client.log_event('news', {'from': 'python', 'items': [1, 2.5, None]})");
    client
        .log_event("other", "not this one")
        .await
        .expect("published");
    let news = Value::dict([("from", "rust")]);
    client
        .log_event("news", news.clone())
        .await
        .expect("published");
    let first = subscription.next().await.expect("an event");
    assert_eq!(
        first.message.to_string(),
        "{'from': 'python', 'items': [1, 2.5, None]}"
    );
    assert!(first.time > 1.7e9);
    assert_eq!(subscription.next().await.expect("an event").message, news);
    assert_eq!(second.next().await.expect("an event"), first);
    assert_eq!(subscription.missed_count(), 0);

    let events = client.events("news").await.expect("events");
    assert_eq!(events.len(), 2);
    assert_eq!(events[1].message, news);
    let all = client.all_events().await.expect("events");
    assert!(
        all.iter()
            .any(|(topic, events)| topic == "other" && events.len() == 1),
        "{all:?}"
    );
    let python = cluster.python("[event for _, event in client.get_events('news')][1]");
    assert_eq!(python, "{'from': 'rust'}");

    // The subscription ends with its last subscriber.
    let subscribers = "client.run_on_scheduler(lambda dask_scheduler: \
                       sorted(dask_scheduler._broker._topics['news'].subscribers))";
    drop(subscription);
    assert_eq!(cluster.python(subscribers), format!("['{}']", client.id()));
    drop(second);
    until("the end of the subscription", || {
        cluster.python(subscribers) == "[]"
    })
    .await;
    let mut last = client.subscribe_topic("news").await.expect("subscribed");
    client.close().await.expect("closed");
    assert_eq!(last.next().await, None);
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_can_be_sent() {
    let cluster = Cluster::new(1);
    let client = client_at(cluster.scheduler.address()).await;
    let target = Unknown::new("adaptive_target").field("target_duration", "5s");
    let target: i64 = client.request(target).await.expect("a number");
    assert_eq!(target, 0);
    let error = client.request::<i64>(Unknown::new("identity")).await;
    let error = error.expect_err("it is a dictionary");
    assert!(matches!(error, RequestError::Reply { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "unexpected reply to identity: expected i64, found dict"
    );
    let missing = Unknown::new("get_metadata").field("keys", vec!["missing"]);
    let error = client
        .request::<Value>(missing)
        .await
        .expect_err("it fails");
    assert!(matches!(error, RequestError::Remote(_)), "{error}");
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_of_this_crate_has_logs_and_topics() {
    let cluster = LocalCluster::start().await.expect("started");
    let client = cluster.client().await.expect("a client");
    client.scheduler_logs(None).await.expect("its log");
    let mut news = client.subscribe_topic("news").await.expect("subscribed");
    client.log_event("news", 5).await.expect("published");
    let event = tokio::time::timeout(TIMEOUT, news.next()).await;
    let event = event.expect("in time").expect("an event");
    assert_eq!(event.message, Value::from(5));
    client.close().await.expect("closed");
    cluster.close().await;
}
