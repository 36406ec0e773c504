#!/usr/bin/env bash
# Generates the Go code of api/forgeyard/v1/*.proto.
#
#   scripts/generate.sh          writes it into the tree
#   scripts/generate.sh --check  fails if the tree has something else; says so and
#                                passes where protoc is not installed
#
# The plugins are those of go.mod. protoc only parses; its version stands in the
# header of each file and is not compared.
set -euo pipefail
cd "$(dirname "$0")/.."
module=$(sed -n 's/^module //p' go.mod)

protos=(api/forgeyard/v1/*.proto)
[ -e "${protos[0]}" ] || { echo "generate: api/forgeyard/v1 has no .proto file" >&2; exit 1; }
if ! command -v protoc >/dev/null 2>&1; then
  if [ "${1:-}" = --check ]; then
    echo "generate: not compared, protoc is not installed (Debian: protobuf-compiler)"
    exit 0
  fi
  echo "generate: protoc is not installed. Run: scripts/setup.sh generate" >&2
  exit 1
fi

out=.
if [ "${1:-}" = --check ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi

mkdir -p bin/tools
go build -o bin/tools/ google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
protoc -I api \
  --plugin=bin/tools/protoc-gen-go --go_out="$out" --go_opt="module=$module" \
  --plugin=bin/tools/protoc-gen-connect-go --connect-go_out="$out" --connect-go_opt="module=$module" \
  "${protos[@]}"
[ "$out" != . ] || exit 0

# In both directions: a file that nothing generates any more is stale too.
mapfile -t made < <(cd "$out" && find . -name '*.go' | sort)
mapfile -t kept < <(find ./api \( -name '*.pb.go' -o -name '*.connect.go' \) | sort)
if [ "${made[*]}" != "${kept[*]}" ]; then
  printf 'generate: the tree has %s\n          protoc made   %s\nRun: make generate\n' "${kept[*]}" "${made[*]}" >&2
  exit 1
fi
for f in "${made[@]}"; do
  diff -u -I '^//.*protoc' "$f" "$out/$f" || { echo "generate: $f is out of date. Run: make generate" >&2; exit 1; }
done
echo "generate: ${#made[@]} files are up to date"
