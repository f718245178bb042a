#!/usr/bin/env python3
"""Makes the bytes of `hm-*`, messages that no release writes but some release reads, or
compares them.

    handmade.py --check .     compare with the files below this folder
    handmade.py --out .       replace those `.bin` files

Each generation has a choice of them. What the release of a generation made of the bytes is
in the `.json` beside each: it was observed once and is not made again here. Needs the
standard library alone.
"""

import struct
import sys
import zlib

from hostile import HEADER, main, pack, plain, prefixed

PICKLE = b"\x80\x04K\x07."
CODECS = ["zlib", "lz4", "snappy", "zstd"]


def values():
    """Encodings of values that are not the shortest, or unusual."""
    f32 = lambda *numbers: b"".join(b"\xca" + struct.pack(">f", number) for number in numbers)
    # The number or length in each width, after its marker.
    widths = lambda markers, number, rest=b"": b"".join(
        bytes([marker]) + number.to_bytes(width, "big", signed=number < 0) + rest for marker, width in markers
    )
    yield "f32", b"\x94" + f32(1.5, -0.0, float("inf"), float("nan"))
    yield "f32-inexact", f32(0.1)
    signed = [(0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)]
    yield "int-not-minimal", b"\x98" + widths([(0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8), *signed], 5)
    yield "negint-not-minimal", b"\x94" + widths(signed, -1)
    yield "str-not-minimal", b"\x93" + widths([(0xD9, 1), (0xDA, 2), (0xDB, 4)], 3, b"abc")
    yield "bin-not-minimal", b"\x92" + widths([(0xC5, 2), (0xC6, 4)], 3, b"abc")
    yield "array-not-minimal", b"\x92" + widths([(0xDC, 2), (0xDD, 4)], 2, b"\x01\x02")
    yield "map-not-minimal", b"\x92" + widths([(0xDE, 2), (0xDF, 4)], 1, b"\xa1a\x01")
    yield "map32-three", widths([(0xDF, 4)], 3) + b"\xa1a\x01\xa1b\x02\xa1c\xc0"
    letters = b"abcdefghijklmnop"
    fixed = b"".join(bytes([0xD4 + power, 5]) + letters[: 1 << power] for power in range(5))
    yield "ext-all-heads", b"\x98" + fixed + widths([(0xC7, 1), (0xC8, 2), (0xC9, 4)], 3, b"\x05abc")
    far, before = struct.pack(">Q", 999_999_999 << 34 | 7), struct.pack(">Iq", 5, -3)
    yield "timestamp-forms", b"\x93\xd6\xff\0\0\0\x01\xd7\xff" + far + b"\xc7\x0c\xff" + before
    yield "duplicate-keys", b"\x83\xa1a\x01\xa1b\x02\xa1a\x03"
    yield "keys-of-each-kind", b"\x85\xc0\x01\xc2\x02" + f32(0.5) + b"\x03\xc4\x01k\x04\x90\x05"
    yield "key-array", b"\x81\x92\xa1x\0\xa1y"
    yield "str-and-bin-keys-equal", b"\x82\xa1a\x01\xc4\x01a\x02"


def bodies():
    for name, value in values():
        yield name, b"\x81\xa1v" + value
    yield "root-u8", b"\xcc\x2a"
    yield "root-str32", b"\xdb\0\0\0\x02OK"


def uncompressed(codec, data):
    """The data in the format of a codec, which finds nothing to compress in it."""
    size = len(data)
    literal = {
        "lz4": struct.pack("<I", size) + bytes([min(size, 15) << 4]) + data,
        "snappy": bytes([size]) + (bytes([size - 1 << 2]) + data if data else b""),
        "zstd": b"\x28\xb5\x2f\xfd\x20" + bytes([size]) + (size << 3 | 1).to_bytes(3, "little") + data,
    }
    return literal.get(codec) or zlib.compress(data)


