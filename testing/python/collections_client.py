"""A Dask client of this release that computes collections with a scheduler other than Dask's.

See `checks.py`.
"""

import operator
import os
import sys
import tempfile
import time
import uuid
import warnings

warnings.simplefilter("ignore")

import checks
import dask
import dask.array as da
import dask.bag as db
import numpy
from dask import delayed
from distributed import Client, wait


def numbers():
    """An array of random numbers, the same in each run."""
    return da.random.default_rng(3).random((120, 90), chunks=(50, 30))


def array(client):
    assert float(da.ones((1000, 1000), chunks=100).sum().compute()) == 1e6
    x = numbers()
    expected = x.compute(scheduler="sync")
    assert numpy.allclose((x @ x.T).compute(), expected @ expected.T)
    assert numpy.allclose(x[::2, 5].compute(), expected[::2, 5])
    assert numpy.allclose(x.rechunk((40, 40)).std(axis=0).compute(), expected.std(axis=0))
    _, triangle = da.linalg.qr(x.rechunk((50, 90)))
    assert numpy.allclose(triangle.compute(), triangle.compute(scheduler="sync"))
    whole = numpy.arange(10_000).reshape(100, 100)
    assert (da.from_array(whole, chunks=30).T.compute() == whole.T).all()
    # Numbers in the keys of its tasks are of NumPy.
    rows, columns = numpy.arange(100)[:, None], numpy.arange(100)[None, :]
    assert (da.from_array(whole, chunks=30).vindex[rows, columns].compute() == whole).all()
    one = da.ones(10, chunks=2)
    assert one.map_blocks(lambda block: block + 1, dtype=float).sum().compute() == 20


def bag(client):
    doubled = db.from_sequence(range(100), npartitions=4).map(lambda x: x * 2)
    thirds = doubled.filter(lambda x: x % 3 == 0).compute()
    assert sorted(thirds) == list(range(0, 200, 6))
    assert dict(db.from_sequence("abcab").frequencies().compute()) == {"a": 2, "b": 2, "c": 1}
    assert db.from_sequence(range(10), npartitions=3).fold(operator.add).compute() == 45


def delayed_values(client):
    add = delayed(operator.add)
    x = da.ones(10, chunks=5)
    assert (add(x, 1).compute() == 2).all()
    assert add(x.sum(), add(1, 2)).compute() == 13
    assert sum(dask.compute(*[delayed(len)(block) for block in x.to_delayed()])) == 10
    y = da.from_delayed(delayed(numpy.ones)(5), (5,), float)
    assert y.sum().compute() == 5


def persisted(client):
    x = client.persist(da.ones((100, 100), chunks=50))
    wait(x)
    keys = {future.key for future in client.futures_of(x)}
    assert keys == {(x.name, i, j) for i in range(2) for j in range(2)}, keys
    assert x.sum().compute() == 10_000
    total, mean = client.compute([x.sum(), x.mean()])
    assert (total.result(), mean.result()) == (10_000, 1)
    y = (x + 1).persist()
    assert y.sum().compute() == 20_000


def futures(client):
    future = client.submit(numpy.ones, 5)
    x = da.from_delayed(delayed(future), (5,), float)
    assert x.sum().compute() == 5
    # A task of a task, with a collection among its arguments.
    total = client.submit(lambda v: float(v.sum().compute()), da.ones(4, chunks=2))
    assert total.result() == 4
    mapped = client.map(lambda i: i + 1, range(10))
    assert client.submit(operator.add, client.compute(x.sum()), mapped[0]).result() == 6
    assert sum(client.gather(mapped)) == 55


