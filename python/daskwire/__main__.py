"""The command ``daskwire``, also as ``python -m daskwire``."""

from __future__ import annotations

import signal
import sys

from daskwire import _native


def main() -> None:
    """Runs the command with the arguments of this process, and exits with its status."""
    # As in a native program, Control-C ends commands that do not handle it themselves. Python's
    # handler would not run before the command returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.run_command(["daskwire", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
