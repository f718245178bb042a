"""Compares outcomes of tests of collections with Dask's scheduler and with `daskwire scheduler`.

Usage: collections_outcomes.py TABLE DASK DASKWIRE

DASK and DASKWIRE are the files that `dask_collections.py` has written. Prints for each file of tests
how many pass with Dask's scheduler, how many with `daskwire scheduler`, and how many fail with
both, and then the tests that fail only with the latter. The exit status is 1 if there are any that
TABLE does not name.
"""

import collections
import pathlib
import sys

table, *files = sys.argv[1:]
known = set()
for line in pathlib.Path(table).read_text().splitlines():
    name, outcome, *_ = line.split("\t") if "\t" in line else (line, "")
    if outcome == "failed":
        known.add(name)


def read(path):
    """The outcome of each test; an error while a test ends counts as a failure."""
    outcomes = {}
    for line in pathlib.Path(path).read_text().splitlines():
        name, outcome = line.split("\t")
        if outcomes.get(name) != "failed":
            outcomes[name] = outcome
    return outcomes


dask, daskwire = map(read, files)
counts = collections.defaultdict(lambda: [0, 0, 0])
worse = []
for name in dask.keys() | daskwire.keys():
    outcomes = dask.get(name), daskwire.get(name)
    count = counts[name.partition("::")[0]]
    count[0] += outcomes[0] == "passed"
    count[1] += outcomes[1] == "passed"
    count[2] += outcomes == ("failed", "failed")
    if outcomes[1] == "failed" and outcomes[0] != "failed":
        worse.append(name)
for file, count in sorted(counts.items()):
    print(file, *count, sep="\t")
print("all", *map(sum, zip(*counts.values())), sep="\t")
print("only with daskwire scheduler fail:", *sorted(worse) or ["none"], sep="\n")
# A name without parameters in the table stands for all sets of them.
new = sorted(name for name in worse if not known & {name, name.partition("[")[0]})
if new:
    print(f"of these, {len(new)} are not in {pathlib.Path(table).name}")
sys.exit(bool(new))
