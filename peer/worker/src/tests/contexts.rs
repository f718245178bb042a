//! What functions do with their contexts.

use daskwire_messages::value::IntoValue;

use super::*;

#[tokio::test]
async fn an_async_function_is_not_run_on_the_thread_that_receives_tasks() {
    let functions = Functions::new()
        .async_function("same", |n: i64| async move { n })
        .quick("same");
    // Otherwise, this test would not end.
    assert!(!functions.is_quick("same"));
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w").functions(functions);
    let (_worker, mut stream) = scheduler.start(builder).await;
    stream.compute(&Task::new("x", "native:same", [1])).await;
    assert_eq!(stream.finished().await.key, "x".into());
}

#[tokio::test]
async fn quick_functions_do_not_secede() {
    let functions = Functions::new()
        .function("secede", |context: Context, _: i64| context.secede())
        .quick("secede");
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w").functions(functions);
    let (_worker, mut stream) = scheduler.start(builder).await;
    stream.compute(&Task::new("x", "native:secede", [1])).await;
    assert_eq!(
        stream.erred().await.exception_text.as_deref(),
        Some("RuntimeError('the task cannot secede: its function is declared as quick')")
    );
}

#[tokio::test]
async fn contexts_have_no_effect_after_the_end_of_their_task() {
    let (sender, mut calls) = mpsc::unbounded_channel();
    let (finish, finished) = std::sync::mpsc::channel();
    let finished = Mutex::new(finished);
    let keep = move |arguments: Arguments| {
        let _ = sender.send(arguments);
        let finished = finished.lock().expect("not poisoned").recv();
        Ok(Value::from(finished.is_ok()))
    };
    let scheduler = Scheduler::new("inproc").await;
    let functions = Functions::new().with("keep", keep);
    let builder = scheduler.worker("w").functions(functions);
    let (worker, mut stream) = scheduler.start(builder).await;
    let cancellable_count = || worker.shared.machine().cancellations.len();
    let task = Task::new("x", "native:keep", [0; 0]);

    stream.compute(&task).await;
    let early = calls.recv().await.expect("a call").context();
    assert_eq!(cancellable_count(), 1);
    finish.send(()).expect("the task waits");
    stream.finished().await;
    assert_eq!(cancellable_count(), 0);
    stream.compute(&Task::new("y", "native:keep", [0; 0])).await;
    let arguments = calls.recv().await.expect("a call");
    finish.send(()).expect("the task waits");
    stream.finished().await;
    let late = arguments.context();
    assert!(late.is_cancelled());
    assert_eq!(cancellable_count(), 0);

    // Another run with the key
    let free = FreeKeys {
        keys: ["x", "y"].into_iter().collect(),
        ..FreeKeys::default()
    };
    stream.send([free.into()]).await;
    for _ in 0..2 {
        let message = stream.next_message().await;
        assert!(
            matches!(message, FromWorker::ReleaseWorkerData(_)),
            "{message:?}"
        );
    }
    stream.compute(&task).await;
    let _running = calls.recv().await.expect("a call");
    assert_eq!((early.secede(), late.secede()), (Ok(()), Ok(())));
    assert!(!worker.shared.machine().state.is_idle());
    finish.send(()).expect("the task waits");
    assert_eq!(stream.finished().await.key, "x".into());
}

#[tokio::test]
async fn events_are_converted_before_the_state_is_locked() {
    struct Event(Context);

    impl IntoValue for Event {
        fn into_value(self) -> Result<Value, Box<dyn core::error::Error + Send + Sync>> {
            self.0.log_event("inner", 1);
            2.into_value()
        }
    }

    struct Panics;

    impl IntoValue for Panics {
        fn into_value(self) -> Result<Value, Box<dyn core::error::Error + Send + Sync>> {
            panic!("no event")
        }
    }

    struct Fails;

    impl IntoValue for Fails {
        fn into_value(self) -> Result<Value, Box<dyn core::error::Error + Send + Sync>> {
            Err("it has no form".into())
        }
    }

    let functions = Functions::new()
        .function("log", |context: Context| {
            context.log_event("outer", Event(context.clone()));
        })
        .function("panic", |context: Context| {
            context.log_event("topic", Panics);
        })
        .function("deep", |context: Context| {
            let deep = (0..1000).fold(Value::None, |value, _| Value::list([value]));
            context.log_event("topic", deep);
            context.log_event("topic", Fails);
        });
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w").functions(functions);
    let (worker, mut stream) = scheduler.start(builder).await;
    stream.compute(&Task::new("x", "native:log", [0; 0])).await;
    for (topic, msg) in [("inner", 1), ("outer", 2)] {
        let message = stream.next_message().await;
        let FromWorker::LogEvent(event) = message else {
            panic!("{message:?}")
        };
        assert_eq!((event.topic, event.msg), (topic.into(), msg.into()));
    }
    assert_eq!(stream.finished().await.key, "x".into());

    stream
        .compute(&Task::new("y", "native:panic", [0; 0]))
        .await;
    assert_eq!(stream.erred().await.key, "y".into());
    assert!(!worker.shared.panic_flag.is_set());

    // The scheduler could not read the first event, and the second one does not convert.
    stream.compute(&Task::new("z", "native:deep", [0; 0])).await;
    assert_eq!(stream.finished().await.key, "z".into());
}

#[cfg(feature = "client")]
#[tokio::test]
async fn a_client_that_was_closed_is_replaced() {
    use daskwire_messages::RemoteError;
    use daskwire_messages::protocol::{StreamStart, ToClient};

    let use_client = |context: Context| async move {
        let client = context.client().await?;
        assert_eq!(client.id(), context.client().await?.id());
        let id = client.id().to_owned();
        // Whether the scheduler has noticed is of no interest.
        let _ = client.close().await;
        Ok::<_, RemoteError>(id)
    };
    let functions = Functions::new().async_function("client", use_client);
    let scheduler = Scheduler::new("inproc").await;
    let builder = scheduler.worker("w").functions(functions);
    let (_worker, mut stream) = scheduler.start(builder).await;
    for key in ["x", "y"] {
        stream
            .compute(&Task::new(key, "native:client", [0; 0]))
            .await;
        let connecting = async {
            let mut requests = scheduler.accept().await;
            let asked = requests.receiver.receive::<Request>().await;
            assert!(matches!(asked, Ok(Some(Request::Versions(_)))), "{asked:?}");
            let packages = Value::dict([("distributed", "2026.8.0")]);
            let versions = Value::dict([("packages", packages)]);
            requests.sender.send(&versions).await.expect("it listens");
            let mut registered = scheduler.accept().await;
            let asked = registered.receiver.receive::<Request>().await;
            assert!(
                matches!(asked, Ok(Some(Request::RegisterClient(_)))),
                "{asked:?}"
            );
            let start = vec![ToClient::from(StreamStart::default())];
            registered.sender.send(&start).await.expect("it listens");
            drop(registered);
            requests
        };
        let connecting = tokio::time::timeout(Duration::from_secs(20), connecting).await;
        let _requests = connecting.expect("a client in time");
        assert_eq!(stream.finished().await.key, key.into());
    }
}
