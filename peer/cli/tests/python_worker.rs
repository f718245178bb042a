//! `daskwire worker --python`: what it has in common with a worker in Python, in
//! clusters of one kind each, and what it has not.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use daskwire_testing::cluster::{Cluster, until};
use daskwire_testing::{Environment, Peer, address_after};

#[path = "support/command.rs"]
mod command;

/// A cluster without workers in Python, and its only worker.
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

    /// The ids of the worker's processes that have not ended.
    fn children(&self) -> Vec<String> {
        children(self.worker.id())
    }
}

/// Starts a worker with two threads. What its tasks print is dropped.
fn worker(cluster: &Cluster, name: &str, arguments: &[&str]) -> Peer {
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" \"$@\" >/dev/null"])
        .args([env!("CARGO_BIN_EXE_daskwire"), "worker"])
        .arg(cluster.scheduler.address())
        .args(["--no-nanny", "--nthreads", "2", "--name", name, "--python"])
        .arg(interpreter())
        .args(arguments);
    Peer::spawn_command(name, &mut command, |log| address_after(log, " at "))
}

fn children(parent: u32) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("Linux");
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    ids.filter(|id| stat(id).is_some_and(|(state, of)| of == parent.to_string() && state != "Z"))
        .collect()
}

/// The state and the parent of a process.
fn stat(id: &str) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
}

fn has_ended(id: &str) -> bool {
    stat(id).is_none_or(|(state, _)| state == "Z")
}

/// Programs with results, or exceptions, that do not depend on the kind of worker.
const PROGRAMS: [&str; 39] = [
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
    // What tasks have of their worker
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
];

#[tokio::test(flavor = "multi_thread")]
async fn programs_have_the_results_of_a_worker_in_python() {
    // Two threads, so that a task can wait for another.
    let mut python = Cluster::new(2);
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    for program in PROGRAMS {
        let expected = python.try_python(program);
        assert_eq!(rust.cluster.try_python(program), expected, "{program}");
    }
    // Functions in Rust and in Python, in one graph
    let mixed = "f = client.submit(native('linspace'), 0, 1, 5)\n\
                 client.submit(native('sum'), client.submit(lambda a: a * 2, f)).result()";
    assert_eq!(rust.cluster.python(mixed), "5.0");
    // The workers in Python have logged the exceptions of tasks.
    rust.cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_costs_its_task_only() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    cluster.python("import os\nkept = client.submit(np.arange, 100_000)\nwait(kept)");
    for (index, (code, how)) in [
        ("os.kill(os.getpid(), 9)", "signal: 9 (SIGKILL)"),
        ("__import__('ctypes').string_at(0)", "signal: 11 (SIGSEGV)"),
        ("os._exit(3)", "exit status: 3"),
        ("exit(4)", "exit status: 4"),
    ]
    .into_iter()
    .enumerate()
    {
        let task = format!("client.submit(lambda: {code}, key='ends-{index}').result()");
        let error = cluster.try_python(&task).expect_err(code);
        assert!(
            error.contains("4 times, and each time its process ended") && error.contains(how),
            "{code}: {error}"
        );
    }
    // Once is no failure.
    let path = std::env::temp_dir().join(format!("daskwire-ends-{}", std::process::id()));
    let once = format!(
        "def once(path='{}'):\n    if not os.path.exists(path):\n        open(path, 'w').close()\n        \
         os._exit(1)\n    os.remove(path)\n    return 'again'\nclient.submit(once).result()",
        path.display()
    );
    assert_eq!(cluster.python(&once), "'again'");
    // One that ends while it is idle is replaced.
    for id in children(rust.worker.id()) {
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
async fn no_process_outlives_the_worker() {
    for signal in ["KILL", "TERM"] {
        let mut rust = RustCluster::new(&["--memory-limit", "1GiB", "--python-warm"]);
        let processes = rust.children();
        assert_eq!(processes.len(), 2);
        // One of them holds data and the interpreter lock for good.
        rust.cluster.python(
            "from distributed import Event\n\
             def spin(array):\n    Event('spins').set()\n    while True: sum(range(10 ** 8))\n\
             f = client.submit(spin, client.submit(np.ones, 1_000_000))\nEvent('spins').wait()",
        );
        if signal == "TERM" {
            rust.cluster.python("f.cancel(force=True)");
        }
        rust.worker.signal(signal);
        for id in &processes {
            until("the end of the process", || has_ended(id)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_arrays_are_mapped() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    // Too long to be kept by the process that made it.
    cluster.python(
        "def anonymous():\n    return int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0]) << 10\n\
         def mapping(array):\n    at = array.ctypes.data\n    for line in open('/proc/self/maps'):\n        \
         start, end = (int(part, 16) for part in line.split()[0].split('-'))\n        \
         if start <= at < end: return line.split()[-2:]\n\
         def use(array):\n    before = anonymous()\n    total = array.sum()\n    \
         return total, mapping(array)[0], anonymous() - before < 1 << 20, array.flags.writeable, array.flags.aligned\n\
         def read_only():\n    array = np.ones(10_000_000)\n    array.flags.writeable = False\n    return array\n\
         f = client.submit(np.ones, 10_000_000)",
    );
    let expected = "(np.float64(10000000.0), '/memfd:daskwire', True, True, True)";
    let used = "client.submit(use, f, pure=False).result()";
    assert_eq!(cluster.python(used), expected);
    // What a task writes to its input, others do not see.
    let written = "def clear(array):\n    array[:] = 0\n    return array.sum()\nclient.submit(clear, f).result()";
    assert_eq!(cluster.python(written), "np.float64(0.0)");
    assert_eq!(cluster.python(used), expected);
    assert_eq!(
        cluster.python("client.submit(use, client.submit(read_only)).result()[3]"),
        "False"
    );
    // So are those that came over the network.
    let scattered = "g = client.scatter(np.ones(10_000_000))\nclient.submit(use, g).result()";
    assert_eq!(cluster.python(scattered), expected);
    // And those that were on disk.
    let spilled = "many = client.map(lambda n: np.full(10_000_000, n), range(10))\nwait(many)\n\
                   [client.submit(use, one, key=f'use-{n}').result()[0] for n, one in enumerate(many)]";
    let sums: Vec<String> = (0..10)
        .map(|n| format!("np.int64({})", n * 10_000_000))
        .collect();
    assert_eq!(cluster.python(spilled), format!("[{}]", sums.join(", ")));
    cluster.python("del f, g, many");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_find_their_workers_in_a_mixed_cluster() {
    let mut rust = RustCluster::new(&["--memory-limit", "1GiB"]);
    let cluster = &mut rust.cluster;
    let mut command = Command::new(env!("CARGO_BIN_EXE_daskwire"));
    command
        .args(["worker", cluster.scheduler.address()])
        .args(["--no-nanny", "--name", "without"]);
    let _without = Peer::spawn_command("without", &mut command, |log| address_after(log, " at "));
    // Before and after a worker in Python joins.
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

#[test]
fn an_interpreter_without_distributed_is_refused() {
    let scheduler = daskwire_testing::scheduler();
    let arguments = ["worker", scheduler.address(), "--python"];
    for (python, error) in [
        ("/bin/false", "ended with exit status: 1"),
        ("/nonexistent/python", "No such file or directory"),
    ] {
        let ran = command::run(&[&arguments[..], &[python]].concat(), None);
        assert_eq!(ran.status, Some(1));
        assert!(
            ran.err.contains("no Python for the worker") && ran.err.contains(error),
            "{}",
            ran.err
        );
    }
}
