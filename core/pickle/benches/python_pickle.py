#!/usr/bin/env python3
"""Times `pickle.dumps` and `pickle.loads` of CPython beside our writer and our
reader, on a graph of 10,000 tasks.
Run it with an interpreter that has `distributed`:

    target/python/current-*/bin/python core/pickle/benches/python_pickle.py

First it compares: we must write what `pickletools.optimize` makes of CPython's
pickle, byte for byte. Rounds are interleaved; the line has the median time of
both, and Python's time over ours (median, and from least to most). Python's
garbage collector is off while it is timed, which only helps it.
"""

import gc
import json
import operator
import os
import pickle
import pickletools
import platform
import statistics
import subprocess
import time

from dask._task_spec import Task, TaskRef

HERE = os.path.dirname(os.path.abspath(__file__))
TASK_COUNT = 10_000
ROUNDS = 21


def build():
    """The path of the benchmark's program."""
    out = subprocess.run(
        ["cargo", "bench", "-p", "daskwire", "--features", "alloc", "--bench", "pickle", "--no-run",
         "--message-format=json"],
        check=True, stdout=subprocess.PIPE, cwd=HERE,
    ).stdout
    for line in out.decode().splitlines():
        message = json.loads(line)
        if message.get("target", {}).get("name") == "pickle" and message.get("executable"):
            return message["executable"]
    raise SystemExit("the benchmark was not built")


def run(program, argument):
    return subprocess.run([program, argument], check=True, stdout=subprocess.PIPE).stdout


def graph():
    keys = [f"add-{number}" for number in range(TASK_COUNT)]
    tasks = {keys[0]: Task(keys[0], operator.add, 0, 1)}
    for number in range(1, TASK_COUNT):
        key = keys[number]
        tasks[key] = Task(key, operator.add, TaskRef(keys[number - 1]), number)
    return tasks


def theirs(value):
    gc.disable()
    start = time.perf_counter()
    pickle.dumps(value, 5)
    took = time.perf_counter() - start
    gc.enable()
    return took * 1e9


def their_loads(document):
    gc.disable()
    start = time.perf_counter()
    pickle.loads(document)
    took = time.perf_counter() - start
    gc.enable()
    return took * 1e9


def main():
    program = build()
    value = graph()
    if run(program, "--write") != pickletools.optimize(pickle.dumps(value, 5)):
        raise SystemExit("another pickle is written")
    mine, python = [], []
    for _ in range(ROUNDS):
        mine.append(float(run(program, "--nanoseconds")))
        python.append(theirs(value))
    ratios = [b / a for a, b in zip(mine, python)]
    print(f"CPython {platform.python_version()}: write a graph of {TASK_COUNT} tasks: "
          f"{statistics.median(mine) / 1e6:.2f} ms, Python {statistics.median(python) / 1e6:.2f} ms: "
          f"{statistics.median(ratios):.1f} times ours ({min(ratios):.1f} to {max(ratios):.1f})")

    document = pickletools.optimize(pickle.dumps(value, 5))
    mine, python = [], []
    for _ in range(ROUNDS):
        mine.append(float(run(program, "--read-nanoseconds")))
        python.append(their_loads(document))
    ratios = [a / b for a, b in zip(mine, python)]
    print(f"read its opcodes: {statistics.median(mine) / 1e6:.2f} ms, Python loads it in "
          f"{statistics.median(python) / 1e6:.2f} ms: we take {statistics.median(ratios):.3f} of it "
          f"({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
