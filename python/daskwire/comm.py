"""Comms, connectors and listeners of ``distributed`` over the Rust transports."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import socket
import ssl
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import dask
from dask.utils import parse_bytes, parse_timedelta
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import (
    BaseListener,
    Comm,
    CommClosedError,
    Connector,
    FatalCommClosedError,
)
from distributed.comm.registry import Backend
from distributed.comm.utils import ensure_concrete_host, from_frames, to_frames
from distributed.utils import ensure_ip, ensure_memoryview, get_ip

from daskwire import _native
from daskwire._security import TlsSettings, settings_of

logger = logging.getLogger(__name__)

# The size of the frames into which Dask splits buffers.
_SHARD = parse_bytes(dask.config.get("distributed.comm.shard"))


class _Operations:
    """The operations of one event loop that wait for Rust threads."""

    _of_loops: ClassVar[weakref.WeakKeyDictionary[Any, _Operations]] = (
        weakref.WeakKeyDictionary()
    )
    # Notifiers that no loop uses. They are kept for other loops, because threads may still hand
    # buffers to them.
    _unused: ClassVar[list[_native.Notifier]] = []
    # Unique among all loops, as threads may still finish operations of an ended loop.
    _tokens: ClassVar[itertools.count[int]] = itertools.count()

    def __init__(self, loop: asyncio.AbstractEventLoop):
        # A closed loop may live on for long. The dictionary may change in another thread meanwhile.
        with contextlib.suppress(RuntimeError):
            for other, operations in list(self._of_loops.items()):
                if other.is_closed():
                    operations._give_up(other)
        try:
            self.notifier = self._unused.pop()
        except IndexError:
            self.notifier = _native.Notifier()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._user_count = 0
        self._loop = weakref.ref(loop)
        self._process = os.getpid()
        self._finalizer = weakref.finalize(loop, _keep, self.notifier, self._process)
        self._finalizer.atexit = False
        loop.add_reader(self.notifier.fileno(), self._wake)

    @classmethod
    def current(cls) -> _Operations:
        """The operations of the running loop."""
        loop = asyncio.get_running_loop()
        operations = cls._of_loops.get(loop)
        if operations is None:
            operations = cls._of_loops[loop] = cls(loop)
        return operations

    def begin_use(self) -> None:
        """Keeps the notifier until `end_use`."""
        self._user_count += 1

    def end_use(self) -> None:
        """Ends a use. Without uses, the loop soon gives up the notifier."""
        self._user_count -= 1
        if self._user_count != 0 or self._process != os.getpid():
            return
        loop = self._loop()
        if loop is not None:
            # The loop may be closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.call_later, _UNUSED_TIME, self._stop)

    def _stop(self) -> None:
        loop = self._loop()
        # Another call may have given up the notifier, which may be in use again.
        if self._user_count == 0 and loop is not None and self._finalizer.alive:
            loop.remove_reader(self.notifier.fileno())
            self._give_up(loop)

    def _give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._finalizer.detach():
            self._of_loops.pop(loop, None)
            _keep(self.notifier, self._process)

    def _wake(self) -> None:
        for token in self.notifier.take():
            future = self._waiting.pop(token, None)
            if future is not None and not future.done():
                future.set_result(None)

    async def until(self, attempt: Callable[[_native.Notifier, int], Any]) -> Any:
        """The first result of ``attempt`` that is neither ``None`` nor ``False``."""
        self.begin_use()
        try:
            return await self._until(attempt)
        finally:
            self.end_use()

    async def _until(self, attempt: Callable[[_native.Notifier, int], Any]) -> Any:
        while True:
            token = next(self._tokens)
            result = attempt(self.notifier, token)
            if result is not None and result is not False:
                return result
            future = asyncio.get_running_loop().create_future()
            self._waiting[token] = future
            try:
                await future
            finally:
                self._waiting.pop(token, None)


def _keep(notifier: _native.Notifier, process: int) -> None:
    # A forked process must not use the sockets of its parent.
    if process == os.getpid():
        _Operations._unused.append(notifier)


# The time after which an event loop without comms and listeners gives up its notifier, in seconds.
_UNUSED_TIME = 1.0

_all_transports: weakref.WeakSet[_native.Transports] = weakref.WeakSet()


def _transports(settings: TlsSettings | None) -> _native.Transports:
    """The transports with these settings, which share connections over QUIC."""
    congestion = dask.config.get("distributed.comm.quic.congestion", "cubic")
    timeout = parse_timedelta(dask.config.get("distributed.comm.timeouts.tcp"))
    return _cached_transports(settings, congestion, float(timeout))


@lru_cache(maxsize=64)
def _cached_transports(
    settings: TlsSettings | None, congestion: str, timeout: float
) -> _native.Transports:
    transports = _make_transports(settings, congestion, timeout)
    _all_transports.add(transports)
    return transports


def _make_transports(
    settings: TlsSettings | None, congestion: str, timeout: float
) -> _native.Transports:
    if settings is None:
        return _native.Transports(_SHARD, timeout)
    return _native.Transports(
        _SHARD,
        timeout,
        settings.ca_file,
        settings.cert,
        settings.key,
        settings.ciphers,
        settings.min_version,
        settings.max_version,
        congestion,
        settings.server_name,
    )


class RustComm(Comm):
    """A comm over a transport in Rust."""

    max_shard_size: ClassVar[int] = _SHARD

    def __init__(
        self,
        connection: _native.Connection,
        local_addr: str,
        peer_addr: str,
        deserialize: bool = True,
    ):
        self._connection: _native.Connection | None = connection
        self._local_addr = local_addr
        self._peer_addr = peer_addr
        super().__init__(deserialize=deserialize)
        self._operations = _Operations.current()
        self._operations.begin_use()
        self._encryption = connection.encryption
        _comms.add(self)
        self._finalizer = weakref.finalize(
            self, _abandon, connection, self._operations, repr(self)
        )
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    @property
    def extra_info(self) -> dict[str, Any]:
        return _extra_info(self._encryption)

    async def read(self, deserializers: Any = None) -> Any:
        connection = self._open()
        try:
            frames = await self._operations.until(connection.read)
        except _native.ConnectionClosed as error:
            # The traceback refers to the connection, maybe until the garbage collector runs.
            self.abort()
            raise CommClosedError(f"in {self}: {error}") from error
        except BaseException:
            # As in Dask's own transports, a cancelled read ends the comm.
            self.abort()
            raise
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError as error:
            self.abort()
            raise CommClosedError("aborted stream on truncated data") from error

    async def write(
        self, msg: Any, serializers: Any = None, on_error: str = "message"
    ) -> int:
        self._open()
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
            },
            frame_split_size=self.max_shard_size,
        )
        frames = [
            frame if type(frame) is bytes else ensure_memoryview(frame)
            for frame in frames
        ]
        connection = self._open()
        try:
            if connection.write(frames):
                await self._operations.until(connection.is_drained)
        except _native.ConnectionClosed as error:
            self.abort()
            raise CommClosedError(f"in {self}: {error}") from error
        except BaseException:
            self.abort()
            raise
        return sum(
            frame.nbytes if isinstance(frame, memoryview) else len(frame)
            for frame in frames
        )

    async def close(self) -> None:
        connection = self._ended()
        if connection is not None:
            closing = self._operations.until(connection.close().is_done)
            try:
                await asyncio.wait_for(closing, _CLOSE_TIMEOUT)
            except asyncio.TimeoutError:
                # The rest is sent in the background.
                pass
            except BaseException:
                connection.abort()
                raise

    def abort(self) -> None:
        connection = self._ended()
        if connection is not None:
            connection.abort()

    def closed(self) -> bool:
        return self._connection is None or self._connection.closed

    def _open(self) -> _native.Connection:
        if self._connection is None:
            raise CommClosedError(f"in {self}: the comm is closed")
        return self._connection

    def _ended(self) -> _native.Connection | None:
        connection, self._connection = self._connection, None
        if self._finalizer.detach():
            self._operations.end_use()
        return connection


def _concrete(local: str, peer: str) -> str:
    """`local`, with a wildcard host replaced by the address of this host that reaches `peer`.

    The sockets of QUIC are bound to all addresses.
    """
    host, port = parse_host_port(local, 0)
    if host not in ("0.0.0.0", "::"):
        return local
    peer_host, _ = parse_host_port(peer, 0)
    return unparse_host_port(_local_ip(peer_host), port)


def _local_ip(peer_host: str) -> str:
    """The address of this host that reaches `peer_host`."""
    ip = ensure_ip(peer_host)
    if ":" in ip:
        # `get_ip` of releases up to 2025.3.0 has IPv4 addresses only, and later ones deprecate
        # `get_ipv6`.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe,
        ):
            # Sends nothing.
            probe.connect((ip, 80))
            return probe.getsockname()[0]
    return get_ip(ip)


def _abandon(connection: _native.Connection, operations: _Operations, name: str) -> None:
    if not connection.closed:
        logger.warning(f"Closing dangling stream in {name}")
    connection.abort()
    loop = operations._loop()
    if loop is not None:
        # The garbage collector may run in any thread, and the loop may be closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(operations.end_use)


@lru_cache(maxsize=1024)
def _extra_info(encryption: tuple[str, str | None, bytes | None] | None) -> dict[str, Any]:
    """``peercert`` and ``cipher`` in the form of ``SSLSocket``, and the certificate in DER."""
    if encryption is None:
        return {}
    version, cipher, certificate = encryption
    if cipher is not None:
        cipher = cipher.replace("TLS13_", "TLS_")
    extra: dict[str, Any] = {
        "cipher": (cipher, version.replace("_", "."), _secret_bits(cipher))
    }
    if certificate is not None:
        extra["peercert_der"] = certificate
        extra["peercert"] = _decode_certificate(certificate)
    return extra


def _secret_bits(cipher: str | None) -> int | None:
    if cipher is None:
        return None
    return 128 if "AES_128" in cipher else 256


def _decode_certificate(der: bytes) -> dict[str, Any]:
    """The certificate as `SSLSocket.getpeercert()` returns it; empty if it cannot be decoded."""
    # Only this function, which CPython has for its own tests, converts DER to that form.
    decode = getattr(ssl._ssl, "_test_decode_cert", None)
    if decode is None:
        return {}
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(ssl.DER_cert_to_PEM_cert(der))
            file.flush()
            return decode(file.name)
    except OSError:
        return {}


# The comms and listeners of this process.
_comms: weakref.WeakSet[RustComm] = weakref.WeakSet()
_listeners: weakref.WeakSet[_RustListener] = weakref.WeakSet()

# The time when the last listener at each port was stopped. Its socket is closed in the
# background, and later if connections over QUIC use it, so a new listener may have to wait for
# the port.
_stopped: dict[int, float] = {}

# The maximum time that a new listener waits for the port of a stopped one, in seconds.
_PORT_TIMEOUT = 5.0

# The maximum time that closing a comm waits for the peer to receive all data, in seconds.
_CLOSE_TIMEOUT = 5.0

# The maximum time that the end of the process waits for peers to receive all data, in seconds.
_EXIT_TIMEOUT = 1.0


def _close_all() -> None:
    """Closes all comms, so that peers notice the end of this process at once.

    The operating system does this for TCP, but not for QUIC.
    """
    open_comms = [comm._ended() for comm in list(_comms)]
    connections = [connection for connection in open_comms if connection is not None]
    if connections or _all_transports:
        _native.close_all(connections, list(_all_transports), _EXIT_TIMEOUT)


def _leave_to_parent() -> None:
    """Leaks the comms and listeners inherited from the parent process by a fork.

    The threads that do their I/O exist in the parent process only.
    """
    for comm in list(_comms):
        connection = comm._ended()
        if connection is not None:
            _native.forget(connection)
    for listener in list(_listeners):
        if listener._listener is not None:
            _native.forget(listener._listener)
            listener._listener = None
        listener._accepting = None
    operations = list(_Operations._of_loops.values())
    _native.forget((list(_all_transports), operations, list(_Operations._unused)))
    _comms.clear()
    _listeners.clear()
    _all_transports.clear()
    _Operations._of_loops.clear()
    _Operations._unused.clear()
    _cached_transports.cache_clear()


os.register_at_fork(after_in_child=_leave_to_parent)
# A finalizer, as these run after the exit functions by which Dask closes its clients and
# clusters: those still need their comms.
weakref.finalize(RustComm, _close_all)


class Tcp(RustComm):
    """A comm over ``tcp+rs://``."""


