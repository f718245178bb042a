#!/usr/bin/env bash
# Proves that daskwire needs neither an allocator nor panics, by linking.
#
# The programs here have no `#[global_allocator]`, so that they build only if
# nothing in them needs a heap. Their panic handler calls a function that does
# not exist, so that they link only if no panic is left in them. Both are then
# run, on this machine and on an emulated Cortex-M4, because code that was
# optimised away proves nothing. Two builds that allocate or panic must fail to
# link. The optimisation levels are 3, s and z, because each removes other code;
# on the Cortex-M4, the program with all error texts has level 3 only.
#
# The futures of comms over async streams have one panic, which the compiler adds
# to each `async fn`: for a future that is polled again after it has completed. A
# program of its own links it, and is searched for others.
#
# What is proven: framing, also into vectors of heapless, messages in both
# layouts, building, the handshake, lz4 and snappy decompression, snappy
# compression, arrays, masked arrays and records, pickles read and written, comms
# without I/O and over embedded-io, blocking and async, and the text of every
# error. core/embedded/firmware/run.sh does the same for the roles.
# What is not, of all that needs no `alloc`:
# * lz4 compression: the crate lz4_flex has panics, and the linker does not prove
#   that they are unreachable;
# * decompression of zlib, with the crate miniz_oxide, for the same reason;
# * `daskwire::display`, which prints floats with the code of the standard library;
# * futures that are polled after they have completed;
# * on the Cortex-M4 at levels s and z, the texts of errors, see below.
#
# Usage: core/tests/bare-metal/run.sh [host|cortex-m]      Default: both.
#
# Needs cargo and binutils; for the Cortex-M4 the Debian packages in common.sh,
# which are installed where that is possible. CARGO_TARGET_DIR is the directory
# of the builds. Default: `target` beside this file. DASKWIRE_LEVELS are the
# optimisation levels. Default: "3 s z".
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}/bare-metal
chip=thumbv7em-none-eabi
read -ra levels <<<"${DASKWIRE_LEVELS:-3 s z}"
source "$here/common.sh"
trap 'rm -f "$log"' EXIT

host() {
    command -v size >/dev/null || fail "binutils is missing, for size"
    local build=(env CARGO_TARGET_DIR="$target/host"
        cargo build --manifest-path "$here/Cargo.toml" --locked --release --bin host)
    refused daskwire_panics "${build[@]}" --features break-no-panic
    refused "no global memory allocator" "${build[@]}" --features break-no-heap
    local level text panics program=$target/host/release/host
    for level in "${levels[@]}"; do
        quietly env CARGO_PROFILE_RELEASE_OPT_LEVEL="$level" "${build[@]}"
        text=$(size -A "$program" | awk '$1 == ".text" { print $2 }')
        "$program" || fail "host: the program reported an error"
        echo "host, level $level: links without allocator and panics," \
            "$text bytes of text; runs"
        quietly env CARGO_PROFILE_RELEASE_OPT_LEVEL="$level" "${build[@]}" --features async
        panics=$(panics_of "$program")
        [[ -z $panics ]] || fail "async, level $level: these functions can panic:"$'\n'"$panics"
        "$program" >"$log" || fail "async: the program reported an error"
        echo "async, level $level: no panics but for futures that are polled too often; runs"
    done
    quietly "${build[@]}" --features async,break-no-panic
    [[ -n $(panics_of "$program") ]] || fail "async: a panic was not found"
}

# The functions of a program that call a panic, other than those of the compiler
# for async functions, and the panics.
panics_of() {
    objdump -d --no-show-raw-insn "$1" | awk '
        /^[0-9a-f]+ <.*>:$/ { function_name = $2 }
        $2 ~ /^(call|jmp)/ && /panicking|rust_begin_unwind/ {
            if (!/async_fn_resumed/ && function_name !~ /async_fn_resumed|9panic_fmt/)
                print function_name, $NF
        }'
}

cortex_m() {
    install_packages
    local build
    build_for_chip "$here" "$target" "$chip"
    refused daskwire_panics "${build[@]}" --bin cortex-m --features break-no-panic
    local level program programs=(cortex-m-decode cortex-m) features output
    for level in "${levels[@]}"; do
        # At the other levels, formatting in the standard library has panics on this
        # chip: a bounds check in `Display` of u64 at level s, and an index of a slice
        # in `Display` of EscapeAscii at level z.
        features=without-texts
        [[ $level != 3 ]] || features=
        quietly env CARGO_PROFILE_RELEASE_OPT_LEVEL="$level" \
            "${build[@]}" "${programs[@]/#/--bin=}" --features "$features"
        for program in "${programs[@]}"; do
            output=$(run_on_chip "$target/$chip/release/$program") || {
                echo "$output" >&2
                fail "$program: the program reported an error, or timed out"
            }
            echo "$output"
            # qemu can succeed although the program has not run.
            grep -q "flash .* bytes" <<<"$output" ||
                fail "$program: the program has not run to its end"
            echo "$program, level $level: links without allocator and panics;" \
                "$(grep -o 'flash.*' <<<"$output" | tail -n 1); runs in qemu"
        done
    done
}

case ${1:-both} in
host) host ;;
cortex-m) cortex_m ;;
both)
    host
    cortex_m
    ;;
*) fail "usage: $0 [host|cortex-m]" ;;
esac
