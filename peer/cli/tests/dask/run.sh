#!/usr/bin/env bash
# Runs Dask's own tests with `daskwire scheduler` in place of Dask's scheduler.
#
# Usage: run.sh PYTHON CHECKOUT COMMAND [ARGUMENT OF PYTEST...]
#
# The environment of PYTHON has pytest, pytest-timeout, pytest-rerunfailures, bokeh, numpy, pandas, pyarrow and the
# release of distributed whose sources are in CHECKOUT: its wheels do not include the tests. COMMAND is `daskwire`,
# which is started with `--python PYTHON`. Without arguments, the files of `outcomes.txt` are run and the outcomes
# compared with it. `-o addopts= -o filterwarnings=ignore dask/tests/test_distributed.py` are those of dask itself.
set -euo pipefail
python=$1 checkout=$(realpath "$2") command=$(realpath "$3")
shift 3
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
installed=$(cd / && "$python" -c 'import distributed; print(distributed.__path__[0])')
for tests in $(cd "$checkout" && find distributed -name tests -type d); do
    rm -rf "${installed%/*}/$tests"
    cp -r "$checkout/$tests" "${installed%/*}/$tests"
done
cp "$checkout"/{conftest.py,pyproject.toml} "${installed%/*}"
cd "${installed%/*}"
# A fork server starts the processes of a cluster in a tenth of the time.
export DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD=forkserver
export DASKWIRE=$command PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH}
run() {
    "$python" -m pytest -c pyproject.toml -p dask_scheduler -p no:cacheprovider --color=no --tb=native \
        --timeout 60 --timeout-method signal "$@"
}
if (($# > 0)); then
    run "$@"
    exit
fi
DASKWIRE_OUTCOMES=$(mktemp)
export DASKWIRE_OUTCOMES
files=$(grep -v '^#' "$folder/outcomes.txt" | cut -d: -f1 | sort -u)
# shellcheck disable=SC2086
run --quiet --no-header $files || (($? == 1))
"$python" "$folder/outcomes.py" "$folder/outcomes.txt" "$DASKWIRE_OUTCOMES"