class Tls(RustComm):
    """A comm over ``tls+rs://``."""


class Quic(RustComm):
    """A comm over ``quic://``: a stream of a connection shared by all comms with a peer."""


class _Scheme:
    """The common base of the connector and the listener of a scheme."""

    prefix: ClassVar[str]
    scheme: ClassVar[str]
    comm_class: ClassVar[type[RustComm]]
    encrypted: ClassVar[bool]

    def _transports(self, address: str, connection_args: dict[str, Any]) -> Any:
        if not self.encrypted:
            if connection_args.get("require_encryption"):
                raise RuntimeError(
                    "encryption required by Dask configuration, "
                    f"refusing communication from/to {self.prefix + address!r}"
                )
            return _transports(None)
        settings = settings_of(connection_args.get("ssl_context"))
        server_name = connection_args.get("server_hostname") or None
        return _transports(replace(settings, server_name=server_name))

    def _comm(
        self, connection: _native.Connection, peer_addr: str, deserialize: bool
    ) -> RustComm:
        try:
            local_addr = self.prefix + _concrete(connection.local, connection.peer)
            return self.comm_class(connection, local_addr, peer_addr, deserialize)
        except BaseException:
            connection.abort()
            raise


class _TcpScheme(_Scheme):
    prefix = "tcp+rs://"
    scheme = "tcp"
    comm_class = Tcp
    encrypted = False


