"""Runs Dask's tests of collections on a `daskwire.LocalCluster`, the default scheduler; a plugin of pytest."""

from daskwire import LocalCluster


def pytest_sessionstart(session):
    session.cluster = LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None)
    session.client = session.cluster.get_client()


def pytest_sessionfinish(session):
    session.client.close()
    session.cluster.close()
