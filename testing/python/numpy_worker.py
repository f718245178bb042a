"""A client of the scheduler at ADDRESS that checks values in its worker's memory.

Usage: numpy_worker.py ADDRESS

All work is done by tasks on the worker: they receive the values of the scheduler's KEYs
as stored in the worker's memory. Requests have the format described in `exchange.py`:

  describe {"keys": [KEY]}
      -> {"described": {KEY: text}}, the complete descriptions of the values.
  make {"names": [NAME]}
      Creates one of `values()` under the key `made NAME`.
  compare {"keys": {KEY: NAME}}
      -> {"problems": [text]}: the differences between each value and that of `values()`.
  derive {"keys": [KEY]}
      Creates `same KEY`, the same object, and `flipped KEY`, a copy whose arrays have
      their elements in reverse order.
      -> {"flipped": {KEY: [bool]}}: for each array of the copy, whether it is
      writable.
  flip {"keys": [KEY]}
      Reverses the arrays of the value itself, in place. -> the same for these arrays.
  leave {}
      Releases all values created here, and waits until the worker stores none. Then
      the worker and the scheduler write END to their logs.
"""

import asyncio
import io
import logging
import pickle
import sys
import warnings
from types import SimpleNamespace

warnings.simplefilter("ignore")

import cloudpickle
import numpy as np
import pandas as pd
from distributed import Client, Future, wait

import exchange
import pickle_cases
from pickle_cases import pandas_values


# In seconds, for a busy machine.
TIMEOUT = 120

END = "All is done."


def read_only(array):
    array.flags.writeable = False
    return array


def values():
    """Returns values that pandas and numpy pickle with buffers; the same in each run."""
    frame = pd.DataFrame({"i": np.arange(1000), "x": np.linspace(0, 1, 1000), "b": np.arange(1000) % 3 == 0})
    frame["when"] = pd.date_range("2026-01-01", periods=1000)
    frame["kind"] = pd.Categorical(["even", "odd"] * 500)
    frame["text"] = [f"row {number}" for number in range(1000)]
    frame.index = pd.date_range("2026-08-01", periods=1000, freq="h", tz="UTC", name="at")
    numbers, flags = pd.array([1, None, 3] * 100, dtype="Int64"), pd.array([True, None, False] * 100)
    return {
        **{f"vector {name}": value for name, value in pandas_values().items()},
        "frame": frame,
        "frame of one block": pd.DataFrame(np.arange(600.0).reshape(200, 3), columns=list("abc")),
        "frame read-only": pd.DataFrame(read_only(np.arange(600.0).reshape(200, 3)), copy=False),
        "frame nullable": pd.DataFrame({"n": numbers, "b": flags}),
        "series": pd.Series(np.arange(500, dtype="i2"), name="s"),
        "series of texts": pd.Series(["a", "βγ", None] * 100),
        "categorical": pd.Categorical(["x", "y", None] * 100, ordered=True),
        "index": pd.MultiIndex.from_product([range(20), ["a", "b"]], names=["n", "t"]),
        "tuple": ("arrays", np.arange(1000.0), read_only(np.arange(1000, dtype="<i2"))),
        "dictionary": {"array": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "text": "no array"},
        "records": np.array([(1, 2.5), (2, 3.5)], dtype=[("n", "<u4"), ("x", "<f8")]),
        "objects": np.array([1, "two", None], dtype=object),
        "masked": np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False], fill_value=-1.0),
        "object": SimpleNamespace(first=np.arange(1000.0), second=read_only(np.arange(1000, dtype="<i2")), name="both"),
    }


class Arrays(pickle.Pickler):
    """Collects the arrays of a value in the order in which they are pickled."""

    def __init__(self):
        super().__init__(io.BytesIO(), protocol=5, buffer_callback=lambda _: None)
        self.found = []

    def reducer_override(self, value):
        # Arrays of objects are always pickled in band, so that they share no memory.
        if isinstance(value, np.ndarray) and value.dtype != object:
            self.found.append(value)
        return NotImplemented


def arrays(value):
    if isinstance(value, bytearray):
        return [np.frombuffer(value, dtype="u1")]
    if isinstance(value, memoryview):
        return [np.asarray(value)]
    collected = Arrays()
    collected.dump(value)
    return collected.found


def flip(value):
    """Reverses each array in place, and returns which of them are writable."""

    def attempt(array):
        try:
            array[...] = np.flip(array)
            return True
        except ValueError as error:
            assert "read-only" in str(error), error
            return False

    return [attempt(array) for array in arrays(value)]


