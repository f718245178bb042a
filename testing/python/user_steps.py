"""What a user does with a cluster, from the first submission to `shutdown`, step by step.

Usage: user_steps.py ADDRESS [--dask] [STEP...]

The scheduler at ADDRESS has the workers `worker-0` and `worker-1`, each with a nanny and one
thread; `worker-1` has a resource `GPU` of 2. Each step checks its results, and steps that the
scheduler refuses check the text of the error. Prints `ready N` with the number of steps, or ends
with the list of the steps that failed. With `--dask`, the scheduler is Dask's own, which refuses
no step: this checks the steps themselves.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import io
import logging
import math
import operator
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings

warnings.simplefilter("ignore")

import dask
import distributed
import numpy
from distributed import (
    Actor,
    CancelledError,
    Client,
    Event,
    Future,
    Lock,
    MultiLock,
    NannyPlugin,
    Queue,
    Reschedule,
    SchedulerPlugin,
    Semaphore,
    TimeoutError,
    Variable,
    WorkerPlugin,
    as_completed,
    default_client,
    fire_and_forget,
    futures_of,
    get_client,
    get_task_metadata,
    get_task_stream,
    get_worker,
    performance_report,
    progress,
    rejoin,
    secede,
    span,
    wait,
    worker_client,
)
from distributed.cluster_dump import DumpArtefact
from distributed.diagnostics import MemorySampler
from distributed.diagnostics.plugin import Environ, UploadDirectory

STEPS = []
WAIT = 30  # seconds
BOTH = ["worker-0", "worker-1"]


def step(function):
    STEPS.append(function)
    return function


def refused(kind, *parts):
    """A step that the scheduler refuses with an error that has these parts."""

    def decorate(function):
        @functools.wraps(function)
        def check(client):
            if "--dask" in sys.argv:
                return function(client)
            error = raises(kind, function, client)
            for part in parts:
                assert part in str(error), f"{part!r} is not in {error!r}"

        return step(check)

    return decorate


def raises(kind, function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except kind as error:
        return error
    raise AssertionError(f"no {kind}")


def eventually(condition):
    """Waits until a condition holds, and returns its value."""
    deadline = time.monotonic() + WAIT
    while not (value := condition()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)
    return value


def equal(one, other):
    assert one == other, f"{one!r} is not {other!r}"


def inc(x):
    return x + 1


def here(*_):
    return get_worker().name


def address_of(client, name):
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return next(address for address, worker in workers.items() if worker["name"] == name)


def by_name(client, results):
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {workers[address]["name"]: result for address, result in results.items()}


# Tasks


@step
def submit(client):
    equal(client.submit(inc, 1).result(WAIT), 2)


@step
def submit_with_keyword_arguments(client):
    equal(client.submit(sorted, [1, 3, 2], reverse=True).result(WAIT), [3, 2, 1])


@step
def submit_with_a_key(client):
    future = client.submit(inc, 1, key="its key")
    equal((future.key, future.result(WAIT)), ("its key", 2))
    equal(client.submit(inc, 1, key=("its", 1)).result(WAIT), 2)


@step
def submit_impure(client):
    one, other = (client.submit(time.time_ns, pure=False) for _ in range(2))
    assert one.key != other.key and one.result(WAIT) != other.result(WAIT)


@step
def submit_to_a_worker_by_name(client):
    for name in BOTH:
        equal(client.submit(here, workers=name, pure=False).result(WAIT), name)


@step
def submit_to_a_worker_by_address(client):
    for name in BOTH:
        worker = address_of(client, name)
        equal(client.submit(here, workers=[worker], pure=False).result(WAIT), name)


@step
def submit_to_a_host(client):
    assert client.submit(here, workers="127.0.0.1", pure=False).result(WAIT) in BOTH


@step
def submit_to_a_worker_that_is_not_there(client):
    future = client.submit(inc, 1, workers="nowhere", pure=False)
    raises(TimeoutError, future.result, 0.2)
    equal(future.status, "pending")


@step
def submit_with_allow_other_workers(client):
    future = client.submit(inc, 2, workers="nowhere", allow_other_workers=True)
    equal(future.result(WAIT), 3)


@step
def submit_with_resources(client):
    futures = [client.submit(here, n, resources={"GPU": 2}) for n in range(3)]
    equal(client.gather(futures), ["worker-1"] * 3)


@step
def submit_with_retries(client):
    folder = tempfile.mkdtemp()

    def fails_twice():
        count = len(os.listdir(folder))
        pathlib.Path(folder, str(count)).touch()
        if count < 2:
            raise ValueError(count)
        return count

    equal(client.submit(fails_twice, retries=2).result(WAIT), 2)


@step
def submit_with_a_priority(client):
    order = tempfile.mkdtemp()

    def note(name):
        pathlib.Path(order, name).write_text(str(time.time_ns()))

    blocked = client.submit(lambda: Event("go").wait(WAIT), workers="worker-0")
    worker = address_of(client, "worker-0")
    eventually(lambda: blocked.key in client.processing()[worker])
    # The first tasks are sent to the worker before the scheduler knows the others.
    first = client.map(lambda n: time.sleep(0.01), range(30), workers="worker-0")
    names = ["lower", "middle", "higher"]
    futures = [
        client.submit(note, name, priority=n, workers="worker-0")
        for n, name in enumerate(names, 1)
    ]
    eventually(lambda: client.story(futures[-1].key))
    Event("go").set()
    client.gather(futures + first)
    at = {name: int(pathlib.Path(order, name).read_text()) for name in names}
    equal(sorted(names, key=at.get), ["higher", "middle", "lower"])
    assert blocked.result(WAIT)


@step
def submit_with_a_fifo_timeout(client):
    futures = [client.submit(inc, n, fifo_timeout="1s") for n in range(5)]
    equal(client.gather(futures), [1, 2, 3, 4, 5])


@step
def submit_a_closure(client):
    factor = numpy.arange(3)
    equal(client.submit(lambda x: list(x * factor), 2).result(WAIT), [0, 2, 4])


@step
def submit_a_coroutine(client):
    async def later(x):
        await asyncio.sleep(0.01)
        return x + 1

    equal(client.submit(later, 1).result(WAIT), 2)


@step
def submit_futures_within_arguments(client):
    one, two = client.submit(inc, 0), client.submit(inc, 1)
    nested = {"a": [one, (two,)], "b": one}
    equal(client.submit(str, nested).result(WAIT), "{'a': [1, (2,)], 'b': 1}")


@step
def submit_a_large_argument(client):
    array = numpy.arange(300_000)
    equal(client.submit(numpy.sum, array).result(WAIT), array.sum())


@step
def map_a_function(client):
    equal(client.gather(client.map(inc, range(100))), list(range(1, 101)))


@step
def map_several_iterables(client):
    equal(client.gather(client.map(pow, [2, 3], [3, 2], [5, 5])), [3, 4])


@step
def map_with_keywords(client):
    equal(client.gather(client.map(sorted, [[1, 2], [4, 3]], reverse=True)), [[2, 1], [4, 3]])


@step
def map_in_batches(client):
    equal(client.gather(client.map(inc, range(20), batch_size=6)), list(range(1, 21)))


@step
def map_with_keys(client):
    futures = client.map(inc, range(2), key=["one", ("two", 2)])
    equal([future.key for future in futures], ["one", ("two", 2)])
    equal(client.map(inc, [5], key="prefix")[0].key[:7], "prefix-")


@step
def get_a_graph(client):
    graph = {"x": 1, "y": (inc, "x"), "z": (operator.add, "y", 10)}
    equal(client.get(graph, ["y", "z"]), [2, 12])


@step
def compute_delayed_functions(client):
    total = dask.delayed(sum)([dask.delayed(inc)(n) for n in range(4)])
    equal(total.compute(), 10)
    equal(client.compute(total).result(WAIT), 10)


@step
def persist_a_delayed_function(client):
    persisted = client.persist(dask.delayed(inc)(10))
    equal(futures_of(persisted)[0].result(WAIT), 11)
    equal(client.futures_of(persisted)[0].key, persisted.key)
    equal(persisted.compute(), 11)


@step
def annotate_tasks(client):
    with dask.annotate(workers=["worker-1"], priority=5, retries=1):
        equal(client.submit(here, "annotated").result(WAIT), "worker-1")
        delayed = dask.delayed(here)("annotated delayed")
    equal(client.compute(delayed).result(WAIT), "worker-1")


@step
def name_a_span(client):
    with span("a", "b") as span_id:
        equal(client.submit(inc, 77, pure=False).result(WAIT), 78)
    assert span_id


@step
def use_an_executor(client):
    with client.get_executor(pure=False, workers=["worker-0"]) as executor:
        future = executor.submit(pow, 2, 5)
        equal(future.result(), 32)
        equal(list(executor.map(inc, range(3))), [1, 2, 3])
        both = [executor.submit(here) for _ in range(2)]
        done = concurrent.futures.wait(both, timeout=WAIT).done
        equal({future.result() for future in done}, {"worker-0"})


@step
def fire_and_forget_a_task(client):
    event = Event("forgotten")
    fire_and_forget(client.submit(lambda: Event("forgotten").set(), pure=False))
    assert event.wait(WAIT)


# Futures


@step
def time_out_for_a_result(client):
    future = client.submit(time.sleep, 0.5, pure=False)
    raises(TimeoutError, future.result, timeout=0.05)
    equal((future.done(), future.result(WAIT), future.done()), (False, None, True))


@step
def read_an_exception(client):
    future = client.submit(operator.truediv, 1, 0)
    assert isinstance(future.exception(WAIT), ZeroDivisionError)
    raises(ZeroDivisionError, future.result, WAIT)
    equal(future.status, "error")


@step
def read_a_traceback(client):
    def fails():
        raise KeyError("here")

    lines = traceback.extract_tb(client.submit(fails).traceback(WAIT))
    assert "fails" in [line.name for line in lines]
    lines = traceback.extract_tb(client.submit(fails, workers="worker-0", pure=False).traceback(WAIT))
    equal([line.name for line in lines], ["fails"])


@step
def run_with_a_client_without_pickle(client):
    with Client(
        client.scheduler.address, set_as_default=False, serializers=["dask", "msgpack"]
    ) as other:
        address = address_of(client, "worker-0")
        equal(other.run(lambda: 1, workers=[address]), {address: 1})


@step
def submit_what_a_worker_cannot_open(client):
    class Closed:
        def __reduce__(self):
            return exec, ("raise ValueError('closed')",)

    error = client.submit(inc, Closed(), workers="worker-0").exception(WAIT)
    assert "closed" in repr((error, error.__cause__)), error
    equal(client.submit(inc, 1, workers="worker-0").result(WAIT), 2)


@step
def fail_with_a_dependency(client):
    bad = client.submit(operator.truediv, 1, 0)
    assert isinstance(client.submit(inc, bad).exception(WAIT), ZeroDivisionError)


@step
def see_the_type_of_a_result(client):
    future = client.submit(inc, 1)
    wait(future)
    equal(future.type, int)


@step
def cancel_a_future(client):
    running = [client.submit(time.sleep, 0.3, pure=False, workers=name) for name in BOTH]
    cancelled = client.submit(inc, 1, pure=False)
    cancelled.cancel()
    assert cancelled.cancelled() and cancelled.status == "cancelled"
    raises(CancelledError, cancelled.result, WAIT)
    client.gather(running)


@step
def cancel_with_a_reason(client):
    future = client.submit(time.sleep, 0.5, pure=False)
    client.cancel([future], reason="no need", msg="it is too slow")
    assert "it is too slow" in str(raises(CancelledError, future.result, WAIT))


@step
def cancel_what_others_want(client):
    with Client(client.scheduler.address, set_as_default=False, timeout=WAIT) as other:
        two = other.submit(time.sleep, 0.5, key="wanted by two")
        eventually(lambda: any("wanted by two" in keys for keys in client.processing().values()))
        one = client.submit(time.sleep, 0.5, key="wanted by two")
        client.cancel([one], force=True)
        raises(CancelledError, two.result, WAIT)


@step
def release_a_future(client):
    future = client.submit(inc, 1000)
    wait(future)
    key = future.key
    assert client.who_has()[key]
    future.release()
    eventually(lambda: key not in client.who_has())


@step
def call_back_when_done(client):
    called = []
    client.submit(inc, 1).add_done_callback(lambda future: called.append(future.result()))
    equal(eventually(lambda: called), [2])


def once(folder):
    if not os.listdir(folder):
        pathlib.Path(folder, "ran").touch()
        raise ValueError("the first time")
    return "the second time"


@step
def retry_a_future(client):
    future = client.submit(once, tempfile.mkdtemp())
    assert isinstance(future.exception(WAIT), ValueError)
    future.retry()
    equal(future.result(WAIT), "the second time")


@step
def retry_futures(client):
    future = client.submit(once, tempfile.mkdtemp())
    wait(future)
    client.retry([future])
    equal(future.result(WAIT), "the second time")


@step
def pickle_a_future(client):
    future = client.submit(inc, 5)
    loaded = pickle.loads(pickle.dumps(future))
    loaded.bind_client(client)
    equal(loaded.result(WAIT), 6)


@step
def take_a_future_by_its_key(client):
    future = client.submit(inc, 6)
    equal(Future(future.key, client=client).result(WAIT), 7)


@step
def await_a_future(client):
    async def main():
        address = client.scheduler.address
        async with Client(address, asynchronous=True, set_as_default=False) as other:
            future = other.submit(inc, 1)
            return await future, await other.gather(other.map(inc, range(3)))

    equal(asyncio.run(main()), (2, [1, 2, 3]))


@step
def wait_for_all(client):
    futures = client.map(inc, range(10), pure=False)
    done, not_done = wait(futures, timeout=WAIT)
    equal((done, not_done), (set(futures), set()))


@step
def wait_for_the_first(client):
    slow, fast = client.submit(time.sleep, 0.5, pure=False), client.submit(inc, 1)
    done, not_done = wait([slow, fast], return_when="FIRST_COMPLETED", timeout=WAIT)
    equal((done, not_done), ({fast}, {slow}))
    raises(TimeoutError, wait, slow, timeout=0.01)
    slow.cancel()


@step
def iterate_as_completed(client):
    futures = client.map(inc, range(5), pure=False)
    equal(sorted(future.result() for future in as_completed(futures)), [1, 2, 3, 4, 5])


@step
def iterate_with_results(client):
    futures = client.map(inc, range(3), pure=False)
    equal(sorted(x for _, x in as_completed(futures, with_results=True)), [1, 2, 3])


@step
def iterate_over_batches(client):
    futures = client.map(inc, range(5), pure=False)
    batches = as_completed(futures, with_results=True).batches()
    equal(sorted(x for batch in batches for _, x in batch), [1, 2, 3, 4, 5])


@step
def add_to_what_is_iterated(client):
    completed = as_completed([client.submit(inc, 0, pure=False)], with_results=True)
    seen = []
    for _, result in completed:
        seen.append(result)
        if result < 3:
            completed.add(client.submit(inc, result, pure=False))
    equal((seen, completed.is_empty(), completed.count()), ([1, 2, 3], True, 0))


@step
def gather_nested_futures(client):
    one, two = client.map(inc, [0, 1])
    equal(client.gather({"a": [one, two], "b": (one,)}), {"a": [1, 2], "b": (1,)})


@step
def gather_without_what_failed(client):
    futures = [client.submit(inc, 1), client.submit(operator.truediv, 1, 0)]
    equal(client.gather(futures, errors="skip"), [2])


@step
def gather_directly(client):
    futures = client.map(inc, range(10))
    equal(client.gather(futures, direct=True), client.gather(futures, direct=False))


@refused(TypeError, "_draw_bar() missing")
def show_progress(client):
    # The request `feed` is refused. The progress bar does not show the error that it receives.
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        progress(client.map(inc, range(5)), notebook=False)
    assert "Completed" in shown.getvalue()


# Data


@step
def scatter_and_gather(client):
    one = client.scatter(numpy.ones(10))
    equal(client.submit(numpy.sum, one).result(WAIT), 10)
    equal(client.gather(client.scatter([1, "two"])), [1, "two"])
    equal(client.gather(client.scatter({"three": 3})), {"three": 3})


@step
def scatter_to_a_worker(client):
    for name in BOTH:
        future = client.scatter(name, workers=[name], hash=False)
        equal(client.who_has([future]), {future.key: (address_of(client, name),)})


@step
def stop_the_memory_manager(client):
    """Otherwise it would delete the copies that some of the next steps make."""
    assert client.amm.running()
    client.amm.stop()
    assert not client.amm.running()


@step
def scatter_to_all_workers(client):
    future = client.scatter("to all", broadcast=True)
    equal(len(client.who_has([future])[future.key]), 2)


@step
def scatter_directly(client):
    future = client.scatter("direct", direct=True, hash=False)
    equal(future.result(WAIT), "direct")


@step
def see_who_has_what(client):
    future = client.submit(inc, 50, workers="worker-1", key="where")
    wait(future)
    worker = address_of(client, "worker-1")
    equal(client.who_has([future]), {"where": (worker,)})
    assert "where" in client.has_what()[worker]
    equal(client.has_what(workers=["worker-1"]).keys(), {worker})


@step
def count_threads(client):
    equal(by_name(client, client.nthreads()), dict.fromkeys(BOTH, 1))
    equal(client.ncores(), client.nthreads())


@step
def measure_results(client):
    future = client.submit(bytes, 1000, key="measured-0")
    wait(future)
    assert 1000 <= client.nbytes()["measured"] < 1100
    assert 1000 <= client.nbytes(summary=False)["measured-0"] < 1100


@step
def see_what_runs(client):
    future = client.submit(time.sleep, 0.5, key="runs", workers="worker-0")
    worker = address_of(client, "worker-0")
    eventually(lambda: "runs" in client.processing()[worker])
    stacks = eventually(lambda: client.call_stack([future]))
    assert "runs" in stacks[worker]
    wait(future)
    equal(client.call_stack([future]), {})


@step
def see_the_call_stack_of_both_workers(client):
    futures = [client.submit(time.sleep, 0.6, pure=False, workers=name) for name in BOTH]
    eventually(lambda: len(client.call_stack()) == 2)
    client.gather(futures)


@step
def replicate_data(client):
    future = client.scatter("copied", hash=False)
    client.replicate([future], n=2)
    equal(len(client.who_has([future])[future.key]), 2)
    client.replicate([future], n=1)
    equal(len(client.who_has([future])[future.key]), 1)


@step
def rebalance_data(client):
    futures = client.scatter([bytes([n]) * 100_000 for n in range(10)], workers=["worker-0"])
    client.rebalance()
    equal([data[:1] for data in client.gather(futures)], [bytes([n]) for n in range(10)])


@step
def read_the_story_of_a_task(client):
    future = client.submit(inc, 60, pure=False)
    wait(future)
    story = client.story(future.key)
    scheduler = [(entry[2], entry[3]) for entry in story if entry[0] == "scheduler"]
    equal((scheduler[0], scheduler[-1]), (("released", "waiting"), ("processing", "memory")))
    assert len({entry[0] for entry in story}) == 2


@step
def run_a_task_again_here(client):
    good, bad = client.submit(inc, 70), client.submit(operator.truediv, 70, 0)
    wait([good, bad])
    equal(client.recreate_task_locally(good), 71)
    raises(ZeroDivisionError, client.recreate_error_locally, bad)


@step
def delete_superfluous_copies(client):
    future = client.scatter("superfluous", broadcast=True, hash=False)
    client.amm.run_once()
    eventually(lambda: len(client.who_has([future])[future.key]) == 1)
    equal(future.result(WAIT), "superfluous")


# Objects that clients and tasks share by name


@step
def set_a_variable(client):
    Variable("v").set({"a": "b", "c": 1.5})
    equal(Variable("v").get(timeout=WAIT), {"a": "b", "c": 1.5})


@step
def share_a_future_by_a_variable(client):
    Variable("f").set(client.submit(inc, 80, pure=False))
    equal(client.submit(lambda: Variable("f").get().result()).result(WAIT), 81)


@step
def delete_a_variable(client):
    variable = Variable("deleted")
    raises(TimeoutError, variable.get, timeout=0.05)
    variable.set(1)
    variable.delete()

    def is_deleted():
        # The requests to delete and to read are sent over different comms.
        with contextlib.suppress(TimeoutError):
            return variable.get(timeout=0.05) is None
        return True

    eventually(is_deleted)


@step
def put_into_a_queue(client):
    queue = Queue("q")
    queue.put(1)
    queue.put(client.submit(inc, 1))
    equal((queue.qsize(), queue.get(), queue.get().result(WAIT)), (2, 1, 2))


@step
def fill_a_queue(client):
    queue = Queue("full", maxsize=1)
    queue.put(1)
    raises(TimeoutError, queue.put, 2, timeout=0.05)
    equal(queue.get(), 1)
    raises(TimeoutError, queue.get, timeout=0.05)


@step
def get_batches_of_a_queue(client):
    queue = Queue("batches")
    for n in range(4):
        queue.put(n)
    equal((queue.get(batch=2), queue.get(batch=True)), ([0, 1], [2, 3]))
    queue.close()


@step
def put_into_a_queue_by_tasks(client):
    queue = Queue("by tasks")
    client.gather(client.map(lambda n: Queue("by tasks").put(n), range(4)))
    equal(sorted(queue.get(timeout=WAIT) for _ in range(4)), [0, 1, 2, 3])


@step
def lock(client):
    with Lock("l"):
        assert Lock("l").locked()
        assert not Lock("l").acquire(timeout=0.05)
    assert not Lock("l").locked()


@step
def lock_in_tasks(client):
    path = os.path.join(tempfile.mkdtemp(), "count")
    pathlib.Path(path).write_text("0")

    def add(_):
        with Lock("file"):
            count = int(pathlib.Path(path).read_text())
            time.sleep(0.002)
            pathlib.Path(path).write_text(str(count + 1))

    client.gather(client.map(add, range(10)))
    equal(pathlib.Path(path).read_text(), "10")


@step
def set_an_event(client):
    event = Event("e")
    assert not event.is_set() and not event.wait(timeout=0.05)
    waiting = client.submit(lambda: Event("e").wait(WAIT))
    event.set()
    assert waiting.result(WAIT) and event.is_set()
    event.clear()
    assert not event.is_set()


@step
def acquire_a_semaphore(client):
    semaphore = Semaphore(max_leases=2, name="s")
    with semaphore, semaphore:
        equal(semaphore.get_value(), 2)
        assert not semaphore.acquire(timeout=0.05)
    eventually(lambda: semaphore.get_value() == 0)
    semaphore.close()


@step
def acquire_a_semaphore_in_tasks(client):
    semaphore = Semaphore(max_leases=1, name="in tasks")

    def held(_, semaphore):
        with semaphore:
            return semaphore.get_value()

    equal(client.gather(client.map(held, range(4), semaphore=semaphore)), [1] * 4)
    semaphore.close()


@step
def acquire_several_locks(client):
    with MultiLock(["a", "b"]):
        assert not MultiLock(["b", "c"]).acquire(timeout=0.05)
        assert MultiLock(["c"]).acquire(timeout=WAIT)


@step
def publish_a_dataset(client):
    client.publish_dataset(client.submit(inc, 90), name="d")
    client.datasets["e"] = [1, 2]
    equal(sorted(client.list_datasets()), ["d", "e"])
    with Client(client.scheduler.address, set_as_default=False, timeout=WAIT) as other:
        equal((other.get_dataset("d").result(WAIT), other.datasets["e"]), (91, [1, 2]))


@step
def publish_a_dataset_again(client):
    assert "already exists" in str(raises(KeyError, client.publish_dataset, 1, name="e"))
    client.publish_dataset(3, name="e", override=True)
    equal(client.get_dataset("e"), 3)


@step
def unpublish_datasets(client):
    client.unpublish_dataset("d")
    del client.datasets["e"]
    equal(client.list_datasets(), ())
    raises(KeyError, client.get_dataset, "d")
    equal(client.get_dataset("d", default=None), None)


class Counter:
    count = 0

    def add(self, n=1):
        self.count += n
        return self.count


@step
def call_an_actor(client):
    for name in BOTH:
        actor = client.submit(Counter, actor=True, workers=name).result(WAIT)
        assert isinstance(actor, Actor)
        equal([actor.add().result(), actor.add(5).result(), actor.count], [1, 6, 6])


@step
def call_an_actor_in_a_task(client):
    actor = client.submit(Counter, actor=True, workers="worker-0").result(WAIT)
    added = client.submit(lambda actor: actor.add(2).result(), actor, workers="worker-1")
    equal((added.result(WAIT), actor.count), (2, 2))


# Tasks that submit tasks


@step
def submit_in_a_task(client):
    def outer(n):
        return get_client().submit(inc, n).result()

    for name in BOTH:
        equal(client.submit(outer, 100, workers=name, pure=False).result(WAIT), 101)


@step
def submit_with_a_worker_client(client):
    def outer(n):
        with worker_client() as inside:
            return sum(inside.gather(inside.map(inc, range(n))))

    for name in BOTH:
        equal(client.submit(outer, 4, workers=name, pure=False).result(WAIT), 10)


@step
def secede_from_a_thread(client):
    def waits():
        secede()
        value = Event("seceded").wait(WAIT)
        rejoin()
        return value

    for name in BOTH:
        waiting = client.submit(waits, workers=name, pure=False)
        # The only thread of the worker is free.
        equal(client.submit(here, workers=name, pure=False).result(WAIT), name)
        Event("seceded").set()
        assert waiting.result(WAIT)
        Event("seceded").clear()


@step
def know_the_worker(client):
    futures = [client.submit(lambda: get_worker().address, workers=w, pure=False) for w in BOTH]
    equal(client.gather(futures), [address_of(client, name) for name in BOTH])


@step
def reschedule_a_task(client):
    def elsewhere():
        if here() == "worker-0":
            raise Reschedule()
        return here()

    equal(client.submit(elsewhere, pure=False).result(WAIT), "worker-1")


# Functions on workers


@step
def run_on_all_workers(client):
    pids = client.run(os.getpid)
    equal((pids.keys(), len(set(pids.values()))), (client.nthreads().keys(), 2))
    equal(client.run(lambda dask_worker: dask_worker.name).keys(), pids.keys())


@step
def run_on_a_worker(client):
    for name in BOTH:
        worker = address_of(client, name)
        equal(client.run(inc, 1, workers=[worker]), {worker: 2})


@step
def run_on_nannies(client):
    pids = by_name(client, client.run(os.getpid, nanny=True))
    equal(pids.keys(), set(BOTH))
    # The nanny of a worker in Rust runs no Python, and its worker does this for it.
    assert pids["worker-0"] != by_name(client, client.run(os.getpid))["worker-0"]


@step
def run_a_coroutine(client):
    async def named(dask_worker):
        await asyncio.sleep(0.01)
        return dask_worker.address

    for worker, result in client.run(named).items():
        equal(worker, result)


@step
def run_what_fails(client):
    def fails():
        raise ValueError("on each")

    raises(ValueError, client.run, fails)
    results = client.run(fails, on_error="return")
    equal([type(error) for error in results.values()], [ValueError] * 2)
    equal(client.run(fails, on_error="ignore"), {})


@step
def run_without_waiting(client):
    worker = address_of(client, "worker-0")

    async def runs():
        await Event("ran").set()

    client.run(runs, wait=False, workers=[worker])
    assert Event("ran").wait(WAIT)


@refused(NotImplementedError, 'refuses "run_function": it would run code of Python')
def run_on_the_scheduler(client):
    equal(client.run_on_scheduler(inc, 1), 2)


# Plugins and files


class Marks(WorkerPlugin):
    def setup(self, worker):
        worker.mark = "set"

    def teardown(self, worker):
        del worker.mark


class MarksNannies(NannyPlugin):
    def setup(self, nanny):
        nanny.mark = "set"


class OfScheduler(SchedulerPlugin):
    pass


def mark_of(dask_worker):
    return getattr(dask_worker, "mark", None)


@step
def register_a_worker_plugin(client):
    client.register_plugin(Marks(), name="marks")
    equal(by_name(client, client.run(mark_of)), dict.fromkeys(BOTH, "set"))


@step
def unregister_a_worker_plugin(client):
    client.unregister_worker_plugin("marks")
    equal(by_name(client, client.run(mark_of)), dict.fromkeys(BOTH, None))
    raises(ValueError, client.unregister_worker_plugin, "marks")


@refused(NotImplementedError, "the nanny of the worker worker-1 at tcp://", " runs no Python")
def register_a_nanny_plugin(client):
    client.register_plugin(MarksNannies(), name="marks-nannies")


@refused(NotImplementedError, 'refuses "register_scheduler_plugin": it would run code of Python')
def register_a_scheduler_plugin(client):
    client.register_plugin(OfScheduler(), name="of-scheduler")
    client.unregister_scheduler_plugin("of-scheduler")


@step
def call_back_when_workers_start(client):
    def called(dask_worker):
        dask_worker.called = True

    client.register_worker_callbacks(called)
    equal(list(client.run(lambda dask_worker: dask_worker.called).values()), [True] * 2)


@step
def upload_a_file(client):
    path = pathlib.Path(tempfile.mkdtemp(), "module_of_user.py")
    path.write_text("answer = 42\n")
    client.upload_file(str(path))
    for name in BOTH:
        answer = client.submit(
            lambda: __import__("module_of_user").answer, workers=name, pure=False
        )
        equal(answer.result(WAIT), 42)


# Information


@step
def describe_the_cluster(client):
    info = client.scheduler_info(n_workers=-1)
    equal((info["type"], len(info["workers"])), ("Scheduler", 2))
    gpu = {worker["name"]: worker["resources"] for worker in info["workers"].values()}
    equal(gpu, {"worker-0": {}, "worker-1": {"GPU": 2.0}})


@step
def link_to_the_dashboard(client):
    assert client.dashboard_link.startswith("http://127.0.0.1:")


@step
def record_a_task_stream(client):
    with get_task_stream(client=client) as stream:
        wait(client.map(inc, range(5), pure=False))
    equal([task["status"] for task in stream.data], ["OK"] * 5)
    assert all(task["startstops"][0]["action"] == "compute" for task in stream.data)


@step
def record_the_metadata_of_tasks(client):
    with get_task_metadata() as tasks:
        future = client.submit(inc, 120, pure=False)
        wait(future)
    equal(tasks.state, {future.key: "memory"})
    assert future.key in tasks.metadata


@step
def profile(client):
    tree = client.profile()
    equal(tree["identifier"], "root")
    equal(client.profile(workers=[address_of(client, "worker-0")])["identifier"], "root")


@refused(NotImplementedError, 'refuses "run_function": it would run code of Python')
def write_a_performance_report(client):
    path = os.path.join(tempfile.mkdtemp(), "report.html")
    # Dask needs bokeh for it.
    with contextlib.suppress(ModuleNotFoundError), performance_report(filename=path):
        client.submit(inc, 1, pure=False).result(WAIT)


@step
def sample_memory(client):
    sampler = MemorySampler()
    with sampler.sample("a", client=client, interval=0.1):
        time.sleep(0.3)
    assert len(sampler.samples["a"]) > 0


@step
def compare_versions(client):
    versions = client.get_versions()
    equal(versions.keys(), {"scheduler", "workers", "client"})
    equal(len(versions["workers"]), 2)


@step
def read_the_logs_of_workers(client):
    client.run(lambda: logging.getLogger("distributed.worker").warning("to be logged"))
    logs = by_name(client, client.get_worker_logs())
    for name in BOTH:
        assert any("to be logged" in line for _, line in logs[name]), logs
    equal(len(client.get_worker_logs(n=1, workers=[address_of(client, "worker-0")])), 1)


@step
def read_the_logs_of_nannies(client):
    equal(len(client.get_worker_logs(nanny=True)), 2)


@step
def read_the_logs_of_the_scheduler(client):
    assert any("worker-1" in line for _, line in client.get_scheduler_logs())
    equal(len(client.get_scheduler_logs(n=1)), 1)


@step
def log_an_event(client):
    client.log_event("topic", {"a": 1})
    client.submit(lambda: get_worker().log_event("topic", 2), pure=False).result(WAIT)
    events = eventually(lambda: len(events := client.get_events("topic")) == 2 and events)
    equal(events[0][1], {"a": 1})


@step
def subscribe_to_a_topic(client):
    received = []
    client.subscribe_topic("news", lambda event: received.append(event[1]))
    # The subscription and the event are sent over different comms.
    eventually(lambda: client.log_event("news", "first") or received)
    client.unsubscribe_topic("news")

    def is_quiet():
        count = len(received)
        client.log_event("news", "later")
        client.submit(inc, 1, pure=False).result(WAIT)
        return len(received) == count

    eventually(is_quiet)


@step
def print_and_warn_in_tasks(client):
    def says(name):
        distributed.print("printed by", name)
        distributed.warn(f"warned by {name}")

    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        for name in BOTH:
            client.submit(says, name, workers=name, pure=False).result(WAIT)
        eventually(lambda: len(caught) == 2 and printed.getvalue().count("\n") == 2)
    equal(printed.getvalue().splitlines(), [f"printed by {name}" for name in BOTH])
    equal([str(warning.message) for warning in caught], [f"warned by {name}" for name in BOTH])


@step
def forward_logging(client):
    received = []

    class Handler(logging.Handler):
        def emit(self, record):
            received.append(record.getMessage())

    logger = logging.getLogger("of-user")
    logger.addHandler(Handler())
    client.forward_logging("of-user", level=logging.INFO)

    def says(name):
        logging.getLogger("of-user").warning("logged by %s", name)

    for name in BOTH:
        client.submit(says, name, workers=name, pure=False).result(WAIT)
    eventually(lambda: len(received) == 2)
    equal(sorted(received), [f"logged by {name}" for name in BOTH])
    client.unforward_logging("of-user")


@step
def dump_the_state(client):
    path = os.path.join(tempfile.mkdtemp(), "dump")
    future = client.submit(inc, 130, key="dumped")
    wait(future)
    client.dump_cluster_state(path)
    dump = DumpArtefact.from_url(path + ".msgpack.gz")
    equal(dump.dump["scheduler"]["tasks"]["dumped"]["state"], "memory")
    equal(set(dump.dump["workers"]), set(client.nthreads()))


@refused(NotImplementedError, 'refuses "dump_cluster_state_to_url": fsspec would write the file')
def dump_the_state_to_a_url(client):
    client.dump_cluster_state("memory://dump")


@step
def set_metadata(client):
    client.set_metadata(["a", "b"], 1)
    equal(client.get_metadata("a"), {"b": 1})
    equal(client.get_metadata(["a", "c"], default=2), 2)
    raises(KeyError, client.get_metadata, ["a", "c"])


@step
def benchmark_the_hardware(client):
    # A part of `benchmark_hardware`, all of which takes 15 seconds.
    worker, message = address_of(client, "worker-0"), {"op": "benchmark_memory"}
    measured = client.sync(client.scheduler.broadcast, msg=message, workers=[worker])
    assert min(measured[worker].values()) > 0


# Clients


@step
def find_the_client(client):
    assert default_client() is client and get_client() is client and Client.current() is client
    with Client(client.scheduler.address, set_as_default=False, timeout=WAIT) as other:
        with other.as_current():
            assert get_client() is other
        assert get_client() is client


@step
def connect_by_a_scheduler_file(client):
    path = os.path.join(tempfile.mkdtemp(), "scheduler.json")
    client.write_scheduler_file(path)
    with Client(scheduler_file=path, set_as_default=False, timeout=WAIT) as other:
        equal(other.submit(inc, 1).result(WAIT), 2)


@step
def share_results_between_clients(client):
    future = client.submit(inc, 140, key="shared")
    wait(future)
    with Client(client.scheduler.address, set_as_default=False, timeout=WAIT) as other:
        again = other.submit(operator.neg, 1, key="shared")
        equal(again.result(WAIT), 141)
    equal(future.result(WAIT), 141)


@step
def close_a_client_that_wants_results(client):
    with Client(client.scheduler.address, set_as_default=False, timeout=WAIT) as other:
        future = other.submit(inc, 150, key="of the other")
        wait(future)
        assert "of the other" in client.who_has()
    eventually(lambda: "of the other" not in client.who_has())


@step
def compute_with_the_client_as_default(client):
    equal(dask.compute(dask.delayed(here)(), scheduler=client)[0] in BOTH, True)
    equal(dask.delayed(lambda: here() in BOTH)().compute(), True)


# Workers that come and go


@step
def wait_for_workers(client):
    client.wait_for_workers(2, timeout=WAIT)
    raises(TimeoutError, client.wait_for_workers, 3, timeout=0.1)


@step
def set_the_environment(client):
    client.register_plugin(Environ({"DASKWIRE_STEP": "set"}))
    client.wait_for_workers(2, timeout=WAIT)
    for name in BOTH:
        future = client.submit(os.getenv, "DASKWIRE_STEP", workers=name, pure=False)
        equal(future.result(WAIT), "set")


@step
def restart_a_worker(client):
    before = by_name(client, client.run(os.getpid))
    equal(client.restart_workers(["worker-0"], timeout=WAIT), {"worker-0": "OK"})
    after = by_name(client, client.run(os.getpid))
    assert before["worker-0"] != after["worker-0"], (before, after)
    equal(before["worker-1"], after["worker-1"])


@step
def restart_all_workers(client):
    before = client.run(os.getpid)
    lost = client.submit(inc, 160)
    wait(lost)
    client.restart(timeout=WAIT)
    equal(lost.status, "cancelled")
    after = client.run(os.getpid)
    assert len(after) == 2 and not set(before.values()) & set(after.values())
    # Plugins and files are for new processes, too.
    for name in BOTH:
        answer = client.submit(
            lambda: __import__("module_of_user").answer, workers=name, pure=False
        )
        equal(answer.result(WAIT), 42)


@step
def lose_a_worker(client):
    """Its results are computed again, and its nanny starts another one."""
    futures = client.map(inc, range(20), pure=False)
    wait(futures)
    worker = address_of(client, "worker-0")
    os.kill(client.run(os.getpid, workers=[worker])[worker], 9)
    eventually(lambda: worker not in client.nthreads())
    equal(client.gather(futures), list(range(1, 21)))
    client.wait_for_workers(2, timeout=WAIT)


@step
def dump_the_state_with_a_lost_worker(client):
    path = os.path.join(tempfile.mkdtemp(), "dump")
    client.dump_cluster_state(path)
    events = DumpArtefact.from_url(path + ".msgpack.gz").dump["scheduler"]["events"]
    # Those of Dask do not have the events themselves.
    assert "--dask" in sys.argv or "remove-worker" in str(events["all"])


@refused(NotImplementedError, 'refuses "register_scheduler_plugin": it would run code of Python')
def upload_a_directory(client):
    folder = pathlib.Path(tempfile.mkdtemp(), "package_of_user")
    folder.mkdir()
    (folder / "__init__.py").write_text("answer = 43\n")
    client.register_plugin(UploadDirectory(str(folder), update_path=True), name="directory")
    pids = client.run(os.getpid, nanny=True)
    equal(len(pids), 2)


@step
def retire_a_worker(client):
    futures = client.map(inc, range(20), workers=["worker-0"], allow_other_workers=True)
    wait(futures)
    retired = client.retire_workers(names=["worker-0"])
    equal(len(retired), 1)
    equal(client.gather(futures), list(range(1, 21)))
    eventually(lambda: len(client.nthreads()) == 1)


@step
def shut_down(client):
    address = client.scheduler.address
    client.shutdown()
    eventually(lambda: not is_listening(address))
    equal(client.status, "closed")


def is_listening(address):
    import socket

    host, port = address.removeprefix("tcp://").split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


def too_late(*_):
    raise TimeoutError("the step takes too long")


def main():
    failed = []
    # `Environ` restarts workers.
    client = Client(sys.argv[1], timeout=WAIT)
    client.wait_for_workers(2, timeout=WAIT)
    signal.signal(signal.SIGALRM, too_late)
    named = sys.argv[3 if "--dask" in sys.argv else 2 :]
    for step in [step for step in STEPS if not named or step.__name__ in named]:
        start = time.monotonic()
        signal.alarm(WAIT)
        try:
            step(client)
        except BaseException:
            failed.append(step.__name__)
            traceback.print_exc()
        print(f"{time.monotonic() - start:6.2f} s  {step.__name__}", file=sys.stderr, flush=True)
    signal.alarm(WAIT)
    client.close()
    assert not failed, f"steps that failed: {', '.join(failed)}"


if __name__ == "__main__":
    main()
    print(f"ready {len(STEPS)}", flush=True)
    sys.stdin.read()
