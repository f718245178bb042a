//! What peers may ask for, and what the scheduler keeps for them.

use super::*;

fn permit(is_client: bool, is_worker: bool) -> Permissions {
    Permissions::new("the certificate of \"alice\"")
        .with_is_client(is_client)
        .with_is_worker(is_worker)
}

/// A scheduler whose peers have these roles, and its notices.
async fn scheduler_for(
    address: &str,
    is_client: bool,
    is_worker: bool,
) -> (Scheduler, Arc<Mutex<Vec<String>>>) {
    let notices: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&notices);
    let options = Options::default()
        .with_permit(Arc::new(move |_: Option<&_>| permit(is_client, is_worker)))
        .with_on_notice(Arc::new(move |notice: &Notice| {
            lock(&kept).push(notice.to_string());
        }));
    (scheduler_with(address, options).await, notices)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[tokio::test]
async fn workers_may_not_do_what_clients_do() {
    let (scheduler, notices) = scheduler_for("inproc://of-workers", false, true).await;
    let mut channel = connect(scheduler.address()).await;
    for request in [
        Request::from(Terminate::default()),
        Request::from(RestartCluster::default()),
        Request::from(RegisterWorkerPlugin::default()),
        Request::from(RegisterNannyPlugin::default()),
        Request::from(Broadcast::default()),
        Request::from(RetireWorkers::default()),
        Request::from(Unknown::new("run_function")),
    ] {
        for _ in 0..2 {
            let refused = channel.call::<Value>(&request).await;
            let refused = refused.expect_err(request.op()).to_string();
            let expected = format!(
                "the certificate of \"alice\" may not ask for {:?}, which is for the certificates of \
                 clients",
                request.op()
            );
            assert!(refused.contains(&expected), "{refused}");
        }
    }
    // Each op is reported once.
    let denied = lock(&notices).clone();
    assert_eq!(denied.len(), 7, "{denied:?}");
    assert!(denied[0].contains("\"terminate\""), "{denied:?}");
    for request in [
        Request::from(Identity::default()),
        Request::from(Ping::default()),
        Request::from(VariableSet::default()),
        Request::from(RetireWorkers {
            workers: Some(vec!["inproc://me".to_owned()].into()),
            close_workers: Some(false),
            ..RetireWorkers::default()
        }),
    ] {
        let served = channel.call::<Value>(&request).await;
        let error = served.err().map(|error| error.to_string());
        let error = error.unwrap_or_default();
        assert!(!error.contains("may not ask"), "{error}");
    }
    let register = RegisterClient {
        client: "me".to_owned(),
        reply: Some(false),
        ..RegisterClient::default()
    };
    channel
        .sender
        .send(&Request::from(register))
        .await
        .expect("it listens");
    let batch = channel.receiver.receive_batch::<ToClient>().await;
    let batch = batch.expect("a message").expect("a message");
    let [ToClient::StreamStart(start)] = &batch[..] else {
        panic!("{batch:?}");
    };
    let error = start.error.clone().unwrap_or_default();
    assert!(
        error.contains("may not ask for \"register-client\""),
        "{error}"
    );
    assert_eq!(scheduler.inspect(State::client_count), 0);
    scheduler.close().await;
}

#[tokio::test]
async fn clients_may_not_do_what_workers_do() {
    let (scheduler, _) = scheduler_for("inproc://of-clients", true, false).await;
    let mut client = Client::new(scheduler.address(), "me").await;
    let heartbeat = HeartbeatWorker::default();
    let refused = client.call::<Value>(heartbeat).await;
    let refused = refused.expect_err("it is no worker").to_string();
    assert!(refused.contains("the certificates of workers"), "{refused}");
    let mut channel = connect(scheduler.address()).await;
    let register = RegisterWorker {
        address: "inproc://none".to_owned(),
        ..RegisterWorker::default()
    };
    channel
        .sender
        .send(&Request::from(register))
        .await
        .expect("it listens");
    let reply = channel.receiver.receive::<RegisterWorkerReply>().await;
    let reply = reply.expect("a reply").expect("a reply");
    assert_eq!(reply.status, ReplyStatus::Error);
    let message = reply.message.unwrap_or_default();
    assert!(
        message.contains("may not ask for \"register-worker\""),
        "{message}"
    );
    let _: Value = client.call(Terminate::default()).await.expect("it may");
    scheduler.closed().await.expect("it has ended");
}

#[tokio::test]
async fn peers_without_a_role_may_do_nothing() {
    let (scheduler, _) = scheduler_for("inproc://of-no-role", false, false).await;
    let mut channel = connect(scheduler.address()).await;
    let refused = channel.call::<Value>(&Identity::default().into()).await;
    let refused = refused.expect_err("it has no role").to_string();
    let expected = "for the certificates of clients and workers";
    assert!(refused.contains(expected), "{refused}");
    scheduler.close().await;
}

#[tokio::test]
async fn plugins_take_a_limited_amount_of_memory() {
    let options = Options::default().with_policy(Policy::default().with_max_shared_len(10_000));
    let scheduler = scheduler_with("inproc://plugins", options).await;
    let mut channel = connect(scheduler.address()).await;
    let register = |name: &str, len: usize| {
        Request::from(RegisterWorkerPlugin {
            name: name.to_owned(),
            plugin: Value::bytes(vec![b'x'; len]),
            ..RegisterWorkerPlugin::default()
        })
    };
    let added = channel.call::<Value>(&register("a", 8_000)).await;
    added.expect("there is room");
    let error = channel.call::<Value>(&register("b", 2_000)).await;
    let error = error.expect_err("it is full").to_string();
    assert!(error.contains("at most 10000 bytes of plugins"), "{error}");
    // It replaces the first.
    let added = channel.call::<Value>(&register("a", 9_000)).await;
    added.expect("there is room");
    scheduler.close().await;
}
