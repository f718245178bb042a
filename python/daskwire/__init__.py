"""Dask with Rust: transports, and functions of workers in Rust.

Dask finds the transports, ``quic://``, ``tcp+rs://`` and ``tls+rs://``, by their schemes;
nothing has to be imported::

    dask scheduler --protocol quic --tls-ca-file ca.pem --tls-cert cert.pem

:func:`native` calls functions of workers in Rust. ``python -m daskwire`` is the command
``daskwire``.
"""

from daskwire._function import NativeFunction, native
from daskwire._security import annotate_when_imported

__all__ = ["NativeFunction", "native"]

annotate_when_imported()
