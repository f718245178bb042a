#!/usr/bin/env bash
# Runs the firmware for Ethernet in qemu, in a cluster with a scheduler, a worker
# and a client of Python: cluster.py says what is checked.
#
# Usage: core/embedded/firmware/cluster.sh [SECONDS]
#
# With SECONDS, the cluster then has random load for that time, with one more worker, of
# the command `daskwire`, which is built for it.
#
# Needs what run.sh needs.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
chip=thumbv7m-none-eabi
source "$root/core/tests/bare-metal/common.sh"
source "$here/environment.sh"
scratch=$(mktemp -d)
trap 'rm -rf "$log" "$scratch"' EXIT

install_packages
build_for_chip "$here" "$target/firmware" "$chip"
# Small rather than fast: it waits for the network most of the time.
quietly env CARGO_PROFILE_RELEASE_OPT_LEVEL=s "${build[@]}" --features network --bin worker --bin client
python=$(environment current)
load=()
if [[ -n ${1:-} ]]; then
    (cd "$root" && quietly cargo build --release -p daskwire-cli --bin daskwire)
    load=("$1" "$target/release/daskwire")
fi
# No settings of the user's Python or Dask.
env -i PATH="$PATH" HOME="$HOME" DASK_CONFIG="$scratch" DASK_ROOT_CONFIG="$scratch" \
    DASK_TEMPORARY_DIRECTORY="$scratch" PYTHONUNBUFFERED=1 \
    timeout "$((600 + ${1:-0}))" "$python" "$here/cluster.py" "$target/firmware/$chip/release" "${load[@]}"
