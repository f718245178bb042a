"""Tests that comms leave no memory, file descriptors, threads or objects behind, and that peers
cannot take more than they send.

As a program, `test_resources.py SCHEME` opens and closes comms, and prints what is in use before
and after the last 1,000 of them. The test runs it in a process of its own, so that nothing else
allocates, and with PYTHONMALLOC=malloc, so that the allocator of the C library counts every byte.
"""

import asyncio
import ctypes
import gc
import json
import os
import socket
import struct
import subprocess
import sys

import daskwire  # noqa: F401  Before any Security is used.
import pytest
from daskwire.comm import RustComm
from distributed.comm import connect, listen, registry
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


@pytest.fixture
def no_garbage_collector():
    """Objects in cycles of references stay for the duration of a test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def until(condition):
    """Waits for a condition that must become true."""
    while not condition():
        await asyncio.sleep(0.02)


def open_files():
    return len(os.listdir("/proc/self/fd"))


# What peers send before they leave: nothing, or a message that is not a handshake.
PEERS = {"silent": None, "no handshake": "hello", "incomplete handshake": {"compression": None}}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("message", PEERS.values(), ids=PEERS)
@pytest.mark.parametrize("scheme", ["tcp+rs", "tls+rs", "quic"])
def test_peers_that_leave_before_the_handshake_leave_nothing(
    scheme, message, listen_args, connect_args, no_garbage_collector
):
    listen_args, connect_args = ({}, {}) if scheme == "tcp+rs" else (listen_args, connect_args)

    async def handle(comm):
        raise AssertionError("there was no handshake")

    async def leave(location):
        connector = registry.get_backend(scheme).get_connector()
        comm = await connector.connect(location, **connect_args)
        if message is not None:
            await comm.write(message)
            await comm.read()
            # The listener ends the comm, although this end is open.
            with pytest.raises(OSError):
                await comm.read()
        comm.abort()

    async def test():
        listener = await listen(f"{scheme}://127.0.0.1:0", handle, **listen_args)
        location = listener.contact_address.split("://")[1]
        # Threads and, with QUIC, the socket of connections.
        await leave(location)
        await until(lambda: not listener._handling)
        before = open_files()
        for _ in range(10):
            await asyncio.gather(*(leave(location) for _ in range(10)))
        await until(lambda: not listener._handling)
        await until(lambda: open_files() <= before)
        listener.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def memory_len():
    """Returns the mapped memory of this process and the part of it that is in use, in bytes."""
    with open("/proc/self/statm") as file:
        mapped, used, *_ = map(int, file.read().split())
    return mapped * os.sysconf("SC_PAGE_SIZE"), used * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and huge pages")
def test_a_large_frame_takes_memory_only_once_its_bytes_arrive():
    async def handle(comm):
        raise AssertionError("there was no handshake")

    async def test():
        listener = await listen("tcp+rs://127.0.0.1:0", handle)
        # A message with one frame, of which only the first byte follows.
        count, length = 100, 64 << 20
        message = struct.pack("<QQQ", 16 + length, 1, length) + b"x"
        mapped_before, used_before = memory_len()
        peers = [socket.create_connection(listener.get_host_port()) for _ in range(count)]
        for peer in peers:
            peer.sendall(message)
        await until(lambda: memory_len()[0] - mapped_before >= count * length)
        # A few kB for each peer and for its end of the socket. Huge pages would take 2 MB.
        assert memory_len()[1] - used_before < 20_000_000
        for peer in peers:
            peer.close()
        await until(lambda: not listener._handling)
        listener.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
