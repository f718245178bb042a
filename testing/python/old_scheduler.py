"""A scheduler of this release with one worker.

Prints `ready tcp://127.0.0.1:PORT` once the worker is registered, and ends when its
standard input is closed.
"""

import asyncio
import sys
import warnings

warnings.simplefilter("ignore")

from distributed import Scheduler, Worker

HERE = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
HERE_TOO = {key: value for key, value in HERE.items() if key != "dashboard"}


async def main():
    async with Scheduler(**HERE) as scheduler:
        async with Worker(scheduler.address, nthreads=1, **HERE_TOO):
            print(f"ready {scheduler.address}", flush=True)
            # The process ends with its parent, even if the parent was killed.
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
