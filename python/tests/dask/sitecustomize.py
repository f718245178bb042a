"""Has each process of Dask's tests use the transports that `dask_plugin` puts in place."""

import dask_plugin  # noqa: F401
