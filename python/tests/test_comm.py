"""Tests of comms with both ends in one process, for each scheme."""

import asyncio
import gc
import logging
import os
import socket
import sys
import time

import dask
import numpy as np
import psutil
import pytest
from distributed.comm import CommClosedError, connect, listen, registry
from distributed.comm.core import FatalCommClosedError
from distributed.protocol import to_serialize
from distributed.security import Security

from daskwire.comm import _concrete

SCHEMES = ["tcp+rs", "tls+rs", "quic"]


def arguments(scheme, args):
    return {} if scheme == "tcp+rs" else args


class Pair:
    """A listener and both ends of a comm."""

    def __init__(self, scheme, listen_args, connect_args):
        self.scheme = scheme
        self.listen_args = arguments(scheme, listen_args)
        self.connect_args = arguments(scheme, connect_args)

    async def __aenter__(self):
        accepted = asyncio.get_running_loop().create_future()
        done = self.done = asyncio.Event()

        async def handle(comm):
            accepted.set_result(comm)
            await done.wait()

        address = f"{self.scheme}://127.0.0.1:0"
        self.listener = await listen(address, handle, **self.listen_args)
        address = self.listener.contact_address
        self.near = await connect(address, **self.connect_args)
        self.far = await accepted
        return self

    async def __aexit__(self, *_):
        self.done.set()
        await self.near.close()
        await self.far.close()
        self.listener.stop()


@pytest.fixture(params=SCHEMES)
def pair(request, listen_args, connect_args):
    return Pair(request.param, listen_args, connect_args)


def run(test):
    asyncio.run(asyncio.wait_for(test, 60))


def test_messages_arrive_in_order_in_both_directions(pair):
    async def test():
        async with pair:
            for number in range(500):
                await pair.near.write({"near": number})
                await pair.far.write({"far": number})
            for number in range(500):
                assert await pair.far.read() == {"near": number}
                assert await pair.near.read() == {"far": number}

    run(test())


def test_addresses_and_handshake(pair):
    async def test():
        async with pair:
            near, far = pair.near, pair.far
            prefix = f"{pair.scheme}://127.0.0.1:"
            for comm in (near, far):
                assert comm.local_address.startswith(prefix)
                assert comm.peer_address.startswith(prefix)
                assert comm.same_host
                assert comm.handshake_options["pickle-protocol"] == 5
            assert near.peer_address == pair.listener.contact_address
            assert near.local_address == far.peer_address
            assert near.remote_info["address"] == pair.listener.contact_address
            if pair.scheme == "tcp+rs":
                assert near.extra_info == {}
            else:
                cipher, version, bits = near.extra_info["cipher"]
                assert version == "TLSv1.3"
                assert cipher is None or cipher.startswith("TLS_AES_") or "CHACHA20" in cipher
                assert cipher is None or bits in (128, 256)
                subject = dict(part for (part,) in near.extra_info["peercert"]["subject"])
                assert subject["commonName"] == "dask-internal"

    run(test())


@pytest.mark.parametrize("size", [0, 1, 15_000, 20_000, 1 << 20, 66 << 20])
def test_arrays_stay_writable_and_large_ones_are_not_copied(pair, size):
    async def test():
        array = np.arange(size, dtype="u1")
        async with pair:
            sending = asyncio.create_task(pair.near.write({"x": to_serialize(array)}))
            received = (await pair.far.read())["x"]
            await sending
            np.testing.assert_array_equal(received, array)
            assert received.flags.writeable
            if size >= 20_000:
                # The array is a view of the transport's memory, even if it was received in
                # several frames.
                memory = received
                while hasattr(memory, "base"):
                    memory = memory.base
                memory = memory.obj if isinstance(memory, memoryview) else memory
                assert type(memory).__name__ == "Frame"

    run(test())


def test_a_buffer_is_free_once_it_is_sent(pair):
    async def test():
        data = bytearray(1 << 20)
        async with pair:
            await pair.near.write({"x": to_serialize(memoryview(data))})
            await pair.far.read()
            for _ in range(1000):
                try:
                    # Fails while the buffer is exported.
                    data.append(0)
                    break
                except BufferError:
                    await asyncio.sleep(0.01)
            else:
                raise AssertionError("the buffer is still held")

    run(test())


