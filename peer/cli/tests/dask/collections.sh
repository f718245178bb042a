#!/usr/bin/env bash
# Runs Dask's and xarray's own tests of collections with `daskwire scheduler --python` and with Dask's scheduler, each
# with a worker of Dask. Lists how many tests of each file pass, and the tests that fail only with the former.
#
# Usage: collections.sh [--variants COUNT] PYTHON COMMAND [dask | xarray | ARGUMENT OF PYTEST...]
#
# The environment of PYTHON has dask with array and dataframe, distributed, pytest and pytest-timeout, and, for the
# tests of xarray, xarray and pytz. COMMAND is `daskwire`. `dask` and `xarray` are all tests of collections of these
# packages; without an argument, a sample of a few minutes is run. Other files and folders are relative to the
# folder of the installed packages, such as `dask/array xarray/tests/test_dask.py`. With --variants, at most COUNT sets
# of parameters of each test run: of 2, the first and the last. `outcomes_collections.txt` has the results of a run,
# and the tests that are known to fail only with `daskwire scheduler`.
set -euo pipefail
variants=
if [[ $1 == --variants ]]; then
    variants=$2
    shift 2
fi
python=$1 command=$(realpath "$2")
shift 2
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case ${*:-sample} in
sample) set -- dask/bag/tests/test_bag.py dask/tests/test_delayed.py dask/array/tests/test_slicing.py ;;
dask) set -- dask/array dask/bag dask/dataframe dask/tests/test_delayed.py ;;
# The tests of test_distributed.py start clusters of their own; run.sh runs them.
xarray) set -- xarray/tests -k dask --ignore xarray/tests/test_distributed.py ;;
esac
outcomes=$(mktemp -d)
trap 'rm -r "$outcomes"' EXIT
cd "$(cd / && "$python" -c 'import dask; print(dask.__path__[0])')/.."
export PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH} CLUSTER_VARIANTS=$variants
# run.sh leaves the settings of distributed's tests beside dask, which do not know all markers of these.
options=(-o addopts= -o filterwarnings=ignore)
run() {
    CLUSTER_OUTCOMES=$outcomes/$1 CLUSTER_SCHEDULER=$2 "$python" -m pytest "${options[@]}" -p dask_collections \
        -p no:cacheprovider --color=no --quiet --no-header --tb=line --timeout 120 "${@:3}" || (($? == 1))
}
run dask "$python -m distributed.cli.dask_scheduler" "$@"
run daskwire "$command scheduler --python $python" "$@"
"$python" "$folder/collections_outcomes.py" "$folder/outcomes_collections.txt" "$outcomes/dask" "$outcomes/daskwire"
