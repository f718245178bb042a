"""Tests that comms leave no memory, file descriptors, threads or objects behind."""

import asyncio
import gc
import os

import pytest
from distributed.comm import connect, listen

from daskwire.comm import RustComm
from test_comm import SCHEMES, arguments

BATCH = 50


async def open_and_close(scheme, count, listen_args, connect_args):
    """Opens and closes comms in batches, and exchanges a message on each of them."""

    async def echo(comm):
        await comm.write(await comm.read())
        await comm.close()

    listener = await listen(f"{scheme}://127.0.0.1:0", echo, **arguments(scheme, listen_args))

    async def one(number):
        comm = await connect(listener.contact_address, **arguments(scheme, connect_args))
        await comm.write({"number": number, "data": b"x" * 20_000})
        assert (await comm.read())["number"] == number
        await comm.close()

    for _ in range(count // BATCH):
        await asyncio.gather(*map(one, range(BATCH)))
    listener.stop()


def resident():
    """Returns the resident memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def counts():
    """Returns the number of open files, of threads, and of comms that are not collected."""
    gc.collect()
    comms = sum(isinstance(item, RustComm) for item in gc.get_objects())
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), comms


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_thousand_comms_leave_nothing(scheme, listen_args, connect_args):
    async def test():
        # Pools, caches and threads reach their size.
        await open_and_close(scheme, 200, listen_args, connect_args)
        # QUIC keeps a connection, and the socket of a stopped listener, for a second.
        await asyncio.sleep(2)
        before, memory = counts(), resident()
        await open_and_close(scheme, 1000, listen_args, connect_args)
        for _ in range(100):
            if all(now <= then for now, then in zip(counts(), before)):
                break
            await asyncio.sleep(0.1)
        after = counts()
        assert all(now <= then for now, then in zip(after, before)), (before, after)
        # Each comm has received and sent 20 kB, of which none may stay.
        grown = resident() - memory
        assert grown < 4 << 20, grown

    asyncio.run(asyncio.wait_for(test(), 120))
