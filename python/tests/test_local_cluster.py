"""Tests of `daskwire.LocalCluster`, whose scheduler and workers are in Rust."""

import asyncio
import json
import logging
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import dask
import psutil
import pytest
from distributed import Client, SpecCluster, rpc

from daskwire import LocalCluster, Scheduler, _cluster

WAIT = 60  # seconds


def small(**options):
    """A cluster with few processes."""
    given = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    return LocalCluster(**given | options)


def eventually(condition):
    deadline = time.monotonic() + WAIT
    while not (value := condition()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)
    return value


def sessions(cluster):
    """The sessions of all processes of a cluster, each named by its first process."""
    processes = [cluster.scheduler, *cluster.workers.values()]
    return {process._process.pid for process in processes}


def processes(sessions):
    """The command lines of the processes of some sessions, by their ids."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and os.getsid(process.pid) in sessions:
                found[process.pid] = process.cmdline()
        except (ProcessLookupError, psutil.NoSuchProcess):
            pass
    return found


def nothing_is_left(sessions, folder):
    eventually(lambda: not processes(sessions))
    assert not folder.exists()


def workers(client):
    return list(client.scheduler_info(n_workers=-1)["workers"].values())


# The only line that differs for Dask's cluster is the first.
PROGRAM = """
from daskwire import LocalCluster
import sys
import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import pandas as pd
import beside

def double(x):
    return 2 * x

if __name__ == "__main__":
    client = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None).get_client()
    print(client.submit(sum, client.map(double, range(10))).result())
    x = da.arange(1000, chunks=100)
    print(int((x + x[::-1]).sum().compute()))
    frame = dd.from_pandas(pd.DataFrame({"group": range(100), "x": range(100)}), npartitions=4)
    frame["group"] = frame["group"] % 3
    print(frame.groupby("group").x.sum().compute().sort_index().tolist())
    print(len(frame.merge(frame.shuffle("x"), on="x").compute()))
    print(db.from_sequence(range(10), npartitions=3).map(double).filter(lambda x: x > 9).sum().compute())
    print(dask.delayed(double)(dask.delayed(double)(3)).compute())
    print(client.submit(beside.name).result())
    client.submit(print, "from a task", file=None).result()
    print(client.submit(lambda: print("to the error", file=sys.stderr)).result())
