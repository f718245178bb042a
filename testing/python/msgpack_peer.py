"""Reads and writes documents with msgpack-python.

Uses the records of exchange.py; the word after `ready` is its version.

    {"op": "random", "seed": N, "count": K}
        K random documents, packed back to back; `documents`: for each its
        `len` and its `value` in tagged JSON (core/tests/vectors/README.md).
    {"op": "repack"} and one packed document
        The same document as msgpack-python packs it: each value in its
        shortest form. A repeated map key keeps its last value.
    {"op": "unpack"} and one packed document
        `value`: the document in tagged JSON.
"""

import random

import exchange  # noqa: I001  (finds the two modules after it)

import msgpack

from cases import random_document
from tagged import tag


def unpack(data):
    return msgpack.unpackb(data, raw=False, strict_map_key=False, use_list=False, timestamp=0)


def pack(document):
    return msgpack.packb(document, use_bin_type=True)


def random_documents(question, data):
    source = random.Random(question["seed"])
    documents, packed = [], []
    for _ in range(question["count"]):
        document = random_document(source)
        packed.append(pack(document))
        documents.append({"len": len(packed[-1]), "value": tag(document)})
    return {"documents": documents}, b"".join(packed)


def repack(question, data):
    return pack(unpack(data))


def unpacked(question, data):
    return {"value": tag(unpack(data))}


if __name__ == "__main__":
    version = ".".join(map(str, msgpack.version))
    exchange.serve(version, {"random": random_documents, "repack": repack, "unpack": unpacked})
