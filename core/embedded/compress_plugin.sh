#!/usr/bin/env bash
# Compresses the source of the scheduler's plugin, which the worker of fixed size contains.
#
# Usage: core/embedded/compress_plugin.sh
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
python3 -c "import sys, zlib; sys.stdout.buffer.write(zlib.compress(sys.stdin.buffer.read(), 9))" \
    < ../../peer/worker/src/scheduler_plugin.py > src/worker/scheduler_plugin.zlib
