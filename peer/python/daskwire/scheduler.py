"""Answers the requests of a scheduler in Rust that only Python can answer.

The scheduler (`daskwire scheduler --python`) forks a process of this module, a helper, from
the template of `worker.py`, which also has its links and its messages. A helper answers one
request at a time. It never connects to anything: it knows what the request contains.

A request is a message, and its answer is a number of messages. The last of them is
`helper-finished` or `helper-erred`; `REQUESTS` has a generator for each request, which
yields the messages before that.
"""

from __future__ import annotations

import copyreg
import gc
import io
import os
import pickle as builtin_pickle
import sys
import textwrap
import uuid
from itertools import takewhile
from operator import attrgetter, methodcaller
from types import BuiltinFunctionType, FunctionType, MethodType

import cloudpickle

from dask._task_spec import Alias, DataNode, Dict, GraphNode, List, Task, TaskRef
from dask.utils import apply

from distributed.core import error_message
from distributed.protocol import pickle, to_serialize
from distributed.protocol.serialize import Serialized, ToPickle
from distributed.scheduler import _materialize_graph
from distributed.shuffle._exceptions import P2PIllegalStateError

# `Task.__getstate__`, which is slower. `copyreg` pickles objects with such a state in the same way.
new_object = copyreg.__newobj__
state_of = attrgetter(*Task.get_all_slots())

# The module of the template, which is in no package.
worker = sys.modules["daskwire.worker"]

# Maximum number of tasks of a batch, and maximum length in bytes of their pickle. A batch of tasks that have
# a pickle each is longer by the last of them at most.
BATCH_COUNT = 1000
BATCH_LEN = 1 << 20

# Length in bytes from which an object that several tasks refer to is a task of its own, as in
# graphs that the scheduler reads as data.
LARGE = 32 << 10

# Types of objects that are never large.
SMALL = {type(None), bool, int, float, complex, slice, type, range, BuiltinFunctionType}

# Types of the parts of most keys, which a message can contain.
KEY_PARTS = {str, int, float, bytes}

# What a task calls, as in `Calls` of the scheduler, and that it is a value.
NATIVE, PYTHON, VALUE = 1, 2, 4

DESERIALIZATION = textwrap.dedent("""\
    Error during deserialization of the task graph. This frequently
    occurs if the Scheduler and Client have different environments.
    For more information, see
    https://docs.dask.org/en/stable/deployment-considerations.html#consistent-software-environments
""")


def cull(dsk, keys):
    """Returns the tasks that the keys need."""
    left = list(keys)
    needed = {}
    while left:
        key = left.pop()
        if key not in needed and key in dsk:
            needed[key] = task = dsk[key]
            left.extend(task.dependencies)
    return needed


def is_importable(value):
    """Returns whether a function or a class is found by its name."""
    found = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


class Pickler(builtin_pickle.Pickler):
    """Pickles tasks. Functions and classes that are pickled by value are pickled once."""

    def __init__(self, file, pickles):
        super().__init__(file, builtin_pickle.HIGHEST_PROTOCOL)
        # By the ids of functions and classes, which are kept.
        self.pickles = pickles

    def reducer_override(self, value):
        kind = type(value)
        if kind is Task:
            return new_object, (Task,), state_of(value)
        if kind is not FunctionType and not isinstance(value, type):
            return NotImplemented
        if id(value) not in self.pickles:
            by_value = None if is_importable(value) else cloudpickle.dumps(value)
            self.pickles[id(value)] = value, by_value
        _, by_value = self.pickles[id(value)]
        if by_value is None:
            return NotImplemented
        return builtin_pickle.loads, (by_value,)


class FullError(Exception):
    """A pickle is too long for a batch."""


class BatchFile(io.BytesIO):
    """Takes the pickle of a batch."""

    def write(self, data):
        # Those of large arrays are `PickleBuffer`.
        if self.tell() + memoryview(data).nbytes > BATCH_LEN:
            raise FullError
        return super().write(data)


