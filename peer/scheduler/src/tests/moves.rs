//! Copies and moves of data between workers, and the retirement of workers.

use super::*;

/// Waits for the next event of a topic with this action.
async fn published(scheduler: &Scheduler, topic: &str, action: &str) -> Value {
    let find = || {
        let events = scheduler.inspect(|state| state.events(topic));
        let messages = events.into_iter().filter_map(|event| match event {
            Value::Tuple(event) => Some(event[1].clone()),
            _ => None,
        });
        let is_wanted = |message: &Value| message.get("action") == Some(&Value::from(action));
        let mut messages = messages.filter(is_wanted);
        messages.next_back()
    };
    until(|| find().is_some()).await;
    find().expect("it was there")
}

async fn pair(name: &str) -> (Scheduler, [Worker; 2], Client) {
    let scheduler = scheduler(&format!("inproc://{name}")).await;
    let one = Worker::new(scheduler.address(), &format!("inproc://{name}-0")).await;
    let client = Client::new(scheduler.address(), "me").await;
    let two = Worker::new(scheduler.address(), &format!("inproc://{name}-1")).await;
    (scheduler, [one, two], client)
}

/// Stores numbers on the first of two workers.
async fn scatter(client: &mut Client, workers: &[Worker; 2], keys: &[&str]) {
    let value = |number: usize| Serialized::of(&Value::from(number)).expect("a plain value");
    let data = keys.iter().enumerate();
    let data = data.map(|(number, key)| (Key::from(*key), value(number)));
    let request = Scatter {
        data: data.collect(),
        workers: Nullable(Some([workers[0].address.to_string()].into_iter().collect())),
        client: "me".to_owned(),
        ..Scatter::default()
    };
    let _: Vec<Key> = client.call(request).await.expect("it replies");
    client.wait(keys).await;
}

#[tokio::test]
async fn moved_copies_are_deleted_before_the_reply() {
    let (scheduler, workers, mut client) = pair("moved").await;
    let keys = ["a", "b", "c", "d"];
    scatter(&mut client, &workers, &keys).await;
    let reply: Value = client.call(Rebalance::default()).await.expect("it replies");
    assert_eq!(reply, Value::dict([("status", "OK")]));
    let counts = workers
        .each_ref()
        .map(|worker| keys.iter().filter(|key| worker.has(key)).count());
    assert_eq!(counts, [2, 2]);
    let names = workers.each_ref().map(|worker| worker.address.to_string());
    let event = published(&scheduler, "all", "rebalance").await;
    let count = |worker: &str| Value::dict([(worker, 2)]);
    assert_eq!(event.get("senders"), Some(&count(&names[0])));
    assert_eq!(event.get("recipients"), Some(&count(&names[1])));
    assert_eq!(event.get("moved_keys"), Some(&Value::from(2)));
    let event = published(&scheduler, &names[1], "rebalance").await;
    let who_has = event.get("who_has").expect("it has");
    assert!(
        matches!(who_has, Value::Dict(moved) if moved.len() == 2),
        "{event}"
    );
    let event = published(&scheduler, &names[0], "remove-worker-data").await;
    assert!(event.get("keys").is_some(), "{event}");
    let event = published(&scheduler, "me", "scatter").await;
    assert_eq!(event.get("count"), Some(&Value::from(4)));
}

#[tokio::test]
async fn surplus_copies_are_deleted_before_the_reply() {
    let (scheduler, workers, mut client) = pair("surplus").await;
    scatter(&mut client, &workers, &["x"]).await;
    let replicate = |n| Replicate {
        keys: ["x"].into_iter().collect(),
        n: Some(n),
        ..Replicate::default()
    };
    let _: Value = client.call(replicate(2)).await.expect("it replies");
    assert!(workers.iter().all(|worker| worker.has("x")));
    let event = published(&scheduler, "all", "replicate").await;
    assert_eq!(event.get("key-count"), Some(&Value::from(1)));
    let to = workers[1].address.to_string();
    let event = published(&scheduler, &to, "replicate-add").await;
    let from = Value::list([workers[0].address.to_string()]);
    assert_eq!(event.get("who_has"), Some(&Value::dict([("x", from)])));
    let _: Value = client.call(replicate(1)).await.expect("it replies");
    assert_eq!(workers.iter().filter(|worker| worker.has("x")).count(), 1);
}

