"""Connections over the transports in Rust, and the command `daskwire`.

`daskwire.comm` uses the connections.
"""

from typing import Any

def run_command(arguments: list[str]) -> int:
    """Runs the command, whose name is the first argument, and returns its exit status."""

def close_all(
    connections: list[Connection], transports: list[Transports], seconds: float
) -> None:
    """Closes connections, and then what comms share, for at most `seconds`."""

def forget(object: Any) -> None:
    """Leaves an object to the process that this one was forked from, without dropping it."""

class ConnectionClosed(Exception):
    """The connection has ended, or could not be made."""

class ConnectionRefused(Exception):
    """The connection could not be made, and no other attempt would succeed."""

class Notifier:
    """Wakes an event loop when operations have finished."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """Returns the number of the socket to watch."""
    def take(self) -> list[int]:
        """Returns the tokens of operations that have finished since the last call."""

class Transports:
    """The transports for `tcp`, `tls` and `quic`."""

    def __init__(
        self,
        shard_len: int,
        ca_file: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        ciphers: str | None = None,
        min_version: str | None = None,
        max_version: str | None = None,
        congestion: str | None = None,
    ) -> None: ...
    def connect(
        self, notifier: Notifier, scheme: str, location: str, timeout: float
    ) -> Connecting:
        """Begins one attempt to connect, which takes at most `timeout` seconds."""
    def listen(
        self, notifier: Notifier, scheme: str, location: str, timeout: float
    ) -> Binding:
        """Begins to listen."""

class Connecting:
    """A connection that is being made."""

    def take(self, notifier: Notifier, token: int) -> Connection | None:
        """Returns the connection, or `None` until the operation `token` is woken."""
    def cancel(self) -> None:
        """Gives the attempt up."""

class Binding:
    """A listener that is being bound."""

    def take(self, notifier: Notifier, token: int) -> Listener | None:
        """Returns the listener, or `None` until the operation `token` is woken."""

class Listener:
    """A listener. Dropping it stops it."""

    @property
    def host(self) -> str:
        """The address that the listener is bound to."""
    @property
    def port(self) -> int:
        """The port that the listener is bound to."""
    def accept(self, notifier: Notifier, token: int) -> Connection | None:
        """Returns the next connection, or `None` until the operation `token` is woken."""
    def stop(self) -> None:
        """Stops accepting connections."""

class Connection:
    """A connection that carries messages."""

    def read(
        self, notifier: Notifier, token: int
    ) -> list[bytes | memoryview] | None:
        """Returns the frames of the next message, or `None` until `token` is woken."""
    def write(self, frames: list[Any]) -> bool:
        """Puts a message at the end of what is to be sent.

        Returns whether the writer should wait until less is left.
        """
    def is_drained(self, notifier: Notifier, token: int) -> bool:
        """Whether little enough is left to send; otherwise `token` is woken then."""
    def close(self) -> Closing:
        """Begins to close the connection: what was written is sent first."""
    def abort(self) -> None:
        """Ends the connection at once."""
    @property
    def closed(self) -> bool:
        """Whether the connection has ended and all messages before were read."""
    @property
    def local(self) -> str:
        """The location of this end, without its scheme."""
    @property
    def peer(self) -> str:
        """The location of the other end, without its scheme."""
    @property
    def encryption(self) -> tuple[str, str | None, bytes | None] | None:
        """The TLS version, the cipher suite if known, and the peer's certificate in DER."""

class Closing:
    """A connection that is being closed."""

    def is_done(self, notifier: Notifier, token: int) -> bool:
        """Whether the connection is closed; otherwise `token` is woken then."""

class Frame:
    """The memory of received frames, which views share and may change."""

    def __len__(self) -> int: ...
