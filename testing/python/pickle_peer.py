"""Loads and writes pickles with CPython.

Uses the records of exchange.py; the word after `ready` is its version.

    {"op": "written", "pickles": [...]} and pickles with their buffers
        Loads each pickle, and pickles the result again. A description has the
        `len` of the pickle, its `protocol`, its `buffers` as pairs of length and
        whether the buffer is writable, and `exact`: whether the new pickle must be
        equal. In the data each pickle precedes its buffers. The reply's `values` are
        the results of `text` below; `wrong` lists the pickles that CPython
        writes differently, with CPython's bytes in hexadecimal.
    {"op": "modules", "globals": [[MODULE, NAME], ...]}
        `same`: for each global, the first one whose `__module__` is the identical
        object, not only equal. This differs between versions of Python.
    {"op": "dumps", "name": NAME}
        The optimized pickle of one of the values below; `buffers` are its out-of-band
        buffers in hexadecimal.
    {"op": "zero-copy dumps", "in_band": [BOOL, ...]}
        The optimized pickle, of protocol 5, of the values of `zero_copy` below. The
        `buffer_callback` returns the values of `in_band`; null means no callback. The
        `buffers` passed to it are described as pairs of hexadecimal and whether they are
        read-only.
    {"op": "zero-copy loads", "buffers": LENS, "as": KIND} and a pickle with buffers
        `values`: the results, each described by type, hexadecimal, whether it is
        read-only, and which of the buffers it shares without a copy. Each buffer is
        passed as a `KIND`. `error`, if loading fails.
    {"op": "evaluate", "buffers": [...]} and a pickle with its buffers
        `value`: the `repr` of the result, or of its return value if it is callable.
"""

import collections
import operator
import pickle
import pickletools
import platform
import struct
import sys

import exchange  # noqa: I001  (finds the modules after it)

from pickles_written import ZeroCopyByteArray


def text(value):
    """Returns a unique description of `value`, in the format of the tests in Rust."""
    kind = type(value)
    if value is None or kind is bool:
        return str(value)
    if kind is int:
        len_ = (value if value >= 0 else ~value).bit_length() // 8 + 1
        return f"int {value.to_bytes(len_, 'little', signed=True).hex()}"
    if kind is float:
        return f"float {struct.pack('>d', value).hex()}"
    if kind is str:
        return f"str {value.encode('utf-8', 'surrogatepass').hex()}"
    if kind in (bytes, bytearray):
        return f"{kind.__name__} {value.hex()}"
    if kind is pickle.PickleBuffer:
        view = memoryview(value)
        return f"{'read-only' if view.readonly else 'writable'} {view.hex()}"
    if kind in (tuple, list, collections.deque):
        return f"{kind.__name__}({','.join(map(text, value))})"
    if kind in (set, frozenset):
        return f"{kind.__name__}({','.join(sorted(map(text, value)))})"
    if kind in (dict, collections.OrderedDict):
        return f"{kind.__name__}({','.join(text(key) + ':' + text(item) for key, item in value.items())})"
    return f"global {value.__module__} {value.__qualname__}"


def take(data, at, lens):
    """Splits `data` from `at` into parts of these lengths; returns them and their end."""
    parts = []
    for len_ in lens:
        parts.append(data[at : at + len_])
        assert len(parts[-1]) == len_, "the data is too short"
        at += len_
    return parts, at


def written(question, data):
    values, wrong, at = [], [], 0
    for index, case in enumerate(question["pickles"]):
        (document, *parts), at = take(data, at, [case["len"], *(len_ for len_, _ in case["buffers"])])
        buffers = [
            pickle.PickleBuffer(bytearray(part) if writable else part)
            for part, (_, writable) in zip(parts, case["buffers"])
        ]
        value = pickle.loads(document, buffers=buffers)
        values.append(text(value))
        if buffers:
            # Writable memory becomes read-only where the pickle requires it.
            check_mutability(document, parts, case["buffers"])
        if not case["exact"]:
            continue
        again = []
        options = {"buffer_callback": again.append} if case["protocol"] == 5 else {}
        expected = pickletools.optimize(pickle.dumps(value, case["protocol"], **options))
        if expected != document or [id(buffer) for buffer in again] != [id(buffer) for buffer in buffers]:
            wrong.append([index, expected.hex()])
    assert at == len(data), "there is more data than described"
    return {"values": values, "wrong": wrong}


