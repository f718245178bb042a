//! Tests of the client methods that the Python client has, too, with a Python client
//! of the same scheduler.

use core::time::Duration;
use std::collections::BTreeSet;

use crate::support::client::client_at;
use daskwire_messages::protocol::Unknown;
use daskwire_peer::client::{
    PluginKind, Restarted, Route, RunError, ScatterOptions, SharedValue, SubmitOptions, TaskError,
    TaskFuture, Workers,
};
use daskwire_peer::graph::Argument;
use daskwire_peer::{Client, Key, RequestError, Value};
use daskwire_testing::cluster::{Cluster, until};

const TIMEOUT: Duration = Duration::from_secs(60);
const SHORT: Option<Duration> = Some(Duration::from_millis(50));
const LONG: Option<Duration> = Some(TIMEOUT);

fn integer(value: Value) -> i64 {
    i64::try_from(value).expect("an integer")
}

fn data(value: SharedValue) -> Value {
    Value::try_from(value).expect("data")
}

fn future(value: SharedValue) -> TaskFuture {
    match value {
        SharedValue::Future(future) => future,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn futures_are_awaited_and_passed_as_arguments() {
    let cluster = Cluster::new(2);
    let client = client_at(cluster.scheduler.address()).await;
    // Arguments of any type, and `await`.
    let x = client.submit("operator.add", (1, 2)).expect("submitted");
    let y = client.submit("builtins.pow", (&x, 2)).expect("submitted");
    let z = client
        .submit("operator.truediv", (y.clone(), 2.0))
        .expect("submitted");
    assert_eq!((&z).await.expect("a result"), Value::from(4.5));
    assert_eq!(z.type_name().as_deref(), Some("float"));
    assert_eq!(integer(y.await.expect("a result")), 9);
    let array = client.submit("numpy.arange", [3]).expect("submitted");
    assert_eq!(array.type_name(), None);
    array.finished().await.expect("a result");
    assert_eq!(array.type_name().as_deref(), Some("numpy.ndarray"));
    assert_eq!(array.exception().await.expect("no other error"), None);
    assert_eq!(
        client
            .submit("builtins.dict", ())
            .expect("submitted")
            .await
            .expect("a result")
            .to_string(),
        "{}"
    );

    // Errors name their tasks, and include causes.
    let bad = client
        .call("operator.truediv")
        .argument(1)
        .argument(0)
        .key("bad-1");
    let bad = bad.submit().expect("submitted");
    let error = (&bad).await.expect_err("it fails");
    assert_eq!(error.key(), &Key::from("bad-1"));
    let exception = bad
        .exception()
        .await
        .expect("it failed")
        .expect("an exception");
    assert_eq!(exception.class, "ZeroDivisionError");
    bad.retry().await.expect("retried");
    assert!(bad.exception().await.expect("it failed").is_some());

    // Calls over several sequences
    let powers = client
        .calls("builtins.pow")
        .over([2, 3, 5])
        .over([10, 2, 1, 0]);
    let powers = powers.submit().expect("submitted");
    let powers = client.gather(&powers).await.expect("results");
    assert!(powers.into_iter().map(integer).eq([1024, 9, 5]));
    let sorted = client
        .calls("builtins.sorted")
        .over([Value::list([1, 3]), Value::list([2, 4])])
        .keyword("reverse", true)
        .keys(["s-1", "s-2"])
        .submit()
        .expect("submitted");
    assert_eq!(sorted[1].key(), &Key::from("s-2"));
    assert_eq!((&sorted[1]).await.expect("a result").to_string(), "[4, 2]");
    let random = client
        .calls("os.urandom")
        .over([16, 16])
        .impure()
        .submit()
        .expect("submitted");
    assert_ne!(
        (&random[0]).await.expect("bytes"),
        (&random[1]).await.expect("bytes")
    );
    let wrong = client
        .calls("os.urandom")
        .over([16, 16])
        .keys(["one"])
        .submit();
    let error = wrong.expect_err("one key is missing");
    assert_eq!(
        error.to_string(),
        "got 1 keys for 2 tasks: give each task one key"
    );

    // Streams of results
    let negated = client.map("operator.neg", 1..=3_i64).expect("submitted");
    let mut results = client.as_completed(negated).results();
    let late = client.submit("operator.neg", [40]).expect("submitted");
    assert_eq!(results.add(late), 3);
    assert_eq!(results.add(bad.clone()), 4);
    let (mut found, mut errors) = (BTreeSet::new(), 0);
    while let Some((index, result)) = results.next().await {
        match result {
            Ok(value) => assert!(found.insert((index, integer(value)))),
            Err(error) => errors += i32::from(index == 4 && error.key() == bad.key()),
        }
    }
    assert_eq!(found, [(0, -1), (1, -2), (2, -3), (3, -40)].into());
    assert_eq!(errors, 1);
    let mut batches =
        client.as_completed(client.map("operator.neg", 1..=3_i64).expect("submitted"));
    let mut indexes = Vec::new();
    while let Some(batch) = batches.next_batch().await {
        assert!(!batch.is_empty());
        indexes.extend(batch.into_iter().map(|completed| completed.index));
    }
    indexes.sort_unstable();
    assert_eq!((indexes, batches.is_empty()), (vec![0, 1, 2], true));

    // Cancellation
    let slow = client.submit("time.sleep", [100]).expect("submitted");
    slow.cancel().expect("sent");
    let error = slow.await.expect_err("cancelled");
    assert!(matches!(error, TaskError::Cancelled { .. }), "{error}");
    client.close().await.expect("closed");
    let error = z.await.expect_err("not connected");
    assert!(error.to_string().contains("truediv"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_workers_and_fetched_objects_are_used() {
    let mut cluster = Cluster::new(2);
    let client = client_at(cluster.scheduler.address()).await;
    // An object without a Rust equivalent can be sent back as an argument.
    let frame = cluster.python("f = client.scatter(pd.DataFrame({'a': [1, 2]})); f.key");
    let frame = client.future(frame.trim_matches('\'')).expect("a future");
    let fetched = frame.await.expect("a result");
    assert!(matches!(fetched, Value::Serialized(_)));
    let shape = client.submit("builtins.getattr", (fetched.clone(), "shape"));
    assert_eq!(
        shape.expect("submitted").await.expect("a result"),
        Value::tuple([2, 1])
    );
    // Also within a container.
    let hidden = Value::list([fetched, Value::from(3)]);
    let hidden = client.submit("operator.getitem", (hidden, 0));
    let again = hidden.expect("submitted");
    let shape = client.submit("builtins.getattr", (&again, "shape"));
    assert_eq!(
        shape.expect("submitted").await.expect("a result"),
        Value::tuple([2, 1])
    );

    // Functions of a module that only workers can import
    cluster.python(
        "def make(dask_worker):\n    import sys, types\n    \
         module = types.ModuleType('only_workers')\n    \
         exec('def twice(x, *, plus=0): return 2 * x + plus', module.__dict__)\n    \
         sys.modules['only_workers'] = module\n\
         client.run(make)",
    );
    let unknown = client.submit("only_workers.twice", [4]).expect("submitted");
    let error = unknown.await.expect_err("the scheduler cannot import it");
    assert!(error.to_string().contains("only_workers"), "{error}");
    let x = client.submit("operator.add", (1, 2)).expect("submitted");
    let twice = client
        .call("only_workers.twice")
        .argument(&x)
        .keyword("plus", 1);
    let twice = twice.resolve_on_workers().submit().expect("submitted");
    assert!(twice.key().to_string().starts_with("twice-"), "{twice:?}");
    assert_eq!(integer(twice.await.expect("a result")), 7);

    // A module of the user
    let module = "import os\n\
                  def cube(x):\n    return x ** 3\n\
                  def name(dask_worker):\n    return dask_worker.name\n\
                  def count(dask_scheduler, *, of):\n    return len(getattr(dask_scheduler, of))\n";
    client
        .upload("users_own.py", module)
        .await
        .expect("uploaded");
    let cubes = client.map("users_own.cube", 1..=3_i64).expect("submitted");
    let cubes = client.gather(&cubes).await.expect("results");
    assert!(cubes.into_iter().map(integer).eq([1, 8, 27]));
    let names = client.run("users_own.name", ()).await.expect("names");
    let names: BTreeSet<String> = names
        .into_iter()
        .map(|(_, name)| String::try_from(name.expect("a name")).expect("a string"))
        .collect();
    assert_eq!(names, ["worker-0", "worker-1"].map(str::to_owned).into());
    let count = client.call("users_own.count").keyword("of", "workers");
    assert_eq!(
        integer(count.run_on_scheduler().await.expect("a number")),
        2
    );
    let path = std::env::temp_dir().join(format!("uploaded_{}.py", std::process::id()));
    std::fs::write(&path, "answer = lambda: 42\n").expect("a file");
    client.upload_file(&path).await.expect("uploaded");
    let name = path
        .file_stem()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let answer = client
        .submit(format!("{name}.answer"), ())
        .expect("submitted");
    assert_eq!(integer(answer.await.expect("a result")), 42);
    std::fs::remove_file(&path).expect("removed");
    let error = client.upload_file(&path).await.expect_err("it is gone");
    assert!(matches!(error, RunError::File { .. }), "{error}");
    let error = client
        .upload("broken.py", "1 +")
        .await
        .expect_err("a syntax error");
    assert!(error.to_string().contains("SyntaxError"), "{error}");

    // Functions that run outside of tasks
    let one = cluster.scheduler.workers()[0].address().to_owned();
    let results = client.call("operator.truediv").argument(1).argument(0);
    let results = results.run_on(one.as_str()).await.expect("outcomes");
    let [(worker, Err(error))] = &results[..] else {
        panic!("{results:?}");
    };
    assert_eq!((worker, error.class.as_str()), (&one, "ZeroDivisionError"));
    let error = client
        .run_on_scheduler("operator.truediv", (1, 0))
        .await
        .expect_err("it fails");
    assert!(
        error
            .to_string()
            .starts_with("operator.truediv failed in the scheduler"),
        "{error}"
    );
    let error = client
        .run("builtins.len", [&x])
        .await
        .expect_err("a future");
    assert!(matches!(error, RunError::Value { .. }), "{error}");

    // Plugins
    client
        .register_plugin(PluginKind::Worker, "own", "users_own.os.PathLike", ())
        .await
        .expect_err("an abstract class");
    let plugin = "from distributed.diagnostics.plugin import WorkerPlugin\n\
                  class Mark(WorkerPlugin):\n    \
                  def __init__(self, mark):\n        self.mark = mark\n    \
                  def setup(self, worker):\n        worker.mark = self.mark\n\
                  def mark(dask_worker):\n    return getattr(dask_worker, 'mark', None)\n";
    client
        .upload("users_plugin.py", plugin)
        .await
        .expect("uploaded");
    client
        .register_plugin(PluginKind::Worker, "mark", "users_plugin.Mark", ("here",))
        .await
        .expect("registered");
    for (_, mark) in client.run("users_plugin.mark", ()).await.expect("marks") {
        assert_eq!(mark.expect("a mark"), Value::from("here"));
    }
    client
        .unregister_plugin(PluginKind::Worker, "mark")
        .await
        .expect("removed");
    let error = client.unregister_plugin(PluginKind::Worker, "mark").await;
    assert!(
        error
            .expect_err("it is gone")
            .to_string()
            .contains("does not exist")
    );
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_queues_and_datasets_are_shared_with_python() {
    let mut cluster = Cluster::new(1);
    cluster.python("from distributed import Variable, Queue");
    let client = client_at(cluster.scheduler.address()).await;
    let sum = client.submit("operator.add", (20, 22)).expect("submitted");

    // Variables
    let variable = client.variable("v").expect("it runs Dask");
    let error = variable.get(SHORT).await.expect_err("it is not set");
    assert!(matches!(error, RequestError::Timeout { .. }), "{error}");
    variable
        .set(Value::dict([("a", Value::list([1, 2]))]))
        .await
        .expect("set");
    assert_eq!(cluster.python("Variable('v').get()"), "{'a': (1, 2)}");
    cluster.python("Variable('v').set([1.5, None, b'x'])");
    let value = data(variable.get(LONG).await.expect("a value"));
    assert_eq!(value.to_string(), "[1.5, None, b'x']");
    variable.set(&sum).await.expect("set");
    assert_eq!(cluster.python("Variable('v').get().result()"), "42");
    cluster.python("Variable('v').set(client.submit(operator.mul, 6, 7))");
    let product = future(variable.get(LONG).await.expect("a future"));
    assert_eq!(integer((&product).await.expect("a result")), 42);
    variable.clone().delete().await.expect("deleted");
    assert!(variable.get(SHORT).await.is_err());
    // The client still holds the future after the variable is deleted.
    assert_eq!(
        client.who_has([&product]).await.expect("holders")[0]
            .1
            .len(),
        1
    );

    // Queues
    let queue = client.queue("q", Some(2)).await.expect("opened");
    let error = queue.get(SHORT).await.expect_err("it is empty");
    assert!(matches!(error, RequestError::Timeout { .. }), "{error}");
    cluster.python("q = Queue('q'); q.put('from python'); q.put(client.submit(operator.neg, 1))");
    assert_eq!(queue.len().await.expect("a number"), 2);
    let error = queue.put(3, SHORT).await.expect_err("it is full");
    assert!(matches!(error, RequestError::Timeout { .. }), "{error}");
    assert_eq!(
        data(queue.get(LONG).await.expect("a value")),
        Value::from("from python")
    );
    let negated = future(queue.get(LONG).await.expect("a future"));
    assert_eq!(integer(negated.await.expect("a result")), -1);
    queue.put("from rust", LONG).await.expect("put");
    queue.put(&sum, LONG).await.expect("put");
    assert_eq!(
        cluster.python("(q.get(), q.get().result())"),
        "('from rust', 42)"
    );
    queue.put(1, LONG).await.expect("put");
    queue.put(2, LONG).await.expect("put");
    let all = queue.get_all().await.expect("values");
    assert!(all.into_iter().map(|value| integer(data(value))).eq([1, 2]));
    assert!(queue.is_empty().await.expect("a number"));
    // A Python task waits for an item of this client.
    let waiting = "waiting = client.submit(lambda: Queue('q').get(timeout=60), pure=False)";
    cluster.python(waiting);
    queue.put("wake up", LONG).await.expect("put");
    assert_eq!(cluster.python("waiting.result()"), "'wake up'");
    queue.close().await.expect("closed");

    // Datasets
    client
        .publish_dataset("numbers", Value::list([1, 2]))
        .await
        .expect("published");
    client
        .publish_futures("sums", &[sum])
        .await
        .expect("published");
    assert_eq!(cluster.python("client.get_dataset('numbers')"), "[1, 2]");
    assert_eq!(
        cluster.python("client.get_dataset('sums')[0].result()"),
        "42"
    );
    let error = client
        .publish_dataset("numbers", 3)
        .await
        .expect_err("it exists");
    assert!(error.to_string().contains("already exists"), "{error}");
    cluster.python("client.publish_dataset(theirs={'f': client.submit(operator.add, 1, 1)})");
    let names = client.list_datasets().await.expect("names");
    assert_eq!(names, ["numbers", "sums", "theirs"].map(Key::from));
    let theirs = client
        .dataset("theirs")
        .await
        .expect("an answer")
        .expect("it exists");
    assert_eq!(integer((&theirs.futures[0]).await.expect("a result")), 2);
    // The publisher has dropped its future, and the dataset holds the result.
    let sums = client
        .dataset("sums")
        .await
        .expect("an answer")
        .expect("it exists");
    assert_eq!(integer((&sums.futures[0]).await.expect("a result")), 42);
    client.unpublish_dataset("numbers").await.expect("removed");
    assert!(
        client
            .dataset("numbers")
            .await
            .expect("an answer")
            .is_none()
    );
    assert_eq!(
        cluster.python("sorted(client.list_datasets())"),
        "['sums', 'theirs']"
    );
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_is_deleted_although_a_client_does_not_confirm_its_future() {
    let cluster = Cluster::new(1);
    let client = client_at(cluster.scheduler.address()).await;
    let sum = client.submit("operator.add", (20, 22)).expect("submitted");
    let variable = client.variable("v").expect("it runs Dask");
    variable.set(&sum).await.expect("set");
    let unconfirmed = Unknown::new("variable_get")
        .field("name", "v")
        .field("client", client.id());
    let _: Value = client.request(unconfirmed).await.expect("a record");
    variable.clone().delete().await.expect("deleted");
    assert!(variable.get(SHORT).await.is_err());
    // The client can delete it once more, and the scheduler still reads what it sends.
    variable.delete().await.expect("it need not exist");
    let key = sum.key().clone();
    drop(sum);
    let next = client.submit("operator.neg", [1]).expect("submitted");
    assert_eq!(integer((&next).await.expect("a result")), -1);
    let status = client.task_status([&key]).await.expect("an answer");
    assert_eq!(status[0].1, None);
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_semaphores_and_events_are_shared_with_python() {
    let mut cluster = Cluster::new(1);
    cluster.python("from distributed import Lock, Semaphore, Event");
    let client = client_at(cluster.scheduler.address()).await;

    let lock = client.lock("l").await.expect("opened");
    cluster.python("l = Lock('l'); l.acquire()");
    assert!(lock.is_locked().await.expect("an answer"));
    let error = lock.acquire(SHORT).await.expect_err("Python has it");
    assert!(matches!(error, RequestError::Timeout { .. }), "{error}");
    let waiting = lock.clone();
    let waiting = tokio::spawn(async move { waiting.acquire(LONG).await });
    cluster.python("l.release()");
    let lease = waiting.await.expect("no panic").expect("acquired");
    assert_eq!(cluster.python("l.acquire(timeout=0.05)"), "False");
    lease.release().await.expect("released");
    assert_eq!(cluster.python("l.acquire(timeout=30)"), "True");
    cluster.python("l.release()");
    drop(lock.acquire(LONG).await.expect("acquired"));
    // A dropped lease is released in the background, before it would expire after 30 s.
    assert_eq!(cluster.python("l.acquire(timeout=20)"), "True");
    let semaphore = client.semaphore("s", 2).await.expect("opened");
    cluster.python("s = Semaphore(2, 's'); s.acquire()");
    let first = semaphore.acquire(LONG).await.expect("acquired");
    assert_eq!(semaphore.lease_count().await.expect("a number"), 2);
    assert!(semaphore.acquire(SHORT).await.is_err());
    let error = client.semaphore("s", 3).await.expect_err("it has two");
    assert!(
        error.to_string().contains("Inconsistent max leases"),
        "{error}"
    );
    first.release().await.expect("released");
    assert_eq!(cluster.python("s.get_value()"), "1");
    // A client that is closed has released its dropped leases, although its runtime ends.
    let scheduler = cluster.scheduler.address().to_owned();
    let other = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let other = client_at(&scheduler).await;
            let many = other.semaphore("many", 500).await.expect("opened");
            let mut leases = Vec::new();
            for _ in 0..500 {
                leases.push(many.acquire(LONG).await.expect("acquired"));
            }
            drop(leases);
            other.close().await.expect("closed");
        });
    });
    other.await.expect("no panic");
    assert_eq!(cluster.python("Semaphore(500, 'many').get_value()"), "0");
    semaphore.clone().close().await.expect("closed");
    let error = semaphore.acquire(LONG).await.expect_err("it is closed");
    assert!(matches!(error, RequestError::Remote(_)), "{error}");

    let event = client.event("e").expect("it runs Dask");
    assert!(!event.is_set().await.expect("an answer"));
    assert!(!event.wait(SHORT).await.expect("an answer"));
    let waiting = event.clone();
    let waiting = tokio::spawn(async move { waiting.wait(LONG).await });
    cluster.python("Event('e').set()");
    assert!(waiting.await.expect("no panic").expect("an answer"));
    event.clear().await.expect("cleared");
    assert_eq!(cluster.python("Event('e').is_set()"), "False");
    event.set().await.expect("set");
    assert_eq!(cluster.python("Event('e').wait(30)"), "True");
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_controlled() {
    let mut cluster = Cluster::new(2);
    let client = client_at(cluster.scheduler.address()).await;
    let workers = cluster.scheduler.worker_addresses();

    // Scattering to selected workers, and to all
    for route in [Route::Scheduler, Route::Direct] {
        let there = ScatterOptions::default()
            .route(route)
            .workers(workers[1].as_str());
        let pieces = (0..4_i64).map(|number| (Key::unique("piece"), number));
        let pieces = client
            .scatter_with(pieces, &there)
            .await
            .expect("scattered");
        for (_, holders) in client.who_has(&pieces).await.expect("holders") {
            assert_eq!(holders, [workers[1].as_str()]);
        }
        let everywhere = ScatterOptions::default().route(route).broadcast();
        let copies = [(Key::unique("copy"), 1)];
        let copies = client
            .scatter_with(copies, &everywhere)
            .await
            .expect("scattered");
        assert_eq!(
            client.who_has(&copies).await.expect("holders")[0].1.len(),
            2
        );
    }

    // Copies and moves
    let only = SubmitOptions::default().workers([workers[0].as_str()]);
    let big = client
        .calls("numpy.zeros")
        .over([100_000_i64, 100_001, 100_002, 100_003]);
    let big = big.with(only).submit().expect("submitted");
    client
        .replicate(&big[..1], None, Workers::All)
        .await
        .expect("copied");
    assert_eq!(
        client.who_has(&big[..1]).await.expect("holders")[0].1.len(),
        2
    );
    client
        .replicate(&big[..1], Some(1), Workers::All)
        .await
        .expect("reduced");
    assert_eq!(
        client.who_has(&big[..1]).await.expect("holders")[0].1.len(),
        1
    );
    client.wait(&big).await;
    client.rebalance(None, Workers::All).await.expect("moved");
    let keys: Vec<Key> = big.iter().map(Key::from).collect();
    client
        .rebalance(Some(&keys), workers.as_slice())
        .await
        .expect("moved");
    let error = client
        .rebalance(Some(&[Key::from("no-such-key")]), Workers::All)
        .await;
    let error = error.expect_err("it is unknown");
    let expected = "rebalance: the scheduler does not have these results: no-such-key";
    assert_eq!(error.to_string(), expected);

    // A task for which no client waits
    let event = client.event("done").expect("it runs Dask");
    let set = client
        .call("builtins.eval")
        .argument("[__import__('time').sleep(0.3), __import__('distributed').Event('done').set()]");
    let set = set.impure().submit().expect("submitted");
    client.fire_and_forget(&set).await.expect("told");
    drop(set);
    assert!(event.wait(LONG).await.expect("an answer"));
    // Also if the task ends sooner, the scheduler forgets it.
    let mut short = Vec::new();
    for number in 0..10 {
        let sum = client.call("operator.add").argument(number).argument(1);
        let sum = sum.impure().submit().expect("submitted");
        client.fire_and_forget(&sum).await.expect("told");
        short.push(sum.key().clone());
    }
    let mut known = short.len();
    for _ in 0..200 {
        let states = client.task_status(&short).await.expect("an answer");
        known = states.iter().filter(|(_, state)| state.is_some()).count();
        if known == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(known, 0, "short tasks are kept");
    let cancelled = client.submit("time.sleep", [100]).expect("submitted");
    client.cancel([&cancelled], true).expect("connected");
    cancelled.finished().await.expect_err("it is cancelled");
    let error = client.fire_and_forget(&cancelled).await;
    let error = error.expect_err("it is unknown").to_string();
    assert!(error.starts_with("fire_and_forget: "), "{error}");

    let report = client.start_performance_report().await.expect("started");
    let sum = client.submit("operator.add", (3, 4)).expect("submitted");
    sum.finished().await.expect("a result");
    let page = report.finish("x = 3 + 4").await.expect("a page");
    assert!(
        page.contains("<html") && page.contains("x = 3 + 4"),
        "{}",
        page.len()
    );

    // Restarts and retirement; these workers have no nanny.
    let soon = Duration::from_secs(2);
    let retired = client
        .retire_workers([workers[0].as_str()])
        .await
        .expect("retired");
    assert_eq!(retired, [workers[0].as_str()]);
    assert_eq!(
        client.nthreads(Workers::All).await.expect("threads").len(),
        1
    );
    let outcomes = client.restart_workers(workers[1].as_str(), soon).await;
    let removed = (workers[1].clone(), Restarted::Removed);
    assert_eq!(outcomes.expect("outcomes"), [removed]);
    client.restart(soon).await.expect("restarted");
    until("cancellation", || sum.status().name() == "cancelled").await;
    client.shutdown().await.expect("asked");
    assert!(cluster.scheduler.ended());
}

/// The process id of the only worker, once there is one.
async fn only_process(client: &Client) -> u32 {
    loop {
        let processes = client.run("os.getpid", ()).await.expect("outcomes");
        if let [(_, Ok(process))] = &processes[..] {
            return u32::try_from(process.clone()).expect("a number");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nannies_start_workers_again() {
    let scheduler = daskwire_testing::scheduler();
    let _nanny = daskwire_testing::worker_under_nanny(scheduler.address(), "nursed");
    let client = client_at(scheduler.address()).await;
    let first = only_process(&client).await;
    let sum = client.submit("operator.add", (3, 4)).expect("submitted");
    assert_eq!(integer((&sum).await.expect("a result")), 7);

    client.restart(TIMEOUT).await.expect("restarted");
    // The worker is back when the scheduler replies.
    assert_eq!(
        client.nthreads(Workers::All).await.expect("threads").len(),
        1
    );
    let second = only_process(&client).await;
    assert_ne!(second, first);
    until("the end of the first worker", || !is_running(first)).await;
    assert!(is_running(second));
    until("cancellation", || sum.status().name() == "cancelled").await;
    let product = client.submit("operator.mul", (3, 4)).expect("submitted");
    assert_eq!(integer((&product).await.expect("a result")), 12);

    // Without the tasks: the lost result is computed again.
    let (worker, _) = client.nthreads(Workers::All).await.expect("threads")[0].clone();
    let outcomes = client.restart_workers(worker.as_str(), TIMEOUT).await;
    assert_eq!(outcomes.expect("outcomes"), [(worker, Restarted::Ok)]);
    let third = only_process(&client).await;
    assert_ne!(third, second);
    assert_eq!(
        integer(product.result_within(TIMEOUT).await.expect("a result")),
        12
    );
    client.close().await.expect("closed");
}

/// Whether there is a process, except one that has ended and is not reaped.
fn is_running(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_of_nannies_change_workers() {
    let scheduler = daskwire_testing::scheduler();
    let _nanny = daskwire_testing::worker_under_nanny(scheduler.address(), "first");
    let client = client_at(scheduler.address()).await;
    let before = only_process(&client).await;
    let class = "distributed.diagnostics.plugin.Environ";
    let variables = || Value::dict([("DASKWIRE_TEST", "7")]);
    let registered = client.register_plugin(PluginKind::Nanny, "environ", class, (variables(),));
    registered.await.expect("registered");
    // This plugin wants the worker restarted, with the variables.
    assert_ne!(only_process(&client).await, before);
    let variable = async || {
        let found = client.run("os.getenv", ["DASKWIRE_TEST"]).await;
        let found = found.expect("outcomes").into_iter();
        let mut found: Vec<String> = found
            .map(|(_, value)| value.expect("it exists").to_string())
            .collect();
        found.sort();
        found
    };
    assert_eq!(variable().await, ["'7'"]);
    // Nannies that join later have it too, until it is removed.
    let _second = daskwire_testing::worker_under_nanny(scheduler.address(), "second");
    assert_eq!(variable().await, ["'7'", "'7'"]);
    let removed = client.unregister_plugin(PluginKind::Nanny, "environ").await;
    removed.expect("removed");
    let _third = daskwire_testing::worker_under_nanny(scheduler.address(), "third");
    assert_eq!(variable().await, ["'7'", "'7'", "None"]);
    let error = client.unregister_plugin(PluginKind::Nanny, "environ").await;
    let error = error.expect_err("it is gone").to_string();
    assert!(error.contains("does not exist"), "{error}");
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_of_the_scheduler_see_its_tasks() {
    let cluster = Cluster::new(1);
    let client = client_at(cluster.scheduler.address()).await;
    let plugin = "from distributed.diagnostics.plugin import SchedulerPlugin\n\
                  class Count(SchedulerPlugin):\n    \
                  def __init__(self, state):\n        self.state = state\n    \
                  async def start(self, scheduler):\n        scheduler.seen = []\n        \
                  self.scheduler = scheduler\n    \
                  def transition(self, key, start, finish, *args, **kwargs):\n        \
                  if finish == self.state: self.scheduler.seen.append(key)\n\
                  def seen(dask_scheduler):\n    return getattr(dask_scheduler, 'seen', None)\n";
    client
        .upload("scheduler_plugin_of_a_user.py", plugin)
        .await
        .expect("uploaded");
    let seen = async || {
        let seen = client.run_on_scheduler("scheduler_plugin_of_a_user.seen", ());
        seen.await.expect("it runs").to_string()
    };
    assert_eq!(seen().await, "None");
    let class = "scheduler_plugin_of_a_user.Count";
    client
        .register_plugin(PluginKind::Scheduler, "count", class, ("memory",))
        .await
        .expect("registered");
    assert_eq!(seen().await, "[]");
    let task = client.call("operator.add").argument(1).argument(2);
    let task = task.key("seen-1").submit().expect("submitted");
    task.finished().await.expect("a result");
    assert_eq!(seen().await, "['seen-1']");
    client
        .unregister_plugin(PluginKind::Scheduler, "count")
        .await
        .expect("removed");
    let task = client.call("operator.add").argument(3).argument(4);
    let task = task.key("unseen-1").submit().expect("submitted");
    task.finished().await.expect("a result");
    assert_eq!(seen().await, "['seen-1']");
    let error = client
        .unregister_plugin(PluginKind::Scheduler, "count")
        .await;
    error.expect_err("it is gone");
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_of_one_type_come_as_lists() {
    let cluster = Cluster::new(1);
    let client = client_at(cluster.scheduler.address()).await;
    let all = client.map("operator.neg", [1, 2]).expect("submitted");
    let sum = client.submit("operator.add", &all).expect("submitted");
    let more = client.submit("operator.add", vec![Argument::from(&sum), 10.into()]);
    assert_eq!(
        integer(more.expect("submitted").await.expect("a result")),
        7
    );
    client.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_works_over_tls() {
    let cluster = daskwire_testing::scheduler_with_workers_over("tls", 2);
    let client = client_at(cluster.address()).await;
    let negated = client.map("operator.neg", 1..=3_i64).expect("submitted");
    let sum = client
        .submit("builtins.sum", (Argument::list(&negated),))
        .expect("submitted");
    assert_eq!(integer((&sum).await.expect("a result")), -6);
    let gathered = client.gather_by(&negated, Route::Direct).await;
    assert_eq!(gathered.expect("results").len(), 3);
    let queue = client.queue("q", None).await.expect("opened");
    queue.put(&sum, LONG).await.expect("put");
    let taken = future(queue.get(LONG).await.expect("a future"));
    assert_eq!(integer(taken.await.expect("a result")), -6);
    client
        .publish_dataset("numbers", Value::list([1, 2]))
        .await
        .expect("published");
    assert_eq!(client.list_datasets().await.expect("names").len(), 1);
    let module = "def cube(x):\n    return x**3\n";
    client
        .upload("over_tls.py", module)
        .await
        .expect("uploaded");
    let cube = client.submit("over_tls.cube", [3]).expect("submitted");
    assert_eq!(integer(cube.await.expect("a result")), 27);
    let lengths = client.run("builtins.len", ["ab"]).await.expect("lengths");
    assert_eq!(lengths.len(), 2);
    client.close().await.expect("closed");
    assert_eq!(cluster.warnings(), [""; 0]);
}
