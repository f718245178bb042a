//! Tests of `daskwire worker --python`: what it shares with Python workers, compared in
//! clusters of one kind each, and what differs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use daskwire_testing::cluster::{Cluster, until};
use daskwire_testing::process::{children, has_ended, python_processes};
use daskwire_testing::{Environment, Peer, address_after};

use crate::support::command;
use crate::support::worker::{python_worker, rust_worker};

/// A cluster with one worker, which is a Rust worker.
struct RustCluster {
    cluster: Cluster,
    worker: Peer,
}

fn interpreter() -> PathBuf {
    daskwire_testing::python(Environment::Current)
}

impl RustCluster {
    fn new(arguments: &[&str]) -> Self {
        let cluster = Cluster::new(0);
        let worker = worker(&cluster, "rust", arguments);
        Self { cluster, worker }
    }

    /// The ids of the worker's Python processes.
    fn processes(&self) -> Vec<String> {
        python_processes(self.worker.id())
    }
}

/// Starts a worker with two threads and no nanny.
fn worker(cluster: &Cluster, name: &str, arguments: &[&str]) -> Peer {
    worker_of(&interpreter(), cluster, name, arguments)
}

fn worker_of(python: &Path, cluster: &Cluster, name: &str, arguments: &[&str]) -> Peer {
    worker_after("true", python, cluster, name, arguments)
}

/// Like [`worker_of`], after a shell command, such as one that sets limits.
fn worker_after(
    prepare: &str,
    python: &Path,
    cluster: &Cluster,
    name: &str,
    arguments: &[&str],
) -> Peer {
    let mut command = Command::new("sh");
    let script = format!("{prepare} && exec \"$0\" \"$@\"");
    command
        .args(["-c", &script])
        .args([env!("CARGO_BIN_EXE_daskwire"), "worker"])
        .arg(cluster.scheduler.address())
        .args(["--no-nanny", "--nthreads", "2", "--name", name, "--python"])
        .arg(python)
        .args(arguments);
    Peer::spawn_command(name, &mut command, |log| address_after(log, " at "))
}

/// Starts a worker that runs no Python.
fn worker_without(cluster: &Cluster) -> Peer {
    let scheduler = cluster.scheduler.address();
    rust_worker(scheduler, "without", None, &["--no-nanny"], &[])
}

/// Programs whose results or exceptions do not depend on the kind of worker.
const PROGRAMS: [&str; 44] = [
    "class Broken(Exception):\n    def __str__(self): return self.response.text\n\
     def fail(): raise Broken()\n\
     client.submit(fail).result()",
    // Changes to context variables end with their task.
    "import decimal\n\
     def change(n): decimal.getcontext().prec = 5\n\
     wait(client.map(change, range(8), pure=False))\n\
     set(client.gather(client.map(lambda n: decimal.getcontext().prec, range(8), pure=False)))",
    "client.submit(lambda x: x + 1, 1).result()",
    "base = 5\nclient.submit(lambda x, *, y: (x, y, base), 1, y=[2, {'a': (3,)}]).result()",
    "client.gather(client.map(lambda x: x ** 2, range(200)))",
    "f = client.submit(lambda: 0)\n\
     for _ in range(50): f = client.submit(lambda x: x + 1, f, pure=False)\n\
     f.result()",
    "a, b = client.map(lambda x: [x], [1, 2])\n\
     client.submit(lambda x, kept: (x, kept), [a, {'b': b}], kept=(a,)).result()",
    "client.submit(operator.add, 'x', 'y', key=('block', 0)).result()",
    "client.submit(lambda: None).result()",
    "client.submit(bytes, 10).result(), client.submit(bytes, 200_000).result() == bytes(200_000)",
    "client.submit(lambda: {1, 2.5, 'c'}).result() == {1, 2.5, 'c'}",
    "class Point:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return Point(self.x + o.x)\n\
     client.submit(operator.add, client.submit(Point, 1), Point(2)).result().x",
    "import dask\n\
     dask.compute(dask.delayed(sum)([dask.delayed(operator.add)(1, 2), 4]), dask.delayed(dict)(a=1))",
    "import dask.array as da\nx = da.ones((200, 200), chunks=(50, 50))\n(x + x.T).sum().compute()",
    "(x @ x).mean().compute()",
    "x.rechunk((25, 200)).std(axis=0).compute().shape",
    "da.random.default_rng(1).random((100, 100), chunks=50).sum().compute()",
    "np.linalg.norm(da.linalg.svd(da.ones((100, 5), chunks=(20, 5)))[1].compute()).round(6)",
    "da.arange(100, chunks=10).map_overlap(lambda b: b + 1, depth=1).sum().compute()",
    "f = client.submit(np.arange, 300_000)\nclient.submit(lambda a: a[::1000].sum(), f).result(), f.result().sum()",
    "client.submit(lambda: [np.arange(50_000), 'x', np.ones(3)]).result()[0].sum()",
    "import dask.bag as db\ndb.range(100, npartitions=4).map(lambda i: i % 7).frequencies().compute()",
    "db.from_sequence(range(50), npartitions=5).groupby(lambda i: i % 3).map(lambda g: (g[0], sorted(g[1]))).compute()",
    "frame = client.submit(pd.DataFrame, {'a': [1, 2, 1], 'b': [3.0, 4.0, 5.0]})\n\
     client.submit(lambda f: f.groupby('a').b.sum().to_dict(), frame).result()",
    "frame.result().to_dict()",
    // Exceptions
    "client.submit(lambda: 1 / 0).result()",
    "client.submit(lambda x: x, client.submit(operator.getitem, {'a': 1}, 'b')).result()",
    "def fail():\n    try: {}['k']\n    except KeyError as cause: raise ValueError('no') from cause\n\
     e = client.submit(fail).exception()\n(repr(e), repr(e.__cause__))",
    "import traceback\n[frame.name for frame in traceback.extract_tb(client.submit(fail).traceback())]",
    "class Own(Exception):\n    def __init__(self, a, b): super().__init__(a, b)\n\
     client.submit(lambda: (_ for _ in ()).throw(Own(1, 2))).result()",
    // The span of the task
    "import dask, distributed\n\
     def in_span(): return dask.get_annotations()['span']['name']\n\
     async def later_in_span(): return dask.get_annotations()['span']['name']\n\
     with distributed.span('outer'): fs = [client.submit(in_span), client.submit(later_in_span)]\n\
     client.gather(fs)",
    "client.submit(lambda: dask.get_annotations()).result()",
    // The worker's interface for tasks
    "from distributed import get_client, get_worker, secede, rejoin, worker_client\n\
     client.submit(lambda: get_worker().get_current_task(), key='current').result()",
    "client.submit(lambda: sum(get_client().gather(get_client().map(abs, [-1, -2])))).result()",
    "def inner():\n    with worker_client() as c: return c.submit(sum, [1, 2, 3]).result()\n\
     client.gather(client.map(lambda _: inner(), range(3)))",
    "def wait_inside():\n    fs = get_client().map(lambda x: x * 3, range(3))\n    secede()\n    \
     r = sum(get_client().gather(fs))\n    rejoin()\n    return r\n\
     client.gather([client.submit(wait_inside, pure=False) for _ in range(3)])",
    "def inside():\n    c = get_client()\n    [f] = c.scatter([41])\n    secede()\n    return c.submit(operator.add, f, 1).result()\n\
     client.submit(inside).result()",
    "async def later():\n    import asyncio\n    await asyncio.sleep(0)\n    return 'later'\n\
     client.submit(later).result()",
    "from distributed import Event, Lock, Queue, Variable\n\
     Variable('v').set(3)\nclient.submit(lambda: Variable('v').get()).result()",
    "client.submit(lambda: Queue('q').put(5)).result()\nQueue('q').get()",
    "def locked(lock):\n    with lock: return lock.locked()\nclient.submit(locked, Lock('l')).result()",
    "client.submit(lambda e: e.set(), Event('e')).result()\nEvent('e').is_set()",
    "from distributed import print as tell, warn\n\
     client.submit(lambda: (tell('a', 1, file=__import__('sys').stderr), get_worker().log_event('t', {'n': [1]}))).result()\n\
     [[(n, m[n]) for n in m if n != 'worker'] for topic in ('print', 't') for _, m in client.get_events(topic)]",
    // What a task has told precedes its result.
    "def told(i): get_worker().log_event(f'told-{i}', i)\n\
     def count(i): client.submit(told, i).result(); return len(client.get_events(f'told-{i}'))\n\
     sum(map(count, range(40)))",
];

