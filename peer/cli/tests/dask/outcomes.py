"""Compares the outcomes of Dask's tests with the table of those that do not pass.

Usage: outcomes.py TABLE OUTCOMES [--update]

Each line of the table is a file with the number of tests that pass, or a test that does not with
its outcome and the reason, separated by tabs. `--update` writes the table anew, with the reasons
that it has.
"""

import collections
import pathlib
import sys

table, outcomes, *options = sys.argv[1:]
table = pathlib.Path(table)
lines = table.read_text().splitlines()
head = [line for line in lines if line.startswith("#")]
known = {}
passed = {}
for line in lines:
    if not line.startswith("#"):
        name, outcome, reason = line.split("\t")
        if outcome == "passed":
            passed[name] = int(reason)
        else:
            known[name] = (outcome, reason)

found = {}
counts = collections.Counter()
for line in pathlib.Path(outcomes).read_text().splitlines():
    outcome, name, reason = line.split("\t")
    file = name.partition("::")[0]
    counts[file] += outcome == "passed"
    # An error while a test ends does not hide the failure of the test itself.
    if outcome != "passed" and found.get(name, ("", ""))[0] != "failed":
        found[name] = (outcome, reason)

if options:
    rows = [f"{file}\tpassed\t{count}" for file, count in counts.items()]
    for name, (outcome, reason) in found.items():
        if outcome in ("failed", "error") and name in known:
            reason = known[name][1]
        rows.append(f"{name}\t{outcome}\t{reason}")
    table.write_text("\n".join(head + sorted(rows)) + "\n")
    sys.exit()

differences = []
for name, (outcome, reason) in sorted(found.items()):
    if name not in known:
        differences.append(f"{name}: {outcome}: {reason}")
    elif known[name][0] != outcome:
        differences.append(f"{name}: {outcome}, not {known[name][0]}: {reason}")
for file, count in sorted(passed.items()):
    if counts[file] < count:
        differences.append(f"{file}: {counts[file]} tests pass, not {count}")
for name in sorted(known.keys() - found.keys()):
    if name.partition("::")[0] in counts:
        print(f"{name}: passes now; remove it from {table.name}")
print(f"{sum(counts.values())} tests pass, {len(found)} do not")
print("\n".join(differences))
sys.exit(bool(differences))
