"""Transports of daskwire for Dask: ``quic://``, ``tcp+rs://`` and ``tls+rs://``.

Dask finds them by their schemes; nothing has to be imported::

    dask scheduler --protocol quic --tls-ca-file ca.pem --tls-cert cert.pem
"""

from daskwire._security import annotate_contexts

annotate_contexts()
