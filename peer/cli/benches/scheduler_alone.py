"""Runs graphs on a scheduler alone: workers that reply at once to each task take the place of
others. Prints, for Dask's scheduler and that of daskwire, one after the other, the processor time
and the memory of the scheduler for a task, and how long a task of another client and a heartbeat take
meanwhile.

Usage: PYTHON peer/cli/benches/scheduler_alone.py DASKWIRE [--shapes flat,tree] [--workers 10,100]
           [--tasks 10000] [--schedulers dask,daskwire,never,interval,always]
           [--journals DIRECTORY] [--repeat 3]

The schedulers `never`, `interval` and `always` are that of daskwire with a journal, with this value of
`--journal-sync`: the length of its records for a task follows, while all results are held. The journals are
below DIRECTORY, which says which disk they are on, and are removed.

DASKWIRE is the path of the command, or of a script that runs it, such as
`exec valgrind --tool=callgrind daskwire "$@"`. PYTHON has distributed and psutil.
"""

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import operator
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time

import psutil
from dask._expr import LLGExpr
from dask._task_spec import Task, TaskRef
from distributed import Client, wait
from distributed.core import connect
from distributed.protocol.serialize import Serialized, ToPickle, serialize, to_serialize
from distributed.versions import get_versions

# The class of each result.
INT = pickle.dumps(int)

# How much less of the processors the load gets than the scheduler and what measures, which would
# otherwise wait for processes that stand for the processors of other machines.
NICE = 5

# What Dask's scheduler reads when a worker registers.
METRICS = {
    "task_counts": {},
    "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
    "digests_total_since_heartbeat": {},
    "managed_bytes": 0,
    "spilled_bytes": {"memory": 0, "disk": 0},
    "transfer": {},
    "event_loop_interval": 0.02,
    "cpu": 0,
    "memory": 1 << 20,
    "time": 0,
}


def flat(count, workers):
    return {f"flat-{n}": Task(f"flat-{n}", operator.neg, n) for n in range(count)}, {}


def chains(count, workers):
    """Chains of ten tasks."""
    tasks = {}
    for n in range(count):
        before = n if n % 10 == 0 else TaskRef(f"chain-{n - 1}")
        tasks[f"chain-{n}"] = Task(f"chain-{n}", operator.neg, before)
    return tasks, {}


def merge(count, workers):
    """Sums of 100 tasks each."""
    tasks = {}
    for n in range(count):
        if n % 101 == 100:
            inputs = [TaskRef(f"merge-{other}") for other in range(n - 100, n)]
            tasks[f"merge-{n}"] = Task(f"merge-{n}", max, *inputs)
        else:
            tasks[f"merge-{n}"] = Task(f"merge-{n}", operator.neg, n)
    return tasks, {}


def tree(count, workers):
    """Sums of two, in layers."""
    leaves = count // 2
    tasks = {f"tree-{n}": Task(f"tree-{n}", operator.neg, n) for n in range(leaves)}
    for n in range(leaves, 2 * leaves - 1):
        pair = [TaskRef(f"tree-{2 * (n - leaves) + side}") for side in range(2)]
        tasks[f"tree-{n}"] = Task(f"tree-{n}", operator.add, *pair)
    return tasks, {}


def all_to_all(count, workers):
    """100 tasks of which each of 100 others needs all, and so on."""
    tasks = {}
    for n in range(count):
        if n % 200 < 100:
            tasks[f"all-{n}"] = Task(f"all-{n}", operator.neg, n)
        else:
            first = n - n % 200
            inputs = [TaskRef(f"all-{other}") for other in range(first, first + 100)]
            tasks[f"all-{n}"] = Task(f"all-{n}", max, *inputs)
    return tasks, {}


