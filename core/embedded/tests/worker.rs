//! The worker of fixed size in a cluster with a scheduler, a worker and a client
//! of Python.

mod support;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use daskwire_embedded::role::{Connections, Role, exchange};
use daskwire_embedded::value::{Args, Failure, Out, Value};
use daskwire_embedded::worker::{Config, Function, Memory, Status, Worker};
use daskwire_testing::cluster::Cluster;
use support::StdSockets;

const FUNCTIONS: &[(&str, Function)] = &[
    ("hypot", hypot),
    ("div", div),
    ("sum", sum),
    ("scale", scale),
    ("echo", echo),
    ("slow", slow),
];

fn hypot(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [x, y] = args.floats()?;
    out.float(x.hypot(y))
}

fn div(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [x, y] = args.floats()?;
    if y == 0.0 {
        return Err(Failure {
            class: "ZeroDivisionError",
            message: "float division by zero",
        });
    }
    out.float(x / y)
}

fn sum(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    match args.exactly()? {
        [Value::Array(array)] => out.float(array.to_f64s().sum()),
        [Value::Bytes(bytes)] => out.int(bytes.iter().map(|byte| i64::from(*byte)).sum()),
        _ => Err(Failure::type_error("sum takes an array or bytes")),
    }
}

fn scale(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    match args.exactly()? {
        [Value::Array(array), by] if by.to_f64().is_some() => {
            let by = by.to_f64().unwrap_or_default();
            out.floats(array.to_f64s().map(|x| x * by))
        }
        _ => Err(Failure::type_error("scale takes an array and a number")),
    }
}

fn echo(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    match args.exactly()? {
        [Value::None] => out.none(),
        [Value::Bool(value)] => out.bool(*value),
        [Value::Int(value)] => out.int(*value),
        [Value::Float(value)] => out.float(*value),
        [Value::Str(string)] => out.str(string),
        [Value::Bytes(bytes)] => out.bytes(bytes),
        [Value::Array(array)] => {
            let space = out.array(array.element_type(), array.shape())?;
            space.copy_from_slice(array.bytes());
            Ok(())
        }
    }
}

fn slow(args: &Args<'_>, out: &mut Out<'_>) -> Result<(), Failure> {
    let [seconds] = args.floats()?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    out.float(seconds)
}