class _TlsScheme(_Scheme):
    prefix = "tls+rs://"
    scheme = "tls"
    comm_class = Tls
    encrypted = True


class _QuicScheme(_Scheme):
    prefix = "quic://"
    scheme = "quic"
    comm_class = Quic
    encrypted = True


class _RustConnector(Connector, _Scheme):
    async def connect(
        self, address: str, deserialize: bool = True, **connection_args: Any
    ) -> RustComm:
        transports = self._transports(address, connection_args)
        host, port = parse_host_port(address)
        operations = _Operations.current()
        timeout = parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))
        try:
            connecting = transports.connect(
                operations.notifier,
                self.scheme,
                unparse_host_port(host, port),
                float(timeout),
            )
            try:
                connection = await operations.until(connecting.take)
            except BaseException:
                connecting.cancel()
                raise
        except _native.ConnectionRefused as error:
            raise FatalCommClosedError(f"in {self}: {error}") from error
        except _native.ConnectionClosed as error:
            raise CommClosedError(f"in {self}: {error}") from error
        return self._comm(connection, self.prefix + address, deserialize)


class TcpConnector(_TcpScheme, _RustConnector):
    """Connects over ``tcp+rs://``."""


class TlsConnector(_TlsScheme, _RustConnector):
    """Connects over ``tls+rs://``."""


