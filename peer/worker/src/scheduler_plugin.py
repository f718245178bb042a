"""Keeps Python tasks and data away from workers that run only native (Rust) functions.

Such a worker asks the scheduler to call `install`. Tasks that call native functions are
restricted to the workers that have them. For all other tasks, the scheduler decides as
if the cluster had only its Python workers: the sets that it chooses from do not contain
the others, which are put back for decisions about tasks with restrictions. A release
whose scheduler cannot be changed in this way restricts Python tasks, too. A restricted
task that each of its workers has returned fails.
"""

import asyncio
import functools
import inspect
import itertools
import logging
import operator
import re
import time

from distributed.core import error_message
from distributed.diagnostics.plugin import SchedulerPlugin

NAME = "daskwire-task-routing"
MAX_PARTS = 1000
MODULES = ("dask._task_spec", "dask.optimization", "distributed.protocol.serialize")
ATTRIBUTES = ("func", "args", "kwargs", "dsk", "data", "frames")
# Attribute of a partial: the name of the native function that may replace it.
REPLACED_BY = "daskwire_native"
# A name in a pickle, where each string is followed by MEMOIZE (0x94).
NAME_IN_PICKLE = re.compile(rb"native:[^\x94]*")
# Prefix of the stimulus with which a worker returns a task that it cannot run.
UNSUPPORTED = "task-unsupported"
# The sets from which the scheduler chooses workers, and what it computes of all of them.
SETS = ("running", "idle", "idle_task_count", "saturated")
TOTALS = ("workers", "total_nthreads")
logger = logging.getLogger("distributed.scheduler")


def install(scheduler):
    if NAME in scheduler.plugins:
        return
    plugin = TaskRouting(scheduler)
    scheduler.add_plugin(plugin, name=NAME)
    reschedule = scheduler.stream_handlers["reschedule"]

    def handle(key=None, worker=None, stimulus_id="", reason=None, **kwargs):
        if plugin.accept_return(key, worker, stimulus_id, reason):
            if stimulus_id:
                kwargs["stimulus_id"] = stimulus_id
            reschedule(key=key, worker=worker, **kwargs)

    scheduler.stream_handlers["reschedule"] = handle


def native_calls(spec):
    """Yields the names of the native functions of a task; None for one with a fallback."""
    stack, count = [spec], 0
    while stack and count < MAX_PARTS:
        item, count = stack.pop(), count + 1
        if isinstance(item, operator.methodcaller):
            function, arguments = item.__reduce__()[:2]
            if isinstance(function, functools.partial):
                arguments = function.args
            if arguments[0].startswith("native:"):
                yield arguments[0]
        elif isinstance(item, (bytes, bytearray)):
            if b"methodcaller" in item:
                for name in re.findall(NAME_IN_PICKLE, item):
                    yield name.decode(errors="replace")
            if REPLACED_BY.encode() in item:
                yield None
        elif isinstance(item, (list, tuple)):
            stack.extend(itertools.islice(item, MAX_PARTS))
        elif isinstance(item, dict):
            stack.extend(itertools.islice(item.values(), MAX_PARTS))
        elif isinstance(item, functools.partial):
            if REPLACED_BY in item.__dict__:
                yield None
                continue
            stack.extend((item.func, item.args, item.keywords))
        elif type(item).__module__ in MODULES:
            stack.extend(getattr(item, name, None) for name in ATTRIBUTES)


def is_native(spec):
    """Returns whether a task calls `native:NAME`; None if it may, but has a fallback."""
    found = False
    for name in native_calls(spec):
        if name is not None:
            return True
        found = None
    return found


def restrict(task, workers):
    # In 2022.1, `worker_restrictions` is a property without a setter.
    is_property = hasattr(task, "_worker_restrictions")
    setattr(task, "_worker_restrictions" if is_property else "worker_restrictions", workers)


def restricted(task):
    return task.worker_restrictions or task.host_restrictions or task.resource_restrictions


def kinds_of(ws):
    return (getattr(ws, "extra", None) or {}).get("daskwire") or ("python",)


def runs_python(ws):
    return "python" in kinds_of(ws)


def stores_all(ws):
    """Whether a worker stores values of any type and size."""
    return "embedded" not in kinds_of(ws)


class Workers(set):
    """Addresses of workers of a kind, and the name of the kind, so that it is never empty.

    P2P shuffles iterate over the workers of a restricted task, to assign a part to each;
    so iteration skips the name.
    """

    def __iter__(self):
        return (worker for worker in super().__iter__() if ":" in worker)


