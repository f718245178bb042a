"""Pickles that CPython writes, for `pickle::Writer` to write the same.

    python pickles_written.py --out DIR       write DIR/pickles.json
    python pickles_written.py --check DIR     write them again and compare with DIR

Each is `pickletools.optimize(pickle.dumps(value, protocol))`, which is what a
pickler writes that knows beforehand which values are shared. `pickles.json` has
for each case its `name`, `protocol`, and `pickle` in hexadecimal, or of one
longer than 1,000 bytes its `len` and `sha256`. `buffers` are the out-of-band
ones, in order, and `readonly` which of them are.

Nothing but the standard library is needed. Python 3.8 to 3.13 write the same.
"""

import argparse
import collections
import hashlib
import itertools
import json
import pathlib
import pickle
import pickletools
import sys


class ZeroCopyByteArray(bytearray):
    """The example of PEP 574."""

    def __reduce_ex__(self, protocol):
        if protocol >= 5:
            return type(self)._reconstruct, (pickle.PickleBuffer(self),), None
        # PickleBuffer is forbidden with pickle protocols <= 4.
        return type(self)._reconstruct, (bytearray(self),)

    @classmethod
    def _reconstruct(cls, obj):
        with memoryview(obj) as m:
            # Get a handle over the original buffer object
            obj = m.obj
            if type(obj) is cls:
                # Original buffer object is a ZeroCopyByteArray, return it as-is.
                return obj
            return cls(obj)


class State:
    """An object with a `__dict__`."""


class NewEx:
    """An object whose `__new__` gets keyword arguments."""

    def __new__(cls, number, *, name):
        return super().__new__(cls)

    def __getnewargs_ex__(self):
        return (1,), {"name": 2}


# Where the classes above are, for a pickle.
MODULE = "example"
sys.modules[MODULE] = sys.modules[__name__]
for example in (ZeroCopyByteArray, State, NewEx):
    example.__module__ = MODULE


def cases():
    """Name, value, and protocol of each case."""
    for value in (None, True, False):
        yield str(value), value
    for bits in (0, 7, 8, 15, 16, 31, 32, 63, 64, 119, 120, 127, 128, 2031, 2032, 2039, 2040):
        for sign, add in itertools.product((1, -1), (-1, 0, 1)):
            yield f"int {sign:+}*2^{bits}{add:+}", sign * 2**bits + add
    for value in (0.0, -0.0, 1.5, -1e300, float("inf"), float("nan")):
        yield f"float {value}", value
    for text in ("", "ä€😀", "\ud800", "a\udfffb\udc00\ud800"):
        yield f"str {ascii(text)}", text
    # 64 KiB in all is the most that goes into a frame.
    for count in (1, 255, 256, 65530, 65531, 65532, 65536, 70000):
        yield f"str of {count}", "x" * count
        yield f"bytes of {count}", b"x" * count
    for count in (0, 1, 255, 256, 65526, 65527, 65528, 65536, 70000):
        yield f"bytearray of {count}", bytearray(b"x" * count)
    yield "bytes of 0", b""
    for count in (0, 1, 255, 256, 65531, 65532):
        yield f"bytearray of {count} in 4", bytearray(b"x" * count), 4
        yield f"bytes of {count} in 4", b"x" * count, 4
    for count in (0, 1, 2, 3, 4, 5, 999, 1000, 1001, 2000, 2001):
        numbers = range(count)
        yield f"tuple of {count}", tuple(numbers)
        yield f"list of {count}", list(numbers)
        yield f"dict of {count}", dict.fromkeys(numbers)
        yield f"set of {count}", set(numbers)
        yield f"frozenset of {count}", frozenset(numbers)
        yield f"deque of {count}", collections.deque(numbers)
        yield f"OrderedDict of {count}", collections.OrderedDict.fromkeys(numbers)
    yield "deep tuples", ((((), (1,)), (1, (2, 3))), (1, 2, 3, (4, (5, 6, 7, 8))))
    yield "deep lists", [[], [[1], [2, [3, [4]]]], {1: {2: {3: {}}}}, [set(), {5}]]
    for count in (16, 17, 100):
        yield f"{count} strings of 4096", [chr(65 + n % 26) * 4096 for n in range(count)]
    yield "long between short", [1, b"a" * 70000, 2, b"b" * 70000, b"c" * 70000, b"d" * 100]
    yield "long at once", (b"a" * 70000,)
    yield "frame before the end", (300,) * 65536
    yield "frames of tuples", [(n, (n, n)) for n in range(20000, 30000)]
    yield "global", int
    yield "global in 4", int, 4
    yield "dotted global", collections.OrderedDict.fromkeys
    yield "type of None", type(None)
    yield "exception", ValueError("boom")
    state = State()
    state.__dict__ = {"ab": 1, "cd": None}
    yield "state", state
    yield "new with keywords", NewEx(1, name=2)
    yield "defaultdict", collections.defaultdict(list, {1: [2]})
    yield "range", range(1, 5, 2)
    yield "complex", 1.5 - 2j
    shared = ["same"]
    yield "shared list", [shared, shared]
    pair = ("one", "two")
    yield "shared tuple", {1: pair, 2: pair}
    myself = []
    myself.append(myself)
    yield "list in itself", myself
    many = [f"value {n}" for n in range(300)]
    yield "300 shared strings", [many, many[::-1]]
    payload = ZeroCopyByteArray(b"data" * 2)
    yield "PEP bytearray in band", payload
    yield "PEP bytearray in 4", payload, 4


def out_of_band():
    """Name and value of what is pickled with out-of-band buffers."""
    buffer = pickle.PickleBuffer
    yield "PEP bytearray out of band", ZeroCopyByteArray(b"data" * 2)
    yield "writable out of band", buffer(bytearray(b"abc"))
    yield "read-only out of band", buffer(b"abc")
    yield "both out of band", [buffer(b"ab"), 1, buffer(bytearray(b"cd")), buffer(b"")]


def describe(name, protocol, data, **more):
    data = pickletools.optimize(data)
    if len(data) > 1000:
        sha256 = hashlib.sha256(data).hexdigest()
        return {"name": name, "protocol": protocol, "len": len(data), "sha256": sha256, **more}
    return {"name": name, "protocol": protocol, "pickle": data.hex(), **more}


def make():
    lines = []
    for name, value, *protocol in cases():
        protocol = protocol[0] if protocol else 5
        lines.append(describe(name, protocol, pickle.dumps(value, protocol)))
    for name, value in out_of_band():
        buffers = []
        data = pickle.dumps(value, 5, buffer_callback=buffers.append)
        buffers = [memoryview(buffer) for buffer in buffers]
        lines.append(
            describe(
                name, 5, data,
                buffers=[bytes(buffer).hex() for buffer in buffers],
                readonly=[buffer.readonly for buffer in buffers],
            )
        )
    return "[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=pathlib.Path, help="directory to write to")
    where.add_argument("--check", type=pathlib.Path, metavar="DIR", help="directory to compare with")
    arguments = parser.parse_args()
    made = make()
    path = (arguments.out or arguments.check) / "pickles.json"
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        path.write_text(made)
    elif path.read_text() != made:
        sys.exit(f"{path} is not what {sys.version.split()[0]} writes")


if __name__ == "__main__":
    main()
