"""Writes pickles with CPython and keeps the bytes, with what `pickletools` makes of them.

    python generate_pickles.py --out DIR       write DIR/*.jsonl
    python generate_pickles.py --check DIR     write them again and compare with DIR

The packages are installed into an environment of their own, below
`target/python/`, unless `--python` names an interpreter that has them.
README.md says what a line of a file holds. The stored files were made on Python
3.11, and another Python may pickle differently.
"""

import argparse
import hashlib
import json
import os
import pathlib
import pickle
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENTS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[2] / "target")) / "python"
PACKAGES = ["dask==2026.8.0", "distributed==2026.8.0", "cloudpickle==3.1.2", "numpy==2.4.6", "pandas==3.1.1"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="an interpreter that has the packages")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=pathlib.Path, help="directory to write to")
    where.add_argument("--check", type=pathlib.Path, metavar="DIR", help="directory to compare with")
    arguments = parser.parse_args()
    if "DASKWIRE_GENERATE" not in os.environ:
        sys.exit(run_inside(arguments))
    sys.exit(generate(arguments))


def run_inside(arguments):
    """Runs this script again in an interpreter that has the packages."""
    python = arguments.python
    if python is None:
        import environment

        lines = "\n".join(PACKAGES) + "\n"
        name = f"generate-pickles-{hashlib.sha256(lines.encode()).hexdigest()[:12]}"
        ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
        listing = ENVIRONMENTS / f"{name}.txt"
        listing.write_text(lines)
        python = environment.make(ENVIRONMENTS / name, listing)
    # The order of a set's members depends on the seed.
    inside = dict(os.environ, DASKWIRE_GENERATE="inside", PYTHONHASHSEED="0")
    return subprocess.run([str(python), *sys.argv], env=inside).returncode


def generate(arguments):
    sys.path.insert(0, str(HERE))
    import pickle_cases

    made = {}
    for group, cases in pickle_cases.groups():
        lines = [line(name, *pickled) for name, value in cases.items() for pickled in pickle_cases.pickles(name, value)]
        made[f"{group}.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode("ascii")
    folder = arguments.out or arguments.check
    if arguments.out:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in made.items():
            (folder / name).write_bytes(content)
        print(f"wrote {sum(content.count(10) for content in made.values())} pickles to {folder}")
        return 0
    stored = {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}
    wrong = sorted(name for name in made.keys() | stored.keys() if made.get(name) != stored.get(name))
    for name in wrong:
        print(f"{name}: differs", file=sys.stderr)
    print(f"{len(made)} files made again, {len(wrong)} differ from {folder}")
    return 1 if wrong else 0


def line(name, protocol, data, buffers):
    from pickle_tokens import tokens

    entry = {"name": name, "protocol": protocol, "pickle": encode(data), "tokens": tokens(data)}
    if buffers is not None:
        views = [buffer.raw() for buffer in buffers]
        entry["buffers"] = [encode(view) for view in views]
        entry["readonly"] = [view.readonly for view in views]
        pickle.loads(data, buffers=views)
    else:
        pickle.loads(data)
    return entry


def encode(data):
    return bytes(data).hex()


if __name__ == "__main__":
    main()
