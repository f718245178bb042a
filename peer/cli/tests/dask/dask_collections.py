"""Runs Dask's tests of collections on a cluster, which is the default scheduler; a plugin of pytest.

CLUSTER_SCHEDULER is the command of the scheduler, to which its file is given as an argument. The
worker is Dask's. The outcome of each test is appended to the file named by CLUSTER_OUTCOMES. With
CLUSTER_VARIANTS, at most so many sets of parameters of each test run: of 2, the first and the last.
"""

import collections
import importlib
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

import distributed

_processes = []


def _start(*command):
    _processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))


def _compare_on_cluster():
    """Changes the scheduler with which `assert_eq` computes: not that in the process of the test."""
    for name in ("dask.array.utils", "dask.bag.utils", "dask.dataframe.utils"):
        compare = importlib.import_module(name).assert_eq
        defaults = (None if value == "sync" else value for value in compare.__defaults__)
        compare.__defaults__ = tuple(defaults)


def pytest_sessionstart(session):
    _compare_on_cluster()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="daskwire-"))
    file = str(folder / "scheduler")
    arguments = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    command = shlex.split(os.environ["CLUSTER_SCHEDULER"])
    _start(*command, *arguments, "--scheduler-file", file)
    while not os.path.exists(file):
        if _processes[0].poll() is not None:
            raise RuntimeError(f"the scheduler has ended with {_processes[0].returncode}")
        time.sleep(0.1)
    worker = ["-m", "distributed.cli.dask_worker", "--scheduler-file", file, "--nthreads", "2"]
    worker += ["--no-nanny", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    _start(sys.executable, *worker, "--host", "127.0.0.1", "--local-directory", str(folder))
    session.client = distributed.Client(scheduler_file=file)
    session.client.wait_for_workers(1, timeout=120)


def pytest_sessionfinish(session):
    session.client.close()
    for process in reversed(_processes):
        process.terminate()
        process.wait()


def pytest_collection_modifyitems(config, items):
    limit = int(os.environ.get("CLUSTER_VARIANTS") or 0)
    if not limit:
        return
    variants = collections.defaultdict(list)
    for item in items:
        variants[item.nodeid.partition("[")[0]].append(item)
    chosen = set()
    for group in variants.values():
        count = min(limit, len(group))
        last = max(count - 1, 1)
        chosen.update(group[index * (len(group) - 1) // last] for index in range(count))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def pytest_runtest_setup(item):
    # Tests that start a cluster of their own leave none as the default.
    if distributed.client._get_global_client() is not item.session.client:
        distributed.client._set_global_client(item.session.client)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.failed:
        with open(os.environ["CLUSTER_OUTCOMES"], "a") as file:
            print(report.nodeid, report.outcome, sep="\t", file=file)
