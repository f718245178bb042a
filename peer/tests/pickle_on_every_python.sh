#!/usr/bin/env bash
# Runs the tests of pickles with each supported version of CPython; `cargo test` alone uses
# only the one that runs Dask. Fails before any test if a version is missing.
#
# Usage: peer/tests/pickle_on_every_python.sh [VERSION...]    (3.8 3.11 3.12 3.13)
#
# A version is searched for as pythonVERSION on PATH, then among the versions of pyenv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if (($# == 0)); then
    set -- 3.8 3.11 3.12 3.13
fi

# A command may exist but not run, such as a shim of pyenv.
is_python() {
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) &&
        [[ $version == "$2" ]]
}

pythons=() missing=()
for version in "$@"; do
    found=
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        if is_python "$python" "$version"; then
            found=$python
            break
        fi
    done
    if [[ -n $found ]]; then
        pythons+=("$found")
    else
        missing+=("$version")
    fi
done
if ((${#missing[@]} > 0)); then
    echo "pickle_on_every_python: there is no Python ${missing[*]} on PATH or in pyenv;" \
        "pyenv install ${missing[*]}" >&2
    exit 1
fi

for python in "${pythons[@]}"; do
    "$python" core/tests/vectors/pickles_written.py --check core/tests/vectors/pickles-written
done
export DASKWIRE_PYTHONS="${pythons[*]}"
echo "asking $DASKWIRE_PYTHONS"
cargo test --locked -p daskwire-peer --test it -- --nocapture pickle_
