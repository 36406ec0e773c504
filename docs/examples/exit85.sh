#!/bin/sh
# Checkpoints the HTCondor way: leave the state in files, exit with 85, be started again.
# Needs no helper, and runs without Forgeyard too (then something else must restart it).
#
#   job:
#     steps: [{name: count, run: [sh, /work/source/exit85.sh, "1000", "250"]}]
#     outputs: [{path: result}]
#     resume: {mode: application, checkpoint: {exit_code: 85, files: [state/]}}
set -eu
total=$1 # steps of the whole work
part=$2  # steps between two checkpoints

mkdir -p state
if [ -n "${FORGEYARD_RESTORE_DIR:-}" ]; then
	cp -R "$FORGEYARD_RESTORE_DIR/state/." state/
	chmod -R u+w state # what was restored is read-only
fi

i=0 sum=0
if [ -f state/sum ]; then
	read -r i sum <state/sum
fi

stop=$((i + part))
while [ "$i" -lt "$total" ] && [ "$i" -lt "$stop" ]; do
	i=$((i + 1))
	sum=$(((sum * 31 + i) % 1000003)) # the work
done

echo "$i $sum" >state/sum
if [ "$i" -lt "$total" ]; then
	exit "${FORGEYARD_CKPT_EXIT_CODE:-85}"
fi
echo "$sum" >result
