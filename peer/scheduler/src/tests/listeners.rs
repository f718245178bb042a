//! Listeners that fail.

use daskwire_comm::{
    BoxFuture, Closed, CommOptions, ConnectError, ConnectOptions, Listen, PendingConnection,
    Transport, Transports,
};
use std::io;
use tokio::sync::Mutex as AsyncMutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::*;

/// A transport whose listener only has errors.
struct Failing {
    errors: Mutex<Option<UnboundedReceiver<CommError>>>,
}

struct FailingListener {
    address: Address,
    errors: AsyncMutex<UnboundedReceiver<CommError>>,
}

impl Transport for Failing {
    fn schemes(&self) -> &[&'static str] {
        &["failing"]
    }

    fn connect<'a>(
        &'a self,
        _: &'a Address,
        _: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(core::future::pending())
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        let errors = lock(&self.errors).take().expect("it is bound once");
        Box::pin(async {
            let listener: Box<dyn Listen> = Box::new(FailingListener {
                address: address.clone(),
                errors: AsyncMutex::new(errors),
            });
            Ok(listener)
        })
    }
}

impl Listen for FailingListener {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        Box::pin(async {
            match self.errors.lock().await.recv().await {
                Some(error) => Err(error),
                None => core::future::pending().await,
            }
        })
    }

    fn local_address(&self) -> io::Result<Address> {
        Ok(self.address.clone())
    }
}

async fn failing_listener() -> (Listener, UnboundedSender<CommError>) {
    let (errors, receiver) = unbounded_channel();
    let failing = Failing {
        errors: Mutex::new(Some(receiver)),
    };
    let address = "failing://here".parse().expect("an address");
    let transports = Transports::new().with(failing);
    let listener = transports.bind(&address, CommOptions::default()).await;
    (listener.expect("it is bound"), errors)
}

fn busy() -> CommError {
    CommError::Io(io::ErrorKind::Interrupted.into())
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_fails_is_reported_and_others_still_accept() {
    let notices: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let kept = Arc::clone(&notices);
    let options = Options::default().with_on_notice(Arc::new(move |notice: &Notice| {
        lock(&kept).push(notice.clone());
    }));
    let (first, errors) = failing_listener().await;
    let other = "inproc://still-accepts".parse().expect("an address");
    let transports = daskwire_rpc::transports();
    let second = transports.bind(&other, CommOptions::default()).await;
    let second = second.expect("it is free");
    let scheduler = Scheduler::start([first, second], options).expect("it starts");
    // A run of failures is reported once.
    for error in [busy(), busy(), Closed::Locally.into()] {
        errors.send(error).expect("it listens");
    }
    until(|| lock(&notices).len() == 2).await;
    let notices_so_far: Vec<String> = lock(&notices).iter().map(ToString::to_string).collect();
    let [retried, notice] = &notices_so_far[..] else {
        panic!("{notices_so_far:?}");
    };
    let expected = "failing://here cannot accept connections, and will retry: ";
    assert!(retried.starts_with(expected), "{retried}");
    let expected = "failing://here accepts no more connections: ";
    assert!(notice.starts_with(expected), "{notice}");
    let mut client = connect(&other).await;
    let pong: Value = client
        .call(&Request::from(Ping::default()))
        .await
        .expect("it replies");
    assert_eq!(pong, Value::bytes(&b"pong"[..]));
    assert_eq!(lock(&notices).len(), 2);
    scheduler.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_ends_with_its_last_listener() {
    let (listener, errors) = failing_listener().await;
    let scheduler = Scheduler::start([listener], Options::default()).expect("it starts");
    for _ in 0..3 {
        errors.send(busy()).expect("it listens");
    }
    let later = tokio::time::sleep(Duration::from_secs(60));
    tokio::select! {
        ended = scheduler.closed() => panic!("{ended:?}"),
        () = later => {}
    }
    errors.send(Closed::Locally.into()).expect("it listens");
    let error = scheduler.closed().await.expect_err("its listener failed");
    assert!(
        matches!(error, ServeError::ListenerFailed { .. }),
        "{error}"
    );
    let error = error.to_string();
    let expected = "failing://here accepts no more connections: ";
    assert!(error.starts_with(expected), "{error}");
    scheduler.close().await;
}

#[tokio::test]
async fn a_scheduler_needs_a_listener() {
    let error = Scheduler::start([], Options::default()).expect_err("there is none");
    assert!(matches!(error, StartError::NoListeners), "{error}");
}
