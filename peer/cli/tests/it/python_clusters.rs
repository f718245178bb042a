//! Tests of clusters of `daskwire worker --python` that restart and scale: they must do what
//! clusters of Python workers do.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::worker;
use daskwire_testing::cluster::Cluster;
use daskwire_testing::{Environment, Peer, address_after};

/// Starts a worker with one thread, under a nanny.
fn worker(cluster: &Cluster, name: &str, interpreter: &Path) -> Peer {
    let arguments = ["--nthreads", "1", "--memory-limit", "2GiB"];
    let scheduler = cluster.scheduler.address();
    worker::rust_worker(scheduler, name, Some(interpreter), &arguments, &[])
}

/// Starts a Python worker with a nanny.
fn worker_with_nanny(interpreter: &Path, cluster: &Cluster, name: &str) -> Peer {
    let mut command = Command::new(interpreter);
    command
        .args([
            "-m",
            "distributed.cli.dask_worker",
            cluster.scheduler.address(),
        ])
        .args(["--host", "127.0.0.1", "--nthreads", "1", "--name", name])
        .args(["--no-dashboard", "--dashboard-address", "127.0.0.1:0"])
        .args(["--memory-limit", "1GiB"]);
    Peer::spawn_command(name, &mut command, |log| {
        address_after(log, "Registered to:").and_then(|_| address_after(log, "Start worker at:"))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_restart_as_those_of_python() {
    const PROGRAMS: [&str; 8] = [
        "import pathlib, sys, tempfile\n\
         folder = tempfile.TemporaryDirectory()\n\
         module = pathlib.Path(folder.name) / 'restarted_module.py'\n\
         module.write_text('def value(): return 1')\n\
         _ = client.upload_file(str(module))\n\
         def use(): return __import__('restarted_module').value()\n\
         client.submit(use).result()",
        "from distributed import get_worker\n\
         from distributed.diagnostics.plugin import WorkerPlugin\n\
         class Sets(WorkerPlugin):\n    def setup(self, worker): worker.is_set = True\n\
         _ = client.register_plugin(Sets(), name='sets')\n\
         client.submit(lambda: get_worker().is_set, pure=False).result()",
        "f = client.submit(lambda: setattr(sys, 'kept', 1), key='before')\n\
         _ = client.run(lambda: setattr(sys, 'kept', 1))\n\
         f.result(), set(client.run(lambda: sys.kept).values())",
        "_ = client.restart(timeout=60)\nf.status, f.cancelled()",
        "sorted(w['name'] for w in client.scheduler_info()['workers'].values())",
        "has_kept = lambda: hasattr(sys, 'kept')\n\
         set(client.run(has_kept).values()), \
         set(client.gather([client.submit(has_kept, pure=False) for _ in range(10)]))",
        "client.submit(use, pure=False).result(), \
         client.submit(lambda: get_worker().is_set, pure=False).result()",
        "client.submit(lambda: 5, key='before').result()",
    ];
    let interpreter = daskwire_testing::python(Environment::Current);
    let mut python = Cluster::with(&interpreter, 0);
    let mut rust = Cluster::with(&interpreter, 0);
    let mut mixed = Cluster::with(&interpreter, 0);
    let _python = ["a", "b"].map(|name| worker_with_nanny(&interpreter, &python, name));
    let rust_workers = ["a", "b"].map(|name| worker(&rust, name, &interpreter));
    let _mixed = (
        worker_with_nanny(&interpreter, &mixed, "a"),
        worker(&mixed, "b", &interpreter),
    );
    for program in PROGRAMS {
        let expected = python.python(program);
        let logs = || rust_workers.each_ref().map(Peer::log).join("\n");
        let result = rust.try_python(program);
        assert_eq!(result.as_deref(), Ok(&*expected), "{program}\n{}", logs());
        let result = mixed.try_python(program);
        assert_eq!(result.as_deref(), Ok(&*expected), "{program}, mixed");
    }
}

/// A cluster in the client's process, which scales adaptively.
const ADAPTIVE: &str = "
import asyncio, sys
from distributed import Client, Event, Scheduler, SpecCluster, Worker
from distributed.deploy.spec import ProcessInterface

class Rust(ProcessInterface):
    codes = []

    def __init__(self, scheduler, name):
        super().__init__()
        self.scheduler = scheduler
        self.name = name

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            DASKWIRE, 'worker', self.scheduler, '--name', str(self.name), '--nthreads', '1',
            '--memory-limit', '1GiB', '--python', sys.executable, stdout=asyncio.subprocess.DEVNULL)
        await super().start()

    async def close(self):
        # It has been retired.
        self.codes.append(await self.process.wait())
        await super().close()

def adaptive(worker):
    scheduler = {'cls': Scheduler, 'options': {'host': '127.0.0.1', 'dashboard_address': '127.0.0.1:0'}}
    cluster = SpecCluster(scheduler=scheduler, worker=worker)
    cluster.adapt(minimum=0, maximum=2, interval='100ms', wait_count=20)
    return cluster, Client(cluster, set_as_default=False)

def blocked(event, n):
    event.wait()
    return n

kinds = {
    'python': {'cls': Worker, 'options': {'nthreads': 1, 'dashboard_address': '127.0.0.1:0'}},
    'rust': {'cls': Rust},
}
";

#[tokio::test(flavor = "multi_thread")]
async fn adaptive_clusters_grow_and_shrink_as_those_of_python() {
    let interpreter = daskwire_testing::python(Environment::Current);
    let daskwire = PathBuf::from(env!("CARGO_BIN_EXE_daskwire"));
    let run = |kind: &str| {
        // Used only for its client process
        let mut outer = Cluster::with(&interpreter, 0);
        outer.python(&format!("DASKWIRE = {daskwire:?}\n{ADAPTIVE}"));
        outer.python(&format!("cluster, own = adaptive(kinds['{kind}'])"));
        // The tasks end once both workers have joined.
        let grown = outer.python(
            "event = Event('go', client=own)\n\
             futures = own.map(blocked, [event] * 8, range(8), pure=False)\n\
             own.wait_for_workers(2, timeout=120)\n\
             count = len(own.scheduler_info()['workers'])\n\
             event.set()\n\
             values = own.gather(futures)\n\
             del futures\n\
             values, count",
        );
        let shrunk = outer.python(
            "while own.scheduler_info()['workers'] or cluster.workers: time.sleep(0.05)\n\
             len(cluster.workers)",
        );
        let codes = outer.python("own.close()\ncluster.close()\nset(Rust.codes)");
        (grown, shrunk, codes)
    };
    let (grown, shrunk, _) = run("python");
    assert_eq!(run("rust"), (grown, shrunk, "{0}".to_owned()));
}
