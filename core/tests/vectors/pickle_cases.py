"""The values that generate_pickles.py pickles, in groups, and how they are pickled.

Python 3.8 to 3.13 can make them.
"""

import array
import collections
import copyreg
import datetime
import decimal
import enum
import fractions
import functools
import ipaddress
import operator
import pathlib
import pickle
import re
import types
import uuid


# These are large, and the protocols between write no other opcodes for them.
LARGE = {"framed": (4,), "lists": (1, 4), "dicts": (1, 4), "memo": (0, 1, 4)}


def groups(has_dask=True):
    made = {
        "builtins": builtins(),
        "library": library(),
        "buffers": buffers(),
        "numpy": numpy_values(),
        "pandas": pandas_values(),
    }
    if has_dask:
        made["dask"] = dask_values()
    return made


def pickles(name, value):
    """The pickles of a value as protocol, bytes and buffers: in each protocol, and
    out of band where that makes a difference."""
    for protocol in LARGE.get(name, range(6)):
        try:
            data = pickle.dumps(value, protocol)
        except (pickle.PicklingError, TypeError) as error:
            # Only those that the old protocols cannot hold.
            assert protocol < 5, (name, protocol, error)
            continue
        yield protocol, data, None
    buffers = []
    data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    if buffers:
        yield 5, data, buffers
        # The callback decides for each: here every other one stays in band.
        seen = []

        def in_band(buffer):
            seen.append(buffer)
            return len(seen) % 2

        data = pickle.dumps(value, 5, buffer_callback=in_band)
        yield 5, data, seen[1::2]


class ZeroCopyByteArray(bytearray):
    """The example of PEP 574."""

    def __reduce_ex__(self, protocol):
        if protocol >= 5:
            return type(self)._reconstruct, (pickle.PickleBuffer(self),), None
        return type(self)._reconstruct, (bytearray(self),)

    @classmethod
    def _reconstruct(cls, data):
        with memoryview(data) as view:
            owner = view.obj
            return owner if type(owner) is cls else cls(data)


class Ünïcode:
    pass


class Plain:
    def __init__(self):
        self.number, self.itself = 1, self


class Slots:
    __slots__ = ("left", "right")

    def __init__(self):
        self.left, self.right = 1, "right"


class Keywords:
    def __new__(cls, *, size):
        made = super().__new__(cls)
        made.size = size
        return made

    def __getnewargs_ex__(self):
        return (), {"size": self.size}


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


Point = collections.namedtuple("Point", ["x", "y"])


def builtins():
    itself = []
    itself.append(itself)
    pair, more = ([],), ([], 1, 2, 3)
    pair[0].append(pair)
    more[0].append(more)
    shared = ["shared"]
    text = "straße 😀 \\u0041 \\ \n \r \0 \ud800 \u2028"
    return {
        "none": None,
        "booleans": [True, False],
        "integers": [
            sign * (1 << bits) + more
            for bits in (0, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 2039, 2048)
            for sign in (1, -1)
            for more in (-1, 0, 1)
        ],
        "floats": [0.0, -0.0, 1.5, -1e300, 5e-324, float("inf"), float("-inf"), float("nan"), 0.1],
        "complex": 1 + 2j,
        "text": ["", "a", text, "x" * 255, "y" * 256, "é" * 200],
        "bytes": [b"", b"a", bytes(range(256)), b"x" * 255, b"y" * 256],
        "bytearrays": [bytearray(), bytearray(b"abc"), bytearray(range(256))],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((), ((),))],
        "lists": [[], [1], list(range(1003))],
        "dicts": [{}, {"a": 1}, {str(number): number for number in range(1003)}, {(1, 2): None}],
        "sets": [set(), {1, 2}, frozenset(), frozenset({3}), {frozenset({(1, "a")})}],
        "itself": [itself, pair, more],
        "shared": [shared, shared, (shared, shared)],
        "memo": [[str(number)] * 2 for number in range(300)],
        "deep": functools.reduce(lambda inner, _: [inner], range(100), 0),
        "framed": ["z" * 70000, b"tail", list(range(10))],
        "types": [int, type(None), type(...), type(NotImplemented), dict, Exception],
        "singletons": [..., NotImplemented],
        "functions": [len, print, operator.add, str.upper, "text".join, dict.fromkeys, [].append],
        "ranges": [range(3), slice(1, None, 2), range(10**30)],
        "iterators": [iter([1, 2]), iter(b"ab"), enumerate("x"), zip("a", "b"), reversed([1])],
    }


