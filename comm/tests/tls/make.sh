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

# As Dask's own test certificates (distributed/tests/make_tls_certs.py): an
# authority, and a certificate of X.509 version 1 that it signed.
openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days "$days" \
    -subj "/C=XY/O=Dask CA/CN=our-ca-server" -keyout "$keys/ca" -out ca.pem
openssl req -newkey rsa:2048 -nodes -subj "/C=XY/O=Dask/CN=localhost" \
    -keyout v1-key.pem -out "$keys/request"
openssl x509 -req -sha256 -days "$days" -in "$keys/request" \
    -CA ca.pem -CAkey "$keys/ca" -set_serial 1 -out v1-cert.pem

# The same kind of certificate, by an authority of the same name with another key.
openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days "$days" \
    -subj "/C=XY/O=Dask CA/CN=our-ca-server" -keyout "$keys/other" -out "$keys/other-ca"
openssl req -newkey rsa:2048 -nodes -subj "/C=XY/O=Dask/CN=localhost" \
    -keyout "$keys/forged" -out "$keys/request"
openssl x509 -req -sha256 -days "$days" -in "$keys/request" \
    -CA "$keys/other-ca" -CAkey "$keys/other" -set_serial 1 -out "$keys/forged-cert"
cat "$keys/forged-cert" "$keys/forged" >v1-forged.pem

# By the right authority, but over since 2020-01-31.
openssl req -newkey rsa:2048 -nodes -subj "/C=XY/O=Dask/CN=localhost" \
    -keyout "$keys/expired" -out "$keys/request"
openssl x509 -req -sha256 -days 30 -in "$keys/request" \
    -CA ca.pem -CAkey "$keys/ca" -set_serial 2 -out "$keys/expired-cert"
cat "$keys/expired-cert" "$keys/expired" >v1-expired.pem

# One certificate for everything, and its key in the same file.
openssl req -x509 -newkey rsa:2048 -nodes -sha256 -days "$days" -subj "/CN=cluster" \
    -keyout "$keys/own" -out "$keys/own-cert"
cat "$keys/own-cert" "$keys/own" >self-signed.pem

# A key that needs a passphrase, in both forms.
openssl pkcs8 -topk8 -in v1-key.pem -passout pass:secret -out encrypted-key.pem
openssl rsa -in v1-key.pem -aes128 -traditional -passout pass:secret -out encrypted-rsa-key.pem