#[tokio::test]
async fn data_is_not_moved_while_workers_are_retired() {
    let (scheduler, workers, mut client) = pair("exclusive").await;
    scatter(&mut client, &workers, &["a", "b"]).await;
    // As if a worker were retired.
    let retiring = scheduler.shared.moving.read().await;
    let mut other = Client::new(scheduler.address(), "other").await;
    let mut moving = core::pin::pin!(other.call::<Value>(Rebalance::default()));
    let early = tokio::time::timeout(Duration::from_millis(100), &mut moving).await;
    assert!(early.is_err(), "{early:?}");
    assert!(workers[0].has("a") && workers[0].has("b"));
    drop(retiring);
    moving.await.expect("it replies");
    // Several are at once.
    let retiring = scheduler.shared.moving.read().await;
    let request = RetireWorkers {
        workers: Some(vec![workers[0].address.to_string()].into()),
        ..RetireWorkers::default()
    };
    let reply: Value = client.call(request).await.expect("it replies");
    assert!(matches!(reply, Value::Dict(retired) if retired.len() == 1));
    drop(retiring);
    assert!(workers[1].has("a") && workers[1].has("b"));
}

#[tokio::test]
async fn a_worker_that_is_closed_and_not_removed_stays_until_it_has_ended() {
    let (scheduler, workers, mut client) = pair("closed").await;
    let address = workers[0].address.to_string();
    let request = RetireWorkers {
        workers: Some(vec![address.clone()].into()),
        close_workers: Some(true),
        remove: Some(false),
        ..RetireWorkers::default()
    };
    let reply: Value = client.call(request).await.expect("it replies");
    assert!(reply.get(&address).is_some(), "{reply}");
    // It leaves by itself, which is not a loss.
    let event = published(&scheduler, &address, "close-worker").await;
    assert_eq!(event, Value::dict([("action", "close-worker")]));
    let event = published(&scheduler, &address, "remove-worker").await;
    assert_eq!(event.get("expected"), Some(&Value::Bool(true)));
    let event = published(&scheduler, "all", "retire-workers").await;
    assert_eq!(event.get("retired"), Some(&Value::list([address])));
}

#[tokio::test]
async fn requests_of_clients_are_published() {
    let (scheduler, workers, mut client) = pair("published").await;
    scatter(&mut client, &workers, &["x"]).await;
    client.gather("x").await;
    let event = published(&scheduler, "all", "gather").await;
    assert_eq!(event.get("count"), Some(&Value::from(1)));
    client.submit([Task::new("bad", "operator.mul", [1, 2])], &["bad"]);
    let message = client.next().await;
    assert!(
        matches!(message, ToClient::TaskErredForClient(_)),
        "{message:?}"
    );
    let request = Retry {
        keys: ["bad"].into_iter().collect(),
        client: Some("me".to_owned()),
        ..Retry::default()
    };
    let _: Vec<Key> = client.call(request).await.expect("it replies");
    let event = published(&scheduler, "me", "retry").await;
    assert_eq!(event.get("count"), Some(&Value::from(1)));
    let address = workers[0].address.to_string();
    let request = RestartWorkers {
        workers: Some(vec![address.clone()]),
        wait_for_workers: Some(false),
        client: Some("me".to_owned()),
        ..RestartWorkers::default()
    };
    let _: Value = client.call(request).await.expect("it replies");
    let event = published(&scheduler, "me", "restart-workers").await;
    assert_eq!(event.get("workers"), Some(&Value::list([address.as_str()])));
    let event = published(&scheduler, "all", "restart-workers").await;
    assert_eq!(event.get("client"), Some(&Value::from("me")));
}
