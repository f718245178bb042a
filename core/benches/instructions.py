#!/usr/bin/env python3
"""Counts instructions per message under callgrind, for every case of the
`messages` benchmark, and compares them with the goals. The counts repeat
exactly on one machine.

    core/benches/instructions.py            # builds the benchmark, runs all
    core/benches/instructions.py write read # only these kinds of work

Each case runs COUNT and 2 * COUNT times; the difference, divided by COUNT, is
the work without the start of the program. Needs valgrind.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

# Work: the most that our count may be of each peer's.
GOALS = {
    "read": {"floor": 1.15, "rmp": 0.65, "rmp-serde": 0.30},
    "walk": {"rmpv-borrowed": 0.20},
    "find": {"rmp-serde": 0.25},
    "write": {"rmp": 0.45, "zerompk": 1.00},
}


def build():
    """The path of the benchmark's program."""
    out = subprocess.run(
        ["cargo", "bench", "-p", "daskwire", "--bench", "messages", "--no-run",
         "--message-format=json"],
        check=True, stdout=subprocess.PIPE, text=True,
        cwd=os.path.dirname(os.path.abspath(__file__)),
    ).stdout
    for line in out.splitlines():
        message = json.loads(line)
        if message.get("target", {}).get("name") == "messages" and message.get("executable"):
            return message["executable"]
    sys.exit("the benchmark was not built")


def run(program, case, count):
    err = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
         program, "--one", *case, str(count)],
        check=True, stderr=subprocess.PIPE, text=True,
    ).stderr
    return int(re.search(r"Collected : (\d+)", err).group(1))


def instructions(program, case):
    count = 5 if case[1] == "batch" else 100
    return (run(program, case, 2 * count) - run(program, case, count)) / count


def main():
    program = build()
    listed = subprocess.run([program, "--list"], check=True, stdout=subprocess.PIPE, text=True)
    cases = [tuple(line.split()) for line in listed.stdout.splitlines()]
    if sys.argv[1:]:
        cases = [case for case in cases if case[0] in sys.argv[1:]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = dict(zip(cases, pool.map(lambda case: instructions(program, case), cases)))

    print("| work | message | daskwire | of each peer |\n| --- | --- | ---: | --- |")
    missed = 0
    for work, message in dict.fromkeys(case[:2] for case in cases):
        ours = counts[work, message, "daskwire"]
        shares = []
        for case in cases:
            if case[:2] == (work, message) and case[2] != "daskwire":
                share = ours / counts[case]
                goal = GOALS.get(work, {}).get(case[2])
                late = goal is not None and share > goal
                missed += late
                shares.append(f"{share:.3f} of {case[2]} ({counts[case]:,.0f})"
                              + (f" **goal {goal:.2f}**" if late else ""))
        print(f"| {work} | {message} | {ours:,.0f} | {', '.join(shares)} |")
    print(f"\n{missed} above their goal" if missed else "\nall goals are met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
