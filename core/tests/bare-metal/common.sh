# Functions of the scripts that build programs for chips. The scripts source this
# file, and remove $log when they end.

# Debian's compiler and the source of its library, from which `core` is built for
# the chip.
packages=(rustc-web rust-web-src cargo-web lld qemu-system-arm)
log=$(mktemp)

fail() {
    echo "${here##*/}: $*" >&2
    exit 1
}

# Runs a command that must succeed. Shows its output if it fails.
quietly() {
    "$@" >"$log" 2>&1 && return
    tail -n 40 "$log" | cut -c 1-400 >&2
    fail "the command failed: $*"
}

# Runs a command that must fail with an output that matches REASON.
refused() {
    local reason=$1
    shift
    if "$@" >"$log" 2>&1; then
        fail "the command did not fail with '$reason': $*"
    fi
    if ! grep -q "$reason" "$log"; then
        tail -n 40 "$log" | cut -c 1-400 >&2
        fail "the command failed, but not with '$reason': $*"
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

# Sets `build` to the command that builds a package for a chip.
#
# Usage: build_for_chip PACKAGE TARGET CHIP [SCRIPT]
#
# SCRIPT is the linker script. Default: link.x of the package. The compiler is
# Debian's, even if another one precedes it in PATH. The unstable options build
# `core`; the package uses stable Rust.
build_for_chip() {
    build=(env -u RUSTUP_TOOLCHAIN -u CARGO_ENCODED_RUSTFLAGS -u CARGO
        PATH="/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
        RUSTFLAGS="-C linker=ld.lld -C link-arg=-T${4:-$1/link.x}"
        CARGO_TARGET_DIR="$2"
        /usr/bin/cargo build --manifest-path "$1/Cargo.toml" --locked --release
        -Zbuild-std=core --target "$3")
}

# Runs a program on an emulated Cortex-M4 and prints its output. Fails if the
# program fails, or takes more than two minutes.
run_on_chip() {
    timeout 120 qemu-system-arm -M netduinoplus2 -display none \
        -monitor none -serial none \
        -semihosting-config enable=on,target=native -kernel "$1" 2>&1
}
