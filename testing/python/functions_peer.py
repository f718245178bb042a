"""Evaluates expressions in Python, and determines key prefixes with Dask.

Usage: functions_peer.py

Answers `{"op": "evaluate", "expressions": [text]}` with `{"results": [text]}`:
the `repr` of each value, or an exclamation mark and the class of the exception. A set is
shown as the sorted list of the `repr` of its items. Answers `{"op": "prefixes"}` and
keys in MessagePack with `{"prefixes": [text]}`: Dask's prefix of each, or null if the
key has characters that are unknown to this version of Python.
"""

import math
import operator
import sys

from exchange import serve

names = {"math": math, "operator": operator, "nan": math.nan, "inf": math.inf}


def evaluate(expression):
    try:
        value = eval(expression, names)
        # The order of sets is arbitrary.
        return str(sorted(map(repr, value))) if isinstance(value, set) else repr(value)
    except Exception as error:
        return f"!{type(error).__name__}"


def prefixes(question, data):
    import unicodedata

    import msgpack
    from dask.utils import key_split

    def prefix(key):
        is_known = all(unicodedata.category(c) != "Cn" for c in str(key))
        return key_split(key) if is_known else None

    keys = msgpack.Unpacker(use_list=False)
    keys.feed(data)
    return {"prefixes": list(map(prefix, keys))}


serve(
    f"{sys.version_info[0]}.{sys.version_info[1]}",
    {
        "evaluate": lambda question, data: {"results": list(map(evaluate, question["expressions"]))},
        "prefixes": prefixes,
    },
)
