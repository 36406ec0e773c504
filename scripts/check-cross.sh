#!/usr/bin/env bash
# Compiles every package for each platform given as os/arch. darwin and windows
# share the core and must compile; nothing runs here. The tests are checked too: what those of
# the packages that only decide show here must be what they would show there (RA-032), and
# another may not lean on what its platform has not. The end-to-end suites are Linux's.
set -euo pipefail
cd "$(dirname "$0")/.."
for platform in "$@"; do
  echo "compiling for $platform"
  export CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/}
  go build ./...
  go vet $(go list ./... | grep -v '/e2e\(/\|$\)')
done