def test_what_was_written_before_closing_arrives(pair):
    async def test():
        async with pair:
            await pair.near.write({"x": to_serialize(np.zeros(30 << 20, "u1"))})
            await pair.near.write({"last": 1})
            closing = asyncio.create_task(pair.near.close())
            assert (await pair.far.read())["x"].nbytes == 30 << 20
            assert await pair.far.read() == {"last": 1}
            with pytest.raises(CommClosedError):
                await pair.far.read()
            assert pair.far.closed()
            await closing
            assert pair.near.closed()
            with pytest.raises(CommClosedError):
                await pair.near.write({})

    run(test())


def test_a_peer_that_writes_gets_what_was_written_before_closing(pair):
    """Closing does not refuse what the peer writes: a refusal would end its reading too."""

    async def test():
        async with pair:
            await pair.near.write({"x": to_serialize(np.zeros(30 << 20, "u1"))})
            closing = asyncio.create_task(pair.near.close())
            await asyncio.sleep(0)
            for _ in range(100):
                await pair.far.write({"heartbeat": 1})
            assert (await pair.far.read())["x"].nbytes == 30 << 20
            with pytest.raises(CommClosedError):
                await pair.far.read()
            await closing
            await pair.far.close()

    run(test())


def test_both_ends_close_while_one_writes_much(pair):
    """The peer writes more than a closed comm still receives."""

    async def test():
        async with pair:
            message = {"x": to_serialize(np.zeros(30 << 20, "u1"))}
            writes = [asyncio.create_task(pair.far.write(message)) for _ in range(4)]
            await pair.near.write(message)
            closing = asyncio.create_task(pair.near.close())
            assert (await pair.far.read())["x"].nbytes == 30 << 20
            for outcome in await asyncio.gather(*writes, return_exceptions=True):
                assert isinstance(outcome, (int, CommClosedError)), outcome
            await closing
            await pair.far.close()

    run(test())


def test_closing_does_not_wait_for_a_peer_that_does_not_read(pair):
    async def test():
        async with pair:
            message = {"x": to_serialize(np.zeros(30 << 20, "u1"))}
            writes = [asyncio.create_task(pair.near.write(message)) for _ in range(4)]
            await pair.far.read()
            await pair.near.close()
            await asyncio.gather(*writes, return_exceptions=True)
            pair.far.abort()

    run(test())


def test_writers_wait_side_by_side(pair):
    async def test():
        async with pair:
            message = {"x": to_serialize(np.zeros(40 << 20, "u1"))}
            writing = [asyncio.create_task(pair.near.write(message)) for _ in range(3)]
            for _ in writing:
                await pair.far.read()
            await asyncio.gather(*writing)

    run(test())


def test_abort_is_noticed_by_the_peer(pair):
    async def test():
        async with pair:
            pair.near.abort()
            assert pair.near.closed()
            with pytest.raises(CommClosedError):
                await pair.far.read()

    run(test())


def test_what_was_written_before_an_abort_arrives(pair):
    """An aborted comm delivers what was written, as the operating system does for Dask's TCP."""

    async def test():
        for _ in range(30):
            async with pair:
                await pair.near.write("last")
                pair.near.abort()
                assert await pair.far.read() == "last"
                with pytest.raises(CommClosedError):
                    await pair.far.read()

    run(test())


def test_what_was_written_before_a_cancelled_close_arrives(pair):
    async def test():
        for _ in range(30):
            async with pair:
                await pair.near.write("x" * 50_000)
                closing = asyncio.create_task(pair.near.close())
                await asyncio.sleep(0)
                closing.cancel()
                await asyncio.gather(closing, return_exceptions=True)
                assert await pair.far.read() == "x" * 50_000
                with pytest.raises(CommClosedError):
                    await pair.far.read()

    run(test())


def test_a_cancelled_read_ends_the_comm(pair):
    async def test():
        async with pair:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(pair.near.read(), 0.05)
            assert pair.near.closed()

    run(test())


def test_a_writer_waits_for_a_reader_that_does_not_read(pair):
    async def test():
        async with pair:
            message = {"x": to_serialize(np.zeros(8 << 20, "u1"))}

            async def write():
                for _ in range(20):
                    await pair.near.write(message)

            writing = asyncio.create_task(write())
            await asyncio.wait([writing], timeout=1)
            assert not writing.done()
            for _ in range(20):
                await pair.far.read()
            await writing

    run(test())


