"""Keeps Python tasks away from workers that run only native (Rust) functions.

Such a worker asks the scheduler to call `install`. The plugin adds worker restrictions
to tasks that have none; tasks with their own restrictions are not changed. A restricted
task that each of its workers has returned fails.
"""

import functools
import itertools
import operator
import re

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


def install(scheduler):
    if NAME in scheduler.plugins:
        return
    plugin = TaskRouting(scheduler)
    scheduler.add_plugin(plugin, name=NAME)
    reschedule = scheduler.stream_handlers["reschedule"]

    def handle(key=None, worker=None, stimulus_id="", **kwargs):
        if plugin.accept_return(key, worker, stimulus_id):
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


class Workers(set):
    """Addresses of workers of a kind, and the name of the kind, so that it is never empty.

    P2P shuffles iterate over the workers of a restricted task, to assign a part to each;
    so iteration skips the name.
    """

    def __iter__(self):
        return (worker for worker in super().__iter__() if worker != "python")


class TaskRouting(SchedulerPlugin):
    name = NAME

    def __init__(self, scheduler):
        self.scheduler = scheduler
        # Tasks share these sets, so that a worker that joins or leaves changes the
        # restrictions of all. The first entry is not a worker: to the scheduler, an
        # empty set means no restriction.
        self.native = {"native"}
        self.python = Workers()
        # By key of a returned task: its restrictions, and the workers that returned it.
        self.returned = {}
        for worker in list(scheduler.workers):
            self.add_worker(scheduler, worker)

    def add_worker(self, scheduler, worker, **kwargs):
        extra = getattr(scheduler.workers[worker], "extra", None) or {}
        kinds = extra.get("daskwire") or ("python",)
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
        self.native.discard(worker)
        self.python.discard(worker)

    def update_graph(self, scheduler, tasks=(), **kwargs):
        if len(self.native) > 1:
            self.restrict(scheduler, tasks)

    def restrict(self, scheduler, keys):
        for key in keys:
            task = scheduler.tasks.get(key)
            if task is None or task.run_spec is None:
                continue
            if task.worker_restrictions or task.host_restrictions or task.resource_restrictions:
                continue
            native = is_native(task.run_spec)
            if native is None:
                continue
            workers = self.native if native else self.python
            restrict(task, workers)

    def accept_return(self, key, worker, stimulus_id):
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
            f"(workers asked: {len(asked)})"
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
