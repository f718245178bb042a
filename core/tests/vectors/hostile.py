#!/usr/bin/env python3
"""Makes the bytes of `hostile/`, or compares them.

    hostile.py --check .     compare with the files below this folder
    hostile.py --out .       replace those `.bin` files

A name is `<framing>--<what is wrong>`. What a real release made of the bytes is in the
`.json` beside each: it was observed once and is not made again here. Needs the standard
library alone: the few compressed blocks are given as they were compressed.
"""

import argparse
import pathlib
import struct
import sys
import zlib

PICKLE = b"\x80\x04K\x2a."
# As the packages lz4, python-snappy and zstandard compress "the quick brown fox jumps over
# the quick brown dog" four times, "abcdefgh" 40 times and "zstandard " 30 times.
LZ4 = bytes.fromhex("c8000000fc1074686520717569636b2062726f776e20666f78206a756d7073206f766572201f003c646f6713000f32006e506e20646f67")
SNAPPY = bytes.fromhex("c0021c6162636465666768fe0800fe0800fe0800fe0800de0800")
ZSTD = bytes.fromhex("28b52ffd602c008d0000507a7374616e646172642001001f550b12")
ZSTD_WITHOUT_SIZE = bytes.fromhex("28b52ffd00008d0000507a7374616e646172642001001f550b12")


