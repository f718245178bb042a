#!/usr/bin/env bash
# Runs a cluster of Dask at ws:// behind nginx: `dask scheduler`, a worker of Dask and a worker of
# this repository, which compute for a client of Dask and for one of this repository, with data of
# 20 MB in both directions. All are connected through the proxy: the worker of this repository with
# a path, and its client without one, with one and over wss://, which nginx ends. Then the same with
# `daskwire scheduler`.
#
# Needs nginx (of Debian's package nginx-light), and an interpreter with distributed.
#
# Usage: peer/tests/nginx.sh PYTHON
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
    echo "nginx: $*" >&2
    exit 1
}

python=${1:?the interpreter is missing}
command -v nginx >/dev/null || fail "nginx is missing: install the package nginx-light"
"$python" -c 'import distributed' || fail "$python has no distributed"

cargo build --locked --quiet -p daskwire-cli
daskwire=${CARGO_TARGET_DIR:-target}/debug/daskwire
pem=$PWD/comm/tests/tls/self-signed.pem
folder=$(mktemp -d)
processes=()

clean() {
    local process
    for process in "${processes[@]}"; do
        kill "$process" 2>/dev/null || true
    done
    wait
    rm -rf "$folder"
}
trap clean EXIT

# Waits until a file has a line with this text.
wait_for() {
    local attempt
    for attempt in {1..300}; do
        if grep -q -- "$2" "$1" 2>/dev/null; then
            return
        fi
        sleep 0.2
    done
    cat "$1" >&2
    fail "nothing with \"$2\" in $1 after $attempt attempts"
}

start() {
    local log=$folder/$1.log
    shift
    "$@" >"$log" 2>&1 &
    processes+=($!)
}

# nginx at three ports: the scheduler at /, the same with a path, and with TLS.
cat >"$folder/nginx.conf" <<CONF
daemon off;
pid $folder/nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path $folder/body;
    proxy_temp_path $folder/proxy;
    fastcgi_temp_path $folder/fastcgi;
    uwsgi_temp_path $folder/uwsgi;
    scgi_temp_path $folder/scgi;
    proxy_http_version 1.1;
    proxy_set_header Upgrade \$http_upgrade;
    proxy_set_header Connection "upgrade";
    server {
        listen 127.0.0.1:18786;
        location / { proxy_pass http://127.0.0.1:18785; }
        location /user/me/ { proxy_pass http://127.0.0.1:18785/; }
        location /elsewhere { return 404; }
    }
    server {
        listen 127.0.0.1:18787 ssl;
        ssl_certificate $pem;
        ssl_certificate_key $pem;
        location / { proxy_pass http://127.0.0.1:18785; }
    }
}
CONF
start nginx nginx -c "$folder/nginx.conf" -e stderr

# A task and its result, and data that is larger than the buffers of nginx.
head -c 20000000 /dev/urandom >"$folder/data"
program='
import sys
from distributed import Client
with Client(sys.argv[1], timeout=30) as client:
    data = client.scatter(b"ab" * 10_000_000)
    for name in ("python", "rust"):
        lent = client.submit(len, data, workers=[name], pure=False)
        assert lent.result(timeout=60) == 20_000_000, name
    assert client.gather(data) == b"ab" * 10_000_000
print("done")
'

# uses ADDRESS [OPTION...]: has a client of this repository submit tasks, and send and receive data.
uses() {
    local address=$1 worker key=data-$RANDOM
    shift
    "$daskwire" identity "$address" "$@" | grep -q rust || fail "$address: no worker"
    [[ $("$daskwire" submit "$address" operator.add 1 2 --impure "$@") = 3 ]] ||
        fail "$address: no sum"
    "$daskwire" scatter "$address" "$folder/data" --key "$key" "$@" >/dev/null
    for worker in python rust; do
        [[ $("$daskwire" submit "$address" builtins.len "@$key" --workers "$worker" --impure "$@") = \
            20000000 ]] || fail "$address: $worker has not got the data"
    done
    "$daskwire" gather "$address" "$key" --raw "$@" | cmp - "$folder/data" ||
        fail "$address: other data"
    "$daskwire" release "$address" "$key" "$@" >/dev/null
}

check() {
    start python "$python" -m distributed.cli.dask_worker ws://127.0.0.1:18786 --protocol ws \
        --host 127.0.0.1 --nthreads 1 --no-nanny --no-dashboard --name python
    start rust "$daskwire" worker ws://127.0.0.1:18786/user/me/ --name rust --nthreads 1 \
        --host 127.0.0.1
    wait_for "$folder/python.log" "Registered to:"
    wait_for "$folder/rust.log" "worker rust at"
    timeout 120 "$python" -c "$program" ws://127.0.0.1:18786 | grep -q done ||
        fail "the client of Dask has failed"
    uses ws://127.0.0.1:18786
    uses ws://127.0.0.1:18786/user/me/
    uses wss://127.0.0.1:18787 --tls-ca-file "$pem" --tls-cert "$pem"
    if "$daskwire" identity ws://127.0.0.1:18786/elsewhere 2>"$folder/error"; then
        fail "a path that does not exist was accepted"
    fi
    grep -q "no WebSocket at this path" "$folder/error" || fail "$(cat "$folder/error")"
    echo "nginx: passed with $1"
}

start scheduler "$python" -m distributed.cli.dask_scheduler --host 127.0.0.1 --port 18785 \
    --protocol ws --no-dashboard --dashboard-address 127.0.0.1:0
wait_for "$folder/scheduler.log" "Scheduler at:"
check "dask scheduler"

for process in "${processes[@]:1}"; do
    kill "$process" 2>/dev/null || true
    wait "$process" || true
done
processes=("${processes[0]}")
rm -f "$folder"/{scheduler,python,rust}.log
start scheduler "$daskwire" scheduler --host 127.0.0.1 --port 18785 --protocol ws --no-dashboard
wait_for "$folder/scheduler.log" "Scheduler at:"
check "daskwire scheduler"
