"""A Dask client of this release that connects to a scheduler other than Dask's.

Its arguments are the address of the scheduler and the name of a check. Prints
`ready done` if the check passes, and ends with an exception otherwise.
"""

import asyncio
import concurrent.futures
import contextlib
import gc
import io
import multiprocessing
import operator
import os
import pathlib
import random
import sys
import tempfile
import time
import warnings

warnings.simplefilter("ignore")

import dask.bag
import numpy
from distributed import (
    CancelledError,
    Client,
    Event,
    KilledWorker,
    Lock,
    MultiLock,
    Queue,
    Semaphore,
    Variable,
    fire_and_forget,
    get_worker,
    worker_client,
)
from distributed import get_task_metadata, get_task_stream, wait, warn
from distributed import print as distributed_print
from distributed.cluster_dump import DumpArtefact
from distributed.core import Status
from distributed.diagnostics.plugin import Environ, WorkerPlugin


def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


def raises(kind, future):
    try:
        future.result(timeout=60)
    except kind as error:
        return error
    raise AssertionError(f"no {kind}")


def journey(client):
    x, y = client.submit(operator.add, 1, 2), client.submit(operator.mul, 5, 6)
    z = client.submit(operator.add, x, y)
    assert z.result(timeout=60) == 33
    # Functions and objects that only Python can create.
    factor = z.result()
    assert client.submit(lambda value: value * factor, z).result(timeout=60) == 1089
    assert client.submit(factorial, 5).result(timeout=60) == 120
    assert client.submit(sorted, [3, 1, 2], reverse=True).result(timeout=60) == [3, 2, 1]
    total = client.submit(sum, [client.submit(operator.neg, i) for i in range(5)])
    assert total.result(timeout=60) == -10
    tupled = client.submit(operator.add, 1, 1, key=("x", 0))
    assert client.submit(operator.add, tupled, 1).result(timeout=60) == 3


def story(client):
    future = client.submit(operator.add, 20, 30)
    assert future.result(timeout=60) == 50
    told = client.story(future.key)
    states = [(start, finish) for who, _, start, finish, *_ in told if who == "scheduler"]
    assert states[0] == ("released", "waiting"), told
    assert states[-1] == ("processing", "memory"), told
    assert all(before[1] == after[0] for before, after in zip(states, states[1:])), told
    workers = {who for who, *_ in told} - {"scheduler"}
    assert len(workers) == 1 and workers <= set(client.ncores()), told
    assert not client.story("unknown")


def data(client):
    array = numpy.arange(100_000.0)
    [scattered] = client.scatter([array])
    assert client.submit(numpy.sum, scattered).result(timeout=60) == array.sum()
    assert (scattered.result(timeout=60) == array).all()
    named = client.scatter({"seven": 7}, broadcast=True)["seven"]
    assert named.result(timeout=60) == 7
    assert len(client.who_has([named])["seven"]) == len(client.ncores()) == 2
    # The old value is deleted before the new one arrives.
    for value in range(2):
        replaced = client.scatter({"replaced": value}, broadcast=True)["replaced"]
        assert replaced.result(timeout=60) == value
        del replaced
        time.sleep(0.1)
    # The task runs on another worker than the one that stores its input.
    here, other = client.ncores()
    [one] = client.scatter([numpy.ones(10)], workers=[here])
    assert client.submit(numpy.sum, one, workers=[other]).result(timeout=60) == 10
    assert client.submit(numpy.dot, numpy.ones(3), numpy.arange(3)).result(timeout=60) == 3


def buffers(client):
    """Each large array that arrives together with others has memory of its own."""

    def owner(array):
        while getattr(array, "base", None) is not None:
            array = array.base
        return id(array.obj) if isinstance(array, memoryview) else id(array)

    here = list(client.ncores())[0]
    arrays = client.map(numpy.full, [100_000] * 10, range(10), workers=[here])
    for direct in (False, True):
        gathered = client.gather(arrays, direct=direct)
        assert [array[0] for array in gathered] == list(range(10))
        assert len(set(map(owner, gathered))) == 10, direct