def u64(*numbers):
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def pack(value):
    """The shortest MessagePack of a value."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        if -32 <= value < 128:
            return struct.pack("b" if value < 0 else "B", value)
        return next(marker + value.to_bytes(n, "big") for n, marker in ((1, b"\xcc"), (2, b"\xcd"), (4, b"\xce"), (8, b"\xcf")) if value < 256**n)
    if isinstance(value, bytes):
        return b"\xc4" + bytes([len(value)]) + value
    if isinstance(value, str):
        data = value.encode()
        return (bytes([0xA0 | len(data)]) if len(data) < 32 else b"\xd9" + bytes([len(data)])) + data
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(pack(part) for pair in value.items() for part in pair)
    return bytes([0x90 | len(value)]) + b"".join(map(pack, value))


def prelude(lengths, count=None):
    return u64(len(lengths) if count is None else count, *lengths)


def plain(frames):
    return prelude(list(map(len, frames))) + b"".join(frames)


def prefixed(frames, prefix=None, lengths=None):
    head = prelude(lengths or list(map(len, frames)))
    data = head + b"".join(frames)
    return u64(len(data) if prefix is None else prefix) + data


def with_prefix():
    """Faults in a prefix or a prelude, which `total` and `nosplit` have in common."""
    body = pack({"op": "x"})
    size = len(body)
    top = 2**64 - 1
    whole = prefixed([body])
    yield "nframes-2p60", u64(32, 2**60, 5) + b"hello" + bytes(11)
    yield "nframes-u64max", u64(24, top, 5, 5)
    yield "nframes-2p61", u64(24, 2**61, 5, 5)
    yield "nframes-2p61-less-1", u64(16, 2**61 - 1, 8)
    yield "nframes-0", u64(8, 0)
    yield "nframes-more-than-prelude", u64(16 + size, 3, size) + body
    yield "lengths-sum-wraps", u64(24 + size, 2, top, size + 1) + body
    yield "length-u64max", u64(16 + size, 1, top) + body
    yield "length-2p63", u64(16 + size, 1, 2**63) + body
    for name, prefix in (("u64max", top), ("2p62", 2**62), ("0", 0), ("4", 4)):
        yield "prefix-" + name, u64(prefix, 1, size) + body
    yield "prefix-8-two-frames", u64(8, 2, size, 0) + body
    yield "prefix-short-of-prelude", u64(17, 2, size, 0) + body
    for end in (0, 3, 8, 11, 16, 20, 24, len(whole) - 1):
        yield f"truncated-at-{end}", whole[:end]
    yield "big-endian", struct.pack(">3Q", 16 + size, 1, size) + body
    yield "garbage", bytes((41 + 89 * at) % 256 for at in range(64))
    yield "http", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield "trailing-garbage", whole + b"\xff" * 11


def total():
    first, second = frames = [pack({"op": "two"}), b"second frame"]
    data = plain(frames)
    yield "total-one-short", u64(len(data) - 1) + data[:-1]
    yield "total-cuts-frame", u64(len(data) - 5) + data
    yield "total-one-long", u64(len(data) + 1) + data + b"!"
    yield "total-is-first-frame-only", u64(24 + len(first)) + data
    for name, by in (("larger", 7), ("smaller", -7)):
        yield f"lengths-{name}-than-message", prefixed(frames, lengths=[len(first), len(second) + by])


def nosplit():
    first = pack({"op": "nosplit"})
    frames = [first, b"B" * 8, b"C" * 4]
    ends = {"inside-frame-0": 3, "inside-frame-1": len(first) + 1, "inside-last-frame": len(first) + 11, "past-the-end": len(first) + 13, "cuts-lengths": -1}
    for name, end in ends.items():
        yield "nosplit-" + name, prefixed(frames, 32 + end)
    yield "nosplit-rest-missing", prefixed(frames, 32 + len(first))[:-4]
    yield "nosplit-later-frame-2p62", prefixed(frames[:2], 40 + len(first), [len(first), 8, 2**62])


def bodies():
    long = {"array32": (b"\xdd", b"\xc0" * 15), "map32": (b"\xdf", b"\xa0" * 15), "str32": (b"\xdb", b"s" * 15), "bin32": (b"\xc6", b"b" * 15), "ext32": (b"\xc9", b"\x05" + b"e" * 14)}
    for name, (marker, rest) in long.items():
        yield name + "-4g", marker + b"\xff" * 4 + rest
    yield "array32-nested-claims", b"\xdd\x7f\xff\xff\xff" * 6
    yield "deep-arrays-100000", b"\x91" * 100_000 + b"\xc0"
    yield "deep-maps-20000", b"\x81\xa0" * 20_000 + b"\xc0"
    not_utf8 = {"ff": b"\xa3a\xffb", "overlong": b"\xa2\xc0\x80", "surrogate": b"\xa3\xed\xa0\x80", "cut": b"\xa2\xe6\x97"}
    for name, string in not_utf8.items():
        yield "utf8-" + name, b"\x81\xa1s" + string
    yield "utf8-in-key", b"\x81\xa2k\xfe\x01"
    yield "c1", b"\x92\x01\xc1"
    yield "empty", b""
    yield "cut-str", b"\xa5hell"
    yield "cut-array", b"\x93\x01\x02"
    yield "cut-map", b"\x82\xa1a\x01\xa1b"
    yield "cut-u64", b"\xcf\0\0\0"
    yield "trailing", pack({"op": "x"}) + b"\0"
    yield "two-values", pack("OK") * 2
    yield "duplicate-keys", b"\x82\xa2op\xa1a\xa2op\xa1b"
    members = {"set-no-list": {}, "set-list-is-int": {"as-list": 5}, "set-of-maps": {"as-list": [{"a": 1}]}}
    for name, rest in members.items():
        yield name, pack({"x": {"__Set__": True, **rest}})
    status = {"__module__": "distributed.core", "__name__": "Status"}
    enums = {"os": {"name": "system", "__module__": "os", "__name__": "environ"}, "no-name": status, "name-int": {"name": 1, **status}}
    for name, rest in enums.items():
        yield "enum-" + name, pack({"x": {"__Enum__": True, **rest}})


HEADER = {"serializer": "pickle", "writeable": [], "split-num-sub-frames": [1], "split-offsets": [0], "compression": [None], "num-sub-frames": 1}
ABSENT = object()


def changed(header, changes):
    """The header with other entries; without those that are ABSENT."""
    return {key: value for key, value in {**header, **changes}.items() if value is not ABSENT}


def references():
    """Placeholders that lead nowhere, and headers that are none."""
    one = pack({"x": {"__Serialized__": 1}})
    good = pack(HEADER)
    places = {"past-end": 3, "far-past-end": 1000, "u64max": 2**64 - 1, "i64max": 2**63 - 1, "zero": 0, "string": "1"}
    places |= {"float": 1.5, "nil": None, "array": [1], "true": True, "points-to-payload": 2, "negative": -1}
    for name, place in places.items():
        yield name, [pack({"x": {"__Serialized__": place}}), good, PICKLE]
    yield "header-is-last", [one, good]
    two = {"num-sub-frames": 2, "compression": [None, None], "split-num-sub-frames": [2]}
    yield "overlap", [pack({"a": {"__Serialized__": 1}, "b": {"__Serialized__": 2}}), pack({**HEADER, **two}), good, PICKLE]
    yield "twice", [pack({"a": {"__Serialized__": 1}, "b": {"__Serialized__": 1}}), good, b"shared"]
    headers = {"is-placeholder": pack({"__Serialized__": 1}), "holds-placeholder": pack({**HEADER, "again": {"__Serialized__": 1}})}
    headers |= {"is-array": pack([1, 2]), "is-int": b"\x05", "empty": b"", "trailing": good + b"\xc0"}
    for name, header in headers.items():
        yield "header-" + name, [one, header, PICKLE]
    pickled = {"past-end": (9, {"pickled-obj": PICKLE}), "no-object": (1, {}), "object-is-str": (1, {"pickled-obj": "text"})}
    for name, (place, entries) in pickled.items():
        yield "pickled-" + name, [pack({"x": {"__Pickled__": place}}), pack({**entries, "num-sub-frames": 0, "compression": []})]


def headers():
    """Entries of a payload's header that do not match its frame."""
    counts = {"missing": ABSENT, "too-large": 2, "huge": 2**63 - 1, "u64max": 2**64 - 1, "negative": -1, "string": "1", "float": 1.0}
    for name, count in counts.items():
        yield "count-" + name, {"num-sub-frames": count}
    codecs = {"unknown": ["lzma"], "empty-name": [""], "int": [1], "upper": ["LZ4"], "short": [], "long": [None, "zlib"], "is-str": "lz4"}
    for name, codec in codecs.items():
        yield "compression-" + name, {"compression": codec}
    splits = {"past-end": (..., [5]), "count-huge": ([2**62], ...), "negative-offset": (..., [-1]), "negative-count": ([-1], ...), "lists-differ": ([1, 1], ...)}
    splits |= {"overlap": ([1, 1], [0, 0]), "no-offsets": (..., ABSENT), "string": ("1", ...), "sum-wraps": ([2], [2**64 - 1])}
    for name, lists in splits.items():
        keys = zip(("split-num-sub-frames", "split-offsets"), lists)
        yield "split-" + name, {key: value for key, value in keys if value is not ...}


