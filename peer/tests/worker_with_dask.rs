//! A worker in Rust in a cluster of a real Dask: its scheduler, its client and
//! other workers are Python.

mod support;

use std::time::{Duration, Instant};

use daskwire_peer::worker::{Builder, Ended, Functions, Worker};
use daskwire_peer::{Array, RemoteError, Value};
use support::{Environment, Peer};

/// What the worker can do besides Python's own.
fn functions() -> Functions {
    Functions::python()
        .function("hypot", |x: f64, y: f64| x.hypot(y))
        .function("double", |array: Array| -> Result<Array, RemoteError> {
            let all: Vec<f64> = array.to_vec::<f64>()?.iter().map(|x| x * 2.0).collect();
            Ok(Array::from_slice(array.shape(), &all)?)
        })
        .function("total", |array: Array| -> Result<f64, RemoteError> {
            Ok(array.to_vec::<f64>()?.iter().sum())
        })
        .function("zeros", |len: usize| Value::from(vec![0_u8; len]))
        .function("panic", || -> Value { panic!("as asked for") })
        .with("kinds", |arguments| {
            let kinds = arguments.iter().map(Value::type_name);
            Ok(Value::list(kinds))
        })
}

struct Cluster {
    client: Peer,
    scheduler: Peer,
}

impl Cluster {
    /// A scheduler with workers in Python, named `worker-0` …
    fn new(worker_count: usize) -> Self {
        let scheduler = support::scheduler_with_workers(worker_count);
        let client = Peer::spawn(
            Environment::Current,
            "worker_client.py",
            &[scheduler.address()],
        );
        Self { client, scheduler }
    }

    fn worker(&self, name: &str) -> Builder {
        let address = self.scheduler.address().parse().expect("an address");
        Worker::builder(address)
            .name(name)
            .nthreads(2)
            .memory_limit(1 << 30)
            .functions(functions())
    }

    /// What Python says to this code.
    fn python(&mut self, code: &str) -> String {
        self.try_python(code)
            .unwrap_or_else(|error| panic!("{code}: {error}"))
    }

    fn try_python(&mut self, code: &str) -> Result<String, String> {
        let question = serde_json::json!({"op": "do", "code": code}).to_string();
        let (answer, _) = tokio::task::block_in_place(|| self.client.ask(&question, &[]));
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("a document");
        match answer["value"].as_str() {
            Some(value) => Ok(value.to_owned()),
            None => Err(answer["error"].as_str().unwrap_or_default().to_owned()),
        }
    }

    /// Fails if the scheduler or a worker in Python has warned of anything.
    fn check_logs(&self) {
        let peers = [&self.scheduler].into_iter();
        for peer in peers.chain(self.scheduler.workers()) {
            let log = peer.log();
            let bad = [
                " - WARNING - ",
                " - ERROR - ",
                " - CRITICAL - ",
                "Traceback",
            ];
            let line = log
                .lines()
                .find(|line| bad.iter().any(|word| line.contains(word)));
            assert_eq!(line, None, "the whole log:\n{log}");
        }
    }
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_a_client_in_python_run_in_rust() {
    let mut cluster = Cluster::new(0);
    let worker = cluster.worker("rust").start().await.expect("it starts");
    assert_eq!(worker.status(), "running");

    // Results are those of Python, whoever names the function.
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
        // A chain, and many at once
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
    let workers = "time.sleep(0.2); len(client.scheduler_info()['workers'])";
    assert_eq!(cluster.python(workers), "0");
    cluster.check_logs();
}
