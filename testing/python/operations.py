"""Calls the operations of two schedulers, Dask's and another, and compares the results.

Its arguments are the addresses of the two schedulers, each with the two workers `worker-0` and
`worker-1`. Prints `ready done` if all results agree, and ends with an exception otherwise.
"""

import asyncio
import operator
import sys
import time
import warnings

from dask.typing import no_default
from distributed import Client

warnings.simplefilter("ignore")

# Operations with their arguments, in this order. W0 and W1 are the addresses of the workers, C is
# the name of the client.
CALLS = [
    ("echo", {"data": [1, [2], {"a": None}]}),
    ("who_has", {"keys": ["x", "nope"]}),
    ("who_has", {"keys": None}),
    ("has_what", {"workers": ["worker-0", "tcp://127.0.0.1:1"]}),
    ("has_what", {"workers": None}),
    ("ncores", {"workers": ["tcp://127.0.0.1:1", "W0"]}),
    ("ncores", {}),
    ("ncores_running", {"workers": ["W1"]}),
    ("processing", {"workers": ["worker-0"]}),
    ("processing", {}),
    ("processing", {"workers": ["tcp://127.0.0.1:1"]}),
    ("nbytes", {"keys": ["x"], "summary": False}),
    ("nbytes", {"keys": ["nope"]}),
    ("nbytes", {}),
    ("get_task_status", {"keys": ["x", "bad", "nope"]}),
    ("get_task_prefix_states", {}),
    ("get_error_cause", {"keys": ["nope"]}),
    ("get_error_cause", {"keys": ["worse"]}),
    ("get_runspec", {"key": "nope"}),
    ("get_runspec", {"key": "x"}),
    ("get_metadata", {"keys": ["a"]}),
    ("get_metadata", {"keys": ["a"], "default": no_default}),
    ("get_metadata", {"keys": ["a"], "default": None}),
    ("get_metadata", {"keys": ["a"], "default": 5}),
    ("set_metadata", {"keys": ["a", "b"], "value": 1}),
    ("get_metadata", {"keys": ["a"]}),
    ("get_metadata", {"keys": ["a", "b", "c"]}),
    ("get_metadata", {"keys": ["a", "b", "c"], "default": 7}),
    ("set_metadata", {"keys": ["a", "b", "c"], "value": {"d": [1, 2.5]}}),
    ("get_metadata", {"keys": ["a", "b", "c", "d"]}),
    ("get_metadata", {"keys": ["a", "b", "c", "d", "e"]}),
    ("get_metadata", {"keys": []}),
    ("set_metadata", {"keys": []}),
    ("set_metadata", {"keys": ["a"], "value": None}),
    ("get_metadata", {"keys": []}),
    ("log_event", {"topic": "t", "msg": {"x": 1}}),
    ("log_event", {"topic": ["t", "u"], "msg": b"bytes"}),
    ("log_event", {"topic": 5, "msg": 1}),
    ("events", {"topic": "t"}),
    ("events", {"topic": "nope"}),
    ("events", {"topic": "C"}),
    ("call_stack", {"keys": ["nope"]}),
    ("call_stack", {"keys": ["x"]}),
    ("call_stack", {"keys": None}),
    ("proxy", {"msg": {"op": "keys"}, "worker": "W0"}),
    ("profile", {"workers": []}),
    ("profile", {"workers": [], "merge_workers": False}),
    ("stop_task_metadata", {"name": "nope"}),
    ("start_task_metadata", {"name": "m"}),
    ("stop_task_metadata", {"name": "m"}),
    ("unregister_scheduler_plugin", {"name": "nope"}),
    ("unregister_worker_plugin", {"name": "nope"}),
    ("unregister_nanny_plugin", {"name": "nope"}),
    ("retry", {"keys": ["nope"]}),
    ("retry", {"keys": []}),
    ("broadcast", {"msg": {"op": "keys"}, "workers": ["W0"]}),
    ("broadcast", {"msg": {"op": "nope"}}),
    ("get_story", {"keys_or_stimuli": ["nope"]}),
    ("workers_to_close", {"n": 0}),
    ("adaptive_target", {"target_duration": "1s"}),
    ("unregister", {"address": "tcp://127.0.0.1:1", "stimulus_id": "s"}),
    ("heartbeat_worker", {"address": "tcp://127.0.0.1:1", "metrics": {}, "now": 1.0}),
    ("retire_workers", {"workers": [], "names": []}),
    ("retire_workers", {"workers": ["tcp://127.0.0.1:1"]}),
    ("retire_workers", {"workers": [], "n": 1}),
    ("retire_workers", {"names": ["nope"]}),
    ("add_keys", {"worker": "tcp://127.0.0.1:1", "keys": ["x"]}),
    ("add_keys", {"worker": "W0"}),
    ("set_resources", {"worker": "W0", "resources": {"GPU": 2}}),
    ("set_resources", {"worker": "tcp://127.0.0.1:1", "resources": {}}),
    ("set_restrictions", {"worker": {"nope": None}}),
    ("set_restrictions", {"worker": {"x": "W0", "bad": ["W0", "W1"]}}),
    ("set_restrictions", {"worker": {"x": None}}),
    ("rebalance", {}),
    ("rebalance", {"keys": ["nope"]}),
    ("rebalance", {"keys": ["x"]}),
    ("rebalance", {"keys": [], "workers": ["W0"]}),
    ("rebalance", {"workers": ["tcp://127.0.0.1:1"]}),
    ("replicate", {"keys": ["nope"]}),
    ("replicate", {"keys": ["bad"]}),
    ("replicate", {"keys": ["x"], "n": 0}),
    ("replicate", {"keys": ["x"]}),
    ("who_has", {"keys": ["x"]}),
    ("replicate", {"keys": ["x"], "n": 1}),
    ("replicate", {"keys": ["x"], "n": 1, "workers": ["W0", "W1"], "delete": False}),
    ("identity", {"n_workers": 1}),
    ("subscribe_worker_status", {}),
]

