//! What programs rely on because a worker of Dask is one process with threads.

use std::process::Command;

use daskwire_testing::cluster::Cluster;
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
