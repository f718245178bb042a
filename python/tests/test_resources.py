"""Tests that comms leave no memory, file descriptors, threads or objects behind.

As a program, `test_resources.py SCHEME` opens and closes comms, and prints what is in use before
and after the last 1,000 of them. The test runs it in a process of its own, so that nothing else
allocates, and with PYTHONMALLOC=malloc, so that the allocator of the C library counts every byte.
"""

import asyncio
import ctypes
import gc
import json
import os
import subprocess
import sys

import daskwire  # noqa: F401  Before any Security is used.
import pytest
from daskwire.comm import RustComm
from distributed.comm import connect, listen
from distributed.security import Security

BATCH = 50
MESSAGES = 5


async def open_and_close(scheme, count, listen_args, connect_args):
    """Opens and closes comms in batches, and exchanges messages on each of them."""

    async def echo(comm):
        for _ in range(MESSAGES):
            await comm.write(await comm.read())
        await comm.close()

    async def one(number):
        comm = await connect(listener.contact_address, **connect_args)
        for _ in range(MESSAGES):
            await comm.write({"number": number, "data": b"x" * 20_000})
            assert (await comm.read())["number"] == number
        await comm.close()

    listener = await listen(f"{scheme}://127.0.0.1:0", echo, **listen_args)
    for _ in range(count // BATCH):
        await asyncio.gather(*map(one, range(BATCH)))
    listener.stop()


class Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def in_use():
    """Returns the numbers of open files, threads and comms, and the allocated bytes."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    allocated = mallinfo2()
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "comms": sum(isinstance(item, RustComm) for item in gc.get_objects()),
        "bytes": allocated.uordblks + allocated.hblkhd,
    }


async def main(scheme):
    arguments = [{}, {}]
    if scheme != "tcp+rs":
        security = Security.temporary()
        arguments = [security.get_listen_args("scheduler"), security.get_connection_args("client")]
    # Pools, caches and threads reach their size.
    await open_and_close(scheme, 500, *arguments)
    in_use()  # Its first call allocates, too.
    # QUIC keeps a connection, and the socket of a stopped listener, for a second.
    await asyncio.sleep(2)
    before = in_use()
    await open_and_close(scheme, 1000, *arguments)
    for _ in range(30):
        await asyncio.sleep(1)
        after = in_use()
        if all(after[name] <= before[name] for name in ("files", "threads", "comms")):
            break
    print(json.dumps([before, after]))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the C library of GNU")
@pytest.mark.parametrize("scheme", ["tcp+rs", "tls+rs", "quic"])
def test_a_thousand_comms_leave_nothing(scheme):
    # Memory that threads keep for their next allocations would count as allocated.
    tunables = "glibc.malloc.tcache_count=0"
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": tunables}
    run = subprocess.run(
        [sys.executable, __file__, scheme],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    before, after = json.loads(run.stdout)
    grown = after.pop("bytes") - before.pop("bytes")
    assert all(after[name] <= before[name] for name in before), (before, after)
    # Less than an object for each end of a comm, or for each message. Without a leak it is 5,000
    # to 50,000 bytes, as with Dask's own TCP.
    assert grown < 100_000, grown


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