def blocks():
    """Compressed frames that are damaged, by codec."""
    size = lambda number: number.to_bytes(4, "little")
    stream, deflated = SNAPPY[2:], zlib.compress(b"zlib zlib zlib zlib zlib zlib zlib")
    literal = b"\x10abcdefghijklmno"
    yield "lz4", {
        "claims-4g": size(2**32 - 1) + literal,
        "claims-2g": size(2**31 - 1) + literal,
        "no-prefix": b"\x05\0",
        "empty": b"",
        "size-too-small": size(7) + LZ4[4:],
        "size-too-large": size(5000) + LZ4[4:],
        "truncated": LZ4[:-6],
        "offset-before-start": size(26) + b"\x1fa\x40\0\x01\x50aaaaa",
        "offset-zero": size(26) + b"\x1fa\0\0\x01\x50aaaaa",
        "literal-overrun": size(30) + b"\xf0\x20short",
        "length-run-endless": size(1000) + b"\xf0" + b"\xff" * 60,
        "trailing": LZ4 + b"\0\0",
        "not-lz4": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    }
    yield "snappy", {
        "varint-overflow": b"\xff" * 9 + b"\x7f" + stream,
        "varint-33-bits": b"\xff" * 4 + b"\x1f" + stream,
        "claims-4g": b"\xff" * 4 + b"\x0f" + stream,
        "varint-cut": b"\x80",
        "empty": b"",
        "length-too-small": b"\x10" + stream,
        "length-too-large": b"\xff\x7f" + stream,
        "truncated": SNAPPY[:-2],
        "copy-before-start": b"\x08\0a\x0d\x08",
        "copy-offset-zero": b"\x08\0a\x0d\0",
        "literal-overrun": b"\x20\x7cab",
    }
    yield "zlib", {
        "bad-header": b"\x79" + deflated[1:],
        "bad-adler": deflated[:-1] + bytes([deflated[-1] ^ 1]),
        "truncated": deflated[:-5],
        "empty": b"",
        "bad-block": deflated[:2] + b"\x07\xff" + deflated[4:],
        "gzip": bytes.fromhex("1f8b08000000000000034b040043beb7e801000000"),
        "bomb": zlib.compress(bytes(24_000_000), 9),
    }
    yield "zstd", {
        "bad-magic": b"\x27" + ZSTD[1:],
        "truncated": ZSTD[:-3],
        "empty": b"",
        "reserved-block": ZSTD[:6] + b"\xff" * 3 + ZSTD[9:],
        "no-content-size": ZSTD_WITHOUT_SIZE,
    }


def modern_messages():
    for name, body in bodies():
        yield "msg-" + name, [body]
    for name, frames in references():
        yield "ref-" + name, frames
    one = pack({"x": {"__Serialized__": 1}})
    packed = struct.pack("<I", len(PICKLE)) + bytes([len(PICKLE) << 4]) + PICKLE
    for name, changes in headers():
        # Compressed, by the name that nobody reads it by.
        payload = packed if name in ("compression-upper", "compression-is-str") else PICKLE
        yield "hdr-" + name, [one, pack(changed(HEADER, changes)), payload]
    for codec, frames in blocks():
        for name, frame in frames.items():
            yield f"{codec}-{name}", [one, pack({**HEADER, "compression": [codec]}), frame]


