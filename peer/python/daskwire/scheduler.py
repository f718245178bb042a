"""Answers the requests of a scheduler in Rust that only Python can answer.

The scheduler (`daskwire scheduler --python`) forks a process of this module, a helper, from
the template of `worker.py`, which also has its links and its messages. A helper answers one
request at a time. It never connects to anything: it knows what the request contains.

A request is a message, and its answer is a number of messages. The last of them is
`helper-finished` or `helper-erred`; `REQUESTS` has a generator for each request, which
yields the messages before that.
"""

from __future__ import annotations

import os
import sys
import textwrap
from operator import methodcaller

import dask
from dask._task_spec import Alias, DataNode, Task
from dask.order import order

from distributed.core import error_message
from distributed.protocol import pickle, to_serialize
from distributed.protocol.serialize import ToPickle
from distributed.scheduler import _materialize_graph

# The module of the template, which is in no package.
worker = sys.modules["daskwire.worker"]

# Number of tasks, and length in bytes of their pickles, after which a batch is sent.
BATCH_COUNT = 1000
BATCH_LEN = 1 << 20

# What a task calls, as in `Calls` of the scheduler.
NATIVE, PYTHON = 1, 2

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


def sort(dsk):
    """Returns the keys of a graph, each after those that it depends on, and Dask's order."""
    places = order(dsk)
    return sorted(dsk, key=places.__getitem__), places


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

    def index(self, key):
        """Returns the index of a task's annotations, which precede those of all tasks."""
        found = {}
        for name, value in self.of_all.items():
            found[name] = value(key) if callable(value) else value
        for name, values in self.by_name.items():
            if (value := values.get(key)) is not None:
                found[name] = value
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


def calls(task):
    """Returns what a task calls."""
    if isinstance(task, (Alias, DataNode)):
        return 0
    function = getattr(task, "func", None)
    if isinstance(function, methodcaller):
        _, (name, *_) = function.__reduce__()
        if str(name).startswith("native:"):
            return NATIVE
    return PYTHON


def convert_graph(message):
    """Converts the expression of an `update-graph` message to tasks, as Dask's scheduler does."""
    try:
        expression = message["expr_ser"].load()
    except Exception as error:
        raise RuntimeError(DESERIALIZATION) from error
    of_all = message["annotations"]
    if isinstance(of_all, worker.Payload):
        of_all = of_all.load()
    # Not kept while its tasks are made.
    message["expr_ser"] = None
    dsk, by_name = _materialize_graph(expression, validate=False)
    if type(expression).__name__ == "LLGExpr":
        dsk = cull(dsk, message["keys"])
    del expression
    annotations = Annotations(by_name, of_all)
    keys, places = sort(dsk)
    given = message["internal_priority"]
    if given:
        places = given
    index = {key: place for place, key in enumerate(keys)}
    batch, length = Batch(), 0
    for place, key in enumerate(keys):
        task = dsk.pop(key)
        inside, outside = [], []
        for dependency in task.dependencies:
            number = index.get(dependency)
            if number is None:
                outside.append(dependency)
            elif number != place:
                inside.append(number)
        run_spec = pickle.dumps(task)
        batch.keys.append(key)
        batch.run_specs.append(run_spec)
        batch.dependencies.append(inside)
        batch.outside.append(outside)
        batch.orders.append(places.get(key, place))
        batch.annotated.append(annotations.index(key))
        batch.calls.append(calls(task))
        length += len(run_spec)
        if len(batch.keys) == BATCH_COUNT or length >= BATCH_LEN:
            yield batch.message(annotations)
            batch, length = Batch(), 0
    if batch.keys:
        yield batch.message(annotations)


class Batch:
    """Tasks that are sent at once: a list for each of their properties."""

    def __init__(self):
        self.keys = []
        self.run_specs = []
        self.dependencies = []
        self.outside = []
        self.orders = []
        self.annotated = []
        self.calls = []

    def message(self, annotations):
        new, annotations.new = annotations.new, []
        return {"op": "graph-tasks", "annotations": new, **vars(self)}


# The generators of answers, by the `op` of the request.
REQUESTS = {"convert-graph": convert_graph}


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


def serve(link):
    """Answers requests until the scheduler closes the socket."""
    link.send(worker.write({"op": "ready"}))
    while True:
        try:
            frames, descriptors = link.receive()
        except (EOFError, ConnectionError):
            return
        for descriptor in descriptors:
            os.close(descriptor)
        message = worker.read(frames)
        del frames
        try:
            for part in REQUESTS[message["op"]](message):
                link.send(write(part))
            last = {"op": "helper-finished"}
        except SystemExit as end:
            worker.end_process(end)
        except BrokenPipeError:
            return
        except BaseException as error:
            last = erred(error)
        del message
        link.send(worker.write(last))