"""

PRINTED = """90
999000
[1683, 1617, 1650]
100
70
12
beside
from a task
None
"""


def test_one_import_changes_a_program(tmp_path):
    (tmp_path / "beside.py").write_text("def name():\n    return __name__\n")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=240, cwd="/"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == PRINTED
    # On a busy machine, a worker may report that it has left without the scheduler's answer.
    assert run.stderr.startswith("to the error\n")


@pytest.mark.parametrize("page", ["python/README.md", "docs/src/replace-dask-scheduler.md"])
def test_programs_of_the_documentation(page, tmp_path):
    text = (pathlib.Path(__file__).parents[2] / page).read_text()
    blocks = re.findall("^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    [program] = [block for block in blocks if "import LocalCluster" in block]
    path = tmp_path / "program.py"
    path.write_text(program)
    printed = subprocess.check_output([sys.executable, path], text=True, timeout=240)
    assert printed == "6\n"


def test_workers_are_as_asked(tmp_path):
    with LocalCluster(
        name="mine",
        n_workers=2,
        threads_per_worker=3,
        memory_limit="300 MiB",
        resources={"GPU": 2, "MEM": 1e9},
        env={"DASKWIRE_TEST": "set"},
        local_directory=tmp_path,
        dashboard_address=None,
    ) as cluster:
        assert isinstance(cluster, SpecCluster)
        assert cluster.name == "mine"
        assert cluster.scheduler_address.startswith("tcp://127.0.0.1:")
        assert "workers=2, threads=6" in repr(cluster)
        with Client(cluster) as client:
            found = workers(client)
            assert {worker["name"] for worker in found} == {0, 1}
            for worker in found:
                assert worker["nthreads"] == 3
                assert worker["memory_limit"] == 300 << 20
                assert worker["resources"] == {"GPU": 2, "MEM": 1e9}
                assert worker["host"] == "127.0.0.1"
                assert worker["local_directory"].startswith(str(tmp_path))
            assert client.submit(os.getenv, "DASKWIRE_TEST").result(WAIT) == "set"
            # As in Dask, tasks of a worker share a process.
            pids = client.map(lambda _: time.sleep(0.1) or os.getpid(), range(12), pure=False)
            assert len(set(client.gather(pids))) == 2
    assert os.environ.get("DASKWIRE_TEST") is None


def test_tasks_have_processes_of_their_own():
    with small(threads_per_worker=2, python_processes=None) as cluster, Client(cluster) as client:
        pids = client.map(lambda _: time.sleep(0.2) or os.getpid(), range(6), pure=False)
        assert len(set(client.gather(pids))) == 2


def test_scale():
    with LocalCluster(threads_per_worker=2, n_workers=1, dashboard_address=None) as cluster:
        with cluster.get_client() as client:
            assert cluster.get_client() is client
            futures = client.map(pow, range(50), [2] * 50)
            assert client.gather(futures) == [n**2 for n in range(50)]
            cluster.scale(3)
            client.wait_for_workers(3, timeout=WAIT)
            # By cores, of which each worker has two.
            cluster.scale(cores=8)
            client.wait_for_workers(4, timeout=WAIT)
            before = sessions(cluster)
            cluster.scale(1)
            eventually(lambda: len(client.nthreads()) == 1)
            eventually(lambda: len(cluster.workers) == 1)
            left = sessions(cluster)
            assert len(left) == 2
            eventually(lambda: not processes(before - left))
            # The results were moved to the worker that is left.
            assert all(future.status == "finished" for future in futures)
            assert client.gather(futures) == [n**2 for n in range(50)]


def test_adapt():
    with small(n_workers=0) as cluster, Client(cluster) as client:
        cluster.adapt(
            minimum=0, maximum=2, interval="100ms", wait_count=3, target_duration="500ms"
        )
        assert client.nthreads() == {}
        futures = client.map(lambda n: time.sleep(0.2) or n, range(40))
        client.wait_for_workers(2, timeout=WAIT)
        assert client.gather(futures) == list(range(40))
        futures.clear()
        eventually(lambda: not client.nthreads())


def test_asynchronous():
    async def test():
        async with small(asynchronous=True) as cluster:
            async with Client(cluster, asynchronous=True) as client:
                assert await client.submit(pow, 2, 10) == 1024
                cluster.scale(2)
                await client.wait_for_workers(2)
            return sessions(cluster), cluster._launch.folder

    nothing_is_left(*asyncio.run(test()))


@pytest.mark.parametrize("protocol", ["tls", "quic"])
def test_encryption(protocol):
    options = {} if protocol == "tls" else {"protocol": protocol}
    with small(security=True, **options) as cluster, Client(cluster) as client:
        assert cluster.scheduler_address.startswith(f"{protocol}://")
        assert client.submit(pow, 2, 10).result(WAIT) == 1024
        [worker] = client.nthreads()
        assert worker.startswith(f"{protocol}://")
        assert cluster._launch.folder.stat().st_mode & 0o77 == 0
        cluster.scale(2)
        client.wait_for_workers(2, timeout=WAIT)
        folder = cluster._launch.folder
    assert not folder.exists()


def test_dashboard_and_html():
    with small(n_workers=2, dashboard_address="127.0.0.1:0") as cluster:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", cluster.dashboard_link)
        with urllib.request.urlopen(cluster.dashboard_link) as metrics:
            assert b"dask_scheduler_workers" in metrics.read()
        html = cluster._repr_html_()
        for part in ["LocalCluster", cluster.dashboard_link, "running", cluster.scheduler_address]:
            assert part in html
        assert re.search(r"<strong>Workers:</strong>\s*2", html)
        with Client(cluster) as client:
            assert client.dashboard_link == cluster.dashboard_link
    with small() as cluster:
        assert cluster.dashboard_link == ""
        assert "LocalCluster" in cluster._repr_html_()


def test_logs():
    def warn():
        logging.getLogger("distributed.worker").warning("to look at")

    with small() as cluster, Client(cluster) as client:
        client.submit(warn).result(WAIT)
        [worker] = client.nthreads()
        logs = cluster.get_logs()
        assert set(logs) == {"Cluster", "Scheduler", worker}
        assert worker in logs["Scheduler"]
        assert "to look at" in logs[worker]


@pytest.mark.parametrize("level, shows", [(logging.WARN, False), ("info", True), (False, True)])
def test_logs_are_silenced(level, shows, capfd):
    with small(silence_logs=level) as cluster, Client(cluster) as client:
        client.submit(lambda: print("of a task", file=sys.stderr)).result(WAIT)
        [process] = cluster.workers.values()
        eventually(lambda: "of a task\n" in process._lines)
    printed = capfd.readouterr().err
    assert "of a task\n" in printed
    assert ("Registered to:" in printed) == shows, printed
    assert ("Starting Worker plugin" in printed) == shows, printed


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"workers": 3}, "unexpected keyword argument 'workers'"),
        ({"processes": False}, "processes=False.*always processes"),
        ({"worker_class": object}, "worker_class="),
        ({"scheduler_kwargs": {"plugins": []}}, "scheduler_kwargs="),
        ({"security": "tls"}, "security='tls'"),
    ],
)
def test_arguments_that_have_no_effect(arguments, message):
    with pytest.raises(TypeError, match=message):
        small(**arguments)


@pytest.mark.parametrize("given, expected", [(None, {"GPU": 1}), ({}, {}), ({"X": 2}, {"X": 2})])
def test_resources_replace_those_of_the_configuration(given, expected):
    with dask.config.set({"distributed.worker.resources": {"GPU": 1}}):
        with small(resources=given) as cluster, cluster.get_client() as client:
            [worker] = client.scheduler_info()["workers"].values()
            assert worker["resources"] == expected


def test_handlers_are_blocked(monkeypatch):
    # Exported variables precede the settings of the program, but not arguments.
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__BLOCKED_HANDLERS", "[]")
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__blocked-handlers", "[]")
    with small(blocked_handlers=["run_function"]) as cluster, cluster.get_client() as client:
        assert client.submit(abs, -1).result() == 1
        with pytest.raises(ValueError, match="run_function.*explicitly disallowed"):
            client.run_on_scheduler(os.getpid)
    # The variables and settings of the program are as before.
    assert os.environ["DASK_DISTRIBUTED__SCHEDULER__BLOCKED_HANDLERS"] == "[]"
    assert not dask.config.get("distributed.scheduler.blocked-handlers")


@pytest.mark.parametrize("section", ["DISTRIBUTED__SCHEDULER", "distributed__scheduler"])
def test_handlers_are_blocked_beside_an_exported_section(monkeypatch, section):
    settings = {"blocked-handlers": [], "default-task-durations": {"of-the-section": "7s"}}
    monkeypatch.setenv(f"DASK_{section}", repr(settings))
    with small(blocked_handlers=["feed"]) as cluster, cluster.get_client() as client:
        name = "distributed.scheduler.default-task-durations.of-the-section"
        assert client.run_on_scheduler(dask.config.get, name) == "7s"
        assert client.run_on_scheduler(_blocked_handlers) == ["feed"]
        with pytest.raises(ValueError, match="feed.*explicitly disallowed"):
            client.sync(_feed, client.scheduler.address)


def _blocked_handlers():
    return dask.config.get("distributed.scheduler.blocked-handlers")


async def _feed(address):
    async with rpc(address) as scheduler:
        await scheduler.feed(function=None, interval="1s")


def test_a_scheduler_for_other_cluster_objects():
    # The options of dask-jobqueue
    options = {"protocol": "tcp://", "dashboard_address": ":0", "security": None, "interface": None}
    options |= {"host": "127.0.0.1", "blocked_handlers": ["feed"]}
    with SpecCluster(scheduler={"cls": Scheduler, "options": options}) as cluster:
        folder = cluster.scheduler._launch.folder
        with cluster.get_client() as client:
            assert client.run_on_scheduler(os.getpid) != os.getpid()
        assert folder.exists()
    assert not folder.exists()
    with pytest.raises(TypeError, match="jupyter=True: daskwire scheduler has no such option"):
        Scheduler(jupyter=True)


def test_the_file_of_a_scheduler(tmp_path):
    file = tmp_path / "scheduler.json"
    # That of a scheduler that was killed.
    file.write_text('{"address": "tcp://127.0.0.1:1"}')
    options = {"host": "127.0.0.1", "dashboard": False, "scheduler_file": file}
    with SpecCluster(scheduler={"cls": Scheduler, "options": options}) as cluster:
        assert json.loads(file.read_text())["address"] == cluster.scheduler_address
        with Client(scheduler_file=str(file)) as client:
            assert client.run_on_scheduler(os.getpid) != os.getpid()
    assert not file.exists()


def test_the_security_of_a_scheduler_as_a_dict(security):
    names = "tls_ca_file", "tls_scheduler_cert", "tls_scheduler_key", "require_encryption"
    given = {name: getattr(security, name) for name in names}
    options = {"host": "127.0.0.1", "dashboard": False, "security": given}
    scheduler = {"cls": Scheduler, "options": options}
    with SpecCluster(scheduler=scheduler, security=security) as cluster:
        assert cluster.scheduler_address.startswith("tls://")
        with cluster.get_client() as client:
            assert client.run_on_scheduler(os.getpid) != os.getpid()


def test_arguments_of_dask_with_their_defaults():
    with small(processes=True, worker_class=None, services=None) as cluster:
        assert len(cluster.scheduler_info["workers"]) == 1


def test_unknown_protocols():
    with pytest.raises(ValueError, match="'inproc'.*tcp, tls, quic"):
        small(protocol="inproc://")


@pytest.fixture
def started(monkeypatch):
    """The processes that were started, and the folders."""
    found = []
    run = _cluster._Launch.run

    def run_and_note(launch, arguments):
        found.append((run(launch, arguments), launch.folder))
        return found[-1][0]

    monkeypatch.setattr(_cluster._Launch, "run", run_and_note)
    return found


def test_the_port_is_in_use(started):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"(?s)the scheduler ended with.*{port}.*in use"):
            small(scheduler_port=port)
    [(scheduler, folder)] = started
    nothing_is_left({scheduler.pid}, folder)


def test_the_interpreter_is_missing(started, tmp_path):
    missing = str(tmp_path / "python")
    with pytest.raises(RuntimeError, match=f"(?s)ended with status [12].*{missing}"):
        small(python=missing)
    assert started
    nothing_is_left({process.pid for process, _ in started}, started[0][1])


def test_a_worker_does_not_start(started):
    with pytest.raises(RuntimeError, match="(?s)the worker 0 ended with status 2.*soon.*--lifetime"):
        small(lifetime="soon", memory_limit=None)
    assert len(started) >= 2
    nothing_is_left({process.pid for process, _ in started}, started[0][1])


def test_a_lost_worker_says_why(caplog):
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "100ms"}):
        with small(n_workers=2, silence_logs=False) as cluster, Client(cluster) as client:
            cluster.workers[0]._process.kill()
            eventually(lambda: len(cluster.workers) == 1)
            eventually(lambda: "the worker 0 ended with status -9" in caplog.text)
            assert client.submit(pow, 2, 10).result(WAIT) == 1024
            cluster.scale(2)
            client.wait_for_workers(2, timeout=WAIT)


def test_a_worker_is_started_again():
    with small() as cluster, Client(cluster) as client:
        before = list(client.nthreads())
        client.restart(timeout=WAIT)
        assert list(client.nthreads()) != before
        assert client.submit(pow, 2, 10).result(WAIT) == 1024


def test_no_process_is_left_after_close():
    cluster = small(n_workers=2)
    with Client(cluster) as client:
        futures = client.map(time.sleep, [1000, 1001])
        eventually(lambda: len(client.processing()) == 2 and all(client.processing().values()))
        started = sessions(cluster)
        assert len(processes(started)) >= 5
        del futures
    folder = cluster._launch.folder
    start = time.monotonic()
    cluster.close()
    assert time.monotonic() - start < 20
    nothing_is_left(started, folder)


LEFT_BEHIND = """
import json, os, signal, sys, time
from daskwire import LocalCluster

