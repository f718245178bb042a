"""Tests of comms when a process ends or forks."""

import asyncio
import multiprocessing
import sys

import pytest
from distributed.comm import CommClosedError, connect, listen
from distributed.security import Security

SCHEMES = ["tcp+rs", "tls+rs", "quic"]

# Connects, writes, and ends without closing anything.
PEER = """
import asyncio, sys
import daskwire
from distributed.comm import connect
from distributed.security import Security

scheme, address, ca, key = sys.argv[1:]
security = Security(tls_ca_file=ca, tls_client_cert=ca, tls_client_key=key)
arguments = {} if scheme == "tcp+rs" else security.get_connection_args("client")

async def main():
    global comm
    comm = await connect(address, **arguments)
    await comm.write({"last": b"1" * 1_000_000})

asyncio.run(main())
"""


def arguments(scheme, args):
    return {} if scheme == "tcp+rs" else args


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_end_of_a_process_is_noticed_at_once(scheme, security, listen_args, tmp_path):
    """This includes QUIC, whose connections no operating system closes for the process."""
    ca, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    ca.write_text(security.tls_ca_file)
    key.write_text(security.tls_client_key)

    async def test():
        messages = asyncio.Queue()

        async def handle(comm):
            try:
                while True:
                    messages.put_nowait(await comm.read())
            except CommClosedError:
                messages.put_nowait("closed")

        listener = await listen(f"{scheme}://127.0.0.1:0", handle, **arguments(scheme, listen_args))
        command = [sys.executable, "-c", PEER, scheme, listener.contact_address, ca, key]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stderr=pipe)
        assert (await asyncio.wait_for(messages.get(), 60)) == {"last": b"1" * 1_000_000}
        _, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")
        # Less than the idle timeout, after which a silently lost connection would be noticed.
        assert await asyncio.wait_for(messages.get(), 20) == "closed"
        listener.stop()

    asyncio.run(test())


def write_and_close(address, pem):
    # Before Dask uses the settings: a process that was not forked has not imported the package.
    import daskwire  # noqa: F401

    security = Security(tls_ca_file=pem, tls_client_cert=pem, tls_client_key=pem)

    async def test():
        comm = await connect(address, **security.get_connection_args("client"))
        for _ in range(100):
            await comm.write(b"1" * 100_000)
        await comm.close()

    asyncio.run(test())


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_what_was_written_before_a_process_ends_arrives(method, security, listen_args, tmp_path):
    """This includes processes of `multiprocessing` that end without running exit functions."""
    pem = tmp_path / "both.pem"
    pem.write_text(security.tls_ca_file + security.tls_client_key)

    async def test():
        received = asyncio.Queue()

        async def handle(comm):
            count = 0
            try:
                while True:
                    assert await comm.read() == b"1" * 100_000
                    count += 1
            except CommClosedError:
                received.put_nowait(count)

        listener = await listen("quic://127.0.0.1:0", handle, **listen_args)
        child = multiprocessing.get_context(method).Process(
            target=write_and_close, args=(listener.contact_address, str(pem))
        )
        child.start()
        assert await asyncio.wait_for(received.get(), 60) == 100
        await asyncio.to_thread(child.join, 60)
        assert child.exitcode == 0
        listener.stop()

    asyncio.run(test())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_forked_process_has_connections_of_its_own(scheme, listen_args, connect_args):
    async def echo(comm):
        try:
            while True:
                await comm.write(await comm.read())
        except CommClosedError:
            pass

    async def round_trip(address):
        comm = await connect(address, **arguments(scheme, connect_args))
        await comm.write("question")
        assert await comm.read() == "question"
        return comm

    def in_child(address, comm):
        assert comm.closed()
        comm.abort()

        async def test():
            comm = await round_trip(address)
            await comm.close()
            listener = await listen(
                f"{scheme}://127.0.0.1:0", echo, **arguments(scheme, listen_args)
            )
            await (await round_trip(listener.contact_address)).close()
            listener.stop()

        asyncio.run(asyncio.wait_for(test(), 60))

    async def test():
        listener = await listen(f"{scheme}://127.0.0.1:0", echo, **arguments(scheme, listen_args))
        comm = await round_trip(listener.contact_address)
        child = multiprocessing.get_context("fork").Process(
            target=in_child, args=(listener.contact_address, comm)
        )
        child.start()
        await asyncio.to_thread(child.join, 60)
        assert child.exitcode == 0
        # The comm of the parent process still works.
        await comm.write("again")
        assert await comm.read() == "again"
        await comm.close()
        listener.stop()

    asyncio.run(test())
