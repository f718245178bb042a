"""Tests that values have the bytes of Dask's serialization, and are loaded from them."""

import importlib.util
import sys

import msgpack
import numpy

from distributed.protocol import to_serialize
from distributed.protocol.serialize import serialize_and_split

spec = importlib.util.spec_from_file_location("daskwire.worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)


class Text(str):
    """No scalar, although its base class is."""


values = [None, True, 3, 2**80, 1.5, 2j, "text", "__main__", "x" * worker.LONG, Text("text")]
values += [b"bytes", (1, 2), [numpy.ones(3)], numpy.ones(9), numpy.ones(9)[::2], {"a": {1}}]
for value in values:
    header, frames = worker.serialize(value)
    as_by_dask = serialize_and_split(to_serialize(value), on_error="raise", context={})
    fields = msgpack.loads(header, object_hook=worker.msgpack_decode_default, use_list=False)
    assert fields.pop("num-sub-frames") == len(frames)
    # Some of Dask's fields are lists, others tuples.
    assert msgpack.dumps(fields) == msgpack.dumps(as_by_dask[0]), value
    assert [bytes(frame) for frame in frames] == [bytes(frame) for frame in as_by_dask[1]]

    body = msgpack.dumps({"value": {"__Serialized__": 1}})
    message = worker.read([body, header, *frames])
    loaded = message["value"].load()
    assert type(loaded) is type(value)
    if isinstance(value, numpy.ndarray):
        assert loaded.flags.writeable == value.flags.writeable
    assert repr(loaded) == repr(value)
print("passed")
