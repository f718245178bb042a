"""A scheduler of this release that listens at a tls:// address.

Usage: tls_scheduler.py CA-FILE CERT KEY, or tls_scheduler.py FOLDER for a certificate of
`Security.temporary()`, which is written with its key to `temporary.pem` in the
folder.

Prints `ready tls://127.0.0.1:PORT`.
"""

import asyncio
import pathlib
import sys
import warnings

warnings.simplefilter("ignore")

from distributed import Scheduler
from distributed.security import Security


def security(arguments):
    if len(arguments) == 1:
        temporary = Security.temporary()
        both = temporary.tls_client_cert + temporary.tls_client_key
        (pathlib.Path(arguments[0]) / "temporary.pem").write_text(both)
        return temporary
    ca_file, cert, key = arguments
    return Security(
        tls_ca_file=ca_file,
        tls_scheduler_cert=cert,
        tls_scheduler_key=key,
        require_encryption=True,
    )


async def main():
    async with Scheduler(
        host="127.0.0.1",
        port=0,
        protocol="tls://",
        security=security(sys.argv[1:]),
        dashboard=False,
        dashboard_address="127.0.0.1:0",
    ) as scheduler:
        print(f"ready {scheduler.address}", flush=True)
        # The process ends with its parent, even if the parent was killed.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
