"""Writes pickles with CPython, and describes them with `pickletools`.

Uses the records of exchange.py; the word after `ready` is Python's version.

    {"op": "random", "seed": N, "count": K, "kind": "written" | "damaged" | "text"}
        K pickles back to back. `pickles`: for each its `len`, the SHA-256 of the
        description of its opcodes (core/tests/vectors/pickle_tokens.py) up to the first
        one that is rejected, their `count`, and whether it is `whole`, that is, valid up
        to STOP. Kinds: random values written by `pickle.dumps`; the same with bytes
        changed; text opcodes with random lines.
    {"op": "judge", "pickles": [LEN, ...]} and as many pickles back to back
        `pickles`: the same description for each.
    {"op": "corpus", "dask": BOOL}
        The same for the values of pickle_cases.py, pickled by this Python, with or
        without the values of Dask, in all protocols, in and out of band. Each has a
        `name`, and is followed by its out-of-band buffers, whose lengths are listed.
"""

import exchange  # noqa: I001  (finds the module after it)

import collections
import datetime
import decimal
import hashlib
import io
import pickle
import pickletools
import platform
import random
import warnings

import pickle_cases
import pickle_tokens


def randbytes(source, count):
    """Returns the same as `source.randbytes` of Python 3.9 and newer."""
    return source.getrandbits(8 * count).to_bytes(count, "little") if count else b""


class Named:
    def __init__(self, state):
        self.__dict__.update(state)


class Pickler(pickle.Pickler):
    """A pickler that gives some objects a persistent id."""

    def persistent_id(self, value):
        return f"id-{id(value) % 7}" if isinstance(value, Persistent) else None


class Persistent:
    pass


ATOMS = [
    lambda source: source.choice([None, True, False, ..., int, len, Named]),
    lambda source: source.randint(-300, 300),
    lambda source: source.choice([1, -1]) * source.getrandbits(source.choice([8, 16, 31, 32, 33, 63, 64, 100, 2100])),
    lambda source: source.choice([0.0, -0.0, float("inf"), float("nan"), source.random(), source.gauss(0, 1e200)]),
    lambda source: "".join(
        source.choice(["a", "\n", "\\", "é", "\ud800", "😀", "\0", "\\u0041", "'", "\x85"])
        for _ in range(source.choice([0, 1, 5, 300]))
    ),
    lambda source: randbytes(source, source.choice([0, 1, 5, 300])),
    lambda source: bytearray(randbytes(source, source.choice([0, 1, 5, 300]))),
    lambda source: pickle.PickleBuffer(source.choice([bytes, bytearray])(b"buffer")),
    lambda source: datetime.datetime(2000 + source.randrange(50), 1, 1, tzinfo=datetime.timezone.utc),
    lambda source: decimal.Decimal(source.randint(0, 1000)) / 7,
    lambda source: Persistent(),
]


def value(source, depth, seen):
    if seen and source.random() < 0.1:
        return source.choice(seen)
    if depth == 0 or source.random() < 0.3:
        return source.choice(ATOMS)(source)
    items = [value(source, depth - 1, seen) for _ in range(source.choice([0, 1, 2, 3, 4, 8]))]
    keys = [source.choice([f"k{source.randrange(9)}", source.randrange(9), (1, "t")]) for _ in items]
    made = source.choice(
        [
            lambda: items,
            lambda: tuple(items),
            lambda: dict(zip(keys, items)),
            lambda: set(keys),
            lambda: frozenset(keys),
            lambda: Named({f"a{index}": item for index, item in enumerate(items)}),
            lambda: collections.OrderedDict(zip(keys, items)),
            lambda: collections.deque(items),
        ]
    )()
    if isinstance(made, list) and source.random() < 0.1:
        made.append(made)
    seen.append(made)
    return made


def written(source):
    while True:
        protocol = source.randrange(6)
        output = io.BytesIO()
        buffers = []
        choice = source.choice([None, buffers.append, lambda buffer: source.random() < 0.5])
        pickler = Pickler(output, protocol, buffer_callback=choice if protocol == 5 else None)
        try:
            pickler.dump(value(source, source.randrange(5), []))
        except pickle.PicklingError:
            # Buffers need protocol 5.
            continue
        data = output.getvalue()
        return pickletools.optimize(data) if source.random() < 0.1 else data


