"""A Dask client of this release that computes P2P shuffles with a scheduler other than Dask's.

See `checks.py`. The argument of `lost_transfers` and `lost_outputs` is the id of a worker's process, which they kill.
"""

import os
import signal
import time
import warnings

warnings.simplefilter("ignore")

import checks
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, Event

PARTS = 8
META = pd.DataFrame({"a": [1], "b": [1.0]})


def part(number, name=""):
    """A part of a table. With a name, the last part waits for the event of this name."""
    if name and number == PARTS - 1:
        Event(f"{name}-begun").set()
        Event(name).wait()
    return pd.DataFrame({"a": np.arange(100) % 7, "b": np.arange(100.0) + number})


def unpack(output, name):
    Event(f"{name}-begun").set()
    Event(name).wait()
    return output


def table(name=""):
    return dd.from_map(part, range(PARTS), [name] * PARTS, meta=META)


def whole():
    return pd.concat([part(number) for number in range(PARTS)])


def sums(client, frame):
    return client.compute(frame.groupby("a").b.sum())


def assert_sums(future):
    expected = whole().groupby("a").b.sum()
    pd.testing.assert_series_equal(future.result(timeout=120).sort_index(), expected)


def shuffle(client):
    shuffled = table().shuffle("a", shuffle_method="p2p", npartitions=6)
    assert_sums(sums(client, shuffled))
    # All rows of a group are in one partition.
    counts = shuffled.map_partitions(lambda frame: frame.a.drop_duplicates()).compute()
    assert sorted(counts) == list(range(7)), counts


def merge(client):
    """Two shuffles whose outputs are used by the same tasks."""
    right = pd.DataFrame({"a": np.arange(21) % 7, "c": np.arange(21)})
    joined = table().merge(
        dd.from_pandas(right, npartitions=3), on="a", shuffle_method="p2p", broadcast=False
    )
    expected = whole().merge(right, on="a")
    by = ["a", "b", "c"]
    got = joined.compute().sort_values(by).reset_index(drop=True)
    pd.testing.assert_frame_equal(got, expected.sort_values(by).reset_index(drop=True))


def set_index(client):
    frame = pd.DataFrame({"x": np.random.default_rng(1).permutation(1000), "y": range(1000)})
    indexed = dd.from_pandas(frame, npartitions=7).set_index("x", shuffle_method="p2p")
    pd.testing.assert_frame_equal(indexed.compute(), frame.set_index("x").sort_index())


def rechunk(client):
    x = da.random.default_rng(3).random((120, 90), chunks=(120, 10))
    got = x.rechunk((10, 90), method="p2p").compute()
    assert np.array_equal(got, x.compute(scheduler="sync"))


def at_once(client):
    """Shuffles of several clients at the same time."""
    with Client(client.scheduler.address, set_as_default=False) as other:
        names = ["one", "two", "three", "four"]
        futures = [
            sums(owner, table(name).shuffle("a", shuffle_method="p2p", npartitions=5))
            for owner, name in zip([client, other] * 2, names)
        ]
        for name in reversed(names):
            Event(name).set()
        for future in futures:
            assert_sums(future)


def cancelled(client):
    name = "cancelled"
    future = sums(client, table(name).shuffle("a", shuffle_method="p2p"))
    assert Event(f"{name}-begun").wait(timeout=60)
    future.cancel()
    Event(name).set()
    assert_sums(sums(client, table().shuffle("a", shuffle_method="p2p")))


def failed(client):
    def fail(frame):
        raise ZeroDivisionError("of a part")

    broken = table().map_partitions(fail, meta=META).shuffle("a", shuffle_method="p2p")
    try:
        broken.compute()
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError("the shuffle has not failed")


def kept(client):
    """Workers that take part in a shuffle are not proposed for closing."""
    name = "kept"
    future = sums(client, table(name).shuffle("a", shuffle_method="p2p"))
    assert Event(f"{name}-begun").wait(timeout=60)
    while client.sync(client.scheduler.workers_to_close, n=10):
        time.sleep(0.1)
    Event(name).set()
    assert_sums(future)


def lost_transfers(client, process):
    name = f"transfers-{process}"
    future = sums(client, table(name).shuffle("a", shuffle_method="p2p", npartitions=6))
    lose(name, process)
    assert_sums(future)


def lost_outputs(client, process):
    name = f"outputs-{process}"
    shuffled = table().shuffle("a", shuffle_method="p2p", npartitions=6)
    future = sums(client, shuffled.map_partitions(unpack, name, meta=META))
    lose(name, process)
    assert_sums(future)


def lose(name, process):
    assert Event(f"{name}-begun").wait(timeout=60)
    # Other parts are transferred meanwhile.
    time.sleep(1)
    os.kill(int(process), signal.SIGKILL)
    Event(name).set()


CHECKS = [
    shuffle, merge, set_index, rechunk, at_once, cancelled, failed, kept,
    lost_transfers, lost_outputs,
]


if __name__ == "__main__":
    dask.config.set({"dataframe.convert-string": False})
    checks.run(CHECKS, worker_count=0)
