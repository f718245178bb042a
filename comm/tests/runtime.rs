//! Tasks and timers on tokio and on smol.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use daskwire_comm::BoxFuture;
use daskwire_comm::runtime::{
    Instant, Runtime, Spawner, TaskSet, first_to_connect, lookup_host, now, scope, sleep, spawn,
    spawn_blocking, timeout,
};
use tokio::sync::oneshot;

/// Runs a check on every executor, without nesting them.
fn on_each_runtime<F: Future<Output = ()>>(check: impl Fn() -> F) {
    for threads in [false, true] {
        let mut builder = if threads {
            tokio::runtime::Builder::new_multi_thread()
        } else {
            tokio::runtime::Builder::new_current_thread()
        };
        builder.enable_all().build().unwrap().block_on(check());
    }
    smol::block_on(check());
}

#[test]
fn tasks_return_their_results() {
    on_each_runtime(async || {
        assert_eq!(spawn(async { 2 }).await.unwrap(), 2);
        assert_eq!(spawn_blocking(|| 3).await.unwrap(), 3);
    });
}

#[test]
fn dropping_a_task_leaves_it_running() {
    on_each_runtime(async || {
        let (sender, receiver) = oneshot::channel();
        drop(spawn(async {
            sleep(Duration::from_millis(1)).await;
            sender.send(4).unwrap();
        }));
        assert_eq!(receiver.await.unwrap(), 4);
    });
}

#[test]
fn aborted_tasks_are_dropped() {
    on_each_runtime(async || {
        let (sender, receiver) = oneshot::channel::<()>();
        let task = spawn(async move {
            let _sender = sender;
            core::future::pending::<()>().await;
        });
        task.abort();
        assert!(!task.await.unwrap_err().is_panic());
        receiver.await.unwrap_err();
    });
}

#[test]
fn panics_reach_the_task_that_waits() {
    on_each_runtime(async || {
        for task in [
            spawn(async { panic!("expected in this test") }),
            spawn_blocking(|| panic!("expected in this test")),
        ] {
            let error = task.await.unwrap_err();
            let panic = error.into_panic().unwrap();
            let message = panic.downcast_ref::<&str>();
            assert_eq!(message.copied(), Some("expected in this test"));
        }
        assert_eq!(
            spawn(async { 5 }).await.unwrap(),
            5,
            "the executor continues"
        );
    });
}

#[test]
fn sets_end_their_tasks() {
    on_each_runtime(async || {
        let mut set = TaskSet::new();
        assert!(set.join_next().await.is_none());
        let (sender, receiver) = oneshot::channel::<()>();
        set.spawn(async { 6 });
        set.spawn(async move {
            let _sender = sender;
            core::future::pending().await
        });
        assert_eq!(set.len(), 2);
        assert_eq!(set.join_next().await.unwrap().unwrap(), 6);
        drop(set);
        receiver.await.unwrap_err();

        let mut set = TaskSet::new();
        set.spawn(core::future::pending::<()>());
        set.shutdown().await;
        assert!(set.is_empty());
    });
}

#[test]
fn timeouts_drop_the_future() {
    on_each_runtime(async || {
        let before = now();
        let late = timeout(Duration::from_millis(5), core::future::pending::<()>());
        late.await.unwrap_err();
        assert!(now() - before >= Duration::from_millis(5));
        assert_eq!(timeout(Duration::MAX, async { 7 }).await, Ok(7));
    });
}

#[test]
fn tasks_can_be_started_from_threads_without_an_executor() {
    on_each_runtime(async || {
        let spawner = Spawner::current();
        let task = std::thread::spawn(move || spawner.spawn(async { 8 }));
        assert_eq!(task.join().unwrap().await.unwrap(), 8);
    });
}

#[test]
fn hosts_are_looked_up() {
    on_each_runtime(async || {
        let found = lookup_host("127.0.0.1", 80).await.unwrap();
        assert_eq!(found, ["127.0.0.1:80".parse().unwrap()]);
        let found = lookup_host("localhost", 81).await.unwrap();
        assert!(
            found
                .iter()
                .all(|address| address.ip().is_loopback() && address.port() == 81)
        );
        assert!(!found.is_empty());
    });
}

/// `[::n]:1` or `0.0.0.n:1`.
fn socket(is_ipv6: bool, number: u8) -> SocketAddr {
    let ip: IpAddr = if is_ipv6 {
        [0, 0, 0, 0, 0, 0, 0, number.into()].into()
    } else {
        [0, 0, 0, number].into()
    };
    SocketAddr::new(ip, 1)
}

