#!/usr/bin/env python3
"""Counts the instructions of the `tracing` benchmark under callgrind: without the
feature `tracing`, with it and no subscriber, and with subscribers of several levels.

    peer/benches/tracing.py

Each work is done COUNT and 2 * COUNT times; the difference, divided by COUNT, leaves
out the start of the program. A count is the least of three. Needs valgrind.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

COUNTS = {"comm": 50, "message": 1000, "task": 100}
# The feature, and the subscriber.
CASES = [("", "none"), ("tracing", "none"), ("tracing", "info"), ("tracing", "debug"),
         ("tracing", "trace")]


def build(feature):
    """Builds the benchmark with a feature, and returns a copy of its program."""
    out = subprocess.run(
        ["cargo", "bench", "-p", "daskwire-peer", "--features", feature, "--bench", "tracing",
         "--no-run", "--message-format=json"],
        check=True, stdout=subprocess.PIPE, text=True,
        cwd=os.path.dirname(os.path.abspath(__file__)),
    ).stdout
    for line in out.splitlines():
        message = json.loads(line)
        if message.get("target", {}).get("name") == "tracing" and message.get("executable"):
            return message["executable"]
    sys.exit("the benchmark was not built")


def run(program, work, subscriber, count):
    err = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
         program, work, subscriber, str(count)],
        check=True, stderr=subprocess.PIPE, text=True,
    ).stderr
    return int(re.search(r"Collected : (\d+)", err).group(1))


def instructions(program, work, subscriber):
    count = COUNTS[work]
    least = [min(run(program, work, subscriber, times * count) for _ in range(3))
             for times in (1, 2)]
    return (least[1] - least[0]) / count


def main():
    programs = {feature: build(feature) for feature in ("", "tracing")}
    cases = [(work, *case) for work in COUNTS for case in CASES]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = list(pool.map(
            lambda case: instructions(programs[case[1]], case[0], case[2]), cases))
    print("| work | feature | subscriber | instructions | ratio |")
    print("| --- | --- | --- | ---: | ---: |")
    for (work, feature, subscriber), count in zip(cases, counts):
        base = counts[cases.index((work, *CASES[0]))]
        print(f"| {work} | {feature or 'off'} | {subscriber} | {count:,.0f} | {count / base:.3f} |")


if __name__ == "__main__":
    main()
