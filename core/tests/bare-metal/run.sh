#!/usr/bin/env bash
# Proves that daskwire needs neither an allocator nor panics, by linking.
#
# The programs here have no `#[global_allocator]`, so that they build only if
# nothing in them needs a heap. Their panic handler calls a function that does
# not exist, so that they link only if no panic is left in them. Both are then
# run, on this machine and on an emulated Cortex-M4, because code that has been
# optimised away proves nothing. Two builds that break one promise each make
# sure that the proof would notice.
#
# What is proven: framing, messages in both layouts, building, the handshake,
# lz4 and snappy decompression, snappy compression, comms over embedded-io, and
# the text of every error.
# What is not: lz4 compression (the crate lz4_flex has panics; whether they can
# be reached is its promise, not the linker's), and `daskwire::display`, which
# prints floats with the code of the standard library.
#
# Usage: core/tests/bare-metal/run.sh [host|cortex-m]      (both if not said)
#
# Needs cargo and binutils; for the Cortex-M4 the Debian packages below, which
# are installed where that is possible: Debian's compiler comes with its library
# as source, from which `core` is built for the chip. CARGO_TARGET_DIR says
# where things are built, `target` beside this file if it is not set.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}/bare-metal
packages=(rustc-web rust-web-src cargo-web lld qemu-system-arm)
chip=thumbv7em-none-eabi
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() {
    echo "bare-metal: $*" >&2
    exit 1
}

# Runs a command that is to succeed, and shows what it said if it does not.
quietly() {
    "$@" >"$log" 2>&1 && return
    tail -n 40 "$log" | cut -c 1-400 >&2
    fail "this failed: $*"
}

# A command that is to fail, for the reason given.
refused() {
    local reason=$1
    shift
    if "$@" >"$log" 2>&1; then
        fail "this should have failed with '$reason': $*"
    fi
    if ! grep -q "$reason" "$log"; then
        tail -n 40 "$log" | cut -c 1-400 >&2
        fail "this failed for another reason than '$reason': $*"
    fi
}

host() {
    command -v size >/dev/null || fail "binutils is missing, for size"
    local build=(env CARGO_TARGET_DIR="$target/host"
        cargo build --manifest-path "$here/Cargo.toml" --locked --release --bin host)
    refused daskwire_panics "${build[@]}" --features break-no-panic
    refused "no global memory allocator" "${build[@]}" --features break-no-heap
    quietly "${build[@]}"
    local program=$target/host/release/host
    local text
    text=$(size -A "$program" | awk '$1 == ".text" { print $2 }')
    "$program" || fail "host: the program says that something is wrong"
    echo "host: links without allocator and panics, $text bytes of text; runs"
}

install_packages() {
    local package missing=()
    for package in "${packages[@]}"; do
        if ! dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null |
            grep -qx installed; then
            missing+=("$package")
        fi
    done
    if ((${#missing[@]} == 0)); then
        return
    fi
    if ! command -v apt-get >/dev/null; then
        fail "the Cortex-M4 build needs Debian's packages: ${missing[*]}"
    fi
    if ((EUID != 0)); then
        fail "packages are missing; as root: apt-get install ${missing[*]}"
    fi
    echo "cortex-m: installing ${missing[*]}"
    quietly apt-get update
    quietly env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}"
}

cortex_m() {
    install_packages
    # Debian's compiler, whatever else is in front of it; nightly options are
    # for building `core`, the code itself uses stable Rust.
    local build=(env -u RUSTUP_TOOLCHAIN -u CARGO_ENCODED_RUSTFLAGS -u CARGO
        PATH="/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
        RUSTFLAGS="-C linker=ld.lld -C link-arg=-T$here/link.x"
        CARGO_TARGET_DIR="$target/cortex-m"
        /usr/bin/cargo build --manifest-path "$here/Cargo.toml" --locked --release
        -Zbuild-std=core --target "$chip")
    quietly "${build[@]}" --bin cortex-m --bin cortex-m-decode
    refused daskwire_panics "${build[@]}" --bin cortex-m --features break-no-panic
    # The refused build has replaced nothing: cargo links only what compiles.
    local program told
    for program in cortex-m cortex-m-decode; do
        told=$(timeout 120 qemu-system-arm -M netduinoplus2 -display none \
            -monitor none -serial none \
            -semihosting-config enable=on,target=native \
            -kernel "$target/cortex-m/$chip/release/$program" 2>&1) || {
            echo "$told" >&2
            fail "$program: the program says that something is wrong, or hangs"
        }
        echo "$told"
        # qemu has other ways to end well than a program that has run.
        grep -q "flash .* bytes" <<<"$told" || fail "$program: it has not run to its end"
        echo "$program: links without allocator and panics;" \
            "$(grep -o 'flash.*' <<<"$told" | tail -n 1); runs in qemu"
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
