#!/usr/bin/env bash
# Tests that both ends of a comm detect that the link between them is silent, after about
# 30 seconds: over TCP by settings of the system (TCP_USER_TIMEOUT, keep-alive), over QUIC by
# its idle timeout.
#
# Two network namespaces are connected by a pair of virtual interfaces. Once messages are
# exchanged, nftables drops everything. Needs root and Linux. Installs the Debian package
# nftables if it is missing.
#
# Usage: peer/tests/partition.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

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
trap clean EXIT
cargo build --quiet --profile dist -p daskwire-peer --example ordered
ordered=${CARGO_TARGET_DIR:-target}/dist/examples/ordered
pem=comm/tests/tls/self-signed.pem
said=$(mktemp)
for scheme in tcp quic; do
    clean
    ip netns add $near
    ip netns add $far
    ip link add dwnear netns $near type veth peer name dwfar netns $far
    ip -n $near addr add 10.99.0.1/24 dev dwnear
    ip -n $far addr add 10.99.0.2/24 dev dwfar
    ip -n $near link set dwnear up
    ip -n $far link set dwfar up
    ip netns exec $far "$ordered" receive $scheme://10.99.0.2:9000 $pem >"$said" 2>&1 &
    receiving=$!
    sleep 1
    ip netns exec $near "$ordered" send $scheme://10.99.0.2:9000 $pem 1000000000 >>"$said" 2>&1 &
    sending=$!
    sleep 2
    kill -0 $sending 2>/dev/null || { cat "$said" >&2; fail "$scheme: nothing flows"; }
    ip netns exec $far nft -f - <<<'table inet silence {
        chain incoming { type filter hook input priority 0; policy drop; }
        chain outgoing { type filter hook output priority 0; policy drop; }
    }'
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
rm -f "$said"
