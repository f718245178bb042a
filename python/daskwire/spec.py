"""Runs what ``python -m distributed.cli.dask_spec`` is asked for, with the command ``daskwire``.

Dask's ``SSHCluster`` starts its scheduler and workers by that module. With this one in place of the
interpreter they are in Rust::

    SSHCluster(hosts, remote_python="python3 -m daskwire.spec")

The arguments of ``scheduler_options`` and ``worker_options`` mean the same, and ``worker_class`` may
be ``distributed.Nanny`` or ``distributed.Worker``. Python processes beside them have the interpreter
that runs this module.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from daskwire._options import options

# The classes whose place the command takes, by their names in any module of Dask.
_ROLES = {"Scheduler": "scheduler", "Nanny": "worker", "Worker": "worker"}
# How often processes are looked at, in seconds.
_INTERVAL = 0.1
# The times in seconds after which a process is asked again to end, and killed. At the second
# signal, a worker does not wait for its tasks.
_PATIENCE = (2.0, 5.0)


def command(scheduler: str | None, spec: dict[str, Any]) -> list[str]:
    """Returns the command for a specification of a scheduler, or of a worker of a scheduler."""
    module, _, name = spec["cls"].rpartition(".")
    role = _ROLES.get(name) if module.partition(".")[0] in ("dask", "distributed") else None
    run = [sys.executable, "-m", "daskwire"]
    arguments = {"python": sys.executable, **spec.get("opts", {})}
    if role == "scheduler":
        # The default of Dask's class is a free port, other than that of its command.
        return [*run, role, *options(role, {"port": 0, **arguments})]
    if role is None:
        raise TypeError(f"{spec['cls']}: expected Dask's Scheduler, Nanny or Worker")
    if scheduler is None:
        raise TypeError(f"{spec['cls']}: the address of the scheduler is missing")
    # One process runs all tasks of a worker, as in Dask.
    arguments = {"python_processes": 1, **arguments}
    nanny = [] if name == "Nanny" else ["--no-nanny"]
    return [*run, role, scheduler, *nanny, *options(role, arguments)]


def main() -> None:
    """Runs the processes of a specification until they end."""
    parser = argparse.ArgumentParser(prog="python -m daskwire.spec", description=__doc__)
    parser.add_argument("-m", dest="module", help="ignored, so that this takes the place of python")
    parser.add_argument("scheduler", nargs="?")
    parser.add_argument("--spec", type=json.loads, required=True)
    given = parser.parse_args()
    specs = [given.spec] if "cls" in given.spec else list(given.spec.values())
    try:
        commands = [command(given.scheduler, spec) for spec in specs]
    except TypeError as error:
        sys.exit(str(error))
    if len(commands) == 1:
        os.execv(sys.executable, commands[0])
    sys.exit(run(commands))


def run(commands: list[list[str]]) -> int:
    """Runs commands until all have ended or one has failed, and returns the status to exit with.

    If one fails, the others are ended: SSHCluster reads their common standard error until each has
    started or the last has ended. In Dask, they are one process, which ends if one does not start.
    """
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for each in commands:
            processes.append(subprocess.Popen(each))
        while True:
            while signals:
                number = signals.pop(0)
                for process in processes:
                    process.send_signal(number)
            statuses = [process.poll() for process in processes]
            if any(statuses):
                # The status of a process that a signal has ended is negative.
                return max(1, *(status or 0 for status in statuses))
            if None not in statuses:
                return 0
            time.sleep(_INTERVAL)
    finally:
        _end(processes)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends those processes that still run."""
    for patience in _PATIENCE:
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + patience
        while any(process.poll() is None for process in processes):
            if time.monotonic() > deadline:
                break
            time.sleep(_INTERVAL)
    for process in processes:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
