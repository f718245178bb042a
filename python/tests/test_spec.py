"""Tests of the module that starts what Dask's SSHCluster asks for."""

import sys

import pytest
from daskwire.spec import command

RUN = [sys.executable, "-m", "daskwire"]
PYTHON = f"--python={sys.executable}"


def test_schedulers_and_workers_are_commands():
    spec = {"cls": "distributed.Scheduler", "opts": {"port": 0, "memory_limit": "4GiB"}}
    assert command(None, spec) == [*RUN, "scheduler", PYTHON, "--port=0", "--memory-limit=4GiB"]
    spec = {"cls": "dask.distributed.Nanny", "opts": {"nthreads": 2, "name": None}}
    worker = [*RUN, "worker", "tcp://a:1"]
    expected = [*worker, "--python-processes=1", PYTHON, "--nthreads=2"]
    assert command("tcp://a:1", spec) == expected
    spec = {"cls": "distributed.worker.Worker", "opts": {"python": "/usr/bin/python3"}}
    expected = [*worker, "--no-nanny", "--python-processes=1", "--python=/usr/bin/python3"]
    assert command("tcp://a:1", spec) == expected


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
