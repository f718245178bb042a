"""Tests that freed memory is reused up to a limit, and that the rest is returned."""

import importlib.util
import os
import sys
import threading

spec = importlib.util.spec_from_file_location("daskwire.worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

MIB = 1 << 20
LONG = 8 * MIB


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def use(length):
    """Allocates, fills and frees a value. Returns the memory that stays, in bytes."""
    before = resident()
    value = b"1" * length
    assert resident() - before < length + MIB
    del value
    return resident() - before


def scattered(count):
    """Returns long values, each of which a short one keeps apart from the next."""
    return zip(*[(b"1" * LONG, b"1" * (MIB // 4)) for _ in range(count)])


def is_about(length, expected):
    return abs(length - expected) < 3 * MIB


# The user's choice is not changed. Dask's default is no choice.
by_dask = {"MALLOC_TRIM_THRESHOLD_": "65536"}
for name, value in [
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
    ("MALLOC_MMAP_MAX_", "1"),
    ("MALLOC_TRIM_THRESHOLD_", "1000000"),
    ("GLIBC_TUNABLES", "glibc.malloc.check=0:glibc.malloc.trim_threshold=1000000"),
]:
    os.environ.update(by_dask)
    os.environ[name] = value
    heap = worker.Heap(64 * MIB)
    heap.limit(1.0)
    assert not heap.is_used, name
    heap.return_at_once()
    heap.keep()
    del os.environ[name]

os.environ.update(by_dask)
heap = worker.Heap(64 * MIB)
at_start = resident()
assert is_about(use(LONG), LONG)
heap.limit(1.0)
assert heap.is_used
# The kept memory is used again.
assert use(LONG) < MIB
heap.trim()
assert not heap.is_used and is_about(resident(), at_start)

# A value longer than the limit is never kept.
assert is_about(use(65 * MIB), 0)

# More than the limit is returned, but is measured at most once per interval.
heap.limit(2.0)
long, short = scattered(10)
before = resident()
del long
heap.limit(2.05)
assert is_about(resident(), before)
heap.limit(2.2)
assert is_about(resident(), before - 10 * LONG)

# What was returned does not count any more, until it is used again.
heap.limit(3.0)
assert is_about(use(LONG), LONG)
heap.limit(4.0)
assert is_about(resident(), before - 9 * LONG)
values = [b"1" * LONG for _ in range(10)]
del values
assert is_about(resident(), before)
heap.limit(5.0)
assert is_about(resident(), before - 10 * LONG)

# A task that waits returns everything, also what it frees from then on.
use(LONG)
heap.return_at_once()
assert is_about(resident(), before - 10 * LONG)
assert is_about(use(30 * MIB), 0)
heap.keep()
assert is_about(use(30 * MIB), 30 * MIB)
heap.trim()

# Memory of other threads is returned, too.
at_start = resident()


def use_much():
    values = [b"1" * LONG for _ in range(6)]
    del values


threads = [threading.Thread(target=use_much) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
heap.trim()
assert is_about(resident(), at_start)
print("passed")
