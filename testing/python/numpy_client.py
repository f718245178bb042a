"""A comm of this release that exchanges values with a listener.

Usage: numpy_client.py ADDRESS

The listener first sends {"values": {NAME: payload}}, and receives
{"described": {NAME: text}}, the descriptions of the values as received. It then
receives {"values": {NAME: payload}} with the values of this script, echoes them, and
receives {"problems": [text]}, the differences. The script prints `ready` at the end.
"""

import asyncio
import sys
import warnings
from types import SimpleNamespace

warnings.simplefilter("ignore")

import numpy as np
import pandas as pd
from distributed.comm import connect
from distributed.protocol import to_serialize


def order(array):
    return "".join(
        letter for letter, flag in (("C", array.flags.c_contiguous), ("F", array.flags.f_contiguous)) if flag
    )


def describe(value):
    """Returns the complete description of a value."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        mutability = "writeable" if value.flags.writeable else "read-only"
        return f"{kind.__name__} {value.dtype.str} {value.shape} {order(value)} {mutability} {value.tolist()}"
    if kind is memoryview:
        return f"memoryview {value.format} {value.shape} {value.tolist()}"
    if kind in (list, tuple):
        return f"{kind.__name__}[{', '.join(map(describe, value))}]"
    return f"{kind.__name__} {value!r}"


def read_only(array):
    array.flags.writeable = False
    return array


def values():
    """Returns values as they are in a cluster's memory; the same in each run."""
    frame = pd.DataFrame({"i": np.arange(1000), "x": np.linspace(0, 1, 1000), "b": np.arange(1000) % 3 == 0})
    frame["when"] = pd.date_range("2026-01-01", periods=1000)
    frame["kind"] = pd.Categorical(["even", "odd"] * 500)
    return {
        "bytes": b"as they are",
        "bytearray": bytearray(b"changeable"),
        "memoryview": memoryview(bytearray(range(24))).cast("i", (2, 3)),
        "doubles": np.arange(12.0).reshape(3, 4),
        "fortran": np.asfortranarray(np.arange(12, dtype="<i4").reshape(3, 4)),
        "big endian": np.arange(5, dtype=">u2"),
        "read-only": read_only(np.arange(4.0)),
        "broadcast": np.broadcast_to(np.arange(3, dtype="i1"), (2, 3)),
        "complex": np.array([1 + 2j, 3 - 4j]),
        "times": np.array(["2020-01-01", "NaT"], dtype="M8[25s]"),
        "texts": np.array(["a", "βγ"]),
        "records": np.array([(1, 2.5)], dtype=[("n", "<u4"), ("x", "<f8")]),
        "masked": np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False]),
        "objects": np.array([1, "two", None], dtype=object),
        "none": np.zeros((0, 3)),
        "scalar array": np.array(2.5),
        "scalar": np.float64(2.5),
        "large": np.arange(300_000, dtype="<u4"),
        "in a tuple": ("arrays", np.arange(1000.0), read_only(np.arange(1000, dtype="<i2"))),
        "in an object": SimpleNamespace(first=np.arange(1000.0), second=read_only(np.arange(1000, dtype="<i2"))),
        "frame": frame,
        "series": pd.Series(np.arange(500.0), name="s"),
    }


def blocks(value):
    """Returns the arrays in a value, to compare whether they are writable."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, (tuple, list)):
        return [block for item in value for block in blocks(item)]
    if isinstance(value, SimpleNamespace):
        return [value.first, value.second]
    if isinstance(value, (pd.DataFrame, pd.Series)):
        return [block for block in value._mgr.arrays if isinstance(block, np.ndarray)]
    return []


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, (pd.DataFrame, pd.Series)):
        return one.equals(other)
    if isinstance(one, np.ndarray):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return one.tolist() == other.tolist() if one.dtype.kind not in "mM" else one.tobytes() == other.tobytes()
    if isinstance(one, SimpleNamespace):
        return same(one.first, other.first) and same(one.second, other.second)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def problems(sent, got):
    if sent.keys() != got.keys():
        yield f"{sorted(got)} arrived of {sorted(sent)}"
    for name, value in sent.items():
        other = got[name]
        if not same(value, other):
            yield f"{name}: {describe(value)} came back as {describe(other)}"
        flags = [[block.flags.writeable for block in blocks(each)] for each in (value, other)]
        if flags[0] != flags[1]:
            yield f"{name}: writeable {flags[0]} came back as {flags[1]}"


async def main():
    (address,) = sys.argv[1:]
    comm = await connect(address, timeout=30)
    theirs = await comm.read()
    await comm.write({"described": {name: describe(value) for name, value in theirs["values"].items()}})
    sent = values()
    await comm.write({"values": {name: to_serialize(value) for name, value in sent.items()}})
    got = (await comm.read())["values"]
    await comm.write({"problems": list(problems(sent, got))})
    await comm.close()
    print("ready done", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
