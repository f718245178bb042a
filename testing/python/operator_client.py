"""A Dask client for tests of what an operator of a scheduler does.

Its arguments are the address of the scheduler, the PEM file of its certificates for an address
with TLS or `-`, and the names of checks. Prints `ready done` if the checks pass, and ends with an
exception otherwise.
"""

import asyncio
import operator
import sys
import warnings

from distributed import Client, rpc, wait
from distributed.security import Security
from distributed.versions import error_message


def at(client, worker, function, *arguments):
    """Submits a task that runs on one worker."""
    return client.submit(function, *arguments, workers=[worker], pure=False)


def computes(client):
    """A sum, and a transfer in both directions."""
    assert client.submit(operator.add, 1, 2).result(timeout=60) == 3
    sent = client.scatter(b"ab" * 10_000_000)
    assert client.submit(operator.mul, sent, 2).result(timeout=60) == b"ab" * 20_000_000


def mixes(client):
    """Workers over tcp without certificates, and over tls and quic with them."""
    by_name = {info["name"]: address for address, info in client.scheduler_info(-1)["workers"].items()}
    assert {name: address.split("://")[0] for name, address in by_name.items()} == {
        "tcp": "tcp",
        "tls": "tls",
        "quic": "quic",
    }
    data = {name: at(client, name, operator.mul, 6, 7) for name in by_name}
    wait(list(data.values()))
    # The scheduler reaches all of them, for a client that does not.
    assert client.gather(list(data.values())) == [42, 42, 42]
    # A worker of Dask does not mix tcp and tls: the task fails, and the worker goes on.
    for reader, holder, error in [("tls", "tcp", "encryption required"), ("tcp", "tls", "TLS expects")]:
        moved = at(client, reader, operator.add, data[holder], 1)
        assert error in str(moved.exception(timeout=60)), repr(moved.exception())
        assert at(client, reader, operator.add, data[reader], 1).result(timeout=60) == 43
    # A worker in Rust with certificates reaches all others.
    for reader, holder in [("quic", "tcp"), ("quic", "tls")]:
        moved = at(client, reader, operator.add, data[holder], 1)
        assert moved.result(timeout=60) == 43, (reader, holder)


def computes(client):
    assert client.submit(operator.add, 1, 2).result(timeout=60) == 3


def agrees(client):
    """A check of versions warns only where those of clients and workers differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions = client.get_versions(check=True, packages=["daskwire"])
    packages = versions["scheduler"]["packages"]
    assert versions["client"]["packages"].items() <= packages.items() | {("daskwire", None)}, packages
    assert packages["daskwire"] and versions["scheduler"]["host"]["python"] is None
    versions["client"]["packages"]["numpy"] = "0.1"
    versions["client"]["packages"]["tornado"] = "0.2"
    warning = error_message(versions["scheduler"], versions["workers"], versions["client"])["warning"]
    assert "tornado" in warning and "numpy" in warning and "python" not in warning, warning


def rejected(address, security):
    """The certificate of a worker may register no client, and not end the scheduler."""
    try:
        Client(address, timeout=60, security=security)
    except ImportError as error:
        assert 'the certificate of "worker" may not ask for "register-client"' in str(error), error
    else:
        raise AssertionError("it may")

    async def terminate():
        async with rpc(address, connection_args=security.get_connection_args("client")) as remote:
            await remote.identity()
            try:
                await remote.terminate()
            except PermissionError as error:
                assert "which is for the certificates of clients" in str(error), error
            else:
                raise AssertionError("it may")

    asyncio.run(terminate())


if __name__ == "__main__":
    address, pem, *steps = sys.argv[1:]
    security = None
    if pem != "-":
        security = Security(
            tls_ca_file=pem, tls_client_cert=pem, tls_client_key=pem, require_encryption=False
        )
    if steps == ["rejected"]:
        rejected(address, security)
    else:
        with Client(address, timeout=60, security=security) as client:
            for step in steps:
                globals()[step](client)
    print("ready done", flush=True)
    sys.stdin.read()
