"""Arguments of Dask's classes as options of the command ``daskwire``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Options with a value, by the names of the arguments of Dask's classes.
_SCHEDULER = {
    "dashboard_address": "dashboard-address",
    "host": "host",
    "idle_timeout": "idle-timeout",
    "interface": "interface",
    "memory_limit": "memory-limit",
    "port": "port",
    "protocol": "protocol",
    "python": "python",
    "python_memory_limit": "python-memory-limit",
    "python_processes": "python-processes",
    "python_time_limit": "python-time-limit",
    "scheduler_file": "scheduler-file",
}
_WORKER = {
    "contact_address": "contact-address",
    "dashboard_address": "dashboard-address",
    "death_timeout": "death-timeout",
    "host": "host",
    "interface": "interface",
    "lifetime": "lifetime",
    "lifetime_stagger": "lifetime-stagger",
    "listen_address": "listen-address",
    "local_directory": "local-directory",
    "memory_limit": "memory-limit",
    "name": "name",
    "nthreads": "nthreads",
    "port": "worker-port",
    "protocol": "protocol",
    "python": "python",
    "python_processes": "python-processes",
    "scheduler_file": "scheduler-file",
}
_VALUES = {"scheduler": _SCHEDULER, "worker": _WORKER}


def options(role: str, arguments: Mapping[str, Any]) -> list[str]:
    """Returns the options of ``daskwire scheduler`` or ``daskwire worker`` for keyword arguments.

    Those that are ``None`` are left out, except the memory limit of a worker, which has none then.
    A ``TypeError`` names one that has no option.
    """
    found: list[str] = []
    last: list[str] = []
    for name, value in arguments.items():
        if name == "memory_limit" and role == "worker" and value is None:
            # The default of Dask's classes, and of the command, is a part of the memory.
            value = 0
        if value is None:
            continue
        if name in _VALUES[role]:
            found.append(f"--{_VALUES[role][name]}={value}")
        elif name == "preload":
            modules = [value] if isinstance(value, str) else value
            found += [f"--preload={module}" for module in modules]
        elif name == "preload_argv":
            last = ["--", *([value] if isinstance(value, str) else value)]
        elif name == "dashboard":
            found += [] if value else ["--no-dashboard"]
        elif name == "lifetime_restart" and role == "worker":
            found += ["--lifetime-restart"] if value else []
        elif name == "resources" and role == "worker":
            # Without any, the option overrides those of the configuration, as in Dask.
            amounts = ",".join(f"{kind}={amount}" for kind, amount in value.items())
            found.append(f"--resources={amounts}")
        else:
            raise TypeError(f"{name}={value!r}: daskwire {role} has no such option")
    return found + last
