#!/usr/bin/env bash
# The lines of the crates that the committed corpora reach, as tables of Markdown.
# Builds the replay of the corpora with source-based coverage, on stable Rust too; needs
# `rustup component add llvm-tools` and Python.
#
# Usage: fuzz/coverage.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=$(rustc --print target-libdir)/../bin
if [[ ! -x $tools/llvm-cov ]]; then
    echo "coverage.sh: llvm-cov is missing: rustup component add llvm-tools" >&2
    exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Profiles of build scripts go there too.
export LLVM_PROFILE_FILE=$folder/build-%p
mapfile -t programs < <(
    RUSTFLAGS=-Cinstrument-coverage CARGO_TARGET_DIR=target/coverage \
        cargo test --locked --no-run --lib -p daskwire-fuzz -p daskwire-fuzz-peer \
        --message-format=json | python3 -c '
import json, sys
for message in map(json.loads, sys.stdin):
    if message.get("executable"):
        print(message["executable"])'
)
if ((${#programs[@]} == 0)); then
    echo "coverage.sh: the targets were not built" >&2
    exit 1
fi

# The summary of a profile, by file.
summary() {
    local profile=$1 program objects=()
    shift
    for program in "$@"; do
        objects+=(-object "$program")
    done
    "$tools/llvm-cov" export -summary-only -instr-profile "$profile" "${objects[@]}" \
        -ignore-filename-regex "/registry/|/rustc/|/toolchains/|^$PWD/fuzz/"
}

for program in "${programs[@]}"; do
    for target in $("$program" --list | sed -n 's/^replay::\(.*\): test$/\1/p'); do
        if [[ $target == all_targets_are_declared ]]; then
            continue
        fi
        LLVM_PROFILE_FILE=$folder/$target.profraw \
            "$program" --exact "replay::$target" >/dev/null
        "$tools/llvm-profdata" merge -o "$folder/$target.profdata" "$folder/$target.profraw"
        summary "$folder/$target.profdata" "$program" >"$folder/$target.json"
    done
done
"$tools/llvm-profdata" merge -o "$folder/all" "$folder"/*.profdata
summary "$folder/all" "${programs[@]}" >"$folder/all.json"

python3 - "$folder" <<'END'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
root = pathlib.Path.cwd()


def lines(path):
    """Lines reached and lines there are, by source file."""
    files = json.loads(path.read_text())["data"][0]["files"]
    counts = {}
    for file in files:
        name = pathlib.Path(file["filename"])
        if name.is_relative_to(root):
            summary = file["summary"]["lines"]
            counts[str(name.relative_to(root))] = (summary["covered"], summary["count"])
    return counts


def row(name, counts):
    covered, count = (sum(column) for column in zip(*counts))
    print(f"| `{name}` | {covered} | {count} | {100 * covered / count:.0f} % |")


print("| source | lines reached | lines | |\n| --- | ---: | ---: | ---: |")
by_source = {}
for name, counts in lines(folder / "all.json").items():
    crate, _, file = name.partition("/src/")
    source = crate + "/src"
    if crate in ("core", "peer", "peer/messages", "peer/client", "peer/worker", "peer/scheduler") and "/" in file:
        # A part for each folder of the large crates.
        source += "/" + file.split("/")[0]
    by_source.setdefault(source, []).append(counts)
for source, counts in sorted(by_source.items()):
    if any(covered for covered, _ in counts):
        row(source, counts)

print("\n| target | lines reached |\n| --- | ---: |")
for path in sorted(folder.glob("*.json")):
    if path.stem != "all":
        covered = sum(covered for covered, _ in lines(path).values())
        print(f"| `{path.stem}` | {covered} |")
END
