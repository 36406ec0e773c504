#!/bin/sh
# Publishes files, each once, wherever it is interrupted. An effect is written down before it
# is performed, and its outcome after; what lies between is found out by there.sh before the
# next epoch begins.
#
#   job:
#     steps: [{name: publish, run: [sh, /work/source/publish.sh, "http://registry:8099", /work/source/files]}]
#     network: host
#     effects:
#       keys:
#         publish/*:
#           policy: reconcile-before-resume
#           reconcile: [sh, /work/source/there.sh, "http://registry:8099", /work/source/files]
set -eu
registry=$1 dir=$2
version=${3:-1.0}

for file in "$dir"/*; do
	name=$(basename "$file")
	code=0
	fyjob effect begin "publish/$name" --kind publish --idem "$version" >"$name.was" || code=$?
	case $code in
	0) ;;                                      # written down: go
	8) echo "$name is out already"; continue ;; # the evidence is in $name.was
	5) exit 1 ;;                               # another epoch does this work: stop now
	*) echo "$name is not begun: $code" >&2; exit 1 ;; # 3 too: not known to be written down
	esac
	curl -fsS -X PUT -H "Fence-Token: $FORGEYARD_FENCE_TOKEN" --data-binary "@$file" "$registry/$name" >"$name.receipt"
	fyjob effect done "publish/$name" --evidence "$name.receipt"
	echo "$name is out"
done
