//! Clients that disconnect and return to a scheduler that keeps their keys.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use daskwire_peer::client::{
    Connection, Reconnect, Returned, Status, SubmitError, SubmitOptions, TaskError, TaskFuture,
};
use daskwire_peer::cluster::{Link, LocalCluster};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::scheduler::{Options, Policy};
use daskwire_peer::worker::Functions;
use daskwire_peer::{Client, Key, RemoteError, TaskState, Value};
use tokio::sync::Semaphore;

const TIMEOUT: Duration = Duration::from_secs(180);

/// A cluster, and a client with a link. Tasks are counted, and some of them wait.
struct Setting {
    cluster: LocalCluster,
    link: Link,
    client: Client,
    runs: Arc<AtomicUsize>,
    /// A permit for each task that may end.
    gate: Arc<Semaphore>,
}

impl Setting {
    async fn new(client_grace: Duration) -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let (counter, waiting) = (Arc::clone(&runs), Arc::clone(&gate));
        let functions = Functions::builtins()
            .function("count", move |number: i64| {
                counter.fetch_add(1, Ordering::SeqCst);
                number
            })
            .function("fail", |text: String| -> Result<i64, RemoteError> {
                Err(RemoteError::new("ValueError", &text))
            })
            .async_function("wait", move |number: i64| {
                let waiting = Arc::clone(&waiting);
                async move {
                    waiting.acquire().await.expect("never closed").forget();
                    number
                }
            });
        let policy = Policy::default().with_client_grace(client_grace);
        let cluster = LocalCluster::builder()
            .functions(functions)
            .nthreads(4)
            .scheduler(Options::default().with_policy(policy))
            .start()
            .await
            .expect("a cluster");
        let link = Link::new();
        let options = link.client_options(cluster.client_options());
        let options = options.with_reconnect(Reconnect::Within(TIMEOUT));
        let client = Client::connect_with(&cluster.address().to_string(), options).await;
        Self {
            cluster,
            link,
            client: client.expect("a client"),
            runs,
            gate,
        }
    }

    fn count(&self, key: &str) -> TaskFuture {
        let call = self.client.call("native:count").argument(7).key(key);
        call.submit().expect("submitted")
    }

    fn wait(&self, key: &str) -> TaskFuture {
        let call = self.client.call("native:wait").argument(8).key(key);
        call.submit().expect("submitted")
    }

    /// Breaks all connections, and waits until the client has returned.
    async fn cut(&self) -> Returned {
        let mut connection = self.client.watch_connection();
        self.link.cut();
        while connection.changed().await != Some(Connection::Connected) {}
        connection.last_return().expect("it has returned")
    }

    async fn close(self) {
        self.client.close().await.expect("closed");
        let Self { cluster, .. } = self;
        let clients = cluster.scheduler().inspect(|state| state.client_count());
        assert_eq!(clients, 0);
        // A client that says that it leaves has no grace.
        let left = cluster.scheduler().inspect(|state| state.grace_count());
        assert_eq!(left, 0);
        cluster.close().await;
    }
}

async fn result(future: &TaskFuture) -> Value {
    future.result_within(TIMEOUT).await.expect("a result")
}

// ROLES SCHEDULER-18
#[tokio::test(flavor = "multi_thread")]
async fn futures_are_found_again_after_a_cut() {
    let setting = Setting::new(Duration::from_secs(60)).await;
    let finished = setting.count("finished");
    let dropped = setting.count("dropped");
    let running = setting.wait("running");
    let failing = setting.client.call("native:fail").argument("no");
    let failing = failing.key("failing").submit().expect("submitted");
    assert_eq!(result(&finished).await, Value::from(7));
    assert_eq!(result(&dropped).await, Value::from(7));
    assert_eq!(failing.done().await.name(), "error");
    let data = setting.client.scatter([11]).await.expect("scattered");
    let mut connection = setting.client.watch_connection();
    setting.link.disconnect();
    assert_eq!(connection.changed().await, Some(Connection::Reconnecting));
    // Results are waited for, failures are known.
    assert_eq!(finished.status().name(), "pending");
    assert_eq!(failing.status().name(), "error");
    let waiting = tokio::spawn({
        let finished = finished.clone();
        async move { result(&finished).await }
    });
    drop(dropped);
    // The task ends while the client is away.
    setting.gate.add_permits(1);
    let scheduler = setting.cluster.scheduler();
    let key = "running".into();
    let is_done = || {
        scheduler.inspect(|state| {
            state.grace_count() == 1 && state.status(&key) == Some(TaskState::Memory)
        })
    };
    daskwire_testing::cluster::until("the task", is_done).await;
    setting.link.reconnect();
    assert_eq!(connection.changed().await, Some(Connection::Connected));
    let returned = connection.last_return().expect("it has returned");
    assert_eq!((returned.found, returned.lost), (4, 0), "{returned}");
    assert_eq!(returned.sent_again, 0);
    assert_eq!(waiting.await.expect("no panic"), Value::from(7));
    assert_eq!(result(&running).await, Value::from(8));
    assert_eq!(result(&data[0]).await, Value::from(11));
    let error = failing.result().await.expect_err("it has failed");
    assert!(matches!(error, TaskError::Failed { .. }), "{error}");
    assert_eq!(setting.runs.load(Ordering::SeqCst), 2);
    // What was dropped meanwhile is forgotten.
    let is_forgotten = || scheduler.inspect(|state| state.status(&"dropped".into()).is_none());
    daskwire_testing::cluster::until("the release", is_forgotten).await;
    // Once more, with tasks that follow.
    let returned = setting.cut().await;
    assert_eq!((returned.found, returned.lost), (4, 0), "{returned}");
    let next = setting.client.submit("operator.add", (&finished, &running));
    assert_eq!(result(&next.expect("submitted")).await, Value::from(15));
    drop((finished, running, failing, data));
    setting.close().await;
}

