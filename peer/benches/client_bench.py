"""The work of the benchmark `client`, done by a client of Python.

Usage: client_bench.py ADDRESS. Reads one word per line from standard input, does
it, and prints seconds of wall clock, seconds of processor, and the bytes of memory
that stay allocated, as far as they were traced:

    latency       100 calls of a tiny function, one after the other
    graph         10,000 tiny tasks in one graph, and all their results
    singles       10,000 tiny tasks, each submitted on its own, and all results
    gather        16 arrays of 64 MiB that are there, fetched from the workers
    futures       100,000 futures for tasks of one graph that wait for one which
                  no worker can run, held
    traced        the same, slower, with memory traced
"""

import gc
import resource
import sys
import time
import tracemalloc
import warnings

warnings.simplefilter("ignore")

import operator

import numpy
from distributed import Client, wait


def main():
    client = Client(sys.argv[1], set_as_default=True)
    arrays = []
    count = 0

    def latency():
        nonlocal count
        for _ in range(100):
            count += 1
            client.submit(operator.add, count, 0.5).result()

    def graph():
        nonlocal count
        count += 1
        futures = client.map(operator.add, range(10_000), [count] * 10_000, pure=False)
        client.gather(futures)

    def singles():
        nonlocal count
        count += 1
        futures = [client.submit(operator.sub, index, count, pure=False) for index in range(10_000)]
        client.gather(futures)

    def gather():
        client.gather(arrays, direct=True)

    held = []

    def futures():
        first = client.submit(operator.neg, 1, pure=False, resources={"no worker has it": 1})
        # In this order, the list has no spare capacity.
        held.append(first)
        held.extend(client.map(operator.sub, [first] * 100_000, range(100_000), pure=False))
        last = held[-1].key
        while client.sync(client.scheduler.get_task_status, keys=[last]).get(last) is None:
            time.sleep(0.01)

    work = {
        "latency": latency,
        "graph": graph,
        "singles": singles,
        "gather": gather,
        "futures": futures,
        "traced": futures,
    }
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "gather" and not arrays:
            arrays.extend(client.submit(numpy.full, 8 << 20, float(index)) for index in range(16))
            wait(arrays)
            gather()
        gc.collect()
        if word == "traced":
            tracemalloc.start()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = usage.ru_utime + usage.ru_stime
        started = time.perf_counter()
        work[word]()
        elapsed = time.perf_counter() - started
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = usage.ru_utime + usage.ru_stime - cpu
        gc.collect()
        print(elapsed, cpu, tracemalloc.get_traced_memory()[0], flush=True)
        tracemalloc.stop()
        held.clear()


if __name__ == "__main__":
    main()
