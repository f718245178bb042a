"""The certificates behind an ``ssl.SSLContext``.

Dask's ``Security`` gives transports a context of OpenSSL, whose key cannot be read back.
This module has every ``Security`` note in a context what it was made from.
"""

from __future__ import annotations

import copyreg
import ssl
from dataclasses import dataclass
from functools import wraps
from typing import Any

from distributed.security import Security

_ATTRIBUTE = "_daskwire_settings"


@dataclass(frozen=True)
class TlsSettings:
    """The TLS settings of one role; each of the first three is a path or PEM."""

    ca_file: str
    cert: str
    key: str | None = None
    ciphers: str | None = None
    min_version: str | None = None
    max_version: str | None = None


def annotate_contexts() -> None:
    """Makes every ``Security`` note its settings in the contexts that it makes.

    Processes that unpickle a ``Security``, such as the workers of a nanny, import this
    package with it.
    """
    original = Security._get_tls_context
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def annotated(self: Security, tls: dict[str, Any], purpose: ssl.Purpose) -> Any:
        context = original(self, tls, purpose)
        if context is not None:
            setattr(context, _ATTRIBUTE, _settings(self, tls))
        return context

    Security._get_tls_context = annotated
    copyreg.pickle(Security, lambda security: (_unpickle, (_state(security),)))


def settings_of(context: Any) -> TlsSettings:
    """The settings that ``context`` was made from.

    A context that was made before this package was imported has none. Dask's
    configuration, where ``Security()`` reads its settings, is used then if all its roles
    have the same certificate.

    Raises
    ------
    TypeError
        If there is no context, as when the ``Security`` has no certificates.
    ValueError
        If the settings are not known.
    """
    if not isinstance(context, ssl.SSLContext):
        raise TypeError(
            "TLS expects a `ssl_context` argument of type ssl.SSLContext "
            f"(perhaps check your TLS configuration?) Instead got {context!r}"
        )
    settings = getattr(context, _ATTRIBUTE, None)
    if settings is not None:
        return settings
    return _configured()


def _settings(security: Security, tls: dict[str, Any]) -> TlsSettings:
    return TlsSettings(
        ca_file=tls["ca_file"],
        cert=tls["cert"],
        key=tls.get("key"),
        ciphers=tls.get("ciphers"),
        min_version=_version(getattr(security, "tls_min_version", None)),
        max_version=_version(getattr(security, "tls_max_version", None)),
    )


def _version(version: Any) -> str | None:
    return {ssl.TLSVersion.TLSv1_2: "1.2", ssl.TLSVersion.TLSv1_3: "1.3"}.get(version)


def _configured() -> TlsSettings:
    security = Security()
    found = set()
    for role in ["client", "scheduler", "worker"]:
        tls = security.get_tls_config_for_role(role)
        if tls.get("ca_file") and tls.get("cert"):
            found.add(_settings(security, tls))
    if len(found) != 1:
        what = "has no certificates" if not found else "has a certificate for each role"
        raise ValueError(
            "the certificates behind this ssl_context are not known, and Dask's "
            f"configuration {what}: `import daskwire` before Dask uses the Security"
        )
    return found.pop()


def _state(security: Security) -> dict[str, Any]:
    return {name: getattr(security, name) for name in _slots() if hasattr(security, name)}


def _slots() -> list[str]:
    return list(Security.__slots__)


def _unpickle(state: dict[str, Any]) -> Security:
    security = Security.__new__(Security)
    for name, value in state.items():
        setattr(security, name, value)
    return security
