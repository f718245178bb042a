"""`LocalCluster`, a cluster of a scheduler and workers in Rust on this machine."""

from __future__ import annotations

import asyncio
import collections
import functools
import json
import logging
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import dask
import distributed
from dask.system import CPU_COUNT
from dask.widgets import get_template
from distributed import SpecCluster
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface
from distributed.deploy.utils import nprocesses_nthreads
from distributed.security import Security
from distributed.worker_memory import parse_memory_limit
from packaging.version import Version

from daskwire._options import options

logger = logging.getLogger("distributed.deploy.daskwire")

# The first release of Dask that the scheduler serves.
_FIRST_RELEASE = "2025.4.0"
if Version(distributed.__version__) < Version(_FIRST_RELEASE):
    raise ImportError(
        f"daskwire.LocalCluster needs distributed {_FIRST_RELEASE} or later, "
        f"not {distributed.__version__}"
    )

# The schemes that the scheduler and the workers listen with.
_PROTOCOLS = ("tcp", "tls", "quic")

# Arguments of Dask's class that have no effect here, by the reason. `None` is accepted for each.
_UNSUPPORTED = {
    "scheduler_kwargs": "the scheduler is not a class of Python",
    "service_kwargs": "the scheduler has no services of Python",
    "services": "the scheduler has no services of Python",
    "worker_class": "workers are not classes of Python",
    "worker_services": "workers have no services of Python",
}


class _Process(ProcessInterface):
    """A process of the command `daskwire`."""

    # What the process is called in errors.
    role: str

    def __init__(self, launch: _Launch, name: Any = None) -> None:
        super().__init__(name=name)
        self._launch = launch
        self._process: subprocess.Popen[str] | None = None
        # The last lines that the process printed.
        self._lines: collections.deque[str] = collections.deque(maxlen=200)

    def _is_ready(self) -> bool:
        """Whether the process has started."""
        raise NotImplementedError

    def _arguments(self) -> list[str]:
        """The arguments of the command."""
        raise NotImplementedError

    async def start(self) -> None:
        try:
            self._process = self._launch.run(self._arguments())
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
            while not self._is_ready():
                if self._process.poll() is not None:
                    raise RuntimeError(self._end())
                await asyncio.sleep(0.02)
        except BaseException:
            self.status = Status.failed
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            raise
        await super().start()

    def _read(self) -> None:
        """Keeps the lines that the process prints, and shows those of tasks and of high levels."""
        assert self._process is not None and self._process.stderr is not None
        # A worker ends with a table of its tasks.
        has_closed = False
        for line in self._process.stderr:
            self._lines.append(line)
            has_closed = has_closed or line.startswith("daskwire: closed")
            if self._launch.shows(logging.INFO if has_closed else _level(line)):
                try:
                    sys.stderr.write(line)
                except (AttributeError, OSError, ValueError):
                    # The program has closed its standard error.
                    pass

    def _end(self) -> str:
        """Says how the process ended and what it printed."""
        assert self._process is not None
        # Further processes with the same standard error may end later.
        self._reader.join(1.0)
        output = "".join(self._lines) or "It printed no message.\n"
        return f"{self.role} ended with status {self._process.returncode}:\n{output.rstrip()}"

    async def close(self) -> None:
        process, before = self._process, self.status
        if before == Status.closing:
            await self.finished()
        if before in (Status.closing, Status.closed):
            return
        self.status = Status.closing
        if process is not None:
            if before == Status.running and process.poll():
                logger.warning("%s", self._end())
            # At the second signal, a worker does not wait for its tasks.
            for patience in (2.0, 5.0):
                process.terminate()
                if await _has_ended(process, patience):
                    break
            process.kill()
            process.wait()
        await super().close()


def _level(line: str) -> int:
    """The level of a line of a log; that of output that is always shown for other lines."""
    if line.startswith("daskwire: "):
        return logging.INFO
    logged = re.match(r"\d{4}-\d\d-\d\d [\d:,]+ - \S+ - ([A-Z]+) - ", line)
    level = logging.getLevelName(logged[1]) if logged else None
    return level if isinstance(level, int) else sys.maxsize


