"""Calls functions in Rust for the partitions of a data frame of Dask. The test adds ADDRESS."""

import operator

import dask.dataframe as dd
import pandas
from distributed import Client

client = Client(ADDRESS)  # noqa: F821
made = pandas.DataFrame({"n": [1, 2, 3, 4], "x": [0.5, 1.5, 2.5, 3.5]})
frame = dd.from_pandas(made, npartitions=2)
frame = frame.assign(y=frame.n + 1)
meta = pandas.DataFrame({"x": [0.5]})

scale = operator.methodcaller("native:scaled")
scaled = frame.map_partitions(scale, by=3.0, meta=meta, enforce_metadata=False)
expected = [1.5, 4.5, 7.5, 10.5]
assert scaled.compute().x.tolist() == expected
assert scaled.x.sum().compute() == sum(expected)
more = scaled.assign(z=scaled.x + 1).compute()
assert more.columns.tolist() == ["x", "z"] and more.z.tolist() == [x + 1 for x in expected]

assert scaled.persist(fuse=False).x.sum().compute() == sum(expected)
assert client.persist(scaled, optimize_graph=False).compute().x.tolist() == expected
try:
    scaled.persist().compute()
except NotImplementedError as error:
    text = "Dask has fused it with a call of native:scaled into one task"
    assert text in str(error) and "persist a data frame with fuse=False" in str(error), error
else:
    raise AssertionError("Dask does not fuse the tasks: the guide says that it does")
persisted = frame.persist().map_partitions(scale, meta=meta, enforce_metadata=False)
assert persisted.compute().x.tolist() == [1.0, 3.0, 5.0, 7.0]

rows = operator.methodcaller("native:rows")
rows = frame.map_partitions(rows, meta=(None, int), enforce_metadata=False)
assert rows.compute().tolist() == [2, 2]
