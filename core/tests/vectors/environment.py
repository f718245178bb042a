"""Creates a Python environment with pinned packages, once, and prints its interpreter.

    environment.py DIRECTORY REQUIREMENTS

DIRECTORY is created with `venv` and filled from the file REQUIREMENTS by `uv`, which
is installed beside it. `pip` fills it if `uv` fails, or if only `pip` has settings for
the package index. A complete directory is not changed, and an incomplete one is created
again. Several processes may request the same directory at the same time: one creates
it, the others wait.

Requires the standard library of Python 3.8 or newer; the packages in REQUIREMENTS may
require a newer one.
"""

import contextlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

COMPLETE = "complete"
# Takes a second to fill an environment from its cache, where pip takes ten. Like the
# packages that it installs for tests, it is not pinned by its hash.
UV = "uv==0.13.9"
# Modules are compiled at their first import: most are never imported.
PIP_INSTALL = "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"


def make(directory, requirements):
    """Returns the interpreter of the environment in `directory`, and creates it if necessary."""
    directory, requirements = pathlib.Path(directory).absolute(), pathlib.Path(requirements)
    interpreter = _interpreter(directory)
    with _locked(directory):
        if not (directory / COMPLETE).exists():
            subject = _main_package(requirements)
            _check_this_python((3, 7))
            shutil.rmtree(directory, ignore_errors=True)
            print(f"creating a Python environment with {subject} in {_short(directory)} (once)", file=sys.stderr, flush=True)
            _run("create the environment", sys.executable, "-m", "venv", "--without-pip", directory)
            if re.search("^[^#\\s]", requirements.read_text(), re.MULTILINE):
                install(interpreter, "-r", requirements)
            (directory / COMPLETE).touch()
    return interpreter


def install(interpreter, *packages):
    """Installs packages, given as options of pip, into the environment of an interpreter."""
    uv = _uv(pathlib.Path(interpreter).parents[2])
    if uv is not None:
        output = _output(uv, "pip", "install", "--quiet", "--link-mode=copy", "--python", interpreter, *packages)
        if output is None:
            return
        print(f"uv has failed, and pip is tried: {output}", file=sys.stderr, flush=True)
    _run("install pip", interpreter, "-m", "ensurepip")
    _run("install the packages (it needs a package index that it can reach)", interpreter, *PIP_INSTALL, *packages)


def _uv(folder):
    """Returns the command uv in an environment of its own in `folder`, or None if pip must be used."""
    directory = folder / UV.replace("==", "-")
    interpreter = _interpreter(directory)
    uv = interpreter.with_name("uv.exe" if os.name == "nt" else "uv")
    with _locked(directory):
        if not (directory / COMPLETE).exists():
            shutil.rmtree(directory, ignore_errors=True)
            if _output(sys.executable, "-m", "venv", directory) is None and not _has_index(interpreter):
                _output(interpreter, *PIP_INSTALL, "--only-binary=:all:", UV)
            # Without uv, too, so that each environment does not try again.
            directory.mkdir(exist_ok=True)
            (directory / COMPLETE).touch()
    return uv if uv.exists() else None


def _has_index(interpreter):
    """Returns whether pip, but not uv, has settings for the package index."""
    if any(name in os.environ for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX")):
        return False
    listed = subprocess.run(
        [interpreter, "-m", "pip", "config", "list"], env=_variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return "index" in listed.stdout


def _interpreter(directory):
    return directory / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


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
    output = _output(*command)
    if output is not None:
        sys.exit(f"could not {purpose}: {' '.join(map(str, command))}\n{output}")


def _output(*command):
    """Runs a command, and returns its output if it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            env=_variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stdout.strip()


def _variables():
    """Returns the environment variables, without settings of an outer virtual environment."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


@contextlib.contextmanager
def _locked(directory):
    """Holds the lock of a directory, which the system releases when this process ends."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with open(directory.with_name(directory.name + ".lock"), "w") as file:
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