def errors(client):
    assert "division" in str(raises(ZeroDivisionError, client.submit(operator.truediv, 1, 0)))
    failed = client.submit(operator.add, client.submit(operator.truediv, 2, 0), 1)
    raises(ZeroDivisionError, failed)
    # Collections send an expression, which only Python can convert to a graph.
    for future in [
        client.map(operator.neg, numpy.arange(3))[1],
        client.compute(dask.bag.from_sequence(range(4)).sum()),
    ]:
        assert "only Python can" in str(raises(RuntimeError, future))
    # The stream stays open after these errors.
    cancelled = client.submit(time.sleep, 0.1)
    client.cancel([cancelled])
    assert client.submit(operator.add, 1, 1).result(timeout=60) == 2
    assert cancelled.status == "cancelled"


def options(client):
    future = client.submit(operator.add, 5, 5, workers=["worker-1"], retries=2, priority=3)
    assert future.result(timeout=60) == 10
    assert len(client.who_has([future])[future.key]) == 1
    anywhere = client.submit(operator.add, 6, 6, workers=["unknown"], allow_other_workers=True)
    assert anywhere.result(timeout=60) == 12
    nowhere = client.submit(operator.add, 7, 7, workers=["unknown"])
    time.sleep(0.1)
    assert nowhere.status == "pending"
    many = [client.submit(operator.add, i, 1, pure=False) for i in range(500)]
    assert sum(client.gather(many)) == 500 * 501 // 2
    info = client.scheduler_info()
    assert {worker["name"] for worker in info["workers"].values()} == {"worker-0", "worker-1"}
    assert client.retire_workers([list(client.ncores())[0]], close_workers=True)
    assert len(client.ncores()) == 1
    assert sum(client.gather(many)) == 500 * 501 // 2


def broadcasts(client):
    pids = client.run(os.getpid)
    assert set(pids) == set(client.ncores()) and len(set(pids.values())) == 2, pids
    assert client.run(os.getpid, nanny=True) == {}
    here = list(pids)[0]
    assert client.run(os.getpid, workers=[here]) == {here: pids[here]}
    nowhere = "tcp://127.0.0.1:1"
    try:
        client.run(os.getpid, workers=[nowhere])
    except OSError as error:
        assert nowhere in str(error), error
    else:
        raise AssertionError("no OSError")
    both = client.run(os.getpid, workers=[here, nowhere], on_error="return")
    assert both[here] == pids[here] and isinstance(both[nowhere], OSError), both
    some = client.run(os.getpid, workers=[here, nowhere], on_error="ignore")
    assert some == {here: pids[here]}, some


def gives_back(client):
    def pause(dask_worker):
        # Otherwise the worker goes on, since it has memory left.
        dask_worker.memory_manager.memory_pause_fraction = False
        dask_worker.status = Status.paused

    here, other = client.ncores()
    blocked = [client.submit(time.sleep, 1, workers=[worker]) for worker in (here, other)]
    time.sleep(0.2)
    # Of these, one is sent to each worker in advance.
    sums = [client.submit(operator.add, n, 1, pure=False) for n in range(6)]
    time.sleep(0.2)
    client.run(pause, workers=[here])
    assert [future.result(timeout=30) for future in sums] == list(range(1, 7))
    assert all(client.who_has([future])[future.key] == (other,) for future in sums)
    client.gather(blocked)


def interleaves(client):
    """Messages of one client are handled in their order, and those of others in between."""
    with Client(client.scheduler.address, set_as_default=False) as other:
        many = client.map(operator.neg, range(5_000))
        assert other.submit(operator.add, 1, 1).result(timeout=60) == 2
        client.cancel(many)
        last = client.submit(operator.neg, 5_000)
        assert last.result(timeout=60) == -5_000
        assert all(future.status == "cancelled" for future in many)
        again = client.map(operator.neg, range(5_000))
        assert client.submit(sum, again).result(timeout=60) == -sum(range(5_000))


def shares_once(client):
    """An object that several tasks refer to is a task, and the worker gets it once."""
    event = Event("shared")
    array = numpy.ones(50_000)

    def total(number):
        Event("shared").wait()
        return number + array.sum()

    def shared():
        return {key for key in client.who_has() if str(key).startswith("shared-")} - before

    before = set()
    before = shared()
    sums = client.map(total, range(10))
    # It is in memory while tasks need it.
    while not (found := shared()):
        time.sleep(0.01)
    assert len(found) == 1, found
    event.set()
    assert client.gather(sums) == [number + 50_000 for number in range(10)]
    del sums
    while shared():
        time.sleep(0.01)


