"""Certificates as Dask makes them, and workers in Rust."""

import contextlib
import subprocess
import sys

import pytest

import daskwire  # noqa: F401  Before any Security is used.
from distributed.security import Security


@pytest.fixture(scope="session")
def security():
    """Certificates of one authority for all roles."""
    return Security.temporary()


@pytest.fixture
def listen_args(security):
    return security.get_listen_args("scheduler")


@pytest.fixture
def connect_args(security):
    return security.get_connection_args("client")


@pytest.fixture
def certificates(security, tmp_path):
    """The options of Dask's commands, and of `daskwire`, for the fixture `security`."""
    options = []
    for name, pem in [
        ("ca-file", security.tls_ca_file),
        ("cert", security.tls_scheduler_cert),
        ("key", security.tls_scheduler_key),
    ]:
        path = tmp_path / f"{name}.pem"
        path.write_text(pem)
        options += [f"--tls-{name}", str(path)]
    return options


@contextlib.contextmanager
def rust_worker(address, *options):
    """Workers of `daskwire worker`, which end without an error."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "daskwire", "worker", address, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield
    finally:
        worker.terminate()
        log = worker.communicate(timeout=60)[0]
    assert worker.returncode == 0, log
