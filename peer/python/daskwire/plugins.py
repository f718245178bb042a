"""Runs functions and plugins of clients, for a scheduler in Rust.

The scheduler (`daskwire scheduler --python`) forks one process of this module from the template
of `worker.py`, which also has its links and its messages, when a client first needs it. The
functions and plugins are given a `Scheduler` that stands for the scheduler in Rust: what it has is
read over the link when it is asked for, and what it does is a request to that scheduler. It never
connects to anything.

All messages are handled by one thread, in their order, with an event loop for coroutines.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import logging
import os
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Mapping
from contextvars import ContextVar

import click
import cloudpickle
import dask
import msgpack
import psutil
from tornado.ioloop import IOLoop, PeriodicCallback

from dask.utils import key_split, parse_bytes, parse_timedelta

from distributed.core import Status, error_message
from distributed.diagnostics.plugin import SchedulerPlugin, _get_plugin_name
from distributed.metrics import time
from distributed.preloading import process_preloads
from distributed.protocol import Serialized, pickle, to_serialize
from distributed.protocol.utils import msgpack_opts
from distributed.protocol.core import msgpack_decode_default
from distributed.system_monitor import SystemMonitor
from distributed.utils import has_arg, import_file, iscoroutinefunction, key_split_group

# The module of the template, which is in no package.
worker = sys.modules["daskwire.worker"]

logger = logging.getLogger("distributed.scheduler")

# Operations of a scheduler that are also methods of `Scheduler` here, with the names of their
# positional parameters. They return awaitables.
REQUESTS = {
    "adaptive_target": ("target_duration",),
    "benchmark_hardware": (),
    "broadcast": (),
    "gather": ("keys",),
    "get_cluster_state": ("exclude",),
    "get_profile": ("workers", "scheduler", "server", "merge_workers", "start", "stop", "key"),
    "get_story": ("keys_or_stimuli",),
    "get_worker_logs": ("n", "workers", "nanny"),
    "proxy": ("msg", "worker"),
    "rebalance": ("keys", "workers"),
    "register_nanny_plugin": ("comm", "plugin", "name", "idempotent"),
    "register_worker_plugin": ("comm", "plugin", "name", "idempotent"),
    "replicate": ("keys", "n", "workers"),
    "restart": (),
    "restart_workers": ("workers",),
    "retire_workers": (),
    "scatter": ("data", "workers", "client"),
    "unregister_nanny_plugin": ("comm", "name"),
    "unregister_worker_plugin": ("comm", "name"),
}

# The names of those whose operations are named differently.
OPS = {"get_profile": "profile", "get_worker_logs": "worker_logs"}

# Operations whose replies do not have to be waited for: methods that return their replies.
CALLS = {
    "get_logs": ("start", "n", "timestamps"),
    "get_metadata": ("keys", "default"),
    "get_task_stream": ("start", "stop", "count"),
    "identity": ("n_workers",),
    "log_event": ("topic", "msg"),
    "set_metadata": ("keys", "value"),
    "versions": (),
    "workers_to_close": (),
}


# Whether plugins are kept that are added now, for the process that may follow this one. Those of
# modules that are preloaded are not, since these modules add them again, and those of feeds are not,
# which end with this process.
keeps_plugins = ContextVar("keeps_plugins", default=True)

# Maximum length of the pickle of a plugin that is kept, in bytes.
MAX_KEPT_LEN = 16 << 20

# Time for the preloaded modules to be set up before they are torn down, in seconds.
SETUP_TIMEOUT = 5

# Whether plugins are pickled for the process that may follow this one.
is_keeping = ContextVar("is_keeping", default=False)


def load(value):
    """Returns a value of a message without payloads in it."""
    if isinstance(value, worker.Payload):
        return value.load()
    if type(value) is dict:
        return {name: load(part) for name, part in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map(load, value))
    return value


def serialized(payload):
    """Returns a payload as Dask's scheduler keeps it, which can be sent on."""
    if not isinstance(payload, worker.Payload):
        return payload
    options = {"use_list": False, **msgpack_opts}
    header = msgpack.loads(payload.header, object_hook=msgpack_decode_default, **options)
    return Serialized(header, payload.frames)