class QuicConnector(_QuicScheme, _RustConnector):
    """Connects over ``quic://``."""


class _RustListener(BaseListener, _Scheme):
    def __init__(
        self,
        address: str,
        comm_handler: Callable[[Comm], Awaitable[None]],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ):
        super().__init__()
        self._native_transports = self._transports(address, connection_args)
        self.ip, self.port = parse_host_port(address, default_port)
        self.default_host = default_host
        self.comm_handler = comm_handler
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self._listener: _native.Listener | None = None
        self._name = self.prefix + address
        self._accepting: asyncio.Task[None] | None = None
        self._handling: set[asyncio.Task[None]] = set()
        _listeners.add(self)

    async def start(self) -> None:
        while True:
            try:
                self._listener = await self._bind()
                break
            except OSError as error:
                stopped = _stopped.get(int(self.port), float("-inf"))
                is_late = time.monotonic() - stopped >= _PORT_TIMEOUT
                if error.errno != errno.EADDRINUSE or is_late:
                    raise
            await asyncio.sleep(0.05)
        # Still needed by handshakes that end after `stop`.
        self._name = self.listen_address
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def _bind(self) -> _native.Listener:
        operations = _Operations.current()
        timeout = parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))
        binding = self._native_transports.listen(
            operations.notifier,
            self.scheme,
            unparse_host_port(self.ip, int(self.port)),
            float(timeout),
        )
        return await operations.until(binding.take)

    async def _accept(self, listener: _native.Listener) -> None:
        operations = _Operations.current()
        name = self._name
        while True:
            try:
                accepted = await operations.until(listener.accept)
            except Exception as error:
                logger.error("Listener on %r: no more connections: %s", name, error)
                return
            if isinstance(accepted, tuple):
                peer, error = accepted
                if peer:
                    self._warn_of_handshake(self.prefix + peer, error)
                else:
                    logger.warning(
                        "Listener on %r: cannot accept a connection: %s", name, error
                    )
                continue
            task = asyncio.create_task(self._handle(accepted))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)

    def _warn_of_handshake(self, peer: str, error: Any) -> None:
        logger.warning(
            "Listener on %r: handshake failed with remote %r: %s",
            self._name,
            peer,
            error,
        )

    async def _handle(self, connection: _native.Connection) -> None:
        comm = self._comm(connection, self.prefix + connection.peer, self.deserialize)
        comm.allow_offload = self.allow_offload
        if self._listener is None:
            comm.abort()
            return
        timeout = parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))
        try:
            # A silent peer would keep the connection open.
            await asyncio.wait_for(self.on_connection(comm), timeout)
        except (CommClosedError, asyncio.TimeoutError):
            comm.abort()
            logger.info(
                "Connection from %s closed before handshake completed",
                comm.peer_address,
            )
            return
        except Exception as error:
            # The message of the peer is not a handshake.
            comm.abort()
            self._warn_of_handshake(comm.peer_address, error)
            return
        except BaseException:
            comm.abort()
            raise
        await self.comm_handler(comm)

    def stop(self) -> None:
        listener, self._listener = self._listener, None
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting = None
        if listener is not None:
            listener.stop()
            _stopped[listener.port] = time.monotonic()

    def get_host_port(self) -> tuple[str, int]:
        """The host and port that the listener is bound to."""
        if self._listener is None:
            raise ValueError(
                f"invalid operation on non-started {type(self).__name__}"
            )
        return self._listener.host, self._listener.port

    @property
    def listen_address(self) -> str:
        return self.prefix + unparse_host_port(*self.get_host_port())

    @property
    def contact_address(self) -> str:
        host, port = self.get_host_port()
        host = ensure_concrete_host(host, default_host=self.default_host)
        return self.prefix + unparse_host_port(host, port)


