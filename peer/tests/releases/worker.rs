//! Checks of the Rust worker next to a Python worker, with a Python scheduler and a Python
//! client.

use std::time::Duration;

use daskwire_peer::worker::{Arguments, Ended, Functions, StartError, Worker};
use daskwire_peer::{Array, Key, RemoteError, Value};
use daskwire_testing::cluster::Cluster;

use super::{Failure, Outcome, Trial, ensure};

const NAMES: [&str; 17] = [
    "worker registers",
    "map over Rust and Python",
    "pure=False",
    "fused tasks",
    "dependencies across workers",
    "worker errors",
    "task routing",
    "tasks returned",
    "scheduler messages",
    "data",
    "steal",
    "replicate",
    "unknown function",
    "refresh holders",
    "heartbeats",
    "retire",
    "no leaked keys",
];

/// Starts a Rust worker with one thread.
pub(crate) async fn rust(
    scheduler: &str,
    name: &str,
    functions: Functions,
) -> Result<Worker, StartError> {
    Worker::builder(scheduler.parse().expect("an address"))
        .name(name)
        .nthreads(1)
        .memory_limit(1 << 30)
        .functions(functions)
        .start()
        .await
}

/// Returns a list of two arrays.
fn arrays(_: Arguments) -> Result<Value, RemoteError> {
    let arrays = [&[0.5, 1.5][..], &[1.0, 2.0, 3.0]];
    let arrays = arrays.map(|items| Ok(Value::from(Array::from_slice(&[items.len()], items)?)));
    let arrays: Result<Vec<Value>, RemoteError> = arrays.into_iter().collect();
    arrays.map(Value::list)
}

pub(crate) async fn checks(trial: &mut Trial) {
    let Some(mut cluster) = trial.start(&NAMES, |python| Cluster::with(python, 1)) else {
        trial
            .report
            .add("worker logs", Outcome::Fails("no cluster".to_owned()));
        return;
    };
    let address = cluster.scheduler.address().to_owned();
    let functions = Functions::builtins()
        .function("hypot", |x: f64, y: f64| x.hypot(y))
        .with("arrays", arrays);
    let alone = Code(&mut cluster).decisions();
    let worker = match rust(&address, "rust", functions).await {
        Ok(worker) => worker,
        Err(error) => {
            for name in NAMES {
                trial
                    .check(name, async { Err(error.to_string().into()) })
                    .await;
            }
            trial.check("worker logs", logs(&cluster)).await;
            return;
        }
    };
    let heartbeat_count = trial.heartbeat_count;
    let mut code = Code(&mut cluster);
    trial.check("worker registers", code.gives(JOIN)).await;
    trial
        .check("map over Rust and Python", code.gives(MAP))
        .await;
    trial.check("pure=False", code.gives(IMPURE)).await;
    trial.check("fused tasks", code.gives(FUSED)).await;
    trial
        .check("dependencies across workers", code.gives(CHAINS))
        .await;
    trial.check("worker errors", code.errors()).await;
    trial.check("task routing", code.routes(alone)).await;
    trial.check("tasks returned", code.gives(GIVEN_BACK)).await;
    trial
        .check("scheduler messages", code.messages(&worker))
        .await;
    trial.check("data", code.gives(DATA)).await;
    trial.check("steal", code.gives(STEAL)).await;
    trial.check("replicate", code.gives(REPLICATE)).await;
    match rust(&address, "bare", Functions::new()).await {
        Ok(bare) => {
            trial
                .check("unknown function", code.no_functions(&bare))
                .await;
            trial
                .check("refresh holders", code.holders(&worker, &bare))
                .await;
        }
        Err(error) => {
            for name in ["unknown function", "refresh holders"] {
                trial
                    .check(name, async { Err(error.to_string().into()) })
                    .await;
            }
        }
    }
    let heartbeats = code.heartbeats(&worker, heartbeat_count);
    trial.check("heartbeats", heartbeats).await;
    trial.check("retire", code.retires(&worker)).await;
    trial.check("no leaked keys", code.nothing_is_left()).await;
    trial.check("worker logs", logs(&cluster)).await;
}