class Link:
    """Requests to the scheduler, and its messages."""

    def __init__(self, link):
        self.link = link
        self.thread = threading.get_ident()
        self.numbers = itertools.count()
        self.answers = {}
        self.futures = {}
        # Messages that arrived while the answer to a request was awaited.
        self.waiting = deque()

    def send(self, message):
        with contextlib.suppress(BrokenPipeError):
            self.link.send(worker.dumps(message, context={"compression": False}))

    def ask(self, op, /, **arguments):
        """Waits for the reply to a request. Messages that arrive meanwhile are handled later."""
        return load(self._wait({"op": "ask", "request": {"op": op, **arguments}}))

    async def ask_later(self, op, /, **arguments):
        """Returns the reply to a request, and lets the loop run meanwhile."""
        return load(await self._later({"op": "ask", "request": {"op": op, **arguments}}))

    def view(self, **what):
        """Reads a part of the state. Payloads in it are not deserialized."""
        return self._wait({"op": "view", **what})

    def _wait(self, message):
        if threading.get_ident() != self.thread:
            coroutine = self._later(message)
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()
        number = next(self.numbers)
        self.send({**message, "id": number})
        while number not in self.answers:
            self.receive()
        return self.reply(self.answers.pop(number))

    async def _later(self, message):
        number = next(self.numbers)
        future = self.futures[number] = self.loop.create_future()
        self.send({**message, "id": number})
        return self.reply(await future)

    @staticmethod
    def reply(reply):
        if type(reply) is dict and reply.get("status") == "uncaught-error":
            exception = load(reply["exception"])
            if isinstance(exception, bytes):
                exception = pickle.loads(exception)
            raise exception
        return reply

    def receive(self):
        """Receives a message."""
        frames, descriptors = self.link.receive()
        for descriptor in descriptors:
            os.close(descriptor)
        message = worker.read(frames)
        if message["op"] != "answer":
            self.waiting.append(message)
            return
        number, reply = message["id"], message["reply"]
        future = self.futures.pop(number, None)
        if future is None:
            self.answers[number] = reply
        elif not future.done():
            future.set_result(reply)

    def serve(self, handle):
        """Handles messages until the scheduler closes the socket."""
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

        def is_readable():
            try:
                self.receive()
                # There is none if it was an answer. Those of the buffer are not seen by the loop.
                while self.link.unread:
                    self.receive()
            except (EOFError, ConnectionError):
                self.loop.stop()
                return
            handle_waiting()

        def handle_waiting():
            while self.waiting:
                handle(self.waiting.popleft())
                while self.link.unread:
                    self.receive()

        self.loop.add_reader(self.link.sock.fileno(), is_readable)
        self.loop.run_forever()


def missing(owner, name):
    """Returns the error for an attribute of Dask's scheduler that is not available here."""
    return AttributeError(
        f"{name!r} is not available: the scheduler is not Dask's, and a function or plugin is "
        f"given a {type(owner).__name__} that stands for a part of it"
    )


# The fields of a task that the scheduler has forgotten since the event that hooks are told of.
UNKNOWN = {
    "annotations": None,
    "cause": None,
    "dependencies": (),
    "exception": None,
    "is_orphan": False,
    "nbytes": -1,
    "processing_on": None,
    "traceback": None,
    "who_has": (),
    "who_wants": (),
    "worker_restrictions": None,
}


class Part:
    """A part of the scheduler's state. What is read stays the same until the loop runs."""

    KIND = None
    # The attributes that are fields, with Dask's values in place of absent ones.
    FIELDS = {}

    def __init__(self, scheduler, name):
        self._scheduler = scheduler
        self._name = name

    def __eq__(self, other):
        return type(self) is type(other) and self._name == other._name

    def __hash__(self):
        return hash((self.KIND, self._name))

    def _fields(self):
        kept = self._scheduler._kept()
        place = self.KIND, self._name
        if place not in kept:
            kept[place] = self._scheduler._view(self.KIND, self._name)
        fields = kept[place]
        changed = self._scheduler._changed
        if changed is not None and place == changed[0]:
            return {**(fields or UNKNOWN), **changed[1]}
        if fields is None:
            raise LookupError(f"the scheduler does not know the {self.KIND} {self._name!r}")
        return fields

    def _is_known(self):
        try:
            self._fields()
        except LookupError:
            return False
        return True

    def __getattr__(self, name):
        if name in self.FIELDS:
            value = self._fields().get(name)
            return self.FIELDS[name] if value is None else value
        raise missing(self, name)