def annotated(client):
    (worker,) = client.scheduler_info()["workers"]
    with dask.annotate(workers=[worker], priority=10, retries=2):
        x = da.ones(10, chunks=5) + 1
    assert x.sum().compute() == 20
    with dask.annotate(resources={"NONE": 1}):
        y = da.ones(4, chunks=2)
    unrunnable = client.compute((y + 1).sum(), optimize_graph=False)
    with dask.annotate(priority=lambda key: key[1], mine={"any": {1, 2}}):
        z = da.ones(10, chunks=5)
    assert z.sum().compute(optimize_graph=False) == 10
    everywhere = client.compute(z.sum(), workers=[worker], retries=1, priority=3)
    assert everywhere.result() == 10
    state = client.sync(client.scheduler.dump_state)
    found = {
        key: (task["state"], task["annotations"]["resources"])
        for key, task in state["tasks"].items()
        if "resources" in task["annotations"]
    }
    name = next(iter(y.__dask_graph__().layers))
    assert found == {str((name, i)): ("no-worker", {"NONE": 1}) for i in range(2)}, found
    assert not unrunnable.done()
    unrunnable.cancel()


def unoptimized(client):
    x = (da.ones(10, chunks=5) + 1).sum()
    for _ in range(10):
        # The same keys have other dependencies in the other graph.
        assert x.compute(optimize_graph=False) == 20
        assert x.compute() == 20
    assert client.get(x.__dask_graph__(), [x.__dask_keys__()]) == [[20]]


def shared(client):
    """A large object that several tasks refer to is stored once."""
    big = numpy.arange(20_000)
    x = da.ones(40, chunks=2)
    y = x.map_blocks(lambda block: block + big[1], dtype=float, meta=numpy.ones(1))
    kept = client.persist(y)
    wait(kept)
    state = client.sync(client.scheduler.dump_state)
    count = sum(key.startswith("shared-") for key in state["tasks"])
    assert count == 1, list(state["tasks"])
    assert kept.sum().compute() == 80
    # Within tasks that are fused, as a function and as an argument by its name.
    assert y.sum().compute() == 80
    z = x.map_blocks(
        lambda block, *, other: block + other[1], other=big.tolist(), dtype=float, meta=numpy.ones(1)
    )
    assert (z + 1).sum().compute() == 120
    assert client.compute(z, optimize_graph=False).result().sum() == 80


class Filled:
    """An object that a function fills after it was made, whose result is dropped."""

    value = None

    def __reduce__(self):
        return Filled, (), self.value, None, None, fill


def fill(filled, value):
    filled.value = value


class Parent:
    """An object that is made of its children, which refer to it."""

    def __init__(self, children):
        self.children = children

    def __reduce__(self):
        return Parent, (self.children,)


def identities():
    """Objects that are in several places, and in themselves."""
    parent = Parent([Filled()])
    parent.children[0].value = parent
    inner = []
    recursive = (inner,)
    inner.append(recursive)
    data = b"data" * 100
    return parent, recursive, [data, data], frozenset([parent])


def are_kept(parent, recursive, twice, among):
    """Returns whether objects that were the same still are."""
    return (
        parent.children[0].value is parent
        and recursive[0][0] is recursive
        and twice[0] is twice[1]
        and parent in among
    )


def pickled(client):
    """Tasks that are pickled together, whatever they contain."""
    one = da.ones(40, chunks=2)
    filled = Filled()

    def added(function):
        return one.map_blocks(function, filled, dtype=float, meta=numpy.ones(1)).sum().compute()

    filled.value = 7
    assert added(lambda block, filled: block + filled.value) == 320
    assert client.submit(lambda filled: filled.value, filled).result() == 7
    filled.value = identities()
    assert are_kept(*filled.value)
    assert added(lambda block, filled: block + are_kept(*filled.value)) == 80
    assert client.submit(lambda filled: are_kept(*filled.value), filled).result()
    # Longer than a batch, and than a document.
    large = da.from_array(numpy.ones(34 << 20), chunks=-1).sum()
    assert large.compute(optimize_graph=False) == 34 << 20
    long = numpy.arange(2_000_000)
    assert da.from_array(long, chunks=40_000).sum().compute() == long.sum()
    assert da.from_array(long, chunks=1_000_000).sum().compute() == long.sum()


def deep(client):
    """An object with more levels than the scheduler copies."""
    filled = Filled()
    filled.value = []
    for _ in range(250):
        filled.value = [filled.value]
    one = da.ones(40, chunks=2)
    added = one.map_blocks(
        lambda block, filled: block + len(filled.value), filled, dtype=float, meta=numpy.ones(1)
    )
    assert added.sum().compute() == 80


