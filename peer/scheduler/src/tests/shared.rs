//! Requests about shared objects, over comms.

use super::*;

async fn start(name: &str) -> (Scheduler, Client) {
    let scheduler = scheduler(&format!("inproc://{name}")).await;
    let client = Client::new(scheduler.address(), name).await;
    (scheduler, client)
}

#[tokio::test]
async fn a_request_waits_for_another_client() {
    let (scheduler, mut one) = start("shared-wait").await;
    let mut two = Client::new(scheduler.address(), "two").await;
    let waiting = EventWait {
        name: Key::from("e"),
        ..EventWait::default()
    };
    let setting = async {
        until(|| scheduler.inspect(|state| state.waiting_request_count() == 1)).await;
        let set = EventSet {
            name: Key::from("e"),
            ..EventSet::default()
        };
        two.call::<Value>(set).await
    };
    let (waited, set) = tokio::join!(one.call::<Value>(waiting), setting);
    assert_eq!(waited.expect("it replies"), Value::from(true));
    assert_eq!(set.expect("it replies"), Value::None);
    let is_set = EventIsSet {
        name: Key::from("e"),
        ..EventIsSet::default()
    };
    // The comm of a request that has waited serves others.
    let is_set: Value = one.call(is_set).await.expect("it replies");
    assert_eq!(is_set, Value::from(true));
}

#[tokio::test]
async fn a_request_whose_comm_ends_waits_no_longer() {
    let (scheduler, client) = start("shared-end").await;
    let mut channel = connect(scheduler.address()).await;
    let request = Request::from(EventWait {
        name: Key::from("e"),
        ..EventWait::default()
    });
    channel.send_request(&request).await.expect("it is sent");
    // The next request of the comm is read meanwhile, and answered later.
    let next = Request::from(EventSet {
        name: Key::from("f"),
        ..EventSet::default()
    });
    channel.send_request(&next).await.expect("it is sent");
    until(|| scheduler.inspect(|state| state.waiting_request_count() == 1)).await;
    drop(channel);
    let mut channel = connect(scheduler.address()).await;
    channel.send_request(&request).await.expect("it is sent");
    until(|| scheduler.inspect(|state| state.waiting_request_count() == 2)).await;
    drop(channel);
    until(|| scheduler.inspect(|state| state.waiting_request_count() == 1)).await;
    // A comm with a further message is read again only after the reply, which fails here.
    let mut channel = connect(scheduler.address()).await;
    let set = Request::from(EventSet {
        name: Key::from("e"),
        ..EventSet::default()
    });
    let _: Value = channel.call(&set).await.expect("it replies");
    until(|| scheduler.inspect(|state| state.waiting_request_count() == 0)).await;
    drop(client);
}

#[tokio::test]
async fn a_variable_keeps_its_future_after_the_client_has_left() {
    let (scheduler, mut one) = start("shared-variable").await;
    let worker = Worker::new(scheduler.address(), "inproc://shared-variable-worker").await;
    let name = Key::from("v");
    let set = VariableSet {
        name: name.clone(),
        key: Some(Key::from("x")),
        ..VariableSet::default()
    };
    // The request is sent before the task, on another comm.
    let mut channel = connect(scheduler.address()).await;
    let set = Request::from(set);
    channel.send_request(&set).await.expect("it is sent");
    until(|| scheduler.inspect(|state| state.waiting_request_count() == 1)).await;
    one.submit([Task::new("x", "operator.add", [1, 2])], &["x"]);
    let reply: Value = channel.receive_reply().await.expect("it replies");
    assert_eq!(reply, Value::None);
    one.wait(&["x"]).await;
    drop(one);
    until(|| scheduler.inspect(|state| state.totals().clients_removed == 1)).await;
    let mut two = Client::new(scheduler.address(), "two").await;
    let get = VariableGet {
        name: name.clone(),
        ..VariableGet::default()
    };
    let record: Value = two.call(get).await.expect("it replies");
    assert_eq!(record.get("type"), Some(&Value::from("Future")));
    assert_eq!(record.get("value"), Some(&Value::from("x")));
    assert_eq!(record.get("state"), Some(&Value::from("memory")));
    let token = record.get("token").and_then(Value::as_str);
    let delete = VariableDelete {
        name: name.clone(),
        ..VariableDelete::default()
    };
    two.send(delete);
    two.send(VariableReceived {
        name,
        key: Key::from("x"),
        token: token.expect("a string").to_owned(),
        ..VariableReceived::default()
    });
    two.wait(&["x"]).await;
    assert_eq!(two.gather("x").await, Value::from(3));
    drop(two);
    until(|| !worker.has("x")).await;
}