def steals(client):
    """A task that was sent to a busy worker, and waits there, is taken back for an idle one."""
    here, other = client.ncores()
    blocked = client.submit(time.sleep, 5, workers=[here], pure=False)
    while not client.processing()[here]:
        time.sleep(0.01)
    on = dict(workers=[here], allow_other_workers=True, pure=False)
    waiting = [client.submit(operator.neg, 1, **on) for _ in range(2)]
    wait(waiting)
    assert not blocked.done()
    assert {client.who_has([future])[future.key] for future in waiting} == {(other,)}
    client.gather(blocked)


def converts(client):
    """Graphs of collections are converted by Python, in the order of the messages."""
    numbers = dask.bag.from_sequence(range(100), npartitions=4)
    total = client.compute(numbers.sum())
    # Handled after the graph, which it depends on.
    assert client.submit(operator.add, total, 1).result(timeout=120) == 4951
    bad = numbers.map(Unreadable())
    error = raises(RuntimeError, client.compute(bad))
    assert "Error during deserialization of the task graph" in str(error), error
    assert isinstance(error.__cause__, ZeroDivisionError), error.__cause__
    assert numbers.count().compute() == 100


class Unreadable:
    """An object whose pickle raises an exception."""

    def __call__(self, number):
        return number

    def __reduce__(self):
        return operator.truediv, (1, 0)


def exchanges(client):
    """A P2P shuffle, also while the worker leaves that computes the last part of its input."""
    import dask.array

    def part(block, block_info=None):
        if block_info[0]["chunk-location"][1] == 3:
            Event("begun").set()
            Event("go").wait()
        return block

    numbers = numpy.arange(1600.0).reshape(40, 40)
    array = dask.array.from_array(numbers, chunks=(40, 10))
    chunks = {"chunks": (10, 40), "method": "p2p"}
    assert (array.rechunk(**chunks).compute() == numbers).all()
    waiting = client.compute(array.map_blocks(part, dtype=float).rechunk(**chunks))
    Event("begun").wait(timeout=60)
    left = list(client.ncores())[0]
    client.retire_workers([left], close_workers=True)
    Event("go").set()
    assert (waiting.result(timeout=120) == numbers).all()
    assert left not in client.ncores()


def costs_itself(client):
    """A task that cannot be opened on workers fails, and the workers go on."""

    class Unreadable:
        def __reduce__(self):
            return int, ("not a number",)

    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "module_only_here.py").write_text("def f(x):\n    return x\n")
        sys.path.insert(0, folder)
        import module_only_here

        before = client.run(os.getpid)
        kept = client.scatter("kept")
        error = raises(ModuleNotFoundError, client.submit(module_only_here.f, kept))
        assert "module_only_here" in str(error), error
        raises(ModuleNotFoundError, client.submit(operator.neg, module_only_here.f))
        raises(ValueError, client.submit(str, Unreadable()))
        dependent = client.submit(str, client.submit(module_only_here.f, 1))
        raises(ModuleNotFoundError, dependent)
    assert client.run(os.getpid) == before
    assert kept.result(timeout=60) == "kept"


def coroutines(client):
    async def address(prefix):
        await asyncio.sleep(0.01)
        return prefix + get_worker().address

    assert client.submit(address, "at ").result(timeout=60)[3:] in client.ncores()
    assert client.submit(asyncio.sleep, 0.01, "slept").result(timeout=60) == "slept"

    async def fails():
        raise KeyError("within")

    raises(KeyError, client.submit(fails))


def executors(client):
    """A worker may run a task in an executor of processes."""

    def add(dask_worker):
        context = multiprocessing.get_context("fork")
        executor = concurrent.futures.ProcessPoolExecutor(1, mp_context=context)
        dask_worker.executors["processes"] = executor

    client.run(add)
    with dask.annotate(executor="processes"):
        task = client.submit(os.getpid, pure=False)
        failed = client.submit(operator.truediv, 1, 0)
    assert task.result(timeout=60) not in client.run(os.getpid).values()
    raises(ZeroDivisionError, failed)


