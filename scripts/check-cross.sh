#!/usr/bin/env bash
# Compiles every package for each platform given as os/arch. darwin and windows
# share the core and must compile; nothing runs here. The tests of the packages that only
# decide are checked too: what they show here must be what they would show there (RA-032).
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t pure < <(sed -n 's/^\t{dir: "\([^"]*\)",.*pure: true.*/.\/\1/p' internal/arch/table.go)
[ "${#pure[@]}" -ge 10 ] || { echo "check-cross: found ${#pure[@]} pure packages in internal/arch/table.go, there are more" >&2; exit 1; }
for platform in "$@"; do
  echo "compiling for $platform"
  export CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/}
  go build ./...
  go vet "${pure[@]}"
done
