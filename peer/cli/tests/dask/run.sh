#!/usr/bin/env bash
# Runs Dask's own tests with `daskwire scheduler` in place of Dask's scheduler.
#
# Usage: run.sh [--beside] PYTHON CHECKOUT COMMAND [ARGUMENT OF PYTEST...]
#
# The environment of PYTHON has pytest, pytest-timeout, pytest-rerunfailures, bokeh, numpy, pandas, pyarrow and the
# release of distributed whose sources are in CHECKOUT: its wheels do not include the tests. COMMAND is `daskwire`,
# which is started with `--python PYTHON`. Without arguments, the files of `outcomes.txt` are run and the outcomes
# compared with it, and then those of `outcomes_libraries.txt`, the tests of dask itself and of xarray, which need to be
# installed, and the options `-o addopts= -o filterwarnings=ignore`. With --beside, the tests run with Dask's scheduler,
# too, and those that only pass there are listed.
set -euo pipefail
beside=
if [[ $1 == --beside ]]; then
    beside=yes
    shift
fi
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
    "$python" -m pytest -c pyproject.toml -p dask_outcomes -p no:cacheprovider --color=no --tb=native \
        --timeout 60 --timeout-method signal "$@"
}
if [[ -n $beside ]]; then
    outcomes=$(mktemp -d)
    trap 'rm -r "$outcomes"' EXIT
    DASKWIRE_OUTCOMES=$outcomes/dask run "$@" || (($? == 1))
    DASKWIRE_OUTCOMES=$outcomes/daskwire run -p dask_scheduler "$@" || (($? == 1))
    passed=$(grep -c -P '^passed\t' "$outcomes/daskwire" || true)
    skipped=$(grep -c -P '^skipped\t' "$outcomes/daskwire" || true)
    worse=$(awk -F '\t' 'NR == FNR { if ($1 == "passed") passes[$2]; next }
        ($1 == "failed" || $1 == "error") && $2 in passes' "$outcomes/dask" "$outcomes/daskwire")
    echo "$passed pass and $skipped are skipped with daskwire scheduler; only with it fail:"
    echo "${worse:-none}"
    [[ -z $worse ]]
    exit
fi
if (($# > 0)); then
    run -p dask_scheduler "$@"
    exit
fi
status=0
compare() {
    local table=$1 files
    shift
    DASKWIRE_OUTCOMES=$(mktemp)
    export DASKWIRE_OUTCOMES
    files=$(grep -v '^#' "$folder/$table" | cut -f1 | cut -d: -f1 | sort -u)
    # shellcheck disable=SC2086
    run -p dask_scheduler --quiet --no-header "$@" $files || (($? == 1))
    "$python" "$folder/outcomes.py" "$folder/$table" "$DASKWIRE_OUTCOMES" || status=1
}
compare outcomes.txt
compare outcomes_libraries.txt -o addopts= -o filterwarnings=ignore
exit "$status"
