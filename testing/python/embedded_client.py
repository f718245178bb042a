"""A Dask client of this release that connects to a scheduler other than Dask's.

Its arguments are the address of the scheduler and the name of a check. Prints
`ready done` if the check passes, and ends with an exception otherwise.
"""

import asyncio
import operator
import os
import pathlib
import sys
import tempfile
import time
import warnings

warnings.simplefilter("ignore")

import dask.bag
import numpy
from distributed import Client, KilledWorker, fire_and_forget, get_worker
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


def errors(client):
    assert "division" in str(raises(ZeroDivisionError, client.submit(operator.truediv, 1, 0)))
    failed = client.submit(operator.add, client.submit(operator.truediv, 2, 0), 1)
    raises(ZeroDivisionError, failed)
    # Collections send an expression, which only Python can convert to a graph.
    for future in [
        client.map(operator.neg, range(3))[1],
        client.compute(dask.bag.from_sequence(range(4)).sum()),
    ]:
        assert "only Python can convert" in str(raises(RuntimeError, future))
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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.get_versions(check=True)
    assert "Mismatched versions" in str(caught[0].message)

    def ask(request, **arguments):
        return client.sync(getattr(client.scheduler, request), **arguments)

    assert ask("adaptive_target") == 0
    assert set(ask("workers_to_close", attribute="name")) == {"bob", 0}
    assert len(ask("workers_to_close", n=1)) == 1
    assert ask("workers_to_close", minimum=2) == []
    blocked = client.submit(time.sleep, 3, workers=["bob"])
    while not client.processing(workers=[at["bob"]])[at["bob"]]:
        time.sleep(0.05)
    assert ask("workers_to_close", attribute="name") == [0]
    # The idle worker leaves, and its data moves.
    retired = client.retire_workers(close_workers=True)
    assert retired.keys() == {at[0]}, retired
    assert blocked.result(timeout=60) is None
    assert client.gather(many) == [bytes(n) for n in range(3)]


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
