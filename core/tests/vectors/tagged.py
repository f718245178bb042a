"""Messages as JSON that loses nothing: the notation of the `.json` files here.

JSON has no bytes, no NaN, no map keys but text, and in many languages no
integer beyond 2**53. What it lacks is written as a map with one key that
starts with `$`; README.md lists them.
"""

import base64
import enum
import hashlib
import json
import math

import msgpack

# Longer byte strings are given by length and hash, to keep the files small.
INLINE_LEN = 4096


class Placeholder:
    """Stands in a message where payload number `index` was."""

    def __init__(self, index):
        self.index = index


def fingerprint(data):
    """Length and SHA-256 of `data`, as frames are described."""
    data = bytes(data)
    return {"len": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def tag(value):
    """`value`, made of what a message can hold, as a JSON document."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Placeholder):
        return {"$payload": value.index}
    if isinstance(value, enum.Enum):
        kind = type(value)
        return {"$enum": {"module": kind.__module__, "class": kind.__name__, "name": value.name}}
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value) if -(2**53) <= value <= 2**53 else {"$int": str(int(value))}
    if isinstance(value, float):
        return _tag_float(float(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return {"$blob": fingerprint(data)} if len(data) > INLINE_LEN else {"$bytes": _base64(data)}
    if isinstance(value, msgpack.Timestamp):
        return {"$ext": [-1, _base64(value.to_bytes())]}
    if isinstance(value, msgpack.ExtType):
        return {"$ext": [value.code, _base64(value.data)]}
    if isinstance(value, (set, frozenset)):
        return {"$set": sorted(map(tag, value), key=lambda member: json.dumps(member, sort_keys=True))}
    if isinstance(value, (list, tuple)):
        return [tag(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: tag(item) for key, item in value.items()}
        return {"$map": [[tag(key), tag(item)] for key, item in value.items()]}
    raise TypeError(f"a message cannot hold {type(value).__name__}")


def _tag_float(value):
    if math.isnan(value):
        return {"$float": "nan"}
    if math.isinf(value):
        return {"$float": "inf" if value > 0 else "-inf"}
    if value == 0 and math.copysign(1, value) < 0:
        return {"$float": "-0.0"}
    return value


def _base64(data):
    return base64.b64encode(data).decode("ascii")
