#!/usr/bin/env bash
# Runs tests of distributed over the transports of this package.
#
# Usage: run.sh PYTHON CHECKOUT [ARGUMENT OF PYTEST...]
#
# The environment of PYTHON has this package, pytest and pytest-timeout, and the release of
# distributed whose sources are in CHECKOUT: its wheels do not include the tests. With
# DASKWIRE_TCP=quic, tcp:// runs over QUIC, and with DASKWIRE_TLS=quic, tls:// does; otherwise
# they use the Rust transports for TCP and TLS.
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
