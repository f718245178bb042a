# What the programs for chips have in common: sourced by their run.sh, which
# removes $log when it ends.

# Debian's compiler comes with its library as source, from which `core` is built
# for the chip.
packages=(rustc-web rust-web-src cargo-web lld qemu-system-arm)
log=$(mktemp)

fail() {
    echo "${here##*/}: $*" >&2
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
        fail "building for the chip needs Debian's packages: ${missing[*]}"
    fi
    if ((EUID != 0)); then
        fail "packages are missing; as root: apt-get install ${missing[*]}"
    fi
    echo "${here##*/}: installing ${missing[*]}"
    quietly apt-get update
    quietly env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}"
}

# Sets `build`: cargo for the package in a directory, a target directory, a chip,
# and the script for the linker if it is not in that directory. Debian's compiler, whatever else is in front of it; nightly options are
# for building `core`, the code itself uses stable Rust.
build_for_chip() {
    build=(env -u RUSTUP_TOOLCHAIN -u CARGO_ENCODED_RUSTFLAGS -u CARGO
        PATH="/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
        RUSTFLAGS="-C linker=ld.lld -C link-arg=-T${4:-$1/link.x}"
        CARGO_TARGET_DIR="$2"
        /usr/bin/cargo build --manifest-path "$1/Cargo.toml" --locked --release
        -Zbuild-std=core --target "$3")
}

# Runs a program on a Cortex-M4 and prints what it says. Fails if it does, or
# hangs.
run_on_chip() {
    timeout 120 qemu-system-arm -M netduinoplus2 -display none \
        -monitor none -serial none \
        -semihosting-config enable=on,target=native -kernel "$1" 2>&1
}
