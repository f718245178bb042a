"""Keeps tasks of Python away from workers that only run functions of Rust.

Such a worker has the scheduler call `install`. What the plugin restricts is left to
it; tasks with restrictions of their own are left alone.
"""

import functools
import itertools
import operator

from distributed.diagnostics.plugin import SchedulerPlugin

NAME = "daskwire-apart"
MAX_PARTS = 1000
MODULES = ("dask._task_spec", "dask.optimization", "distributed.protocol.serialize")
ATTRIBUTES = ("func", "args", "kwargs", "dsk", "data", "frames")


def install(scheduler):
    if NAME not in scheduler.plugins:
        scheduler.add_plugin(Apart(scheduler), name=NAME)


def is_native(spec):
    """Whether a task calls `native:NAME`."""
    stack, count = [spec], 0
    while stack and count < MAX_PARTS:
        item, count = stack.pop(), count + 1
        if isinstance(item, operator.methodcaller):
            function, arguments = item.__reduce__()[:2]
            if isinstance(function, functools.partial):
                arguments = function.args
            if arguments[0].startswith("native:"):
                return True
        elif isinstance(item, (bytes, bytearray)):
            if b"methodcaller" in item and b"native:" in item:
                return True
        elif isinstance(item, (list, tuple)):
            stack.extend(itertools.islice(item, MAX_PARTS))
        elif isinstance(item, dict):
            stack.extend(itertools.islice(item.values(), MAX_PARTS))
        elif isinstance(item, functools.partial):
            stack.extend((item.func, item.args, item.keywords))
        elif type(item).__module__ in MODULES:
            stack.extend(getattr(item, name, None) for name in ATTRIBUTES)
    return False


class Apart(SchedulerPlugin):
    name = NAME

    def __init__(self, scheduler):
        # Tasks share these sets, so that a worker that joins or leaves changes the
        # restrictions of all. The first entry is no worker: the scheduler takes an
        # empty set for no restriction.
        self.native = {"native"}
        self.python = set()
        for worker in list(scheduler.workers):
            self.add_worker(scheduler, worker)

    def add_worker(self, scheduler, worker, **kwargs):
        extra = getattr(scheduler.workers[worker], "extra", None) or {}
        kinds = extra.get("daskwire") or ("python",)
        if "python" in kinds:
            # From now on, tasks of Python wait while there is no such worker.
            self.python.update(("python", worker))
        if "native" in kinds:
            self.native.add(worker)
            if len(self.native) == 2:
                self.restrict(scheduler, list(scheduler.tasks))

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
            workers = self.native if is_native(task.run_spec) else self.python
            # 2022.1 has properties.
            is_property = hasattr(task, "_worker_restrictions")
            setattr(task, "_worker_restrictions" if is_property else "worker_restrictions", workers)
