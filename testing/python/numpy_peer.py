"""Makes numpy arrays of every kind, as pickles and as payloads.

Uses the records of exchange.py; the word after `ready` is numpy's version.

    {"op": "pickled", "seed": N, "count": K}
        K pickles with their buffers, back to back. `values`: for each its `frames`
        as lengths, the pickle first, and its description as `text`.
    {"op": "sent", "seed": N, "count": K}
        The same for messages `{"x": value}`, with all their frames.
"""

import exchange  # noqa: I001  (finds the modules after it)

import pickle
import random
import warnings

import numpy as np
from distributed.protocol import dumps, loads, to_serialize

PLAIN = [
    *"?bBhHiIqQefdgFDG",
    *("S0", "S1", "S5", "U0", "U1", "U4", "V1", "V7", "M8", "M8[ns]", "M8[25s]", "m8[D]", "m8[3us]"),
]
LIST_PICKLE = 2
LETTERS = "abxyz_ é数🦀"


def text(source, taken):
    while (word := "".join(source.choices(LETTERS, k=source.randrange(1, 6)))) in taken:
        pass
    taken.add(word)
    return word


def plain(source, objects):
    if objects and source.random() < 0.3:
        return np.dtype(object)
    return np.dtype(source.choice(PLAIN)).newbyteorder(source.choice("<>"))


def dtype(source, depth, known, objects=False):
    """Returns a random dtype, possibly with fields; reuses some dtypes in `known`."""
    if known and source.random() < 0.3:
        return source.choice(known)
    if depth == 0 or source.random() < 0.4:
        found = plain(source, objects)
    else:
        found = record(source, depth, known, objects)
    known.append(found)
    return found


def record(source, depth, known, objects):
    taken = set()
    count = source.choice([1, 1, 2, 3, 5, 12])
    names = [text(source, taken) for _ in range(count)]
    titles = [text(source, taken) if source.random() < 0.2 else None for _ in names]
    parts = [dtype(source, depth - 1, known, objects) for _ in names]
    shapes = [tuple(source.choices([0, 1, 2, 3], k=source.randrange(1, 3))) if source.random() < 0.2 else () for _ in names]
    # Numpy would interpret a shape as a length if the element is empty.
    formats = [(part, shape) if shape and part.itemsize else part for part, shape in zip(parts, shapes)]
    spec = {"names": names, "formats": formats, "titles": titles}
    if not objects and source.random() < 0.4:
        spec["offsets"] = [source.randrange(40) for _ in names]
        end = max(offset + np.dtype(each).itemsize for offset, each in zip(spec["offsets"], formats))
        spec["itemsize"] = end + source.randrange(5)
        return np.dtype(spec)
    found = np.dtype(spec, align=source.random() < 0.5)
    return np.dtype((np.record, found)) if source.random() < 0.1 else found


def shape(source):
    return tuple(source.choices([0, 1, 2, 3, 4], [1, 3, 4, 4, 2], k=source.choice([0, 1, 1, 2, 2, 3])))


def array(source):
    known = []
    size = shape(source)
    if source.random() < 0.15:
        out = np.empty(size, object)
        out[...] = np.arange(out.size).reshape(size)
    elif source.random() < 0.1:
        # Arrays of objects, some of them with fields.
        kind = dtype(source, 2, known, objects=True)
        # Numpy handles elements without objects inconsistently.
        out = np.zeros(size, kind if bool(kind.flags & LIST_PICKLE) == kind.hasobject else object)
    else:
        kind = dtype(source, 3, known)
        count = int(np.prod(size, dtype=int))
        out = np.frombuffer(bytearray(source.randbytes(count * kind.itemsize)), dtype="u1")
        out = np.ndarray(size, kind, out)
    step = source.randrange(5)
    if step == 0:
        out = np.asfortranarray(out)
    elif step == 1 and out.ndim:
        out = out.transpose(source.sample(range(out.ndim), out.ndim))
    elif step == 2 and out.ndim:
        out = out[::2]
    return out


def masked(source):
    while True:
        data = array(source)
        mask = np.frombuffer(source.randbytes(data.size), "u1") % 2 == 0
        mask = source.choice([np.ma.nomask, mask.reshape(data.shape)])
        try:
            out = np.ma.masked_array(data, mask) if data.dtype.names is None else np.ma.masked_array(data)
            # Numpy cannot pickle the fill value of some dtypes.
            pickle.dumps(out.fill_value)
            return source.choice([out, out.copy()])
        except (TypeError, ValueError, KeyError):
            pass


