"""Makes Dask's own tests use `daskwire scheduler`; a plugin of pytest.

The process of `utils_test.cluster` and the class `Scheduler` are replaced with ones that run the
command named by DASKWIRE, with the interpreter of the tests beside it. A test that does more with
the object than start, name and close a scheduler looks inside of Dask's implementation: it is
skipped with the attribute as the reason.
"""

import asyncio
import asyncio.runners
import atexit
import concurrent.futures
import ctypes
import functools
import inspect
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref

import dask
import distributed
import distributed.deploy.local
import distributed.deploy.spec
import distributed.scheduler
import pytest
from distributed import utils_test
from distributed.core import Status, rpc
from distributed.scheduler import Scheduler as DaskScheduler
from distributed.utils import Deadline, key_split

_COMMAND = os.environ.get("DASKWIRE")
# The folder of all files of a run. Processes of a cluster, which are killed, inherit its name.
if "DASKWIRE_FOLDER" not in os.environ:
    os.environ["DASKWIRE_FOLDER"] = tempfile.mkdtemp(prefix="daskwire-")
    atexit.register(shutil.rmtree, os.environ["DASKWIRE_FOLDER"], ignore_errors=True)
_START_TIMEOUT = 20
# Options of the class that do not change what a test can see by the scheduler's address.
_IGNORED = {
    "dashboard",
    "http_prefix",
    "loop",
    "transition_counter_max",
    "validate",
}


def _end_with_parent():
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(
    host=None,
    port=0,
    security=None,
    protocol=None,
    idle_timeout=None,
    dashboard_address=None,
    **options,
):
    """Starts the command. Returns its process and a file that it writes once it listens."""
    for name, value in options.items():
        if name not in _IGNORED and value not in (None, {}):
            pytest.skip(f"Scheduler({name}=..)")
    if _COMMAND is None:
        raise RuntimeError("DASKWIRE does not name the command `daskwire`")
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ["DASKWIRE_FOLDER"]))
    arguments = [_COMMAND, "scheduler", "--scheduler-file", folder / "address"]
    arguments += ["--dashboard-address", dashboard_address or ":0", "--python", sys.executable]
    if isinstance(security, dict):
        security = distributed.Security(**security)
    if security is not None and security.tls_ca_file:
        own = {
            "ca-file": security.tls_ca_file,
            "cert": security.tls_scheduler_cert or security.tls_scheduler_key,
            "key": security.tls_scheduler_key,
        }
        for name, pem in own.items():
            if pem is not None and "\n" in pem:
                (folder / f"{name}.pem").write_text(pem)
                pem = folder / f"{name}.pem"
            if pem is not None:
                arguments += [f"--tls-{name}", pem]
        protocol = protocol or "tls"
    if protocol is not None:
        protocol = protocol.removesuffix("://")
        if protocol not in ("tcp", "tls"):
            pytest.skip(f"Scheduler(protocol={protocol!r})")
        arguments += ["--protocol", protocol]
    if host:
        arguments += ["--host", host]
    if idle_timeout is not None:
        arguments += ["--idle-timeout", str(idle_timeout)]
    arguments += ["--port", str(port or 0)]
    config = dask.config.serialize(dask.config.global_config)
    process = subprocess.Popen(
        arguments,
        env=os.environ | {"DASK_INTERNAL_INHERIT_CONFIG": config},
        preexec_fn=_end_with_parent,
    )
    return process, folder


def _address(process, folder):
    """The address of a started scheduler; `None` if it does not listen yet."""
    if process.poll() is not None:
        raise RuntimeError(f"daskwire scheduler ended with {process.returncode}")
    try:
        return json.loads((folder / "address").read_text())["address"]
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _run_scheduler(queue, count, config, **options):
    """Replaces `utils_test.run_scheduler`: runs in a process of its own until that is killed."""
    with utils_test.config_for_cluster_tests(**config):
        try:
            process, folder = _start(**({"host": "127.0.0.1"} | options))
            deadline = time.monotonic() + _START_TIMEOUT
            while (address := _address(process, folder)) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError("daskwire scheduler does not listen")
                time.sleep(0.01)
        except BaseException as error:
            for _ in range(count):
                queue.put(RuntimeError(str(error)))
            return
    for _ in range(count):
        queue.put(address)
    process.wait()


