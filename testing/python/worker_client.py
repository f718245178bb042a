"""A client of a scheduler that executes Python code.

Usage: worker_client.py ADDRESS

Answers the request `{"op": "do", "code": text}` with `{"value": text}`: the
`repr` of the last expression of the code. Requests share their globals, which
initially are `client` and the names in `names`. An exception is the error of the
reply.
"""

import ast
import logging
import operator
import sys
import time
import warnings

import numpy as np
from distributed import Client, wait
from distributed.versions import VersionMismatchWarning
from exchange import serve

try:
    import pandas as pd
except ImportError:
    # Old releases are tested without pandas.
    pd = None

# Tests stop and kill workers, which clients log as warnings.
logging.getLogger("distributed.client").setLevel(logging.CRITICAL)


def native(name):
    """Returns a call of a function in Rust."""
    return operator.methodcaller(f"native:{name}")


def worker_names(who_has):
    """Returns the names of all workers that hold any of the keys.

    A worker that has left since has its address as the name.
    """
    names = {address: info["name"] for address, info in client.scheduler_info()["workers"].items()}
    return sorted({names.get(address, address) for holders in who_has.values() for address in holders})


# All other warnings, such as those about versions, are errors.
warnings.simplefilter("error", UserWarning)
warnings.simplefilter("error", VersionMismatchWarning)
client = Client(sys.argv[1], set_as_default=True)
names = {
    "client": client,
    "native": native,
    "np": np,
    "operator": operator,
    "pd": pd,
    "time": time,
    "wait": wait,
    "worker_names": worker_names,
}


def do(question, data):
    code = ast.parse(question["code"])
    last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
    exec(compile(code, "<test>", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "<test>", "eval"), names) if last else None
    return {"value": repr(value)}


serve("client", {"do": do})
