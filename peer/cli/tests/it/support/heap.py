"""Tests that freed memory is reused up to a limit, and that the rest is returned."""

import importlib.util
import os
import resource
import sys

spec = importlib.util.spec_from_file_location("daskwire.worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

MIB = 1 << 20


def faults(length):
    """Returns how many pages the system provides for a value of a length."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    value = bytes([1]) * length
    del value
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def scatter(count):
    """Returns long values, each of which short ones keep apart from the next."""
    return zip(*[(bytes([1]) * (8 * MIB), bytes([1]) * 1000) for _ in range(count)])


# The user's choice is not changed.
os.environ["MALLOC_MMAP_THRESHOLD_"] = "131072"
heap = worker.Heap(64 * MIB)
heap.limit(1.0)
assert not heap.is_used
del os.environ["MALLOC_MMAP_THRESHOLD_"]

heap = worker.Heap(64 * MIB)
faults(8 * MIB)
heap.limit(1.0)
assert heap.is_used
again = faults(8 * MIB)
assert again < 200, again
heap.trim()
again = faults(8 * MIB)
assert not heap.is_used and again > 2000, again

# More than the limit is returned, but at most once per interval.
heap.limit(2.0)
long, short = scatter(10)
before = resident()
del long
heap.limit(2.05)
assert before - resident() < 8 * MIB
heap.limit(2.2)
assert before - resident() > 72 * MIB

# What was returned does not count any more, unless it was used again.
heap.is_used = False
again = faults(8 * MIB)
assert again > 2000
heap.limit(3.0)
assert faults(8 * MIB) < 200
long, others = scatter(9)
heap.limit(4.0)
before = resident()
del long
heap.limit(5.0)
assert before - resident() > 64 * MIB

# A value longer than the limit is never kept.
faults(65 * MIB)
assert faults(65 * MIB) > 65 * 256 - 2000
print("passed")