/// Drives a role until a condition holds.
fn drive<R: Role>(role: &mut R, listener: TcpListener, mut is_over: impl FnMut(&R) -> bool) {
    let mut sockets = StdSockets::new(listener, role.link_count());
    let mut connections = Connections::<8>::new();
    let start = Instant::now();
    while !is_over(role) {
        exchange(role, &mut sockets, &mut connections, start.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A worker on a thread.
struct Running {
    thread: Option<JoinHandle<Status>>,
    stop: Arc<AtomicBool>,
    key_count: Arc<AtomicUsize>,
}

impl Running {
    fn start(scheduler: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Self::start_at(scheduler, listener)
    }

    fn start_at(scheduler: &str, listener: TcpListener) -> Self {
        let scheduler = scheduler.to_owned();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let key_count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&key_count);
        let thread = std::thread::spawn(move || {
            let address = listener.local_addr().expect("it is bound");
            let contact = format!("tcp://{address}");
            let config = Config::new(&scheduler, &contact, "mcu");
            let mut memory = Memory::<32, 6144, 4096, 2>::new();
            let mut worker = Worker::new(config, FUNCTIONS, &mut memory);
            drive(&mut worker, listener, |worker| {
                counted.store(worker.key_count(), Ordering::Relaxed);
                worker.status() == Status::Ended || stopped.load(Ordering::Relaxed)
            });
            worker.status()
        });
        Self {
            thread: Some(thread),
            stop,
            key_count,
        }
    }

    /// Waits until the worker has this number of tasks and values.
    fn wait_for_keys(&self, count: usize) {
        let start = Instant::now();
        while self.key_count.load(Ordering::Relaxed) != count {
            let found = self.key_count.load(Ordering::Relaxed);
            assert!(start.elapsed() < Duration::from_secs(10), "{found} keys");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the worker to end by itself.
    fn ended(&mut self) -> Status {
        let thread = self.thread.take().expect("it is waited for once");
        thread.join().expect("it does not panic")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A cluster with one Python worker and the worker of fixed size, and a function
/// in Python that submits to it.
fn cluster() -> (Cluster, Running) {
    let mut cluster = Cluster::new(1);
    let worker = Running::start(cluster.scheduler.address());
    cluster.python(
        "client.wait_for_workers(2)\n\
         def mcu(name, *args, **options):\n\
         \x20   return client.submit(native(name), *args, workers=['mcu'], pure=False, **options)",
    );
    (cluster, worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_functions_on_what_python_submits() {
    let (mut cluster, _worker) = cluster();
    let mut says =
        |code: &str, expected: &str| assert_eq!(cluster.python(code), expected, "{code}");
    says("mcu('hypot', 3, 4).result()", "5.0");
    says("mcu('sum', np.arange(10)).result()", "45.0");
    says("mcu('sum', b'abc').result()", "294");
    for value in [
        "None",
        "True",
        "-7",
        "1099511627776",
        "1.5",
        "'a text'",
        "b'bytes'",
        "array([[1., 2.]])",
    ] {
        let code = format!("from numpy import array; mcu('echo', {value}).result()");
        says(&code, value);
    }
    says("mcu('echo', np.float32(1.5)).result()", "1.5");
    says(
        "mcu('scale', np.arange(4, dtype='i2'), 2).result()",
        "array([0., 2., 4., 6.])",
    );
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn values_move_between_it_and_python() {
    let (mut cluster, worker) = cluster();
    let mut says =
        |code: &str, expected: &str| assert_eq!(cluster.python(code), expected, "{code}");
    // A result of its own as an argument.
    says(
        "a = mcu('hypot', 3, 4); mcu('hypot', a, 12).result()",
        "13.0",
    );
    // Its result as an argument in Python, by `get_data`.
    says(
        "client.submit(operator.add, a, 1, workers=['worker-0']).result()",
        "6.0",
    );
    // A result of Python as its argument, which it fetches.
    let code = "b = client.submit(np.arange, 100, workers=['worker-0']); mcu('sum', b).result()";
    says(code, "4950.0");
    says(
        "c = client.submit(bytes, 500, workers=['worker-0']); mcu('sum', c).result()",
        "0",
    );
    says(
        "mcu('hypot', client.submit(int, 3, workers=['worker-0']), a).result() ** 2",
        "34.0",
    );
    // What a client scatters.
    says(
        "[d] = client.scatter([np.ones(7)], workers=['mcu']); mcu('sum', d).result()",
        "7.0",
    );
    // More than fits in its buffers at once.
    let code = "many = [mcu('scale', np.ones(30), i) for i in range(8)]\n\
                [int(x.sum()) for x in client.gather(many)]";
    says(code, "[0, 30, 60, 90, 120, 150, 180, 210]");
    // It forgets what is released.
    assert_ne!(worker.key_count.load(Ordering::Relaxed), 0);
    let code = "a.release(); b.release(); c.release(); d.release(); del a, b, c, d, many";
    says(code, "None");
    worker.wait_for_keys(0);
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_reports_errors() {
    let (mut cluster, _worker) = cluster();
    for (code, expected) in [
        ("mcu('div', 1, 0).result()", "float division by zero"),
        ("mcu('nothing').result()", "does not have the function"),
        (
            "client.submit(len, 'abc', workers=['mcu'], pure=False).result()",
            "does not have the function",
        ),
        (
            "mcu('hypot', 1).result()",
            "a different number of arguments",
        ),
        (
            "mcu('hypot', 1, {}).result()",
            "a type that this worker does not support",
        ),
        (
            "mcu('echo', bytes(7000)).result()",
            "longer than the buffer for messages of this worker (MESSAGE",
        ),
        (
            "mcu('echo', bytes(3500)).result()",
            "does not fit in the memory",
        ),
        ("mcu('hypot', 3, y=4).result()", "no keyword arguments"),
    ] {
        let error = cluster.try_python(code).expect_err(code);
        assert!(error.contains(expected), "{code}: {error}");
    }
    assert_eq!(cluster.python("mcu('hypot', 3, 4).result()"), "5.0");
    // An input that is longer than the buffer for it.
    let code = "long = client.submit(np.ones, 300, workers=['worker-0']); \
                mcu('sum', long).result(timeout=10)";
    let error = cluster.try_python(code).expect_err(code);
    assert!(error.contains("an input is too long"), "{error}");
    // More tasks than it has room for: the first ones run.
    let code = "many = [mcu('slow', 0.2)] + [mcu('hypot', 3, i) for i in range(40)]\n\
                wait(many)\n\
                states = [future.status for future in many]\n\
                (states[0], 'error' in states, {repr(f.exception()) for f in many if f.status == 'error'})";
    let answer = cluster.python(code);
    assert!(answer.starts_with("('finished', True, {"), "{answer}");
    assert!(
        answer.contains("MemoryError('the role holds at most 32 tasks and results (KEYS"),
        "{answer}"
    );
}

/// Defines `kept`, a value of the worker, and `check`, which fails if the worker has lost
/// it or has registered again.
const KEPT: &str = "def registered():\n\
    \x20   workers = client.scheduler_info()['workers'].values()\n\
    \x20   return next(worker['id'] for worker in workers if worker['name'] == 'mcu')\n\
    kept = mcu('hypot', 3, 4)\n\
    wait(kept)\n\
    first = registered()\n\
    def check():\n\
    \x20   assert mcu('hypot', kept, 12).result(timeout=30) == 13.0\n\
    \x20   assert registered() == first, 'it has registered again'";

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_any_number_of_tasks_costs_only_those_without_room() {
    let (mut cluster, worker) = cluster();
    cluster.python(KEPT);
    for count in [160, 200, 500, 5000] {
        let code = format!(
            "many = client.map(native('hypot'), range({count}), [0] * {count}, workers=['mcu'], pure=False)\n\
             wait(many)\n\
             good = [i for i, future in enumerate(many) if future.status == 'finished']\n\
             assert client.gather([many[i] for i in good]) == good\n\
             bad = {{repr(future.exception()) for future in many if future.status == 'error'}}\n\
             len(good), bad"
        );
        let answer = cluster.python(&code);
        let expected = "(31, {\"MemoryError('the role holds at most 32 tasks and results (KEYS of its Memory)')\"})";
        assert_eq!(answer, expected, "{count}");
        cluster.python("for future in many: future.release()\ndel many, future");
        worker.wait_for_keys(1);
        cluster.python("check()");
    }
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_of_any_length_cost_only_their_tasks() {
    let (mut cluster, worker) = cluster();
    cluster.python(KEPT);
    for argument in [
        "np.ones(1 << 17)",
        "np.ones((1 << 17) + 1)",
        "np.ones(1 << 19)",
        "bytes(1 << 20)",
        "bytes(4 << 20)",
        "'x' * (4 << 20)",
        // A list of inputs is in the body of the message.
        "client.map(float, range(100), workers=['worker-0'])",
    ] {
        let code = format!(
            "error = mcu('sum', {argument}).exception(timeout=60)\n\
             check()\n\
             repr(error)"
        );
        let error = cluster.python(&code);
        let expected = "MemoryError('the task is longer than the buffer for messages";
        assert!(error.contains(expected), "{argument}: {error}");
    }
    // Tasks in the same batch are not affected.
    let code = "many = client.map(native('sum'), [np.ones(10 ** (i % 6)) for i in range(30)], \
                workers=['mcu'], pure=False)\n\
                wait(many)\n\
                check()\n\
                [future.result() if future.status == 'finished' else type(future.exception()).__name__ for future in many][:6]";
    let expected = "[1.0, 10.0, 100.0, 'MemoryError', 'MemoryError', 'MemoryError']";
    assert_eq!(cluster.python(code), expected);
    cluster.python("for future in many: future.release()\ndel many, future");
    worker.wait_for_keys(1);
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_with_too_much_data_do_not_disturb_it() {
    let (mut cluster, _worker) = cluster();
    cluster.python(KEPT);
    let code = "import socket, struct\n\
                address = next(a for a, w in client.scheduler_info()['workers'].items() if w['name'] == 'mcu')\n\
                host, port = address.removeprefix('tcp://').split(':')\n\
                peers = []\n\
                for _ in range(4):\n\
                \x20   peer = socket.create_connection((host, int(port)))\n\
                \x20   peers.append(peer)\n\
                \x20   peer.settimeout(20)\n\
                \x20   try:\n\
                \x20       peer.sendall(struct.pack('<QQQ', 1 << 30, 1, 1 << 30) + bytes(8 << 20))\n\
                \x20   except OSError:\n\
                \x20       pass\n\
                check()\n\
                try:\n\
                \x20   client.scatter(np.ones(1 << 19), workers=['mcu'])\n\
                except Exception as error:\n\
                \x20   print(type(error))\n\
                check()";
    cluster.python(code);
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_of_workers_may_be_of_any_length() {
    let mut cluster = Cluster::new(1);
    let code = "from distributed.diagnostics.plugin import WorkerPlugin\n\
                class Plugin(WorkerPlugin):\n\
                \x20   def __init__(self): self.data = bytes(1 << 20)\n\
                client.register_plugin(Plugin(), name='large')";
    cluster.python(code);
    let _worker = Running::start(cluster.scheduler.address());
    cluster.python(
        "client.wait_for_workers(2, timeout=30)\n\
         def mcu(name, *args, **options):\n\
         \x20   return client.submit(native(name), *args, workers=['mcu'], pure=False, **options)",
    );
    cluster.python(KEPT);
    cluster.python("check()");
}

/// The plugin in the worker is that of the worker in `daskwire-peer`.
#[test]
fn its_plugin_is_that_of_the_worker_with_threads() {
    let compare = "import sys, zlib\n\
                   compressed, source = [open(name, 'rb').read() for name in sys.argv[1:]]\n\
                   sys.exit(zlib.decompress(compressed) != source)";
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = daskwire_testing::python(daskwire_testing::Environment::Current);
    let status = std::process::Command::new(python)
        .args(["-c", compare])
        .arg(here.join("src/worker/scheduler_plugin.zlib"))
        .arg(here.join("../../peer/worker/src/scheduler_plugin.py"))
        .status();
    assert!(
        status.expect("it starts").success(),
        "compress the source of the plugin again: core/embedded/compress_plugin.sh"
    );
}

/// Tasks, scatters and queuing of others are as without the worker.
#[tokio::test(flavor = "multi_thread")]
async fn it_leaves_the_work_of_others_alone() {
    let mut cluster = Cluster::new(2);
    let alone = cluster.python(OTHERS);
    let _worker = Running::start(cluster.scheduler.address());
    cluster.python("client.wait_for_workers(3)");
    for _ in 0..3 {
        assert_eq!(cluster.python(OTHERS), alone);
    }
    // A task that only this worker may run fails, with what it does not understand.
    let code = "import datetime\n\
                fs = [client.submit(function, *args, workers=['mcu'], pure=False)\n\
                \x20     for function, args in [(len, ['abc']), (native('hypot'), [3, datetime.date(2026, 1, 1)])]]\n\
                [repr(f.exception()) for f in fs]";
    let errors = cluster.python(code);
    assert_eq!(errors.matches("NotImplementedError").count(), 2, "{errors}");
    assert!(
        errors.contains("does not support: datetime.date"),
        "{errors}"
    );
    // One that others may run, too, runs there.
    let code = "fs = [client.submit(len, 'abc', workers=['mcu', 'worker-0'], pure=False) for _ in range(20)]\n\
                sum(client.gather(fs))";
    assert_eq!(cluster.python(code), "60");
    // Data for this worker that it cannot store is an error, and the worker stays.
    for code in [
        "client.scatter([datetime.date(2026, 1, 1)], workers=['mcu'])",
        "client.scatter([{'a': 1}], workers=['mcu'])",
        "client.scatter([[1]], workers=['mcu'])",
        "client.run(len, 'abc', workers=[w for w, i in client.scheduler_info()['workers'].items() if i['name'] == 'mcu'])",
    ] {
        let error = cluster.try_python(code).expect_err(code);
        assert!(
            error.contains("this worker does not support"),
            "{code}: {error}"
        );
    }
    assert_eq!(
        cluster.python("mcu = client.submit(native('hypot'), 3, 4, workers=['mcu']); mcu.result()"),
        "5.0"
    );
    assert_eq!(cluster.python(OTHERS), alone);
}

/// Work of others: the numbers of tasks that are sent and queued, the results of 300 tasks,
/// and the holders of what is scattered without a worker.
const OTHERS: &str = r#"
import os, tempfile
gate = os.path.join(tempfile.mkdtemp(), 'gate')
def block(number, gate):
    import os, time
    while not os.path.exists(gate):
        time.sleep(0.01)
    return number
def sent(dask_scheduler):
    states = [ts.processing_on.name if ts.processing_on else ts.state
              for ts in dask_scheduler.tasks.values() if str(ts.key).startswith('block')]
    return sorted((str(state), states.count(state)) for state in set(states))
fs = client.map(block, range(300), gate=gate, pure=False)
while sum(count for state, count in client.run_on_scheduler(sent) if state != 'waiting') != 300:
    time.sleep(0.05)
found = [client.run_on_scheduler(sent)]
open(gate, 'w').close()
found.append(sum(client.gather(fs)))
data = [client.scatter(value, hash=False) for value in (1, 'two', [3.0], {'four': object}) * 3]
found += [worker_names(client.who_has(data)), len(client.gather(data))]
del fs, data
found
"#;

#[tokio::test(flavor = "multi_thread")]
async fn more_peers_than_connections_are_served() {
    let (mut cluster, _worker) = cluster();
    // Each keeps its connection, and there is room for two.
    let code = "from distributed import Client\n\
                address = client.scheduler.address\n\
                a = mcu('hypot', 3, 4)\n\
                wait(a)\n\
                others = [Client(address, set_as_default=False, direct_to_workers=True) for _ in range(4)]\n\
                found = []\n\
                for other in others:\n\
                \x20   future = other.submit(native('hypot'), 6, 8, workers=['mcu'], pure=False)\n\
                \x20   found.append(future.result())\n\
                found.append(client.submit(operator.add, a, 1, workers=['worker-0']).result())\n\
                for other in others:\n\
                \x20   other.close()\n\
                found";
    assert_eq!(cluster.python(code), "[10.0, 10.0, 10.0, 10.0, 6.0]");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_retired_and_ends() {
    let (mut cluster, mut worker) = cluster();
    let code = "a = mcu('hypot', 3, 4); wait(a)\n\
                retired = client.retire_workers(['mcu'] and [w for w, i in client.scheduler_info()['workers'].items() if i['name'] == 'mcu'])\n\
                (len(retired), a.result())";
    // Its value has moved to the other worker.
    assert_eq!(cluster.python(code), "(1, 5.0)");
    assert_eq!(worker.ended(), Status::Ended);
    let code = "len(client.scheduler_info()['workers'])";
    assert_eq!(cluster.python(code), "1");
    cluster.check_logs();
}
