"""A Python client in the same cluster as a Rust client.

Usage: client_beside.py ADDRESS PEM. PEM is a file with authority, certificate and
key for a cluster over TLS. Uses the records of exchange.py:

    {"op": "read", "key": KEY}
        `value`: repr() of the result under that key, and its type.
    {"op": "make", "key": KEY, "value": EXPRESSION}
        Scatters the value of the expression, and holds it.
    {"op": "submit", "key": KEY, "function": NAME, "arguments": EXPRESSION}
        Submits a call, waits for its result, and holds it.
        `value`: the sum of results that other clients hold, computed on the cluster.
        `value`: the sum of results that others hold, computed on the cluster.
    {"op": "restart"}
        Restarts the cluster. Workers without a nanny end.
"""

import importlib
import sys
import warnings

warnings.simplefilter("ignore")

import exchange
import numpy
import pandas
from distributed import Client, Future, wait
from distributed.security import Security

NAMES = {"numpy": numpy, "pandas": pandas}


def main():
    address, pem = sys.argv[1:]
    security = None
    if address.startswith("tls://"):
        security = Security(tls_ca_file=pem, tls_client_cert=pem, tls_client_key=pem)
    client = Client(address, security=security, timeout=60, set_as_default=True)
    held = {}

    def future(key):
        # The same steps as for a future that another client has sent.
        made = Future(key, client)
        client._send_to_scheduler({"op": "client-desires-keys", "keys": [key], "client": client.id})
        return made

    def read(question, data):
        value = future(question["key"]).result(timeout=60)
        return {"value": repr(value), "type": type(value).__name__}

    def make(question, data):
        value = eval(question["value"], NAMES)
        held.update(client.scatter({question["key"]: value}))
        return {}

    def submit(question, data):
        module, _, name = question["function"].rpartition(".")
        function = getattr(importlib.import_module(module), name)
        arguments = eval(question["arguments"], NAMES)
        held[question["key"]] = client.submit(function, *arguments, key=question["key"])
        # Other clients can request the key only once the scheduler has its task.
        wait(held[question["key"]])
        return {}

    def total(question, data):
        return {"value": repr(client.submit(sum, [future(key) for key in question["keys"]]).result(timeout=60))}

    def restart(question, data):
        client.restart(wait_for_workers=False)
        return {}

    operations = {"read": read, "make": make, "submit": submit, "sum": total, "restart": restart}
    exchange.serve("client", operations)


if __name__ == "__main__":
    main()
