"""Tests of clusters that use one scheme for all connections."""

import asyncio
import json
import operator
import os
import signal
import subprocess
import sys
import time

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from conftest import rust_worker
from dask.utils import parse_bytes
from distributed import Client, LocalCluster, Worker, wait
from distributed import Scheduler as DaskScheduler

# The size of a large array in bytes. An array of 2 GiB needs 12 GiB of memory.
LARGE = parse_bytes(os.environ.get("DASKWIRE_LARGE", "64 MiB"))


@pytest.fixture(params=["tcp+rs", "tls+rs", "quic"])
def cluster(request, security):
    scheme = request.param
    with LocalCluster(
        n_workers=2,
        threads_per_worker=2,
        protocol=scheme,
        security=None if scheme == "tcp+rs" else security,
        dashboard_address=":0",
    ) as cluster:
        yield cluster


def test_programs(cluster):
    scheme = cluster.scheduler_address.split("://")[0]
    with Client(cluster) as client:
        assert sum(client.gather(client.map(operator.neg, range(1000)))) == -499500
        x = da.arange(1_000_000, chunks=100_000)
        assert (x + x[::-1]).sum().compute() == 999_999_000_000
        workers = client.scheduler_info()["workers"]
        assert {address.split("://")[0] for address in workers} == {scheme}
        frame = dd.from_pandas(
            pd.DataFrame({"group": np.arange(10_000) % 7, "x": np.arange(10_000)}), 20
        )
        means = frame.groupby("group").x.mean().compute()
        assert means.sort_index().tolist() == [4998.0, 4999.0, 5000.0, 5001.0, 4998.5, 4999.5, 5000.5]
        # A transfer between workers, and one through the scheduler.
        large = client.submit(np.ones, LARGE, "u1", workers=[list(workers)[0]], pure=False)
        summed = client.submit(np.sum, large, workers=[list(workers)[1]])
        assert summed.result() == LARGE
        assert client.gather(large, direct=False).sum() == LARGE


# Where a program imports this package: not at all, or before or after it uses a `Security`.
IMPORTS = {"not": (), "first": ("first",), "last": ("last",)}

PROGRAM = """
{first}
import sys
import dask.array as da
from distributed import Client, LocalCluster
from distributed.security import Security

if __name__ == "__main__":
    security = Security.temporary()
    security.get_connection_args("client")
    {last}
    with LocalCluster(
        n_workers=2, protocol="quic", security=security, processes={processes}, dashboard_address=":0"
    ) as cluster:
        with Client(cluster):
            x = da.ones((2000, 2000), chunks=500)
            print((x @ x).sum().compute())
"""


@pytest.mark.parametrize("processes", [True, False])
@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS)
def test_certificates_are_known_wherever_the_package_is_imported(imports, processes, tmp_path):
    places = {name: "import daskwire" if name in imports else "" for name in ("first", "last")}
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(processes=processes, **places))
    run = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert run.stdout == "8000000000.0\n", run.stderr


@pytest.mark.parametrize("cluster", ["quic"], indirect=True)
def test_thousands_of_tasks(cluster):
    with Client(cluster) as client:
        negated = client.map(operator.neg, range(3_000))
        assert client.submit(sum, negated).result(timeout=240) == -4_498_500


def test_a_worker_that_has_closed_has_left(security):
    """A comm waits for the peer when it closes, but not if the peer has closed it already.

    A scheduler that waits removes the worker after the worker has closed. Under load it may be
    late without a wait, too, but not nearly every time.
    """

    async def test():
        late = 0
        async with DaskScheduler(
            protocol="quic", port=0, dashboard_address=":0", security=security
        ) as scheduler:
            for _ in range(10):
                async with Worker(scheduler.address, security=security):
                    assert scheduler.workers
                late += bool(scheduler.workers)
                while scheduler.workers:
                    await asyncio.sleep(0.01)
        assert late <= 5

    asyncio.run(test())


def test_a_killed_worker_is_replaced(cluster):
    with Client(cluster) as client:
        futures = client.map(lambda x: time.sleep(0.05) or x, range(60))
        wait(futures[:4])
        pids = client.run(os.getpid)
        os.kill(next(iter(pids.values())), signal.SIGKILL)
        assert client.gather(futures) == list(range(60))


