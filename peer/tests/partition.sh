#!/usr/bin/env bash
# Tests that both ends of a comm detect that the link between them is silent: over TCP after
# about 30 seconds by settings of the system (TCP_USER_TIMEOUT, keep-alive), over QUIC after
# about 10 by its idle timeout.
#
# Then the same for the members of a cluster: a scheduler at one end, which has to remove a
# worker at the other end, and the worker, which has to end. The scheduler is `daskwire
# scheduler`, and with PYTHON, an interpreter with distributed, `dask scheduler` as well.
#
# Two network namespaces are connected by a pair of virtual interfaces. Once messages are
# exchanged, nftables drops everything. Needs root and Linux. Installs the Debian package
# nftables if it is missing. FOLDER has the programs if they are not to be built, for example
# target/debug.
#
# Usage: peer/tests/partition.sh [PYTHON [FOLDER]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=${1:-} folder=${2:-}
near=daskwire-near far=daskwire-far

fail() {
    echo "partition: $*" >&2
    exit 1
}

((EUID == 0)) || fail "network namespaces need root"
if ! command -v nft >/dev/null; then
    apt-get install -qq -y --no-install-recommends nftables >/dev/null ||
        fail "nft is missing: install the package nftables"
fi

clean() {
    ip netns del $near 2>/dev/null || true
    ip netns del $far 2>/dev/null || true
}
# Connects two new namespaces.
connect() {
    clean
    ip netns add $near
    ip netns add $far
    ip link add dwnear netns $near type veth peer name dwfar netns $far
    ip -n $near addr add 10.99.0.1/24 dev dwnear
    ip -n $far addr add 10.99.0.2/24 dev dwfar
    ip -n $near link set dwnear up
    ip -n $far link set dwfar up
}

silence() {
    ip netns exec $far nft -f - <<<'table inet silence {
        chain incoming { type filter hook input priority 0; policy drop; }
        chain outgoing { type filter hook output priority 0; policy drop; }
    }'
}

trap clean EXIT
if [[ -z $folder ]]; then
    cargo build --quiet --profile dist -p daskwire-peer --example ordered
    cargo build --quiet --profile dist -p daskwire-cli
    folder=${CARGO_TARGET_DIR:-target}/dist
fi
ordered=$folder/examples/ordered daskwire=$folder/daskwire
pem=comm/tests/tls/self-signed.pem
said=$(mktemp)
for scheme in tcp quic; do
    connect
    ip netns exec $far "$ordered" receive $scheme://10.99.0.2:9000 $pem >"$said" 2>&1 &
    receiving=$!
    sleep 1
    ip netns exec $near "$ordered" send $scheme://10.99.0.2:9000 $pem 1000000000 >>"$said" 2>&1 &
    sending=$!
    sleep 2
    kill -0 $sending 2>/dev/null || { cat "$said" >&2; fail "$scheme: nothing flows"; }
    silence
    since=$SECONDS
    for process in $sending $receiving; do
        while kill -0 $process 2>/dev/null; do
            ((SECONDS - since < 45)) || fail "$scheme: an end has not noticed within 45 s"
            sleep 0.2
        done
        if wait $process; then
            fail "$scheme: an end takes silence for success"
        fi
    done
    echo "$scheme://: both ends have noticed after $((SECONDS - since)) s:"
    grep -o 'ordered: .*' "$said" | sed 's/^/    /'
done

# Waits for a line in a file, and fails after some seconds.
await() {
    local file=$1 line=$2 limit=$3 what=$4
    until grep -q "$line" "$file"; do
        ((SECONDS - since < limit)) || { cat "$file" >&2; fail "$what"; }
        sleep 0.2
    done
}

of_worker=$(mktemp)
for kind in daskwire ${python:+dask}; do
    connect
    case $kind in
    daskwire) command=("$daskwire" scheduler) joined='(near) joined' left='(near) left' ;;
    dask)
        command=("$python" -m distributed.cli.dask_scheduler --no-dashboard)
        joined='Register worker' left='Remove worker'
        ;;
    esac
    ip netns exec $far "${command[@]}" --host 10.99.0.2 --port 8786 >"$said" 2>&1 &
    scheduler=$!
    ip netns exec $near "$daskwire" worker tcp://10.99.0.2:8786 --name near >"$of_worker" 2>&1 &
    worker=$!
    since=$SECONDS
    await "$said" "$joined" 60 "$kind: the worker has not joined"
    # Some heartbeats
    sleep 2
    silence
    since=$SECONDS
    await "$said" "$left" 45 "$kind: the scheduler has not removed the worker within 45 s"
    echo "$kind scheduler: has removed the worker after $((SECONDS - since)) s"
    await "$of_worker" 'connection to the scheduler was lost' 45 \
        "$kind: the worker has not noticed within 45 s"
    echo "$kind scheduler: the worker has noticed after at most $((SECONDS - since)) s"
    kill $scheduler $worker 2>/dev/null || true
    wait $scheduler $worker 2>/dev/null || true
done
rm -f "$said" "$of_worker"
