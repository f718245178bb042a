"""Fixtures: certificates as Dask makes them."""

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
