#!/bin/sh
# This project's own long run on machines that may be taken away: simulated sites from fresh
# seeds, so many of them, a batch at a time. After each batch it saves which one is next; what
# was played is not played again. See simulate.yaml.
set -eu
first=$1 # seed
count=$2 # of sites
batch=$3 # sites between two checkpoints

: >played
next=$first
if from=$(fyjob restore path); then
	cat "$from/played" >played
	read -r next <"$from/next"
	fyjob restore ok
fi

while [ "$next" -lt $((first + count)) ]; do
	"$(dirname "$0")/simrun" -seeds "$batch" -from "$next"
	echo "$next epoch $FORGEYARD_EPOCH" >>played
	next=$((next + batch))
	slot=$(fyjob ckpt begin)
	cp played "$slot/played"
	echo "$next" >"$slot/next"
	fyjob ckpt commit "$slot"
	if fyjob ckpt should-exit; then
		exit "$FORGEYARD_CKPT_EXIT_CODE"
	fi
done
