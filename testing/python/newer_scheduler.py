"""A scheduler that reports a later release than its own.

Prints `ready tcp://127.0.0.1:PORT`, and ends when its standard input is closed.
"""

import asyncio
import sys
import warnings

warnings.simplefilter("ignore")

from distributed import Scheduler, versions

HERE = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
packages_here = versions.get_package_info
versions.get_package_info = lambda packages: {**packages_here(packages), "distributed": "2027.1.0"}


async def main():
    async with Scheduler(**HERE) as scheduler:
        print(f"ready {scheduler.address}", flush=True)
        # The process ends with its parent, even if the parent was killed.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
