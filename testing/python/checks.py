"""Runs checks of a Dask client, which are functions that it is given to.

The arguments of the program are the address of the scheduler, and names of checks, each with
arguments after colons. Prints `ready done` if all of them pass, and ends with an exception
otherwise.
"""

import sys
import time

from distributed import Client


def run(checks, worker_count=1):
    """Runs the checks that the program's arguments name, once there are workers."""
    address, *names = sys.argv[1:]
    checks = {check.__name__: check for check in checks}
    with Client(address) as client:
        if worker_count:
            client.wait_for_workers(worker_count)
        for name in names:
            name, *arguments = name.split(":")
            started = time.monotonic()
            checks[name](client, *arguments)
            print(name, round(time.monotonic() - started, 2), file=sys.stderr, flush=True)
    print("ready done", flush=True)
    sys.stdin.read()
