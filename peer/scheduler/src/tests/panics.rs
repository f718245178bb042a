//! Panics of the state machine and of callbacks.

use daskwire_messages::protocol::WorkerStatus;
use daskwire_rpc::channel::ObservedMessage;

use super::*;

#[tokio::test]
async fn a_panic_of_the_state_machine_ends_the_scheduler_and_its_streams() {
    let notices: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let kept = Arc::clone(&notices);
    let options = Options::default().with_on_notice(Arc::new(move |notice: &Notice| {
        kept.lock().expect("no panic").push(notice.clone());
    }));
    let scheduler = scheduler_with("inproc://panic", options).await;
    let _worker = Worker::new(scheduler.address(), "inproc://panic-1").await;
    let mut other_worker = connect(scheduler.address()).await;
    let register = Request::from(RegisterWorker {
        extra_information: rust_worker(),
        address: "inproc://panic-2".to_owned(),
        status: WorkerStatus::Paused,
        ..RegisterWorker::default()
    });
    let _: RegisterWorkerReply = other_worker.call(&register).await.expect("it replies");
    let mut client = Client::new(scheduler.address(), "me").await;
    let mut other = Client::new(scheduler.address(), "other").await;
    let x = Key::from("x");
    scheduler.shared.panic_over(x);
    let y = Task::new("y", "operator.neg", [Argument::Result(Key::from("x"))]);
    client.submit([Task::new("x", "operator.add", [1, 2]), y], &["y"]);
    for client in [&mut client, &mut other] {
        // Clients in Python wait for their futures forever after a message that the scheduler
        // closes.
        assert!(client.try_next().await.is_none());
    }
    let batch = other_worker.receiver.receive_batch::<ToWorker>().await;
    let batch = batch.expect("it is notified").expect("it is notified");
    let ToWorker::Close(close) = &batch[0] else {
        panic!("{batch:?}");
    };
    let reason = close.reason.as_deref().unwrap_or_default();
    assert!(reason.starts_with("the scheduler panicked: "), "{reason}");
    let ended = scheduler.closed().await.expect_err("it panicked");
    assert!(matches!(ended, ServeError::Panicked { .. }), "{ended}");
    scheduler.inspect(|state| {
        state.check();
        assert_eq!((state.task_count(), state.worker_count()), (0, 0));
    });
    let is_panic = |notice: &Notice| matches!(notice, Notice::Panicked { .. });
    assert!(notices.lock().expect("no panic").iter().any(is_panic));
    scheduler.close().await;
}

#[tokio::test]
async fn panicking_callback_is_not_called_again() {
    let count = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&count);
    let options = Options::default().with_on_notice(Arc::new(move |_: &Notice| {
        *lock(&counted) += 1;
        panic!("the callback panics");
    }));
    let scheduler = scheduler_with("inproc://callback", options).await;
    let _worker = Worker::new(scheduler.address(), "inproc://callback-1").await;
    let worker = Worker::new(scheduler.address(), "inproc://callback-2").await;
    let mut client = Client::new(scheduler.address(), "me").await;
    client.submit([Task::new("x", "operator.add", [1, 2])], &["x"]);
    client.wait(&["x"]).await;
    worker.kill().await;
    until(|| scheduler.inspect(State::worker_count) == 1).await;
    assert_eq!(*lock(&count), 1);
}

/// Panics at the second message of one client.
struct PanickingObserver;

impl Observer for PanickingObserver {
    fn message(&self, seen: &ObservedMessage<'_>) {
        assert!(
            seen.is_leaving || seen.peer != "broken",
            "the observer panics"
        );
    }
}

#[tokio::test]
async fn a_client_whose_stream_ends_by_a_panic_is_removed() {
    let options = Options::default().with_observer(Arc::new(PanickingObserver));
    let scheduler = scheduler_with("inproc://observer", options).await;
    let mut client = Client::new(scheduler.address(), "me").await;
    let broken = Client::new(scheduler.address(), "broken").await;
    let x = Task::new("x", "operator.add", [1, 2]);
    client.submit([x], &[]);
    client.send(ClientDesiresKeys {
        keys: ["unknown"].into_iter().collect(),
        client: Some("broken".to_owned()),
        ..ClientDesiresKeys::default()
    });
    broken.send(HeartbeatClient::default());
    // The client is not registered any more.
    until(|| {
        let left = scheduler.inspect(|state| state.client_count());
        left == 1
    })
    .await;
    client.send(HeartbeatClient::default());
    let message = client.next().await;
    assert!(
        matches!(message, ToClient::AdjustHeartbeatInterval(_)),
        "{message:?}"
    );
}
