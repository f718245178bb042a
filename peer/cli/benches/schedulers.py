"""Runs programs on a scheduler with two workers, and prints their time, the processor time of the
scheduler, the bytes that workers fetched from each other, and the peak memory of the workers.

Usage: PYTHON peer/cli/benches/schedulers.py SCHEDULER WORKERS DASKWIRE

SCHEDULER and WORKERS are `dask` or `daskwire`, and DASKWIRE is the path of the command. PYTHON has
distributed, dask with array and dataframe, and psutil. Compare the lines of runs with both schedulers, one after the other.
"""

import contextlib
import operator
import random
import subprocess
import sys
import tempfile
import threading
import time

import dask.array
import dask.dataframe
import numpy
import pandas
import psutil
from distributed import Client, wait


def make(number, count):
    return numpy.full(count, float(number))


def small_functions(client):
    """`client.map` of 10,000 small functions."""
    return sum(client.gather(client.map(operator.neg, range(10_000))))


def tree(client):
    """A sum of 32 arrays of 16 MB in pairs, submitted one by one."""
    layer = [client.submit(make, number, 2_000_000) for number in range(32)]
    while len(layer) > 1:
        layer = [client.submit(operator.add, *layer[i : i + 2]) for i in range(0, len(layer), 2)]
    return float(layer[0].result()[0])


def map_reduce(client):
    """24 arrays of 8 MB, of which each of four tasks needs a quarter."""
    arrays = [client.submit(make, number, 1_000_000) for number in range(24)]
    quarters = [slice(first, first + 250_000) for first in range(0, 1_000_000, 250_000)]
    parts = [[client.submit(operator.getitem, a, quarter) for a in arrays] for quarter in quarters]
    sums = [client.submit(lambda *parts: float(sum(p.sum() for p in parts)), *p) for p in parts]
    return sum(client.gather(sums))


def stragglers(client):
    """400 tasks of 10 ms, of which 3 % take 500 ms, each with a task that uses its result."""
    chance = random.Random(1)

    def wait(number, seconds):
        time.sleep(seconds)
        return number

    first = [client.submit(wait, n, 0.5 if chance.random() < 0.03 else 0.01) for n in range(400)]
    return sum(client.gather([client.submit(operator.neg, future) for future in first]))


def pipeline(client):
    """120 arrays of 4 MB that are made, doubled and summed."""
    arrays = [client.submit(make, number, 500_000) for number in range(120)]
    doubled = [client.submit(operator.mul, array, 2) for array in arrays]
    sums = [client.submit(numpy.sum, array) for array in doubled]
    del arrays, doubled
    return float(sum(client.gather(sums)))


def compute(client, collection):
    """Computes a collection of one number."""
    return float(client.compute(collection).result())


def transposed(client):
    """The sum of x + x.T, for an array of 128 MB."""
    x = dask.array.ones((4000, 4000), chunks=(500, 500)) * 2
    return compute(client, (x + x.T).sum())


def centred(client):
    """The sum of (x - x.mean(axis=0)) ** 2, for an array of 128 MB."""
    x = dask.array.arange(16_000_000, chunks=1_000_000).reshape((4000, 4000))
    return compute(client, ((x - x.mean(axis=0)) ** 2).sum())


def frame():
    """A data frame of 128 MB, whose groups are in all of its 64 parts."""

    def part(number):
        keys = numpy.arange(number, number + 62_500) % 1000
        columns = {"group": keys, "a": keys * 0.5, "b": keys * 2.0, "c": keys * 1.0}
        return pandas.DataFrame(columns)

    return dask.dataframe.from_map(part, range(64), meta=part(0))


def grouped(client):
    """The means of groups of a data frame of 128 MB, summed."""
    return compute(client, frame().groupby("group").mean().sum().sum())


