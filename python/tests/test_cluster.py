"""Clusters whose connections are all of one scheme."""

import json
import operator
import os
import signal
import subprocess
import sys
import time

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait


@pytest.fixture
def certificates(security, tmp_path):
    """The options of Dask's commands for the certificates of the fixture `security`."""
    options = []
    for name, pem in [
        ("ca-file", security.tls_ca_file),
        ("cert", security.tls_scheduler_cert),
        ("key", security.tls_scheduler_key),
    ]:
        path = tmp_path / f"{name}.pem"
        path.write_text(pem)
        options += [f"--tls-{name}", str(path)]
    return options


@pytest.fixture(params=["tcp+rs", "tls+rs", "quic"])
def cluster(request, security):
    scheme = request.param
    with LocalCluster(
        n_workers=2,
        threads_per_worker=2,
        protocol=scheme,
        security=None if scheme == "tcp+rs" else security,
        dashboard_address=None,
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
        # From worker to worker, and with the scheduler between.
        large = client.submit(np.ones, 8 << 20, workers=[list(workers)[0]], pure=False)
        summed = client.submit(np.sum, large, workers=[list(workers)[1]])
        assert summed.result() == 8 << 20
        assert client.gather(large, direct=False).sum() == 8 << 20


def test_a_killed_worker_is_replaced(cluster):
    with Client(cluster) as client:
        futures = client.map(lambda x: time.sleep(0.05) or x, range(60))
        wait(futures[:4])
        pids = client.run(os.getpid)
        os.kill(next(iter(pids.values())), signal.SIGKILL)
        assert client.gather(futures) == list(range(60))


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
        "scheduler", *listening, "--port", 0, "--scheduler-file", file, *certificates
    )
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
        for process in (worker, scheduler):
            process.send_signal(signal.SIGINT)
        logs = [process.communicate(timeout=60)[1] for process in (worker, scheduler)]
    for log in logs:
        assert "Traceback" not in log, log


def test_the_subcommand():
    process = subprocess.run(
        [sys.executable, "-m", "dask", "daskwire"], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert "quic://" in process.stdout
