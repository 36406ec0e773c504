#!/usr/bin/env bash
# Kills processes at random bytes of a transfer of 1 GiB, once, preempts two hundred executions,
# and saves a sparse state of 20 GiB. Then simulates sites from fresh seeds, plays RAFTSEEDS (default 200) more with the real Raft in
# virtual time, repeats the end-to-end suite, and hurts real daemons on machines of their
# own for PARTITION minutes (default 10) a round, until SOAK (whole minutes, default 60)
# have passed. Stops at the first failure and says how to see it again.
#
#   SOAK=600 FIRST=1000000 scripts/soak.sh
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${SOAK:-60}
seed=${FIRST:-$(date +%s)}
batch=${BATCH:-2000}
raftseeds=${RAFTSEEDS:-200}
export FORGEYARD_BAZEL=1 # its story is told too
export CI=${CI:-true} # what a test needs must be there
first=$seed
rounds=0

echo "== a transfer of 1 GiB whose process is killed at random bytes"
FORGEYARD_TEST_KILL_MIB=1024 go test ./cas/peer -count=1 -timeout 30m -run '^TestC05KilledAtRandomBytes$' ||
  { echo "a killed transfer did not go on: FORGEYARD_TEST_KILL_MIB=1024 go test ./cas/peer -run TestC05KilledAtRandomBytes runs it again, with other bytes" >&2; exit 1; }

echo "== two hundred executions preempted at once, and a sparse state of 20 GiB"
go test ./e2e -count=1 -timeout 30m -run '^TestPreemptionStorm$' -args -long ||
  { echo "executions that were preempted did not all go on: go test ./e2e -run TestPreemptionStorm -args -long runs it again" >&2; exit 1; }
go test ./checkpoint/capture -count=1 -timeout 30m -run '^TestHolesComeBackAsHoles$' -args -sparse-mib=20480 ||
  { echo "a large sparse state was not kept as such: go test ./checkpoint/capture -run TestHolesComeBackAsHoles -args -sparse-mib=20480 runs it again" >&2; exit 1; }
while [ "$SECONDS" -lt $((minutes * 60)) ]; do
  echo "== seeds $seed to $((seed + batch - 1)), after $((SECONDS / 60)) of $minutes minutes"
  go test ./simulation -count=1 -timeout 0 -run '^TestSeeds$' -args "-seeds=$batch" "-seed=$seed" ||
    { echo "a seed failed; the line above names it: make sim SEED=n replays it" >&2; exit 1; }
  SEEDS=$raftseeds FIRST=$seed scripts/sim-raft.sh ||
    { echo "a site with the real Raft failed; the line above names it: make sim-raft SEED=n replays it" >&2; exit 1; }
  seed=$((seed + batch))
  go test $(go list ./e2e/... | grep -v /partition) -count=1 -timeout 30m ||
    { echo "the end-to-end suite failed in round $((rounds + 1)): make e2e runs it again" >&2; exit 1; }
  go test ./e2e/partition -count=1 -timeout 0 -args "-seed=$seed" "-minutes=${PARTITION:-10}" ||
    { echo "partitions failed: make partition SEED=$seed MINUTES=${PARTITION:-10} has the same weather" >&2; exit 1; }
  rounds=$((rounds + 1))
done
echo "soak: $((seed - first)) seeds from $first, $((rounds * raftseeds)) with the real Raft and $rounds end-to-end rounds in $((SECONDS / 60)) minutes, none failed"
