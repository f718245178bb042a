#!/usr/bin/env python3
"""Counts instructions per message under callgrind, for every case of the
`messages` benchmark, and compares them with the goals. The counts repeat
exactly on one machine.

    core/benches/instructions.py            # builds the benchmark, runs all
    core/benches/instructions.py write read # only these kinds of work
    core/benches/instructions.py --write    # runs all, replaces the table in BENCHMARKS.md
    core/benches/instructions.py --check    # runs all, fails where the table is out of date

The table is out of date where one of our counts differs by more than 1 %, which
another version of Rust can cause as well as a change of the code.

Each case runs COUNT and 2 * COUNT times; the difference, divided by COUNT, is
the work without the start of the program. Needs valgrind.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "BENCHMARKS.md"
BEGIN, END = "<!-- begin of the table of instructions -->\n", "<!-- end of the table of instructions -->\n"
TOLERANCE = 0.01

# Work: the most that our count may be of each peer's.
GOALS = {
    "read": {"rmp-serde": 0.30},
    "walk": {"rmpv-borrowed": 0.20},
    "find": {"rmp-serde": 0.25},
    "write": {"rmp-serde": 0.30},
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


def table(cases, counts):
    """The lines of the table, and how many counts are above their goals."""
    lines = ["| work | message | daskwire | ratio to other programs |", "| --- | --- | ---: | --- |"]
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
        lines.append(f"| {work} | {message} | {ours:,.0f} | {', '.join(shares)} |")
    return lines, missed


def write(lines):
    """Replaces the table in BENCHMARKS.md."""
    before, rest = BENCHMARKS.read_text().split(BEGIN)
    _, after = rest.split(END)
    rust = subprocess.run(["rustc", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[1]
    said = f"Counted on {datetime.date.today()} with Rust {rust}, by `core/benches/instructions.py --write`.\n\n"
    BENCHMARKS.write_text(before + BEGIN + said + "\n".join(lines) + "\n" + END + after)


def out_of_date(counts):
    """What of the table in BENCHMARKS.md is not what was counted."""
    stored = {}
    for line in BENCHMARKS.read_text().split(BEGIN)[1].split(END)[0].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[3].replace(",", "").isdigit():
            stored[cells[1], cells[2], "daskwire"] = int(cells[3].replace(",", ""))
    ours = {case: count for case, count in counts.items() if case[2] == "daskwire"}
    for case in sorted(stored.keys() | ours.keys()):
        then, now = stored.get(case, 0), ours.get(case, 0)
        if abs(now - then) > TOLERANCE * then:
            yield f"{case[0]} {case[1]}: {then:,} in BENCHMARKS.md, {now:,.0f} counted"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    parser.add_argument("work", nargs="*")
    arguments = parser.parse_args()
    if arguments.work and (arguments.write or arguments.check):
        parser.error("the table has all kinds of work")
    program = build()
    listed = subprocess.run([program, "--list"], check=True, stdout=subprocess.PIPE, text=True)
    cases = [tuple(line.split()) for line in listed.stdout.splitlines()]
    if arguments.work:
        cases = [case for case in cases if case[0] in arguments.work]
    if arguments.check:
        cases = [case for case in cases if case[2] == "daskwire"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = dict(zip(cases, pool.map(lambda case: instructions(program, case), cases)))
    if arguments.check:
        wrong = list(out_of_date(counts))
        print("\n".join(wrong) or f"{len(counts)} counts are those of BENCHMARKS.md")
        return 1 if wrong else 0
    lines, missed = table(cases, counts)
    print("\n".join(lines))
    print(f"\n{missed} above their goal" if missed else "\nall goals are met")
    if arguments.write:
        write(lines)
        return 0
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