class Unreadable:
    """An object whose pickle raises an exception."""

    def __reduce__(self):
        return exec, ("raise ValueError('unreadable')",)


def errors(client):
    one = da.ones(4, chunks=2)
    bad = one.map_blocks(lambda block: 1 / 0, dtype=float, meta=numpy.ones(1))
    try:
        bad.compute()
        raise AssertionError("no error")
    except ZeroDivisionError:
        pass
    unreadable = one.map_blocks(
        lambda block, _: block, Unreadable(), dtype=float, meta=numpy.ones(1)
    )
    try:
        unreadable.compute()
        raise AssertionError("no error")
    except RuntimeError as error:
        text = "Error during deserialization of the task graph"
        assert str(error).strip().startswith(text), error
        assert isinstance(error.__cause__, ValueError), error.__cause__
    assert is_executed(client)
    # The process goes on.
    assert one.sum().compute() == 4


def frame(client):
    import dask.dataframe as dd
    import pandas

    rows = pandas.DataFrame(
        {"a": numpy.arange(100) % 7, "b": numpy.arange(100.0), "s": list("abcde") * 20}
    )
    frame = dd.from_pandas(rows, npartitions=5)
    equal = pandas.testing.assert_series_equal
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        equal(frame.groupby("a").b.sum().compute().sort_index(), rows.groupby("a").b.sum())
        assert len(frame.shuffle("a").compute()) == 100
        assert len(frame.merge(frame, on="a").compute()) == len(rows.merge(rows, on="a"))
        assert list(frame.set_index("b").compute().index) == sorted(rows.b)
        sums = frame.groupby("s").agg({"b": ["mean", "sum"]}).compute()
        assert len(sums) == 5
        assert frame.b.apply(lambda v: v + 1, meta=("b", float)).sum().compute() == rows.b.sum() + 100
        assert len(frame.s.value_counts().compute()) == len(frame.s.unique().compute()) == 5
    kept = frame.persist()
    assert kept.b.sum().compute() == rows.b.sum()
    parts = client.map(lambda i: pandas.DataFrame({"a": [i]}), range(3))
    assert dd.from_delayed(parts, meta=pandas.DataFrame({"a": [0]})).a.sum().compute() == 3


def labelled(client):
    import xarray

    plain = xarray.DataArray(
        numpy.arange(24.0).reshape(4, 6), dims=("x", "y"), coords={"x": range(4)}
    )
    chunked = plain.chunk({"x": 2})
    assert float(chunked.mean("y").sum().compute()) == float(plain.mean("y").sum())
    both = xarray.Dataset({"a": chunked, "b": chunked * 2}).persist()
    assert float((both.a + both.b).sum()) == float(plain.sum()) * 3


def needs_python(client):
    """Without Python beside the scheduler, it refuses what it cannot read as data."""
    try:
        da.ones(4).sum().compute()
        raise AssertionError("no error")
    except RuntimeError as error:
        assert "which only Python can convert to tasks" in str(error), error
    assert not is_executed(client)
    assert client.submit(operator.add, 1, 2).result() == 3


def is_executed(client):
    """Whether a process other than this one runs code in the graph of a collection."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "executed")
        one = da.ones(4, chunks=2)
        graph = one.map_blocks(
            lambda block, _: block, Executes(path), dtype=float, meta=numpy.ones(1)
        )
        try:
            # No worker has this, which would run the code, too.
            client.compute(graph, resources={"NONE": 1}).result(timeout=5)
        except (RuntimeError, TimeoutError):
            pass
        return os.path.exists(path)


class Executes:
    """An object whose pickle creates a file if another process loads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        program = f"""
import os
if os.getpid() != {os.getpid()}:
    open({self.path!r}, "w").close()
"""
        return exec, (program,)


class Acts:
    """An object whose pickle does something when a process of the scheduler loads it."""

    def __init__(self, what):
        self.what = what

    def __reduce__(self):
        program = f"""
import os, signal, sys, time
if "daskwire.scheduler" in sys.modules:
    {self.what}
"""
        return exec, (program,)


