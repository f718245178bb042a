"""A Dask client of this release that runs functions and plugins in a scheduler other than Dask's.

See `checks.py`.
"""

import asyncio
import contextlib
import importlib
import io
import operator
import os
import re
import sys
import tempfile
import threading
import time
import warnings

warnings.simplefilter("ignore")

import checks
import dask.array as da
from distributed import Client, Event, Worker, get_task_stream, performance_report, progress, wait
from distributed.cluster_dump import DumpArtefact
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.protocol.pickle import loads

ADDRESS = sys.argv[1]


def until(condition, seconds=30):
    """Waits until a condition holds, and returns its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "the condition does not hold"
        time.sleep(0.02)
    return value


def raises(kind, text, function, *arguments, **named):
    try:
        result = function(*arguments, **named)
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"no error, but {result!r}")


def functions(client):
    assert client.run_on_scheduler(operator.add, 2, 3) == 5
    assert client.run_on_scheduler(os.getpid) not in (os.getpid(), 0)
    assert client.run_on_scheduler(lambda dask_scheduler=None, x=1: x, x=7) == 7

    # A client with serializers of its own sends them with each request.
    with Client(ADDRESS, serializers=["msgpack", "pickle"], set_as_default=False) as other:
        assert other.run_on_scheduler(operator.add, 2, 3) == 5

    async def later(value, dask_scheduler=None):
        await asyncio.sleep(0.01)
        return dask_scheduler.address, value

    assert client.run_on_scheduler(later, 4) == (ADDRESS, 4)
    assert client.run_on_scheduler(later, 4, wait=False) is None
    error = raises(ZeroDivisionError, "division", client.run_on_scheduler, lambda: 1 / 0)
    names = []
    traceback = error.__traceback__
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert "<lambda>" in names, names
    raises(ImportError, "no_such", client.run_on_scheduler, Missing())

    async def fails():
        await asyncio.sleep(0)
        raise KeyError("later")

    raises(KeyError, "later", client.run_on_scheduler, fails)
    # Functions that await do not hold up others.
    assert client.run_on_scheduler(asyncio.sleep, 60, wait=False) is None
    assert client.run_on_scheduler(lambda: list(range(100_000)))[-1] == 99_999
    assert client.run_on_scheduler(threads) == 1


class Missing:
    """A function that cannot be loaded by others."""

    def __call__(self):
        pass

    def __reduce__(self):
        return __import__, ("no_such_module",)


async def threads(dask_scheduler):
    """The state is read by other threads, too."""
    return await asyncio.to_thread(lambda: len(dask_scheduler.workers))


def state(client):
    one = client.submit(operator.add, 1, 2, key="one")
    two = client.submit(operator.mul, one, 10, key=("two", 0), retries=2)
    bad = client.submit(operator.truediv, 1, 0, key="bad")
    block = client.submit(time.sleep, 1000, key="block")
    more = client.map(operator.neg, range(2500), key=[f"more-{i}" for i in range(2500)])
    last = client.submit(sum, more, key="last")
    wait([two, bad])
    # The scheduler may still read the graph of those that were submitted last.
    until(lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 2505)

    def look(dask_scheduler):
        scheduler = dask_scheduler
        assert scheduler.address == ADDRESS and scheduler.id.startswith("Scheduler-")
        assert scheduler.status == Status.running
        (worker,) = scheduler.workers.values()
        assert list(scheduler.workers) == [worker.address]
        assert scheduler.workers[worker.address] == worker
        assert worker.name == "one" and worker.nthreads == scheduler.total_nthreads
        assert worker.memory_limit > 0 and worker.nbytes > 0 and worker.last_seen > 0
        assert worker.status == Status.running and "cpu" in worker.metrics
        assert worker.resources == {}, worker.resources
        tasks = scheduler.tasks
        assert len(tasks) == 2505 and "one" in tasks and "nope" not in tasks
        assert set(tasks) == {task.key for task in tasks.values()}
        one, two, bad = tasks["one"], tasks[("two", 0)], tasks["bad"]
        assert one.state == two.state == "memory" and one.nbytes > 0
        assert one.who_has == {worker} and one in worker.has_what
        assert two.dependencies == {one} and one.dependents == {two}
        assert two.group_key == "two" and two.prefix.name == "two" and two.retries == 2
        assert one.priority == tuple(one.priority) and one.annotations == {}
        assert bad.state == "erred" and "ZeroDivisionError" in bad.exception_text
        assert bad.exception_blame == bad
        assert tasks["block"].processing_on == worker
        assert tasks["block"] in worker.processing
        (processing,) = [step for step in scheduler.story("one", bad) if step.finish == "erred"]
        assert processing.key == "bad" and processing.timestamp > 0, processing
        assert {step.key for step in scheduler.story(one)} == {"one"}
        assert scheduler.story("no such task") == []
        assert len(tasks["last"].dependencies) == 2500
        assert len(tasks["last"].dependencies - tasks["last"].waiting_on) < 2500
        assert one.who_wants == {scheduler.clients[name] for name in scheduler.clients}
        (client,) = scheduler.clients.values()
        assert one in client.wants_what and len(client.wants_what) == 2505
        assert scheduler.task_prefixes["more"].states["erred"] == 0
        assert len(scheduler.task_groups["two"]) == 1
        assert sum(scheduler.task_groups["bad"].states.values()) == 1
        scheduler.log_event("from-function", {"x": 1})
        ((_, message),) = scheduler.get_events("from-function")
        assert message == {"x": 1}
        assert scheduler.get_metadata(["nope"], default=3) == 3
        for owner in scheduler, one, worker:
            try:
                owner.validate_state
            except AttributeError as error:
                assert "validate_state" in str(error), error
            else:
                raise AssertionError("no error")
        try:
            tasks["nope"]
        except KeyError:
            return True

    assert client.run_on_scheduler(look)
    assert client.get_events("from-function")
    client.cancel([one, two, bad, block, last, *more], force=True)

    async def changes(dask_scheduler):
        while len(dask_scheduler.tasks):
            await asyncio.sleep(0.01)
        return len(dask_scheduler.tasks)

    del one, two, bad, block, last, more
    assert client.run_on_scheduler(changes) == 0


def acts(client):
    async def retire(dask_scheduler):
        replies = await dask_scheduler.broadcast(msg={"op": "identity"})
        (address,) = replies
        retired = await dask_scheduler.retire_workers(workers=[address], close_workers=False)
        return address, list(retired)

    address, retired = client.run_on_scheduler(retire)
    assert retired == [address], (retired, address)


def ends(client):
    """What ends the process of functions costs only what it runs."""
    one = client.submit(operator.add, 1, 2)
    identity = client.run_on_scheduler(os.getpid)
    raises(RuntimeError, "exit status: 3", client.run_on_scheduler, os._exit, 3)
    other = client.run_on_scheduler(os.getpid)
    assert other != identity
    started = time.monotonic()
    slow = asyncio.run_coroutine_threadsafe(
        client._run_on_scheduler(time.sleep, 1000), client.loop.asyncio_loop
    )
    # Nothing else waits for it.
    assert one.result() == 3 and client.submit(operator.add, 3, 4).result() == 7
    assert time.monotonic() - started < 3
    raises(RuntimeError, "longer than the limit of 4 s", slow.result)
    assert client.run_on_scheduler(os.getpid) != other
    logs = "\n".join(line for _, line in client.get_scheduler_logs())
    assert "limit of 4 s" in logs, logs


class Seen(SchedulerPlugin):
    """Records its hooks, of which the event `ready` tells."""

    def __init__(self, name="seen"):
        self.name = name

    async def start(self, scheduler):
        self.scheduler = scheduler
        self.seen = [("start", scheduler.address)]

    def add(self, *event):
        self.seen.append(event)

    def add_worker(self, scheduler, worker):
        assert scheduler is self.scheduler
        self.add("add_worker", scheduler.workers[worker].name)

    async def remove_worker(self, scheduler, worker, *, stimulus_id, **kwargs):
        await asyncio.sleep(0)
        self.add("remove_worker", worker in scheduler.workers)

    def add_client(self, scheduler, client):
        self.add("add_client", client)

    def remove_client(self, scheduler, client):
        self.add("remove_client", client)

    def update_graph(self, scheduler, *, client, keys, tasks, annotations, priority, **kwargs):
        self.add("update_graph", client, keys, len(tasks), annotations, len(priority))

    def transition(self, key, start, finish, *args, stimulus_id, **kwargs):
        self.add("transition", key, start, finish, kwargs.get("exception_text"))

    def log_event(self, topic, msg):
        if topic == "mine":
            self.add("log_event", msg)

    def restart(self, scheduler):
        self.add("restart")


def seen(client, name="seen"):
    """Returns what a plugin has seen, apart from its name."""
    return client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.plugins[name].seen)


def plugins(client):
    client.register_plugin(Seen())
    address = client.scheduler.address
    assert seen(client) == [("start", address)]
    names = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
    assert names == ["seen"]
    future = client.submit(operator.add, 1, 2, key="x", priority=3)
    dependent = client.submit(operator.add, future, 2, key="y")
    assert dependent.result() == 5
    bad = client.submit(operator.truediv, 1, 0, key="bad")
    wait(bad)
    client.log_event("mine", 5)
    del future, dependent, bad
    until(lambda: finished(seen(client)))
    steps = seen(client)
    graphs = [event for event in steps if event[0] == "update_graph"]
    assert [event[1:4] for event in graphs] == [
        (client.id, {key}, 1) for key in ("x", "y", "bad")
    ], graphs
    assert graphs[0][4] == {"priority": {"x": 3}}, graphs
    of_x = [event[2:4] for event in steps if event[:2] == ("transition", "x")]
    assert of_x[0][0] == "released" and ("processing", "memory") in of_x, of_x
    assert of_x[-1][1] == "forgotten", of_x
    for before, after in zip(of_x, of_x[1:]):
        assert before[1] == after[0], of_x
    of_bad = [event[3:] for event in steps if event[:2] == ("transition", "bad")]
    (text,) = [text for finish, text in of_bad if finish == "erred"]
    assert text is None or "ZeroDivisionError" in text, text
    assert ("log_event", 5) in steps
    # Graphs come before the transitions of their tasks.
    kinds = [event[0] for event in steps if "x" in event[1:2] or {"x"} in event[2:3]]
    assert kinds[0] == "update_graph", steps
    with Client(client.scheduler.address) as other:
        name = other.id
    until(lambda: ("remove_client", name) in seen(client))
    assert seen(client).index(("add_client", name)) < seen(client).index(("remove_client", name))
    idempotence(client)
    client.unregister_scheduler_plugin("seen")
    raises(ValueError, "seen", client.unregister_scheduler_plugin, "seen")


def finished(events):
    """Whether a plugin has seen the ends of the tasks of `plugins`."""
    ended = {event[1] for event in events if event[0] == "transition" and event[3] == "forgotten"}
    return ended >= {"x", "y", "bad"} and ("log_event", 5) in events


class Idempotent(SchedulerPlugin):
    idempotent = True
    name = "idempotent"

    def __init__(self, value):
        self.value = value


def idempotence(client):
    for value in 1, 2:
        client.register_plugin(Idempotent(value))

    def values(dask_scheduler):
        return [getattr(plugin, "value", None) for plugin in dask_scheduler.plugins.values()]

    assert client.run_on_scheduler(values) == [None, 1]
    client.register_plugin(Idempotent(3), name="other")
    assert client.run_on_scheduler(values) == [None, 1, 3]
    for name in "idempotent", "other":
        client.unregister_scheduler_plugin(name)


def members(client):
    """A worker joins, and leaves."""
    client.register_plugin(Seen("members"))

    async def start():
        return await Worker(ADDRESS, name="two", nthreads=1, dashboard_address=":0")

    two = client.sync(start)
    until(lambda: ("add_worker", "two") in seen(client, "members"))
    client.sync(two.close)
    until(lambda: ("remove_worker", False) in seen(client, "members"))
    client.restart(wait_for_workers=False)
    until(lambda: ("restart",) in seen(client, "members"))


class Fails(SchedulerPlugin):
    name = "fails"

    def transition(self, *args, **kwargs):
        raise ValueError("this hook fails")


class FailsToStart(SchedulerPlugin):
    async def start(self, scheduler):
        raise ValueError("this plugin does not start")


def failing(client):
    """An error in a hook costs only that hook."""
    raises(ValueError, "does not start", client.register_plugin, FailsToStart())
    client.register_plugin(Fails())
    client.register_plugin(Seen("beside"))
    assert client.submit(operator.add, 1, 2, key="z").result() == 3
    until(lambda: [event for event in seen(client, "beside") if event[1:2] == ("z",)])
    logs = "\n".join(line for _, line in client.get_scheduler_logs())
    assert "Plugin fails failed in transition" in logs and "this hook fails" in logs, logs
    for name in "fails", "beside":
        client.unregister_scheduler_plugin(name)


class Hangs(SchedulerPlugin):
    name = "hangs"

    def log_event(self, topic, msg):
        if msg == "hang":
            time.sleep(1000)


def hanging(client):
    """A hook that hangs, or a process that is killed, costs the process, which starts again."""
    client.register_plugin(Hangs())
    client.register_plugin(Seen())
    before = client.run_on_scheduler(os.getpid)
    client.log_event("any", "hang")
    started = time.monotonic()
    assert client.submit(operator.add, 1, 2).result() == 3
    assert time.monotonic() - started < 3
    # Waits for the end of the process, or for the next one.
    try:
        client.run_on_scheduler(os.getpid)
    except RuntimeError as error:
        assert "limit of 4 s" in str(error), error
    assert client.run_on_scheduler(os.getpid) != before
    assert seen(client) == [("start", client.scheduler.address)]
    assert client.submit(operator.add, 3, 4, key="again").result() == 7
    until(lambda: [event for event in seen(client) if event[1:2] == ("again",)])
    pid = client.run_on_scheduler(os.getpid)
    os.kill(pid, 9)
    until(lambda: restarted(client, pid))
    names = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
    assert names == ["hangs", "seen"], names
    for name in names:
        client.unregister_scheduler_plugin(name)


def restarted(client, pid):
    try:
        return client.run_on_scheduler(os.getpid) != pid
    except RuntimeError as error:
        assert "signal: 9" in str(error), error


class Counts(SchedulerPlugin):
    name = "counts"

    def __init__(self):
        self.counts = {}

    def transition(self, key, start, finish, *args, **kwargs):
        self.counts[finish] = self.counts.get(finish, 0) + 1


def many(client):
    """All transitions of many tasks are seen."""
    client.register_plugin(Counts())
    futures = client.map(operator.neg, range(1000))
    assert sum(client.gather(futures)) == -sum(range(1000))

    def counted():
        counts = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.plugins["counts"].counts)
        return counts.get("memory") == 1000

    until(counted)
    client.unregister_scheduler_plugin("counts")


class Kept(SchedulerPlugin):
    """A plugin that is added in the scheduler, of which it keeps a reference."""

    def __init__(self, scheduler, name, value):
        self.scheduler = scheduler
        self.name = name
        self.value = value

    def transition(self, key, *args, **kwargs):
        assert key in self.scheduler.tasks
        self.value += 1


def kept(client):
    """Plugins that functions add are added again when their process starts again."""

    async def add(dask_scheduler):
        scheduler = dask_scheduler
        scheduler.add_plugin(Kept(scheduler, "kept", 5))
        scheduler.add_plugin(Kept(scheduler, "removed", 6))
        scheduler.remove_plugin("removed")
        await scheduler.register_scheduler_plugin(Kept(scheduler, "started", 7))
        # Cannot be pickled
        scheduler.add_plugin(Kept(scheduler, "lock", threading.Lock()))
        return os.getpid()

    def values(dask_scheduler):
        found = dask_scheduler.plugins.items()
        return {name: plugin.value for name, plugin in found if plugin.scheduler is dask_scheduler}

    pid = client.run_on_scheduler(add)
    os.kill(pid, 9)
    until(lambda: restarted(client, pid))
    assert client.run_on_scheduler(values) == {"kept": 5, "started": 7}
    logs = "\n".join(line for _, line in client.get_scheduler_logs())
    assert "these plugins are lost, since they cannot be pickled: lock" in logs, logs
    assert client.submit(operator.add, 1, 2).result() == 3
    until(lambda: client.run_on_scheduler(values)["kept"] > 5)
    raises(TypeError, "cannot be pickled", client.run_on_scheduler, itself)
    for name in "kept", "started":
        client.unregister_scheduler_plugin(name)


def itself(dask_scheduler):
    return dask_scheduler


def preloads(client):
    """The module of `PRELOADED` in the tests has been set up, and is again in the next process."""

    def preloaded(dask_scheduler):
        plugin = dask_scheduler.plugins["preloaded"]
        return plugin.value, plugin.count

    for _ in range(2):
        value, count = client.run_on_scheduler(preloaded)
        assert value == "given", value
        assert client.submit(operator.add, 1, 2, pure=False).result() == 3
        until(lambda: client.run_on_scheduler(preloaded)[1] > count)
        pid = client.run_on_scheduler(os.getpid)
        os.kill(pid, 9)
        until(lambda: restarted(client, pid))
    names = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
    assert names == ["preloaded"], names
    logs = "\n".join(line for _, line in client.get_scheduler_logs())
    assert "overwriting" not in logs and "lost" not in logs, logs


class Details(SchedulerPlugin):
    """Records what it is told of the ends of tasks."""

    name = "details"

    def __init__(self):
        self.seen = {}

    def transition(self, key, start, finish, *args, **kwargs):
        task = self.scheduler.tasks[key]
        assert task.state == finish, (key, task.state, finish)
        if start == "processing" and finish in ("memory", "erred"):
            self.seen[key] = {**kwargs, "of_task": (task.nbytes, task.exception_text)}

    def start(self, scheduler):
        self.scheduler = scheduler


def details(client):
    """Dask's own plugins get what they need of transitions."""

    def add(dask_scheduler):
        from distributed.diagnostics.progress import AllProgress, GroupTiming
        from distributed.diagnostics.task_stream import TaskStreamPlugin

        dask_scheduler.add_plugin(TaskStreamPlugin(dask_scheduler))
        dask_scheduler.add_plugin(GroupTiming(dask_scheduler))
        AllProgress(dask_scheduler)

    client.register_plugin(Details())
    client.run_on_scheduler(add)
    futures = client.map(slow, range(3), key=["slow-0", "slow-1", "slow-2"])
    bad = client.submit(operator.truediv, 1, 0, key="bad")
    wait([*futures, bad])
    (address,) = client.scheduler_info()["workers"]

    def told(dask_scheduler):
        return dask_scheduler.plugins["details"].seen

    until(lambda: len(client.run_on_scheduler(told)) == 4)
    seen = client.run_on_scheduler(told)
    of_slow, of_bad = seen["slow-1"], seen["bad"]
    assert of_slow["worker"] == of_bad["worker"] == address
    assert of_slow["status"] == "OK" and of_bad["status"] == "error"
    assert of_slow["nbytes"] == of_slow["of_task"][0] > 0, of_slow
    assert of_slow["typename"] == "int" and loads(of_slow["type"]) is int, of_slow
    assert of_slow["thread"] and of_bad["thread"] and of_slow["metadata"] == {}
    assert of_slow["stimulus_id"].startswith("task-finished"), of_slow
    (took,) = [step for step in of_slow["startstops"] if step["action"] == "compute"]
    assert took["stop"] - took["start"] > 0.04, took
    assert "ZeroDivisionError" in of_bad["exception_text"] == of_bad["of_task"][1], of_bad
    assert of_bad["exception"] is not None and of_bad["traceback"] is not None

    def stream(dask_scheduler):
        plugin = dask_scheduler.plugins["task-stream"]
        rectangles = plugin.rectangles(0)
        return plugin.index, dict(zip(rectangles["key"], rectangles["color"]))

    index, colors = client.run_on_scheduler(stream)
    assert index == 4 and set(colors) == {"slow-0", "slow-1", "slow-2", "bad"}, colors
    assert colors["bad"] == "black" != colors["slow-0"], colors

    def timing(dask_scheduler):
        return {name: sum(bins) for name, bins in dask_scheduler.plugins["group-timing"].compute.items()}

    assert client.run_on_scheduler(timing)["slow"] > 0.12

    def state(dask_scheduler):
        plugin = dask_scheduler.plugins["all-progress"]
        kept = {state: {name: len(keys) for name, keys in by.items() if keys} for state, by in plugin.state.items()}
        return {state: by for state, by in kept.items() if by}, dict(plugin.nbytes)

    counted, nbytes = client.run_on_scheduler(state)
    assert counted == {"memory": {"slow": 3}, "erred": {"bad": 1}}, counted
    assert nbytes["slow"] == 3 * of_slow["nbytes"], nbytes
    del futures, bad
    until(lambda: client.run_on_scheduler(state) == ({}, {}))
    logs = "\n".join(line for _, line in client.get_scheduler_logs())
    assert "failed in transition" not in logs, logs
    for name in "details", "task-stream", "group-timing", "all-progress":
        client.unregister_scheduler_plugin(name)


