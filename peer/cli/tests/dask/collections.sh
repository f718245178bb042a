#!/usr/bin/env bash
# Runs Dask's own tests of collections with `daskwire scheduler --python` and with Dask's scheduler, each with a
# worker of Dask, and lists the tests that fail only with the former.
#
# Usage: collections.sh PYTHON COMMAND [ARGUMENT OF PYTEST...]
#
# The environment of PYTHON has dask with array and dataframe, distributed, pytest and pytest-timeout. COMMAND is
# `daskwire`. Without arguments, a sample of a few minutes is run; `dask/array dask/bag dask/dataframe
# dask/tests/test_delayed.py` are all.
set -euo pipefail
python=$1 command=$(realpath "$2")
shift 2
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if (($# == 0)); then
    set -- dask/bag/tests/test_bag.py dask/tests/test_delayed.py dask/array/tests/test_slicing.py
fi
outcomes=$(mktemp -d)
trap 'rm -r "$outcomes"' EXIT
cd "$(cd / && "$python" -c 'import dask; print(dask.__path__[0])')/.."
export PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH}
# run.sh leaves the settings of distributed's tests beside dask, which do not know all markers of these.
options=(-o addopts= -o filterwarnings=ignore)
run() {
    CLUSTER_OUTCOMES=$outcomes/$1 CLUSTER_SCHEDULER=$2 "$python" -m pytest "${options[@]}" -p dask_collections \
        -p no:cacheprovider --color=no --quiet --no-header --tb=line --timeout 120 "${@:3}" || (($? == 1))
    sort -u -o "$outcomes/$1" "$outcomes/$1"
}
run dask "$python -m distributed.cli.dask_scheduler" "$@"
run daskwire "$command scheduler --python $python" "$@"
passed=$(grep -c 'passed$' "$outcomes/daskwire" || true)
worse=$(comm -13 "$outcomes/dask" "$outcomes/daskwire" | grep 'failed$' || true)
echo "$passed passed with daskwire scheduler; only with it fail:"
echo "${worse:-none}"
[[ -z $worse ]]
