#!/usr/bin/env bash
# Builds the peer that `make bench` compares with, etcd from its Go module, into .cache/.
# It is a module of its own and no part of the project. Prints the program's path.
set -euo pipefail
cd "$(dirname "$0")/.."
out="$PWD/.cache/etcdpeer"
mkdir -p "$out"
(cd internal/bench/etcdpeer && CGO_ENABLED=0 GOFLAGS= go build -trimpath -o "$out/etcdpeer" .) >&2
printf '%s\n' "$out/etcdpeer"
