"""Makes each process of Dask's tests use the transports that `dask_plugin` installs."""

import dask_plugin  # noqa: F401
