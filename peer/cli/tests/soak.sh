#!/usr/bin/env bash
# Workers in Rust and of Dask join, leave, stop and are killed under random load, for ten minutes by
# default. All results must be right, and open files, memory and the scheduler's record of
# tasks must not grow. PYTHON is an interpreter that has `distributed`, such as those that
# the tests create in `target/python`. With `--python`, the workers run tasks in processes of
# PYTHON. With `daskwire`, the scheduler is the one of this package instead of Dask's.
#
# Usage: peer/cli/tests/soak.sh [--python] PYTHON [SECONDS] [SEED] [daskwire]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

fail() {
    echo "soak: $*" >&2
    exit 1
}

options=()
if [[ ${1:-} == --python ]]; then
    options=(--python)
    shift
fi
python=${1:-} seconds=${2:-600} seed=${3:-$RANDOM} scheduler=${4:-dask}
[[ -n $python ]] || fail "usage: peer/cli/tests/soak.sh [--python] PYTHON [SECONDS] [SEED] [daskwire]"
"$python" -c 'import distributed' || fail "$python has no distributed"
profile=${PROFILE:-release}
flag=--$profile
[[ $profile == release ]] || flag=--profile=dev
cargo build --quiet "$flag" -p daskwire-cli --bins
binaries=${CARGO_TARGET_DIR:-target}/$profile
options+=(--daskwire "$binaries/daskwire" --seconds "$seconds" --seed "$seed")
case $scheduler in
dask) ;;
daskwire) options+=(--scheduler) ;;
*) fail "no such scheduler: $scheduler" ;;
esac
exec "$python" testing/python/soak.py "${options[@]}"
