"""Tests of functions that Rust workers provide, in a cluster that also has Python workers."""

import hashlib
import operator
import pickle
import subprocess
import sys

import dask
import pytest
from dask.base import tokenize
from conftest import rust_worker
from distributed import Client, Event, LocalCluster, as_completed, wait

import daskwire

DATA = b"data"
DIGEST = hashlib.sha256(DATA).hexdigest()

sha256 = daskwire.native("sha256")


def in_python(data):
    return "Python"


with_fallback = daskwire.native("sha256", fallback=in_python)


@pytest.fixture(scope="module")
def client():
    """A client of a cluster with a Python worker `0` and a Rust worker `rust`."""
    with LocalCluster(
        n_workers=1, threads_per_worker=2, dashboard_address=":0"
    ) as cluster:
        worker = rust_worker(cluster.scheduler_address, "--name", "rust", "--nthreads", "2")
        with worker, Client(cluster) as client:
            client.wait_for_workers(2, timeout=60)
            yield client


def where(client, futures):
    """The names of the workers that have the results."""
    workers = client.scheduler_info()["workers"]
    holders = {address for held in client.who_has(futures).values() for address in held}
    return {str(workers[address]["name"]) for address in holders}


def test_tasks_run_in_rust(client):
    futures = [client.submit(sha256, DATA, pure=False) for _ in range(20)]
    assert client.gather(futures) == [DIGEST] * 20
    assert where(client, futures) == {"rust"}
    assert futures[0].key.startswith("sha256-")


def test_tasks_run_in_graphs_with_python(client):
    data = dask.delayed(bytes.fromhex)("64617461")
    digest = dask.delayed(sha256)(data)
    assert dask.delayed(str.upper)(digest).compute() == DIGEST.upper()
    assert client.gather(client.map(sha256, [DATA, b""])) == [
        DIGEST,
        hashlib.sha256().hexdigest(),
    ]


def test_equal_calls_have_equal_keys(client):
    assert client.submit(sha256, DATA).key == client.submit(daskwire.native("sha256"), DATA).key
    assert tokenize(sha256) != tokenize(with_fallback) != tokenize(daskwire.native("xxh3"))
    assert sha256 == daskwire.native("native:sha256") != with_fallback
    assert hash(sha256) == hash(daskwire.native("sha256"))


def test_the_workers_that_have_a_function(client):
    [address] = sha256.workers(client)
    assert client.scheduler_info()["workers"][address]["name"] == "rust"
    assert daskwire.native("nothing").workers(client) == []
    future = client.submit(sha256, DATA, workers=sha256.workers(client))
    assert future.result() == DIGEST


def test_a_coroutine_of_an_asynchronous_client_has_the_workers(client):
    async def workers():
        address = client.scheduler.address
        async with Client(address, asynchronous=True) as other:
            return await sha256.workers(other)

    assert client.sync(workers) == sha256.workers(client)


def test_a_function_that_the_worker_does_not_have(client):
    with pytest.raises(NotImplementedError, match="native:nothing"):
        client.submit(daskwire.native("nothing"), 1, workers=["rust"]).result(timeout=60)


def test_a_function_that_no_worker_has(client):
    futures = client.map(daskwire.native("nothing"), range(20), pure=False)
    wait(futures, timeout=60)
    for future in futures:
        with pytest.raises(NotImplementedError, match="no worker has the function native:nothing"):
            future.result()
    with pytest.raises(NotImplementedError, match="no worker has the function native:nothing"):
        client.submit(daskwire.native("nothing"), 1, pure=False, retries=2).result(timeout=60)
    # In a graph, the function is part of a pickle.
    graph = dask.delayed(daskwire.native("nothing"))(dask.delayed(operator.add)(1, 2))
    with pytest.raises(NotImplementedError, match="no worker has the function native:nothing"):
        graph.compute(scheduler=client)


def test_either_kind_of_worker_runs_a_function_with_a_fallback(client):
    for name, result in [("rust", DIGEST), (0, "Python")]:
        future = client.submit(with_fallback, DATA, workers=[name], pure=False)
        assert future.result(timeout=60) == result
    # A task runs where a thread is free: those of the Python worker are blocked.
    begun = [Event(f"begun {index}", client=client) for index in range(2)]
    go_on = Event("go on", client=client)

    def block(begun):
        begun.set()
        go_on.wait()

    blocked = client.map(block, begun, workers=[0], pure=False)
    for event in begun:
        assert event.wait(60)
    futures = [client.submit(with_fallback, DATA, pure=False) for _ in range(20)]
    assert next(as_completed(futures, timeout=60)).result() == DIGEST
    go_on.set()
    client.gather(blocked)
    assert set(client.gather(futures)) <= {DIGEST, "Python"}


def test_a_fallback_for_a_function_that_the_worker_in_rust_does_not_have(client):
    function = daskwire.native("nothing", fallback=in_python)
    futures = [client.submit(function, number, pure=False) for number in range(20)]
    assert client.gather(futures) == ["Python"] * 20
    assert where(client, futures) == {"0"}


def test_calls_in_this_process():
    assert with_fallback(DATA) == "Python"
    with pytest.raises(NotImplementedError, match="sha256 is a function of workers in Rust"):
        sha256(DATA)
    assert repr(sha256) == "daskwire.native('sha256')"
    with pytest.raises(TypeError, match="a str"):
        daskwire.native(1)
    with pytest.raises(TypeError, match="cannot be called"):
        daskwire.native("sha256", fallback=1)


def test_pickles_are_read_without_this_package():
    caller = pickle.loads(pickle.dumps(sha256))
    assert caller.__reduce__() == (operator.methodcaller, ("native:sha256",))
    for function in [sha256, daskwire.native("sha256", fallback=operator.neg)]:
        code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read()); sys.exit('daskwire' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], input=pickle.dumps(function), check=True)
