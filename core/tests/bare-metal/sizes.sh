#!/usr/bin/env bash
# Prints the sizes of programs for a Cortex-M4: bytes of flash, of stack and of
# static variables, at the optimisation levels 3, s and z.
#
# | program  | work |
# | -------- | --- |
# | empty    | starts the chip and prints the sizes, as all programs do |
# | find     | frames from a stream; entries of the body by key |
# | open     | frames from a stream; the whole body, with the frames of a payload |
# | lz4      | as open, with the payload decompressed |
# | codec    | everything that needs no heap, with the texts of all errors |
#
# All programs run in qemu and check the values that they have read. Flash does not
# include the recorded messages; stack includes all buffers.
#
# Usage: core/tests/bare-metal/sizes.sh [PROGRAM...]
#        core/tests/bare-metal/sizes.sh --check    all programs, at level s only; fails
#                                                  if one exceeds its limit of flash
#
# Requires the packages of run.sh for the Cortex-M4.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Shared with run.sh, so that `core` is built once.
target=${CARGO_TARGET_DIR:-$here/target}/bare-metal
chip=thumbv7em-none-eabi
levels=(3 s z)
source "$here/common.sh"
trap 'rm -f "$log"' EXIT
# The maximum flash of a program at level s, in bytes.
declare -A limits=([find]=10240 [open]=16384 [lz4]=24576)

install_packages
programs=("$@")
if [[ ${1:-} == --check ]]; then
    programs=()
    levels=(s)
else
    limits=()
fi
if ((${#programs[@]} == 0)); then
    programs=(empty find open lz4 codec)
fi
build_for_chip "$here/sizes" "$target" "$chip" "$here/link.x"
format='%-10s %5s %10s %10s %10s\n'
# shellcheck disable=SC2059 # the format contains no input
printf "$format" program level flash stack static
for program in "${programs[@]}"; do
    for level in "${levels[@]}"; do
        quietly env CARGO_PROFILE_RELEASE_OPT_LEVEL="$level" \
            "${build[@]}" --bin "$program" --features "$program"
        output=$(run_on_chip "$target/$chip/release/$program") ||
            fail "$program at level $level: the program reported an error, or timed out"
        read -r flash stack static <<<"$output"
        # shellcheck disable=SC2059
        printf "$format" "$program" "$level" "$flash" "$stack" "$static"
        ((flash <= ${limits[$program]:-flash})) ||
            fail "$program at level $level: more than ${limits[$program]} bytes of flash"
    done
done
