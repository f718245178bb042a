//! Tests of `daskwire worker --python` with extensions of Dask, in clusters of Python
//! workers, of Rust workers, and of both.

use std::path::Path;

use crate::support::worker;
use daskwire_testing::cluster::{Cluster, until};
use daskwire_testing::process::host_ended;
use daskwire_testing::{Environment, Peer};

/// Starts a worker with two threads and no nanny.
fn worker(cluster: &Cluster, name: &str, interpreter: Option<&Path>) -> Peer {
    worker_with(cluster, name, interpreter, &["--no-nanny"], &[])
}

/// Starts a worker with two threads, arguments and environment variables.
fn worker_with(
    cluster: &Cluster,
    name: &str,
    interpreter: Option<&Path>,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Peer {
    let limits = ["--nthreads", "2", "--memory-limit", "1GiB"];
    let arguments = [&limits[..], arguments].concat();
    let scheduler = cluster.scheduler.address();
    worker::rust_worker(scheduler, name, interpreter, &arguments, variables)
}

/// The clusters that have run the same programs with the same results.
struct Compared {
    _workers: [Peer; 3],
    _python: Cluster,
    /// A cluster of workers in Rust.
    rust: Cluster,
    /// A cluster of a worker in Rust and one in Python.
    mixed: Cluster,
}

impl Compared {
    /// Runs programs, and asserts that the results are those of workers in Python.
    fn new(programs: &[&str]) -> Self {
        let interpreter = daskwire_testing::python(Environment::Current);
        let mut python = Cluster::new(2);
        let mut rust = Cluster::new(0);
        let mut mixed = Cluster::new(1);
        let workers = [(&rust, "a"), (&rust, "b"), (&mixed, "rust")]
            .map(|(cluster, name)| worker(cluster, name, Some(&interpreter)));
        for program in programs {
            let expected = python.try_python(program);
            assert_eq!(rust.try_python(program), expected, "{program}");
            assert_eq!(mixed.try_python(program), expected, "{program}, mixed");
        }
        Self {
            _workers: workers,
            _python: python,
            rust,
            mixed,
        }
    }
}

/// Programs whose results depend neither on the kind nor on the number of workers.
const PROGRAMS: [&str; 28] = [
    // Functions that run outside of tasks
    "set(client.run(lambda: 5).values())",
    "def named(prefix, *, dask_worker): return prefix + type(dask_worker.address).__name__\n\
     set(client.run(named, 'is ').values())",
    "sorted(client.run(lambda: 1)) == sorted(client.scheduler_info()['workers'])",
    "set(client.run(np.arange, 200_000).popitem()[1][-2:])",
    "client.run(lambda: 1 / 0)",
    "import asyncio\n\
     async def later(x):\n    await asyncio.sleep(0)\n    return x\n\
     set(client.run(later, 'later').values())",
    "def keep(dask_worker): dask_worker.kept = 1\n\
     _ = client.run(keep)\n\
     set(client.run(lambda dask_worker: dask_worker.kept).values())",
    "{type(state).__name__ for state in client.sync(\
     client.scheduler.broadcast, msg={'op': 'dump_state', 'exclude': ()}).values()}",
    "set(client.run(lambda dask_worker: dask_worker.ip in dask_worker.address).values())",
    "async def add(dask_worker): await dask_worker.set_resources(ADDED=1)\n\
     _ = client.run(add)\n\
     client.submit(abs, -1, resources={'ADDED': 1}).result()",
    // The object of the worker in tasks
    "from distributed import get_worker\n\
     def describe():\n    worker = get_worker()\n    \
     return worker.state.nthreads, worker.ip in worker.state.address, \
     worker.memory_manager.memory_limit > 0, list(worker.state.tasks) == [worker.get_current_task()]\n\
     client.submit(describe).result()[1:]",
    "import dask\n\
     def note():\n    worker = get_worker()\n    \
     return worker.state.tasks[worker.get_current_task()].annotations['note']\n\
     with dask.annotate(note='noted'): noted = client.submit(note)\n\
     noted.result()",
    "def add_handler(dask_scheduler):\n    dask_scheduler.sent = sent = []\n    \
     dask_scheduler.stream_handlers['sent'] = lambda worker, value: sent.append(value)\n\
     client.run_on_scheduler(add_handler)\n\
     client.submit(lambda: get_worker().batched_send({'op': 'sent', 'value': 3})).result()\n\
     import time\n\
     while not client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.sent): time.sleep(0.01)\n\
     client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.sent)",
    "async def cancels_itself():\n    task = asyncio.create_task(asyncio.sleep(60))\n    \
     await asyncio.sleep(0)\n    task.cancel()\n    await task\n\
     type(client.submit(cancels_itself).exception()).__name__",
    // Files
    "import pathlib, tempfile\n\
     folder = tempfile.TemporaryDirectory()\n\
     module = pathlib.Path(folder.name) / 'uploaded_module.py'\n\
     module.write_text('def value(): return 1')\n\
     {result['status'] for result in client.upload_file(str(module)).values()}",
    "def use():\n    import uploaded_module\n    return uploaded_module.value()\n\
     set(client.gather([client.submit(use, pure=False) for _ in range(20)]))",
    "set(client.run(use).values())",
    "module.write_text('def value(): return 2222')\n\
     _ = client.upload_file(str(module))\n\
     set(client.gather([client.submit(use, pure=False) for _ in range(20)]))",
    // Plugins
    "from distributed.diagnostics.plugin import WorkerPlugin\n\
     class Setting(WorkerPlugin):\n    name = 'setting'\n    def __init__(self, value): self.value = value\n    \
     def setup(self, worker): worker.setting = self.value\n    \
     def teardown(self, worker): del worker.setting\n\
     {result['status'] for result in client.register_plugin(Setting(3)).values()}",
    "def setting(): return get_worker().setting, get_worker().plugins['setting'].value\n\
     set(client.gather([client.submit(setting, pure=False) for _ in range(20)]))",
    "_ = client.register_plugin(Setting(4))\n\
     set(client.gather([client.submit(setting, pure=False) for _ in range(20)]))",
    "{result['status'] for result in client.unregister_worker_plugin('setting').values()}",
    "client.submit(lambda: hasattr(get_worker(), 'setting'), pure=False).result()",
    "client.submit(lambda: get_worker().plugins['setting'], pure=False).result()",
    "class Loops(WorkerPlugin):\n    def setup(self, worker):\n        \
     async def loop(): worker.has_looped = True\n        \
     self.task = asyncio.create_task(loop())\n\
     _ = client.register_plugin(Loops(), name='loops')",
    "def wait_for_loop():\n    \
     while not hasattr(get_worker(), 'has_looped'): time.sleep(0.01)\n    return True\n\
     client.submit(wait_for_loop).result(), client.unregister_worker_plugin('loops') is None",
    "class Fails(WorkerPlugin):\n    def setup(self, worker): raise RuntimeError('no setup')\n\
     client.register_plugin(Fails())",
    "_ = client.unregister_worker_plugin(next(name for name in client.run_on_scheduler(\
     lambda dask_scheduler: list(dask_scheduler.worker_plugins)) if name.startswith('Fails')))",
];

#[tokio::test(flavor = "multi_thread")]
async fn extensions_have_the_results_of_workers_in_python() {
    Compared::new(&PROGRAMS).rust.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_cannot_be_written_to_is_replaced() {
    let interpreter = daskwire_testing::python(Environment::Current);
    let mut cluster = Cluster::new(0);
    let rust = worker(&cluster, "rust", Some(&interpreter));
    // The host stops after it has closed the receiving end of its socket.
    let id = cluster.python(
        "import ctypes, os, signal, sys\n\
         def stop(sock):\n    sys.setswitchinterval(1000)\n    library = ctypes.PyDLL(None)\n    \
         library.shutdown(sock, 0)\n    library.kill(os.getpid(), signal.SIGSTOP)\n\
         def stop_later(dask_worker):\n    \
         dask_worker.loop.call_later(0.1, stop, dask_worker.link.sock.fileno())\n    return os.getpid()\n\
         [id] = client.run(stop_later).values()\nid",
    );
    let state = || std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    until("the stop of the host", || state().contains(") T ")).await;
    // Each of these requests has a comm of its own, for which the host receives a socket.
    let answer = "from distributed.core import rpc\nfrom distributed.protocol.pickle import dumps\n\
                  [address] = client.scheduler_info()['workers']\n\
                  async def ask():\n    async with rpc(address) as worker: return await worker.run(\
                  function=dumps(os.getpid), args=dumps(()), kwargs=dumps({}))\n\
                  for _ in range(100):\n    try:\n        answer = client.sync(ask)\n        break\n    \
                  except OSError: time.sleep(0.05)\n\
                  answer['status'], answer['result'] not in (None, id)";
    assert_eq!(cluster.python(answer), "('OK', True)");
    rust.wait_for_log("signal: 9 (SIGKILL), which was the host of 0 actors");
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_those_of_the_interpreter() {
    let interpreter = daskwire_testing::python(Environment::Current);
    let mut cluster = Cluster::new(0);
    let _rust = worker(&cluster, "rust", Some(&interpreter));
    let versions = "from distributed.versions import get_versions\n\
                    [versions] = client.get_versions(packages=['pip'])['workers'].values()\n\
                    own = get_versions(['pip'])\n\
                    versions['packages'] == own['packages'], versions['host'].keys() == own['host'].keys()";
    assert_eq!(cluster.python(versions), "(True, True)");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_both_kinds_answer_coroutines_and_benchmarks() {
    let interpreter = daskwire_testing::python(Environment::Current);
    let mut cluster = Cluster::new(1);
    let _worker = worker(&cluster, "rust", Some(&interpreter));
    // `Client.run` sends coroutines as requests of another name.
    let coroutine = "import asyncio\n\
                     from distributed.protocol import deserialize\n\
                     from distributed.protocol.pickle import dumps\n\
                     async def later(x, *, y):\n    await asyncio.sleep(0)\n    return x + y\n\
                     async def ask(dask_scheduler):\n    \
                     call = {'function': dumps(later), 'args': dumps([1]), 'kwargs': dumps({'y': 2}), 'wait': True}\n    \
                     return await dask_scheduler.broadcast(msg={'op': 'run_coroutine', **call})\n\
                     [(answer['status'], deserialize(answer['result'].header, answer['result'].frames)) for answer in client.run_on_scheduler(ask).values()]";
    assert_eq!(cluster.python(coroutine), "[('OK', 3), ('OK', 3)]");
    // The benchmarks take 12 seconds by default.
    let measured = "def shorten():\n    import distributed.worker as worker\n    \
                    for function in (worker.benchmark_disk, worker.benchmark_memory, worker.benchmark_network):\n        \
                    function.__defaults__ = (*function.__defaults__[:-1], '10 ms')\n\
                    _ = client.run(shorten)\n\
                    {name: all(speed > 0 for speed in speeds.values()) \
                    for name, speeds in sorted(client.benchmark_hardware().items())}";
    assert_eq!(
        cluster.python(measured),
        "{'disk': True, 'memory': True, 'network': True}"
    );
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_of_the_scheduler_are_set_up_at_the_start() {
    let interpreter = daskwire_testing::python(Environment::Current);
    let mut cluster = Cluster::new(0);
    cluster.python(
        "from distributed import get_worker\n\
         from distributed.diagnostics.plugin import WorkerPlugin\n\
         class Early(WorkerPlugin):\n    def setup(self, worker): worker.log_event('early', 'set up')\n\
         client.register_plugin(Early(), name='early')",
    );
    let worker = worker(&cluster, "rust", Some(&interpreter));
    // The plugin is set up before there is a task.
    until("the event", || {
        cluster.python("len(client.get_events('early'))") == "1"
    })
    .await;
    assert_eq!(
        cluster.python("client.submit(lambda: 'early' in get_worker().plugins).result()"),
        "True"
    );
    // The plugin is torn down when the worker leaves.
    cluster.python(
        "import os, shutil, tempfile\n\
         left = tempfile.mkdtemp()\n\
         class Leaves(WorkerPlugin):\n    \
         def teardown(self, worker): open(f'{left}/{os.getpid()}', 'w').close()\n\
         _ = client.register_plugin(Leaves(), name='leaves')\n\
         process = client.submit(os.getpid, pure=False).result()",
    );
    // The worker would have to hand its result over.
    let count = "client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))";
    until("the end of the task", || cluster.python(count) == "0").await;
    worker.signal("TERM");
    // In the host, and in the process that has run the task
    until("the teardown", || {
        cluster.python("len(os.listdir(left)) >= 2 and str(process) in os.listdir(left)") == "True"
    })
    .await;
    cluster.python("shutil.rmtree(left)");
    cluster.check_logs();
}

/// Output of tasks is forwarded to clients by the process of the task, not by those it forks.
#[tokio::test(flavor = "multi_thread")]
async fn forked_processes_print_while_output_is_forwarded() {
    let interpreter = daskwire_testing::python(Environment::Current);
    let mut cluster = Cluster::new(0);
    let _worker = worker(&cluster, "rust", Some(&interpreter));
    cluster.python(
        "import multiprocessing\n\
         from distributed.diagnostics.plugin import ForwardOutput\n\
         _ = client.register_plugin(ForwardOutput())\n\
         def run():\n    \
         process = multiprocessing.get_context('fork').Process(target=print, args=('x',))\n    \
         process.start()\n    \
         process.join()\n    \
         return process.exitcode",
    );
    assert_eq!(cluster.python("client.submit(run).result()"), "0");
    cluster.check_logs();
}

/// A module that sets an attribute of the worker to an argument. The file LIVES exists
/// while the host runs.
const PRELOADED: &str = "\
import click, os

@click.command()
@click.option('--value', default='default')
async def dask_setup(worker, value):
    worker.preloaded = value
    worker.log_event('preload', 'set up')
    if hasattr(worker, 'handlers'):
        open(LIVES, 'w').close()

def dask_teardown(worker):
    if hasattr(worker, 'handlers'):
        os.remove(LIVES)
";

#[tokio::test(flavor = "multi_thread")]
async fn preloaded_modules_are_set_up_in_all_processes() {
    let interpreter = daskwire_testing::python(Environment::Current);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("preloaded.py");
    let lives = folder.join("lives");
    let source = format!("LIVES = {:?}\n{PRELOADED}", lives.display().to_string());
    std::fs::write(&file, source).expect("written");
    let file = file.to_str().expect("a path of text");
    let seen = "from distributed import get_worker\n\
                def value(): return get_worker().preloaded\n\
                def of_host(dask_worker): return dask_worker.preloaded\n\
                {client.submit(value, pure=False).result(), *client.run(of_host).values()}";
    for (arguments, variables, value) in [
        (
            &["--preload", file, "--", "--value", "given"][..],
            &[][..],
            "{'given'}",
        ),
        (
            &["--no-nanny"],
            &[
                ("DASK_DISTRIBUTED__WORKER__PRELOAD", file),
                (
                    "DASK_DISTRIBUTED__WORKER__PRELOAD_ARGV",
                    "['--value=configured']",
                ),
            ],
            "{'configured'}",
        ),
    ] {
        let mut cluster = Cluster::new(0);
        let worker = worker_with(&cluster, "rust", Some(&interpreter), arguments, variables);
        // The module is loaded before there is a task.
        until("the setup in the host", || lives.exists()).await;
        assert_eq!(cluster.python(seen), value);
        // One event of the host, and one of the process of the task
        until("the events", || {
            cluster.python("len(client.get_events('preload'))") == "2"
        })
        .await;
        worker.signal("TERM");
        until("the teardown", || !lives.exists()).await;
        cluster.check_logs();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_are_told_of_the_transitions_of_tasks() {
    let mut python = Cluster::new(1);
    let mut rust = Cluster::new(0);
    let _rust = worker(
        &rust,
        "a",
        Some(&daskwire_testing::python(Environment::Current)),
    );
    for cluster in [&mut python, &mut rust] {
        cluster.python(
            "from distributed.diagnostics.plugin import WorkerPlugin\n\
             class Tells(WorkerPlugin):\n    def setup(self, worker): self.worker = worker\n    \
             def transition(self, key, start, finish, **kwargs):\n        \
             task = self.worker.state.tasks.get(key)\n        \
             error = finish == 'error' and task.exception_text\n        \
             self.worker.log_event('told', [key, start, finish, error])\n\
             _ = client.register_plugin(Tells(), name='tells')",
        );
        // An input, a result and an exception, until they are forgotten
        cluster.python(
            "one = client.submit(lambda: 1, key='one')\n\
             two = client.submit(lambda x: x, one, key='two')\n\
             wait([two, client.submit(lambda x: x / 0, two, key='three')])\n\
             del one, two",
        );
        until("the ends", || {
            let ends = "sum(event[2] == 'forgotten' for _, event in client.get_events('told'))";
            cluster.python(ends) == "3"
        })
        .await;
        // An unregistered plugin receives no transitions.
        cluster.python(
            "_ = client.unregister_worker_plugin('tells')\nclient.submit(abs, -1).result()",
        );
    }
    let told = "[[event[1:] for _, event in client.get_events('told') if event[0] == key] \
                for key in ('one', 'two', 'three')]";
    assert_eq!(rust.python(told), python.python(told));
    rust.check_logs();
}

/// A worker answers the requests to its nanny, which runs no Python.
#[tokio::test(flavor = "multi_thread")]
async fn plugins_of_nannies_are_refused() {
    let mut cluster = Cluster::new(0);
    let interpreter = daskwire_testing::python(Environment::Current);
    let _worker = worker_with(&cluster, "a", Some(&interpreter), &[], &[]);
    let error = cluster
        .try_python(
            "from distributed.diagnostics.plugin import NannyPlugin\n\
             class Files(NannyPlugin):\n    name = 'files'\n\
             client.register_plugin(Files())",
        )
        .expect_err("the nanny is not Python");
    assert!(error.contains("NotImplementedError"), "{error}");
    let error = cluster
        .try_python("client.unregister_worker_plugin('files', nanny=True)")
        .expect_err("the nanny is not Python");
    assert!(error.contains("NotImplementedError"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_are_installed_once_for_a_worker() {
    let mut cluster = Cluster::new(0);
    let interpreter = daskwire_testing::python(Environment::Current);
    let early = worker(&cluster, "early", Some(&interpreter));
    // An installation is a line in a file, and a module.
    cluster.python(
        "import os, pathlib, sys, tempfile\n\
         from distributed.diagnostics.plugin import InstallPlugin\n\
         folder = tempfile.mkdtemp()\n\
         def install():\n    \
         with open(folder + '/installed', 'a') as file: file.write(f'{os.getppid()}\\n')\n    \
         pathlib.Path(folder, 'installed_module.py').write_text('value = 5')\n\
         def use():\n    sys.path[:] = [folder, *sys.path]\n    \
         import importlib, time\n    time.sleep(.2)\n    \
         return importlib.import_module('installed_module').value\n\
         _ = client.register_plugin(InstallPlugin(install, False), name='install')",
    );
    let late = worker(&cluster, "late", Some(&interpreter));
    let used = cluster.python(
        "fs = [client.submit(use, pure=False, workers=[w]) for w in ('early', 'late') for _ in range(8)]\n\
         client.gather(fs)",
    );
    assert_eq!(used, format!("{:?}", [5; 16]));
    // The scheduler, and one process of each worker
    let installed = cluster.python("len(open(folder + '/installed').readlines())");
    assert_eq!(installed, "3", "{}\n{}", early.log(), late.log());
    cluster.python("import shutil\nshutil.rmtree(folder)");
    cluster.check_logs();
}

/// The variables apply to processes that start later, so the worker is restarted.
#[tokio::test(flavor = "multi_thread")]
async fn variables_of_a_plugin_of_nannies_are_set_in_a_new_worker() {
    let mut cluster = Cluster::new(0);
    let interpreter = daskwire_testing::python(Environment::Current);
    let start = |name: &str| worker_with(&cluster, name, Some(&interpreter), &[], &[]);
    let _a = start("a");
    let scheduler = cluster.scheduler.address().to_owned();
    cluster.python(
        "import os\ndef variable(): return os.environ.get('ABC')\nclient.submit(variable).result()",
    );
    assert_eq!(
        cluster.python(
            "from distributed.diagnostics.plugin import Environ\n\
             client.register_plugin(Environ({'ABC': 123}), name='variables')\n\
             client.submit(variable, pure=False).result()"
        ),
        "'123'"
    );
    let limits = ["--nthreads", "2", "--memory-limit", "1GiB"];
    let _b = worker::rust_worker(&scheduler, "b", Some(&interpreter), &limits, &[]);
    let values = "sorted(client.run(variable).values())";
    until("both workers", || {
        cluster.python(values) == "['123', '123']"
    })
    .await;
    let removed = "_ = client.unregister_worker_plugin('variables', nanny=True)";
    cluster.python(removed);
}

/// Results have forms that a client without pickle reads.
#[tokio::test(flavor = "multi_thread")]
async fn clients_without_pickle_have_the_results_of_workers_in_python() {
    Compared::new(&[
        "from distributed import Client\n\
         plain = Client(client.scheduler.address, serializers=['dask', 'msgpack'], set_as_default=False)\n\
         plain.submit(lambda: 1).result()",
        "plain.submit(lambda: [None, True, -2.5, 'text', b'data', 1 << 40]).result()",
        "plain.submit(lambda: {'a': [1, [2, None]], 5: b'b'}).result()",
        "import numpy\nplain.submit(numpy.arange, 3).result().tolist()",
        "plain.gather(plain.map(lambda n: n * n, range(5)))",
        "try:\n    plain.submit(object).result()\nexcept TypeError as error:\n    \
         kept = 'serialize' in str(error)\nkept",
        "plain.close()",
    ]);
}

/// Tasks whose plugin ends the process fail: they would wait for ever if it ended a thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_exits_ends_the_process() {
    let mut cluster = Cluster::new(0);
    let interpreter = daskwire_testing::python(Environment::Current);
    let _worker = worker(&cluster, "a", Some(&interpreter));
    let error = cluster
        .try_python(
            "from distributed import get_worker\n\
             from distributed.diagnostics.plugin import WorkerPlugin\n\
             class Exits(WorkerPlugin):\n    def setup(self, worker):\n        \
             if not hasattr(worker, 'plugin_add'): raise SystemExit('no reason')\n\
             _ = client.register_plugin(Exits(), name='exits')\n\
             client.submit(abs, -1).result()",
        )
        .expect_err("the process ends");
    assert!(error.contains("KilledWorker"), "{error}");
    cluster.python("_ = client.unregister_worker_plugin('exits')");
    assert_eq!(cluster.python("client.submit(abs, -2).result()"), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_code_may_end_the_host_and_the_worker() {
    let mut cluster = Cluster::new(0);
    let interpreter = daskwire_testing::python(Environment::Current);
    let mut worker = worker(&cluster, "a", Some(&interpreter));
    cluster.python("import os, sys\nhost = client.run(os.getpid).popitem()[1]");
    cluster
        .try_python("client.run(sys.exit)")
        .expect_err("the host ends");
    assert_eq!(
        cluster.python("client.run(os.getpid).popitem()[1] != host"),
        "True"
    );
    // A worker also ends if no other can take its data.
    cluster.python(
        "kept = client.submit(abs, -1)\nwait(kept)\n\
         async def close(dask_worker): asyncio.create_task(dask_worker.close())\n\
         import asyncio\nclient.run(close)",
    );
    until("the end of the worker", || worker.ended()).await;
}

/// Calls that are meant for Python succeed on a worker without Python.
#[tokio::test(flavor = "multi_thread")]
async fn workers_without_python_ignore_plugins_and_files() {
    let mut cluster = Cluster::new(1);
    let _without = worker(&cluster, "without", None);
    cluster.python(
        "from distributed import get_worker\n\
         from distributed.diagnostics.plugin import WorkerPlugin\n\
         import pathlib, tempfile\n\
         folder = tempfile.TemporaryDirectory()\n\
         module = pathlib.Path(folder.name) / 'mixed_module.py'\n\
         module.write_text('def value(): return 1')",
    );
    assert_eq!(
        cluster.python("sorted(r['status'] for r in client.upload_file(str(module)).values())"),
        "['OK', 'OK']"
    );
    let statuses = "class Nothing(WorkerPlugin): pass\n\
                    sorted(r['status'] for r in client.register_plugin(Nothing(), name='nothing').values())";
    assert_eq!(cluster.python(statuses), "['OK', 'OK']");
    assert_eq!(
        cluster.python("client.submit(lambda: __import__('mixed_module').value()).result()"),
        "1"
    );
    let removed =
        "sorted(r['status'] for r in client.unregister_worker_plugin('nothing').values())";
    assert_eq!(cluster.python(removed), "['OK', 'OK']");
    let logs = cluster.python("client.get_worker_logs()");
    assert!(logs.contains("runs no Python and ignores"), "{logs}");
    cluster.check_logs();
}

/// Programs that use actors.
const ACTORS: [&str; 11] = [
    "class Counter:\n    n = 0\n    def __init__(self, start=0): self.n = start\n    \
     def add(self, by=1):\n        self.n += by\n        return self.n\n    \
     async def later(self): return self.n\n    def fail(self): raise ValueError('no')\n\
     f = client.submit(Counter, 10, actor=True)\ncounter = f.result()\nrepr(counter).split(',')[0]",
    "counter.n",
    "counter.add().result()",
    "max(future.result() for future in [counter.add(n) for n in range(5)])",
    "counter.later().result()",
    "counter.fail().result()",
    "counter.missing",
    // Use within tasks
    "client.submit(lambda c: c.add(100).result(), counter).result()",
    "client.submit(lambda c: c.add(100).result(), f).result()",
    "many = client.map(Counter, range(4), actors=True)\n\
     [one.add(1).result() for one in client.gather(many)]",
    "counter.n",
];

#[tokio::test(flavor = "multi_thread")]
async fn actors_have_the_results_of_workers_in_python() {
    let mut compared = Compared::new(&ACTORS);
    // The actors that are created at once are on both workers.
    let places = "len({worker for held in client.who_has(many).values() for worker in held})";
    assert_eq!(compared.mixed.python(places), "2");
    let rust = &mut compared.rust;
    rust.check_logs();
    // The end of a process fails calls of its actors with an error, and nothing else.
    let killed = "import os, signal\n\
                  _ = client.run(lambda: os.kill(os.getpid(), signal.SIGKILL), on_error='return')\n\
                  client.submit(abs, -5, pure=False).result()";
    assert_eq!(rust.python(killed), "5");
    let failed = "client.submit(lambda: 0, pure=False).result()\ncounter.add().result()";
    let error = rust.try_python(failed).expect_err("the actor is gone");
    assert!(error.contains("lost") || error.contains("gone"), "{error}");
    let next = "client.submit(Counter, 7, actor=True, pure=False).result().add().result()";
    assert_eq!(rust.python(next), "8");
}

/// The scheduler's messages reach the host on another socket than its tasks. As on a worker in
/// Python, a task starts after the messages before it were handled, such as one that ends the
/// run of a shuffle.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_the_host_start_after_earlier_messages_of_the_scheduler() {
    let interpreter = daskwire_testing::python(Environment::Current);
    let mut cluster = Cluster::new(0);
    let worker = worker(&cluster, "rust", Some(&interpreter));
    let seen = cluster.python(
        "import time\nfrom distributed import get_worker\n\
         class Seen:\n    count = None\n    def __init__(self): self.count = get_worker().marks\n\
         def prepare(dask_worker):\n    dask_worker.marks = 0\n    \
         def mark(): dask_worker.marks += 1\n    dask_worker.stream_handlers['mark'] = mark\n\
         def send(dask_scheduler):\n    \
         [stream] = dask_scheduler.stream_comms.values()\n    stream.send({'op': 'mark'})\n\
         client.run(prepare)\n\
         actors = [client.submit(Seen, actor=True, pure=False).result()]\n\
         for _ in range(2):\n    \
         client.run(lambda dask_worker: dask_worker.loop.add_callback(time.sleep, 0.5))\n    \
         client.run_on_scheduler(send)\n    \
         actors.append(client.submit(Seen, actor=True, pure=False).result())\n\
         [actor.count for actor in actors]",
    );
    assert_eq!(seen, "[0, 1, 2]", "{}", worker.log());
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_that_takes_too_much_memory_costs_the_host_only() {
    let interpreter = daskwire_testing::python(Environment::Current);
    let mut cluster = Cluster::new(0);
    let worker = worker_with(&cluster, "a", Some(&interpreter), &[], &[]);
    cluster.python(
        "kept = client.submit(np.arange, 1000)\n\
         class Greedy:\n    def grow(self): self.all = np.ones(140_000_000)\n\
         greedy = client.submit(Greedy, actor=True).result()\n\
         growing = greedy.grow()",
    );
    worker.wait_for_log("MiB of the worker's memory, which was the host of 1 actors");
    let next = "client.submit(sum, kept).result(), client.submit(set, actor=True).result().__class__.__name__";
    assert_eq!(cluster.python(next), "(np.int64(499500), 'Actor')");
    let workers = "sorted(client.scheduler_info()['workers'])";
    assert_eq!(cluster.python(workers), format!("['{}']", worker.address()));
    // The call of the actor.
    let ended = host_ended(worker.address());
    let ended = ended.each_ref().map(String::as_str);
    cluster.check_logs_except(&[&ended[..], &["Exception while handling op proxy"]].concat());
}