class Task(Part):
    """A task, as Dask's `TaskState`."""

    KIND = "task"
    FIELDS = {
        "state": None,
        "nbytes": -1,
        "run_id": 0,
        "retries": 0,
        "suspicious": 0,
        "priority": None,
        "actor": False,
    }

    @property
    def key(self):
        return self._name

    @property
    def key_str(self):
        return str(self._name)

    @property
    def annotations(self):
        return self._fields()["annotations"] or {}

    @property
    def worker_restrictions(self):
        return set(self._fields()["worker_restrictions"] or ())

    @property
    def group_key(self):
        return key_split_group(self._name)

    @property
    def group(self):
        return self._scheduler.task_groups[self.group_key]

    @property
    def prefix(self):
        return TaskPrefix(self._scheduler, key_split(self._name))

    @property
    def who_has(self):
        return {Worker(self._scheduler, address) for address in self._fields()["who_has"]}

    @property
    def who_wants(self):
        return {Client(self._scheduler, name) for name in self._fields()["who_wants"]}

    @property
    def processing_on(self):
        address = self._fields()["processing_on"]
        return address and Worker(self._scheduler, address)

    @property
    def dependencies(self):
        return {Task(self._scheduler, key) for key in self._fields()["dependencies"]}

    @property
    def dependents(self):
        keys = self._scheduler._keys("dependents", self._name)
        return {Task(self._scheduler, key) for key in keys}

    @property
    def waiting_on(self):
        if self.state != "waiting":
            return set()
        return {task for task in self.dependencies if task.state != "memory"}

    @property
    def waiters(self):
        return {
            task
            for task in self.dependents
            if task.state in ("waiting", "queued", "no-worker", "processing")
        }

    @property
    def exception(self):
        return serialized(self._fields()["exception"])

    @property
    def traceback(self):
        return serialized(self._fields()["traceback"])

    @property
    def exception_text(self):
        exception = load(self._fields()["exception"])
        if isinstance(exception, bytes):
            exception = pickle.loads(exception)
        return exception and repr(exception)

    @property
    def exception_blame(self):
        key = self._fields()["cause"]
        return None if key is None else Task(self._scheduler, key)

    @property
    def has_lost_dependencies(self):
        return self._fields()["is_orphan"]

    def __repr__(self):
        try:
            state = self.state
        except LookupError:
            state = "forgotten"
        return f"<TaskState {self._name!r} {state}>"


class Worker(Part):
    """A worker, as Dask's `WorkerState`."""

    KIND = "worker"
    FIELDS = {
        "name": None,
        "host": None,
        "nthreads": 0,
        "memory_limit": 0,
        "last_seen": 0,
        "local_directory": None,
        "metrics": None,
        "nanny": None,
        "resources": None,
        "services": None,
        "nbytes": 0,
    }

    @property
    def address(self):
        return self._name

    @property
    def server_id(self):
        return self._fields()["id"]

    @property
    def status(self):
        return Status[self._fields()["status"]]

    @property
    def has_what(self):
        (keys,) = self._scheduler._link.ask("has_what", workers=[self._name]).values()
        return dict.fromkeys(Task(self._scheduler, key) for key in keys)

    @property
    def processing(self):
        (keys,) = self._scheduler._link.ask("processing", workers=[self._name]).values()
        return {Task(self._scheduler, key) for key in keys}

    def identity(self):
        return dict(self._fields())

    def __repr__(self):
        return f"<WorkerState {self._name!r}>"


class Client(Part):
    """A client, as Dask's `ClientState`."""

    KIND = "client"

    @property
    def client_key(self):
        return self._name

    @property
    def wants_what(self):
        keys = self._scheduler._keys("wants_what", self._name)
        return {Task(self._scheduler, key) for key in keys}

    def __repr__(self):
        return f"<Client {self._name!r}>"


class Collected(Part):
    """Tasks whose keys have something in common. The number of tasks by state is counted."""

    @property
    def name(self):
        return self._name

    @property
    def states(self):
        counts = self._scheduler._counts(self.KIND)
        names = "released", "waiting", "no-worker", "queued", "processing", "memory", "erred"
        return {name: counts[self._name][name] for name in (*names, "forgotten")}


class TaskGroup(Collected):
    """Tasks of one group of keys, as Dask's `TaskGroup`."""

    KIND = "group"

    @property
    def prefix(self):
        return TaskPrefix(self._scheduler, key_split(self._name))

    def __len__(self):
        return sum(self.states.values())

    def __iter__(self):
        for task in self._scheduler.tasks.values():
            if task.group_key == self._name:
                yield task


class TaskPrefix(Collected):
    """Tasks with a common prefix of their keys, as Dask's `TaskPrefix`."""

    KIND = "prefix"

    @property
    def groups(self):
        groups = self._scheduler.task_groups.values()
        return [group for group in groups if key_split(group.name) == self._name]


class Parts(Mapping):
    """Parts of the state by name: `list` returns the names, and `has` whether there is one."""

    def __init__(self, scheduler, kind, list, has=None):
        self._scheduler = scheduler
        self._kind = kind
        self._list = list
        self._has = has or (lambda name: name in list())

    def __contains__(self, name):
        return bool(self._has(name))

    def __getitem__(self, name):
        if name not in self:
            raise KeyError(name)
        return self._kind(self._scheduler, name)

    def __iter__(self):
        return iter(self._list())

    def __len__(self):
        return len(self._list())

    def __repr__(self):
        return repr(dict(self))