def modern():
    one = pack({"x": {"__Serialized__": 1}})
    good = pack(HEADER)
    for name, body in bodies():
        yield name, [body]
    yield "set-key-order", [b"\x81\xa1v\x82\xa7as-list\x91\x01\xa7__Set__\xc3"]
    status = {"__Enum__": True, "name": "running", "__module__": "distributed.core", "__name__": "Status"}
    yield "enum-by-hand", [pack({"v": status})]
    yield "set-by-hand", [pack({"v": {"__Set__": True, "as-list": [3, 1, 1]}})]

    def dask(frames, **entries):
        # Entries come in the order in which they are given.
        entries = {key.replace("_", "-"): value for key, value in entries.items()}
        return [pack({"serializer": "dask", "num-sub-frames": len(frames), **entries}), *frames]

    payloads = {
        "plain": [good, PICKLE],
        "no-compression": [pack({"serializer": "pickle", "num-sub-frames": 1}), PICKLE],
        "zero-frames": [pack({"serializer": "error", "num-sub-frames": 0, "compression": [], "split-num-sub-frames": [], "split-offsets": []})],
        "compression-false": [pack({**HEADER, "compression": [False]}), PICKLE],
        "extra-header-keys": [pack({**HEADER, "unknown": {"a": [1, None]}, "zzz": b"\0"}), PICKLE],
        "header-not-minimal": [b"\xdf\0\0\0\x02\xda\0\x0aserializer\xd9\x06pickle\xdb\0\0\0\x0enum-sub-frames\xd2\0\0\0\x01", PICKLE],
        "split-out-of-order": dask([b"A", b"B", b"C"], compression=[None] * 3, split_num_sub_frames=[1, 2], split_offsets=[2, 0]),
        "split-zero": dask([b"A"], compression=[None], split_num_sub_frames=[0, 1], split_offsets=[0, 0]),
        "mixed-codecs": dask(
            [b"raw,", uncompressed("lz4", b"lz4,"), uncompressed("zlib", b"zlib")],
            compression=[None, "lz4", "zlib"], split_num_sub_frames=[3], split_offsets=[0],
        ),
    }  # fmt: skip
    empty = [uncompressed(codec, b"") for codec in CODECS]
    payloads["empty-each-codec"] = dask(empty, compression=CODECS)
    for codec in CODECS:
        payloads["tiny-" + codec] = [pack({**HEADER, "compression": [codec]}), uncompressed(codec, PICKLE)]
    for name, frames in payloads.items():
        yield "payload-" + name, [one, *frames]
    two = pack([{"__Serialized__": 3}, {"__Serialized__": 1}])
    yield "placeholder-order", [two, good, b"first frames", good, b"second frames"]
    yield "placeholder-extra-key", [pack({"a": {"other": 5, "__Serialized__": 1}}), good, b"x"]
    yield "placeholder-offset-u64", [b"\x81\xa1a\x81\xae__Serialized__\xcf\0\0\0\0\0\0\0\x01", good, b"x"]
    yield "frames-unused", [pack({"a": {"__Serialized__": 2}, "b": 1}), b"nobody wants this", good, b"x", b"nor this"]
    nothing = {"pickled-obj": b"\x80\x05N."}
    alone = pack({**nothing, "num-sub-frames": 0, "compression": []})
    yield "pickled-both", [pack({"a": {"__Pickled__": 1}, "b": {"__Serialized__": 2}}), alone, good, PICKLE]
    yield "pickled-no-compression", [pack([{"__Pickled__": 1}]), pack({**nothing, "num-sub-frames": 2}), b"buf1", b""]


def classic():
    for name, body in bodies():
        yield name, [b"", body]
    head = {"serializer": "pickle", "writeable": [False], "lengths": [5], "compression": [None], "count": 1}

    def message(body, paths, frames, heads, bytestrings=()):
        keys = list(map(tuple, paths))
        return [b"", pack(body), pack({"headers": dict(zip(keys, heads)), "keys": keys, "bytestrings": bytestrings}), *frames]

    def one(frames, **entries):
        return message({}, ["x"], frames, [{**head, **entries}])

    bytes_class = b"\x80\x04\x8c\x08builtins\x94\x8c\x05bytes\x94\x93\x94."
    of_bytes = {"type": "builtins.bytes", "type-serialized": bytes_class, "serializer": "dask", "writeable": [False], "lengths": [3], "compression": [None], "count": 1}
    without = {key: value for key, value in head.items() if key != "compression"}
    cases = {
        "plain": message({"a": 1}, ["x"], [PICKLE], [head]),
        "keys-order": message({}, ["b", "a"], [b"bbbbb", b"aaaaa"], [{**head, "tag": "b"}, {**head, "tag": "a"}]),
        "into-list": message([None, [None, 2]], [[0], [1, 0]], [b"11111", b"22222"], [head, head]),
        "over-a-value": message({"x": "old"}, ["x"], [PICKLE], [head]),
        "root": message({"gone": 1}, [""], [PICKLE], [head]),
        "lengths-join": one([b"abc", b"def"], lengths=[6], count=2, compression=[None, None]),
        "lengths-cut": one([b"abcdef"], lengths=[2, 0, 4], writeable=[False] * 3),
        "lengths-across": one([b"abcd", b"e", b"fghi"], lengths=[1, 5, 3], writeable=[False] * 3, count=3, compression=[None] * 3),
        "compressed-join": one([uncompressed("zlib", b"abcd"), b"efgh"], lengths=[8], count=2, compression=["zlib", None]),
        "bytestring": message({"k": [None]}, [["k", 0]], [b"abc"], [of_bytes], [["k", 0]]),
        "no-compression-key": message({}, ["x"], [PICKLE], [without]),
        "count-zero": message({"z": 1}, ["x"], [], [{"serializer": "error", "writeable": [], "lengths": [], "compression": [], "count": 0}]),
        "empty-header-map": [pack({}), pack({"a": 1})],
        "header-null-compression": [pack({"compression": None}), pack({"a": 1})],
    }
    for codec in CODECS:
        cases["message-" + codec] = [pack({"compression": codec}), uncompressed(codec, pack({"tiny": codec}))]
    for name, frames in cases.items():
        yield "classic-" + name, frames


def prefixes():
    """A message whose prefix covers any number of its frames."""
    frames = [pack({"a": {"__Serialized__": 1}}), pack({"serializer": "dask", "num-sub-frames": 3, "compression": [None] * 3}), b"one", b"", b"three"]
    for count in range(len(frames) + 1):
        covered = 8 * (len(frames) + 1) + sum(map(len, frames[:count]))
        yield f"nosplit-{count}", prefixed(frames, covered)


def everything(root):
    """The messages that are stored, by the name of their file."""
    old = {name: plain(frames) for name, frames in classic()}
    new = {name: prefixed(frames) for name, frames in modern()} | dict(prefixes())
    made = {}
    for path in root.glob("*/hm-*.bin"):
        name = path.stem.removeprefix("hm-")
        data = (old if path.parent.name.startswith("classic-") else new).get(name)
        if data is not None:
            made[f"{path.parent.name}/{path.name}"] = data
    return made


if __name__ == "__main__":
    sys.exit(main(__doc__, "*/hm-*.bin", everything))
