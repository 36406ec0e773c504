#!/usr/bin/env bash
# Runs every fuzz target of the module, each for FUZZTIME (default 10s).
#
#   FUZZTIME=1m scripts/fuzz.sh [PACKAGE-FOLDER...]    default: all of them
#
# What a target finds stays in its package's testdata/fuzz: commit it with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${FUZZTIME:-10s}

# Without hidden folders: .cache may hold a whole toolchain with its own targets.
targets=$(find "${@:-.}" -name '.?*' -prune -o -name '*_test.go' -print0 |
  xargs -0 -r grep -HoE '^func Fuzz[A-Za-z0-9_]*' |
  sed -E 's|/[^/]*_test.go:func | |; s|^([^./])|./\1|' | sort -u) || true
[ -n "$targets" ] || { echo "no fuzz target below ${*:-.}" >&2; exit 1; }

count=0
while read -r dir name; do
  echo "== $name in $dir, $fuzztime"
  # Making an interesting input smaller may take a minute, all of it taken from the search.
  go test "$dir" -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" -fuzzminimizetime 100x
  count=$((count + 1))
done <<<"$targets"
echo "$count fuzz targets ran for $fuzztime each"