def flipped_copy(value):
    if isinstance(value, memoryview):
        copy = memoryview(bytearray(value)).cast(value.format, value.shape)
    elif isinstance(value, np.ndarray):
        copy = value.copy(order="K")
    else:
        # The copy shares no memory, and read-only arrays stay read-only.
        buffers = []
        parts = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        copy = pickle.loads(parts, buffers=[bytearray(buffer.raw()) for buffer in buffers])
    return copy, flip(copy)


def same(value):
    return value


def describe(value):
    """Returns the complete description of a value."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        mutability = "writeable" if value.flags.writeable else "read-only"
        elements = value.tolist() if value.size <= 100 else f"sum {value.sum()}"
        return f"{kind} {value.dtype.str} {value.shape} {value.strides} {mutability} {elements}"
    if isinstance(value, memoryview):
        mutability = "read-only" if value.readonly else "writeable"
        return f"{kind} {value.format} {value.shape} {mutability} {value.tolist()}"
    if isinstance(value, (list, tuple)):
        return f"{kind}[{', '.join(map(describe, value))}]"
    if isinstance(value, (dict, SimpleNamespace)):
        entries = value if isinstance(value, dict) else vars(value)
        return f"{kind}{{{', '.join(f'{name}: {describe(item)}' for name, item in entries.items())}}}"
    return f"{kind} {value!r}"


def problem(value, name):
    """Returns the difference between a value and that of `values()`, or None."""
    expected = values()[name]
    try:
        assert type(value) is type(expected), f"{type(value)} instead of {type(expected)}"
        if isinstance(value, pd.DataFrame):
            pd.testing.assert_frame_equal(value, expected, check_freq=True, check_flags=True)
        elif isinstance(value, pd.Series):
            pd.testing.assert_series_equal(value, expected)
        elif isinstance(value, pd.Index):
            pd.testing.assert_index_equal(value, expected, exact=True)
        elif isinstance(value, pd.Categorical):
            pd.testing.assert_extension_array_equal(value, expected)
        else:
            assert describe(value) == describe(expected), describe(value)
        flags = [[array.flags.writeable for array in arrays(each)] for each in (value, expected)]
        assert flags[0] == flags[1], f"writeable {flags[0]} instead of {flags[1]}"
    except AssertionError as error:
        return f"{name}: {error}"


def make(name):
    return values()[name]


async def end_of_worker(dask_worker):
    async with asyncio.timeout(TIMEOUT):
        while dask_worker.data:
            await asyncio.sleep(0.01)
    logging.getLogger("distributed.worker").info(END)


def end_of_scheduler():
    logging.getLogger("distributed.scheduler").info(END)


def main():
    (address,) = sys.argv[1:]
    # The worker cannot import modules of this folder. Functions of this script are
    # pickled by value in any case.
    cloudpickle.register_pickle_by_value(pickle_cases)
    client = Client(address, timeout=30)
    kept = {}

    def run(function, *arguments):
        return client.submit(function, *arguments, pure=False)

    def keep(key, function, *arguments):
        kept[key] = future = client.submit(function, *arguments, key=key)
        wait(future, timeout=TIMEOUT)
        if future.status == "error":
            raise future.exception()

    def on_worker(key):
        return Future(key, client)

    def each(function, keys):
        running = {key: run(function, on_worker(key)) for key in keys}
        return {key: future.result(timeout=TIMEOUT) for key, future in running.items()}

    def derive(question, _):
        flipped = {}
        for key in question["keys"]:
            keep(f"same {key}", same, on_worker(key))
            both = run(flipped_copy, on_worker(key))
            keep(f"flipped {key}", lambda pair: pair[0], both)
            flipped[key] = run(lambda pair: pair[1], both).result(timeout=TIMEOUT)
        return {"flipped": flipped}

    def make_all(question, _):
        for name in question["names"]:
            keep(f"made {name}", make, name)
        return {}

    def compare(question, _):
        running = [run(problem, on_worker(key), name) for key, name in question["keys"].items()]
        found = [future.result(timeout=TIMEOUT) for future in running]
        return {"problems": [text for text in found if text]}

    def leave(_question, _data):
        kept.clear()
        client.run(end_of_worker)
        client.run_on_scheduler(end_of_scheduler)
        return {}

    exchange.serve(
        "asked",
        {
            "describe": lambda question, _: {"described": each(describe, question["keys"])},
            "make": make_all,
            "compare": compare,
            "derive": derive,
            "flip": lambda question, _: {"flipped": each(flip, question["keys"])},
            "leave": leave,
        },
    )


if __name__ == "__main__":
    main()
