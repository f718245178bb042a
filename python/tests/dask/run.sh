#!/usr/bin/env bash
# Runs tests of distributed over the transports of this package.
#
# Usage: run.sh PYTHON CHECKOUT [ARGUMENT OF PYTEST...]
#
# PYTHON has this package, pytest and pytest-timeout, and the release of distributed whose
# sources are in CHECKOUT: wheels have no tests. DASKWIRE_TCP=quic has tcp:// carried by QUIC,
# DASKWIRE_TLS=quic tls://; otherwise they are TCP and TLS in Rust.
set -euo pipefail
python=$1 checkout=$2
shift 2
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
installed=$(cd / && "$python" -c 'import distributed; print(distributed.__path__[0])')
for tests in $(cd "$checkout" && find distributed -name tests -type d); do
    rm -rf "$(dirname "$installed")/$tests"
    cp -r "$checkout/$tests" "$(dirname "$installed")/$tests"
done
cp "$checkout"/{conftest.py,pyproject.toml} "$(dirname "$installed")"
cd "$(dirname "$installed")"
PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m pytest -c pyproject.toml -p no:cacheprovider --color=no "$@"
