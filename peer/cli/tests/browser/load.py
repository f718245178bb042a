"""Many workers, which say at once that a task has ended, and tasks for them.

Usage: load.py ADDRESS WORKERS TASKS

Prints a line `ready ADDRESS` once all workers are there, and then runs the tasks in graphs of 100,000.
"""

import multiprocessing
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "benches"))

from scheduler_alone import flat, run_workers  # noqa: E402


def main():
    address, workers, tasks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ready = multiprocessing.Event()
    working = multiprocessing.Process(
        target=run_workers, args=(address, range(workers), {}, ready), daemon=True
    )
    working.start()
    ready.wait()
    from distributed import Client, wait

    with Client(address, timeout=60) as client:
        client.wait_for_workers(workers, timeout=600)
        print("ready", address, flush=True)
        kept = []
        for first in range(0, tasks, 100_000):
            count = min(100_000, tasks - first)
            graph, _ = flat(count, workers)
            graph = {f"{name}-{first}": task for name, task in graph.items()}
            kept.append(client.get(graph, list(graph), sync=False))
            wait(kept[-1])
        time.sleep(3600)


if __name__ == "__main__":
    main()