// ROLES SCHEDULER-18
#[tokio::test(flavor = "multi_thread")]
async fn a_submission_that_did_not_arrive_is_sent_again_and_others_are_not() {
    for grace in [0, 60] {
        let setting = Setting::new(Duration::from_secs(grace)).await;
        let first = setting.count("first");
        assert_eq!(result(&first).await, Value::from(7));
        // Until it is acknowledged. A scheduler that has forgotten the client gets it again otherwise.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut connection = setting.client.watch_connection();
        setting.link.lose("update-graph");
        let graph: Graph = [
            Task::new("second", "native:count", [7]),
            Task::new(
                "third",
                "operator.add",
                [Argument::Result(Key::from("second")), Argument::from(1)],
            ),
        ]
        .into_iter()
        .collect();
        let keys = ["second", "third"].map(Key::from).to_vec();
        let options = SubmitOptions::default();
        let both = setting.client.submit_graph(&graph, keys, &options);
        let [second, third] = &both.expect("submitted")[..] else {
            panic!("two futures")
        };
        let mut changed = connection.changed().await;
        assert_eq!(result(third).await, Value::from(8));
        // It may be connected again before its loss was looked at.
        if changed == Some(Connection::Reconnecting) {
            changed = connection.changed().await;
        }
        assert_eq!(changed, Some(Connection::Connected));
        let returned = connection.last_return().expect("it has returned");
        assert_eq!(returned.sent_again, 1, "{returned}");
        assert_eq!(result(second).await, Value::from(7));
        assert_eq!(setting.runs.load(Ordering::SeqCst), 2);
        if grace == 0 {
            assert_eq!((returned.found, returned.lost), (2, 1), "{returned}");
            let Status::Cancelled { reason } = first.status() else {
                panic!("{first:?}")
            };
            assert!(reason.contains("it has no client grace"), "{reason}");
            assert!(returned.to_string().contains("it has no client grace"));
        } else {
            assert_eq!((returned.found, returned.lost), (3, 0), "{returned}");
            assert_eq!(result(&first).await, Value::from(7));
        }
        drop(first);
        setting.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_whose_acknowledgement_was_lost_is_not_sent_again() {
    let setting = Setting::new(Duration::from_secs(60)).await;
    for round in 0..20 {
        let before = setting.runs.load(Ordering::SeqCst);
        let future = setting.count(&format!("task-{round}"));
        // The acknowledgement takes up to 20 ms, the task less.
        daskwire_testing::cluster::until("the task", || {
            setting.runs.load(Ordering::SeqCst) > before
        })
        .await;
        let returned = setting.cut().await;
        assert_eq!((returned.found, returned.sent_again), (1, 0), "{returned}");
        assert_eq!(result(&future).await, Value::from(7));
        drop(future);
    }
    assert_eq!(setting.runs.load(Ordering::SeqCst), 20);
    setting.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_away_for_too_long_is_told_so() {
    let setting = Setting::new(Duration::from_millis(300)).await;
    let future = setting.count("x");
    assert_eq!(result(&future).await, Value::from(7));
    // Until it is acknowledged: the task would be submitted again otherwise.
    tokio::time::sleep(Duration::from_secs(1)).await;
    setting.link.disconnect();
    let scheduler = setting.cluster.scheduler();
    daskwire_testing::cluster::until("the grace", || {
        scheduler.inspect(|state| state.task_count() == 0)
    })
    .await;
    setting.link.reconnect();
    let error = future.result_within(TIMEOUT).await.expect_err("it is lost");
    assert!(matches!(error, TaskError::Cancelled { .. }), "{error}");
    let expected = "disconnected for longer than the 0.3 s";
    assert!(error.to_string().contains(expected), "{error}");
    setting.client.connected().await.expect("it returns");
    let returned = setting.client.last_return().expect("it has returned");
    assert_eq!((returned.found, returned.lost), (0, 1), "{returned}");
    let reason = returned.reason.expect("a reason");
    assert!(reason.contains(expected), "{reason}");
    drop(future);
    setting.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_survive_many_cuts_and_run_once() {
    let setting = Setting::new(Duration::from_secs(60)).await;
    let mut futures = Vec::new();
    for round in 0..40 {
        let part = loop {
            match submit_part(&setting.client, round) {
                Ok(part) => break part,
                Err(SubmitError::Reconnecting { .. }) => {
                    setting.client.connected().await.expect("it returns");
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        futures.extend(part);
        if round % 4 == 3 {
            // The next submissions come before or after it is noticed.
            setting.link.cut();
        }
    }
    let values = setting.client.gather(&futures).await.expect("results");
    assert!(values.into_iter().eq((0..2000).map(Value::from)));
    assert_eq!(setting.runs.load(Ordering::SeqCst), 2000);
    drop(futures);
    let scheduler = setting.cluster.scheduler();
    daskwire_testing::cluster::until("the releases", || {
        scheduler.inspect(|state| state.task_count() == 0)
    })
    .await;
    setting.close().await;
}

/// Submits fifty tasks.
fn submit_part(client: &Client, round: i64) -> Result<Vec<TaskFuture>, SubmitError> {
    let calls = client.calls("native:count");
    calls.over(round * 50..(round + 1) * 50).impure().submit()
}