async fn logs(cluster: &Cluster) -> Result<(), Failure> {
    cluster
        .warning()
        .map_or(Ok(()), |(line, _)| Err(line.into()))
}

/// Lines of code for the client, and their expected results.
type Lines = &'static [(&'static str, &'static str)];

// ROLES WORKER-1
const JOIN: Lines = &[
    (
        "sorted(str(w['name']) for w in client.scheduler_info()['workers'].values())",
        "['rust', 'worker-0']",
    ),
    (
        "client.submit(operator.add, 1, 2, workers='rust').result()",
        "3",
    ),
    (
        "client.submit(native('hypot'), 3, 4, workers='rust').result()",
        "5.0",
    ),
];

// ROLES WORKER-2, WORKER-3, WORKER-4
const MAP: Lines = &[
    (
        "fs = client.map(operator.mul, range(300), range(300), workers=['rust', 'worker-0'])\n\
         sum(client.gather(fs)) == sum(n * n for n in range(300))",
        "True",
    ),
    (
        "len({w for ws in client.who_has(fs).values() for w in ws})",
        "2",
    ),
    ("del fs", "None"),
    (
        "f = client.submit(operator.add, 0, 1, pure=False)\n\
         for _ in range(50): f = client.submit(operator.add, f, 1, pure=False)\n\
         f.result()",
        "51",
    ),
    (
        "client.submit(sorted, [3, 1, 2], reverse=True, workers='rust').result()",
        "[3, 2, 1]",
    ),
    (
        "client.submit(operator.add, 'x', 'y', key=('block', 0), workers='rust').result()",
        "'xy'",
    ),
    (
        "import functools\n\
         client.submit(functools.partial(pow, 2), 10, workers='rust').result()",
        "1024",
    ),
    (
        "a, b = client.submit(operator.neg, 1), client.submit(operator.neg, 2)\n\
         client.submit(sum, [a, b, 10], workers='rust').result()",
        "7",
    ),
    (
        "client.submit(operator.getitem, {'k': a}, 'k', workers='rust').result()",
        "-1",
    ),
    (
        "import dask\n\
         dask.delayed(sum)([dask.delayed(operator.add)(i, a) for i in range(20)]).compute(workers='rust')",
        "170",
    ),
];

/// Equal calls that are not pure have different keys.
const IMPURE: Lines = &[
    (
        "fs = [client.submit(operator.add, 1, 2, workers='rust', pure=False) for _ in range(20)]\n\
         len({f.key for f in fs}), sum(client.gather(fs)), worker_names(client.who_has(fs))",
        "(20, 60, ['rust'])",
    ),
    (
        "f = client.submit(native('hypot'), 3, 4, workers='rust', pure=False)\n\
         g = client.submit(native('hypot'), 3, 4, workers='rust', pure=False)\n\
         f.key != g.key, f.result(), g.result()",
        "(True, 5.0, 5.0)",
    ),
    ("del f, g, fs", "None"),
];

/// Three tasks fused into one, as sent by Dask's collections.
// ROLES WORKER-5
const FUSED: Lines = &[
    (
        "graph = {'f1': (operator.add, 1, 2), 'f2': (operator.mul, 'f1', 5), 'f3': (operator.neg, 'f2')}\n\
         try:\n\
         \x20   from dask._task_spec import convert_legacy_graph, fuse_linear_task_spec\n\
         \x20   fused = fuse_linear_task_spec(convert_legacy_graph(graph), {'f3'})\n\
         except ImportError:\n\
         \x20   from dask.optimization import SubgraphCallable\n\
         \x20   inner = {'f2': (operator.mul, 'f0', 5), 'f3': (operator.neg, 'f2')}\n\
         \x20   call = SubgraphCallable(inner, 'f3', ['f0'])\n\
         \x20   fused = {'f1': graph['f1'], 'f3': (call, 'f1')}\n\
         import pickle\n\
         b'ubgraph' in pickle.dumps(fused)",
        "True",
    ),
    ("client.get(fused, 'f3', workers='rust')", "-15"),
    (
        "x = client.submit(operator.add, 30, 10, workers='worker-0')\n\
         y = client.submit(operator.neg, x, workers='rust')\n\
         y.result()",
        "-40",
    ),
    ("del x, y, fused", "None"),
];