class Tasks(Parts):
    """All tasks, which are read in slices."""

    def __init__(self, scheduler):
        super().__init__(scheduler, Task, self._keys, self._known)

    def _known(self, key):
        return Task(self._scheduler, key)._is_known()

    def _keys(self):
        return [task.key for task in self._slices()]

    def _slices(self):
        after = 0
        kept = self._scheduler._kept()
        while after is not None:
            tasks, after = self._scheduler._view("tasks", after=after)
            for key, fields in tasks:
                kept[Task.KIND, key] = fields
                yield Task(self._scheduler, key)

    def values(self):
        return list(self._slices())

    def items(self):
        return [(task.key, task) for task in self._slices()]

    def __len__(self):
        return self._scheduler._view("task-count")

    def __repr__(self):
        return f"<{len(self)} tasks>"


class Scheduler:
    """Stands for the scheduler, as the argument of functions and plugins.

    It has the attributes and methods of Dask's scheduler that are defined here, in `REQUESTS` and in
    `CALLS`. All others raise an `AttributeError` that names them.
    """

    status = Status.running
    default_port = 8786
    scheduler_file = None
    validate = False

    def __init__(self, link, start):
        self._link = link
        self.address = start["address"]
        self.id = start["id"]
        self.local_directory = start["local_directory"]
        self.plugins = {}
        self.extensions = {}
        self._monitor = None
        # The task of the transition that hooks are told of, and the fields that it had then.
        self._changed = None
        # The sizes of the results of tasks that are in memory.
        self._sizes = {}
        self.tasks = Tasks(self)
        self.workers = Parts(
            self,
            Worker,
            lambda: self._read("workers"),
            lambda address: Worker(self, address)._is_known(),
        )
        self.clients = Parts(
            self,
            Client,
            lambda: self._read("clients"),
            lambda name: Client(self, name)._is_known(),
        )
        self.task_groups = Parts(self, TaskGroup, lambda: list(self._counts("group")))
        self.task_prefixes = Parts(self, TaskPrefix, lambda: list(self._counts("prefix")))
        self._parts = None

    def __repr__(self):
        return f"<Scheduler {self.address!r}>"

    def __reduce__(self):
        if not is_keeping.get():
            raise TypeError("the scheduler cannot be pickled")
        # A plugin that is loaded in the next process gets the scheduler there. This module cannot be
        # imported, so its functions cannot be pickled.
        return eval, ("__import__('sys').modules['daskwire.plugins'].plugins.scheduler",)

    def _kept(self):
        """What has been read since the loop ran."""
        # Another thread may forget it meanwhile.
        parts = self._parts
        if parts is None:
            parts = self._parts = {}
            if threading.get_ident() == self._link.thread:
                self._link.loop.call_soon(self._forget)
            else:
                self._link.loop.call_soon_threadsafe(self._forget)
        return parts

    def _forget(self):
        self._parts = None

    def _view(self, kind, name=None, after=0):
        """Reads a part of the state. Payloads in it are not deserialized."""
        return self._link.view(kind=kind, name=name, after=after)

    def _read(self, kind):
        kept = self._kept()
        if kind not in kept:
            kept[kind] = self._view(kind)
        return kept[kind]

    def _keys(self, kind, name):
        """The keys of a list that may be long."""
        keys, after = [], 0
        while after is not None:
            part, after = self._view(kind, name, after=after)
            keys.extend(part)
        return keys

    def _counts(self, kind):
        """The numbers of tasks by state, for each group or prefix."""
        kept = self._kept()
        if "counts" not in kept:
            counts = {"group": {}, "prefix": {}}
            for task in self.tasks.values():
                for by, name in ("group", task.group_key), ("prefix", key_split(task.key)):
                    counts[by].setdefault(name, Counter())[task.state] += 1
            kept["counts"] = counts
        return kept["counts"][kind]

    def __getattr__(self, name):
        if name in REQUESTS:
            parameters, ask = REQUESTS[name], self._link.ask_later
        elif name in CALLS:
            parameters, ask = CALLS[name], self._link.ask
        else:
            raise missing(self, name)

        def method(*arguments, **named):
            if len(arguments) > len(parameters):
                raise TypeError(f"{name} takes {len(parameters)} arguments by position")
            named.update(zip(parameters, arguments))
            named.pop("comm", None)
            self._forget()
            return ask(OPS.get(name, name), **named)

        method.__name__ = name
        return method

    def story(self, *keys_or_tasks_or_stimuli):
        """The transitions of tasks, as `get_story`, which returns tuples."""
        from distributed.scheduler import Transition

        wanted = [part.key if isinstance(part, Task) else part for part in keys_or_tasks_or_stimuli]
        self._forget()
        return [Transition(*step) for step in self._link.ask("get_story", keys_or_stimuli=wanted)]

    @property
    def loop(self):
        return IOLoop.current()

    io_loop = loop

    @property
    def monitor(self):
        """Measures the process of the scheduler, from the first use on."""
        if self._monitor is None:
            self._monitor = SystemMonitor()
            # The parent of this process is the template.
            self._monitor.proc = psutil.Process(psutil.Process(os.getppid()).ppid())
            interval = dask.config.get("distributed.admin.system-monitor.interval")
            interval = parse_timedelta(interval, default="ms") * 1000
            PeriodicCallback(self._monitor.update, interval).start()
        return self._monitor

    @property
    def bandwidth(self):
        found = [metrics["total"] for _, metrics in self._bandwidths()]
        if not found:
            return parse_bytes(dask.config.get("distributed.scheduler.bandwidth"))
        return sum(found) / len(found)

    @property
    def bandwidth_workers(self):
        return {
            (address, other): total / count
            for address, metrics in self._bandwidths()
            for other, (total, count) in metrics["workers"].items()
        }

    @property
    def bandwidth_types(self):
        sums = {}
        for _, metrics in self._bandwidths():
            for name, (total, count) in metrics["types"].items():
                before = sums.get(name, (0, 0))
                sums[name] = before[0] + total, before[1] + count
        return {name: total / count for name, (total, count) in sums.items()}

    def _bandwidths(self):
        """The rates of transfers that workers have measured."""
        for worker in self.workers.values():
            metrics = (worker.metrics or {}).get("bandwidth")
            if metrics:
                yield worker.address, metrics

    @property
    def total_nthreads(self):
        return sum(worker.nthreads for worker in self.workers.values())

    @property
    def idle(self):
        found = self.workers.values()
        return {worker.address: worker for worker in found if not worker.processing}

    @property
    def running(self):
        return {worker for worker in self.workers.values() if worker.status == Status.running}

    @property
    def events(self):
        return self._link.ask("events")

    def get_events(self, topic=None):
        if topic is None:
            return self._link.ask("events")
        return self._link.ask("events", topic=topic)

    @property
    def unrunnable(self):
        return {task for task in self.tasks.values() if task.state == "no-worker"}

    @property
    def queued(self):
        return {task for task in self.tasks.values() if task.state == "queued"}

    def get_worker_service_addr(self, worker, service_name, protocol=False):
        found = self.workers[worker]
        port = (found.services or {}).get(service_name)
        if not port:
            return None
        return f"http://{found.host}:{port}" if protocol else (found.host, port)

    def coerce_address(self, address, resolve=True):
        for worker in self.workers.values():
            if address in (worker.name, worker.address):
                return worker.address
        return address

    async def remove_worker(self, address, *, close=True, **_):
        if close:
            await self.retire_workers(workers=[address], remove=True, close_workers=True)
        else:
            await self._link.ask_later("unregister", address=address)
        return "OK"

    async def close_worker(self, worker):
        await self.remove_worker(worker)

    async def close(self, **_):
        await self._link.ask_later("terminate")

    async def upload_file(self, filename, data, load=True):
        """Writes a file that is then imported here, and by the processes that convert graphs."""
        if isinstance(data, str):
            data = data.encode()
        os.makedirs(self.local_directory, mode=0o700, exist_ok=True)
        path = os.path.join(self.local_directory, os.path.basename(filename))
        with open(path, "wb") as file:
            file.write(data)
        if load:
            import_file(path)
        self._link.send({"op": "uploaded"})
        return {"status": "OK", "nbytes": len(data)}

    async def dump_cluster_state_to_url(self, url, exclude, format, **storage_options):
        from distributed import cluster_dump

        get_state = functools.partial(self.get_cluster_state, exclude)
        await cluster_dump.write_state(get_state, url, format, **storage_options)

    def add_plugin(self, plugin, *, idempotent=False, name=None, **_):
        if name is None:
            name = _get_plugin_name(plugin)
        self._add_plugin(plugin, name, idempotent, keeps_plugins.get())

    def _add_plugin(self, plugin, name, idempotent=False, is_kept=False):
        """Adds a plugin. If it is kept, it is added again after this process has ended."""
        if name in self.plugins:
            if idempotent:
                return
            logger.warning("Scheduler already contains a plugin with name %s; overwriting.", name)
        self.plugins[name] = plugin
        self._plugins_changed(**(self._kept_plugin(name, plugin) if is_kept else {}))

    @staticmethod
    def _kept_plugin(name, plugin):
        token = is_keeping.set(True)
        try:
            # Dask's function would log an error.
            kept = cloudpickle.dumps(plugin)
        except Exception as error:
            logger.debug("Plugin %s cannot be pickled", name, exc_info=error)
            return {"unsaved": [name]}
        finally:
            is_keeping.reset(token)
        return {"unsaved": [name]} if len(kept) > MAX_KEPT_LEN else {"saved": {name: kept}}

    def remove_plugin(self, name=None):
        if self.plugins.pop(name, None) is None:
            raise ValueError(
                f"Could not find plugin {name!r} among the current scheduler plugins"
            )
        self._plugins_changed()

    def _plugins_changed(self, saved=None, unsaved=()):
        hooks = {hook for plugin in self.plugins.values() for hook in hooks_of(plugin)}
        self._link.send(
            {
                "op": "plugins",
                "names": list(self.plugins),
                "saved": saved or {},
                "unsaved": unsaved,
                "has_transitions": "transition" in hooks,
                "has_events": bool(hooks - {"transition"}),
            }
        )
        if "transition" not in hooks:
            # Nothing says when these tasks are released.
            self._sizes.clear()

    async def register_scheduler_plugin(self, plugin, name=None, *, idempotent=False):
        return await self._register_plugin(plugin, name, idempotent, keeps_plugins.get())

    async def _register_plugin(self, plugin, name, idempotent, is_kept=False):
        if not isinstance(plugin, SchedulerPlugin):
            plugin = pickle.loads(plugin)
            if not isinstance(plugin, SchedulerPlugin):
                raise TypeError(f"expected a SchedulerPlugin, not {type(plugin).__name__}")
        if name is None:
            name = _get_plugin_name(plugin)
        if name in self.plugins and idempotent:
            return name
        if hasattr(plugin, "start"):
            result = plugin.start(self)
            if inspect.isawaitable(result):
                await result
        self._add_plugin(plugin, name, idempotent, is_kept)
        return name

    async def unregister_scheduler_plugin(self, name):
        self.remove_plugin(name)