async def _has_ended(process: subprocess.Popen[str], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return process.poll() is not None


class _Scheduler(_Process):
    role = "the scheduler"

    def __init__(
        self, launch: _Launch, arguments: list[str], file: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(launch)
        self._own_arguments = arguments
        # Absolute, because the program may change its folder.
        self._file = pathlib.Path(file or launch.folder / "scheduler.json").absolute()

    def _arguments(self) -> list[str]:
        return ["scheduler", "--scheduler-file", str(self._file), *self._own_arguments]

    async def start(self) -> None:
        # That of an earlier scheduler would be read.
        self._file.unlink(missing_ok=True)
        await super().start()

    def _is_ready(self) -> bool:
        try:
            self.address = json.loads(self._file.read_text())["address"]
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        return True


class Scheduler(_Scheduler):
    """A scheduler in Rust for ``distributed.SpecCluster`` and classes that derive from it.

    It is a process of the command ``daskwire`` on this machine, which ends with the cluster or the
    program. Such a class is given it in place of Dask's scheduler, for example dask-jobqueue's::

        SLURMCluster(..., scheduler_cls=daskwire.Scheduler, worker_command="daskwire worker",
                     worker_extra_args=["--python", sys.executable])

    Parameters
    ----------
    host, interface, port, protocol, dashboard, dashboard_address, idle_timeout, preload, preload_argv
        As for ``distributed.Scheduler``. Default of ``port``: 0, a free one.
    scheduler_file
        A file for the address, which is removed at the end.
    security
        A ``distributed.Security``, or its arguments. Default: that of Dask's configuration.
    blocked_handlers
        The operations that are refused. Default: those of Dask's configuration.
    silence_logs
        The lowest level of the logs to show, as for :class:`LocalCluster`.
    python
        The interpreter of the Python processes. Default: that of the program.
    python_processes, python_time_limit, python_memory_limit
        As the options of ``daskwire scheduler``.

    Raises
    ------
    TypeError
        An argument is unknown.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        protocol: str | None = None,
        scheduler_file: str | os.PathLike[str] | None = None,
        security: Security | dict[str, Any] | None = None,
        blocked_handlers: Iterable[str] | None = None,
        silence_logs: int | str | None = logging.WARN,
        python: str | os.PathLike[str] | None = None,
        loop: Any = None,
        **arguments: Any,
    ) -> None:
        settings = {}
        if blocked_handlers is not None:
            settings["distributed.scheduler.blocked-handlers"] = list(blocked_handlers)
        path = None if python is None else os.fspath(python)
        launch = _Launch(path, None, silence_logs, settings)
        if isinstance(security, dict):
            security = Security(**security)
        security = security or Security()
        if protocol is None:
            protocol = "tls" if security.require_encryption else "tcp"
        protocol = protocol.split("://")[0]
        given = {"python": launch.python, "port": port, "protocol": protocol, **arguments}
        own = options("scheduler", given)
        if protocol != "tcp":
            own = launch.certificates(security, "scheduler") + own
        super().__init__(launch, own, scheduler_file)

    async def close(self) -> None:
        await super().close()
        self._launch.close()


class _Worker(_Process):
    def __init__(
        self,
        scheduler: str,
        launch: _Launch,
        name: Any,
        nthreads: int,
        memory_limit: int | None,
        arguments: list[str],
    ) -> None:
        super().__init__(launch, name=name)
        self.role = f"the worker {name}"
        self.name = name
        self._own_arguments = ["worker", scheduler, f"--name={name}", f"--nthreads={nthreads}"]
        self._own_arguments += [f"--memory-limit={memory_limit or 0}", *arguments]

    def _arguments(self) -> list[str]:
        return self._own_arguments

    def _is_ready(self) -> bool:
        return any("Registered to:" in line for line in list(self._lines))


class _Launch:
    """How the processes of a cluster are started."""

    def __init__(
        self,
        python: str | None,
        env: Mapping[str, str] | None,
        silence_logs: int | str | None,
        settings: Mapping[str, Any],
    ) -> None:
        if not sys.executable:
            raise RuntimeError("sys.executable does not name an interpreter")
        self.python = python or sys.executable
        if isinstance(silence_logs, str):
            silence_logs = getattr(logging, silence_logs.upper())
        self._shown_level = int(silence_logs or 0)
        self._env = env or {}
        # Settings of Dask for the scheduler, besides those of the program.
        self._settings = settings

    @functools.cached_property
    def folder(self) -> pathlib.Path:
        """A folder that only the user can read, for files that are removed with the cluster."""
        # Not a `TemporaryDirectory`, which a process that the program has forked would remove.
        return pathlib.Path(tempfile.mkdtemp(prefix="daskwire-"))

    def shows(self, level: int) -> bool:
        """Whether lines of this level of logging are shown to the user."""
        return level >= self._shown_level

    def run(self, arguments: list[str]) -> subprocess.Popen[str]:
        """Starts the command."""
        is_worker = arguments[0] == "worker"
        environment = os.environ | (dict(self._env) if is_worker else {})
        # As Dask does for its processes.
        config = dask.config.global_config
        if not is_worker and self._settings:
            # As variables, because exported ones precede the configuration, but not arguments of the
            # program. The last variable counts, for the command in the order of their names: in
            # lower case, these come after any of a whole section.
            given = {name.replace("_", "-"): value for name, value in self._settings.items()}
            for variable in list(environment):
                if _setting(variable) in given:
                    del environment[variable]
            for name, value in given.items():
                environment["DASK_" + name.replace(".", "__")] = repr(value)
        environment["DASK_INTERNAL_INHERIT_CONFIG"] = dask.config.serialize(config)
        if self.python == sys.executable:
            # Tasks can import what the program can, such as modules beside its script.
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        # One process is enough to remove the folder.
        folder = "" if is_worker else str(self.folder)
        command = [sys.executable, "-m", "daskwire._process", str(os.getpid()), folder]
        return subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            # Control-C in a terminal, and the interrupt of a notebook, are for the program.
            start_new_session=True,
        )

    def certificates(self, security: Security, role: str) -> list[str]:
        """The options for the certificates of a role."""
        options = []
        own = security.get_tls_config_for_role(role)
        for name, key in [("ca-file", "ca_file"), ("cert", "cert"), ("key", "key")]:
            pem = own.get(key)
            if pem is None:
                continue
            if "\n" in pem:
                path = self.folder / f"{role}-{name}.pem"
                path.write_text(pem)
                pem = str(path)
            options += [f"--tls-{name}", pem]
        return options

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _setting(variable: str) -> str | None:
    """The setting of Dask that an environment variable has, with hyphens for underscores."""
    if not variable.startswith("DASK_"):
        return None
    return variable.removeprefix("DASK_").lower().replace("__", ".").replace("_", "-")


class LocalCluster(SpecCluster):
    """A cluster of a scheduler and workers in Rust on this machine, for programs in Python.

    Use it as Dask's class of this name: arguments that both have mean the same. The scheduler and
    each worker are processes of the command ``daskwire``. They start Python processes for what
    only Python can do: the functions of tasks, and graphs of collections. All end when the cluster
    is closed, and soon after the program if that is killed.

    Parameters
    ----------
    name
        The name of the cluster. Default: a random one.
    n_workers
        The number of workers. Default: as many as suit the processors.
    threads_per_worker
        The number of tasks that run at once in each worker. Default: as many as suit the
        processors.
    processes
        ``True``: workers are always processes, which are started again when they crash, exceed
        their memory limit, or when a client restarts the cluster. Dask calls this a nanny.
    host, interface
        Where to listen: an address, or the name of a network interface. Default: 127.0.0.1.
    scheduler_port
        The port of the scheduler. Default: 0, a free one.
    protocol
        ``"tcp"``, ``"tls"`` or ``"quic"``. Default: ``"tls"`` if ``security`` requires encryption,
        otherwise ``"tcp"``.
    security
        A ``distributed.Security``, or ``True`` for temporary certificates. Default: that of Dask's
        configuration.
    silence_logs
        The lowest level of the logs to show, or ``False`` for all. What the scheduler and the
        workers report themselves has the level ``logging.INFO``. Output of tasks is always shown.
        Default: ``logging.WARN``.
    dashboard_address
        The address of the scheduler's HTTP server, which has ``/health`` and ``/metrics`` for
        Prometheus, and no pages; ``None`` for no server. Default: ``":8787"``, or a free port if
        that is in use.
    worker_dashboard_address
        The same for each worker. Default: no server.
    asynchronous, loop, scheduler_sync_interval
        As for ``distributed.SpecCluster``.
    memory_limit
        The memory of each worker, such as ``"4GiB"``, a number of bytes, a fraction of the memory
        of the machine, ``"auto"``, or ``None`` for no limit. Default: an equal part of the memory
        for each worker.
    resources
        Resources that tasks may ask for, such as ``{"GPU": 2}``.
    env
        Environment variables of the workers.
    local_directory
        The folder for data that is moved to disk.
    preload
        A module, or several, that each Python process of a worker loads.
    death_timeout
        How long a worker tries to reach the scheduler. Default: 60 seconds.
    lifetime, lifetime_stagger, lifetime_restart
        As for ``distributed.Worker``.
    blocked_handlers
        The operations of the scheduler that are refused, such as ``["run_function"]``. Default: those
        of Dask's configuration.
    idle_timeout
        The time without tasks after which the scheduler ends, such as ``"1h"``. Default: that of
        Dask's configuration.
    python
        The interpreter of the Python processes. Default: that of the program.
    python_processes
        The number of Python processes in which the tasks of a worker run, or ``None`` for one for
        each thread, so that tasks do not share an interpreter lock. Default: 1, as in Dask: results
        need not be picklable, and tasks share the modules' state.

    Raises
    ------
    TypeError
        An argument is unknown, or cannot have an effect.
    RuntimeError
        The scheduler or a worker has not started. The error has what the process printed.

    Examples
    --------
    >>> from daskwire import LocalCluster
    >>> with LocalCluster(n_workers=2) as cluster, cluster.get_client() as client:
    ...     client.submit(sum, [1, 2, 3]).result()
    6
    """

    def __init__(
        self,
        name: str | None = None,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        processes: bool | None = None,
        loop: Any = None,
        host: str | None = None,
        scheduler_port: int = 0,
        silence_logs: int | str | None = logging.WARN,
        dashboard_address: str | None = ":8787",
        worker_dashboard_address: str | None = None,
        asynchronous: bool = False,
        security: Security | bool | None = None,
        protocol: str | None = None,
        blocked_handlers: Iterable[str] | None = None,
        interface: str | None = None,
        scheduler_sync_interval: Any = 1,
        *,
        memory_limit: str | float | None = "",
        resources: Mapping[str, float] | None = None,
        env: Mapping[str, str] | None = None,
        local_directory: str | os.PathLike[str] | None = None,
        preload: str | Iterable[str] | None = None,
        death_timeout: Any = 60,
        lifetime: Any = None,
        lifetime_stagger: Any = None,
        lifetime_restart: bool | None = None,
        idle_timeout: Any = None,
        python: str | os.PathLike[str] | None = None,
        python_processes: int | None = 1,
        **unsupported: Any,
    ) -> None:
        # For `close` and `__del__` if this raises.
        self.status = Status.closed
        if processes is False:
            unsupported["processes"] = False
        for argument, value in unsupported.items():
            if argument == "processes":
                reason = "workers are always processes"
            elif argument not in _UNSUPPORTED:
                raise TypeError(f"LocalCluster() got an unexpected keyword argument {argument!r}")
            elif value is None:
                continue
            else:
                reason = _UNSUPPORTED[argument]
            raise TypeError(f"LocalCluster({argument}={value!r}): not supported: {reason}")
        self.processes = True

        if not security:
            security = Security()
        elif security is True:
            security = Security.temporary()
        elif not isinstance(security, Security):
            raise TypeError(f"security={security!r}: neither a Security nor a bool")
        if host and "://" in host:
            scheme, host = host.split("://", 1)
            protocol = protocol or scheme
        protocol = (protocol or ("tls" if security.require_encryption else "tcp")).split("://")[0]
        if protocol not in _PROTOCOLS:
            raise ValueError(f"protocol={protocol!r}: not one of {', '.join(_PROTOCOLS)}")
        if host is None and interface is None:
            host = "127.0.0.1"

        if n_workers is None and threads_per_worker is None:
            n_workers, threads_per_worker = nprocesses_nthreads()
        elif n_workers is None:
            n_workers = max(1, CPU_COUNT // (threads_per_worker or CPU_COUNT))
        if not threads_per_worker:
            threads_per_worker = math.ceil(CPU_COUNT / max(1, n_workers))
        if memory_limit == "":
            limit = parse_memory_limit("auto", 1, n_workers or 1, logger=logger)
        else:
            limit = parse_memory_limit(memory_limit, threads_per_worker, logger=logger)

        settings = {}
        if blocked_handlers is not None:
            settings["distributed.scheduler.blocked-handlers"] = list(blocked_handlers)
        path = None if python is None else os.fspath(python)
        launch = _Launch(path, env, silence_logs, settings)
        self._launch = launch
        shared = ["--python", launch.python]
        shared += [f"--host={host}"] if host else []
        shared += [f"--interface={interface}"] if interface else []
        scheduler_arguments = [*shared, f"--port={scheduler_port}", f"--protocol={protocol}"]
        worker_arguments = [*shared, f"--death-timeout={death_timeout}"]
        for arguments, address in [
            (scheduler_arguments, dashboard_address),
            (worker_arguments, worker_dashboard_address),
        ]:
            if address is None:
                arguments.append("--no-dashboard")
            else:
                arguments.append(f"--dashboard-address={address}")
        if idle_timeout is not None:
            scheduler_arguments.append(f"--idle-timeout={idle_timeout}")
        worker_arguments += options(
            "worker",
            {
                "python_processes": python_processes,
                "local_directory": local_directory,
                "lifetime": lifetime,
                "lifetime_stagger": lifetime_stagger,
                "lifetime_restart": lifetime_restart,
                "resources": resources,
                "preload": preload,
            },
        )
        if protocol != "tcp":
            scheduler_arguments += launch.certificates(security, "scheduler")
            worker_arguments += launch.certificates(security, "worker")

        worker = {
            "cls": _Worker,
            "options": {
                "launch": launch,
                "nthreads": threads_per_worker,
                "memory_limit": limit,
                "arguments": worker_arguments,
            },
        }
        try:
            super().__init__(
                name=name,
                scheduler={
                    "cls": _Scheduler,
                    "options": {"launch": launch, "arguments": scheduler_arguments},
                },
                workers={number: worker for number in range(n_workers)},
                worker=worker,
                loop=loop,
                asynchronous=asynchronous,
                silence_logs=silence_logs,
                security=security,
                scheduler_sync_interval=scheduler_sync_interval,
            )
        except BaseException:
            launch.close()
            raise

    async def _close(self) -> None:
        await super()._close()
        self._launch.close()

    @property
    def dashboard_link(self) -> str:
        """The link to the scheduler's metrics for Prometheus; empty without a server."""
        return re.sub("/status$", "/metrics", super().dashboard_link)

    def _repr_html_(self, cluster_status: str | None = None) -> str:
        status = get_template("local_cluster.html.j2").render(
            status=self.status.name, processes=self.processes, cluster_status=cluster_status
        )
        return super()._repr_html_(cluster_status=status)


# The name by which programs import them, which Dask shows.
LocalCluster.__module__ = "daskwire"
Scheduler.__module__ = "daskwire"
