"""The TLS settings that an ``ssl.SSLContext`` was made from.

Dask's ``Security`` passes transports an OpenSSL context, from which the private key cannot be
read back. This module makes every ``Security`` store its settings in an attribute of the
contexts that it creates.

Dask imports transports when it needs the first one, and has created contexts before that. The
package therefore has an entry point in the group ``dask.sizeof``, which Dask loads when it is
imported itself.
"""

from __future__ import annotations

import copyreg
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

# Not imported at run time: importing Dask takes ten times as long as importing this package.
if TYPE_CHECKING:
    from distributed.security import Security

_MODULE = "distributed.security"
_ATTRIBUTE = "_daskwire_settings"


@dataclass(frozen=True)
class TlsSettings:
    """The TLS settings of one role; each of the first three is PEM, or a path."""

    ca_file: str
    cert: str
    key: str | None = field(default=None, repr=False)
    ciphers: str | None = None
    min_version: str | None = None
    max_version: str | None = None
    server_name: str | None = None


def annotate_when_imported() -> None:
    """Makes every ``Security`` store its settings in the contexts that it creates, from now on
    or once Dask is imported.

    Unpickling such a ``Security``, as the workers of a nanny do, imports this package.
    """
    if _MODULE in sys.modules:
        _annotate(sys.modules[_MODULE].Security)
    else:
        sys.meta_path.insert(0, _Finder())


def imported_with_dask(_sizeof: Any) -> None:
    """Does nothing: loading this entry point has imported the package."""


class _Finder(MetaPathFinder):
    """Annotates ``Security`` when its module is imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != _MODULE or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_annotate(module: ModuleType) -> None:
                execute(module)
                _annotate(module.Security)

            spec.loader.exec_module = execute_and_annotate  # type: ignore[method-assign]
        return spec


def _annotate(Security: type[Security]) -> None:
    original = Security._get_tls_context
    if hasattr(original, _ATTRIBUTE):
        return

    @wraps(original)
    def annotated(self: Security, tls: dict[str, Any], purpose: ssl.Purpose) -> Any:
        context = original(self, tls, purpose)
        if context is not None:
            # Without the settings, `settings_of` fails. Contexts of other transports do not
            # need them, so this must not.
            with suppress(OSError, ValueError):
                setattr(context, _ATTRIBUTE, _settings(self, tls))
        return context

    setattr(annotated, _ATTRIBUTE, True)
    Security._get_tls_context = annotated
    copyreg.pickle(Security, lambda security: (_unpickle, (_state(security),)))


def settings_of(context: Any) -> TlsSettings:
    """The settings that ``context`` was made from.

    A context that no ``Security`` has created, or that was created before this package was
    imported, does not have them. Dask's configuration, from which ``Security()`` reads its settings, is used instead if all its
    roles have the same certificate, and if ``context`` matches a context created from it.

    Raises
    ------
    TypeError
        If ``context`` is not a context, as for a ``Security`` without certificates.
    ValueError
        If the settings cannot be determined.
    """
    if not isinstance(context, ssl.SSLContext):
        raise TypeError(
            "TLS expects a `ssl_context` argument of type ssl.SSLContext "
            f"(perhaps check your TLS configuration?) Instead got {context!r}"
        )
    settings = getattr(context, _ATTRIBUTE, None)
    if settings is not None:
        return settings
    return _configured(context)


def _settings(security: Security, tls: dict[str, Any]) -> TlsSettings:
    return TlsSettings(
        # Files are read now: if they are renewed, the next context has the new contents.
        ca_file=_pem(tls["ca_file"]),
        cert=_pem(tls["cert"]),
        key=_pem(tls["key"]) if tls.get("key") else None,
        ciphers=tls.get("ciphers"),
        min_version=_version(getattr(security, "tls_min_version", None)),
        max_version=_version(getattr(security, "tls_max_version", None)),
    )


def _pem(text: str) -> str:
    """Returns PEM given as such or as a path. As in Dask, only PEM has line breaks."""
    # PEM is ASCII, but the text around it may have any encoding.
    return text if "\n" in text else Path(text).read_text("latin-1")


def _version(version: Any) -> str | None:
    return {ssl.TLSVersion.TLSv1_2: "1.2", ssl.TLSVersion.TLSv1_3: "1.3"}.get(version)


def _configured(context: ssl.SSLContext) -> TlsSettings:
    from distributed.security import Security

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
            f"configuration {what}: let a Security make it, and if daskwire is not installed as a "
            "package, `import daskwire` before"
        )
    for arguments in (security.get_connection_args, security.get_listen_args):
        own = arguments("scheduler")["ssl_context"]
        if own is not None and _known(own) == _known(context):
            return found.pop()
    raise ValueError(
        "this ssl_context was not made by a Security, and is not what Dask's configuration "
        "makes: the certificates behind it are not known"
    )


def _known(context: ssl.SSLContext) -> Any:
    """The settings that can be read back from a context."""
    return (
        context.get_ca_certs(True),
        context.check_hostname,
        context.verify_mode,
        context.minimum_version,
        context.maximum_version,
        context.get_ciphers(),
    )


def _state(security: Security) -> dict[str, Any]:
    slots = type(security).__slots__
    return {name: getattr(security, name) for name in slots if hasattr(security, name)}


def _unpickle(state: dict[str, Any]) -> Security:
    from distributed.security import Security

    security = Security.__new__(Security)
    for name, value in state.items():
        setattr(security, name, value)
    return security