def test_messages_keep_their_order_if_the_socket_is_full(pair):
    """Messages of all sizes: those sent at once, those that wait, and those that are queued."""

    async def test():
        sizes = [10, 60_000, 20_000, 100_000, 0]
        messages = [(number, bytes(sizes[number % 5])) for number in range(600)]

        async def write():
            for number, data in messages:
                await pair.near.write({"number": number, "data": data})

        async with pair:
            writing = asyncio.create_task(write())
            # The reader starts when the writer waits, or has filled the buffers.
            await asyncio.wait([writing], timeout=0.5)
            for number, data in messages:
                assert await pair.far.read() == {"number": number, "data": data}
            await writing
            await pair.near.write("next")
            assert await pair.far.read() == "next"

    run(test())


def test_the_comms_of_a_loop_leave_no_files_open(pair):
    """As Dask's test_file_descriptors_dont_leak."""

    async def use():
        async with pair:
            await pair.near.write("message")
            assert await pair.far.read() == "message"

    async def begin():
        # The first comms start threads, which do not end.
        await use()
        await asyncio.sleep(1.5)

    async def test():
        before = psutil.Process().num_fds()
        await use()
        end = time.monotonic() + 30
        while psutil.Process().num_fds() > before:
            assert time.monotonic() < end, (before, psutil.Process().num_fds())
            await asyncio.sleep(0.01)

    run(begin())
    del pair.near, pair.far, pair.listener, pair.done
    gc.collect()
    run(test())


def test_a_dangling_comm_is_reported_and_ended(pair, caplog):
    async def test():
        async with pair:
            with caplog.at_level(logging.WARNING, "daskwire.comm"):
                del pair.near
                gc.collect()
            assert "Closing dangling stream" in caplog.text
            with pytest.raises(CommClosedError):
                await pair.far.read()
            pair.near = pair.far

    run(test())


def test_the_congestion_control_of_quic_is_a_setting(listen_args, connect_args):
    async def test():
        with dask.config.set({"distributed.comm.quic.congestion": "bbr"}):
            async with Pair("quic", listen_args, connect_args) as pair:
                await pair.near.write({"data": 1})
                assert await pair.far.read() == {"data": 1}
        with dask.config.set({"distributed.comm.quic.congestion": "fast"}):
            with pytest.raises(ValueError, match="\"fast\", not 'cubic' or 'bbr'"):
                await connect("quic://127.0.0.1:1", **connect_args)

    run(test())


def test_nobody_listens(connect_args):
    async def test():
        with pytest.raises(OSError, match="Timed out trying to connect"):
            await connect("tcp+rs://127.0.0.1:1", timeout=0.3)
        with pytest.raises(OSError):
            await connect("quic://127.0.0.1:1", timeout=0.3, **connect_args)

    run(test())


def test_a_port_in_use_is_an_error():
    async def test():
        async def handle(comm):
            pass

        first = await listen("tcp+rs://127.0.0.1:0", handle)
        with pytest.raises(OSError):
            await listen(first.listen_address, handle)
        first.stop()

    run(test())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_port_is_free_again_at_once(scheme, listen_args, connect_args):
    """A port can be used again although a QUIC connection keeps its socket for a second."""

    async def round_trip(address):
        async def echo(comm):
            await comm.write(await comm.read())
            await comm.close()

        listener = await listen(address, echo, **arguments(scheme, listen_args))
        address = listener.contact_address
        comm = await connect(address, **arguments(scheme, connect_args))
        await comm.write("question")
        assert await comm.read() == "question"
        listener.stop()
        await comm.close()
        return address

    async def test():
        address = await round_trip(f"{scheme}://127.0.0.1:0")
        for _ in range(3):
            assert await round_trip(address) == address

    run(test())


def test_a_peer_that_does_not_greet_is_disconnected():
    async def test():
        async def handle(_):
            raise AssertionError("there was no handshake")

        with dask.config.set({"distributed.comm.timeouts.connect": "200ms"}):
            listener = await listen("tcp+rs://127.0.0.1:0", handle)
            reader, writer = await asyncio.open_connection(*listener.get_host_port())
            # The listener's part of the handshake, and then the end.
            assert await reader.read()
            writer.close()
            listener.stop()

    run(test())


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and TCP_USER_TIMEOUT")
@pytest.mark.parametrize("scheme", ["tcp+rs", "tls+rs"])
def test_connections_have_the_timeout_of_the_configuration(scheme, listen_args, connect_args):
    def timeouts(port):
        """The timeouts in seconds of the sockets of this process that are connected to a port."""
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                with socket.socket(fileno=os.dup(int(descriptor))) as end:
                    if end.getpeername()[1] == port:
                        yield end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
            except (IndexError, OSError):
                continue

    async def test():
        pair = Pair(scheme, listen_args, connect_args)
        with dask.config.set({"distributed.comm.timeouts.tcp": "1 minute"}):
            async with pair:
                near, far = pair.near.local_address, pair.far.local_address
                ports = [int(address.rpartition(":")[2]) for address in (near, far)]
                assert [list(timeouts(port)) for port in ports] == [[60], [60]]

    run(test())