if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, security=True)
    client = cluster.get_client()
    futures = client.map(time.sleep, [1000, 1001])
    while not all(client.processing().values()):
        time.sleep(0.05)
    if {forks}:
        # A process that lives longer than the program and has its files.
        child = os.fork()
        if child == 0:
            time.sleep(1000)
            os._exit(0)
    else:
        child = None
    pids = [process._process.pid for process in [cluster.scheduler, *cluster.workers.values()]]
    print(json.dumps([pids, str(cluster._launch.folder), child]), flush=True)
    {end}
"""


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "raise KeyboardInterrupt",
        "os._exit(1)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_no_process_is_left_after_the_program(end, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LEFT_BEHIND.format(end=end, forks="KILL" in end))
    run = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    with run:
        pids, folder, child = json.loads(run.stdout.readline() or "[]")
        try:
            run.wait(WAIT)
            nothing_is_left(set(pids), pathlib.Path(folder))
        finally:
            if child is not None:
                os.kill(child, signal.SIGKILL)


def test_an_interrupt_is_for_the_program():
    """The terminal sends Control-C to the process group of the program."""
    with small() as cluster:
        group = os.getpgrp()
        assert all(os.getpgid(pid) != group for pid in processes(sessions(cluster)))
        assert os.getsid(0) not in sessions(cluster)