# Differences that are intended: the operation, and why.
DIFFERENT = {
    # The ports of other services differ.
    "identity": ["services", "id", "started", "total_memory", "workers"],
    "subscribe_worker_status": ["services", "id", "started", "total_memory", "workers"],
}


def plain(value, names):
    """The value with names in place of addresses, and without numbers that differ."""
    if isinstance(value, dict):
        shown = value.keys() - {"metrics", "stimulus_id"}
        return {str(plain(k, names)): plain(value[k], names) for k in shown}
    if isinstance(value, (list, tuple)):
        return [plain(v, names) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, float) and value > 1e9:
        return "time"
    if isinstance(value, str):
        return names.get(value, value)
    return value


async def call(client, op, arguments, names):
    places = {name: address for address, name in names.items()}

    def fill(value):
        if isinstance(value, dict):
            return {k: fill(v) for k, v in value.items()}
        if isinstance(value, list):
            return [fill(v) for v in value]
        return places.get(value, value) if isinstance(value, str) else value

    try:
        request = getattr(client.scheduler, op)(**fill(arguments))
        result = await asyncio.wait_for(request, 20)
    except Exception as error:
        return f"{type(error).__name__}{plain(error.args, names)}"
    return plain(result, names)


def sort(value):
    """Lists of workers and keys in any order are equal."""
    if isinstance(value, list):
        return sorted(map(sort, value), key=repr)
    if isinstance(value, dict):
        return {k: sort(v) for k, v in value.items()}
    return value


def differ(op, one, other):
    if op in DIFFERENT and isinstance(one, dict) and isinstance(other, dict):
        left_out = DIFFERENT[op]
        keys = one.keys() == other.keys()
        one = {k: v for k, v in one.items() if k not in left_out}
        other = {k: v for k, v in other.items() if k not in left_out}
        return not keys or one != other
    return sort(one) != sort(other)


async def prepare(client):
    names = {client.scheduler.address: "scheduler", client.id: "C"}
    workers = (await client.scheduler.identity())["workers"]
    for address, worker in workers.items():
        names[address] = {"worker-0": "W0", "worker-1": "W1"}[worker["name"]]
    first = next(address for address, name in names.items() if name == "W0")
    x = client.submit(operator.add, 1, 2, key="x", workers=[first])
    bad = client.submit(operator.truediv, 1, 0, key="bad", workers=[first])
    worse = client.submit(operator.neg, bad, key="worse")
    await x
    await worse.exception()
    return names, (x, bad, worse)


async def main(addresses):
    clients = [await Client(address, asynchronous=True) for address in addresses]
    prepared = [await prepare(client) for client in clients]
    differences = []
    for op, arguments in CALLS:
        one, other = [
            await call(client, op, arguments, names)
            for client, (names, _) in zip(clients, prepared)
        ]
        if differ(op, one, other):
            differences.append(f"{op}({arguments}):\n  Dask's: {one}\n  other:  {other}")
    for client in clients:
        await client.close()
    assert not differences, "\n" + "\n".join(differences)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
    print("ready done", flush=True)
    sys.stdin.read()
