#!/usr/bin/env bash
# Starts and uses clusters as programs around Dask do: prefect-dask, dask-jobqueue, dask-kubernetes and SSHCluster.
#
# Usage: managers.sh [CHECK...]
#
# The checks are those of `managers.py`; without arguments, all run. Needs python3.11 or later with venv, pip's access
# to PyPI, and for SSHCluster the server of OpenSSH (Debian: openssh-server). Compiles the Python package.
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$folder/../../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
environment=$target/python/managers
if [[ ! -e $environment/ready ]]; then
    python3 -m venv --clear "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check \
        distributed==2026.8.0 numpy aiohttp asyncssh dask-jobqueue==0.9.0 prefect-dask==0.3.7
    touch "$environment/ready"
fi
# The profile of the tests, with which most dependencies are already compiled.
export MATURIN_PEP517_ARGS="--profile dev"
CARGO_TARGET_DIR=$target "$environment/bin/pip" install --quiet --disable-pip-version-check \
    --no-deps --force-reinstall "$root/python"
cd "$(mktemp -d)"
"$environment/bin/python" "$folder/managers.py" "$@"