def damaged(source):
    data = bytearray(written(source))
    for _ in range(source.choice([1, 1, 2, 5])):
        at = source.randrange(len(data) + 1)
        kind = source.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << source.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = source.randrange(256)
        elif kind == 2:
            data[at:at] = randbytes(source, source.randrange(5))
        elif kind == 3:
            del data[at : at + source.randrange(9)]
        else:
            data[at:at] = bytes([source.choice(list(map(ord, pickletools.code2op)))])
    return bytes(data)


ALPHABETS = [b"0123456789", b" +-_.eL0159\r\t\x0b\x0c\x1c\0", b"nNaAiIfFtTyY+- ", b"'\"\\xu0178aU\xc3\xa9\xff", b"abc.\\ "]


def text(source):
    """Returns text opcodes with random lines, many of them almost valid."""
    out = []
    for _ in range(source.randrange(1, 4)):
        code = source.choice("ILSFVgpcitP")
        alphabet = source.choice(ALPHABETS)
        words = [b"", b"00", b"01", b"inf", b"\\u00e9", b"\\U0010ffff", b"\\U00110000", b"\\x41", b"\\x80", b"\\177", b"\\200", b"1e400"]
        body = bytes(source.choice(alphabet) for _ in range(source.randrange(8)))
        body = source.choice([b"", b"", source.choice(words)]) + body + source.choice([b"", b"", source.choice(words), b"L"])
        if code == "S" and source.random() < 0.8:
            quote = source.choice([b"'", b'"'])
            # A single quote is accepted by pickletools, but rejected by unpicklers.
            body = quote + body + quote if source.random() < 0.9 else quote
        out.append(code.encode() + body + b"\n" * source.choice([1, 1, 2]))
    return b"".join(out) + b"."


def judged(pickle):
    """Returns the opcodes of `pickle` that are accepted, and whether these are all."""
    lines, error = pickle_tokens.lines(pickle)
    for index, line in enumerate(lines):
        offset, name, *arguments = line.split()
        # Opcodes that genops accepts, but unpicklers reject.
        if (
            (name == "PROTO" and int(arguments[0]) > 5)
            or (name == "FRAME" and int(arguments[0]) > len(pickle) - int(offset) - 9)
            or (name in ("GET", "PUT") and not 0 <= int(arguments[0]) < 1 << 64)
        ):
            return lines[:index], False
    return lines, error is None


KINDS = {"written": written, "damaged": damaged, "text": text}


def described(made):
    lines, is_whole = judged(made)
    return {
        "len": len(made),
        "count": len(lines),
        "sha256": hashlib.sha256("\n".join(lines).encode("ascii")).hexdigest(),
        "whole": is_whole,
    }


def random_pickles(question, data):
    source = random.Random(question["seed"])
    make = KINDS[question["kind"]]
    pickles = [make(source) for _ in range(question["count"])]
    return {"pickles": list(map(described, pickles))}, b"".join(pickles)


def judge(question, data):
    answers, at = [], 0
    for len_ in question["pickles"]:
        answers.append(described(data[at : at + len_]))
        at += len_
    assert at == len(data), "there is more data than described"
    return {"pickles": answers}


def corpus(has_dask):
    """Yields the name, pickle and buffers of each case."""
    for group, cases in pickle_cases.groups(has_dask):
        for name, value in cases.items():
            for protocol, document, buffers in pickle_cases.pickles(name, value):
                beside = [buffer.raw().tobytes() for buffer in buffers or []]
                yield f"{group} {name}, protocol {protocol}, {len(beside)} buffers", document, beside


def corpus_pickles(question, data):
    answers, out = [], []
    for name, document, beside in corpus(question["dask"]):
        answers.append({"name": name, "buffers": list(map(len, beside)), **described(document)})
        out += [document, *beside]
    return {"pickles": answers}, b"".join(out)


if __name__ == "__main__":
    # Later versions of Python will reject some of the escapes.
    warnings.simplefilter("ignore")
    exchange.serve(platform.python_version(), {"random": random_pickles, "judge": judge, "corpus": corpus_pickles})