def parted(kind, is_apart):
    """Returns a class of the scheduler's sets of workers that keeps some of them apart.

    For the scheduler's checks of itself, they are contained; iteration, the length and
    operations with other sets leave them out. Dictionaries are by address.
    """

    class Parted(kind):
        def __init__(self, workers):
            super().__init__()
            self.apart = kind()
            for ws in workers:
                if issubclass(kind, dict):
                    self[ws.address] = ws
                else:
                    self.add(ws)

        def add(self, ws):
            self.apart.add(ws) if is_apart(ws) else super().add(ws)

        def discard(self, ws):
            self.apart.discard(ws)
            super().discard(ws)

        def __setitem__(self, address, ws):
            if is_apart(ws):
                self.apart[address] = ws
            else:
                super().__setitem__(address, ws)

        def pop(self, address, *default):
            if address in self.apart:
                return self.apart.pop(address)
            return super().pop(address, *default)

        def __contains__(self, item):
            return super().__contains__(item) or item in self.apart

    return Parted


class Choice:
    """Changes a scheduler, so that it leaves native workers out for unrestricted tasks.

    Workers in Rust that store any value are left out once a Python worker has joined;
    until then, they get all tasks.
    """

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.undo = []
        self.is_calling = False
        # Until 2022.4, the attributes are properties without setters, of up to two others.
        kind = type(scheduler)
        self.names = {
            name: [
                each
                for each in (name, "_" + name, f"_{name}_dv")
                if hasattr(scheduler, each) and not isinstance(getattr(kind, each, None), property)
            ]
            for name in SETS + TOTALS
        }
        self.had_python = any(map(runs_python, scheduler.workers.values()))
        try:
            self.part()
            self.change_decisions()
            self.change_stealing()
            self.change_memory_manager()
            self.change_requests()
        except BaseException:
            while self.undo:
                self.undo.pop()()
            raise

    def add_worker(self, ws):
        if not self.had_python and runs_python(ws):
            self.had_python = True
            self.part()

    def is_apart(self, ws):
        return not runs_python(ws) and (self.had_python or not stores_all(ws))

    def set(self, owner, name, value):
        """Sets an attribute or an item, until all changes are undone."""
        if isinstance(owner, dict):
            self.undo.append(functools.partial(owner.__setitem__, name, owner[name]))
            owner[name] = value
        else:
            self.undo.append(functools.partial(setattr, owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def value(self, name):
        return getattr(self.scheduler, self.names[name][0])

    def with_values(self, **values):
        return {each: value for name, value in values.items() for each in self.names[name]}

    def part(self):
        """Separates the workers in the sets from which the scheduler chooses."""
        for name in SETS:
            if not self.names[name]:
                continue
            sets = [self.value(name)]
            if hasattr(sets[0], "apart"):
                sets.append(sets[0].apart)
            kind = type(sets[-1])
            if issubclass(kind, dict):
                sets = [part.values() for part in sets]
            parts = parted(kind, self.is_apart)(itertools.chain(*sets))
            for each in self.names[name]:
                self.set(self.scheduler, each, parts)
        self.find_apart()

    def find_apart(self):
        """Finds the workers of each part, and the attributes of the scheduler with one part."""
        workers = self.value("workers")
        self.counted = len(workers), self.value("total_nthreads")
        self.apart, self.others = (
            type(workers)((ws.address, ws) for ws in workers.values() if self.is_apart(ws) == is_apart)
            for is_apart in (True, False)
        )
        nthreads = sum(ws.nthreads for ws in self.others.values())
        self.other_threads = self.with_values(total_nthreads=nthreads)
        self.only_others = {**self.with_values(workers=self.others), **self.other_threads}
        sets = {name: self.value(name).apart for name in SETS if self.names[name]}
        self.only_apart = self.with_values(workers=self.apart, **sets)

    def has_apart(self):
        # The scheduler decides after it has removed a worker, before it calls plugins.
        counted = len(self.value("workers")), self.value("total_nthreads")
        if counted != self.counted and not self.is_calling:
            self.find_apart()
        return bool(self.apart)

    def all_running(self):
        running = self.value("running")
        return self.with_values(running=running | getattr(running, "apart", set()))

    def call(self, attributes, function, *args, **kwargs):
        """Calls a function while the scheduler has these attributes."""
        scheduler, was_calling = self.scheduler, self.is_calling
        before = [(name, getattr(scheduler, name)) for name in attributes]
        self.is_calling = True
        for name, value in attributes.items():
            setattr(scheduler, name, value)
        try:
            return function(*args, **kwargs)
        finally:
            for name, value in before:
                setattr(scheduler, name, value)
            self.is_calling = was_calling

    def override(self, owner, name, change):
        """Replaces a method or a handler, if it exists, by `change` with it as an argument."""
        is_handler = isinstance(owner, dict)
        function = owner.get(name) if is_handler else getattr(owner, name, None)
        if function is None:
            return False
        changed = functools.partial(change, function)
        self.set(owner, name, functools.wraps(function)(changed))
        return True

    # Decisions about tasks.

    def change_decisions(self):
        scheduler = self.scheduler
        if not self.override(scheduler, "decide_worker_non_rootish", self.decide):
            if not self.override(scheduler, "decide_worker", self.decide_or_wait):
                raise NotImplementedError("this scheduler decides in another way")
        self.override(scheduler, "decide_worker_rootish_queuing_disabled", self.among_others)
        self.override(scheduler, "is_rootish", self.among_others)
        self.override(scheduler, "valid_workers", self.valid_workers)
        self.override(scheduler, "check_idle_saturated", self.check_idle_saturated)

    def among_others(self, function, *args, **kwargs):
        if not self.has_apart():
            return function(*args, **kwargs)
        return self.call(self.only_others, function, *args, **kwargs)

    def decide(self, function, task):
        if self.has_apart() and self.may_be_apart(task):
            return self.call(self.all_running(), function, task)
        return self.among_others(function, task)

    def decide_or_wait(self, function, task):
        if restricted(task) or not self.has_apart() or self.others:
            return self.decide(function, task)
        # Before 2022.11, this method sets the state.
        self.scheduler.unrunnable.add(task)
        task.state = "no-worker"

    def may_be_apart(self, task):
        """Whether a task has restrictions that allow a worker that is kept apart."""
        if not restricted(task) or not task.loose_restrictions:
            return restricted(task)
        names = {*(task.worker_restrictions or ()), *(task.host_restrictions or ())}
        return any(names & {ws.address, ws.name, ws.host} for ws in self.apart.values())

    def valid_workers(self, function, task):
        if restricted(task) and self.has_apart():
            return self.call(self.all_running(), function, task)
        return function(task)

    def check_idle_saturated(self, function, ws, *args, **kwargs):
        if not self.has_apart() or self.is_apart(ws):
            return function(ws, *args, **kwargs)
        return self.call(self.other_threads, function, ws, *args, **kwargs)

    # Work stealing among each part of the workers.

    def change_stealing(self):
        stealing = self.scheduler.extensions.get("stealing")
        if stealing is None or inspect.iscoroutinefunction(stealing.balance):
            return
        self.override(stealing, "balance", self.balance)
        timer = self.scheduler.periodic_callbacks.get("stealing")
        if timer is not None:
            self.set(timer, "callback", stealing.balance)

    def balance(self, function):
        function()
        if self.has_apart() and len(self.apart) > 1:
            self.call(self.only_apart, function)

    # Data that exists already may move to all workers that store it.

    def change_memory_manager(self):
        manager = self.scheduler.extensions.get("amm")
        if manager is not None:
            self.override(manager, "_run_policies", self.among_storing)

    def among_storing(self, function, *args, **kwargs):
        if not self.has_apart():
            return function(*args, **kwargs)
        running = self.value("running")
        running = {ws for ws in running | getattr(running, "apart", set()) if stores_all(ws)}
        return self.call(self.with_values(running=running), function, *args, **kwargs)

    def choose_storing(self, function, *args, workers=None, **kwargs):
        if workers is None and self.has_apart():
            there = self.value("workers").values()
            workers = [ws.address for ws in there if ws in self.value("running") and stores_all(ws)]
        return function(*args, workers=workers, **kwargs)

    # Requests that choose workers.

    def change_requests(self):
        handlers = self.scheduler.handlers
        self.override(handlers, "scatter", self.scatter)
        self.override(handlers, "ncores_running", self.choose)
        for name in ("replicate", "rebalance"):
            self.override(handlers, name, self.choose_storing)
        # P2P shuffles assign parts to all workers.
        for name in ("shuffle_get", "shuffle_get_or_create"):
            if not inspect.iscoroutinefunction(handlers.get(name)):
                self.override(handlers, name, self.among_others)

    def choose(self, function, *args, workers=None, **kwargs):
        if workers is None and self.has_apart():
            workers = [ws.address for ws in self.others.values() if ws in self.value("running")]
        return function(*args, workers=workers, **kwargs)

    async def scatter(self, function, *args, workers=None, timeout=2, **kwargs):
        end = time.monotonic() + timeout
        while workers is None and self.has_apart():
            workers = self.choose(dict)["workers"] or None
            if workers is None:
                if time.monotonic() > end:
                    raise asyncio.TimeoutError("No valid workers found")
                await asyncio.sleep(0.1)
        return await function(*args, workers=workers, timeout=timeout, **kwargs)


class TaskRouting(SchedulerPlugin):
    name = NAME

    def __init__(self, scheduler):
        self.scheduler = scheduler
        # Tasks share these sets, so that a worker that joins or leaves changes the
        # restrictions of all. The first entry is not a worker: to the scheduler, an
        # empty set means no restriction.
        self.native, self.any, self.python = Workers(["native"]), Workers(["any"]), Workers()
        # By key of a returned task: its restrictions, and the workers that returned it.
        self.returned = {}
        self.choice = None
        try:
            self.choice = Choice(scheduler)
        except Exception:
            logger.exception("Python tasks are restricted to Python workers")
        for worker in list(scheduler.workers):
            self.add_worker(scheduler, worker)

    def add_worker(self, scheduler, worker, **kwargs):
        kinds = kinds_of(scheduler.workers[worker])
        self.any.add(worker)
        if self.choice is not None:
            self.choice.add_worker(scheduler.workers[worker])
        if "python" in kinds:
            # From now on, Python tasks wait while the cluster has no such worker.
            self.python.update(("python", worker))
        if "native" in kinds:
            self.native.add(worker)
            if len(self.native) == 2:
                self.restrict(scheduler, list(scheduler.tasks))
        for key in list(self.returned):
            self.ask_all_again(key)

    def remove_worker(self, scheduler, worker, **kwargs):
        for workers in (self.native, self.python, self.any):
            workers.discard(worker)

    def update_graph(self, scheduler, tasks=(), **kwargs):
        if len(self.native) > 1:
            self.restrict(scheduler, tasks)

    def restrict(self, scheduler, keys):
        for key in keys:
            task = scheduler.tasks.get(key)
            if task is None or task.run_spec is None or restricted(task):
                continue
            native = is_native(task.run_spec)
            if native:
                restrict(task, self.native)
            elif native is None:
                restrict(task, self.any)
            elif self.choice is None:
                restrict(task, self.python)

    def accept_return(self, key, worker, stimulus_id, reason):
        """Returns whether a returned task is assigned to another worker; else fails it."""
        task = self.scheduler.tasks.get(key)
        if (
            not stimulus_id.startswith(UNSUPPORTED)
            or task is None
            or not task.processing_on
            or task.processing_on.address != worker
            or not task.worker_restrictions
            or task.host_restrictions
            or task.resource_restrictions
        ):
            return True
        workers, asked = self.returned.setdefault(key, (task.worker_restrictions, set()))
        asked.add(worker)
        there = self.scheduler.workers
        allowed = there if task.loose_restrictions else workers
        left = {other for other in allowed if other in there} - asked
        if left:
            restrict(task, left)
            return True
        names = ", ".join(sorted({name for name in native_calls(task.run_spec) if name}))
        what = f"the function {names}" if names else "what it calls"
        error = NotImplementedError(
            f"no worker has {what}, or none that has it can run the rest of the task {key} "
            f"(workers asked: {len(asked)})" + (f": {reason}" if reason else "")
        )
        fields = error_message(error)
        if hasattr(task, "run_id"):
            fields["run_id"] = task.run_id
        self.scheduler.handle_task_erred(key=key, worker=worker, stimulus_id=stimulus_id, **fields)
        return False

    def transition(self, key, start, finish, *args, **kwargs):
        if finish in ("memory", "erred", "forgotten"):
            self.ask_all_again(key)

    def ask_all_again(self, key):
        if key in self.returned:
            workers, _ = self.returned.pop(key)
            if key in self.scheduler.tasks:
                restrict(self.scheduler.tasks[key], workers)