def shuffled(client, method="tasks"):
    """A data frame of 128 MB, shuffled by tasks, and the sum of a function of each part."""
    moved = frame().shuffle("group", shuffle_method=method, force=True)
    return compute(client, moved.map_partitions(lambda part: part.a * part.b, meta=("x", float)).sum())


def shuffled_p2p(client):
    """The same, by P2P."""
    return shuffled(client, "p2p")


def leaving(client):
    """200 arrays of 2 MB that take 20 ms each, while a worker of three is retired."""
    def slow(number):
        time.sleep(0.02)
        return make(number, 250_000)

    arrays = [client.submit(slow, number) for number in range(200)]
    wait(arrays[:60])
    client.retire_workers([next(iter(client.scheduler_info()["workers"]))])
    sums = [client.submit(numpy.sum, array) for array in arrays]
    return float(sum(client.gather(sums)))


@contextlib.contextmanager
def started(command, ready=None):
    """Starts a process, and yields it with the rest of the line that contains `ready`."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = next((line for line in process.stderr if ready is None or ready in line), "")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, line.partition(ready or "\n")[2].strip()
    finally:
        process.terminate()
        process.wait()


def main():
    scheduler, workers, daskwire = sys.argv[1:]
    python = sys.executable
    dask = [python, "-m", "distributed.cli.dask_scheduler"]
    options = ["--host", "127.0.0.1", "--no-dashboard"]
    command = {"dask": dask, "daskwire": [daskwire, "scheduler", "--python", python]}[scheduler]
    with contextlib.ExitStack() as stack:
        ready = "Scheduler at:"
        serving = stack.enter_context(started([*command, *options, "--port", "0"], ready))
        serving, address = serving
        command = {
            "dask": [python, "-m", "distributed.cli.dask_worker", address],
            "daskwire": [daskwire, "worker", address, "--python", python],
        }[workers]
        options += ["--nthreads", "1", "--memory-limit", "4GiB"]
        command += options
        running = []

        def start_worker():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            own = [*command, "--local-directory", folder]
            running.append(stack.enter_context(started(own))[0])

        start_worker()
        start_worker()
        client = stack.enter_context(Client(address, timeout=60))
        client.wait_for_workers(2, timeout=60)
        client.submit(operator.add, 1, 1).result()
        scheduler = psutil.Process(serving.pid)
        for program in (
            small_functions,
            tree,
            map_reduce,
            stragglers,
            pipeline,
            transposed,
            centred,
            grouped,
            shuffled,
            shuffled_p2p,
        ):
            measure(program, client, scheduler, running)
        start_worker()
        client.wait_for_workers(3, timeout=60)
        client.run(make, 0, 1)
        measure(leaving, client, scheduler, running)


def fetched(client):
    """Returns the bytes that each worker has fetched so far; zero for workers in Rust."""

    def count(dask_worker):
        log = getattr(dask_worker, "transfer_incoming_log", ())
        return sum(transfer["total"] for transfer in log)

    return client.run(count)


def measure(program, client, scheduler, workers):
    ended = threading.Event()
    peak = 0

    def watch():
        nonlocal peak
        while not ended.wait(0.02):
            total = 0
            for worker in workers:
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(worker.pid)
                    processes = [process, *process.children(recursive=True)]
                    total += sum(process.memory_info().rss for process in processes)
            peak = max(peak, total)

    before = fetched(client)
    watching = threading.Thread(target=watch)
    watching.start()
    busy = sum(scheduler.cpu_times()[:2])
    begin = time.perf_counter()
    result = program(client)
    took = time.perf_counter() - begin
    busy = sum(scheduler.cpu_times()[:2]) - busy
    ended.set()
    watching.join()
    moved = sum(count - before[worker] for worker, count in fetched(client).items())
    print(
        f"{program.__name__:16} {took:6.2f} s, scheduler {busy:5.2f} s, "
        f"{moved / 1e6:5.0f} MB moved, workers at most {peak / 1e6:5.0f} MB, result {result:g}",
        flush=True,
    )


if __name__ == "__main__":
    main()