def library():
    zone = datetime.timezone(datetime.timedelta(hours=2), "two")
    namespace = types.SimpleNamespace(a=1)
    copyreg.add_extension("collections", "OrderedDict", 5)
    copyreg.add_extension("collections", "deque", 0x1234)
    copyreg.add_extension("fractions", "Fraction", 0x123456)
    return {
        "dates": [
            datetime.date(2026, 8, 1),
            datetime.time(1, 2, 3, 4, zone),
            datetime.datetime(2026, 8, 1, 12, tzinfo=zone, fold=1),
            datetime.timedelta(1, 2, 3),
            datetime.timezone.utc,
        ],
        "numbers": [decimal.Decimal("1.50"), decimal.Decimal("nan")],
        # Each with a code of another size.
        "extension": [collections.OrderedDict(a=1), collections.deque([1], 3), fractions.Fraction(1, 3)],
        "collections": [
            collections.Counter("abca"),
            collections.defaultdict(list, a=[1]),
            collections.ChainMap({"a": 1}),
            Point(1, 2),
            array.array("d", [1.0, 2.0]),
            array.array("i", [1, -1]),
        ],
        "paths": [pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("c:/x")],
        "others": [
            uuid.UUID(int=5),
            re.compile("a+", re.I),
            ipaddress.ip_address("127.0.0.1"),
            ipaddress.ip_network("10.0.0.0/8"),
            namespace,
            functools.partial(int, base=2),
            operator.itemgetter(1, 2),
            operator.methodcaller("split", sep=","),
        ],
        "classes": [Ünïcode(), Plain(), Colour.RED, Permission.READ | Permission.WRITE, Keywords(size=3)],
        "slots": Slots(),
        "exceptions": [ValueError("boom", 1), KeyError("k"), OSError(2, "no such file", "f"), exception()],
    }


def exception():
    error = RuntimeError("outer")
    error.__cause__ = ValueError("inner")
    error.note = "an attribute"
    return error


def buffers():
    read_only = pickle.PickleBuffer(b"read-only")
    writable = pickle.PickleBuffer(bytearray(b"writable"))
    return {
        "buffer-writable": writable,
        "buffer-read-only": read_only,
        "buffer-empty": pickle.PickleBuffer(bytearray()),
        "buffers-mixed": [read_only, b"in-band", writable, bytearray(b"in-band"), read_only],
        "pep-574": [ZeroCopyByteArray(b"abc"), ZeroCopyByteArray(b"defg" * 10)],
    }


def numpy_values():
    import numpy

    read_only = numpy.arange(6)
    read_only.flags.writeable = False
    return {
        "array-1d": numpy.arange(10),
        "array-2d": numpy.arange(12.0).reshape(3, 4),
        "array-fortran": numpy.asfortranarray(numpy.arange(6, dtype="i2").reshape(2, 3)),
        "array-strided": numpy.arange(20)[::3],
        "array-read-only": read_only,
        "array-empty": numpy.zeros((0, 3)),
        "array-0d": numpy.array(5.5),
        "array-big-endian": numpy.arange(4, dtype=">u4"),
        "array-objects": numpy.array([1, "a", None], dtype=object),
        "array-texts": numpy.array(["a", "bcd"]),
        "array-dates": numpy.array(["2026-08-01"], dtype="M8[s]"),
        "array-record": numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        "arrays-shared": [numpy.arange(3)] * 2,
        "scalars": [numpy.float64(1.5), numpy.int8(-1), numpy.bool_(True), numpy.datetime64("2026-08-01")],
        "dtypes": [numpy.dtype("f4"), numpy.dtype([("a", "i4")])],
        "random-state": numpy.random.RandomState(1).get_state()[0:1],
    }


def pandas_values():
    import pandas

    frame = pandas.DataFrame(
        {
            "number": [1, 2, 3],
            "float": [1.5, None, 2.5],
            "text": ["a", "b", None],
            "date": pandas.to_datetime(["2026-08-01"] * 3),
            "kind": pandas.Categorical(["x", "y", "x"]),
        }
    )
    return {
        "frame": frame,
        "series": frame["number"],
        "index": pandas.MultiIndex.from_tuples([(1, "a"), (2, "b")]),
        "timestamp": [pandas.Timestamp("2026-08-01", tz="UTC"), pandas.Timedelta(1), pandas.NaT, pandas.NA],
    }


def dask_values():
    from dask._task_spec import Alias, DataNode, Dict, List, Task, TaskRef
    from distributed.protocol import pickle as dask_pickle

    task = Task("add-1", operator.add, TaskRef("a"), 2)
    return {
        "task": task,
        "task-keywords": Task(("x", 0), sorted, List(TaskRef("b"), 1), reverse=True),
        "task-nested": Task("n", dict, Dict({"a": TaskRef("a"), "b": [1, 2]})),
        "nodes": [Alias("b", "a"), DataNode("d", {"value": 1}), TaskRef(("x", 1))],
        "graph": {f"t-{number}": Task(f"t-{number}", operator.add, TaskRef(f"t-{number - 1}"), 1) for number in range(5)},
        "lambda": dask_pickle.dumps(lambda x: x + 1),
    }
