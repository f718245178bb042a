#!/usr/bin/env python3
"""Runs the tests of this folder with releases of distributed.

    python/tests/releases.py [--wheels FOLDER] [--tests FILE] [RELEASE[@PYTHON]...]

RELEASE[@PYTHON] is a release such as `2025.3.0` or `2026.8.0@3.10`; default: all of `RELEASES`.
FILE is a file such as `test_comm.py`; default: all tests. Each release is installed into a virtual
environment below `target/python`, with the wheels in FOLDER. Default: wheels built for this
run, one for CPython 3.11 and later, and one for 3.10.

Prints the Markdown table of `python/README.md`. The output of pytest is in `tests.log` of the
environment. Interpreters are those that DASKWIRE_PYTHONS names, separated by spaces, and
`python3.10` to `python3.14`.
"""

import argparse
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

# The releases tested by default, with the version of CPython. Releases before 2023.8.0 read first
# in the handshake.
RELEASES = [
    "2023.7.1@3.10",
    "2024.1.0@3.11",
    "2025.3.0@3.12",
    "2025.4.0@3.12",
    "2026.8.0@3.10",
    "2026.8.0@3.11",
    "2026.8.0@3.13",
]

# The packages for older releases. Each entry is for releases up to the given one.
PACKAGES = [
    ((2024, 1, 1), ["numpy==1.26.4", "pandas==2.1.4", "pyarrow==14.0.2"]),
    ((2025, 12, 0), ["numpy==2.1.3", "pandas==2.2.3", "pyarrow==18.1.0"]),
]
# The packages for CPython 3.10: those in `requirements.txt` need 3.11 or later.
PACKAGES_310 = ["numpy==2.2.6", "pandas==2.3.3", "pyarrow==22.0.0"]

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent.parent
FOLDER = ROOT / "target/python"
ENVIRONMENT = ROOT / "core/tests/vectors/environment.py"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheels", type=pathlib.Path)
    parser.add_argument("--tests", action="append", default=[])
    parser.add_argument("releases", nargs="*", metavar="RELEASE[@PYTHON]", default=RELEASES)
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = interpreters()
    wheels = {}
    rows = []
    for name in arguments.releases:
        release, _, version = name.partition("@")
        version = version or default_python(release)
        if version not in found:
            sys.exit(f"{name} needs CPython {version}; DASKWIRE_PYTHONS can name it")
        kind = "cp310-cp310" if version == "3.10" else "cp311-abi3"
        if kind not in wheels:
            folder = arguments.wheels or build(found[version], kind)
            wheels[kind] = the_wheel(folder, kind)
        environment = FOLDER / f"package-{release}-{version}"
        python = install(environment, found[version], release, version, wheels[kind])
        rows.append([release, version, kind, *run(python, environment, arguments.tests)])
        print(f"{name}: {rows[-1][-2]} passed, {rows[-1][-1]} failed", file=sys.stderr, flush=True)
    print("| distributed | CPython | wheel | passed | failed |")
    print("| --- | --- | --- | ---: | ---: |")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    sys.exit(any(row[-1] for row in rows))


def interpreters():
    """The first interpreter found for each version, such as `3.10`."""
    found = {}
    names = os.environ.get("DASKWIRE_PYTHONS", "").split()
    for name in [*names, *(f"python3.{minor}" for minor in range(10, 15))]:
        if shutil.which(name):
            code = "import sys; print(*sys.version_info[:2], sep='.')"
            version = subprocess.run([name, "-c", code], capture_output=True, text=True)
            if version.returncode == 0:
                found.setdefault(version.stdout.strip(), name)
    return found


def default_python(release):
    versions = [name.partition("@")[2] for name in RELEASES if name.startswith(f"{release}@")]
    return versions[-1] if versions else "3.11"


def build(python, kind):
    """Builds a wheel of the package with `python` and returns its new folder."""
    folder = FOLDER / "package-wheels" / kind
    shutil.rmtree(folder, ignore_errors=True)
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    subprocess.run(
        [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT / "python"],
        env={**os.environ, "CARGO_TARGET_DIR": target},
        check=True,
    )
    return folder


def the_wheel(folder, kind):
    """Returns the wheel for `kind` in a folder, and exits if there is not exactly one."""
    found = list(folder.resolve().glob(f"daskwire-*-{kind}-*.whl"))
    if len(found) != 1:
        sys.exit(f"{folder} has {len(found)} wheels for {kind}")
    return found[0]


def install(environment, python, release, version, wheel):
    """Creates an environment with a release and a wheel, and returns its interpreter."""
    shutil.rmtree(environment, ignore_errors=True)
    pins = (TESTS / "requirements.txt").read_text().split()
    own = re.compile("(distributed|dask|numpy|pandas|pyarrow)==")
    requirements = [pin for pin in pins if not own.match(pin)]
    requirements += [f"distributed=={release}", f"dask[array,dataframe]=={release}"]
    number = tuple(map(int, release.split(".")))
    for last, packages in PACKAGES:
        if number <= last:
            requirements += packages
            break
    else:
        newest = [pin for pin in pins if re.match("(numpy|pandas|pyarrow)==", pin)]
        requirements += PACKAGES_310 if version == "3.10" else newest
    file = FOLDER / f"{environment.name}.txt"
    file.write_text("\n".join(requirements))
    made = subprocess.run([python, ENVIRONMENT, environment, file], stdout=subprocess.PIPE, text=True)
    if made.returncode != 0:
        sys.exit(made.returncode)
    interpreter = pathlib.Path(made.stdout.strip())
    # Without dependencies, so that releases outside the range that the wheel names can be tested.
    load_environment().install(interpreter, "--no-deps", "--no-cache-dir", wheel)
    return interpreter


def load_environment():
    """Returns the module that creates environments."""
    spec = importlib.util.spec_from_file_location("environment", ENVIRONMENT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(python, environment, files):
    """Runs all tests, or those in `files`, and returns how many passed and failed."""
    report = environment / "tests.xml"
    report.unlink(missing_ok=True)
    with open(environment / "tests.log", "w") as log:
        # In the folder of the tests, so that the sources do not shadow the installed package.
        subprocess.run(
            [
                python, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "600",
                f"--junitxml={report}", *files,
            ],
            cwd=TESTS, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    if not report.exists():
        sys.exit(f"pytest has ended early: {environment / 'tests.log'}")
    suite = ElementTree.parse(report).getroot().find("testsuite")
    count = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    return count["tests"] - failed - count["skipped"], failed


if __name__ == "__main__":
    main()
