"""A scheduler and a worker at 127.0.0.2, which name a codec in their handshakes.

Usage: compressing_cluster.py CODEC

Clients connect from 127.0.0.1: within a host, Dask compresses nothing.
"""

import sys

import dask
from distributed import LocalCluster


def main():
    dask.config.set({"distributed.comm.compression": sys.argv[1]})
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with LocalCluster(protocol="tcp", host="127.0.0.2", dashboard_address=None, **options) as cluster:
        print(f"ready {cluster.scheduler_address}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
