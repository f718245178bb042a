"""Builds values from pickles with CPython, and inert trees from any pickle.

Uses the records of exchange.py; the word after `ready` is Python's version.

    {"op": "inert", "seed": N, "count": K, "kind": KIND}
        K pickles of a kind of pickle_read_peer.py with their buffers, back to back.
        `pickles`: for each its `len`, its `buffers` as lengths, and as `text` the tree
        that CPython's stack machine builds without importing names; null if it
        fails.
    {"op": "corpus", "dask": BOOL}
        The same for the pickles of pickle_read_peer.py, each with its `name`.
    {"op": "values", "seed": N, "count": K}
        The same for values that both sides can represent, with the results of
        `pickle.loads`.
"""

import exchange  # noqa: I001  (finds the modules after it)

import collections
import io
import pickle
import pickletools
import platform
import random
import struct
import sys
import warnings

import numpy

import pickle_read_peer as made


class Made:
    """An object other than a scalar or a tuple: its parts, and the operations on it."""

    def __init__(self, kind, *parts):
        self.kind, self.parts, self.done = kind, parts, []

    is_object = property(lambda self: self.kind not in ("list", "dict", "set", "frozenset"))


class ByteString:
    """A `str` of Python 2."""

    def __init__(self, data):
        self.data = data


class ReadOnlyBytearray:
    def __init__(self, data):
        self.data = data


class Buffer:
    def __init__(self, index, data, read_only=False):
        self.index, self.data, self.read_only = index, data, read_only


class Refused(Exception):
    pass


def check(condition):
    if not condition:
        raise Refused


class Inert(pickle._Unpickler):
    """The stack, the marks and the memo of CPython, with placeholders for names."""

    dispatch = dict(pickle._Unpickler.dispatch)

    def __init__(self, data, buffers):
        self.file = io.BytesIO(data)
        super().__init__(self.file, fix_imports=False)
        self.beside, self.used = buffers, 0

    def find_class(self, module, name):
        return Made("global", module, name)

    def persistent_load(self, pid):
        return Made("persistent", pid)

    def get_extension(self, code):
        check(code > 0)
        self.append(Made("extension", code))

    def _decode_string(self, value):
        return ByteString(value)

    def put(self, kinds, done, items):
        target = self.stack[-1]
        if items:
            check(isinstance(target, Made) and (target.is_object or target.kind in kinds))
            target.done.append([done, *items])

    def check_call(self, callable_, arguments):
        check(isinstance(callable_, Made) and callable_.is_object)
        check(isinstance(arguments, tuple) or isinstance(arguments, Made) and arguments.is_object)


def opcode(code):
    def register(function):
        Inert.dispatch[code[0]] = function
        return function

    return register


@opcode(pickle.FRAME)
def load_frame(self):
    # The length is only a hint, which the unpickler in C ignores.
    (len_,) = struct.unpack("<Q", self.read(8))
    check(len_ <= len(self.file.getbuffer()) - self.file.tell())


@opcode(pickle.INT)
def load_int(self):
    # Decimal digits, as in pickletools; unpicklers accept other bases too.
    line = self.readline()[:-1]
    self.append({b"00": False, b"01": True}[line] if line in (b"00", b"01") else int(line))


@opcode(pickle.LONG)
def load_long(self):
    line = self.readline()[:-1]
    self.append(int(line[:-1] if line.endswith(b"L") else line))


def container(code, kind, marked=False):
    @opcode(code)
    def load(self):
        made_ = Made(kind)
        if marked:
            items = self.pop_mark()
            check(kind != "dict" or len(items) % 2 == 0)
            if items:
                made_.done.append([{"dict": "set", "list": "append"}.get(kind, "add"), *items])
        self.append(made_)


container(pickle.EMPTY_LIST, "list")
container(pickle.EMPTY_DICT, "dict")
container(pickle.EMPTY_SET, "set")
container(pickle.LIST, "list", True)
container(pickle.DICT, "dict", True)
container(pickle.FROZENSET, "frozenset", True)


@opcode(pickle.APPEND)
def load_append(self):
    item = self.stack.pop()
    self.put(["list"], "append", [item])


@opcode(pickle.APPENDS)
def load_appends(self):
    self.put(["list"], "append", self.pop_mark())


@opcode(pickle.ADDITEMS)
def load_additems(self):
    self.put(["set"], "add", self.pop_mark())


@opcode(pickle.SETITEM)
def load_setitem(self):
    item = self.stack.pop()
    key = self.stack.pop()
    self.put(["dict"], "set", [key, item])


@opcode(pickle.SETITEMS)
def load_setitems(self):
    items = self.pop_mark()
    check(len(items) % 2 == 0)
    self.put(["dict"], "set", items)


@opcode(pickle.STACK_GLOBAL)
def load_stack_global(self):
    name = self.stack.pop()
    module = self.stack.pop()
    check(all(isinstance(part, (str, ByteString)) for part in (name, module)))
    self.append(Made("global", module, name))


@opcode(pickle.REDUCE)
def load_reduce(self):
    arguments = self.stack.pop()
    callable_ = self.stack.pop()
    self.check_call(callable_, arguments)
    self.append(Made("call", callable_, arguments))


