"""Runs Dask's own tests over the transports of this package.

Imported by `sitecustomize` in all processes of a test. The scheme `tcp://` uses the Rust
transport, or QUIC with a generated certificate if DASKWIRE_TCP is `quic`; `tls://` uses the Rust
transport for TLS, or QUIC if DASKWIRE_TLS is `quic`. `ws://` and `wss://` use the same as `tcp://` and
`tls://`. Tests keep their addresses; see `run.sh`.
"""

import atexit
import os
import shutil
import ssl
import tempfile

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
    """Stores settings in a context that a test creates without a `Security`."""
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


def _own_settings():
    """The settings for a certificate that all processes of a test share."""
    folder = os.environ.get("DASKWIRE_TEST_CERTIFICATE")
    if folder is None:
        from distributed.security import Security

        folder = tempfile.mkdtemp(prefix="daskwire-")
        atexit.register(shutil.rmtree, folder)
        security = Security.temporary()
        for name, pem in [("ca", security.tls_ca_file), ("key", security.tls_scheduler_key)]:
            with open(f"{folder}/{name}.pem", "w") as file:
                file.write(pem)
        os.environ["DASKWIRE_TEST_CERTIFICATE"] = folder
    ca = f"{folder}/ca.pem"
    return _security.TlsSettings(ca, ca, f"{folder}/key.pem")


def _quic_as_tcp(self, address, connection_args):
    # Called for its check: it refuses addresses if encryption is required, as `tcp://` does.
    comm._TcpScheme._transports(self, address, connection_args)
    return comm._transports(_own_settings())


def _with_prefix(base, prefix):
    attributes = {"prefix": prefix}
    if prefix in ("tcp://", "ws://") and base.scheme == "quic":
        attributes |= {"encrypted": False, "_transports": _quic_as_tcp}
    return type(base.__name__, (base,), attributes)


def _backend(base, prefix):
    names = {
        "_connector_class": _with_prefix(base._connector_class, prefix),
        "_listener_class": _with_prefix(base._listener_class, prefix),
    }
    return type(base.__name__, (base,), names)


_tcp = comm.QuicBackend if os.environ.get("DASKWIRE_TCP") == "quic" else comm.TcpBackend
_tls = comm.QuicBackend if _quic else comm.TlsBackend
dask_tcp.TCPBackend = _backend(_tcp, "tcp://")
dask_tcp.TLSBackend = _backend(_tls, "tls://")
backends["ws"] = _backend(_tcp, "ws://")()
backends["wss"] = _backend(_tls, "wss://")()
for scheme, backend in [("TCP", dask_tcp.TCPBackend), ("TLS", dask_tcp.TLSBackend)]:
    backends[scheme.lower()] = backend()
    setattr(dask_tcp, f"{scheme}Connector", backend._connector_class)
    setattr(dask_tcp, f"{scheme}Listener", backend._listener_class)
    setattr(dask_tcp, scheme, backend._connector_class.comm_class)