def check_mutability(document, parts, described):
    beside = [bytearray(part) for part in parts]
    found = {}

    def walk(value):
        if isinstance(value, memoryview):
            assert value.readonly
            found[id(value.obj)] = False
        elif isinstance(value, bytearray) and any(value is part for part in beside):
            found[id(value)] = True
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(key)
                walk(item)
        elif isinstance(value, (tuple, list, collections.deque)):
            for item in value:
                walk(item)

    value = pickle.loads(document, buffers=beside)
    walk(value)
    assert [found[id(part)] for part in beside] == [writable for _, writable in described]


def modules(question, data):
    names = [getattr(sys.modules[module], name).__module__ for module, name in question["globals"]]
    return {"same": [[other is name for other in names].index(True) for name in names]}


def values():
    """Returns values that Dask sends pickled."""
    # Imported here, because some Pythons that load these pickles lack the packages.
    import numpy
    from dask._task_spec import DataNode, Task, TaskRef

    return {
        "task": Task("add-1", operator.add, 1, 2),
        "task with a dependency": Task("neg-1", operator.neg, TaskRef("add-1")),
        "data": DataNode("x", [1, 2.5]),
        "array": numpy.arange(6.0).reshape(2, 3),
        "array of Fortran": numpy.asfortranarray(numpy.arange(6, dtype="<i4").reshape(2, 3)),
        "exception": KeyError("missing"),
    }


def dumps(question, data):
    buffers = []
    document = pickle.dumps(values()[question["name"]], 5, buffer_callback=buffers.append)
    return {"buffers": [buffer.raw().hex() for buffer in buffers]}, pickletools.optimize(document)


def zero_copy():
    """Returns objects of the example class in PEP 574, writable and of any size, and plain buffers."""
    return [
        ZeroCopyByteArray(b"abc"),
        pickle.PickleBuffer(b"read-only"),
        ZeroCopyByteArray(b"defg" * 10),
        pickle.PickleBuffer(bytearray(b"writable")),
    ]


def zero_copy_dumps(question, data):
    in_band, buffers = question["in_band"], []
    decisions = iter(in_band or ())

    def callback(buffer):
        buffers.append(buffer)
        return next(decisions)

    document = pickle.dumps(zero_copy(), 5, buffer_callback=None if in_band is None else callback)
    described = [(buffer.raw().hex(), buffer.raw().readonly) for buffer in buffers]
    return {"buffers": described}, pickletools.optimize(document)


def zero_copy_loads(question, data):
    (document, *parts), _ = take(data, 0, [question["len"], *question["buffers"]])
    kind = {"bytes": bytes, "bytearray": bytearray, "ZeroCopyByteArray": ZeroCopyByteArray}[question["as"]]
    buffers = list(map(kind, parts))
    try:
        values = pickle.loads(document, buffers=buffers)
    except pickle.UnpicklingError as error:
        return {"error": str(error)}
    described = []
    for value in values:
        with memoryview(value) as view:
            same = [index for index, buffer in enumerate(buffers) if view.obj is buffer]
            described.append([type(value).__name__, view.hex(), view.readonly, same[0] if same else None])
    return {"values": described}


def evaluate(question, data):
    (document, *buffers), _ = take(data, 0, [question["len"], *question["buffers"]])
    value = pickle.loads(document, buffers=[bytearray(buffer) for buffer in buffers])
    kind = type(value).__name__
    if kind == "Task":
        value = value({"add-1": 3})
    elif kind == "ndarray":
        value = [value.tolist(), value.flags.writeable, value.flags.f_contiguous]
    return {"value": repr(value)}


if __name__ == "__main__":
    exchange.serve(
        platform.python_version(),
        {
            "written": written,
            "modules": modules,
            "dumps": dumps,
            "zero-copy dumps": zero_copy_dumps,
            "zero-copy loads": zero_copy_loads,
            "evaluate": evaluate,
        },
    )