#[tokio::test(start_paused = true)]
async fn addresses_are_tried_in_turn() {
    let addresses = vec![
        socket(true, 1),
        socket(true, 2),
        socket(true, 3),
        socket(false, 4),
    ];
    let start = now();
    let mut begun = Vec::new();
    // 0.0.0.4 refuses, ::3 answers after three seconds, and the others do not.
    let outcome = first_to_connect(addresses, |address| {
        begun.push((address.to_string(), now() - start));
        async move {
            match address {
                _ if address == socket(false, 4) => Err("refused"),
                _ if address == socket(true, 3) => {
                    sleep(Duration::from_secs(3)).await;
                    Ok(address)
                }
                _ => core::future::pending().await,
            }
        }
    });
    assert_eq!(outcome.await, Ok(socket(true, 3)));
    let after = Duration::from_millis;
    let expected = [
        ("[::1]:1", after(0)),
        ("0.0.0.4:1", after(250)),
        ("[::2]:1", after(250)),
        ("[::3]:1", after(500)),
    ];
    let expected = expected.map(|(address, after)| (address.to_owned(), after));
    assert_eq!(begun, expected);
    assert_eq!(now() - start, after(3_500));
}

#[tokio::test]
async fn errors_of_all_addresses_are_returned() {
    let addresses = vec![socket(true, 1), socket(true, 2)];
    let outcome = first_to_connect(addresses, async |address| Err::<(), _>(address));
    assert_eq!(outcome.await, Err(vec![socket(true, 1), socket(true, 2)]));
    let outcome = first_to_connect(Vec::new(), async |_| Err::<(), ()>(()));
    assert_eq!(outcome.await, Err(Vec::new()));
}

/// An executor of threads that counts what it is asked for.
#[derive(Debug, Default)]
struct Threads(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    tasks: AtomicUsize,
    timers: AtomicUsize,
    functions: AtomicUsize,
}

impl Asked {
    fn counts(&self) -> [usize; 3] {
        [&self.tasks, &self.timers, &self.functions].map(|count| count.load(Ordering::SeqCst))
    }
}

impl Runtime for Threads {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.tasks.fetch_add(1, Ordering::SeqCst);
        std::thread::spawn(|| futures_executor::block_on(task));
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        self.0.timers.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            while Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    }

    fn spawn_blocking(&self, function: Box<dyn FnOnce() + Send>) {
        self.0.functions.fetch_add(1, Ordering::SeqCst);
        std::thread::spawn(function);
    }
}

/// Starts tasks, a function and timers, each of them from within the one before.
async fn nested() -> Spawner {
    let spawned = spawn(async {
        sleep(Duration::from_millis(1)).await;
        let function = || futures_executor::block_on(spawn(async { Spawner::current() }));
        spawn_blocking(function).await.unwrap().unwrap()
    });
    spawned.await.unwrap()
}

#[test]
fn executors_of_one_process_are_apart() {
    let [first, second] = [(); 2].map(|()| Arc::new(Asked::default()));
    let scoped = |asked: &Arc<Asked>| scope(Threads(Arc::clone(asked)), nested());
    let spawner = futures_executor::block_on(scoped(&first));
    assert_eq!(first.counts(), [2, 1, 1]);
    // Within a task of tokio, and beside another scope.
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let other = Threads(Arc::clone(&first));
        scope(other, async {
            scoped(&second).await;
            spawn(async {}).await.unwrap();
        })
        .await;
        assert_eq!(second.counts(), [2, 1, 1]);
        assert_eq!(first.counts(), [3, 1, 1]);
        // Outside of the scopes, this is tokio.
        spawn(async { sleep(Duration::from_millis(1)).await })
            .await
            .unwrap();
    });
    // A handle keeps its executor.
    futures_executor::block_on(spawner.spawn(nested())).unwrap();
    assert_eq!(first.counts(), [6, 2, 2]);
    assert_eq!(second.counts(), [2, 1, 1]);
}

#[test]
fn a_future_is_dropped_in_its_scope() {
    struct Spawns;
    impl Drop for Spawns {
        fn drop(&mut self) {
            drop(spawn(async {}));
        }
    }
    let asked = Arc::new(Asked::default());
    let held = Spawns;
    drop(scope(Threads(Arc::clone(&asked)), async move {
        let _held = held;
    }));
    assert_eq!(asked.counts(), [1, 0, 0]);
}
