"""The opcodes of a pickle as `pickletools.genops` sees them, one line for each.

A line is `<offset> <opcode> <argument>`, as `core/pickle/tests/it/tokens.rs`
writes it too:

| argument | written |
| --- | --- |
| none | nothing |
| an integer, index, code, length, version | in decimal; of LONG1 and LONG4 in hex: two's complement, little-endian, as short as it can be |
| a boolean | `True` or `False` |
| a float | the hex of its 8 bytes, big-endian, or `nan` |
| bytes, text (in UTF-8) | hex; if longer than 40 bytes, the length and the SHA-256 |
| a line | the same, of the raw line; two lines are two words |

In one thing `genops` is not followed: it looks for escapes in names, and refuses
names that are not ASCII, while the unpickler takes GLOBAL as UTF-8, INST and
PERSID as ASCII, and all of them as they are.
"""

import contextlib
import hashlib
import math
import pickletools
import struct

LINES = {"STRING", "UNICODE", "PERSID", "GLOBAL", "INST"}


def shown(data):
    if len(data) <= 40:
        return data.hex() or "-"
    return f"{len(data)}:{hashlib.sha256(data).hexdigest()}"


def argument(pickle, opcode, value, offset):
    name = opcode.name
    if name in LINES:
        count = 2 if name in ("GLOBAL", "INST") else 1
        lines = pickle[offset + 1 :].split(b"\n", count)[:count]
        return " ".join(shown(line) for line in lines)
    if value is None:
        return ""
    if name in ("LONG1", "LONG4"):
        signed_len = ((value if value >= 0 else ~value).bit_length() + 8) // 8 if value else 0
        return shown(value.to_bytes(signed_len, "little", signed=True))
    if name in ("GET", "PUT"):
        # A boolean for genops, if it is 00 or 01.
        return str(int(value))
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(">d", value).hex()
    if name in ("BINSTRING", "SHORT_BINSTRING"):
        return shown(value.encode("latin-1"))
    if isinstance(value, str):
        return shown(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray)):
        return shown(bytes(value))
    return str(value)


def raw_lines(count, encoding):
    """What reads `count` lines as the unpickler does."""

    def read(file):
        lines = [file.readline() for _ in range(count)]
        if not all(line.endswith(b"\n") for line in lines):
            raise ValueError("no newline found")
        return " ".join(line[:-1].decode(encoding) for line in lines)

    return read


RAW = {"c": raw_lines(2, "utf-8"), "i": raw_lines(2, "ascii"), "P": raw_lines(1, "ascii")}
ORIGINAL = {code: pickletools.code2op[code].arg for code in RAW}


@contextlib.contextmanager
def raw_names():
    """Has genops read names as the unpickler does."""
    try:
        for code, read in RAW.items():
            as_it_is = ORIGINAL[code]
            pickletools.code2op[code].arg = pickletools.ArgumentDescriptor(
                as_it_is.name, as_it_is.n, read, as_it_is.doc
            )
        yield
    finally:
        for code, descriptor in ORIGINAL.items():
            pickletools.code2op[code].arg = descriptor


def operations(pickle):
    """What genops yields, and the error that ended it, if one did."""

    def read():
        found = []
        try:
            for operation in pickletools.genops(pickle):
                found.append(operation)
        except ValueError as error:
            return found, error
        return found, None

    found, error = read()
    if error is not None:
        with raw_names():
            return read()
    return found, None


def lines(pickle):
    """The lines of `pickle`, and the error that ended them, if one did."""
    found, error = operations(pickle)
    written = [
        f"{offset} {opcode.name} {argument(pickle, opcode, value, offset)}".rstrip()
        for opcode, value, offset in found
    ]
    return written, error


def tokens(pickle):
    """The lines of `pickle`. Raises what genops raises."""
    written, error = lines(pickle)
    if error is not None:
        raise error
    return written
