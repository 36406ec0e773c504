#!/usr/bin/env bash
# Plays sites with the real Raft in virtual time (simulation/raftsim), built with an
# overlay of the Go runtime so that a seed replays byte for byte: one process a seed, one
# processor a process.
#
#   SEED=7 scripts/sim-raft.sh              one site, with its trace
#   SEEDS=100 FIRST=1 scripts/sim-raft.sh   many, without; stops at nothing, fails at the end
#   FAULT=heartbeats SEED=3 …               the same with a fault of faults_test.go put in
#   TESTS=TestFaults scripts/sim-raft.sh    every seeded fault, until it is seen
#   RENEW=1 scripts/sim-raft.sh             writes simulation/testdata/raft-digests anew
#
# What the first seeds end with is held against simulation/testdata/raft-digests, which
# another machine has written. With a Go that the overlay does not know everything runs as well, and does not replay.
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
# What lies where in memory is the same in each process: a map with pointers as keys is
# walked in an order that depends on it.
GOEXPERIMENT=norandomizedheapbase64 go test -c "${flags[@]}" -o "$out/raftsim.test" ./simulation/raftsim

# A run that has lost its way must not take the machine with it.
ulimit -Sd $((4 << 20)) 2>/dev/null || true
# Snapshots are files, and their machines lose power as the simulation wants it: what a
# real disk takes for a sync is waited for in vain.
tmp=${TMPDIR:-/tmp}
[ ! -w /dev/shm ] || tmp=/dev/shm
run=(env -i "PATH=$PATH" "HOME=${HOME:-/}" "TMPDIR=$tmp" GOMAXPROCS=1 GOGC=off GOTRACEBACK=all timeout -s QUIT -k 5 "${LIMIT:-180}" "$out/raftsim.test" -test.timeout 0)
fault=(-fault="${FAULT:-}")

if [ -n "${SEED:-}" ]; then
  exec "${run[@]}" -test.v -test.run '^TestSeed$' "${fault[@]}" "-seed=$SEED"
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
used() { # used VARIABLE: the processor time of all children so far
  times >"$out/times" # in a pipe it would be that of a subshell
  printf -v "$1" %s "$(awk 'NR == 2 { gsub(/[ms]/, " "); print $1 * 60 + $2 + $3 * 60 + $4 }' "$out/times")"
}
used before
one() {
  local status=0
  "${@:2}" -test.run '^TestSeed$' "-fault=${FAULT:-}" "-seed=$1" >"$logs/$1" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    touch "$logs/failed"
    { echo "seed $1 failed with $status:"; head -c 20000 "$logs/$1"; echo "again: make sim-raft SEED=$1"; } >&2
  fi
}
export -f one
export logs
seq "$first" $((first + seeds - 1)) | xargs -P "$(nproc)" -I{} bash -c 'one "$@"' one {} "${run[@]}"
used after
cat "$logs"/[0-9]* | awk -v took="$(echo "$(date +%s.%N) $began" | awk '{print $1 - $2}')" -v used="$(echo "$after $before" | awk '{print $1 - $2}')" '
  /^PLAYED/ { n++; for (i = 2; i <= NF; i++) { split($i, kv, "="); sum[kv[1]] += kv[2] } }
  END {
    printf "%d sites with the real Raft, %.1f site-hours in %.0f s: %.1f site-hours per minute, %.1f by the processor time of two cores; %d commands, %d elections, %d jobs, %d reads, %d restarts, %d leaders lost at once, %d installs; %s\n",
      n, sum["virtual_s"] / 3600, took, sum["virtual_s"] / 60 / took, sum["virtual_s"] / 30 / used, sum["commands"], sum["elections"], sum["jobs"], sum["reads"], sum["restarts"], sum["lost"], sum["installs"],
      sum["replays"] == n ? "every one replays" : "they do not replay"
  }'
[ ! -e "$logs/failed" ]