def slow(x):
    time.sleep(0.05)
    return x


def reports(client):
    """Dask's reports, which Bokeh draws."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.html")
        with performance_report(filename=path):
            data = client.scatter({"data": bytes(1000)})
            future = client.submit(noted_in_the_report, data["data"])
            assert future.result() == 1000
            da.ones((20, 20), chunks=5).sum().compute()
        page = open(path).read()
        for text in "noted_in_the_report", "Dask Performance Report", "Task Stream", "Scheduler Logs":
            assert text in page, text
        # What the scheduler has recorded, and the source of this block
        assert re.search(r"number of tasks: (1[0-9]|[2-9][0-9])\b", page), page[:5000]
        assert re.search(r"Workers: 1\b", page)
        assert "compute time: " in page
        path = os.path.join(folder, "stream.html")
        with get_task_stream(client, plot="save", filename=path) as stream:
            wait(client.map(slow, range(3), pure=False))
        assert len(stream.data) == 3 and type(stream.figure).__name__ == "figure"
        assert "slow" in open(path).read()


def noted_in_the_report(data):
    time.sleep(0.05)
    return len(data)


def dumps(client):
    """The state of the cluster at a URL, which the scheduler writes."""
    future = client.submit(operator.add, 1, 2, key="dumped")
    wait(future)
    with tempfile.TemporaryDirectory() as folder:
        url = f"file://{folder}/state"
        client.dump_cluster_state(url)
        dump = DumpArtefact.from_url(url + ".msgpack.gz").dump
        task = dump["scheduler"]["tasks"]["dumped"]
        assert task["state"] == "memory" and "run_spec" not in task, task
        assert set(dump["workers"]) == set(client.nthreads())
        assert set(dump["versions"]) == {"scheduler", "workers"}
        client.dump_cluster_state(url, format="yaml")
        dump = DumpArtefact.from_url(url + ".yaml").dump
        assert dump["scheduler"]["tasks"]["dumped"]["state"] == "memory"
        raises(ValueError, "Unsupported format 'x'", client.dump_cluster_state, url, format="x")
        raises(ValueError, "Protocol not known", client.dump_cluster_state, "unknown://x")
    assert client.submit(operator.add, future, 1).result() == 4


def closes(client):
    """Plugins are told that the scheduler closes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "closed")
        client.register_plugin(Closes(path))
        client.shutdown()
        until(lambda: os.path.exists(path) and open(path).read() == "before closed")