# The hooks that are called with events.
HOOKS = (
    "add_client",
    "add_worker",
    "log_event",
    "remove_client",
    "remove_worker",
    "restart",
    "transition",
    "update_graph",
)


def hooks_of(plugin):
    """Returns the names of the hooks that a plugin overrides."""
    return [
        name
        for name in HOOKS
        if getattr(type(plugin), name, None) is not getattr(SchedulerPlugin, name)
        and callable(getattr(plugin, name, None))
    ]


class Plugins:
    """Handles the messages of the scheduler."""

    def __init__(self, link):
        self.link = link
        self.scheduler = None
        self.preloads = None
        # Sets the preloaded modules up.
        self.starting = None
        self.tasks = {}
        # What a worker has said about the task of the next transition.
        self.ended = None
        # The feeds that wait until their client has taken the last answer.
        self.waiting = {}

    def handle(self, message):
        op = message["op"]
        if op == "start-plugins":
            self.start(message)
        elif op == "call":
            self.call(message["id"], dict(message["request"]))
        elif op == "events":
            for event in message["events"]:
                self.event(*event)
            # Else what the hooks have read would be that of the next events.
            self.scheduler._forget()
        self.link.send({"op": "pong"})

    def start(self, message):
        self.scheduler = Scheduler(self.link, message)
        started = {"op": "started", "error": None}
        if not message["preload"]:
            self.link.send(started)
            return
        token = keeps_plugins.set(False)
        try:
            self.load_preloads(message["preload"], message["preload_argv"])
            self.starting = self.spawn(self.start_preloads(started))
        except SystemExit as end:
            worker.end_process(end)
        except BaseException as error:
            self.preloads_failed(started, error)
        finally:
            keeps_plugins.reset(token)

    async def start_preloads(self, started):
        try:
            await self.preloads.start()
        except SystemExit as end:
            worker.end_process(end)
        except BaseException as error:
            # Such as a cancellation, which Dask's manager does not catch.
            self.preloads_failed(started, error)
        else:
            # So that this process is told that the scheduler closes.
            self.scheduler._plugins_changed()
            self.link.send(started)

    def preloads_failed(self, started, error):
        log_failure("A module of --preload cannot be loaded", error)
        lines = traceback.format_exception_only(type(error), error)
        started["error"] = "".join(lines).rstrip()
        self.link.send(started)

    def load_preloads(self, names, arguments):
        """Imports modules, and checks the arguments for them."""
        arguments = arguments or dask.config.get("distributed.scheduler.preload-argv")
        self.preloads = process_preloads(self.scheduler, names, arguments)
        for preload in self.preloads:
            setup = getattr(preload.module, "dask_setup", None)
            if isinstance(setup, click.Command):
                setup.make_context("dask_setup", list(preload.argv), allow_extra_args=False)

    # Calls of clients.

    def call(self, number, request):
        self.scheduler._forget()
        op = request.pop("op")
        # What a client says of replies in general.
        for name in "reply", "serializers", "deserializers":
            request.pop(name, None)
        serve = {
            "dump_cluster_state_to_url": self.dump,
            "feed": self.feed,
            "performance_report": self.performance_report,
            "run_function": self.run_function,
            "register_scheduler_plugin": self.register,
            "restore_plugin": self.restore,
            "unregister_scheduler_plugin": self.unregister,
            "close-plugins": self.close,
            "stop": self.stop,
            "taken": self.taken,
        }[op]
        try:
            coroutine = serve(number, **request)
            if coroutine is not None:
                self.run(number, coroutine)
        except SystemExit as end:
            worker.end_process(end)
        except BaseException as error:
            self.fail(number, error)

    def run(self, number, coroutine):
        """Has the loop run the coroutine of a call."""

        async def run():
            try:
                await coroutine
            except SystemExit as end:
                worker.end_process(end)
            except BaseException as error:
                # Nobody waits for the reply of a function that was stopped.
                self.fail(number, error)
            finally:
                self.tasks.pop(number, None)

        self.tasks[number] = self.link.loop.create_task(run())

    def reply(self, number, reply, is_last=True):
        self.link.send({"op": "reply", "id": number, "reply": reply, "is_last": is_last})

    def fail(self, number, error, status="uncaught-error"):
        try:
            message = error_message(error, status)
        except Exception as second:
            # The text of the exception cannot be made.
            message = error_message(second, status)
        self.reply(number, message)

    def run_function(self, number, function, args=(), kwargs=None, wait=True):
        function = pickle.loads(function)
        args = pickle.loads(args) if args else ()
        kwargs = pickle.loads(kwargs) if kwargs else {}
        if has_arg(function, "dask_scheduler"):
            kwargs["dask_scheduler"] = self.scheduler
        if has_arg(function, "dask_worker"):
            kwargs["dask_worker"] = self.scheduler
        if not iscoroutinefunction(function):
            if not wait:
                raise AssertionError("Combination not supported")
            try:
                self.finish(number, function(*args, **kwargs))
            except SystemExit:
                raise
            except BaseException as error:
                self.fail(number, error, "error")
            return None

        async def run():
            try:
                result = await function(*args, **kwargs)
                if wait:
                    self.finish(number, result)
            except asyncio.CancelledError:
                raise
            except SystemExit:
                raise
            except BaseException as error:
                if wait:
                    self.fail(number, error, "error")
                else:
                    log_failure("A function that was run on the scheduler failed", error)

        if not wait:
            self.finish(number, None)
        return run()

    async def performance_report(self, number, **arguments):
        """Has Dask write a report about what this scheduler knows."""
        from distributed.scheduler import Scheduler as DaskScheduler

        page = await DaskScheduler.performance_report(self.scheduler, **arguments)
        self.reply(number, page)

    async def dump(self, number, **arguments):
        """Has fsspec write the state of the cluster."""
        await self.scheduler.dump_cluster_state_to_url(**arguments)
        self.reply(number, None)

    def finish(self, number, result):
        self.reply(number, {"status": "OK", "result": to_serialize(result)})

    async def register(self, number, plugin, name=None, idempotent=False):
        name = await self.scheduler._register_plugin(plugin, name, idempotent)
        self.reply(number, {"registered": name})

    def restore(self, number, plugin, name):
        """Adds a plugin that was added in an earlier process."""
        self.scheduler._add_plugin(pickle.loads(plugin), name, idempotent=True)
        self.reply(number, {"registered": name})

    def unregister(self, number, name):
        self.scheduler.remove_plugin(name)
        self.reply(number, None)

    async def feed(self, number, function=None, setup=None, teardown=None, interval="1s"):
        keeps_plugins.set(False)
        interval = parse_timedelta(interval)
        function, setup, teardown = (
            part and pickle.loads(part) for part in (function, setup, teardown)
        )
        state = setup(self.scheduler) if setup else None
        if inspect.isawaitable(state):
            state = await state
        taken = self.waiting[number] = asyncio.Event()
        try:
            while True:
                arguments = [self.scheduler] if state is None else [self.scheduler, state]
                taken.clear()
                self.reply(number, function(*arguments), is_last=False)
                # Functions such as those of Dask's event stream return what is new.
                await taken.wait()
                await asyncio.sleep(interval)
        finally:
            del self.waiting[number]
            if teardown:
                teardown(self.scheduler, state)

    def taken(self, number, call):
        if call in self.waiting:
            self.waiting[call].set()
        self.reply(number, None)

    def stop(self, number, call):
        if call in self.tasks:
            self.tasks[call].cancel()
        self.reply(number, None)

    async def close(self, number):
        """Tells all plugins that the scheduler closes."""
        self.scheduler.status = Status.closing
        if self.starting is not None:
            # A module can rarely tear down what it has not set up. After the time, it is asked to
            # nevertheless, as in Dask.
            await asyncio.wait([self.starting], timeout=SETUP_TIMEOUT)
        for hook in "before_close", "close":
            if hook == "close" and self.preloads is not None:
                await self.preloads.teardown()
            for name, plugin in list(self.scheduler.plugins.items()):
                if hasattr(plugin, hook):
                    try:
                        result = getattr(plugin, hook)()
                        if inspect.isawaitable(result):
                            await result
                    except Exception as error:
                        log_failure(f"Plugin {name} failed in {hook}", error)
        self.reply(number, None)

    # Events.

    def event(self, kind, *fields):
        if kind == "transition":
            self.transition(*fields)
        elif kind == "ended":
            (self.ended,) = fields
        elif kind == "published":
            topic, message, is_own = fields
            message = load(message)
            if is_own and topic == "all":
                self.member(message)
            self.call_hooks("log_event", topic, message)
        elif kind == "update-graph":
            self.graph(*fields)
        elif kind == "restart":
            self.call_hooks("restart", self.scheduler)
        elif kind == "missed":
            self.ended = None
            self.scheduler._sizes.clear()
            logger.warning(
                "Plugins are too slow, and have missed %s events of the scheduler", *fields
            )

    def graph(self, client, keys, tasks):
        """Calls the hooks about a client's graph."""
        annotations = {}
        for key, annotated, _ in tasks:
            for name, value in (load(annotated) or {}).items():
                annotations.setdefault(name, {})[key] = value
        self.call_hooks(
            "update_graph",
            self.scheduler,
            client=client,
            keys=set(keys),
            tasks=[key for key, _, _ in tasks],
            annotations=annotations,
            priority={key: priority for key, _, priority in tasks},
            stimulus_id=f"update-graph-{time()}",
        )

    def transition(self, key, start, finish, stimulus):
        """Calls the hooks about a transition. They see the task in its new state."""
        details = {}
        if self.ended is not None and start == "processing" and self.ended["key"] == key:
            details = {
                name: value if name in ("exception", "traceback") else load(value)
                for name, value in self.ended.items()
                if name != "key"
            }
            self.ended = None
        details["stimulus_id"] = stimulus
        then = {"state": finish}
        sizes = self.scheduler._sizes
        if finish == "memory" and "nbytes" in details:
            sizes[key] = details["nbytes"]
        if key in sizes:
            then["nbytes"] = sizes[key]
            if finish in ("released", "forgotten"):
                del sizes[key]
        if finish == "erred" and details.get("exception") is not None:
            then["exception"] = details["exception"]
            then["traceback"] = details["traceback"]
        self.scheduler._changed = (Task.KIND, key), then
        try:
            if finish == "erred":
                task = Task(self.scheduler, key)
                details["exception"] = task.exception
                details["traceback"] = task.traceback
                details["exception_text"] = details.get("exception_text") or task.exception_text
            self.call_hooks("transition", key, start, finish, **details)
        finally:
            self.scheduler._changed = None

    def member(self, message):
        """Calls the hooks about workers and clients."""
        action = message["action"]
        if action == "add-worker":
            self.call_hooks("add_worker", self.scheduler, message["worker"])
        elif action == "remove-worker":
            address, stimulus = message["worker"], message["stimulus_id"]
            self.call_hooks("remove_worker", self.scheduler, address, stimulus_id=stimulus)
        elif action == "add-client":
            self.call_hooks("add_client", self.scheduler, message["client"])
        elif action == "remove-client":
            self.call_hooks("remove_client", self.scheduler, message["client"])

    def call_hooks(self, hook, *arguments, **named):
        for name, plugin in list(self.scheduler.plugins.items()):
            if hook not in hooks_of(plugin):
                continue
            try:
                result = getattr(plugin, hook)(*arguments, **named)
            except SystemExit as end:
                worker.end_process(end)
            except BaseException as error:
                log_failure(f"Plugin {name} failed in {hook}", error)
                continue
            if inspect.isawaitable(result):
                self.await_hook(name, hook, result)

    def await_hook(self, name, hook, result):
        async def run():
            try:
                await result
            except Exception as error:
                log_failure(f"Plugin {name} failed in {hook}", error)

        self.spawn(run())

    def spawn(self, coroutine):
        """Has the loop run a coroutine."""

        async def run():
            try:
                await coroutine
            finally:
                self.tasks.pop(name, None)

        name = object()
        task = self.tasks[name] = self.link.loop.create_task(run())
        return task


def log_failure(what, error):
    """Logs an exception of a client's code."""
    lines = traceback.format_tb(error.__traceback__)
    logger.warning("%s: %r\n%s", what, error, "".join(lines).rstrip())


class LogHandler(logging.Handler):
    """Sends log records to the scheduler."""

    def __init__(self, link):
        super().__init__()
        self.link = link

    def emit(self, record):
        try:
            # The exception of a function that cannot be loaded, for example, goes to its client.
            is_minor = record.levelno < logging.WARNING
            text = record.getMessage() if is_minor else self.format(record)
            self.link.send(
                {
                    "op": "log",
                    "created": record.created,
                    "level": record.levelname,
                    "text": text,
                }
            )
        except Exception:
            self.handleError(record)


def serve(link):
    """Serves the scheduler until it closes the socket."""
    global plugins
    own = Link(link)
    distributed = logging.getLogger("distributed")
    distributed.handlers = [LogHandler(own)]
    distributed.propagate = False
    link.send(worker.write({"op": "ready"}))
    plugins = Plugins(own)
    own.serve(plugins.handle)