def submitted_with(what):
    """A computation whose graph does something in the process that converts it."""
    one = da.ones(4, chunks=2)
    return one.map_blocks(lambda block, _: block, Acts(what), dtype=float, meta=numpy.ones(1))


def fails(client, what):
    """The error of a computation whose graph does something in the process."""
    started = time.monotonic()
    try:
        client.compute(submitted_with(what).sum()).result()
    except RuntimeError as error:
        return str(error), time.monotonic() - started
    raise AssertionError("no error")


def limits(client):
    """Processes that are killed, hang, or take too much memory fail their graphs only."""
    fine = da.ones(4, chunks=2).sum()
    assert fine.compute() == 4
    text, _ = fails(client, "os.kill(os.getpid(), signal.SIGKILL)")
    assert "did not convert the graph" in text and "signal: 9" in text, text
    assert fine.compute() == 4
    text, _ = fails(client, "os._exit(3)")
    assert "exit status: 3" in text, text
    text, took = fails(client, "time.sleep(600)")
    assert "longer than the limit of 10 s" in text and took < 30, (text, took)
    text, took = fails(client, "x = b'x' * (600 << 20); time.sleep(600)")
    assert "more memory than the limit" in text and took < 30, (text, took)
    assert fine.compute() == 4


class ActsWhenPickled:
    """An object that does something when a process of the scheduler pickles it."""

    def __init__(self, what):
        self.what = what

    def __reduce__(self):
        if "daskwire.scheduler" in sys.modules:
            exec(self.what, {})
        return ActsWhenPickled, (self.what,)


def block(path, _):
    """A block of an array, which says by a file that it was made."""
    with open(path, "a") as file:
        file.write("x")
    return numpy.ones(1)


def summed(path, what):
    """The sum of an array of 3,000 blocks. The process that converts the graph waits with the last of them
    until a block is made, and then does something."""
    count = 3000
    name = f"blocks-{uuid.uuid4().hex}"
    waits = f"""
import os, signal, time
end = time.monotonic() + 60
while not os.path.exists({path!r}):
    if time.monotonic() > end:
        raise RuntimeError("no task has run")
    time.sleep(0.05)
{what}
"""
    tasks = {(name, n): (block, path, None) for n in range(count - 1)}
    tasks[name, count - 1] = (block, path, ActsWhenPickled(waits))
    return da.Array(tasks, name, chunks=((1,) * count,), dtype=float).sum()


def early(client):
    """Tasks run while others are pickled."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "made")
        assert summed(path, "").compute() == 3000
        assert os.path.getsize(path) == 3000, "each ran once"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "made")
        killed = os.path.join(folder, "killed")
        kill = f"""
if not os.path.exists({killed!r}):
    open({killed!r}, "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""
        assert summed(path, kill).compute() == 3000
        assert os.path.exists(killed)
        assert os.path.getsize(path) == 3000, "each ran once"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "made")
        try:
            summed(path, "raise ValueError('unpicklable')").compute()
            raise AssertionError("no error")
        except ValueError as error:
            assert str(error) == "unpicklable", error
    # Nothing is left of the graph that failed.
    end = time.monotonic() + 10
    while client.sync(client.scheduler.dump_state)["tasks"]:
        assert time.monotonic() < end
        time.sleep(0.1)


def others(client):
    """While a graph is converted, later messages of its client wait, and others do not."""
    slow = client.compute(submitted_with("time.sleep(8)").sum())
    later = client.submit(operator.add, 1, 2)
    with Client(client.scheduler.address, set_as_default=False) as other:
        assert other.submit(operator.add, 2, 3).result() == 5
        assert other.compute(da.ones(3).sum()).result() == 3
    assert not later.done()
    assert later.result() == 3
    try:
        slow.result()
    except Exception:
        pass


CHECKS = [
    array, bag, delayed_values, persisted, futures, annotated, unoptimized, errors, early,
    frame, labelled, needs_python, limits, others, pickled, deep, shared,
]


if __name__ == "__main__":
    checks.run(CHECKS)
