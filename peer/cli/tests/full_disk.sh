#!/usr/bin/env bash
# A worker whose disk is full logs the failure, keeps its data in memory, continues to
# reply, and writes again once there is room. The disk is a file system in memory of
# 100 MiB; mounting it requires root and Linux. PYTHON is an interpreter that has
# `distributed`, such as those that the tests create in `target/python`. With `--python`, the
# worker runs functions of Python in processes of PYTHON, and otherwise functions in Rust.
#
# Usage: peer/cli/tests/full_disk.sh [--python] PYTHON
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

fail() {
    echo "full_disk: $*" >&2
    exit 1
}

options=() functions=rust limit=256MiB target=0.6
if [[ ${1:-} == --python ]]; then
    # The process of PYTHON takes some 60 MiB of the limit, so that the worker has to write
    # earlier to fill the disk before it pauses.
    options=(--python "${2:-}") functions=python limit=320MiB target=0.3
    shift
fi
python=${1:-}
[[ -n $python ]] || fail "usage: peer/cli/tests/full_disk.sh [--python] PYTHON"
"$python" -c 'import distributed' || fail "$python has no distributed"
((EUID == 0)) || fail "mounting a file system needs root"
cargo build --quiet --release -p daskwire-cli

disk=$(mktemp -d)
scheduler_log=$disk.scheduler worker_log=$disk.worker
clean() {
    jobs -p | xargs -r kill 2>/dev/null || true
    wait
    umount "$disk" && rmdir "$disk"
    rm -f "$scheduler_log" "$worker_log"
}
mount -t tmpfs -o size=100m daskwire-full-disk "$disk"
trap clean EXIT

"$python" -m dask scheduler --host 127.0.0.1 --port 0 --no-dashboard \
    --dashboard-address 127.0.0.1:0 2>"$scheduler_log" &
for _ in {1..300}; do
    address=$(grep -o 'Scheduler at: *tcp://[0-9.:]*' "$scheduler_log") && break
    sleep 0.1
done
[[ -n $address ]] || fail "the scheduler did not start: $(cat "$scheduler_log")"
address=tcp://${address##*tcp://}
DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=$target \
    "${CARGO_TARGET_DIR:-target}/release/daskwire" worker "$address" --nthreads 1 \
    --memory-limit "$limit" --local-directory "$disk" "${options[@]}" 2>"$worker_log" &

"$python" - "$address" "$functions" <<'PYTHON'
import operator
import sys
import time

import numpy as np
from distributed import Client, wait

client = Client(sys.argv[1])
client.wait_for_workers(1, timeout=30)
if sys.argv[2] == "rust":
    noise = operator.methodcaller("native:noise")
    norm = operator.methodcaller("native:norm")
else:
    def noise(seed, length):
        return np.random.default_rng(seed).uniform(-1, 1, length)

    norm = np.linalg.norm


def worker():
    return next(iter(client.scheduler_info()["workers"].values()))


def notices():
    return [event["text"] for _, event in client.get_events("worker-notice")]


def until(what, so):
    deadline = time.time() + 30
    while not so():
        assert time.time() < deadline, what
        time.sleep(0.1)


# 12 arrays of 16 MiB: at most 10 of them fit into memory, or 6 of them on the disk.
first = [client.submit(noise, seed, 2 << 20) for seed in range(12)]
wait(first, timeout=30)
# 20 arrays exceed memory and disk together, up to the threshold at which a worker pauses.
more = [client.submit(noise, seed, 2 << 20) for seed in range(12, 20)]
until("pausing", lambda: worker()["status"] == "paused")
assert any("No space left on device" in text for text in notices()), notices()
# The worker replies, and still has all of its data.
norms = [np.linalg.norm(array) for array in client.gather(first)]
assert all(800 < norm < 900 for norm in norms), norms
del first
wait(more, timeout=30)
norms = client.gather([client.submit(norm, array) for array in more])
assert all(800 < norm < 900 for norm in norms), norms
until("running", lambda: worker()["status"] == "running")
# The worker writes again once there is room.
last = [client.submit(noise, seed, 2 << 20) for seed in range(20, 24)]
wait(last, timeout=30)
until("writing again", lambda: any("can write to disk again" in text for text in notices()))
print("full_disk: nothing was lost, and the worker went on")
PYTHON
