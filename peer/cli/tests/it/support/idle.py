"""Tests when an idle process returns the memory that it keeps for further tasks."""

import builtins
import importlib.util
import socket
import sys

from dask._task_spec import Task
from distributed.protocol import dumps, to_serialize

spec = importlib.util.spec_from_file_location("daskwire.worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

now = 100.0
worker.monotonic = lambda: now


def message(op, **fields):
    return dumps({"op": op, **fields}, context={"compression": False})


def task(function):
    return message(
        "run-task",
        key="k",
        run_spec=to_serialize(Task("k", function)),
        data={},
        nbytes={},
        is_actor=False,
        annotations={},
        command_count=0,
    )


def timeout():
    """The timeout of the socket in seconds, rounded to hundredths."""
    option = own.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, worker.TIMEVAL.size)
    seconds, micros = worker.TIMEVAL.unpack(option)
    return round(seconds + micros / 1e6, 2)


def rejoin():
    pools[-1].has_seceded = True
    pools[-1].submit(None)


# Where a task finds it without having it in its pickle.
builtins.rejoin_here = rejoin


def script():
    """The messages that the process receives, and what is expected before each of them."""
    global now
    yield task(lambda: bytes(1 << 20))
    assert timeout() == worker.MEMORY_KEPT and executor.segments.len
    for time, left in [(1.5, 0.5), (0.4, 0.1)]:
        now += time
        yield message("forget", keys=["k"])
        assert timeout() == left and executor.segments.len
    now += 0.1
    yield message("forget", keys=["k"])
    assert timeout() == 0 and not executor.segments.len
    # A task that waits to rejoin is not idle.
    yield task(lambda: bytes(1 << 20))
    assert timeout() == worker.MEMORY_KEPT
    yield task(lambda: rejoin_here())
    assert timeout() == 0 and executor.segments.len
    yield message("rejoined")
    assert timeout() == worker.MEMORY_KEPT
    executor.link.on_timeout()
    assert timeout() == 0 and not executor.segments.len
    passed.append(True)


def receive():
    frames = next(messages, None)
    if frames is None:
        raise EOFError
    return [memoryview(frame) for frame in frames], []


own, other = socket.socketpair()
start = {
    "id": "id",
    "name": "name",
    "address": "tcp://127.0.0.1:1",
    "scheduler": "tcp://127.0.0.1:2",
    "nthreads": 1,
    "local_directory": ".",
    "memory_limit": 1 << 30,
    "resources": {},
    "preload": [],
    "preload_argv": [],
    "cache_len": 1 << 27,
}
executor = worker.Executor(worker.Link(own), start)
pools = []
passed = []


class Pool(worker.Pool):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        pools.append(self)


worker.Pool = Pool
messages = script()
executor.link.receive = receive
executor.serve()
# Not so if an expectation was not met in a task.
assert passed
print("passed")
