"""Computes graphs of many small tasks on a scheduler with two workers of Dask, and prints, for Dask's
scheduler and that of daskwire, one after the other: when the scheduler has accepted the graph, when the
first and the last task have run, all after `compute()`, the processor time of the scheduler and of the Python
processes beside it, and the memory of both.

Usage: PYTHON peer/cli/benches/graphs.py DASKWIRE [--shapes array,shuffle,tree,map]
           [--tasks 1000,100000] [--schedulers dask,daskwire] [--instant] [--until-accepted]

DASKWIRE is the path of the command. PYTHON has distributed, dask with array and dataframe, and psutil. The
memory is the largest since the scheduler was started, which each line does anew. With --instant, the workers are
those of `scheduler_alone.py`, which run nothing, so that the times are the scheduler's, and a client and a
worker of their own measure how long a small task and a heartbeat take meanwhile. With --until-accepted,
the graph is only accepted, by a cluster without workers: a million tasks would take Dask's scheduler an hour.
"""

import argparse
import contextlib
import math
import multiprocessing
import operator
import os
import sys
import tempfile
import threading
import time

import dask
import dask.array
import dask.dataframe
import numpy
import pandas
import psutil
from distributed import Client, WorkerPlugin, wait
from scheduler_alone import percentile, probe, process, run_workers
from schedulers import started


def array(count):
    """Sums of the blocks of x + x.T: about four tasks for a block, and those that add the sums."""
    side = round((count / 4.35) ** 0.5)
    x = dask.array.ones((side, side), chunks=1)
    return (x + x.T).sum()


def shuffle(count):
    """A shuffle by tasks: one for each partition and each stage, and as many that split for each of 32."""
    partitions = max(8, round(count / 36))

    def part(number):
        return pandas.DataFrame({"a": numpy.arange(4) + number})

    frame = dask.dataframe.from_map(part, range(partitions), meta=part(0))
    return frame.shuffle("a", shuffle_method="tasks", force=True).a.sum()


