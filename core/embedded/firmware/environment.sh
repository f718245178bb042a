# Python environments for the scripts of this folder, which source this file after
# common.sh.

# Prints the interpreter of the environment with the packages of
# requirements-$1.txt, which the tests use too. Creates the environment if it does
# not exist.
environment() {
    local pins=$root/testing/python/requirements-$1.txt
    local base candidate name
    for candidate in ${DASKWIRE_PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
            2>/dev/null; then
            base=$candidate
            break
        fi
    done
    [[ -n ${base-} ]] || fail "Python 3.11, 3.12 or 3.13 is missing; as root:" \
        "apt-get install python3 python3-venv, or set DASKWIRE_PYTHON"
    # FNV-1a of the pins, and the version for which packages are built.
    name=$("$base" - "$1" "$pins" <<'PYTHON'
import pathlib, sys
value = 0xCBF29CE484222325
for byte in pathlib.Path(sys.argv[2]).read_bytes():
    value = (value ^ byte) * 0x100000001B3 % 2**64
print(f"{sys.argv[1]}-3.{sys.version_info[1]}-{value:016x}")
PYTHON
    )
    "$base" "$root/core/tests/vectors/environment.py" "$target/python/$name" "$pins"
}
