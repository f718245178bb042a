"""Creates a Python environment with pinned packages, once, and prints its interpreter.

    environment.py DIRECTORY REQUIREMENTS

DIRECTORY is created with `venv` and filled by `pip` from the file REQUIREMENTS. A
complete directory is not changed, and an incomplete one is created again. Several
processes may request the same directory at the same time: one creates it, the
others wait.

Requires the standard library of Python 3.8 or newer; the packages in REQUIREMENTS may
require a newer one.
"""

import contextlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

COMPLETE = "complete"


def make(directory, requirements):
    """Returns the interpreter of the environment in `directory`, and creates it if necessary."""
    directory, requirements = pathlib.Path(directory).absolute(), pathlib.Path(requirements)
    interpreter = directory / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_name(directory.name + ".lock")):
        if not (directory / COMPLETE).exists():
            subject = _main_package(requirements)
            _check_this_python((3, 7))
            shutil.rmtree(directory, ignore_errors=True)
            print(f"creating a Python environment with {subject} in {_short(directory)} (once, about a minute)", file=sys.stderr, flush=True)
            _run("create the environment", sys.executable, "-m", "venv", directory)
            _run(
                "install the packages (it needs a package index that it can reach)",
                # Modules are compiled at their first import: most are never imported.
                interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "-r", requirements,
            )  # fmt: skip
            (directory / COMPLETE).touch()
    return interpreter


def _check_this_python(oldest):
    if sys.version_info < oldest:
        sys.exit(f"{sys.executable} is Python {sys.version.split()[0]}, but {oldest[0]}.{oldest[1]} or newer is needed")
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(
            f"{sys.executable} has no ensurepip, which creating an environment requires: "
            "install it (on Debian and Ubuntu: apt install python3-venv) or set DASKWIRE_PYTHON to another Python"
        )


def _main_package(requirements):
    """Returns the line of `distributed`, the main package of an environment."""
    lines = requirements.read_text().split()
    return next((line for line in lines if line.startswith("distributed==")), requirements.name)


def _short(directory):
    with contextlib.suppress(ValueError):
        return directory.relative_to(pathlib.Path.cwd())
    # A test runs in the folder of its package, below which `target` may not be.
    parts = directory.parts
    return pathlib.Path(*parts[parts.index("target") :]) if "target" in parts else directory


def _run(purpose, *command):
    # Settings of an outer environment must not leak into this one.
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command], env=inherited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        sys.exit(f"could not {purpose}: {' '.join(map(str, command))}\n{done.stdout.strip()}")


@contextlib.contextmanager
def _locked(path):
    """Holds a lock, which the system releases when this process ends."""
    with open(path, "w") as file:
        if os.name == "nt":
            import msvcrt

            # Each call fails after ten attempts in ten seconds; creation can take longer.
            while True:
                with contextlib.suppress(OSError):
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(make(*sys.argv[1:]))