def test_peers_in_rust(security, certificates):
    """A Rust worker and a Rust client in a Python cluster over `quic://`."""
    with LocalCluster(
        n_workers=1, protocol="quic", security=security, dashboard_address=":0"
    ) as cluster:
        address = cluster.scheduler_address
        worker = rust_worker(address, "--name", "rust", *certificates)
        with worker, Client(cluster) as client:
            client.wait_for_workers(2, timeout=60)
            made = client.submit(np.arange, 1 << 20, workers=[0])
            length = client.submit(len, made, workers=["rust"])
            assert length.result(timeout=60) == 1 << 20
            submit = [sys.executable, "-m", "daskwire", "submit", address, *certificates]
            for function, arguments in [
                ("operator.add", ["20", "22"]),
                ("native:sum", ["[20, 22]", "--workers", "rust"]),
            ]:
                process = subprocess.run(
                    [*submit, function, *arguments], capture_output=True, text=True, timeout=60
                )
                assert process.stdout == "42\n", process.stderr


def dask(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_commands_of_dask(certificates, security, tmp_path):
    file = tmp_path / "scheduler.json"
    listening = ["--protocol", "quic", "--host", "127.0.0.1", "--no-dashboard"]
    scheduler = dask(
        "scheduler", *listening, "--port", 0, "--dashboard-address", ":0",
        "--scheduler-file", file, *certificates,
    )  # fmt: skip
    worker = dask(
        "worker", "--scheduler-file", file, "--host", "127.0.0.1", "--no-nanny",
        "--protocol", "quic", *certificates,
    )  # fmt: skip
    try:
        with Client(scheduler_file=str(file), security=security) as client:
            client.wait_for_workers(1, timeout=60)
            assert json.loads(file.read_text())["address"].startswith("quic://")
            assert client.submit(operator.add, 1, 2).result(timeout=60) == 3
    finally:
        logs = []
        # The worker ends first: Dask logs an error if the scheduler writes to a worker that has
        # ended.
        for process in (worker, scheduler):
            process.send_signal(signal.SIGINT)
            logs.append(process.communicate(timeout=60)[1])
    for log in logs:
        assert "Traceback" not in log, log


class Scheduler:
    """The processes of a `dask scheduler` at a given port and of one worker."""

    def __init__(self, port, certificates, file):
        self.processes = []
        try:
            self.start(port, certificates, file)
        except BaseException:
            self.end(signal.SIGKILL)
            raise

    def start(self, port, certificates, file):
        file.unlink(missing_ok=True)
        listening = ["--protocol", "quic", "--host", "127.0.0.1", "--no-dashboard"]
        for arguments in [
            [
                "scheduler", *listening, "--port", port, "--dashboard-address", ":0",
                "--scheduler-file", file,
            ],
            [
                "worker", "--scheduler-file", file, "--host", "127.0.0.1", "--no-nanny",
                "--protocol", "quic", "--no-dashboard",
            ],
        ]:  # fmt: skip
            self.processes.append(dask(*arguments, *certificates))
        # The file is empty at first.
        while not file.exists() or not file.read_text().rstrip().endswith("}"):
            assert self.processes[0].poll() is None, self.processes[0].communicate()[1]
            time.sleep(0.05)
        self.address = json.loads(file.read_text())["address"]

    def end(self, number):
        """Ends the scheduler by a signal, and then kills the worker."""
        for process, number in zip(self.processes, [number, signal.SIGKILL]):
            process.send_signal(number)
            process.communicate(timeout=60)


def test_a_scheduler_that_does_not_start_leaves_no_process(monkeypatch, tmp_path):
    started = []
    run = dask

    def start(*arguments):
        started.append(run(*arguments))
        return started[-1]

    monkeypatch.setitem(globals(), "dask", start)
    with pytest.raises(AssertionError, match="--no-such-option"):
        Scheduler(0, ["--no-such-option"], tmp_path / "scheduler.json")
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)


def test_a_scheduler_is_started_again(certificates, security, tmp_path):
    file = tmp_path / "scheduler.json"
    scheduler = Scheduler(0, certificates, file)
    try:
        address = scheduler.address
        port = address.rsplit(":")[-1]
        with Client(address, security=security) as client:
            assert client.submit(operator.add, 1, 2).result(timeout=60) == 3
            # The scheduler announces its end, and the same client connects again.
            scheduler.end(signal.SIGTERM)
            scheduler = Scheduler(port, certificates, file)
            assert scheduler.address == address
            client.wait_for_workers(1, timeout=60)
            assert client.submit(operator.add, 3, 4).result(timeout=60) == 7
            # The scheduler is killed, so its client gets no notice. New comms do not wait for
            # the connection that the client still has.
            scheduler.end(signal.SIGKILL)
            scheduler = Scheduler(port, certificates, file)
            with Client(address, security=security, timeout=10, set_as_default=False) as other:
                assert other.submit(operator.add, 5, 6).result(timeout=60) == 11
    finally:
        scheduler.end(signal.SIGKILL)


def test_the_subcommand():
    process = subprocess.run(
        [sys.executable, "-m", "dask", "daskwire"], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert "quic://" in process.stdout
