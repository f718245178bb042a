#!/usr/bin/env bash
# Runs programs of libraries on clusters of Dask, of daskwire and of both, and compares what they return: arrays,
# dataframes, bags, delayed functions, xarray, scikit-learn and lightgbm.
#
# Usage: libraries.sh COMMAND [PROGRAM...]
#
# COMMAND is `daskwire`; the programs are those of `libraries.py`, by default all. Needs python3.11 or later with venv,
# and pip's access to PyPI.
set -euo pipefail
command=$(realpath "$1")
shift
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$folder/../../../.." && pwd)
environment=${CARGO_TARGET_DIR:-$root/target}/python/libraries
if [[ ! -e $environment/ready ]]; then
    python3 -m venv --clear "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check \
        "dask[array,dataframe]==2026.8.0" distributed==2026.8.0 lightgbm scikit-learn xarray
    touch "$environment/ready"
fi
cd "$(mktemp -d)"
"$environment/bin/python" "$folder/libraries.py" "$command" "$@"
