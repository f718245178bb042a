"""Messages worth writing: one case for each thing a message can do.

`cases(release)` lists those that `release` can write; `random_message` makes
more of them from a seed. The same seed gives the same message.
"""

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Callable

import msgpack
import numpy as np
from distributed.core import Status
from distributed.protocol import Serialize, Serialized


@dataclass(frozen=True)
class Case:
    """One message and how the writer is set. `build` makes it afresh: writing may alter it."""

    name: str
    build: Callable[[], Any]
    codec: str | None = "lz4"
    shard_len: int | None = None
    serializers: list[str] | None = None
    notes: str = ""


def compressible(seed, length):
    """Bytes that every codec shrinks to a few percent."""
    word = random.Random(seed).randbytes(17)
    return (word * (length // len(word) + 1))[:length]


def incompressible(seed, length):
    """Bytes that no codec shrinks."""
    return random.Random(seed).randbytes(length)


def nested(depth):
    """Maps and arrays in turn, `depth` deep."""
    value = "innermost"
    for level in range(depth):
        value = {"level": level, "in": value} if level % 2 else [level, value]
    return value


INTEGERS = sorted(
    {
        sign * (1 << width) + step
        for width in (0, 5, 7, 8, 15, 16, 31, 32, 53, 63)
        for sign in (-1, 1)
        for step in (-1, 0, 1)
        if -(2**63) <= sign * (1 << width) + step
    }
    | {2**64 - 2, 2**64 - 1}
)

FLOATS = [0.0, -0.0, 0.5, -2.0, 1 / 3, 1e300, 5e-324, float("nan"), float("inf"), float("-inf")]

TEXTS = ["", "ascii", "naïve", "δask", "数据", "🦀", "\x00\n\"\\", "e\u0301", "\U0010ffff", "a" * 31, "b" * 32, "c" * 255, "d" * 256]

KEYS = [0, 127, 128, -1, -33, 2**63, 1.25, None, True, b"raw", "text", ("x", 0), ("y", ("z", 1.5), b"", None)]


def cases(release):
    """The cases that `release` can write, in a fixed order."""
    version = release.version
    payload = Serialize
    found = []

    def add(name, build, **settings):
        found.append(Case(name, build, **settings))

    # What msgpack alone can say.
    add("status-ok", lambda: {"status": "OK", "nbytes": {"x-0": 28}})
    add("empty-map", lambda: {})
    add("empty-array", lambda: [])
    add("bare-text", lambda: "OK")
    add("integers", lambda: {"at the edge of each width": INTEGERS})
    add("floats", lambda: {"floats": FLOATS})
    add("texts", lambda: {"texts": TEXTS})
    add("bytes-in-message", lambda: {"bytes": [b"", b"\xff", bytes(range(255)), bytes(256)], "array": bytearray(b"ba")})
    add("lengths-of-arrays", lambda: {str(n): [None] * n for n in (0, 1, 15, 16, 17)})
    add("lengths-of-maps", lambda: {str(n): {f"k{i}": i for i in range(n)} for n in (0, 1, 15, 16, 17)})
    add("nested", lambda: nested(40))
    add("keys-of-every-kind", lambda: {"keys": {key: index for index, key in enumerate(KEYS)}})
    add("keys-like-tags", lambda: {"$bytes": "not bytes", "$payload": 0})
    add("extension-types", lambda: [msgpack.ExtType(code, bytes(n)) for code, n in enumerate((0, 1, 2, 3, 4, 8, 16, 17, 256))])
    add("enum", lambda: {"status": Status.running, "others": [Status.closed]})
    if version >= (2020, 12, 0):
        # Not None, whose hash, and so its place in a set, differs from run to run.
        add("sets", lambda: {"empty": set(), "keys": {"a", "b"}, "mixed": {1, ("t", 2), 0.5, b"b"}})
    add("text-over-10-kB", lambda: {"keys": [f"task-{i:05}" for i in range(1500)]}, notes="the message frame itself is compressed up to 2021.3.0")

    # What Dask says.
    add("handshake", lambda: {"compression": "lz4", "python": (3, 11, 7), "pickle-protocol": 5})
    add("stream-of-batches", lambda: [{"op": "stream-start"}])
    add("batch", lambda: [{"op": "task-finished", "key": f"inc-{i}", "nbytes": 28 * i, "thread": 2**47 + i, "startstops": ({"action": "compute", "start": 0.25 * i},)} for i in range(5)])
    add("register-worker", lambda: {"op": "register-worker", "reply": False, "address": "tcp://127.0.0.1:40001", "nthreads": 2, "name": "w", "memory_limit": 2**33, "metrics": {"cpu": 1.5, ("execute", "x"): 0.125}, "nanny": None})
    add("get-data", lambda: {"op": "get_data", "keys": ["x", ("y", 0)], "who": "tcp://127.0.0.1:40002", "reply": True})
    add("get-data-reply", lambda: {"status": "OK", "data": {"x": payload(np.arange(12.0).reshape(3, 4)), "y": payload("text")}})
    add("task-erred", lambda: [{"op": "task-erred", "key": "div-0", "exception": payload(ZeroDivisionError("division by zero")), "traceback": payload(None)}])

    # Payloads: where they stand, and what they are.
    add("several-payloads", lambda: {"a": payload(b"first"), "b": [1, {"c": payload(b"second")}, payload(b"third")]})
    add("root-array-of-payloads", lambda: [payload(b"one"), payload(b""), payload(b"three")])
    add("keys-that-lead-to-payloads", lambda: {"data": {1: payload(b"int"), ("x", 0): payload(b"array"), b"raw": payload(b"bin")}})
    add("large-bytes", lambda: {"before": 1, "large": compressible(1, 70_000), "list": [b"small", incompressible(2, 65_537)]}, notes="a payload of its own up to 2021.3.0, in the message after")
    for name, array in {
        "booleans": np.array([True, False, True]),
        "big-endian": np.arange(5, dtype=">i4"),
        "fortran-order": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "strided": np.arange(20, dtype="u2")[::3],
        "no-items": np.zeros((0, 3)),
        "no-dimensions": np.array(2.5),
        "dates": np.array(["2020-01-01", "NaT"], dtype="M8[ns]"),
        "records": np.array([(1, 2.0), (3, 4.0)], dtype=[("n", "<u4"), ("x", "<f8")]),
        "objects": np.array([1, "two", None], dtype=object),
    }.items():
        add(f"array-of-{name}" if name in ("booleans", "dates", "records", "objects") else f"array-{name}", lambda array=array: {"x": payload(array)})
    if version >= (2021, 11, 0):
        add("memoryview", lambda: {"x": payload(memoryview(bytes(range(12))).cast("H", (2, 3)))})
        add("bytearray", lambda: {"x": payload(bytearray(b"changeable"))})
        add("array-matrix", lambda: {"x": payload(np.matrix([[1.0, 2.0], [3.0, 4.0]]))})
        add("array-broadcast-read-only", lambda: {"x": payload(np.broadcast_to(np.arange(3, dtype="<i2"), (4, 3)))})
    add("two-large-arrays", lambda: {"x": payload(np.arange(600.0)), "y": payload(np.arange(700.0))}, codec=None, notes="from 2023.11.0 the leading u64 stops before the second array")
    add("collection-list", lambda: {"x": payload([np.arange(4), b"bytes", np.ones((2, 2), dtype="f4")])})
    add("collection-map", lambda: {"x": payload({"a": np.arange(3), "b": b"bytes"})})
    add("pickled-value", lambda: {"x": payload({"a": [1, 2.5, "three"]})})
    add("pickled-value-with-buffers", lambda: {"x": payload({"a": (1, [np.arange(8.0), np.zeros(2, dtype="u1")])})})
    add("msgpack-value", lambda: {"x": payload({"a": [1, "b"]})}, serializers=["msgpack"])
    add("serializer-failed", lambda: {"x": payload(complex(1, 2)), "y": 3}, serializers=["msgpack"])

    # Compression and splitting.
    for codec in ("lz4", "snappy", "zlib", "zstd"):
        add(f"compressed-{codec}", lambda: {"x": payload(compressible(3, 20_000)), "y": payload(np.zeros(1500))}, codec=codec)
    add("not-compressible", lambda: {"x": payload(incompressible(4, 12_000))})
    add("too-small-to-compress", lambda: {"x": payload(compressible(5, 9_999))})
    add("split-array", lambda: {"x": payload(np.arange(1000, dtype="u4"))}, codec=None, shard_len=1024)
    add("split-bytes", lambda: {"x": payload(incompressible(6, 5001)), "y": payload(b"whole")}, shard_len=1000)
    add("split-and-compressed", lambda: {"x": payload(compressible(7, 20_000) + incompressible(8, 20_000))}, shard_len=10_000, notes="some of the split frames are compressed, some are not")

    # What a scheduler does: payloads go out as they came in.
    def forwarded(message, **settings):
        return lambda: release.read_forwardable(release.write(message(), **settings))

    add("forwarded", forwarded(lambda: {"x": payload(np.arange(5)), "y": payload({"pickled": 1})}))
    add("forwarded-compressed", forwarded(lambda: {"x": payload(compressible(9, 30_000))}, codec="zlib"), codec="lz4")
    add("forwarded-split", forwarded(lambda: {"x": payload(incompressible(10, 3000))}, shard_len=1024))
    add("forwarded-beside-new", lambda: {**forwarded(lambda: {"x": payload(b"came in")})(), "y": payload(b"new")})

    if version >= (2022, 4, 0):
        from distributed.protocol.serialize import ToPickle

        add("to-pickle", lambda: {"x": ToPickle({"a": 1}), "y": [ToPickle(None)]})
        add("to-pickle-with-buffers", lambda: {"x": ToPickle([np.arange(6.0), np.zeros((2, 0))])})
        add("to-pickle-compressed", lambda: {"x": ToPickle(np.zeros(4000)), "y": payload(b"beside")}, codec="zlib")
    if version >= (2024, 1, 0):
        add("pickled-for-want-of-msgpack", lambda: {"x": frozenset({1}), "y": np.int64(5), "z": 2.5})

    # Arrays that are more than elements of one kind.
    records, masked, objects = records_of_all_kinds(), masked_arrays(), arrays_of_objects()
    add("array-of-records-of-all-kinds", lambda: {name: payload(array) for name, array in records.items()})
    add("array-masked", lambda: {name: payload(array) for name, array in masked.items()})
    add("array-of-objects-of-all-kinds", lambda: {name: payload(array) for name, array in objects.items()})
    add("pickled-arrays-of-all-kinds", lambda: {"x": payload(SimpleNamespace(records=records, masked=masked, objects=objects))})
    return found


def records_of_all_kinds():
    """Records with every kind of field, with titles, gaps and fields of their own."""
    point = np.dtype([("x", "<f8"), ("y", "<f8")])
    fields = [
        (("its title", "titled"), "<i4"),
        ("from", point),
        ("to", point),
        ("path", point, (2, 3)),
        ("flag", "?"),
        ("bytes", "S3"),
        ("text", ">U2"),
        ("when", "M8[25s]"),
        ("took", "m8[ns]"),
        ("waves", ">c8", 2),
        ("nothing", "V5"),
    ]
    aligned = np.zeros(2, np.dtype(fields, align=True))
    aligned["titled"] = [1, -2]
    aligned["from"] = [(0.5, 1.5), (2.5, 3.5)]
    aligned["path"]["y"] = np.arange(12.0).reshape(2, 2, 3)
    aligned["text"] = ["ab", "é"]
    aligned["when"] = [1, 2]
    aligned["waves"] = 1 + 2j
    packed = np.zeros((2, 3), fields)
    packed["to"]["x"] = np.arange(6.0).reshape(2, 3)
    apart = np.dtype({"names": ["second", "first"], "formats": ["<u4", "<u2"], "offsets": [6, 1], "itemsize": 12})
    # A new array has any bytes between its fields, unless it is zeroed.
    fortran = np.zeros((2, 3), packed[["titled", "to"]].dtype, order="F")
    for name in fortran.dtype.names:
        fortran[name] = packed[name]
    in_no_order = np.zeros(2, apart)
    in_no_order["second"], in_no_order["first"] = [1, 3], [2, 4]
    recarray = np.array([(1, 2.0), (3, 4.0)], dtype=[("n", "<u4"), ("x", "<f8")]).view(np.recarray)
    return {
        "aligned": aligned,
        "packed": packed,
        "fortran": fortran,
        "in no order": in_no_order,
        "without records": np.zeros(0, fields[:3]),
        "recarray": recarray,
        "void": np.array([b"12345", b"67890"], "V5"),
    }


def masked_arrays():
    """Masked arrays, with and without a mask, and of each kind of element."""
    data = np.arange(6, dtype="<i2").reshape(2, 3)
    records = np.array([(1, 2.0), (3, 4.0)], dtype=[("n", "<u4"), ("x", "<f8")])
    return {
        "some": np.ma.masked_array(data, data % 2 == 0, fill_value=-1),
        "fortran": np.ma.masked_array(np.asfortranarray(data), np.asfortranarray(data > 2)),
        "without a mask": np.ma.masked_array(np.arange(3.0)),
        "booleans": np.ma.masked_array([True, False], [True, False]),
        "text": np.ma.masked_array(["a", "bc"], [False, True], fill_value="?"),
        "records": np.ma.masked_array(records, [(True, False), (False, True)]),
        "objects": np.ma.masked_array(np.array([1, "two", None], dtype=object), [False, False, True]),
        "an element": np.ma.masked,
    }


def arrays_of_objects():
    """Arrays of objects, in both orders, and records with objects in them."""
    objects = np.array([[1, "two", None], [2.5, b"bytes", (3, 4)]], dtype=object)
    return {
        "objects": objects,
        "fortran": np.asfortranarray(objects),
        "none": np.zeros((0, 2), dtype=object),
        "records": np.array([(1, "a"), (2, None)], dtype=[("n", "<u4"), ("what", object)]),
    }


def random_message(release, seed):
    """A case named `random-<seed>`: any message, any codec, any split size."""
    source = random.Random(seed)
    message = {_random_text(source): _random_value(release, source, 4) for _ in range(source.randrange(1, 6))}
    codec = source.choice([None, "lz4", "snappy", "zlib", "zstd"])
    shard_len = source.choice([None, None, 1000, 4096])
    return Case(f"random-{seed}", lambda: message, codec=codec, shard_len=shard_len)


def random_document(source, depth=5):
    """Any value of msgpack's own types, nothing of Dask's."""
    return _random_value(None, source, depth)


def _random_value(release, source, depth):
    """`release` is asked for what only some releases can write; None allows no payloads."""
    kind = source.randrange(12 if depth else 6)
    if kind == 0:
        return source.choice([None, True, False])
    if kind == 1:
        return source.choice([1, -1]) * source.getrandbits(source.randrange(1, 64))
    if kind == 2:
        return source.choice([source.gauss(0, 1e3), source.choice(FLOATS[:-3])])
    if kind in (3, 4):
        return _random_text(source)
    if kind == 5:
        return source.randbytes(source.choice([0, 1, 8, 40, 255, 256]))
    if kind in (6, 7):
        return [_random_value(release, source, depth - 1) for _ in range(source.choice([0, 1, 2, 3, 16]) if depth < 3 else 3)]
    if kind in (8, 9) or (release is None and kind < 11):
        return {_random_key(source): _random_value(release, source, depth - 1) for _ in range(source.randrange(5))}
    if release is None:
        return msgpack.ExtType(source.randrange(128), source.randbytes(source.choice([0, 1, 2, 4, 8, 16, 33])))
    return Serialize(_random_payload(source))


def _random_text(source):
    return "".join(source.choice("abcxyz-_('), 0189éλ中🦀") for _ in range(source.choice([0, 1, 5, 12, 31, 32, 60, 256])))


def _random_key(source):
    kind = source.randrange(8)
    if kind == 0:
        return source.randrange(-200, 70_000)
    if kind == 1:
        return (_random_text(source), source.randrange(10))
    return _random_text(source)


def _random_payload(source):
    kind = source.randrange(7)
    length = source.choice([0, 1, 100, 3000, 12_000])
    if kind == 0:
        return source.randbytes(length)
    if kind == 1:
        return compressible(source.getrandbits(16), length)
    if kind == 2:
        return np.arange(length, dtype=source.choice(["u1", "<i4", ">u2", "<f8"]))
    if kind == 3:
        return np.asfortranarray(np.arange(24.0).reshape(source.choice([(4, 6), (2, 3, 4)])))
    if kind == 4:
        return [np.arange(source.randrange(5)), source.randbytes(source.randrange(40))]
    if kind == 5:
        return {"pickled": [source.random(), _random_text(source)]}
    return {"buffers": (np.arange(length, dtype="u1"),)}