class Closes(SchedulerPlugin):
    def __init__(self, path):
        self.path = path

    async def before_close(self):
        open(self.path, "a").write("before ")

    async def close(self):
        open(self.path, "a").write("closed")


def progresses(client):
    """The progress bar of a terminal, which is drawn by a feed."""
    output = io.StringIO()
    done = client.map(operator.neg, range(4))
    wait(done)
    waiting = client.map(lambda x: Event("go").wait(60), range(4))

    def go():
        until(lambda: " 50% Completed" in output.getvalue())
        Event("go", client=client).set()

    thread = threading.Thread(target=go)
    thread.start()
    with contextlib.redirect_stdout(output):
        progress(done + waiting, notebook=False)
        until(lambda: "100% Completed" in output.getvalue())
    thread.join()
    shares = [int(share) for share in re.findall(r"(\d+)% Completed", output.getvalue())]
    assert shares[0] == 50 and shares == sorted(shares), shares
    assert client.gather(waiting) == [True] * 4

    def names(dask_scheduler):
        return list(dask_scheduler.plugins)

    # Functions of feeds that have ended leave nothing behind.
    until(lambda: client.run_on_scheduler(names) == [])


def uploads(client):
    """Functions, plugins and graphs import what was uploaded last."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        path = os.path.join(folder, "uploaded.py")
        for value in 1, 2:
            with open(path, "w") as file:
                file.write(f"def number(block=None):\n    return block + {value} if block is not None else {value}\n")
            client.upload_file(path)
            import uploaded

            importlib.invalidate_caches()
            importlib.reload(uploaded)
            assert client.run_on_scheduler(uploaded.number) == value
            total = da.ones(4, chunks=2).map_blocks(uploaded.number, dtype=float).sum()
            assert total.compute() == 4 * (value + 1)
            os.utime(path, (value, value))
        sys.path.remove(folder)


def refused(client):
    """Without Python beside the scheduler, it runs no code of a client."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "executed")
        code = Executes(path)
        calls = [
            (client.run_on_scheduler, [code]),
            (client.run_on_scheduler, [operator.add, code, code]),
            (client.register_plugin, [Carries(code)]),
            (client.dump_cluster_state, [f"file://{path}"]),
        ]
        for function, arguments in calls:
            raises(NotImplementedError, "runs no Python", function, *arguments)
        assert not os.path.exists(path)
        feed = client.sync(fed, client, code)
        assert "runs no Python" in feed["exception_text"], feed
        assert not os.path.exists(path)
    assert client.submit(operator.add, 1, 2).result() == 3


async def fed(client, function):
    """Returns the first message of a feed."""
    from distributed.core import connect
    from distributed.protocol.pickle import dumps

    comm = await connect(client.scheduler.address)
    await comm.write({"op": "feed", "function": dumps(function), "setup": dumps(function)})
    message = await comm.read()
    await comm.close()
    return message


class Carries(SchedulerPlugin):
    def __init__(self, value):
        self.value = value


class Executes:
    """An object whose pickle creates a file if another process loads it."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *_):
        pass

    def __reduce__(self):
        program = f"""
import os
if os.getpid() != {os.getpid()}:
    open({self.path!r}, "w").close()
"""
        return exec, (program,)


CHECKS = [
    functions, state, acts, ends, plugins, members, failing, hanging, many, kept, preloads, details,
    reports, dumps, closes, progresses, uploads,
    refused,
]


if __name__ == "__main__":
    checks.run(CHECKS)