def test_the_server_name_is_sent(listen_args, connect_args):
    async def test():
        names = []
        context = listen_args["ssl_context"]
        context.sni_callback = lambda ssl_object, name, context: names.append(name)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", ssl=context)
        address = f"tls+rs://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        arguments = {**connect_args, "server_hostname": "scheduler.example"}
        connecting = asyncio.create_task(connect(address, timeout=30, **arguments))
        while not names:
            await asyncio.sleep(0.01)
        connecting.cancel()
        server.close()
        assert set(names) == {"scheduler.example"}

    run(test())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_arguments_for_other_transports_are_ignored(scheme, listen_args, connect_args):
    """As over Dask's TCP. They come from `Security(extra_conn_args=...)`."""

    async def test():
        extra = Security(extra_conn_args={"headers": {"Authorization": "token"}})
        extra = extra.get_connection_args("client")["extra_conn_args"]
        pair = Pair(scheme, listen_args, connect_args)
        pair.connect_args |= {"extra_conn_args": extra}
        async with pair:
            await pair.near.write("message")
            assert await pair.far.read() == "message"

    run(test())


@pytest.mark.parametrize("scheme", ["tls+rs", "quic"])
def test_failed_handshakes_are_reported(scheme, listen_args, caplog):
    async def test():
        async def handle(comm):
            pass

        listener = await listen(f"{scheme}://127.0.0.1:0", handle, **listen_args)
        stranger = Security.temporary().get_connection_args("client")
        with pytest.raises(FatalCommClosedError):
            await connect(listener.contact_address, timeout=30, **stranger)
        start = f"Listener on '{listener.listen_address}': handshake failed with remote '{scheme}://"
        while not any(
            record.levelno == logging.WARNING and record.getMessage().startswith(start)
            for record in caplog.records
        ):
            await asyncio.sleep(0.01)
        listener.stop()

    run(test())


def test_the_end_of_a_listener_is_reported(caplog):
    async def test():
        async def handle(comm):
            pass

        class Ended:
            def accept(self, notifier, token):
                raise OSError("the reason")

        listener = await listen("tcp+rs://127.0.0.1:0", handle)
        await listener._accept(Ended())
        [record] = [record for record in caplog.records if record.name == "daskwire.comm"]
        assert record.levelno == logging.ERROR
        assert "the reason" in record.getMessage()
        listener.stop()

    run(test())


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_local_addresses_are_of_the_family_of_the_peer(monkeypatch):
    # As in releases up to 2025.3.0.
    monkeypatch.setattr("daskwire.comm.get_ip", lambda host: "127.0.0.1")
    backend = registry.get_backend("quic")
    assert backend.get_local_address_for("[::1]:8786") == "[::1]"
    assert backend.get_local_address_for("127.0.0.1:8786") == "127.0.0.1"
    assert _concrete("0.0.0.0:1", "[::1]:2") == "[::1]:1"


@pytest.mark.parametrize("scheme", ["tls+rs", "quic"])
def test_a_peer_of_another_authority_is_refused_at_once(scheme, listen_args):
    async def test():
        async def handle(comm):
            pass

        listener = await listen(f"{scheme}://127.0.0.1:0", handle, **listen_args)
        stranger = Security.temporary().get_connection_args("client")
        with pytest.raises(FatalCommClosedError, match="(?i)certificate"):
            await connect(listener.contact_address, timeout=30, **stranger)
        listener.stop()

    run(test())


def test_encryption_can_be_required(listen_args, connect_args):
    async def test():
        async def handle(comm):
            pass

        required = {**connect_args, "require_encryption": True}
        with pytest.raises(RuntimeError, match="encryption required"):
            await connect("tcp+rs://127.0.0.1:1", **required)
        with pytest.raises(RuntimeError, match="encryption required"):
            await listen("tcp+rs://127.0.0.1:0", handle, require_encryption=True)
        required = {**listen_args, "require_encryption": True}
        listener = await listen("quic://127.0.0.1:0", handle, **required)
        listener.stop()

    run(test())


