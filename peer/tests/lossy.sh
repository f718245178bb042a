#!/usr/bin/env bash
# Transfers a million messages over a link that loses packets, over TCP and over QUIC, both
# with BBR: none may be lost, repeated or reordered. TCP can use CUBIC instead, the default
# of most systems; QUIC keeps BBR. Then transfers a million over QUIC on a link that also
# repeats, reorders, delays and damages packets.
#
# Two network namespaces are connected by a pair of virtual interfaces, and nftables drops
# incoming packets at random. Needs root, and Linux with the requested congestion control.
# Installs the Debian package nftables if it is missing.
#
# Usage: peer/tests/lossy.sh [PERCENT [COUNT [bbr|cubic]]]      (5, 1000000, bbr)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

percent=${1:-5}
count=${2:-1000000}
congestion=${3:-bbr}
near=daskwire-near far=daskwire-far

fail() {
    echo "lossy: $*" >&2
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
clean
trap clean EXIT
ip netns add $near
ip netns add $far
ip link add dwnear netns $near type veth peer name dwfar netns $far
ip -n $near addr add 10.99.0.1/24 dev dwnear
ip -n $far addr add 10.99.0.2/24 dev dwfar
for end in $near $far; do
    ip -n $end link set lo up
    ip netns exec $end sysctl -q -w net.ipv4.tcp_congestion_control="$congestion" ||
        fail "no congestion control $congestion here; see net.ipv4.tcp_allowed_congestion_control"
    ip netns exec $end nft -f - <<RULES
table inet loss {
    chain incoming {
        type filter hook input priority 0; policy accept;
        iifname != "lo" numgen random mod 100 < $percent drop
    }
}
RULES
done
ip -n $near link set dwnear up
ip -n $far link set dwfar up

cargo build --quiet --profile dist -p daskwire-peer --example ordered
ordered=${CARGO_TARGET_DIR:-target}/dist/examples/ordered
pem=comm/tests/tls/self-signed.pem
for scheme in tcp quic; do
    echo "$scheme://, $percent % of all packets lost each way:"
    ip netns exec $far "$ordered" receive $scheme://10.99.0.2:9000 $pem &
    receiving=$!
    sleep 1
    timeout 600 ip netns exec $near "$ordered" send $scheme://10.99.0.2:9000 $pem "$count" ||
        fail "$scheme: it failed, or took more than 10 minutes"
    wait $receiving || fail "$scheme: something arrived that was not sent so"
done

echo "quic://, over a link that does worse:"
DASKWIRE_MESSAGES=$count timeout 600 cargo test --quiet --profile dist -p daskwire-quic \
    --test it bad_link:: -- --nocapture || fail "something got lost, or it took more than 10 minutes"