def value(source, in_pickle):
    kind = source.randrange(10)
    if kind == 0:
        return masked(source)
    if kind == 1 and in_pickle:
        return dtype(source, 3, [], source.random() < 0.2)
    if kind == 2 and in_pickle:
        out = array(source).reshape(-1)
        # Random characters are not a valid string, empty bytes become one byte, and long
        # doubles contain padding.
        is_scalar = out.size and not out.dtype.hasobject and out.dtype.char not in "UgG" and out[0].nbytes
        return out[0] if is_scalar else np.ma.masked
    out = array(source)
    if kind == 3:
        out = source.choice([lambda: np.matrix(np.arange(4).reshape(2, 2)), lambda: out.view(np.recarray)])()
    elif kind == 4 and out.size:
        out = out.view()
        out.flags.writeable = False
    return out


def type_text(kind):
    base, sub = (kind.subdtype or (kind, ())) if kind.subdtype else (kind, ())
    before = str(list(sub)) if sub else ""
    if base.names is None:
        return before + base.str
    fields = []
    for name in base.names:
        each, offset, *title = base.fields[name]
        fields.append(f"{name}({title[0] if title else ''})@{offset} {type_text(each)}")
    return f"{before}V{base.itemsize}{{{', '.join(fields)}}}"


def data_text(out):
    """Formats all scalar elements of all fields, in C order."""
    out = np.asarray(out)
    if out.dtype.names is None:
        return out.tobytes("C").hex()
    return "{" + ", ".join(data_text(out[name]) for name in out.dtype.names) + "}"


def array_text(out):
    out = out.view(np.ndarray)
    if out.dtype.hasobject:
        items = [str(len(item)) if isinstance(item, tuple) else str(item) for item in out.ravel("C").tolist()]
        return f"objects {type_text(out.dtype)} {list(out.shape)} [{', '.join(items)}]"
    return f"array {type_text(out.dtype)} {list(out.shape)} {data_text(out)}"


def value_text(out, header=None):
    """Returns the description of a value; `header` is its payload header, unless it was pickled."""
    if out is np.ma.masked:
        return "masked"
    if isinstance(out, np.dtype):
        return f"dtype {type_text(out)}"
    if isinstance(out, np.ma.MaskedArray):
        # A pickle always contains a mask, even if the array has none.
        mask = out.mask if header else np.ma.getmaskarray(out)
        mask = "none" if mask is np.ma.nomask else mask.tobytes("C").hex()
        return f"masked {array_text(out.data)} {mask}"
    if isinstance(out, np.generic):
        return f"scalar {type_text(out.dtype)} {data_text(out)}"
    if out.dtype.hasobject:
        return array_text(out)
    own = header and header.get("sub-header", header)
    # Old releases send a matrix as a plain array.
    kind = "matrix " if (own.get("matrix") if own else isinstance(out, np.matrix)) else ""
    # Arrays that Dask has copied are writable.
    flag = own["writeable"][0] if own else out.flags.writeable
    return f"{kind}{array_text(out)} {flag}"


def described(values):
    frames, out = [], []
    for parts, text_ in values:
        frames.append({"frames": [len(part) for part in parts], "text": text_})
        out += parts
    return {"values": frames}, b"".join(out)


def pickled(question, data):
    source = random.Random(question["seed"])

    def one():
        protocol = source.randrange(6)
        out = value(source, True)
        flag = value_text(out)
        if protocol == 0 and not flag.isascii():
            # Protocol 0 escapes names, so that they are not available as strings.
            protocol = 1
        buffers = []
        callback = {"buffer_callback": buffers.append} if protocol == 5 and source.random() < 0.7 else {}
        document = pickle.dumps(out, protocol, **callback)
        # In a pickle, only arrays in buffers are read-only.
        if flag.endswith(" False") and b"_frombuffer" not in document:
            flag = flag.removesuffix("False") + "True"
        return [document, *(buffer.raw().tobytes() for buffer in buffers)], flag

    return described(one() for _ in range(question["count"]))


def sent(question, data):
    source = random.Random(question["seed"])

    def one():
        while True:
            out = value(source, False)
            if isinstance(out, np.ma.MaskedArray) and out.dtype.hasobject:
                continue
            try:
                frames = [bytes(frame) for frame in dumps({"x": to_serialize(out)}, context={"compression": None})]
            except (TypeError, ValueError, ZeroDivisionError):
                # Dask cannot send every array with elements of zero bytes.
                continue
            return frames, value_text(out, loads(frames, deserialize=False)["x"].header)

    return described(one() for _ in range(question["count"]))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    exchange.serve(np.__version__, {"pickled": pickled, "sent": sent})
