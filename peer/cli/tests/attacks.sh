#!/usr/bin/env bash
# Attacks on a scheduler over TLS, see it/attacks.rs, with ten times as many peers and messages as
# in the tests. It needs about 20,000 file descriptors.
#
# Usage: peer/cli/tests/attacks.sh [SCALE]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

export DASKWIRE_ATTACKS=${1:-10}
exec cargo test --release -p daskwire-cli --test it -- --test-threads=1 --nocapture attacks::