# The requests that have the arguments and the reply of a method of Dask's class, by the method.
_OPERATIONS = {
    "adaptive_target": "adaptive_target",
    "broadcast": "broadcast",
    "get_events": "events",
    "get_has_what": "has_what",
    "get_ncores": "ncores",
    "get_nbytes": "nbytes",
    "get_processing": "processing",
    "get_task_status": "get_task_status",
    "get_who_has": "who_has",
    "proxy": "proxy",
    "rebalance": "rebalance",
    "replicate": "replicate",
    "restart_workers": "restart_workers",
    "retire_workers": "retire_workers",
    "workers_to_close": "workers_to_close",
}


async def _request(scheduler, operation, **arguments):
    options = scheduler._options.get("security")
    options = options and options.get_connection_args("client")
    async with rpc(scheduler.address, connection_args=options) as peer:
        return await getattr(peer, operation)(**arguments)


def _ask(scheduler, operation, **arguments):
    """Makes a request while the event loop of the test waits."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        request = _request(scheduler, operation, **arguments)
        return executor.submit(asyncio.run, request).result()


class _Worker:
    """What a test may ask of a worker as the scheduler sees it at the time."""

    def __init__(self, scheduler, address):
        self._scheduler = scheduler
        self.address = address

    def __eq__(self, other):
        return isinstance(other, _Worker) and self.address == other.address

    def __hash__(self):
        return hash(self.address)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        workers = _ask(self._scheduler, "identity", n_workers=-1)["workers"]
        fields = workers.get(self.address)
        if name == "status":
            return Status[fields["status"]] if fields else Status.closed
        if fields is None or name not in fields:
            pytest.skip(f"WorkerState.{name}")
        return fields[name]


class Scheduler:
    """A stand-in for Dask's class: start, address, close, and what requests tell."""

    _instances = weakref.WeakSet()
    validate = False

    def __init__(self, *arguments, **options):
        if arguments:
            pytest.skip("Scheduler(loop)")
        self._options = options
        self._process = None
        self._instances.add(self)

    async def start(self):
        if self._process is not None:
            return self
        self._process, self._folder = _start(**self._options)
        deadline = time.monotonic() + _START_TIMEOUT
        while (address := _address(self._process, self._folder)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError("daskwire scheduler does not listen")
            await asyncio.sleep(0.01)
        self.address = self.contact_address = self.external_address = address
        return self

    def __await__(self):
        return self.start().__await__()

    async def __aenter__(self):
        return await self.start()

    async def __aexit__(self, *error):
        await self.close()

    async def close(self, timeout=None, reason="unknown"):
        if self._process is not None:
            self._process.terminate()
            await self.finished()

    async def finished(self):
        while self._process.poll() is None:
            await asyncio.sleep(0.01)

    def stop(self):
        pass

    @property
    def status(self):
        if self._process is None:
            return Status.init
        return Status.running if self._process.poll() is None else Status.closed

    @property
    def port(self):
        return int(self.address.rpartition(":")[2])

    @property
    def ip(self):
        return self.address.rpartition("/")[2].rpartition(":")[0]

    @property
    def workers(self):
        """The workers by their addresses, with what `identity` tells of each."""
        workers = _ask(self, "identity", n_workers=-1)["workers"]
        return {address: _Worker(self, address) for address in workers}

    def __getattr__(self, name):
        # A request answers for the method that serves it in Dask.
        operation = _OPERATIONS.get(name)
        if operation is not None:
            method = getattr(DaskScheduler, name)

            def call(*arguments, **named):
                bound = inspect.signature(method).bind(self, *arguments, **named).arguments
                del bound["self"]
                if inspect.iscoroutinefunction(inspect.unwrap(method)):
                    return _request(self, operation, **bound)
                return _ask(self, operation, **bound)

            return call
        # Python and pytest look for these on any object.
        if name.startswith("__") or name.startswith("_pytest") or name == "pytestmark":
            raise AttributeError(name)
        pytest.skip(f"Scheduler.{name}")

    def __del__(self):
        process = self.__dict__.get("_process")
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()


async def _start_cluster(
    nthreads,
    scheduler_addr,
    security=None,
    Worker=distributed.Worker,
    scheduler_kwargs=None,
    worker_kwargs=None,
    timeout=utils_test._TEST_TIMEOUT // 4,
):
    scheduler = await Scheduler(
        security=security, port=0, host=scheduler_addr, **scheduler_kwargs or {}
    )
    workers = [
        Worker(
            scheduler.address,
            nthreads=count,
            name=name,
            security=security,
            host=host,
            **(worker_kwargs or {}) | (own[0] if own else {}),
        )
        for name, (host, count, *own) in enumerate(nthreads)
    ]
    await asyncio.gather(*workers)
    scheduler._own_workers = workers
    return scheduler, workers


async def _end_cluster(scheduler, workers):
    async def end(worker):
        try:
            await worker.close()
        except (asyncio.TimeoutError, OSError):
            pass

    await asyncio.gather(*(end(worker) for worker in workers))
    await scheduler.close()
    utils_test.check_worker_fail_hard(_Events(workers))


class _Events:
    """What `check_worker_fail_hard` asks a scheduler: nothing, as its events stay in it."""

    def __init__(self, workers):
        self.workers = workers

    def get_events(self, topic):
        return ()


utils_test.run_scheduler = _run_scheduler
utils_test.start_cluster = _start_cluster
utils_test.end_cluster = _end_cluster
for module in (
    distributed,
    distributed.scheduler,
    distributed.deploy.local,
    distributed.deploy.spec,
    utils_test,
):
    assert module.Scheduler is DaskScheduler, f"{module.__name__} has another Scheduler"
    module.Scheduler = Scheduler


def _refuse_threads(cls):
    """Skips tests whose workers are threads, which cannot have a scheduler in another process."""
    original = cls.__init__

    # Called in the thread of the test; the scheduler is created in another one.
    @functools.wraps(original)
    def start(self, *arguments, **options):
        if options.get("processes") is False or str(options.get("protocol")).startswith("inproc"):
            pytest.skip(f"{cls.__name__}(processes=False)")
        original(self, *arguments, **options)

    cls.__init__ = start


_refuse_threads(distributed.LocalCluster)
_refuse_threads(distributed.Client)


async def _assert_scheduler_cleanup(scheduler, interval=0.01, timeout=5):
    """Asserts nothing: what the scheduler knows of shuffles stays in it."""


async def _wait_until_new_shuffle_is_initialized(scheduler, interval=0.01, timeout=None):
    """Waits until workers of the test take part in a shuffle, and returns its id."""
    workers = getattr(scheduler, "_own_workers", ())
    if not all(isinstance(worker, distributed.Worker) for worker in workers):
        pytest.skip("the workers are other processes")
    deadline = Deadline.after(timeout)
    ids = set()
    while not ids and not deadline.expired:
        await asyncio.sleep(interval)
        for worker in workers:
            ids.update(worker.plugins["shuffle"].shuffle_runs._active_runs)
    (shuffle_id,) = ids
    return shuffle_id


def _wait_for_tasks_in_state(original):
    async def wait(prefix, state, count, dask_worker, interval=0.01):
        if not isinstance(dask_worker, Scheduler):
            await original(prefix, state, count, dask_worker, interval)
            return
        while True:
            known = await _request(dask_worker, "dump_state", exclude=())
            found = [task for task in known["tasks"].values() if prefix in key_split(task["key"])]
            if sum(task["state"] == state for task in found) >= count:
                return
            await asyncio.sleep(interval)

    return wait


def pytest_collection_modifyitems(items):
    """Replaces what the tests of shuffles share to look inside of Dask's scheduler."""
    for module in {item.module for item in items if "/shuffle/" in item.nodeid}:
        for name, function in (
            ("assert_scheduler_cleanup", _assert_scheduler_cleanup),
            ("wait_until_new_shuffle_is_initialized", _wait_until_new_shuffle_is_initialized),
        ):
            if hasattr(module, name):
                setattr(module, name, function)
        original = getattr(module, "wait_for_tasks_in_state", None)
        if original is not None:
            module.wait_for_tasks_in_state = _wait_for_tasks_in_state(original)


def _cancel_all_tasks(loop):
    """Waits less long than Python for what a test leaves that was skipped in the middle."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=10))


asyncio.runners._cancel_all_tasks = _cancel_all_tasks
