"""Transports for Dask in Rust, and calls of functions that Rust workers provide.

Dask finds the transports, ``quic://``, ``tcp+rs://`` and ``tls+rs://``, by their schemes;
nothing has to be imported::

    dask scheduler --protocol quic --tls-ca-file ca.pem --tls-cert cert.pem

:func:`native` makes a function that Rust workers provide callable from Python.
``python -m daskwire`` runs the command ``daskwire``.
"""

from daskwire._function import NativeFunction, native
from daskwire._security import annotate_when_imported

__all__ = ["NativeFunction", "native"]

annotate_when_imported()