const CHAINS: Lines = &[
    (
        "x = client.submit(np.arange, 1e4, workers='worker-0')\n\
         y = client.submit(len, x, workers='rust')\n\
         z = client.submit(operator.add, y, 1, workers='worker-0')\n\
         client.submit(operator.neg, z, workers='rust').result()",
        "-10001",
    ),
    (
        "xs = client.map(operator.add, range(50), range(50), workers=['rust', 'worker-0'], pure=False)\n\
         ys = [client.submit(sum, xs[i::10], workers='rust' if i % 2 else 'worker-0') for i in range(10)]\n\
         client.submit(sum, ys, workers='rust').result()",
        "2450",
    ),
    ("del x, y, z, xs, ys", "None"),
];

/// Tasks without restrictions run on workers that support them.
// ROLES WORKER-8
const TASK_ROUTING: Lines = &[
    (
        "fs = [client.submit(lambda i=i: 2 * i, pure=False) for i in range(60)]\n\
         ns = [client.submit(native('hypot'), 3, i, pure=False) for i in range(20)]\n\
         sum(client.gather(fs)), worker_names(client.who_has(fs))",
        "(3540, ['worker-0'])",
    ),
    (
        "len(client.gather(ns)), worker_names(client.who_has(ns))",
        "(20, ['rust'])",
    ),
    (
        // The length of the arguments does not matter.
        "import warnings\n\
         with warnings.catch_warnings():\n\
         \x20   warnings.simplefilter('ignore')\n\
         \x20   ls = [client.submit(len, b'x' * n, workers='rust') for n in (4_000_000, 4_200_000)]\n\
         client.gather(ls), worker_names(client.who_has(ls))",
        "([4000000, 4200000], ['rust'])",
    ),
    ("del fs, ns, ls", "None"),
];

/// The decisions of the scheduler about tasks and data without restrictions: the numbers of
/// root tasks that it sends to each worker and that it queues while they cannot end, and the
/// holders of scattered data, of single tasks and of a rechunked array.
// ROLES WORKER-8
const DECISIONS: &str = r#"
import collections, os, tempfile
gate = os.path.join(tempfile.mkdtemp(), 'gate')
def block(number, gate):
    import os, time
    while not os.path.exists(gate):
        time.sleep(0.01)
    return number
def root_tasks(dask_scheduler):
    tasks = [ts for ts in dask_scheduler.tasks.values() if str(ts.key).startswith('block')]
    names = [ts.processing_on.name if ts.processing_on else ts.state for ts in tasks]
    return sorted((str(name), names.count(name)) for name in set(names))
def all_in(counts):
    return sum(count for _, count in counts) == 200 and not dict(counts).get('waiting')
fs = client.map(block, range(200), gate=gate, pure=False)
while not all_in(client.run_on_scheduler(root_tasks)):
    time.sleep(0.05)
found = [client.run_on_scheduler(root_tasks)]
open(gate, 'w').close()
found.append(sum(client.gather(fs)))
del fs
data = client.scatter(list(range(30)), hash=False) + client.scatter([1], broadcast=True, hash=False)
found.append(worker_names(client.who_has(data)))
found.append(worker_names(client.who_has(client.scatter([1, 2], direct=True, hash=False))))
def increment(number):
    return number + 1
one = []
for number in range(10):
    one.append(client.submit(increment, number, pure=False))
    one[-1].result()
found.append(worker_names(client.who_has(one)))
del one, data
found
"#;

/// Python tasks that the scheduler may assign to either worker.
// ROLES WORKER-1, WORKER-7
const GIVEN_BACK: Lines = &[
    (
        "fs = client.map(lambda i: i + 1, range(40), workers=['rust', 'worker-0'], pure=False)\n\
         sum(client.gather(fs)), worker_names(client.who_has(fs))",
        "(820, ['worker-0'])",
    ),
    ("del fs", "None"),
];

