#!/usr/bin/env bash
# Runs the tests of the crates that need no operating system on an emulated PowerPC: a target of
# 32 bits whose numbers have their most significant byte first, as some microcontrollers and
# s390x do.
#
# Usage: core/tests/powerpc.sh [OPTION OF cargo test...]
#
# Needs the Debian packages below, which are installed where that is possible. The standard
# library is built from Debian's source of it. CARGO_TARGET_DIR is the directory of the builds.
# Default: `target` of the workspace.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/bare-metal/common.sh"
packages=(rustc-web rust-web-src cargo-web gcc-powerpc-linux-gnu libc6-dev-powerpc-cross qemu-user)
trap 'rm -f "$log"' EXIT
install_packages

cd "$here/../.."
crates=(-p daskwire -p daskwire-compression -p daskwire-pickle -p daskwire-numpy)
# Emulated code takes some twenty times as long, so the tests are optimised a little.
env -u RUSTUP_TOOLCHAIN -u CARGO_ENCODED_RUSTFLAGS -u CARGO -u RUSTFLAGS \
    PATH="/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 \
    CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/powerpc" CARGO_PROFILE_TEST_OPT_LEVEL=1 \
    CARGO_TARGET_POWERPC_UNKNOWN_LINUX_GNU_LINKER=powerpc-linux-gnu-gcc \
    CARGO_TARGET_POWERPC_UNKNOWN_LINUX_GNU_RUNNER="qemu-ppc -L /usr/powerpc-linux-gnu" \
    /usr/bin/cargo test --locked --quiet -Zbuild-std=std,panic_unwind,test \
    --target powerpc-unknown-linux-gnu "${crates[@]}" --features daskwire/classic --lib --tests "$@"
