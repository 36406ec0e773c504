#!/usr/bin/env bash
# Compiles every package for each platform given as os/arch. darwin and windows
# share the core and must compile; nothing runs here.
set -euo pipefail
cd "$(dirname "$0")/.."
for platform in "$@"; do
  echo "compiling for $platform"
  CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} go build ./...
done