def classic():
    body = pack({"a": 1})
    size, top = len(body), 2**64 - 1
    for name, count in (("2p60", 2**60), ("u64max", top), ("2p61", 2**61)):
        yield "nframes-" + name, u64(count, 0, 2) + body
    yield "length-u64max", u64(2, 0, top) + body
    yield "lengths-sum-wraps", u64(2, 2**64 - 4, size + 4) + body
    yield "nframes-0", u64(0)
    yield "nframes-1", u64(1, 0)
    for end in (0, 5, 8, 19, 24, 26):
        yield f"truncated-at-{end}", plain([b"", body])[:end]
    yield "header-is-array", plain([pack([1]), body])
    yield "header-cut", plain([b"\x81\xabcompression\xa3lz", body])
    for name, codec in (("compression-unknown", "brotli"), ("not-compressed", "zlib")):
        yield "message-" + name, plain([pack({"compression": codec}), body])
    yield "message-lz4-4g", plain([pack({"compression": "lz4"}), b"\xff" * 4 + b"\x10abcdefghijklmno"])
    for name, case in classic_payloads():
        yield "cl-" + name, plain([b"", *case])


def classic_payloads():
    head = {"serializer": "pickle", "writeable": [False], "lengths": [5], "compression": [None], "count": 1}

    def case(body=None, keys=(("x",),), frames=(PICKLE,), heads=None, changes=None, entries=None):
        heads = {key: changed(head, changes or {}) for key in keys} if heads is None else heads
        top = {"headers": heads, "keys": keys, "bytestrings": []}
        return [pack(body or {"a": 1}), pack(changed(top, entries or {})), *frames]

    paths = {"missing": ("q", "x"), "into-scalar": ("a", "x")}
    for name, path in paths.items():
        yield "path-" + name, case(keys=[path])
    indices = {"index-out": 2, "index-far": 2**63, "index-negative": -1, "str-in-list": "0"}
    for name, index in indices.items():
        yield "path-" + name, case([1, 2], keys=[(index,)])
    for name, path in (("string", "x"), ("int", 5)):
        yield "path-is-" + name, case(keys=[path])
    for key in ("headers", "keys", "bytestrings"):
        yield "no-" + key, case(entries={key: ABSENT})
    yield "header-of-key-missing", case(heads={})
    yield "header-not-map", case(heads={("x",): [1]})
    counts = {"too-large": 3, "huge": 2**63, "negative": -1, "string": "1", "missing": ABSENT}
    for name, count in counts.items():
        yield "count-" + name, case(changes={"count": count})
    lengths = {"too-large": [6], "too-small": [4], "negative": [-1, 6], "wrap": [2**64 - 1, 6]}
    for name, numbers in lengths.items():
        yield "lengths-" + name, case(changes={"lengths": numbers, "writeable": [False] * len(numbers)})
    yield "lengths-missing", case(changes={"lengths": ABSENT})
    yield "compression-unknown", case(changes={"compression": ["xz"]})
    yield "frames-left-over", case(frames=[PICKLE, b"left", b"over"])
    yield "duplicate-path", case(keys=[("x",), ("x",)], frames=[PICKLE, PICKLE])
    yield "count-one-no-frame", case(frames=[])
    body, top, frame = case()
    yield "header-frame-empty", [body, b"", frame]
    yield "header-frame-array", [body, pack([1, 2]), frame]
    yield "message-is-scalar", [pack(7), top, frame]


def everything(_):
    made = {f"classic--{name}": data for name, data in classic()}
    for framing, more in (("total", total()), ("nosplit", nosplit())):
        for name, data in (*with_prefix(), *more):
            made[f"{framing}--{name}"] = data
    for name, frames in modern_messages():
        made[f"nosplit--{name}"] = prefixed(frames)
    return {f"hostile/{name}.bin": data for name, data in made.items()}


def main(doc, pattern, make):
    """Makes the files of a folder that match a pattern, or compares them."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=pathlib.Path, help="folder of the vectors, to write to")
    where.add_argument("--check", type=pathlib.Path, metavar="DIR", help="folder to compare with")
    arguments = parser.parse_args()
    root = arguments.out or arguments.check
    made = make(root)
    if arguments.out:
        for name, data in made.items():
            (root / name).write_bytes(data)
        print(f"{pattern}: wrote {len(made)} files")
        return 0
    stored = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.glob(pattern)}
    wrong = sorted(name for name in made.keys() | stored.keys() if made.get(name) != stored.get(name))
    for name in wrong:
        what = "stored, not made now" if name not in made else "made now, not stored" if name not in stored else "differs"
        print(f"{name}: {what}", file=sys.stderr)
    print(f"{pattern}: {len(made)} files made again, {len(wrong)} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(__doc__, "hostile/*.bin", everything))
