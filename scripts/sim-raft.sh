#!/usr/bin/env bash
# Plays sites with the real Raft in virtual time (simulation/raftsim), built with an
# overlay of the Go runtime so that a seed replays byte for byte: one process a seed, one
# processor a process.
#
#   SEED=7 scripts/sim-raft.sh              one site, with its trace
#   SEEDS=100 FIRST=1 scripts/sim-raft.sh   many, without; stops at nothing, fails at the end
#   TESTS=regexp scripts/sim-raft.sh        the named stories and the seeded faults
#
# With a Go that the overlay does not know everything runs as well, and does not replay.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/.cache/sim-raft
mkdir -p "$out"
export CGO_ENABLED=0

go build -o "$out/overlay-tool" ./internal/overlay
flags=()
status=0
"$out/overlay-tool" -o "$out/overlay" || status=$?
case $status in
  0) flags=(-tags simoverlay -overlay "$out/overlay/overlay.json") ;;
  3) echo "sim-raft: without the overlay: what follows is checked, and does not replay" ;;
  *) exit "$status" ;;
esac
go test -c "${flags[@]}" -o "$out/raftsim.test" ./simulation/raftsim

# A run that has lost its way must not take the machine with it.
ulimit -d $((4 << 20))
run=(env -i "PATH=$PATH" "HOME=${HOME:-/}" GOMAXPROCS=1 GOGC=off GOTRACEBACK=all timeout -s QUIT -k 5 "${LIMIT:-180}" "$out/raftsim.test" -test.timeout 0)

if [ -n "${SEED:-}" ]; then
  exec "${run[@]}" -test.v -test.run '^TestSeed$' "-seed=$SEED"
fi
if [ -n "${TESTS:-}" ]; then
  exec "${run[@]}" -test.v -test.run "$TESTS"
fi

first=${FIRST:-1}
seeds=${SEEDS:-20}
logs=$out/logs
rm -rf "$logs"
mkdir -p "$logs"
began=$(date +%s.%N)
one() {
  local status=0
  "${@:2}" -test.run '^TestSeed$' "-seed=$1" >"$logs/$1" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    touch "$logs/failed"
    { echo "seed $1 failed with $status:"; head -c 20000 "$logs/$1"; echo "again: make sim-raft SEED=$1"; } >&2
  fi
}
export -f one
export logs
seq "$first" $((first + seeds - 1)) | xargs -P "$(nproc)" -I{} bash -c 'one "$@"' one {} "${run[@]}"
cat "$logs"/[0-9]* | awk -v took="$(echo "$(date +%s.%N) $began" | awk '{print $1 - $2}')" '
  /^PLAYED/ { n++; for (i = 2; i <= NF; i++) { split($i, kv, "="); sum[kv[1]] += kv[2] } }
  END {
    printf "%d sites with the real Raft, %.1f site-hours in %.0f s: %.1f site-hours per minute; %d commands, %d elections, %d jobs, %d reads, %d restarts, %d installs; %s\n",
      n, sum["virtual_s"] / 3600, took, sum["virtual_s"] / 60 / took, sum["commands"], sum["elections"], sum["jobs"], sum["reads"], sum["restarts"], sum["installs"],
      sum["replays"] == n ? "every one replays" : "they do not replay"
  }'
[ ! -e "$logs/failed" ]
