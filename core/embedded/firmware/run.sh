#!/usr/bin/env bash
# Runs the firmware in qemu with real Dask schedulers, and with peers that
# misbehave.
#
# A scheduler with two workers is started, of the newest release and of one with
# the classic layout. The serial line of the board is connected to its TCP port,
# and the firmware must report two workers. With peers that send nothing, too
# much, or invalid data (misbehave.py), it must end with an error that describes
# the fault. As in core/tests/bare-metal, it links only if nothing in it allocates
# or panics; so does the program of both roles.
#
# Usage: core/embedded/firmware/run.sh
#
# Needs the Debian packages in bare-metal/common.sh, which are installed where
# that is possible, and Python as the tests of `peer` do, whose environments it
# shares. CARGO_TARGET_DIR is the directory of the builds. Default: `target` at the
# root of the repository. DASKWIRE_LEVELS are the optimisation levels of the program
# of both roles. Default: "3 s z".
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
chip=thumbv7m-none-eabi
firmware=$target/firmware/$chip/release/firmware
source "$root/core/tests/bare-metal/common.sh"
source "$here/environment.sh"
scratch=$(mktemp -d)
started=()

finish() {
    # Some may have ended already.
    ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
    wait
    rm -rf "$log" "$scratch"
}
trap finish EXIT

# Starts a Python script with its output in $scratch/NAME, and waits until it prints
# `ready`.
start() {
    local name=$1
    shift
    mkfifo "$scratch/$name.stdin"
    # No settings of the user's Python or Dask.
    env -i PATH="$PATH" HOME="$HOME" DASK_CONFIG="$scratch" DASK_ROOT_CONFIG="$scratch" \
        DASK_TEMPORARY_DIRECTORY="$scratch" PYTHONUNBUFFERED=1 \
        "$@" <"$scratch/$name.stdin" >"$scratch/$name" 2>"$scratch/$name.log" &
    local process=$!
    started+=("$process")
    # The script ends when its standard input is closed, which this shell holds open.
    exec {stdin}>"$scratch/$name.stdin"
    local deadline=$((SECONDS + 120))
    until grep -q ready "$scratch/$name"; do
        if ! kill -0 "$process" 2>/dev/null || ((SECONDS > deadline)); then
            tail -n 40 "$scratch/$name.log" >&2
            fail "$name did not become ready; its log is above"
        fi
        sleep 0.1
    done
}

# Runs the firmware with its serial line connected to a port, and prints its output.
run() {
    timeout 60 qemu-system-arm -M lm3s6965evb -display none -monitor none \
        -serial "tcp:127.0.0.1:$1" -semihosting-config enable=on,target=native \
        -kernel "$firmware" 2>&1
}

# Checks that the firmware finds two workers at the scheduler of an environment.
finds_two() {
    local python output port
    python=$(environment "$1")
    start "scheduler-$1" "$python" "$here/scheduler.py"
    port=$(sed -n 's/^ready //p' "$scratch/scheduler-$1")
    output=$(run "$port") || {
        echo "$output" >&2
        fail "the firmware failed with the $1 release of Dask"
    }
    sed -n '/^    /p' <<<"$output"
    grep -Eq 'scheduler Scheduler-[-0-9a-f]+: 2 workers$' <<<"$output" ||
        fail "the firmware has not found the two workers of the $1 release of Dask"
}

# Checks how the firmware ends at a peer that misbehaves: its status, and a pattern
# in its output.
ends() {
    local name=$1 expected_status=$2 text=$3 status=0 output port
    port=$(sed -n "s/^$name //p" "$scratch/misbehave")
    output=$(run "$port") || status=$?
    if ((status != expected_status)) || ! grep -q "$text" <<<"$output"; then
        echo "$output" >&2
        fail "peer '$name': expected status $expected_status and '$text', got status $status"
    fi
    echo "$name: $(sed -n 's/^    \(failed\|scheduler\)/\1/p' <<<"$output")"
}

install_packages
build_for_chip "$here" "$target/firmware" "$chip"
quietly "${build[@]}" --features classic
refused daskwire_panics "${build[@]}" --features classic,break-no-panic
echo "firmware: links without allocator and panics"
read -ra levels <<<"${DASKWIRE_LEVELS:-3 s z}"
refused daskwire_panics env CARGO_PROFILE_RELEASE_OPT_LEVEL="${levels[0]}" \
    "${build[@]}" --features roles,break-no-panic --bin roles
for level in "${levels[@]}"; do
    # The second with the formats of defmt for all errors and states.
    for features in roles defmt; do
        quietly env CARGO_PROFILE_RELEASE_OPT_LEVEL="$level" \
            "${build[@]}" --features "$features" --bin roles
        used=$(timeout 60 qemu-system-arm -M lm3s6965evb -display none -monitor none \
            -serial none -semihosting-config enable=on,target=native \
            -kernel "$target/firmware/$chip/release/roles" 2>&1) || {
            echo "$used" >&2
            fail "$features, level $level: the program reported an error, or timed out"
        }
        used=$(grep -o 'flash.*' <<<"$used") ||
            fail "$features, level $level: the program has not run to its end"
        echo "$features, level $level: worker and client link without allocator and panics; $used"
    done
done
# Without the linker script of the chip.
quietly env -u RUSTUP_TOOLCHAIN PATH="/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 \
    CARGO_TARGET_DIR="$target/firmware" /usr/bin/cargo check --locked \
    --manifest-path "$here/../Cargo.toml" --features roles \
    -Zbuild-std=core --target wasm32-unknown-unknown
echo "roles: build for wasm32 without the standard library"

finds_two current
finds_two documented

# The maximum length of a message: MESSAGE_LEN in main.rs.
room=32768
start misbehave python3 "$here/misbehave.py" "$room"
waiting=()
for name in silent closing slow silent-later; do
    ends "$name" 1 "failed: the peer has not said enough" &
    waiting+=($!)
done
for process in "${waiting[@]}"; do
    wait "$process"
done
ends web-server 1 "failed: .* declares .* frames; the limit is"
ends noise 1 "failed: .* declares .* frames; the limit is"
ends zeros 1 "failed: .* has no frames"
ends no-handshake 1 "failed: .* has no .compression."
ends full 0 "scheduler full: 1 worker$"
ends too-long 1 "failed: .*frame 0 has a declared length of $((room + 1)) bytes; the limit is $room"
ends giant 1 "failed: .*frame 0 has a declared length of $((1 << 40)) bytes; the limit is $room"
ends refusing 1 "failed: the answer has no"
ends broken 1 "failed: .*at byte"
echo "firmware: ends with an error at every peer that misbehaves"
