"""A client that connects, and reports the outcome.

Usage: connect.py ADDRESS

Prints `ready` and a JSON document: `error` is the exception if the client was refused,
`warnings` are warnings about versions, and `sums` is the value of 1 + 2 by the name of
the worker that computed it.
"""

import json
import operator
import sys
import warnings

from distributed import Client
from distributed.versions import VersionMismatchWarning


def connect(address):
    with Client(address, timeout=30, set_as_default=False) as client:
        names = [worker["name"] for worker in client.scheduler_info()["workers"].values()]
        futures = {name: client.submit(operator.add, 1, 2, workers=[name], pure=False) for name in names}
        return {name: future.result(timeout=120) for name, future in futures.items()}


def main():
    error = sums = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            sums = connect(sys.argv[1])
        except Exception as refusal:
            error = f"{type(refusal).__name__}: {refusal}"
    said = [str(w.message) for w in caught if issubclass(w.category, VersionMismatchWarning)]
    print("ready", json.dumps({"error": error, "warnings": said, "sums": sums}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
