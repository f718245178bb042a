"""Tests of the module that starts what Dask's SSHCluster asks for."""

import json
import signal
import socket
import subprocess
import sys

import pytest
from daskwire._options import options
from daskwire.spec import command

RUN = [sys.executable, "-m", "daskwire"]
PYTHON = f"--python={sys.executable}"


def test_schedulers_and_workers_are_commands():
    spec = {"cls": "distributed.Scheduler", "opts": {"port": 0, "memory_limit": "4GiB"}}
    assert command(None, spec) == [*RUN, "scheduler", "--port=0", PYTHON, "--memory-limit=4GiB"]
    spec = {"cls": "dask.distributed.Nanny", "opts": {"nthreads": 2, "name": None}}
    worker = [*RUN, "worker", "tcp://a:1"]
    expected = [*worker, "--python-processes=1", PYTHON, "--nthreads=2"]
    assert command("tcp://a:1", spec) == expected
    spec = {"cls": "distributed.worker.Worker", "opts": {"python": "/usr/bin/python3"}}
    expected = [*worker, "--no-nanny", "--python-processes=1", "--python=/usr/bin/python3"]
    assert command("tcp://a:1", spec) == expected


def test_schedulers_take_a_free_port_by_default():
    scheduler = [*RUN, "scheduler"]
    for spec in {"cls": "distributed.Scheduler", "opts": {}}, {"cls": "distributed.Scheduler"}:
        assert command(None, spec) == [*scheduler, "--port=0", PYTHON]
    for port in 0, 8786:
        spec = {"cls": "distributed.Scheduler", "opts": {"port": port}}
        assert command(None, spec) == [*scheduler, f"--port={port}", PYTHON]
    # As for Dask's class, no port is the usual one, which is the default of the command.
    spec = {"cls": "distributed.Scheduler", "opts": {"port": None}}
    assert command(None, spec) == [*scheduler, PYTHON]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"memory_limit": None}, ["--memory-limit=0"]),
        ({"memory_limit": "auto"}, ["--memory-limit=auto"]),
        ({"nthreads": None, "resources": None}, []),
        ({"resources": {}}, ["--resources="]),
        ({"resources": {"GPU": 2, "MEM": 1e9}}, ["--resources=GPU=2,MEM=1000000000.0"]),
    ],
)
def test_options_of_workers(given, expected):
    assert options("worker", given) == expected


def test_a_scheduler_has_its_own_memory_limit_by_default():
    assert options("scheduler", {"memory_limit": None}) == []


@pytest.mark.parametrize(
    ("spec", "scheduler", "text"),
    [
        ({"cls": "dask_cuda.CUDAWorker"}, "tcp://a:1", "dask_cuda.CUDAWorker: expected Dask's"),
        ({"cls": "distributed.Client"}, "tcp://a:1", "distributed.Client: expected Dask's"),
        ({"cls": "distributed.Nanny"}, None, "distributed.Nanny: the address of the scheduler"),
        ({"cls": "distributed.Scheduler", "opts": {"plugins": []}}, None, "has no such option"),
    ],
)
def test_what_is_not_supported_is_named(spec, scheduler, text):
    with pytest.raises(TypeError, match=text):
        command(scheduler, spec)


@pytest.fixture
def silent():
    """A listener where a scheduler could be, which never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def start(scheduler, *arguments):
    """Starts workers as SSHCluster does for several on a host."""
    address = "tcp://{}:{}".format(*scheduler.getsockname())
    workers = enumerate({"cls": "distributed.Worker", "opts": each} for each in arguments)
    return subprocess.Popen(
        [sys.executable, "-m", "daskwire.spec", "-m", "distributed.cli.dask_spec", address]
        + ["--spec", json.dumps(dict(workers))],
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("wrong", [0, 1])
def test_workers_end_when_one_of_them_fails(silent, wrong):
    arguments = [{"host": "127.0.0.1"}, {"host": "127.0.0.1"}]
    arguments[wrong]["lifetime"] = "soon"
    process = start(silent, *arguments)
    try:
        # The other would try to connect for much longer.
        error = process.communicate(timeout=30)[1]
    finally:
        process.terminate()
    assert process.returncode == 2 and "'soon'" in error, error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_end_by_a_signal(silent, number):
    process = start(silent, {}, {})
    comms = [silent.accept() for _ in range(2)]
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 0, error
    for comm, _ in comms:
        comm.close()
