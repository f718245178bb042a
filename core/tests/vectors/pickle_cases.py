"""The values that generate_pickles.py pickles, in groups, and how they are pickled.

Python 3.8 to 3.13 can make them.
"""

import array
import collections
import collections.abc
import copyreg
import dataclasses
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
import sys
import time
import types
import typing
import uuid


# These are large, and the protocols between write no other opcodes for them.
LARGE = {"framed": (4,), "lists": (1, 4), "dicts": (1, 4), "memo": (0, 1, 4)}


def groups(has_dask=True):
    """Names and cases, one after the other: Dask changes how exceptions pickle."""
    yield "builtins", builtins()
    yield "library", library()
    yield "buffers", buffers()
    yield "numpy", numpy_values()
    yield "pandas", pandas_values()
    if has_dask:
        yield "dask", dask_values()


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


class Small:
    """With a code of 1 byte in the registry of extensions."""


class Medium:
    """Of 2 bytes."""


class Huge:
    """Of 4 bytes."""


@dataclasses.dataclass
class Measured:
    name: str
    value: float = 0.5


@dataclasses.dataclass(frozen=True)
class Frozen:
    name: str


class Number(int):
    pass


class Words(list):
    def __init__(self, *words):
        super().__init__(words)
        self.count_of = len(words)


class Table(dict):
    pass


class Named(typing.NamedTuple):
    name: str


class WithSetter:
    """Its state is set by a function, the sixth part of what it reduces to."""

    def __reduce__(self):
        return WithSetter, (), {"number": 1}, None, None, set_state


def set_state(target, state):
    target.__dict__.update(state)


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1


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
    for code, extended in ((5, Small), (0x1234, Medium), (0x123456, Huge)):
        copyreg.add_extension(extended.__module__, extended.__name__, code)
    return {
        "dates": [
            datetime.date(2026, 8, 1),
            datetime.time(1, 2, 3, 4, zone),
            datetime.datetime(2026, 8, 1, 12, tzinfo=zone, fold=1),
            datetime.timedelta(1, 2, 3),
            datetime.timezone.utc,
        ],
        "times": [time.struct_time((2026, 8, 1, 12, 0, 0, 5, 213, 0)), datetime.datetime.min, datetime.timedelta.max],
        "numbers": [decimal.Decimal("1.50"), decimal.Decimal("nan"), decimal.Context(prec=5), fractions.Fraction(1, 3)],
        "extension": [Small(), Medium(), Huge()],
        "collections": [
            collections.Counter("abca"),
            collections.defaultdict(list, a=[1]),
            collections.ChainMap({"a": 1}),
            Point(1, 2),
            array.array("d", [1.0, 2.0]),
            array.array("i", [1, -1]),
        ],
        "more-collections": [
            collections.OrderedDict(a=1, b=2),
            collections.deque([1, 2], 3),
            collections.deque([]),
            collections.UserDict(a=1),
            Named("n"),
            array.array("q", [1 << 40]),
            array.array("B", b"bytes"),
        ],
        "paths": [pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("c:/x")],
        "addresses": [
            ipaddress.ip_address("::1"),
            ipaddress.ip_network("2001:db8::/32"),
            ipaddress.ip_interface("10.0.0.1/8"),
        ],
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
        "more-classes": [Measured("m"), Frozen("f"), Level.LOW, WithSetter()],
        "subclasses": [Number(5), Words("a", "b"), Table(a=1)],
        "typing": [typing.Optional[int], typing.List[str], typing.Any],
        "names": [re.compile(b"a+"), collections.abc.Mapping, Plain.__init__, datetime.datetime.now],
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
    import warnings

    import numpy

    # Of matrices, which are still sent.
    warnings.simplefilter("ignore", PendingDeprecationWarning)
    nested = numpy.dtype([("inner", [("x", "f4"), ("y", ">i2")]), ("many", "u1", (2, 2))], align=True)
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
        "arrays-of-kinds": [
            numpy.array([True, False]),
            numpy.array([1 + 2j], "c8"),
            numpy.array([b"a", b"bcd"]),
            numpy.array([1, "NaT"], "m8[3ms]"),
            numpy.array([0.5], "f2"),
            numpy.array([b"abc"], "V3"),
        ],
        "array-reversed": numpy.arange(5, dtype="u1")[::-1],
        "array-transposed": numpy.arange(24, dtype="i1").reshape(2, 3, 4).transpose(1, 0, 2),
        "array-nested-record": numpy.zeros(2, nested),
        "array-masked": numpy.ma.array([1.5, 2.5], mask=[False, True], fill_value=-1),
        "array-in-record": numpy.rec.array([(1, b"a")], dtype=[("n", "i8"), ("s", "S1")]),
        "matrix": numpy.matrix([[1, 2], [3, 4]], dtype="i2"),
        "more-scalars": [
            numpy.float16(0.5),
            numpy.complex64(1j),
            numpy.timedelta64(5, "us"),
            numpy.str_("text"),
            numpy.bytes_(b"bytes"),
            numpy.zeros((), nested)[()],
        ],
        "more-dtypes": [*map(numpy.dtype, [">i8", "S5", "U3", "M8[3D]", "m8", "?", "O", "V7"]), nested, numpy.float32],
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
        "indexes": [pandas.RangeIndex(3), pandas.Index([1.5, 2.5], name="x"), pandas.Index(["a", "b"])],
        "dates": pandas.Series(pandas.date_range("2026-08-01", periods=2, tz="UTC")),
        "categorical": pandas.Categorical(["x", "y", "x"], ordered=True),
        "strings": pandas.array(["a", None], dtype="string"),
        "nullable": pandas.array([1, None], dtype="Int64"),
        "spans": [pandas.Period("2026-08", "M"), pandas.Interval(0, 1, "left")],
        "timestamp": [pandas.Timestamp("2026-08-01", tz="UTC"), pandas.Timedelta(1), pandas.NaT, pandas.NA],
    }


