"""Connections over the Rust transports for `daskwire.comm`, and the command `daskwire`."""

from typing import Any

def run_command(arguments: list[str]) -> int:
    """Runs the command, whose name is the first argument, and returns its exit status."""

def close_all(
    connections: list[Connection], transports: list[Transports], seconds: float
) -> None:
    """Closes connections, and then the transports with the connections that comms share.

    Waits for at most `seconds`.
    """

def forget(object: Any) -> None:
    """Leaks an object inherited by a fork, which must not be dropped in this process."""

class ConnectionClosed(Exception):
    """The connection has ended, or could not be made."""

class ConnectionRefused(Exception):
    """The connection could not be made, and no other attempt would succeed."""

class Notifier:
    """Wakes an event loop when operations have finished."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """Returns the file descriptor of the socket to watch."""
    def take(self) -> list[int]:
        """Returns the tokens of operations that have finished since the last call."""

class Transports:
    """The transports for `tcp`, `tls` and `quic`."""

    def __init__(
        self,
        shard_len: int,
        timeout: float = 30.0,
        ca_file: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        ciphers: str | None = None,
        min_version: str | None = None,
        max_version: str | None = None,
        congestion: str | None = None,
        server_name: str | None = None,
    ) -> None: ...
    def connect(
        self, notifier: Notifier, scheme: str, location: str, timeout: float
    ) -> Connecting:
        """Begins an attempt to connect, which takes at most `timeout` seconds."""
    def listen(
        self, notifier: Notifier, scheme: str, location: str, timeout: float
    ) -> Binding:
        """Begins to listen. A handshake of the transport takes at most `timeout` seconds."""

class Connecting:
    """An attempt to connect. Dropping it cancels the attempt."""

    def take(self, notifier: Notifier, token: int) -> Connection | None:
        """Returns the connection, or returns `None` and later wakes the operation `token`."""
    def cancel(self) -> None:
        """Cancels the attempt."""

class Binding:
    """A listener that is being bound."""

    def take(self, notifier: Notifier, token: int) -> Listener | None:
        """Returns the listener, or returns `None` and later wakes the operation `token`."""

class Listener:
    """A listener. Dropping it stops it."""

    @property
    def host(self) -> str:
        """The host that the listener is bound to."""
    @property
    def port(self) -> int:
        """The port that the listener is bound to."""
    def accept(
        self, notifier: Notifier, token: int
    ) -> Connection | tuple[str, str] | None:
        """Returns the next connection, or returns `None` and later wakes `token`.

        For a failed connection, returns the address of its peer and the error. The address is
        empty if the system refused to accept any, for example with too many open files.
        """
    def stop(self) -> None:
        """Stops accepting connections."""

class Connection:
    """A connection that carries messages."""

    def read(
        self, notifier: Notifier, token: int
    ) -> list[bytes | memoryview] | None:
        """Returns the frames of the next message, or returns `None` and later wakes `token`."""
    def write(self, frames: list[Any]) -> bool:
        """Queues a message for sending.

        Returns whether the queue exceeds its limit, so that the writer should wait until
        `is_drained`.
        """
    def is_drained(self, notifier: Notifier, token: int) -> bool:
        """Returns whether the queue is within its limit; if not, later wakes `token`."""
    def close(self) -> Closing:
        """Begins to close the connection. Queued messages are sent first."""
    def abort(self) -> None:
        """Ends the connection at once for the local side."""
    @property
    def closed(self) -> bool:
        """Whether the connection has ended and all messages received before were read."""
    @property
    def local(self) -> str:
        """The local address without its scheme."""
    @property
    def peer(self) -> str:
        """The address of the peer without its scheme."""
    @property
    def encryption(self) -> tuple[str, str | None, bytes | None] | None:
        """The TLS version, the cipher suite if known, and the peer's certificate in DER.

        `None` if the connection is not encrypted.
        """

class Closing:
    """A connection that is being closed."""

    def is_done(self, notifier: Notifier, token: int) -> bool:
        """Returns whether the connection is closed; if not, later wakes `token`."""

class Frame:
    """The memory of received frames. Views share it and may modify it."""

    def __len__(self) -> int: ...
