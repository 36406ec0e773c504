#!/bin/sh
# Checkpoints while the program goes on: fyjob seals a directory, and returns when the
# site has committed it. Runs without Forgeyard too: then fyjob is not there, or says 6.
#
#   job:
#     steps: [{name: count, run: [sh, /work/source/sealed.sh, "1000"]}]
#     outputs: [{path: result}]
#     resume: {mode: application, format: {name: count, version: 1}, checkpoint: {interval: 10m, window: 60s}}
set -eu
total=$1           # steps of the whole work
every=${2:-100000} # also save after so many steps, asked or not

save() {
	dir=$(fyjob ckpt begin) || return 0 # no checkpoint now; the work goes on
	echo "$i $sum" >"$dir/sum"
	code=0
	fyjob ckpt commit "$dir" --progress "$i/$total" || code=$?
	case $code in
	0 | 3) ;;                      # committed; or stored here, and committed when the site can
	5) exit 1 ;;                   # another epoch does this work: stop now
	*) echo "no checkpoint: $code" >&2 ;; # the reason is on stderr already
	esac
}

i=0 sum=0
if from=$(fyjob restore path 2>/dev/null); then
	if ! read -r i sum <"$from/sum"; then
		fyjob restore reject --reason "sum has no two numbers"
		exit "$FORGEYARD_CKPT_REJECT_CODE"
	fi
	fyjob restore ok
fi

while [ "$i" -lt "$total" ]; do
	i=$((i + 1))
	sum=$(((sum * 31 + i) % 1000003)) # the work
	if [ $((i % 100)) -ne 0 ]; then
		continue # asking costs a process, so not at each step
	fi
	if [ $((i % every)) -eq 0 ] || fyjob ckpt should 2>/dev/null; then
		save
	fi
	if fyjob ckpt should-exit 2>/dev/null; then
		exit "$FORGEYARD_CKPT_EXIT_CODE"
	fi
done
echo "$sum" >result