def maps(client):
    """`client.map` with all kinds of arguments gives what Python's `map` does."""

    def gathered(*arguments, **keywords):
        return client.gather(client.map(*arguments, **keywords))

    assert gathered(operator.neg, range(3)) == [0, -1, -2]
    assert gathered(operator.neg, range(9, 0, -3)) == [-9, -6, -3]
    assert gathered(pow, [1, 2, 3], (4, 5)) == [1, 32]
    assert gathered(str.upper, "abc") == ["A", "B", "C"]
    assert sorted(gathered(str.upper, {"a", "b"})) == ["A", "B"]
    assert gathered(str.upper, {"a": 1, "b": 2}) == ["A", "B"]
    assert gathered(operator.neg, b"ab") == [-97, -98]
    assert gathered(operator.neg, []) == []
    scale = 3
    assert gathered(lambda x: x * scale, range(4)) == [0, 3, 6, 9]
    assert gathered(lambda x, y=1: x * y, range(4), y=2) == [0, 2, 4, 6]
    assert gathered(sorted, [[2, 1], [1, 3]], reverse=True) == [[2, 1], [3, 1]]
    # Futures, also within arguments.
    one, two = client.map(int, ["1", "2"])
    assert gathered(operator.add, [one, two], [two, 5]) == [3, 7]
    nested = [[one, 1], (two, [one]), {"a": [two]}, 7]
    assert gathered(str, nested) == ["[1, 1]", "(2, [1])", "{'a': [2]}", "7"]
    assert gathered(lambda x, y: (x, y), range(2), y={"a": [one]}) == [(n, {"a": [1]}) for n in (0, 1)]
    # The same call has the same key, unless it is impure.
    first, again = client.map(operator.neg, [10]), client.map(operator.neg, [10])
    assert first[0].key == again[0].key
    impure = client.map(lambda _: time.time_ns(), [1, 1], pure=False)
    assert impure[0].key != impure[1].key and len(set(client.gather(impure))) == 2
    assert [f.key for f in client.map(operator.neg, [1, 2], key="own")][0].startswith("own-")
    assert [f.key for f in client.map(operator.neg, [1, 2], key=["k1", ("k", 2)])] == ["k1", ("k", 2)]
    batches = client.map(operator.neg, list(range(10)), batch_size=3)
    assert client.gather(batches) == [-n for n in range(10)]
    with client.get_executor() as executor:
        assert list(executor.map(operator.add, range(3), range(3))) == [0, 2, 4]
    # Options.
    where = client.map(lambda _: get_worker().name, range(4), workers=["worker-1"], priority=2)
    assert set(client.gather(where)) == {"worker-1"}
    folder = tempfile.mkdtemp()

    def fails_once(n):
        try:
            os.mkdir(os.path.join(folder, str(n)))
        except FileExistsError:
            return n
        raise ValueError(n)

    assert gathered(fails_once, range(3), retries=1) == [0, 1, 2]
    error = raises(ZeroDivisionError, client.map(lambda n: 1 // n, [1, 0])[1])
    assert "division" in str(error)
    lacking = client.map(operator.neg, [3, 4], resources={"NONE": 1}, pure=False)
    time.sleep(0.1)
    assert {future.status for future in lacking} == {"pending"}

    async def waits(n):
        await asyncio.sleep(0.01)
        return n

    assert gathered(waits, range(3)) == [0, 1, 2]
    many = client.map(lambda n: n + 1, range(2000))
    assert sum(client.gather(many)) == 2000 * 2001 // 2


def shares(client):
    """What is large is stored once, and used by all calls."""
    table = list(range(100_000))
    array = numpy.arange(100_000)

    def look_up(n):
        return table[n]

    futures = client.map(look_up, range(200), pure=False)
    assert client.gather(futures) == list(range(200))
    holders = {worker for keys in client.who_has(futures).values() for worker in keys}
    assert len(holders) == 2, holders
    assert client.gather(client.map(lambda n, array: array[n], [1, 2], array=array)) == [1, 2]
    assert client.gather(client.map(operator.getitem, [table, table], [1, 2])) == [1, 2]

    async def waits(n):
        await asyncio.sleep(0.01)
        return table[n]

    assert client.gather(client.map(waits, range(3))) == [0, 1, 2]
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "large_only_here.py").write_text("def f(x, y):\n    return x\n")
        sys.path.insert(0, folder)
        import functools

        import large_only_here

        missing = client.map(functools.partial(large_only_here.f, table), range(3))
        for future in missing:
            raises(ModuleNotFoundError, future)


def graphs(client):
    """Graphs without Dask's classes are read as Dask reads them."""
    from dask._task_spec import DataNode, Task, TaskRef
    from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

    def inc(n):
        return n + 1

    # Keys are released after the results have arrived, so that each graph has its own.
    for number, (graph, expected) in enumerate(
        [
            ({"x": 7, "y": (inc, "x")}, 8),
            ({"x": 7, "y": "x"}, 7),
            ({"x": 7, "z": "x", "y": "z"}, 7),
            ({"x": 7, "y": ["x", ["x", 1]]}, [7, [7, 1]]),
            ({"x": 7, "y": (sum, ["x", "x"])}, 14),
            ({"x": 7, "y": ("x", 1)}, (7, 1)),
            ({"x": 7, "y": {"a": "x"}}, {"a": "x"}),
            ({"x": 7, "y": {"x", 1}}, {7, 1}),
            ({"x": 7, "y": frozenset(["x"])}, frozenset([7])),
            ({"x": 7, "y": (inc, (inc, "x"))}, 9),
            ({"x": 7, "y": (dict, [["a", "x"]])}, {"a": 7}),
            ({"x": numpy.ones(3), "y": (numpy.sum, "x")}, 3),
            ({"x": 7, "y": (lambda n: n * 2, "x")}, 14),
            # Tasks that are not needed do not run.
            ({"y": 7, "x": (operator.truediv, 1, 0), "lost": "nowhere"}, 7),
        ]
    ):

        def renamed(part, number=number):
            if type(part) in (list, tuple, set, frozenset):
                return type(part)(renamed(item) for item in part)
            return f"{part}{number}" if type(part) is str and part in "xyz" else part

        graph = {renamed(key): renamed(task) for key, task in graph.items()}
        result = client.get(graph, f"y{number}")
        assert result == expected and type(result) is type(expected) or expected == 3, graph
    assert client.get({("x", 0): 7, "with": (inc, ("x", 0))}, "with") == 8
    scattered = client.scatter(5)
    assert client.get({"s0": (inc, scattered), "s1": scattered}, ["s0", "s1"]) == [6, 5]
    spec = {"a0": DataNode("a0", 7), "a1": Task("a1", inc, TaskRef("a0")), "a2": (inc, "a1")}
    assert client.get(spec, "a2") == 9
    lost = client.get({"b": Task("b", inc, TaskRef("gone"))}, "b", sync=False)
    raises(CancelledError, lost)
    layers = HighLevelGraph(
        {
            "a": MaterializedLayer({"there": 1}),
            "b": MaterializedLayer(
                {"here": (lambda _: get_worker().name, "there")},
                annotations={"workers": ["worker-1"], "retries": 2},
            ),
        },
        {"a": set(), "b": {"a"}},
    )
    assert client.get(layers, "here") == "worker-1"
    # Layers of delayed functions have the tasks of their arguments, too.
    shared = dask.delayed(operator.neg)(1)
    sums = [dask.delayed(operator.add)(shared, n) for n in range(2)]
    assert client.compute(dask.delayed(operator.add)(*sums)).result(timeout=60) == -1
    with dask.annotate(workers="worker-1"):
        placed = [dask.delayed(lambda _: get_worker().name)(n) for n in range(2)]
    with dask.annotate(workers="worker-0"):
        last = dask.delayed(lambda names: [*names, get_worker().name])(placed)
    persisted = client.persist([*placed, last])
    assert persisted[-1].compute() == ["worker-1", "worker-1", "worker-0"]
    with dask.annotate(workers=["worker-0"]):
        assert client.submit(lambda: get_worker().name, pure=False).result(60) == "worker-0"
    total = dask.delayed(sum)([dask.delayed(inc)(n) for n in range(4)])
    assert client.compute(total).result(60) == 10
    assert total.compute() == 10
    one, two = dask.compute(dask.delayed(inc)(1), total)
    assert (one, two) == (2, 10)
    assert dask.persist(total)[0].compute() == 10


def nests(client):
    """Tasks that submit tasks do not occupy more and more threads."""

    def inner(n):
        time.sleep(0.005)
        return n

    def outer(n):
        with worker_client() as inside:
            return inside.submit(inner, n, pure=False).result()

    futures = client.map(outer, range(200), pure=False)
    assert client.gather(futures) == list(range(200))
    counts = client.run(lambda: __import__("threading").active_count())
    assert max(counts.values()) < 60, counts


def killed(client):
    error = raises(KilledWorker, client.submit(os._exit, 1))
    assert "4 different workers" in str(error), error
    assert "tcp://127.0.0.1:" in str(error), error


class Marked(WorkerPlugin):
    def setup(self, worker):
        worker.mark = os.environ["DASKWIRE_MARK"]

    def teardown(self, worker):
        del worker.mark


def mark(dask_worker):
    return getattr(dask_worker, "mark", None)


def by_name(client, function):
    names = {address: w["name"] for address, w in client.scheduler_info()["workers"].items()}
    return {names[address]: result for address, result in client.run(function).items()}


def nannies(client):
    both = ["worker-0", "worker-1"]
    assert all(worker["nanny"] for worker in client.scheduler_info()["workers"].values())
    # The nannies restart their workers with the variable.
    client.register_plugin(Environ({"DASKWIRE_MARK": "x"}))
    client.wait_for_workers(2, timeout=60)
    client.register_plugin(Marked(), name="marked")
    assert by_name(client, mark) == dict.fromkeys(both, "x")

    pids = by_name(client, os.getpid)
    done, running = client.submit(operator.add, 1, 2), client.submit(time.sleep, 2)
    assert done.result(timeout=60) == 3
    # The request to restart must not overtake the submission, on another comm.
    while not any(running.key in keys for keys in client.processing().values()):
        time.sleep(0.01)
    client.restart(timeout=60)
    assert done.status == running.status == "cancelled"
    assert not client.who_has()
    restarted = by_name(client, os.getpid)
    assert sorted(restarted) == both and not set(restarted.values()) & set(pids.values())
    # Plugins are for workers and nannies to come, too.
    assert by_name(client, mark) == dict.fromkeys(both, "x")
    assert client.submit(operator.add, 1, 2).result(timeout=60) == 3

    assert client.restart_workers(["worker-0"], timeout=60) == {"worker-0": "OK"}
    again = by_name(client, os.getpid)
    assert again["worker-1"] == restarted["worker-1"], again
    assert again["worker-0"] != restarted["worker-0"], again

    client.unregister_worker_plugin("marked")
    assert by_name(client, mark) == dict.fromkeys(both, None)
    raises_now(ValueError, client.unregister_worker_plugin, "marked")
    with open("uploaded_module.py", "w") as file:
        file.write("answer = 42")
    client.upload_file("uploaded_module.py")
    answer = client.submit(lambda: __import__("uploaded_module").answer)
    assert answer.result(timeout=60) == 42
    answer.release()

    # The nanny starts a worker again that is killed, and its task runs again.
    kept = client.submit(os.getpid, workers=["worker-0"], pure=False)
    before = kept.result(timeout=60)
    os.kill(before, 9)
    deadline = time.time() + 60
    while (now := kept.result(timeout=60)) == before:
        assert time.time() < deadline
        time.sleep(0.1)
    assert now == by_name(client, os.getpid)["worker-0"]
    assert client.run(os.getpid, nanny=True) and client.get_worker_logs(nanny=True)


def restarts(client):
    """Workers of both kinds are other processes after a restart, and the same by name."""
    client.wait_for_workers(2, timeout=60)
    lost = client.submit(operator.neg, 1)
    before = by_name(client, os.getpid)
    for _ in range(2):
        client.restart(timeout=60)
        after = by_name(client, os.getpid)
        assert after.keys() == before.keys() == {"worker-0", "worker-1"}
        assert not set(after.values()) & set(before.values()), (before, after)
        before = after
    assert lost.status == "cancelled"
    assert client.gather(client.map(operator.neg, range(20))) == [-n for n in range(20)]


def names(client):
    """Workers by their names, and what adaptive clusters ask for."""
    client.wait_for_workers(2, timeout=60)
    info = client.scheduler_info(n_workers=-1)
    at = {worker["name"]: address for address, worker in info["workers"].items()}
    assert set(at) == {"bob", 0}, at
    assert info["services"].keys() == {"dashboard"}
    assert f":{info['services']['dashboard']}/" in client.dashboard_link
    for name in ("bob", 0):
        [held] = client.scatter([name], workers=[name])
        assert client.who_has([held]) == {held.key: (at[name],)}
        assert client.has_what(workers=[name]) == {at[name]: (held.key,)}
        assert client.run(os.getpid, workers=[name]).keys() == {at[name]}
        assert client.sync(client.scheduler.ncores, workers=[name]) == {at[name]: 1}
        held.release()
    many = [client.submit(bytes, n, key=f"many-{n}") for n in range(3)]
    client.gather(many)
    sizes = client.nbytes(summary=False)
    assert client.nbytes() == {"many": sum(sizes.values())} and len(sizes) == 3
    assert client.nbytes([many[0].key, many[1].key]) == {"many": sizes["many-0"] + sizes["many-1"]}

    versions = client.get_versions()
    assert versions["scheduler"].keys() == versions["client"].keys()
    assert "daskwire" in versions["scheduler"]["packages"]
    assert {v["host"]["OS"] for v in (versions["scheduler"], versions["client"])} == {"Linux"}
    # The versions are those of the workers, of which a check does not warn.
    for package, version in versions["client"]["packages"].items():
        assert versions["scheduler"]["packages"][package] == version, package
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.get_versions(check=True)

    def ask(request, **arguments):
        return client.sync(getattr(client.scheduler, request), **arguments)

    # One worker stays for the data.
    assert ask("adaptive_target") == 1
    assert set(ask("workers_to_close", attribute="name")) < {"bob", 0}
    assert len(ask("workers_to_close", n=1)) == 1
    assert ask("workers_to_close", minimum=2) == ()
    blocked = client.submit(time.sleep, 3, workers=["bob"])
    while not client.processing(workers=[at["bob"]])[at["bob"]]:
        time.sleep(0.05)
    assert ask("workers_to_close", attribute="name") == (0,)
    # The idle worker leaves, and its data moves.
    retired = client.retire_workers(close_workers=True)
    assert retired.keys() == {at[0]}, retired
    assert blocked.result(timeout=60) is None
    assert client.gather(many) == [bytes(n) for n in range(3)]


class Counter:
    count = 0

    def increment(self):
        self.count += 1
        return self.count


def actors(client):
    counter = client.submit(Counter, actor=True, workers=["worker-0"]).result(timeout=60)
    assert [counter.increment().result(timeout=60) for _ in range(3)] == [1, 2, 3]
    # A task on another worker uses the same actor.
    used = client.submit(lambda actor: actor.increment().result(), counter, workers=["worker-1"])
    assert used.result(timeout=60) == 4
    assert counter.count == 4


def talk(x):
    distributed_print("from a task")
    warn("careful")
    get_worker().log_event("news", {"x": x})
    return x


def operations(client):
    events = []
    client.subscribe_topic("news", events.append)
    # The first line of standard output tells the test that the client is done.
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        assert client.submit(talk, 5).result(timeout=60) == 5
        while not events or not caught or not printed.getvalue():
            time.sleep(0.05)
    assert printed.getvalue() == "from a task\n"
    (_, event), = events
    assert event["x"] == 5 and event["worker"] in client.ncores(), event
    assert "careful" in str(caught[0].message)
    assert client.get_events("news")[0][1] == event
    with get_task_stream(client=client) as stream:
        many = client.map(operator.neg, range(5), pure=False)
        wait(many)
    assert [task["status"] for task in stream.data] == ["OK"] * 5, stream.data
    with get_task_metadata() as tasks:
        one = client.submit(operator.neg, 100)
        wait(one)
    assert tasks.state == {one.key: "memory"}
    bad = client.submit(operator.truediv, 1, 0)
    wait(bad)
    assert raises_now(ZeroDivisionError, client.recreate_error_locally, bad) is None
    assert client.recreate_task_locally(one) == -100
    blocked = client.submit(time.sleep, 2, key="blocks")
    while not any("blocks" in stacks for stacks in client.call_stack().values()):
        time.sleep(0.05)
    assert client.profile()["identifier"] == "root"
    assert client.get_scheduler_logs(n=1)[0][0] in ("INFO", "WARNING")
    # The copies are superfluous to the Active Memory Manager.
    client.amm.stop()
    client.replicate(many)
    assert {len(held) for held in client.who_has(many).values()} == {2}
    client.replicate(many, n=1)
    assert {len(held) for held in client.who_has(many).values()} == {1}
    client.amm.start()
    client.rebalance()
    with tempfile.TemporaryDirectory() as directory:
        client.dump_cluster_state(os.path.join(directory, "dump"))
        dump = DumpArtefact.from_url(os.path.join(directory, "dump.msgpack.gz"))
    assert set(dump.dump["workers"]) == set(client.ncores())
    # DumpArtefact.scheduler_story fails if a key of the log is a tuple, which a dump has as a list.
    assert any(entry[0] == one.key for entry in dump.dump["scheduler"]["transition_log"])
    try:
        client.run_on_scheduler(os.getpid)
        raise AssertionError("the scheduler runs no Python")
    except NotImplementedError as error:
        assert "run_function" in str(error)
    assert client.gather(many) == [0, -1, -2, -3, -4]
    assert blocked.result(timeout=60) is None


def held(client):
    endless = client.submit(time.sleep, 600, key="endless")
    while not client.processing()[list(client.ncores())[0]]:
        time.sleep(0.05)
    # The task stays wanted after this process has ended.
    fire_and_forget(endless)
    client.sync(client.scheduler.identity)


def laptop(client):
    client.wait_for_workers(2, timeout=60)
    assert set(client.ncores().values()) == {1}
    assert len(set(client.run(os.getpid).values())) == 2


def reduces(client):
    """Superfluous copies are deleted regularly, and on request."""
    assert client.amm.running() is True
    client.amm.stop()
    [future] = client.scatter(["copied"], broadcast=True)
    holders = lambda: len(client.who_has([future])[future.key])
    assert holders() == 2
    assert client.amm.running() is False
    client.amm.run_once()
    while holders() > 1:
        time.sleep(0.01)
    assert future.result(timeout=60) == "copied"
    client.amm.start()
    assert client.amm.running() is True
    raises_now(ValueError, client.amm._run, "pause")


def meets(client):
    """Shares objects by name with a client in Rust, `rust_and_python_share_objects`."""
    variable, queue = Variable("v"), Queue("q", maxsize=2)
    assert variable.get(timeout=60) == {"from": "rust"}
    sum_ = client.submit(operator.add, 1, 2)
    variable.set(sum_)
    failure = client.submit(operator.truediv, 1, 0)
    queue.put(failure)
    del sum_, failure
    # Rust takes the first value and adds two.
    assert queue.get(timeout=60) == "rust"
    assert queue.get(timeout=60).result(timeout=60) == 5
    raises_now(asyncio.TimeoutError, lambda: queue.get(timeout=0.01))
    assert queue.get(batch=True) == [] and queue.qsize() == 0
    lock = Lock("l")
    assert lock.locked() and not lock.acquire(timeout=0.05)
    Event("refused").set()
    assert lock.acquire(timeout=60)
    Event("locked").set()
    assert Event("refused by python").wait(timeout=60)
    lock.release()

    def most(index, semaphore, name):
        with semaphore:
            if index == 0:
                Event(name).set()
            return semaphore.get_value()

    semaphore = Semaphore(2, "s")
    values = client.map(most, range(8), semaphore=semaphore, name="in a task")
    assert max(client.gather(values)) <= 2
    semaphore.close()
    with MultiLock(["a", "b"]):
        assert not MultiLock(["b", "c"]).acquire(timeout=0.05)
    assert MultiLock(["b", "c"]).acquire(timeout=60)
    assert client.get_dataset("from-rust") == [7]
    raises_now(KeyError, lambda: client.publish_dataset(1, name="from-rust"))
    client.publish_dataset(client.submit(operator.mul, 5, 6), name="from-python")
    assert client.list_datasets() == ("from-python", "from-rust")
    Event("published").set()
    assert Event("read").wait(timeout=60)
    client.unpublish_dataset("from-python")
    raises_now(KeyError, lambda: client.get_dataset("from-python"))
    queue.close()


def comes_back(client):
    """Results are there for a client that submits their tasks again after its connection broke."""
    first = client.submit(random.random, key="once")
    value = first.result(timeout=60)
    other = client.submit(operator.add, 1, 2)
    assert other.result(timeout=60) == 3
    comm = client.scheduler_comm.comm
    client.loop.add_callback(comm.abort)
    while not first.cancelled() or client.status != "running":
        time.sleep(0.01)
    assert client.scheduler_comm.comm is not comm
    # Dask's client cancels its own futures, which the scheduler cannot change.
    error = raises(CancelledError, first)
    assert getattr(error, "reason", "scheduler-connection-lost") == "scheduler-connection-lost"
    again = client.submit(random.random, key="once")
    assert again.result(timeout=60) == value
    # Futures of before still count.
    del first
    assert again.result(timeout=60) == value
    # The traceback of the error refers to a future.
    del again, other, error
    gc.collect()
    deadline = time.time() + 60
    while held_count(client) > 0:
        assert time.time() < deadline, held_count(client)
        time.sleep(0.1)


def held_count(client):
    """The number of keys that the scheduler has."""
    return len(client.sync(client.scheduler.who_has))


def raises_now(kind, function, *arguments):
    try:
        function(*arguments)
    except kind:
        return
    raise AssertionError(f"no {kind}")


if __name__ == "__main__":
    with Client(sys.argv[1], timeout=60) as client:
        for step in sys.argv[2:]:
            globals()[step](client)
    print("ready done", flush=True)
    sys.stdin.read()