# As if it were a file of its own, whose name does not depend on where this one is.
EXAMPLE = """
increase = lambda x: x + 1

def inner(x):
    raise KeyError("missing", x)

def outer(x):
    try:
        inner(x)
    except KeyError as error:
        raise ValueError("outer") from error

def deep(n):
    return deep(n - 1) if n else 1 / n
"""


def example():
    made = {"__name__": "example"}
    exec(compile(EXAMPLE, "example.py", "exec"), made)
    return made


def raised(function, argument):
    """What it raises, with what was called in its traceback but not who called."""
    try:
        function(argument)
    except Exception as error:
        return error.with_traceback(error.__traceback__.tb_next)


def dask_values():
    from dask._expr import LLGExpr
    from dask._task_spec import Alias, DataNode, Dict, List, Set, Task, TaskRef, Tuple
    from distributed.protocol import pickle as dask_pickle

    made = example()
    task = Task("add-1", operator.add, TaskRef("a"), 2)
    chain = [
        Task("a", operator.add, 1, 2),
        Task("b", operator.mul, TaskRef("a"), 3),
        Task("c", operator.neg, TaskRef("b")),
    ]
    noted = raised(made["deep"], 2)
    if sys.version_info >= (3, 11):
        noted.add_note("a note")
    return {
        "task": task,
        "task-keywords": Task(("x", 0), sorted, List(TaskRef("b"), 1), reverse=True),
        "task-nested": Task("n", dict, Dict({"a": TaskRef("a"), "b": [1, 2]})),
        "nodes": [Alias("b", "a"), DataNode("d", {"value": 1}), TaskRef(("x", 1))],
        "containers": [List(TaskRef("a"), 1), Tuple(1, TaskRef("a")), Set(TaskRef("a"), 1), Dict({"k": TaskRef("a")})],
        "graph": {f"t-{number}": Task(f"t-{number}", operator.add, TaskRef(f"t-{number - 1}"), 1) for number in range(5)},
        "fused": Task.fuse(*chain, key="c"),
        "expression": LLGExpr({task.key: task for task in chain}),
        "lambda": dask_pickle.dumps(made["increase"]),
        # Dask has tblib write exceptions, with these frames.
        "exception": raised(made["outer"], 1),
        "exception-deep": noted,
        "exception-of-files": raised(open, "/nonexistent"),
        "traceback": raised(made["deep"], 1).__traceback__,
    }
