"""Measures how long a scheduler takes to continue from its journal: a client submits tasks to a scheduler without
workers, which is killed, and another one starts with the same journal. Prints the length of the journal, the time until
the other serves a client, and its memory.

Usage: PYTHON peer/cli/benches/journal_restart.py DASKWIRE [--tasks 1000000] [--shape flat]
           [--journals DIRECTORY]

DASKWIRE is the path of the command. PYTHON has distributed and psutil. The journal is below DIRECTORY, and
is removed.
"""

import argparse
import asyncio
import contextlib
import logging
import operator
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

import psutil
from dask._expr import LLGExpr
from dask._task_spec import Task, TaskRef
from distributed.core import connect
from distributed.protocol.serialize import Serialized, ToPickle, serialize, to_serialize
from distributed.versions import get_versions

# The number of tasks of a graph.
GRAPH_LEN = 10_000


def flat(graph):
    """Independent tasks."""
    for n in range(GRAPH_LEN):
        key = f"flat-{graph}-{n}"
        yield key, Task(key, operator.neg, n)


def chains(graph):
    """Chains of ten tasks."""
    for n in range(GRAPH_LEN):
        key = f"chain-{graph}-{n}"
        before = n if n % 10 == 0 else TaskRef(f"chain-{graph}-{n - 1}")
        yield key, Task(key, operator.neg, before)


SHAPES = {shape.__name__: shape for shape in (flat, chains)}


async def register(address, returning):
    comm = await connect(address, timeout=600)
    message = {"op": "register-client", "client": "me", "reply": False}
    await comm.write({**message, "versions": get_versions(), "returning": returning})
    while (await comm.read())[0]["op"] != "stream-start":
        pass
    return comm


async def call(address, **message):
    comm = await connect(address, timeout=600)
    await comm.write({**message, "reply": True})
    reply = await comm.read()
    await comm.close()
    return reply


async def submit(address, shape, count):
    comm = await register(address, False)
    for graph in range(count // GRAPH_LEN):
        tasks = dict(SHAPES[shape](graph))
        message = {
            "op": "update-graph",
            "expr_ser": Serialized(*serialize(to_serialize(LLGExpr(tasks)))),
            "keys": set(tasks),
            "internal_priority": None,
            "submitting_task": None,
            "fifo_timeout": "100 ms",
            "actors": False,
            "code": ToPickle(()),
            "annotations": ToPickle({}),
            "span_metadata": ToPickle({}),
        }
        await comm.write([message])
    # All are handled once the last is known.
    last = list(tasks)[-1]
    while last not in await call(address, op="who_has", keys=[last]):
        await asyncio.sleep(0.1)
    return comm


def start(daskwire, directory, port):
    """Starts a scheduler. Returns it, with its address."""
    options = ["--host", "127.0.0.1", "--no-dashboard", "--port", port, "--journal", directory]
    serving = subprocess.Popen(
        [daskwire, "scheduler", *options], stderr=subprocess.PIPE, text=True
    )
    lines = []
    for line in serving.stderr:
        lines.append(line)
        if "Scheduler at:" in line:
            break
    threading.Thread(target=serving.stderr.read, daemon=True).start()
    return serving, re.search(r"Scheduler at:\s*(\S+)", "".join(lines))[1]


def length_of(directory):
    return sum(entry.stat().st_size for entry in os.scandir(directory))


async def main():
    # The first scheduler is killed.
    logging.getLogger("distributed.comm").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("daskwire")
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--shape", choices=SHAPES, default="flat")
    parser.add_argument("--journals")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.journals) as directory:
        first, address = start(options.daskwire, directory, "0")
        with contextlib.closing(first.stderr):
            kept = await submit(address, options.shape, options.tasks)
            memory = psutil.Process(first.pid).memory_info().rss
            # The last records are written.
            time.sleep(0.2)
            first.send_signal(signal.SIGKILL)
            first.wait()
        kept.abort()
        length = length_of(directory)
        begin = time.perf_counter()
        second, address = start(options.daskwire, directory, address.rpartition(":")[2])
        listening = time.perf_counter() - begin
        await register(address, True)
        served = time.perf_counter() - begin
        process = psutil.Process(second.pid)
        times, info = process.cpu_times(), process.memory_info()
        with open(f"/proc/{second.pid}/status") as status:
            peak = re.search(r"VmHWM:\s*(\d+)", status.read())[1]
        print(
            f"{options.shape} {options.tasks}: journal {length / options.tasks:.0f} bytes a task; listens after "
            f"{listening:.2f} s, serves a client after {served:.2f} s, with {times.user + times.system:.2f} s of "
            f"processor time; memory before {memory >> 20} MiB, after {info.rss >> 20} MiB, at most "
            f"{int(peak) >> 10} MiB; journal then {length_of(directory) / options.tasks:.0f} bytes a task"
        )
        second.kill()
        second.wait()


if __name__ == "__main__":
    asyncio.run(main())
