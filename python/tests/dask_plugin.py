"""Runs Dask's own tests over the transports of this package.

A plugin of pytest: `tcp://` is the transport in Rust, and `tls://` that for TLS, or for QUIC
if DASKWIRE_TLS is `quic`. Tests keep their addresses; see `dask_tests.sh`.
"""

import os
import ssl

import distributed.comm.tcp as dask_tcp
from daskwire import _security, comm
from distributed.comm.registry import backends

_PATHS = "_daskwire_paths"


def _recording(name):
    original = getattr(ssl.SSLContext, name)

    def record(self, *args, **kwargs):
        self.__dict__.setdefault(_PATHS, {})[name] = args or tuple(kwargs.values())
        _annotate(self)
        return original(self, *args, **kwargs)

    setattr(ssl.SSLContext, name, record)


def _annotate(context):
    """The tests make contexts without a `Security`."""
    paths = context.__dict__[_PATHS]
    authorities = paths.get("load_verify_locations")
    chain = paths.get("load_cert_chain")
    if authorities and chain and not hasattr(context, _security._ATTRIBUTE):
        ca_file, *_, ca_data = [*authorities, None, None][:3]
        settings = _security.TlsSettings(ca_file or ca_data, *chain[:2])
        setattr(context, _security._ATTRIBUTE, settings)


_recording("load_verify_locations")
_recording("load_cert_chain")

_quic = os.environ.get("DASKWIRE_TLS") == "quic"


def _with_prefix(base, prefix):
    return type(base.__name__, (base,), {"prefix": prefix})


def _backend(base, prefix):
    names = {
        "_connector_class": _with_prefix(base._connector_class, prefix),
        "_listener_class": _with_prefix(base._listener_class, prefix),
    }
    return type(base.__name__, (base,), names)


dask_tcp.TCPBackend = _backend(comm.TcpBackend, "tcp://")
dask_tcp.TLSBackend = _backend(comm.QuicBackend if _quic else comm.TlsBackend, "tls://")
for scheme, backend in [("TCP", dask_tcp.TCPBackend), ("TLS", dask_tcp.TLSBackend)]:
    backends[scheme.lower()] = backend()
    setattr(dask_tcp, f"{scheme}Connector", backend._connector_class)
    setattr(dask_tcp, f"{scheme}Listener", backend._listener_class)
    setattr(dask_tcp, scheme, backend._connector_class.comm_class)