def tree(count):
    """Sums of two, in layers."""
    add = dask.delayed(operator.add, pure=False)
    layer = [dask.delayed(operator.neg, pure=False)(n) for n in range(count // 2)]
    while len(layer) > 1:
        odd = layer[len(layer) // 2 * 2 :]
        layer = [add(a, b) for a, b in zip(layer[::2], layer[1::2])] + odd
    return layer[0]


SHAPES = {"array": array, "shuffle": shuffle, "tree": tree, "map": None}


class Starts(WorkerPlugin):
    """Notes when the worker starts its first task."""

    name = "starts"

    def setup(self, worker):
        self.first = None

    def transition(self, key, start, finish, **kwargs):
        if finish == "executing" and self.first is None:
            self.first = time.time()


def first_start(client):
    def read(dask_worker):
        return dask_worker.plugins["starts"].first

    return min(first for first in client.run(read).values() if first is not None)


def processor(pid):
    """The processor time of a process and of those beside it, in seconds."""
    process = psutil.Process(pid)
    total = 0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += sum(one.cpu_times()[:2])
    return total


class Memory:
    """The largest memory of a process, and of those beside it, without what they share."""

    def __init__(self, process):
        self.process = psutil.Process(process.pid)
        self.own = self.beside = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        is_last = False
        while not is_last:
            is_last = self.ended.wait(0.2)
            with contextlib.suppress(psutil.Error):
                self.own = max(self.own, self.process.memory_info().rss)
                children = self.process.children(recursive=True)
                beside = sum(child.memory_full_info().uss for child in children)
                self.beside = max(self.beside, beside)

    def end(self):
        self.ended.set()
        self.thread.join()


def measure(client, shape, count, first, accept_only):
    """Computes a graph. Returns the times when it was accepted, started and done, or the first of them only.

    `first` has the time of the first task, if the workers do not tell it.
    """
    if shape == "map":
        first.value = 0
        begin = time.time()
        futures = client.map(operator.neg, range(count))
        key = futures[-1].key
    else:
        collection = SHAPES[shape](count)
        first.value = 0
        begin = time.time()
        futures = [client.compute(collection, optimize_graph=shape != "array")]
        key = futures[0].key
    while client.sync(client.scheduler.get_task_status, keys=[key])[key] is None:
        time.sleep(0.01)
    accepted = time.time() - begin
    if accept_only:
        return accepted, math.nan, math.nan
    wait(futures)
    assert all(future.status == "finished" for future in futures)
    last = time.time() - begin
    return accepted, (first.value or first_start(client)) - begin, last


def run(scheduler, daskwire, shape, count, options):
    python = sys.executable
    command = {
        "dask": [python, "-m", "distributed.cli.dask_scheduler"],
        "daskwire": [daskwire, "scheduler", "--python", python],
    }[scheduler]
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    is_instant = options.instant or options.until_accepted
    with contextlib.ExitStack() as stack:
        ready = "Scheduler at:"
        serving, address = stack.enter_context(started([*command, *local, "--port", "0"], ready))
        first = multiprocessing.Value("d", 0)
        workers = stack.enter_context(contextlib.ExitStack())
        if is_instant:
            ready = multiprocessing.Event()
            workers.enter_context(process(run_workers, address, range(2), {}, ready, first))
        worker = [python, "-m", "distributed.cli.dask_worker", address, *local, "--nthreads", "1"]
        for _ in range(0 if is_instant else 2):
            folder = workers.enter_context(tempfile.TemporaryDirectory())
            workers.enter_context(started([*worker, "--no-nanny", "--local-directory", folder]))
        client = stack.enter_context(Client(address, timeout=60))
        client.wait_for_workers(2, timeout=120)
        # A graph of each kind first, so that everything is imported.
        wait([client.compute(one) for one in (tree(2), shuffle(300), array(30))])
        if not is_instant:
            client.register_plugin(Starts())
        if options.until_accepted:
            workers.close()
        if options.instant:
            begun, stop = multiprocessing.Event(), multiprocessing.Event()
            waits, sender = multiprocessing.Pipe(duplex=False)
            stack.enter_context(process(probe, address, 2, begun, stop, sender))
            begun.wait(60)
        memory = Memory(serving)
        before = processor(serving.pid)
        times = measure(client, shape, count, first, options.until_accepted)
        busy = processor(serving.pid) - before
        memory.end()
        others = [math.nan] * 3
        if options.instant:
            stop.set()
            found = waits.recv()
            tasks, heartbeats = found["tasks"], found["heartbeats"]
            others = [1e3 * one for one in (percentile(tasks), max(tasks), max(heartbeats))]
        times = " | ".join(f"{one:.2f}" for one in (*times, busy))
        memories = (memory.own / 1e6, memory.beside / 1e6)
        rest = " | ".join(f"{one:.0f}" for one in (*memories, *others))
        print(f"| {shape} | {count} | {scheduler} | {times} | {rest} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("daskwire")
    parser.add_argument("--shapes", default="array,shuffle,tree,map")
    parser.add_argument("--tasks", default="1000,100000")
    parser.add_argument("--schedulers", default="dask,daskwire")
    parser.add_argument("--instant", action="store_true")
    parser.add_argument("--until-accepted", action="store_true")
    arguments = parser.parse_args()
    # Workers that run nothing send no heartbeats.
    os.environ["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] = "1 hour"
    columns = ["graph", "tasks", "scheduler", "accepted, s", "first task, s", "last task, s"]
    columns += ["processor, s", "scheduler, MB", "Python, MB"]
    columns += ["p99 of another client, ms", "longest, ms", "longest heartbeat, ms"]
    print(f"| {' | '.join(columns)} |")
    print(f"| --- | ---: | --- |{' ---: |' * (len(columns) - 3)}", flush=True)
    for count in map(int, arguments.tasks.split(",")):
        for shape in arguments.shapes.split(","):
            for scheduler in arguments.schedulers.split(","):
                run(scheduler, arguments.daskwire, shape, count, arguments)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
