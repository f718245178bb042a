"""The command ``daskwire``, also as ``python -m daskwire``."""

from __future__ import annotations

import signal
import sys

from daskwire import _native


def main() -> None:
    """Runs the command with the arguments of this process, and exits with its status."""
    # As in a program without Python: Control-C ends those commands that do not take it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.run_command(["daskwire", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
