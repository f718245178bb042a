//! Workers that lose their connection to the scheduler, and return with what they have.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use daskwire_peer::cluster::{ClusterTransport, LocalCluster};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::worker::{Context, Ended, Functions, Worker};
use daskwire_peer::{Key, Value};
use daskwire_testing::Random;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const TIMEOUT: Duration = Duration::from_secs(120);

/// How often each task has run.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<BTreeMap<Key, usize>>>);

impl Runs {
    /// A function that adds its arguments after a time, in milliseconds.
    fn functions(&self) -> Functions {
        let runs = self.clone();
        let add = move |context: Context, millis: u64, one: i64, other: i64| {
            *runs
                .0
                .lock()
                .expect("no panic")
                .entry(context.key())
                .or_default() += 1;
            std::thread::sleep(Duration::from_millis(millis));
            one + other
        };
        Functions::new().function("add", add)
    }

    fn count(&self) -> usize {
        self.0.lock().expect("no panic").len()
    }

    /// The tasks that have run more than once.
    fn repeated(&self) -> Vec<(Key, usize)> {
        let runs = self.0.lock().expect("no panic");
        let repeated = runs.iter().filter(|(_, count)| **count > 1);
        repeated.map(|(key, count)| (key.clone(), *count)).collect()
    }
}

/// Chains of tasks whose ends are added.
fn graph(chains: i64, length: i64, millis: i64) -> (Graph, Vec<Key>) {
    let key = |chain: i64, step: i64| Key::list([Key::from("t"), chain.into(), step.into()]);
    let mut tasks = Vec::new();
    for chain in 0..chains {
        for step in 0..length {
            let before = match step {
                0 => Argument::from(chain),
                _ => Argument::from(key(chain, step - 1)),
            };
            let arguments = [Argument::from(millis), before, Argument::from(1)];
            tasks.push(Task::new(key(chain, step), "native:add", arguments));
        }
    }
    let ends = (0..chains).map(|chain| key(chain, length - 1)).collect();
    (tasks.into_iter().collect(), ends)
}

/// Waits until the workers have so many results.
async fn data_left(cluster: &LocalCluster, count: usize) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let workers = cluster.workers();
        let left: usize = workers.iter().map(|worker| worker.keys().len()).sum();
        if left == count {
            return;
        }
        assert!(Instant::now() < deadline, "{left} results are left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_runs_again_whose_result_or_run_a_worker_returns_with() {
    for transport in [ClusterTransport::Memory, ClusterTransport::Tcp] {
        let runs = Runs::default();
        let cluster = LocalCluster::builder()
            .transport(transport)
            .workers(1)
            .nthreads(4)
            .functions(runs.functions())
            .start()
            .await
            .expect("a cluster");
        let client = cluster.client().await.expect("a client");
        let (graph, ends) = graph(10, 15, 10);
        let futures = client
            .submit_graph(&graph, ends, &Default::default())
            .expect("submitted");
        let mut random = Random(7);
        let link = cluster.link(0).expect("a worker");
        let mut cuts = 0;
        while runs.count() < 140 {
            let pause = Duration::from_millis(random.below(90) as u64);
            tokio::time::sleep(pause).await;
            link.cut();
            cuts += 1;
            if random.below(4) == 0 {
                link.disconnect();
                tokio::time::sleep(Duration::from_millis(random.below(300) as u64)).await;
                link.reconnect();
            }
        }
        for (chain, future) in futures.iter().enumerate() {
            let result = future.result_within(TIMEOUT).await.expect("a result");
            assert_eq!(result, Value::from(chain as i64 + 15));
        }
        assert_eq!(runs.repeated(), [], "after {cuts} breaks");
        assert!(cuts > 3, "{cuts}");
        // What nothing needs is deleted.
        data_left(&cluster, 10).await;
        drop(futures);
        data_left(&cluster, 0).await;
        client.close().await.expect("closed");
        cluster.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_right_while_workers_come_and_go() {
    let runs = Runs::default();
    let cluster = LocalCluster::builder()
        .transport(ClusterTransport::Tcp)
        .workers(3)
        .nthreads(2)
        .functions(runs.functions())
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let (graph, ends) = graph(20, 10, 5);
    let futures = client
        .submit_graph(&graph, ends, &Default::default())
        .expect("submitted");
    let mut random = Random(11);
    while runs.count() < 190 {
        tokio::time::sleep(Duration::from_millis(random.below(60) as u64)).await;
        cluster.link(random.below(3)).expect("a worker").cut();
    }
    for (chain, future) in futures.iter().enumerate() {
        let result = future.result_within(TIMEOUT).await.expect("a result");
        assert_eq!(result, Value::from(chain as i64 + 10));
    }
    drop(futures);
    data_left(&cluster, 0).await;
    client.close().await.expect("closed");
    cluster.close().await;
}

/// A network between workers and their scheduler. If it breaks, the scheduler does not notice.
struct Network {
    port: u16,
    breaks: watch::Sender<()>,
}

impl Network {
    async fn new(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it listens").port();
        let (breaks, broken) = watch::channel(());
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (to, mut broken) = (to.clone(), broken.clone());
                broken.mark_unchanged();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(to).await.expect("it listens");
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = broken.changed() => {
                            let _ = near.shutdown().await;
                            drop(near);
                            // The other end stays open for the rest of the test.
                            core::future::pending::<()>().await;
                        }
                    }
                });
            }
        });
        Self { port, breaks }
    }
}

// ROLES SCHEDULER-17
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_returns_before_its_scheduler_notices_its_loss() {
    let cluster = LocalCluster::builder()
        .transport(ClusterTransport::Tcp)
        .workers(0)
        .start()
        .await
        .expect("a cluster");
    let client = cluster.client().await.expect("a client");
    let scheduler = cluster.address().to_string();
    let network = Network::new(scheduler.trim_start_matches("tcp://").to_owned()).await;
    let runs = Runs::default();
    let start = |address: String, name: &str| {
        Worker::builder(address.parse().expect("an address"))
            .name(name)
            .nthreads(2)
            .functions(runs.functions())
            .start()
    };
    let worker = start(format!("tcp://127.0.0.1:{}", network.port), "returns").await;
    let worker = worker.expect("it starts");
    let (graph, ends) = graph(2, 3, 600);
    let futures = client
        .submit_graph(&graph, ends, &Default::default())
        .expect("submitted");
    while runs.count() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Another worker could take over what the first has.
    let other = start(scheduler, "other").await.expect("it starts");
    network.breaks.send_replace(());
    for (chain, future) in futures.iter().enumerate() {
        let result = future.result_within(TIMEOUT).await.expect("a result");
        assert_eq!(result, Value::from(chain as i64 + 3));
    }
    assert_eq!(runs.repeated(), []);
    let identity = client.identity().await.expect("a description");
    assert_eq!(identity.workers.len(), 2);
    worker.close().await;
    other.close().await;
    assert!(matches!(worker.ended().await, Ended::Closed));
    client.close().await.expect("closed");
    cluster.close().await;
}
