#!/bin/sh
# Makes the certificates of this folder again, with faketime and an openssl of
# version 3.0 to 3.3: later ones write version 3 where version 1 is wanted here.
# rcgen, which makes the others while the tests run, does neither version 1 nor
# RSA keys.
set -eu
cd "$(dirname "$0")"
days=365000 # to the year 3019
openssl() {
    faketime "2020-01-01 00:00:00" openssl "$@"
}
keys=$(mktemp -d)
trap 'rm -r "$keys"' EXIT

# An authority, and a certificate that it signed.
openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days "$days" \
    -subj "/C=XY/O=Dask CA/CN=our-ca-server" -keyout "$keys/ca" -out ca.pem
openssl req -newkey rsa:2048 -nodes -subj "/C=XY/O=Dask/CN=localhost" \
    -keyout key.pem -out "$keys/request"
echo "basicConstraints=CA:FALSE" >"$keys/extensions"
openssl x509 -req -sha256 -days "$days" -in "$keys/request" \
    -CA ca.pem -CAkey "$keys/ca" -set_serial 1 -extfile "$keys/extensions" -out cert.pem

# The same without extensions, which is a certificate of X.509 version 1, and its key.
openssl x509 -req -sha256 -days "$days" -in "$keys/request" \
    -CA ca.pem -CAkey "$keys/ca" -set_serial 2 -out "$keys/v1"
cat "$keys/v1" key.pem >v1.pem

# One certificate for everything, and its key in the same file.
openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days "$days" -subj "/CN=cluster" \
    -keyout "$keys/own" -out "$keys/own-cert"
cat "$keys/own-cert" "$keys/own" >self-signed.pem

# A key that needs a passphrase, in both forms.
openssl pkcs8 -topk8 -in key.pem -passout pass:secret -out encrypted-key.pem
openssl rsa -in key.pem -aes128 -traditional -passout pass:secret -out encrypted-rsa-key.pem
