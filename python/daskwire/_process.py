"""A process of a `LocalCluster`: the command `daskwire`, which ends with the program that started it.

Called as ``python -m daskwire._process PARENT FOLDER ARGUMENT...``. PARENT is the id of that
process, and FOLDER a folder that is removed if that process has ended, or empty.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time

from daskwire import _native

# How often the parent is looked for, in seconds.
_INTERVAL = 0.5
# The times in seconds after which a process that has no parent is asked again to end, and killed.
_PATIENCE = (1.0, 4.0)


def _end_with(parent: int, folder: str) -> None:
    # The system gives a process whose parent has ended another parent. A pipe would not do: a
    # process that the program has forked has its ends, too, and may live longer.
    while os.getppid() == parent:
        time.sleep(_INTERVAL)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    # At the second signal, a worker ends at once.
    for patience in _PATIENCE:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Runs the command, and exits with its status."""
    parent, folder, *arguments = sys.argv[1:]
    # A nanny starts its worker with its own arguments and this option, and ends it itself.
    if "--worker-process" not in arguments:
        watch = threading.Thread(target=_end_with, args=(int(parent), folder), daemon=True)
        watch.start()
    sys.exit(_native.run_command(["daskwire", *arguments]))


if __name__ == "__main__":
    main()
