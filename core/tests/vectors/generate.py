"""Writes messages with a real release of `distributed` and keeps the bytes.

    python generate.py --release 2026.8.0 --out DIR       write DIR/<generation>/case-*.bin, .json
    python generate.py --release 2026.8.0 --check DIR     write them again and compare with DIR; read the
                                                          other messages and streams of this release again
                                                          and compare what they mean

The release is installed into an environment of its own, below `target/python/`,
unless `--python` names an interpreter that has it. README.md says what the two
files of a case hold. The same release gives the same bytes each time: every
seed is fixed, and the versions below are those the stored files were made with,
on Python 3.11 (another Python may pickle or compress differently).
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENTS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[2] / "target")) / "python"

PREFIX = "case-"
CODECS = ["lz4==4.4.5", "python-snappy==0.7.3", "cramjam==2.14.0", "zstandard==0.25.0"]


def requirements(release):
    """What to install for `release`: packages of its time that still run on Python 3.11."""
    version = tuple(int(part) for part in release.split("."))
    # 2.x and dask did not always come out on the same day.
    dask = "2.30.0" if release == "2.30.1" else release
    wanted = [f"distributed=={release}", f"dask=={dask}", "cloudpickle==3.1.2", *CODECS]
    if version >= (2025,):
        return [*wanted, "msgpack==1.2.4", "tornado==6.6.1", "numpy==2.4.6"]
    # Older releases look for pkg_resources, which setuptools has since dropped.
    return [*wanted, "msgpack==1.0.8", "tornado==6.2", "numpy==1.26.4", "setuptools<80"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", required=True, help="version of distributed, 2.23.0 or later")
    parser.add_argument("--python", help="an interpreter that has this release installed")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=pathlib.Path, help="directory to write to")
    where.add_argument("--check", type=pathlib.Path, metavar="DIR", help="directory to compare with")
    arguments = parser.parse_args()
    if "DASKWIRE_GENERATE" not in os.environ:
        sys.exit(run_inside(arguments))
    sys.exit(generate(arguments))


def run_inside(arguments):
    """Runs this script again in an interpreter that has the release."""
    python = arguments.python
    if python is None:
        import environment

        lines = "\n".join(requirements(arguments.release)) + "\n"
        name = f"generate-{arguments.release}-{hashlib.sha256(lines.encode()).hexdigest()[:12]}"
        ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
        listing = ENVIRONMENTS / f"{name}.txt"
        listing.write_text(lines)
        python = environment.make(ENVIRONMENTS / name, listing)
    inside = dict(
        os.environ,
        DASKWIRE_GENERATE="inside",
        # The order of a set's members depends on it.
        PYTHONHASHSEED="0",
        # Nobody's own Dask configuration.
        DASK_CONFIG=os.devnull,
        DASK_ROOT_CONFIG=os.devnull,
    )
    return subprocess.run([str(python), *sys.argv], env=inside).returncode


def generate(arguments):
    from cases import cases
    from release import Release

    release = Release()
    if release.name != arguments.release:
        return f"{sys.executable} has distributed {release.name}, not {arguments.release}"
    wrong = []
    made = {}
    for index, case in enumerate(cases(release)):
        settings = {"codec": case.codec, "shard_len": case.shard_len, "serializers": case.serializers}
        data = release.write(case.build(), seed=index, **settings)
        description = release.describe(data)
        description["notes"] = case.notes
        description["codec_asked"] = case.codec
        if case.shard_len is not None:
            description["shard"] = case.shard_len
        text = json.dumps(description, separators=(",", ":")) + "\n"
        made[PREFIX + case.name + ".bin"] = data
        made[PREFIX + case.name + ".json"] = text.encode("ascii")
    folder = (arguments.out or arguments.check) / release.generation
    if arguments.out:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in made.items():
            (folder / name).write_bytes(content)
        print(f"{release.generation}: wrote {len(made) // 2} cases to {folder}")
        return 0
    stored = {path.name: path.read_bytes() for path in folder.glob(PREFIX + "*")}
    for name in sorted(made.keys() | stored.keys()):
        if name not in stored:
            wrong.append(f"{name}: made now, not stored")
        elif name not in made:
            wrong.append(f"{name}: stored, not made now")
        elif made[name] != stored[name]:
            wrong.append(f"{name}: {_first_difference(stored[name], made[name])}")
    recorded = sorted(path for path in folder.glob("*.bin") if not path.name.startswith(PREFIX))
    streams = sorted(folder.with_name("streams").glob(f"{release.generation}-*.stream.bin"))
    for path in recorded + streams:
        describe = release.describe_stream if path in streams else release.describe
        described = json.loads(json.dumps(describe(path.read_bytes())))
        stored = json.loads(path.with_suffix(".json").read_text())
        wrong += [f"{path.name}: the release reads another {key}" for key in described if described[key] != stored.get(key)]
    for line in wrong:
        print(f"{release.generation}/{line}", file=sys.stderr)
    print(
        f"{release.generation}: {len(made) // 2} cases made again, {len(recorded)} other messages and "
        f"{len(streams)} streams read again, {len(wrong)} differences from {folder}"
    )
    return 1 if wrong else 0


def _first_difference(stored, made):
    for at, (before, now) in enumerate(zip(stored, made)):
        if before != now:
            return f"byte {at} was {before:#04x}, is {now:#04x} now"
    return f"{len(stored)} bytes stored, {len(made)} made now"


if __name__ == "__main__":
    main()