def restricted(count, workers):
    """Tasks for a tenth of the workers."""
    names = [f"fake-{n}" for n in range(max(1, workers // 10))]
    return flat(count, workers)[0], {"workers": names}


# The values of `--journal-sync`.
SYNCS = ("never", "interval", "always")

SHAPES = {
    shape.__name__: shape for shape in (flat, merge, tree, all_to_all, chains, restricted)
}


def address_of(number):
    return f"tcp://127.0.0.1:{10_000 + number}"


async def work(address, number, resources, versions, first=None):
    """A worker that says at once that a task has ended. It stores in `first` when the first one came,
    if that is zero."""
    comm = await connect(address)
    await comm.write(
        {
            "op": "register-worker",
            "reply": False,
            "address": address_of(number),
            "status": "running",
            "nthreads": 1,
            "name": f"fake-{number}",
            "now": time.time(),
            "resources": resources,
            "memory_limit": 1 << 30,
            "local_directory": "/tmp",
            "services": {},
            "nanny": None,
            "pid": os.getpid(),
            "versions": versions,
            "metrics": METRICS,
            "extra": {},
            "stimulus_id": "worker-connect",
            "server_id": f"Worker-{number}",
        },
        serializers=["msgpack"],
    )
    reply = await comm.read()
    assert reply["status"] == "OK", reply
    while True:
        replies = []
        for message in await comm.read():
            if message.get("op") == "compute-task":
                now = time.time()
                if first is not None and first.value == 0:
                    first.value = now
                replies.append(
                    {
                        "op": "task-finished",
                        "status": "OK",
                        "key": message["key"],
                        "run_id": message["run_id"],
                        "nbytes": 28,
                        "type": INT,
                        "typename": "int",
                        "metadata": {},
                        "thread": 1,
                        "startstops": [
                            {"action": "compute", "start": now, "stop": now + 0.0001}
                        ],
                        "stimulus_id": "task-finished",
                    }
                )
        if replies:
            await comm.write(replies)


def run_workers(address, numbers, resources, ready, first=None):
    os.nice(NICE)

    async def main():
        versions = get_versions()
        running = [work(address, number, resources, versions, first) for number in numbers]
        tasks = [asyncio.ensure_future(one) for one in running]
        ready.set()
        await asyncio.gather(*tasks)

    with contextlib.suppress(OSError):
        asyncio.run(main())


async def probe_client(address, name, sender, ready, stop):
    """Submits one task after the other to the worker with the resource `probe`, without a client of
    Dask, which would take most of the time, and measures until each is done."""
    comm = await connect(address)
    await comm.write(
        {
            "op": "register-client",
            "client": name,
            "reply": False,
            "versions": get_versions(),
        }
    )
    assert (await comm.read())[0]["op"] == "stream-start"
    times = []
    number = 0
    while not stop.is_set():
        number += 1
        key = f"probe-{number}"
        graph = LLGExpr({key: Task(key, operator.neg, number)})
        start = time.perf_counter()
        await comm.write(
            [
                {
                    "op": "update-graph",
                    "expr_ser": Serialized(*serialize(to_serialize(graph))),
                    "keys": {key},
                    "internal_priority": None,
                    "submitting_task": None,
                    "fifo_timeout": "100 ms",
                    "actors": False,
                    "code": ToPickle(()),
                    "annotations": ToPickle({"resources": {"probe": 1}, "priority": 10}),
                    "span_metadata": ToPickle({}),
                }
            ]
        )
        is_done = False
        while not is_done:
            is_done = any(message["op"] == "key-in-memory" for message in await comm.read())
        times.append(time.perf_counter() - start)
        released = {"op": "client-releases-keys", "keys": [key], "client": name}
        await comm.write([released])
        if number == 5:
            times.clear()
            ready.set()
        await asyncio.sleep(0.01)
    await comm.close()
    sender["tasks"] = times


async def heartbeats(address, worker, sender, stop):
    """Sends heartbeats of a worker, and measures until each is answered."""
    comm = await connect(address)
    times = []
    while not stop.is_set():
        start = time.perf_counter()
        await comm.write(
            {
                "op": "heartbeat_worker",
                "reply": True,
                "address": worker,
                "now": time.time(),
                "metrics": METRICS,
                "executing": {},
                "extensions": {},
            }
        )
        assert (await comm.read())["status"] == "OK"
        times.append(time.perf_counter() - start)
        await asyncio.sleep(0.1)
    await comm.close()
    sender["heartbeats"] = times


def probe(address, number, ready, stop, sender):
    """Measures as a small client with a worker of its own."""

    async def main():
        found = {}
        worker = asyncio.ensure_future(
            work(address, number, {"probe": 1}, get_versions())
        )
        await asyncio.sleep(0.5)
        await asyncio.gather(
            probe_client(address, "Client-probe", found, ready, stop),
            heartbeats(address, address_of(number), found, stop),
        )
        worker.cancel()
        sender.send(found)

    asyncio.run(main())


def load(address, shape, count, workers, link):
    """Runs the tasks as a client of Dask, when told."""
    os.nice(NICE)
    tasks, annotations = SHAPES[shape](count, workers)
    with Client(address, timeout=60) as client:
        client.wait_for_workers(workers + 1, timeout=600)
        link.send(len(tasks))
        link.recv()
        start = time.perf_counter()
        futures = client.get(tasks, list(tasks), sync=False, **annotations)
        wait(futures)
        link.send(time.perf_counter() - start)
        link.recv()


@contextlib.contextmanager
def process(target, *arguments):
    running = multiprocessing.Process(target=target, args=arguments, daemon=True)
    running.start()
    try:
        yield running
    finally:
        running.terminate()
        running.join()


@contextlib.contextmanager
def scheduler(command):
    options = ["--host", "127.0.0.1", "--no-dashboard", "--port", "0"]
    serving = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        line = next(line for line in serving.stderr if "Scheduler at:" in line)
        threading.Thread(target=serving.stderr.read, daemon=True).start()
        yield serving.pid, line.partition("Scheduler at:")[2].strip()
    finally:
        # A profiler writes its file at the end.
        serving.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            serving.wait(30)
        serving.kill()


def percentile(times):
    """The 99th percentile."""
    return sorted(times)[int(0.99 * (len(times) - 1))]


def length_of(directory):
    """The length of the files of a journal; none if there is no journal."""
    return directory and sum(entry.stat().st_size for entry in os.scandir(directory))


def measure(command, shape, count, workers, sync=None, journals=None):
    context = multiprocessing
    with contextlib.ExitStack() as stack:
        directory = None
        if sync:
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=journals))
            command = [*command, "--journal", directory, "--journal-sync", sync]
        pid, address = stack.enter_context(scheduler(command))
        serving = psutil.Process(pid)
        started = context.Event()
        numbers = range(workers)
        stack.enter_context(process(run_workers, address, numbers, {}, started))
        started.wait()
        ready, stop = context.Event(), context.Event()
        times, sender = context.Pipe(duplex=False)
        stack.enter_context(process(probe, address, workers, ready, stop, sender))
        link, other = context.Pipe()
        stack.enter_context(process(load, address, shape, count, workers, other))
        task_count = link.recv()
        ready.wait(60)
        before, memory = serving.cpu_times(), serving.memory_info().rss
        length = length_of(directory)
        link.send("go")
        took = link.recv()
        after = serving.cpu_times()
        grown = serving.memory_info().rss - memory
        if directory:
            # The last records are written.
            time.sleep(0.2)
            length = length_of(directory) - length
        stop.set()
        found = times.recv()
        link.send("end")
    seconds = after.user + after.system - before.user - before.system
    return {
        "processor": seconds / task_count * 1e6,
        "system": (after.system - before.system) / task_count * 1e6,
        "memory": grown / task_count,
        "p99": percentile(found["tasks"]) * 1e3,
        "heartbeat": max(found["heartbeats"]) * 1e3,
        "all": took,
        "journal": length and length / task_count,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("daskwire")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--workers", default="1,10,100,1000")
    parser.add_argument("--tasks", default="10000,100000")
    parser.add_argument("--schedulers", default="dask,daskwire")
    parser.add_argument("--journals")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    commands = {
        "dask": [sys.executable, "-m", "distributed.cli.dask_scheduler"],
        **{name: [options.daskwire, "scheduler"] for name in ("daskwire", *SYNCS)},
    }
    os.environ["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] = "1 hour"
    print(
        "shape workers tasks scheduler: us/task, of these in the kernel, bytes/task, p99 of another client, "
        "longest heartbeat, s in all"
    )
    cases = itertools.product(
        options.shapes.split(","),
        map(int, options.workers.split(",")),
        map(int, options.tasks.split(",")),
        range(options.repeat),
        options.schedulers.split(","),
    )
    for shape, workers, count, _, name in cases:
        sync = name if name in SYNCS else None
        found = measure(commands[name], shape, count, workers, sync, options.journals)
        journal = f", {found['journal']:.0f} bytes of journal" if sync else ""
        print(
            f"{shape} {workers} {count} {name}: {found['processor']:.1f} us, {found['system']:.1f} us, "
            f"{found['memory']:.0f} bytes, {found['p99']:.1f} ms, "
            f"{found['heartbeat']:.0f} ms, {found['all']:.1f} s{journal}",
            flush=True,
        )


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
