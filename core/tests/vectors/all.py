#!/usr/bin/env python3
"""Makes all vectors again that programs here can make, or compares them.

    core/tests/vectors/all.py --check     compare with the files here
    core/tests/vectors/all.py --write     replace the files here

Made again are the messages `case-*` of each release in RELEASES, `pickles/`,
`pickles-written/`, and the bytes of `hostile/` and `hm-*`. The other files cannot be made
again here: sessions have the ports and times of their run, and what older releases
wrote is kept as it was recorded; README.md lists which and why. Those of the releases in
RELEASES are read again by their release with `--check`, and `record.py` records new
sessions. `cargo test` reads all of them.

Needs Python 3.11, under which the files were made, and the network once.
"""

import argparse
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
RELEASES = ["2.30.1", "2026.8.0"]
PYTHON = (3, 11)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", dest="flag", action="store_const", const="--check")
    what.add_argument("--write", dest="flag", action="store_const", const="--out")
    flag = parser.parse_args().flag
    if sys.version_info[:2] != PYTHON:
        sys.exit(f"this is Python {sys.version.split()[0]}, and the vectors were made with {PYTHON[0]}.{PYTHON[1]}")
    commands = [["generate.py", "--release", release, flag, str(HERE)] for release in RELEASES]
    commands.append(["generate_pickles.py", flag, str(HERE / "pickles")])
    commands.append(["pickles_written.py", flag, str(HERE / "pickles-written")])
    commands += [[script, flag, str(HERE)] for script in ("hostile.py", "handmade.py")]
    failed = []
    for script, *arguments in commands:
        if subprocess.run([sys.executable, str(HERE / script), *arguments]).returncode != 0:
            failed.append(" ".join([script, *arguments]))
    if failed:
        sys.exit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
