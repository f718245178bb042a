"""Runs graphs on a scheduler alone: workers that reply at once to each task take the place of
others. Prints, for Dask's scheduler and that of daskwire, one after the other, the processor time
and the memory of the scheduler for a task, and how long a task of another client takes meanwhile.

Usage: PYTHON peer/cli/benches/scheduler_alone.py DASKWIRE [--shapes flat,tree] [--workers 10,100]
           [--tasks 10000] [--schedulers dask,daskwire]

DASKWIRE is the path of the command. PYTHON has distributed and psutil.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import operator
import os
import pickle
import subprocess
import sys
import threading
import time

import psutil
from dask._task_spec import Task, TaskRef
from distributed import Client, wait
from distributed.core import connect
from distributed.versions import get_versions

# The class of each result.
INT = pickle.dumps(int)

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


SHAPES = {
    shape.__name__: shape for shape in (flat, merge, tree, all_to_all, chains, restricted)
}


async def work(address, number, resources, versions):
    """A worker that says at once that a task has ended."""
    comm = await connect(address)
    await comm.write(
        {
            "op": "register-worker",
            "reply": False,
            "address": f"tcp://127.0.0.1:{10_000 + number}",
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


def run_workers(address, numbers, resources, ready):
    async def main():
        versions = get_versions()
        running = [work(address, number, resources, versions) for number in numbers]
        tasks = [asyncio.ensure_future(one) for one in running]
        ready.set()
        await asyncio.gather(*tasks)

    with contextlib.suppress(OSError):
        asyncio.run(main())


def probe(address, ready, stop, times):
    """Submits one task after the other to a worker of its own, and measures until each is done."""
    with Client(address, timeout=60) as client:
        found = []
        number = 0
        while not stop.is_set():
            number += 1
            start = time.perf_counter()
            future = client.submit(
                operator.neg, number, pure=False, priority=10, resources={"probe": 1}
            )
            wait(future)
            found.append(time.perf_counter() - start)
            del future
            if number == 5:
                found.clear()
                ready.set()
            time.sleep(0.01)
        times.send(found)


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
        serving.kill()
        serving.wait()


def measure(command, shape, count, workers):
    context = multiprocessing
    with contextlib.ExitStack() as stack:
        pid, address = stack.enter_context(scheduler(command))
        serving = psutil.Process(pid)
        started = context.Event()
        numbers = range(workers)
        stack.enter_context(process(run_workers, address, numbers, {}, started))
        started.wait()
        started = context.Event()
        stack.enter_context(process(run_workers, address, [workers], {"probe": 1}, started))
        client = stack.enter_context(Client(address, timeout=60))
        client.wait_for_workers(workers + 1, timeout=120)
        ready, stop = context.Event(), context.Event()
        times, sender = context.Pipe(duplex=False)
        stack.enter_context(process(probe, address, ready, stop, sender))
        ready.wait(60)
        tasks, annotations = SHAPES[shape](count, workers)
        before, memory = serving.cpu_times(), serving.memory_info().rss
        start = time.perf_counter()
        futures = client.get(tasks, list(tasks), sync=False, **annotations)
        wait(futures)
        took = time.perf_counter() - start
        after = serving.cpu_times()
        grown = serving.memory_info().rss - memory
        stop.set()
        waits = sorted(times.recv())
        del futures
    seconds = after.user + after.system - before.user - before.system
    return {
        "processor": seconds / len(tasks) * 1e6,
        "memory": grown / len(tasks),
        "p99": waits[int(0.99 * (len(waits) - 1))] * 1e3 if waits else float("nan"),
        "all": took,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("daskwire")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--workers", default="1,10,100,1000")
    parser.add_argument("--tasks", default="10000,100000")
    parser.add_argument("--schedulers", default="dask,daskwire")
    options = parser.parse_args()
    commands = {
        "dask": [sys.executable, "-m", "distributed.cli.dask_scheduler"],
        "daskwire": [options.daskwire, "scheduler"],
    }
    os.environ["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] = "1 hour"
    print("shape workers tasks scheduler: us/task, bytes/task, p99 of another client, s in all")
    for shape in options.shapes.split(","):
        for workers in map(int, options.workers.split(",")):
            for count in map(int, options.tasks.split(",")):
                for name in options.schedulers.split(","):
                    found = measure(commands[name], shape, count, workers)
                    print(
                        f"{shape} {workers} {count} {name}: {found['processor']:.1f} us, "
                        f"{found['memory']:.0f} bytes, {found['p99']:.1f} ms, {found['all']:.1f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
