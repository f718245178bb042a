#!/usr/bin/env bash
# Records the captures in this folder: a client of Dask requests the identity and an echo of
# 6,000 bytes from a scheduler, in a network namespace where segments hold 1,460 bytes, while
# tcpdump captures the traffic.
#
# Usage: record.sh PYTHON    as root; PYTHON has distributed 2026.8.0
#
# Needs tcpdump and editcap (Debian: wireshark-common), which converts the second recording
# to pcapng.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ ${2-} != inside ]]; then
    exec unshare --net "$0" "$1" inside
fi
python=$1
work=$(mktemp -d)
cd "$work"
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
ip link set lo up mtu 1500 gso_max_segs 1
"$python" -m distributed.cli.dask_scheduler --host 127.0.0.1 --port 8786 \
    --no-dashboard --dashboard-address 127.0.0.1:0 2>scheduler.log &
until grep -q 'Scheduler at:' scheduler.log; do sleep 0.2; done
listeners=()
for interface in lo any; do
    tcpdump -i "$interface" -U -w "$interface.pcap" 'tcp port 8786' 2>"$interface.log" &
    listeners+=($!)
    until grep -q 'listening on' "$interface.log"; do sleep 0.2; done
done
"$python" - <<'PYTHON'
import asyncio

from distributed.core import rpc


async def main():
    async with rpc("tcp://127.0.0.1:8786") as scheduler:
        await scheduler.identity()
        data = bytes(range(250)) * 24
        assert await scheduler.echo(data=data) == data


asyncio.run(main())
PYTHON
sleep 1
kill -INT "${listeners[@]}"
wait "${listeners[@]}" || true
editcap -F pcapng any.pcap any.pcapng
cp lo.pcap any.pcapng "$here"
chmod 644 "$here"/*.pcap*
