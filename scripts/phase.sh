#!/usr/bin/env bash
# phase.sh NAME COMMAND...: runs a command and says what it was, how it ended and
# how long it took.
set -uo pipefail
name=$1
shift
printf '== %s\n' "$name"
start=$SECONDS
"$@"
status=$?
took=$((SECONDS - start))
if [ "$status" -eq 0 ]; then
  printf '== %s: ok, %d s\n' "$name" "$took"
else
  printf '== %s: FAILED with %d after %d s: %s\n' "$name" "$status" "$took" "$*"
fi
exit "$status"