# The same seeds end with the same digests on every machine: with the same Go, and the
# sources that made them. A trace is made of what is compiled into it, tests included.
kept=simulation/testdata/raft-digests
mine=$out/digests
sources() {
  cat go.sum internal/overlay/edits.go simulation/raftsim/*_test.go
  go list -deps -f '{{with .Module}}{{if .Main}}{{range $.GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}' ./simulation/raftsim | LC_ALL=C sort | xargs cat
}
digests() {
  echo '# What `make sim-raft SEED=n` ends with, to be compared on other machines; see scripts/sim-raft.sh.'
  echo "go $(go env GOVERSION)"
  echo "sources $(sources | sha256sum | cut -c1-64)"
  for i in $(seq "$first" $((first + seeds - 1))); do
    sed -n "s/^PLAYED seed=\([0-9]*\) .* trace=\(b3:[0-9a-f]*\)$/seed \1 \2/p" "$logs/$i"
  done
}
if [ "${#flags[@]}" -gt 0 ] && [ -z "${FAULT:-}" ] && [ "$first" -eq 1 ]; then
  digests >"$mine"
  [ -z "${RENEW:-}" ] || cp "$mine" "$kept"
  same=$(comm -12 <(grep '^seed' "$kept" | LC_ALL=C sort) <(grep '^seed' "$mine" | LC_ALL=C sort) | wc -l)
  both=$(join <(grep '^seed' "$kept" | cut -d' ' -f2 | LC_ALL=C sort) <(grep '^seed' "$mine" | cut -d' ' -f2 | LC_ALL=C sort) | wc -l)
  again="if that is meant: make sim-raft RENEW=1"
  if [ "$same" -eq "$both" ]; then
    echo "$same sites end as they did on the machine that wrote $kept"
  elif ! diff -q <(grep '^go ' "$kept") <(grep '^go ' "$mine") >/dev/null; then
    echo "sim-raft: $kept was written with $(sed -n 's/^go //p' "$kept"), and this is $(go env GOVERSION), whose scheduler may choose otherwise: nothing to compare with; $again"
  elif diff -q <(grep '^sources ' "$kept") <(grep '^sources ' "$mine") >/dev/null; then
    echo "sim-raft: the same sources give other traces on this machine: $((both - same)) of $both sites do not replay here: diff $kept $mine" >&2
    exit 1
  else
    echo "sim-raft: the sources changed since $kept was written, and with them $((both - same)) of $both traces; $again" >&2
    [ -z "${CI:-}" ] || exit 1
  fi
fi

# The same seed gives the same bytes: an honest site, and one whose leader handles
# heartbeats beside its main loop (hashicorp/raft#695), which must be found and replayed.
[ "${#flags[@]}" -gt 0 ] || exit 0
# other is a run in other surroundings, which collects its garbage at other times: none of
# that may be seen.
other=(env -i "PATH=$PATH" HOME=/nowhere TZ=Asia/Kathmandu "SOME_OTHER=$RANDOM" GODEBUG=cpu.all=off "${run[@]:4}")
replay() { # replay SEED FAULT: plays twice at once, under different surroundings
  local a=$out/replay.1 b=$out/replay.2
  "${run[@]}" -test.v -test.run '^TestSeed$' "-seed=$1" "-fault=$2" >"$a" 2>&1 &
  (cd / && "${other[@]}" -test.v -test.run '^TestSeed$' -collect=24 "-seed=$1" "-fault=$2" >"$b" 2>&1) || true
  wait $! || true
  trace() { sed -n '/^ *0\.000000s/,/^TRACE/p; /^TRACE/q' "$1"; }
  if ! cmp <(trace "$a") <(trace "$b") || ! grep -q '^TRACE b3:' "$a"; then
    echo "sim-raft: seed $1 (fault: ${2:-none}) does not replay: see $a and $b" >&2
    exit 1
  fi
  echo "seed $1${2:+ with the fault $2} replays: $(trace "$a" | wc -l) lines, $(grep -m1 '^TRACE' "$a")"
}
replay "$first" ''
# Which seed finds it first moves with whatever moves a trace.
for seed in {1..12}; do
  replay "$seed" heartbeats
  ! grep -q 'BROKEN same-state' "$out/replay.1" || break
done
if ! grep -q 'BROKEN same-state' "$out/replay.1"; then
  echo "sim-raft: hashicorp/raft#695 was not found by 12 seeds with its guard taken out: see $out/replay.1" >&2
  exit 1
fi
grep -m1 'BROKEN same-state' "$out/replay.1"