class Dumper:
    """Pickles the tasks of a graph."""

    def __init__(self):
        self.pickles = {}
        # How many tasks are pickled together.
        self.count = BATCH_COUNT

    def dump(self, task):
        """Returns the pickle of a task."""
        file = io.BytesIO()
        try:
            Pickler(file, self.pickles).dump(task)
        except Exception:
            return pickle.dumps(task)
        return file.getvalue()

    def dump_together(self, tasks):
        """Returns the pickle of a tuple of tasks, or nothing if one of them fails.

        What they share, such as the names of functions, is in it once, which makes it several times
        shorter than a pickle of each, and faster to make.
        """
        file = BatchFile()
        try:
            Pickler(file, self.pickles).dump(tuple(tasks))
        except FullError:
            raise
        except Exception:
            # A task that only `distributed` can pickle, or the error of one.
            return None
        self.adapt(file.tell())
        return file.getvalue()

    def dump_each(self, tasks):
        """Returns the pickles of the first tasks, as many as a batch may have. A task may be a pickle
        already."""
        pickles, length = [], 0
        for task in tasks:
            pickles.append(task if type(task) is bytes else self.dump(task))
            length += len(pickles[-1])
            if length >= BATCH_LEN:
                break
        self.adapt(length)
        return pickles

    def messages(self, tasks, is_separate):
        """Yields messages with the pickles of tasks, which are pickled together unless `is_separate`, or
        unless they are pickles already."""
        start = 0
        while start < len(tasks):
            some = tasks[start : start + BATCH_COUNT]
            pickled, run_specs = None, []
            if type(some[0]) is bytes:
                some = list(takewhile(is_pickle, some))
            elif not is_separate and self.count > 1:
                some = list(takewhile(is_object, some[: self.count]))
                try:
                    pickled = self.dump_together(some)
                except FullError:
                    self.count = max(1, len(some) // 8)
                    continue
            count = len(some)
            if pickled is None:
                run_specs = self.dump_each(some)
                count = len(run_specs)
            # Not kept until the others are pickled.
            tasks[start : start + count] = [None] * count
            start += count
            yield message_of(pickled or b"", run_specs)

    def adapt(self, length):
        """Has more tasks pickled together if their pickles were short."""
        if length < BATCH_LEN // 4:
            self.count = min(2 * self.count, BATCH_COUNT)


def is_pickle(task):
    """Returns whether a task is a pickle already."""
    return type(task) is bytes


def is_object(task):
    """Returns whether a task is not a pickle yet."""
    return type(task) is not bytes


def message_of(pickled, run_specs):
    """Returns a message with the pickle of several tasks, or with pickles of a task each."""
    large = None
    if run_specs and len(run_specs[-1]) >= BATCH_LEN:
        # In a frame of its own: the length of the others is limited.
        large = Serialized({"serializer": "pickle", "writeable": ()}, [run_specs.pop()])
    return {"op": "graph-pickles", "tasks": pickled, "run_specs": run_specs, "large": large}


def may_be_large(part):
    """Returns whether the pickle of an argument or a function may be long."""
    kind = type(part)
    if kind in SMALL or isinstance(part, (GraphNode, TaskRef)):
        return False
    if kind in (str, bytes, bytearray):
        return len(part) >= LARGE
    if kind is FunctionType:
        return not is_importable(part)
    return kind is not MethodType or may_be_large(part.__self__)


def called(task):
    """Returns the calls of a task, several if it is fused."""
    if type(task) is not Task:
        return []
    if task.has_subgraph():
        return [inner for inner in task.args[0].values() if type(inner) is Task]
    return [task]


def find_shared(dsk):
    """Returns the keys of large objects that several tasks refer to, by their ids, and a task
    for each of them."""
    uses = {}
    for task in dsk.values():
        parts = {}
        for call in called(task):
            for part in (call.func, *call.args, *call.kwargs.values()):
                if may_be_large(part):
                    parts[id(part)] = part
        for identity, part in parts.items():
            uses.setdefault(identity, [part, 0])[1] += 1
    shared, tasks = {}, {}
    for identity, (part, count) in uses.items():
        if count > 1:
            key = f"shared-{uuid.uuid4().hex}"
            task = DataNode(key, part)
            try:
                run_spec = pickle.dumps(task)
            except Exception:
                # The error is that of its tasks.
                continue
            if len(run_spec) >= LARGE:
                shared[identity] = key
                tasks[key] = run_spec
    return shared, tasks


def refer(task, shared):
    """Returns a task that refers to shared objects by their keys, which may be the task itself."""
    if type(task) is not Task:
        return task
    if not task.has_subgraph():
        return refer_call(task, shared)[0]
    inside, outkey, inkeys, *inputs = task.args
    used = {}
    changed = {}
    for key, inner in inside.items():
        if type(inner) is Task:
            inner, keys = refer_call(inner, shared)
            used.update(dict.fromkeys(keys))
        changed[key] = inner
    if not used:
        return task
    inputs += map(TaskRef, used)
    return Task(task.key, task.func, changed, outkey, (*inkeys, *used), *inputs)


def refer_call(task, shared):
    """Returns a call that refers to shared objects, and their keys."""
    keys = []

    def part(value):
        key = shared.get(id(value))
        if key is None:
            return value
        keys.append(key)
        return TaskRef(key)

    arguments = [part(value) for value in task.args]
    named = {name: part(value) for name, value in task.kwargs.items()}
    function = part(task.func)
    if not keys:
        return task, keys
    if function is not task.func:
        return Task(task.key, apply, function, List(*arguments), Dict(named)), keys
    return Task(task.key, function, *arguments, **named), keys


class Annotations:
    """The annotations of tasks, each distinct dictionary once."""

    def __init__(self, by_name, of_all):
        self.by_name = by_name
        # Functions of the key are called for each task.
        self.of_all = of_all or {}
        self.indices = {}
        # Those that were not sent yet.
        self.new = []
        # Keeps the values, so that their ids stay theirs.
        self.values = []
        # The index of all tasks, if it is the same.
        self.same = None
        if not any(by_name.values()) and not any(map(callable, self.of_all.values())):
            self.same = self.index(self.of_all)

    def of_task(self, key):
        """Returns the index of a task's annotations, which precede those of all tasks."""
        if self.same is not None:
            return self.same
        found = {}
        for name, value in self.of_all.items():
            found[name] = value(key) if callable(value) else value
        for name, values in self.by_name.items():
            if (value := values.get(key)) is not None:
                found[name] = value
        return self.index(found)

    def of_shared(self):
        """Returns the index of the annotations of objects that tasks share."""
        found = self.of_all.items()
        return self.index(
            {name: value for name, value in found if name != "resources" and not callable(value)}
        )

    def index(self, found):
        """Returns the index of annotations."""
        identity = tuple((name, id(value)) for name, value in found.items())
        index = self.indices.get(identity)
        if index is None:
            index = self.indices[identity] = len(self.indices)
            self.values.append(found)
            self.new.append({name: plain(value) for name, value in found.items()})
        return index


def plain(value):
    """Returns an annotation in a form that a message can contain."""
    try:
        worker.write(value)
    except Exception:
        return ToPickle(value)
    return value


def plain_key(key):
    """Returns an equal key without numbers of NumPy, which a message cannot contain."""
    if type(key) is tuple:
        if KEY_PARTS.issuperset(map(type, key)):
            return key
        return tuple(map(plain_key, key))
    return key.item() if hasattr(key, "item") else key


def calls(task):
    """Returns what a task calls."""
    if isinstance(task, DataNode):
        return VALUE
    if isinstance(task, Alias):
        return 0
    function = getattr(task, "func", None)
    if isinstance(function, methodcaller):
        _, (name, *_) = function.__reduce__()
        if str(name).startswith("native:"):
            return NATIVE
    return PYTHON


def convert_graph(message, receive):
    """Converts the expression of an `update-graph` message to tasks, as Dask's scheduler does.

    The scheduler sorts them, and asks for their pickles in its order, so that the first of them can run
    while the others are pickled.
    """
    try:
        expression = message["expr_ser"].load()
    except Exception as error:
        raise RuntimeError(DESERIALIZATION) from error
    of_all = message["annotations"]
    if isinstance(of_all, worker.Payload):
        of_all = of_all.load()
    # Not kept while its tasks are made.
    message["expr_ser"] = None
    # 2025.4.0 returns the dependencies, too.
    dsk, *_, by_name = _materialize_graph(expression, validate=False)
    if type(expression).__name__ == "LLGExpr":
        dsk = cull(dsk, message["keys"])
    del expression
    annotations = Annotations(by_name, of_all)
    shared, pickles = find_shared(dsk)
    index = {key: place for place, key in enumerate([*pickles, *dsk])}
    tasks = list(pickles.values())
    task = None
    batch = Batch(annotations)
    for key in pickles:
        batch.add(key, [], [], annotations.of_shared(), VALUE)
    for key in list(dsk):
        if len(batch.keys) >= BATCH_COUNT:
            yield batch.message(is_last=False)
            batch = Batch(annotations)
        task = dsk.pop(key)
        if shared:
            task = refer(task, shared)
        inside, outside = [], []
        for dependency in task.dependencies:
            number = index.get(dependency)
            if number is None:
                outside.append(plain_key(dependency))
            elif dependency != key:
                inside.append(number)
        batch.add(plain_key(key), inside, outside, annotations.of_task(key), calls(task))
        tasks.append(task)
    yield batch.message(is_last=True)
    # Neither these nor tasks that are not needed are kept while the others are pickled.
    del index, pickles, dsk, batch, task
    tasks = [tasks[number] for number in receive()["order"]]
    yield from Dumper().messages(tasks, message["separately"])


class Batch:
    """Tasks that are sent at once: a list for each of their properties."""

    def __init__(self, annotations):
        self.annotations = annotations
        self.keys, self.dependencies, self.outside = [], [], []
        self.annotated, self.calls = [], []

    def add(self, key, dependencies, outside, annotated, calls):
        """Adds a task."""
        self.keys.append(key)
        self.dependencies.append(dependencies)
        self.outside.append(outside)
        self.annotated.append(annotated)
        self.calls.append(calls)

    def message(self, is_last):
        """Returns a message with the tasks."""
        new, self.annotations.new = self.annotations.new, []
        return {
            "op": "graph-tasks",
            "keys": self.keys,
            "dependencies": self.dependencies,
            "outside": self.outside,
            "annotated": self.annotated,
            "calls": self.calls,
            "annotations": new,
            "is_last": is_last,
        }


def create_shuffle_run(message, receive):
    """Assigns the outputs of a P2P shuffle to workers, as the plugin of Dask's scheduler does."""
    spec = message["barrier"].load().spec
    # Tasks that use outputs of several shuffles need them on the same worker.
    assigned = {}
    for other in message["others"]:
        for partition, worker in pickle.loads(other).worker_for.items():
            if assigned.setdefault(partition, worker) != worker:
                raise P2PIllegalStateError(
                    f"Failed to initialize shuffle {spec.id}: shuffles with the same output tasks "
                    f"have output {partition!r} on {assigned[partition]} and on {worker}"
                )
    worker_for = {}
    for partition in spec.output_partitions:
        worker = assigned.get(partition)
        if worker is None:
            worker = spec.pick_worker(partition, message["workers"])
        worker_for[partition] = worker
    run_spec = spec.create_new_run(worker_for=worker_for, span_id=None).run_spec
    # Each process counts its runs from 1; the number of the scheduler is unique.
    object.__setattr__(run_spec, "run_id", message["run_id"])
    yield {
        "op": "shuffle-run",
        "run_spec": pickle.dumps(run_spec),
        "workers": list(dict.fromkeys(worker_for.values())),
    }


# The generators of answers, by the `op` of the request. They take it, and a function that receives what the
# scheduler sends meanwhile.
REQUESTS = {"convert-graph": convert_graph, "create-shuffle-run": create_shuffle_run}


def write(message):
    """Encodes a message that may contain values to be pickled."""
    return worker.dumps(message, context={"compression": False})


def erred(error):
    """Returns the last message of an answer that failed."""
    try:
        failure = error_message(error)
    except Exception as second:
        # The text of the exception cannot be made.
        failure = error_message(second)
    traceback = failure["traceback"]
    return {
        "op": "helper-erred",
        "exception": failure["exception"].data,
        "traceback": traceback and traceback.data,
        "text": failure["exception_text"],
    }


class ClosedError(Exception):
    """The scheduler has closed the socket."""


def serve(link):
    """Answers requests until the scheduler closes the socket."""

    def receive():
        try:
            frames, descriptors = link.receive()
        except (EOFError, ConnectionError) as error:
            raise ClosedError from error
        for descriptor in descriptors:
            os.close(descriptor)
        return worker.read(frames)

    def send(frames):
        try:
            link.send(frames)
        except BrokenPipeError as error:
            raise ClosedError from error

    send(worker.write({"op": "ready"}))
    while True:
        try:
            message = receive()
        except ClosedError:
            return
        # A graph is many new objects, nearly all of which stay until it is converted: looking for cycles
        # among them takes up to three quarters of the time.
        gc.disable()
        try:
            for part in REQUESTS[message["op"]](message, receive):
                send(write(part))
            last = {"op": "helper-finished"}
        except SystemExit as end:
            worker.end_process(end)
        except ClosedError:
            return
        except BaseException as error:
            last = erred(error)
        del message
        link.send(worker.write(last))
        gc.enable()
