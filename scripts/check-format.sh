#!/usr/bin/env bash
# Fails if a Go file is not as gofmt writes it, or a script is not valid bash.
set -euo pipefail
cd "$(dirname "$0")/.."
unformatted=$(find . -name '*.go' -not -path './.*' -not -path '*/testdata/*' -print0 | xargs -0 gofmt -l)
if [ -n "$unformatted" ]; then
  printf 'not as gofmt writes it:\n%s\nRun: gofmt -w on them\n' "$unformatted" >&2
  exit 1
fi
for script in scripts/*.sh .ci/run; do bash -n "$script"; done
