//! Tests of a Rust worker in a real Dask cluster, whose scheduler, client and other
//! workers are in Python.

use crate::support::worker;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::client::client_at;
use daskwire_peer::WorkerStatus;
use daskwire_peer::client::SubmitOptions;
use daskwire_peer::worker::{Builder, Ended, Functions, Worker};
use daskwire_peer::{Array, RemoteError, Value};
use daskwire_testing::cluster::{Cluster, until};
use daskwire_testing::{Environment, Peer, TLS_ARGUMENTS, address_after, python, warnings};

/// The functions of the worker: Python's, and a few more.
fn functions() -> Functions {
    Functions::builtins()
        // A function of Python that is not one of the builtins here.
        .with("builtins.dict", |arguments| {
            let keywords = arguments.keywords();
            Ok(Value::dict(
                keywords.map(|(name, value)| (name, value.clone())),
            ))
        })
        .function("hypot", |x: f64, y: f64| x.hypot(y))
        .function("double", |array: Array| -> Result<Array, RemoteError> {
            let all: Vec<f64> = array.to_vec::<f64>()?.iter().map(|x| x * 2.0).collect();
            Ok(Array::from_slice(array.shape(), &all)?)
        })
        .function("total", |array: Array| -> Result<f64, RemoteError> {
            Ok(array.to_vec::<f64>()?.iter().sum())
        })
        .function("zeros", |len: usize| Value::bytes(vec![0; len]))
        .function("panic", || -> Value { panic!("as asked for") })
        .with("kinds", |arguments| {
            let kinds = arguments.iter().map(Value::type_name);
            Ok(Value::list(kinds))
        })
}

/// Configures Rust workers for a cluster.
trait Workers {
    fn worker(&self, name: &str) -> Builder;
}

