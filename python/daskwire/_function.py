"""Functions that Rust workers provide."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client

# The attribute of a `functools.partial` that tells Rust workers which of their functions may
# replace it.
_REPLACED_BY = "daskwire_native"


def native(name: str, fallback: Callable[..., Any] | None = None) -> NativeFunction:
    """The function `name` of Rust workers, to be submitted like any function.

    Without a fallback, tasks run on Rust workers only. With one, a task runs on whichever
    worker is free first: Python workers run the fallback, and so do Rust workers that do not
    have the function but can run Python. Only the submitting process needs this package.

    >>> hypot = daskwire.native("hypot", fallback=math.hypot)
    >>> client.submit(hypot, 3, 4).result()
    5.0

    Parameters
    ----------
    name
        The name under which the function is registered with the Rust worker.
    fallback
        A Python function that gives the same result. Default: none.
    """
    return NativeFunction(name, fallback)


class NativeFunction:
    """A function that Rust workers provide, made by :func:`native`."""

    __slots__ = ("__name__", "__weakref__", "fallback")

    def __init__(self, name: str, fallback: Callable[..., Any] | None = None):
        if not isinstance(name, str):
            raise TypeError(f"the name of a function is a str, not {name!r}")
        if fallback is not None and not callable(fallback):
            raise TypeError(f"the fallback of {name} cannot be called: {fallback!r}")
        self.__name__ = name.removeprefix("native:")
        self.fallback = fallback

    @property
    def name(self) -> str:
        """The name under which the function is registered with workers."""
        return self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the fallback in this process.

        Raises
        ------
        NotImplementedError
            If there is no fallback.
        """
        if self.fallback is None:
            raise NotImplementedError(
                f"{self.name} is a function of workers in Rust: submit it to a cluster"
            )
        return self.fallback(*args, **kwargs)

    def workers(self, client: Client) -> Any:
        """The addresses of the workers that have the function, for ``workers=``.

        A coroutine if the client is asynchronous.

        >>> client.submit(hypot, 3, 4, workers=hypot.workers(client))
        """
        return client.sync(self._workers, client)

    async def _workers(self, client: Client) -> list[str]:
        replies = await client.scheduler.broadcast(
            msg={"op": "identity"}, on_error="return"
        )
        return [
            address
            for address, reply in replies.items()
            if isinstance(reply, dict) and self.name in reply.get("functions", ())
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        # The pickle refers to nothing of this package: processes without it load the pickle,
        # and Rust workers parse it.
        if self.fallback is None:
            return operator.methodcaller, (f"native:{self.name}",)
        partial = functools.partial(self.fallback)
        setattr(partial, _REPLACED_BY, f"native:{self.name}")
        return partial.__reduce__()  # type: ignore[return-value]

    def __dask_tokenize__(self) -> Any:
        from dask.base import normalize_token

        return "daskwire.native", self.name, normalize_token(self.fallback)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NativeFunction):
            return NotImplemented
        return self.name == other.name and self.fallback == other.fallback

    def __hash__(self) -> int:
        return hash((NativeFunction, self.name))

    def __repr__(self) -> str:
        fallback = "" if self.fallback is None else f", fallback={self.fallback!r}"
        return f"daskwire.native({self.name!r}{fallback})"
