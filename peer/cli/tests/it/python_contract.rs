//! What programs rely on because a worker of Dask is one process with threads.

use std::process::Command;

use daskwire_testing::cluster::{Cluster, until};
use daskwire_testing::process::python_processes;
use daskwire_testing::{Environment, Peer, address_after};

use crate::support::worker::rust_worker;

/// A cluster with one worker, which is a Rust worker with four threads.
fn cluster(arguments: &[&str]) -> (Cluster, Peer) {
    let cluster = Cluster::new(0);
    let interpreter = daskwire_testing::python(Environment::Current);
    let limits = ["--no-nanny", "--nthreads", "4", "--memory-limit", "1GiB"];
    let arguments = [&limits[..], arguments].concat();
    let scheduler = cluster.scheduler.address();
    let worker = rust_worker(scheduler, "rust", Some(&interpreter), &arguments, &[]);
    (cluster, worker)
}

/// Starts a worker of Dask with four threads.
fn dask_worker(cluster: &Cluster) -> Peer {
    let mut command = Command::new(daskwire_testing::python(Environment::Current));
    command
        .args(["-m", "distributed.cli.dask_worker"])
        .arg(cluster.scheduler.address())
        .args(["--host", "127.0.0.1", "--nthreads", "4", "--no-nanny"])
        .args(["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]);
    Peer::spawn_command("dask", &mut command, |log| {
        address_after(log, "Registered to:").and_then(|_| address_after(log, "Start worker at:"))
    })
}

/// Functions of programs that use locks.
const LOCKS: &str = "import os, time\nfrom dask.utils import SerializableLock\nfrom distributed import Event\n\
     lock = SerializableLock()\n\
     def path_of(name): return f'/tmp/daskwire-{name}-{os.getpid()}'\n\
     def increment(_, path, lock):\n    \
     with lock:\n        \
     with open(path) as file: n = int(file.read())\n        \
     time.sleep(0.01)\n        \
     with open(path, 'w') as file: file.write(str(n + 1))\n    \
     return os.getpid()\n\
     def hold(lock, how):\n    \
     with lock:\n        \
     Event(f'{how} holds').set()\n        \
     Event(f'{how} ends').wait()\n        \
     if how == 'dies': os._exit(1)\n\
     def try_lock(lock):\n    \
     tried = [lock.locked()]\n    \
     start = time.monotonic()\n    \
     for how in {'blocking': False}, {'timeout': 0.2}:\n        \
     tried.append(lock.acquire(**how))\n        \
     if tried[-1]: lock.release()\n    \
     tried.append(time.monotonic() - start >= 0.2)\n    \
     return tried";

/// Programs that rely on one process. Their results do not depend on the kind of worker.
const PROGRAMS: [&str; 16] = [
    // Results that cannot be pickled
    "import os, socket, threading, operator as module\nfrom distributed import get_worker\n\
     f = client.submit(socket.socket)\n\
     client.submit(lambda s: s.fileno() > 0, f).result()",
    "g = client.submit(lambda: {'sockets': [socket.socket() for _ in range(2)]})\n\
     h = client.submit(lambda s: (s, s), f)\n\
     client.submit(lambda d, p: len({s.fileno() for s in [*d['sockets'], *p]}), g, h).result()",
    "try: f.result()\nexcept TypeError as error: text = str(error).splitlines()[0]\ntext",
    "client.submit(len, [f, 1]).result()",
    // What functions of `Client.run` change, and that tasks change
    "def run(f, *args): return [*client.run(f, *args).values()]\n\
     run(lambda: os.environ.update(SEEN='1'))\n\
     client.submit(lambda: os.environ.get('SEEN'), pure=False).result()",
    "run(lambda: setattr(module, 'mine', [1]))\n\
     wait(client.map(lambda i: module.mine.append(i), range(3)))\n\
     sorted(run(lambda: module.mine)[0])",
    "def keep(dask_worker): dask_worker.connection = 7\nrun(keep)\n\
     client.submit(lambda: get_worker().connection, pure=False).result()",
    "from distributed import WorkerPlugin\n\
     class Engine(WorkerPlugin):\n    \
     name = 'engine'\n    \
     def setup(self, worker): worker.engine = threading.Lock()\n\
     client.register_plugin(Engine())\n\
     client.submit(lambda: get_worker().engine.locked(), pure=False).result()",
    // Threads of one process, which share the values
    "run(lambda: setattr(module, 'barrier', threading.Barrier(4)))\n\
     pids = client.gather(client.map(lambda i: (module.barrier.wait(60), os.getpid())[1], range(4)))\n\
     len(set(pids)), set(pids) == set(run(os.getpid))",
    "class Own: pass\n\
     a = client.submit(lambda: [Own()])\n\
     ids = client.map(lambda a, i: id(a[0]), [a] * 4, range(4))\n\
     len(set(client.gather(ids)))",
    "class Counter:\n    \
     n = 0\n    \
     def add(self): self.n += 1; return self.n\n\
     c = client.submit(Counter, actor=True).result()\n\
     c.add().result(), client.submit(lambda c: c.add().result(), c).result()",
    "async def later(s): return s.fileno() > 0\nclient.submit(later, f).result()",
    "from distributed import get_client, rejoin, secede, worker_client\n\
     def nested(i):\n    \
     with worker_client() as c: n = c.submit(lambda: i * 2, pure=False).result()\n    \
     secede()\n    \
     m = get_client().submit(lambda: i * 3, pure=False).result()\n    \
     rejoin()\n    \
     return n + m\n\
     client.gather(client.map(nested, range(10)))",
    "def release(s): s.close()\nclient.submit(release, f).result()\n\
     client.submit(lambda s: s.fileno(), f, pure=False).result()",
    "client.submit(lambda: 1 / 0).result()",
    // A task whose package another thread imports meanwhile, which Python does not wait for if the package is
    // in another one. The scheduler imports it, too.
    "import pathlib, shutil, sys, tempfile\n\
     folder = tempfile.mkdtemp()\n\
     package = pathlib.Path(folder, 'outer', 'slow')\n\
     package.mkdir(parents=True)\n\
     (package / 'core.py').write_text('found = None\\ndef find(i): return found\\n')\n\
     slow = 'import os, time\\nfrom . import core\\n'\n\
     slow += 'open(f\"{__path__[0]}/{os.getpid()}.begun\", \"w\").close()\\n'\n\
     (package / '__init__.py').write_text(slow + 'time.sleep(1)\\ncore.found = 1\\n')\n\
     find = lambda: sys.path.insert(0, folder)\n\
     find()\n\
     client.run(find)\n\
     client.run_on_scheduler(find)\n\
     from outer.slow import core\n\
     first = client.submit(core.find, 1)\n\
     while len([*package.glob('*.begun')]) < 3: time.sleep(0.01)\n\n\
     found = client.gather([first, client.submit(core.find, 2)])\n\
     shutil.rmtree(folder)\nfound",
];

#[tokio::test(flavor = "multi_thread")]
async fn programs_have_the_results_of_one_process() {
    let mut python = Cluster::new(0);
    let _dask = dask_worker(&python);
    let (mut rust, worker) = cluster(&["--python-processes", "1"]);
    for program in PROGRAMS {
        let expected = python.try_python(program);
        let result = rust.try_python(program);
        assert_eq!(result, expected, "{program}: {}", worker.log());
    }
    assert_eq!(python_processes(worker.id()).len(), 1);
    rust.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_cannot_be_pickled_stay_in_their_process() {
    let (mut cluster, worker) = cluster(&["--python-processes", "2"]);
    let used = cluster.python(
        "import os, socket\n\
         def open_socket(i): time.sleep(0.05); return os.getpid(), socket.socket()\n\
         fs = client.map(open_socket, range(16), pure=False)\n\
         def same(pair, i): return pair[0] == os.getpid(), pair[0]\n\
         used = client.gather(client.map(same, fs, range(16)))\n\
         all(same for same, _ in used), len({pid for _, pid in used})",
    );
    assert_eq!(used, "(True, 2)", "{}", worker.log());
    assert_eq!(python_processes(worker.id()).len(), 2);
    let error = cluster.try_python("client.submit(len, fs).result()");
    let error = error.expect_err("they are in different processes");
    assert!(
        error.contains("--python-processes 1 there is only one"),
        "{error}"
    );
    // Plugins are those of all processes, also later ones.
    let set = cluster.python(
        "from distributed import WorkerPlugin, get_worker\n\
         class Engine(WorkerPlugin):\n    \
         name = 'engine'\n    \
         def setup(self, worker): worker.engine = os.getpid()\n\
         client.register_plugin(Engine())\n\
         def engine(pair): return get_worker().engine == os.getpid()\n\
         all(client.gather(client.map(engine, fs)))",
    );
    assert_eq!(set, "True", "{}", worker.log());
    // Shuffles and actors are in one of them.
    let shuffled = cluster.python(
        "import dask.array as da\n\
         int(da.ones((40, 40), chunks=(1, 40)).rechunk((40, 1), method='p2p').sum().compute())",
    );
    assert_eq!(shuffled, "1600");
    // They are computed again once their process has ended.
    let ids = python_processes(worker.id());
    let killed = Command::new("kill").arg("-9").args(&ids).status();
    assert!(killed.is_ok_and(|status| status.success()));
    let again = cluster.python(
        "used = client.gather(client.map(same, fs, range(16), pure=False))\n\
         all(same for same, _ in used), all(client.gather(client.map(engine, fs, pure=False)))",
    );
    assert_eq!(again, "(True, True)", "{}", worker.log());
    let new = python_processes(worker.id());
    assert!(new.iter().all(|id| !ids.contains(id)), "{ids:?}, {new:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_cannot_be_pickled_are_freed() {
    let (mut cluster, worker) = cluster(&["--python-processes", "1"]);
    cluster.python(
        "import operator as module, socket, weakref\nfrom distributed import Event\n\
         client.run(lambda: setattr(module, 'alive', weakref.WeakSet()))\n\
         def open_socket(i):\n    \
         s = socket.socket()\n    \
         module.alive.add(s)\n    \
         return s\n\
         import gc\n\
         def count(): return [*client.run(lambda: (gc.collect(), len(module.alive))[1]).values()]\n\
         fs = client.map(open_socket, range(20))\nwait(fs)",
    );
    assert_eq!(cluster.python("count()"), "[20]", "{}", worker.log());
    cluster.python("del fs[5:]");
    until("the end of most", || cluster.python("count()") == "[5]").await;
    cluster.python("del fs");
    until("the end of all", || cluster.python("count()") == "[0]").await;
    // The result of a task that was cancelled
    cluster.python(
        "def late():\n    \
         Event('late runs').set()\n    \
         Event('late ends').wait()\n    \
         return open_socket(0)\n\
         f = client.submit(late, key='late')\nEvent('late runs').wait()\n\
         f.cancel(force=True)\ndel f\nclient.submit(int).result()\nEvent('late ends').set()",
    );
    let next = "client.submit(lambda: None, pure=False).result()\ncount()";
    until("the end of the last", || cluster.python(next) == "[0]").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_shared_process_costs_all_of_its_tasks() {
    let (mut cluster, worker) = cluster(&["--python-processes", "1"]);
    let error = cluster.try_python(
        "import os\nfrom distributed import Event\n\
         client.submit(os._exit, 3, key='ends').result()",
    );
    let error = error.expect_err("the process ends");
    assert!(
        error.contains("KilledWorker") && error.contains("exit status: 3"),
        "{error}"
    );
    let result = cluster.python(
        "import socket\n\
         path = f'/tmp/daskwire-shared-{os.getpid()}'\n\
         kept = client.submit(socket.socket)\nwait(kept)\n\
         def once(path):\n    \
         if os.path.exists(path): return 'again'\n    \
         Event('other runs').wait()\n    \
         open(path, 'w').close()\n    \
         os._exit(1)\n\
         def other(path):\n    \
         Event('other runs').set()\n    \
         while not os.path.exists(path): time.sleep(0.01)\n    \
         time.sleep(0.1)\n    \
         return 'again, too'\n\
         fs = [client.submit(once, path), client.submit(other, path)]\n\
         result = client.gather(fs)\nos.remove(path)\n\
         result, client.submit(lambda s: s.fileno() > 0, kept).result()",
    );
    assert_eq!(
        result,
        "(['again', 'again, too'], True)",
        "{}",
        worker.log()
    );
    worker.wait_for_log("which was the host of 1 actors and results that cannot be pickled");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_a_process_for_each_thread_name_the_option() {
    let (mut cluster, _worker) = cluster(&[]);
    for (task, texts) in [
        (
            "__import__('socket').socket()",
            ["TypeError", "type socket.socket", "--python-processes 1"],
        ),
        (
            "__import__('distributed').get_worker().engine",
            ["AttributeError", "'engine'", "--python-processes 1"],
        ),
    ] {
        let error = cluster.try_python(&format!("client.submit(lambda: {task}).result()"));
        let error = error.expect_err(task);
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serializable_lock_excludes_the_tasks_of_all_processes() {
    let (mut cluster, _worker) = cluster(&[]);
    cluster.python(LOCKS);
    let counted = cluster.python(
        "path = path_of('count')\nwith open(path, 'w') as file: file.write('0')\n\
         pids = client.gather(client.map(increment, range(40), path=path, lock=lock))\n\
         with open(path) as file: n = int(file.read())\nos.remove(path)\n\
         n, len(set(pids))",
    );
    assert_eq!(counted, "(40, 4)");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serializable_lock_behaves_as_in_dask() {
    let mut python = Cluster::new(0);
    let _dask = dask_worker(&python);
    let (mut rust, _worker) = cluster(&[]);
    let programs = [
        // Held by a task in another process
        "f = client.submit(hold, lock, 'returns')\nEvent('returns holds').wait()\n\
         tried = client.submit(try_lock, lock, pure=False).result()\n\
         other = client.submit(try_lock, SerializableLock(), pure=False).result()\n\
         waiting = client.submit(lambda lock: lock.acquire() and lock.release(), lock)\n\
         Event('returns ends').set()\nf.result()\nwaiting.result()\n\
         tried, other, client.submit(try_lock, lock, pure=False).result()",
        "def twice(lock):\n    \
         with lock: return lock.locked(), lock.acquire(blocking=False), lock.acquire(timeout=0.1)\n\
         client.submit(twice, lock).result(), client.submit(lambda lock: lock.locked(), lock).result()",
        "client.submit(lambda lock: lock.release(), lock).result()",
        "client.submit(lambda lock: lock.acquire(False, 1), lock).result()",
        "client.submit(lambda lock: lock.acquire(timeout=-5), lock).result()",
        "import pickle\n\
         def tokens(lock): return lock.token, pickle.loads(pickle.dumps(lock)).lock is lock.lock\n\
         client.submit(tokens, SerializableLock('mine')).result()",
        "client.submit(tokens, SerializableLock(('a', 1, b'\\xff', '\\ud800'))).result()",
    ];
    python.python(LOCKS);
    rust.python(LOCKS);
    for program in programs {
        let expected = python.try_python(program);
        assert_eq!(rust.try_python(program), expected, "{program}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_releases_its_locks() {
    let (mut cluster, worker) = cluster(&[]);
    cluster.python(LOCKS);
    let ran = cluster.python(
        "f = client.submit(hold, lock, 'dies')\nEvent('dies holds').wait()\n\
         waiting = client.submit(lambda lock: lock.acquire() and lock.release(), lock)\n\
         Event('dies ends').set()\nwaiting.result()\ntype(f.exception()).__name__",
    );
    assert_eq!(ran, "'KilledWorker'", "{}", worker.log());
    // A process that a task has forked does not keep the lock of the task.
    let forked = cluster.python(
        "def fork(lock):\n    \
         with lock:\n        \
         child = os.fork()\n        \
         if not child: time.sleep(600)\n    \
         return child\n\
         child = client.submit(fork, lock).result()\n\
         tried = client.submit(try_lock, lock, pure=False).result()\n\
         os.kill(child, 9)\n\
         tried[:3]",
    );
    assert_eq!(forked, "[False, True, True]");
}