@pytest.mark.parametrize("scheme", ["tls+rs", "quic"])
def test_certificates_are_needed(scheme):
    async def test():
        with pytest.raises(TypeError, match="ssl_context"):
            await connect(f"{scheme}://127.0.0.1:1")

    run(test())


def test_only_a_context_of_the_configuration_may_have_been_made_before(security, tmp_path):
    """A process may import this package only after it has created a context."""
    import ssl

    import dask

    from daskwire._security import _ATTRIBUTE, settings_of

    paths = {}
    for name, pem in [("ca", security.tls_ca_file), ("key", security.tls_scheduler_key)]:
        paths[name] = tmp_path / f"{name}.pem"
        paths[name].write_text(pem)
    tls = {"distributed.comm.tls.ca-file": str(paths["ca"])}
    for role in ["client", "scheduler", "worker"]:
        tls[f"distributed.comm.tls.{role}.cert"] = str(paths["ca"])
        tls[f"distributed.comm.tls.{role}.key"] = str(paths["key"])

    def without_note(context):
        delattr(context, _ATTRIBUTE)
        return context

    with dask.config.set(tls):
        own = Security().get_connection_args("client")["ssl_context"]
        assert settings_of(without_note(own)).cert == security.tls_ca_file
        with pytest.raises(ValueError, match="is not what Dask's configuration makes"):
            settings_of(ssl.create_default_context())


def test_renewed_certificates_are_read_again(security, tmp_path):
    from daskwire._security import settings_of

    files = {}
    for name in ["ca", "key"]:
        files[name] = tmp_path / f"{name}.pem"
    for issued in [security, Security.temporary()]:
        files["ca"].write_text(issued.tls_ca_file)
        files["key"].write_text(issued.tls_client_key)
        from_files = Security(
            tls_ca_file=str(files["ca"]),
            tls_client_cert=str(files["ca"]),
            tls_client_key=str(files["key"]),
        )
        settings = settings_of(from_files.get_connection_args("client")["ssl_context"])
        assert settings.cert == issued.tls_ca_file
        assert settings.key == issued.tls_client_key
        assert issued.tls_client_key not in repr(settings)


def test_comments_beside_certificates_may_have_any_encoding(security, tmp_path):
    file = tmp_path / "ca.pem"
    file.write_bytes("Beh\xf6rde\n".encode("latin-1") + security.tls_ca_file.encode())
    own = Security(
        tls_ca_file=str(file),
        tls_scheduler_cert=security.tls_scheduler_cert,
        tls_scheduler_key=security.tls_scheduler_key,
    )

    async def test():
        listener = await listen("tls+rs://127.0.0.1:0", None, **own.get_listen_args("scheduler"))
        listener.stop()

    run(test())


def test_a_context_from_elsewhere_says_what_to_do():
    import ssl

    async def test():
        context = ssl.create_default_context()
        with pytest.raises(ValueError, match="import daskwire"):
            await connect("quic://127.0.0.1:1", ssl_context=context)
        with pytest.raises(ValueError, match="import daskwire"):
            await listen("quic://127.0.0.1:0", None, ssl_context=context)

    run(test())


@pytest.mark.parametrize("theirs, ours", [("tcp", "tcp+rs"), ("tls", "tls+rs")])
def test_the_transports_of_dask_are_understood(theirs, ours, listen_args, connect_args):
    async def echo(comm):
        try:
            while True:
                await comm.write({"x": to_serialize((await comm.read())["x"])})
        except CommClosedError:
            pass

    async def test(listening, connecting):
        listen_with = arguments("tcp+rs" if "tcp" in theirs else "tls", listen_args)
        connect_with = arguments("tcp+rs" if "tcp" in theirs else "tls", connect_args)
        listener = await listen(f"{listening}://127.0.0.1:0", echo, **listen_with)
        address = listener.contact_address.replace(listening, connecting, 1)
        comm = await connect(address, **connect_with)
        for size in (10, 100_000, 66 << 20):
            array = np.arange(size, dtype="u1")
            writing = asyncio.create_task(comm.write({"x": to_serialize(array)}))
            np.testing.assert_array_equal((await comm.read())["x"], array)
            await writing
        await comm.close()
        listener.stop()

    run(test(theirs, ours))
    run(test(ours, theirs))