#[tokio::test(flavor = "multi_thread")]
async fn programs_have_the_results_of_a_worker_in_python() {
    // Two threads, so that one task can wait for another.
    let mut python = Cluster::new(2);
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let mut shared = RustCluster::new(&["--memory-limit", "1GiB", "--python-processes", "1"]);
    // A worker of each kind: in Python, with Python, and without.
    let mut mixed = Cluster::new(1);
    let _with = worker(&mixed, "with", &["--memory-limit", "1GiB"]);
    let _without = worker_without(&mixed);
    for program in PROGRAMS {
        let expected = python.try_python(program);
        assert_eq!(rust.cluster.try_python(program), expected, "{program}");
        let result = shared.cluster.try_python(program);
        assert_eq!(result, expected, "{program}, in one process");
        assert_eq!(mixed.try_python(program), expected, "{program}, mixed");
    }
    // Functions in Rust and in Python in one graph
    let short = "f = client.submit(native('linspace'), 0, 1, 5)\n\
                 client.submit(native('sum'), client.submit(lambda a: a * 2, f)).result()";
    assert_eq!(rust.cluster.python(short), "5.0");
    // The same with arrays in shared memory
    let long = "f = client.submit(native('linspace'), 0, 1, 100_001)\n\
                g = client.submit(lambda a: a * 2, f)\n\
                round(client.submit(native('sum'), g).result(), 3), g.result().nbytes, f.result()[-1]";
    assert_eq!(
        rust.cluster.python(long),
        "(100001.0, 800008, np.float64(1.0))"
    );
    // The workers in Python have logged the exceptions of tasks.
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_costs_its_task_only() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    cluster.python("async def later_exit(): exit(5)");
    cluster.python("import os\nkept = client.submit(np.arange, 100_000)\nwait(kept)");
    for (index, (code, how)) in [
        ("lambda: os.kill(os.getpid(), 9)", "signal: 9 (SIGKILL)"),
        (
            "lambda: __import__('ctypes').string_at(0)",
            "signal: 11 (SIGSEGV)",
        ),
        ("lambda: os._exit(3)", "exit status: 3"),
        ("lambda: exit(4)", "exit status: 4"),
        ("later_exit", "exit status: 5"),
    ]
    .into_iter()
    .enumerate()
    {
        let task = format!("client.submit({code}, key='ends-{index}').result()");
        let error = cluster.try_python(&task).expect_err(code);
        assert!(
            error.contains("4 times, and each time its process ended")
                && error.contains("KilledWorker")
                && error.contains(how),
            "{code}: {error}"
        );
    }
    // A task succeeds if its process ends only once.
    let path = std::env::temp_dir().join(format!("daskwire-ends-{}", std::process::id()));
    let once = format!(
        "def once(path='{}'):\n    if not os.path.exists(path):\n        open(path, 'w').close()\n        \
         os._exit(1)\n    os.remove(path)\n    return 'again'\nclient.submit(once).result()",
        path.display()
    );
    assert_eq!(cluster.python(&once), "'again'");
    // A process that ends while idle is replaced.
    for id in python_processes(rust.worker.id()) {
        let killed = Command::new("kill").args(["-9", &id]).status();
        assert!(killed.is_ok_and(|status| status.success()));
        until("the end of the process", || has_ended(&id)).await;
    }
    assert_eq!(
        cluster.python("client.submit(lambda a: a.sum(), kept).result()"),
        "np.int64(4999950000)"
    );
    assert_eq!(
        cluster.python("len(client.scheduler_info()['workers'])"),
        "1"
    );
    cluster.python("del kept");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_is_not_run_again() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    let id = cluster.python(
        "from distributed import Event, Queue\nimport os\n\
         def endless():\n    Queue('ids').put(os.getpid())\n    Event('never').wait()\n\
         f = client.submit(endless, key='endless')\nQueue('ids').get()",
    );
    // The worker handles the cancellation before the next task.
    cluster.python("f.cancel(force=True)\nclient.submit(int).result()");
    let killed = Command::new("kill").args(["-9", &id]).status();
    assert!(killed.is_ok_and(|status| status.success()));
    rust.worker
        .wait_for_log("while it ran the task endless, which was cancelled");
    // Both threads are free again.
    assert_eq!(
        rust.cluster.python(
            "def meet(own, other):\n    Event(own).set()\n    return Event(other).wait(30)\n\
             client.gather([client.submit(meet, 'a', 'b'), client.submit(meet, 'b', 'a')]), \
             Queue('ids').qsize()"
        ),
        "([True, True], 0)"
    );
    rust.cluster.check_logs();
}

