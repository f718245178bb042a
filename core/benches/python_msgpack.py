#!/usr/bin/env python3
"""Times the C extension of msgpack-python beside our reader
and writer on the same five messages. Run it with the interpreter to measure:

    target/python/current-*/bin/python core/benches/python_msgpack.py

Rounds are interleaved; each line has the median time of both, and Python's
time over ours (median, and from least to most).
"""

import json
import os
import platform
import statistics
import subprocess
import time

import msgpack

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = {
    "compute-task": "compute-task",
    "task-finished": "task-finished",
    "heartbeat": "heartbeat",
    "register-worker": "register-worker",
    "batch": "batch-100-task-finished",
}
ROUNDS = 21


def build():
    """The path of the benchmark's program."""
    out = subprocess.run(
        ["cargo", "bench", "-p", "daskwire", "--bench", "messages", "--no-run",
         "--message-format=json"],
        check=True, stdout=subprocess.PIPE, cwd=HERE,
    ).stdout
    for line in out.decode().splitlines():
        message = json.loads(line)
        if message.get("target", {}).get("name") == "messages" and message.get("executable"):
            return message["executable"]
    raise SystemExit("the benchmark was not built")


def ours(program, work, message):
    out = subprocess.run(
        [program, "--nanoseconds", work, message, "daskwire"],
        check=True, stdout=subprocess.PIPE,
    ).stdout
    return float(out)


def theirs(function, value, count):
    start = time.perf_counter()
    for _ in range(count):
        function(value)
    return (time.perf_counter() - start) / count * 1e9


def unpack(data):
    # The options of distributed.protocol.core, without its object hook.
    return msgpack.unpackb(data, use_list=False, strict_map_key=False)


def main():
    program = build()
    print(f"CPython {platform.python_version()}, msgpack {'.'.join(map(str, msgpack.version))}, "
          f"{msgpack.Unpacker.__module__}")
    for message, name in FILES.items():
        with open(os.path.join(HERE, "messages", name + ".msgpack"), "rb") as file:
            data = file.read()
        value = unpack(data)
        assert msgpack.packb(value) == data
        count = max(5, 400_000 // len(data))
        for work, function, argument in (("read", unpack, data), ("write", msgpack.packb, value)):
            mine, python = [], []
            for _ in range(ROUNDS):
                mine.append(ours(program, work, message))
                python.append(theirs(function, argument, count))
            ratios = [b / a for a, b in zip(mine, python)]
            print(f"{work:5} {message:15} {statistics.median(mine):9.0f} ns, "
                  f"Python {statistics.median(python):9.0f} ns: "
                  f"{statistics.median(ratios):.1f} times ours "
                  f"({min(ratios):.1f} to {max(ratios):.1f})")


if __name__ == "__main__":
    main()
