"""Reads and writes messages with the release of this environment.

Uses the records of exchange.py; the word after `ready` is the release.

    {"op": "read"} and one message, as on a socket
        The message as described in core/tests/vectors/README.md. The release
        decompresses and merges payloads, and unpickles nothing.
    {"op": "value"} and one message
        `value`: Python's repr() of the message with unpickled payloads. Memoryviews
        are replaced by their contents, because their repr() contains addresses.
        Executes pickles.
    {"op": "forward"} and one message
        The bytes that a scheduler of this release forwards for it.
    {"op": "write", "case": NAME} or {"op": "write", "seed": N}
        The bytes that this release writes for that case, or for a random
        message, and their description in the format of `read`.
    {"op": "cases"}
        `cases`: the names that `write` accepts.
"""

import exchange

from cases import cases, random_message
from release import Release

RELEASE = Release()
CASES = {case.name: case for case in cases(RELEASE)}


def read(question, data):
    return RELEASE.describe(data)


class Shown:
    """An object whose repr() is `text`."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def without_addresses(value):
    """Returns `value` with its memoryviews replaced by their contents."""
    if isinstance(value, memoryview):
        return Shown(f"<memoryview {value.format!r} {value.shape} readonly={value.readonly} {value.tolist()}>")
    if type(value) is dict:
        return {without_addresses(key): without_addresses(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(without_addresses(item) for item in value)
    return value


def value(question, data):
    return {"value": repr(without_addresses(RELEASE.read_value(data)))}


def forward(question, data):
    return RELEASE.write(RELEASE.read_forwardable(data))


def write(question, data):
    case = CASES[question["case"]] if "case" in question else random_message(RELEASE, question["seed"])
    written = RELEASE.write(case.build(), codec=case.codec, shard_len=case.shard_len, serializers=case.serializers)
    return RELEASE.describe(written), written


def names(question, data):
    return {"cases": list(CASES)}


if __name__ == "__main__":
    exchange.serve(RELEASE.name, {"read": read, "value": value, "forward": forward, "write": write, "cases": names})
