#!/usr/bin/env bash
# Builds a program with the client from nothing, and one with async-nats, one after the other, and prints for each the
# packages, the processor time of the build, and the size of the program. Both send one request and print the reply.
# Downloads packages before the builds, which take several minutes.
#
# Usage: peer/benches/program_size.sh [FOLDER]
#
# FOLDER is for the builds; default: a temporary one, which is removed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${1:-$(mktemp -d)}
[[ -n ${1:-} ]] || trap 'rm -rf "$folder"' EXIT
unset CARGO_TARGET_DIR RUSTFLAGS CARGO_PROFILE_RELEASE_DEBUG

# package NAME DEPENDENCY: makes a package whose program is the standard input.
package() {
    mkdir -p "$folder/$1/src"
    cat >"$folder/$1/src/main.rs"
    cat >"$folder/$1/Cargo.toml" <<END
[package]
name = "with-$1"
version = "0.0.0"
edition = "2024"

[dependencies]
$2
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }

[profile.release]
lto = "thin"
strip = true

[workspace]
END
}

package daskwire "daskwire-peer = { path = \"$root/peer\", default-features = false, features = [\"client\", \"tcp\"] }" <<'END'
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = daskwire_peer::Client::connect("tcp://127.0.0.1:8786").await?;
    let sum = client.submit("operator.add", [1, 2])?;
    println!("{}", sum.result().await?);
    client.close().await?;
    Ok(())
}
END
package async-nats 'async-nats = "=0.51.0"
bytes = "1"' <<'END'
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = async_nats::connect("nats://127.0.0.1:4222").await?;
    let reply = client.request("sum", bytes::Bytes::from_static(b"1 2")).await?;
    println!("{}", String::from_utf8_lossy(&reply.payload));
    client.drain().await?;
    Ok(())
}
END

for name in daskwire async-nats; do
    cd "$folder/$name"
    cargo fetch --quiet
    rm -rf target
    count=$(cargo tree --prefix none --edges normal,build --no-dedupe | cut -d' ' -f1,2 | sort -u | wc -l)
    TIMEFORMAT='%U %S'
    read -r user system < <({ time cargo build --release --quiet 2>"$folder/$name/log"; } 2>&1)
    size=$(stat -c %s "target/release/with-$name")
    echo "$name: $count packages, $(printf '%.0f' "$(bc <<<"$user + $system")") s of processor time, $size bytes"
done