@opcode(pickle.NEWOBJ)
def load_newobj(self):
    arguments = self.stack.pop()
    class_ = self.stack.pop()
    self.check_call(class_, arguments)
    self.append(Made("new", class_, arguments))


@opcode(pickle.NEWOBJ_EX)
def load_newobj_ex(self):
    keywords = self.stack.pop()
    arguments = self.stack.pop()
    class_ = self.stack.pop()
    self.check_call(class_, arguments)
    check(isinstance(keywords, Made) and (keywords.is_object or keywords.kind == "dict"))
    self.append(Made("new", class_, arguments, keywords))


@opcode(pickle.OBJ)
def load_obj(self):
    arguments = self.pop_mark()
    class_ = arguments.pop(0)
    self.check_call(class_, ())
    self.append(Made("object", class_, tuple(arguments)))


@opcode(pickle.INST)
def load_inst(self):
    module = self.readline()[:-1].decode("ascii")
    name = self.readline()[:-1].decode("ascii")
    arguments = self.pop_mark()
    self.append(Made("instance", module, name, tuple(arguments)))


@opcode(pickle.BUILD)
def load_build(self):
    state = self.stack.pop()
    target = self.stack[-1]
    check(isinstance(target, Made) and target.is_object)
    target.done.append(["state", state])


@opcode(pickle.NEXT_BUFFER)
def load_next_buffer(self):
    check(self.used < len(self.beside))
    self.append(Buffer(self.used, self.beside[self.used]))
    self.used += 1


@opcode(pickle.READONLY_BUFFER)
def load_readonly_buffer(self):
    top = self.stack[-1]
    if isinstance(top, bytearray):
        self.stack[-1] = ReadOnlyBytearray(top)
    elif isinstance(top, Buffer):
        if not top.read_only:
            self.stack[-1] = Buffer(top.index, top.data, True)
    elif isinstance(top, Made) and top.is_object:
        self.stack[-1] = Made("read-only", top)
    else:
        check(isinstance(top, (bytes, ReadOnlyBytearray)))


def integer(value):
    len_ = (value if value >= 0 else ~value).bit_length() // 8 + 1
    return f"int {value.to_bytes(len_, 'little', signed=True).hex()}"


def scalar(value):
    kind = type(value)
    if value is None or kind is bool:
        return str(value)
    if kind is int:
        return integer(value)
    if kind is float:
        return f"float {struct.pack('>d', value).hex()}"
    if kind is str:
        return f"str {value.encode('utf-8', 'surrogatepass').hex()}"
    if kind in (bytes, bytearray):
        return f"{kind.__name__} {value.hex()}"
    return None


def inert_text(value, seen):
    """Formats like `inert_text` of pickle_tree.rs: a repeated object is written as its number."""
    found = scalar(value)
    if found is not None:
        return found
    kind = type(value)
    if kind is ByteString:
        return f"bytestring {value.data.hex()}"
    if kind is ReadOnlyBytearray:
        return f"read-only bytearray {value.data.hex()}"
    if kind is Buffer:
        return f"buffer {value.index} {value.read_only} {value.data.hex()}"
    name, parts, done = ("tuple", value, []) if kind is tuple else (value.kind, value.parts, value.done)
    if name == "global":
        # Strings have no identity here; a ByteString is equivalent to its bytes.
        names = [part.data if isinstance(part, ByteString) else part.encode("utf-8", "surrogatepass") for part in parts]
        name, parts = " ".join(["global", *(part.hex() for part in names)]), ()
    elif name == "extension":
        name, parts = f"extension {parts[0]}", ()
    elif name == "instance":
        name, parts = f"instance {parts[0].encode().hex()} {parts[1].encode().hex()}", parts[2:]
    if parts or done:
        if id(value) in seen:
            return f"@{seen[id(value)]}"
        seen[id(value)] = len(seen)
    out = f"{name}({','.join(inert_text(part, seen) for part in parts)})"
    # Equal items in different batches have the same text.
    for step, *items in done:
        width = 2 if step == "set" else 1
        for at in range(0, len(items), width):
            out += f".{step}({','.join(inert_text(item, seen) for item in items[at : at + width])})"
    return out


def built(document, buffers, is_whole):
    """Returns the result of the stack machine as text; None if it fails."""
    if not is_whole:
        return None
    unpickler = Inert(document, buffers)
    try:
        value = unpickler.load()
        check(unpickler.used == len(buffers))
        return inert_text(value, {})
    except (Refused, pickle.UnpicklingError, IndexError, KeyError):
        return None


def inert(question, data):
    source = random.Random(question["seed"])
    described, out = [], []
    for _ in range(question["count"]):
        document = made.KINDS[question["kind"]](source)
        lines, is_whole = made.judged(document)
        wanted = sum(line.split()[1] == "NEXT_BUFFER" for line in lines)
        count = max(0, wanted + source.choice([0] * 20 + [-1, 1]))
        buffers = [bytes([index]) * source.randrange(3) for index in range(count)]
        text = built(document, buffers, is_whole)
        described.append({"len": len(document), "buffers": list(map(len, buffers)), "text": text})
        out += [document, *buffers]
    return {"pickles": described}, b"".join(out)