const DATA: Lines = &[
    (
        "x = client.scatter(np.arange(1e5), workers='rust')\n\
         float(client.submit(np.sum, x, workers='worker-0').result())",
        "4999950000.0",
    ),
    (
        "(client.gather(x) == np.arange(1e5)).all() and client.submit(len, x, workers='rust').result()",
        "100000",
    ),
    (
        "o = client.scatter({1: [object]}, workers='rust', hash=False)\n\
         (client.gather(o), client.gather(o, direct=True)) == ({1: [object]}, {1: [object]})",
        "True",
    ),
    // Arrays in other objects
    (
        "x = client.submit(native('arrays'), workers='rust')\n\
         y = client.submit(operator.getitem, x, 1, workers='worker-0')\n\
         float(client.submit(np.sum, y, workers='worker-0').result()), [len(a) for a in client.gather(x)]",
        "(6.0, [2, 3])",
    ),
    ("del x, y, o", "None"),
];

const STEAL: Lines = &[(
    "client.submit(time.sleep, 0.1, workers='rust', pure=False).result()\n\
     client.submit(time.sleep, 0.1, workers='worker-0', pure=False).result()\n\
     fs = [client.submit(time.sleep, 0.1 + i / 1000, workers='rust', allow_other_workers=True)\n\
           for i in range(40)]\n\
     wait(fs)\n\
     where = [w[0] for w in client.who_has(fs).values()]\n\
     n = len(set(where))\n\
     del fs\n\
     n",
    "2",
)];

const REPLICATE: Lines = &[
    (
        "x = client.submit(operator.add, 'a', 'b', workers='rust')\n\
         y = client.submit(operator.add, 'c', 'd', workers='worker-0')\n\
         wait([x, y]) and None\n\
         client.replicate([x, y], n=2)\n\
         client.gather([x, y])",
        "['ab', 'cd']",
    ),
    ("del x, y", "None"),
];

struct Code<'c>(&'c mut Cluster);

