"""A cluster of this release, two workers as processes, all over TLS.

Usage: tls_cluster.py FOLDER; writes its certificate and key, which are those of
`Security.temporary()`, into that folder as `temporary.pem`.

Prints `ready tls://127.0.0.1:PORT`.
"""

import pathlib
import sys
import warnings

warnings.simplefilter("ignore")

from distributed import LocalCluster
from distributed.security import Security


def main():
    security = Security.temporary()
    both = security.tls_client_cert + security.tls_client_key
    (pathlib.Path(sys.argv[1]) / "temporary.pem").write_text(both)
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        security=security,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        print(f"ready {cluster.scheduler_address}", flush=True)
        # Ends with its parent, even one that was killed.
        sys.stdin.read()


if __name__ == "__main__":
    main()
