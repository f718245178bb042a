"""Transports for Dask in Rust, clusters in Rust, and calls of functions that Rust workers provide.

Dask finds the transports, ``quic://``, ``tcp+rs://`` and ``tls+rs://``, by their schemes;
nothing has to be imported::

    dask scheduler --protocol quic --tls-ca-file ca.pem --tls-cert cert.pem

:class:`LocalCluster` is a cluster whose scheduler and workers are in Rust.
:class:`Scheduler` is a scheduler in Rust for other cluster objects of Dask.
:func:`native` makes a function that Rust workers provide callable from Python.
``python -m daskwire`` runs the command ``daskwire``.
"""

from typing import TYPE_CHECKING, Any

from daskwire._function import NativeFunction, native
from daskwire._security import annotate_when_imported

if TYPE_CHECKING:
    from daskwire._cluster import LocalCluster, Scheduler

__all__ = ["LocalCluster", "NativeFunction", "Scheduler", "native"]

annotate_when_imported()


def __getattr__(name: str) -> Any:
    # Imported when it is first used, because it imports Dask, which the command does not need.
    if name in ("LocalCluster", "Scheduler"):
        from daskwire import _cluster

        return getattr(_cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