impl Code<'_> {
    async fn gives(&mut self, lines: Lines) -> Result<(), Failure> {
        for (code, value) in lines {
            let found = self
                .0
                .try_python(code)
                .map_err(|error| format!("{code}: {error}"))?;
            let is_empty = *value == "None" && found.is_empty();
            ensure!(found == *value || is_empty, "{code}: {found}");
        }
        Ok(())
    }

    fn decisions(&mut self) -> Result<String, String> {
        self.0.try_python(DECISIONS)
    }

    /// Tasks run where they can, and the scheduler decides about those of others as it did
    /// `alone`, before the Rust worker joined.
    // ROLES WORKER-8
    async fn routes(&mut self, alone: Result<String, String>) -> Result<(), Failure> {
        self.gives(TASK_ROUTING).await?;
        let (alone, beside) = (alone?, self.decisions()?);
        ensure!(beside == alone, "{beside} instead of {alone}");
        Ok(())
    }

    async fn errors(&mut self) -> Result<(), Failure> {
        for (code, error) in [
            (
                "client.submit(operator.truediv, 1, 0, workers='rust').result()",
                "ZeroDivisionError: division by zero",
            ),
            (
                "client.submit(operator.neg, client.submit(int, float('nan'), workers='rust'), workers='worker-0').result()",
                "ValueError: cannot convert float NaN to integer",
            ),
            (
                "client.submit(lambda x: x, 1, workers='rust').result()",
                "NotImplementedError: ",
            ),
            (
                "client.submit(native('nothing'), workers='rust').result()",
                "NotImplementedError: ",
            ),
        ] {
            match self.0.try_python(code) {
                Err(found) => ensure!(found.starts_with(error), "{code}: {found}"),
                Ok(value) => return Err(format!("{code}: {value}").into()),
            }
        }
        self.gives(&[(
            "client.submit(operator.add, 1, 1, workers='rust').result()",
            "2",
        )])
        .await
    }

    /// The scheduler handles reports of released data and of changes of the status.
    // ROLES WORKER-1
    async fn messages(&mut self, worker: &Worker) -> Result<(), Failure> {
        let code = format!(
            "hasattr(client, 'amm') and client.amm.stop()\n\
             rust = {:?}\n\
             x = client.submit(operator.add, 'a', 'copy', workers='worker-0')\n\
             y = client.submit(operator.add, x, '!', workers='rust')\n\
             key = x.key\n\
             def say(message, dask_scheduler):\n\
             \x20   dask_scheduler.stream_comms[rust].send(dict(message, stimulus_id='a-test'))\n\
             import functools\n\
             def watch(dask_scheduler):\n\
             \x20   inner = dask_scheduler.stream_handlers['worker-status-change']\n\
             \x20   dask_scheduler.changes = []\n\
             \x20   @functools.wraps(inner)\n\
             \x20   def change(*args, **kwargs):\n\
             \x20       dask_scheduler.changes.append(kwargs['status'])\n\
             \x20       return inner(*args, **kwargs)\n\
             \x20   dask_scheduler.stream_handlers['worker-status-change'] = change\n\
             def is_last(status, dask_scheduler):\n\
             \x20   return status in dask_scheduler.changes[-2:]\n\
             client.run_on_scheduler(watch)\n\
             y.result()",
            worker.address()
        );
        // The memory manager of the scheduler would remove one of the two replicas of x, so
        // it is stopped before there are two.
        let found = self.0.try_python(&code)?;
        ensure!(found == "'acopy!'", "{found}");
        self.until("worker_names(client.who_has([x]))", "['rust', 'worker-0']")
            .await?;
        let code = "client.run_on_scheduler(say, {'op': 'remove-replicas', 'keys': [key]})";
        self.0.try_python(code)?;
        self.until("worker_names(client.who_has([x]))", "['worker-0']")
            .await?;
        self.0
            .try_python("hasattr(client, 'amm') and client.amm.start()")?;
        for status in ["paused", "running"] {
            let message = format!("{{'op': 'worker-status-change', 'status': '{status}'}}");
            self.0
                .try_python(&format!("client.run_on_scheduler(say, {message})"))?;
            // The worker may resume by itself at its next check of the memory.
            let code = format!("client.run_on_scheduler(is_last, '{status}')");
            self.until(&code, "True").await?;
        }
        self.gives(&[
            (
                "client.submit(operator.neg, 3, workers='rust').result()",
                "-3",
            ),
            ("del x, y", "None"),
        ])
        .await
    }

    /// A worker without functions stores data, and its tasks fail.
    async fn no_functions(&mut self, bare: &Worker) -> Result<(), Failure> {
        let code = "client.submit(operator.add, 1, 2, workers='bare').result()";
        match self.0.try_python(code) {
            Err(found) => ensure!(found.starts_with("NotImplementedError: "), "{found}"),
            Ok(value) => return Err(format!("{code}: {value}").into()),
        }
        self.gives(&[
            (
                "x = client.scatter([1, 2, 3], workers='bare', hash=False)\n\
                 client.submit(sum, x, workers='rust').result()",
                "6",
            ),
            ("del x", "None"),
        ])
        .await?;
        while !bare.keys().is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// A worker that receives the address of a holder without the data asks for other holders.
    // ROLES WORKER-1
    async fn holders(&mut self, worker: &Worker, bare: &Worker) -> Result<(), Failure> {
        self.gives(&[(
            "hasattr(client, 'amm') and client.amm.stop()\n\
             x = client.scatter('held', workers='bare', hash=False)\n\
             address = {i['name']: w for w, i in client.scheduler_info()['workers'].items()}\n\
             key = x.key\n\
             def mislead(dask_scheduler):\n\
             \x20   dask_scheduler.stream_comms[address['rust']].send({\n\
             \x20       'op': 'acquire-replicas', 'keys': [key], 'who_has': {key: [address['worker-0']]},\n\
             \x20       'nbytes': {key: 60}, 'stimulus_id': 'a-test'})\n\
             client.run_on_scheduler(mislead)",
            "None",
        )])
        .await?;
        let key = Key::from(self.0.try_python("key")?.trim_matches('\''));
        while !worker.keys().contains(&key) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.0
            .try_python("hasattr(client, 'amm') and client.amm.start()")?;
        self.gives(&[
            (
                "done = client.retire_workers([address['bare']])\n\
                 client.gather(x), 'bare' in worker_names(client.who_has([x]))",
                "('held', False)",
            ),
            ("del x", "None"),
        ])
        .await?;
        let ended = bare.ended().await;
        ensure!(matches!(ended, Ended::ByScheduler { .. }), "{ended}");
        Ok(())
    }

    // ROLES WORKER-6
    /// The scheduler accepts heartbeats for as long as the worker is connected, and the
    /// worker has deleted all data that was released.
    async fn heartbeats(&mut self, worker: &Worker, count: u32) -> Result<(), Failure> {
        let code = "a = b = f = None\n\
                    m = [w['metrics'] for w in client.scheduler_info()['workers'].values() if w['name'] == 'rust'][0]\n\
                    m['memory'] > 0";
        let found = self.0.try_python(code)?;
        ensure!(found == "True", "{found}");
        let code = format!(
            "import functools\n\
             rust = {:?}\n\
             def count_heartbeats(dask_scheduler):\n\
             \x20   inner = dask_scheduler.handlers['heartbeat_worker']\n\
             \x20   dask_scheduler.counted = 0\n\
             \x20   @functools.wraps(inner)\n\
             \x20   def heartbeat(*args, **kwargs):\n\
             \x20       reply = inner(*args, **kwargs)\n\
             \x20       dask_scheduler.counted += kwargs['address'] == rust and reply['status'] == 'OK'\n\
             \x20       return reply\n\
             \x20   dask_scheduler.handlers['heartbeat_worker'] = heartbeat\n\
             client.run_on_scheduler(count_heartbeats)",
            worker.address()
        );
        self.0.try_python(&code)?;
        let code = format!(
            "client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.counted) >= {count}"
        );
        self.until(&code, "True").await?;
        // The scheduler releases the results of the earlier checks.
        let released = async {
            while !worker.keys().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let released = tokio::time::timeout(Duration::from_secs(20), released).await;
        ensure!(released.is_ok(), "{:?}", worker.keys());
        Ok(())
    }

    async fn retires(&mut self, worker: &Worker) -> Result<(), Failure> {
        let code = "fs = client.map(operator.add, range(50), range(50), workers='rust')\n\
                    wait(fs) and None\n\
                    name = {i['name']: w for w, i in client.scheduler_info()['workers'].items()}\n\
                    retired = client.retire_workers([name['rust']])\n\
                    sum(client.gather(fs))";
        let found = self.0.try_python(code)?;
        ensure!(found == "2450", "{found}");
        let ended = tokio::time::timeout(Duration::from_secs(20), worker.ended()).await?;
        ensure!(matches!(ended, Ended::ByScheduler { .. }), "{ended}");
        // The plugin that separates tasks is harmless once no Rust worker is left.
        self.gives(&[(
            "client.gather([client.submit(lambda: 7), client.submit(operator.neg, 1)])",
            "[7, -1]",
        )])
        .await
    }

    /// After the Rust workers have left and all data is released, the scheduler and the
    /// other worker have forgotten their tasks.
    async fn nothing_is_left(&mut self) -> Result<(), Failure> {
        // The client holds exceptions, whose tracebacks hold the futures.
        let code = "fs = None\n\
                    for state in list(client.futures.values()):\n\
                    \x20   if getattr(state, 'exception', None) is not None:\n\
                    \x20       state.exception.__traceback__ = None\n\
                    import gc\n\
                    gc.collect() and None\n\
                    def left(dask_scheduler):\n\
                    \x20   stealing = dask_scheduler.extensions['stealing']\n\
                    \x20   parts = [dask_scheduler.tasks, stealing.in_flight, dask_scheduler.workers, dask_scheduler.stream_comms]\n\
                    \x20   return [len(part) for part in parts]";
        self.0.try_python(code)?;
        self.until("client.run_on_scheduler(left)", "[0, 0, 1, 1]")
            .await?;
        let code = "list(client.run(lambda dask_worker: len(dask_worker.data)).values())";
        self.until(code, "[0]").await
    }

    /// Waits until an expression has the expected value.
    async fn until(&mut self, code: &str, value: &str) -> Result<(), Failure> {
        let mut last = String::new();
        loop {
            let found = self
                .0
                .try_python(code)
                .map_err(|error| format!("{code}: {error}"))?;
            if found == value {
                return Ok(());
            }
            if found != last {
                println!("    waiting for {value}: {found}");
                last = found;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