impl Workers for Cluster {
    fn worker(&self, name: &str) -> Builder {
        let address = self.scheduler.address().parse().expect("an address");
        Worker::builder(address)
            .name(name)
            .nthreads(2)
            .memory_limit(1 << 30)
            .functions(functions())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_a_client_in_python_run_in_rust() {
    let mut cluster = Cluster::new(0);
    let worker = cluster.worker("rust").start().await.expect("worker starts");
    assert_eq!(worker.status(), WorkerStatus::Running);

    // Results equal Python's, for functions with Python names and native ones.
    for (code, value) in [
        ("client.submit(operator.add, 1, 2).result()", "3"),
        ("client.submit(native('hypot'), 3, 4).result()", "5.0"),
        ("client.submit(sum, [1, 2, 3.5]).result()", "6.5"),
        (
            "client.submit(sorted, [3, 1, 2], reverse=True).result()",
            "[3, 2, 1]",
        ),
        (
            "client.submit(str, {'a': (1, None)}).result()",
            "\"{'a': (1, None)}\"",
        ),
        (
            "client.submit(operator.add, 'x', 'y', key=('block', 0)).result()",
            "'xy'",
        ),
        (
            "import functools\nclient.submit(functools.partial(pow, 2), 10).result()",
            "1024",
        ),
        // Futures within arguments
        (
            "a, b = client.submit(operator.neg, 1), client.submit(operator.neg, 2)\n\
             client.submit(sum, [a, b, 10]).result()",
            "7",
        ),
        (
            "client.submit(operator.getitem, {'k': a}, 'k').result()",
            "-1",
        ),
        // Futures that `dask.delayed` keeps in its tasks
        ("import dask\ndask.delayed(operator.neg)(a).compute()", "1"),
        ("dask.delayed(sum)([a, a, b]).compute()", "-4"),
        (
            "client.compute(dask.delayed(dict)(x=a, y=[b], z={'k': (a, 1)})).result()",
            "{'x': -1, 'y': [-2], 'z': {'k': (-1, 1)}}",
        ),
        // A chain, and many concurrent tasks
        (
            "f = client.submit(operator.add, 0, 1, pure=False)\n\
             for _ in range(100): f = client.submit(operator.add, f, 1, pure=False)\n\
             f.result()",
            "101",
        ),
        (
            "sum(client.gather(client.map(operator.mul, range(1000), range(1000)))) == \
             sum(n * n for n in range(1000))",
            "True",
        ),
    ] {
        assert_eq!(cluster.python(code), value, "{code}");
    }
    cluster.python("del a, b, f");
    until("releasing", || worker.keys().is_empty()).await;
    assert_eq!(worker.nbytes(), 0);
    assert_eq!(worker.task_counts(), []);

    worker.close().await;
    assert!(matches!(worker.ended().await, Ended::Closed));
    let workers = "len(client.scheduler_info()['workers'])";
    until("leaving", || cluster.python(workers) == "0").await;
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_exceptions_in_python_and_the_worker_continues() {
    let mut cluster = Cluster::new(0);
    let worker = cluster.worker("rust").start().await.expect("worker starts");
    for (code, error) in [
        (
            "client.submit(operator.truediv, 1, 0).result()",
            "ZeroDivisionError: division by zero",
        ),
        (
            "f = client.submit(operator.getitem, {'a': 1}, 'b')\nclient.submit(operator.neg, f).result()",
            "KeyError: 'b'",
        ),
        (
            "client.submit(sum, 1).result()",
            "TypeError: 'int' object is not iterable",
        ),
        (
            "client.submit(native('hypot'), 1).result()",
            "TypeError: hypot() takes 2 positional arguments but 1 was given",
        ),
        (
            "client.submit(native('panic')).result()",
            "RuntimeError: the function panic panicked: as asked for",
        ),
    ] {
        assert_eq!(cluster.try_python(code), Err(error.to_owned()), "{code}");
    }
    let name = format!("the worker rust at {}", worker.address());
    for (code, class, words) in [
        (
            "client.submit(lambda x: x, 1).result()",
            "NotImplementedError",
            "a lambda",
        ),
        (
            "client.submit(native('nothing')).result()",
            "NotImplementedError",
            "native:nothing",
        ),
        (
            "import json\nclient.submit(json.dumps, 1).result()",
            "NotImplementedError",
            "json.dumps",
        ),
        (
            "class Counter: pass\nclient.submit(Counter, actor=True).result()",
            "NotImplementedError",
            "not actors",
        ),
    ] {
        let error = cluster.try_python(code).expect_err(code);
        assert!(error.starts_with(&format!("{class}: ")), "{code}: {error}");
        assert!(error.contains(words), "{code}: {error}");
        assert!(error.contains(&name), "{code}: {error}");
    }
    for (code, words) in [
        (
            "client.submit(len, pd.Timestamp(0)).result()",
            "NotImplementedError: this worker does not run Python, and its functions in Rust do not \
             support instances of classes",
        ),
        (
            "client.submit(native('hypot'), 1, pd.Timestamp(0)).result()",
            "TypeError: hypot() argument 2: expected f64, found pandas.Timestamp",
        ),
    ] {
        let error = cluster.try_python(code).expect_err(code);
        assert!(error.starts_with(words), "{code}: {error}");
    }
    let sum = "client.submit(operator.add, 1, 1).result()";
    assert_eq!(cluster.python(sum), "2");
    cluster.check_logs();
    // Requests of a client that workers do not support are refused: the scheduler logs
    // this one.
    let refused = cluster
        .try_python("client.run(lambda: 1)")
        .expect_err("it is Python's");
    assert!(
        refused.contains("NotImplementedError") && refused.contains("\"run\""),
        "{refused}"
    );
    assert_eq!(cluster.python(sum), "2");
    assert_eq!(worker.status(), WorkerStatus::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_arrays_and_forwards_unused_data_unchanged() {
    let mut cluster = Cluster::new(0);
    let worker = cluster.worker("rust").start().await.expect("worker starts");
    for (code, value) in [
        (
            "client.submit(native('double'), np.arange(3.)).result()",
            "array([0., 2., 4.])",
        ),
        (
            "x = client.scatter(np.arange(6.).reshape(2, 3).T)\nclient.submit(native('double'), x).result()",
            "array([[ 0.,  6.],\n       [ 2.,  8.],\n       [ 4., 10.]])",
        ),
        (
            "client.submit(native('kinds'), x, {1}, b'').result()",
            "['ndarray', 'set', 'bytes']",
        ),
        ("client.submit(len, x).result()", "3"),
    ] {
        assert_eq!(cluster.python(code), value, "{code}");
    }

    // Twenty concurrent tasks deserialize their input once.
    let before = worker.counters();
    let code = "x = client.scatter(np.arange(1e6))\n\
                futures = [client.submit(native('total'), x, pure=False) for _ in range(20)]\n\
                set(client.gather(futures))";
    assert_eq!(cluster.python(code), "{499999500000.0}");
    let after = worker.counters();
    assert_eq!(after.deserialized.count, before.deserialized.count + 1);
    assert_eq!(after.deserialized.len, before.deserialized.len + 8_000_000);
    assert_eq!(after.copied_len, before.copied_len);
    let held = cluster.python("client.nbytes(summary=False)[x.key]");
    assert_eq!(held, "8000000", "exactly what arrived");

    // A pandas table, compressible bytes, and shards of 64 MiB
    let before = worker.counters();
    let code = "df = pd.DataFrame({'a': [1, 2], 'b': ['x', None]})\n\
                data = [df, b'x' * 1000000, np.ones(9 << 20), {'k': np.arange(3), 'l': [df]}]\n\
                back = client.gather(client.scatter(data, hash=False))\n\
                (back[0].equals(df), back[1] == data[1], (back[2] == 1).all(), len(back[2]) == 9 << 20,\n\
                 (back[3]['k'] == data[3]['k']).all(), back[3]['l'][0].equals(df))";
    assert_eq!(
        cluster.python(code),
        "(True, True, np.True_, True, np.True_, True)"
    );
    // An alias of an object unknown to Rust
    let code = "import dask\n\
                alias = dask.delayed(client.scatter(df, hash=False))\n\
                client.compute(alias).result().equals(df)";
    assert_eq!(cluster.python(code), "True");
    assert_eq!(worker.counters(), before, "nothing was deserialized");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn results_go_from_python_to_rust_and_back() {
    let mut cluster = Cluster::new(1);
    let worker = cluster.worker("rust").start().await.expect("worker starts");
    for (code, value) in [
        // Computed in Python, used in Rust, and the result used in Python
        (
            "x = client.submit(np.arange, 1e5, workers='worker-0')\n\
             y = client.submit(native('double'), x, workers='rust')\n\
             z = client.submit(np.sum, y, workers='worker-0')\n\
             float(z.result())",
            "9999900000.0",
        ),
        (
            "z = client.submit(native('total'), y, workers='rust')\n\
             client.submit(operator.add, z, 1, workers='worker-0').result()",
            "9999900001.0",
        ),
        // A result of 64 MiB
        (
            "big = client.submit(native('zeros'), 64 << 20, workers='rust')\n\
             client.submit(len, big, workers='worker-0').result()",
            "67108864",
        ),
        (
            "big = client.submit(bytes, 64 << 20, workers='worker-0')\n\
             client.submit(len, big, workers='rust').result()",
            "67108864",
        ),
        // A numpy scalar becomes a number, and a DataFrame is forwarded.
        (
            "n = client.submit(np.sum, [1.5, 2], workers='worker-0')\n\
             client.submit(native('hypot'), n, 0, workers='rust').result()",
            "3.5",
        ),
        // Transfers in both directions
        (
            "xs = client.map(operator.add, range(200), range(200),\n\
             workers=['rust', 'worker-0'], pure=False)\n\
             ys = [client.submit(sum, xs[i::10], workers='rust' if i % 2 else 'worker-0') for i in range(10)]\n\
             client.submit(sum, ys, workers='rust').result()",
            "39800",
        ),
    ] {
        assert_eq!(cluster.python(code), value, "{code}");
    }

    // Data that is only forwarded is not deserialized.
    cluster.python("del x, y, z, big, n, xs, ys");
    let code = "df = pd.DataFrame({'a': range(1000), 'b': list('abcd') * 250})\n\
                f = client.scatter(df, workers='worker-0', hash=False)\n\
                client.amm.stop()\n\
                client.replicate(f, n=2)\n\
                client.retire_workers([w for w, i in client.scheduler_info()['workers'].items() if i['name'] == 'worker-0'])\n\
                (client.gather(f).equals(df), len(client.who_has(f)[f.key]))";
    until("releasing", || worker.nbytes() < 10_000_000).await;
    let before = worker.counters();
    assert_eq!(cluster.python(code), "(True, 1)");
    assert_eq!(worker.counters(), before, "nothing was deserialized");
    cluster.check_logs();
}

/// Functions of Python and of Rust, without restrictions, run on workers of both
/// kinds.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_both_kinds_run_where_they_can() {
    let mut cluster = Cluster::new(1);
    let worker = cluster.worker("rust").start().await.expect("worker starts");
    for (code, value) in [
        (
            "fs = [client.submit(lambda i=i: 2 * i, pure=False) for i in range(300)]\n\
             ns = [client.submit(native('hypot'), 0, i, pure=False) for i in range(100)]\n\
             sum(client.gather(fs)), sum(client.gather(ns))",
            "(89700, 4950.0)",
        ),
        (
            "worker_names(client.who_has(fs)), worker_names(client.who_has(ns))",
            "(['worker-0'], ['rust'])",
        ),
        // A graph that mixes both
        (
            "import dask\n\
             x = dask.delayed(native('zeros'))(1000)\n\
             y = dask.delayed(lambda data: len(data) + 1)(x)\n\
             dask.delayed(native('hypot'))(y, 0).compute()",
            "1001.0",
        ),
        ("del fs, ns", "None"),
    ] {
        let found = cluster.python(code);
        assert!(
            found == value || (value == "None" && found.is_empty()),
            "{code}: {found}"
        );
    }
    // The one plugin counts both native workers and the Python worker, plus a placeholder each.
    let other = cluster
        .worker("other")
        .start()
        .await
        .expect("worker starts");
    let state = "client.run_on_scheduler(lambda dask_scheduler: [\n\
                 \x20   (len(plugin.native) - 1, len(plugin.python) - 1)\n\
                 \x20   for name, plugin in dask_scheduler.plugins.items() if name == 'daskwire-task-routing'])";
    assert_eq!(cluster.python(state), "[(2, 1)]");
    worker.close().await;
    other.close().await;
    until("the scheduler knows that they left", || {
        cluster.python(state) == "[(0, 1)]"
    })
    .await;
    let code = "sum(client.gather(client.map(lambda x: x + 1, range(50))))";
    assert_eq!(cluster.python(code), "1275");
    let free = "client.run_on_scheduler(lambda dask_scheduler: [\n\
                \x20   task.worker_restrictions for task in dask_scheduler.tasks.values()])";
    cluster.python("f = client.submit(lambda: 1)\nf.result()");
    assert_eq!(cluster.python(free), "[None]");
    cluster.check_logs();
}

/// The log of a scheduler two of whose workers leave at the same time has no warnings.
#[test]
fn a_message_for_a_worker_that_has_left_is_no_warning() {
    let left = "2026-11-24 03:30:47,399 - distributed.batched - INFO - Batched Comm Closed <TCP>";
    let traceback = "Traceback (most recent call last):";
    let cause = "The above exception was the direct cause of the following exception:";
    let log = format!("{left}\n{traceback}\n  File\n\n{cause}\n\n{traceback}");
    assert!(warnings(&log).is_empty());
    let log = format!("{left}\nTask exception was never retrieved\n{traceback}");
    assert_eq!(warnings(&log), [traceback]);
    let error = left.replace("INFO", "ERROR");
    assert_eq!(
        warnings(&format!("{error}\n{traceback}")),
        [&error, traceback]
    );
}

/// Without the plugin, the scheduler reassigns tasks that the worker cannot run.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_cannot_run_here_are_given_back() {
    let mut cluster = Cluster::new(1);
    let worker = cluster.worker("rust").scheduler_plugin(false);
    let worker = worker.start().await.expect("worker starts");
    let code = "fs = [client.submit(lambda i=i: 2 * i, pure=False) for i in range(300)]\n\
                sum(client.gather(fs)), worker_names(client.who_has(fs))";
    assert_eq!(cluster.python(code), "(89700, ['worker-0'])");
    // A task that the scheduler may assign to either worker
    let code = "f = client.submit(lambda: 1, workers=['rust', 'worker-0'], pure=False)\nf.result()";
    assert_eq!(cluster.python(code), "1");
    // The worker still receives tasks.
    let code = "client.submit(native('hypot'), 3, 4, workers='rust').result()";
    assert_eq!(cluster.python(code), "5.0");
    assert_eq!(worker.status(), WorkerStatus::Running);
    // A task that only this worker may run
    let code = "client.submit(lambda: 1, workers='rust').result()";
    let error = cluster.try_python(code).expect_err("no Python");
    assert!(error.starts_with("NotImplementedError: "), "{error}");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn graphs_of_dask_run_fused_or_not() {
    let mut cluster = Cluster::new(1);
    let _worker = cluster.worker("rust").start().await.expect("worker starts");
    cluster.python("import dask\nfrom functools import reduce\nadd = dask.delayed(operator.add)");
    for (code, value) in [
        (
            "add(1, add(2, add(3, 4))).compute(workers='rust', allow_other_workers=False)",
            "10",
        ),
        (
            "dask.delayed(sum)([add(i, i) for i in range(100)]).compute(workers='rust')",
            "9900",
        ),
        // Fused by the optimizer into one task that contains the others
        (
            "from dask._task_spec import Task, TaskRef, fuse_linear_task_spec\n\
             graph = {('x', 0): Task(('x', 0), operator.add, 1, 2)}\n\
             for i in range(1, 50): graph['x', i] = Task(('x', i), operator.add, TaskRef(('x', i - 1)), 1)\n\
             fused = fuse_linear_task_spec(graph, {('x', 49)})\n\
             (len([k for k, t in fused.items() if type(t) is Task]), \n\
              client.get(fused, ('x', 49), workers='rust'))",
            "(1, 52)",
        ),
        (
            "client.submit(dict, a=client.submit(operator.neg, 1)).result()",
            "{'a': -1}",
        ),
    ] {
        assert_eq!(cluster.python(code), value, "{code}");
    }
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_stolen_and_cancelled() {
    let mut cluster = Cluster::new(1);
    let worker = cluster
        .worker("rust")
        .nthreads(1)
        .start()
        .await
        .expect("worker starts");
    // All tasks are assigned to the worker that has the data, until the idle one steals
    // some.
    let code = "client.submit(time.sleep, 0.1, workers='rust').result()\n\
                client.submit(time.sleep, 0.1, workers='worker-0').result()\n\
                futures = [client.submit(time.sleep, 0.1 + i / 1000, workers='rust', allow_other_workers=True)\n\
                           for i in range(40)]\n\
                wait(futures)\n\
                where = [w[0] for w in client.who_has(futures).values()]\n\
                sorted(set(where)).__len__()";
    assert_eq!(cluster.python(code), "2");
    cluster.python("del futures");
    until("releasing", || worker.keys().is_empty()).await;

    let code = "futures = [client.submit(time.sleep, 0.05 + i / 1000, workers='rust') for i in range(50)]\n\
                wait(futures[0], return_when='FIRST_COMPLETED')\n\
                client.cancel(futures)\n\
                {f.status for f in futures}";
    assert_eq!(cluster.python(code), "{'cancelled'}");
    until("forgetting", || worker.task_counts().is_empty()).await;
    assert_eq!(
        cluster.python("client.submit(operator.add, 1, 1, workers='rust').result()"),
        "2"
    );
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_retired_leaves_its_data_to_others() {
    let mut cluster = Cluster::new(1);
    let worker = cluster.worker("rust").start().await.expect("worker starts");
    let other = cluster
        .worker("other")
        .start()
        .await
        .expect("worker starts");
    let code = "futures = client.map(operator.add, range(50), range(50), workers='rust')\n\
                big = client.submit(native('zeros'), 1000000, workers='rust')\n\
                wait(futures + [big])\n\
                name = {i['name']: w for w, i in client.scheduler_info()['workers'].items()}\n\
                retired = client.retire_workers([name['rust']])\n\
                (list(retired) == [name['rust']], sum(client.gather(futures)), len(big.result()))";
    assert_eq!(cluster.python(code), "(True, 2450, 1000000)");
    assert!(matches!(worker.ended().await, Ended::ByScheduler { .. }));
    assert_eq!(worker.status(), WorkerStatus::Closed);
    // In the other direction: from Python to Rust
    let code = "client.retire_workers([name['worker-0']])\n\
                (sum(client.gather(futures)), len(big.result()), \n\
                 {w for ws in client.who_has(futures).values() for w in ws} == {name['other']})";
    assert_eq!(cluster.python(code), "(2450, 1000000, True)");
    assert_eq!(other.status(), WorkerStatus::Running);
    assert_eq!(
        other.counters().serialized.count + other.counters().deserialized.count,
        0
    );
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn data_is_replicated_rebalanced_and_removed() {
    let mut cluster = Cluster::new(1);
    let worker = cluster.worker("rust").start().await.expect("worker starts");
    let code = "xs = client.scatter([bytes(10**6) for _ in range(8)], workers='worker-0', hash=False)\n\
                client.amm.stop()\n\
                client.rebalance()\n\
                client.replicate(xs, n=2)\n\
                {len(w) for w in client.who_has(xs).values()}";
    assert_eq!(cluster.python(code), "{2}");
    assert_eq!(worker.keys().len(), 8);
    assert_eq!(worker.nbytes(), 8_000_000);
    // The memory manager removes redundant replicas.
    cluster.python("client.amm.start()");
    let twice = "sum(len(w) for w in client.who_has(xs).values())";
    until("removing", || cluster.python(twice) == "8").await;
    cluster.python("del xs");
    until("releasing", || worker.keys().is_empty()).await;
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_a_killed_holder_of_their_inputs() {
    let mut cluster = Cluster::new(2);
    let worker = cluster.worker("rust").start().await.expect("worker starts");
    let code = "xs = client.map(operator.mul, range(100), [2] * 100, workers='worker-0', allow_other_workers=True)\n\
                wait(xs)\n\
                sorted(i['name'] for i in client.scheduler_info()['workers'].values())";
    assert_eq!(cluster.python(code), "['rust', 'worker-0', 'worker-1']");
    cluster.scheduler.kill_worker(0);
    let code = "client.submit(sum, xs, workers='rust').result()";
    assert_eq!(cluster.python(code), "9900");
    assert_eq!(worker.status(), WorkerStatus::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_a_stopped_holder_of_their_inputs() {
    let cluster = Cluster::new(0);
    let worker = cluster.worker("rust");
    survive_a_stopped_holder(cluster, worker, None).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn tasks_in_python_survive_a_stopped_holder_of_their_inputs() {
    let cluster = Cluster::new(0);
    let python = python(Environment::Current);
    let worker = cluster.worker("rust").python(&python);
    survive_a_stopped_holder(cluster, worker, Some(&python)).await;
}

/// Stops a worker, which has this interpreter, while another one waits for its data.
async fn survive_a_stopped_holder(
    mut cluster: Cluster,
    worker: Builder,
    interpreter: Option<&Path>,
) {
    let worker = worker.start().await.expect("worker starts");
    let scheduler = cluster.scheduler.address();
    let stopped = worker::rust_worker(scheduler, "stopped", interpreter, &["--no-nanny"], &[]);
    let code = "there = dict(workers='stopped', allow_other_workers=True)\n\
                a, b = client.map(operator.neg, [1, 2], **there)\n\
                wait([a, b])\n\
                client.submit(operator.neg, a, workers='rust').result()";
    // This opens a comm.
    assert_eq!(cluster.python(code), "1");
    stopped.signal("STOP");
    cluster.python("f = client.submit(operator.neg, b, workers='rust')");
    let is_asking = || worker.task_counts().contains(&("flight", 1));
    until("asking for data", is_asking).await;
    let code = format!(
        "async def remove(dask_scheduler):\n    \
             await dask_scheduler.remove_worker('{}', stimulus_id='test')\n\
         client.run_on_scheduler(remove)\n\
         f.result(timeout=20)",
        stopped.address()
    );
    assert_eq!(cluster.python(&code), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_refused_or_ends_with_its_scheduler() {
    let cluster = Cluster::new(0);
    let builder = cluster.worker("rust");
    let builder = builder.reconnect_timeout(Duration::from_secs(1));
    let worker = builder.start().await.expect("worker starts");
    let refused = cluster
        .worker("rust")
        .start()
        .await
        .expect_err("the name is taken");
    assert_eq!(
        refused.to_string(),
        "the scheduler refused the worker: name taken, rust"
    );
    let Cluster { client, scheduler } = cluster;
    drop(client);
    drop(scheduler);
    let ended = worker.ended().await;
    assert!(matches!(ended, Ended::Lost(_)), "{ended}");
}

/// Starts a scheduler of Dask at an address at which another one was killed.
fn scheduler_again(address: &str) -> Peer {
    let port = address.rsplit(':').next().expect("a port");
    let mut command = Command::new(python(Environment::Current));
    command
        .args(["-m", "distributed.cli.dask_scheduler", "--no-dashboard"])
        .args(["--host", "127.0.0.1", "--port", port]);
    Peer::spawn_command("the second scheduler", &mut command, |log| {
        address_after(log, "Scheduler at:")
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_returns_to_a_scheduler_that_was_killed_and_started_again() {
    let mut cluster = Cluster::new(0);
    let (go, waiting) = std::sync::mpsc::channel::<()>();
    let waiting = Mutex::new(waiting);
    let functions = functions().function("wait", move || {
        // The test goes on, or has failed.
        let _ = waiting.lock().expect("no panic").recv();
        7
    });
    let builder = cluster.worker("rust").functions(functions);
    let worker = builder.start().await.expect("worker starts");
    assert_eq!(
        cluster.python("x = client.submit(operator.add, 1, 2)\nx.result(timeout=20)"),
        "3"
    );
    cluster.python("y = client.submit(native('wait'))");
    let is_running = || worker.task_counts().contains(&("executing", 1));
    until("the task runs", is_running).await;
    let address = cluster.scheduler.address().to_owned();
    let Cluster { client, scheduler } = cluster;
    // Both are killed.
    drop(client);
    drop(scheduler);
    let scheduler = scheduler_again(&address);
    let python = python(Environment::Current);
    let client = Peer::spawn_with(&python, "worker_client.py", &[&address]);
    let mut cluster = Cluster { client, scheduler };
    cluster.python("client.wait_for_workers(1, timeout=60)");
    let code = "next(iter(client.scheduler_info(n_workers=-1)['workers']))";
    assert_eq!(cluster.python(code), format!("'{}'", worker.address()));
    // What the scheduler does not know is dropped, and so is the result of the task.
    until("its data is dropped", || worker.keys().is_empty()).await;
    go.send(()).expect("the task waits");
    until("the task ends", || {
        !worker
            .task_counts()
            .iter()
            .any(|(name, _)| *name == "executing")
    })
    .await;
    assert!(worker.keys().is_empty());
    let code = "client.submit(operator.mul, 3, 4).result(timeout=20)";
    assert_eq!(cluster.python(code), "12");
    // The plugin that knows workers in Rust was installed again.
    let code = "client.submit(native('hypot'), 3, 4).result(timeout=20)";
    assert_eq!(cluster.python(code), "5.0");
    cluster.check_logs();
    worker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dashboards_reports_and_logs_show_a_worker_in_rust() {
    let mut cluster = Cluster::new(1);
    let mut functions = functions();
    let is_over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&is_over);
    functions = functions.function("run until released", move || {
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let worker = cluster.worker("rust").functions(functions);
    let worker = worker.start().await.expect("worker starts");
    let code = "from urllib.parse import quote\n\
                from urllib.request import urlopen\n\
                import tempfile\n\
                from distributed import get_task_stream, performance_report\n\
                from distributed.diagnostics.task_stream import rectangles\n\
                rust = next(w for w, i in client.scheduler_info()['workers'].items() if i['name'] == 'rust')\n\
                with tempfile.NamedTemporaryFile(suffix='.html') as file, get_task_stream() as stream:\n\
                \x20   with performance_report(file.name):\n\
                \x20       data = client.map(native('zeros'), range(1000000, 1000100), workers='rust')\n\
                \x20       wrong = client.submit(operator.truediv, 1, 0, workers='rust')\n\
                \x20       wait([data, wrong])\n\
                \x20   report = open(file.name).read()\n\
                'number of tasks: 101' in report";
    assert_eq!(cluster.python(code), "True");
    // The dashboard's task stream
    let code = "shown = rectangles(stream.data)\n\
                (len(shown['name']), set(shown['worker']), set(shown['color']) - {'black'} != set(), 'black' in shown['color'])";
    let shown = format!("(101, {{'{}'}}, True, True)", worker.address());
    assert_eq!(cluster.python(code), shown);
    // The dashboard's table of workers, computed as on its page
    let code = "def row(dask_scheduler):\n\
                \x20   from distributed.dashboard.components.scheduler import WorkerTable\n\
                \x20   table = WorkerTable(dask_scheduler)\n\
                \x20   table.update()\n\
                \x20   columns = table.source.data\n\
                \x20   at = list(columns['name']).index('rust')\n\
                \x20   return {name: column[at] for name, column in columns.items()}\n\
                row = client.run_on_scheduler(row)\n\
                (row['nthreads'], row['memory_limit'], row['memory_managed'] // 1000000, row['memory_spilled'],\n\
                 0 <= row['cpu'] < 10, row['memory_managed'] <= row['memory'] < 2**30,\n\
                 0 < row['memory_percent'] < 1, row['num_fds'] > 5)";
    until("a heartbeat", || {
        let row = cluster.python(code);
        row == "(2, 1073741824, 100, 0, True, True, True, True)"
    })
    .await;
    // The pages of a worker, one of which requests the running tasks
    let code = "slow = client.submit(native('run until released'), workers='rust')\n\
                deadline = time.time() + 60\n\
                while slow.key not in {k for s in client.call_stack().values() for k in s} and time.time() < deadline: time.sleep(0.01)\n\
                port = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.port)\n\
                page = lambda path: urlopen(f'http://127.0.0.1:{port}/info/{path}.html').read().decode()\n\
                address = quote(rust, safe='')\n\
                ('rust' in page('main/workers'), 'zeros' in page(f'worker/{address}'),\n\
                 'division by zero' in page(f'logs/{address}'), 'in Rust on the worker' in page(f'call-stacks/{address}'))";
    assert_eq!(cluster.python(code), "(True, True, True, True)");
    let code = "stacks = client.call_stack([slow])\n\
                logs = client.get_worker_logs()\n\
                (list(stacks) == [rust], any('is registered with' in line for level, line in logs[rust]),\n\
                 client.profile(merge_workers=False)[rust]['identifier'])";
    assert_eq!(cluster.python(code), "(True, True, 'root')");
    let code = "story = [what for address, *what in client.story(data[0].key) if address == rust]\n\
                because = client.story(story[0][-2])\n\
                ([what[1:3] for what in story], {what[0] for what in story} == {data[0].key},\n\
                 [what[-1] for what in story] == sorted(what[-1] for what in story),\n\
                 {address for address, *what in because if data[0].key in what} == {rust})";
    let expected = "([['compute-task', 'released'], ['released', 'waiting'], ['waiting', 'ready'], \
                    ['ready', 'executing'], ['executing', 'memory']], True, True, True)";
    assert_eq!(cluster.python(code), expected);
    let code = "async def ask(dask_scheduler):\n\
                \x20   worker = dask_scheduler.rpc(rust)\n\
                \x20   metadata = await worker.profile_metadata(start=0, stop=None)\n\
                \x20   return metadata, await worker.get_monitor_info(recent=True, start=0)\n\
                client.run_on_scheduler(ask)";
    let expected =
        "({'counts': (), 'keys': ()}, {'range_query': {}, 'count': 0, 'last_time': 0.0})";
    assert_eq!(cluster.python(code), expected);
    is_over.store(true, Ordering::Relaxed);
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_works_in_a_cluster_over_tls() {
    let scheduler = daskwire_testing::scheduler_with_workers_over("tls", 1);
    let arguments = [&["--no-nanny"], &TLS_ARGUMENTS[..]].concat();
    let worker = worker::rust_worker(scheduler.address(), "rust", None, &arguments, &[]);
    assert!(worker.address().starts_with("tls://"), "{worker:?}");
    let client = client_at(scheduler.address()).await;
    // Created in Python, fetched and read in Rust, fetched and read in Python
    let on = |worker| SubmitOptions::default().workers([worker]);
    let array = client.call("numpy.full").argument(100_000).argument(2.0);
    let array = array.with(on("worker-0")).submit().expect("submitted");
    let norm = client.call("native:norm").argument(&array).with(on("rust"));
    let norm = norm.submit().expect("submitted");
    let twice = client.call("operator.mul").argument(&norm).argument(2);
    let twice = twice.with(on("worker-0")).submit().expect("submitted");
    let result = f64::try_from(twice.result().await.expect("a result"));
    assert!((result.expect("a number") - 2.0 * 4e5_f64.sqrt()).abs() < 1e-9);
    client.close().await.expect("it closes");
}
