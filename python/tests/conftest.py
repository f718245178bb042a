"""Fixtures: certificates made by Dask, and Rust workers."""

import contextlib
import subprocess
import sys

import pytest

import daskwire  # noqa: F401  Before any Security is used.
import distributed
from distributed.security import Security
from packaging.version import Version

# The scheduler in Rust refuses earlier clients and workers; `test_command.py` has a test of that.
if Version(distributed.__version__) < Version("2025.4.0"):
    collect_ignore = ["test_local_cluster.py"]


@pytest.fixture(scope="session")
def security():
    """Certificates for all roles, issued by one authority."""
    return Security.temporary()


@pytest.fixture
def listen_args(security):
    return security.get_listen_args("scheduler")


@pytest.fixture
def connect_args(security):
    return security.get_connection_args("client")


@pytest.fixture
def certificates(security, tmp_path):
    """Options for the certificates of `security`, for Dask's commands and `daskwire`."""
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
    """Runs `daskwire worker` for a block, and checks that it ends without an error."""
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
