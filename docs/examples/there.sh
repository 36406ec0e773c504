#!/bin/sh
# Finds out what became of one effect of publish.sh: 0 done, 1 not done, anything else: a
# person has to look. It compares what is there, and shows the registry the new epoch's
# token, so that whoever ran before can store nothing any more.
set -eu
registry=$1 dir=$2
name=${FORGEYARD_EFFECT_KEY#publish/}

head=$(mktemp)
status=$(curl -sS -o /dev/null -D "$head" -w '%{http_code}' -I -H "Fence-Token: $FORGEYARD_FENCE_TOKEN" "$registry/$name") || exit 2
case $status in
404) exit 1 ;;
200) ;;
*) echo "the registry says $status" >&2; exit 2 ;;
esac
want=sha256:$(sha256sum "$dir/$name" | cut -d' ' -f1)
got=$(sed -n 's/^[Cc]ontent-[Dd]igest: *\([^[:space:]]*\).*/\1/p' "$head")
if [ "$got" != "$want" ]; then
	echo "other bytes are there: $got, want $want" >&2
	exit 3
fi
echo "$got"