class TcpListener(_TcpScheme, _RustListener):
    """Listens at ``tcp+rs://``."""


class TlsListener(_TlsScheme, _RustListener):
    """Listens at ``tls+rs://``."""


class QuicListener(_QuicScheme, _RustListener):
    """Listens at ``quic://``."""


class _RustBackend(Backend):
    _connector_class: ClassVar[type[_RustConnector]]
    _listener_class: ClassVar[type[_RustListener]]

    def get_connector(self) -> Connector:
        return self._connector_class()

    def get_listener(
        self,
        loc: str,
        handle_comm: Callable[[Comm], Awaitable[None]],
        deserialize: bool,
        **connection_args: Any,
    ) -> _RustListener:
        return self._listener_class(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        return parse_host_port(loc)[0]

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        return parse_host_port(loc)

    def resolve_address(self, loc: str) -> str:
        host, port = parse_host_port(loc)
        return unparse_host_port(ensure_ip(host), port)

    def get_local_address_for(self, loc: str) -> str:
        host, _ = parse_host_port(loc)
        return unparse_host_port(_local_ip(host), None)


class TcpBackend(_RustBackend):
    """``tcp+rs://``: the protocol of ``tcp://`` over the Rust transport."""

    _connector_class = TcpConnector
    _listener_class = TcpListener


class TlsBackend(_RustBackend):
    """``tls+rs://``: the protocol of ``tls://`` over the Rust transport."""

    _connector_class = TlsConnector
    _listener_class = TlsListener


class QuicBackend(_RustBackend):
    """``quic://``: QUIC over the Rust transport."""

    _connector_class = QuicConnector
    _listener_class = QuicListener
