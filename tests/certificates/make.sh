#!/bin/sh
# Make the certificates of the tests anew: an authority, a server's and a client's.
set -eu
cd "$(dirname "$0")"
new="openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500"
$new -subj "/CN=uringloop test authority" -keyout ca.key -out ca.pem \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
$new -subj "/CN=localhost" -keyout server.key -out server.crt -CA ca.pem -CAkey ca.key \
    -addext "basicConstraints=critical,CA:FALSE" -addext "keyUsage=critical,digitalSignature" \
    -addext "extendedKeyUsage=serverAuth" \
    -addext "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"
$new -subj "/CN=uringloop test client" -keyout client.key -out client.crt -CA ca.pem -CAkey ca.key \
    -addext "basicConstraints=critical,CA:FALSE" -addext "keyUsage=critical,digitalSignature" \
    -addext "extendedKeyUsage=clientAuth"
cat server.crt server.key > server.pem
cat client.crt client.key > client.pem
rm ca.key server.crt server.key client.crt client.key