/// The outcome of an execution does not count for a later run of the task, for which it may not
/// hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_was_cancelled_does_not_answer_for_the_next_with_its_key() {
    let mut rust = RustCluster::new(&[]);
    let results = rust.cluster.python(
        "import os\nfrom distributed import Event\n\
         def cancelled(how):\n    Event(f'{how} runs').set()\n    Event(f'{how} is replaced').wait()\n    \
         assert how != 'fails'\n    \
         if how == 'dies': os._exit(1)\n    return 'cancelled'\n\
         results = []\n\
         for how in 'returns', 'fails', 'dies':\n    \
         f = client.submit(cancelled, how, key=how)\n    Event(f'{how} runs').wait()\n    \
         f.cancel(force=True)\n    del f\n    client.submit(int).result()\n    \
         f = client.submit(lambda: 'replaced', key=how)\n    client.submit(int).result()\n    \
         Event(f'{how} is replaced').set()\n    results.append(f.result())\n    del f\n\
         results",
    );
    assert_eq!(
        results,
        "['replaced', 'replaced', 'replaced']",
        "{}",
        rust.worker.log()
    );
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_failures_that_are_allowed_are_configured() {
    let mut cluster = Cluster::new(0);
    for (index, (allowed, times)) in [("0", " once, and "), ("1", " 2 times, and each time")]
        .into_iter()
        .enumerate()
    {
        let name = format!("allows-{allowed}");
        let set = format!("export DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES={allowed}");
        let _worker = worker_after(
            &set,
            &interpreter(),
            &cluster,
            &name,
            &["--memory-limit", "1GiB"],
        );
        let task = format!(
            "client.submit(lambda: __import__('os')._exit(3), key='{index}', workers='{name}').result()"
        );
        let error = cluster.try_python(&task).expect_err("it ends");
        assert!(
            error.contains(times) && error.contains("exit status: 3"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_do_not_need_the_one_that_they_were_forked_from() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB", "--python-warm"]);
    let kill = |ids: &[String]| {
        let killed = Command::new("kill").arg("-9").args(ids).status();
        assert!(killed.is_ok_and(|status| status.success()));
    };
    let templates = children(rust.worker.id());
    assert_eq!(templates.len(), 1);
    let processes = rust.processes();
    kill(&templates);
    let used = rust.cluster.python(
        "import os\n\
         str(client.submit(os.getpid).result())",
    );
    assert!(
        processes.contains(&used.trim_matches('\'').to_owned()),
        "{used}"
    );
    // New processes are forked from another one.
    kill(&processes);
    for id in &processes {
        until("the end of the process", || has_ended(id)).await;
    }
    let sum = "client.submit(lambda: sum(range(5))).result()";
    assert_eq!(rust.cluster.python(sum), "10");
    assert_eq!(children(rust.worker.id()).len(), 1);
    assert_eq!(rust.processes().len(), 1);
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_have_random_numbers_of_their_own() {
    // The process from which they are forked has used both generators.
    let folder = std::env::temp_dir().join(format!("daskwire-random-{}", std::process::id()));
    fs::create_dir(&folder).expect("it is new");
    let customize = "import random, numpy.random\nrandom.random(), numpy.random.random()\n";
    fs::write(folder.join("sitecustomize.py"), customize).expect("it is written");
    let prepare = format!("export PYTHONPATH='{}'", folder.display());
    let mut cluster = Cluster::new(0);
    let arguments = ["--memory-limit", "1GiB", "--python-warm"];
    let _worker = worker_after(&prepare, &interpreter(), &cluster, "rust", &arguments);
    let numbers = cluster.python(
        "import random, sys\n\
         from distributed import Event\n\
         def numbers(n):\n    \
         Event(f'runs-{n}').set()\n    Event(f'runs-{1 - n}').wait()\n    \
         return random.random(), np.random.random(), 'sitecustomize' in sys.modules\n\
         a, b = client.gather(client.map(numbers, range(2)))\n\
         a[0] != b[0], a[1] != b[1], a[2]",
    );
    assert_eq!(numbers, "(True, True, True)");
    cluster.check_logs();
    fs::remove_dir_all(&folder).expect("it exists");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_outlives_the_worker() {
    for signal in ["KILL", "TERM"] {
        let mut rust = RustCluster::new(&["--memory-limit", "1GiB", "--python-warm"]);
        let processes = rust.processes();
        assert_eq!(processes.len(), 2);
        let templates = children(rust.worker.id());
        // One process holds data and never releases the interpreter lock, and has forked.
        rust.cluster.python(
            "from distributed import Event\nimport os, time\n\
             def spin(array):\n    if not os.fork():\n        while True: time.sleep(100)\n    \
             Event('spins').set()\n    while True: sum(range(10 ** 8))\n\
             f = client.submit(spin, client.submit(np.ones, 1_000_000))\nEvent('spins').wait()",
        );
        let forked = processes.iter().flat_map(|id| {
            let id = id.parse().expect("a number");
            children(id)
        });
        let forked: Vec<String> = forked.collect();
        assert_eq!(forked.len(), 1);
        if signal == "TERM" {
            rust.cluster.python("f.cancel(force=True)");
        }
        rust.worker.signal(signal);
        for id in processes.iter().chain(&forked).chain(&templates) {
            until("the end of the process", || has_ended(id)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_reach_a_task_whatever_its_process_keeps() {
    // Each process caches up to 64 MiB.
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    // The scattered input evicts the input that the process has computed.
    let displaced = "def both(n):\n    b = client.submit(bytes, 40_000_000 + n)\n    wait(b)\n    \
                     [a] = client.scatter([bytes(41_000_000 + n)])\n    \
                     return client.submit(lambda a, b: len(a) - len(b), a, b).result()\n\
                     {both(n) for n in range(6)}";
    assert_eq!(cluster.python(displaced), "{1000000}");
    // Inputs of a task that fails before it has received them
    cluster.python(
        "class Bad:\n    def __reduce__(self): return eval, ('1 / 0',)\n\
         inputs = client.scatter([[n] for n in range(8)])\n[bad] = client.scatter([Bad()])",
    );
    let error = cluster
        .try_python("client.submit(lambda *inputs: 0, *inputs, bad).result()")
        .expect_err("it divides by zero");
    assert!(error.contains("ZeroDivisionError"), "{error}");
    let used = "client.submit(lambda *inputs: sum(map(sum, inputs)), *inputs).result()";
    assert_eq!(cluster.python(used), "28");
    cluster.python("del inputs, bad");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_not_loaded_twice_on_one_worker() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    cluster.python(
        "import builtins\n\
         class Counted:\n    def __init__(self, n): self.n = n\n    def __getstate__(self): return self.n\n    \
         def __setstate__(self, n):\n        self.n = n\n        \
         builtins.load_count = getattr(builtins, 'load_count', 0) + 1\n\
         def load_count(counted): return counted.n, getattr(builtins, 'load_count', 0)",
    );
    // A chain, whose process caches what it returns
    let chain = "f = client.submit(Counted, 0)\n\
                 for _ in range(20): f = client.submit(lambda c: Counted(c.n + 1), f, pure=False)\n\
                 client.submit(load_count, f).result()";
    assert_eq!(cluster.python(chain), "(20, 0)");
    // A value from a client, which is loaded once
    let scattered = "g = client.scatter(Counted(7))\n\
                     [client.submit(load_count, g, pure=False).result() for _ in range(3)]";
    assert_eq!(cluster.python(scattered), "[(7, 1), (7, 1), (7, 1)]");
    cluster.python("del f, g");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_process_is_seen_although_it_has_forked() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    let path = std::env::temp_dir().join(format!("daskwire-forks-{}", std::process::id()));
    // The fork by C is visible to neither Python nor the socket.
    let forks = format!(
        "import ctypes, os\n\
         def forks(end, by):\n    own = by()\n    if not own:\n        \
         with open('{}', 'a') as file: file.write(f'{{os.getpid()}}\\n')\n        \
         os.write(end[1], b'.')\n        while True: ctypes.PyDLL(None).pause()\n    \
         os.read(end[0], 1)\n    ctypes.string_at(0)\n\
         def by_python(): forks(os.pipe(), os.fork)\n\
         def by_c(): forks(os.pipe(), ctypes.PyDLL(None).fork)",
        path.display()
    );
    cluster.python(&forks);
    for function in ["by_python", "by_c"] {
        let error = cluster
            .try_python(&format!("client.submit({function}).result()"))
            .expect_err("it crashes");
        assert!(error.contains("signal: 11 (SIGSEGV)"), "{error}");
    }
    let forked = fs::read_to_string(&path).expect("they were written");
    fs::remove_file(&path).expect("it was read");
    assert_eq!(forked.lines().count(), 8);
    for id in forked.lines() {
        until("the end of a forked process", || has_ended(id)).await;
    }
    // Processes forked by a task can be terminated as usual.
    let terminates = "def terminates():\n    import multiprocessing, time\n    codes = set()\n    \
                      for _ in range(50):\n        \
                      one = multiprocessing.get_context('fork').Process(target=time.sleep, args=(1000,))\n        \
                      one.start()\n        one.terminate()\n        one.join(20)\n        \
                      codes.add(one.exitcode)\n        one.kill()\n    return codes\n\
                      client.submit(terminates).result()";
    assert_eq!(cluster.python(terminates), "{-15}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_all_processes_hands_data_over() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB", "--nanny"]);
    let cluster = &mut rust.cluster;
    let processes = |parent: u32| {
        let workers = children(parent);
        let [worker] = &workers[..] else {
            panic!("{workers:?}");
        };
        let id = worker.parse().expect("a number");
        (
            worker.clone(),
            [children(id), python_processes(id)].concat(),
        )
    };
    let (own, python) = processes(rust.worker.id());
    let kill = |ids: &[String]| {
        let killed = Command::new("kill").args(["-s", "TERM"]).args(ids).status();
        assert!(killed.is_ok_and(|status| status.success()));
    };
    kill(&python);
    let id = cluster.python(
        "import os\nkept = client.scatter(list(range(100)))\nclient.submit(os.getpid).result()",
    );
    // After the process that it was forked from
    assert_eq!(python[1..], [id]);
    let other = worker(cluster, "other", &["--memory-limit", "1GiB"]);
    let all = [vec![rust.worker.id().to_string(), own], python].concat();
    kill(&all);
    assert!(rust.worker.ended());
    let log = rust.worker.log();
    assert!(
        log.contains("other workers have copies of all data"),
        "{log}"
    );
    let gathered = "len(client.gather(kept))";
    assert_eq!(cluster.python(gathered), "100");
    cluster.python("del kept");
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_takes_too_much_memory_costs_its_process_only() {
    let mut rust = RustCluster::new(&["--memory-limit", "600MiB", "--nanny"]);
    let cluster = &mut rust.cluster;
    cluster
        .python("kept = client.scatter(np.arange(1_000_000))\nclient.submit(len, kept).result()");
    // Once a task has run, the client knows the worker.
    let workers = "sorted(client.scheduler_info()['workers'])";
    let before = cluster.python(workers);
    let greedy = "def greedy():\n    all = np.ones(100_000_000)\n    while True: all.sum()\n\
                  client.submit(greedy).result()";
    let error = cluster.try_python(greedy).expect_err("it is ended");
    assert!(
        error.contains("4 times, and each time its process ended")
            && error.contains("MiB of the worker's memory"),
        "{error}"
    );
    assert_eq!(cluster.python(workers), before);
    assert_eq!(
        cluster.python("client.gather(kept).sum()"),
        "np.int64(499999500000)"
    );
    cluster.python("del kept");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_end_by_themselves() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    let path = |name: &str| {
        let name = format!("daskwire-{name}-{}", std::process::id());
        std::env::temp_dir().join(name)
    };
    let (surplus, last) = (path("surplus"), path("last"));
    // Three processes, of which the first is busy for longer than the others.
    let three = format!(
        "import atexit, os\nfrom distributed import Event, get_client, secede\n\
         def first():\n    get_client()\n    secede()\n    Event('go').wait()\n    \
         atexit.register(lambda: open('{}', 'w').close())\n    return os.getpid()\n\
         def second(own, other):\n    Event(own).set()\n    Event(other).wait()\n    \
         atexit.register(lambda: open('{}', 'w').close())\n\
         one = client.submit(first)\n\
         client.gather([client.submit(second, 'a', 'b'), client.submit(second, 'b', 'a')])\n\
         Event('go').set()\none.result()",
        last.display(),
        surplus.display()
    );
    let first = cluster.python(&three);
    // The process that has been idle for longest is ended.
    until("the end of a surplus process", || surplus.exists()).await;
    assert!(!has_ended(&first) && !last.exists());
    rust.worker.signal("TERM");
    assert!(rust.worker.ended());
    assert!(has_ended(&first) && last.exists());
    for path in [surplus, last] {
        fs::remove_file(path).expect("it exists");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_stack_names_the_process() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let named = "import os\nfrom distributed import Event, Queue\n\
                 def waits():\n    Queue('ids').put(os.getpid())\n    Event('go').wait()\n\
                 f = client.submit(waits, key='waits')\nid = Queue('ids').get()\n\
                 [stacks] = client.call_stack(keys=['waits']).values()\nEvent('go').set()\n\
                 f'in the Python process {id} of the worker rust at ' in stacks['waits'][0]";
    assert_eq!(rust.cluster.python(named), "True");
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_rejoin_wait_for_a_thread() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    // The first task rejoins while two others occupy both threads, and a third waits.
    let order = "from distributed import Event, Queue, get_client, rejoin, secede\n\
                 def first():\n    get_client()\n    secede()\n    Event('seceded').set()\n    \
                 Event('go').wait()\n    Event('rejoins').set()\n    rejoin()\n    Queue('q').put('first')\n\
                 def busy(name):\n    Event(f'runs-{name}').set()\n    Event(f'end-{name}').wait()\n    \
                 Queue('q').put(name)\n\
                 f = client.submit(first)\nEvent('seceded').wait()\n\
                 one, two = client.map(busy, ['one', 'two'])\n\
                 Event('runs-one').wait(), Event('runs-two').wait(), Event('end-last').set()\n\
                 last = client.submit(busy, 'last')\n\
                 Event('go').set()\nEvent('rejoins').wait()\nEvent('end-one').set()\n\
                 wait([f, last])\nEvent('end-two').set()\nwait(two)\n\
                 [Queue('q').get() for _ in range(4)]";
    assert_eq!(cluster.python(order), "['one', 'first', 'last', 'two']");
    // A process that ends while it waits to rejoin costs its task one attempt only.
    let ends = "def ends(path):\n    get_client()\n    secede()\n    \
                if os.path.exists(path):\n        rejoin()\n        return 'again'\n    \
                open(path, 'w').close()\n    Queue('ids').put(os.getpid())\n    Event('go-2').wait()\n    rejoin()\n\
                import os, tempfile\n\
                folder = tempfile.TemporaryDirectory()\n\
                f = client.submit(ends, os.path.join(folder.name, 'file'))\nid = Queue('ids').get()\n\
                busy = client.map(busy, ['three', 'four'])\n\
                Event('runs-three').wait(), Event('runs-four').wait()\n\
                Event('go-2').set()\n\
                [address] = client.scheduler_info()['workers']\n\
                os.kill(id, 9)\n\
                Event('end-three').set(), Event('end-four').set()\n\
                f.result()";
    assert_eq!(cluster.python(ends), "'again'");
    // Without a pause between the two calls
    let rounds = "def rounds():\n    get_client()\n    for _ in range(50):\n        secede()\n        \
                  rejoin()\n    return 1\n\
                  sum(client.gather([client.submit(rounds, pure=False) for _ in range(6)]))";
    assert_eq!(cluster.python(rounds), "6");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_seceded_tasks_do_not_have_a_process_each() {
    let mut rust = RustCluster::new(&["--memory-limit", "0"]);
    let cluster = &mut rust.cluster;
    // Each task waits for one that starts after it.
    cluster.python(
        "import os\nfrom distributed import get_client, secede\n\
         def nested(n):\n    if not n: return {os.getpid()}\n    \
         inner = get_client().submit(nested, n - 1)\n    secede()\n    \
         return {os.getpid()} | inner.result()\n\
         ids = client.submit(nested, 20).result()",
    );
    // Five processes for each of the two threads, and the host
    assert_eq!(cluster.python("len(ids)"), "11");
    until("the end of the others", || rust.processes().len() == 3).await;
    // The next task does not run in the host.
    let alone = "host, = client.run(os.getpid).values()\n\
                 client.submit(os.getpid).result() != host, host in ids";
    assert_eq!(rust.cluster.python(alone), "(True, True)");
    // The host keeps as many threads for later tasks as the worker has.
    let threads = "def count():\n    import threading\n    \
                   return sum('serve_thread' in thread.name for thread in threading.enumerate())\n\
                   for _ in range(500):\n    if sum(client.run(count).values()) <= 2: break\n    \
                   time.sleep(0.01)\n\
                   client.run(count).popitem()[1]";
    assert_eq!(rust.cluster.python(threads), "2");
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_given_back_while_no_process_can_be_started() {
    let mut cluster = Cluster::new(0);
    let script = std::env::temp_dir().join(format!("daskwire-python-{}", std::process::id()));
    let works = format!("#!/bin/sh\nexec '{}' \"$@\"\n", interpreter().display());
    fs::write(&script, &works).expect("it is written");
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&script, executable).expect("it is ours");
    let worker = worker_of(&script, &cluster, "rust", &["--memory-limit", "1GiB"]);
    fs::write(&script, "#!/bin/sh\nexit 1\n").expect("it is written");
    for id in [python_processes(worker.id()), children(worker.id())].concat() {
        let killed = Command::new("kill").args(["-9", &id]).status();
        assert!(killed.is_ok_and(|status| status.success()));
        until("the end of the process", || has_ended(&id)).await;
    }
    cluster.python("f = client.submit(lambda: 5)");
    worker.wait_for_log(
        "tasks are returned to the scheduler: a Python process cannot be started: \
         it did not become ready",
    );
    assert_eq!(cluster.python("f.status"), "'pending'");
    fs::write(&script, &works).expect("it is written");
    assert_eq!(cluster.python("f.result()"), "5");
    fs::remove_file(&script).expect("it exists");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_descriptors_for_its_inputs_is_replaced() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let sum = "import os, resource\n\
               def limit():\n    own = len(os.listdir('/proc/self/fd')) + 20\n    \
               _, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n    \
               resource.setrlimit(resource.RLIMIT_NOFILE, (own, most))\n\
               inputs = client.scatter([bytes(70_000 + n) for n in range(100)])\n\
               client.submit(limit).result()\n\
               client.submit(lambda *inputs: sum(map(len, inputs)), *inputs).result()";
    assert_eq!(rust.cluster.python(sum), "7004950");
    rust.cluster.python("del inputs");
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_may_have_more_inputs_than_there_are_descriptors() {
    let mut cluster = Cluster::new(0);
    let arguments = ["--memory-limit", "1GiB"];
    let limit = "ulimit -n 512";
    let worker = worker_after(limit, &interpreter(), &cluster, "rust", &arguments);
    let sum = "inputs = client.map(lambda n: bytes(70_000 + n), range(1000))\n\
               wait(inputs)\n\
               client.submit(lambda *inputs: sum(map(len, inputs)), *inputs).result()";
    assert_eq!(cluster.python(sum), "70499500");
    assert!(!worker.log().contains("is run again"), "{}", worker.log());
    cluster.python("del inputs");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_without_shared_memory_fails_its_task_only() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    // A limit on file sizes also applies to shared memory.
    let limited = "import os, resource\n\
                   def limit():\n    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n    \
                   resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, most))\n    return os.getpid()\n\
                   pid = client.submit(limit).result()\n\
                   client.submit(bytes, 1 << 21, key='long').result()";
    let error = rust.cluster.try_python(limited).expect_err("no memory");
    assert!(
        error.contains("no shared memory for 2097152 bytes"),
        "{error}"
    );
    let same = "client.submit(os.getpid, pure=False).result() == pid, \
                len(client.submit(bytes, 1 << 10).result())";
    assert_eq!(rust.cluster.python(same), "(True, 1024)");
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_may_be_numbers_of_any_type() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    cluster.python(
        "class Sized:\n    def __init__(self, size):\n        self.size, self.array = size, np.ones(100_000)\n\
         def make(size):\n    from dask.sizeof import sizeof\n    sizeof.register(Sized, lambda sized: sized.size)\n    return Sized(size)\n\
         sizes = [2.5, np.int64(3), np.float32(4), -1]",
    );
    let made = "fs = client.map(make, sizes)\n\
                [int(f.result().array.sum()) for f in fs], \
                sorted(client.nbytes([f.key for f in fs], False).values())";
    assert_eq!(
        cluster.python(made),
        "([100000, 100000, 100000, 100000], [0, 2, 3, 4])"
    );
    cluster.python("del fs");
    // A size that cannot be sent fails its task.
    let error = cluster
        .try_python("client.submit(make, 2 ** 70).result()")
        .expect_err("it is too large");
    assert!(error.contains("OverflowError"), "{error}");
    assert!(
        !rust.worker.log().contains("is run again"),
        "{}",
        rust.worker.log()
    );
    // The shared memory of its result is not kept.
    for id in rust.processes() {
        until("the end of its shared memory", || !has_shared_files(&id)).await;
    }
    rust.cluster.check_logs();
}

/// Whether a process has shared memory open.
fn has_shared_files(id: &str) -> bool {
    let files = fs::read_dir(format!("/proc/{id}/fd")).expect("it runs");
    let mut links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    links.any(|link| {
        let link = link.to_string_lossy();
        // The processes of a worker lock the bytes of this file, which is empty.
        link.starts_with("/memfd:") && !link.starts_with("/memfd:daskwire-locks")
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_have_the_environment_of_a_nanny() {
    let mut cluster = Cluster::new(0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command
        .args(["worker", cluster.scheduler.address()])
        .args(["--no-nanny", "--memory-limit", "1GiB", "--python"])
        .arg(interpreter())
        .env_remove("OMP_NUM_THREADS")
        .env("MKL_NUM_THREADS", "2")
        .env("PYTHONHASHSEED", "random")
        .env("GLIBC_TUNABLES", "glibc.malloc.check=0")
        .env(
            "DASK_DISTRIBUTED__NANNY__ENVIRON",
            "{'OWN': 3, 'OPENBLAS_NUM_THREADS': 4}",
        );
    let ready = |log: &str| address_after(log, " at ");
    let _worker = Peer::spawn_command("rust", &mut command, ready);
    let variables = "import os\n\
                     def variables():\n    names = ['OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OWN', \
                     'OPENBLAS_NUM_THREADS', 'GLIBC_TUNABLES', 'PYTHONHASHSEED']\n    \
                     return [os.environ.get(name) for name in names]\n\
                     client.submit(variables).result()";
    assert_eq!(
        cluster.python(variables),
        "['1', '2', '3', '4', 'glibc.malloc.check=0', '6640']"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_may_be_a_number() {
    let mut cluster = Cluster::new(0);
    let _worker = worker(&cluster, "7", &["--memory-limit", "1GiB"]);
    let names = "from distributed import get_worker\n\
                 client.submit(lambda: get_worker().name).result(), \
                 *client.run(lambda dask_worker: dask_worker.name).values()";
    assert_eq!(cluster.python(names), "(7, 7)");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_reach_a_cluster_with_certificates() {
    let interpreter = interpreter();
    let scheduler = daskwire_testing::scheduler_in(&interpreter, "tls", 0);
    let _worker = python_worker(
        scheduler.address(),
        "rust",
        &daskwire_testing::TLS_ARGUMENTS,
        &[],
    );
    let program = "import sys\n\
                   from distributed import Client, get_client\n\
                   from distributed.security import Security\n\
                   pem = sys.argv[2]\n\
                   security = Security(tls_ca_file=pem, tls_client_cert=pem, tls_client_key=pem)\n\
                   def inside(): return get_client().submit(sum, [1, 2]).result()\n\
                   with Client(sys.argv[1], security=security) as client:\n    \
                   print(client.submit(inside).result())";
    let ran = Command::new(&interpreter)
        .args([
            "-c",
            program,
            scheduler.address(),
            daskwire_testing::TLS_PEM,
        ])
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "3\n", "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_arrays_are_mapped() {
    let mut rust = RustCluster::new(&["--memory-limit", "512MiB"]);
    let cluster = &mut rust.cluster;
    // Too large for the cache of the process that created it.
    cluster.python(
        "def anonymous():\n    return int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0]) << 10\n\
         def mapping(array):\n    at = array.ctypes.data\n    for line in open('/proc/self/maps'):\n        \
         start, end = (int(part, 16) for part in line.split()[0].split('-'))\n        \
         if start <= at < end: return line.split()[-2:]\n\
         def use(array):\n    before = anonymous()\n    total = array.sum()\n    \
         return total, mapping(array)[0], anonymous() - before < 1 << 20, array.flags.writeable, array.flags.aligned\n\
         def read_only():\n    array = np.ones(5_000_000)\n    array.flags.writeable = False\n    return array\n\
         f = client.submit(np.ones, 5_000_000)",
    );
    let expected = "(np.float64(5000000.0), '/memfd:daskwire', True, True, True)";
    let used = "client.submit(use, f, pure=False).result()";
    assert_eq!(cluster.python(used), expected);
    // Writes of a task to its input are private to the task.
    let written = "def clear(array):\n    array[:] = 0\n    return array.sum()\nclient.submit(clear, f).result()";
    assert_eq!(cluster.python(written), "np.float64(0.0)");
    assert_eq!(cluster.python(used), expected);
    assert_eq!(
        cluster.python("client.submit(use, client.submit(read_only)).result()[3]"),
        "False"
    );
    // Arrays received over the network are mapped, too.
    let scattered = "g = client.scatter(np.ones(5_000_000))\nclient.submit(use, g).result()";
    assert_eq!(cluster.python(scattered), expected);
    // Arrays read from disk are mapped, too.
    let spilled = "many = client.map(lambda n: np.full(5_000_000, n), range(10))\nwait(many)\n\
                   def spilled(): return client.run_on_scheduler(lambda dask_scheduler: \
                   sum(w.metrics['spilled_bytes']['disk'] for w in dask_scheduler.workers.values()))\n\
                   while not spilled(): time.sleep(0.01)\n\
                   [client.submit(use, one, key=f'use-{n}').result()[:2] for n, one in enumerate(many)]";
    let sums: Vec<String> = (0..10)
        .map(|n| format!("(np.int64({}), '/memfd:daskwire')", n * 5_000_000))
        .collect();
    assert_eq!(cluster.python(spilled), format!("[{}]", sums.join(", ")));
    cluster.python("del f, g, many");
    cluster.check_logs();
}

#[test]
fn shared_memory_is_used_again_when_no_one_has_it() {
    test_in_python(include_str!("support/segments.py"));
}

#[test]
fn freed_memory_is_used_again_up_to_a_limit() {
    test_in_python(include_str!("support/heap.py"));
}

#[test]
fn messages_do_not_delay_the_return_of_memory() {
    test_in_python(include_str!("support/idle.py"));
}

#[test]
fn events_may_be_logged_by_finalizers() {
    test_in_python(include_str!("support/posted.py"));
}

#[test]
fn processes_end_quietly_if_their_worker_ends_while_they_start() {
    test_in_python(include_str!("support/ended.py"));
}

#[test]
fn addresses_may_have_any_scheme() {
    test_in_python(include_str!("support/addresses.py"));
}

#[test]
fn values_are_serialized_as_by_dask() {
    test_in_python(include_str!("support/serialized.py"));
}

/// Runs a test of the module of Python processes, whose path is its argument.
fn test_in_python(program: &str) {
    let ran = Command::new(interpreter())
        .args(["-c", program])
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../python/daskwire/worker.py"
        ))
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "passed\n", "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn later_results_do_not_change_what_tasks_have_kept() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    // The two tasks wait for each other, so that each process runs one of them.
    cluster.python(
        "from distributed import Event\nimport builtins, os\n\
         def meet(name, number):\n    Event(f'{name}-{number}').set()\n    Event(f'{name}-{1 - number}').wait()\n\
         def keep(name, number, arrays):\n    meet(name, number)\n    \
         builtins.kept = getattr(builtins, 'kept', []) + [array[::1000] for array in arrays]\n    return os.getpid()\n\
         def check(number):\n    meet('check', number)\n    \
         return [array.min() == array.max() and int(array[0]) for array in kept]\n\
         def make(n): return np.full(500_000, n)",
    );
    for round in 0..3 {
        let kept = format!(
            "f = client.map(make, range({round} * 4, {round} * 4 + 4), pure=False)\n\
             pids = client.gather([client.submit(keep, 'keep-{round}', n, f) for n in range(2)])\n\
             del f\nlen(set(pids))"
        );
        assert_eq!(cluster.python(&kept), "2");
        // Results of equal length, which reuse each other's memory.
        let others = "f = client.submit(make, 100, pure=False)\n\
                      for _ in range(20): f = client.submit(lambda a: a + 1, f, pure=False)\n\
                      g = client.map(make, range(200, 230), pure=False)\n\
                      int(f.result()[-1]), [int(a[7]) for a in client.gather(g)] == list(range(200, 230))";
        assert_eq!(cluster.python(others), "(120, True)");
        cluster.python("del f, g");
    }
    let expected: Vec<String> = (0..12).map(|n| n.to_string()).collect();
    let expected = format!("[{}]", expected.join(", "));
    assert_eq!(
        cluster.python("client.gather([client.submit(check, n) for n in range(2)])"),
        format!("[{expected}, {expected}]")
    );
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_processes_give_shared_memory_back() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    rust.cluster
        .python("wait(client.map(lambda n: np.full(500_000, n), range(8)))");
    // The values are released, and the process receives no message after that.
    for id in rust.processes() {
        until("the end of its shared memory", || !has_shared_files(&id)).await;
    }
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_processes_give_freed_memory_back() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    // The second task runs in the process that caches the result of the first. The short
    // values, which are kept, separate the long ones, which are freed.
    cluster.python(
        "import builtins, os, re\n\
         def use(x):\n    many = [(np.full(1_000_000, n), np.ones(20_000)) for n in range(6)]\n    \
         builtins.kept = [short for _, short in many]\n    \
         status = open('/proc/self/status').read()\n    \
         return os.getpid(), int(re.search(r'RssAnon:\\s+(\\d+)', status)[1])\n\
         f = client.submit(np.full, 6_000_000, 1.5)\n\
         process, used = client.submit(use, f).result()",
    );
    let process = cluster.python("process");
    let used: u64 = cluster.python("used").parse().expect("a number");
    let freed = || used.saturating_sub(anonymous_kib(&process));
    until("the end of its freed memory", || freed() > 40_000).await;
    assert!(freed() < 70_000, "the result is still cached");
    // Released while the process is idle.
    cluster.python("del f");
    until("the end of the result", || freed() > 85_000).await;
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_processes_give_memory_back_while_the_worker_is_paused() {
    let mut cluster = Cluster::new(0);
    let memory = "export DASK_DISTRIBUTED__WORKER__MEMORY__";
    let prepare = format!("{memory}TARGET=False && {memory}SPILL=False && {memory}PAUSE=0.05");
    let arguments = ["--memory-limit", "4GiB"];
    let worker = worker_after(&prepare, &interpreter(), &cluster, "rust", &arguments);
    // The worker pauses above 205 MiB, so while the task runs. After it, the process keeps 229 MiB
    // of freed memory and a result of 31 MiB in its cache, and the worker is still paused.
    cluster.python(
        "def use():\n    many = [np.full(1_000_000, n) for n in range(30)]\n    \
         time.sleep(0.7)\n    return np.full(4_000_000, many[1][0])\n\
         f = client.submit(use)\nwait(f)",
    );
    let processes = python_processes(worker.id());
    assert!(!processes.is_empty());
    assert!(
        worker.log().contains("tasks are paused"),
        "{}",
        worker.log()
    );
    let other = "client.submit(np.sum, f).result() == 4_000_000";
    assert_eq!(cluster.python(other), "np.True_");
    // They were not ended.
    let later = python_processes(worker.id());
    assert!(processes.iter().all(|id| later.contains(id)));
    cluster.check_logs();
}

/// The anonymous memory of a process in KiB.
fn anonymous_kib(id: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_processes_do_not_keep_inputs() {
    let mut rust = RustCluster::new(&["--memory-limit", "256MiB"]);
    // An input that is too long for the cache of a process, and one that is not, with a result
    // that is a view of it.
    rust.cluster.python(
        "xs = client.scatter([np.zeros(n) for n in (3_000_000, 1_000_000)])\n\
         kept = client.submit(lambda x: x[:10], xs[1])\n\
         client.gather(client.map(np.sum, xs))\n\
         wait(kept)\n\
         del xs",
    );
    for id in rust.processes() {
        let has_memory = || {
            let maps = fs::read_to_string(format!("/proc/{id}/maps")).expect("it runs");
            maps.contains("/memfd:")
        };
        until("the end of its shared memory", || !has_memory()).await;
    }
    assert_eq!(rust.cluster.python("len(kept.result())"), "10");
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_freed_while_a_process_starts_are_not_kept() {
    let mut rust = RustCluster::new(&["--memory-limit", "256MiB"]);
    let signal = |ids: &[String], signal: &str| {
        let sent = Command::new("kill").args(["-s", signal]).args(ids).status();
        assert!(sent.is_ok_and(|status| status.success()));
    };
    let templates = children(rust.worker.id());
    let cluster = &mut rust.cluster;
    cluster.python(
        "from distributed import Event\n\
         def busy():\n    Event('runs').set()\n    Event('go').wait()\n\
         def use(x):\n    Event('used').set()\n\
         x = client.scatter(np.zeros(1_000_000))\n\
         one = client.submit(busy)\nEvent('runs').wait()",
    );
    // The second process is not forked until the input of its task has been freed.
    signal(&templates, "STOP");
    cluster.python(
        "[address] = client.scheduler_info()['workers']\n\
         f = client.submit(use, x, key='use')\n\
         while 'use' not in client.processing()[address]: time.sleep(0.01)\n\
         while 'use' not in client.call_stack(keys=['use']).get(address, {}): time.sleep(0.01)\n\
         f.cancel(force=True)\ndel f, x\n\
         from distributed.core import rpc\n\
         async def keys():\n    async with rpc(address) as worker: return list(await worker.keys())\n\
         while client.sync(keys): time.sleep(0.01)",
    );
    signal(&templates, "CONT");
    cluster.python("Event('used').wait()\nEvent('go').set()\none.result()");
    assert_eq!(rust.processes().len(), 2);
    for id in rust.processes() {
        let has_memory = || {
            let maps = fs::read_to_string(format!("/proc/{id}/maps")).expect("it runs");
            maps.contains("/memfd:")
        };
        until("the end of its shared memory", || !has_memory()).await;
    }
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_find_their_workers_in_a_mixed_cluster() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    let _without = worker_without(cluster);
    // Before and after a Python worker joins.
    let mut python = Vec::new();
    for _ in 0..2 {
        let tasks = "sum(client.gather(client.map(lambda n: n + 1, range(100), pure=False)))";
        assert_eq!(cluster.python(tasks), "5050");
        let native = "client.submit(native('sum'), [1.5, 2], pure=False).result()";
        assert_eq!(cluster.python(native), "3.5");
        let name = format!("python-{}", python.len());
        python.push(daskwire_testing::worker(cluster.scheduler.address(), &name));
    }
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_are_imported_for_all_processes() {
    const MODULE: &str = "xml.dom.minidom";
    let mut rust = RustCluster::new(&["--python-import", MODULE]);
    let _without = worker(&rust.cluster, "without", &[]);
    let code = format!(
        "import sys\n\
         def imported(n): return {MODULE:?} in sys.modules, sys.argv\n\
         [client.submit(imported, name, workers=name).result() for name in ('rust', 'without')]"
    );
    assert_eq!(
        rust.cluster.python(&code),
        "[(True, ['-c']), (False, ['-c'])]"
    );
    rust.cluster.check_logs();

    let python = interpreter();
    let python = python.to_str().expect("UTF-8");
    let address = rust.cluster.scheduler.address();
    let arguments = [
        "worker",
        address,
        "--python",
        python,
        "--python-import",
        "no_such_module",
    ];
    let ran = command::run(&arguments, None);
    assert_eq!(ran.status, Some(1));
    let cause = "cannot import no_such_module: ModuleNotFoundError: No module named";
    let error = "a Python process of the worker cannot be started";
    assert!(
        ran.err.contains(cause) && ran.err.contains(error),
        "{}",
        ran.err
    );
}

#[test]
fn an_interpreter_without_distributed_is_refused() {
    let scheduler = daskwire_testing::scheduler();
    let arguments = ["worker", scheduler.address(), "--python"];
    // An interpreter without packages.
    let bare = std::env::temp_dir().join(format!("daskwire-bare-{}", std::process::id()));
    let script = "#!/bin/sh\nexec python3 -I -S \"$@\"\n";
    fs::write(&bare, script).expect("a file");
    fs::set_permissions(&bare, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("its owner");
    let bare = bare.to_str().expect("UTF-8");
    for (python, status, error) in [
        ("/bin/false", 1, "ended with exit status: 1"),
        (
            "/nonexistent/python",
            2,
            "No such file or directory (os error 2)",
        ),
        (
            bare,
            2,
            "distributed cannot be imported there; the error is above",
        ),
    ] {
        let ran = command::run(&[&arguments[..], &[python]].concat(), None);
        assert_eq!(ran.status, Some(status), "{}", ran.err);
        let last = ran.err.lines().last().expect("an error");
        assert!(
            last.starts_with(&format!("daskwire: --python {python}: ")) && last.contains(error),
            "{}",
            ran.err
        );
        assert!(!ran.err.contains("Traceback"), "{}", ran.err);
    }
    let _ = fs::remove_file(bare);
}