def corpus(question, data):
    described, out = [], []
    for name, document, buffers in made.corpus(question["dask"]):
        text = built(document, buffers, True)
        check(text is not None)
        described.append({"name": name, "len": len(document), "buffers": list(map(len, buffers)), "text": text})
        out += [document, *buffers]
    return {"pickles": described}, b"".join(out)


def dtype_text(dtype):
    order = {"=": "<" if sys.byteorder == "little" else ">"}.get(dtype.byteorder, dtype.byteorder)
    unit = "%s %d" % numpy.datetime_data(dtype) if dtype.kind in "Mm" else "-"
    return f"{dtype.kind} {dtype.itemsize} {order} {unit}"


def value_text(value):
    """Formats like `value_text` of pickle_tree.rs."""
    found = scalar(value)
    if found is not None:
        return found
    kind = type(value)
    if kind in (tuple, list):
        return f"{kind.__name__}({','.join(map(value_text, value))})"
    if kind in (set, frozenset):
        return f"{kind.__name__}({','.join(sorted(map(value_text, value)))})"
    if kind is dict:
        return f"dict({','.join(value_text(key) + ':' + value_text(item) for key, item in value.items())})"
    if kind is complex:
        return f"complex {struct.pack('>dd', value.real, value.imag).hex()}"
    if kind is numpy.ndarray:
        # Numpy byte-swaps some data when it loads it.
        read_only = not value.flags.writeable
        value = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return f"array {dtype_text(value.dtype)} {list(value.shape)} {read_only} {value.tobytes('C').hex()}"
    if isinstance(value, numpy.dtype):
        return f"dtype {dtype_text(value)}"
    if isinstance(value, numpy.generic):
        return f"scalar {dtype_text(value.dtype)} {value.tobytes().hex()}"
    if isinstance(value, BaseException):
        return f"exception {kind.__name__}({','.join(map(value_text, value.args))})"
    raise TypeError(kind)


def array(source):
    dtype = source.choice(["<f8", ">f8", "<i4", "?", "u1", "<c16", "U3", "S5", "<M8[ns]", "m8[3D]", ">U2", "f2", "V3"])
    shape = [source.choice([0, 1, 2, 3]) for _ in range(source.randrange(4))]
    data = made.randbytes(source, int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize)
    if "U" in dtype:
        data = bytes(len(data))
    if dtype == "?":
        data = bytes(byte & 1 for byte in data)
    out = numpy.frombuffer(bytearray(data), dtype).reshape(shape)
    out = source.choice([lambda: out, lambda: numpy.asfortranarray(out), lambda: out.T, lambda: out[..., ::2] if shape else out])()
    if source.random() < 0.3:
        out.flags.writeable = False
    return out


ATOMS = [
    *made.ATOMS[1:7],
    *made.ATOMS[1:7],
    lambda source: source.choice([None, True, False]),
    lambda source: complex(source.random(), -source.random()),
    array,
    array,
    lambda source: array(source).dtype,
    lambda source: numpy.float32(source.random()),
    lambda source: numpy.datetime64(source.randrange(1 << 40), source.choice(["s", "D", "ns"])),
    lambda source: source.choice([ValueError, KeyError, ZeroDivisionError, RuntimeError])(source.randrange(9), "text"),
]


def plain(source, depth, seen):
    if seen and source.random() < 0.1:
        return source.choice(seen)
    if depth == 0 or source.random() < 0.3:
        return source.choice(ATOMS)(source)
    items = [plain(source, depth - 1, seen) for _ in range(source.choice([0, 1, 2, 3, 4]))]
    keys = [source.choice([f"k{source.randrange(9)}", source.randrange(9), (1, "t"), b"k", 1.5]) for _ in items]
    out = source.choice([items, tuple(items), dict(zip(keys, items)), set(keys), frozenset(keys)])
    seen.append(out)
    return out


def values(question, data):
    source = random.Random(question["seed"])
    described, out = [], []
    for _ in range(question["count"]):
        value = plain(source, source.randrange(4), [])
        protocol = source.randrange(6)
        buffers = []
        callback = {"buffer_callback": buffers.append} if protocol == 5 and source.random() < 0.7 else {}
        document = pickle.dumps(value, protocol, **callback)
        parts = [buffer.raw().tobytes() for buffer in buffers]
        # Memory of buffers is writable unless the pickle declares it read-only.
        loaded = pickle.loads(document, buffers=[bytearray(part) for part in parts])
        described.append({"len": len(document), "buffers": list(map(len, parts)), "text": value_text(loaded)})
        out += [document, *parts]
    return {"pickles": described}, b"".join(out)


if __name__ == "__main__":
    # Later versions of Python will reject some of the escapes.
    warnings.simplefilter("ignore")
    # Integers are converted to text, which late releases of 3.8 limit, too.
    sys.set_int_max_str_digits(0)
    exchange.serve(platform.python_version(), {"inert": inert, "corpus": corpus, "values": values})
